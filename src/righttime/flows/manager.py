"""The flows of one warehouse: registered ones that wait, and those that run.

In: declared flows; the catalogue of the last process.
Out: runners, and for every target somebody who answers for its freshness.
Promise: a target of a flow that does not run is never shown as fresh: the changes that it lacks are known from the moment the warehouse is open.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from righttime.catalyst.images import Images
from righttime.catalyst.maintainer import HOW_TO_TELL, Maintainer
from righttime.catalyst.mover import Mover
from righttime.catalyst.room import Room
from righttime.catalyst.shell import Catalyst
from righttime.changes.schema import TableSchema
from righttime.errors import FreshnessUnavailable
from righttime.errors.flows import BadDeclaration, FlowChanged, FlowRuns, StateMissing, StatesAhead, TableMaintained
from righttime.flows.attention import Attention
from righttime.flows.catalogue import Catalogue, FlowEntry, Generation, source_of
from righttime.flows.content import TargetContent
from righttime.flows.engine import DrainEngine
from righttime.flows.explain import Explanation
from righttime.flows.feed import Feed
from righttime.flows.jobs import Engine, FlowStatus
from righttime.flows.letters import letters_table
from righttime.flows.names import refuse_tables, refuse_taken
from righttime.flows.overview import Overview
from righttime.flows.runner import ASLEEP, FlowRunner, Mode
from righttime.flows.schedule import Schedule, Triggers
from righttime.flows.taps import TapParts, Taps
from righttime.flows.work import Work
from righttime.pipeline.analysis import Analysed, analyse
from righttime.pipeline.flow import Flow
from righttime.pipeline.limits import CheckStorable
from righttime.pipeline.spark import SparkOwner
from righttime.settings import Settings
from righttime.telemetry import get_log

log = get_log("flows")


@dataclass(frozen=True, slots=True)
class FlowParts:
    """What flows stand on; put together by the service. `create_table` declares a target that does not exist yet; who gives names holds `declarations`."""

    catalyst: Catalyst
    mover: Mover
    images: Images
    room: Room
    spark: SparkOwner
    schemas: Mapping[str, TableSchema]
    views: Mapping[str, str]
    declarations: AbstractContextManager[object]
    settings: Settings
    folder: Path
    create_table: Callable[[TableSchema], None]
    check_storable: CheckStorable
    taps: TapParts


class Flows:
    """Runs flows; safe to call from any thread."""

    def __init__(self, parts: FlowParts) -> None:
        self._parts = parts
        self._lock = threading.RLock()
        self.catalogue = Catalogue(parts.folder / "flows")
        self.feed = Feed(parts.catalyst, parts.folder / "streams", settings=parts.settings, kind_of=self._kind_of, declarations=parts.declarations)
        self.taps = Taps(parts.taps, self.feed.streams, starting=self._lock)  # a table is a stream, or kept by a flow
        parts.mover.before_storing = self.taps.before_storing
        self.runners: dict[str, FlowRunner] = {}
        self.attention = Attention(parts.catalyst, self.feed)
        self._overview = Overview(parts.catalyst, self.feed, self.taps, self.attention, self.runners)
        for entry in self.catalogue.entries():
            self._attend_as_it_was(entry).trouble = ASLEEP

    def _kind_of(self, name: str) -> str | None:
        return "table" if name in self._parts.schemas else "view" if name in self._parts.views else None

    def _attend_as_it_was(self, entry: FlowEntry) -> Maintainer:
        """Answer for the targets of a flow that does not run, as its last published job left them."""
        last_job = self._parts.catalyst.head.source(entry.source).last.number
        return self.attention.attend(entry.source, entry.generation(last_job))

    def analyse(self, flow: Flow) -> Analysed:
        """Check a declaration against streams and tables, and return the columns of every step; starts Spark."""
        flow.freeze()
        keepers = {table: link.source.removeprefix("flow.") for table, link in self._parts.catalyst.maintained.items()}
        refuse_tables(flow, streams=self.feed.streams.names(), tables=self._parts.schemas, keepers=keepers)
        streams = {name: self.feed.streams.schema(name) for name in self.feed.streams.names()}
        return analyse(flow, streams, self._parts.schemas, self._parts.spark.child())

    def run(self, flow: Flow, *, refresh: bool = False, mode: Mode = "on_demand") -> FlowRunner:
        """Keep a flow's targets as its declaration says, from now on; the first time everything that its streams have is loaded."""
        with self._lock:
            known = self.runners.get(flow.name)
            if known is not None and known.running:
                raise FlowRuns(flow=flow.name)
            self.stop(flow.name)  # one that failed may still be about to publish
            analysed = self.check(flow, refresh=refresh)
            targets = [*(target.table for target in flow.targets), letters_table(flow.name).name]
            with self._parts.catalyst.gated([target.table for target in flow.targets if target.table in self._parts.schemas]):
                entry = self.catalogue.entry(flow.name)
                if entry is None:
                    self._take_over(flow, refresh=refresh)
                self._create_targets(flow, analysed)
                generation = self._generation(flow, analysed, targets, refresh=refresh)
                last_job = self._parts.catalyst.head.source(source_of(flow.name)).last.number
                if refresh:
                    before = generation if entry is None or not last_job else entry.generation(last_job)
                    link = self.attention.rebuild(source_of(flow.name), generation, before)
                else:
                    link = self.attention.attend(source_of(flow.name), generation)
            link.loose = mode == "near_real_time"
            streams = {name: self.feed.streams.schema(name).stored for name in flow.streams}
            folder = self.catalogue.states(flow.name, generation)
            letters_max = self._parts.settings.dead_letters_max
            scratch = self._parts.images.folder
            engine = DrainEngine(
                analysed,
                self._parts.spark,
                streams=streams,
                folder=folder,
                scratch=scratch,
                last_job=last_job,
                letters_max=letters_max,
                anew=generation.first_job > last_job,  # nothing of it was shown: what is in its folder is of parts that nobody knows any more
                plans_serve_again=mode != "sequential",
                check=self._parts.check_storable,
                output_rows_max=self._parts.settings.drain_output_rows_max,
            )
            work = self._work(link.source, generation, engine)
            runner = FlowRunner(link, flow.streams, generation.targets, self._schedule(flow, link, mode), work, mode=mode, rebuild=refresh)
            self.runners[flow.name] = runner
            runner.start()
            return runner

    def check(self, flow: Flow, *, refresh: bool = False) -> Analysed:
        """Raise what `run` would refuse a flow for; nothing is written down. Starts Spark."""
        for target in flow.targets:
            other = self._parts.catalyst.maintained.get(target.table)
            if other is not None and other.source != source_of(flow.name):
                raise TableMaintained(table=target.table, flow=other.source.removeprefix("flow."))
            if target.table in self._parts.catalyst.tapped:
                raise BadDeclaration(flow=flow.name, origin=target.origin, reason=f"table {target.table!r} is a stream itself; write into another")
        self._refuse_taken(flow)
        analysed = self.analyse(flow)
        if not refresh:
            self._refuse_unfit(flow, analysed)
        return analysed

    def _refuse_taken(self, flow: Flow) -> None:
        refuse_taken(flow, streams=self.feed.streams.names(), tables=self._parts.schemas, views=self._parts.views)

    def _refuse_unfit(self, flow: Flow, analysed: Analysed) -> None:
        """See that there is state to go on with, or that nothing is there yet."""
        entry, last_job = self.catalogue.entry(flow.name), self._parts.catalyst.head.source(source_of(flow.name)).last.number
        if entry is not None:
            generation = entry.generation(last_job)
            if generation.fingerprint != analysed.fingerprint:
                raise FlowChanged(flow=flow.name)
            if generation.first_job > last_job > 0:
                raise StatesAhead(flow=flow.name, known=generation.first_job, job=last_job)
        elif last_job:
            raise StateMissing(flow=flow.name, jobs=last_job, folder=str(self.catalogue.folder(flow.name)))
        if not last_job:
            self._refuse_filled(flow)  # also if it was begun: a refresh that would have replaced these rows was cut short

    def _generation(self, flow: Flow, analysed: Analysed, targets: Sequence[str], *, refresh: bool) -> Generation:
        """Return the state to go on with, or a new one. What was begun and never came to be used is dropped."""
        history = self._parts.catalyst.head.source(source_of(flow.name))
        entry = self.catalogue.begin(flow.name, flow.streams, targets, analysed.fingerprint, next_job=history.next_number)
        durable = self._parts.mover.durable.positions.get(source_of(flow.name))
        durable_job = 0 if durable is None else durable.number
        if refresh:
            return self.catalogue.renew(entry, flow.streams, targets, analysed.fingerprint, durable_job=durable_job, next_job=history.next_number)
        generation = entry.generation(history.last.number)
        self.catalogue.go_on(entry, generation, durable_job=durable_job)
        return generation

    def _take_over(self, flow: Flow, *, refresh: bool) -> None:
        """See that nothing of others is in a target, or on its way there, before a flow has it."""
        tables = [target.table for target in flow.targets if target.table in self._parts.schemas]
        catalyst = self._parts.catalyst
        catalyst.ensure_accuracy(catalyst.authority.read_us(), tables, deadline_s=catalyst.clock.monotonic_s() + self._parts.settings.wait_s)
        if not refresh:
            self._refuse_filled(flow)

    def _refuse_filled(self, flow: Flow) -> None:
        """A target is what its flow makes of its streams; rows that somebody else loaded before would be among it for ever."""
        with self._parts.catalyst.lock:
            for target in flow.targets:
                memory = self._parts.catalyst.tables.get(target.table)
                if memory is not None and (memory.rows_stored or memory.rows_unstored):
                    reason = f"table {target.table!r} has rows already; run the flow with refresh=True to replace them"
                    raise BadDeclaration(flow=flow.name, origin=target.origin, reason=reason)

    def _create_targets(self, flow: Flow, analysed: Analysed) -> None:
        with self._parts.declarations:
            self._refuse_taken(flow)  # again: it may have been given away while the flow was analysed
            for target in flow.targets:
                if target.table in analysed.new_tables:
                    self._parts.create_table(analysed.new_tables[target.table])
            letters = letters_table(flow.name)
            if letters.name not in self._parts.schemas:
                self._parts.create_table(letters)

    def _schedule(self, flow: Flow, link: Maintainer, mode: Mode) -> Schedule:
        settings, clock = self._parts.settings, self._parts.catalyst.clock
        triggers = Triggers(
            rows_max=settings.background_rows,
            idle_s=settings.background_idle_s,
            every_s=flow.refresh.every_us / 1e6 or (settings.window_s if mode == "near_real_time" else 0.0),
            immediate=flow.refresh.kind == "immediate",
        )
        waiting = sum(self.feed.rows(flow.streams, link.horizon_us).values())
        return Schedule(triggers, rows=waiting, now_s=clock.monotonic_s())

    def _work(self, source: str, generation: Generation, engine: DrainEngine) -> Work:
        parts = self._parts
        return Work(
            catalyst=parts.catalyst,
            feed=self.feed,
            taps=self.taps,
            engine=engine,
            content=lambda table, anew: TargetContent(parts.schemas[table], parts.images, parts.settings, anew=anew),
            make_room=lambda table, nbytes, wait_s: parts.room.make(parts.schemas[table], nbytes, wait_s=wait_s),
            relieve=lambda link: self._relieve(link, engine),
            rebuilt=lambda horizon_us: self.attention.rebuilt(source, generation, horizon_us),
            settings=parts.settings,
            cores=parts.spark.session().sparkContext.defaultParallelism,
        )

    def _relieve(self, link: Maintainer, engine: Engine) -> None:
        """Store targets in bulk before their changes fill the memory, and sum up state once it is in many files."""
        settings = self._parts.settings
        with self._parts.catalyst.lock:
            memory = [self._parts.catalyst.table(name) for name in link.tables]
            # What is in files was too much for memory, and belongs into the warehouse.
            full = any(
                table.has_files or table.bytes_operations > settings.operations_bytes_max // 4 or table.bytes_memory > settings.memory_bytes_max // 2
                for table in memory
            )
        if full:
            self._parts.mover.materialize(link.tables)
        if engine.is_scattered:
            # Only state of jobs that no crash can take back may be summed up.
            self._parts.mover.make_safe()
            engine.compact(self._parts.mover.durable.positions[link.source].number)

    def bring_up_stream(self, name: str) -> None:
        """Bring a stream of a table up to now; others are."""
        self.taps.bring_up([name], deadline_s=self._parts.catalyst.clock.monotonic_s() + self._parts.settings.wait_s)

    def bring_up(self, runner: FlowRunner, *, wait_s: float) -> None:
        """Wait until the targets of a flow have what has arrived in its streams by now."""
        catalyst, streams = self._parts.catalyst, self.feed.streams
        begun_s = catalyst.clock.monotonic_s()
        self.taps.bring_up(runner.streams, deadline_s=begun_s + wait_s)
        # Who asks for less than everything gets what has arrived: a source that lags is waited for by queries that insist on it.
        arrived = [streams.watermark_us(name) or 0 for name in runner.streams if streams.schema(name).times == "source"]
        up_to_us = min([catalyst.authority.read_us(), *arrived])
        try:
            # While targets are built anew, queries get the old ones, which may be as fresh as this.
            if not runner.await_rebuilt(wait_s):
                link, waited_s = runner.link, catalyst.clock.monotonic_s() - begun_s
                why, stale_s = link.trouble or link.hindrance or self._why_rebuilding(runner), catalyst.stale_s(link.horizon_us)
                raise link.late(link.tables[0], waited_s=waited_s, stale_s=stale_s, why=why)
            catalyst.ensure_accuracy(up_to_us, runner.link.tables, deadline_s=begun_s + wait_s)
        except FreshnessUnavailable:
            if runner.failure is not None:
                raise runner.failure from None
            raise

    def _why_rebuilding(self, runner: FlowRunner) -> str:
        """Say why targets that are built anew are not there yet."""
        streams, job = self.feed.streams, next((job for job in runner.queue() if job.rebuild), None)
        sources = [name for name in runner.streams if (schema := streams.schema(name)).times == "source" and schema.table is None]
        marks = {name: streams.watermark_us(name) or 0 for name in sources}
        late = [name for name, mark_us in marks.items() if job is not None and mark_us < job.horizon_us]
        if not late:
            return "its targets are being built anew, {} of {} parts are done".format(*runner.parts)
        return f"its targets are built anew as soon as stream {late[0]!r} goes on: {HOW_TO_TELL}"

    def explain(self, tables: Sequence[str], *, freshness_us: int) -> Explanation:
        """Return what a query over `tables` would be answered on and wait for, if it came now."""
        return self._overview.explain(tables, freshness_us=freshness_us)

    def status(self) -> list[FlowStatus]:
        """Return how each flow is, running or not."""
        return self._overview.status()

    def stop(self, name: str, started: FlowRunner | None = None) -> None:
        """Stop a flow, or one run of it, unless it was started anew since; its targets stay as they are."""
        # It is known until its threads have ended, and nobody runs it meanwhile: two runners would take each other's state away.
        with self._lock:
            if (runner := self.runners.get(name)) is not None and started in (None, runner):
                runner.stop()
                del self.runners[name]
                if not runner.await_rebuilt(0) and (entry := self.catalogue.entry(name)) is not None:
                    self._attend_as_it_was(entry)

    def stop_all(self) -> None:
        """Stop all flows."""
        for name in list(self.runners):
            self.stop(name)

    def give_up(self) -> None:
        """Stop all flows without waiting, and cancel their drains: what is not published changes nothing, and is computed when the flow runs again."""
        for runner in list(self.runners.values()):
            runner.give_up()

    def close(self) -> None:
        """Close the streams; the flows have stopped."""
        self.feed.close()
