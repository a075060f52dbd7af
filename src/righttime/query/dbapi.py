"""PEP 249 connections: an existing loader or report changes the line that connects, and nothing else.

In: SQL with `?` parameters, over a warehouse given as an object or opened by the caller's `opener`.
Out: INSERTs of values, UPDATEs, DELETEs and upserts to a producer, queries to `Warehouse.sql`, rows back with a receipt.
Promise: what was inserted becomes visible by commit() and not before; every error is one of PEP 249 with righttime's code in it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from os import PathLike
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

import pyarrow as pa

from righttime.changes.durations import Duration, duration_us
from righttime.changes.schema import TableSchema
from righttime.errors import SqlRefused
from righttime.ledger.receipts import Receipt
from righttime.query.change_plan import change_statement
from righttime.query.change_runs import ChangePlan, change_plan
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
    type_code,
)
from righttime.query.insert_plan import InsertPlan, checked_parameters, insert_plan, wrong_count
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

Description = tuple[tuple[str, TypeCode, None, None, int | None, int | None, bool], ...]


class Answer(Protocol):
    """What a query returns."""

    @property
    def receipt(self) -> Receipt: ...
    def arrow(self) -> pa.Table: ...
    def rows(self) -> list[tuple[Any, ...]]: ...


class Producer(Protocol):
    """Where inserted rows and changes go."""

    @property
    def in_transaction(self) -> bool: ...
    def sql(self, query: str, /, *, freshness: timedelta | None = ..., wait: Duration | None = ..., parameters: Sequence[Any] = ...) -> Answer: ...
    def insert(self, table: str, row: Sequence[Any], /) -> object: ...
    def insert_many(self, table: str, rows: Sequence[Sequence[Any]], /) -> object: ...
    def update(self, table: str, /, set: Mapping[str, Any], where: Mapping[str, Any] | str | None = ...) -> object: ...
    def delete(self, table: str, /, where: Mapping[str, Any] | str | None = ...) -> object: ...
    def update_many(self, table: str, rows: Sequence[Mapping[str, Any]], /) -> object: ...
    def delete_many(self, table: str, rows: Sequence[Mapping[str, Any]], /) -> object: ...
    def upsert_many(self, table: str, rows: Sequence[Mapping[str, Any]], /) -> object: ...
    def commit(self, *, materialize: bool = ..., durability: Any = ...) -> object: ...
    def rollback(self) -> object: ...
    def close(self) -> object: ...


class Queries(Protocol):
    """A session in which a database answers queries in its own SQL."""

    def sql(self, query: str, /, *, freshness: timedelta | None = ..., wait: Duration | None = ..., parameters: Sequence[Any] = ...) -> Answer: ...
    def close(self) -> object: ...


class Warehouse(Protocol):
    """What a connection needs of a warehouse."""

    def producer(self, *, name: str | None = ..., policy: Any = ...) -> Producer: ...
    def sql(self, text: str, /, *, freshness: timedelta | None = ..., wait: Duration | None = ..., parameters: Sequence[Any] = ...) -> Answer: ...
    def schema(self, table: str, /) -> TableSchema: ...
    def close(self) -> object: ...


def connect(
    target: Any,
    *,
    opener: Callable[..., Warehouse] | None = None,
    name: str | None = None,
    policy: Any = None,
    wait: Duration | None = None,
    **settings: Any,
) -> "Connection":
    """Connect to a warehouse, or to what `opener(target, **settings)` opens; only what was opened here is closed with the connection.

    `name` and `policy` are those of the producer that inserts; `wait` is how long each query waits for its freshness.
    """
    if opener is None and isinstance(target, str | PathLike):
        raise InterfaceError(f"Nothing here can open {str(target)!r}. Connect with righttime.connect(), or pass a warehouse.", code="connection.no_opener")
    with mapped_errors():
        if wait is not None:
            duration_us(wait, what="wait")
        warehouse: Warehouse = target if opener is None else opener(target, **settings)
    return Connection(warehouse, owned=opener is not None, name=name, policy=policy, wait=wait)


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

    def __init__(self, warehouse: Warehouse, *, owned: bool, name: str | None = None, policy: Any = None, wait: Duration | None = None) -> None:
        self._open_warehouse: Warehouse | None = warehouse
        self._owned = owned
        self._producer_options = {key: value for key, value in (("name", name), ("policy", policy)) if value is not None}
        self._wait = wait
        self._producer: Producer | None = None
        self._queries: Queries | None = None
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
        """Close, and with it the producer, which drops what is not committed; closing twice is closing once."""
        warehouse, self._open_warehouse = self._open_warehouse, None
        producer, self._producer = self._producer, None
        queries, self._queries = self._queries, None
        with mapped_errors():
            try:
                if queries is not None:
                    queries.close()
                if producer is not None:
                    producer.close()
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
            names = [warehouse.schema(table).name for table in tables]
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
        tables, placeholders = _read_by_spark(text) if queries is None else _read_by_postgres(text)
        if len(parameters) != placeholders:
            raise wrong_count(placeholders, len(parameters))
        options: dict[str, Any] = {"parameters": list(parameters)} if parameters else {}
        freshness = self._freshness(sql, tables)
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

    def _freshness(self, sql: str, tables: Sequence[str]) -> timedelta | None:
        if (self._freshness_default_us is None and not self._freshness_us) or split_currency(sql)[1] is not None:
            return None
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
        plan = self._plans.get(sql)
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
        change = change_statement(sql)
        if change is not None:
            return change_plan(change, warehouse.schema(change.table))
        statement = insert_statement(sql)
        return None if statement is None else insert_plan(statement, warehouse.schema(statement.table))


class Cursor:
    """Runs statements and hands out rows; see PEP 249."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self.rowcount = -1
        self.lastrowid: None = None
        self.receipt: Receipt | None = None  # of the last query
        self._rows: list[tuple[Any, ...]] | None = None
        self._columns: pa.Schema | None = None
        self._place = 0
        self._closed = False

    @property
    def description(self) -> Description | None:
        """The columns of the last query's answer, None after anything else."""
        if self._columns is None:
            return None
        return tuple((column.name, type_code(column.type), None, None, *_precision(column.type), column.nullable) for column in self._columns)

    def execute(self, operation: str, parameters: Sequence[Any] = ()) -> Self:
        """Run one query, INSERT, UPDATE or DELETE with its parameters. How many rows a change reaches is known after its commit: `rowcount` is -1."""
        self._begin()
        values = checked_parameters(parameters)
        with mapped_errors():
            plan = self.connection._plan(operation)
            if isinstance(plan, ChangePlan):
                plan.run(self.connection._open_producer(), [values])
                return self
            if plan is not None:
                return self._inserted(plan, plan.rows(values))
            self.receipt = None
            answer = self.connection._query(operation, values)
            self._columns, self._rows, self.receipt = answer.arrow().schema, answer.rows(), answer.receipt
        self.rowcount = len(self._rows)
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Sequence[Any]]) -> Self:
        """Run one INSERT, UPDATE or DELETE with many rows of parameters: all are taken or none."""
        self._begin()
        with mapped_errors():
            plan = self.connection._plan(operation)
            if isinstance(plan, ChangePlan):
                plan.run(self.connection._open_producer(), [checked_parameters(row) for row in seq_of_parameters])
                return self
            if plan is None:
                raise SqlRefused(reason="executemany() takes an INSERT, UPDATE or DELETE", way_out="Run queries with execute().", syntax=True)
            return self._inserted(plan, plan.rows_of_many(list(seq_of_parameters)))

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, None after the last."""
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return the next `size` rows, `arraysize` if not given; fewer at the end."""
        rows, begin = self._result(), self._place
        self._place = min(len(rows), begin + (self.arraysize if size is None else size))
        return rows[begin : self._place]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows that are left."""
        return self.fetchmany(len(self._result()))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def close(self) -> None:
        """Forget the rows; the cursor cannot be used any more."""
        self._closed, self._rows, self._columns = True, None, None

    def callproc(self, procname: str, parameters: Sequence[Any] = ()) -> None:
        """Refuse: there are no stored procedures."""
        raise NotSupportedError(f"There are no stored procedures, so none called {procname!r}. Use execute().", code="sql.refused")

    def nextset(self) -> None:
        """Return None: a statement has one answer."""

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Do nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing, as PEP 249 allows."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _begin(self) -> None:
        if self._closed:
            raise InterfaceError("The cursor is closed. Take another from the connection.", code="cursor.closed")
        self.connection._warehouse()
        self.rowcount, self._rows, self._columns, self._place = -1, None, None, 0

    def _inserted(self, plan: InsertPlan, rows: list[Sequence[Any]]) -> Self:
        self.connection._insert(plan, rows)
        self.rowcount = len(rows)
        return self

    def _result(self) -> list[tuple[Any, ...]]:
        if self._closed:
            raise InterfaceError("The cursor is closed. Take another from the connection.", code="cursor.closed")
        if self._rows is None:
            raise ProgrammingError("There is no answer to fetch from. Run a query with execute() first.", code="cursor.no_answer")
        return self._rows


def _read_by_spark(text: str) -> tuple[Sequence[str], int]:
    statement = read_statement(text)
    return statement.tables, statement.placeholders


def _read_by_postgres(text: str) -> tuple[Sequence[str], int]:
    statement = postgres_statement(text)
    return statement.names, statement.placeholders


def _precision(kind: pa.DataType) -> tuple[int | None, int | None]:
    return (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (None, None)
