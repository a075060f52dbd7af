"""Which results a column takes: Spark's rules for storing, and the bounds that a declaration adds.

In: types, and computed columns.
Out: yes or no, and the reason for a no.
Promise: pure; a text that is too long or a null where none is allowed is named, never cut or kept.
"""

from __future__ import annotations

from decimal import Decimal
from math import isinf
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from righttime.changes.schema import TableSchema
from righttime.changes.type_rules import is_number, is_time
from righttime.changes.types import text_length_max


def assignable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether a result of one type is stored in a column of the other without a written CAST."""
    if given == wanted or kind.is_null(given):
        return True
    if is_number(given):
        return is_number(wanted) or kind.is_string(wanted)
    return (is_time(given) and (is_time(wanted) or kind.is_string(wanted))) or (kind.is_boolean(given) and kind.is_string(wanted))


def fitted_value(value: Any, wanted: pa.DataType) -> Any:
    """Return a literal as its column takes it: SQL writes 1.5 for doubles and decimals alike."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    if kind.is_floating(wanted):
        return _nearest(value)
    if kind.is_decimal(wanted) and not isinstance(value, Decimal):
        return Decimal(repr(value))
    return value


def _nearest(value: int | float | Decimal) -> int | float | Decimal:
    """Return the DOUBLE next to a number; one beyond them all stays what it is: that does not fit, and infinity would."""
    try:
        near = float(value)
    except (OverflowError, ValueError):
        return value
    return value if isinf(near) and isinstance(value, Decimal) and value.is_finite() else near


def misfit(target: pa.Field, found: pa.ChunkedArray, table: TableSchema) -> str | None:
    """Return why a column cannot take these values, None if it can."""
    if found.null_count and not target.nullable:
        return f"a value is NULL, and the column is {'part of the key' if target.name in table.keys else 'declared NOT NULL'}"
    longest = text_length_max(target)
    if longest is not None and (pc.max(pc.utf8_length(found)).as_py() or 0) > longest:
        return f"a text has {pc.max(pc.utf8_length(found)).as_py()} characters, over the bound {longest}"
    if target.name in table.partition_by and kind.is_string(target.type) and pc.any(pc.equal(found, ""), min_count=0).as_py():
        return "a partition value is an empty text, which Delta reads as null"
    return None
