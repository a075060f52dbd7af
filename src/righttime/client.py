"""Warehouse handles: what users hold.

In: declarations, producers and queries of one user of the warehouse.
Out: answers with receipts, and a status.
Promise: handles of one folder in one process share one engine; closing a handle closes the producers it opened.
"""

import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast

from righttime.catalyst.durable import Declared
from righttime.catalyst.policies import Immediate, Policy
from righttime.catalyst.port import checked_source
from righttime.catalyst.producer import Producer
from righttime.changes.clock import Clock, SystemClock
from righttime.changes.durations import Duration, duration_us
from righttime.changes.interrupts import uninterrupted
from righttime.changes.schema import TableSchema, declare_table
from righttime.errors import BadSetting, BadTable, NameTaken, NotAWarehouse, ReceiptUnknown, TableExists, UnknownTable, WarehouseClosed
from righttime.flight.group import GroupWarehouse, open_service
from righttime.flight.warehouse import RemoteWarehouse, is_service
from righttime.flows.explain import Explanation
from righttime.flows.face import FlowMethods
from righttime.flows.jobs import FlowStatus
from righttime.flows.manager import Flows
from righttime.foundation import is_postgres, open_foundation
from righttime.ledger.receipts import Receipt, Verification
from righttime.ledger.sqlite import Loss
from righttime.query import dbapi
from righttime.query.consumer import Consumer
from righttime.query.dbapi_types import mapped_errors
from righttime.query.face import Found, Handle
from righttime.query.postgres_queries import PostgresQueries
from righttime.query.standing import StandingSnapshot
from righttime.query.statement import read_statement, split_currency
from righttime.query.verify import refuse_no_receipt
from righttime.queues.port import StreamPort
from righttime.reading import Parts, ReadingEngine, Superseded
from righttime.service import Engine, acquire_engine, release_engine
from righttime.settings import load_settings
from righttime.status import Status, status_of
from righttime.warehouse.store import Collected

PathText = str | PathLike[str]
_ODD_IN_PATHS = frozenset("[]{}*?\\%\n\r")


def open(path: PathText, *, create: bool = True, read_only: bool = False, clock: Clock | None = None, **settings: Any) -> "Warehouse":
    """Open the warehouse in a folder, making a new one if the folder is new or empty; or the one in a database, at `postgresql://user@host/database`
    (`schema=` names the schema of its tables); or one that a service has open, at `righttime://host:port`, or
    that several services have together, at `righttime://host:port,host:port`.

    Settings may be given by name; see docs/reference/settings.md. Raises `WarehouseLocked` if another process writes to it; with `read_only=True`
    it opens all the same, and answers at the newest durable state.
    """
    address = _address(path)
    if is_service(address):
        if read_only:
            raise BadSetting(name="read_only", reason="a service decides by its tokens who may write; ask it for a token that only reads")
        # The same methods with the same signatures, which a test compares; so it is a Warehouse to its users.
        return cast(Warehouse, open_service(address, clock=clock, **settings))
    target = address if is_postgres(address) else _folder(address)
    if "schema" in settings and isinstance(target, str):
        settings["table_schema"] = settings.pop("schema")
    chosen, time = load_settings(**settings), clock or SystemClock()
    if read_only:
        return Warehouse(ReadingEngine(open_foundation(target, settings=chosen, clock=time, read_only=True), settings=chosen, clock=time))
    return Warehouse(acquire_engine(target, settings=chosen, clock=clock, create=create))


def connect(
    target: "PathText | Warehouse",
    *,
    name: str | None = None,
    policy: Policy | None = None,
    wait: Duration | None = None,
    database: str | None = None,
    **settings: Any,
) -> dbapi.Connection:
    """Return a PEP 249 connection to the warehouse in a folder, or to an open one.

    With `database`, the address of the PostgreSQL database that a service has open, queries run there as plain PostgreSQL, on the login of that address.
    """
    with mapped_errors():
        open_queries = None if database is None else _asking(database, target)
    if isinstance(target, Warehouse | RemoteWarehouse | GroupWarehouse):
        return dbapi.connect(target, open_queries=open_queries, name=name, policy=policy, wait=wait)
    return dbapi.connect(target, opener=open, open_queries=open_queries, name=name, policy=policy, wait=wait, **settings)


def _asking(database: str, target: object) -> Callable[[RemoteWarehouse], PostgresQueries]:
    """Return what opens a session in a service's database; a target that is no service is refused before anything is opened."""
    if isinstance(target, GroupWarehouse) or (is_service(target) and "," in str(target)):
        raise BadSetting(name="database", reason="a group has a database for each service, and no moment of one is a moment of another; connect to one service")
    if not isinstance(target, RemoteWarehouse) and not is_service(target):
        raise BadSetting(name="database", reason="it goes with the address of a service, righttime://host:port; other targets are where the rows are")
    return lambda warehouse: warehouse._open_database(database)


def _address(path: object) -> str:
    text = fspath(path) if isinstance(path, str | PathLike) else None
    if not isinstance(text, str):
        raise NotAWarehouse(path=repr(path), reason=f"a {type(path).__name__} names no folder and no address, which are texts or paths")
    return text


def _folder(text: str) -> Path:
    if "://" in text:
        # Nothing of an address but its kind is shown: the rest may have a password in it.
        kind = re.match(r"[A-Za-z][\w+.-]*(?=://)", text)
        raise NotAWarehouse(path=f"{kind[0] if kind else '…'}://…", reason="a warehouse is a folder, postgresql://… or righttime://host:port")
    if not text:
        raise NotAWarehouse(path="''", reason="the path is empty")
    try:
        folder = Path(text).expanduser().resolve()
    except (RuntimeError, ValueError, OSError) as error:
        raise NotAWarehouse(path=text, reason=f"no path can be read like this ({error})") from error
    odd = sorted(set(str(folder)) & _ODD_IN_PATHS)
    if odd:
        raise NotAWarehouse(path=str(folder), reason=f"its path contains {' '.join(map(repr, odd))}, which Spark or Delta readers take for a pattern or a code")
    return folder


class Warehouse(Handle, FlowMethods):
    """An open warehouse. Safe to use from any thread; close it, or use it in a `with` block."""

    def __init__(self, engine: Engine | ReadingEngine) -> None:
        self._shared: Engine | ReadingEngine | None = engine
        self._path = engine.folder
        self._name = engine.name
        self._producers: list[Producer] = []
        self._standing: list[StandingSnapshot] = []
        self._closing = threading.Lock()

    # -- declarations ------------------------------------------------------------------------------------------------

    def _refuse_reader(self, action: str) -> None:
        self._writer(action)

    def _declare(self, schema: TableSchema, *, if_not_exists: bool) -> TableSchema:
        engine = self._writer("create a table")
        with engine.declarations:
            known = engine.schemas.get(schema.name)
            if known is not None and if_not_exists:
                if known != schema:
                    raise BadTable(table=schema.name, reason=f"it exists with other columns or options: {known.ddl()}")
                return known
            _refuse_taken(engine, schema.name)
            engine.declare(schema)
        return schema

    def create_view(self, name: str, query: str) -> None:
        """Declare a view: a name that stands for a query over tables and other views."""
        engine = self._writer("create a view")
        checked = declare_table(name, "placeholder INT").name
        with engine.declarations:
            _refuse_taken(engine, checked)
            statement = read_statement(query)
            engine.consumer.plan(statement)
            with uninterrupted():
                engine.mover.declare(Declared(view=(checked, statement.text)))
                engine.views[checked] = statement.text

    def schema(self, table: str) -> TableSchema:
        """Return a table's declaration."""
        with self._engine.reading() as parts:
            found = parts.schemas.get(table.lower())
            if found is None:
                raise UnknownTable.among(table, parts.schemas, is_stream=parts.consumer.is_stream(table.lower()))
            return found

    def tables(self) -> list[str]:
        """Return the names of the tables."""
        with self._engine.reading() as parts:
            return sorted(parts.schemas)

    def views(self) -> dict[str, str]:
        """Return the views and their queries."""
        with self._engine.reading() as parts:
            return dict(parts.views)

    # -- loading -----------------------------------------------------------------------------------------------------

    def producer(self, *, name: str | None = None, policy: Policy | None = None) -> Producer:
        """Open a producer. `name` is the source that receipts show; give one that stays the same from run to run."""
        engine = self._writer("open a producer")
        with engine.declarations:
            source = name if name is not None else engine.free_source()
            producer = engine.open_producer(checked_source(source), Immediate() if policy is None else policy)
            self._producers = [*(known for known in self._producers if not known.closed), producer]
        return producer

    def materialize(self, *tables: str, wait: Duration | None = None) -> int:
        """Store the committed rows of the named tables, or of all, and return the state. Lazy producers deliver first."""
        engine = self._writer("materialize")
        names = [self.schema(table).name for table in tables] or self.tables()
        wait_s = engine.settings.wait_s if wait is None else duration_us(wait, what="wait") / 1e6
        if engine.room.is_full():
            engine.mover.materialize(names)  # first what is here, so that lazy producers find room
        # Everything that was committed with those rows has to be here too, or a crash could keep half of a commit. What flows maintain is stored as far as it
        # is published: no job has to be made for that, and no source that stands still keeps anything from being stored.
        needed = [name for name in self.tables() if name not in engine.catalyst.maintained]
        engine.catalyst.ensure_accuracy(engine.catalyst.authority.read_us(), needed, deadline_s=engine.clock.monotonic_s() + wait_s)
        return engine.mover.materialize(names)

    def adopt(self, table: str) -> int:
        """Take over what another Delta writer did to a table, as one commit of the source `delta.<table>`; return the state.

        In a PostgreSQL warehouse: take over a table that the database has already, with its rows; nothing is copied.
        """
        engine = self._writer("adopt a version")
        if engine.foundation.adopt_table is not None and str(table).lower() not in engine.schemas:
            return self._adopt_existing(engine, engine.foundation.adopt_table, table)
        schema = self.schema(table)
        if engine.store.newest_version(schema) == engine.catalyst.table(schema.name).version:
            return engine.catalyst.head.number
        link = engine.catalyst.open_link(f"delta.{schema.name}", policy="adopt")
        try:
            # It may be tapped at any time until then; whoever taps it later finds the version adopted.
            return engine.mover.adopt(link, schema.name, confirm=partial(engine.catalyst.refuse_tapped, schema.name))
        finally:
            engine.catalyst.close_link(link)

    def _adopt_existing(self, engine: Engine, adopt_table: Callable[[str], tuple[TableSchema, int, int]], table: str) -> int:
        with engine.declarations, uninterrupted():
            _refuse_taken(engine, str(table).lower())
            schema, version, rows = adopt_table(str(table).lower())
            state = engine.mover.declare(Declared(table=schema, version=version, rows=rows))
            engine.schemas[schema.name] = schema
        return state

    # -- queries -----------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[Consumer], Found]) -> Found:
        while True:
            with self._engine.reading() as parts:
                try:
                    return question(parts.consumer)
                except Superseded:
                    continue  # each round has a newer state, and the writer that made them is gone

    def _hold(self, take: Callable[[Consumer], StandingSnapshot]) -> StandingSnapshot:
        while True:
            reading: AbstractContextManager[Engine | Parts] = self._engine.reading()
            with ExitStack() as kept:
                try:
                    standing = take(kept.enter_context(reading).consumer)
                except Superseded:
                    continue
                standing._keep(kept.pop_all())
            with self._closing:
                self._standing = [*(known for known in self._standing if not known.closed), standing]
                if self._shared is not None:
                    return standing
            standing.close()

    # -- receipts ----------------------------------------------------------------------------------------------------

    def receipt(self, receipt_id: str) -> Receipt:
        """Return a stored receipt; the first characters of its id are enough if they are unambiguous."""
        ledger = self._engine.ledger
        found = ledger.receipt(receipt_id)
        if found is None:
            near = ledger.receipts_beginning(receipt_id, limit=1000) if receipt_id else []
            if len(near) != 1:
                raise ReceiptUnknown(receipt=f"{receipt_id} (it fits {len(near)} receipts)" if near else receipt_id)
            found = near[0]
        return found.bound(self.verify)

    def receipts(self, *, limit: int = 100) -> list[Receipt]:
        """Return the newest receipts, newest first."""
        return [receipt.bound(self.verify) for receipt in self._engine.ledger.receipts(limit=limit)]

    def verify(self, receipt: Receipt | str) -> Verification:
        """Verify a receipt that somebody handed over, as an object or as JSON; a changed one raises `ReceiptForged`."""
        with self._engine.reading() as parts:
            refuse_no_receipt(receipt)
            return parts.verifier.verify(Receipt.from_json(receipt) if isinstance(receipt, str) else receipt)

    def _flows(self, what: str) -> Flows:
        return self._writer(what).flows

    def _streams(self, what: str) -> StreamPort:
        engine = self._engine
        return engine.streams if isinstance(engine, ReadingEngine) else super()._streams(what)

    def _bringing_up(self) -> Callable[[str], None]:
        # What only a table has is brought into its stream by the process that writes.
        return (lambda name: None) if self.read_only else super()._bringing_up()

    def flows(self) -> list[FlowStatus]:
        """Return how each flow is: what waits, how far it is, its last jobs. A handle that only reads knows what files tell, and no jobs."""
        return list(self.status().flows) if self.read_only else super().flows()

    def explain(self, query: str, *, freshness: Duration | None = None) -> Explanation:
        """Say what a query would wait for if it came now: flows, streams, jobs, rows, and an estimate of the time."""
        text, bound_us = split_currency(query)
        freshness_us = (bound_us or 0) if freshness is None else duration_us(freshness)
        while True:
            with self._engine.reading() as parts:
                tables, flows = parts.consumer.plan(read_statement(text)).tables, parts.flows if isinstance(parts, Engine) else parts.catalyst
                try:
                    return flows.explain(tables, freshness_us=freshness_us)
                except Superseded:
                    continue

    # -- care --------------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Return what is where: rows hot and stored, lag, bounds used, producers, log."""
        with self._engine.reading() as parts:
            return status_of(parts, name=self._name, folder=self._path, settings=self._engine.settings)

    def losses(self) -> list[Loss]:
        """Return the commits that crashes have taken, oldest first."""
        return [loss for loss in self._engine.ledger.losses() if not loss.made_again]

    def gc(self) -> dict[str, Collected]:
        """Remove files that no version in use needs, and leftovers of crashes; return what went, by table."""
        return self._writer("collect files").collect()

    @property
    def path(self) -> Path:
        """The warehouse's folder."""
        return self._path

    @property
    def spark(self) -> Any:
        """The Spark session that queries run in, started now if need be."""
        return self._engine.spark.session()

    @property
    def read_only(self) -> bool:
        """Whether this handle only reads."""
        return isinstance(self._shared, ReadingEngine)

    def _open_queries(self) -> PostgresQueries | None:
        """Open a session for a connection whose queries the database answers itself; None where Spark answers."""
        engine = self._engine
        return engine.open_queries() if isinstance(engine, Engine) else None

    @property
    def _engine(self) -> Engine | ReadingEngine:
        if self._shared is None:
            raise WarehouseClosed(path=self._name)
        return self._shared

    def _writer(self, action: str) -> Engine:
        engine = self._engine
        if isinstance(engine, ReadingEngine):
            raise engine.refuse(action)
        return engine

    def close(self) -> None:
        """Close the snapshots and producers opened here and, with the last handle, the warehouse; everything committed stays."""
        with self._closing:
            engine = self._shared
            if engine is None:
                return
            for standing in self._standing:
                standing.close()
            for producer in self._producers:
                producer.close()
            if isinstance(engine, ReadingEngine):
                engine.close()
            else:
                release_engine(engine)
            self._shared = None

    def __repr__(self) -> str:
        return f"<Warehouse {self._name}{' (closed)' if self._shared is None else ''}>"


def _refuse_taken(engine: Engine, name: str) -> None:
    if name in engine.schemas or name in engine.views:
        raise TableExists(table=name)
    if name in engine.flows.feed.streams.names():
        raise NameTaken(kind="stream", name=name)
