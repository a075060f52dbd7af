"""The papers' engine in plain Python: operator threads over a chain of jobs.

In: source transactions, watermarks and queries with their arrival times; a function that builds the operators.
Out: snapshots, and a log of what was really committed and begun.
Promise: small and obviously right, not fast. One condition guards everything that is shared; nothing polls and nothing waits without a way out.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from righttime.pipeline.admission import background_cut
from righttime.pipeline.chain import Begin, Job
from righttime.testing.reference.feed import Feed, Transaction
from righttime.testing.reference.options import Options, Stopped
from righttime.testing.reference.pipes import Pipe
from righttime.testing.reference.query import Query
from righttime.testing.reference.rows import Bag, Change
from righttime.testing.reference.scheduler import Scheduler
from righttime.testing.reference.staging import Staging, Write, Zone

if TYPE_CHECKING:
    from righttime.testing.reference.steps import Step

T = TypeVar("T")


class Engine(Scheduler):
    """One flow over some streams; use it as a context."""

    def __init__(self, build: Callable[["Engine"], Any], streams: Sequence[str], *, dimensions: Sequence[str] = (), options: Options | None = None) -> None:
        """`build` is called with the engine to make the operators, again for each restart."""
        super().__init__(options or Options())
        self.steps: dict[str, Step] = {}
        self._build = build
        self._feed = Feed(streams, dimensions)
        self._shared: dict[str, Any] = {}
        self._zones: list[Zone] = []
        self._pipes: list[Pipe] = []
        self._delivered: dict[int, dict[str, Write]] = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._begin_generation()
        self._dispatcher = threading.Thread(target=lambda: self.dispatch(self._run_again), name="dispatcher", daemon=True)
        self._dispatcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self.changed:
            self.stopping = True
            self._end_generation()
        for thread in [*self._threads, self._dispatcher]:
            thread.join(self.options.timeout_s)
            assert not thread.is_alive(), f"{thread.name} does not end"
        for pipe in self._pipes:
            pipe.close()

    # sources

    def feed(self, commit_us: int, changes: Mapping[str, Sequence[Change]]) -> None:
        """Take a source transaction (A1)."""
        with self.changed:
            self._feed.place(Transaction(commit_us, changes), self.chain.route(commit_us))
            if not self.options.lagging:
                self.advance(commit_us)
            self._cut_in_background()

    def advance(self, watermark_us: int) -> None:
        """Note that the sources have delivered everything up to the time."""
        with self.changed:
            for tid in self.chain.advance(watermark_us):
                self._feed.end(tid)
            self.changed.notify_all()

    def cut(self, horizon_us: int) -> Job:
        """Cut a job without a query."""
        return self._cut(lambda: self.chain.cut(horizon_us, "background"))

    def query(self, name: str, arrived_us: int, *, bound_us: int = 0, tolerance_us: int = 0) -> Query:
        """Admit a query that arrives now (A3)."""
        with self.changed:
            if not self.options.lagging:
                self.advance(arrived_us)
            if self.options.mode == "nrt":
                return Query(self, name, self.chain.last_closed, waits=False)
            first_us, watermark_us = self._feed.first_us(self.chain.open_tid), self.chain.watermark_us
            job = self._cut(
                lambda: self.chain.admit(
                    name, arrived_us=arrived_us, bound_us=bound_us, tolerance_us=tolerance_us, watermark_us=watermark_us, first_open_us=first_us
                )
            )
            return Query(self, name, job)

    def end_query(self) -> None:
        """Note that a query has ended."""
        with self.changed:
            self.queries_running -= 1
            self._cut_in_background()

    def transactions(self, tid: int) -> list[int]:
        """Return the commit times of the transactions in a job."""
        return self._feed.transactions(tid)

    def rows(self, tid: int) -> int:
        """Return how many rows a job was given."""
        return sum(self._feed.rows(tid).values())

    def _cut(self, act: Callable[[], Job]) -> Job:
        with self.changed:
            opened = self.chain.open_tid
            job = act()
            if self.chain.open_tid != opened and job.horizon_us is not None:
                self._feed.split(opened, job.horizon_us)
                self.advance(self.chain.watermark_us)
            self.changed.notify_all()
            return job

    def _cut_in_background(self) -> None:
        """Cut if the open job has become large, or nobody asks for anything (A8)."""
        chain, options = self.chain, self.options
        if options.mode == "nrt":
            self.cut(chain.watermark_us)
            return
        horizon_us = background_cut(
            self._feed.rows(chain.open_tid),
            watermark_us=chain.watermark_us,
            horizon_us=chain.horizon_us,
            stream_rows_max=options.stream_rows_max,
            idle=options.idle and not chain.waiting() and not self.queries_running,
        )
        if horizon_us is not None:
            self.cut(horizon_us)

    # what operators are built from

    def add(self, step: "Step") -> None:
        """Register an operator; its thread starts with the generation."""
        assert step.name not in self.steps, f"there are two operators {step.name}"
        self.steps[step.name] = step

    def pipe(self, source: "Step | str") -> Pipe:
        """Return a new pipe from a stream or an operator. A source pipe is the stream itself, hence not bounded here."""
        bound = None if isinstance(source, str) else self.options.pipe_rows_max
        pipe = Pipe(self.changed, rows_max=bound, spill=self.options.spill, timeout_s=self.options.pipe_timeout_s)
        self._pipes.append(pipe)
        return self._feed.connect(source, pipe) if isinstance(source, str) else source.connect(pipe)

    def zone(self, members: int) -> Zone:
        """Return a new zone."""
        zone = Zone(members, timeout_s=self.options.zone_timeout_s)
        self._zones.append(zone)
        return zone

    def staging(self, name: str, initial: Bag | None = None) -> Staging:
        """Return the staging table of this name; it outlives a restart."""
        return self.shared(name, lambda: Staging(self.changed, initial if initial is not None else Bag()))

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return what was made under this name; it must know `forget_after(tid)`."""
        if name not in self._shared:
            self._shared[name] = make()
        made: T = self._shared[name]
        return made

    def target(self, table: str, initial: Any) -> None:
        """Declare a target; a job is complete when all targets have their rows."""
        if table not in self.warehouse.snapshot():
            self.warehouse.create(table, initial)

    def deliver(self, tid: int, table: str, write: Write, *, generation: int) -> None:
        """Take the rows of a job for a target; with the last one the sink transaction of the job begins."""
        with self.changed:
            self.wait(lambda: True, generation=generation)
            writes = self._delivered.setdefault(tid, {})
            writes[table] = write
            if writes.keys() == self.warehouse.snapshot().keys():
                del self._delivered[tid]
                self._start(f"transaction {tid}", lambda: self.sink(tid, writes, generation))

    def may_start(self, tid: int, *, serial: bool) -> bool:
        """Return whether an operator may start a job: it is closed, and the one before has committed if jobs go one by one."""
        one_by_one = serial or self.options.mode == "seq"
        return tid < self.chain.open_tid and (not one_by_one or self.chain.last_finished.tid >= tid - 1)

    def settle(self) -> None:
        """Wait until all jobs that were cut have committed."""
        self.wait(lambda: self.raise_failure() or not self.chain.running(), timeout_s=self.options.timeout_s)

    # generations of operators

    def failed(self, generation: int, error: BaseException) -> None:
        """Note that an operator failed."""
        with self.changed:
            if generation == self.generation and self.failure is None:
                self.failure = error
                self.changed.notify_all()

    def _run_again(self) -> None:
        """Go back to the last committed job and run the unfinished ones again, in order (A28)."""
        with self.changed:
            self._end_generation()
        for thread in self._threads:
            thread.join(self.options.timeout_s)
        with self.changed:
            for job in self.chain.running():
                self.chain.failed(job.tid)
            self.granted = {action for action in self.granted if isinstance(action, Begin)}
            self._delivered.clear()
            for table in self._shared.values():
                table.forget_after(self.chain.last_finished.tid)
            self._feed.disconnect()
            self.failure = None
            self.restarts += 1
            self._begin_generation()

    def _begin_generation(self) -> None:
        self.steps, self._zones, self._threads = {}, [], []
        self._build(self)
        for tid in [*(job.tid for job in self.chain.running()), self.chain.open_tid]:
            self._feed.again(tid)
            if self.chain.job(tid).arrived:
                self._feed.end(tid)
        for step in self.steps.values():
            self._start(step.name, step.run)

    def _end_generation(self) -> None:
        self.generation += 1
        for zone in self._zones:
            zone.abort()
        self.changed.notify_all()

    def _start(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Stopped:
                return
            except Exception as error:
                self.failed(generation, error)

        generation = self.generation
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
