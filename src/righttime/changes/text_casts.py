"""Text from values and values from text, in Spark's notation.

In: Arrow columns.
Out: Arrow columns.
Promise: vectorised; text that is not exactly one value of the type raises `Uncomputable`, so a slip is an error and never another value.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from righttime.changes.terms import Uncomputable
from righttime.changes.types import TIMESTAMP, TIMESTAMP_NTZ

# What Spark takes off both ends before it reads a value: spaces and control characters.
_BLANKS = "".join(chr(code) for code in (*range(0x21), 0x7F))
_INTEGER = r"^[+-]?[0-9]{1,60}$"
_NUMBER = r"^[+-]?([0-9]{1,400}(\.[0-9]{0,400})?|\.[0-9]{1,400})([eE][+-]?[0-9]{1,10})?$"
_DIGITS = r"^[+-]?([0-9]{1,38}(\.[0-9]{0,38})?|\.[0-9]{1,38})([eE][+-]?[0-9]{1,2})?$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?$"
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
_SPECIAL = {"nan": "nan", "inf": "inf", "+inf": "inf", "infinity": "inf", "+infinity": "inf", "-inf": "-inf", "-infinity": "-inf"}
_WIDE_DIGITS_MAX = 76


def _trimmed(texts: Any) -> Any:
    return pc.utf8_trim(texts, characters=_BLANKS)


def _check(fine: Any, texts: Any, what: str) -> None:
    """Refuse the first text that is not fine."""
    bad = pc.invert(pc.fill_null(fine, True))
    if isinstance(bad, pa.Scalar):
        bad, texts = pa.array([bad.as_py()]), pa.array([texts.as_py()], pa.string())
    place = pc.index(bad, True).as_py()
    if place >= 0:
        raise Uncomputable(f"the text {texts[place].as_py()[:60]!r} is not {what}")


def _read_integer(texts: Any, wanted: pa.DataType) -> Any:
    trimmed = _trimmed(texts)
    _check(pc.match_substring_regex(trimmed, _INTEGER), texts, "a whole number")
    digits = pc.replace_substring_regex(trimmed, r"^\+", "")
    try:
        return digits.cast(wanted)
    except pa.ArrowInvalid as error:
        raise Uncomputable(f"a text is a number outside of {wanted}") from error


def _read_float(texts: Any, wanted: pa.DataType) -> Any:
    trimmed = _trimmed(texts)
    lowered = pc.ascii_lower(trimmed)
    for word, number in _SPECIAL.items():
        trimmed = pc.if_else(pc.equal(lowered, word), number, trimmed)
    _check(pc.or_(pc.match_substring_regex(trimmed, _NUMBER), pc.is_in(trimmed, value_set=pa.array(["nan", "inf", "-inf"]))), texts, "a number")
    plain = pc.replace_substring_regex(pc.replace_substring_regex(trimmed, r"^\+", ""), r"\.($|[eE])", r".0\1")
    return plain.cast(wanted)


def read_decimal(wanted: pa.DataType) -> Callable[[Any], Any]:
    """Return the reader of texts with digits and a point; more digits behind the point are rounded half away from zero."""

    def read(texts: Any) -> Any:
        trimmed = _trimmed(texts)
        _check(pc.match_substring_regex(trimmed, _DIGITS), texts, "a number with at most 38 digits before and behind the point")
        digits = pc.replace_substring_regex(pc.replace_substring_regex(trimmed, r"^\+", ""), r"\.($|[eE])", r"\1")
        try:
            wide = digits.cast(pa.decimal256(_WIDE_DIGITS_MAX, 38))
            return pc.round(wide, wanted.scale, round_mode="half_towards_infinity").cast(wanted)
        except pa.ArrowInvalid as error:
            raise Uncomputable(f"a text is a number with more digits than {wanted}") from error

    return read


def _read_boolean(texts: Any) -> Any:
    words = pc.ascii_lower(_trimmed(texts))
    true = pc.is_in(words, value_set=pa.array(_TRUE))
    _check(pc.or_(true, pc.is_in(words, value_set=pa.array([*_FALSE, None], pa.string()))), texts, "true or false")
    return pc.if_else(pc.is_valid(texts), true, pa.scalar(None, pa.bool_()))


def _read_time(texts: Any, wanted: pa.DataType, pattern: str, what: str) -> Any:
    trimmed = _trimmed(texts)
    _check(pc.match_substring_regex(trimmed, pattern), texts, what)
    try:
        return trimmed.cast(TIMESTAMP_NTZ).cast(wanted) if kind.is_timestamp(wanted) else trimmed.cast(wanted)
    except pa.ArrowInvalid as error:
        raise Uncomputable(f"a text is not {what}") from error


TEXT_READERS: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.bool_(): _read_boolean,
    **{wanted: partial(_read_integer, wanted=wanted) for wanted in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{wanted: partial(_read_float, wanted=wanted) for wanted in (pa.float32(), pa.float64())},
    pa.date32(): lambda texts: _read_time(texts, pa.date32(), _DATE, "a date such as 2026-01-31"),
    TIMESTAMP: lambda texts: _read_time(texts, TIMESTAMP, _TIME, "a time such as 2026-01-31 12:00:00"),
    TIMESTAMP_NTZ: lambda texts: _read_time(texts, TIMESTAMP_NTZ, _TIME, "a time such as 2026-01-31 12:00:00"),
}


def decimal_text(found: Any) -> Any:
    """Return the digits with the point, never an exponent."""
    precision, scale = found.type.precision, found.type.scale
    if not scale:
        return found.cast(pa.string())
    # One digit before the point is what trunc needs, even if it is always 0.
    magnitude = pc.abs(found.cast(pa.decimal256(max(precision, scale + 1), scale)))
    whole = pc.trunc(magnitude)
    # Arrow writes small numbers with an exponent; a 1 in front keeps it from that, and keeps the zeros behind the point.
    part = pc.add(pc.subtract(magnitude, whole), pa.scalar(Decimal(1), pa.decimal256(scale + 1, scale)))
    behind = pc.utf8_slice_codeunits(part.cast(pa.string()), 1)
    before = whole.cast(pa.decimal256(precision, 0)).cast(pa.string())
    sign = pc.if_else(pc.less(found, pa.scalar(Decimal(0), found.type)), "-", "")
    return pc.binary_join_element_wise(sign, before, behind, "")


def time_text(found: Any) -> Any:
    """Return a date or time as Spark writes it, without zeros at the end of a second's fraction."""
    if kind.is_date(found.type):
        return found.cast(pa.string())
    shown = found.cast(TIMESTAMP_NTZ).cast(pa.string())
    return pc.replace_substring_regex(shown, r"\.?0{1,6}$", "")
