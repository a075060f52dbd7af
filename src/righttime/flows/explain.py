"""What a query would wait for: the flows behind its tables, what they lack, and about how long that takes.

In: tables, a freshness, and what runners know of their past jobs.
Out: an `Explanation`, as values.
Promise: asks and starts nothing; the estimate is one, from the drains before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

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


def estimate_s(rows: int, reports: Sequence[JobReport]) -> float | None:
    """Return about how long a drain of so many rows takes: the fixed part of the quickest drains, and the rate of the larger ones.

    What a job waited before is left out: it is about queries and sources, not about rows.
    """
    drains = [(max(_took_s(job) for job in drain), sum(job.rows_in for job in drain) * drain[0].jobs_in_drain / len(drain)) for drain in _drains(reports)]
    if not drains:
        return None
    seconds = sorted(took_s for took_s, _ in drains)
    least_s = median(seconds[: max(len(seconds) // 2, 1)])
    rates = [took_s / rows_in for took_s, rows_in in drains if rows_in]
    return round(max(least_s, rows * min(rates)), 3) if rates else round(least_s, 3)


def _took_s(job: JobReport) -> float:
    """Return the seconds of a job's drain until it was published; of jobs that were drained together the last one has all of them."""
    return job.seconds.get("compute_s", 0.0) + job.seconds.get("publish_s", 0.0)


def _drains(reports: Sequence[JobReport]) -> list[list[JobReport]]:
    """Return jobs that were drained together; of the first and of the last drain some may be missing."""
    drains: list[list[JobReport]] = []
    for job in reports:
        same = drains and len(drains[-1]) < job.jobs_in_drain == drains[-1][0].jobs_in_drain
        drains[-1].append(job) if same else drains.append([job])
    return drains
