"""How UPDATE, DELETE and upserts become operations: bound to a table and parameters, once per execution.

In: statements of `change_statement.py`, a table's schema, the values of `?`.
Out: assignments and a condition, or rows, for a producer.
Promise: pure; values are checked as those of an INSERT, and the usual `column = ?` takes no parser.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import pyarrow as pa

from righttime.changes.conditions import Assignment, Condition, Expression, condition_of, everything, parse_assignment, parse_condition
from righttime.changes.schema import TableSchema
from righttime.changes.store_rules import fitted_value
from righttime.errors import NullNotAllowed, SqlRefused, UnknownColumn, WrongType
from righttime.query.change_statement import UPSERT_FORM, DeleteStatement, Part, UpdateStatement, UpsertStatement, change_statement
from righttime.query.insert_plan import InsertPlan, insert_plan, wrong_count

__all__ = ["DeleteStatement", "UpdateStatement", "UpsertPlan", "UpsertStatement", "change_statement", "plan_change", "plan_upsert"]


@dataclass(frozen=True, slots=True)
class UpsertPlan:
    """How to make the rows of an upsert: `insert.rows(parameters)` gives values in the order of `columns`, which hold every key."""

    columns: tuple[str, ...]
    insert: InsertPlan


def plan_change(
    statement: UpdateStatement | DeleteStatement, schema: TableSchema, parameters: Sequence[Any] = ()
) -> tuple[Literal["update", "delete"], list[Assignment], Condition]:
    """Bind a statement to its table and one execution's parameters; raise as `parse_assignment` and `parse_condition` do."""
    if len(parameters) != statement.placeholders:
        raise wrong_count(statement.placeholders, len(parameters))
    assignments: list[Assignment] = []
    used = 0
    for column, part in statement.assignments if isinstance(statement, UpdateStatement) else ():
        given = parameters[used : used + part.placeholders]
        assignments.append(_assignment(column, part, schema, given))
        used += part.placeholders
    condition = _condition(statement, schema, parameters[used:])
    return ("update" if isinstance(statement, UpdateStatement) else "delete"), assignments, condition


def _assignment(column: str, part: Part, schema: TableSchema, parameters: Sequence[Any]) -> Assignment:
    if part.text != "?":
        return parse_assignment(column, Expression(part.text), schema, parameters)
    place = _place(column, schema)
    return parse_assignment(column, fitted_value(parameters[0], schema.columns.field(place).type), schema)


def _place(column: str, schema: TableSchema) -> int:
    names = [name.lower() for name in schema.columns.names]
    if column.lower() not in names:
        raise UnknownColumn(table=schema.name, column=column, known=", ".join(schema.columns.names))
    return names.index(column.lower())


def _condition(statement: UpdateStatement | DeleteStatement, schema: TableSchema, parameters: Sequence[Any]) -> Condition:
    if statement.where is None:
        return everything(schema)
    if statement.keyed is not None and None not in parameters and _is_exact(statement.keyed, schema):
        # The usual case, without a parser: values that an insert would take mean the same here. All others go the long way.
        try:
            return condition_of(dict(zip(statement.keyed, parameters, strict=True)), schema)
        except (WrongType, NullNotAllowed):
            pass
    return parse_condition(statement.where.text, schema, parameters)


def _is_exact(columns: Sequence[str], schema: TableSchema) -> bool:
    """Tell whether no value is rounded when it becomes one of these columns: a FLOAT is compared as DOUBLE, and an insert rounds."""
    return all(schema.columns.field(_place(column, schema)).type != pa.float32() for column in columns)


def plan_upsert(statement: UpsertStatement, schema: TableSchema) -> UpsertPlan:
    """Fit an upsert to its table; refuse it unless it means exactly: by key, give the matching rows these columns, or insert them."""
    given = statement.insert.columns if statement.insert.columns is not None else tuple(schema.columns.names)
    columns = tuple(schema.columns.names[_place(column, schema)] for column in given)
    taken = {schema.columns.names[_place(column, schema)] for column in statement.columns}
    named = None if statement.keys is None else {schema.columns.names[_place(key, schema)] for key in statement.keys}
    if not schema.keys:
        _refuse(f"table {schema.name} has no key", "Declare the table with keys=, or write UPDATE and INSERT.")
    if named not in (None, set(schema.keys)):
        _refuse(f"the key of {schema.name} is ({', '.join(schema.keys)})", UPSERT_FORM)
    if not set(schema.keys) <= set(columns) or taken != set(columns) - set(schema.keys):
        _refuse("it does not take over every given column besides the key, or does not give the whole key", UPSERT_FORM)
    narrow = replace(schema, columns=pa.schema([schema.columns.field(column) for column in columns]), partition_by=())
    return UpsertPlan(columns, insert_plan(statement.insert, narrow))


def _refuse(reason: str, way_out: str) -> NoReturn:
    raise SqlRefused(reason=reason, way_out=way_out)
