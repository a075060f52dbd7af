"""AT-X9: whatever producers, queries, moves and crashes do, every answer is the list model at the cut of its receipt."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

import righttime as rt
from righttime.catalyst import gathering, local
from righttime.catalyst.producer import OwnRows, Producer
from righttime.changes.faults import CrashPoint
from righttime.changes.position import START, Commit
from righttime.errors import AsOfUnavailable, CatalystFull, CommitFailed, FreshnessUnavailable, KeyTaken, LogFull, NotStored
from righttime.ledger.receipts import Receipt
from righttime.query.contract import Contract
from righttime.query.snapshot import Snapshot
from righttime.service import Engine
from tests.support.change_model import Computed, Delete, Insert, Row, Shape, Step, Update, Upsert, Where, equal_to, taken_keys
from tests.support.clocks import SteppedClock
from tests.support.crash import abandon, crash, engine_of, killed_at
from tests.support.list_model import ListModel, numbers
from tests.support.machine_places import Place

EXAMPLES = int(os.environ.get("RIGHTTIME_EXAMPLES", "120"))
STEPS = 50

# One key, two keys, straight to the warehouse, no keys and partitions, unique keys; numbers only (blocks) and mixed (Arrow batches).
TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "x": ("a INT, b INT", {"keys": ["a"]}),
    "y": ("a BIGINT, b STRING", {"keys": ["a", "b"]}),
    "z": ("a INT, b INT", {"keys": ["a"], "in_memory": False}),
    "w": ("a INT, b INT", {"partition_by": ["b"]}),
    "u": ("a INT, b INT", {"keys": ["a"], "unique": True}),
}
SHAPES = {name: Shape(("a", "b"), tuple(options.get("keys", ()))) for name, (_, options) in TABLES.items()}
SOURCES = ("p", "q", "r")
ROOMY = {
    "memory_bytes_max": 300,
    "spill_bytes_max": 1 << 30,
    "bypass_bytes": 200,
    "archive_bytes_max": 250,
    "segment_rows": 4,
    "log_file_bytes": 3000,
    "checkpoint_versions": 3,
    "file_grace_s": 0,
    "policy_poll_s": 1000,
    "producer_lease_s": 10_000,
}
TIGHT = ROOMY | {"memory_bytes_max": 250, "spill_bytes_max": 0, "full_wait_s": 0, "wait_s": 0.1, "log_bytes_max": 8_000}
FORGETFUL = ROOMY | {"commits_max": 4, "states_max": 3, "receipts_max": 8}
BOUNDS: dict[str, dict[str, Any]] = {"roomy": ROOMY, "tight": TIGHT, "forgetful": FORGETFUL}

sources = st.sampled_from(SOURCES)
tables = st.sampled_from(sorted(TABLES))
table_sets = st.lists(tables, min_size=1, max_size=4, unique=True)
batch_ids = st.none() | st.sampled_from(["b1", "b2", "b3"])
CHANGES = ["set", "set", "grow", "delete", "delete", "move", "upsert", "upsert", "again"]
ways = st.sampled_from(["memory", "memory", "memory", "log", "warehouse", "materialize"])


class Switch:
    """A policy in the hand of the test."""

    def __init__(self) -> None:
        self.on = False

    def should_flush(self) -> bool:
        return self.on

    def flushed(self) -> None:
        self.on = False


POLICIES: dict[str, Callable[[], rt.Policy]] = {"now": rt.Immediate, "asked": rt.OnDemand, "every": lambda: rt.Every("10s"), "switch": Switch}
FIRST_POLICY = {"p": "asked", "q": "now", "r": "switch"}
LIFE_STEPS = 10
"""Steps before a life may end. Which rules may run depends on drawn values only, never on time: Hypothesis replays what it draws."""

_COMMIT = [CrashPoint.COMMIT_STAGED, CrashPoint.COMMIT_PUBLISHED]
_LEDGER = [CrashPoint.LEDGER_BEGUN, CrashPoint.LEDGER_COMMITTED, CrashPoint.NOTICE_GIVEN, CrashPoint.LOG_REMOVED]
_LOG = [CrashPoint.LOG_WRITTEN, CrashPoint.LOG_SYNCED]
_STORE = [CrashPoint.FILES_WRITTEN, CrashPoint.TABLE_COMMITTED, CrashPoint.TABLES_COMMITTED]
deaths = st.one_of(
    st.tuples(st.just("memory"), st.sampled_from(_COMMIT)),
    st.tuples(st.just("log"), st.sampled_from([*_COMMIT, *_LOG, *_LEDGER])),
    st.tuples(st.just("warehouse"), st.sampled_from([*_COMMIT, *_LOG, *_STORE, *_LEDGER])),
)
care_deaths = st.one_of(
    st.tuples(st.just("materialize"), st.sampled_from([*_LOG, *_STORE, *_LEDGER])),
    st.tuples(st.just("gc"), st.sampled_from([CrashPoint.GC_PLANNED, CrashPoint.GC_REMOVED_ONE])),
    st.tuples(st.just("close"), st.sampled_from([*_LOG, *_LEDGER])),
)


@dataclass
class Held:
    """A snapshot that a query keeps open, and what it gave first."""

    stack: ExitStack
    snapshot: Snapshot
    expected: dict[str, "Counter[Row]"]


def counted(rows: pa.Table) -> "Counter[Row]":
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def without(rows: pa.Table, positions: Any) -> pa.Table:
    """Leave out the rows at some positions."""
    gone = set(() if positions is None else positions.tolist())
    return rows.take(pa.array([place for place in range(rows.num_rows) if place not in gone], pa.int64()))


class Machine(RuleBasedStateMachine):
    """The real warehouse on one side, the list model on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.place = self.new_place()
        self.clock = SteppedClock(1000.0)
        self.model = ListModel(SHAPES)
        self.producers: dict[str, Producer] = {}
        self.open_work: dict[str, dict[str, list[Step]]] = {}
        self.held: list[Held] = []
        self.receipts: list[tuple[Receipt, bool]] = []
        self.next_row = 0
        self.losses_known = 0
        self.steps = 0
        self.failing = False
        self.policies = dict(FIRST_POLICY)

    @initialize(bounds=st.sampled_from(["roomy", "tight", "forgetful"]))
    def begin(self, bounds: str) -> None:
        self.bounds = BOUNDS[bounds]
        self.tight = bounds == "tight"
        self.wh = self.place.open(clock=self.clock, **self.bounds)
        for name, (columns, options) in TABLES.items():
            self.wh.create_table(name, columns, **options)

    def new_place(self) -> Place:
        return Place()

    @property
    def engine(self) -> Engine:
        return engine_of(self.wh)

    def teardown(self) -> None:
        if hasattr(self, "wh"):
            self.drop_held()
            abandon(self.wh)
        self.place.close()

    # -- producers ---------------------------------------------------------------------------------------------------

    def producer(self, source: str) -> Producer:
        if source not in self.producers:
            self.open(source, self.policies[source])
        return self.producers[source]

    def open(self, source: str, policy: str) -> None:
        self.producers[source] = self.wh.producer(name=source, policy=POLICIES[policy]())
        self.open_work[source] = {}
        self.policies[source] = policy

    @rule(source=sources, policy=st.sampled_from(sorted(POLICIES)))
    def open_anew(self, source: str, policy: str) -> None:
        if source in self.producers:
            self.producers[source].close()
        self.open(source, policy)

    @rule(source=sources, table=tables, how=st.sampled_from(["one", "many", "arrow"]), count=st.integers(1, 14))
    def insert(self, source: str, table: str, how: str, count: int) -> None:
        producer = self.producer(source)
        rows = [self.new_row(table) for _ in range(count)]
        if how == "one":
            for row in rows:
                producer.insert(table, row)
        elif how == "many":
            producer.insert_many(table, rows)
        else:
            names = ("a", "b")
            producer.insert_arrow(table, pa.table({name: [row[place] for row in rows] for place, name in enumerate(names)}))
        self.open_work[source].setdefault(table, []).append(Insert(tuple(rows)))

    def new_row(self, table: str) -> Row:
        self.next_row += 1
        return self.row_of(table, self.next_row)

    def row_of(self, table: str, number: int) -> Row:
        return (number, f"é{number % 3}" if table == "y" else number % 3)

    @rule(source=sources, table=tables, kind=st.sampled_from(CHANGES), back=st.integers(0, 25), how_many=st.integers(1, 4))
    def change(self, source: str, table: str, kind: str, back: int, how_many: int) -> None:
        """An operation on rows that may be there, by key or by condition; a second row with a key that is there."""
        step = self.step(table, kind, max(self.next_row - back, 1), how_many)
        step.give(self.producer(source), table)
        self.open_work[source].setdefault(table, []).append(step)

    def step(self, table: str, kind: str, number: int, how_many: int) -> Step:
        row = SHAPES[table].named(self.row_of(table, number))
        key = {column: row[column] for column in SHAPES[table].keys} or row
        some = Where("a BETWEEN ? AND ?", lambda found: number <= found["a"] < number + how_many, (number, number + how_many - 1))
        other = {"b": "other" if table == "y" else 7}
        grown = {"b": Computed("b || '+'", lambda found: found["b"] + "+") if table == "y" else Computed("b + 1", lambda found: found["b"] + 1)}
        if kind == "again":
            return Insert((self.row_of(table, number),) * how_many)
        if kind == "upsert" and SHAPES[table].keys:
            return Upsert(tuple({**SHAPES[table].named(self.row_of(table, number + place)), **other} for place in range(how_many)))
        if kind == "delete":
            return Delete(equal_to(key) if how_many % 2 else some)
        if kind == "move":
            self.next_row += 1
            return Update({"a": self.next_row}, equal_to(key))
        return Update(other if kind == "set" else grown, equal_to(key) if how_many % 2 else some)

    @rule(
        source=sources, changes=st.lists(st.tuples(tables, st.sampled_from(CHANGES), st.integers(0, 25), st.integers(1, 4)), min_size=1, max_size=3), way=ways
    )
    def load_changes(self, source: str, changes: list[tuple[str, str, int, int]], way: str) -> None:
        """A transaction that changes rows which are there."""
        for change in changes:
            self.change(source, *change)
        self.commit(source, way, None)

    @rule(source=sources, loads=st.lists(st.tuples(tables, st.integers(1, 9)), min_size=1, max_size=3), way=ways)
    def load(self, source: str, loads: list[tuple[str, int]], way: str) -> None:
        """The usual transaction."""
        for table, count in loads:
            self.insert(source, table, "many", count)
        self.commit(source, way, None)

    @rule(source=st.sampled_from("pr"), loads=st.lists(st.tuples(st.sampled_from("xyw"), st.integers(1, 5)), min_size=1, max_size=3))
    def load_lazily(self, source: str, loads: list[tuple[str, int]]) -> None:
        """The usual transaction of a lazy producer."""
        self.load(source, loads, "memory")

    @rule(source=sources, way=ways, batch_id=batch_ids)
    def commit(self, source: str, way: str, batch_id: str | None) -> None:
        self.producer(source)
        try:
            self.do_commit(source, way, batch_id)
        except KeyTaken:
            assert self.takes_a_key_twice(source)
            self.roll_back(source)
        except NotStored:
            # It is committed, and logged; storing it failed or has to wait.
            assert self.tight or self.failing
            self.note_commit(source, self.engine.catalyst.head.source(source).last, batch_id, durable=True)
        except (CatalystFull, LogFull, FreshnessUnavailable):
            assert self.tight
        except CommitFailed:
            assert self.tight or self.failing
            if self.failing:
                raise

    def takes_a_key_twice(self, source: str) -> bool:
        rows = self.model.content("u", self.model.newest(), self.open_work[source].get("u", ()))
        return bool(taken_keys(list(rows.elements()), SHAPES["u"]))

    def do_commit(self, source: str, way: str, batch_id: str | None) -> None:
        options: dict[str, Any] = {"materialize": True} if way == "materialize" else {} if way == "memory" else {"durability": way}
        known = batch_id is not None and (source, batch_id) in self.model.batches
        published = self.producers[source].commit(**options, batch_id=batch_id)
        assert published.replayed == known
        if known:
            self.open_work[source] = {}
            assert published.commit.number == self.model.batches[source, batch_id or ""]
            return
        assert not self.takes_a_key_twice(source)
        durable = way != "memory" or "z" in self.open_work[source]
        self.note_commit(source, published.commit, batch_id, durable=durable)
        assert not durable or self.engine.mover.durable.positions.get(source) == published.commit

    def note_commit(self, source: str, commit: Commit, batch_id: str | None, *, durable: bool) -> None:
        work, self.open_work[source] = self.open_work[source], {}
        self.model.add(source, commit, work, durable=durable, batch_id=batch_id)

    @rule(source=sources)
    def roll_back(self, source: str) -> None:
        self.producer(source).rollback()
        self.open_work[source] = {}

    @rule(source=sources, some=st.lists(tables, max_size=2, unique=True))
    def flush(self, source: str, some: list[str]) -> None:
        try:
            self.producer(source).flush(*some)
        except CatalystFull:
            assert self.tight

    @rule(source=sources, on=st.booleans())
    def poll(self, source: str, on: bool) -> None:
        producer = self.producer(source)
        if isinstance(producer.policy, Switch):
            producer.policy.on = on
        try:
            producer._poll()
        except CatalystFull:
            assert self.tight

    # -- care --------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.000001, 0.5, 7.0, 30.0, -2.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(some=st.lists(tables, max_size=2, unique=True))
    def materialize(self, some: list[str]) -> None:
        try:
            self.wh.materialize(*some, wait=self.wait())
        except (FreshnessUnavailable, LogFull):
            assert self.tight
            return
        self.model.all_durable()

    @rule(
        source=sources,
        table=tables,
        what=st.sampled_from(["write_files", "remove", "commit", "write_state"]),
        call=st.integers(1, 2),
        way=st.sampled_from(["log", "warehouse", "care"]),
    )
    def disk_fails(self, source: str, table: str, what: str, call: int, way: str) -> None:
        """A step that fails on the disk leaves nothing visible, and the transaction as it was."""
        self.insert(source, table, "many", 2)
        owner: Any = self.engine.ledger if what == "write_state" else self.engine.store
        working, calls = getattr(owner, what), 0

        def failing(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                raise OSError(28, "no space left on device")
            return working(*args, **options)

        self.failing = True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, what, failing)
            try:
                if way == "care":
                    self.materialize([table])
                else:
                    self.commit(source, way, None)
            except CommitFailed:
                assert calls >= call or self.tight
            finally:
                self.failing = False
        self.check_all_there()

    @rule()
    def collect(self) -> None:
        self.wh.gc()

    # -- queries -----------------------------------------------------------------------------------------------------

    def wait(self) -> float:
        return 0.1 if self.tight else 20.0

    @rule(table=tables, freshness=st.sampled_from([0, 0, 0.000002, 1, 10, 100]), patient=st.booleans())
    def read(self, table: str, freshness: float, patient: bool) -> None:
        try:
            answer = self.wh.read(table, freshness=freshness, wait=self.wait() if patient else 0, on_late="error" if patient else "answer")
        except FreshnessUnavailable:
            assert self.tight or not patient
            return
        receipt = answer.receipt
        assert not (receipt.late and patient)
        self.check_cut(receipt, freshness_us=round(freshness * 1e6))
        assert counted(answer.arrow()) == self.model.content(table, numbers(receipt.cut))
        assert receipt.rows == len(answer) == receipt.tables[0].rows_stored + receipt.tables[0].rows_hot - receipt.tables[0].rows_hidden
        self.receipts.append((receipt, True))

    @rule(some=table_sets, freshness=st.sampled_from([0, 1, 10]))
    def read_together(self, some: list[str], freshness: float) -> None:
        """All tables of one query come from one state."""
        try:
            with self.take(some, freshness_us=round(freshness * 1e6)) as snapshot:
                self.check_snapshot(snapshot)
        except FreshnessUnavailable:
            assert self.tight

    @rule(some=table_sets, pick=st.integers(0, 1000), off_us=st.sampled_from([-1, 0, 0, 1]))
    def read_as_of(self, some: list[str], pick: int, off_us: int) -> None:
        times = [*self.model.times(), self.clock.now_us()]
        as_of_us = times[pick % len(times)] + off_us
        stored_us = max(self.engine.catalyst.tables[name].stored_us for name in some)
        try:
            with self.take(some, as_of_us=as_of_us) as snapshot:
                cut = {source: self.model.inside(source, as_of_us) for source in self.model.commits}
                for name, table in snapshot.tables.items():
                    assert counted(self.engine.snapshots.rows(table)) == self.model.content(name, {source: commit.number for source, commit in cut.items()})
                assert all(one.last_inside == cut.get(one.source, START) for one in snapshot.look.cuts)
        except AsOfUnavailable:
            assert as_of_us < stored_us or self.history_is_short(as_of_us)
        except FreshnessUnavailable:
            assert self.tight

    def history_is_short(self, as_of_us: int) -> bool:
        return any(as_of_us < history.oldest_us for history in self.engine.catalyst.head.sources.values())

    @rule(source=sources, some=table_sets)
    def read_own(self, source: str, some: list[str]) -> None:
        """A producer sees everything committed and its own open transaction; what it sees is still uncommitted for others."""
        producer = self.producer(source)
        self.insert(source, some[0], "many", 2)
        rows, bypass = producer._transaction()
        try:
            producer._stage(rows)
            with self.take(some, own=OwnRows(source, bypass)) as snapshot:
                for name, table in snapshot.tables.items():
                    expected = self.model.content(name, numbers(snapshot.look.cuts), self.open_work[source].get(name, ()))
                    assert counted(self.engine.snapshots.rows(table)) == expected
        except (FreshnessUnavailable, CatalystFull):
            assert self.tight

    def take(self, some: Iterable[str], *, freshness_us: int = 0, as_of_us: int | None = None, own: OwnRows | None = None) -> Any:
        return self.engine.snapshots.take(sorted(some), Contract(freshness_us, self.wait(), "error", as_of_us), own=own)

    def check_snapshot(self, snapshot: Snapshot) -> dict[str, "Counter[Row]"]:
        cut = numbers(snapshot.look.cuts)
        seen = {name: counted(self.engine.snapshots.rows(table)) for name, table in snapshot.tables.items()}
        assert seen == {name: self.model.content(name, cut) for name in seen}
        return seen

    def check_cut(self, receipt: Receipt, *, freshness_us: int) -> None:
        """The cut names real commits, is the newest at its time, and is no staler than asked unless it says so."""
        for cut in receipt.cut:
            inside = cut.last_inside
            assert self.model.inside(cut.source, inside.time_us) == inside
            assert cut.first_outside in (None, self.model.after(cut.source, inside.number))
            if not receipt.late:
                assert inside == self.model.inside(cut.source, receipt.cut_us)
        if not receipt.late:
            assert receipt.cut_us >= receipt.issued_us - freshness_us
        table = receipt.tables[0].name
        assert {cut.source for cut in receipt.cut} >= self.model.sources_of(table) or receipt.late

    @rule(some=table_sets, freshness=st.sampled_from([0, 10]))
    def hold(self, some: list[str], freshness: float) -> None:
        if len(self.held) >= 3:
            return
        with ExitStack() as stack:
            try:
                snapshot = stack.enter_context(self.take(some, freshness_us=round(freshness * 1e6)))
            except FreshnessUnavailable:
                assert self.tight
                return
            self.held.append(Held(stack.pop_all(), snapshot, self.check_snapshot(snapshot)))

    @rule(pick=st.integers(0, 2), again=st.booleans())
    def read_held(self, pick: int, again: bool) -> None:
        """A held snapshot gives the same rows for as long as it is held (I5)."""
        if not self.held:
            return
        held = self.held[pick % len(self.held)]
        assert {name: counted(self.engine.snapshots.rows(table)) for name, table in held.snapshot.tables.items()} == held.expected
        for name, table in held.snapshot.tables.items():
            files = self.engine.snapshots.files(table)
            if files is None:
                assert not self.place.in_files
                continue
            parts = [without(pq.read_table(path, schema=table.schema.columns), files.hidden.get(path)) for path in files.paths]
            assert counted(pa.concat_tables([*parts, table.schema.columns.empty_table()])) == held.expected[name]
        if not again:
            self.held.remove(held)
            held.stack.close()

    def drop_held(self) -> None:
        for held in self.held:
            held.stack.close()
        self.held = []

    @rule(pick=st.integers(0, 1000))
    def verify(self, pick: int) -> None:
        """A receipt verifies at any later time; where a crash took a commit it contains, only if running it again gives the same rows."""
        if not self.receipts:
            return
        receipt, holds = self.receipts[pick % len(self.receipts)]
        found = self.wh.verify(receipt.to_json())
        assert found.ok if holds else not found.ok or found.method == "rerun", found

    # -- ends and beginnings -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.steps >= LIFE_STEPS)
    @rule()
    def reopen(self) -> None:
        self.steps = 0
        self.drop_held()
        try:
            self.wh.close()
        except LogFull:
            assert self.tight
            self.after_crash()  # what could not be made safe is reported
            return
        self.model.all_durable()
        self.begin_life()

    @precondition(lambda self: self.steps >= LIFE_STEPS)
    @rule()
    def crash(self) -> None:
        self.steps = 0
        crash(self.wh, self.place.next_life())
        self.after_crash()

    @precondition(lambda self: self.steps >= LIFE_STEPS)
    @rule(source=sources, table=tables, death=deaths, batch_id=batch_ids, arrivals=st.sampled_from([1, 1, 1, 2]), back=st.none() | st.integers(0, 25))
    def crash_in_commit(self, source: str, table: str, death: tuple[str, CrashPoint], batch_id: str | None, arrivals: int, back: int | None) -> None:
        """A commit that dies is there whole if the ledger has it, and else not at all; so it is committed again or known."""
        self.steps = 0
        self.insert(source, table, "many", 3)
        if back is not None:
            self.change(source, table, "set", back, 1)
        work = dict(self.open_work[source])
        # Operations take a step of their own to the warehouse, before rows that go past them or after the commit that logs them.
        several = any(memory.has_operations for memory in self.engine.catalyst.tables.values()) or any(
            not isinstance(step, Insert) for steps in work.values() for step in steps
        )
        way, point = death
        with killed_at(self.wh, point, self.place.next_life(), arrivals=arrivals) as left:
            self.commit(source, way, batch_id)
        if self.is_dead(left):
            self.after_crash(dying=(source, work, batch_id, several), point=point)

    @precondition(lambda self: self.steps >= LIFE_STEPS)
    @rule(some=st.lists(tables, max_size=2, unique=True), death=care_deaths, arrivals=st.sampled_from([1, 1, 2]))
    def crash_in_care(self, some: list[str], death: tuple[str, CrashPoint], arrivals: int) -> None:
        self.steps = 0
        what, point = death
        with killed_at(self.wh, point, self.place.next_life(), arrivals=arrivals) as left:
            if what == "materialize":
                self.materialize(some)
            elif what == "gc":
                self.collect()
            else:
                for producer in self.producers.values():
                    producer.close()
                self.producers, self.open_work = {}, {}
                try:
                    self.engine.mover.make_safe()
                except LogFull:
                    assert self.tight
        if self.is_dead(left):
            self.after_crash(point=point)

    def is_dead(self, left: list[Path]) -> bool:
        """Whether the warehouse was killed; otherwise it lives on where it was."""
        if not left:
            self.place.same_life()
        return bool(left)

    def after_crash(self, *, dying: tuple[str, dict[str, list[Step]], str | None, bool] | None = None, point: CrashPoint | None = None) -> None:
        self.held = []  # their engine is gone
        if self.wh._shared is not None:
            abandon(self.wh)
        before = self.reopened()
        positions = self.engine.ledger.newest_state().positions
        if dying is not None:
            self.settle(*dying, positions=positions, point=point)
        expected = {}
        for source, last in self.model.last_number.items():
            kept = positions[source].number if source in positions else 0
            assert kept >= self.model.durable.get(source, 0), "a durable commit was lost"
            lost = self.model.lose_after(source, kept)
            if lost:
                expected[source] = (lost[0].number, last, sum(commit.size for commit in lost))
        found = {loss.source: (loss.first, loss.last, loss.rows) for loss in self.wh.losses()[before:]}
        if point is CrashPoint.LEDGER_COMMITTED:
            # Killed before the trace heard of the step: rows that it made durable are still counted there.
            assert all(found[source][2] >= loss[2] for source, loss in expected.items() if source in found)
            found = {source: (first, last, expected.get(source, (0, 0, rows))[2]) for source, (first, last, rows) in found.items()}
        assert found == expected
        self.receipts = [(receipt, holds and not self.is_lost(receipt, expected)) for receipt, holds in self.receipts]
        self.read_together(list(TABLES), 0)
        self.check_all_there()

    def is_lost(self, receipt: Receipt, lost: dict[str, tuple[int, int, int]]) -> bool:
        return any(source in lost and lost[source][0] <= number <= lost[source][1] for source, number in numbers(receipt.cut).items())

    def settle(
        self,
        source: str,
        work: dict[str, list[Step]],
        batch_id: str | None,
        several: bool,
        *,
        positions: Mapping[str, Commit],
        point: CrashPoint | None,
    ) -> None:
        """Learn from the ledger whether the dying commit happened, and compare with where it died."""
        number = self.model.last_number.get(source, 0) + 1
        known = batch_id is not None and (source, batch_id) in self.model.batches
        happened = source in positions and positions[source].number == number
        if happened:
            assert not known
            assert several or point in (CrashPoint.LEDGER_COMMITTED, CrashPoint.NOTICE_GIVEN, CrashPoint.LOG_REMOVED, CrashPoint.COMMIT_PUBLISHED)
            self.model.add(source, positions[source], work, durable=True, batch_id=batch_id)
        elif point is CrashPoint.COMMIT_PUBLISHED and not known:
            # It was visible in memory, and then lost; the loss is reported.
            self.model.add(source, Commit(number, self.model.newest_us() + 1), work, durable=False)
        else:
            assert known or several or point not in (CrashPoint.LEDGER_COMMITTED, CrashPoint.NOTICE_GIVEN)

    def reopened(self) -> int:
        """Open what is left and return how many losses were known before."""
        known, self.losses_known = self.losses_known, 0
        self.begin_life()
        self.losses_known = len(self.wh.losses())
        return known

    def begin_life(self) -> None:
        self.wh = self.place.open(clock=self.clock, **self.bounds)
        self.producers, self.open_work = {}, {}
        self.check_all_there()

    def check_all_there(self) -> None:
        """Recovery left no second truth: the tables' newest versions are the ledger's."""
        engine = self.engine
        for name, schema in engine.schemas.items():
            assert engine.store.newest_version(schema) == engine.catalyst.tables[name].version

    @invariant()
    def bounds_are_kept(self) -> None:
        self.steps += 1
        if hasattr(self, "wh"):
            for table in self.engine.catalyst.tables.values():
                with self.engine.catalyst.lock:
                    pieces = [piece.content for lane in table.lanes.values() for piece in lane.pieces]
                    operations = sum(placed.operations.nbytes for lane in table.lanes.values() for placed in lane.operations)
                    assert (table.bytes_memory, table.bytes_operations) == (sum(content.nbytes for content in pieces if content.in_memory), operations)
                # A spill file is somewhat larger than the rows it was planned for.
                assert 0 <= table.bytes_spilled <= self.bounds["spill_bytes_max"] + 2000


def run(examples: int, *, machine: type[Machine] = Machine) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "_MANY", 2)  # else no history is long enough to be gathered
        patch.setattr(local, "_OPERATIONS_MANY", 1)  # nor to be stored before a commit that stores
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
                derandomize="RIGHTTIME_DICE" not in os.environ,  # `RIGHTTIME_DICE=1` for other histories in each run
            ),
        )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_at_x9_any_history_gives_the_answers_of_the_list_model() -> None:
    """AT-X9: random histories of producers, moves, crashes and queries against a list; every row once, every cut honoured."""
    run(EXAMPLES)
