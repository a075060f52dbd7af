"""righttime's side of the figures: a fresh warehouse, the same rows, the same cuts into commits.

In: rows of six integers.
Out: rows per second.
Promise: the clock runs from the first insert until every row is visible to a new query.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import righttime as rt
from benchmarks.figure import COLUMNS, Row, in_batches

TABLE = "sale"
DDL = ", ".join(f"{name} INT" for name in COLUMNS)
# Large enough that no figure but the one about them meets a bound.
ROOM: dict[str, Any] = {"memory_bytes_max": 1 << 31, "bypass_bytes": 1 << 31, "archive_bytes_max": 1 << 31}


@contextmanager
def warehouse(**settings: Any) -> Iterator[rt.Warehouse]:
    """Give a new warehouse with one table, in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="rt_bench_") as folder, rt.open(Path(folder) / "wh", **(ROOM | settings)) as wh:
        wh.create_table(TABLE, DDL)
        yield wh


def commit_every(rows: list[Row], *, size: int, policy: rt.Policy | None = None) -> float:
    """Return rows per second with a commit every `size` rows, nothing materialized; lazy policies flush before the clock stops."""
    batches = list(in_batches(rows, size))

    def load(producer: rt.Producer) -> None:
        for batch in batches:
            producer.insert_many(TABLE, batch)
            producer.commit()

    return _rate(load, len(rows), policy)


def commit_every_row_by_row(rows: list[Row], *, size: int) -> float:
    """The same, one `insert` call per row."""
    batches = list(in_batches(rows, size))

    def load(producer: rt.Producer) -> None:
        for batch in batches:
            for row in batch:
                producer.insert(TABLE, row)
            producer.commit()

    return _rate(load, len(rows), None)


def commit_every_arrow(rows: pa.Table, *, size: int) -> float:
    """The same with Arrow batches."""
    batches = [rows.slice(begin, size) for begin in range(0, rows.num_rows, size)]

    def load(producer: rt.Producer) -> None:
        for batch in batches:
            producer.insert_arrow(TABLE, batch)
            producer.commit()

    return _rate(load, rows.num_rows, None)


def _rate(load: Callable[[rt.Producer], None], count: int, policy: rt.Policy | None) -> float:
    """Time a load into an open warehouse, as the rivals load into an open database."""
    with warehouse() as wh:
        producer = wh.producer(name="bench", policy=policy)
        begun_s = time.perf_counter()
        load(producer)
        producer.flush()
        elapsed_s = time.perf_counter() - begun_s
        assert wh.status().tables[0].rows_hot == count
        return count / elapsed_s
