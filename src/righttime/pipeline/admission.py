"""Which state a query may read, when work is cut ahead of queries, and the fewest cuts that serve a group.

In: horizons, watermarks, bounds and sizes as numbers.
Out: share a job or cut at a horizon.
Promise: the chosen horizon lies in [arrival - bound, arrival], so no answer is staler than allowed and none is fresher than the arrival. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class Closed(Protocol):
    """What is needed to know of the last closed job."""

    @property
    def tid(self) -> int:
        """Its number."""

    @property
    def horizon_us(self) -> int | None:
        """Its horizon."""


@dataclass(frozen=True, slots=True)
class Share:
    """Read the state of an existing job."""

    tid: int


@dataclass(frozen=True, slots=True)
class CutAt:
    """Close the open job at this horizon."""

    horizon_us: int


def decide(candidates: Iterable[tuple[int, int]], last: Closed, arrived_us: int, slack_us: int, watermark_us: int, first_open_us: int | None) -> Share | CutAt:
    """Choose for a query that accepts any horizon in [arrived - slack, arrived] (A3).

    `candidates` are (tid, horizon) of readable jobs, the soonest first. The state of the last closed job holds up to the first change after it, as far
    as the watermark proves that nothing else was committed before.
    """
    lowest_us = arrived_us - slack_us
    for tid, horizon_us in candidates:
        holds_us = horizon_us if tid != last.tid else max(horizon_us, holds_up_to(arrived_us, watermark_us, first_open_us))
        if holds_us >= lowest_us and horizon_us <= arrived_us:
            return Share(tid)
    assert last.horizon_us is not None
    return CutAt(max(last.horizon_us, min(arrived_us, max(watermark_us, lowest_us))))


def holds_up_to(arrived_us: int, watermark_us: int, first_open_us: int | None) -> int:
    """Return up to which time the last closed job's state is still the present state, as far as is known."""
    known_us = min(arrived_us, watermark_us)
    return known_us if first_open_us is None else min(known_us, first_open_us - 1)


def background_cut(
    rows: Mapping[str, int], *, watermark_us: int, horizon_us: int, stream_rows_max: int | None = None, total_rows_max: int | None = None, idle: bool = False
) -> int | None:
    """Return the horizon at which a job without a query is due, or None (A8).

    `rows` counts the open job per stream. Due when more than the bound has piled up, or anything while no query runs or waits. Never while the last
    closed job, whose horizon is `horizon_us`, still waits for changes: horizons do not decrease.
    """
    if watermark_us <= horizon_us:
        return None
    total = sum(rows.values())
    much = stream_rows_max is not None and any(count > stream_rows_max for count in rows.values())
    much = much or (total_rows_max is not None and total > total_rows_max)
    return watermark_us if much or (idle and total > 0) else None


@dataclass(frozen=True, slots=True)
class Cuts:
    """The cuts that serve a group of queries, and for each query, in the order given, its cut."""

    times: tuple[int, ...]
    served: tuple[int, ...]


def fewest_cuts(queries: Sequence[tuple[int, int]]) -> Cuts:
    """Serve queries (arrival, bound), each content with any time in [arrival - bound, arrival], from the fewest cuts, each as freshly as they allow (A29)."""
    times: list[int] = []
    for arrived, bound in sorted(queries):
        if not times or times[-1] < arrived - bound:
            times.append(arrived)
    served = tuple(max(time for time in times if arrived - bound <= time <= arrived) for arrived, bound in queries)
    return Cuts(tuple(times), served)
