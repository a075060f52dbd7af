"""Segments: sealed rows in files, and rows of slices whatever they are kept in.

In: slices of lanes.
Out: their rows as Arrow, without those that do not count.
Promise: a segment's file lives as long as somebody refers to the segment.
"""

import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from righttime.catalyst.ends import NONE
from righttime.catalyst.table import Slice
from righttime.changes.operations import Numbers
from righttime.changes.rows import Chunk, table_of

_BATCH_ROWS = 1 << 20


class Segment:
    """Sealed rows in one uncompressed Parquet file; the file goes when the last reference to the segment goes."""

    __slots__ = ("__weakref__", "in_memory", "nbytes", "path", "rows")

    def __init__(self, path: Path, *, rows: int, in_memory: bool) -> None:
        self.path = str(path)
        self.rows = rows
        self.nbytes = path.stat().st_size
        self.in_memory = in_memory
        # Not at exit: then the whole folder goes, and a forked child that ends must not take its parent's files along.
        weakref.finalize(self, _unlink_own, self.path, os.getpid()).atexit = False

    def read(self, columns: pa.Schema) -> pa.Table:
        """Return the rows as Arrow."""
        return pq.read_table(self.path, schema=columns, memory_map=True)


def rows_of(slices: Sequence[Slice], columns: pa.Schema, names: Sequence[str] | None = None) -> pa.Table:
    """Return slices as one Arrow table, in order: all columns, or only the named ones."""
    chosen = columns if names is None else pa.schema([columns.field(name) for name in names])
    tables: list[pa.Table] = []
    chunks: list[Chunk] = []
    for piece, start, stop in slices:
        content = piece.content
        if isinstance(content, Chunk):
            chunks.append(content if stop - start == content.rows else content.slice(start, stop))
        else:
            assert isinstance(content, Segment)
            if chunks:
                tables.append(table_of(chunks, columns).select(chosen.names))
                chunks = []
            tables.append(content.read(chosen).slice(start, stop - start))
    if chunks or not tables:
        tables.append(table_of(chunks, columns).select(chosen.names))
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def joined(rows: pa.Table) -> pa.Table:
    """Return the rows in one piece; in several if there is more text in them than one piece can hold."""
    try:
        return rows.combine_chunks()
    except pa.ArrowInvalid:  # of texts within arrays and structs; others are left in several pieces without that
        return rows


def visible_rows(slices: Sequence[Slice], columns: pa.Schema, hidden: Numbers) -> pa.Table:
    """Return slices as one Arrow table, without the rows whose ids are in the ascending array `hidden`."""
    rows = rows_of(slices, columns)
    if not len(hidden):
        return rows
    gone = all_positions(slices, hidden)
    if not len(gone):
        return rows
    kept = np.ones(rows.num_rows, dtype=bool)
    kept[gone] = False
    return rows.filter(pa.array(kept))


def all_positions(slices: Sequence[Slice], ids: Numbers) -> Numbers:
    """Return the places, in the rows of all these slices, of those that the ascending array `ids` names."""
    if not len(ids):
        return NONE
    before = [0, *np.cumsum([part.rows for part in slices]).tolist()][: len(slices)]
    return np.concatenate([NONE, *(positions(part, ids) + rows for part, rows in zip(slices, before, strict=True))])


def positions(part: Slice, ids: Numbers) -> Numbers:
    """Return the places within a slice of those rows that the ascending array `ids` names."""
    if not len(ids):
        return NONE
    found = [NONE]
    place = 0
    for first_id, rows in part.piece.runs(part.start, part.stop):
        low, high = np.searchsorted(ids, (first_id, first_id + rows))
        if low < high:
            found.append(ids[low:high] - first_id + place)
        place += rows
    return np.concatenate(found)


def batches_of(slices: Sequence[Slice], columns: pa.Schema, hidden: Numbers = NONE) -> Iterator[pa.RecordBatch]:
    """Yield visible rows batch by batch, so that storing more rows than fit into memory needs memory for a few only."""
    for group in grouped(slices, _BATCH_ROWS):
        yield from visible_rows(group, columns, hidden).to_batches()


def grouped(slices: Sequence[Slice], rows_min: int) -> Iterator[list[Slice]]:
    """Yield neighbouring slices, as many at a time as have so many rows."""
    group: list[Slice] = []
    rows = 0
    for part in slices:
        group.append(part)
        rows += part[2] - part[1]
        if rows >= rows_min:
            yield group
            group, rows = [], 0
    if group:
        yield group


def _unlink_own(path: str, owner: int) -> None:
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)
