"""Durations as people write them: "500ms", "5s", "2 min", a number of seconds or a timedelta.

In: what a caller wrote as freshness, wait, interval or bound.
Out: whole microseconds.
Promise: pure; whatever cannot be understood is refused, and rounding only ever makes a duration shorter.
"""

import re
from datetime import timedelta
from decimal import Decimal
from numbers import Real

from righttime.errors import BadFreshness

Duration = str | int | float | timedelta

_MICROSECOND = timedelta(microseconds=1)
# A hundred years: longer than any history here, and far from the end of a 64-bit count of microseconds.
DURATION_US_MAX = 100 * 365 * 86_400_000_000
_TEXT = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*([a-zµμ]*)", re.ASCII | re.IGNORECASE)
_NAMES_BY_UNIT_US = {
    1: "us µs μs microsecond microseconds",
    1_000: "ms msec millis millisecond milliseconds",
    1_000_000: "s sec secs second seconds",
    60_000_000: "m min mins minute minutes",
    3_600_000_000: "h hr hrs hour hours",
    86_400_000_000: "d day days",
}
_UNIT_US = {name: unit_us for unit_us, names in _NAMES_BY_UNIT_US.items() for name in names.split()}


def duration_us(value: Duration, *, what: str = "freshness") -> int:
    """Return a duration in whole microseconds, rounded down; plain numbers are seconds. Raise `BadFreshness` on anything else."""
    if isinstance(value, timedelta):
        exact_us = Decimal(value // _MICROSECOND)
    elif isinstance(value, str):
        exact_us = _text_us(value, what=what)
    elif isinstance(value, Real) and not isinstance(value, bool):
        exact_us = _number_us(value, what=what)
    else:
        raise BadFreshness(value=value, what=what, reason=f"a {type(value).__name__} is no duration")
    return _in_range(exact_us, value=value, what=what)


def _text_us(text: str, *, what: str) -> Decimal:
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise BadFreshness(value=text, what=what, reason="it is not a number followed by a unit")
    amount, unit = Decimal(found[1]), found[2].lower()
    if not unit and amount == 0:
        return amount
    if unit not in _UNIT_US:
        raise BadFreshness(value=text, what=what, reason=f"{unit!r} is no unit of time" if unit else "the unit is missing")
    return amount * _UNIT_US[unit]


def _number_us(value: int | float, *, what: str) -> Decimal:
    # The shortest decimal of a float is what the caller wrote: 0.57 s are 570,000 µs, not 569,999.
    seconds = Decimal(value) if isinstance(value, int) else Decimal(repr(float(value)))
    if not seconds.is_finite():
        raise BadFreshness(value=value, what=what, reason="it is not a finite number")
    return seconds * 1_000_000


def _in_range(exact_us: Decimal, *, value: object, what: str) -> int:
    if exact_us < 0:
        raise BadFreshness(value=value, what=what, reason="it is negative")
    if exact_us > DURATION_US_MAX:
        raise BadFreshness(value=value, what=what, reason="it is longer than a hundred years")
    return int(exact_us)
