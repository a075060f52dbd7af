"""PEP 249 cursors: statements in, rows out.

In: SQL with `?` parameters.
Out: statements to the connection; rows of its answers, one by one or many at once.
Promise: a statement that raises leaves no answer behind; every error is one of PEP 249.
"""

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from righttime.errors import SqlRefused
from righttime.ledger.receipts import Receipt
from righttime.query.change_runs import ChangePlan
from righttime.query.dbapi_seams import Session
from righttime.query.dbapi_types import InterfaceError, NotSupportedError, ProgrammingError, TypeCode, mapped_errors, type_code
from righttime.query.insert_plan import InsertPlan, checked_parameters, checked_rows

Description = tuple[tuple[str, TypeCode, None, None, int | None, int | None, bool], ...]


class Cursor:
    """Runs statements and hands out rows; see PEP 249."""

    def __init__(self, connection: Session) -> None:
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
                plan.run(self.connection._open_producer(), [checked_parameters(row) for row in checked_rows(seq_of_parameters)])
                return self
            if plan is None:
                raise SqlRefused(reason="executemany() takes an INSERT, UPDATE or DELETE", way_out="Run queries with execute().", syntax=True)
            return self._inserted(plan, plan.rows_of_many(checked_rows(seq_of_parameters)))

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, None after the last."""
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return the next `size` rows, `arraysize` if not given; fewer at the end."""
        rows, begin = self._result(), self._place
        wanted: Any = self.arraysize if size is None else size
        if not isinstance(wanted, int) or wanted < 0:
            raise ProgrammingError(f"{wanted!r} is no number of rows to fetch. Pass a whole number from 0 on.", code="cursor.size")
        self._place = min(len(rows), begin + wanted)
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

    def _refuse_closed(self) -> None:
        if self._closed:
            raise InterfaceError("The cursor is closed. Take another from the connection.", code="cursor.closed")
        self.connection._warehouse()

    def _begin(self) -> None:
        self._refuse_closed()
        self.rowcount, self._rows, self._columns, self._place = -1, None, None, 0

    def _inserted(self, plan: InsertPlan, rows: list[Sequence[Any]]) -> Self:
        self.connection._insert(plan, rows)
        self.rowcount = len(rows)
        return self

    def _result(self) -> list[tuple[Any, ...]]:
        self._refuse_closed()
        if self._rows is None:
            raise ProgrammingError("There is no answer to fetch from. Run a query with execute() first.", code="cursor.no_answer")
        return self._rows


def _precision(kind: pa.DataType) -> tuple[int | None, int | None]:
    return (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (None, None)
