"""Literals of an INSERT as Python values.

In: one value of a VALUES list, as sqlglot's tree.
Out: None, bool, int, float, Decimal, str, bytes, date or datetime.
Promise: pure; a value comes out exactly as Spark reads it, and whatever has to be computed is refused with `SqlRefused`.
"""

import re
from datetime import date, datetime
from decimal import Decimal

from sqlglot import exp

from righttime.errors import SqlRefused

Value = None | bool | int | float | Decimal | str | bytes | date | datetime

_NUMBERS: dict[exp.DType, type[int] | type[float] | type[Decimal]] = {
    exp.DType.TINYINT: int,
    exp.DType.SMALLINT: int,
    exp.DType.BIGINT: int,
    exp.DType.FLOAT: float,
    exp.DType.DOUBLE: float,
    exp.DType.DECIMAL: Decimal,
}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_LOCAL = re.compile(_DATE.pattern + r"([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?")
_ZONED = re.compile(_DATE.pattern + r"([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})?)?")
_TIMESTAMPS = {exp.DType.TIMESTAMP: _ZONED, exp.DType.TIMESTAMPTZ: _ZONED, exp.DType.TIMESTAMPLTZ: _ZONED, exp.DType.TIMESTAMPNTZ: _LOCAL}


def literal_value(node: exp.Expr) -> Value:
    """Return the value of a literal; a timestamp without zone comes out naive and means UTC."""
    match node:
        case exp.Null():
            return None
        case exp.Paren():
            return literal_value(node.this)
        case exp.Boolean():
            return bool(node.this)
        case exp.Literal() | exp.RawString() | exp.Concat():
            return _text_or_number(node)
        case exp.Neg():
            return _negative(node)
        case exp.HexString():
            # An odd number of digits has a zero in front, as in Spark.
            return bytes.fromhex(str(node.this).zfill((len(node.this) + 1) // 2 * 2))
        case exp.Cast(this=exp.Literal()):
            return _typed(node)
    raise _not_a_literal(node)


def _text_or_number(node: exp.Expr) -> Value:
    if isinstance(node, exp.Concat):
        # Neighbouring strings are one string; concat(…) written as a function looks the same and means the same.
        return "".join(_text(part) for part in node.expressions)
    text = str(node.this)
    if isinstance(node, exp.RawString) or node.is_string:
        return text
    if text.isdigit():
        return int(text)
    return float(text) if "e" in text.lower() else Decimal(text)


def _text(node: exp.Expr) -> str:
    value = literal_value(node)
    if not isinstance(value, str):
        raise _not_a_literal(node)
    return value


def _negative(node: exp.Neg) -> Value:
    value = literal_value(node.this)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _not_a_literal(node)
    return -value


def _typed(node: exp.Cast) -> Value:
    """Return `DATE '…'`, `TIMESTAMP '…'` or a number with a suffix."""
    text, kind = str(node.this.this), node.to.this
    try:
        if kind in _NUMBERS:
            return _NUMBERS[kind](text)
        if kind == exp.DType.DATE and _DATE.fullmatch(text):
            return date.fromisoformat(text)
        if kind in _TIMESTAMPS and _TIMESTAMPS[kind].fullmatch(text):
            return datetime.fromisoformat(text)
    except (ValueError, ArithmeticError):
        pass
    raise _not_a_literal(node)


def _not_a_literal(node: exp.Expr) -> SqlRefused:
    examples = "12, 1.5, 'text', NULL, TRUE, DATE '2026-01-31', TIMESTAMP '2026-01-31 12:00:00' and X'1F'"
    shown = node.sql(dialect="spark")[:80]
    return SqlRefused(reason=f"{shown} is neither a literal nor a ?", way_out=f"Literals are {examples}; pass anything else as a parameter.")
