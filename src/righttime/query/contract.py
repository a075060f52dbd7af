"""The freshness contract of one query: how stale it may be, how long it waits, and what happens when that is not enough.

In: what a caller wrote as `freshness=`, `wait=`, `on_late=`, `as_of=`, or as `CURRENCY BOUND` in the text.
Out: one frozen `Contract` in microseconds and seconds.
Promise: pure; whatever cannot be understood is refused, and rounding only ever makes an answer fresher.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from numbers import Real
from typing import Literal, cast

from righttime.errors import BadFreshness, BadSetting

OnLate = Literal["error", "answer"]
Duration = str | int | float | timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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


@dataclass(frozen=True, slots=True)
class Contract:
    """What one query was promised: no staler than `freshness_us`, or exactly the cut `as_of_us`, within `wait_s`."""

    freshness_us: int
    wait_s: float
    on_late: OnLate
    as_of_us: int | None


def make_contract(
    *,
    freshness: Duration | None,
    wait: Duration | None,
    on_late: str,
    as_of: datetime | int | None,
    bound_us: int | None,
    wait_default_s: float,
) -> Contract:
    """Join what the caller and the query's text ask for; say the same thing twice, or two different things, and it is refused.

    With nothing asked the answer holds everything committed before now. `as_of` is microseconds since 1970 or a datetime; one without zone is UTC.
    """
    if freshness is not None and bound_us is not None:
        raise BadFreshness(value=freshness, what="freshness", reason="the query's text has a CURRENCY BOUND already, and one query has one freshness")
    if as_of is not None and (freshness is not None or bound_us is not None):
        raise BadFreshness(value=as_of, what="cut to ask for", reason="as_of names the exact cut, so a freshness or CURRENCY BOUND cannot go with it")
    if on_late not in ("error", "answer"):
        raise BadSetting(name="on_late", reason=f'{on_late!r} is neither "error" nor "answer"')
    asked_us = bound_us if bound_us is not None else duration_us(freshness) if freshness is not None else 0
    wait_s = duration_us(wait, what="wait") / 1e6 if wait is not None else wait_default_s
    return Contract(freshness_us=asked_us, wait_s=wait_s, on_late=cast(OnLate, on_late), as_of_us=None if as_of is None else _instant_us(as_of))


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


def _instant_us(as_of: datetime | int) -> int:
    if isinstance(as_of, datetime):
        aware = as_of if as_of.tzinfo is not None else as_of.replace(tzinfo=UTC)
        as_of_us = (aware - _EPOCH) // _MICROSECOND
    elif type(as_of) is int:
        as_of_us = as_of
    else:
        raise BadFreshness(value=as_of, what="cut to ask for", reason="as_of takes a datetime or whole microseconds since 1970")
    if as_of_us < 0:
        raise BadFreshness(value=as_of, what="cut to ask for", reason="it lies before 1970")
    return as_of_us
