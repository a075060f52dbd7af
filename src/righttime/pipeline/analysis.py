"""Analysis of a flow: what each step gives, and everything that is wrong with the declaration, before any row moves.

In: a flow, the schemas of streams and tables, a child session whose analyzer resolves expressions on empty frames.
Out: `Analysed`, which the plan of every drain starts from.
Promise: each error names the file and line of the user's call; what passes here fails later only because of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, LongType, NumericType, StructField, StructType, TimestampType

from righttime.changes.ddl import parse_columns
from righttime.changes.schema import TableSchema, declare_table
from righttime.changes.types import BadType, canonical_schema
from righttime.errors import RightTimeError
from righttime.errors.flows import BadDeclaration, NameTwice, NotUnique, TypeClash, UnknownInFlow
from righttime.pipeline.cycles import check_cycles
from righttime.pipeline.expressions import Expressions
from righttime.pipeline.fingerprint import fingerprint
from righttime.pipeline.flow import Flow
from righttime.pipeline.needs import used_columns
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
    Target,
    Union,
    Where,
)
from righttime.pipeline.portable import check_portable
from righttime.pipeline.unique import Keys, can_carry, carried_columns, is_unique, unique_keys

_SYSTEM_ORDER = (SINCE, ORDINAL, COMMITTED)


class SchemaLike(Protocol):
    """What the analysis wants to know of a stream or a table."""

    @property
    def columns(self) -> pa.Schema: ...

    @property
    def keys(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Analysed:
    """A flow that is right in itself: schemas, unique keys, carried system columns and used columns by step id, the columns of its tables."""

    flow: Flow
    nodes: Mapping[str, Node]
    ids: Mapping[Node, str]
    schemas: Mapping[str, StructType]
    unique: Mapping[str, Keys]
    carried: Mapping[str, tuple[str, ...]]
    used: Mapping[str, frozenset[str]]
    tables: Mapping[str, pa.Schema]
    new_tables: Mapping[str, TableSchema]
    fingerprint: str

    def is_unique(self, target: Target) -> bool:
        """Return whether a key of this target can have no second row, whatever the rows are."""
        return is_unique(self.unique[self.ids[target.node]], target.keys)


def analyse(flow: Flow, stream_schemas: Mapping[str, SchemaLike], table_schemas: Mapping[str, SchemaLike], child: SparkSession) -> Analysed:
    """Check a flow and return what its plans need; freezes the flow. Raises the subclasses of `BadDeclaration`."""
    flow.freeze()
    check_cycles([flow])
    nodes = flow.nodes()
    pass_ = _Pass(flow, stream_schemas, Expressions(flow.name, child), child)
    for node in nodes.values():
        pass_.visit(node)
    new = {target.table: pass_.new_table(target) for target in flow.targets if target.table not in table_schemas}
    tables: dict[str, SchemaLike] = {**table_schemas, **new}
    for target in flow.targets:
        pass_.target(target, tables)
    needed = carried_columns(nodes.values())
    columns = {node: tuple(schema.names) for node, schema in pass_.schemas.items()}
    used = used_columns(nodes.values(), [target.node for target in flow.targets], columns, pass_.references)
    return Analysed(
        flow=flow,
        nodes=nodes,
        ids={node: name for name, node in nodes.items()},
        schemas={name: pass_.schemas[node] for name, node in nodes.items()},
        unique={name: pass_.unique[node] for name, node in nodes.items()},
        carried={name: tuple(column for column in _SYSTEM_ORDER if column in needed[node]) for name, node in nodes.items()},
        used={name: used[node] for name, node in nodes.items()},
        tables={target.table: tables[target.table].columns for target in flow.targets},
        new_tables=new,
        fingerprint=fingerprint(flow),
    )


class _Pass:
    """One walk over the steps, inputs first."""

    def __init__(self, flow: Flow, streams: Mapping[str, SchemaLike], expressions: Expressions, child: SparkSession) -> None:
        self.flow = flow
        self.streams = streams
        self.expressions = expressions
        self.child = child
        self.schemas: dict[Node, StructType] = {}
        self.unique: dict[Node, Keys] = {}
        self.references: dict[Node, dict[str, frozenset[str]]] = {}

    def visit(self, node: Node) -> None:
        schema = self._schema(node)
        _check_once(self.flow, node.origin, schema.names)
        self.schemas[node] = schema
        keys = {name: tuple(known.keys) for name, known in self.streams.items()}
        self.unique[node] = unique_keys(node, self.unique, stream_keys=keys, columns=schema.names)

    def _schema(self, node: Node) -> StructType:
        match node:
            case StreamNode():
                return _spark_schema(_known(self.flow, node.origin, "stream", node.stream, self.streams).columns)
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
        return _spark_schema(schema)

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
            field = _known(self.flow, node.origin, "column", column, right)
            taken.append(StructField(name, field.dataType, True))
        return StructType([*self.schemas[node.left], *taken])

    def _united(self, node: Union) -> StructType:
        first = self.schemas[node.parts[0]]
        for part in node.parts[1:]:
            found = {field.name: field for field in self.schemas[part]}
            if len(found) != len(first):
                missing = sorted({field.name for field in first} ^ found.keys())
                raise self._bad(node, f"the parts of union() differ in columns {', '.join(missing)}")
            for field in first:
                other = _known(self.flow, node.origin, "column", field.name, found)
                self._check_same(node.origin, f"column {field.name!r} of a part of union()", other.dataType, field.dataType)
        return first

    def _aggregated(self, node: Aggregate) -> StructType:
        given = {field.name: field for field in self.schemas[node.input]}
        for name in node.by:
            _known(self.flow, node.origin, "column", name, given)
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
            one = _known(self.flow, node.origin, "column", name, left)
            other = _known(self.flow, node.origin, "column", column, right)
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

    def new_table(self, target: Target) -> TableSchema:
        """Return the table that a target without one is kept in."""
        columns = to_arrow_schema(self.schemas[target.node].toNullable(), timezone="UTC")
        try:
            return declare_table(target.table, columns, keys=target.keys)
        except RightTimeError as error:
            raise BadDeclaration(flow=self.flow.name, origin=target.origin, reason=str(error).removesuffix(".")) from error

    def target(self, target: Target, tables: Mapping[str, SchemaLike]) -> None:
        """Check a target against its table."""
        table = _known(self.flow, target.origin, "table", target.table, tables)
        wanted = _spark_schema(table.columns)
        given = {field.name: field for field in self.schemas[target.node]}
        _check_target_keys(self.flow, target, table, given)
        columns = {field.name: field for field in wanted}
        for name in given:
            _known(self.flow, target.origin, f"column of table {target.table!r}", name, columns)
        for field in wanted:
            if field.name in given:
                self._check_storable(target, given[field.name], field)
            elif not field.nullable:
                raise BadDeclaration(
                    flow=self.flow.name, origin=target.origin, reason=f"column {field.name!r} of table {target.table!r} is NOT NULL and not given"
                )

    def _check_storable(self, target: Target, given: StructField, wanted: StructField) -> None:
        numeric = isinstance(wanted.dataType, NumericType)
        if given.name in target.additive and not numeric:
            expected = "a number, because it is additive,"
        elif self.expressions.can_store(given.dataType, wanted.dataType):
            return
        else:
            expected = wanted.dataType.simpleString()
        what = f"column {given.name!r} for table {target.table!r}"
        raise TypeClash(flow=self.flow.name, origin=target.origin, what=what, found=given.dataType.simpleString(), expected=expected)

    def _frame(self, node: Node) -> DataFrame:
        return self.child.createDataFrame([], self.schemas[node])

    def _bad(self, node: Node, reason: str) -> BadDeclaration:
        return BadDeclaration(flow=self.flow.name, origin=node.origin, reason=reason)


def _check_target_keys(flow: Flow, target: Target, table: SchemaLike, given: Mapping[str, Any]) -> None:
    for name in (*target.keys, *target.additive):
        _known(flow, target.origin, "column", name, given)
    if set(table.keys) != set(target.keys):
        known = ", ".join(table.keys) or "none"
        raise BadDeclaration(flow=flow.name, origin=target.origin, reason=f"keys={list(target.keys)} are not the keys of table {target.table!r} ({known})")
    others = [name for name in given if name not in {*target.keys, *target.additive}]
    if target.additive and others:
        raise BadDeclaration(flow=flow.name, origin=target.origin, reason=f"columns {', '.join(others)} are neither keys nor additive")


def _known(flow: Flow, origin: Origin, what: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise UnknownInFlow(flow=flow.name, origin=origin, what=what, name=name, known=", ".join(known) or "none")
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


def _spark_schema(columns: pa.Schema) -> StructType:
    return from_arrow_schema(pa.schema([field.remove_metadata() for field in columns]))
