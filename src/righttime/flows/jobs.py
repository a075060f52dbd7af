"""Jobs: the work of a flow between two cuts, and where the time went.

In: horizons, rows and marks of time.
Out: values for the runner, the status and the explanation of a query.
Promise: a job knows exactly which changes it takes: those later than the horizon before it, up to its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa

from righttime.flows.replays import Replay

JobKind = Literal["query", "background"]


@dataclass(slots=True)
class FlowJob:
    """One job; `marks` are monotonic seconds at which it was cut, prepared, computed and published.

    `inputs` are the changes with the job's number, `segments` whole files of the streams. One that is a `rebuild` replaces its targets; it is computed in
    parts, which know its number. With `replay`, dead letters are tried again before its changes.
    """

    number: int
    after_us: int
    horizon_us: int
    first_us: int
    kind: JobKind
    rows: Mapping[str, int]
    rebuild: bool = False
    part_of: int | None = None
    inputs: dict[str, pa.Table] = field(default_factory=dict)
    segments: dict[str, list[Path]] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)
    rows_out: int = 0
    jobs_in_drain: int = 0
    unmet: dict[str, int] = field(default_factory=dict)
    replay: Replay | None = None

    @property
    def rows_in(self) -> int:
        return sum(self.rows.values())


class Drained(Protocol):
    """What a drain made: for each target its lines, job by job, in one table or in several; it may be in files until it is closed."""

    def of_job(self, number: int) -> Iterator[tuple[str, pa.Table]]: ...
    def unmet(self, number: int) -> dict[str, int]: ...
    def close(self) -> None: ...


class Engine(Protocol):
    """Computes drains; keeps the state of the operators, which is `scattered` when it has come to many files. Once given up, drains raise."""

    def drain(self, jobs: Sequence[FlowJob]) -> Drained: ...
    def give_up(self) -> None: ...
    @property
    def is_scattered(self) -> bool: ...
    def compact(self, up_to_job: int) -> None: ...
    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class JobReport:
    """A published job as the status shows it: seconds it waited to be prepared, to be computed, and was computed and published.

    `unmet` counts the rows that did not meet each expectation.
    """

    number: int
    kind: JobKind
    horizon_us: int
    rows_in: int
    rows_out: int
    jobs_in_drain: int
    seconds: Mapping[str, float]
    unmet: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What a drain is computing: how many changes, for how long; of targets that are built anew, how many parts are done, and all."""

    rows: int
    seconds: float
    parts: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """One flow: whether it runs, what waits, how far it is, and its last jobs. `hindrance` says what changes wait for though it runs.

    `dead_letters` are the rows of its table of dead letters.
    """

    name: str
    running: bool
    trouble: str
    streams: tuple[str, ...]
    targets: tuple[str, ...]
    jobs_waiting: int
    rows_waiting: int
    horizon_us: int
    lag_s: float
    jobs: Sequence[JobReport]
    hindrance: str = ""
    dead_letters: int = 0


def report(job: FlowJob) -> JobReport:
    """Return what is worth telling of a published job."""
    names = ("cut", "prepared", "started", "computed", "published")
    marks = [job.marks.get(name, 0.0) for name in names]
    spans = {f"{name}_s": round(later - earlier, 6) for name, earlier, later in zip(("prepare", "wait", "compute", "publish"), marks, marks[1:], strict=False)}
    return JobReport(job.number, job.kind, job.horizon_us, job.rows_in, job.rows_out, job.jobs_in_drain, spans, job.unmet)


def fused(jobs: Sequence[FlowJob], *, rows_max: int, jobs_max: int) -> int:
    """Return how many of the waiting jobs go into the next drain: as many as fit, and always one."""
    rows = 0
    for count, job in enumerate(jobs):
        rows += job.rows_in
        if count and (rows > rows_max or count >= jobs_max):
            return count
    return len(jobs)
