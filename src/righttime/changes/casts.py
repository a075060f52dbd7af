"""Conversions between primitive types, as CAST does them in Spark SQL in ANSI mode.

In: a term and the type it is wanted in.
Out: a term of that type, or None where no conversion is known.
Promise: vectorised; a value that has no counterpart raises `Uncomputable`; conversions whose text or rounding differs between engines are not known.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from righttime.changes.sql_text import type_name
from righttime.changes.terms import Term, Uncomputable, broadcast, strict
from righttime.changes.text_casts import TEXT_READERS, decimal_text, read_decimal, time_text
from righttime.changes.type_rules import INTEGERS, as_decimal, is_number, is_time
from righttime.changes.types import TIMESTAMP_NTZ

Kernel = Callable[[Any], Any]
_WIDE_DIGITS_MAX = 76
_FLOAT_SCALE_MAX = 18


def zero(given: pa.DataType) -> pa.Scalar:
    """Return 0 in a type of numbers."""
    return pa.scalar(Decimal(0) if kind.is_decimal(given) else 0, given)


def converted(part: Term, wanted: pa.DataType, *, written: bool = False) -> Term | None:
    """Return the term in another type; None if there is no such conversion. `written` says that the text has a CAST for it."""
    text = f"CAST({part.text} AS {type_name(wanted)})" if written else part.text
    atom = written or part.atom
    if part.type == wanted:
        return strict("cast", wanted, text, (part,), lambda found: found, atom=True) if written else part
    known = conversion(part.type, wanted)
    if known is None:
        return None
    kernel, can_fail = known
    if part.kind == "literal":
        return _converted_literal(part, wanted, text, kernel, atom=atom)
    # NaN has no digits: such a number becomes null.
    nullable = part.nullable or (kind.is_floating(part.type) and kind.is_decimal(wanted))
    return strict("cast", wanted, text, (part,), kernel, can_fail=can_fail, atom=atom, nullable=nullable)


def _converted_literal(part: Term, wanted: pa.DataType, text: str, kernel: Kernel, *, atom: bool) -> Term:
    """Convert once what is the same for all rows; a literal that cannot be converted fails for the rows that need it."""
    try:
        found = kernel(part.run(pa.record_batch([pa.nulls(1)], ["none"])))
    except (Uncomputable, pa.ArrowInvalid):
        return strict("cast", wanted, text, (part,), kernel, can_fail=True, atom=atom)
    return Term("cast", wanted, text, lambda _rows: found if isinstance(found, pa.Scalar) else found[0], (part,), None, part.nullable, False, atom)


def conversion(given: pa.DataType, wanted: pa.DataType) -> tuple[Kernel, bool] | None:
    """Return how to convert and whether that can fail."""
    if kind.is_null(given):
        return (lambda found: pa.scalar(None, wanted)), False
    if kind.is_string(given):
        reader = read_decimal(wanted) if kind.is_decimal(wanted) else TEXT_READERS.get(wanted)
        return (reader, True) if reader is not None else None
    if kind.is_string(wanted):
        return _to_text(given)
    if kind.is_boolean(wanted) and is_number(given):
        return (lambda found: pc.not_equal(found, zero(given))), False
    if kind.is_boolean(given) and is_number(wanted):
        to_number = conversion(pa.int8(), wanted)
        return ((lambda found: to_number[0](found.cast(pa.int8()))), to_number[1]) if to_number else None
    if is_number(given) and is_number(wanted):
        return _between_numbers(given, wanted)
    if is_time(given) and is_time(wanted):
        return _between_times(given, wanted)
    return None


def _to_text(given: pa.DataType) -> tuple[Kernel, bool] | None:
    if kind.is_integer(given) or kind.is_boolean(given):
        return (lambda found: found.cast(pa.string())), False
    if kind.is_decimal(given):
        return decimal_text, False
    if is_time(given):
        return time_text, False
    return None


def _between_numbers(given: pa.DataType, wanted: pa.DataType) -> tuple[Kernel, bool] | None:
    if kind.is_integer(given):
        return _from_integer(given, wanted)
    if kind.is_floating(given):
        return _from_float(wanted)
    if kind.is_decimal(wanted):
        narrower = wanted.scale < given.scale or wanted.precision - wanted.scale < given.precision - given.scale
        return (lambda found: fit_decimal(found, wanted)), narrower
    if kind.is_floating(wanted):
        # Arrow's own conversion is off by one in the last place now and then; reading the digits is exact.
        return (lambda found: found.cast(pa.string()).cast(wanted)), False
    return (lambda found: _decimal_to_integer(found, wanted)), True


def _from_integer(given: pa.DataType, wanted: pa.DataType) -> tuple[Kernel, bool]:
    if kind.is_integer(wanted):
        return (lambda found: found.cast(wanted)), INTEGERS.index(wanted) < INTEGERS.index(given)
    if kind.is_floating(wanted):
        return (lambda found: pc.cast(found, wanted, safe=False)), False
    whole = as_decimal(given)
    return (lambda found: fit_decimal(found.cast(pa.decimal128(whole.precision, 0)), wanted)), wanted.precision - wanted.scale < whole.precision


def fit_decimal(found: Any, wanted: pa.DataType) -> Any:
    """Round half away from zero to the wanted digits behind the point; raise `Uncomputable` if those before it do not fit."""
    try:
        if found.type.scale > wanted.scale:
            wide = found.cast(pa.decimal256(_WIDE_DIGITS_MAX, found.type.scale))
            found = pc.round(wide, wanted.scale, round_mode="half_towards_infinity")
        return found.cast(wanted)
    except pa.ArrowInvalid as error:
        raise Uncomputable(f"a number has more digits than {type_name(wanted)}") from error


def _decimal_to_integer(found: Any, wanted: pa.DataType) -> Any:
    whole = pc.trunc(found.cast(pa.decimal256(_WIDE_DIGITS_MAX, found.type.scale)))
    try:
        return whole.cast(pa.decimal128(38, 0)).cast(pa.int64()).cast(wanted)
    except pa.ArrowInvalid as error:
        raise Uncomputable(f"a number is outside of {type_name(wanted)}") from error


def _from_float(wanted: pa.DataType) -> tuple[Kernel, bool] | None:
    if kind.is_floating(wanted):
        return (lambda found: pc.cast(found, wanted, safe=False)), False
    if kind.is_integer(wanted):
        return (lambda found: _float_to_integer(found, wanted)), True
    if wanted.scale <= _FLOAT_SCALE_MAX:
        return (lambda found: _float_to_decimal(found, wanted)), True
    return None


def _float_to_integer(found: Any, wanted: pa.DataType) -> Any:
    found = broadcast(found, 1, found.type)
    limits = np.iinfo(wanted.to_pandas_dtype())
    numbers = np.trunc(pc.fill_null(found, 0.0).to_numpy(zero_copy_only=False).astype(np.float64))
    if not bool(np.all((numbers >= float(limits.min)) & (numbers <= float(limits.max)))):
        raise Uncomputable(f"a number is outside of {type_name(wanted)}")
    # 2^63 is the double next to the largest BIGINT; like Spark we take it for that one.
    edge = numbers >= 2.0**63
    whole = np.where(edge, 0.0, numbers).astype(np.int64)
    whole[edge] = np.iinfo(np.int64).max
    return pc.if_else(pc.is_valid(found), pa.array(whole).cast(wanted), pa.scalar(None, wanted))


def _float_to_decimal(found: Any, wanted: pa.DataType) -> Any:
    """Go by the shortest digits that name the number, as Spark does: 0.1 is 0.1 and not 0.1000000000000000055. NaN and infinity become null."""
    found = pc.cast(found, pa.float64())
    finite = pc.if_else(pc.is_finite(found), found, pa.scalar(None, pa.float64()))
    # Numbers this small are zero in every scale we convert to, and their digits would not fit.
    plain = pc.if_else(pc.less(pc.abs(finite), 1e-20), 0.0, finite)
    try:
        digits = plain.cast(pa.string()).cast(pa.decimal256(_WIDE_DIGITS_MAX, 37))
    except pa.ArrowInvalid as error:
        raise Uncomputable(f"a number has more digits than {type_name(wanted)}") from error
    return fit_decimal(digits, wanted)


def _between_times(given: pa.DataType, wanted: pa.DataType) -> tuple[Kernel, bool]:
    if kind.is_date(wanted):
        return (lambda found: pc.floor_temporal(_naive(found), unit="day").cast(wanted)), False
    if kind.is_date(given):
        return (lambda found: found.cast(TIMESTAMP_NTZ).cast(wanted)), True
    return (lambda found: found.cast(wanted)), False


def _naive(found: Any) -> Any:
    return found.cast(TIMESTAMP_NTZ)
