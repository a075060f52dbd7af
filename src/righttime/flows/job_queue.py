"""The jobs of one flow on their way: cut, prepared, in a drain, drained, published, always in the order of their cuts.

In: jobs, and word of what became of them, from the three threads of a runner.
Out: the next job for each of the threads, which waits for it.
Promise: one lock guards all of it; no job is left out, and none comes before an earlier one. At most two drains wait to be published.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence

from righttime.flows.jobs import Drained, FlowJob, JobKind, JobReport, report
from righttime.flows.rebuild import Rebuilt
from righttime.flows.replays import Replays
from righttime.pipeline.chain import Chain
from righttime.pipeline.chain import Commit as MayCommit

_DONE_MAX = 2
_REPORTS_MAX = 100
_ROUND_S = 1.0  # how often a thread looks around though nobody woke it


class JobQueue:
    """What the threads of a runner share."""

    def __init__(self, chain: Chain, *, rebuild: bool) -> None:
        self._chain = chain
        self._changed = threading.Condition()
        self._waiting: deque[FlowJob] = deque()  # cut, not prepared
        self._ready: deque[FlowJob] = deque()  # prepared, not in a drain
        self._in_drain: list[FlowJob] = []
        self._done: deque[tuple[list[FlowJob], Drained | Rebuilt]] = deque()  # drained, not published
        self._unpublished = 0
        self._reports: deque[JobReport] = deque(maxlen=_REPORTS_MAX)
        self._rebuild = rebuild
        self.replays = Replays()
        self.stopping = False

    def stop(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def jobs(self) -> list[FlowJob]:
        """Return the jobs that are cut and not published, oldest first, without those that are being computed."""
        with self._changed:
            return [*(job for jobs, _ in self._done for job in jobs), *self._ready, *self._waiting]

    def in_drain(self) -> list[FlowJob]:
        """Return the jobs that are being computed, oldest first."""
        with self._changed:
            return list(self._in_drain)

    def reports(self) -> list[JobReport]:
        """Return the last published jobs, oldest first."""
        with self._changed:
            return list(self._reports)

    @property
    def unpublished(self) -> int:
        """How many jobs are cut and not published; one more as long as a job is wanted though nothing has changed."""
        with self._changed:
            return self._unpublished + self.replays.is_waiting()

    @property
    def is_idle(self) -> bool:
        """Whether no job is under way."""
        with self._changed:
            return not self._unpublished

    @property
    def is_behind(self) -> bool:
        """Whether a job waits for its drain: what comes until then belongs to the next one, for further jobs of nobody's would only wait with it."""
        with self._changed:
            return bool(self._waiting or self._ready)

    @property
    def rows_ready(self) -> int:
        """How many changes the prepared jobs have; they are in memory, or soon will be."""
        with self._changed:
            return sum(job.rows_in for job in self._ready)

    @property
    def rows_unasked(self) -> float:
        """How many changes the prepared jobs have; beyond all bounds if somebody asked for one, or rows are to be tried again."""
        with self._changed:
            asked = self.replays.is_waiting() or any(job.kind == "query" or job.rebuild for job in (*self._ready, *self._waiting))
            return float("inf") if asked else sum(job.rows_in for job in self._ready)

    # -- cut and prepared --------------------------------------------------------------------------------------------

    def cut(self, after_us: int, horizon_us: int, kind: JobKind, now_s: float, *, rebuild: bool = False) -> None:
        """Add the next job."""
        with self._changed:
            job = FlowJob(self._chain.cut(horizon_us, kind).tid, after_us, horizon_us, 0, kind, {}, rebuild)
            job.marks["cut"] = now_s
            self._waiting.append(job)
            self._unpublished += 1

    def first_cut(self) -> FlowJob | None:
        """Return the oldest job that is not prepared."""
        with self._changed:
            return self._waiting[0] if self._waiting else None

    def prepared(self, job: FlowJob) -> None:
        """Hand on the oldest job that was not prepared."""
        with self._changed:
            first = self._waiting.popleft()
            assert first is job
            self._ready.append(job)
            self._changed.notify_all()

    # -- drained -----------------------------------------------------------------------------------------------------

    def await_ready(self) -> None:
        """Wait for a prepared job, and for room behind the drains that are not published; not when the flow stops."""
        with self._changed:
            while not self.stopping and (not self._ready or len(self._done) >= _DONE_MAX):
                self._changed.wait(timeout=_ROUND_S)

    def await_more(self, timeout_s: float) -> bool:
        """Wait for one more prepared job; return whether there is one, or the flow stops."""
        with self._changed:
            ready = len(self._ready)
            return self._changed.wait_for(lambda: self.stopping or len(self._ready) > ready, timeout=timeout_s)

    def await_published(self, timeout_s: float) -> bool:
        """Wait until no drain waits to be published; return whether that is so, or the flow stops."""
        with self._changed:
            return self._changed.wait_for(lambda: self.stopping or not self._done, timeout=timeout_s)

    def take(self, fits: Callable[[Sequence[FlowJob]], int]) -> list[FlowJob] | None:
        """Take as many prepared jobs as fit into a drain; None when the flow stops."""
        with self._changed:
            if self.stopping:
                return None
            self._in_drain = [self._ready.popleft() for _ in range(fits(self._ready))]
            return self._in_drain

    def drained(self, jobs: list[FlowJob], result: Drained | Rebuilt) -> None:
        """Hand on what a drain made."""
        with self._changed:
            self._in_drain = []
            self._done.append((jobs, result))
            self._changed.notify_all()

    # -- published ---------------------------------------------------------------------------------------------------

    def await_drained(self) -> tuple[list[FlowJob], Drained | Rebuilt] | None:
        """Wait for the oldest drain that is not published; it stays until `all_published`. None when the flow stops."""
        with self._changed:
            while not self.stopping and not self._done:
                self._changed.wait(timeout=_ROUND_S)
            return None if self.stopping else self._done[0]

    def publishing(self, job: FlowJob) -> None:
        """See that it is this job's turn."""
        with self._changed:
            self._chain.complete(job.number)
            assert self._chain.next_action() == MayCommit(job.number), "jobs are published in the order of their cuts"

    def published(self, job: FlowJob) -> None:
        """Note that a job can be seen."""
        with self._changed:
            self._chain.committed(job.number)
            self._unpublished -= 1
            self._reports.append(report(job))
            if job.rebuild:
                self._rebuild = False
                self._changed.notify_all()

    def all_published(self) -> None:
        """Let the oldest drain go."""
        with self._changed:
            self._done.popleft()
            self._changed.notify_all()

    def await_rebuilt(self, timeout_s: float) -> bool:
        """Wait until targets that are built anew are there; returns False if the flow stops before or it takes longer. At once if they are not built anew."""
        with self._changed:
            self._changed.wait_for(lambda: not self._rebuild or self.stopping, timeout=timeout_s)
            return not self._rebuild
