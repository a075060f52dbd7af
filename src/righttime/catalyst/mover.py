"""The mover: makes states durable, by logging hot rows and by storing them in the warehouse in bulk.

In: staged commits of producers, and orders to materialize or to make safe.
Out: data files, Delta versions, log records and, last, one ledger transaction per state.
Promise: one durable step at a time; a step that fails leaves nothing visible, and the rows stay where they were.
"""

import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from righttime.catalyst.adoption import Adoption
from righttime.catalyst.bonds import connected
from righttime.catalyst.capture import LaneCapture, Overtaken, capture, storable_cuts
from righttime.catalyst.doubt import Doubts
from righttime.catalyst.durable import Declared, DurableStep, Order
from righttime.catalyst.links import Link
from righttime.catalyst.log import Log, LogEntry
from righttime.catalyst.messages import Adopted, Bypass, Published
from righttime.catalyst.next_state import finished_batches, next_state, refuse_overtaken, refuse_steps_back, tell_tables
from righttime.catalyst.segments import rows_of
from righttime.catalyst.settler import Settler
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.step_files import StepFiles
from righttime.catalyst.table import MemoryTable
from righttime.changes.faults import CrashPoint, reach
from righttime.changes.interrupts import uninterrupted
from righttime.changes.position import Commit
from righttime.changes.schema import TableSchema
from righttime.errors import CommitFailed, CommitUnknown, RightTimeError, RowsMoved, StoringFailed, WriterLost
from righttime.errors.flows import TargetChanged
from righttime.ledger.book import Batch, Book
from righttime.ledger.state import State
from righttime.settings import Settings
from righttime.telemetry import METRICS, get_log
from righttime.warehouse.store import Store

log = get_log("mover")

_TRIES_MAX = 12


class Mover:
    """One per warehouse; its lock orders durable steps, the catalyst's lock is only held for the ledger transaction."""

    def __init__(
        self, catalyst: Catalyst, settler: Settler, ledger: Book, store: Store, wal: Log, *, schemas: Mapping[str, TableSchema], settings: Settings
    ) -> None:
        self._catalyst = catalyst
        self._settler = settler
        self._ledger = ledger
        self._store = store
        self._files = StepFiles(catalyst, store, schemas=schemas)
        self._wal = wal
        self._schemas = schemas
        self._settings = settings
        self._lock = threading.Lock()
        self._checkpoints = ThreadPoolExecutor(max_workers=1, thread_name_prefix="righttime-checkpoint")
        self.durable: State = ledger.newest_state()
        self.before_storing: Callable[[Collection[str]], None] = lambda tables: None
        self.declared_late: Callable[[Declared], None] = lambda declared: None
        self.doubts = Doubts(catalyst, settle=self.settle)

    def commit(
        self, link: Link, *, tables: Collection[str], bypass: Mapping[str, Bypass], batch_id: str | None, kind: str, confirm: Callable[[], None] | None = None
    ) -> Published:
        """Commit everything staged for this producer, durably; `tables` and those in `bypass` are stored, all other rows logged.

        Own rows of tables with operations are only logged. `confirm` is called at the commit point, with the lock held, and may refuse.
        """
        self._catalyst.refuse_maintained(link, bypass)
        order = Order(kind, own=link, tables={*tables, *bypass}, bypass=bypass, batch_id=batch_id, confirm=confirm)
        with self._lock:
            try:
                return self._run(order)
            except CommitUnknown:
                if not self.doubts.is_of(order):
                    self._catalyst.refuse_halted()  # a step before it is in doubt; this one has not begun
                raise

    def adopt(self, link: Link, table: str, *, confirm: Callable[[], None]) -> int:
        """Take over the newest version of a table, which another writer made, as a commit of `link`; return the state."""
        with self._lock:
            self._settle()  # a version of our own that is in doubt is not foreign
            adopted = self._files.foreign(table)
            if adopted is None:
                return self._catalyst.head.number
            adoption = Adoption(self._catalyst, self._store, self._schemas[table], version=adopted.version)

            def sure() -> None:
                confirm()
                self._refuse_target(table, adopted)
                adoption.check()

            sure()  # before anything is written; at the commit point it costs nothing if nothing was committed meanwhile
            return self._run(Order("adopt", own=link, tables={table}, bypass={table: Bypass(adopted=adopted)}, confirm=sure)).state

    def _refuse_target(self, table: str, adopted: Adopted) -> None:
        """Refuse other rows for a table that a flow maintains: it is what the flow makes of its streams. The same rows in other files are welcome."""
        with self._catalyst.lock:
            flow, known = self._catalyst.maintained.get(table), self._catalyst.tables[table].version
        if flow is not None and not adopted.same:
            raise TargetChanged(table=table, flow=flow.source.removeprefix("flow."), version=adopted.version, known=known)

    def materialize(self, tables: Collection[str]) -> int:
        """Store the committed hot rows of `tables`, and of those that foreign keys connect with them; return the state.

        Where one cannot be stored the others are, and then its error is raised.
        """
        failure: RightTimeError | None = None
        together = connected(tables, self.references()) if tables else set()
        try:
            self.before_storing(together)
        except RightTimeError as error:
            failure = error  # of a stream: its table is stored up to what the stream has
        with self._lock:
            state = self._store_each(together, asked=set(tables))
        if failure is not None:
            raise failure
        return state

    def _store_each(self, tables: set[str], *, asked: set[str]) -> int:
        """Store what can be stored of `tables`, and raise the first error of a table that was asked for, if there is one.

        It goes on as long as errors name a table: any other would meet all of them. Where one before can be tried again it is raised instead, for what
        a table refers to may be missing because of it.
        """
        state: int | None = None
        errors: list[RightTimeError] = []
        while state is None and (tables or not errors):
            try:
                state = self._run(Order("materialize", tables=tables)).state
            except RightTimeError as error:
                errors.append(error)
                failed = error.context.get("table")
                tables = tables - {failed} if failed in tables else set()
        told = [error for error in errors if error.context.get("table") in asked]
        if told:
            raise next((error for error in errors[: errors.index(told[0])] if error.retryable), told[0])
        if state is None:
            raise errors[0]
        return state

    def references(self) -> Mapping[str, Collection[str]]:
        """Return by table which others its rows refer to, by the foreign keys of a database."""
        return self._store.references(list(self._schemas)) if len(self._schemas) > 1 else {}

    def make_safe(self, *, bounded: bool = True) -> int:
        """Log every committed row that is neither logged nor stored; return the state. Not `bounded` is for rows that are stored right after."""
        with self._lock:
            return self._run(Order("log", bounded=bounded)).state

    def declare(self, declared: Declared) -> int:
        """Make a table or a view known; return the state."""
        order = Order("declare", declared=declared)
        with uninterrupted(), self._lock:  # an interrupt would take a table back that the ledger has
            if declared.table is not None:
                with self._catalyst.lock:
                    self._catalyst.tables[declared.table.name] = MemoryTable(declared.table.name, declared.version, declared.rows)
            try:
                return self._run(order).state
            except BaseException:
                if not self.doubts.is_of(order):
                    self._undeclare(declared)
                raise

    def _undeclare(self, declared: Declared) -> None:
        if declared.table is not None:
            with self._catalyst.lock:
                del self._catalyst.tables[declared.table.name]

    # -- in doubt ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish a step in doubt if it turns out to have happened, else take it back; raise as long as nobody can tell."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        doubt = self.doubts.open
        if doubt is None:
            return
        try:
            happened = self._ledger.found_out(doubt.state)
        except WriterLost as error:
            self._catalyst.halt(error)
            raise
        with uninterrupted():
            if not happened:
                self._files.give_up(doubt.step)
                if doubt.step.order.kind == "declare":
                    self._undeclare(doubt.step.order.declared)
            with self._catalyst.lock:
                published = self._made(doubt.step, doubt.state, doubt.batches) if happened else None
                if happened:
                    self.declared_late(doubt.step.order.declared)  # before anybody is let on: the next to ask may ask for it
                self.doubts.end(published)
            if happened:
                self._finish(doubt.step)

    def _run(self, order: Order) -> Published:
        """Carry an order out after what is in doubt; the caller has the mover's lock."""
        try:
            self._settle()
            return self._carried_out(order)
        except WriterLost as error:
            self._catalyst.halt(error)  # whatever was committed from now on could never be kept
            raise

    def _carried_out(self, order: Order) -> Published:
        """Carry an order out, as often as others get in between."""
        self._files.clean(order.tables)
        if order.own is not None:
            with self._catalyst.lock:
                for table in order.bypass:
                    self._catalyst.table(table).lane(order.own.source)
        for tried in range(1, _TRIES_MAX + 1):
            try:
                return self._try(order)
            except Overtaken:
                continue
            except RowsMoved as error:
                if tried == _TRIES_MAX:
                    raise
                self._settler.settle_anew(error.context["table"])
        reason = "operations on these tables come first, and other producers either hold earlier commits back or change them without a pause"
        raise CommitFailed(source=order.source or "-", step="capture", reason=reason)

    def _try(self, order: Order) -> Published:
        step = self._begin(order)
        published: Published | None = None
        try:
            self._files.write(step)
            self._write_log(step)
            with uninterrupted():  # tables, ledger, memory and log change together
                self._commit_tables(step)
                published = self._publish(step)
                self._finish(step)
            return published
        except BaseException as error:
            if published is not None or self.doubts.is_of(step.order):
                raise
            with uninterrupted():
                self._files.give_up(step)
            if isinstance(error, Exception):
                raise self._told(error, step) from error
            raise

    def _begin(self, order: Order) -> DurableStep:
        """Settle what has to be settled and capture what has to become durable."""
        tables = set(order.tables) - self._adopted_under_operations(order.bypass)
        loaded = {table for table, extra in order.bypass.items() if extra.adopted is None}
        if any(self._catalyst.table(table).must_settle(order.source) for table in loaded):
            # Rows that are stored carry no commit time, so what was ordered before them has to be done before them.
            self._try(Order("materialize", tables=connected(loaded, self.references())))
        cuts = self._settled(tables - loaded, guarded=order.own is None)
        return DurableStep(order, capture(self._catalyst, own=order.own, stored_tables=tables, cuts=cuts), tables)

    def _told(self, error: Exception, step: DurableStep) -> Exception:
        """Return what the caller gets for an error of a step; where rows are only moved, there is no commit to make again."""
        moving = step.order.own is None and step.order.kind in ("materialize", "log")
        if isinstance(error, RightTimeError | Overtaken) and not (moving and type(error) is CommitFailed):
            return error
        context = error.context if isinstance(error, CommitFailed) else {"source": step.order.source or "-", "step": step.phase, "reason": str(error)}
        return StoringFailed(**context) if moving else CommitFailed(**context)

    def _adopted_under_operations(self, bypass: Mapping[str, Bypass]) -> set[str]:
        """Tables whose operations are settled anew, on the version that is adopted: what they ended in the older one is stored with neither."""
        return {table for table, extra in bypass.items() if extra.adopted is not None and self._catalyst.table(table).has_operations}

    def _settled(self, tables: Collection[str], *, guarded: bool) -> dict[str, int]:
        """Settle the tables that have operations, and return the time up to which they can be stored: nothing committed until then is missing here.

        With `guarded`, no table is stored beyond the cut of a query that is about to begin on it; a tapped one never beyond what its stream has.
        """
        cuts = storable_cuts(self._catalyst, tables, guarded=guarded)
        for table, cut_us in cuts.items():
            self._settler.settle([table], cut_us)
        return cuts

    # -- the phases --------------------------------------------------------------------------------------------------

    def _write_log(self, step: DurableStep) -> None:
        step.phase = "write log"
        step.entries = [self._entry(lane) for lane in step.seen.lanes if lane.log or lane.operations or lane.log_times]
        if step.entries:
            step.record = self._wal.append(step.entries, at=self.durable.log_end, bounded=step.order.bounded)

    def _entry(self, lane: LaneCapture) -> LogEntry:
        runs = [run for part in lane.log for run in part.piece.runs(part.start, part.stop)]
        return LogEntry(lane.table, lane.source, runs, lane.times, rows_of(lane.log, self._schemas[lane.table].columns), lane.operations)

    def _commit_tables(self, step: DurableStep) -> None:
        step.phase = "commit tables"
        for table, extra in step.order.bypass.items():
            if extra.adopted is not None:
                step.versions[table] = extra.adopted.version
        for table, files in reversed(step.files.items()):
            schema = self._schemas[table]
            before = step.versions.get(table, self._catalyst.tables[table].version)
            removed = step.removals[table].units if table in step.removals else ()
            if files or removed:
                number = self._catalyst.head.number + 1
                step.versions[table] = self._store.commit(schema, files, version=before, batch_id=uuid.uuid4().hex, batch_number=number, removed=removed)
            reach(CrashPoint.TABLE_COMMITTED)
        if step.files:
            reach(CrashPoint.TABLES_COMMITTED)

    def _publish(self, step: DurableStep) -> Published:
        step.phase = "ledger"
        catalyst, order = self._catalyst, step.order
        with catalyst.lock:
            if step.versions:
                catalyst.await_retries()
            refuse_overtaken(catalyst, step)
            if order.confirm is not None:
                order.confirm()
            time_us = catalyst.authority.next_us()
            commit = Commit(catalyst.head.source(order.own.source).next_number, time_us) if order.own else None
            state = next_state(catalyst, step, commit=commit, time_us=time_us, wal=self._wal, log_end=self.durable.log_end)
            refuse_steps_back(self.durable, state)
            batches = finished_batches(catalyst, step, commit=commit, state=state.number)
            try:
                self._ledger.write_state(state, kind=order.kind, batches=batches, table=order.declared.table, view=order.declared.view)
            except CommitUnknown as error:
                self.doubts.begin(step, state, batches, error.context["reason"])
                raise
            return self._made(step, state, batches)

    def _made(self, step: DurableStep, state: State, batches: Sequence[Batch]) -> Published:
        """Make what the ledger has visible; the caller has the catalyst's lock, and nothing was committed since the state was written."""
        catalyst, own, time_us = self._catalyst, step.order.own, state.time_us
        self._files.keep(step)
        for batch in batches:
            catalyst.head.batches.pop((batch.source, batch.batch_id), None)
        tell_tables(catalyst, step, time_us)
        if own is not None:
            published = catalyst.finish(own, time_us, rows=step.rows_bypassed, batch_id=None)
        else:
            published = Published(Commit(0, time_us), catalyst.head.advance())
        self.durable = state
        catalyst.forget_slots(state.positions)
        catalyst.arrivals.notify_all()
        catalyst.space.notify_all()
        return published

    def _finish(self, step: DurableStep) -> None:
        """Clean up behind a published step; nothing here can undo it."""
        reach(CrashPoint.NOTICE_GIVEN)
        if step.record is not None:
            self._wal.keep(step.record)
        self._wal.release(self.durable.log_begin, end=self.durable.log_end)
        for table, version in step.versions.items():
            if version % self._settings.checkpoint_versions == 0:
                self._checkpoints.submit(self._checkpoint, table, version)
        METRICS.counter("righttime_states_durable_total").inc(kind=step.order.kind)
        for table, files in step.files.items():
            METRICS.counter("righttime_rows_stored_total").inc(sum(file.rows for file in files), table=table)
        log.debug("state.durable", state=self.durable.number, kind=step.order.kind, tables=sorted(step.versions), logged=len(step.entries))

    def _checkpoint(self, table: str, version: int) -> None:
        """Write a table's checkpoint, in the background: it takes a hundred commits' time and nothing depends on it."""
        try:
            self._store.checkpoint(self._schemas[table], version)
        except Exception as error:
            log.warning("checkpoint.failed", table=table, version=version, error=str(error))

    def close(self) -> None:
        """Let checkpoints under way finish."""
        self.doubts.close()
        self._checkpoints.shutdown(wait=True)
