"""Tables in a PostgreSQL database: the store of a PostgreSQL warehouse.

In: rows and positions from the mover, version numbers from the ledger.
Out: rows of the newest version, by scan, by position or held for a query.
Promise: `write_files`, `remove` and `commit` work in the writer's one open transaction; nothing of it exists before the ledger publishes it
with the state, and all of it does then (I1, I2).

A version's number is kept in minmax. Only the newest can be read: older ones live on in the transactions that hold them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pyarrow as pa
from psycopg import sql

from righttime.changes.clock import Clock, SystemClock
from righttime.changes.faults import CrashPoint, reach
from righttime.changes.schema import TableSchema
from righttime.errors import CommitFailed, ForeignCommit, RowsMoved, SchemaChanged, VersionGone, WarehouseDamaged, WarehouseReadOnly
from righttime.ledger.postgres_connect import SERVER, Address, Connection, Pool, coded_errors, run
from righttime.ledger.postgres_writer import PostgresWriter
from righttime.settings import Settings
from righttime.warehouse.postgres_bonds import Bonds, references, set_constraints
from righttime.warehouse.postgres_catalog import CATALOG, Found, require
from righttime.warehouse.postgres_encode import copy_blocks, stored_forms
from righttime.warehouse.postgres_exchange import Exchange
from righttime.warehouse.postgres_hold import Held, hold
from righttime.warehouse.postgres_others import Others
from righttime.warehouse.postgres_places import Places, Tids, Xids, counted, places_of
from righttime.warehouse.postgres_scan import TableScan
from righttime.warehouse.postgres_staging import Staging
from righttime.warehouse.postgres_tables import adopt_table, create_table
from righttime.warehouse.postgres_types import check_storable
from righttime.warehouse.store import EVERYTHING, Collected, DataFile, Positions, Ranges, Removal, StoredRows, TableVersion

_TOKEN = "copy-"  # names rows that are in the writer's transaction, where a file has a path
_KEPT = ":kept:"  # in the name of a removal whose rows held values of others
_ASIDE = ":aside:"  # in the name of a removal that is done when the table is committed
_DELETE_ROWS = 1 << 16
# Connections that queries leave to settling and to steps. Rows are fetched while a scan goes on, so scans leave some, too.
_FOR_SCANS = 4
_FOR_LOOKS = 8


class PostgresStore:
    """The tables in one schema of a database; safe to call from any thread, steps one at a time. Without a writer it only reads."""

    def __init__(self, address: Address, writer: PostgresWriter | None, *, folder: Path, settings: Settings, clock: Clock | None = None) -> None:
        self.address = address
        self._writer = writer
        self._clock = clock or SystemClock()
        self._staging = Staging(folder / "staging")
        self.pool = Pool(address, connections_max=settings.holds_max, wait_s=settings.lock_wait_s)
        self._bonds: dict[str, Bonds] = {}  # of the tables of the step under way that are not committed yet

    def hold(self, tables: Sequence[TableSchema], versions: Mapping[str, int]) -> Held | None:
        """Hold the tables at these versions for a query; None if the database has gone on: look again."""
        return hold(self.pool, tables, versions)

    def server(self) -> str:
        """Return which database of which server this is, now; a server that was started anew is another one."""
        with coded_errors(self.address, step="connect"), self.pool.connection() as connection:
            return str(run(connection, f"SELECT {SERVER}")[0][0])

    def close(self) -> None:
        """Close the connections that are not held."""
        self.pool.close()

    # -- tables ------------------------------------------------------------------------------------------------------

    def create(self, table: TableSchema) -> int:
        """Make an empty table, durable on return; one that a crash left before the ledger knew it is replaced."""
        self._for_writing("create a table")
        with self._separately("create table", table.name) as connection, connection.transaction():
            create_table(connection, self.address, table, now_us=self._clock.now_us())
        return 0

    def adopt_table(self, name: str) -> tuple[TableSchema, int, int]:
        """Take over a table that exists: return its declaration, its version and its rows. Nothing is copied."""
        self._for_writing("adopt a table")
        with self._separately("adopt table", name) as connection, connection.transaction():
            table, rows = adopt_table(connection, self.address, name, now_us=self._clock.now_us())
        return table, 0, rows

    # -- a step ------------------------------------------------------------------------------------------------------

    def write_files(self, table: TableSchema, rows: pa.Table | Iterable[pa.RecordBatch], *, batch_id: str) -> list[DataFile]:
        """Copy rows into the table, in the writer's transaction; what is returned stands for them until `commit` or `discard`."""
        batches = (batch for batch in (rows.to_batches() if isinstance(rows, pa.Table) else rows) if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return []
        written = self._copy(table, chain([first], batches))
        reach(CrashPoint.FILES_WRITTEN)
        return [written]

    def _copy(self, table: TableSchema, batches: Iterable[pa.RecordBatch]) -> DataFile:
        writer = self._for_writing("store rows")
        found, bonds = self._checked(writer, table)
        names = found.names(table, writing=True)
        exchange = Exchange.of(writer, self.address, table, found, bonds) if bonds.incoming else None
        if exchange is not None and not exchange.is_under_way(writer):
            exchange = None
        self._bonds[table.name] = bonds
        bonds.put_off(writer, table)
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        entry = self.address.table(table.name) if exchange is None else exchange.entry
        query = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(entry, columns)
        token, count = _TOKEN + secrets.token_hex(16), [0, 0]
        writer.wrote(token)
        taken = writer.copy(query, copy_blocks(_counted(table, batches, count), stored_forms(table.columns)), step="write rows", table=table.name)
        with self._rolled_back(writer):
            if taken != count[0]:
                raise SchemaChanged(table=table.name, difference=f"it took {taken} of {count[0]} rows, so something in the database drops rows")
            if exchange is not None:
                exchange.bring(writer, taken)
        return DataFile(token, count[1], count[0], {}, "")

    @contextmanager
    def _rolled_back(self, writer: PostgresWriter) -> Iterator[None]:
        """End the step's transaction where a block raises."""
        try:
            yield
        except BaseException:
            writer.roll_back()
            raise

    def _checked(self, writer: PostgresWriter, table: TableSchema) -> tuple[Found, Bonds]:
        """Return the table as it is, locked against changes of its columns until the step ends, and its foreign keys; refuse triggers as `Bonds` does."""
        lock = sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(self.address.table(table.name))
        writer.execute(lock, step="write rows", table=table.name)
        rows = writer.execute(CATALOG, (self.address.tables, [table.name]), step="write rows", table=table.name)
        with self._rolled_back(writer):
            found = require(Found.of(rows[0]) if rows else None, table)
            found.names(table, writing=True)
            bonds = Bonds.of(writer, self.address, table)
        return found, bonds

    def remove(self, table: TableSchema, version: int, gone: Mapping[str, Positions], *, batch_id: str, changed: Collection[str] = ()) -> Removal:
        """Delete rows in the writer's transaction; raise `RowsMoved` if one of them is not where it was, `ColumnNotKept` as `Others` does."""
        writer = self._for_writing("remove rows")
        found, bonds = self._checked(writer, table)
        with self._rolled_back(writer):
            places = places_of(found, gone)
            if not len(places):
                return Removal(files=(), units=(), rows=0, rows_kept=0)
            if bonds.incoming:
                return self._put_aside(writer, Exchange.of(writer, self.address, table, found, bonds), places, changed)
            others = Others.of(self.address, table, found)
            kept = others.are_kept(changed)
            token = f"{_TOKEN}{secrets.token_hex(16)}{_KEPT if kept else ':'}{len(places)}"
            writer.wrote(token)
            self._delete(writer, table, places, others if kept else None)
        return Removal(files=(), units=(token,), rows=len(places), rows_kept=0)

    def _put_aside(self, writer: PostgresWriter, exchange: Exchange, places: Places, changed: Collection[str]) -> Removal:
        """Remove rows of a table that foreign keys refer to: which of them live on is known once the new rows are there."""
        exchange.bonds.refuse_before_update(exchange.table)
        exchange.refuse_not_kept(changed)
        self._bonds[exchange.table.name] = exchange.bonds
        exchange.bonds.put_off(writer, exchange.table)
        token = f"{_TOKEN}{secrets.token_hex(16)}{_ASIDE}{len(places)}"
        writer.wrote(token)
        exchange.put_aside(writer, places)
        return Removal(files=(), units=(token,), rows=len(places), rows_kept=0)

    def _delete(self, writer: PostgresWriter, table: TableSchema, places: Places, others: Others | None) -> None:
        """Delete what lies at these places, and raise `RowsMoved`, which ends the transaction, if that was not all of these rows or not these alone."""
        deleting = sql.SQL("DELETE FROM {} WHERE ctid = ANY(%s) RETURNING ctid AS place, xmin AS made").format(self.address.table(table.name))
        parts = sql.SQL("gone AS ({})").format(deleting)
        if others is not None:
            parts = others.put_aside(writer, deleting)
        query = sql.SQL("WITH {} {}").format(parts, counted(sql.SQL("gone")))
        for start in range(0, len(places), _DELETE_ROWS):
            part = places[start : start + _DELETE_ROWS]
            ((deleted,),) = writer.execute(query, (Tids(part.ctids), Tids(part.ctids), Xids(part.made)), step="remove rows", table=table.name)
            if deleted != len(part):
                raise RowsMoved(table=table.name, reason=f"{len(part) - deleted} rows are not where they were")
        if others is not None:
            others.refuse_mixed(writer)

    def commit(self, table: TableSchema, files: Sequence[DataFile], *, version: int, batch_id: str, batch_number: int, removed: Sequence[str] = ()) -> int:
        """Make version + 1 of the rows written and removed since the step began; it exists once the ledger has published it."""
        writer = self._for_writing("commit a table")
        files = [
            *self.add_files(table, [file for file in files if not file.path.startswith(_TOKEN)]),
            *(file for file in files if file.path.startswith(_TOKEN)),
        ]
        tokens = [*(file.path for file in files), *removed]
        rows = sum(file.rows for file in files) - sum(int(token.rpartition(":")[2]) for token in removed)
        self._raise_version(writer, table, version, rows=rows)
        self._refuse_lost(writer, tokens)
        if any(_KEPT in token for token in removed):
            Others.of(self.address, table, self._checked(writer, table)[0]).give_back(writer)
        self._settle_references(writer, table, aside=any(_ASIDE in token for token in removed))
        entry = (table.name, version + 1, self._clock.now_us(), batch_id)
        writer.execute(self.address.ours("INSERT INTO {0}.version VALUES (%s, %s, %s, 'WRITE', %s)"), entry, step="commit tables")
        writer.made(table.name, version + 1, tokens)
        return version + 1

    def _settle_references(self, writer: PostgresWriter, table: TableSchema, *, aside: bool) -> None:
        """Let rows go that have not come again, and look at the foreign keys that were put off: here it is known whose they are."""
        found = self._checked(writer, table)[0] if aside else None
        bonds = self._bonds.pop(table.name, Bonds((), ()))
        if found is not None:
            with self._rolled_back(writer):
                Exchange.of(writer, self.address, table, found, bonds).end(writer)
        due = bonds.due([self.address.table(name) for name in self._bonds])
        set_constraints(writer, due, "IMMEDIATE", table=table.name)

    def references(self, tables: Collection[str]) -> Mapping[str, Collection[str]]:
        """Return which tables refer to which, by the foreign keys of the database."""
        with self._separately("look up references", "") as connection:
            return references(connection, self.address, tables)

    def _raise_version(self, writer: PostgresWriter, table: TableSchema, version: int, *, rows: int) -> None:
        query = "UPDATE {0}.minmax SET version = version + 1, rows_stored = rows_stored + %s WHERE tablename = %s AND version = %s"
        if not writer.change(self.address.ours(query), (rows, table.name, version), step="commit tables"):
            writer.roll_back()
            raise ForeignCommit(table=table.name, found=self.newest_version(table), known=version)

    def _refuse_lost(self, writer: PostgresWriter, tokens: Sequence[str]) -> None:
        if not all(writer.holds(token) for token in tokens):
            writer.roll_back()
            raise CommitFailed(source="store", step="commit tables", reason="rows of this step are not in the open transaction any more")

    def discard(self, table: TableSchema, files: Sequence[DataFile]) -> None:
        """Forget rows that will not be committed: staged files are removed, and a transaction that holds others is rolled back."""
        self._staging.remove(table, [file for file in files if not file.path.startswith(_TOKEN)])
        if self._writer is not None and any(self._writer.holds(file.path) for file in files):
            self._writer.roll_back()

    def undo(self, table: TableSchema, *, version: int) -> int:
        """Roll the writer's transaction back and return the version, which is the newest; `ForeignCommit` if it is not."""
        self._bonds.clear()
        if self._writer is not None:
            self._writer.roll_back()
        newest = self.newest_version(table)
        if newest != version:
            raise ForeignCommit(table=table.name, found=newest, known=version)
        return version

    # -- files that Spark wrote --------------------------------------------------------------------------------------

    def staging(self, table: TableSchema, *, batch_id: str) -> Path:
        """Return a new folder on this machine for Spark's Parquet files."""
        return self._staging.folder(table)

    def take_files(self, table: TableSchema, folder: Path) -> list[DataFile]:
        """Check the files of a staging folder and keep them until `commit` copies their rows, or `discard`."""
        files = self._staging.take(table, folder)
        reach(CrashPoint.FILES_WRITTEN)
        return files

    def add_files(self, table: TableSchema, files: Sequence[DataFile]) -> list[DataFile]:
        """Copy the rows of staged files into the table, in the writer's transaction; the files are removed once that is published."""
        if not files:
            return []
        copied = self._copy(table, self._staging.batches(table, files))
        self._for_writing("store rows").afterwards(lambda: self._staging.remove(table, files))
        return [copied]

    def path_of(self, table: TableSchema, file: DataFile) -> str:
        """Return the path of a staged file; rows in the writer's transaction have none."""
        if file.path.startswith(_TOKEN):
            raise VersionGone(table=table.name, version="of rows that are being written", found="not readable before it is committed")
        return str(self._staging.path(table, file))

    def collect(self, table: TableSchema, *, versions: Callable[[], Collection[int]], grace_s: float, now_s: float) -> Collected:
        """Remove staged files that a crash left; rows that no transaction needs are PostgreSQL's to vacuum."""
        return self._staging.collect(table)

    def checkpoint(self, table: TableSchema, version: int) -> None:
        """Do nothing: PostgreSQL makes its own checkpoints."""

    # -- versions ----------------------------------------------------------------------------------------------------

    def newest_version(self, table: TableSchema) -> int:
        """Return the newest published version."""
        return self._version_and_rows(table)[0]

    def row_count(self, table: TableSchema, version: int) -> int:
        """Return how many rows the warehouse has stored in the newest version; what others inserted is not counted."""
        newest, rows = self._version_and_rows(table)
        if newest != version:
            raise VersionGone(table=table.name, version=version, found=newest)
        return rows

    def _version_and_rows(self, table: TableSchema) -> tuple[int, int]:
        query, parameters = self.address.ours("SELECT version, rows_stored FROM {0}.minmax WHERE tablename = %s"), (table.name,)
        if self._is_pending(table):
            found = self._for_writing("read").execute(query, parameters, step="read")
        else:
            with self._separately("read", table.name) as connection:
                found = run(connection, query, parameters)
        if not found:
            raise WarehouseDamaged(path=self.address.name, reason=f"the ledger has no row in minmax for table {table.name!r}")
        return int(found[0][0]), int(found[0][1])

    def _is_pending(self, table: TableSchema, version: int | None = None) -> bool:
        """Tell whether the writer's transaction has made a version of the table, this one if it is given."""
        pending = self._writer.pending(table.name) if self._writer is not None else None
        return pending is not None and version in (None, pending)

    def same_rows(self, table: TableSchema, known: int, version: int) -> bool:
        """Return False for any other version: a database does not say what became of the rows of one."""
        return known == version

    def check_schema(self, table: TableSchema, version: int) -> None:
        """Raise `SchemaChanged` if the table is not in the database as it was declared."""
        with self._reading(table, version, reserves=_FOR_LOOKS):
            return

    def history(self, table: TableSchema) -> list[TableVersion]:
        """Return the versions that are still described, newest first."""
        query = "SELECT version, time_us, operation, batch_id FROM {0}.version WHERE tablename = %s ORDER BY version DESC"
        with self._separately("read", table.name) as connection:
            return [TableVersion(*row) for row in run(connection, self.address.ours(query), (table.name,))]

    def scan(self, table: TableSchema, version: int, columns: Sequence[str], *, ranges: Ranges = EVERYTHING) -> Iterator[StoredRows]:
        """Yield the rows of the newest version, in a transaction that is held meanwhile; `VersionGone` if `version` is not the newest."""
        with self._reading(table, version, reserves=_FOR_SCANS) as reading:
            yield from reading.rows(columns, ranges=ranges)

    def fetch(self, table: TableSchema, version: int, unit: str, positions: Positions) -> pa.Table:
        """Return whole rows of the newest version, one for each position, in that order."""
        with self._reading(table, version, reserves=_FOR_LOOKS) as reading:
            return reading.fetch(positions, unit=unit)

    def check(self, table: TableSchema, version: int, places: Mapping[str, Positions]) -> None:
        """Raise `RowsMoved` if one of these rows is not at its position any more."""
        if places:
            with self._reading(table, version, reserves=_FOR_LOOKS) as reading:
                reading.check(places)

    @contextmanager
    def _reading(self, table: TableSchema, version: int, *, reserves: int) -> Iterator[TableScan]:
        """Read a published version in a transaction of its own, one that the open step has made in the writer's."""
        if self._is_pending(table, version):
            writer = self._for_writing("read")
            found, _ = self._checked(writer, table)
            with writer.lend() as connection:
                yield TableScan(connection, self.address, table, found)
            return
        held = hold(self.pool, [table], {table.name: version}, reserves=reserves)
        if held is None:
            raise VersionGone(table=table.name, version=version, found=self.newest_version(table))
        with held:
            yield held.reading(table.name)

    @contextmanager
    def _separately(self, step: str, table: str) -> Iterator[Connection]:
        """Lend a connection beside the writer's."""
        with coded_errors(self.address, step=step, table=table), self.pool.connection(reserves=_FOR_LOOKS) as connection:
            yield connection

    def _for_writing(self, action: str) -> PostgresWriter:
        if self._writer is None:
            raise WarehouseReadOnly(path=self.address.name, action=action)
        return self._writer


def _counted(table: TableSchema, batches: Iterable[pa.RecordBatch], count: list[int]) -> Iterator[pa.RecordBatch]:
    """Yield batches with the declared columns, all of whose values PostgreSQL can hold, and count rows and bytes."""
    for batch in batches:
        conformed = batch if batch.schema.equals(table.columns) else batch.select(table.columns.names).cast(table.columns)
        check_storable(table, conformed)
        count[0] += conformed.num_rows
        count[1] += conformed.nbytes
        yield conformed
