"""What a constant reader costs the producer.

In: three million rows loaded with a commit every 100, alone and while another thread queries all the time.
Out: the producer's rate with the reader over its rate alone, for a reader without Spark and one on Spark.
Promise: both rates in one run, in turns. On two cores the reader's own work competes with the producer, so the note says what was left.
"""

import os
import statistics
import threading
import time

from benchmarks.figure import Figure, Row, in_batches, tuple_rows
from benchmarks.ours import TABLE, warehouse

ROWS = 1_000_000
QUERY = f"SELECT sum(c5) FROM {TABLE}"
ROUNDS = 3
PASSES = 3  # long enough for a dozen queries


def run() -> list[Figure]:
    """Measure alone and with a reader, in turns."""
    rows = tuple_rows(ROWS)
    with warehouse(spark_master="local[1]") as wh:  # one core for Spark, the others for the producer
        wh.sql(QUERY)  # Spark is up before any clock runs
        rates: dict[str, list[tuple[float, float]]] = {"alone": [], "with": []}
        for _ in range(ROUNDS):
            rates["alone"].append(_load(rows, reading=False))
            rates["with"].append(_load(rows, reading=True))
    alone = statistics.median(rate for rate, _ in rates["alone"])
    reading = statistics.median(rate for rate, _ in rates["with"])
    alone_cpu = statistics.median(rate for _, rate in rates["alone"])
    reading_cpu = statistics.median(rate for _, rate in rates["with"])
    cores = len(os.sched_getaffinity(0))
    return [
        Figure(
            "producer with a constant Spark reader, wall clock",
            "rows/s",
            ours=reading,
            rival=alone,
            goal=0.97,
            note=f"{cores} cores, Spark on one of them",
        ),
        Figure("producer with a constant Spark reader, rows per second of its own CPU", "rows/s", ours=reading_cpu, rival=alone_cpu, goal=0.97),
    ]


def _load(rows: list[Row], *, reading: bool) -> tuple[float, float]:
    """Return rows per second of wall clock and of the producer thread's CPU."""
    with warehouse() as wh:
        stop, reading_now = threading.Event(), threading.Event()

        def read() -> None:
            while not stop.is_set():
                wh.sql(QUERY)
                reading_now.set()

        reader = threading.Thread(target=read)
        if reading:
            reader.start()
            assert reading_now.wait(timeout=60)
        load = wh.producer(name="bench")
        begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
        for _ in range(PASSES):
            for batch in in_batches(rows, 100):
                load.insert_many(TABLE, batch)
                load.commit()
        wall_s, cpu_s = time.perf_counter() - begun_s, time.thread_time() - begun_cpu_s
        stop.set()
        if reading:
            reader.join()
        return PASSES * len(rows) / wall_s, PASSES * len(rows) / cpu_s
