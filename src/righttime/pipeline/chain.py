"""The chain of jobs, and the order in which they commit and their queries begin.

In: cuts, completions and acknowledgements from a runner, which holds its own lock; times are passed in.
Out: which commit or begin may happen next, which job a change belongs to, which jobs have all their changes.
Promise: commits happen in the order of the jobs. In strict mode a query begins after the commit of its job and before the next commit; otherwise the
runner reads the state of that job, and later commits do not wait for it. Exactly one job is open, the last one. No clock, no threads.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from righttime.pipeline.admission import Share, decide

Kind = Literal["query", "background"]


@dataclass(slots=True)
class Job:
    """The work of a flow between two cuts; `horizon_us` is None as long as the job is open."""

    tid: int
    horizon_us: int | None = None
    kind: Kind | None = None
    state: Literal["pending", "in_progress", "finished"] = "pending"
    arrived: bool = False  # everything up to the horizon is here, its end-of-job markers are due or sent
    queries: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Element:
    """An entry of the schedule: C is the commit of a job (open, closed, complete), B the begin of a query."""

    kind: Literal["C", "B"]
    tid: int
    state: Literal["open", "closed", "complete", "waiting"]
    query: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """Job `tid` may commit now; acknowledge with `committed`."""

    tid: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Query `query` may begin on the state of job `tid` now; acknowledge with `begun`."""

    query: str
    tid: int


@dataclass(frozen=True, slots=True)
class Event:
    """What happened: cut, arrived, complete, commit, failed, suspend, begin, cancel."""

    what: str
    tid: int
    query: str | None = None


class Chain:
    """Jobs from open over in progress to finished, and the schedule (`ssq`) of their commits and of the begins of queries."""

    def __init__(self, *, strict: bool, tid: int = 0, horizon_us: int = 0, finished_max: int = 64, journal_max: int = 1024) -> None:
        """Go on after the finished job `tid`, whose state holds everything up to `horizon_us`."""
        self.strict = strict
        self.watermark_us = horizon_us
        self._finished = deque([Job(tid, horizon_us, "background", "finished", arrived=True)], maxlen=finished_max)
        self._running: dict[int, Job] = {}  # closed and not finished, in order
        self._open = Job(tid + 1)
        self._ssq = deque([Element("C", tid + 1, "open")])
        self._commits = {tid + 1: self._ssq[0]}  # the C elements by job
        self._waiting: dict[str, int] = {}  # queries that have not begun, with their jobs
        self._granted: Commit | Begin | None = None
        self._journal: deque[Event] = deque(maxlen=journal_max)

    # cutting

    def cut(self, horizon_us: int, kind: Kind, query: str | None = None) -> Job:
        """Close the open job at `horizon_us` and open the next; with a query, suspend it on the closed job (A2)."""
        assert horizon_us >= self.horizon_us, "horizons do not decrease"
        job, self._open = self._open, Job(self._open.tid + 1)
        job.horizon_us, job.kind, job.state = horizon_us, kind, "in_progress"
        self._running[job.tid] = job
        self._commits[job.tid].state = "closed"
        self._note("cut", job.tid, query)
        if query is not None:
            self._enqueue(query, job, len(self._ssq))
        self._commits[self._open.tid] = Element("C", self._open.tid, "open")
        self._ssq.append(self._commits[self._open.tid])
        return job

    def admit(self, query: str, *, arrived_us: int, bound_us: int = 0, tolerance_us: int = 0, watermark_us: int, first_open_us: int | None = None) -> Job:
        """Bind a query to the job whose state it will read: an existing one if that is fresh enough, else a new cut (A3).

        `first_open_us` is the commit time of the first change known after the last closed horizon. Return the job; it may be finished.
        """
        decision = decide(self.candidates(), self.last_closed, arrived_us, max(bound_us, tolerance_us), watermark_us, first_open_us)
        if isinstance(decision, Share):
            return self.suspend(query, decision.tid)
        return self.cut(decision.horizon_us, "query", query)

    def candidates(self) -> list[tuple[int, int]]:
        """Return (tid, horizon) of the jobs whose state a new query could still read, the one that is ready first in front."""
        newest = self._finished[-1]
        if not self.strict:
            ready: Iterable[Job] = reversed(self._finished)
        else:  # without time travel only the newest state can be read, and not once the next commit has been permitted
            ready = () if isinstance(self._granted, Commit) else (newest,)
        return [(job.tid, job.horizon_us) for job in (*ready, *self._running.values()) if job.horizon_us is not None]

    # arrival of changes

    def route(self, commit_us: int) -> int:
        """Return the job that a change with this commit time belongs to (A1)."""
        for job in self._running.values():
            if not job.arrived and job.horizon_us is not None and commit_us <= job.horizon_us:
                return job.tid
        return self._open.tid

    def advance(self, watermark_us: int) -> list[int]:
        """Note that every commit up to the time has been delivered; return the jobs that have just got all their changes, in order."""
        self.watermark_us = max(self.watermark_us, watermark_us)
        due = [job for job in self._running.values() if not job.arrived and job.horizon_us is not None and job.horizon_us <= self.watermark_us]
        for job in due:
            job.arrived = True
            self._note("arrived", job.tid)
        return [job.tid for job in due]

    # the schedule

    def complete(self, tid: int) -> None:
        """Note that all rows of the job have reached their targets and wait for the commit."""
        element = self._commits[tid]
        assert element.state == "closed", f"job {tid} is {element.state}"
        element.state = "complete"
        self._note("complete", tid)

    def next_action(self) -> Commit | Begin | None:
        """Return what may happen next, or None while the head is not ready or an acknowledgement is missing (A5)."""
        head = self._ssq[0]
        if head.kind == "B" and head.query is not None and (self._granted is None or not self.strict):
            self._ssq.popleft()
            begin = Begin(head.query, head.tid)
            if self.strict:
                self._granted = begin
            return begin
        if head.kind == "C" and head.state == "complete" and self._granted is None:
            self._ssq.popleft()
            self._granted = Commit(head.tid)
            return self._granted
        return None

    def committed(self, tid: int) -> Job:
        """Acknowledge that the commit has really happened; the job is finished."""
        assert self._granted == Commit(tid), f"commit of job {tid} was not permitted"
        self._granted = None
        job = self._running.pop(tid)
        job.state = "finished"
        del self._commits[tid]
        self._finished.append(job)
        self._note("commit", tid)
        return job

    def failed(self, tid: int) -> None:
        """Take a complete or permitted commit back: the job has to be run again, and everything behind it waits."""
        if self._granted == Commit(tid):
            self._granted = None
            self._ssq.appendleft(self._commits[tid])
        self._commits[tid].state = "closed"
        self._note("failed", tid)

    def begun(self, query: str) -> None:
        """Acknowledge that the query has taken its snapshot."""
        tid = self._waiting.pop(query)
        if self.strict:
            assert self._granted == Begin(query, tid), f"begin of query {query} was not permitted"
            self._granted = None
        self._note("begin", tid, query)

    def suspend(self, query: str, tid: int) -> Job:
        """Let a query wait for the state of an existing job, behind the queries that already do."""
        job = self.job(tid)
        ahead = 0
        if job.state == "finished":
            assert not self.strict or (job is self._finished[-1] and not isinstance(self._granted, Commit)), f"the state of job {tid} cannot be read any more"
        else:
            ahead = 1 + self._ssq.index(self._commits[tid]) if self._granted != Commit(tid) else 0
        while self._ssq[ahead].kind == "B" and self._ssq[ahead].tid <= tid:
            ahead += 1
        self._enqueue(query, job, ahead)
        return job

    def cancel(self, query: str) -> bool:
        """Forget a query that has not begun; its job stays in the chain. Return whether it was still waiting."""
        tid = self._waiting.pop(query, None)
        if tid is None:
            return False
        self._ssq = deque(element for element in self._ssq if element.query != query)
        if self._granted == Begin(query, tid):
            self._granted = None
        self._note("cancel", tid, query)
        return True

    # looking

    @property
    def last_closed(self) -> Job:
        """The newest job that is not open."""
        return next(reversed(self._running.values()), self._finished[-1])

    @property
    def last_finished(self) -> Job:
        """The newest job whose state is published."""
        return self._finished[-1]

    @property
    def open_tid(self) -> int:
        """The number of the job that collects."""
        return self._open.tid

    @property
    def horizon_us(self) -> int:
        """The horizon of the last closed job."""
        horizon_us = self.last_closed.horizon_us
        assert horizon_us is not None
        return horizon_us

    def job(self, tid: int) -> Job:
        """Return a job that is open, in progress, or among the last finished ones."""
        if tid == self._open.tid:
            return self._open
        job = self._running.get(tid) or next((job for job in reversed(self._finished) if job.tid == tid), None)
        assert job is not None, f"job {tid} is not known any more"
        return job

    def running(self) -> list[Job]:
        """Return the jobs that are closed and not finished, in order: the maintenance queue without its open tail."""
        return list(self._running.values())

    def waiting(self) -> dict[str, int]:
        """Return the queries that have not begun, with their jobs."""
        return dict(self._waiting)

    def elements(self) -> list[Element]:
        """Return the schedule from its head to the open element."""
        return list(self._ssq)

    def journal(self) -> list[Event]:
        """Return the last events, oldest first."""
        return list(self._journal)

    def _enqueue(self, query: str, job: Job, place: int) -> None:
        assert query not in self._waiting, f"query {query} waits already"
        self._ssq.insert(place, Element("B", job.tid, "waiting", query))
        self._waiting[query] = job.tid
        job.queries.append(query)
        self._note("suspend", job.tid, query)

    def _note(self, what: str, tid: int, query: str | None = None) -> None:
        self._journal.append(Event(what, tid, query))
