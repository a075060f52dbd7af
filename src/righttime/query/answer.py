"""Answers: the rows of a query, collected, with the receipt that says what they know.

In: an Arrow table and a receipt.
Out: the same rows as tuples, Arrow or a Spark DataFrame.
Promise: an answer never changes and needs nothing to stay alive: it was read completely before it was handed out.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from righttime.errors import AnswerUnreadable
from righttime.ledger.receipts import Receipt


class Answer:
    """The rows of one query and its receipt."""

    def __init__(self, rows: pa.Table, receipt: Receipt, *, to_df: Callable[[pa.Table], Any]) -> None:
        self._rows = rows
        self._to_df = to_df
        self._df: Any = None
        self.receipt = receipt

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the column names."""
        return tuple(self._rows.column_names)

    def arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self._rows

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows as tuples, in the order of the answer."""
        return list(zip(*python_columns(self._rows), strict=True)) if self._rows.num_columns else [()] * self._rows.num_rows

    @property
    def df(self) -> Any:
        """Return the rows as a Spark DataFrame, for further work in Spark; made on first use."""
        if self._df is None:
            self._df = self._to_df(self._rows)
        return self._df

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows())

    def __repr__(self) -> str:
        return f"<Answer {len(self)} rows x {len(self.columns)} columns, state {self.receipt.state}, receipt {self.receipt.receipt_id}>"


def python_columns(rows: pa.Table) -> list[list[Any]]:
    """Return the columns as Python's values; raise `AnswerUnreadable` for those that there are not, such as times after the year 9999."""
    columns = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            columns.append(column.to_pylist())
        except (OverflowError, ValueError) as error:
            raise AnswerUnreadable(column=name, reason=str(error)) from error
    return columns
