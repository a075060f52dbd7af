"""Rows of stored files with their positions: all of them, those that may match, or those at given positions.

In: paths of Parquet files, columns, ranges of wanted values.
Out: record batches in the declared types, each with the position of its first row.
Promise: a row group is passed over only if its statistics prove that no row lies inside the ranges; memory holds one batch and a bounded number of footers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from righttime.errors import WarehouseDamaged
from righttime.warehouse.store import EVERYTHING, Positions, Ranges, StoredRows

BATCH_ROWS_MAX = 131_072
FOOTERS_MAX = 4_096  # files whose bounds are remembered, per table

Bounds = tuple[Any, Any] | None  # of one column in one row group; (None, None) if it holds only nulls, None if nothing is known
_ONLY_NULLS: Bounds = (None, None)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A part of a file that can be read alone: its number, the position of its first row, its rows."""

    number: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Footer:
    groups: tuple[RowGroup, ...]
    bounds: Mapping[str, tuple[Bounds, ...]]


class Footers:
    """What the footers of one table's files say, remembered; a file never changes. Safe to call from any thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Footer] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, path: str) -> int:
        """Return how many rows a file has."""
        return sum(group.rows for group in self.groups(path))

    def groups(self, path: str, *, ranges: Ranges = EVERYTHING) -> list[RowGroup]:
        """Return the row groups of a file that may hold a row inside all ranges."""
        footer = self._footer(path, ranges)
        return [group for group in footer.groups if all(_may_hold(footer.bounds[column][group.number], low, high) for column, (low, high) in ranges.items())]

    def _footer(self, path: str, columns: Iterable[str]) -> _Footer:
        with self._lock:
            known = self._known.get(path)
            if known is not None and all(column in known.bounds for column in columns):
                self._known.move_to_end(path)
                return known
        footer = _read_footer(path, {*columns, *(known.bounds if known else ())})
        with self._lock:
            self._known[path] = footer
            self._known.move_to_end(path)
            while len(self._known) > FOOTERS_MAX:
                self._known.popitem(last=False)
        return footer


def _read_footer(path: str, columns: Iterable[str]) -> _Footer:
    with reading_errors(path):
        metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    firsts = np.cumsum([0, *(group.num_rows for group in groups)]).tolist()
    places = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    return _Footer(
        tuple(RowGroup(number, firsts[number], group.num_rows) for number, group in enumerate(groups)),
        {column: tuple(_bounds(group, places.get(column)) for group in groups) for column in columns},
    )


def _bounds(group: Any, index: int | None) -> Bounds:
    found = None if index is None else group.column(index).statistics
    if found is None:
        return None
    if not found.has_min_max:
        return _ONLY_NULLS if found.has_null_count and found.null_count == group.num_rows else None
    try:
        return found.min, found.max
    except (ValueError, OverflowError):  # a date beyond what Python can name, a text that was cut inside a character
        return None


def _may_hold(bounds: Bounds, low: Any, high: Any) -> bool:
    """Say whether a value from `low` to `high` can lie within the bounds; yes whenever the two cannot be compared exactly."""
    if bounds is None or (low is None and high is None):
        return True
    least, most = bounds
    if least is None:
        return False
    if any(value is not None and isinstance(value, float) != isinstance(least, float) for value in (low, high)):
        return True  # an engine that compares them rounds one of them first
    if isinstance(least, float) and (high is None or high != high):
        return True  # NaN is above all numbers, and writers leave it out of their bounds
    try:
        return not ((low is not None and most < low) or (high is not None and least > high))
    except TypeError:
        return True


def scan_files(paths: Sequence[str], columns: pa.Schema, footers: Footers, *, ranges: Ranges) -> Iterator[StoredRows]:
    """Yield the rows of the files, without row groups that have none inside the ranges."""
    for path in paths:
        for first, batch in read_batches(path, columns, footers.groups(path, ranges=ranges)):
            yield StoredRows(path, np.arange(first, first + batch.num_rows, dtype=np.int64), batch)


def rows_at(path: str, columns: pa.Schema, footers: Footers, positions: Positions) -> pa.Table:
    """Return the rows at these positions, in this order."""
    wanted, order = np.unique(positions, return_inverse=True)
    groups = [group for group in footers.groups(path) if np.diff(np.searchsorted(wanted, [group.first, group.first + group.rows]))[0]]
    parts: list[pa.RecordBatch] = []
    for first, batch in read_batches(path, columns, groups):
        start, stop = np.searchsorted(wanted, [first, first + batch.num_rows])
        if start < stop:
            parts.append(batch.take(pa.array(wanted[start:stop] - first)))
        if stop == len(wanted):
            break
    found = pa.Table.from_batches(parts, schema=columns)
    assert found.num_rows == len(wanted), f"{path} has no row at one of these positions"
    in_order = np.array_equal(order, np.arange(len(order)))
    return found if in_order else found.combine_chunks().take(pa.array(order))


def read_batches(path: str, columns: pa.Schema, groups: Sequence[RowGroup]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of some row groups in the declared types, with the position of each batch's first row."""
    if not groups:
        return
    with reading_errors(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        for group in groups:
            first = group.first
            for batch in file.iter_batches(BATCH_ROWS_MAX, row_groups=[group.number], columns=columns.names):
                yield first, _conformed(batch, columns)
                first += batch.num_rows


def _conformed(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return the columns in their order and types; other writers know other orders, and that everything may be null."""
    if not columns.names:
        return batch  # selecting nothing would also lose the number of rows
    return batch.select(columns.names).cast(columns)


@contextmanager
def reading_errors(path: str) -> Iterator[None]:
    """Turn what goes wrong while a stored file is read into `WarehouseDamaged`."""
    try:
        yield
    except FileNotFoundError as error:
        raise WarehouseDamaged(path=path, reason="a data file is missing") from error
    except (OSError, pa.ArrowException, UnicodeError) as error:
        raise WarehouseDamaged(path=path, reason=f"a data file cannot be read ({str(error).partition(chr(10))[0]})") from error
