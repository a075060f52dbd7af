"""Ensure accuracy: which time stamp a query may use, and which lanes must deliver first.

In: the time indexes of the lanes of a query's tables, and the time that was asked for.
Out: the lanes that have to be asked, and the newest time at which all of them are complete.
Promise: the time returned is never below the one asked for.

A lane that possesses any finite time at or after t possesses every row committed up to t, because commits arrive in order.
"""

from collections.abc import Sequence

from righttime.catalyst.indexes import TimeIndex


def lanes_behind(time_us: int, lanes: Sequence[TimeIndex]) -> list[TimeIndex]:
    """Return the lanes that cannot prove possession of everything committed up to `time_us`."""
    return [lane for lane in lanes if lane.newest_us < time_us]


def newest_consistent(time_us: int, lanes: Sequence[TimeIndex], *, otherwise_us: int) -> int:
    """Return the newest time at which every lane is complete (P8'), at least `time_us`; `otherwise_us` if there is no lane to wait for."""
    return max(time_us, min((lane.newest_us for lane in lanes), default=otherwise_us))


def newest_common(time_us: int, lanes: Sequence[TimeIndex]) -> int:
    """Return the newest time that every lane has indexed, or `time_us`: the published Algorithm 1, kept as the yardstick of P8'."""
    common = set(lanes[0].at_or_after(time_us)) if lanes else set()
    for lane in lanes[1:]:
        common &= set(lane.at_or_after(time_us))
    return max(common | {time_us})
