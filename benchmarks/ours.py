"""righttime's side of the figures: a fresh warehouse, the same rows, the same cuts into commits.

In: rows of six integers.
Out: how many rows are visible to a new query afterwards.
Promise: the clock runs until every row is visible; the row API is used unless a figure says otherwise.
"""

import tempfile
from collections.abc import Iterator
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


def commit_every(rows: list[Row], *, size: int, policy: rt.Policy | None = None) -> int:
    """Load all rows with a commit every `size` rows, nothing materialized; lazy policies flush at the end."""
    with warehouse() as wh:
        load = wh.producer(name="bench", policy=policy)
        for batch in in_batches(rows, size):
            load.insert_many(TABLE, batch)
            load.commit()
        load.flush()
        return wh.status().tables[0].rows_hot


def commit_every_row_by_row(rows: list[Row], *, size: int) -> int:
    """The same, one `insert` call per row."""
    with warehouse() as wh:
        load = wh.producer(name="bench")
        for batch in in_batches(rows, size):
            for row in batch:
                load.insert(TABLE, row)
            load.commit()
        return wh.status().tables[0].rows_hot


def commit_every_arrow(rows: pa.Table, *, size: int) -> int:
    """The same with Arrow batches."""
    with warehouse() as wh:
        load = wh.producer(name="bench")
        for begin in range(0, rows.num_rows, size):
            load.insert_arrow(TABLE, rows.slice(begin, size))
            load.commit()
        return wh.status().tables[0].rows_hot
