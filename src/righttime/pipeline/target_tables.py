"""Targets against their tables: what a step gives must be what its table takes.

In: targets with the columns of their steps; the tables that are there.
Out: the tables that have to be made.
Promise: each error names the file and line of `into()`; what passes is refused later only because of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import NumericType, StructField, StructType

from righttime.changes.schema import TableSchema, declare_table
from righttime.errors import BadTable
from righttime.errors.flows import BadDeclaration, ColumnsFixed, TypeClash
from righttime.pipeline.expressions import Expressions
from righttime.pipeline.flow import Flow
from righttime.pipeline.nodes import Node, Target
from righttime.pipeline.step_columns import SchemaLike, named, spark_schema
from righttime.pipeline.stored_types import keeps_apart, means_the_same, needs_cast, type_of_sum


class TargetTables:
    """The tables of one flow."""

    def __init__(self, flow: Flow, schemas: Mapping[Node, StructType], expressions: Expressions) -> None:
        self.flow = flow
        self.schemas = schemas
        self.expressions = expressions

    def new_table(self, target: Target) -> TableSchema:
        """Return the table that a target without one is kept in. Totals are wider than what they are of: they have the types of Spark's sums."""
        given = self.schemas[target.node]
        _refuse_unknown(self.flow, target, {field.name: field for field in given})
        kept = StructType([_summed(field) if field.name in target.additive else field for field in given])
        columns = to_arrow_schema(kept.toNullable(), timezone="UTC")
        try:
            return declare_table(target.table, columns, keys=target.keys)
        except BadTable as error:
            raise BadDeclaration(flow=self.flow.name, origin=target.origin, reason=f"table {target.table!r}: {error.context['reason']}") from error

    def check(self, target: Target, tables: Mapping[str, SchemaLike]) -> None:
        """Check a target against its table."""
        table = named(self.flow, target.origin, "table", target.table, tables)
        wanted = spark_schema(table.columns)
        given = {field.name: field for field in self.schemas[target.node]}
        _check_target_keys(self.flow, target, table, given)
        for name in given:
            if name not in wanted.names:
                raise _fixed(self.flow, target, table, f"has no column {name!r}")
        for field in wanted:
            if field.name in given:
                self._check_storable(target, table, given[field.name], field)
            elif not field.nullable:
                raise _fixed(self.flow, target, table, f"its column {field.name!r} is NOT NULL and not given")

    def casts(self, target: Target, table: SchemaLike) -> dict[str, str]:
        """Return the types that Spark has to cast columns to before they are stored, by column."""
        given = {field.name: field.dataType for field in self.schemas[target.node]}
        wanted = {field.name: field.dataType for field in spark_schema(table.columns) if field.name in given}
        return {name: kind.simpleString() for name, kind in wanted.items() if needs_cast(given[name], kind, is_total=name in target.additive)}

    def _check_storable(self, target: Target, table: SchemaLike, given: StructField, wanted: StructField) -> None:
        found, kept = given.dataType.simpleString(), wanted.dataType.simpleString()
        if given.name in target.additive and not (isinstance(given.dataType, NumericType) and isinstance(wanted.dataType, NumericType)):
            what, expected = f"column {given.name!r} for table {target.table!r}", "a number, because it is additive,"
            raise TypeClash(flow=self.flow.name, origin=target.origin, what=what, found=found, expected=expected)
        fits = self.expressions.can_store(given.dataType, wanted.dataType) and means_the_same(given.dataType, wanted.dataType)
        if not fits or (given.name in target.keys and not keeps_apart(given.dataType, wanted.dataType)):
            raise _fixed(self.flow, target, table, f"its column {given.name!r} is {kept}, where the step gives {found}")


def _summed(field: StructField) -> StructField:
    return StructField(field.name, type_of_sum(field.dataType), field.nullable)


def _check_target_keys(flow: Flow, target: Target, table: SchemaLike, given: Mapping[str, Any]) -> None:
    _refuse_unknown(flow, target, given)
    if set(table.keys) != set(target.keys):
        raise _fixed(flow, target, table, f"keys={list(target.keys)} are not its keys")
    others = [name for name in given if name not in {*target.keys, *target.additive}]
    if target.additive and others:
        raise BadDeclaration(flow=flow.name, origin=target.origin, reason=f"columns {', '.join(others)} are neither keys nor additive")


def _refuse_unknown(flow: Flow, target: Target, given: Mapping[str, Any]) -> None:
    for name in (*target.keys, *target.additive):
        named(flow, target.origin, "column", name, given)


def _fixed(flow: Flow, target: Target, table: SchemaLike, reason: str) -> ColumnsFixed:
    columns = ", ".join(f"{field.name} {field.dataType.simpleString().upper()}" for field in spark_schema(table.columns))
    return ColumnsFixed(flow=flow.name, origin=target.origin, table=target.table, reason=reason, known=f"{columns}; keys {', '.join(table.keys) or 'none'}")
