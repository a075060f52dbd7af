"""Analysis of a flow: what each step gives, and everything that is wrong with the declaration, before any row moves.

In: a flow, the schemas of streams and tables, a child session whose analyzer resolves expressions on empty frames.
Out: `Analysed`, which the plan of every drain starts from.
Promise: each error names the file and line of the user's call; what passes here fails later only because of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from righttime.changes.schema import TableSchema
from righttime.pipeline.cycles import check_cycles
from righttime.pipeline.expressions import Expressions
from righttime.pipeline.fingerprint import fingerprint
from righttime.pipeline.flow import Flow
from righttime.pipeline.needs import used_columns
from righttime.pipeline.nodes import COMMITTED, ORDINAL, SINCE, Node, StreamNode, Target, Union
from righttime.pipeline.step_columns import SchemaLike, StepColumns
from righttime.pipeline.target_tables import TargetTables
from righttime.pipeline.unique import Keys, asked_columns, carried_columns, is_unique

_SYSTEM_ORDER = (SINCE, ORDINAL, COMMITTED)


@dataclass(frozen=True)
class Analysed:
    """A flow that is right in itself: schemas, unique keys, carried system columns and used columns by step id, the columns and
    partition columns of its tables.

    `casts` has by table the types that Spark casts columns to before they are stored.
    """

    flow: Flow
    nodes: Mapping[str, Node]
    ids: Mapping[Node, str]
    schemas: Mapping[str, StructType]
    unique: Mapping[str, Keys]
    carried: Mapping[str, tuple[str, ...]]
    used: Mapping[str, frozenset[str]]
    tables: Mapping[str, pa.Schema]
    partitions: Mapping[str, tuple[str, ...]]
    casts: Mapping[str, Mapping[str, str]]
    new_tables: Mapping[str, TableSchema]
    fingerprint: str

    def read_columns(self, reader: Node, place: int) -> tuple[str, ...]:
        """Return the columns that a step takes of its input at this place: those that are used, and the system columns that it needs itself.

        What other readers need is not among them: the time of a change is another one when the row goes. Parts of a union have its own columns.
        """
        step = self.ids[reader if isinstance(reader, Union) else reader.inputs[place]]
        _, asked = asked_columns(reader, frozenset(self.carried[self.ids[reader]]))[place]
        return (*(name for name in self.schemas[step].names if name in self.used[step]), *(name for name in _SYSTEM_ORDER if name in asked))

    def is_unique(self, target: Target) -> bool:
        """Return whether a key of this target can have no second row, whatever the rows are."""
        return is_unique(self.unique[self.ids[target.node]], target.keys)


def analyse(flow: Flow, stream_schemas: Mapping[str, SchemaLike], table_schemas: Mapping[str, TableSchema], child: SparkSession) -> Analysed:
    """Check a flow and return what its plans need; freezes the flow. Raises the subclasses of `BadDeclaration`."""
    flow.freeze()
    check_cycles([flow])
    nodes = flow.nodes()
    steps, targets, new = _checked(flow, stream_schemas, table_schemas, child)
    tables: dict[str, TableSchema] = {**table_schemas, **new}
    needed = carried_columns(nodes.values())
    columns = {node: tuple(schema.names) for node, schema in steps.schemas.items()}
    used = used_columns(nodes.values(), [target.node for target in flow.targets], columns, steps.references)
    return Analysed(
        flow=flow,
        nodes=nodes,
        ids={node: name for name, node in nodes.items()},
        schemas={name: steps.schemas[node] for name, node in nodes.items()},
        unique={name: steps.unique[node] for name, node in nodes.items()},
        carried={name: tuple(column for column in _SYSTEM_ORDER if column in needed[node]) for name, node in nodes.items()},
        used={name: used[node] for name, node in nodes.items()},
        tables={target.table: tables[target.table].columns for target in flow.targets},
        partitions={target.table: tables[target.table].partition_by for target in flow.targets},
        casts={target.table: targets.casts(target, tables[target.table]) for target in flow.targets},
        new_tables=new,
        fingerprint=fingerprint(flow),
    )


def check_without(
    streams: Collection[str], flow: Flow, stream_schemas: Mapping[str, SchemaLike], table_schemas: Mapping[str, TableSchema], child: SparkSession
) -> None:
    """Check what can be told of a flow while nobody knows some of its streams: the steps and targets that follow from others. Raises as `analyse` does."""
    _checked(flow, stream_schemas, table_schemas, child, without=streams)


def _checked(
    flow: Flow, stream_schemas: Mapping[str, SchemaLike], table_schemas: Mapping[str, TableSchema], child: SparkSession, *, without: Collection[str] = ()
) -> tuple[StepColumns, TargetTables, dict[str, TableSchema]]:
    """Check steps and targets; return their columns, and the tables that are to be made."""
    expressions = Expressions(flow.name, child)
    steps = StepColumns(flow, stream_schemas, expressions, child)
    for node in flow.nodes().values():
        left_out = isinstance(node, StreamNode) and node.stream in without
        if not left_out and all(given in steps.schemas for given in node.inputs):
            steps.visit(node)
    told = [target for target in flow.targets if target.node in steps.schemas]
    targets = TargetTables(flow, steps.schemas, expressions)
    new = {target.table: targets.new_table(target) for target in told if target.table not in table_schemas}
    for target in told:
        targets.check(target, {**table_schemas, **new})
    return steps, targets, new
