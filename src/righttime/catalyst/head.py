"""The head: the newest state, in memory; what every new query starts from.

In: commits of sources, as they happen.
Out: the state's number, each source's newest commit, and the commits on either side of a time.
Promise: numbers and times of a source's commits only grow; a gap in the numbers is a commit that a crash lost.
"""

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field

from righttime.changes.position import START, Commit, SourceCut


class SourceHistory:
    """The commits of one source: numbers, times and rows so far, the newest `commits_max` of them, and beyond that those that its producer holds back.

    Numbers of commits that a crash lost are not given again, so `first_number` may be beyond the last one known.
    """

    __slots__ = ("_base", "_base_rows", "_commits_max", "_first_number", "_rows", "_times")

    def __init__(self, last: Commit = START, *, commits_max: int, first_number: int | None = None, rows: int = 0) -> None:
        self._base = last
        self._base_rows = rows
        self._first_number = last.number + 1 if first_number is None else first_number
        self._times = array("q")
        self._rows = array("q")
        self._commits_max = commits_max

    @property
    def next_number(self) -> int:
        return self._first_number + len(self._times)

    @property
    def last(self) -> Commit:
        return Commit(self.next_number - 1, self._times[-1]) if self._times else self._base

    @property
    def rows(self) -> int:
        """Rows of all commits, in the source's whole life."""
        return self._rows[-1] if self._rows else self._base_rows

    def append(self, time_us: int, *, rows: int, held_us: int | None = None) -> Commit:
        """Number the next commit and count its rows; the commits from `held_us` on are still with the producer."""
        assert time_us > self.last.time_us
        self._rows.append(self.rows + rows)
        self._times.append(time_us)
        half = len(self._times) // 2
        # What is held back is not durable, and a state has to say where it begins. The producer's archive, which takes more room, is what bounds it.
        if len(self._times) > self._commits_max and (held_us is None or self._times[half - 1] < held_us):
            self._forget(half)
        return Commit(self.next_number - 1, time_us)

    def cut(self, source: str, time_us: int) -> SourceCut:
        """Return the last commit at or before `time_us` and the first after it."""
        place = bisect_right(self._times, time_us)
        inside = Commit(self._first_number + place - 1, self._times[place - 1]) if place else self._base
        outside = Commit(self._first_number + place, self._times[place]) if place < len(self._times) else None
        return SourceCut(source, inside, outside)

    def rows_at(self, time_us: int) -> int:
        """Return the rows of all commits at or before `time_us`."""
        place = bisect_right(self._times, time_us)
        return self._rows[place - 1] if place else self._base_rows

    @property
    def oldest_us(self) -> int:
        """No cut below this time can be told exactly any more."""
        return self._base.time_us

    def _forget(self, commits: int) -> None:
        self._base, self._base_rows = Commit(self._first_number + commits - 1, self._times[commits - 1]), self._rows[commits - 1]
        self._first_number += commits
        del self._times[:commits], self._rows[:commits]


@dataclass(slots=True)
class Head:
    """The newest state's number, and the history of each source; the catalyst's lock guards it."""

    commits_max: int
    number: int = 0
    sources: dict[str, SourceHistory] = field(default_factory=dict)
    batches: dict[tuple[str, str], Commit] = field(default_factory=dict)

    def source(self, name: str) -> SourceHistory:
        found = self.sources.get(name)
        if found is None:
            found = self.sources[name] = SourceHistory(commits_max=self.commits_max)
        return found

    def commit(self, source: str, time_us: int, *, rows: int, held_us: int | None = None) -> Commit:
        """Number a commit of `source` and count its rows; its producer holds back what it committed from `held_us` on."""
        return self.source(source).append(time_us, rows=rows, held_us=held_us)

    def note_batch(self, source: str, batch_id: str, commit: Commit, *, batches_max: int) -> None:
        """Remember a batch until a durable state has it; the oldest give way beyond the bound."""
        self.batches[source, batch_id] = commit
        if len(self.batches) > batches_max:
            del self.batches[next(iter(self.batches))]

    def advance(self) -> int:
        """Begin the next state; return its number."""
        self.number += 1
        return self.number
