"""AT-X2 to AT-X5 for updates and deletes: cases that the papers leave open, on the real producer, catalyst and warehouse."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import righttime as rt
from righttime import Warehouse
from tests.support.clocks import SteppedClock
from tests.support.state_tables import SECOND, archived, asking, catalyst_of, hot, seen, snapshots_of, stored, tuples, versions


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(0.0)


@pytest.fixture
def wh(tmp_path: Path, clock: SteppedClock) -> Iterator[Warehouse]:
    with rt.open(tmp_path / "wh", clock=clock) as opened:
        opened.create_table("x", "a INT, b INT, c INT", keys=["a"])
        yield opened


@pytest.mark.parametrize("where", ["hot", "stored"])
@pytest.mark.parametrize("commits", [1, 2])
def test_at_x2_an_update_by_condition_and_one_by_key_both_hold(wh: Warehouse, clock: SteppedClock, where: str, commits: int) -> None:
    """Row (0,0,0); B: 0->5 by condition, then SET C=9 WHERE A=0: the row has both, in one transaction or in two, hot or stored."""
    producer = wh.producer(name="p")
    producer.insert("x", (0, 0, 0))
    producer.commit(materialize=where == "stored")

    producer.update("x", {"b": 5}, "b = 0")
    if commits == 2:
        producer.commit()
    producer.update("x", {"c": 9}, {"a": 0})
    producer.commit()

    assert seen(wh, "x") == [(0, 5, 9)]
    wh.materialize()
    assert stored(wh, "x") == [(0, 5, 9)]


@pytest.mark.parametrize("where", ["hot", "stored"])
@pytest.mark.parametrize("commits", [1, 2])
def test_at_x3_a_row_that_a_condition_deleted_is_not_brought_back_by_its_key(wh: Warehouse, where: str, commits: int) -> None:
    """DELETE by condition kills A=0, then UPDATE by key on A=0: the row stays dead; then INSERT A=0 works."""
    producer = wh.producer(name="p")
    producer.insert("x", (0, 0, 0))
    producer.commit(materialize=where == "stored")

    producer.delete("x", "c < 1")
    if commits == 2:
        producer.commit()
    producer.update("x", {"b": 9}, {"a": 0})
    producer.commit()
    assert seen(wh, "x") == []

    producer.insert("x", (0, 1, 1))
    producer.commit()
    assert seen(wh, "x") == [(0, 1, 1)]
    wh.materialize()
    assert stored(wh, "x") == [(0, 1, 1)]


def test_at_x4_an_update_reaches_a_row_that_was_still_in_an_archive(wh: Warehouse, clock: SteppedClock) -> None:
    """p commits the row lazily at 1, q its update at 2, p a row of the same key at 3, lazily: the update is for the first alone.

    | when            | archive X (p)           | operations | view X           |
    |-----------------|-------------------------|------------|------------------|
    | q has committed | T=1: (0,0,0) T=3: (0,7,7) | U at 2   |                  |
    | a query asks    | ∅                       | U at 2     | (0,5,0), (0,7,7) |
    """
    lazy, eager = wh.producer(name="p", policy=rt.OnDemand()), wh.producer(name="q")
    clock.set(1)
    lazy.insert("x", (0, 0, 0))
    lazy.commit()
    clock.set(2)
    eager.update("x", {"b": 5}, {"a": 0})
    eager.commit()
    clock.set(3)
    lazy.insert("x", (0, 7, 7))
    lazy.commit()
    assert archived(lazy, "x") == {1: [(0, 0, 0)], 3: [(0, 7, 7)]}
    assert hot(wh, "x") == {}

    assert seen(wh, "x") == [(0, 5, 0), (0, 7, 7)]
    assert versions(wh, "x") == [((0, 0, 0), 1, 2), ((0, 5, 0), 2, None), ((0, 7, 7), 3, None)]
    wh.materialize()
    assert stored(wh, "x") == [(0, 5, 0), (0, 7, 7)]


def test_at_x4_the_operations_of_a_lazy_producer_take_its_archive_along(wh: Warehouse, clock: SteppedClock) -> None:
    """A commit with operations is never held back (G10): its producer's archive goes before it, so that nothing can be stored between them."""
    lazy, eager = wh.producer(name="p", policy=rt.OnDemand()), wh.producer(name="q")
    clock.set(1)
    lazy.insert("x", (0, 0, 0))
    lazy.commit()
    clock.set(2)
    lazy.update("x", {"b": 5}, {"a": 0})
    lazy.commit()
    assert archived(lazy, "x") == {}
    clock.set(3)
    eager.insert("x", (0, 9, 9))
    eager.commit(materialize=True)

    assert seen(wh, "x") == stored(wh, "x") == [(0, 5, 0), (0, 9, 9)]


def test_at_x5_a_transaction_that_is_rolled_back_ends_no_version_for_anybody(wh: Warehouse, clock: SteppedClock) -> None:
    """Its updates and deletes are in the catalyst and its producer has seen their outcome; readers of before, during and after see every row whole."""
    producer = wh.producer(name="p")
    clock.set(1)
    producer.insert_many("x", [(0, 0, 0), (1, 1, 1)])
    producer.commit(materialize=True)
    producer.insert("x", (2, 2, 2))
    producer.commit()
    snapshots = snapshots_of(wh)
    rows = [(0, 0, 0), (1, 1, 1), (2, 2, 2)]

    with snapshots.take(["x"], asking()) as before:
        producer.update("x", {"b": 9}, {"a": 0})
        producer.delete("x", "a >= 1")
        producer._stage(producer._transaction()[0])
        assert producer.in_transaction
        with snapshots.take(["x"], asking()) as during:
            producer.rollback()
            for snapshot in (before, during):
                assert sorted(tuples(snapshots.rows(snapshot.tables["x"]))) == rows
    assert seen(wh, "x") == rows
    assert not catalyst_of(wh).tables["x"].ends
    assert not catalyst_of(wh).tables["x"].has_operations
    clock.set(2)
    producer.commit(materialize=True)
    assert stored(wh, "x") == seen(wh, "x", as_of=2 * SECOND) == rows
