"""Conditions: which rows of a table an update or a delete means.

In: SQL text with `?`, or a mapping from columns to values.
Out: `Condition`s: a mask over rows, the key they name, the ranges they imply. `parse_assignment` and `Assignment` are here, too, from `expressions.py`.
Promise: pure and vectorised; a condition's text reads back as the same condition; null is not true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from righttime.changes import operators
from righttime.changes.binder import bind, column
from righttime.changes.expressions import Assignment, Expression, checked_value, evaluate, parse_assignment
from righttime.changes.implied import implied_ranges, key_of
from righttime.changes.operands import boolean
from righttime.changes.schema import TableSchema
from righttime.changes.sql_literals import literal
from righttime.changes.sql_text import refuse
from righttime.changes.terms import Term

__all__ = ["Assignment", "Condition", "Expression", "condition_of", "everything", "parse_assignment", "parse_condition"]


class Condition:
    """Says for each row whether it is meant. Two conditions are equal if their canonical texts are."""

    __slots__ = ("_term", "can_fail", "columns", "table", "text")

    table: TableSchema
    text: str
    columns: tuple[str, ...]
    can_fail: bool
    _term: Term

    def __init__(self, table: TableSchema, term: Term) -> None:
        read = term.columns()
        for name, value in (
            ("table", table),
            ("text", term.text),
            ("columns", tuple(name for name in table.columns.names if name in read)),
            ("can_fail", term.can_fail),
            ("_term", term),
        ):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a condition does not change ({name})")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and (self.table.name, self.text) == (other.table.name, other.text)

    def __hash__(self) -> int:
        return hash((self.table.name, self.text))

    def __repr__(self) -> str:
        return f"Condition({self.text})"

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return true for the rows that are meant, false for all others; raise `OperationFailed` where that cannot be computed."""
        found = evaluate(self._term, rows, pa.bool_(), table=self.table.name, column=", ".join(self.columns) or "*")
        return pc.fill_null(found, False)

    def key_values(self) -> tuple[Any, ...] | None:
        """Return the key that the condition names, in the order of the table's keys, if it says no more and no less; else None."""
        return key_of(self._term, self.table)

    def ranges(self) -> dict[str, tuple[Any, Any]]:
        """Return for columns the lowest and the highest value that a meant row can have, None where there is no bound.

        For pruning by statistics that leave NaN out: a FLOAT or DOUBLE column has a lower bound only together with an upper one.
        """
        return implied_ranges(self._term)


def parse_condition(text: str, table: TableSchema, parameters: Sequence[Any] = ()) -> Condition:
    """Read a condition; each `?` takes the next parameter. Raise `SqlRefused`, `UnknownColumn`."""
    return Condition(table, boolean(bind(text, table, parameters)))


def condition_of(where: Mapping[str, Any], table: TableSchema) -> Condition:
    """Return the condition that all these columns have these values; None means IS NULL. Values are checked as those of an insert."""
    if not where:
        refuse("the mapping of the rows to change is empty", "Name at least one column, or leave it out to mean all rows.")
    result: Term | None = None
    for name, value in where.items():
        part = column(table, str(name))
        if value is None:
            test = operators.null_test(part)
        else:
            test = operators.comparison("=", part, literal(checked_value(part.value, value, table), part.type, fitted=True))
        result = test if result is None else operators.logic("AND", [result, test])
    assert result is not None
    return Condition(table, result)


def everything(table: TableSchema) -> Condition:
    """Return the condition that every row meets."""
    return Condition(table, literal(True, pa.bool_()))
