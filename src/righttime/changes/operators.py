"""Logic, comparison and arithmetic as terms, in the semantics of Spark SQL in ANSI mode.

In: terms whose types were brought together by `binder.py`.
Out: terms.
Promise: three-valued logic; NaN equals NaN and is larger than every number; overflow and division by zero raise `Uncomputable`, never wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from righttime.changes.casts import fit_decimal, zero
from righttime.changes.terms import Term, Uncomputable, broadcast, run_where, strict
from righttime.changes.type_rules import decimal_can_overflow

_WIDE_DIGITS_MAX = 76
_NAMES = {"=": "equal", "<>": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


def comparison(operator: str, left: Term, right: Term) -> Term:
    """Return `left operator right`; `<=>` is the equality that is never null."""
    text = f"{left.inner} {operator} {right.inner}"
    if operator != "<=>":
        return strict(operator, pa.bool_(), text, (left, right), lambda a, b: compare(operator, a, b))

    def run(rows: pa.RecordBatch) -> Any:
        a, b = left.run(rows), right.run(rows)
        both_null = pc.and_(pc.is_null(a), pc.is_null(b))
        return pc.or_(both_null, pc.fill_null(compare("=", a, b), False))

    return Term(operator, pa.bool_(), text, run, (left, right), None, False, left.can_fail or right.can_fail, False)


def compare(operator: str, left: Any, right: Any) -> Any:
    """Compare two columns of one type."""
    if not kind.is_floating(left.type):
        return getattr(pc, _NAMES[operator])(left, right)
    if operator in (">", ">="):
        return compare({">": "<", ">=": "<="}[operator], right, left)
    plain = getattr(pc, _NAMES[operator])(left, right)
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    match operator:
        case "=":
            return pc.or_(plain, pc.and_(left_nan, right_nan))
        case "<>":
            return pc.and_not(plain, pc.and_(left_nan, right_nan))
        case "<":
            return pc.or_(plain, pc.and_not(right_nan, left_nan))
        case _:
            return pc.or_(plain, right_nan)


def alike(found: Any) -> Any:
    """Return values of which equal ones have the same bits: of floating point there are two zeros, and NaN with and without a sign."""
    if not kind.is_floating(found.type):
        return found
    return pc.if_else(pc.is_nan(found), pa.scalar(float("nan"), found.type), pc.add(found, pa.scalar(0.0, found.type)))


def logic(operator: str, parts: Sequence[Term]) -> Term:
    """Return `left AND right` or `left OR right`; the right one is computed only where the left one does not decide."""
    left, right = parts

    def run(rows: pa.RecordBatch) -> Any:
        first = left.run(rows)
        undecided = pc.fill_null(first if operator == "AND" else pc.invert(first), True)
        second = run_where(right, rows, undecided)
        return (pc.and_kleene if operator == "AND" else pc.or_kleene)(first, second)

    nullable = left.nullable or right.nullable
    return Term(operator, pa.bool_(), f"{left.inner} {operator} {right.inner}", run, (left, right), None, nullable, left.can_fail or right.can_fail, False)


def negation(part: Term) -> Term:
    """Return `NOT part`."""
    return strict("NOT", pa.bool_(), f"NOT {part.inner}", (part,), pc.invert)


def null_test(part: Term) -> Term:
    """Return `part IS NULL`."""
    return strict("IS NULL", pa.bool_(), f"{part.inner} IS NULL", (part,), lambda found: pc.is_null(found), nullable=False)


def membership(part: Term, choices: Sequence[Term]) -> Term:
    """Return `part IN (literals)`, all of one type."""
    values = [choice.value for choice in choices if choice.value is not None]
    has_null = len(values) < len(choices)
    wanted = alike(pa.array(values, part.type))

    def compute(found: Any) -> Any:
        inside = pc.is_in(alike(found), value_set=wanted)
        certain = pc.if_else(inside, True, pa.scalar(None, pa.bool_())) if has_null else inside
        return pc.if_else(pc.is_valid(found), certain, pa.scalar(None, pa.bool_()))

    text = f"{part.inner} IN ({', '.join(choice.text for choice in choices)})"
    made = strict("IN", pa.bool_(), text, (part,), compute, nullable=part.nullable or has_null)
    return Term(made.kind, made.type, made.text, made.run, (part, *choices), None, made.nullable, made.can_fail, False)


def arithmetic(operator: str, left: Term, right: Term, type_: pa.DataType) -> Term:
    """Return `left operator right`: both of type `type_`, or both DECIMAL with the result `type_`."""
    if kind.is_decimal(type_):
        compute, can_fail = _decimal_arithmetic(operator, left.type, right.type, type_)
    else:
        compute, can_fail = _plain_arithmetic(operator), kind.is_integer(type_) or operator in "/%"
    text = f"{left.inner} {operator} {right.inner}"
    # Spark looks at the divisor first.
    return strict(operator, type_, text, (left, right), compute, can_fail=can_fail, needs=(1, 0) if operator in "/%" else None)


def _plain_arithmetic(operator: str) -> Any:
    match operator:
        case "+":
            return pc.add_checked
        case "-":
            return pc.subtract_checked
        case "*":
            return pc.multiply_checked
        case "/":
            return _divide
    return _remainder


def _refuse_zero(dividend: Any, divisor: Any) -> None:
    found = pc.and_(pc.equal(divisor, zero(divisor.type)), pc.is_valid(dividend))
    if (found if isinstance(found, pa.Scalar) else pc.any(found)).as_py():
        raise Uncomputable("division by zero")


def _divide(left: Any, right: Any) -> Any:
    _refuse_zero(left, right)
    return pc.divide(left, right)


def _remainder(left: Any, right: Any) -> Any:
    """Return what is left of a division that goes towards zero, with the sign of the dividend."""
    _refuse_zero(left, right)
    rows = next((len(one) for one in (left, right) if not isinstance(one, pa.Scalar)), 1)
    type_ = left.type
    left, right = broadcast(left, rows, type_), broadcast(right, rows, type_)
    one = pa.scalar(1, type_)
    with np.errstate(all="ignore"):
        numbers = np.fmod(pc.fill_null(left, one).to_numpy(zero_copy_only=False), pc.fill_null(right, one).to_numpy(zero_copy_only=False))
    valid = pc.and_(pc.is_valid(left), pc.is_valid(right))
    return pc.if_else(valid, pa.array(numbers, type_), pa.scalar(None, type_))


def _wide(given: pa.DataType) -> pa.DataType:
    return pa.decimal256(given.precision, given.scale)


def _decimal_arithmetic(operator: str, left: pa.DataType, right: pa.DataType, type_: pa.DataType) -> tuple[Callable[[Any, Any], Any], bool]:
    if operator == "/":
        return lambda a, b: _decimal_divide(a, b, type_), True
    if operator == "%":
        return lambda a, b: _decimal_remainder(a, b, type_), True
    plain = {"+": pc.add, "-": pc.subtract, "*": _decimal_product}[operator]
    return lambda a, b: fit_decimal(plain(a.cast(_wide(left)), b.cast(_wide(right))), type_), decimal_can_overflow(operator, left, right)


def _decimal_product(left: Any, right: Any) -> Any:
    if left.type.precision + right.type.precision == _WIDE_DIGITS_MAX:
        # The product has no more digits than both together; Arrow wants room for one more, so one side says that it has one less.
        right = pc.cast(right, pa.decimal256(right.type.precision - 1, right.type.scale), safe=False)
    return pc.multiply(left, right)


def digits_fit(operator: str, left: pa.DataType, right: pa.DataType, type_: pa.DataType) -> bool:
    """Tell whether an operation on two DECIMALs can be done in the 76 digits that we calculate with; a product always can."""
    whole = left.precision - left.scale
    if operator in "+-":
        return bool(max(whole, right.precision - right.scale) + max(left.scale, right.scale) < _WIDE_DIGITS_MAX)
    if operator == "*":
        return True
    more = _more_digits(left, right, type_) if operator == "/" else 0
    # These are Arrow's rules for the type of a quotient.
    quotient = 1 + whole + right.scale + max(4, left.scale + more + right.precision - right.scale + 1)
    remainder = max(whole + right.scale + right.precision + 1, whole + max(left.scale, right.scale) + 2)
    return bool(max(quotient, left.precision + more, remainder if operator == "%" else 0) <= _WIDE_DIGITS_MAX)


def _more_digits(left: pa.DataType, right: pa.DataType, type_: pa.DataType) -> int:
    """Return how many zeros the dividend needs behind the point, so that the quotient has one digit more than the result."""
    return max(0, int(type_.scale - right.precision + right.scale - left.scale))


def _decimal_divide(left: Any, right: Any, type_: pa.DataType) -> Any:
    _refuse_zero(left, right)
    # Arrow cuts the quotient off; one digit more than the result has is what rounding half up needs to know.
    more = _more_digits(left.type, right.type, type_)
    dividend = left.cast(pa.decimal256(left.type.precision + more, left.type.scale + more))
    return fit_decimal(pc.divide(dividend, right.cast(_wide(right.type))), type_)


def _decimal_remainder(left: Any, right: Any, type_: pa.DataType) -> Any:
    _refuse_zero(left, right)
    whole = left.type.precision - left.type.scale
    wide_left, wide_right = left.cast(_wide(left.type)), right.cast(_wide(right.type))
    quotient = pc.divide(wide_left, wide_right)
    # One digit before the point is what trunc needs, even if it is always 0.
    roomy = quotient.cast(pa.decimal256(quotient.type.precision + 1, quotient.type.scale))
    times = pc.trunc(roomy).cast(pa.decimal256(whole + right.type.scale + 1, 0))
    # What is taken away is no larger than the dividend.
    taken = pc.multiply(times, wide_right).cast(pa.decimal256(whole + right.type.scale + 1, right.type.scale))
    return fit_decimal(pc.subtract(wide_left, taken), type_)


def minus(part: Term) -> Term:
    """Return `-part`."""
    return strict(
        "minus", part.type, f"-{part.inner}", (part,), pc.negate_checked if kind.is_integer(part.type) else pc.negate, can_fail=kind.is_integer(part.type)
    )


def absolute(part: Term) -> Term:
    """Return `abs(part)`."""
    can_fail = kind.is_integer(part.type)
    return strict("abs", part.type, f"abs({part.text})", (part,), pc.abs_checked if can_fail else pc.abs, can_fail=can_fail, atom=True)
