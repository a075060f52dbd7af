"""Assignments: which value a column gets in an update.

In: a Python value, or `Expression` text over the row's own columns.
Out: `Assignment`s that give an Arrow column for many rows.
Promise: a value is checked as an insert checks it; an expression's result fits the column or raises `OperationFailed`, and nothing is cut off in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as kind

from righttime.changes.binder import bind, column
from righttime.changes.casts import converted
from righttime.changes.encoder import RowEncoder
from righttime.changes.schema import TableSchema
from righttime.changes.sql_literals import literal
from righttime.changes.sql_text import refuse, type_name
from righttime.changes.store_rules import assignable, fitted_value, misfit
from righttime.changes.terms import Term, Uncomputable
from righttime.changes.types import is_primitive, text_length_max
from righttime.errors import OperationFailed


@dataclass(frozen=True, slots=True)
class Expression:
    """SQL text that is computed from the row's own columns, as in `set={"qty": rt.expr("qty + 1")}`."""

    text: str


def expr(text: str) -> Expression:
    """Return an expression over the row's own columns, to be computed by an update: `set={"qty": rt.expr("qty + 1")}`."""
    return Expression(text)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One `SET column = expression`. Two are equal if column and canonical text are."""

    column: str
    text: str
    columns: tuple[str, ...] = field(compare=False)
    can_fail: bool = field(compare=False)
    literal: bool = field(compare=False)
    value: Any = field(compare=False)
    table: TableSchema = field(compare=False, repr=False)
    _term: Term | None = field(compare=False, repr=False)

    def values(self, rows: pa.Table) -> pa.Array:
        """Return the column's new values, one for each row; raise `OperationFailed` where one cannot be computed or does not fit."""
        place = self.table.columns.get_field_index(self.column)
        target = self.table.columns.field(place)
        if self._term is None:
            return pa.repeat(pa.scalar(self.value, target.type), rows.num_rows)
        found = evaluate(self._term, rows, target.type, table=self.table.name, column=self.column)
        reason = misfit(target, found, self.table)
        if reason is not None:
            raise OperationFailed(table=self.table.name, column=self.column, reason=reason)
        return found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)


def parse_assignment(name: str, value: Any, table: TableSchema, parameters: Sequence[Any] = ()) -> Assignment:
    """Return the assignment of a Python value, checked as an insert checks it, or of an `Expression`."""
    target = column(table, name)
    if not isinstance(value, Expression):
        return _constant(target, checked_value(target.value, value, table), table)
    term = bind(value.text, table, parameters)
    if term.kind == "literal":
        return _constant(target, checked_value(target.value, fitted_value(term.value, target.type), table), table)
    if not assignable(term.type, target.type):
        refuse(f"column {target.value} is {type_name(target.type)} and cannot take {type_name(term.type)}", "CAST the value to the column's type.")
    made = converted(term, target.type)
    if made is None:
        refuse(f"column {target.value} is {type_name(target.type)} and cannot take {type_name(term.type)}", "CAST the value to the column's type.")
    return _computed(target, made, table)


def _constant(target: Term, value: Any, table: TableSchema) -> Assignment:
    if not is_primitive(target.type) and value is not None:
        refuse(f"column {target.value} is an array, map or struct, which SET cannot write", "Give the whole row again with upsert().")
    text = "NULL" if value is None else literal(value, target.type, fitted=True).text
    return Assignment(target.value, text, (), False, True, value, table, None)


def _computed(target: Term, term: Term, table: TableSchema) -> Assignment:
    field_ = table.columns.field(target.value)
    read = term.columns()
    bounded = text_length_max(field_) is not None or (target.value in table.partition_by and kind.is_string(target.type))
    can_fail = term.can_fail or (term.nullable and not field_.nullable) or bounded
    columns = tuple(name for name in table.columns.names if name in read)
    made = Assignment(target.value, term.text, columns, can_fail, False, None, table, term)
    if columns:
        return made
    # Without columns it is the same for every row: compute it now, so that a failure is the caller's and the rest can rely on a value.
    found = made.values(pa.table({target.value: pa.nulls(1, target.type)}))
    return _constant(target, found[0].as_py(), table)


def checked_value(name: str, value: Any, table: TableSchema) -> Any:
    """Return a value for a column as a row would hold it; raise `WrongType` or `NullNotAllowed` as an insert does."""
    encoded = _encoder(table, name).encode([(value,)])
    content = encoded.content
    return content.column(0)[0].as_py() if isinstance(content, pa.RecordBatch) else content[0, 0].item()


@lru_cache(maxsize=1024)
def _encoder(table: TableSchema, name: str) -> RowEncoder:
    one = pa.schema([table.columns.field(name)])
    keys, parts = (tuple(known for known in names if known == name) for names in (table.keys, table.partition_by))
    return RowEncoder(replace(table, columns=one, keys=keys, partition_by=parts))


def evaluate(term: Term, rows: pa.Table, type_: pa.DataType, *, table: str, column: str) -> pa.ChunkedArray:
    """Return the term's value for each row; raise `OperationFailed` with the reason."""
    if not rows.num_rows:
        return pa.chunked_array([], type_)
    names = sorted(term.columns())
    try:
        if not names:
            one = pa.RecordBatch.from_arrays([pa.nulls(1)], ["none"])
            return pa.chunked_array([pa.repeat(term.array(one)[0], rows.num_rows)], type_)
        batches = rows.select(names).combine_chunks().to_batches()
        return pa.chunked_array([term.array(batch) for batch in batches if batch.num_rows], type_)
    except Uncomputable as error:
        raise OperationFailed(table=table, column=column, reason=str(error)) from error
