"""The columns of each step: names, types, what identifies a row, and everything that is wrong with a step.

In: the steps of a flow, inputs first; the schemas of its streams; a child session whose analyzer resolves expressions on empty frames.
Out: for each step its schema, its unique keys, and the columns that its expressions read.
Promise: each error names the file and line of the user's call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, LongType, StructField, StructType, TimestampType

from righttime.changes.ddl import parse_columns
from righttime.changes.types import BadType, canonical_schema
from righttime.errors.flows import BadDeclaration, NameTwice, NotUnique, TypeClash, UnknownInFlow
from righttime.errors.known import known_names
from righttime.pipeline.expressions import Expressions
from righttime.pipeline.flow import Flow
from righttime.pipeline.nodes import (
    COMMITTED,
    ORDINAL,
    SINCE,
    Aggregate,
    Apply,
    AsOf,
    Derive,
    Distinct,
    Expect,
    History,
    Join,
    Lookup,
    Node,
    Origin,
    Select,
    StreamNode,
    Union,
    Where,
)
from righttime.pipeline.portable import check_portable
from righttime.pipeline.unique import Keys, can_carry, is_unique, unique_keys


class SchemaLike(Protocol):
    """What the analysis wants to know of a stream or a table."""

    @property
    def columns(self) -> pa.Schema: ...

    @property
    def keys(self) -> tuple[str, ...]: ...


class StepColumns:
    """One walk over the steps, inputs first: `schemas`, `unique` and `references` have those that were visited."""

    def __init__(self, flow: Flow, streams: Mapping[str, SchemaLike], expressions: Expressions, child: SparkSession) -> None:
        self.flow = flow
        self.streams = streams
        self.expressions = expressions
        self.child = child
        self.schemas: dict[Node, StructType] = {}
        self.unique: dict[Node, Keys] = {}
        self.references: dict[Node, dict[str, frozenset[str]]] = {}

    def visit(self, node: Node) -> None:
        """Find out what a step gives, whose inputs were visited."""
        schema = self._schema(node)
        _check_once(self.flow, node.origin, schema.names)
        self.schemas[node] = schema
        keys = {name: tuple(known.keys) for name, known in self.streams.items()}
        self.unique[node] = unique_keys(node, self.unique, stream_keys=keys, columns=schema.names)

    def _schema(self, node: Node) -> StructType:
        match node:
            case StreamNode():
                return spark_schema(named(self.flow, node.origin, "stream", node.stream, self.streams).columns)
            case Where() | Expect():
                self.references[node] = {"": self.expressions.check_condition(self._frame(node.input), node.condition, node.origin)}
                return self.schemas[node.input]
            case Select() | Derive():
                return self._derived(node)
            case Apply():
                return self._applied(node)
            case Join():
                return self._joined(node)
            case Lookup():
                return self._looked_up(node)
            case AsOf():
                return self._as_of(node)
            case Union():
                return self._united(node)
            case Distinct():
                self._check_comparable(node, node.input, self.schemas[node.input].names)
                return self.schemas[node.input]
            case Aggregate():
                return self._aggregated(node)
            case History():
                return self._history(node)
            case _:
                raise AssertionError(f"unknown step {node!r}")

    def _derived(self, node: Select | Derive) -> StructType:
        given = self.schemas[node.input]
        found, self.references[node] = self.expressions.schema(self._frame(node.input), node.columns, node.origin)
        if isinstance(node, Select):
            return found
        derived = {field.name.lower(): field for field in found}
        kept = [derived.pop(field.name.lower(), field) for field in given]
        return StructType([*kept, *derived.values()])

    def _applied(self, node: Apply) -> StructType:
        try:
            schema = arrow_schema(node.columns)
        except BadType as error:
            raise self._bad(node, f"apply() returns {node.columns!r}: {error}") from error
        try:
            check_portable(node.function)
        except Exception as error:
            raise self._bad(node, f"the function of apply() cannot be sent to Spark's workers: {error}") from error
        return spark_schema(schema)

    def _joined(self, node: Join) -> StructType:
        self._check_on(node, node.on)
        merged = {right for left, right in node.on if left == right}
        right = [field for field in self.schemas[node.right] if field.name not in merged]
        return StructType([*self.schemas[node.left], *right])

    def _looked_up(self, node: Lookup) -> StructType:
        self._check_on(node, node.on)
        if not is_unique(self.unique[node.right], (column for _, column in node.on)):
            raise NotUnique(flow=self.flow.name, origin=node.origin, what="the right side of lookup()", keys=", ".join(column for _, column in node.on))
        return self._with_taken(node)

    def _as_of(self, node: AsOf) -> StructType:
        if not isinstance(node.right, History):
            raise self._bad(node, "as_of() needs a history: the outcome of history()")
        self._check_on(node, node.on)
        if {column for _, column in node.on} != set(node.right.keys):
            raise NotUnique(flow=self.flow.name, origin=node.origin, what="the history, at one time,", keys=", ".join(column for _, column in node.on))
        if SINCE not in can_carry(node.left):
            raise self._bad(node, "as_of() needs rows of one stream, whose commit time is known; call it before join(), distinct() or aggregate()")
        return self._with_taken(node)

    def _with_taken(self, node: Lookup | AsOf) -> StructType:
        right = {field.name: field for field in self.schemas[node.right]}
        taken = []
        for name, column in node.take:
            field = named(self.flow, node.origin, "column", column, right)
            taken.append(StructField(name, field.dataType, True))
        return StructType([*self.schemas[node.left], *taken])

    def _united(self, node: Union) -> StructType:
        first = self.schemas[node.parts[0]]
        for part in node.parts[1:]:
            found = {field.name: field for field in self.schemas[part]}
            if missing := sorted({field.name for field in first} ^ found.keys()):
                raise self._bad(node, f"the parts of union() differ in columns: not all of them have {', '.join(missing)}")
            for field in first:
                other = named(self.flow, node.origin, "column", field.name, found)
                self._check_same(node.origin, f"column {field.name!r} of a part of union()", other.dataType, field.dataType)
        return first

    def _aggregated(self, node: Aggregate) -> StructType:
        given = {field.name: field for field in self.schemas[node.input]}
        for name in node.by:
            named(self.flow, node.origin, "column", name, given)
        self._check_comparable(node, node.input, node.by)
        measures, self.references[node] = self.expressions.measures(self._frame(node.input), node.measures, node.origin)
        return StructType([*(given[name] for name in node.by), *measures])

    def _history(self, node: History) -> StructType:
        if not can_carry(node.input) >= {SINCE, ORDINAL, COMMITTED}:
            raise self._bad(node, "history() needs the changes of one stream; call it before lookup(), join(), union(), distinct() or aggregate()")
        if not is_unique(self.unique[node.input], node.keys):
            raise NotUnique(flow=self.flow.name, origin=node.origin, what="the input of history()", keys=", ".join(node.keys))
        times = [StructField(name, TimestampType(), name == node.end) for name in (node.start, node.end)]
        return StructType([*self.schemas[node.input], StructField(node.key, LongType(), False), *times])

    def _check_on(self, node: Join | Lookup | AsOf, on: Sequence[tuple[str, str]]) -> None:
        left = {field.name: field for field in self.schemas[node.left]}
        right = {field.name: field for field in self.schemas[node.right]}
        for name, column in on:
            one = named(self.flow, node.origin, "column", name, left)
            other = named(self.flow, node.origin, "column", column, right)
            self._check_same(node.origin, f"key {column!r} of the right side", other.dataType, one.dataType)
        self._check_comparable(node, node.left, [name for name, _ in on])

    def _check_comparable(self, node: Node, given: Node, names: Iterable[str]) -> None:
        types = {field.name: field.dataType for field in self.schemas[given]}
        for name in names:
            if not self.expressions.is_comparable(types[name]):
                raise TypeClash(
                    flow=self.flow.name, origin=node.origin, what=f"column {name!r}", found=types[name].simpleString(), expected="a type that can be compared"
                )

    def _check_same(self, origin: Origin, what: str, found: DataType, expected: DataType) -> None:
        if found.simpleString() != expected.simpleString():
            raise TypeClash(flow=self.flow.name, origin=origin, what=what, found=found.simpleString(), expected=expected.simpleString())

    def _frame(self, node: Node) -> DataFrame:
        return self.child.createDataFrame([], self.schemas[node])

    def _bad(self, node: Node, reason: str) -> BadDeclaration:
        return BadDeclaration(flow=self.flow.name, origin=node.origin, reason=reason)


def named(flow: Flow, origin: Origin, what: str, name: str, known: Mapping[str, Any]) -> Any:
    """Return what has this name; raises `UnknownInFlow` if nothing has."""
    if name not in known:
        raise UnknownInFlow(flow=flow.name, origin=origin, what=what, name=name, known=known_names(name, known))
    return known[name]


def _check_once(flow: Flow, origin: Origin, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise NameTwice(flow=flow.name, origin=origin, name=name)
        seen.add(name.lower())


def arrow_schema(columns: str) -> pa.Schema:
    """Return the schema that a column list means."""
    return canonical_schema(parse_columns(columns))


def spark_schema(columns: pa.Schema) -> StructType:
    """Return the columns as Spark has them."""
    return from_arrow_schema(pa.schema([field.remove_metadata() for field in columns]))
