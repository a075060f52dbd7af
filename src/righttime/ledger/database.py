"""The ledger's SQLite file: created whole, checked before it is touched, one transaction at a time.

In: a warehouse folder, and statements from `sqlite.py`.
Out: rows; a file that exists with its schema or not at all.
Promise: a durable transaction is on disk when it returns; a folder that is not ours, or newer than us, is left as it was.
"""

import os
import secrets
import sqlite3
import struct
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from righttime.errors import CommitFailed, NotAWarehouse, RightTimeError, WarehouseClosed, WarehouseDamaged, WarehouseNewer, WarehouseReadOnly
from righttime.ledger.lock import LOCK_FILE, WriterLock, locked
from righttime.ledger.state import EMPTY

LEDGER_FILE = "ledger.db"
FORMAT = 1

_APPLICATION_ID = 0x52544C31  # "RTL1"
_NEW_FILE = "ledger.db.new"
_LEFTOVERS = {LOCK_FILE, _NEW_FILE, _NEW_FILE + "-journal"}
_BUSY_S = 10.0  # how long a transaction waits for one of another process, which are all short
_TRIES_MAX = 10
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE state (number INTEGER PRIMARY KEY, time_us INTEGER NOT NULL, kind TEXT NOT NULL, json TEXT NOT NULL);
CREATE TABLE batch (
  entry INTEGER PRIMARY KEY, source TEXT NOT NULL, batch_id TEXT NOT NULL,
  number INTEGER NOT NULL, time_us INTEGER NOT NULL, state INTEGER NOT NULL, rows INTEGER NOT NULL, UNIQUE (source, batch_id));
CREATE TABLE declared_table (entry INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, json TEXT NOT NULL);
CREATE TABLE declared_view (entry INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, query TEXT NOT NULL);
CREATE TABLE receipt (entry INTEGER PRIMARY KEY, receipt_id TEXT NOT NULL UNIQUE, json TEXT NOT NULL);
CREATE TABLE pin (pin_id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, state INTEGER NOT NULL, expires_us INTEGER NOT NULL);
CREATE TABLE loss (
  entry INTEGER PRIMARY KEY, source TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, rows INTEGER NOT NULL, found_us INTEGER NOT NULL);
"""


class Database:
    """One connection behind one lock, safe to call from any thread; every SQLite error leaves it as one of ours."""

    writable = True

    def __init__(self, folder: Path, connection: sqlite3.Connection, *, lock: WriterLock | None) -> None:
        self.folder = folder
        self._connection: sqlite3.Connection | None = connection
        self._writer_lock = lock
        self._mutex = threading.Lock()
        self._synchronous = ""

    @property
    def read_only(self) -> bool:
        return self._writer_lock is None

    def rows(self, query: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        with self._mutex:
            try:
                return self._read(query, parameters)
            except sqlite3.Error as error:
                raise self._translated(error, action="read") from error

    def _read(self, query: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._open_connection().execute(query, parameters).fetchall()

    @contextmanager
    def transaction(self, action: str, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction; a durable one costs one fsync, another survives the process but not a power failure."""
        with self._mutex:
            connection = self._open_connection()
            try:
                self._synchronise(connection, "FULL" if durable else "NORMAL")
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._translated(error, action=action) from error
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file and give the writer lock back; a second call does nothing."""
        with self._mutex:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            if self._writer_lock is not None:
                self._writer_lock.release()

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise WarehouseClosed(path=str(self.folder))
        return self._connection

    def _synchronise(self, connection: sqlite3.Connection, mode: str) -> None:
        if self._synchronous != mode:
            connection.execute(f"PRAGMA synchronous={mode}")
            self._synchronous = mode

    def _translated(self, error: sqlite3.Error, *, action: str) -> RightTimeError:
        # Extended codes carry the primary one in the low byte.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_READONLY:
            return WarehouseReadOnly(path=str(self.folder), action=action)
        if code == sqlite3.SQLITE_BUSY and self.read_only:
            return locked(self.folder)
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or action == "read":
            return WarehouseDamaged(path=str(self.folder / LEDGER_FILE), reason=str(error))
        return CommitFailed(source="ledger", step=action, reason=str(error))


class UnwritableDatabase(Database):
    """A ledger that this process has no right to write, for its place or its owner. Others may write it, so it is opened anew for each query:
    SQLite follows a writer only while the writer's log is there, and takes a file without one for a file that nobody changes.
    """

    writable = False

    def _read(self, query: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        self._open_connection()
        for _ in range(_TRIES_MAX):
            had_log = _has_log(self.folder)
            try:
                with closing(_connection(self.folder, writable=False)) as connection:
                    found = connection.execute(query, parameters).fetchall()
            except sqlite3.Error:
                if had_log == _has_log(self.folder):
                    raise
                continue  # a writer came or went meanwhile, and its log with it
            if had_log or not _has_log(self.folder):
                return found
        raise locked(self.folder)

    @contextmanager
    def transaction(self, action: str, *, durable: bool) -> Iterator[sqlite3.Connection]:
        raise WarehouseReadOnly(path=str(self.folder), action=action)
        yield


def open_database(folder: Path, *, read_only: bool, create: bool) -> Database:
    """Open the ledger in `folder`, for writing under the writer lock; create it where `create` allows and the folder is new or empty."""
    path = folder / LEDGER_FILE
    try:
        _check_folder(folder, create=create and not read_only)
        if path.exists():
            _check_header(path)
    except OSError as error:
        raise NotAWarehouse(path=str(folder), reason=f"it cannot be looked into ({error})") from error
    if read_only:
        return _connected(folder, lock=None)
    lock = WriterLock.acquire(folder)
    try:
        # Looked at again: until the lock was ours, another process may have created it.
        if not path.exists():
            try:
                _create(folder)
            except (OSError, sqlite3.Error) as error:
                raise NotAWarehouse(path=str(folder), reason=f"it cannot be created ({error})") from error
        return _connected(folder, lock=lock)
    except BaseException:
        lock.release()
        raise


def _check_folder(folder: Path, *, create: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise NotAWarehouse(path=str(folder), reason="it is a file")
    if (folder / LEDGER_FILE).exists():
        return
    if not create:
        raise NotAWarehouse(path=str(folder), reason=f"there is no {LEDGER_FILE} in it" if folder.exists() else "it does not exist")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strangers = sorted(entry.name for entry in folder.iterdir() if entry.name not in _LEFTOVERS)
    except OSError as error:
        raise NotAWarehouse(path=str(folder), reason=f"it cannot be created ({error})") from error
    if strangers:
        raise NotAWarehouse(path=str(folder), reason=f"it has no {LEDGER_FILE} but holds {', '.join(strangers[:3])}")


def _check_header(path: Path) -> None:
    # Read as plain bytes: even a reading SQLite connection may write beside the file, and a newer warehouse must stay as it is.
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise WarehouseDamaged(path=str(path), reason="it is not a SQLite database")
    format_found, application_id = struct.unpack_from(">i", header, 60)[0], struct.unpack_from(">i", header, 68)[0]
    if application_id != _APPLICATION_ID:
        raise NotAWarehouse(path=str(path.parent), reason=f"its {LEDGER_FILE} is a database of another program")
    if format_found > FORMAT:
        raise WarehouseNewer(path=str(path.parent), found=format_found, known=FORMAT)


def _create(folder: Path) -> None:
    # Built under another name and renamed when whole, so that a kill leaves no half ledger.
    fresh = folder / _NEW_FILE
    for leftover in (fresh, fresh.with_name(fresh.name + "-journal")):
        leftover.unlink(missing_ok=True)
    with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
        connection.executescript(f"PRAGMA application_id={_APPLICATION_ID}; PRAGMA user_version={FORMAT}; BEGIN; {_SCHEMA}")
        facts = [("warehouse_id", uuid.uuid4().hex), ("seal_key", secrets.token_bytes(32))]
        connection.executemany("INSERT INTO meta VALUES (?, ?)", facts)
        connection.execute("INSERT INTO state VALUES (?, ?, 'created', ?)", (EMPTY.number, EMPTY.time_us, EMPTY.to_json()))
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode=WAL")
    fresh.replace(folder / LEDGER_FILE)
    _sync_folder(folder)
    _sync_folder(folder.parent)


def _connected(folder: Path, *, lock: WriterLock | None) -> Database:
    path = folder / LEDGER_FILE
    writable = os.access(folder, os.W_OK) and os.access(path, os.W_OK)
    try:
        connection = _connection(folder, writable=writable)
    except sqlite3.Error as error:
        raise WarehouseDamaged(path=str(path), reason=str(error)) from error
    if lock is None and not writable:
        connection.close()
        return UnwritableDatabase(folder, connection, lock=None)
    return Database(folder, connection, lock=lock)


def _connection(folder: Path, *, writable: bool) -> sqlite3.Connection:
    address = _address(folder / LEDGER_FILE, writable=writable, has_log=_has_log(folder))
    connection = sqlite3.connect(address, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        # fullfsync matters on macOS, where a plain fsync stops at the drive's cache.
        connection.executescript("PRAGMA fullfsync=ON; PRAGMA journal_size_limit=16777216; SELECT name FROM meta")
        # Asked again: a newer version may have written its number into SQLite's log only, before it was killed.
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > FORMAT:
            raise WarehouseNewer(path=str(folder), found=found, known=FORMAT)
    except BaseException:
        connection.close()
        raise
    return connection


def _has_log(folder: Path) -> bool:
    return (folder / f"{LEDGER_FILE}-wal").exists()


def _address(path: Path, *, writable: bool, has_log: bool) -> str:
    """Return SQLite's name for the file: a reader writes pins where it may; elsewhere it reads what is there."""
    mode = "mode=rw" if writable else "mode=ro" if has_log else "immutable=1"
    return f"{path.resolve().as_uri()}?{mode}"


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
