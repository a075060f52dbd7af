"""How the parameters of a prepared INSERT become rows: worked out once per text, run once per row.

In: an `InsertStatement`, its table's schema, and parameters.
Out: full rows in the table's column order.
Promise: pure; columns the statement leaves out are null, and nothing is guessed about values that do not fit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from righttime.changes.schema import TableSchema
from righttime.errors import SqlRefused, UnknownColumn
from righttime.query.dbapi_types import ProgrammingError
from righttime.query.statement import InsertStatement, Placeholder


@dataclass(frozen=True, slots=True)
class InsertPlan:
    """How to make full rows, in the table's column order, from one execution's parameters."""

    table: str
    placeholders: int
    templates: tuple[tuple[Any, ...], ...]
    passes_through: bool

    def rows(self, parameters: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the rows of one execution."""
        if len(parameters) != self.placeholders:
            raise wrong_count(self.placeholders, len(parameters))
        if self.passes_through:
            return [tuple(parameters)]
        return [tuple(parameters[value.index] if isinstance(value, Placeholder) else value for value in template) for template in self.templates]

    def rows_of_many(self, many: list[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the rows of many executions; plain tuples that already are full rows cost three passes at C speed."""
        if self.passes_through and set(map(type, many)) == {tuple} and set(map(len, many)) == {self.placeholders}:
            return many
        return [row for parameters in many for row in self.rows(checked_parameters(parameters))]


def insert_plan(statement: InsertStatement, schema: TableSchema) -> InsertPlan:
    """Fit a statement to its table; raise `UnknownColumn`, or `SqlRefused` if the values are too many or too few."""
    columns = schema.columns
    targets = _targets(statement, schema)
    if any(len(row) != len(targets) for row in statement.rows):
        raise SqlRefused(
            reason=f"it gives {len(statement.rows[0])} values for the {len(targets)} columns {', '.join(columns.names)} of {schema.name}",
            way_out="Give a value per column, or name the columns that get one.",
            syntax=True,
        )
    templates = []
    for row in statement.rows:
        # Columns the statement leaves out are null.
        template: list[Any] = [None] * len(columns)
        for place, value in zip(targets, row, strict=True):
            template[place] = _fitted(value, columns.field(place).type)
        templates.append(tuple(template))
    straight = tuple(Placeholder(place) for place in range(len(columns)))
    return InsertPlan(schema.name, statement.placeholders, tuple(templates), templates == [straight])


def _targets(statement: InsertStatement, schema: TableSchema) -> list[int]:
    names = schema.columns.names
    if statement.columns is None:
        return list(range(len(names)))
    places = {name.lower(): place for place, name in enumerate(names)}
    for column in statement.columns:
        if column.lower() not in places:
            raise UnknownColumn(table=schema.name, column=column, known=", ".join(names))
    return [places[column.lower()] for column in statement.columns]


def _fitted(value: Any, kind: pa.DataType) -> Any:
    """Return a literal as its column takes it: SQL writes 1.5 for doubles and decimals alike."""
    if isinstance(value, Decimal) and pa.types.is_floating(kind):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and pa.types.is_decimal(kind):
        return Decimal(repr(value))
    if isinstance(value, int) and not isinstance(value, bool) and pa.types.is_floating(kind):
        return float(value)
    return value


def checked_parameters(parameters: Sequence[Any]) -> Sequence[Any]:
    """Refuse parameters by name and single values."""
    if isinstance(parameters, Mapping | str | bytes) or not hasattr(parameters, "__getitem__"):
        raise ProgrammingError(
            f"Parameters are a sequence of values, one for each ?; this is a {type(parameters).__name__}. Pass a tuple.", code="sql.parameters"
        )
    return parameters


def checked_rows(many: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    """Refuse what holds no rows of parameters at all."""
    if isinstance(many, Mapping | str | bytes) or not isinstance(many, Iterable):
        raise ProgrammingError(
            f"Many rows of parameters are a list of sequences, one for each row; this is a {type(many).__name__}. Pass a list of tuples.",
            code="sql.parameters",
        )
    return list(many)


def wrong_count(expected: int, given: int) -> ProgrammingError:
    """Return the error for too many or too few parameters."""
    return ProgrammingError(f"The statement has {expected} ?, and {given} values were passed. Pass one value for each ?.", code="sql.parameters")
