"""Whatever several sources insert, update, delete and upsert, in whatever order it moves: every reader sees the serial run up to its cut."""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import righttime as rt
from righttime.catalyst.producer import OwnRows, Producer
from righttime.errors import AsOfUnavailable, KeyTaken, OperationFailed
from righttime.query.contract import Contract
from righttime.query.snapshot import Snapshot
from tests.support.change_model import (
    EVERYTHING,
    Computed,
    Delete,
    Insert,
    KeyedChanges,
    Row,
    Shape,
    Step,
    Update,
    Upsert,
    Where,
    equal_to,
    run,
    taken_keys,
)
from tests.support.clocks import SteppedClock
from tests.support.crash import abandon, crash, engine_of

EXAMPLES = int(os.environ.get("RIGHTTIME_SETTLE_EXAMPLES", "60"))

# One key, two keys, none, unique ones, partitions that updates move rows between, and a table without memory table.
DECLARED: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("a INT, b INT, c STRING", {"keys": ["a"]}),
    "two": ("a INT, b STRING, c INT", {"keys": ["b", "a"]}),
    "none": ("a INT, b INT", {}),
    "only": ("a INT, b INT", {"keys": ["a"], "unique": True}),
    "part": ("a INT, b INT", {"keys": ["a"], "partition_by": ["b"]}),
    "cold": ("a INT, b INT", {"keys": ["a"], "in_memory": False}),
}
SHAPES = {
    "one": Shape(("a", "b", "c"), ("a",)),
    "two": Shape(("a", "b", "c"), ("a", "b")),
    "none": Shape(("a", "b")),
    "only": Shape(("a", "b"), ("a",)),
    "part": Shape(("a", "b"), ("a",)),
    "cold": Shape(("a", "b"), ("a",)),
}
POLICIES: dict[str, Callable[[], rt.Policy]] = {"p": rt.OnDemand, "q": rt.Immediate, "r": rt.OnDemand}
SETTINGS: dict[str, Any] = {"segment_rows": 4, "bypass_bytes": 300, "policy_poll_s": 1000, "producer_lease_s": 10_000, "file_grace_s": 0}

keys = st.integers(0, 2)
numbers = st.none() | st.integers(0, 3)
texts = st.none() | st.sampled_from(["", "x", "é"])
VALUES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "one": {"a": keys, "b": numbers, "c": texts},
    "two": {"a": st.integers(0, 2), "b": st.sampled_from(["", "x"]), "c": numbers},
    "none": {"a": numbers, "b": numbers},
    "only": {"a": keys, "b": numbers},
    "part": {"a": keys, "b": numbers},
    "cold": {"a": keys, "b": numbers},
}
INTEGERS = {"one": "b", "two": "c", "none": "b", "only": "b", "part": "b", "cold": "b"}


def conditions(table: str) -> st.SearchStrategy[Where]:
    """Conditions of every kind: by key, by other columns, that no row or every row meets, that some value makes fail."""
    shape, values, number = SHAPES[table], VALUES[table], INTEGERS[table]
    by_column = st.sampled_from(shape.columns).flatmap(lambda column: values[column].map(lambda value: equal_to({column: value})))
    by_range = st.integers(0, 3).map(lambda low: Where(f"{number} >= ?", lambda row: row[number] is not None and row[number] >= low, (low,)))
    null = st.just(Where(f"{number} IS NULL OR a IN (1, 2)", lambda row: row[number] is None or row["a"] in (1, 2)))
    failing = st.just(Where(f"6 / {number} > 2", lambda row: row[number] is not None and 6 / row[number] > 2))
    by_key = st.fixed_dictionaries({key: values[key] for key in shape.keys}).map(equal_to)
    as_text = st.fixed_dictionaries({key: values[key] for key in shape.keys}).map(
        lambda key: Where(" AND ".join(f"{column} = ?" for column in key), equal_to(key).meets, tuple(key.values()))
    )
    loose = by_column | by_range | null | failing | st.just(EVERYTHING)
    return (by_key | by_key | as_text | loose) if shape.keys else loose


def new_values(table: str) -> st.SearchStrategy[Mapping[str, Any]]:
    """What an update sets: literals, keys among them, or expressions."""
    shape, values, number = SHAPES[table], VALUES[table], INTEGERS[table]
    literals = {column: values[column] for column in shape.columns if column not in shape.keys}
    plain = st.fixed_dictionaries({}, optional=literals).filter(bool)
    moved = st.fixed_dictionaries({"a": values["a"]}, optional={column: value for column, value in literals.items() if column != "a"})
    grown = Computed(f"{number} + 1", lambda row: None if row[number] is None else row[number] + 1)
    swapped = Computed(f"a - {number}", lambda row: None if None in (row["a"], row[number]) else row["a"] - row[number])
    failing = Computed(f"CAST(12 / {number} AS INT)", lambda row: None if row[number] is None else int(12 / row[number]))
    computed = st.sampled_from([grown, swapped, failing]).map(lambda value: {number: value})
    key_computed = st.just({"a": Computed("a + 1", lambda row: None if row["a"] is None else row["a"] + 1)})
    return plain | plain | plain | moved | computed | key_computed


def rows_of(table: str) -> st.SearchStrategy[Row]:
    return st.tuples(*(VALUES[table][column] for column in SHAPES[table].columns))


def keyed(table: str, *, some: bool) -> st.SearchStrategy[tuple[Mapping[str, Any], ...]]:
    """Rows with keys and, in all of one call, the same other columns."""
    shape, values = SHAPES[table], VALUES[table]
    others = [column for column in shape.columns if column not in shape.keys]
    chosen = st.lists(st.sampled_from(others), min_size=1, unique=True) if some else st.just([])
    return chosen.flatmap(
        lambda columns: st.lists(st.fixed_dictionaries({column: values[column] for column in (*shape.keys, *columns)}), min_size=1, max_size=4)
    ).map(tuple)


def steps(table: str) -> st.SearchStrategy[Step]:
    few = st.lists(rows_of(table), min_size=1, max_size=3).map(lambda rows: Insert(tuple(rows)))
    large = rows_of(table).map(lambda row: Insert((row,) * 60))  # past the catalyst, unless there is a reason not to
    inserts = few if table == "only" else few | few | few | large
    updates = st.builds(Update, new_values(table), conditions(table))
    deletes = st.builds(Delete, conditions(table))
    if not SHAPES[table].keys:
        return inserts | inserts | updates | deletes
    upserts = st.builds(Upsert, keyed(table, some=True))
    many = st.builds(KeyedChanges, st.just("update"), keyed(table, some=True)) | st.builds(KeyedChanges, st.just("delete"), keyed(table, some=False))
    return inserts | inserts | updates | updates | deletes | upserts | many


sources = st.sampled_from(sorted(POLICIES))
ways = st.sampled_from(["memory"] * 5 + ["log", "warehouse"])


def actions(focus: list[str]) -> st.SearchStrategy[tuple[Any, ...]]:
    """What can happen, in a few tables, so that changes meet."""
    tables = st.sampled_from(focus)
    some = st.lists(tables, min_size=1, max_size=2, unique=True)
    work = st.lists(tables.flatmap(lambda table: st.tuples(st.just(table), steps(table))), min_size=1, max_size=3)
    load = st.tuples(st.just("load"), sources, work, ways)
    return st.one_of(
        load,
        load,
        load,
        st.tuples(st.just("work"), sources, work),
        st.tuples(st.just("roll back"), sources),
        st.tuples(st.just("flush"), sources),
        st.tuples(st.just("materialize"), some | st.just([])),
        st.tuples(st.just("pass"), st.sampled_from([0.0, 1.0])),
        st.tuples(st.just("read"), some, st.sampled_from([0, 0, 5])),
        st.tuples(st.just("as of"), some, st.integers(0, 100)),
        st.tuples(st.just("hold"), some),
        st.tuples(st.just("held")),
        st.tuples(st.just("own"), sources, some, st.sampled_from([0, 5])),
        st.tuples(st.just("restart"), st.booleans()),
    )


histories = st.lists(st.sampled_from(sorted(DECLARED)), min_size=1, max_size=2, unique=True).flatmap(
    lambda focus: st.lists(actions(focus), min_size=6, max_size=25)
)


@dataclass
class Committed:
    """One transaction as it was committed."""

    source: str
    time_us: int
    work: dict[str, list[Step]]
    durable: bool


@dataclass
class Play:
    """The real warehouse, and beside it the list of transactions."""

    root: Path
    clock: SteppedClock = field(default_factory=lambda: SteppedClock(1000.0))
    history: list[Committed] = field(default_factory=list)
    open: dict[str, dict[str, list[Step]]] = field(default_factory=dict)
    producers: dict[str, Producer] = field(default_factory=dict)
    held: list[tuple[ExitStack, Snapshot, dict[str, "Counter[Row]"]]] = field(default_factory=list)
    lives: int = 0

    def __post_init__(self) -> None:
        self.wh = rt.open(self.root / "0", clock=self.clock, **SETTINGS)
        for name, (columns, options) in DECLARED.items():
            self.wh.create_table(name, columns, **options)

    def content(self, table: str, cut_us: int, *, own: str | None = None) -> list[Row]:
        """Run what was committed up to a time, in the order of commits; then what `own` has open."""
        rows: list[Row] = []
        for commit in sorted(self.history, key=lambda commit: commit.time_us):
            if commit.time_us <= cut_us:
                rows = run(commit.work.get(table, []), rows, SHAPES[table])
        return run(self.open.get(own, {}).get(table, []), rows, SHAPES[table]) if own else rows

    def do(self, action: tuple[Any, ...]) -> None:
        getattr(self, "do_" + action[0].replace(" ", "_"))(*action[1:])
        self.check_account()

    def check_account(self) -> None:
        """The bytes that each table is said to hold are those of its pieces and operations."""
        for table in self.engine.catalyst.tables.values():
            pieces = [piece.content for lane in table.lanes.values() for piece in lane.pieces]
            operations = sum(placed.operations.nbytes for lane in table.lanes.values() for placed in lane.operations)
            assert (table.bytes_memory, table.bytes_operations) == (sum(content.nbytes for content in pieces if content.in_memory), operations), table.name
            assert table.bytes_spilled == sum(content.nbytes for content in pieces if not content.in_memory), table.name

    def producer(self, source: str) -> Producer:
        if source not in self.producers:
            self.producers[source] = self.wh.producer(name=source, policy=POLICIES[source]())
        return self.producers[source]

    # -- loading -----------------------------------------------------------------------------------------------------

    def do_work(self, source: str, some: list[tuple[str, Step]]) -> None:
        for table, step in some:
            step.give(self.producer(source), table)
            self.open.setdefault(source, {}).setdefault(table, []).append(step)

    def do_load(self, source: str, some: list[tuple[str, Step]], way: Any) -> None:
        self.do_work(source, some)
        expected = self.refusal(source)
        if expected is not None:
            with pytest.raises(expected):
                self.producer(source).commit(durability=way)
            self.do_roll_back(source)
            return
        published = self.producer(source).commit(durability=way)
        if any(self.open[source].values()):
            durable = self.engine.mover.durable.positions.get(source) == published.commit
            assert durable or way == "memory"
            self.history.append(Committed(source, published.commit.time_us, self.open.pop(source), durable))
            if durable:
                self.note_durable()

    def refusal(self, source: str) -> type[Exception] | tuple[type[Exception], ...] | None:
        """Say which error the open transaction has to end in, if any; a table with both may give either."""
        found: list[type[Exception]] = []
        for table in self.open.get(source, {}):
            try:
                rows = self.content(table, 2**62, own=source)
            except ZeroDivisionError:
                found.append(OperationFailed)
                continue
            if table == "only" and taken_keys(rows, SHAPES[table]):
                found.append(KeyTaken)
            if any(None in SHAPES[table].key_of(row) for row in rows):
                found.append(OperationFailed)
        return tuple(found) or None

    def note_durable(self) -> None:
        """What is in the catalyst is made safe with every durable step; what a lazy producer still holds is not."""
        for commit in self.history:
            link = self.engine.catalyst.links.get(commit.source)
            if link is None or commit.time_us < min(link.archived_from.values(), default=2**62):
                commit.durable = True

    def do_roll_back(self, source: str) -> None:
        self.producer(source).rollback()
        self.open.pop(source, None)

    def do_flush(self, source: str) -> None:
        self.producer(source).flush()

    def do_materialize(self, some: list[str]) -> None:
        self.wh.materialize(*some)
        self.note_durable()
        for table in some or DECLARED:
            assert not self.engine.catalyst.tables[table].rows_hot() or self.open, "something committed was not stored"

    def do_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Any:
        return engine_of(self.wh)

    def take(self, some: list[str], *, freshness_s: float = 0, as_of_us: int | None = None, own: OwnRows | None = None) -> Any:
        return self.engine.snapshots.take(sorted(some), Contract(round(freshness_s * 1e6), 20.0, "error", as_of_us), own=own)

    def seen(self, snapshot: Snapshot) -> dict[str, "Counter[Row]"]:
        found = {}
        for name, table in snapshot.tables.items():
            rows = self.engine.snapshots.rows(table)
            found[name] = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
            assert rows.num_rows == table.rows_stored + table.receipt().rows_hot - table.receipt().rows_hidden
        return found

    def expected(self, snapshot: Snapshot, *, own: str | None = None) -> dict[str, "Counter[Row]"]:
        return {name: Counter(self.content(name, snapshot.accuracy.cut_us, own=own)) for name in snapshot.tables}

    def do_read(self, some: list[str], freshness_s: float) -> None:
        with self.take(some, freshness_s=freshness_s) as snapshot:
            assert snapshot.accuracy.cut_us >= snapshot.asked_us - freshness_s * 1e6
            assert self.seen(snapshot) == self.expected(snapshot)

    def do_as_of(self, some: list[str], pick: int) -> None:
        times = [1, *(commit.time_us + off for commit in self.history for off in (-1, 0)), self.clock.now_us()]
        as_of_us = sorted(times)[pick % len(times)]
        floor_us = self.engine.catalyst.floor_us(some)
        try:
            with self.take(some, as_of_us=as_of_us) as snapshot:
                assert snapshot.accuracy.cut_us == as_of_us
                assert self.seen(snapshot) == self.expected(snapshot)
        except AsOfUnavailable:
            assert as_of_us < floor_us

    def do_hold(self, some: list[str]) -> None:
        stack = ExitStack()
        snapshot = stack.enter_context(self.take(some))
        self.held.append((stack, snapshot, self.expected(snapshot)))

    def do_held(self) -> None:
        for _, snapshot, expected in self.held:
            assert self.seen(snapshot) == expected

    def do_own(self, source: str, some: list[str], freshness_s: float) -> None:
        """A producer reads what is committed and its own open transaction, which may fail as its commit would."""
        producer = self.producer(source)
        failing = self.refusal(source)
        content, bypass = producer._transaction()
        producer._stage(content)
        try:
            with self.take(some, own=OwnRows(source, bypass), freshness_s=freshness_s) as snapshot:
                assert self.seen(snapshot) == self.expected(snapshot, own=source)
        except OperationFailed:
            assert failing is not None

    # -- restarts ----------------------------------------------------------------------------------------------------

    def let_go(self) -> None:
        for stack, _, _ in self.held:
            stack.close()
        self.held = []

    def do_restart(self, killed: bool) -> None:
        self.do_held()
        self.let_go()
        self.lives += 1
        if killed:
            left = crash(self.wh, self.root / str(self.lives))
            self.history = [commit for commit in self.history if commit.durable]
        else:
            left = self.wh.path
            self.wh.close()
            for commit in self.history:
                commit.durable = True
        self.producers, self.open = {}, {}
        self.wh = rt.open(left, clock=self.clock, **SETTINGS)
        self.do_read(list(DECLARED), 0)

    def finish(self) -> None:
        self.do_held()
        for pick in range(2 * len(self.history) + 2):
            self.do_as_of(sorted(DECLARED), pick)
        self.do_read(sorted(DECLARED), 0)
        self.do_materialize([])
        self.do_read(sorted(DECLARED), 0)
        self.do_held()


def check(history: list[tuple[Any, ...]]) -> None:
    root = Path(tempfile.mkdtemp(prefix="righttime-settle-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    play = Play(root)
    try:
        for action in history:
            play.do(action)
        play.finish()
    finally:
        play.let_go()
        abandon(play.wh)
        shutil.rmtree(root, ignore_errors=True)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(histories)
def test_any_history_of_changes_equals_the_serial_run_of_its_commits(history: list[tuple[Any, ...]]) -> None:
    """Inserts, updates, deletes and upserts of three sources, moved and read in any order, equal a list to which each commit was done in turn."""
    check(history)
