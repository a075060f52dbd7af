"""Unique keys: a transaction that would leave two rows with one key is refused at commit, wherever the other row is."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime import Producer, Warehouse
from righttime.changes.conditions import Expression
from righttime.errors import BadTable, KeyTaken
from tests.support.clocks import SteppedClock
from tests.support.crash import crash, engine_of
from tests.support.state_tables import archived, catalyst_of, seen, stored


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[Warehouse]:
    opened = rt.open(tmp_path / "wh", clock=SteppedClock(1.0), bypass_bytes=300)
    opened.create_table("u", "a INT, b INT", keys=["a"], unique=True)
    opened.create_table("x", "a INT, b INT")
    yield opened
    if opened._shared is not None:
        opened.close()


def taken(producer: Producer, **options: Any) -> str:
    with pytest.raises(KeyTaken) as raised:
        producer.commit(**options)
    assert raised.value.code == "key.taken"
    assert raised.value.context["table"] == "u"
    return str(raised.value.context["key"])


@pytest.mark.parametrize("durability", ["memory", "log", "warehouse"])
@pytest.mark.parametrize("other", ["hot", "stored", "made by an update", "in the same transaction", "of another source"])
def test_a_key_that_is_there_is_refused_wherever_its_row_is(wh: Warehouse, other: str, durability: Any) -> None:
    """Nothing of the transaction is committed, in other tables neither; after a rollback the producer goes on."""
    p, q = wh.producer(name="p"), wh.producer(name="q")
    first = q if other == "of another source" else p
    first.insert("u", (1, 1))
    if other == "made by an update":
        first.commit()
        first.update("u", {"a": 2}, {"a": 1})
    if other != "in the same transaction":
        first.commit(materialize=other == "stored")
    before = seen(wh, "u")

    p.insert("x", (5, 5))
    p.insert("u", (2 if other == "made by an update" else 1, 7))

    assert taken(p, durability=durability) == ("a=2" if other == "made by an update" else "a=1")
    assert (seen(wh, "u"), seen(wh, "x")) == (before if other != "in the same transaction" else [], [])
    p.rollback()
    p.insert("u", (9, 9))
    p.commit()
    assert (9, 9) in seen(wh, "u")


@pytest.mark.parametrize("stored_first", [False, True])
def test_updates_may_not_make_a_key_twice_and_deletes_free_it(wh: Warehouse, stored_first: bool) -> None:
    """A key-changing update, by literal or by expression, is refused where it meets another row; a swap through a free key is not."""
    p = wh.producer(name="p")
    p.insert_many("u", [(1, 1), (2, 2)])
    p.commit(materialize=stored_first)

    p.update("u", {"a": 2}, {"a": 1})
    assert taken(p) == "a=2"
    p.rollback()
    p.update("u", {"a": Expression("a + 1")}, "a < 2")
    assert taken(p) == "a=2"
    p.rollback()
    p.update("u", {"a": Expression("a + 1")})
    p.commit()
    assert seen(wh, "u") == [(2, 1), (3, 2)]
    p.update("u", {"a": 9}, {"a": 2})
    p.update("u", {"a": 2}, {"a": 3})
    p.update("u", {"a": 3}, {"a": 9})
    p.commit()
    assert seen(wh, "u") == [(2, 2), (3, 1)]
    p.delete("u", {"a": 2})
    p.insert("u", (2, 20))
    p.commit(materialize=True)
    assert stored(wh, "u") == [(2, 20), (3, 1)]


@pytest.mark.parametrize("durability", ["memory", "log", "warehouse"])
def test_a_commit_that_was_tried_before_another_took_its_key_is_tried_again(wh: Warehouse, durability: Any) -> None:
    """q's rows were found free while p's waited uncommitted; p commits first, so q is refused at its commit point."""
    p, q = wh.producer(name="p"), wh.producer(name="q")
    for producer in (p, q):
        producer.insert("u", (1, 1))
        producer._stage(producer._transaction()[0])
    with engine_of(wh).settler.checking(catalyst_of(wh).links["q"], wait_s=30) as confirm:
        p.commit(durability=durability)
        with catalyst_of(wh).lock, pytest.raises(KeyTaken):
            confirm()

    assert taken(q) == "a=1"
    assert seen(wh, "u") == [(1, 1)]


def test_upserts_never_take_a_key_twice(wh: Warehouse) -> None:
    """They change the row that is there; twice the same key in one call is one row."""
    p = wh.producer(name="p")
    p.upsert_many("u", [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 3}])
    p.commit()
    p.upsert("u", {"a": 1})
    p.upsert("u", (2, 4))
    p.commit()

    assert seen(wh, "u") == [(1, 2), (2, 4)]


def test_a_refused_transaction_can_be_put_right_and_committed(wh: Warehouse) -> None:
    """What was inserted and refused is still there: delete one of the rows, and the same transaction commits once."""
    p = wh.producer(name="p")
    p.insert("u", (1, 1))
    p.commit()
    p.insert_many("u", [(1, 7), (2, 2)])
    assert taken(p) == "a=1"

    p.delete("u", "a = 1 AND b = 7")
    published = p.commit()

    assert published.commit.number == 2
    assert seen(wh, "u") == [(1, 1), (2, 2)]


def test_a_load_that_would_go_past_the_catalyst_is_looked_at_too(wh: Warehouse) -> None:
    """Large loads of a table with unique keys go through the catalyst, and are refused there."""
    p = wh.producer(name="p")
    p.insert("u", (150, 0))
    p.commit(materialize=True)
    p.insert_many("u", [(number, number) for number in range(200)])

    assert taken(p) == "a=150"
    p.rollback()
    p.insert_many("u", [(number, number) for number in range(200, 400)])
    p.commit()
    assert len(seen(wh, "u")) == 201


def test_a_lazy_producer_is_not_lazy_with_unique_keys(wh: Warehouse) -> None:
    """What is held back could not be looked up: it goes to the catalyst, and a key that is there is refused at once."""
    p, q = wh.producer(name="p", policy=rt.OnDemand()), wh.producer(name="q")
    p.insert("u", (1, 1))
    p.commit()
    assert archived(p, "u") == {}
    q.insert("u", (1, 2))
    assert taken(q) == "a=1"


def test_unique_keys_hold_after_a_crash(wh: Warehouse, tmp_path: Path) -> None:
    """A logged row that is not stored takes its key after recovery as before."""
    p = wh.producer(name="p")
    p.insert("u", (1, 1))
    p.update("u", {"a": 2}, {"a": 1})
    p.commit(durability="log")
    with rt.open(crash(wh, tmp_path / "after"), bypass_bytes=300) as again:
        q = again.producer(name="q")
        q.insert("u", (2, 0))
        assert taken(q) == "a=2"
        q.rollback()
        q.insert("u", (1, 0))
        q.commit()
        assert seen(again, "u") == [(1, 0), (2, 1)]


def test_zeros_and_not_a_numbers_are_one_key_each(tmp_path: Path) -> None:
    """As in SQL: 0.0 = -0.0, and NaN equals NaN."""
    with rt.open(tmp_path / "w") as wh:
        wh.create_table("u", "k DOUBLE, b INT", keys=["k"], unique=True)
        p = wh.producer(name="p")
        p.insert_many("u", [(0.0, 1), (float("nan"), 2)])
        p.commit(materialize=True)
        for key in (-0.0, float("nan")):
            p.insert("u", (key, 3))
            taken(p)
            p.rollback()
        p.upsert_many("u", [{"k": -0.0, "b": 10}, {"k": float("nan"), "b": 20}, {"k": 5.0, "b": 30}])
        p.commit()
        assert sorted(b for _, b in wh.read("u").rows()) == [10, 20, 30]


@pytest.mark.parametrize("column", ["DOUBLE", "FLOAT"])
@pytest.mark.parametrize("stored_first", [False, True])
def test_not_a_number_is_one_key_whatever_its_sign(tmp_path: Path, stored_first: bool, column: str) -> None:
    """Inf - inf gives NaN with another sign than Python's: still the same key, for the check, an upsert and a delete."""
    with rt.open(tmp_path / "w") as wh:
        wh.create_table("u", f"k {column}, b INT", keys=["k"], unique=True)
        p = wh.producer(name="p")
        p.insert("u", (-math.nan, 1))
        p.commit(materialize=stored_first)

        p.insert("u", (math.nan, 2))
        taken(p)
        p.rollback()
        p.upsert("u", {"k": math.nan, "b": 3})
        p.commit()
        assert [b for _, b in wh.read("u").rows()] == [3]

        p.update("u", {"k": Expression("k - k"), "b": 4}, "TRUE")
        p.delete("u", {"k": -math.nan})
        p.commit()
        assert wh.read("u").rows() == []


def test_unique_needs_keys(wh: Warehouse) -> None:
    """A declaration without keys is refused."""
    with pytest.raises(BadTable, match="keys"):
        wh.create_table("v", "a INT", unique=True)
