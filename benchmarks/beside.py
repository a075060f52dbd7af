"""A loader beside a reader in another process: what its rows cost to be read while they come.

In: orders with texts, decimals and dates, committed every 100 and stored at the end; integers that stay in memory, where a loader is fastest.
Out: the loader's rate beside a reader that counts all the time, over its rate beside a control, and over its rate alone.
Promise: in one run, in turns. The loader serves its own warehouse, pinned to one core, and the reader with its Spark to another; PostgreSQL is measured in the
same way. What a busy neighbour costs on this machine, its memory and its kernel, is measured by the control: the same reader over as many rows of a plain
Parquet copy, of which the service knows nothing.
"""

import datetime
import decimal
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

import righttime as rt
from benchmarks.figure import COLUMNS, SEED, Figure, rows_per_second, tuple_rows
from benchmarks.ours import DDL, ROOM
from righttime.flight.server import FlightService
from tests.support.postgres import TempPostgres

ROWS = 1_000_000
ORDERS = 300_000
ROUNDS = 3
PASSES = 3  # over the rows in one load: long enough for a dozen queries
BATCH = 100
GOAL = 1 - 0.033
ORDER = "orderkey BIGINT, custkey INT, orderstatus STRING, totalprice DECIMAL(15,2), orderdate DATE, shippriority INT"

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


@dataclass(frozen=True, slots=True)
class Load:
    """Rows for one table, loaded several times over; `stored` when the last is committed, within the clock."""

    name: str
    ddl: str
    rows: Sequence[tuple[Any, ...]]
    stored: bool
    goal: float | None = None


def run() -> list[Figure]:
    """Measure both loads, and PostgreSQL."""
    integers = tuple_rows(ROWS)
    loads = [
        Load("orders, commit every 100, stored at the end", ORDER, _orders(ORDERS), stored=True, goal=GOAL),
        Load("integers, commit every 100, nothing stored", DDL, integers, stored=False),
    ]
    cores = sorted(os.sched_getaffinity(0))
    with _pinned(cores[0]):
        postgres = _postgres(integers[: ROWS // 4], core=cores[-1])
        return [figure for load in loads for figure in _figures(load, cores, postgres)]


def _figures(load: Load, cores: Sequence[int], postgres: float) -> list[Figure]:
    beside: dict[str, list[float]] = {"nobody": [], "a reader of files": [], "a reader": []}
    with _plain_copy(load) as copy:
        for _ in range(ROUNDS):
            for neighbour, rates in beside.items():
                rates.append(_load_beside(load, neighbour, copy=copy, core=cores[-1]))
    alone, control, ours = (statistics.median(rates) for rates in beside.values())
    kept: dict[str, float | str] = {"ours": ours / alone, "control": control / alone, "PostgreSQL": postgres}
    name = f"loader beside a reader in another process: {load.name}"
    cost = f"rival: beside the same reader of a plain Parquet copy; {len(cores)} cores, one for the reader"
    raw = f"rival: alone; the control {kept['control']:.3}; PostgreSQL, COPY every 100: {postgres:.3}"
    return [
        Figure(name, "rows/s", ours=ours, rival=control, goal=load.goal, note=cost, context=kept),
        Figure(f"{name}, over alone", "rows/s", ours=ours, rival=alone, note=raw, context=kept),
    ]


def _orders(count: int) -> list[tuple[Any, ...]]:
    """Return rows as in the table of orders of TPC-H."""
    dice, first = random.Random(SEED), datetime.date(1992, 1, 1)
    return [
        (
            key,
            dice.randrange(100_000),
            "FOP"[dice.randrange(3)],
            decimal.Decimal(dice.randrange(50_000_000)).scaleb(-2),
            first + datetime.timedelta(dice.randrange(2_400)),
            0,
        )
        for key in range(count)
    ]


@contextmanager
def _plain_copy(load: Load) -> Iterator[Path]:
    """As many rows as a reader finds on average while the loader works, in files as the service has them: uncompressed, in shared memory."""
    shared = Path("/dev/shm")
    columns = [pa.array(column) for column in zip(*load.rows[: max(PASSES * len(load.rows) // 8, 1)], strict=True)]
    rows = pa.table(dict(zip((part.split()[0] for part in load.ddl.split(", ")), columns, strict=True)))
    with tempfile.TemporaryDirectory(prefix="rt_bench_", dir=shared if shared.is_dir() else None) as folder:
        for number in range(4):
            pq.write_table(rows, Path(folder) / f"{number}.parquet", compression="none", use_dictionary=False)
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


def _load_beside(load: Load, neighbour: str, *, copy: Path, core: int) -> float:
    with tempfile.TemporaryDirectory(prefix="rt_bench_") as folder, rt.open(Path(folder) / "wh", **ROOM) as wh:
        wh.create_table("sale", load.ddl)
        service = FlightService(wh, wh._writer("serve"))
        try:
            producer = wh.producer(name="bench")
            producer.insert("sale", load.rows[0])
            producer.commit()
            if neighbour == "nobody":
                return rows_per_second(lambda: _loaded(wh, producer, load))
            program, target = (_READER, f"righttime://127.0.0.1:{service.port}") if neighbour == "a reader" else (_CONTROL, str(copy))
            with _reader(program, target, core=core):
                return rows_per_second(lambda: _loaded(wh, producer, load))
        finally:
            service.stop()


def _loaded(wh: rt.Warehouse, producer: rt.Producer, load: Load) -> int:
    for _ in range(PASSES):
        for begin in range(0, len(load.rows), BATCH):
            producer.insert_many("sale", load.rows[begin : begin + BATCH])
            producer.commit()
    if load.stored:
        wh.materialize("sale")
    return PASSES * len(load.rows)


def _postgres(rows: Sequence[tuple[int, ...]], *, core: int) -> float:
    """Return the rate of COPY every 100 rows beside a reader, over its rate alone."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    with TempPostgres() as server:
        for _ in range(ROUNDS):
            for reading, seen in rates.items():
                seen.append(_copied_beside(server, rows, reading=reading, core=core))
    return statistics.median(rates[True]) / statistics.median(rates[False])


def _copied_beside(server: TempPostgres, rows: Sequence[tuple[int, ...]], *, reading: bool, core: int) -> float:
    with psycopg.connect(server.dsn) as connection:
        connection.execute("DROP TABLE IF EXISTS sale")
        connection.execute(f"CREATE TABLE sale ({', '.join(f'{name} INT' for name in COLUMNS)})".encode())
        connection.commit()

        def copy() -> int:
            with connection.cursor() as cursor:
                for begin in range(0, len(rows), BATCH):
                    with cursor.copy("COPY sale FROM STDIN (FORMAT BINARY)") as into:
                        into.set_types(["int4"] * len(COLUMNS))
                        for row in rows[begin : begin + BATCH]:
                            into.write_row(row)
                    connection.commit()
            return len(rows)

        if not reading:
            return rows_per_second(copy)
        with _reader(_POSTGRES_READER, server.dsn, core=core):
            return rows_per_second(copy)
