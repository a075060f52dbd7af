"""The cutter of one flow: decides where jobs end, and prepares them.

In: cuts that queries want, changes that come, a refresh policy.
Out: jobs in the queue, in the order of their cuts, each with its changes.
Promise: a job ends at every cut that a query waits for; what no query asked for is cut when the policy says so, and not while a job waits for its drain.
"""

from collections.abc import Sequence

from righttime.catalyst.maintainer import Maintainer
from righttime.changes.faults import CrashPoint, reach
from righttime.flows.inputs import prepare
from righttime.flows.job_queue import JobQueue
from righttime.flows.jobs import FlowJob, JobKind
from righttime.flows.schedule import PATIENCE_ROWS, Schedule
from righttime.flows.work import Work

_ROUND_S = 1.0  # how often a cutter looks around though nobody woke it


class Cutter:
    """Runs in a thread of the runner's; `_cut_us` is where the last job ends, and nobody else's."""

    def __init__(self, link: Maintainer, streams: Sequence[str], schedule: Schedule, work: Work, queue: JobQueue, *, rebuild: bool) -> None:
        self._link = link
        self._streams = tuple(streams)
        self._schedule = schedule
        self._with = work
        self._queue = queue
        self._rebuild = rebuild
        self._cut_us = link.horizon_us

    def run(self) -> None:
        """Cut and prepare until the flow stops."""
        catalyst = self._with.catalyst
        if self._rebuild:
            self._pull(catalyst.authority.read_us())
            self._cut_us, *wanted = catalyst.close_job(self._link, anew=True)
            self._queue.cut(0, self._cut_us, "background", catalyst.clock.monotonic_s(), rebuild=True)
            for cut_us in wanted:
                self._cut(cut_us, "query")
        self._schedule.count(self._waiting)  # also what came before we were told of it
        while not self._queue.stopping:
            self._count_tapped()
            timeout_s = _ROUND_S if self._queue.is_behind else min(self._schedule.wait_s(catalyst.clock.monotonic_s()), _ROUND_S)
            for cut_us in catalyst.await_cuts(self._link, timeout_s=0.0 if self.next_arrived() else timeout_s):
                self._pull(cut_us)  # before it is cut: what came to tables may be nothing, or too much for one drain
                self._cut(cut_us, "query")
                self._schedule.asked(catalyst.clock.monotonic_s())
            self._count_tapped()
            if self._is_due():
                self._pull(catalyst.authority.read_us())
                *wanted, now_us = catalyst.close_job(self._link)
                for cut_us in wanted:
                    self._cut(cut_us, "query")
                self._cut(now_us, "background")
            if (waiting := self._queue.first_cut()) is not None:
                self._pull(waiting.horizon_us)
            if (job := self.next_arrived()) is not None:
                self._prepare(job)

    def _pull(self, up_to_us: int) -> None:
        """Bring streams of tables up to a time, or let whoever waits for the flow know why they are not."""
        hindrance = self._with.taps.pull_for(self._streams, up_to_us)
        with self._with.catalyst.lock:
            self._link.hindrance = hindrance

    def _count_tapped(self) -> None:
        """Count what waits anew where streams are of tables: it is told when it is pulled, which may be after its job was cut."""
        waiting = self._with.taps.waiting(self._streams, self._cut_us)
        if waiting is not None:
            self._schedule.count(lambda: waiting + self._waiting())
            self._end_patience()

    def _waiting(self) -> int:
        """Return how many changes streams have that no job has taken."""
        return sum(self._with.feed.rows(self._streams, self._cut_us).values())

    def _is_due(self) -> bool:
        """Tell whether to cut a job that no query asked for."""
        return not self._queue.is_behind and self._schedule.due(self._with.catalyst.clock.monotonic_s())

    def next_arrived(self) -> FlowJob | None:
        """Return the oldest job that is cut and not prepared, if everything up to its horizon has arrived, and the next drain has room for it."""
        job = self._queue.first_cut()
        if job is None or self._queue.rows_ready >= self._with.settings.drain_rows_max:  # else all that waits would be in memory at once
            return None
        return job if self._link.has_arrived(job.horizon_us) else None

    def _cut(self, cut_us: int, kind: JobKind) -> None:
        """Take everything up to `cut_us` into jobs; several if it is more than one drain may hold."""
        while self._cut_us < cut_us:
            horizon_us = self._with.feed.horizon(self._streams, self._cut_us, cut_us, rows_max=self._with.settings.drain_rows_max)
            if not self._queue.unpublished and self._link.has_arrived(horizon_us) and not self._with.feed.rows(self._streams, self._cut_us, horizon_us):
                self._with.catalyst.advance_flow(self._link, horizon_us)  # nothing to do: the state that is there is shared
            else:
                now_s = self._with.catalyst.clock.monotonic_s()
                self._queue.cut(self._cut_us, horizon_us, kind if horizon_us == cut_us else "background", now_s)
            self._cut_us = horizon_us
        self._schedule.cut(self._waiting, self._with.catalyst.clock.monotonic_s())

    def _prepare(self, job: FlowJob) -> None:
        feed = self._with.feed
        job.rows = feed.rows(self._streams, job.after_us, job.horizon_us)
        after_us = max(job.after_us, self._link.horizon_us) if job.rebuild else job.after_us
        job.first_us = min(feed.first_after(self._streams, after_us) or job.horizon_us, job.horizon_us)
        if not job.rebuild:  # else part by part
            prepare(job, feed.streams)
        job.marks["prepared"] = self._with.catalyst.clock.monotonic_s()
        reach(CrashPoint.JOB_PREPARED)
        self._queue.prepared(job)

    def told(self, rows: int) -> None:
        """Rows have come to the streams, or word that nothing more will come up to a time."""
        self._schedule.changed(rows)
        if self._queue.first_cut() is not None or self._link.cuts or self._is_due():
            self.nudge()
        self._end_patience()

    def _end_patience(self) -> None:
        """Wake a drain that lets queries go first: it does so for few changes."""
        if self._schedule.rows > PATIENCE_ROWS:
            with self._with.catalyst.lock:
                self._with.catalyst.space.notify_all()

    def nudge(self) -> None:
        """Have the cutter look around."""
        with self._with.catalyst.lock:
            self._link.nudge()
