"""What is summed up for a measure, and how sums become its value.

In: the function of a measure, and the column and type of what it is taken of.
Out: terms that one signed row adds to its group, and the measure over their sums, both as SQL.
Promise: sums can be taken back exactly: integers, decimals and FLOATs always, of DOUBLEs below 2^136 the digits from 2^-124 up; what is below or above is added
up as doubles are, and does not count while there is none of it. The value has the type, nulls and overflow errors of Spark's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import ByteType, DataType, DecimalType, DoubleType, FloatType, IntegerType, LongType, ShortType

from righttime.pipeline.operators.signed import ACCUMULATOR_PREFIX, WEIGHT

ROWS = f"{ACCUMULATOR_PREFIX}rows"
SUMMABLE = (ByteType, ShortType, IntegerType, LongType, DecimalType, FloatType, DoubleType)

_RADIX = "4611686018427387904BD"  # 2^62: a part of a DOUBLE is a whole number below it, and fits a BIGINT
# Decimals with more digits than this cannot be multiplied by a weight without losing some: their rows are repeated instead.
_DIGITS_MAX = 27
# With more digits behind the point than this, a quotient has too few of them left.
_SCALE_MAX = 22


@dataclass(frozen=True)
class Term:
    """What one row adds to an accumulator, weight included; and the accumulator's type."""

    sql: str
    kind: str


@dataclass(frozen=True)
class Accumulated:
    """The accumulators of a measure, and the measure over columns with their names that hold the sums."""

    terms: dict[str, Term]
    value: str


def needs_unit_weights(kind: DataType) -> bool:
    """Return whether terms of this type are exact for weights +1 and -1 only."""
    return isinstance(kind, DecimalType) and kind.precision > _DIGITS_MAX


def row_count() -> Accumulated:
    """Return `count(*)`."""
    return Accumulated({ROWS: Term(WEIGHT, "BIGINT")}, ROWS)


def count_of(place: int, value: str) -> Accumulated:
    """Return `count(value)`; `place` numbers the expression among those of the aggregate."""
    name = f"{ACCUMULATOR_PREFIX}{place}_count"
    return Accumulated({name: Term(f"if({value} IS NULL, 0L, {WEIGHT})", "BIGINT")}, name)


def sum_of(place: int, value: str, kind: DataType) -> Accumulated:
    """Return `sum(value)`."""
    total, count = _total(place, value, kind), count_of(place, value)
    if isinstance(kind, DecimalType):
        sized = f"CAST({total.value} AS DECIMAL({min(38, kind.precision + 10)}, {kind.scale}))"
    else:
        sized = total.value if isinstance(kind, FloatType | DoubleType) else f"CAST({total.value} AS BIGINT)"
    return Accumulated({**count.terms, **total.terms}, f"CASE WHEN {count.value} > 0 THEN {sized} END")


def average_of(place: int, value: str, kind: DataType) -> Accumulated:
    """Return `avg(value)`: of decimals rounded half up as Spark does, of all others the double nearest to total / count."""
    total, count = _total(place, value, kind), count_of(place, value)
    mean = _decimal_mean(total.value, count.value, kind) if isinstance(kind, DecimalType) else f"CAST({total.value} AS DOUBLE) / CAST({count.value} AS DOUBLE)"
    return Accumulated({**count.terms, **total.terms}, f"CASE WHEN {count.value} > 0 THEN {mean} END")


def _total(place: int, value: str, kind: DataType) -> Accumulated:
    name = f"{ACCUMULATOR_PREFIX}{place}_sum"
    if isinstance(kind, FloatType | DoubleType):
        return _float_total(place, f"CAST({value} AS DOUBLE)")
    if isinstance(kind, DecimalType):
        signed = f"if({WEIGHT} < 0, -{value}, {value})" if needs_unit_weights(kind) else f"{value} * CAST({WEIGHT} AS DECIMAL(10, 0))"
        wide = f"DECIMAL(38, {kind.scale})"
        return Accumulated({name: Term(f"coalesce(CAST({signed} AS {wide}), CAST(0 AS {wide}))", wide)}, name)
    if isinstance(kind, LongType):
        # Wider than the value: a sum may leave the range of BIGINT on the way and come back.
        return Accumulated({name: Term(f"coalesce({_times_weight(value)}, 0BD)", "DECIMAL(38, 0)")}, name)
    return Accumulated({name: Term(f"coalesce(CAST({value} AS BIGINT) * {WEIGHT}, 0L)", "BIGINT")}, name)


def _times_weight(whole: str) -> str:
    """Return a whole number below 2^75 times the weight, exactly, as DECIMAL(38, 0)."""
    return f"CAST({whole} AS DECIMAL(23, 0)) * CAST({WEIGHT} AS DECIMAL(17, 0))"


def _decimal_mean(total: str, count: str, kind: DecimalType) -> str:
    """Return total / count, rounded once: the whole part exactly, the rest with twelve digits more than are kept."""
    scale = min(38, kind.scale + 4)
    kept, divisor = f"DECIMAL({min(38, kind.precision + 4)}, {scale})", f"CAST({count} AS DECIMAL(12, 0))"
    if needs_unit_weights(kind) or kind.scale > _SCALE_MAX:
        return f"CAST(concat(CAST({_units_of_mean(total, divisor, kind.scale, scale)} AS STRING), 'E-{scale}') AS {kept})"
    dividend = f"CAST({total} AS DECIMAL(37, {kind.scale}))"
    rest = f"({dividend} % {divisor})"
    whole = f"CAST(({dividend} - {rest}) / {divisor} AS DECIMAL({37 - scale}, 0))"
    part = f"CAST(CAST({rest} AS DECIMAL({12 + kind.scale}, {kind.scale})) / {divisor} AS DECIMAL({scale + 1}, {scale}))"
    return f"CAST({whole} + {part} AS {kept})"


def _units_of_mean(total: str, divisor: str, given: int, scale: int) -> str:
    """Return total / count as a whole number of 10^-scale, where the total is one of 10^-given.

    Of whole numbers Spark loses no digit up to the 38th. Of others it has no type in which all digits of the widest ones would stay.
    """
    total = f"CAST(concat(CAST({total} AS STRING), 'E{given}') AS DECIMAL(38, 0))"
    rest, more = f"({total} % {divisor})", f"1{'0' * (scale - given)}BD"
    # In two steps, because a quotient has 32 digits before its point.
    product, step = f"({total} - {rest})", f"CAST({divisor} * 1000000BD AS DECIMAL(18, 0))"
    low = f"({product} % {step})"
    quotient = f"(CAST(({product} - {low}) / {step} AS DECIMAL(32, 0)) * 1000000BD + CAST({low} / {divisor} AS DECIMAL(6, 0)))"
    return f"({quotient} * {more} + CAST({rest} * {more} / {divisor} AS DECIMAL(5, 0)))"


def _float_total(place: int, value: str) -> Accumulated:
    """Return the sum of doubles as whole numbers of 2^62, 1, 2^-62 and 2^-124, which can be taken back exactly, and what is no such number apart.

    Without this, a wrong 1e20 that was corrected would have wiped out the small values of its group for good. Digits below 2^-124 (tiny, in units of that) and
    values from 2^136 up (huge) are sums of doubles, which do not count while there are none: what rounding has left in them is there again with the next one.
    """
    nan, plus, minus, large, whole, fine, finest, tiny, tiny_rows, huge, huge_rows = (
        f"{ACCUMULATOR_PREFIX}{place}_{name}"
        for name in ("nan", "plus_inf", "minus_inf", "large", "whole", "fine", "finest", "tiny", "tiny_rows", "huge", "huge_rows")
    )
    infinite, scale, below = "double('Infinity')", _power(512), f"({value} % {_power(-124)} * {_power(124)})"
    ordinary = f"abs({value}) < {_power(136)}"
    is_huge = f"abs({value}) >= {_power(136)} AND abs({value}) < {infinite}"
    parts = {large: _large_part(value), whole: _part(value, 0), fine: _part(value, -62), finest: _part(value, -124)}
    terms = {
        nan: Term(f"if(isnan({value}), {WEIGHT}, 0L)", "BIGINT"),
        plus: Term(f"if({value} = {infinite}, {WEIGHT}, 0L)", "BIGINT"),
        minus: Term(f"if({value} = -{infinite}, {WEIGHT}, 0L)", "BIGINT"),
        **{name: Term(f"CAST(if({ordinary}, {_times_weight(sql)}, 0BD) AS DECIMAL(38, 0))", "DECIMAL(38, 0)") for name, sql in parts.items()},
        tiny: Term(f"if({ordinary}, {below} * {WEIGHT}, 0D)", "DOUBLE"),
        tiny_rows: Term(f"if({ordinary} AND {below} <> 0D, {WEIGHT}, 0L)", "BIGINT"),
        huge: Term(f"if({is_huge}, {value} / {scale} * {WEIGHT}, 0D)", "DOUBLE"),
        huge_rows: Term(f"if({is_huge}, {WEIGHT}, 0L)", "BIGINT"),
    }
    exact = _from_parts(large, whole, fine, finest, f"if({tiny_rows} <> 0, {tiny}, 0D)")
    finite = f"{exact} + if({huge_rows} <> 0, {huge} * {scale}, 0D)"
    not_a_number = f"{nan} > 0 OR ({plus} > 0 AND {minus} > 0)"
    total = f"CASE WHEN {not_a_number} THEN double('NaN') WHEN {plus} > 0 THEN {infinite} WHEN {minus} > 0 THEN -{infinite} ELSE {finite} END"
    return Accumulated(terms, f"({total})")


def _part(value: str, exponent: int) -> str:
    """Return the digits of a double from 2^exponent up to 2^(exponent + 62), as a whole number: remainders and such products are exact."""
    return f"CAST({value} % {_power(exponent + 62)} * {_power(-exponent)} AS BIGINT)"


def _large_part(value: str) -> str:
    """Return the digits of a double below 2^136 from 2^62 up. A BIGINT holds 63 of the 74, so they are taken in two steps."""
    return f"(CAST(CAST({value} / {_power(73)} AS BIGINT) AS DECIMAL(19, 0)) * 2048BD + CAST({value} % {_power(73)} / {_power(62)} AS BIGINT))"


def _power(exponent: int) -> str:
    """Return a power of two as a DOUBLE."""
    return f"{2.0**exponent!r}D"


def _from_parts(large: str, whole: str, fine: str, finest: str, tiny: str) -> str:
    """Return the double nearest to large * 2^62 + whole + fine / 2^62 + (finest + tiny) / 2^124, whatever their signs; exactly the nearest if tiny is 0.

    They are put together as whole numbers until there are more digits than a double has. What then is left is less than one of the last of them:
    it decides nothing but halves, so its sign is enough.
    """
    # First each part hands what is too much for it to the next one.
    fines = f"({fine} + {finest} div {_RADIX})"
    wholes = f"({whole} + {fines} div {_RADIX})"
    hugest = f"({large} + {wholes} div {_RADIX})"
    ones, small, smallest = (f"({part} % {_RADIX})" for part in (wholes, fines, finest))
    upper = f"({hugest} * {_RADIX} + {ones})"
    middle = f"({upper} * {_RADIX} + {small})"
    lower = f"({middle} * {_RADIX} + {smallest})"
    rest = f"({small} * {_RADIX} + {smallest})"
    return (
        f"CASE WHEN {_is_long(hugest)} THEN {_nearest(hugest, f'4 * sign({ones}) + sign({rest})')} * {_power(62)} "
        f"WHEN {_is_long(upper)} THEN {_nearest(upper, rest)} WHEN {_is_long(middle)} THEN {_nearest(middle, smallest)} * {_power(-62)} "
        f"ELSE (CAST({lower} AS DOUBLE) + {tiny}) * {_power(-124)} END"
    )


def _is_long(whole: str) -> str:
    """Return whether a whole number has more digits than a double."""
    return f"abs({whole}) > 9007199254740992BD"  # 2^53


def _nearest(whole: str, rest: str) -> str:
    """Return the double nearest to a long whole number and a rest of less than one."""
    return f"CAST({whole} * 2BD + CAST(sign({rest}) AS INT) AS DOUBLE) / 2D"
