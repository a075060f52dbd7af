"""The stored changes of one stream: segments on disk, a tail in memory, and the times of all commits.

In: commits, already durable in the feed log; positions of readers.
Out: rows of any stretch of commit times; the tail, to be sealed.
Promise: rows are in exactly one of segments, sealing rows and tail. The readers' lock, `seen`, guards every call but `read`; `parts` and `fetch` take it
themselves, because those who append have another.
"""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from righttime.queues.declared import StreamCommit, StreamSchema
from righttime.queues.index import Numbers
from righttime.queues.segments import Commits, Segment, SegmentCache, find_segments, joined

_MERGED_AT = 32  # tail tables of one size are merged into one of the next


class CommitTimes:
    """Times, last changes and transactions of a stream's commits 1, 2, 3, …"""

    def __init__(self) -> None:
        self._count = 0
        self._times = np.empty(256, dtype=np.int64)
        self._lasts = np.empty(256, dtype=np.int64)
        self._transactions: list[str | None] = []

    def __len__(self) -> int:
        return self._count

    def extend(self, commits: Commits) -> None:
        """Add commits that follow the last one."""
        end = self._count + len(commits.times)
        if end > len(self._times):
            self._times, self._lasts = np.resize(self._times, 2 * end), np.resize(self._lasts, 2 * end)
        self._times[self._count : end], self._lasts[self._count : end] = commits.times, commits.last_seqs
        self._transactions.extend(commits.transactions)
        self._count = end

    def up_to(self, time_us: int) -> int:
        """Return how many commits are at or before a time."""
        return int(np.searchsorted(self._times[: self._count], time_us, side="right"))

    def last_seq(self, number: int) -> int:
        """Return the last change of a commit; 0 for the commit before the first."""
        return int(self._lasts[number - 1]) if number else 0

    def commit(self, number: int) -> StreamCommit | None:
        """Return a commit by its number, None if there is none."""
        if not 1 <= number <= self._count:
            return None
        return StreamCommit(number, int(self._times[number - 1]), self._transactions[number - 1])


@dataclass(frozen=True, slots=True)
class Part:
    """Some neighbouring rows: of a segment, or of a table in memory."""

    origin: Segment | pa.Table
    start: int
    rows: int


class History:
    """Rows and commits of one stream."""

    def __init__(self, schema: StreamSchema, folder: Path, cache: SegmentCache, seen: threading.Condition) -> None:
        self.schema = schema
        self.seen = seen
        self.folder = folder
        self.commits = CommitTimes()
        self.segments: list[Segment] = []
        self.ordinals = 0
        self._stored = schema.stored
        self._cache = cache
        self._firsts: list[int] = []  # first change of each segment
        self._sealing: list[pa.Table] = []
        self._tail: list[tuple[int, pa.Table]] = []  # size class, rows
        self.tail_rows = 0
        for segment, commits in find_segments(folder):
            self._add_segment(segment)
            self.commits.extend(commits)
        self.sealed_seq = self.segments[-1].last_seq if self.segments else 0

    @property
    def last_seq(self) -> int:
        return self.commits.last_seq(len(self.commits))

    def add(self, rows: pa.Table | Segment, commits: Commits) -> None:
        """Add the rows of a commit to the tail; those of one that went straight into a segment are behind all others."""
        self.commits.extend(commits)
        if isinstance(rows, Segment):
            assert not self.tail_rows and not self._sealing, "segments follow on each other"
            self._add_segment(rows)
            self.sealed_seq = rows.last_seq
            return
        self.tail_rows += rows.num_rows
        self._tail.append((0, rows))
        self._merge()

    def _merge(self) -> None:
        while len(self._tail) >= _MERGED_AT and self._tail[-_MERGED_AT][0] == self._tail[-1][0]:
            size = self._tail[-1][0]
            merged = joined([rows for _, rows in self._tail[-_MERGED_AT:]], self._stored)
            self._tail[-_MERGED_AT:] = [(size + 1, merged)]

    def begin_sealing(self) -> list[pa.Table]:
        """Return the tail, to be written as a segment; it stays readable, and what comes now goes into a new tail."""
        assert not self._sealing, "one sealing at a time"
        self._sealing, self._tail = [rows for _, rows in self._tail], []
        self.tail_rows = 0
        return self._sealing

    def sealed(self, segment: Segment) -> None:
        """Read the rows that were being sealed from their segment from now on."""
        self._add_segment(segment)
        self.sealed_seq = segment.last_seq
        self._sealing = []

    def not_sealed(self) -> None:
        """Put rows that could not be sealed back into the tail."""
        self.tail_rows += sum(rows.num_rows for rows in self._sealing)
        self._tail = [(0, joined(self._sealing, self._stored)), *self._tail]
        self._sealing = []

    def bytes_held(self) -> int:
        """Return bytes of segments on disk and of the tail in memory."""
        tail = sum(rows.nbytes for rows in self._sealing) + sum(rows.nbytes for _, rows in self._tail)
        return sum(segment.bytes for segment in self.segments) + int(tail)

    def _add_segment(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._firsts.append(segment.first_seq)

    def seqs(self, after_us: int, up_to_us: int) -> tuple[int, int]:
        """Return the last change at or before each of two times."""
        low = self.commits.last_seq(self.commits.up_to(after_us))
        return low, max(low, self.commits.last_seq(self.commits.up_to(up_to_us)))

    def parts(self, after_seq: int, up_to_seq: int) -> list[Part]:
        """Return where the changes behind one and up to another are; they stay there for whoever has the parts."""
        if after_seq >= up_to_seq:
            return []
        with self.seen:
            begin = max(bisect_right(self._firsts, after_seq + 1) - 1, 0)
            found = [_part(one, one.first_seq, one.last_seq, after_seq, up_to_seq) for one in self.segments[begin:] if one.first_seq <= up_to_seq]
            first = self.sealed_seq + 1
            for rows in [*self._sealing, *(rows for _, rows in self._tail)]:
                found.append(_part(rows, first, first + rows.num_rows - 1, after_seq, up_to_seq))
                first += rows.num_rows
        return [part for part in found if part.rows > 0]

    def read(self, parts: Sequence[Part]) -> pa.Table:
        """Return the rows of some parts; needs no lock."""
        return joined([self._rows(part.origin).slice(part.start, part.rows) for part in parts], self._stored)

    def _rows(self, origin: Segment | pa.Table) -> pa.Table:
        return origin if isinstance(origin, pa.Table) else self._cache.read(origin, self._stored)

    def fetch(self, seqs: Numbers) -> pa.Table:
        """Return the images in the changes with some numbers, in the order of the numbers given."""
        columns = self.schema.columns
        order = np.argsort(seqs, kind="stable")
        ordered = seqs[order]
        tables, start = [], 0
        for part in self.parts(int(ordered[0]) - 1, int(ordered[-1])):
            first = self._first_seq(part)
            stop = int(np.searchsorted(ordered, first + part.rows, side="left"))
            if stop > start:
                tables.append(self._fetched(part.origin, columns, ordered[start:stop] - first + part.start))
                start = stop
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return joined(tables, columns).take(pa.array(back))

    def _fetched(self, origin: Segment | pa.Table, columns: pa.Schema, places: Numbers) -> pa.Table:
        return self._cache.fetch(origin, columns, places) if isinstance(origin, Segment) else origin.select(columns.names).take(pa.array(places))

    def _first_seq(self, part: Part) -> int:
        if isinstance(part.origin, Segment):
            return part.origin.first_seq + part.start
        return int(part.origin.column("_seq")[part.start].as_py())


def _part(origin: Segment | pa.Table, first: int, last: int, after_seq: int, up_to_seq: int) -> Part:
    start = max(after_seq + 1, first)
    return Part(origin, start - first, min(up_to_seq, last) - start + 1)
