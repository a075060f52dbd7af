"""Operations from the wire, checked as if a loader on this side had given them.

In: operations that came in a message, and the table they are on.
Out: the same operations, with everything about them that matters later found out anew.
Promise: an operation that passes can be settled; its conditions and expressions parse, its keys and values have the table's types.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from righttime.changes.conditions import Assignment, Expression, parse_assignment, parse_condition
from righttime.changes.encoder import RowEncoder
from righttime.changes.operations import Encoded, Operations
from righttime.changes.rows import Chunk
from righttime.changes.schema import TableSchema
from righttime.errors import BadMessage, KeyRequired, NullNotAllowed

_KINDS = ("update", "delete", "upsert")


def checked_operations(given: Operations, schema: TableSchema) -> Operations:
    """Return operations that are safe to keep, or raise."""
    if given.kind not in _KINDS or given.rows < 1 or len(given.after) != given.rows or (np.diff(given.order) <= 0).any() or (given.after < 0).any():
        raise BadMessage(reason=f"operations on table {schema.name!r} contradict themselves")
    assignments = [parse_assignment(_text(column), Expression(_text(text)), schema) for column, text in given.expressions]
    can_fail = any(each.can_fail for each in assignments)
    if given.condition is not None:
        condition = parse_condition(_text(given.condition), schema)
        if given.kind == "upsert" or given.rows != 1 or given.values is not None:
            raise BadMessage(reason="an operation by condition is one update or delete with expressions")
        can_fail, text = can_fail or condition.can_fail, condition.text
        return Operations(given.kind, given.order, given.after, condition=text, expressions=_texts(assignments), can_fail=can_fail)
    return Operations(
        given.kind,
        given.order,
        given.after,
        key_rows=_encoded(_keys(given, schema)),
        value_rows=_encoded(_values(given, schema)),
        expressions=_texts(assignments),
        can_fail=can_fail,
    )


def _encoded(batch: pa.RecordBatch | None) -> Encoded | None:
    return None if batch is None else Encoded(Chunk(batch), batch.schema)


def _texts(assignments: Sequence[Assignment]) -> tuple[tuple[str, str], ...]:
    return tuple((each.column, each.text) for each in assignments)


def _keys(given: Operations, schema: TableSchema) -> pa.RecordBatch:
    if not schema.keys:
        raise KeyRequired(table=schema.name)
    if given.keys is None or tuple(given.keys.schema.names) != schema.keys:
        raise BadMessage(reason=f"operations by key on table {schema.name!r} have other keys than the table")
    return _fitting(given.keys, schema)


def _values(given: Operations, schema: TableSchema) -> pa.RecordBatch | None:
    if given.values is None:
        return None
    if given.kind == "delete" or (given.kind == "upsert" and set(given.values.schema.names) & set(schema.keys)):
        raise BadMessage(reason=f"operations by key on table {schema.name!r} set what they may not set")
    if given.kind == "upsert":
        for field in schema.columns:
            if not field.nullable and field.name not in schema.keys and field.name not in given.values.schema.names:
                raise NullNotAllowed(table=schema.name, column=field.name, why="missing in an upsert, NOT NULL")
    return _fitting(given.values, schema)


def _fitting(batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    names = batch.schema.names
    if len(set(names)) != len(names) or any(name not in schema.columns.names for name in names):
        raise BadMessage(reason=f"operations name columns that table {schema.name!r} does not have")
    chosen = pa.schema([schema.columns.field(name) for name in names])
    part = TableSchema(schema.name, chosen, tuple(key for key in schema.keys if key in names), tuple(name for name in schema.partition_by if name in names))
    checked = pa.Table.from_batches([chunk.content for chunk in RowEncoder(part).encode_arrow(batch)], schema=chosen).combine_chunks().to_batches()
    if len(checked) != 1 or checked[0].num_rows != batch.num_rows:
        raise BadMessage(reason="operations without rows")
    return checked[0]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadMessage(reason="a condition or expression is no text")
    return value
