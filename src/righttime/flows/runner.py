"""The runner of one flow: has jobs cut, drains them on Spark, publishes them in order.

In: cuts that queries want, changes that come, a refresh policy.
Out: one commit in the catalyst for each job, at the job's horizon.
Promise: jobs are published in the order of their cuts, each whole and once. While one drain computes, the next jobs are prepared and the last are published.
A failure stops the flow, not the warehouse: what is published stays, and queries that need more are told why.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import pyarrow as pa

from righttime.catalyst.maintainer import HOW_TO_TELL, Maintainer
from righttime.changes.faults import CrashPoint, reach
from righttime.errors import CatalystFull, RightTimeError
from righttime.errors.flows import ExpectationFailed, FlowFailed, KeyTwice, LookupFailed, ReplayUnfinished, UnknownFlowLetter
from righttime.flows.content import TargetContent
from righttime.flows.cutter import Cutter
from righttime.flows.job_queue import JobQueue
from righttime.flows.jobs import Drained, FlowJob, JobReport, UnderWay, fused
from righttime.flows.rebuild import Rebuilt, rebuild
from righttime.flows.schedule import PATIENCE_ROWS, Schedule
from righttime.flows.work import Work
from righttime.pipeline.chain import Chain
from righttime.telemetry import METRICS, get_log

log = get_log("flow")

ASLEEP = "the flow does not run: start it with Warehouse.run, or `righttime run`"

# The two others are yardsticks: queries take what windows of time have brought, or wait for one run of the flow after the other.
Mode = Literal["on_demand", "near_real_time", "sequential"]
_GATHER_S = 0.05  # what comes later is taken by the next drain, all of it: waiting longer for it makes both later
_PAUSE_S = 0.01
_CROWD = 1  # queries for each core that may run on while a drain begins; with two there are a quarter more drains for the same answers
_YIELD_S = 1.0
_PATIENCE_S = 5.0  # how long a drain that nobody asked for lets queries go first
_ROUND_S = 1.0  # how often a runner looks around though nobody woke it


class FlowRunner:
    """Three threads of one flow: one cuts and prepares, one computes, one publishes; what they share is in the queue."""

    def __init__(
        self,
        link: Maintainer,
        streams: Sequence[str],
        targets: Sequence[str],
        schedule: Schedule,
        work: Work,
        *,
        mode: Mode = "on_demand",
        rebuild: bool = False,
    ) -> None:
        self.link = link
        self.mode = mode
        self.streams = tuple(streams)
        self._targets = tuple(targets)  # the link has those of the state before as well, until they are built anew
        self._schedule = schedule
        self._with = work
        last = work.catalyst.head.source(link.source)
        self._queue = JobQueue(Chain(strict=False, tid=last.next_number - 1, horizon_us=link.horizon_us), rebuild=rebuild)
        self._cutter = Cutter(link, streams, schedule, work, self._queue, rebuild=rebuild)
        self.parts = (0, 1)  # of targets that are built anew: how many are done, and all
        self.failure: FlowFailed | None = None
        steps = (("cut", self._cutter.run), ("drain", self._drain_all), ("publish", self._publish_all))
        self._threads = [threading.Thread(target=self._guarded, args=(run,), name=f"righttime-{link.source}-{name}", daemon=True) for name, run in steps]

    def start(self) -> None:
        """Begin to work."""
        with self._with.catalyst.lock:
            self.link.trouble, self.link.failure = "", None
            self.link.closed_us = self.link.horizon_us
            # What an earlier runner cut and did not publish is cut again, but only where somebody waits: what was mended meanwhile belongs together.
            awaited = {admission.cut_us for admission in self._with.catalyst.admissions}
            self.link.cuts = [cut_us for cut_us in self.link.cuts if cut_us in awaited]
        self._with.feed.tell(self.link.source, self._cutter.told)
        self._with.taps.watch(self.link, self.streams, self._schedule.urgent)
        for thread in self._threads:
            thread.start()

    def stop(self, *, wait_s: float | None = None) -> None:
        """End after the drain under way; what is cut and not published is cut again when the flow runs again."""
        self._with.feed.forget(self.link.source)
        self._halt(str(self.failure or ASLEEP))
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=wait_s)

    def give_up(self) -> None:
        """Stop, and cancel the drain under way; does not wait for either."""
        self._with.feed.forget(self.link.source)
        self._halt(str(self.failure or ASLEEP))  # first: nothing of a drain that is cancelled may be published
        self._with.engine.give_up()

    @property
    def running(self) -> bool:
        """Whether the flow is at work."""
        return not self._queue.stopping and any(thread.is_alive() for thread in self._threads)

    def reports(self) -> list[JobReport]:
        """Return the last published jobs, oldest first."""
        return self._queue.reports()

    def await_rebuilt(self, timeout_s: float) -> bool:
        """Wait until targets that are built anew are there; returns False if the flow stops before or it takes longer. At once if they are not built anew."""
        return self._queue.await_rebuilt(timeout_s)

    @property
    def patience_s(self) -> float:
        """How long a query waits for a source, if it does not say."""
        return self._with.settings.wait_s

    def replay(self, ids: Iterable[str] | None, *, wait_s: float, still_s: float) -> int:
        """Have dead letters tried again, and wait until that is published; returns how many rows passed.

        Waits for `wait_s`, and no longer than `still_s` for a source that stands still.
        """
        now_s, replays = self._with.catalyst.clock.monotonic_s, self._queue.replays
        asked, begun_s = replays.ask(ids), now_s()
        with self._with.catalyst.lock:
            self._with.catalyst.space.notify_all()  # a job that nobody asked for is asked for now
        moved_s = begun_s
        while not asked.done.wait(timeout=_GATHER_S):
            hindered = self._hindered()
            moved_s = moved_s if hindered else now_s()
            if not self.running or now_s() >= min(begun_s + wait_s, moved_s + (still_s if hindered else wait_s)):
                replays.drop(asked)
                why = hindered or f"it took longer than {wait_s:g} s"
                raise self.failure or ReplayUnfinished(flow=self.link.source.removeprefix("flow."), why=why if self.running else "the flow has stopped")
            self._end_job()
        if asked.unknown:
            others = "the others were tried again" if (asked.ids or frozenset()) - set(asked.unknown) else "nothing was tried again"
            raise UnknownFlowLetter(flow=self.link.source.removeprefix("flow."), ids=", ".join(asked.unknown), others=others)
        return asked.passed

    def _hindered(self) -> str:
        """Return why no further job can end for the time being: a state is shown at a later time than the one before it."""
        link = self.link
        with self._with.catalyst.lock:
            if self._queue.is_idle and link.arrived_us is not None and link.arrived_us <= link.closed_us:
                published = ", which is published" if link.arrived_us else ""
                return f"its stream {link.late_stream!r} has told of {link.told}{published}; {HOW_TO_TELL}"
            return link.hindrance

    def _end_job(self) -> None:
        """Have a job end about now, though nothing has changed, unless one is under way."""
        catalyst, link = self._with.catalyst, self.link
        with catalyst.lock:
            now_us = catalyst.authority.read_us()
            here_us = now_us if link.arrived_us is None else min(now_us, link.arrived_us)
            if self._queue.is_idle and here_us > link.closed_us and not link.cuts_due():
                link.cuts.append(here_us)  # though the targets are exact there: the job is for its own sake
                link.cuts.sort()
                link.asked.notify_all()
                catalyst.space.notify_all()

    def queue(self) -> list[FlowJob]:
        """Return the jobs that are cut and not published, oldest first, without those that are being computed."""
        return self._queue.jobs()

    def under_way(self) -> UnderWay | None:
        """Return what is being computed, None if nothing is."""
        jobs, now_s = self._queue.in_drain(), self._with.catalyst.clock.monotonic_s()
        if not jobs or self._queue.stopping:
            return None
        return UnderWay(sum(job.rows_in for job in jobs), now_s - jobs[0].marks.get("started", now_s), self.parts if jobs[0].rebuild else None)

    # -- draining ----------------------------------------------------------------------------------------------------

    def _drain_all(self) -> None:
        while (jobs := self._next_drain()) is not None:
            if self._schedule.rows or self._queue.first_cut() is not None:
                self._cutter.nudge()  # what waits may be cut from now on, and what is cut has room to be prepared
            now_s = self._with.catalyst.clock.monotonic_s
            for job in jobs:
                job.marks["started"], job.jobs_in_drain = now_s(), len(jobs)
            drained = self._rebuilt(jobs[0]) if jobs[0].rebuild else self._drained(jobs)
            if drained is None:
                return
            for job in jobs:
                job.marks["computed"] = now_s()
            self._queue.drained(jobs, drained)

    def _drained(self, jobs: Sequence[FlowJob]) -> Drained:
        changed = [job for job in jobs if job.rows_in]
        replay = self._queue.replays.take()
        if replay is not None:
            # With the first of all: a letter whose row goes in this drain is tried before that.
            jobs[0].replay = replay
            return self._with.engine.drain(changed if changed and changed[0] is jobs[0] else [jobs[0], *changed])
        return self._with.engine.drain(changed) if changed else _NOTHING

    def _rebuilt(self, job: FlowJob) -> Rebuilt | None:
        """Return what the targets become; None if the flow stops before that is known."""
        try:
            return self._rebuilt_in_parts(job, self._with.settings.drain_rows_max)
        except (ExpectationFailed, LookupFailed, KeyTwice):
            # What was wrong for a while, and mended since, is wrong for a part and not for the whole.
            if self.parts[1] == 1:
                raise
            log.info("flow.rebuilding_at_once", flow=self.link.source, rows=job.rows_in)
            self._with.engine.forget()
            return self._rebuilt_in_parts(job, job.rows_in)

    def _rebuilt_in_parts(self, job: FlowJob, rows_max: int) -> Rebuilt | None:
        contents = {table: self._with.content(table, True) for table in self._targets}
        return rebuild(job, self.streams, self._with.feed, self._with.engine, contents, rows_max=rows_max, go_on=self._part_done)

    def _part_done(self, done: int, of: int) -> bool:
        self.parts = (done, of)
        if of > 1:
            log.info("flow.rebuilding", flow=self.link.source, parts_done=done, parts=of)
        return not self._queue.stopping

    def _next_drain(self) -> list[FlowJob] | None:
        """Wait for prepared jobs, and take as many as one drain may hold; None when the flow stops."""
        self._queue.await_ready()
        if self.mode == "sequential":
            while not self._queue.await_published(_ROUND_S):  # a run of the flow comes to its end before the next one begins
                pass
        else:
            if self.mode == "on_demand":
                self._let_queries_go_first()
            self._gather()
        if self.mode == "on_demand":
            self._yield()
        return self._queue.take(self._fitting)

    def _fitting(self, ready: Sequence[FlowJob]) -> int:
        """Return how many of the prepared jobs go into the next drain."""
        settings = self._with.settings
        alone = self.mode == "sequential" or ready[0].rebuild
        return 1 if alone else fused(ready, rows_max=settings.drain_rows_max, jobs_max=settings.drain_jobs_max)

    def _gather(self) -> None:
        """Let jobs that follow hard on each other come along: a drain of one costs nearly as much as a drain of twenty."""
        clock = self._with.catalyst.clock
        until_s = clock.monotonic_s() + _GATHER_S
        while not self._queue.stopping and clock.monotonic_s() < until_s:
            if not self._queue.await_more(_PAUSE_S) and not self._cutter.next_arrived():
                return

    def _let_queries_go_first(self) -> None:
        """Hold few changes that nobody asked for back while queries run: whoever asks next has them computed with its own, and nobody pays for two drains."""
        catalyst = self._with.catalyst

        def asked_or_quiet() -> bool:
            return self._queue.stopping or not self._is_patient() or not self._queries_running()

        with catalyst.lock:
            catalyst.space.wait_for(asked_or_quiet, timeout=_PATIENCE_S)

    def _queries_running(self) -> int:
        """Return how many queries run; the caller has the catalyst's lock."""
        catalyst = self._with.catalyst
        return catalyst.leases.running(now_s=catalyst.clock.monotonic_s())

    def _is_patient(self) -> bool:
        """Tell whether nobody waits for the prepared jobs, and few changes do; the caller has the catalyst's lock."""
        asked = self.link.insisted_us > self.link.horizon_us
        return self._schedule.is_patient and not asked and self._queue.rows_unasked + self._schedule.rows <= PATIENCE_ROWS

    def _yield(self) -> None:
        """Let queries that run come to their ends while there are more of them than cores can carry: a drain would make them later, and those that come
        meanwhile are taken along. The more wait already, the sooner it begins, so that cores have something to do until it has ended."""
        catalyst, crowd = self._with.catalyst, _CROWD * self._with.cores
        with catalyst.lock:
            if self._queries_running() + len(catalyst.admissions) <= crowd:
                return
        self._queue.await_published(_YIELD_S)  # whoever waits for these is about to run

        def few_run() -> bool:
            waiting = sum(not admission.tables.isdisjoint(self.link.tables) for admission in catalyst.admissions)
            return self._queue.stopping or self._queries_running() <= max(crowd, waiting // 2)

        with catalyst.lock:
            catalyst.space.wait_for(few_run, timeout=_YIELD_S)

    # -- publishing --------------------------------------------------------------------------------------------------

    def _publish_all(self) -> None:
        while (done := self._queue.await_drained()) is not None:
            for place, job in enumerate(done[0]):
                if place:
                    self._relieve()  # the jobs of one drain may be too much for memory together
                self._publish(job, done[1])
            if not isinstance(done[1], Rebuilt):
                done[1].close()
            self._queue.all_published()
            self._relieve()

    def _relieve(self) -> None:
        """Store and sum up what has grown large. What cannot be done now is done after a later job; what has no room until then says so."""
        try:
            self._with.relieve(self.link)
        except RightTimeError as error:
            if not error.retryable:
                raise
            log.warning("flow.not_relieved", flow=self.link.source, code=error.code, error=str(error))

    def _publish(self, job: FlowJob, drained: Drained | Rebuilt) -> None:
        self._queue.publishing(job)
        contents = drained.contents if isinstance(drained, Rebuilt) else self._contents(job, drained)
        content = {table: made.parts() for table, made in contents.items()}
        for table, made in contents.items():
            self._make_room(table, made.memory_bytes)
        reach(CrashPoint.JOB_STAGED)
        catalyst = self._with.catalyst
        with catalyst.lock:
            if job.rebuild:
                self._with.rebuilt(job.horizon_us)
            published = catalyst.publish_job(self.link, content, first_us=job.first_us, horizon_us=job.horizon_us)
        assert published.commit.number == job.number, (published, job)
        reach(CrashPoint.JOB_PUBLISHED)
        job.inputs.clear()
        job.rows_out = sum(part.rows for parts in content.values() for part in parts)
        job.unmet = drained.unmet if isinstance(drained, Rebuilt) else drained.unmet(job.number)
        job.marks["published"] = catalyst.clock.monotonic_s()
        self._queue.published(job)
        if job.replay is not None:
            job.replay.done.set()
        METRICS.counter("righttime_flow_jobs_total").inc(flow=self.link.source, kind=job.kind)
        METRICS.counter("righttime_flow_rows_total").inc(job.rows_in, flow=self.link.source)
        for name, rows in job.unmet.items():
            METRICS.counter("righttime_flow_unmet_total", description="Rows that did not meet an expectation.").inc(
                rows, flow=self.link.source, expectation=name
            )

    def _make_room(self, table: str, nbytes: int) -> None:
        """Return when so many bytes more fit into a target's memory. A query that waits for another flow may keep it from being stored, so that is tried
        again."""
        now_s = self._with.catalyst.clock.monotonic_s
        until_s = now_s() + self._with.settings.full_wait_s
        while True:
            left_s = until_s - now_s()
            try:
                return self._with.make_room(table, nbytes, max(min(left_s, _ROUND_S), 0.0))
            except CatalystFull:
                if left_s <= 0 or self._queue.stopping:
                    raise
                self._relieve()

    def _contents(self, job: FlowJob, drained: Drained) -> dict[str, TargetContent]:
        contents: dict[str, TargetContent] = {}
        for table, lines in drained.of_job(job.number):
            if table not in contents:
                contents[table] = self._with.content(table, False)
            contents[table].add(lines)
        return contents

    # -- the end -----------------------------------------------------------------------------------------------------

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            if self._queue.stopping:
                return
            self.failure = error if isinstance(error, FlowFailed) else _failed(self.link.source.removeprefix("flow."), error)
            self.failure.__cause__ = error
            log.error("flow.failed", flow=self.link.source, error=repr(error), exc_info=not isinstance(error, RightTimeError))
            self._halt(str(self.failure))

    def _halt(self, trouble: str) -> None:
        self._queue.stop()
        with self._with.catalyst.lock:
            self.link.trouble, self.link.failure = trouble, self.failure
            self.link.nudge()
            self._with.catalyst.arrivals.notify_all()
            self._with.catalyst.space.notify_all()


class _Nothing:
    def of_job(self, number: int) -> Iterator[tuple[str, pa.Table]]:
        return iter(())

    def unmet(self, number: int) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """Nothing is in files."""


_NOTHING = _Nothing()


def _failed(flow: str, error: Exception) -> FlowFailed:
    """Return why a flow has stopped; what names the flow first, as its errors do, need not do so twice."""
    reason = str(error).split("\n", 1)[0].removesuffix(".") or type(error).__name__
    for begin in (f"Flow {flow!r}, ", f"Flow {flow!r}: "):
        reason = reason.removeprefix(begin)
    return FlowFailed(flow=flow, reason=reason)
