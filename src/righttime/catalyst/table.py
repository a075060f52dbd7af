"""Memory tables: the rows of one table that are committed or being committed and not only in the warehouse.

In: chunks and operations with a commit time, or without one (uncommitted); notices of what was stored.
Out: slices of rows for a row-id interval, and the operations among them.
Promise: all rows of a commit enter together; commit times of a lane only grow; ids of freed or rolled-back rows never return.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from righttime.catalyst.ends import Ends
from righttime.catalyst.indexes import RowIds, TimeIndex
from righttime.changes.operations import Numbers, Operations, Placed

VERSIONS = "*"
"""The lane of row versions that updates made; no source can have this name."""


class Rows(Protocol):
    """What a piece keeps its rows in: a chunk in memory, or a sealed segment's image."""

    @property
    def rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def in_memory(self) -> bool: ...


class Piece:
    """Rows with ascending ids: one run for a chunk, several for what was gathered or sealed from many chunks."""

    __slots__ = ("content", "first_ids", "offsets", "rows")

    def __init__(self, content: Rows, first_ids: Sequence[int], offsets: Sequence[int]) -> None:
        self.content = content
        self.first_ids = first_ids
        self.offsets = offsets
        self.rows = content.rows

    @property
    def first_id(self) -> int:
        return self.first_ids[0]

    @property
    def last_id(self) -> int:
        return self.first_ids[-1] + self.rows - self.offsets[-1] - 1

    def rows_up_to(self, row_id: int) -> int:
        """Return how many rows of this piece have an id at or below `row_id`."""
        run = bisect_right(self.first_ids, row_id) - 1
        if run < 0:
            return 0
        end = self.offsets[run + 1] if run + 1 < len(self.offsets) else self.rows
        return min(self.offsets[run] + row_id - self.first_ids[run] + 1, end)

    def id_at(self, position: int) -> int:
        """Return the id of the row at `position`."""
        run = bisect_right(self.offsets, position) - 1
        return self.first_ids[run] + position - self.offsets[run]

    def ids(self, start: int, stop: int) -> Numbers:
        """Return the ids of rows start..stop-1."""
        if len(self.offsets) == 1:
            return np.arange(self.first_ids[0] + start, self.first_ids[0] + stop, dtype=np.int64)
        offsets = np.array(self.offsets, dtype=np.int64)
        before = np.repeat(np.array(self.first_ids, dtype=np.int64) - offsets, np.diff(offsets, append=self.rows))
        return np.arange(start, stop, dtype=np.int64) + before[start:stop]

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield (first id, rows) of the runs that rows start..stop-1 cover."""
        for run, offset in enumerate(self.offsets):
            low = max(offset, start)
            high = min(self.offsets[run + 1] if run + 1 < len(self.offsets) else self.rows, stop)
            if low < high:
                yield self.first_ids[run] + low - offset, high - low


class Slice(NamedTuple):
    """Rows start..stop-1 of one piece. A tuple, because a query makes thousands of them."""

    piece: Piece
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.stop == self.piece.rows


@dataclass(slots=True)
class Lane:
    """What one source put into one table: rows, and operations, each with an id of its own.

    `stored_id`: rows up to it are in the warehouse. `logged_id`: rows up to it are in the write-ahead log or stored.
    `stored_us`: newest commit time of this source that the warehouse table contains. `freed`: intervals of ids whose rows are gone from memory,
    ascending, with pieces between them; the pieces do not tell, because the ids between them may be those of other lanes.
    """

    source: str
    pieces: list[Piece] = field(default_factory=list)
    operations: list[Placed] = field(default_factory=list)
    times: TimeIndex = field(default_factory=TimeIndex)
    stored_id: int = 0
    stored_us: int = 0
    logged_id: int = 0
    logged_us: int = 0
    freed: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.freed = [(0, self.stored_id)]

    def add(self, chunks: Iterable[Rows], ids: RowIds, operations: Sequence[Operations] = ()) -> None:
        """Take the next part of a transaction in, rows before operations."""
        for chunk in chunks:
            self.pieces.append(Piece(chunk, (ids.take(chunk.rows),), (0,)))
        for each in operations:
            self.operations.append(Placed(ids.take(each.rows), each, self._bounds(each.after)))

    def _bounds(self, after: Numbers) -> Numbers:
        """Return for each count of the open transaction's rows the id of the last of them; 0 rows reach what was committed before."""
        keep = bisect_right(self.pieces, self.times.committed_id, key=lambda piece: piece.first_id)
        runs = [run for piece in self.pieces[keep:] for run in piece.runs(0, piece.rows)]
        if not runs:
            return np.full(len(after), self.times.committed_id, dtype=np.int64)
        if len(runs) == 1:
            return np.where(after > 0, after + (runs[0][0] - 1), self.times.committed_id).astype(np.int64, copy=False)
        first_ids = np.array([first_id for first_id, _ in runs], dtype=np.int64)
        ends = np.cumsum([rows for _, rows in runs])
        run = np.minimum(np.searchsorted(ends, after - 1, side="right"), len(runs) - 1)
        ids = first_ids[run] + (after - 1) - (ends[run] - np.array([rows for _, rows in runs])[run])
        return np.where(after > 0, ids, self.times.committed_id).astype(np.int64)

    @property
    def last_id(self) -> int:
        """The newest row or operation, committed or not."""
        rows = self.pieces[-1].last_id if self.pieces else 0
        return max(rows, self.operations[-1].last_id if self.operations else 0, self.times.committed_id)

    @property
    def operations_nbytes(self) -> int:
        """Bytes of the operations that are here; they are never spilled."""
        return sum(placed.operations.nbytes for placed in self.operations)

    def operations_between(self, first_id: int, last_id: int) -> list[Placed]:
        """Return the operations with first_id <= id <= last_id."""
        start = bisect_left(self.operations, first_id, key=lambda placed: placed.first_id)
        return self.operations[start : bisect_right(self.operations, last_id, key=lambda placed: placed.first_id)]

    def commit(self, time_us: int) -> None:
        """Commit every row here at `time_us` (order rules O1-O4)."""
        self.times.uncommitted_id = None
        self.times.add(time_us, max(self.last_id, self.times.committed_id))

    def watermark(self, time_us: int) -> None:
        """Note that nothing more was committed up to `time_us`; uncommitted rows stay uncommitted (G23)."""
        if time_us > self.times.newest_us:
            self.times.add(time_us, self.times.committed_id)

    @property
    def uncommitted(self) -> bool:
        """Tell whether there are uncommitted rows."""
        return self.times.uncommitted_id is not None

    def roll_back(self) -> list[Piece]:
        """Drop uncommitted rows and operations; return the rows."""
        keep = bisect_right(self.pieces, self.times.committed_id, key=lambda piece: piece.first_id)
        dropped = self.pieces[keep:]
        del self.pieces[keep:]
        del self.operations[bisect_right(self.operations, self.times.committed_id, key=lambda placed: placed.first_id) :]
        self.times.uncommitted_id = None
        return dropped

    def slices(self, first_id: int, last_id: int) -> list[Slice]:
        """Return the rows with first_id <= id <= last_id that are still here."""
        place = bisect_left(self.pieces, first_id, key=lambda piece: piece.last_id)
        touched = self.pieces[place : bisect_right(self.pieces, last_id, lo=place, key=lambda piece: piece.first_id)]
        found = [Slice(piece, 0, piece.rows) for piece in touched]
        # Only the outermost can be there in part, or with none of their rows.
        for number in {0, len(touched) - 1} if touched else ():
            piece = touched[number]
            found[number] = Slice(piece, piece.rows_up_to(first_id - 1), piece.rows_up_to(last_id))
        while found and found[-1].stop <= found[-1].start:
            found.pop()
        return found[1:] if found and found[0].stop <= found[0].start else found

    def count(self, first_id: int, last_id: int) -> int:
        """Return how many rows and operations with first_id <= id <= last_id are here."""
        operations = self.operations_between(first_id, last_id)
        return sum(part.rows for part in self.slices(first_id, last_id)) + sum(placed.operations.rows for placed in operations)

    def stored_up_to(self, row_id: int) -> int:
        """Note that everything up to `row_id` is in the warehouse; return how many rows and operations that are."""
        rows = sum(part.rows for part in self.slices(self.stored_id + 1, row_id))
        self.stored_id = max(self.stored_id, row_id)
        done = bisect_right(self.operations, self.stored_id, key=lambda placed: placed.last_id)
        rows += sum(placed.operations.rows for placed in self.operations[:done])
        del self.operations[:done]
        return rows

    def holds(self, first_id: int, last_id: int) -> bool:
        """Tell whether no row with first_id <= id <= last_id has been freed yet."""
        place = bisect_left(self.freed, first_id, key=lambda span: span[1])
        return place == len(self.freed) or self.freed[place][0] > last_id

    def holes_before(self, piece: Piece) -> int:
        """Return a number that neighbouring pieces share if no rows between them have been freed."""
        return bisect_left(self.freed, piece.first_id, key=lambda span: span[0])

    def free(self, spans: Sequence[tuple[int, int]]) -> list[Piece]:
        """Drop the pieces that lie whole within one of the ascending intervals, and return them."""
        freed: list[Piece] = []
        for start, stop in reversed(self._places_within(spans)):
            freed[:0] = self.pieces[start:stop]
            if start < stop:
                self.freed.append((self.pieces[start].first_id, self.pieces[stop - 1].last_id))
                del self.pieces[start:stop]
        if freed:
            self._join_freed()
        self.times.forget(self.stored_id)
        return freed

    def stored_outside(self, spans: Sequence[tuple[int, int]]) -> list[Piece]:
        """Return the stored pieces that do not lie whole within one of the ascending intervals."""
        found: list[Piece] = []
        place, end = 0, bisect_right(self.pieces, self.stored_id, key=lambda piece: piece.last_id)
        for start, stop in [*self._places_within(spans), (end, end)]:
            found += self.pieces[place:start]
            place = max(start, stop)
        return found

    def _places_within(self, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [
            (bisect_left(self.pieces, low, key=lambda piece: piece.first_id), bisect_right(self.pieces, high, key=lambda piece: piece.last_id))
            for low, high in spans
        ]

    def _join_freed(self) -> None:
        """Keep one interval where no piece is left between two: so there are never more of them than pieces, and one."""
        joined: list[tuple[int, int]] = []
        for first_id, last_id in sorted(self.freed):
            next_piece = bisect_right(self.pieces, joined[-1][1], key=lambda piece: piece.first_id) if joined else 0
            if joined and (next_piece == len(self.pieces) or self.pieces[next_piece].first_id > first_id):
                joined[-1] = (joined[-1][0], max(joined[-1][1], last_id))
            else:
                joined.append((first_id, last_id))
        self.freed = joined

    def has(self, pieces: Sequence[Piece]) -> bool:
        """Tell whether these pieces are here, one after the other."""
        return self._place(pieces) is not None

    def _place(self, pieces: Sequence[Piece]) -> int | None:
        place = bisect_left(self.pieces, pieces[0].first_id, key=lambda piece: piece.first_id)
        return place if self.pieces[place : place + len(pieces)] == list(pieces) else None  # pieces equal themselves only

    def replace(self, old: Sequence[Piece], content: Rows) -> Piece | None:
        """Put one content with the same rows in the place of neighbouring pieces, and return its piece; None if they are no longer all here."""
        place = self._place(old)
        if place is None:
            return None
        first_ids: list[int] = []
        offsets: list[int] = []
        before, next_id = 0, -1
        # As ids ascend, this means one run: what a producer leaves that loads alone, thousands of pieces at a time.
        if old[-1].last_id - old[0].first_id + 1 == content.rows:
            joined = Piece(content, (old[0].first_id,), (0,))
            self.pieces[place : place + len(old)] = [joined]
            return joined
        for piece in old:
            # A piece whose ids go on where the last one's ended needs no run of its own.
            going_on = 1 if piece.first_ids[0] == next_id else 0
            if going_on < len(piece.first_ids):
                first_ids.extend(piece.first_ids[going_on:])
                offsets.extend(before + offset for offset in piece.offsets[going_on:])
            before += piece.rows
            next_id = first_ids[-1] + before - offsets[-1]
        assert all(low < high for low, high in pairwise(first_ids))
        joined = Piece(content, first_ids, offsets)
        self.pieces[place : place + len(old)] = [joined]
        return joined


@dataclass(slots=True)
class MemoryTable:
    """All lanes of one table, and the stored version that goes with them.

    Operations committed up to `settled_us` have become ends and versions. `changes` counts what can change the outcome of settling,
    `resets` how often settled versions and ends were forgotten.
    """

    name: str
    version: int
    rows_stored: int = 0
    lanes: dict[str, Lane] = field(default_factory=dict)
    bytes_memory: int = 0
    bytes_operations: int = 0
    bytes_spilled: int = 0
    rows_unstored: int = 0
    ends: Ends = field(default_factory=Ends)
    settled_us: int = 0
    changes: int = 0
    resets: int = 0

    def lane(self, source: str) -> Lane:
        """Return the lane of `source`, opening it on first use."""
        found = self.lanes.get(source)
        if found is None:
            found = self.lanes[source] = Lane(source)
        return found

    @property
    def stored_us(self) -> int:
        """Newest commit time in the warehouse table: no consistent cut lies below it (G21)."""
        return max((lane.stored_us for lane in self.lanes.values()), default=0)

    @property
    def has_operations(self) -> bool:
        """Whether there are operations that the warehouse table does not contain."""
        return any(lane.operations for lane in self.lanes.values())

    @property
    def has_files(self) -> bool:
        """Whether rows that the warehouse table does not contain are in files, because memory had no room for them."""
        return any(not piece.content.in_memory and piece.last_id > lane.stored_id for lane in self.lanes.values() for piece in lane.pieces)

    def must_settle(self, own: str | None = None) -> bool:
        """Tell whether storing has to settle operations first: committed ones, or those of the source `own`, which are about to be.

        What others have not committed comes after whatever is stored now.
        """
        return any(lane.operations and (lane.source == own or lane.operations[0].first_id <= lane.times.committed_id) for lane in self.lanes.values())

    def operations_unlogged(self) -> int:
        """Return how many groups of committed operations are only in memory."""
        return sum(lane.logged_id < placed.first_id <= lane.times.committed_id for lane in self.lanes.values() for placed in lane.operations)

    def reset_versions(self, row_id: int) -> None:
        """Forget all settled versions and ends: those up to now are stored, later ones are settled again; no id up to `row_id` is used twice."""
        if VERSIONS in self.lanes:
            self.discount(self.lanes[VERSIONS].pieces)
            self.lanes[VERSIONS] = Lane(VERSIONS, stored_id=row_id)
        self.ends = Ends()
        self.resets += 1

    def settle_anew(self, last_id: int) -> None:
        """Forget what was settled and is not stored; whoever is settling it makes its outcome again."""
        self.reset_versions(last_id)
        self.settled_us = 0
        self.changes += 1

    def discount(self, pieces: Sequence[Piece]) -> None:
        """Take pieces that left off the account."""
        for piece in pieces:
            if piece.content.in_memory:
                self.bytes_memory -= piece.content.nbytes
            else:
                self.bytes_spilled -= piece.content.nbytes

    def rows_hot(self) -> int:
        """Committed row versions that are not stored, without those that are settled to have ended."""
        rows = sum(part.rows for lane in self.lanes.values() for part in lane.slices(lane.stored_id + 1, lane.times.committed_id))
        return rows - len(self.ends.hot_ids)

    def rows_kept(self) -> int:
        """Return how many rows a table has that only a flow writes, known without settling: a delete by key ends one row, a condition all."""
        rows, lanes = self.rows_stored, [lane for lane in self.lanes.values() if lane.source != VERSIONS]
        for lane in lanes:
            first_id, ended = lane.stored_id + 1, 0
            for placed in lane.operations_between(first_id, lane.times.committed_id):
                if placed.operations.condition is None:
                    ended += placed.operations.rows
                else:
                    rows, first_id, ended = 0, int(placed.bounds[-1]) + 1, 0
            rows += sum(part.rows for part in lane.slices(first_id, lane.times.committed_id)) - ended
        return rows
