"""The catalyst seen from other processes: scans of hot rows, and loading over the wire.

In: a million rows of six integers; `righttime serve` in a process of its own.
Out: the scan of hot rows over the scan of stored ones, rows per second over Flight.
Promise: both sides in one run, in turns.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import righttime as rt
from benchmarks.figure import Figure, Row, arrow_rows, in_batches, rows_per_second, tuple_rows
from benchmarks.ours import DDL, ROOM, TABLE, warehouse
from benchmarks.timing import interleaved
from tests.support.services import Service

ROWS = 1_000_000


def run() -> list[Figure]:
    """Measure scans, then loading."""
    return [*_scans(), *_loading()]


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
