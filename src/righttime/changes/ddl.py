"""Column lists in Spark SQL: read without starting Spark, and written back.

In: a column list such as `sku INT NOT NULL, at TIMESTAMP COMMENT 'when'`.
Out: a canonical Arrow schema, and the column list of one.
Promise: what is written here reads back as the same schema; a clause with no effect here (DEFAULT, GENERATED …) is refused, never ignored.
"""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pyarrow.types as kind
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from righttime.changes.sql_errors import why_unreadable
from righttime.changes.types import BOUNDED_TEXT, TIMESTAMP, TIMESTAMP_NTZ, BadType, decimal_type, list_type, map_type

_Type = exp.DataType.Type
_PLAIN: dict[object, pa.DataType] = {
    _Type.BOOLEAN: pa.bool_(),
    _Type.TINYINT: pa.int8(),
    _Type.SMALLINT: pa.int16(),
    _Type.INT: pa.int32(),
    _Type.BIGINT: pa.int64(),
    _Type.FLOAT: pa.float32(),
    _Type.DOUBLE: pa.float64(),
    _Type.TEXT: pa.string(),
    _Type.BINARY: pa.binary(),
    _Type.DATE: pa.date32(),
    _Type.TIMESTAMPTZ: TIMESTAMP,
    _Type.TIMESTAMPLTZ: TIMESTAMP,
    _Type.TIMESTAMPNTZ: TIMESTAMP_NTZ,
}
_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
}


def parse_columns(text: str) -> pa.Schema:
    """Read a column list; raise `BadType` if it is not one or has a type or clause without meaning here."""
    return pa.schema([_field(column) for column in _column_definitions(text)])


def _column_definitions(text: str) -> list[exp.ColumnDef]:
    try:
        _refuse_time_zone_clause(text)
        # The line break keeps a comment at the end of the list from swallowing the bracket.
        statements = sqlglot.parse(f"CREATE TABLE t ({text}\n)", read="spark")
    except (SqlglotError, RecursionError) as error:
        raise BadType(f"this is not a column list ({why_unreadable(error, text)})") from None
    create = statements[0] if len(statements) == 1 else None
    if not isinstance(create, exp.Create) or not isinstance(create.this, exp.Schema) or create.args.get("properties") or create.expression:
        raise BadType("this is not a column list")
    columns = create.this.expressions
    for column in columns:
        if not isinstance(column, exp.ColumnDef):
            raise BadType(f"{column.sql('spark')!r} is not a column with a type")
    return list(columns)


def _refuse_time_zone_clause(text: str) -> None:
    # sqlglot reads TIMESTAMP WITHOUT TIME ZONE as the type *with* one, in this dialect.
    words = [token.text.upper() for token in sqlglot.tokenize(text, read="spark")]
    if any(pair == ("WITHOUT", "TIME") for pair in pairwise(words)):
        raise BadType("write TIMESTAMP_NTZ for a timestamp without time zone")


def _field(column: exp.ColumnDef) -> pa.Field:
    data_type = column.args.get("kind")
    if not isinstance(data_type, exp.DataType):
        raise BadType(f"column {column.name!r} has no type")
    nullable, metadata = _constraints(column)
    if data_type.this in (_Type.VARCHAR, _Type.CHAR):
        metadata[BOUNDED_TEXT] = f"{data_type.this.value.lower()}({_numbers(data_type, least=1, most=1)[0]})".encode()
        arrow = pa.string()
    else:
        arrow = _arrow_type(data_type)
    return pa.field(column.name, arrow, nullable=nullable, metadata=metadata or None)


def _constraints(column: exp.ColumnDef) -> tuple[bool, dict[bytes, bytes]]:
    nullable, metadata = True, dict[bytes, bytes]()
    for constraint in column.args.get("constraints") or ():
        clause = constraint.args.get("kind")
        if isinstance(clause, exp.NotNullColumnConstraint):
            nullable = bool(clause.args.get("allow_null"))
        elif isinstance(clause, exp.CommentColumnConstraint):
            metadata[b"comment"] = clause.name.encode()
        else:
            raise BadType(f"column {column.name!r}: {constraint.sql('spark')} is not possible here, only NOT NULL and COMMENT are")
    return nullable, metadata


def _arrow_type(given: exp.DataType) -> pa.DataType:
    if given.this is _Type.DECIMAL:
        precision, scale, *_ = [*_numbers(given, least=0, most=2), 0] if given.expressions else (10, 0)
        return decimal_type(precision, scale)
    parts = given.expressions
    if given.this is _Type.ARRAY and len(parts) == 1:
        return list_type(_part_type(parts[0]))
    if given.this is _Type.MAP and len(parts) == 2:
        return map_type(_part_type(parts[0]), _part_type(parts[1]))
    if given.this is _Type.STRUCT and parts and all(isinstance(part, exp.ColumnDef) for part in parts):
        return pa.struct([_field(part) for part in parts])
    if given.this in _PLAIN and not parts:
        return _PLAIN[given.this]
    raise BadType(f"type {given.sql('spark')} is not known here")


def _part_type(part: exp.Expression) -> pa.DataType:
    if not isinstance(part, exp.DataType):
        raise BadType(f"{part.sql('spark')!r} is not a type")
    if part.this in (_Type.VARCHAR, _Type.CHAR):
        raise BadType("CHAR and VARCHAR are only possible as a column's own type; use STRING")
    return _arrow_type(part)


def _numbers(given: exp.DataType, *, least: int, most: int) -> list[int]:
    texts = [part.name for part in given.expressions]
    if not least <= len(texts) <= most or not all(text.isdecimal() for text in texts):
        raise BadType(f"type {given.sql('spark')} is not complete")
    return [int(text) for text in texts]


def format_columns(columns: pa.Schema) -> str:
    """Write a canonical schema as a Spark column list.

    Arrays and maps whose elements are never null have no notation in Spark SQL; they are written as those that allow null.
    """
    return ", ".join(_field_text(field, between=" ") for field in columns)


def format_type(field: pa.Field) -> str:
    """Write the type of a column as Spark SQL does."""
    metadata = field.metadata or {}
    return metadata[BOUNDED_TEXT].decode().upper() if BOUNDED_TEXT in metadata else _type_text(field.type)


def _field_text(field: pa.Field, *, between: str) -> str:
    comment = (field.metadata or {}).get(b"comment")
    not_null = "" if field.nullable else " NOT NULL"
    return f"`{field.name}`{between}{format_type(field)}{not_null}" + (f" COMMENT {_quoted(comment.decode())}" if comment is not None else "")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _type_text(given: pa.DataType) -> str:
    if given in _NAMES:
        return _NAMES[given]
    if kind.is_decimal(given):
        return f"DECIMAL({given.precision},{given.scale})"
    if kind.is_struct(given):
        return f"STRUCT<{', '.join(_field_text(field, between=': ') for field in given)}>"
    if kind.is_map(given):
        return f"MAP<{_type_text(given.key_type)}, {_type_text(given.item_type)}>"
    return f"ARRAY<{_type_text(given.value_type)}>"
