"""Which type an operation has: the rules of Spark SQL in ANSI mode.

In: the Arrow types of two operands.
Out: the type both are brought to, or the type of the result; None where Spark or we know none.
Promise: pure; what Spark would convert in a way that loses digits is not converted here.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kind

from righttime.changes.types import TIMESTAMP, TIMESTAMP_NTZ

DIGITS_MAX = 38
_SCALE_KEPT = 6  # digits behind the point that a too large result keeps, if it has them

INTEGERS: tuple[pa.DataType, ...] = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_TIMES: tuple[pa.DataType, ...] = (pa.date32(), TIMESTAMP_NTZ, TIMESTAMP)


def is_number(given: pa.DataType) -> bool:
    """Tell whether one can calculate with the type."""
    return bool(kind.is_integer(given) or kind.is_floating(given) or kind.is_decimal(given))


def is_time(given: pa.DataType) -> bool:
    """Tell whether the type is a date or a timestamp."""
    return given in _TIMES


def as_decimal(given: pa.DataType) -> pa.DataType:
    """Return the DECIMAL that holds every value of an integer type; a DECIMAL stays what it is."""
    return given if kind.is_decimal(given) else pa.decimal128(_INTEGER_DIGITS[given], 0)


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type that both are brought to before they are compared or chosen from."""
    if left == right or kind.is_null(right):
        return left
    if kind.is_null(left):
        return right
    if is_number(left) and is_number(right):
        return _common_number(left, right)
    if is_time(left) and is_time(right):
        return max(left, right, key=_TIMES.index)
    return None


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if kind.is_floating(left) or kind.is_floating(right):
        # Two different types of which one is a float: only DOUBLE holds both well enough.
        return pa.float64()
    if kind.is_integer(left) and kind.is_integer(right):
        return max(left, right, key=INTEGERS.index)
    left, right = as_decimal(left), as_decimal(right)
    scale = max(left.scale, right.scale)
    precision = max(left.precision - left.scale, right.precision - right.scale) + scale
    return pa.decimal128(precision, scale) if precision <= DIGITS_MAX else None


def arithmetic_type(operator: str, left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type of `left operator right` for + - * / %, both numbers."""
    if kind.is_decimal(left) or kind.is_decimal(right):
        if kind.is_floating(left) or kind.is_floating(right):
            return pa.float64()
        return _decimal_result(operator, as_decimal(left), as_decimal(right))[0]
    if operator == "/":
        return pa.float64()
    return common_type(left, right)


def decimal_can_overflow(operator: str, left: pa.DataType, right: pa.DataType) -> bool:
    """Tell whether a result of two DECIMALs may have more digits than its type."""
    return operator != "%" and _decimal_result(operator, left, right)[1]


def _decimal_result(operator: str, left: pa.DataType, right: pa.DataType) -> tuple[pa.DataType, bool]:
    whole_left, whole_right = left.precision - left.scale, right.precision - right.scale
    scale = max(left.scale, right.scale)
    match operator:
        case "+" | "-":
            precision = max(whole_left, whole_right) + scale + 1
        case "*":
            scale = left.scale + right.scale
            precision = left.precision + right.precision + 1
        case "/":
            scale = max(_SCALE_KEPT, left.scale + right.precision + 1)
            precision = whole_left + right.scale + scale
        case _:
            precision = min(whole_left, whole_right) + scale
    return _bounded(precision, scale), precision > DIGITS_MAX


def _bounded(precision: int, scale: int) -> pa.DataType:
    if precision <= DIGITS_MAX:
        return pa.decimal128(max(precision, 1), scale)
    return pa.decimal128(DIGITS_MAX, max(DIGITS_MAX - (precision - scale), min(scale, _SCALE_KEPT)))
