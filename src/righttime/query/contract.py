"""The freshness contract of one query: how stale it may be, how long it waits, and what happens when that is not enough.

In: what a caller wrote as `freshness=`, `wait=`, `on_late=`, `as_of=`, or as `CURRENCY BOUND` in the text.
Out: one frozen `Contract` in microseconds and seconds.
Promise: pure; whatever cannot be understood is refused, and rounding only ever makes an answer fresher.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, cast

from righttime.changes.durations import Duration, duration_us
from righttime.errors import BadArgument, BadFreshness

OnLate = Literal["error", "answer"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Contract:
    """What one query was promised: no staler than `freshness_us`, or exactly the cut `as_of_us`, within `wait_s`.

    What is `standing` is for questions to come: it is held, and nothing runs on it meanwhile.
    """

    freshness_us: int
    wait_s: float
    on_late: OnLate
    as_of_us: int | None
    standing: bool = False


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
        raise BadArgument(name="on_late", reason=f'{on_late!r} is neither "error" nor "answer"')
    asked_us = bound_us if bound_us is not None else duration_us(freshness) if freshness is not None else 0
    wait_s = duration_us(wait, what="wait") / 1e6 if wait is not None else wait_default_s
    return Contract(freshness_us=asked_us, wait_s=wait_s, on_late=cast(OnLate, on_late), as_of_us=None if as_of is None else _instant_us(as_of))


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
