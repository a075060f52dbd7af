"""I1-I8 and U1-U11 of the design: what must always hold, and the known bugs of systems like ours, each by name.

Real parts and, where concurrency is the point, real threads. Random histories over all of them are in tests/simulation; real kills in tests/faults.
"""

import dataclasses
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

import righttime as rt
from righttime import Warehouse
from righttime.changes.faults import CrashPoint
from righttime.errors import CatalystFull, ReceiptForged, TooManySnapshots, WarehouseLocked
from righttime.ledger.lock import WriterLock
from righttime.ledger.receipts import Receipt
from righttime.query.snapshot import Snapshot
from righttime.warehouse import snapshots
from righttime.warehouse.lakehouse import Lakehouse
from tests.support.clocks import SteppedClock
from tests.support.crash import abandon, crash, engine_of, killed_at
from tests.support.state_tables import asking, catalyst_of, hot, seen, stored, tuples

ROW = "a INT, b INT"
WAIT_S = 60.0
"""Longer than any machine is slow: a test that needs it has found a deadlock."""
PAUSE_S = 0.001
"""Between two steps of a background thread, so that the other side gets its turns."""


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[Warehouse]:
    opened = rt.open(tmp_path / "wh")
    for name in "xy":
        opened.create_table(name, ROW)
    yield opened
    if opened._shared is not None:
        opened.close()


def rows_in(wh: Warehouse, snapshot: Snapshot) -> dict[str, list[Any]]:
    return {name: sorted(tuples(engine_of(wh).snapshots.rows(table))) for name, table in snapshot.tables.items()}


@contextmanager
def meanwhile(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run works in threads until the block ends; what they raise is raised here."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(work, stop) for work in works]
        try:
            yield
        finally:
            stop.set()
        for one in running:
            one.result(timeout=WAIT_S)


class Gate:
    """Holds a call of a real object open until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        call = getattr(owner, name)

        def held(*args: Any, **options: Any) -> Any:
            self.reached.set()
            assert self.open.wait(WAIT_S)
            return call(*args, **options)

        monkeypatch.setattr(owner, name, held)


# -- invariants -------------------------------------------------------------------------------------------------------


def test_i1_every_row_is_seen_exactly_once_before_during_and_after_it_moves(wh: Warehouse) -> None:
    """Commit k adds rows k and -k. Whatever moves meanwhile, an answer whose cut is k holds ±1 … ±k, each once, and nothing else."""
    producer = wh.producer(name="p")

    def load(stop: threading.Event) -> None:
        number = 0
        while not stop.wait(PAUSE_S):
            number += 1
            producer.insert_many("x", [(number, 0), (-number, 0)])
            producer.commit(materialize=number % 5 == 0)

    def move(stop: threading.Event) -> None:
        while not stop.wait(PAUSE_S):
            wh.materialize("x")
            with catalyst_of(wh).lock:
                catalyst_of(wh).free(catalyst_of(wh).tables["x"])

    with meanwhile(load, move):
        for _ in range(30):
            answer = wh.read("x")
            newest = answer.receipt.cut[0].last_inside.number if answer.receipt.cut else 0
            assert Counter(a for a, _ in answer.rows()) == Counter([*range(1, newest + 1), *range(-newest, 0)])


def test_i2_all_tables_of_a_query_come_from_one_state(wh: Warehouse) -> None:
    """Each commit puts the same row into X and Y; flushes and materializations of one table alone never show in a query over both."""
    producer = wh.producer(name="p", policy=rt.OnDemand())

    def load(stop: threading.Event) -> None:
        number = 0
        while not stop.wait(PAUSE_S):
            number += 1
            for table in "xy":
                producer.insert(table, (number, number))
            producer.commit()
            producer.flush("x" if number % 2 else "y")

    def move(stop: threading.Event) -> None:
        while not stop.wait(PAUSE_S):
            wh.materialize("y")

    with meanwhile(load, move):
        for number in range(60):
            with engine_of(wh).snapshots.take(["x", "y"], asking(number % 3 * 1000)) as snapshot:
                rows = rows_in(wh, snapshot)
                newest = next(iter(snapshot.look.cuts)).last_inside.number if snapshot.look.cuts else 0
            assert rows["x"] == rows["y"] == [(n, n) for n in range(1, newest + 1)]


def test_i3_a_query_holds_what_was_committed_before_it_and_nothing_committed_after(wh: Warehouse) -> None:
    """c(i) < begin(query) < c(i+1): a commit that had returned when the query began is inside, one that began after it ended is not; or it is pinned."""
    producer = wh.producer(name="p")
    begun = returned = 0

    def load(stop: threading.Event) -> None:
        nonlocal begun, returned
        while not stop.wait(PAUSE_S):
            begun += 1
            producer.insert("x", (begun, 0))
            producer.commit()
            returned = begun

    with meanwhile(load):
        for _ in range(100):
            before = returned
            answer = wh.read("x")
            after = begun
            inside = answer.receipt.cut[0].last_inside if answer.receipt.cut else None
            assert before <= len(answer) <= after
            assert inside is None or (inside.number == len(answer) and inside.time_us <= answer.receipt.cut_us)
        with engine_of(wh).snapshots.take(["x"], asking()) as pinned:
            first = rows_in(wh, pinned)
            wh.materialize()
            assert rows_in(wh, pinned) == first


@pytest.mark.parametrize("freshness_s", [0, 1, 2.5, 4, 9, 20])
def test_i4_no_answer_is_staler_than_its_contract(tmp_path: Path, freshness_s: float) -> None:
    """Row k is committed lazily at k seconds; at 10 s an answer with freshness f holds every row up to 10 - f, whole commits in order."""
    clock = SteppedClock(0.0)
    with rt.open(tmp_path / "wh", clock=clock) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p", policy=rt.OnDemand())
        for second in range(1, 11):
            clock.set(second)
            producer.insert("x", (second, 0))
            producer.commit()

        answer = wh.read("x", freshness=freshness_s)

        values = sorted(a for a, _ in answer.rows())
        assert values == list(range(1, len(values) + 1))
        assert len(values) >= int(10 - freshness_s)
        assert (answer.receipt.given_s or 0.0) <= freshness_s
        assert not answer.receipt.late


def test_i4_a_stale_answer_says_so(tmp_path: Path) -> None:
    """With on_late="answer" and no time to wait, the answer is older than asked and its receipt says how old and that it is late."""
    clock = SteppedClock(1.0)
    with rt.open(tmp_path / "wh", clock=clock) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p", policy=rt.OnDemand())
        producer.insert("x", (1, 1))
        producer.commit()
        clock.set(8)

        answer = wh.read("x", wait=0, on_late="answer")

        assert answer.rows() == []
        assert answer.receipt.late
        assert answer.receipt.asked_s == 0
        assert answer.receipt.given_s == pytest.approx(7.0, abs=1e-3)


def test_i5_what_a_query_holds_stays_until_it_lets_go(tmp_path: Path) -> None:
    """Rows, versions and files under a lease survive materialization, freeing and gc; afterwards they may go and do."""
    with rt.open(tmp_path / "wh", file_grace_s=0, segment_rows=2) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        producer.insert("x", (1, 1))
        producer.commit(materialize=True)
        producer.insert_many("x", [(2, 2), (3, 3)])
        producer.commit()
        engine = engine_of(wh)
        with engine.snapshots.take(["x"], asking()) as held:
            files = engine.snapshots.files(held.tables["x"])
            assert files is not None
            # Version 1 is superseded in a way that leaves its file unreferenced, as an undone commit does.
            schema = engine.schemas["x"]
            producer.commit(materialize=True)
            engine.store.undo(schema, version=0)
            with catalyst_of(wh).lock:
                catalyst_of(wh).free(catalyst_of(wh).tables["x"])
            engine.store.collect(schema, versions=lambda: engine.pins.versions_pinned(now_s=engine.clock.monotonic_s())["x"], grace_s=0, now_s=2e9)
            assert hot(wh, "x") == {2: (2, 2), 3: (3, 3)}
            assert sorted(row for file in files.paths for row in tuples(pq.read_table(file))) == [(1, 1), (2, 2), (3, 3)]
            assert rows_in(wh, held) == {"x": [(1, 1), (2, 2), (3, 3)]}
        assert engine.pins.versions_pinned(now_s=engine.clock.monotonic_s()) == {}
        with catalyst_of(wh).lock:
            catalyst_of(wh).free(catalyst_of(wh).tables["x"])
        assert hot(wh, "x") == {}
        abandon(wh)  # its table was undone behind its back


def test_i5_gc_goes_on_while_an_old_receipt_is_verified(tmp_path: Path) -> None:
    """A receipt names a version whose log is collected already; verifying it holds that version for a moment, and gc must not fail on it."""
    with rt.open(tmp_path / "wh", file_grace_s=0, checkpoint_versions=1, states_max=1) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        receipts = []
        for number in range(40):  # more than the store remembers
            producer.insert("x", (number, number))
            producer.commit(materialize=True)
            receipts.append(wh.read("x").receipt)
        engine_of(wh).mover._checkpoints.submit(lambda: None).result()
        wh.gc()
        assert receipts[0].verify().ok
        with engine_of(wh).snapshots.again(receipts[0].tables, cut_us=receipts[0].cut_us):
            wh.gc()


def test_i5_a_verification_that_finds_no_place_holds_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many snapshots: the rows that it took before it was refused are free again at once, not when a lease lapses."""
    with rt.open(tmp_path / "wh") as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        producer.insert("x", (1, 1))
        producer.commit()
        receipt = wh.read("x").receipt
        monkeypatch.setattr(engine_of(wh).pins, "_pins_max", 0)
        with pytest.raises(TooManySnapshots), engine_of(wh).snapshots.again(receipt.tables, cut_us=receipt.cut_us):
            pass
        assert len(catalyst_of(wh).leases) == 0


def test_i5_a_version_is_read_though_gc_shortens_the_log_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs lists the log, gc removes entries below a checkpoint, delta-rs opens one of them: the version is still there and must be read."""
    with rt.open(tmp_path / "wh", file_grace_s=0) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        producer.insert("x", (1, 1))
        producer.commit(materialize=True)
        store, schema = engine_of(wh).store, wh.schema("x")
        calls = 0

        def overtaken(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise DeltaError("Kernel error: File not found: _delta_log/00000000000000000000.json")
            return DeltaTable(*args, **options)

        monkeypatch.setattr(snapshots, "DeltaTable", overtaken)
        assert isinstance(store, Lakehouse)
        store._handle(schema).snapshots._known.clear()
        assert len(store.files(schema, 1)) == 1


@pytest.mark.parametrize("point", [point for point in CrashPoint if not point.startswith(("gc.", "feed.", "segment.", "job."))])
@pytest.mark.parametrize("durability", ["log", "warehouse"])
def test_i6_a_kill_at_any_point_of_a_commit_leaves_it_whole_or_not_at_all(wh: Warehouse, tmp_path: Path, point: CrashPoint, durability: Any) -> None:
    """A commit into X and Y dies at each step: afterwards both rows are there or neither, what was durable is there once, and the source knows."""
    producer = wh.producer(name="p")
    for table in "xy":
        producer.insert(table, (1, 1))
    producer.commit(durability="log")
    for table in "xy":
        producer.insert(table, (2, 2))
    with killed_at(wh, point, tmp_path / "after") as left:
        producer.commit(durability=durability, batch_id="second")
    folder = left[0] if left else crash(wh, tmp_path / "after")
    if wh._shared is not None:
        abandon(wh)

    with rt.open(folder) as again:
        rows = {name: seen(again, name) for name in "xy"}
        assert rows["x"] == rows["y"]
        assert rows["x"] in ([(1, 1)], [(1, 1), (2, 2)])
        happened = len(rows["x"]) == 2
        assert happened == (not left or point in (CrashPoint.LEDGER_COMMITTED, CrashPoint.NOTICE_GIVEN, CrashPoint.LOG_REMOVED, CrashPoint.COMMIT_PUBLISHED))
        assert again.losses() == []
        retry = again.producer(name="p")
        for table in "xy":
            retry.insert(table, (2, 2))
        assert retry.commit(durability=durability, batch_id="second").replayed == happened
        assert {name: seen(again, name) for name in "xy"} == {"x": [(1, 1), (2, 2)], "y": [(1, 1), (2, 2)]}


@pytest.mark.parametrize("policy", [rt.Immediate, rt.OnDemand])
@pytest.mark.parametrize("durability", ["memory", "log", "warehouse"])
def test_i7_a_replayed_batch_changes_nothing(wh: Warehouse, durability: Any, policy: Callable[[], rt.Policy]) -> None:
    """The same batch id again, at once and after a restart, gives the first commit back and adds no row."""
    producer = wh.producer(name="p", policy=policy())
    producer.insert("x", (1, 1))
    first = producer.commit(durability=durability, batch_id="b")
    for handle in (wh, None):
        again = handle or rt.open(wh.path)
        loader = producer if handle else again.producer(name="p", policy=policy())
        loader.insert("x", (1, 1))
        replay = loader.commit(durability=durability, batch_id="b")
        assert replay.replayed
        assert replay.commit == first.commit
        assert seen(again, "x") == [(1, 1)]
        again.close()


def test_i8_a_receipt_verifies_and_a_forged_one_does_not(wh: Warehouse) -> None:
    """The receipt of an answer verifies, now and after the rows have moved; with any one fact changed it is refused."""
    producer = wh.producer(name="p")
    producer.insert_many("x", [(1, 1), (2, 2)])
    producer.commit()
    receipt = wh.read("x").receipt
    assert receipt.verify().ok
    wh.materialize()
    assert receipt.verify().ok
    facts = json.loads(receipt.to_json())
    for name, value in facts.items():
        with pytest.raises(ReceiptForged):
            wh.verify(json.dumps(facts | {name: _changed(value)}))
    with pytest.raises(ReceiptForged):
        wh.verify(dataclasses.replace(receipt, rows=3))
    assert wh.verify(Receipt.from_json(receipt.to_json())).ok


def _changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return value[1:] if value else ["1"]
    return f"{value}0"


# -- known bugs of systems like ours ----------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [None, CrashPoint.FILES_WRITTEN, CrashPoint.TABLE_COMMITTED, CrashPoint.TABLES_COMMITTED, CrashPoint.LEDGER_COMMITTED])
def test_u1_no_row_is_there_twice_after_materialization(wh: Warehouse, tmp_path: Path, point: CrashPoint | None) -> None:
    """Logged rows are materialized, with or without a kill on the way: afterwards each is there once, and once more after a restart."""
    producer = wh.producer(name="p")
    producer.insert_many("x", [(1, 1), (2, 2)])
    producer.commit(durability="log")
    if point is None:
        wh.materialize()
        assert seen(wh, "x") == [(1, 1), (2, 2)]
        folder = crash(wh, tmp_path / "after")
    else:
        with killed_at(wh, point, tmp_path / "after") as left:
            wh.materialize()
        folder = left[0]
        abandon(wh)
    for _ in range(2):
        with rt.open(folder) as again:
            assert seen(again, "x") == [(1, 1), (2, 2)]
            again.materialize()
            assert seen(again, "x") == stored(again, "x") == [(1, 1), (2, 2)]


def test_u1_no_row_comes_back_from_a_log_record_that_another_table_still_needs(wh: Warehouse, tmp_path: Path) -> None:
    """X and Y were logged in one record and X alone is stored: recovery replays Y's rows and not X's."""
    producer = wh.producer(name="p")
    for table in "xy":
        producer.insert(table, (1, 1))
    producer.commit(durability="log")
    wh.materialize("x")

    with rt.open(crash(wh, tmp_path / "after")) as again:
        assert {name: seen(again, name) for name in "xy"} == {"x": [(1, 1)], "y": [(1, 1)]}
        again.materialize()
        assert stored(again, "x") == stored(again, "y") == [(1, 1)]


@pytest.mark.parametrize("phase", ["write_files", "commit", "write_state"])
def test_u2_no_row_is_missing_while_it_moves(wh: Warehouse, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """A materialization is held open before it writes, before the table's commit and before the ledger's: readers see every row all the time."""
    producer = wh.producer(name="p")
    producer.insert_many("x", [(1, 1), (2, 2)])
    producer.commit()
    engine = engine_of(wh)
    if phase == "write_state":
        # The ledger's transaction is the commit point and is made under the catalyst's lock, so it is looked at from inside.
        write, inside = engine.ledger.write_state, []

        def looked(*args: Any, **options: Any) -> None:
            inside.append(seen(wh, "x"))
            write(*args, **options)

        monkeypatch.setattr(engine.ledger, "write_state", looked)
        wh.materialize()
        assert inside == [[(1, 1), (2, 2)]]
    else:
        gate = Gate(monkeypatch, engine.store, phase)
        with ThreadPoolExecutor(1) as pool:
            moving = pool.submit(wh.materialize)
            assert gate.reached.wait(WAIT_S)
            assert seen(wh, "x") == [(1, 1), (2, 2)]
            gate.open.set()
            moving.result(WAIT_S)
    assert seen(wh, "x") == stored(wh, "x") == [(1, 1), (2, 2)]


def test_u3_the_cut_is_made_before_anything_is_chosen(wh: Warehouse) -> None:
    """Where rows are in two places, no choice among them happens before the cut: equal rows are all kept, hot and stored, columns chosen or not.

    This version has no updates, so no row has a newer version; the rule about filters before the newest version begins with them.
    """
    producer = wh.producer(name="p")
    for move in (True, False):
        producer.insert_many("x", [(7, 1), (7, 1), (7, 2)])
        producer.commit(materialize=move)

    assert Counter(wh.read("x").rows()) == {(7, 1): 4, (7, 2): 2}
    assert Counter(wh.read("x", columns=["a"]).rows()) == {(7,): 6}


def test_u4_readers_and_producers_are_not_blocked_by_a_flush(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store takes its time over a materialization, queries are answered and other commits happen and are seen."""
    producer, other = wh.producer(name="p"), wh.producer(name="q")
    producer.insert("x", (1, 1))
    producer.commit()
    gate = Gate(monkeypatch, engine_of(wh).store, "commit")
    with ThreadPoolExecutor(2) as pool:
        moving = pool.submit(wh.materialize)
        assert gate.reached.wait(WAIT_S)

        def work() -> list[Any]:
            other.insert("x", (2, 2))
            other.commit()
            return seen(wh, "x")

        assert pool.submit(work).result(WAIT_S) == [(1, 1), (2, 2)]
        assert not moving.done()
        gate.open.set()
        moving.result(WAIT_S)
    assert stored(wh, "x") == [(1, 1)]
    assert seen(wh, "x") == [(1, 1), (2, 2)]


def test_u5_two_movers_do_not_both_commit(wh: Warehouse) -> None:
    """Producers that materialize and materializations by hand at once: every row is stored once, and versions follow one another."""
    producers = [wh.producer(name=f"p{n}") for n in range(3)]

    def load(place: int) -> None:
        for number in range(15):
            producers[place].insert("x", (place, number))
            producers[place].commit(materialize=number % 2 == 0)

    with ThreadPoolExecutor(5) as pool:
        loading = [pool.submit(load, place) for place in range(3)]
        moving = [pool.submit(wh.materialize) for _ in range(10)]
        for loaded in loading:
            loaded.result(WAIT_S)
        for moved in moving:
            moved.result(WAIT_S)
    wh.materialize()
    expected = [(place, number) for place in range(3) for number in range(15)]
    assert seen(wh, "x") == stored(wh, "x") == expected
    history = engine_of(wh).store.history(wh.schema("x"))
    assert [entry.version for entry in history] == list(range(len(history) - 1, -1, -1))
    assert len({entry.batch_id for entry in history[:-1]}) == len(history) - 1


def test_u5_a_second_writer_is_refused(wh: Warehouse) -> None:
    """One warehouse has one mover: whoever else wants to write the folder is told who has it."""
    with pytest.raises(WarehouseLocked) as raised:
        WriterLock.acquire(wh.path)
    assert raised.value.retryable


def test_u6_hot_rows_are_not_dropped_before_they_are_moved(tmp_path: Path) -> None:
    """Memory and spill are full: the next commit is refused and every row that was accepted is still there; then materialization makes room."""
    with rt.open(tmp_path / "wh", memory_bytes_max=400, spill_bytes_max=4000, full_wait_s=0) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        accepted: list[tuple[int, int]] = []
        with pytest.raises(CatalystFull) as raised:
            for number in range(10_000):
                producer.insert("x", (number, number))
                producer.commit()
                accepted.append((number, number))
        assert raised.value.context["table"] == "x"
        with catalyst_of(wh).lock:
            catalyst_of(wh).free(catalyst_of(wh).tables["x"])
        assert seen(wh, "x") == accepted
        wh.materialize()
        producer.commit()
        assert seen(wh, "x") == [*accepted, (len(accepted), len(accepted))]


@pytest.mark.parametrize("durability", ["memory", "log", "warehouse"])
def test_u7_a_replay_after_a_crash_is_applied_once(wh: Warehouse, tmp_path: Path, durability: Any) -> None:
    """After a crash the loader sends its last batches again: what was durable is known, what was lost is taken, and each row is there once."""
    producer = wh.producer(name="p")
    for number in (1, 2):
        producer.insert("x", (number, number))
        producer.commit(durability="log" if number == 1 else durability, batch_id=f"b{number}")

    with rt.open(crash(wh, tmp_path / "after")) as again:
        assert len(again.losses()) == (durability == "memory")
        loader = again.producer(name="p")
        replayed = []
        for number in (1, 2):
            loader.insert("x", (number, number))
            replayed.append(loader.commit(durability=durability, batch_id=f"b{number}").replayed)
        assert replayed == [True, durability != "memory"]
        assert seen(again, "x") == [(1, 1), (2, 2)]


def test_u8_a_query_does_not_trust_a_mark_that_runs_ahead_of_the_data(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lazy producer has been asked but its rows are not here yet: the query waits for the rows, though their commit time is long known."""
    producer = wh.producer(name="p", policy=rt.OnDemand())
    producer.insert("x", (1, 1))
    producer.commit()
    gate = Gate(monkeypatch, engine_of(wh).room, "make")
    with ThreadPoolExecutor(1) as pool:
        query = pool.submit(lambda: wh.read("x", wait=WAIT_S))
        assert gate.reached.wait(WAIT_S)
        assert not query.done()
        assert catalyst_of(wh).tables["x"].lane("p").times.newest_us == 0
        gate.open.set()
        answer = query.result(WAIT_S)
    assert answer.rows() == [(1, 1)]
    assert answer.receipt.cut[0].last_inside.number == 1


def test_u9_every_level_is_read(tmp_path: Path) -> None:
    """Rows in the table, in the log, spilled, sealed, in the open tail and at a lazy producer: one answer has them all, as Arrow and as files."""
    bounds: dict[str, Any] = {"memory_bytes_max": 200, "segment_rows": 3, "bypass_bytes": 2000}
    with rt.open(tmp_path / "wh", **bounds) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        producer.insert("x", (1, 1))
        producer.commit(materialize=True)  # stored
        producer.insert_many("x", [(2, 2), (3, 3)])
        producer.commit(durability="log")  # logged
    with rt.open(tmp_path / "wh", **bounds) as wh:
        producer, lazy = wh.producer(name="p"), wh.producer(name="q", policy=rt.OnDemand())
        producer.insert_many("x", [(n, n) for n in range(4, 24)])
        producer.commit()
        producer.insert_many("x", [(n, n) for n in range(24, 30)])
        producer.commit()  # the rows before are spilled to make room
        assert catalyst_of(wh).tables["x"].bytes_spilled > 0
        seen(wh, "x")
        with engine_of(wh).snapshots.take(["x"], asking()) as snapshot:
            engine_of(wh).snapshots.files(snapshot.tables["x"])  # seals
        producer.insert("x", (30, 30))
        producer.commit()  # the open tail
        lazy.insert("x", (31, 31))
        lazy.commit()  # archived

        expected = [(n, n) for n in range(1, 32)]
        assert seen(wh, "x") == expected
        with engine_of(wh).snapshots.take(["x"], asking()) as snapshot:
            files = engine_of(wh).snapshots.files(snapshot.tables["x"])
            assert files is not None
            assert sorted(row for file in files.paths for row in tuples(pq.read_table(file))) == expected
            assert len(files.images) >= 2


def test_u10_every_buffer_empties_and_every_flush_fits(tmp_path: Path) -> None:
    """Archives flush by themselves at their bound, memory spills at its bound, a large commit passes by, and materialization empties memory, spill and log."""
    with rt.open(tmp_path / "wh", memory_bytes_max=500, archive_bytes_max=300, bypass_bytes=1000, log_file_bytes=2000) as wh:
        wh.create_table("x", ROW)
        lazy = wh.producer(name="p", policy=rt.OnDemand())
        table = catalyst_of(wh).tables["x"]
        count = 0
        for number in range(60):
            lazy.insert_many("x", [(count + n, 0) for n in range(5)])
            lazy.commit(durability="log" if number % 7 == 6 else None)
            count += 5
            assert lazy._archive.nbytes <= 300 + 40
            assert table.bytes_memory <= 500 + 40
        lazy.insert_many("x", [(count + n, 0) for n in range(500)])
        lazy.commit()
        count += 500
        assert engine_of(wh).wal.bytes_held() == 0 or table.rows_hot() > 0
        assert sorted(a for a, _ in wh.read("x").rows()) == list(range(count))

        wh.materialize()
        with catalyst_of(wh).lock:
            catalyst_of(wh).free(table)

        assert (table.bytes_memory, table.bytes_spilled, table.rows_hot()) == (0, 0, 0)
        assert engine_of(wh).wal.bytes_held() == 0
        assert not lazy._archive
        assert [path for path in (wh.path / "spill").rglob("*") if path.is_file()] == []
        assert sorted(a for a, _ in wh.read("x").rows()) == list(range(count))


def test_u11_statistics_are_right_after_a_flush(wh: Warehouse) -> None:
    """Row counts in receipts, status and store agree with the rows, at every step; so do the minima and maxima in the table's log."""
    producer = wh.producer(name="p")
    for step, (low, high) in enumerate([(1, 10), (11, 15), (16, 40)]):
        producer.insert_many("x", [(n, -n) for n in range(low, high + 1)])
        producer.commit(materialize=step != 1)
        receipt = wh.read("x").receipt
        (status,) = (table for table in wh.status().tables if table.name == "x")
        table = receipt.tables[0]
        assert table.rows_stored == status.rows_stored == engine_of(wh).store.row_count(wh.schema("x"), table.version) == len(stored(wh, "x"))
        assert table.rows_hot == status.rows_hot == high - table.rows_stored
        assert receipt.rows == high
    log = sorted((wh.path / "tables" / "x" / "_delta_log").glob("*.json"))
    added = [json.loads(line)["add"] for entry in log for line in entry.read_text().splitlines() if "add" in json.loads(line)]
    stats = [json.loads(add["stats"]) for add in added]
    assert sum(one["numRecords"] for one in stats) == 40
    for add, one in zip(added, stats, strict=True):
        rows = tuples(pq.read_table(wh.path / "tables" / "x" / add["path"]))
        assert one["minValues"] == {"a": min(a for a, _ in rows), "b": min(b for _, b in rows)}
        assert one["maxValues"] == {"a": max(a for a, _ in rows), "b": max(b for _, b in rows)}
        assert one["nullCount"] == {"a": 0, "b": 0}


def test_u10_a_transaction_that_its_producer_reads_back_does_not_fill_memory(tmp_path: Path) -> None:
    """Uncommitted rows that own queries brought into the catalyst are spilled like others, and roll back or commit as one."""
    with rt.open(tmp_path / "wh", memory_bytes_max=200, full_wait_s=0) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        for end in ("commit", "rollback", "commit"):
            for number in range(20):
                producer.insert_many("x", [(number, n) for n in range(5)])
                producer._stage(producer._transaction()[0])
            assert catalyst_of(wh).tables["x"].bytes_memory <= 200
            getattr(producer, end)()
        assert len(wh.read("x")) == 200
        wh.materialize()
        assert Counter(wh.read("x").rows()) == {(number, n): 2 for number in range(20) for n in range(5)}
