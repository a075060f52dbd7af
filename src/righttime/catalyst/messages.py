"""What crosses the catalyst's border: flushes in; commits, accuracies and looks out.

In: nothing; these are values.
Out: the words in which producers, queries and the catalyst talk, in one process now and over a wire later.
Promise: immutable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from righttime.catalyst.ends import Ends
from righttime.catalyst.leases import LaneKey
from righttime.changes.operations import Operations
from righttime.changes.position import Commit, SourceCut
from righttime.changes.rows import Chunk
from righttime.warehouse.store import DataFile

Content = Chunk | Operations
"""What a transaction holds for one table, in order: rows, and operations on rows."""


class Trace(Protocol):
    """Where commits are noted so that a crash can say what it lost."""

    def slot(self, source: str) -> int: ...
    def release(self, source: str) -> None: ...
    def record(self, slot: int, number: int, time_us: int, rows_total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Flush:
    """One table's part of a flush: archived commits in order, and what is left at the producer afterwards."""

    table: str
    commits: Sequence[tuple[int, Sequence[Content]]]
    next_us: int | None
    watermark_us: int | None = None


@dataclass(frozen=True, slots=True)
class Adopted:
    """A Delta version that another writer made, and the rows in it; whether they are the `same` as before, in other files."""

    version: int
    rows: int
    same: bool = False


@dataclass(frozen=True, slots=True)
class Bypass:
    """Rows of a commit that go past the catalyst, straight into a table: chunks, files that Spark wrote, or a version that another writer made."""

    chunks: Sequence[Chunk] = ()
    files: Sequence[DataFile] = ()
    adopted: Adopted | None = None

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks) + sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Published:
    """A commit as its producer gets it back."""

    commit: Commit
    state: int
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A lazy commit that was rolled back while nobody knew of it, and that had been made: its content has to be delivered."""

    published: Published
    content: Mapping[str, Sequence[Content]]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The time a query may use; `late` gives the older time of each source that did not deliver, `unknown` says that others may lack too."""

    cut_us: int
    late: Mapping[str, int]
    unknown: bool = False

    def time_of(self, source: str) -> int:
        return min(self.late.get(source, self.cut_us), self.cut_us)


@dataclass(frozen=True, slots=True)
class Look:
    """What a new query starts from: one state, read in one go. Names of ended rows are those of one stored version and of one settling (`resets`)."""

    state: int
    seen_us: int
    versions: Mapping[str, int]
    rows_stored: Mapping[str, int]
    intervals: Mapping[LaneKey, tuple[int, int]]
    cuts: tuple[SourceCut, ...]
    resets: Mapping[str, int]
    ends: Mapping[str, Ends] = field(default_factory=dict)
