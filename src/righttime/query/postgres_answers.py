"""Answers of PostgreSQL as Arrow tables.

In: a cursor that runs a query.
Out: its rows with canonical columns; types that have no counterpart come as text.
Promise: an answer that is over its bound stops there, before it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.types.string import TextLoader

from righttime.changes.types import TIMESTAMP, TIMESTAMP_NTZ
from righttime.errors import AnswerTooLarge, SqlRefused
from righttime.ledger.postgres_connect import Connection

_FETCH_ROWS = 10_000
_NUMERIC = 1700
_DIGITS_MAX = 38
_TYPES: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: TIMESTAMP_NTZ,
    1184: TIMESTAMP,
}
_ARRAYS = {1000: 16, 1001: 17, 1016: 20, 1005: 21, 1007: 23, 1021: 700, 1022: 701, 1182: 1082, 1115: 1114, 1185: 1184, 1231: _NUMERIC, 1009: 25, 1015: 25}
# psycopg makes objects of them that Arrow has no type for.
_AS_TEXT = ("json", "jsonb", "uuid", "time", "timetz", "interval", "inet", "cidr", "int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange")


def plain_texts(connection: Connection) -> None:
    """Let values of types without a counterpart come as text on this connection."""
    for name in _AS_TEXT:
        connection.adapters.register_loader(name, TextLoader)


def collect(cursor: psycopg.ServerCursor[tuple[Any, ...]] | psycopg.Cursor[tuple[Any, ...]], *, bytes_max: int) -> pa.Table:
    """Return all rows of a query; raise `AnswerTooLarge` as soon as they are more than `bytes_max`."""
    columns = list(cursor.description or ())
    if not columns:  # a table of no columns has no rows either, and the answer's would be lost
        raise SqlRefused(reason="its answer has no columns", way_out="Select one, or count(*).")
    parts: list[list[pa.Array]] = []
    size = 0
    while rows := cursor.fetchmany(_FETCH_ROWS):
        parts.append([_array(values, column) for values, column in zip(zip(*rows, strict=True), columns, strict=True)])
        size += sum(array.nbytes for array in parts[-1])
        if size > bytes_max:
            raise AnswerTooLarge(size=size, bound=bytes_max)
    fields = [_joined([part[number] for part in parts], column) for number, column in enumerate(columns)]
    return pa.Table.from_arrays(fields, names=[column.name for column in columns])


def _array(values: Sequence[Any], column: psycopg.Column) -> pa.Array:
    if column.type_code == _NUMERIC:
        return _decimals(values, column.precision, column.scale)
    given = _type(column.type_code)
    if given is not None:
        return _typed(values, given, column)
    return pa.array([value if value is None or isinstance(value, str) else _text(value) for value in values], pa.string())


def _typed(values: Sequence[Any], given: pa.DataType, column: psycopg.Column) -> pa.Array:
    try:
        return pa.array(values, given)
    except pa.ArrowException as error:
        # The type of an array says nothing of its dimensions, which may be others in each row.
        if not pa.types.is_list(given):
            raise
        raise SqlRefused(reason=f"{column.name} has an array of several dimensions", way_out="Cast the column to text in the query.") from error


def _type(oid: int) -> pa.DataType | None:
    if oid in _ARRAYS and _ARRAYS[oid] != _NUMERIC:
        return pa.list_(pa.field("element", _TYPES.get(_ARRAYS[oid], pa.string())))
    return _TYPES.get(oid)


def _text(value: Any) -> str:
    return json.dumps(value, default=str) if isinstance(value, list | dict) else str(value)


def _decimals(values: Sequence[Decimal | None], precision: int | None, scale: int | None) -> pa.Array:
    """Return decimals of the declared type, or of the narrowest one that holds them; as text if none does."""
    if precision is not None and scale is not None and 0 <= scale <= precision <= _DIGITS_MAX:
        wanted: pa.DataType = pa.decimal128(precision, scale)
    else:
        numbers = [value for value in values if value is not None and value.is_finite()]
        scale = max((max(-int(value.as_tuple().exponent), 0) for value in numbers), default=0)
        whole = max((max(value.adjusted() + 1, 0) for value in numbers), default=0)
        wanted = pa.decimal128(_DIGITS_MAX, scale) if whole + scale <= _DIGITS_MAX else pa.string()
    if pa.types.is_decimal(wanted) and all(value is None or value.is_finite() for value in values):
        return pa.array(values, wanted)
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _joined(parts: Sequence[pa.Array], column: psycopg.Column) -> pa.ChunkedArray:
    """Return one column of arrays whose types may differ where the query left the scale of a decimal open."""
    if not parts:
        return pa.chunked_array([_array((), column)])
    if len({part.type for part in parts}) > 1:
        parts = [_array([value for part in parts for value in _numbers(part)], column)]
    return pa.chunked_array(parts)


def _numbers(part: pa.Array) -> list[Decimal | None]:
    return [None if value is None else Decimal(value) for value in part.to_pylist()]
