"""Column types in PostgreSQL: which one each of ours becomes, and which of PostgreSQL's can be taken over.

In: canonical Arrow fields; types as PostgreSQL's catalog spells them.
Out: SQL types; Arrow fields; what PostgreSQL cannot hold.
Promise: pure; a value that passes `check_storable` is read back from PostgreSQL equal, bit by bit. What has no such type is refused.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from righttime.changes.ddl import format_type
from righttime.changes.schema import TableSchema
from righttime.changes.types import BOUNDED_TEXT, STORED_AS, TIMESTAMP, TIMESTAMP_NTZ, BadType, decimal_type, list_type, stored_as, text_length_max
from righttime.errors import BadTable, WrongType
from righttime.warehouse.postgres_arrays import is_array_of_values
from righttime.warehouse.postgres_json import UUID, is_json, jsonb_text

NAME_BYTES_MAX = 63
DAY_ZERO = 10957  # days from 1970 to 2000, where PostgreSQL counts from
MICROSECOND_ZERO = DAY_ZERO * 86_400_000_000
# From 4713 BC; dates up to the year 5874897. PostgreSQL's timestamps end later than ours.
_DAYS = (-2440588, 2145042905)
_MICROSECONDS = (-210866803200000000, 2**63 - 1)

_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",  # PostgreSQL has no smaller one
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    TIMESTAMP: "timestamp with time zone",
    TIMESTAMP_NTZ: "timestamp without time zone",
}
_ARROW = {name: arrow for arrow, name in _NAMES.items()} | {"smallint": pa.int16(), "character varying": pa.string()}
# Types that are read as another one of ours, which their column then remembers.
_READ_AS = {"uuid": pa.string(), "json": pa.string(), "jsonb": pa.string(), "numeric": pa.decimal128(38, 18)}
_SHOWN_MAX = 80
_SAME = {"character varying": "text", "character varying[]": "text[]"}  # without a bound these two hold the same


def sql_type(field: pa.Field) -> str:
    """Return a column's type as PostgreSQL's catalog spells it; raise `BadType` for maps, structs and arrays of these."""
    bound, other = text_length_max(field), stored_as(field)
    if other is not None:
        if _READ_AS.get(other) != field.type:
            raise BadType(f"column {field.name!r} has type {format_type(field)}, which is not what {other} of PostgreSQL is read as")
        return other
    if bound is not None:
        return f"character varying({bound})"
    if kind.is_decimal(field.type):
        return f"numeric({field.type.precision},{field.type.scale})"
    if field.type in _NAMES:
        return _NAMES[field.type]
    if is_array_of_values(field.type):
        return f"{sql_type(field.type.value_field)}[]"
    raise BadType(f"column {field.name!r} has type {format_type(field)}, which PostgreSQL does not have: split it into columns, or store it as text")


def same_type(found: str, wanted: str) -> bool:
    """Tell whether two spellings of PostgreSQL's catalog are of one type."""
    return _SAME.get(found, found) == wanted


def arrow_field(name: str, found: str, *, nullable: bool) -> pa.Field:
    """Return the column that a type of PostgreSQL's catalog is read as; raise `BadType` if there is none without loss."""
    if found in _ARROW:
        return pa.field(name, _ARROW[found], nullable=nullable)
    if found in _READ_AS:
        return pa.field(name, _READ_AS[found], nullable=nullable, metadata={STORED_AS: found.encode()})
    if found.endswith("[]") and not found.startswith("character varying(") and found.removesuffix("[]") not in _READ_AS:
        return pa.field(name, list_type(arrow_field(name, found.removesuffix("[]"), nullable=True).type), nullable=nullable)
    match = re.fullmatch(r"numeric\((\d+),(\d+)\)", found)
    if match:
        return pa.field(name, decimal_type(int(match[1]), int(match[2])), nullable=nullable)
    match = re.fullmatch(r"character varying\((\d+)\)", found)
    if match:
        return pa.field(name, pa.string(), nullable=nullable, metadata={BOUNDED_TEXT: f"varchar({match[1]})".encode()})
    raise BadType(f"column {name!r} has type {found}, which has no counterpart that loses nothing")


_SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})


def check_table(table: TableSchema) -> None:
    """Raise `BadTable` if PostgreSQL cannot have the table."""
    for name in (table.name, *table.columns.names):
        if len(name.encode()) > NAME_BYTES_MAX:
            raise BadTable(table=table.name, reason=f"{name!r} is longer than {NAME_BYTES_MAX} bytes, the most that PostgreSQL takes in a name")
    taken = [name for name in table.columns.names if name.lower() in _SYSTEM_COLUMNS]
    if taken:
        raise BadTable(table=table.name, reason=f"every table in PostgreSQL has a column {taken[0]!r} of its own")
    try:
        for field in table.columns:
            sql_type(field)
    except BadType as error:
        raise BadTable(table=table.name, reason=str(error)) from None


def check_storable(table: TableSchema, rows: pa.RecordBatch | pa.Table) -> None:
    """Raise `WrongType` if a value of these rows has no place in PostgreSQL; a few instructions per value, less for text."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for part in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
            other = stored_as(table.columns.field(name))
            reason = _unstorable(part) or (_other_than(part, other) if other is not None else None)
            if reason is not None:
                raise WrongType(table=table.name, column=name, value=reason, expected=f"a column {f'of type {other} ' if other else ''}in PostgreSQL")


def _unstorable(column: pa.Array) -> str | None:
    if kind.is_list(column.type):
        return _unstorable(column.flatten())
    if kind.is_string(column.type):
        return "a text with the character U+0000" if b"\0" in _bytes(column) else None
    if kind.is_date(column.type) and _outside(column.view(pa.int32()), _DAYS):
        return "a date before 4713 BC or after the year 5874897"
    if kind.is_timestamp(column.type) and _outside(column.view(pa.int64()), _MICROSECONDS):
        return "a time before 4713 BC"
    return None


def _other_than(column: pa.Array, wanted: str) -> str | None:
    """Say what is not as a column of that type gives it back."""
    if wanted == "uuid":
        fits = pc.match_substring_regex(column, UUID)
        odd = column.filter(pc.invert(fits))
        return f"{_shown(odd[0].as_py())}, which is no UUID in lower case," if len(odd.drop_null()) else None
    for text in column.to_pylist() if wanted in ("json", "jsonb") else ():
        written = text if text is None or wanted == "json" else jsonb_text(text)
        if text is not None and (written is None or not is_json(text)):
            return f"{_shown(text)}, which is no JSON,"
        if written != text:
            return f"{_shown(text)}, which has to be written as {_shown(written)},"
    return None


def _shown(text: str | None) -> str:
    return repr(text if text is None or len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")


def _outside(column: pa.Array, bounds: tuple[int, int]) -> bool:
    values = column.drop_null().to_numpy()
    return bool(len(values)) and bool((values.min() < bounds[0]) | (values.max() > bounds[1]))


def _bytes(column: pa.Array) -> bytes:
    """Return the characters of a text column, without those before and after its slice."""
    _, offsets, content = column.buffers()
    if content is None or not len(column):
        return b""
    places = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    return memoryview(content)[places[0] : places[-1]].tobytes()
