"""Foundations: what a warehouse stands on. Ledger, store, log and trace, on disk or in a database.

In: a folder, or the address of a PostgreSQL database.
Out: parts that everything above uses without knowing which they are.
Promise: either all parts are open, or none is; a writer's foundation keeps every other writer out until it is closed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from righttime.catalyst.log import Log, WriteAheadLog
from righttime.catalyst.port import anything_goes
from righttime.catalyst.postgres_log import PostgresLog
from righttime.changes.clock import Clock
from righttime.changes.schema import TableSchema
from righttime.ledger.book import Book
from righttime.ledger.sqlite import Ledger
from righttime.ledger.trace import CommitTrace
from righttime.query.consumer import Consumer
from righttime.query.postgres_parts import is_postgres, postgres_parts
from righttime.query.postgres_queries import PostgresQueries
from righttime.query.snapshot import Snapshots
from righttime.query.stored import FileTables, HeldTables, HoldTables
from righttime.settings import Settings
from righttime.warehouse.lakehouse import Lakehouse
from righttime.warehouse.postgres_types import check_storable
from righttime.warehouse.store import Store

__all__ = ["Foundation", "is_postgres", "open_foundation"]


OpenQueries = Callable[[Snapshots, Consumer, Mapping[str, TableSchema], Mapping[str, str]], PostgresQueries]
"""Opens a session in which the database answers queries in its own SQL, hot rows included."""


@dataclass(frozen=True, slots=True)
class Foundation:
    """`name` is how users know it, without secrets; `folder` keeps what is local. A reader has no `trace`, and opens a log for each state it reads.

    `table_schema` is where a database has the tables, `server` tells which database of which server it is;
    `adopt_table` takes over a table that it has already: its declaration, version and rows.
    """

    name: str
    folder: Path
    ledger: Book
    store: Store
    wal: Log
    trace: CommitTrace | None
    table_schema: str | None
    server: Callable[[], str] | None
    hold: HoldTables
    check_storable: Callable[[TableSchema, pa.RecordBatch], None]
    adopt_table: Callable[[str], tuple[TableSchema, int, int]] | None
    open_queries: "OpenQueries | None"
    open_log: Callable[[], Log]
    close: Callable[[], None]


def open_foundation(target: Path | str, *, settings: Settings, clock: Clock, create: bool = True, read_only: bool = False) -> Foundation:
    """Open what the warehouse in a folder, or at a `postgresql://` address, stands on."""
    if isinstance(target, str):
        return _in_postgres(target, settings=settings, clock=clock, create=create, read_only=read_only)
    return _on_disk(target, settings=settings, clock=clock, create=create, read_only=read_only)


def _on_disk(folder: Path, *, settings: Settings, clock: Clock, create: bool, read_only: bool) -> Foundation:
    ledger = Ledger.open(folder, settings=settings, read_only=read_only, create=create and not read_only)
    try:
        store = Lakehouse(folder / "tables", settings=settings, clock=clock)
        wal = _log(folder, settings) if read_only else WriteAheadLog(folder / "log", settings=settings)
        trace = None if read_only else CommitTrace.open(folder)
    except BaseException:
        ledger.close()
        raise
    files = FileTables(store)
    return Foundation(
        name=str(folder),
        folder=folder,
        ledger=ledger,
        store=store,
        wal=wal,
        trace=trace,
        table_schema=None,
        server=None,
        hold=lambda tables, versions: files,
        check_storable=anything_goes,
        adopt_table=None,
        open_queries=None,
        open_log=lambda: _log(folder, settings),
        close=ledger.close,
    )


def _log(folder: Path, settings: Settings) -> WriteAheadLog:
    return WriteAheadLog(folder / "log", settings=settings, read_only=True)


def _in_postgres(url: str, *, settings: Settings, clock: Clock, create: bool, read_only: bool) -> Foundation:
    parts = postgres_parts(url, settings=settings, clock=clock, create=create and not read_only, read_only=read_only)

    def hold(tables: Sequence[TableSchema], versions: Mapping[str, int]) -> HeldTables | None:
        held = parts.store.hold(tables, versions)
        return None if held is None else HeldTables(held)

    def open_queries(snapshots: Snapshots, consumer: Consumer, schemas: Mapping[str, TableSchema], views: Mapping[str, str]) -> PostgresQueries:
        return PostgresQueries(parts.address, snapshots, consumer, schemas=schemas, views=views, settings=settings)

    return Foundation(
        name=parts.address.name,
        folder=parts.folder,
        ledger=parts.ledger,
        store=parts.store,
        wal=parts.wal,
        trace=parts.trace,
        table_schema=parts.address.tables,
        server=parts.store.server,
        hold=hold,
        check_storable=check_storable,
        adopt_table=parts.store.adopt_table,
        open_queries=open_queries,
        open_log=lambda: PostgresLog(parts.store.pool, None, settings=settings),
        close=parts.close,
    )
