"""What one process knows of one table: its log, what it remembers of it, and names that are not committed yet.

In: the table's declaration and folder.
Out: log entries, written once; what changed since a version; what a collection must spare.
Promise: a name is reserved from before its file exists until a version has it; what is remembered equals what the log says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from righttime.changes.schema import TableSchema
from righttime.errors import CommitsMixed, ForeignCommit, WarehouseDamaged
from righttime.warehouse.additions import additions, rows_of
from righttime.warehouse.collect import Needed, files_of_versions
from righttime.warehouse.delta_log import Action, DeltaLog, local_path
from righttime.warehouse.durable import coded_errors
from righttime.warehouse.files import TableFiles
from righttime.warehouse.scan import Footers
from righttime.warehouse.snapshots import Snapshot, Snapshots
from righttime.warehouse.store import DataFile
from righttime.warehouse.unfinished import unfinished


class TableHandle:
    """What one process knows of one table: its log, remembered snapshots, and names that are not committed yet."""

    def __init__(self, table: TableSchema, folder: Path) -> None:
        self.table = table
        self.folder = folder
        self.log = DeltaLog(folder)
        self.snapshots = Snapshots(folder)
        self.footers = Footers()
        self.files = TableFiles(table, folder, reserve=self.reserve, release=self.release)
        self.lock = threading.Lock()  # one commit at a time
        self._reserved: set[str] = set()
        self._reserved_lock = threading.Lock()
        self._newest_seen: int | None = None

    def reserve(self, name: str) -> None:
        with self._reserved_lock:
            self._reserved.add(f"{self.folder}/{name}")

    def release(self, *names: str) -> None:
        with self._reserved_lock:
            self._reserved.difference_update(f"{self.folder}/{name}" for name in names)

    def newest(self) -> int:
        self._newest_seen = self.log.newest(at_least=self._newest_seen)
        return self._newest_seen

    def require_log(self) -> None:
        if not self.log.folder.is_dir():
            raise WarehouseDamaged(path=str(self.folder), reason="the table's folder or its log is missing")

    def put(self, known: int, version: int, actions: list[Action], *, batch_id: str) -> None:
        with coded_errors(self.folder, step="commit table", batch_id=batch_id):
            try:
                self.log.put(version, actions)
            except FileExistsError:
                raise ForeignCommit(table=self.table.name, found=self.newest(), known=known) from None

    def require_files(self, version: int, paths: Collection[str]) -> None:
        """Raise `WarehouseDamaged` if one of the files is not in the version: rows would come back, or leave twice."""
        strange = set(paths).difference(self.snapshots.get(version).files) if paths else ()
        if strange:
            raise WarehouseDamaged(path=min(strange), reason=f"rows of this file should leave version {version} of {self.table.name}, which does not have it")

    def additions(self, version: int, paths: Collection[str]) -> dict[str, Action]:
        """Return the add actions of files of a version."""
        self.require_files(version, paths)
        return additions(self.log, version, paths) if paths else {}

    def remember_change(self, version: int, files: Sequence[DataFile], leaving: Mapping[str, Action]) -> None:
        """Remember the next version if this one is known; otherwise the first reader replays the log."""
        before = self.snapshots.peek(version)
        if before is None:
            return
        stay = tuple(path for path in before.files if path not in leaving) if leaving else before.files
        gone = sum(self._rows(path, add) for path, add in leaving.items())
        rows = before.rows + sum(file.rows for file in files) - gone
        self.snapshots.remember(version + 1, Snapshot((*stay, *(f"{self.folder}/{file.path}" for file in files)), rows))

    def _rows(self, path: str, add: Action) -> int:
        counted = rows_of(add)
        return self.footers.rows(path) if counted is None else counted

    def unfinished(self, version: int, newest: int) -> tuple[list[Action], list[Action], int | None]:
        """Return the add actions of files that commits of ours added after `version`, and of those that they removed; and the first foreign version.

        Raises `CommitsMixed` if they cannot be told apart from what another writer did.
        """
        found = unfinished(self.log.applied(version, newest))
        if found.mixed is not None:
            number, what = found.mixed
            raise CommitsMixed(table=self.table.name, found=number, known=version, what=what)
        removed = {local_path(self.folder, path) for path in found.ours.removed}
        return list(found.ours.added.values()), self._to_bring_back(version, removed), found.foreign

    def _to_bring_back(self, version: int, paths: Collection[str]) -> list[Action]:
        for path in paths:
            if not Path(path).exists():
                raise WarehouseDamaged(path=path, reason=f"version {version}, which the ledger knows, needs this file, and it is gone")
        return list(self.additions(version, paths).values())

    def needed(self, held: Callable[[], Collection[int]]) -> Needed:
        # Names first: one that is released by then is in a version that the next line finds.
        with self._reserved_lock:
            reserved = set(self._reserved)
        # Then who holds what: a version that comes after this has files of one that is held, and files that were not there to be listed, or are reserved.
        versions = held()
        newest = self.newest()
        if max((newest, *versions)) > newest:
            raise WarehouseDamaged(path=str(self.folder), reason=f"its log ends at version {newest}, the ledger knows {max(versions)}")
        # Somebody may hold a version whose log an earlier collection shortened away. Judged by names: a read that fails must not cost files.
        start = _log_start(self.log.folder)
        readable = [version for version in versions if version >= start]
        oldest = min((newest, *readable))
        base = self.snapshots.get(oldest).files
        return Needed(reserved | files_of_versions(self.log, base, versions=readable, newest=newest), oldest)


def _log_start(folder: Path) -> int:
    """Return the oldest version that the log still describes: 0, or that of its oldest checkpoint."""
    names = [path.name for path in folder.iterdir()]
    if f"{0:020d}.json" in names:
        return 0
    return min((int(name[:20]) for name in names if name[:20].isdigit() and ".checkpoint" in name), default=0)
