"""The list model: a warehouse too simple to be wrong. Commits are entries of lists; a cut is a number per source."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from righttime.changes.position import START, Commit, SourceCut
from tests.support.change_model import Row, Shape, Step, run


@dataclass(frozen=True)
class ListedCommit:
    """One commit: its number, its time, its steps by table."""

    number: int
    time_us: int
    work: Mapping[str, tuple[Step, ...]]

    @property
    def commit(self) -> Commit:
        return Commit(self.number, self.time_us)

    @property
    def size(self) -> int:
        """The rows and operations that it counts for."""
        return sum(step.size for steps in self.work.values() for step in steps)


@dataclass
class ListModel:
    """What was committed and not lost, by source, oldest first."""

    shapes: Mapping[str, Shape]
    commits: dict[str, list[ListedCommit]] = field(default_factory=dict)
    last_number: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    batches: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, source: str, commit: Commit, work: Mapping[str, Iterable[Step]], *, durable: bool, batch_id: str | None = None) -> None:
        assert commit.number == self.last_number.get(source, 0) + 1, "numbers of a source have no gap"
        assert commit.time_us > self.newest_us(), "commit times grow over the whole warehouse"
        self.commits.setdefault(source, []).append(ListedCommit(commit.number, commit.time_us, {table: tuple(some) for table, some in work.items()}))
        self.last_number[source] = commit.number
        if durable:
            self.durable[source] = commit.number
        if batch_id is not None:
            self.batches[source, batch_id] = commit.number

    def all_durable(self) -> None:
        self.durable.update({source: commits[-1].number for source, commits in self.commits.items() if commits})

    def newest_us(self) -> int:
        return max((commits[-1].time_us for commits in self.commits.values() if commits), default=0)

    def times(self) -> list[int]:
        return sorted(commit.time_us for commits in self.commits.values() for commit in commits)

    def inside(self, source: str, time_us: int) -> Commit:
        """Return the newest commit at or before a time."""
        return max((commit.commit for commit in self.commits.get(source, ()) if commit.time_us <= time_us), default=START)

    def after(self, source: str, number: int) -> Commit | None:
        return next((commit.commit for commit in self.commits.get(source, ()) if commit.number > number), None)

    def content(self, table: str, cut: Mapping[str, int], then: Sequence[Step] = ()) -> "Counter[Row]":
        """Return the rows of a table up to a number per source: each commit is done in turn, at last the steps `then` of an open one."""
        inside = [commit for source, number in cut.items() for commit in self.commits.get(source, ()) if commit.number <= number]
        rows: list[Row] = []
        for commit in sorted(inside, key=lambda commit: commit.time_us):
            rows = run(commit.work.get(table, ()), rows, self.shapes[table])
        return Counter(run(then, rows, self.shapes[table]))

    def newest(self) -> dict[str, int]:
        """Return the cut that holds everything."""
        return {source: commits[-1].number for source, commits in self.commits.items() if commits}

    def sources_of(self, table: str) -> set[str]:
        """Return the sources that have put something into a table."""
        return {source for source, commits in self.commits.items() if any(commit.work.get(table) for commit in commits)}

    def lose_after(self, source: str, number: int) -> list[ListedCommit]:
        """Forget the commits after `number` and return them."""
        lost = [commit for commit in self.commits.get(source, ()) if commit.number > number]
        self.commits[source] = [commit for commit in self.commits.get(source, ()) if commit.number <= number]
        self.batches = {key: known for key, known in self.batches.items() if key[0] != source or known <= number}
        return lost


def numbers(cuts: Iterable[SourceCut]) -> dict[str, int]:
    """Return the number of the last commit inside, by source."""
    return {cut.source: cut.last_inside.number for cut in cuts}
