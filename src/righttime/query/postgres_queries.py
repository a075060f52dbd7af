"""Queries in PostgreSQL's own SQL, run by PostgreSQL, with hot rows in them.

In: SELECTs of one connection, and how fresh the answers must be.
Out: answers with receipts.
Promise: the user's SQL runs unchanged, in one transaction that sees the held moment and the hot rows of the same cut. Names without a schema
mean the warehouse's tables with their hot rows; whatever would reach those tables without them is refused.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Protocol

import psycopg
import pyarrow as pa
from psycopg import sql

from righttime.catalyst.producer import OwnRows
from righttime.changes.schema import TableSchema
from righttime.errors import (
    DatabaseUnreachable,
    LeaseExpired,
    OtherDatabase,
    RightsMissing,
    SqlFailedInDatabase,
    SqlRefused,
    UnknownTable,
    WarehouseClosed,
)
from righttime.ledger.postgres_connect import SERVER, Address, Connection, coded_errors, connect, first_line, is_lost, run, set_up
from righttime.query.answer import Answer
from righttime.query.consumer import Consumer
from righttime.query.contract import Contract
from righttime.query.parameters import placeholders_text
from righttime.query.postgres_answers import collect, plain_texts
from righttime.query.postgres_cut import CutTable
from righttime.query.postgres_hot import HotTable
from righttime.query.postgres_statement import MARK, PostgresStatement, postgres_statement, views_behind
from righttime.query.question import SqlAnswers
from righttime.settings import Settings
from righttime.telemetry import get_log
from righttime.warehouse.postgres_hold import Moment

log = get_log("postgres")

_BRIEFLY_S = 1.0
_SEARCH_PATH = "SET search_path = pg_temp, pg_catalog; SET cursor_tuple_fraction = 1"
# Views and materialized views, at any depth, that stand on one of the named tables.
_STANDING_ON = """
WITH RECURSIVE standing (oid) AS (
  SELECT c.oid FROM pg_class c WHERE c.relnamespace = to_regnamespace(quote_ident(%s)) AND c.relname = ANY(%s)
  UNION SELECT r.ev_class FROM standing JOIN pg_depend d ON d.refobjid = standing.oid AND d.classid = 'pg_rewrite'::regclass
               JOIN pg_rewrite r ON r.oid = d.objid)
SELECT n.nspname, c.relname FROM standing JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('v', 'm')
"""
_FUNCTIONS = """
SELECT p.proname FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
WHERE p.proname = ANY(%s) AND p.pronamespace <> 'pg_catalog'::regnamespace AND p.provolatile <> 'i' AND l.lanname NOT IN ('c', 'internal')
"""


# What SET TRANSACTION SNAPSHOT says of a name that nobody holds any more; servers of different age say different things.
_NOT_HELD = (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue, psycopg.errors.ObjectNotInPrerequisiteState)


def is_postgres_query(text: str) -> bool:
    """Tell whether the query of a receipt was PostgreSQL's SQL."""
    return text.startswith(MARK)


class Cuts(Protocol):
    """Where a session gets its tables from: snapshots that this process takes, or those that a service holds for it."""

    def take(self, tables: Sequence[str], contract: Contract, *, own: OwnRows | None = None) -> AbstractContextManager[Any]: ...
    def in_database(self, table: Any, /) -> CutTable: ...


class PostgresQueries(SqlAnswers):
    """The queries of one connection: a session of its own, in which hot rows stay from query to query. One query at a time; others wait."""

    def __init__(
        self,
        address: Address,
        snapshots: Cuts,
        consumer: Consumer,
        *,
        schemas: Mapping[str, TableSchema],
        views: Mapping[str, str],
        settings: Settings,
    ) -> None:
        self._address = address
        self._snapshots = snapshots
        self._consumer = consumer
        self._schemas = schemas
        self._views = views
        self._settings = settings
        self._guard = threading.Lock()
        self._connection: Connection | None = None
        self._server = self._life = ""
        self._closed = False
        self._tables: dict[str, HotTable] = {}
        self._others: set[str] = set()
        self._named = 0

    def _answer_sql(self, text: str, contract: Contract, parameters: Sequence[Any], own: OwnRows | None) -> Answer:
        statement = postgres_statement(text)
        texts, tables = placeholders_text(statement.placeholders, parameters), self.tables(statement)
        wait_s = self._address.lock_wait_s
        for lock_wait_s in (min(_BRIEFLY_S, wait_s), min(_BRIEFLY_S, wait_s)):
            try:
                return self._answer(statement, texts, tables, contract, parameters, own, lock_wait_s)
            except SqlFailedInDatabase as error:
                # Who changes a table waits for what this query holds of it, and our session behind them: letting go lets them pass.
                if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                    raise
        return self._answer(statement, texts, tables, contract, parameters, own, wait_s)

    def _answer(
        self,
        statement: PostgresStatement,
        texts: tuple[str, ...],
        tables: Sequence[str],
        contract: Contract,
        parameters: Sequence[Any],
        own: OwnRows | None,
        lock_wait_s: float,
    ) -> Answer:
        """Hold a snapshot, answer from it and let it go."""
        taken = self._snapshots.take(tables, contract, own=own)
        run = partial(self.run, statement, parameters=parameters, lock_wait_s=lock_wait_s)
        return self._consumer.answer(MARK + statement.text, texts, contract, taken, run)

    def rerun(self, text: str, tables: Mapping[str, Any], parameters: Sequence[Any]) -> pa.Table:
        """Run the query of a receipt again."""
        return self.run(postgres_statement(text.removeprefix(MARK)), tables, parameters=parameters, lock_wait_s=self._address.lock_wait_s)

    def tables(self, statement: PostgresStatement) -> list[str]:
        """Return the warehouse's tables that a statement reads, through views too; raise `SqlRefused` if it names one with its schema."""
        found: set[str] = set()
        for part in (statement, *(postgres_statement(self._views[name]) for name in views_behind(statement, self._views))):
            found.update(name for name in part.names if name in self._schemas)
            for schema, name in part.qualified:
                if schema == self._address.tables and name in self._schemas:
                    raise SqlRefused(reason=f"{schema}.{name} would be read without its hot rows", way_out=f"Write {name}, without a schema.")
        return sorted(found)

    def run(self, statement: PostgresStatement, tables: Mapping[str, Any], *, parameters: Sequence[Any], lock_wait_s: float) -> pa.Table:
        """Run a statement over exactly these tables of a snapshot and collect it; once more in a new session if the old one is gone."""
        cuts = {name: self._snapshots.in_database(table) for name, table in tables.items()}
        with self._guard:
            try:
                return self._run(statement, cuts, parameters, lock_wait_s)
            except DatabaseUnreachable:
                return self._run(statement, cuts, parameters, lock_wait_s)

    def _run(self, statement: PostgresStatement, tables: Mapping[str, CutTable], parameters: Sequence[Any], lock_wait_s: float) -> pa.Table:
        any_table = next(iter(tables.values()), None)
        try:
            connection = self._session(lock_wait_s, any_table)
            self._prepare(connection, statement, tables)
            return self._answered(connection, statement, tables, None if any_table is None else any_table.moment, parameters)
        except psycopg.Error as error:
            reason = str(error).strip().splitlines()[0]
            if is_lost(error) or self._connection is None or self._connection.broken:
                self._forget()
                raise DatabaseUnreachable(path=self._address.name, reason=reason) from error
            if isinstance(error, psycopg.errors.InsufficientPrivilege):
                raise RightsMissing(path=self._address.name, step="answer the query", reason=reason) from error
            unknown = self._unknown(statement, reason) if isinstance(error, psycopg.errors.UndefinedTable) else None
            if unknown is not None:
                raise UnknownTable.among(unknown, [*self._schemas, *self._views], is_stream=self._consumer.is_stream(unknown)) from error
            raise SqlFailedInDatabase(tables=", ".join(sorted(tables)) or "no table", reason=reason) from error

    def _unknown(self, statement: PostgresStatement, reason: str) -> str | None:
        """Return the name of which the server says that there is no such table; it says so in its own language."""
        names = [".".join(pair) for pair in statement.qualified] + [name for name in statement.names if name not in self._schemas]
        return next((name for name in names if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", reason)), None)

    def begin(self, server: str) -> None:
        """Begin the session now; raise `OtherDatabase` if it would not be on this server."""
        with self._guard, coded_errors(self._address, step="connect"):
            self._connect()
            self._refuse_other(server, self._address.tables)

    def close(self) -> None:
        """End the session, and with it its temporary tables."""
        with self._guard:
            self._closed = True
            self._forget()

    # -- the session -------------------------------------------------------------------------------------------------

    def _session(self, lock_wait_s: float, asked: CutTable | None) -> Connection:
        """Return the session, set up as for every query; a new one if there is none, or if what it has is of no use for the table that is asked for."""
        if self._closed:
            raise WarehouseClosed(path=self._address.name)
        fits = asked is None or (asked.moment.server == self._server and self._life in ("", asked.life))
        if self._connection is None or self._connection.closed or not fits:
            self._connect()
        if asked is not None:
            self._refuse_other(asked.moment.server, asked.moment.schema)
            self._life = asked.life
        assert self._connection is not None
        # Each query finds the session as every other: whatever a function may have set is not an answer's business.
        self._connection.execute("RESET ROLE")
        set_up(self._connection, lock_wait_s=lock_wait_s)
        self._connection.execute(_SEARCH_PATH)
        return self._connection

    def _connect(self) -> None:
        self._forget()
        self._connection = connect(self._address)
        plain_texts(self._connection)
        ((self._server,),) = run(self._connection, f"SELECT {SERVER}")

    def _refuse_other(self, server: str, schema: str) -> None:
        """Refuse to read from here what is held elsewhere, where a service may be started anew with other tables of the same names."""
        if (self._server, self._address.tables) != (server, schema):
            raise OtherDatabase(path=self._address.name)

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        self._life = ""
        self._tables.clear()
        self._others.clear()
        if connection is not None:
            with suppress(psycopg.Error):
                # The server ends a session some time after it is closed, and until then its views stand in the way of ALTER TABLE.
                connection.execute("ROLLBACK; DISCARD TEMP")
            connection.close()

    def _prepare(self, connection: Connection, statement: PostgresStatement, tables: Mapping[str, CutTable]) -> None:
        """Make every name of the statement mean something in this session, and nothing that it must not mean."""
        for name, table in tables.items():
            if name not in self._tables:
                self._named += 1
                self._tables[name] = HotTable(table.schema, self._named)
            if self._tables[name].shape(connection, self._address, table.found, hides=len(table.gone) > 0):
                self._others -= self._views.keys()  # those that stood on it are made again
        views = views_behind(statement, self._views)
        for part in (statement, *(postgres_statement(self._views[name]) for name in views)):
            self._refuse_detours(connection, part)
            for name in part.names:
                if name not in tables and name not in views and name not in self._others:
                    self._let_through(connection, name)
        for name in views:
            if name not in self._others:
                connection.execute(sql.SQL("CREATE OR REPLACE TEMP VIEW {} AS {}").format(sql.Identifier("pg_temp", name), sql.SQL(self._views[name])))
                self._others.add(name)

    def _let_through(self, connection: Connection, name: str) -> None:
        """Give a table that is not the warehouse's a name in this session; what is no table is a name that the statement made itself."""
        query = "SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident(%s)) AND relname = %s AND relkind IN ('r', 'v', 'm', 'p', 'f')"
        if run(connection, query, (self._address.tables, name)):
            view = sql.SQL("CREATE TEMP VIEW {} AS SELECT * FROM {}").format(sql.Identifier("pg_temp", name), self._address.table(name))
            connection.execute(view)
            self._others.add(name)

    def _refuse_detours(self, connection: Connection, statement: PostgresStatement) -> None:
        """Refuse views and functions of the database that may read the warehouse's tables: they do not know of hot rows."""
        others = [*statement.qualified, *((self._address.tables, name) for name in statement.names if name not in self._schemas and name not in self._views)]
        standing = set(run(connection, _STANDING_ON, (self._address.tables, list(self._schemas)))) if others else set()
        for schema, name in others:
            if (schema, name) in standing:
                raise SqlRefused(
                    reason=f"the view {schema}.{name} of the database reads stored rows only", way_out="Write its query, or declare it with create_view()."
                )
        for (name,) in run(connection, _FUNCTIONS, (list(statement.calls),)) if statement.calls else ():
            raise SqlRefused(
                reason=f"the function {name}() may read stored rows only", way_out="Write what it does, or declare it IMMUTABLE if it reads no table."
            )

    # -- one query ---------------------------------------------------------------------------------------------------

    def _answered(
        self, connection: Connection, statement: PostgresStatement, tables: Mapping[str, CutTable], moment: Moment | None, parameters: Sequence[Any]
    ) -> pa.Table:
        try:
            _begin(connection, moment)
            kept = {name: self._tables[name].fill(connection, table) for name, table in tables.items()}
            rows = self._collected(connection, statement, parameters)
        except BaseException:
            if not connection.closed:
                connection.execute("ROLLBACK")
            raise
        try:
            connection.execute("COMMIT")
            for name, content in kept.items():
                self._tables[name].keep(content)
        except BaseException:
            # Nobody knows what the temporary tables hold now, and what is sent twice would be answered twice.
            self._forget()
            raise
        self._clean(connection, tables)
        return rows

    def _clean(self, connection: Connection, tables: Iterable[str]) -> None:
        """Clean up in the session. The answer is there, so a failure is none of the query's."""
        try:
            for name in tables:
                self._tables[name].clean(connection)
        except psycopg.Error as error:
            log.info("session.not_cleaned", reason=first_line(error))

    def _collected(self, connection: Connection, statement: PostgresStatement, parameters: Sequence[Any]) -> pa.Table:
        query = statement.for_psycopg()
        with connection.cursor("righttime") as cursor:
            cursor.execute(query, list(parameters) or None)
            return collect(cursor, bytes_max=self._settings.answer_bytes_max)


def _begin(connection: Connection, moment: Moment | None) -> None:
    """Begin a transaction at a moment that another one holds; at any, if the query reads no table."""
    begin = sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").format()
    if moment is not None:
        begin += sql.SQL("; SET TRANSACTION SNAPSHOT {}").format(sql.Literal(moment.snapshot))
    try:
        connection.execute(begin)
    except _NOT_HELD as error:
        raise LeaseExpired(reason=f"the transaction that held them has ended ({first_line(error)})", known=False) from error
