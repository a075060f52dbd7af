"""The seam between the system and the tables that keep its rows.

In: declarations, rows, batch ids.
Out: versions, file lists, histories.
Promise: the behaviour suite in tests/contracts runs on every implementation; nothing above this line knows the format.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from righttime.changes.schema import TableSchema


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

    def discard(self, table: TableSchema, files: Sequence[DataFile]) -> None:
        """Remove files that will not be committed."""
        ...

    def commit(self, table: TableSchema, files: Sequence[DataFile], *, version: int, batch_id: str, batch_number: int) -> int:
        """Make version + 1 durable: the content of `version` and these files. `ForeignCommit` if that version exists already."""
        ...

    def undo(self, table: TableSchema, *, version: int) -> int:
        """Return a version with the content of `version` that is the newest, making one if commits of ours came after it."""
        ...

    def newest_version(self, table: TableSchema) -> int:
        """Return the newest version there is, whoever made it."""
        ...

    def files(self, table: TableSchema, version: int) -> tuple[str, ...]:
        """Return the absolute paths of exactly the files that make up a version."""
        ...

    def path_of(self, table: TableSchema, file: DataFile) -> str:
        """Return the absolute path of a file that is written but not committed."""
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

    def collect(self, table: TableSchema, *, versions: Collection[int], grace_s: float, now_s: float) -> Collected:
        """Remove what neither one of `versions` nor the newest version needs; `now_s` is wall-clock time."""
        ...

    def checkpoint(self, table: TableSchema, version: int) -> None:
        """Write a summary of the log up to `version`, so that readers need not replay it."""
        ...
