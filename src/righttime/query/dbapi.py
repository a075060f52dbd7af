"""PEP 249 connections: an existing loader or report changes the line that connects, and nothing else.

In: SQL with `?` parameters, over a warehouse given as an object or opened by the caller's `opener`.
Out: INSERTs of values, UPDATEs, DELETEs and upserts to a producer, queries to `Warehouse.sql`, rows back with a receipt.
Promise: what was inserted becomes visible by commit() and not before; every error is one of PEP 249 with righttime's code in it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, ClassVar, Self

from righttime.changes.durations import Duration, duration_us
from righttime.errors import RightTimeError, SqlRefused
from righttime.query.change_plan import change_statement
from righttime.query.change_runs import ChangePlan, change_plan
from righttime.query.dbapi_cursor import Cursor
from righttime.query.dbapi_seams import Answer, Producer, Queries, Warehouse
from righttime.query.dbapi_types import (
    BINARY,
    BOOLEAN,
    DATETIME,
    NESTED,
    NUMBER,
    OTHER,
    ROWID,
    STRING,
    Binary,
    DatabaseError,
    DataError,
    Date,
    DateFromTicks,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
    TypeCode,
    Warning,
    mapped_errors,
)
from righttime.query.insert_plan import InsertPlan, insert_plan, wrong_count
from righttime.query.postgres_statement import postgres_statement
from righttime.query.statement import insert_statement, read_statement, split_currency

__all__ = [
    "BINARY",
    "BOOLEAN",
    "DATETIME",
    "NESTED",
    "NUMBER",
    "OTHER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "TypeCode",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

apilevel = "2.0"
threadsafety = 1  # threads share the module; each has its own connection, since a connection is one transaction
paramstyle = "qmark"

PLANS_MAX = 256


def connect(
    target: Any,
    *,
    opener: Callable[..., Warehouse] | None = None,
    open_queries: Callable[[Any], Queries] | None = None,
    name: str | None = None,
    policy: Any = None,
    wait: Duration | None = None,
    **settings: Any,
) -> "Connection":
    """Connect to a warehouse, or to what `opener(target, **settings)` opens; only what was opened here is closed with the connection.

    `name` and `policy` are those of the producer that inserts; `wait` is how long each query waits for its freshness; `open_queries` opens a database
    that answers instead of the warehouse.
    """
    if opener is None and not callable(getattr(target, "producer", None)):
        raise InterfaceError(f"Nothing here can open {target!r}. Connect with righttime.connect(), or pass a warehouse.", code="connection.no_opener")
    with mapped_errors():
        if wait is not None:
            duration_us(wait, what="wait")
        warehouse: Warehouse = target if opener is None else opener(target, **settings)
        try:
            queries = None if open_queries is None else open_queries(warehouse)
        except BaseException:
            if opener is not None:
                warehouse.close()
            raise
    return Connection(warehouse, owned=opener is not None, name=name, policy=policy, wait=wait, queries=queries)


class Connection:
    """One transaction after another: INSERTs and changes wait for commit(); queries see what is committed, and the connection's own transaction."""

    Warning: ClassVar = Warning
    Error: ClassVar = Error
    InterfaceError: ClassVar = InterfaceError
    DatabaseError: ClassVar = DatabaseError
    DataError: ClassVar = DataError
    OperationalError: ClassVar = OperationalError
    IntegrityError: ClassVar = IntegrityError
    InternalError: ClassVar = InternalError
    ProgrammingError: ClassVar = ProgrammingError
    NotSupportedError: ClassVar = NotSupportedError

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        owned: bool,
        name: str | None = None,
        policy: Any = None,
        wait: Duration | None = None,
        queries: Queries | None = None,
    ) -> None:
        self._open_warehouse: Warehouse | None = warehouse
        self._owned = owned
        self._producer_options = {key: value for key, value in (("name", name), ("policy", policy)) if value is not None}
        self._wait = wait
        self._producer: Producer | None = None
        self._queries = queries
        self._freshness_us: dict[str, int] = {}
        self._freshness_default_us: int | None = None
        self._plans: OrderedDict[str, InsertPlan | ChangePlan] = OrderedDict()

    def cursor(self) -> "Cursor":
        """Return a new cursor; all cursors of a connection share its transaction."""
        self._warehouse()
        return Cursor(self)

    def commit(self, materialize: bool = False, *, durability: str | None = None) -> None:
        """Make what was inserted visible; with `materialize` store it in the warehouse's tables, too."""
        self._warehouse()
        options: dict[str, Any] = {"materialize": True} if materialize else {}
        if durability is not None:
            options["durability"] = durability
        if self._producer is not None:
            with mapped_errors():
                self._producer.commit(**options)

    def rollback(self) -> None:
        """Forget what was inserted since the last commit."""
        self._warehouse()
        if self._producer is not None:
            with mapped_errors():
                self._producer.rollback()

    def close(self) -> None:
        """Close, and with it the producer, which drops what is not committed; closing twice is closing once.

        If the producer cannot deliver now what it committed lazily (an error that is `retryable`), nothing is closed: close again.
        """
        with mapped_errors():
            try:
                if self._producer is not None:
                    self._producer.close()
            except Exception as error:
                if not (isinstance(error, RightTimeError) and error.retryable):
                    self._let_go()
                raise
            self._let_go()

    def _let_go(self) -> None:
        warehouse, self._open_warehouse = self._open_warehouse, None
        queries, self._queries = self._queries, None
        self._producer = None
        try:
            if queries is not None:
                queries.close()
        finally:
            if warehouse is not None and self._owned:
                warehouse.close()

    def ensure_accuracy(self, freshness: Duration, *tables: str) -> None:
        """Let later queries be as stale as `freshness` where they read these tables, any table if none is named.

        A query over several tables is as fresh as the strictest of them; a CURRENCY BOUND in a query's text goes before.
        """
        warehouse = self._warehouse()
        with mapped_errors():
            asked_us = duration_us(freshness)
            names = [warehouse.schema(str(table)).name for table in tables]
        if not tables:
            self._freshness_default_us = asked_us
            self._freshness_us.clear()
        self._freshness_us.update(dict.fromkeys(names, asked_us))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commit, or roll back after an error; then close."""
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()

    def _warehouse(self) -> Warehouse:
        if self._open_warehouse is None:
            raise InterfaceError("The connection is closed. Connect again.", code="connection.closed")
        return self._open_warehouse

    def _query(self, sql: str, parameters: Sequence[Any]) -> Answer:
        queries, text = self._database(), split_currency(sql)[0]
        statement = read_statement(text) if queries is None else postgres_statement(text)
        if len(parameters) != statement.placeholders:
            raise wrong_count(statement.placeholders, len(parameters))
        options: dict[str, Any] = {"parameters": list(parameters)} if parameters else {}
        freshness = self._freshness(sql)
        if freshness is not None:
            options["freshness"] = freshness
        if self._wait is not None:
            options["wait"] = self._wait
        if self._producer is not None and self._producer.in_transaction:
            return self._producer.sql(sql, **(options if queries is None else options | {"ask": queries.sql}))
        return (queries or self._warehouse()).sql(sql, **options)

    def _database(self) -> "Queries | None":
        """Return the session in which a database answers this connection's queries itself; None where Spark does."""
        if self._queries is None and (opener := getattr(self._warehouse(), "_open_queries", None)) is not None:
            self._queries = opener()
        return self._queries

    def _freshness(self, sql: str) -> timedelta | None:
        text, bound_us = split_currency(sql)
        if (self._freshness_default_us is None and not self._freshness_us) or bound_us is not None:
            return None
        queries = self._database()
        tables = self._warehouse()._tables_read(text) if queries is None else queries.tables(postgres_statement(text))
        asked_us = [self._freshness_us.get(table, self._freshness_default_us or 0) for table in tables]
        return timedelta(microseconds=min(asked_us, default=0))

    def _insert(self, plan: InsertPlan, rows: list[Sequence[Any]]) -> None:
        producer = self._open_producer()
        if len(rows) == 1:
            producer.insert(plan.table, rows[0])
        elif rows:
            producer.insert_many(plan.table, rows)

    def _open_producer(self) -> Producer:
        if self._producer is None:
            self._producer = self._warehouse().producer(**self._producer_options)
        return self._producer

    def _plan(self, sql: str) -> "InsertPlan | ChangePlan | None":
        """Return how to run a statement that writes, None for other statements; a loader sends the same text a million times."""
        given: Any = sql  # by programs without types, too
        plan = self._plans.get(sql) if isinstance(given, str) else None
        if plan is None:
            plan = self._new_plan(sql)
            if plan is None:
                return None
            self._plans[sql] = plan
            if len(self._plans) > PLANS_MAX:
                self._plans.popitem(last=False)
        return plan

    def _new_plan(self, sql: str) -> "InsertPlan | ChangePlan | None":
        warehouse = self._warehouse()
        _refuse_no_text(sql)
        change = change_statement(sql)
        if change is not None:
            return change_plan(change, warehouse.schema(change.table))
        statement = insert_statement(sql)
        return None if statement is None else insert_plan(statement, warehouse.schema(statement.table))


def _refuse_no_text(sql: Any) -> None:
    try:
        sql.encode()
    except (AttributeError, UnicodeError) as error:
        raise SqlRefused(reason=f"a {type(sql).__name__} that is no text in UTF-8 is no SQL", way_out="Pass SQL as a str.", syntax=True) from error
