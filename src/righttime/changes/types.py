"""Column types: the one Arrow form each takes here, and its form in the JSON that Spark and Delta share.

In: any Arrow schema a user hands over, or Spark's schema JSON from a table log.
Out: canonical Arrow schemas (what memory, files and readers agree on) and schema JSON.
Promise: a change of type on the way in loses no value that the new type can name; what has no such type is refused with `BadType`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.types as kind

BOUNDED_TEXT = b"__CHAR_VARCHAR_TYPE_STRING"  # Spark's own name, so that Spark applies the bound too
STORED_AS = b"righttime.stored_as"  # the type of a database that a column has there, where that is not the one that it would get
TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
_KEPT_METADATA = (b"comment", BOUNDED_TEXT, STORED_AS)

_SPARK_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
}
_ARROW_TYPES = {name: arrow for arrow, name in _SPARK_NAMES.items()}
_WIDENED: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


class BadType(ValueError):
    """A column cannot be kept; the text says which and why."""


def canonical_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema with every type in its canonical form; raise `BadType` for a type that has none."""
    return pa.schema(_canonical_fields(columns, nested=False))


def _canonical_fields(fields: Iterable[pa.Field], *, nested: bool) -> list[pa.Field]:
    result = [_canonical_field(field, nested=nested) for field in fields]
    seen: set[str] = set()
    for field in result:
        if field.name.casefold() in seen:
            raise BadType(f"column {field.name!r} is there twice (upper and lower case are the same)")
        seen.add(field.name.casefold())
    if not result:
        raise BadType("a struct needs at least one field" if nested else "a table needs at least one column")
    return result


def _canonical_field(field: pa.Field, *, nested: bool) -> pa.Field:
    _check_name(field.name, nested=nested)
    metadata = {key: value for key, value in (field.metadata or {}).items() if key in _KEPT_METADATA}
    if nested and BOUNDED_TEXT in metadata:
        raise BadType(f"field {field.name!r}: CHAR and VARCHAR are only possible as a column's own type; use STRING")
    try:
        return pa.field(field.name, _canonical_type(field.type), nullable=field.nullable, metadata=metadata or None)
    except BadType as error:
        raise BadType(f"column {field.name!r}: {error}") from None


def _check_name(name: str, *, nested: bool) -> None:
    if not name.isidentifier() or len(name.encode()) > 255:
        raise BadType(f"column name {name!r} is not a plain name of letters, digits and _ that begins with a letter")
    if name.startswith("_") and not nested:
        raise BadType(f"column name {name!r} begins with _, which is kept for the system's own columns")


def _canonical_type(given: pa.DataType) -> pa.DataType:
    if given in _SPARK_NAMES:
        return given
    if given in _WIDENED:
        return _WIDENED[given]
    if kind.is_timestamp(given):
        return TIMESTAMP if given.tz else TIMESTAMP_NTZ
    if kind.is_decimal(given):
        return decimal_type(given.precision, given.scale)
    if kind.is_fixed_size_binary(given):
        return pa.binary()
    if kind.is_dictionary(given) or kind.is_run_end_encoded(given):
        return _canonical_type(given.value_type)
    if isinstance(given, pa.BaseExtensionType):
        return _canonical_type(given.storage_type)
    return _canonical_nested(given)


def _canonical_nested(given: pa.DataType) -> pa.DataType:
    if kind.is_struct(given):
        return pa.struct(_canonical_fields(list(given), nested=True))
    if kind.is_map(given):
        return map_type(_canonical_type(given.key_type), _canonical_type(given.item_type), value_nullable=given.item_field.nullable)
    if kind.is_list(given) or kind.is_large_list(given) or kind.is_fixed_size_list(given) or kind.is_list_view(given) or kind.is_large_list_view(given):
        return list_type(_canonical_type(given.value_type), nullable=given.value_field.nullable)
    raise BadType(f"type {given} has no counterpart in a table")


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """Return DECIMAL(precision, scale) within Spark's bounds."""
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise BadType(f"DECIMAL({precision}, {scale}) is outside of 1 to 38 digits with a scale from 0 to the precision")
    return pa.decimal128(precision, scale)


def list_type(element: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return an array type with the field name that Spark, Delta and Parquet use."""
    return pa.list_(pa.field("element", element, nullable=nullable))


def map_type(key: pa.DataType, value: pa.DataType, *, value_nullable: bool = True) -> pa.DataType:
    """Return a map type; its keys are never null."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value, nullable=value_nullable))


def is_primitive(given: pa.DataType) -> bool:
    """Say whether values of this canonical type have one place in an order: no array, map or struct."""
    return given in _SPARK_NAMES or kind.is_decimal(given)


def text_length_max(field: pa.Field) -> int | None:
    """Return how many characters a CHAR(n) or VARCHAR(n) column takes, None where there is no bound."""
    bounded = (field.metadata or {}).get(BOUNDED_TEXT)
    match = re.fullmatch(rb"(?:var)?char\((\d+)\)", bounded) if bounded else None
    return int(match[1]) if match else None


def stored_as(field: pa.Field) -> str | None:
    """Return the type that the column has in its database, None where its own type tells."""
    named = (field.metadata or {}).get(STORED_AS)
    return named.decode() if named else None


def to_spark_json(columns: pa.Schema) -> dict[str, Any]:
    """Return the schema as the JSON of a Spark StructType, which is also Delta's schema string."""
    return _struct_json(columns)


def _struct_json(fields: Iterable[pa.Field]) -> dict[str, Any]:
    return {"type": "struct", "fields": [_field_json(field) for field in fields]}


def _field_json(field: pa.Field) -> dict[str, Any]:
    metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    return {"name": field.name, "type": _type_json(field.type), "nullable": field.nullable, "metadata": metadata}


def _type_json(given: pa.DataType) -> Any:
    if given in _SPARK_NAMES:
        return _SPARK_NAMES[given]
    if kind.is_decimal(given):
        return f"decimal({given.precision},{given.scale})"
    if kind.is_struct(given):
        return _struct_json(given)
    if kind.is_map(given):
        return {"type": "map", "keyType": _type_json(given.key_type), "valueType": _type_json(given.item_type), "valueContainsNull": given.item_field.nullable}
    return {"type": "array", "elementType": _type_json(given.value_type), "containsNull": given.value_field.nullable}


def from_spark_json(struct: dict[str, Any]) -> pa.Schema:
    """Return the Arrow schema of a Spark StructType's JSON; raise `BadType` for a type that is not known here."""
    return pa.schema(_json_fields(struct))


def _json_fields(struct: dict[str, Any]) -> list[pa.Field]:
    return [pa.field(one["name"], _json_type(one["type"]), nullable=one["nullable"], metadata=one.get("metadata") or None) for one in struct["fields"]]


def _json_type(given: Any) -> pa.DataType:
    if isinstance(given, str):
        if given in _ARROW_TYPES:
            return _ARROW_TYPES[given]
        match = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", given)
        if match:
            return decimal_type(int(match[1]), int(match[2]))
        raise BadType(f"type {given!r} is not known")
    if given["type"] == "struct":
        return pa.struct(_json_fields(given))
    if given["type"] == "map":
        return map_type(_json_type(given["keyType"]), _json_type(given["valueType"]), value_nullable=given["valueContainsNull"])
    return list_type(_json_type(given["elementType"]), nullable=given["containsNull"])
