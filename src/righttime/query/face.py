"""Declarations and queries as every handle of a warehouse shows them.

In: calls of users.
Out: checked declarations and questions, to the hooks of the handle that was called.
Promise: one signature, one default and one contract for a call, whether the warehouse is open here, behind a service or behind several.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from righttime.changes.durations import Duration
from righttime.changes.schema import TableSchema, declare_table
from righttime.query.answer import Answer
from righttime.query.consumer import Consumer
from righttime.query.standing import StandingSnapshot
from righttime.query.statement import read_statement

Found = TypeVar("Found")


class Handle:
    """What a handle of a warehouse does the same way, wherever the warehouse is."""

    def create_table(
        self,
        name: str,
        columns: str | pa.Schema,
        *,
        keys: Iterable[str] = (),
        partition_by: Iterable[str] = (),
        comment: str | None = None,
        in_memory: bool = True,
        unique: bool = False,
        if_not_exists: bool = False,
    ) -> TableSchema:
        """Declare a table: columns as Spark DDL or a pyarrow schema. With `in_memory=False` its rows go straight to the warehouse at commit.

        With `unique=True` a commit that would leave two rows with one key fails with `KeyTaken`; each commit then looks its keys up.
        """
        self._refuse_reader("create a table")
        schema = declare_table(name, columns, keys=keys, partition_by=partition_by, comment=comment, in_memory=in_memory, unique=unique)
        return self._declare(schema, if_not_exists=if_not_exists)

    def _refuse_reader(self, action: str) -> None:
        """Raise if this handle only reads; a service decides by its tokens, when it is asked."""

    @abstractmethod
    def _declare(self, schema: TableSchema, *, if_not_exists: bool) -> TableSchema:
        """Make a new table known, and return it as the warehouse knows it."""

    def sql(
        self,
        query: str,
        *,
        freshness: Duration | None = None,
        wait: Duration | None = None,
        on_late: str = "error",
        as_of: datetime | int | None = None,
        parameters: Sequence[Any] | None = None,
    ) -> Answer:
        """Answer a SELECT on one state no staler than `freshness`; "0s", the default, means everything committed before now.

        Waits at most `wait` for lazy producers, then raises `FreshnessUnavailable`, or with `on_late="answer"` gives the stale answer and says so
        in the receipt. `as_of` asks for the exact cut at a time instead. `CURRENCY BOUND 10 MIN` at the end of the text is the same as `freshness`.
        """
        return self._ask(lambda consumer: consumer.sql(query, freshness=freshness, wait=wait, on_late=on_late, as_of=as_of, parameters=parameters or ()))

    def read(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        freshness: Duration | None = None,
        wait: Duration | None = None,
        on_late: str = "error",
        as_of: datetime | int | None = None,
    ) -> Answer:
        """Answer with a whole table under the same contract as `sql`, without Spark."""
        return self._ask(lambda consumer: consumer.read(table, columns=columns, freshness=freshness, wait=wait, on_late=on_late, as_of=as_of))

    def snapshot(
        self,
        *tables: str,
        freshness: Duration | None = None,
        wait: Duration | None = None,
        on_late: str = "error",
        as_of: datetime | int | None = None,
    ) -> StandingSnapshot:
        """Take one state of the named tables or views, or of all tables, under the same contract as `sql`, and keep it for as many queries as it takes.

        Use it in a `with` block. While it is open its rows stay in memory and its files stay on disk, at most `lease_ttl_s`.
        """
        return self._hold(lambda consumer: consumer.hold(tables, freshness=freshness, wait=wait, on_late=on_late, as_of=as_of))

    @abstractmethod
    def _hold(self, take: Callable[[Consumer], StandingSnapshot]) -> StandingSnapshot:
        """Take a snapshot that is closed with this handle at the latest."""

    def _tables_read(self, query: str) -> Sequence[str]:
        """Return the tables that a query reads, by their own names and through views; it has no CURRENCY BOUND any more."""
        return self._ask(lambda consumer: consumer.plan(read_statement(query)).tables)

    @abstractmethod
    def _ask(self, question: Callable[[Consumer], Found]) -> Found:
        """Put a question to the consumer of this handle; raise `WarehouseClosed` if it has none any more."""

    @abstractmethod
    def close(self) -> None:
        """Close the producers opened here, and let go of the warehouse; everything committed stays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
