"""What a query would wait for: the flows behind its tables, what they lack, and about how long that takes.

In: tables, a freshness, and what runners know of their past jobs.
Out: an `Explanation`, as values.
Promise: asks and starts nothing; the estimate is one, from the drains before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from righttime.catalyst.maintainer import Maintainer, choose_cut
from righttime.flows.jobs import JobReport


@dataclass(frozen=True, slots=True)
class FlowNeed:
    """What one flow would have to do: changes by stream that are not published, jobs that are cut, seconds if they can be told.

    `waits_for_source` are the seconds that a source is behind the cut.
    """

    flow: str
    tables: tuple[str, ...]
    streams: Mapping[str, int]
    jobs_queued: int
    rows: int
    estimate_s: float | None
    waits_for_source_s: float
    trouble: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a query over some tables would be answered on, and what it would wait for."""

    tables: tuple[str, ...]
    freshness_s: float
    cut_us: int
    shared: bool
    flows: tuple[FlowNeed, ...]
    producers: tuple[str, ...]

    @property
    def estimate_s(self) -> float | None:
        """The seconds that the slowest flow takes, None if one of them cannot be told."""
        times = [need.estimate_s for need in self.flows]
        return None if None in times else max((time for time in times if time is not None), default=0.0)


def planned_cut(oldest_us: int, asked_us: int, links: Sequence[Maintainer]) -> int:
    """Return where a query that came now would be cut."""
    came_us = max([asked_us, oldest_us, *(link.closed_us for link in links)])
    return choose_cut(oldest_us, came_us, links)


def estimate_s(rows: int, reports: Sequence[JobReport]) -> float | None:
    """Return about how long a drain of so many rows takes: the fixed part of the quickest drains, and the rate of the larger ones."""
    if not reports:
        return None
    seconds = [sum(report.seconds.values()) for report in reports]
    least_s = median(sorted(seconds)[: max(len(seconds) // 2, 1)])
    rates = [took_s / report.rows_in for took_s, report in zip(seconds, reports, strict=True) if report.rows_in]
    return round(max(least_s, rows * min(rates)), 3) if rates else round(least_s, 3)
