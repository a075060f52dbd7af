"""The mover: makes states durable, by logging hot rows and by storing them in the warehouse in bulk.

In: staged commits of producers, and orders to materialize or to make safe.
Out: data files, Delta versions, log records and, last, one ledger transaction per state.
Promise: one durable step at a time; a step that fails leaves nothing visible, and the rows stay where they were.
"""

import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

from righttime.catalyst.capture import Capture, LaneCapture, Overtaken, capture, complete_us
from righttime.catalyst.ends import NOTHING, Hidden
from righttime.catalyst.images import batches_of, rows_of
from righttime.catalyst.links import Link
from righttime.catalyst.log import Log, LogEntry, Record
from righttime.catalyst.maintainer import Maintainer
from righttime.catalyst.messages import Bypass, Published
from righttime.catalyst.settler import Settler
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import VERSIONS, MemoryTable
from righttime.changes.faults import CrashPoint, reach
from righttime.changes.position import Commit
from righttime.changes.rows import table_of
from righttime.changes.schema import TableSchema
from righttime.errors import CommitFailed, ForeignCommit, RightTimeError, RowsMoved, StoringFailed
from righttime.ledger.book import Batch, Book
from righttime.ledger.state import LaneState, State, TableState
from righttime.settings import Settings
from righttime.telemetry import METRICS, get_log
from righttime.warehouse.store import DataFile, Removal, Store

log = get_log("mover")

_TRIES_MAX = 12


@dataclass(frozen=True, slots=True)
class Declared:
    """A new table (at `version`, with `rows` if it was there before) or view that becomes known with a state."""

    table: TableSchema | None = None
    version: int = 0
    rows: int = 0
    view: tuple[str, str] | None = None


@dataclass(slots=True)
class _Step:
    """One durable step under way."""

    own: Link | None
    seen: Capture
    bypass: Mapping[str, Bypass]
    tables: Collection[str]
    kind: str
    declared: Declared = field(default_factory=Declared)
    phase: str = "write files"
    hidden: dict[str, Hidden] = field(default_factory=dict)
    files: dict[str, list[DataFile]] = field(default_factory=dict)
    removals: dict[str, Removal] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    record: Record | None = None
    entries: list[LogEntry] = field(default_factory=list)


class Mover:
    """One per warehouse; its lock orders durable steps, the catalyst's lock is only held for the ledger transaction."""

    def __init__(
        self, catalyst: Catalyst, settler: Settler, ledger: Book, store: Store, wal: Log, *, schemas: Mapping[str, TableSchema], settings: Settings
    ) -> None:
        self._catalyst = catalyst
        self._settler = settler
        self._ledger = ledger
        self._store = store
        self._wal = wal
        self._schemas = schemas
        self._settings = settings
        self._lock = threading.Lock()
        self._unclean: set[str] = set()
        self._checkpoints = ThreadPoolExecutor(max_workers=1, thread_name_prefix="righttime-checkpoint")
        self.durable: State = ledger.newest_state()
        self.before_storing: Callable[[Collection[str]], None] = lambda tables: None

    def commit(
        self, link: Link, *, tables: Collection[str], bypass: Mapping[str, Bypass], batch_id: str | None, kind: str, confirm: Callable[[], None] | None = None
    ) -> Published:
        """Commit everything staged for this producer, durably; `tables` and those in `bypass` are stored, all other rows logged.

        Own rows of tables with operations are only logged. `confirm` is called at the commit point, with the lock held, and may refuse.
        """
        self._catalyst.refuse_maintained(link, bypass)
        with self._lock:
            return self._run(own=link, tables={*tables, *bypass}, bypass=bypass, batch_id=batch_id, kind=kind, confirm=confirm)

    def materialize(self, tables: Collection[str]) -> int:
        """Store the committed hot rows of `tables`; return the state."""
        self.before_storing(tables)
        with self._lock:
            return self._run(own=None, tables=set(tables), bypass={}, batch_id=None, kind="materialize").state

    def make_safe(self) -> int:
        """Log every committed row that is neither logged nor stored; return the state."""
        with self._lock:
            return self._run(own=None, tables=set(), bypass={}, batch_id=None, kind="log").state

    def declare(self, declared: Declared) -> int:
        """Make a table or a view known; return the state."""
        with self._lock:
            if declared.table is not None:
                with self._catalyst.lock:
                    self._catalyst.tables[declared.table.name] = MemoryTable(declared.table.name, declared.version, declared.rows)
            try:
                return self._run(own=None, tables=set(), bypass={}, batch_id=None, kind="declare", declared=declared).state
            except BaseException:
                if declared.table is not None:
                    with self._catalyst.lock:
                        del self._catalyst.tables[declared.table.name]
                raise

    def _run(
        self,
        *,
        own: Link | None,
        tables: Collection[str],
        bypass: Mapping[str, Bypass],
        batch_id: str | None,
        kind: str,
        declared: Declared | None = None,
        confirm: Callable[[], None] | None = None,
    ) -> Published:
        self._clean()
        if own is not None:
            with self._catalyst.lock:
                for table in bypass:
                    self._catalyst.table(table).lane(own.source)
        for tried in range(1, _TRIES_MAX + 1):
            try:
                return self._try(own, tables, bypass, batch_id, kind, declared or Declared(), confirm)
            except Overtaken:
                continue
            except RowsMoved as error:
                if tried == _TRIES_MAX:
                    raise
                self._settler.settle_anew(error.context["table"])
        reason = "operations on these tables come first, and other producers either hold earlier commits back or change them without a pause"
        raise CommitFailed(source=own.source if own else "-", step="capture", reason=reason)

    def _try(
        self,
        own: Link | None,
        tables: Collection[str],
        bypass: Mapping[str, Bypass],
        batch_id: str | None,
        kind: str,
        declared: Declared,
        confirm: Callable[[], None] | None,
    ) -> Published:
        tables = set(tables) - self._adopted_under_operations(bypass)
        loaded = {table for table, extra in bypass.items() if extra.adopted is None}
        source = own.source if own is not None else None
        if any(self._catalyst.table(table).must_settle(source) for table in loaded):
            # Rows that are stored carry no commit time, so what was ordered before them has to be done before them.
            self._try(None, loaded, {}, None, "materialize", Declared(), None)
        cuts = self._settled(tables - loaded, guarded=own is None)
        step = _Step(own, capture(self._catalyst, own=own, stored_tables=tables, cuts=cuts), bypass, tables, kind, declared)
        try:
            self._write(step)
            self._write_log(step)
            self._commit_tables(step)
            published = self._publish(step, batch_id=batch_id, confirm=confirm)
        except Exception as error:
            self._give_up(step, error)
            raise self._told(error, step) from error
        self._finish(step)
        return published

    def _told(self, error: Exception, step: _Step) -> Exception:
        """Return what the caller gets for an error of a step; where rows are only moved, there is no commit to make again."""
        moving = step.own is None and step.kind in ("materialize", "log")
        if isinstance(error, RightTimeError | Overtaken) and not (moving and type(error) is CommitFailed):
            return error
        context = (
            error.context if isinstance(error, CommitFailed) else {"source": step.own.source if step.own else "-", "step": step.phase, "reason": str(error)}
        )
        return StoringFailed(**context) if moving else CommitFailed(**context)

    def _adopted_under_operations(self, bypass: Mapping[str, Bypass]) -> set[str]:
        """Tables whose operations are settled anew, on the version that is adopted: what they ended in the older one is stored with neither."""
        return {table for table, extra in bypass.items() if extra.adopted is not None and self._catalyst.table(table).has_operations}

    def _settled(self, tables: Collection[str], *, guarded: bool) -> dict[str, int]:
        """Settle the tables that have operations, and return the time up to which they can be stored: nothing committed until then is missing here.

        With `guarded`, no table is stored beyond the cut of a query that is about to begin on it; a tapped one never beyond what its stream has.
        """
        catalyst = self._catalyst
        with catalyst.lock:
            now_us = catalyst.authority.read_us()
            cuts = {}
            for table in tables:
                waiting = [each.cut_us for each in catalyst.admissions if table in each.tables and each.cut_us is not None] if guarded else []
                waiting += [catalyst.tapped[table]] if table in catalyst.tapped else []
                if waiting or catalyst.table(table).must_settle():
                    cuts[table] = min([self._complete_us(table, now_us), *waiting])
        for table, cut_us in cuts.items():
            self._settler.settle([table], cut_us)
        return cuts

    def _complete_us(self, table: str, now_us: int) -> int:
        """Return up to when everything is here that can concern `table`: of its flow if it has one, else of all sources that are no flows."""
        catalyst, flow = self._catalyst, self._catalyst.maintained.get(table)
        if flow is not None:
            return complete_us(catalyst, flow.source, now_us)
        others = (source for source in catalyst.head.sources if not isinstance(catalyst.links.get(source), Maintainer))
        return min((complete_us(catalyst, source, now_us) for source in others), default=now_us)

    # -- the phases --------------------------------------------------------------------------------------------------

    def _write(self, step: _Step) -> None:
        for table in sorted(step.tables):
            schema, extra = self._schemas[table], step.bypass.get(table, Bypass())
            lanes = [lane for lane in step.seen.of_table(table) if lane.store]
            hidden = step.hidden[table] = step.seen.ends[table].at(step.seen.cuts[table]) if table in step.seen.ends else NOTHING
            if hidden.stored:
                # Before the new versions: a database with a unique index takes those only once the old ones are gone.
                version = self._catalyst.tables[table].version
                removal = step.removals[table] = self._store.remove(
                    schema, version, hidden.stored, batch_id=uuid.uuid4().hex, changed=self._changed(step, table)
                )
                step.files.setdefault(table, []).extend(removal.files)
            if lanes or extra.chunks:
                hot = (batch for lane in lanes for batch in batches_of(lane.store, schema.columns, hidden.hot))
                rows = chain(hot, table_of(extra.chunks, schema.columns).to_batches())
                step.files.setdefault(table, []).extend(self._store.write_files(schema, rows, batch_id=uuid.uuid4().hex))
            if extra.files:
                step.files.setdefault(table, []).extend(extra.files)

    def _changed(self, step: _Step, table: str) -> set[str]:
        """Return the columns that the operations which are stored in this step write."""
        with self._catalyst.lock:
            lanes = self._catalyst.tables[table].lanes
            stored = [
                placed.operations
                for seen in step.seen.of_table(table)
                for placed in lanes[seen.source].operations_between(lanes[seen.source].stored_id + 1, seen.stored_id)
            ]
        return {column for operations in stored for column in operations.columns_set}

    def _write_log(self, step: _Step) -> None:
        step.phase = "write log"
        step.entries = [self._entry(lane) for lane in step.seen.lanes if lane.log or lane.operations or lane.log_times]
        if step.entries:
            step.record = self._wal.append(step.entries, at=self.durable.log_end)

    def _entry(self, lane: LaneCapture) -> LogEntry:
        runs = [run for part in lane.log for run in part.piece.runs(part.start, part.stop)]
        return LogEntry(lane.table, lane.source, runs, lane.times, rows_of(lane.log, self._schemas[lane.table].columns), lane.operations)

    def _commit_tables(self, step: _Step) -> None:
        step.phase = "commit tables"
        for table, extra in step.bypass.items():
            if extra.adopted is not None:
                step.versions[table] = extra.adopted.version
        for table, files in step.files.items():
            schema = self._schemas[table]
            before = step.versions.get(table, self._catalyst.tables[table].version)
            removed = step.removals[table].units if table in step.removals else ()
            if files or removed:
                number = self._catalyst.head.number + 1
                step.versions[table] = self._store.commit(schema, files, version=before, batch_id=uuid.uuid4().hex, batch_number=number, removed=removed)
            reach(CrashPoint.TABLE_COMMITTED)
        if step.files:
            reach(CrashPoint.TABLES_COMMITTED)

    def _publish(self, step: _Step, *, batch_id: str | None, confirm: Callable[[], None] | None) -> Published:
        step.phase = "ledger"
        catalyst = self._catalyst
        with catalyst.lock:
            if step.versions:
                catalyst.await_retries()
            self._refuse_overtaken(step)
            if confirm is not None:
                confirm()
            time_us = catalyst.authority.next_us()
            commit = Commit(catalyst.head.source(step.own.source).next_number, time_us) if step.own else None
            state = self._state(step, commit=commit, time_us=time_us)
            batches = self._batches(step, commit, batch_id, state.number)
            self._ledger.write_state(state, kind=step.kind, batches=batches, table=step.declared.table, view=step.declared.view)
            for batch in batches:
                catalyst.head.batches.pop((batch.source, batch.batch_id), None)
            self._apply(step, time_us)
            if step.own is not None:
                published = catalyst.finish(step.own, time_us, rows=sum(extra.rows for extra in step.bypass.values()), batch_id=None)
            else:
                published = Published(Commit(0, time_us), catalyst.head.advance())
            self.durable = state
            catalyst.forget_slots(state.positions)
            catalyst.arrivals.notify_all()
            catalyst.space.notify_all()
            return published

    def _refuse_overtaken(self, step: _Step) -> None:
        """Rows of the commit under way must not be stored before operations that were committed before them."""
        for table in step.tables:
            adopted = step.bypass.get(table, Bypass()).adopted is not None
            own = step.own.source if step.own is not None else None
            if table not in step.seen.cuts and not adopted and self._catalyst.tables[table].must_settle(own):
                raise Overtaken

    def _state(self, step: _Step, *, commit: Commit | None, time_us: int) -> State:
        """Build the durable content of the state that this step makes."""
        tables = {name: self._table_state(step, name, time_us) for name in self._catalyst.tables}
        positions, rows = dict(step.seen.positions), dict(step.seen.rows)
        if step.own is not None and commit is not None:
            positions[step.own.source] = commit
            rows[step.own.source] = self._catalyst.head.source(step.own.source).rows + self._own_rows(step)
        end = step.record.end if step.record else self.durable.log_end
        stored = {(name, lane.source): lane.stored_id for name, table in tables.items() for lane in table.lanes}
        begin = self._wal.begin(stored, appended=step.record, end=end)
        return State(self._catalyst.head.number + 1, time_us, step.seen.row_id, tables, positions, begin, end, rows)

    def _own_rows(self, step: _Step) -> int:
        return (step.own.staged_rows if step.own else 0) + sum(extra.rows for extra in step.bypass.values())

    def _table_state(self, step: _Step, name: str, time_us: int) -> TableState:
        memory = self._catalyst.tables[name]
        lanes = []
        for seen in step.seen.of_table(name):
            if seen.source != VERSIONS:
                stored_us = self._stored_us(step, seen, memory.lanes[seen.source].stored_us, time_us)
                lanes.append(LaneState(seen.source, seen.stored_id, max(seen.last_id, seen.stored_id), stored_us))
        return TableState(
            name, step.versions.get(name, memory.version), self._rows_stored(step, name), max((lane.stored_us for lane in lanes), default=0), tuple(lanes)
        )

    def _rows_stored(self, step: _Step, table: str) -> int:
        adopted = step.bypass.get(table, Bypass()).adopted
        before = self._catalyst.tables[table].rows_stored if adopted is None else adopted.rows
        removal = step.removals.get(table)
        gone = removal.rows + removal.rows_kept if removal is not None else 0
        return before - gone + sum(file.rows for file in step.files.get(table, ()))

    def _stored_us(self, step: _Step, seen: LaneCapture, before_us: int, time_us: int) -> int:
        if step.own is not None and seen.source == step.own.source and (seen.table in step.bypass or (seen.stores and seen.time_us is None)):
            return time_us
        return max(before_us, seen.time_us or 0) if seen.stores else before_us

    def _apply(self, step: _Step, time_us: int) -> None:
        """Tell the memory tables what is logged and stored now; the ledger has it."""
        for seen in step.seen.lanes:
            memory = self._catalyst.tables[seen.table]
            lane = memory.lanes[seen.source]
            lane.stored_us = self._stored_us(step, seen, lane.stored_us, time_us)
            if seen.stores and seen.source != VERSIONS:
                held = lane.operations_nbytes
                memory.rows_unstored -= lane.stored_up_to(seen.stored_id)
                memory.bytes_operations -= held - lane.operations_nbytes
            lane.logged_id = max(lane.logged_id, seen.last_id)
            lane.logged_us = max(lane.logged_us, seen.times[-1][0] if seen.times else 0)
        for table, version in step.versions.items():
            memory = self._catalyst.tables[table]
            memory.rows_stored = self._rows_stored(step, table)
            memory.version = version
            memory.changes += 1
        for table in step.seen.cuts:
            memory = self._catalyst.tables[table]
            memory.reset_versions(self._catalyst.row_ids.last)
            memory.settled_us = step.seen.cuts[table]
        for table, extra in step.bypass.items():
            if extra.adopted is not None:
                self._catalyst.tables[table].reset_versions(self._catalyst.row_ids.last)
                self._catalyst.tables[table].settled_us = 0

    def _batches(self, step: _Step, commit: Commit | None, batch_id: str | None, state: int) -> list[Batch]:
        done = [
            Batch(source, known_id, known, state, 0)
            for (source, known_id), known in self._catalyst.head.batches.items()
            if known.number <= step.seen.positions.get(source, Commit(0, 0)).number
        ]
        if step.own is not None and commit is not None and batch_id is not None:
            done.append(Batch(step.own.source, batch_id, commit, state, self._own_rows(step)))
        return done

    def _finish(self, step: _Step) -> None:
        """Clean up behind a published step; nothing here can undo it."""
        reach(CrashPoint.NOTICE_GIVEN)
        if step.record is not None:
            self._wal.keep(step.record)
        self._wal.release(self.durable.log_begin, end=self.durable.log_end)
        for table, version in step.versions.items():
            if version % self._settings.checkpoint_versions == 0:
                self._checkpoints.submit(self._checkpoint, table, version)
        METRICS.counter("righttime_states_durable_total").inc(kind=step.kind)
        for table, files in step.files.items():
            METRICS.counter("righttime_rows_stored_total").inc(sum(file.rows for file in files), table=table)
        log.debug("state.durable", state=self.durable.number, kind=step.kind, tables=sorted(step.versions), logged=len(step.entries))

    def _checkpoint(self, table: str, version: int) -> None:
        """Write a table's checkpoint, in the background: it takes a hundred commits' time and nothing depends on it."""
        try:
            self._store.checkpoint(self._schemas[table], version)
        except Exception as error:
            log.warning("checkpoint.failed", table=table, version=version, error=str(error))

    def close(self) -> None:
        """Let checkpoints under way finish."""
        self._checkpoints.shutdown(wait=True)

    # -- failure -----------------------------------------------------------------------------------------------------

    def _give_up(self, step: _Step, error: Exception) -> None:
        """Take Delta commits of a failed step back; where even that fails, the table is cleaned before the next step."""
        # Where another writer was first, nothing of ours is in the table; to clean it would stand in the way of adopting what is.
        foreign = {error.context["table"]} if isinstance(error, ForeignCommit) else set()
        self._unclean |= set(step.files) - foreign
        try:
            for table, files in step.files.items():
                if table not in step.versions:
                    kept = step.bypass.get(table, Bypass()).files  # they belong to the producer's transaction, which goes on
                    self._store.discard(self._schemas[table], [file for file in files if file not in kept])
            self._clean()
        except Exception as error:
            log.warning("table.unclean", tables=sorted(self._unclean), error=str(error))

    def _clean(self) -> None:
        for table in sorted(self._unclean):
            memory = self._catalyst.tables[table]
            memory.version = self._store.undo(self._schemas[table], version=memory.version)
            self._unclean.discard(table)
