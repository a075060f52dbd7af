"""Tables as Delta Lake folders: the embedded store.

In: rows and batch ids from the mover, version numbers from the ledger.
Out: exact file lists of any kept version.
Promise: `commit` returns after data, folder, log entry and log folder are synced; a version is made once, by us or by somebody else, never by both.
"""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from righttime.changes.clock import Clock, SystemClock
from righttime.changes.faults import CrashPoint, reach
from righttime.changes.schema import TableSchema
from righttime.errors import BadTable, ForeignCommit, WarehouseDamaged
from righttime.settings import Settings
from righttime.warehouse.adopt import check_version
from righttime.warehouse.checkpoint import write_checkpoint
from righttime.warehouse.collect import STAGING_FOLDER, Needed, collect, files_of_versions
from righttime.warehouse.delta_log import LOG_FOLDER, Action, DeltaLog, append, batch_id_of, creation, reversal
from righttime.warehouse.durable import coded_errors, sync_folder
from righttime.warehouse.files import TableFiles
from righttime.warehouse.snapshots import Snapshot, Snapshots
from righttime.warehouse.store import Collected, DataFile, TableVersion


class Lakehouse:
    """The tables below one folder; safe to call from any thread. One process at a time may write."""

    def __init__(self, root: Path, *, settings: Settings, clock: Clock | None = None) -> None:
        self._root = root.absolute()
        self._settings = settings
        self._clock = clock or SystemClock()
        self._handles: dict[str, _Handle] = {}
        self._lock = threading.Lock()

    def create(self, table: TableSchema) -> int:
        """Make an empty table, durable on return; a leftover of a crash before the ledger knew the table is replaced."""
        folder = self._root / table.name
        with coded_errors(folder, step="create table", batch_id=table.name):
            if folder.exists():
                _remove_leftover(table, folder)
            self._root.mkdir(exist_ok=True)
            (folder / LOG_FOLDER).mkdir(parents=True)
            with self._lock:
                self._handles.pop(table.name, None)
            handle = self._handle(table)
            handle.log.put(0, creation(table, time_us=self._clock.now_us()))
            for changed in (folder, self._root, self._root.parent):
                sync_folder(changed)
        handle.snapshots.remember(0, Snapshot((), 0))
        return 0

    def write_files(self, table: TableSchema, rows: pa.Table | Iterable[pa.RecordBatch], *, batch_id: str) -> list[DataFile]:
        """Write rows to new files, synced with their folder. They are safe from `collect` until committed or discarded."""
        handle = self._handle(table)
        with coded_errors(handle.folder, step="write files", batch_id=batch_id):
            files = handle.files.write(rows)
        reach(CrashPoint.FILES_WRITTEN)
        return files

    def staging(self, table: TableSchema, *, batch_id: str) -> Path:
        """Return where Spark may make a folder for its files; `take_files` ends it, `collect` removes one that a crash left."""
        handle = self._handle(table)
        handle.require_log()
        name = f"{STAGING_FOLDER}/{secrets.token_hex(16)}"
        handle.reserve(name)
        with coded_errors(handle.folder, step="stage files", batch_id=batch_id):
            (handle.folder / STAGING_FOLDER).mkdir(exist_ok=True)
        return handle.folder / name

    def take_files(self, table: TableSchema, folder: Path) -> list[DataFile]:
        """Check the Parquet files in `folder`, move them next to the table's own and sync them."""
        handle = self._handle(table)
        with coded_errors(handle.folder, step="take files", batch_id=folder.name):
            files = handle.files.take(folder)
        handle.release(f"{STAGING_FOLDER}/{folder.name}")
        reach(CrashPoint.FILES_WRITTEN)
        return files

    def discard(self, table: TableSchema, files: Sequence[DataFile]) -> None:
        """Remove files that will not be committed."""
        self._handle(table).files.remove(files)

    def commit(self, table: TableSchema, files: Sequence[DataFile], *, version: int, batch_id: str, batch_number: int) -> int:
        """Make version + 1 durable; raise `ForeignCommit` if it exists, `CommitFailed` if it could not be written."""
        handle = self._handle(table)
        with handle.lock:
            if not handle.log.has(version):
                raise WarehouseDamaged(path=str(handle.folder), reason=f"version {version}, which the ledger knows, is missing from the table's log")
            actions = append(files, batch_id=batch_id, batch_number=batch_number, time_us=self._clock.now_us())
            handle.put(version, version + 1, actions, batch_id=batch_id)
            handle.remember_append(version, files)
            handle.release(*(file.path for file in files))
        return version + 1

    def undo(self, table: TableSchema, *, version: int) -> int:
        """Take newer commits of ours out again by one more commit; raise `ForeignCommit` if one is not ours."""
        handle = self._handle(table)
        with handle.lock:
            newest = handle.log.newest(at_least=version)
            if newest < version:
                raise WarehouseDamaged(path=str(handle.folder), reason=f"its log ends at version {newest}, the ledger knows {version}")
            added = handle.added_since(version, newest)
            if newest == version or not added:
                return newest
            actions = reversal(added, to_version=version, time_us=self._clock.now_us())
            handle.put(newest, newest + 1, actions, batch_id=f"undo-{version}")
            known = handle.snapshots.peek(version)
            if known is not None:
                handle.snapshots.remember(newest + 1, known)
        return newest + 1

    def newest_version(self, table: TableSchema) -> int:
        """Return the newest version in the log, whoever wrote it."""
        return self._handle(table).newest()

    def files(self, table: TableSchema, version: int) -> tuple[str, ...]:
        """Return the absolute paths of a version's files; free of charge for versions that were committed or read lately."""
        return self._handle(table).snapshots.get(version).files

    def path_of(self, table: TableSchema, file: DataFile) -> str:
        """Return the absolute path of a file that is written but not committed."""
        return f"{self._root / table.name}/{file.path}"

    def check_schema(self, table: TableSchema, version: int) -> None:
        """Raise `BadTable` if a version, made by another writer, cannot be read by its file list with the declared columns."""
        check_version(table, self._root / table.name, version, files=self.files(table, version))

    def row_count(self, table: TableSchema, version: int) -> int:
        """Return the rows of a version."""
        return self._handle(table).snapshots.get(version).rows

    def history(self, table: TableSchema) -> list[TableVersion]:
        """Return the versions that have a log entry, newest first."""
        log = self._handle(table).log
        return [log.describe(version) for version in reversed(log.entries())]

    def collect(self, table: TableSchema, *, versions: Collection[int], grace_s: float, now_s: float) -> Collected:
        """Remove files, staging folders and log entries that neither `versions` nor the newest version need."""
        handle = self._handle(table)
        handle.require_log()
        with coded_errors(handle.folder, step="collect", batch_id=table.name):
            return collect(handle.log, needed=lambda: handle.needed(versions), writing=handle.lock, grace_s=grace_s, now_s=now_s)

    def checkpoint(self, table: TableSchema, version: int) -> None:
        """Write a Delta checkpoint of `version`, synced before any reader can find it."""
        handle = self._handle(table)
        handle.require_log()
        scratch = f"{STAGING_FOLDER}/{secrets.token_hex(16)}"
        handle.reserve(scratch)
        try:
            with coded_errors(handle.folder, step="checkpoint", batch_id=table.name):
                write_checkpoint(handle.log, version, scratch=handle.folder / scratch, writing=handle.lock)
        finally:
            handle.release(scratch)

    def _handle(self, table: TableSchema) -> _Handle:
        with self._lock:
            handle = self._handles.get(table.name)
            if handle is None:
                handle = self._handles[table.name] = _Handle(table, self._root / table.name)
            return handle


class _Handle:
    """What one process knows of one table: its log, remembered snapshots, and names that are not committed yet."""

    def __init__(self, table: TableSchema, folder: Path) -> None:
        self.table = table
        self.folder = folder
        self.log = DeltaLog(folder)
        self.snapshots = Snapshots(folder)
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

    def remember_append(self, version: int, files: Sequence[DataFile]) -> None:
        """Remember the next version if this one is known; otherwise the first reader replays the log."""
        before = self.snapshots.peek(version)
        if before is not None:
            rows = before.rows + sum(file.rows for file in files)
            self.snapshots.remember(version + 1, Snapshot((*before.files, *(f"{self.folder}/{file.path}" for file in files)), rows))

    def added_since(self, version: int, newest: int) -> list[Action]:
        """Return the add actions after `version` that are still in force; every entry must be ours."""
        added: dict[str, Action] = {}
        for number, actions in self.log.applied(version, newest):
            if batch_id_of(actions) is None:
                raise ForeignCommit(table=self.table.name, found=number, known=version)
            for action in actions:
                if "add" in action:
                    added[action["add"]["path"]] = action["add"]
                elif "remove" in action:
                    added.pop(action["remove"]["path"], None)
        return list(added.values())

    def needed(self, versions: Collection[int]) -> Needed:
        # Names first: one that is released by then is in a version that the next line finds.
        with self._reserved_lock:
            reserved = set(self._reserved)
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


def _remove_leftover(table: TableSchema, folder: Path) -> None:
    """Remove the folder of a creation that the ledger never heard of: empty, or ours with nothing in it but version 0."""
    content = [path for path in folder.iterdir() if path.name != LOG_FOLDER]
    log = DeltaLog(folder)
    entries = [path for path in log.folder.iterdir() if path.suffix != ".tmp"] if log.folder.is_dir() else []
    if content or entries not in ([], [log.entry_path(0)]) or (entries and batch_id_of(log.read(0)) is None):
        raise BadTable(table=table.name, reason=f"the folder {folder} exists and holds something that is not known here; move it away")
    shutil.rmtree(folder)
