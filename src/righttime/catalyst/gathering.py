"""Gathering: many small pieces of a lane become one, because queries, settling and checks of unique keys go through every piece.

In: slices of a lane, as a query found them.
Out: the same rows in fewer slices.
Promise: rows, ids and their order stay as they are, and who has the old slices keeps them. Only committed rows are gathered: a rollback takes pieces out whole.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby

from righttime.catalyst.segments import Segment, grouped, joined, rows_of
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import Slice
from righttime.changes.rows import Chunk
from righttime.changes.schema import TableSchema

_MANY = 64  # fewer are gone through in less time than they are gathered in
_SMALL_ROWS = 4096
_ROWS = 1 << 17  # of a gathered piece, about


def gathered(catalyst: Catalyst, table: TableSchema, source: str, slices: Sequence[Slice]) -> Sequence[Slice]:
    """Return the rows of slices in fewer ones, where many small pieces follow each other; the lane has them like this from now on."""
    if len(slices) < _MANY:
        return slices
    with catalyst.lock:
        lane = catalyst.tables[table.name].lane(source)
        committed = bisect_right(slices, lane.times.committed_id, key=lambda part: part.piece.last_id)
    found: list[Slice] = []
    for small, group in groupby(slices[:committed], key=_is_small):
        parts = list(group)
        if not small or len(parts) < _MANY:
            found += parts
            continue
        for run in grouped(parts, _ROWS):
            found += _joined(catalyst, table, source, run)
    return [*found, *slices[committed:]]


def gather(catalyst: Catalyst, table: TableSchema) -> None:
    """Gather what is committed to a table and not stored, before somebody goes through all of it."""
    with catalyst.lock:
        lanes = [lane for lane in catalyst.tables[table.name].lanes.values() if len(lane.pieces) >= _MANY]
        found = [(lane.source, lane.slices(lane.stored_id + 1, lane.times.committed_id)) for lane in lanes]
    for source, slices in found:
        gathered(catalyst, table, source, slices)


def _joined(catalyst: Catalyst, table: TableSchema, source: str, run: Sequence[Slice]) -> Sequence[Slice]:
    """Return one slice that stands for these; they stay as they are if the lane does not have them any more."""
    batches = joined(rows_of(run, table.columns)).to_batches()
    if len(batches) != 1:  # texts of more than 2 GB are no one batch
        return run
    chunk, pieces = Chunk(batches[0]), [part.piece for part in run]
    with catalyst.lock:
        memory = catalyst.tables[table.name]
        piece = memory.lane(source).replace(pieces, chunk)
        if piece is None:  # stored or sealed meanwhile, or another query was quicker
            return run
        memory.discount(pieces)
        memory.bytes_memory += chunk.nbytes
    return [Slice(piece, 0, piece.rows)]


def _is_small(part: Slice) -> bool:
    piece, start, stop = part
    return start == 0 and stop == piece.rows < _SMALL_ROWS and not isinstance(piece.content, Segment)
