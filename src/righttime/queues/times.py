"""Commit times of sources: told from mistakes, and shown.

In: a stream's declaration, the time that was given for a commit or a heartbeat, the clock.
Out: nothing, or `StreamTime` with what is wrong.
Promise: pure; a time that passes is one that the source can have meant.
"""

from collections.abc import Iterable

from righttime.changes.position import time_text
from righttime.errors.flows import StreamTime
from righttime.queues.declared import StreamSchema

_AHEAD_US = 24 * 3600 * 1_000_000  # a time zone that was forgotten is less; nothing earlier could be committed to the stream any more
_AGE_BEGINS_US = 631_152_000 * 1_000_000  # 1990: commits of sources are later, and as microseconds nobody means such numbers
_AGE_ENDS_US = 4_102_444_800 * 1_000_000  # 2100
_UNITS = (("seconds", 1_000_000), ("milliseconds", 1_000))


def check_time(schema: StreamSchema, time_us: int | None, *, now_us: int) -> None:
    """Raise `StreamTime` for a time that a stream does not take, or that can only be a mistake."""
    if schema.times == "source" and time_us is None:
        raise StreamTime(stream=schema.name, reason="its commit times come from the source, and none was given")
    if schema.times == "warehouse" and time_us is not None:
        raise StreamTime(stream=schema.name, reason="the warehouse issues its commit times, and one was given")
    if time_us is None:
        return
    if time_us <= 0:
        raise StreamTime(stream=schema.name, reason=f"the time {shown(time_us)} is not after the beginning of 1970")
    if time_us > now_us + _AHEAD_US:
        raise StreamTime(stream=schema.name, reason=f"the time {shown(time_us)} is more than a day ahead; numbers are microseconds since 1970")
    # Small numbers are left to tests with clocks of their own: by those, nothing is of this age.
    check_unit(schema.name, time_us, end_us=now_us + _AHEAD_US)


def check_same_times(schemas: Iterable[StreamSchema]) -> None:
    """Raise `StreamTime` for one append to streams whose sources give the times and to others: it has one time, or none."""
    kinds = {schema.times: schema.name for schema in schemas}
    if len(kinds) > 1:
        reason = (
            f"its commit times come from the source, and the warehouse issues those of stream {kinds['warehouse']!r}; "
            "one append has one time, so streams of both kinds cannot be in it: append to them one after the other"
        )
        raise StreamTime(stream=kinds["source"], reason=reason)


def check_unit(stream: str, time_us: int, *, end_us: int = _AGE_ENDS_US) -> None:
    """Raise `StreamTime` for a number that can only have been meant in another unit."""
    for unit, factor in _UNITS:
        if _AGE_BEGINS_US <= time_us * factor <= end_us:
            reason = f"the time {time_us} is in the first days of 1970, and looks like {unit} since 1970, where microseconds are meant"
            raise StreamTime(stream=stream, reason=reason)


def shown(time_us: int) -> str:
    """Return a time as errors show it; one that no calendar has stays a number."""
    try:
        return time_text(time_us)
    except (OverflowError, ValueError, OSError):
        return str(time_us)
