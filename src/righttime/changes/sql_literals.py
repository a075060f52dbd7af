"""Literals with their types: from SQL, from parameters, and fitted to what they are compared with.

In: nodes of sqlglot's tree, Python values.
Out: literal `Term`s.
Promise: a literal has the value and the type that Spark gives it; fitting one to another type never changes its value.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kind
from sqlglot import exp

from righttime.changes.sql_text import decimal_type_of, literal_text, refuse
from righttime.changes.terms import Term
from righttime.changes.type_rules import INTEGERS
from righttime.changes.types import TIMESTAMP, TIMESTAMP_NTZ

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_LOCAL = re.compile(_DATE.pattern + r"([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?")
_ZONED = re.compile(_DATE.pattern + r"([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})?)?")
_SPECIAL = {"nan": float("nan"), "infinity": float("inf"), "-infinity": float("-inf")}
_LITERALS = "Literals are 12, 1.5, 1e3, 'text', NULL, TRUE, DATE '2026-01-31', TIMESTAMP '2026-01-31 12:00:00' and X'1F'."


def literal(value: Any, type_: pa.DataType, *, fitted: bool = False) -> Term:
    """Return the term of one value of a primitive type."""
    scalar = pa.scalar(value, type_)
    text = literal_text(value, type_, fitted=fitted)
    return Term("literal", type_, text, lambda _rows: scalar, (), value, value is None, False, not text.startswith("-"))


def literal_of(value: Any) -> Term:
    """Return the literal of a parameter; refuse a value that SQL has no literal for."""
    try:
        type_ = _python_type(value)
        if type_ is not None:
            return literal(_canonical(value, type_), type_)
    except (pa.ArrowException, OverflowError, ValueError, UnicodeError):
        pass
    shown = repr(value)[:60]
    return refuse(f"the parameter {shown} has no literal in SQL", "Pass a number, text, bytes, date, datetime, Decimal, bool or None.")


def _python_type(value: Any) -> pa.DataType | None:
    match value:
        case None:
            return pa.null()
        case bool() | np.bool_():
            return pa.bool_()
        case int() | np.integer():
            return integer_type(int(value))
        case float() | np.floating():
            return pa.float64()
        case Decimal():
            return decimal_type_of(value)
        case str():
            return pa.string()
        case bytes() | bytearray() | memoryview():
            return pa.binary()
        case datetime():
            return TIMESTAMP
        case date():
            return pa.date32()
    return None


def _canonical(value: Any, type_: pa.DataType) -> Any:
    """Return the value as Arrow gives it back: no numpy scalars, no other zones than UTC."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, np.generic):
        value = value.item()
    if kind.is_decimal(type_):
        # A whole number beyond BIGINT has more digits than a float, and 1E+3 is 1000 in SQL.
        return value if isinstance(value, Decimal) and int(value.as_tuple().exponent) <= 0 else Decimal(int(value))
    return bytes(value) if kind.is_binary(type_) else value


def integer_type(value: int) -> pa.DataType | None:
    """Return the type of a whole number without suffix: INT, BIGINT or DECIMAL."""
    if -(2**31) <= value < 2**31:
        return pa.int32()
    return pa.int64() if -(2**63) <= value < 2**63 else decimal_type_of(Decimal(value))


def read_literal(node: exp.Expr, *, negative: bool = False) -> Term | None:
    """Return the literal that the node is, None if it is none."""
    match node:
        case exp.Null() if not negative:
            return literal(None, pa.null())
        case exp.Boolean() if not negative:
            return literal(bool(node.this), pa.bool_())
        case exp.HexString() if not negative:
            return literal(bytes.fromhex(str(node.this).zfill((len(node.this) + 1) // 2 * 2)), pa.binary())
        case exp.RawString() if not negative:
            return literal(str(node.this), pa.string())
        case exp.Literal(is_string=True) if not negative:
            return literal(str(node.this), pa.string())
        case exp.Literal(is_string=False):
            return _number(("-" if negative else "") + str(node.this))
        case exp.Neg() if not negative:
            return read_literal(node.this, negative=True) if isinstance(node.this, exp.Literal | exp.Cast) else None
    return None


def _number(text: str) -> Term:
    if text.lstrip("-").isdigit():
        value: Any = int(text)
        type_ = integer_type(value)
        value = _canonical(value, type_) if type_ is not None else value
    elif "e" in text.lower():
        value, type_ = float(text), pa.float64()
    else:
        value = Decimal(text)
        type_ = decimal_type_of(value)
    if type_ is None:
        refuse(f"the number {text[:60]} has more than 38 digits", "Write fewer digits, or a DOUBLE such as 1e40.")
    return literal(value, type_)


def read_typed(node: exp.Expr, type_: pa.DataType, *, negative: bool = False, typed: bool = False) -> Term | None:
    """Return `5L`, `1.5BD`, `DATE '…'` and casts that mean the same as literals; None if it takes a conversion. `typed` allows no conversion."""
    if not isinstance(node, exp.Literal) or not (node.is_string or is_plain_number(node)):
        return None
    text = str(node.this)
    value = _typed_value(text, type_, is_string=node.is_string)
    if value is None and typed:
        refuse(f"{text[:60]!r} is not a value of its type", _LITERALS)
    if value is None or (negative and not isinstance(value, int | float | Decimal)):
        return None
    value = -value if negative else value
    fits = not kind.is_integer(type_) or _in_range(value, type_)
    return literal(value, type_) if fits else None


def is_plain_number(node: exp.Expr) -> bool:
    """Tell a number without quotes."""
    return isinstance(node, exp.Literal) and not node.is_string


def _typed_value(text: str, type_: pa.DataType, *, is_string: bool) -> Any:
    try:
        if kind.is_integer(type_) and not is_string and text.isdigit():
            return int(text)
        if kind.is_floating(type_):
            if is_string:
                return _SPECIAL.get(text.lower())
            return float(text) if type_ == pa.float64() else float(np.float32(text))
        if kind.is_decimal(type_) and re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
            value = Decimal(text)
            return value if decimal_type_of(value) == type_ else None
        if kind.is_date(type_) and is_string and _DATE.fullmatch(text):
            return date.fromisoformat(text)
        if kind.is_timestamp(type_) and is_string and (_ZONED if type_.tz else _LOCAL).fullmatch(text):
            found = datetime.fromisoformat(text)
            return _canonical(found, type_) if type_.tz else found
    except (ValueError, ArithmeticError):
        pass
    return None


def _in_range(value: Any, type_: pa.DataType) -> bool:
    limit = 1 << (type_.bit_width - 1)
    return bool(-limit <= value < limit)


def fitted(part: Term, wanted: pa.DataType) -> Term | None:
    """Return the literal as one of the wanted type where that compares alike; None if it does not."""
    new = None if kind.is_null(part.type) else _fitted_value(part.value, part.type, wanted)
    return literal(new, wanted, fitted=True) if new is not None else None


def _fitted_value(value: Any, given: pa.DataType, wanted: pa.DataType) -> Any:
    if given == wanted and not kind.is_decimal(given):
        return value
    if kind.is_string(given):
        return _typed_value(value, wanted, is_string=True) if wanted in (pa.date32(), TIMESTAMP, TIMESTAMP_NTZ) else None
    if kind.is_integer(wanted):
        return value if given in INTEGERS and _in_range(value, wanted) else None
    if wanted == pa.float64():
        return float(value) if given in INTEGERS or kind.is_decimal(given) or kind.is_floating(given) else None
    if wanted == pa.float32():
        return _exact_float(value) if given in INTEGERS or kind.is_decimal(given) or given == pa.float64() else None
    if kind.is_decimal(wanted) and (given in INTEGERS or kind.is_decimal(given)):
        return _exact_decimal(Decimal(value), wanted)
    if given == TIMESTAMP and wanted == TIMESTAMP_NTZ:
        return value.replace(tzinfo=None)
    if given == TIMESTAMP_NTZ and wanted == TIMESTAMP:
        return value.replace(tzinfo=UTC)
    return None


def _exact_float(value: Any) -> float | None:
    with np.errstate(over="ignore"):
        narrow = float(np.float32(value))
    return narrow if narrow == value or narrow != narrow else None


def _exact_decimal(value: Decimal, wanted: pa.DataType) -> Decimal | None:
    moved = value.quantize(Decimal(1).scaleb(-wanted.scale), context=Context(prec=80))
    own = decimal_type_of(moved)
    if moved != value or own is None or own.precision - own.scale > wanted.precision - wanted.scale:
        return None
    return moved
