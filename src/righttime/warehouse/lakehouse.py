"""Tables as Delta Lake folders: the embedded store.

In: rows and batch ids from the mover, version numbers from the ledger.
Out: exact file lists of any kept version.
Promise: `commit` returns after data, folder, log entry and log folder are synced; a version is made once, by us or by somebody else, never by both.
"""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from righttime.changes.clock import Clock, SystemClock
from righttime.changes.faults import CrashPoint, reach
from righttime.changes.schema import TableSchema
from righttime.errors import BadTable, CommitFailed, ForeignCommit, WarehouseDamaged
from righttime.settings import Settings
from righttime.warehouse.adopt import check_version
from righttime.warehouse.checkpoint import write_checkpoint
from righttime.warehouse.collect import STAGING_FOLDER, collect
from righttime.warehouse.delta_log import LOG_FOLDER, DeltaLog, batch_id_of, change, changes_rows, creation, reversal
from righttime.warehouse.durable import coded_errors, sync_folder
from righttime.warehouse.handle import TableHandle
from righttime.warehouse.removal import rewrite
from righttime.warehouse.scan import rows_at, scan_files
from righttime.warehouse.snapshots import Snapshot
from righttime.warehouse.store import EVERYTHING, Collected, DataFile, Positions, Ranges, Removal, StoredRows, TableVersion

_UNDO_TRIES_MAX = 5


class Lakehouse:
    """The tables below one folder; safe to call from any thread. One process at a time may write."""

    def __init__(self, root: Path, *, settings: Settings, clock: Clock | None = None) -> None:
        self._root = root.absolute()
        self._settings = settings
        self._clock = clock or SystemClock()
        self._handles: dict[str, TableHandle] = {}
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

    def add_files(self, table: TableSchema, files: Sequence[DataFile]) -> list[DataFile]:
        """Return the files: they are next to the table's own."""
        return list(files)

    def discard(self, table: TableSchema, files: Sequence[DataFile]) -> None:
        """Remove files that will not be committed."""
        self._handle(table).files.remove(files)

    def scan(self, table: TableSchema, version: int, columns: Sequence[str], *, ranges: Ranges = EVERYTHING) -> Iterator[StoredRows]:
        """Yield rows file by file; a unit is a file's absolute path, a position the row's number in it. The version must be kept meanwhile."""
        handle = self._handle(table)
        chosen = pa.schema([table.columns.field(name) for name in columns])
        return scan_files(handle.snapshots.get(version).files, chosen, handle.footers, ranges=ranges)

    def fetch(self, table: TableSchema, version: int, unit: str, positions: Positions) -> pa.Table:
        """Return whole rows of one file; costs as much as reading the row groups they are in."""
        return rows_at(unit, table.columns, self._handle(table).footers, positions)

    def check(self, table: TableSchema, version: int, places: Mapping[str, Positions]) -> None:
        """Do nothing: rows do not move within a file."""

    def remove(self, table: TableSchema, version: int, gone: Mapping[str, Positions], *, batch_id: str, changed: Collection[str] = ()) -> Removal:
        """Write what is left of each file that loses rows to new synced files, safe from `collect` until committed or discarded."""
        handle = self._handle(table)
        handle.require_files(version, gone)
        with coded_errors(handle.folder, step="remove rows", batch_id=batch_id):
            removal = rewrite(handle.files, table.columns, handle.footers, gone)
        reach(CrashPoint.FILES_WRITTEN)
        return removal

    def references(self, tables: Collection[str]) -> Mapping[str, Collection[str]]:
        """Return nothing: folders know no foreign keys."""
        return {}

    def commit(self, table: TableSchema, files: Sequence[DataFile], *, version: int, batch_id: str, batch_number: int, removed: Sequence[str] = ()) -> int:
        """Make version + 1 durable; raise `ForeignCommit` if it exists, `CommitFailed` if it could not be written."""
        handle = self._handle(table)
        with handle.lock:
            if not handle.log.has(version):
                raise WarehouseDamaged(path=str(handle.folder), reason=f"version {version}, which the ledger knows, is missing from the table's log")
            leaving = handle.additions(version, removed)
            actions = change(files, removed=leaving.values(), batch_id=batch_id, batch_number=batch_number, time_us=self._clock.now_us())
            handle.put(version, version + 1, actions, batch_id=batch_id)
            handle.remember_change(version, files, leaving)
            handle.release(*(file.path for file in files))
        return version + 1

    def undo(self, table: TableSchema, *, version: int) -> int:
        """Reverse newer commits of ours by one more commit; raise `ForeignCommit` then if others came, too, `CommitsMixed` if they stand in the way."""
        handle = self._handle(table)
        with handle.lock:
            for _ in range(_UNDO_TRIES_MAX):
                newest = handle.log.newest(at_least=version)
                if newest < version:
                    raise WarehouseDamaged(path=str(handle.folder), reason=f"its log ends at version {newest}, the ledger knows {version}")
                added, removed, foreign = handle.unfinished(version, newest)
                if added or removed:
                    actions = reversal(added, removed, to_version=version, time_us=self._clock.now_us())
                    try:
                        handle.put(newest, newest + 1, actions, batch_id=f"undo-{version}")
                    except ForeignCommit:
                        continue  # another writer was first; ours is to be told apart from that, too
                    newest += 1
                if foreign is not None:
                    raise ForeignCommit(table=table.name, found=foreign, known=version)
                known = handle.snapshots.peek(version)
                if known is not None:
                    handle.snapshots.remember(newest, known)
                return newest
        raise CommitFailed(source=f"undo-{version}", step="undo", reason=f"another Delta writer changes table {table.name!r} without a pause")

    def newest_version(self, table: TableSchema) -> int:
        """Return the newest version in the log, whoever wrote it."""
        return self._handle(table).newest()

    def files(self, table: TableSchema, version: int) -> tuple[str, ...]:
        """Return the absolute paths of a version's files; free of charge for versions that were committed or read lately."""
        return self._handle(table).snapshots.get(version).files

    def path_of(self, table: TableSchema, file: DataFile) -> str:
        """Return the absolute path of a file that is written but not committed."""
        return f"{self._root / table.name}/{file.path}"

    def same_rows(self, table: TableSchema, known: int, version: int) -> bool:
        """Tell whether other writers have only put files together since, or restored what they had done; what is left of ours is nothing."""
        handle = self._handle(table)
        before, after = handle.snapshots.get(known), handle.snapshots.get(version)
        if set(before.files) == set(after.files):
            return True
        foreign = (actions for _, actions in handle.log.applied(known, version) if batch_id_of(actions) is None)
        return before.rows == after.rows and not any(changes_rows(actions) for actions in foreign)

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

    def collect(self, table: TableSchema, *, versions: Callable[[], Collection[int]], grace_s: float, now_s: float) -> Collected:
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

    def _handle(self, table: TableSchema) -> TableHandle:
        with self._lock:
            handle = self._handles.get(table.name)
            if handle is None:
                handle = self._handles[table.name] = TableHandle(table, self._root / table.name)
            return handle


def _remove_leftover(table: TableSchema, folder: Path) -> None:
    """Remove the folder of a creation that the ledger never heard of: empty, or ours with nothing in it but version 0."""
    content = [path for path in folder.iterdir() if path.name != LOG_FOLDER]
    log = DeltaLog(folder)
    entries = [path for path in log.folder.iterdir() if path.suffix != ".tmp"] if log.folder.is_dir() else []
    if content or entries not in ([], [log.entry_path(0)]) or (entries and batch_id_of(log.read(0)) is None):
        raise BadTable(table=table.name, reason=f"the folder {folder} exists and holds something that is not known here; move it away")
    shutil.rmtree(folder)
