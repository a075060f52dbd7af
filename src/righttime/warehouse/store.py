"""The seam between the system and the tables that keep its rows.

In: declarations, rows, places of rows that leave, batch ids.
Out: versions, rows with their places, file lists, histories.
Promise: the behaviour suite in tests/contracts runs on every implementation; nothing above this line knows the format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from righttime.changes.schema import TableSchema

Positions = npt.NDArray[np.int64]
Ranges = Mapping[str, tuple[Any, Any]]  # by column the least and the greatest value that is wanted, None where there is no bound

EVERYTHING: Ranges = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DataFile:
    """One synced Parquet file that no version knows yet; `path` is relative to the table's folder."""

    path: str
    size: int
    rows: int
    partition: Mapping[str, str | None]
    stats_json: str


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One entry of a table's history; `batch_id` is None for commits that are not ours."""

    version: int
    time_us: int
    operation: str
    batch_id: str | None


@dataclass(frozen=True, slots=True)
class Collected:
    """What one collection removed."""

    files: int
    bytes: int
    folders: int
    log_entries: int


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Some rows of a version and their places: a unit of the store, and a position in it for each row, ascending.

    A place belongs to one version; the same row may have another place in the next.
    """

    unit: str
    positions: Positions
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows on their way out: `commit` adds `files`, which hold what is left of `units`, and takes the units out."""

    files: Sequence[DataFile]
    units: Sequence[str]
    rows: int
    rows_kept: int


class Store(Protocol):
    """Tables with numbered versions. Every call takes the table's declaration; nothing is kept between tables."""

    def create(self, table: TableSchema) -> int:
        """Make the table durable and empty; return its first version. What a crash left of an earlier try is replaced."""
        ...

    def write_files(self, table: TableSchema, rows: pa.Table | Iterable[pa.RecordBatch], *, batch_id: str) -> list[DataFile]:
        """Write rows to new synced files; no version has them until `commit`, and `collect` leaves them alone until then."""
        ...

    def staging(self, table: TableSchema, *, batch_id: str) -> Path:
        """Return a new folder, on the table's file system, for somebody else's Parquet files."""
        ...

    def take_files(self, table: TableSchema, folder: Path) -> list[DataFile]:
        """Check, sync and move the Parquet files of a staging folder next to the table's own; the folder is gone afterwards."""
        ...

    def add_files(self, table: TableSchema, files: Sequence[DataFile]) -> list[DataFile]:
        """Make taken files part of the step under way; return what stands for them in its `commit`. They stay until that is kept, or they are discarded."""
        ...

    def discard(self, table: TableSchema, files: Sequence[DataFile]) -> None:
        """Remove files that will not be committed."""
        ...

    def scan(self, table: TableSchema, version: int, columns: Sequence[str], *, ranges: Ranges = EVERYTHING) -> Iterator[StoredRows]:
        """Yield the rows of a version, only these columns, in pieces that fit memory.

        With `ranges`, rows that lie outside of one, or are null there, may be left out, and are where statistics tell it of many at once.
        """
        ...

    def fetch(self, table: TableSchema, version: int, unit: str, positions: Positions) -> pa.Table:
        """Return whole rows of one unit, one for each position, in the order of `positions`."""
        ...

    def check(self, table: TableSchema, version: int, places: Mapping[str, Positions]) -> None:
        """Raise `RowsMoved` if there is no row any more at one of these positions of the version."""
        ...

    def remove(self, table: TableSchema, version: int, gone: Mapping[str, Positions], *, batch_id: str, changed: Collection[str] = ()) -> Removal:
        """Prepare that the rows at these positions, by unit, leave; they do with the `commit` that is given the removal's files and units.

        Some may come back with other values in the columns `changed`, among the rows that are written for the same commit.
        """
        ...

    def references(self, tables: Collection[str]) -> Mapping[str, Collection[str]]:
        """Return by table which others of `tables` its rows refer to: they are stored first, and lose rows last."""
        ...

    def commit(self, table: TableSchema, files: Sequence[DataFile], *, version: int, batch_id: str, batch_number: int, removed: Sequence[str] = ()) -> int:
        """Make version + 1 durable: `version` without the units `removed`, and these files. `ForeignCommit` if that version exists already."""
        ...

    def undo(self, table: TableSchema, *, version: int) -> int:
        """Return a version with exactly the rows of `version` that is the newest, making one if commits of ours came after it.

        `ForeignCommit` if others came after it, too: those stay, ours are out by then. `CommitsMixed` if that is not possible.
        """
        ...

    def newest_version(self, table: TableSchema) -> int:
        """Return the newest version there is, whoever made it."""
        ...

    def path_of(self, table: TableSchema, file: DataFile) -> str:
        """Return the absolute path of a file that is written but not committed."""
        ...

    def same_rows(self, table: TableSchema, known: int, version: int) -> bool:
        """Tell whether other writers have only rearranged the rows of a version since."""
        ...

    def check_schema(self, table: TableSchema, version: int) -> None:
        """Raise `BadTable` if a version that another writer made cannot be taken over as it is."""
        ...

    def row_count(self, table: TableSchema, version: int) -> int:
        """Return how many rows a version has."""
        ...

    def history(self, table: TableSchema) -> list[TableVersion]:
        """Return the versions that are still described, newest first."""
        ...

    def collect(self, table: TableSchema, *, versions: Callable[[], Collection[int]], grace_s: float, now_s: float) -> Collected:
        """Remove what neither one of `versions` nor the newest version needs; `now_s` is wall-clock time. They are asked for when the disk has been listed."""
        ...

    def checkpoint(self, table: TableSchema, version: int) -> None:
        """Write a summary of the log up to `version`, so that readers need not replay it."""
        ...


class FileStore(Store, Protocol):
    """A store whose versions are files, which everybody who can see them may read."""

    def files(self, table: TableSchema, version: int) -> tuple[str, ...]:
        """Return the absolute paths of exactly the files that make up a version."""
        ...
