"""The catalyst seen from other processes: scans of hot rows, the cost of a constant reader, and loading over the wire.

In: a million rows of six integers; `righttime serve` in a process of its own, and a reader in another one.
Out: the scan of hot rows over the scan of stored ones, the loader's rate with a reader over its rate alone, rows per second over Flight.
Promise: both sides in one run, in turns. For the reader's cost the loader serves its own warehouse, pinned to one core, and the reader with its
Spark to the other, as the sheet asks for on two cores; PostgreSQL is measured in the same way. What a busy neighbour costs on this machine, its
memory and its kernel, is measured by a control: the same reader over as many rows of a plain Parquet copy, of which the service knows nothing.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pyarrow.parquet as pq

import righttime as rt
from benchmarks.figure import COLUMNS, Figure, Row, arrow_rows, in_batches, rows_per_second, tuple_rows
from benchmarks.ours import DDL, ROOM, TABLE, warehouse
from benchmarks.timing import interleaved
from righttime.flight.server import FlightService
from tests.support.postgres import TempPostgres
from tests.support.services import Service

ROWS = 1_000_000
ROUNDS = 3
QUERY = "SELECT count(*) FROM sale"

# Prints a line when the first query is answered, then goes on until it is killed.
_READER = """
import sys, righttime as rt
with rt.open(sys.argv[1], spark_master="local[1]") as wh:
    while True:
        wh.sql("SELECT count(*) FROM sale")
        print("read", flush=True)
"""
# The same Spark and the same query, as often as it can, over files that nobody writes.
_CONTROL = """
import sys
from righttime.pipeline.spark import SparkOwner
from righttime.settings import load_settings
owner = SparkOwner(load_settings(spark_master="local[1]"))
while True:
    child = owner.child()
    child.read.parquet(sys.argv[1]).createOrReplaceTempView("sale")
    child.sql("SELECT count(*) FROM sale").toArrow()
    print("read", flush=True)
"""
_POSTGRES_READER = """
import sys, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    while True:
        connection.execute("SELECT count(*) FROM sale").fetchone()
        print("read", flush=True)
"""


def run() -> list[Figure]:
    """Measure scans, then the reader, then loading."""
    return [*_scans(), *_readers(), *_loading()]


@contextmanager
def _served() -> Iterator[rt.Warehouse]:
    with tempfile.TemporaryDirectory(prefix="rt_bench_") as folder:
        service = Service(Path(folder) / "wh", **ROOM)
        try:
            with rt.open(service.address) as wh:
                yield wh
        finally:
            service.terminate()


def _scans() -> list[Figure]:
    rows = arrow_rows(ROWS)
    with _served() as wh:
        for table in ("hot", "stored"):
            wh.create_table(table, DDL)
            with wh.producer(name=table) as load:
                load.insert_arrow(table, rows)
                load.commit(materialize=table == "stored")
        spark = interleaved({table: _sum(wh, table) for table in ("hot", "stored")}, rounds=15, warm=5)
        plain = interleaved({table: _read(wh, table) for table in ("hot", "stored")}, rounds=9, warm=2)
    return [
        Figure("scan of 1 M hot rows from another process, Spark", "rows/s", ours=ROWS / spark["hot"], rival=ROWS / spark["stored"], goal=0.93),
        Figure("read of 1 M hot rows from another process, no Spark", "rows/s", ours=ROWS / plain["hot"], rival=ROWS / plain["stored"], goal=0.93),
    ]


def _sum(wh: rt.Warehouse, table: str) -> Callable[[], object]:
    return lambda: wh.sql(f"SELECT sum(c0), sum(c5) FROM {table}")


def _read(wh: rt.Warehouse, table: str) -> Callable[[], object]:
    return lambda: wh.read(table)


def _readers() -> list[Figure]:
    rows = tuple_rows(ROWS)
    cores = sorted(os.sched_getaffinity(0))
    beside: dict[str, list[float]] = {"nobody": [], "a reader of files": [], "a reader": []}
    theirs: dict[bool, list[float]] = {False: [], True: []}
    with TempPostgres() as server, _plain_copy() as copy, _pinned(cores[0]):
        for _ in range(ROUNDS):
            for neighbour, rates in beside.items():
                rates.append(_load_beside(rows, neighbour, copy=copy, core=cores[-1]))
            for reading in (False, True):
                theirs[reading].append(_copy_beside_reader(server, rows[: ROWS // 4], reading=reading, core=cores[-1]))
    alone, control, ours = (statistics.median(rates) for rates in beside.values())
    postgres = statistics.median(theirs[True]) / statistics.median(theirs[False])
    kept: dict[str, float | str] = {"ours": ours / alone, "control": control / alone, "PostgreSQL": postgres}
    name = "loader, commit every 100, beside a reader in another process"
    cost = f"rival: beside the same reader of a plain Parquet copy; {len(cores)} cores, one for the reader"
    raw = f"rival: alone; the control {kept['control']:.3}; PostgreSQL, COPY every 100: {postgres:.3}"
    return [
        Figure(name, "rows/s", ours=ours, rival=control, goal=1 - 0.033, note=cost, context=kept),
        Figure(f"{name}, over alone", "rows/s", ours=ours, rival=alone, note=raw, context=kept),
    ]


@contextmanager
def _plain_copy() -> Iterator[Path]:
    """As many rows as a reader finds on average while the loader works, in files as the service has them: uncompressed, in shared memory."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="rt_bench_", dir=shared if shared.is_dir() else None) as folder:
        for number in range(4):
            pq.write_table(arrow_rows(ROUNDS * ROWS // 8), Path(folder) / f"{number}.parquet", compression="none", use_dictionary=False)
        yield Path(folder)


@contextmanager
def _pinned(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _reader(program: str, target: str, *, core: int) -> Iterator[None]:
    """Run a reader on one core, from its first answer on."""
    process = subprocess.Popen([sys.executable, "-c", program, target], stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


def _load_beside(rows: list[Row], neighbour: str, *, copy: Path, core: int) -> float:
    with warehouse() as wh:
        service = FlightService(wh, wh._writer("serve"))
        try:
            load = wh.producer(name="bench")
            load.insert(TABLE, rows[0])
            load.commit()
            if neighbour == "nobody":
                return rows_per_second(lambda: _load(load, rows))
            program, target = (_READER, f"righttime://127.0.0.1:{service.port}") if neighbour == "a reader" else (_CONTROL, str(copy))
            with _reader(program, target, core=core):
                return rows_per_second(lambda: _load(load, rows))
        finally:
            service.stop()


def _load(load: rt.Producer, rows: list[Row]) -> int:
    for _ in range(ROUNDS):  # long enough for a dozen queries
        for batch in in_batches(rows, 100):
            load.insert_many(TABLE, batch)
            load.commit()
    return ROUNDS * len(rows)


def _copy_beside_reader(server: TempPostgres, rows: list[Row], *, reading: bool, core: int) -> float:
    with psycopg.connect(server.dsn) as connection:
        connection.execute("DROP TABLE IF EXISTS sale")
        connection.execute(f"CREATE TABLE sale ({', '.join(f'{name} INT' for name in COLUMNS)})".encode())
        connection.commit()

        def copy() -> int:
            with connection.cursor() as cursor:
                for batch in in_batches(rows, 100):
                    with cursor.copy("COPY sale FROM STDIN (FORMAT BINARY)") as into:
                        into.set_types(["int4"] * len(COLUMNS))
                        for row in batch:
                            into.write_row(row)
                    connection.commit()
            return len(rows)

        if not reading:
            return rows_per_second(copy)
        with _reader(_POSTGRES_READER, server.dsn, core=core):
            return rows_per_second(copy)


def _loading() -> list[Figure]:
    """Commits of 100 rows over the wire, immediate and lazy, beside the same in one process."""
    rows = tuple_rows(ROWS // 4)
    with warehouse() as wh:
        load = wh.producer(name="bench")
        inside = rows_per_second(lambda: _load_once(load, rows))
    figures = []
    with _served() as wh:
        for policy in (rt.Immediate(), rt.OnDemand()):
            name = type(policy).__name__
            wh.create_table(f"sale_{name}", DDL)
            with wh.producer(name=name, policy=policy) as load:
                begun_s = time.perf_counter()
                count = _load_once(load, rows, table=f"sale_{name}")
                load.flush()
                rate = count / (time.perf_counter() - begun_s)
            figures.append(Figure(f"loading over the wire, commit every 100, {name}", "rows/s", ours=rate, rival=inside, note="rival: in one process"))
    return figures


def _load_once(load: rt.Producer, rows: list[Row], table: str = TABLE) -> int:
    for batch in in_batches(rows, 100):
        load.insert_many(table, batch)
        load.commit()
    return len(rows)
