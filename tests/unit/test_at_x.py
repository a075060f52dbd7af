"""AT-X1, X4 to X9, X11, X12: cases that the papers leave open, on the real producer, catalyst and warehouse.

AT-X2, X3 and what X4 and X5 say of updates and deletes lie in test_at_x_changes.py; AT-X10 needs Spark and lies with the Spark tests.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
import righttime.testing
from righttime import Warehouse
from righttime.catalyst.accuracy import newest_common, newest_consistent
from righttime.catalyst.indexes import TimeIndex
from righttime.catalyst.listener import Listener
from righttime.changes.faults import CrashPoint
from righttime.errors import AsOfUnavailable, CommitFailed, FreshnessUnavailable
from tests.support.clocks import SteppedClock
from tests.support.crash import abandon, crash, engine_of, killed_at
from tests.support.state_tables import INFINITY, SECOND, archived, asking, catalyst_of, hot, minmax, seen, snapshots_of, stored, time_index, tuples

ROW = "a INT, b INT"


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(0.0)


@pytest.fixture
def wh(tmp_path: Path, clock: SteppedClock) -> Iterator[Warehouse]:
    opened = rt.open(tmp_path / "wh", clock=clock)
    for name in "xy":
        opened.create_table(name, ROW)
    yield opened
    if opened._shared is not None:
        opened.close()


def index(entries: dict[int, int]) -> TimeIndex:
    made = TimeIndex()
    for time_us, row_id in entries.items():
        made.add(time_us, row_id)
    return made


def together(wh: Warehouse, freshness_us: int) -> tuple[int, dict[str, list[Any]]]:
    """One query over X and Y: its cut and the rows of both."""
    snapshots = engine_of(wh).snapshots
    with snapshots.take(["x", "y"], asking(freshness_us)) as snapshot:
        return snapshot.accuracy.cut_us, {name: sorted(tuples(snapshots.rows(table))) for name, table in snapshot.tables.items()}


def test_at_x1_the_newest_consistent_time_beats_the_newest_common_one(wh: Warehouse, clock: SteppedClock) -> None:
    """τ X = {3:1, 7:3}, τ Y = {5:2}; a query asks for everything up to 2.

    | algorithm | result                                      |
    |-----------|---------------------------------------------|
    | P8        | 2: no time is in both indexes               |
    | P8'       | 5: X has everything up to 7, Y up to 5      |
    """
    x, y = index({3: 1, 7: 3}), index({5: 2})
    assert newest_common(2, [x, y]) == 2
    assert newest_consistent(2, [x, y], otherwise_us=99) == 5

    for_x, for_y = (wh.producer(name=name, policy=rt.OnDemand()) for name in ("p", "q"))
    for second, producer, table, rows, flushed in (
        (3, for_x, "x", 1, True),
        (5, for_y, "y", 1, True),
        (7, for_x, "x", 1, True),
        (8, for_x, "x", 1, False),
        (9, for_y, "y", 1, False),
    ):
        clock.set(second)
        producer.insert_many(table, [(second, second)] * rows)
        producer.commit()
        if flushed:
            producer.flush()
    assert time_index(wh, "x", "p") == {3: 1, 7: 3}
    assert time_index(wh, "y", "q") == {5: 2}
    clock.set(10)

    assert together(wh, 8 * SECOND) == (5 * SECOND, {"x": [(3, 3)], "y": [(5, 5)]})


def test_at_x4_rows_of_an_archive_that_arrive_after_newer_rows_were_stored_are_there(wh: Warehouse, clock: SteppedClock) -> None:
    """p archives a row at 1, q's row of 2 is in the warehouse before p's arrives.

    | when               | archive X (p) | catalyst X | DW X         | view X       |
    |--------------------|---------------|------------|--------------|--------------|
    | q materialized     | T=1: (0,0)    | ∅          | (1,1)        |              |
    | a query asks       | ∅             | 2:(0,0)    | (1,1)        | (0,0), (1,1) |
    | all materialized   | ∅             | deletable  | (0,0), (1,1) | (0,0), (1,1) |
    """
    lazy, eager = wh.producer(name="p", policy=rt.OnDemand()), wh.producer(name="q")
    clock.set(1)
    lazy.insert("x", (0, 0))
    lazy.commit()
    clock.set(2)
    eager.insert("x", (1, 1))
    eager.commit(materialize=True)
    assert archived(lazy, "x") == {1: [(0, 0)]}
    assert stored(wh, "x") == [(1, 1)]

    assert seen(wh, "x", freshness="1h") == [(0, 0), (1, 1)]  # nothing below the stored time can be cut, so the archive is asked for
    assert hot(wh, "x", "p") == {2: (0, 0)}
    wh.materialize()
    assert stored(wh, "x") == [(0, 0), (1, 1)]
    assert seen(wh, "x") == [(0, 0), (1, 1)]


def test_at_x5_a_transaction_that_is_rolled_back_leaves_no_trace_for_any_reader(wh: Warehouse) -> None:
    """Rows that were in the catalyst as uncommitted and are rolled back were never there, for readers of before, during and after."""
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    producer.commit()
    snapshots = snapshots_of(wh)

    with snapshots.take(["x", "y"], asking()) as before:
        for table in "xy":
            producer.insert(table, (2, 2))
        producer._stage(producer._transaction()[0])
        with snapshots.take(["x", "y"], asking()) as during:
            producer.rollback()
            after = together(wh, 0)[1]
            assert after == {"x": [(1, 1)], "y": []}
            for snapshot in (before, during):
                assert {name: tuples(snapshots.rows(table)) for name, table in snapshot.tables.items()} == after

    producer.insert("y", (3, 3))
    producer.commit(materialize=True)
    assert together(wh, 0)[1] == {"x": [(1, 1)], "y": [(3, 3)]}
    assert stored(wh, "x") == [(1, 1)]


def test_at_x6_a_silent_producer_ends_in_an_error_and_never_in_stale_rows(wh: Warehouse, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lazy producer that does not answer: the query fails after `wait`, says which source, and gives stale rows only to those who ask for them."""
    monkeypatch.setattr(Listener, "start", lambda self: None)
    producer = wh.producer(name="p", policy=rt.OnDemand())
    clock.set(1)
    producer.insert("x", (1, 1))
    producer.commit()
    clock.set(4)

    with pytest.raises(FreshnessUnavailable) as raised:
        wh.read("x", wait="50ms")

    assert raised.value.code == "freshness.unavailable"
    assert (raised.value.context["table"], raised.value.context["source"]) == ("x", "p")
    assert raised.value.context["stale_s"] == pytest.approx(3.0)
    late = wh.read("x", wait="50ms", on_late="answer")
    assert late.rows() == []
    assert late.receipt.late
    assert (late.receipt.given_s or 0.0) >= 3.0
    assert late.receipt.cut[0].last_inside.number == 0
    producer.flush()
    assert wh.read("x", wait="50ms").rows() == [(1, 1)]


def test_at_x6_a_dead_producer_is_known_by_its_lease_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its lease has lapsed, a lazy producer counts as dead (G5): the query fails at once, however long it would wait."""
    monkeypatch.setattr(Listener, "start", lambda self: None)
    clock = rt.testing.ManualClock(0.0)
    with rt.open(tmp_path / "wh", clock=clock, producer_lease_s=5) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p", policy=rt.OnDemand())
        producer.insert("x", (1, 1))
        producer.commit()
        clock.advance(5.1)
        with pytest.raises(FreshnessUnavailable, match="no longer answers"):
            wh.read("x", wait="1h")


def test_at_x6_a_dead_producer_that_owes_nothing_does_not_keep_a_live_one_from_delivering(wh: Warehouse, clock: SteppedClock) -> None:
    """q is dead, and everything it holds back is younger than the query asks for; p, alive, delivers and the answer is complete."""
    p, q = (wh.producer(name=name, policy=rt.OnDemand()) for name in "pq")
    q._listener.start = lambda: None  # type: ignore[method-assign]
    for second, producer in ((1, p), (5, q)):
        clock.set(second)
        producer.insert("x", (second, second))
        producer.commit()
    catalyst_of(wh).links["q"].alive_s = -1e9

    assert seen(wh, "x", as_of=3 * SECOND) == [(1, 1)]
    with pytest.raises(FreshnessUnavailable, match=r"'q'.*no longer answers"):
        wh.read("x")


@pytest.mark.parametrize("fails_at", [1, 2])
def test_at_x7_a_failed_warehouse_commit_leaves_the_rows_in_the_catalyst(wh: Warehouse, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    """The store fails at the first or at the second of two tables.

    | after the failure | catalyst X, Y | minmax X, Y | DW | view  |
    |-------------------|---------------|-------------|----|-------|
    |                   | all rows      | unchanged   | ∅  | whole |
    """
    producer = wh.producer(name="p")
    for table in "xy":
        producer.insert(table, (1, 1))
    producer.commit()
    before = minmax(wh, "x"), minmax(wh, "y")
    store, calls = engine_of(wh).store, 0
    commit = store.commit

    def broken(*args: Any, **options: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(28, "no space left on device")
        return commit(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(store, "commit", broken)
        with pytest.raises(CommitFailed):
            wh.materialize()
        assert (minmax(wh, "x"), minmax(wh, "y")) == before
        assert together(wh, 0)[1] == {"x": [(1, 1)], "y": [(1, 1)]}
        assert stored(wh, "x") == stored(wh, "y") == []

    wh.materialize()
    assert stored(wh, "x") == stored(wh, "y") == [(1, 1)]
    assert together(wh, 0)[1] == {"x": [(1, 1)], "y": [(1, 1)]}


def test_at_x7_a_producers_own_failed_materialization_keeps_its_transaction(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """commit(True) that fails makes nothing visible and loses nothing: the same transaction can be committed again."""
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(engine_of(wh).store, "commit", _no_space)
        with pytest.raises(CommitFailed):
            producer.commit(materialize=True)
    assert seen(wh, "x") == []

    assert producer.commit().commit.number == 1
    assert seen(wh, "x") == [(1, 1)]


def _no_space(*args: Any, **options: Any) -> int:
    raise OSError(28, "no space left on device")


@pytest.mark.parametrize("point", [CrashPoint.LEDGER_COMMITTED, CrashPoint.NOTICE_GIVEN])
def test_at_x8_a_kill_between_the_commit_and_its_notice_loses_and_doubles_nothing(
    wh: Warehouse, clock: SteppedClock, tmp_path: Path, point: CrashPoint
) -> None:
    """The ledger has the materialization, the catalyst was never told: after the restart every row is there once.

    | when            | DW X         | catalyst X | view X       | lost      |
    |-----------------|--------------|------------|--------------|-----------|
    | restart         | (1,1), (2,2) | ∅          | (1,1), (2,2) | nothing   |
    """
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    producer.commit()
    producer.insert("x", (2, 2))
    with killed_at(wh, point, tmp_path / "after") as left:
        producer.commit(materialize=True)
    assert left, "the point was not reached"
    abandon(wh)

    with rt.open(left[0], clock=clock) as again:
        assert stored(again, "x") == seen(again, "x") == [(1, 1), (2, 2)]
        assert again.losses() == []


@pytest.mark.parametrize(("durability", "kept"), [("memory", False), ("log", True)])
def test_at_x8_the_rest_is_reported_as_lost_or_there_if_it_was_logged(wh: Warehouse, clock: SteppedClock, tmp_path: Path, durability: Any, kept: bool) -> None:
    """What was materialized survives; a later commit is reported with its number and rows, or was logged and is there."""
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    producer.commit(materialize=True)
    producer.insert_many("x", [(2, 2), (3, 3)])
    producer.commit(durability=durability)

    with rt.open(crash(wh, tmp_path / "after"), clock=clock) as again:
        assert seen(again, "x") == ([(1, 1), (2, 2), (3, 3)] if kept else [(1, 1)])
        assert [(loss.source, loss.first, loss.last, loss.rows) for loss in again.losses()] == ([] if kept else [("p", 2, 2, 2)])


def test_at_x9_is_the_state_machine() -> None:
    """AT-X9 lies in tests/simulation: random histories against a list model."""
    assert (Path(__file__).parents[1] / "simulation" / "test_state_machine.py").exists()


def test_at_x11_no_cut_lies_below_what_one_of_the_tables_has_stored(wh: Warehouse, clock: SteppedClock) -> None:
    """X and Y committed together at 3 and at 5, lazily; X alone is materialized at 5; then a query whose freshness would allow 3.

    | cut | X                  | Y                  |
    |-----|--------------------|--------------------|
    | 3   | impossible: 5 is in the table | (3,3)   |
    | 5   | (3,3), (5,5)       | (3,3), (5,5)       |
    """
    producer = wh.producer(name="p", policy=rt.OnDemand())
    for second in (3, 5):
        clock.set(second)
        for table in "xy":
            producer.insert(table, (second, second))
        producer.commit()
    wh.materialize("x")
    assert stored(wh, "x") == [(3, 3), (5, 5)]
    assert stored(wh, "y") == []
    clock.set(6)
    producer.insert("y", (6, 6))
    producer.commit()
    clock.set(7)

    cut_us, rows = together(wh, 4 * SECOND)

    assert cut_us >= 5 * SECOND
    assert rows == {"x": [(3, 3), (5, 5)], "y": [(3, 3), (5, 5)]}
    with pytest.raises(AsOfUnavailable) as raised:
        wh.read("x", as_of=3 * SECOND)
    assert raised.value.context["earliest"].endswith("00:00:05.000000+00:00")
    assert seen(wh, "x", as_of=5 * SECOND) == [(3, 3), (5, 5)]
    assert seen(wh, "y", as_of=3 * SECOND) == [(3, 3)]


def test_at_x12_an_answer_to_a_request_does_not_commit_uncommitted_rows(wh: Warehouse, clock: SteppedClock) -> None:
    """τ X = {2:4}; rows 5, 6 are in the catalyst with ∞; a request for 3 is answered by an empty update.

    | τ X           | consumers see | after rollback |
    |---------------|---------------|----------------|
    | 2:4 3:4 ∞:6   | rows 1-4      | rows 1-4       |
    """
    producer = wh.producer(name="p")
    clock.set(2)
    producer.insert_many("x", [(n, n) for n in range(1, 5)])
    producer.commit()
    producer.insert_many("x", [(5, 5), (6, 6)])
    producer._stage(producer._transaction()[0])
    clock.set(3)

    producer._serve("x", 3 * SECOND)

    assert time_index(wh, "x") == {2: 4, 3: 4, INFINITY: 6}
    assert seen(wh, "x") == [(n, n) for n in range(1, 5)]
    producer.rollback()
    assert sorted(hot(wh, "x")) == [1, 2, 3, 4]
    assert time_index(wh, "x") == {2: 4, 3: 4}
    assert catalyst_of(wh).row_ids.last == 6


def test_receipts_of_these_examples_are_plain_json(wh: Warehouse) -> None:
    """What an example shows can be handed on: the receipt is one line of JSON that verifies."""
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    producer.commit()
    text = wh.read("x").receipt.to_json()

    assert json.loads(text)["rows"] == 1
    assert wh.verify(text)
