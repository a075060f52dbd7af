"""Rows that are stored by themselves, and those that cannot be stored yet."""

import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import righttime as rt
from righttime.catalyst import keeper
from tests.support.waits import until


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(tmp_path / "wh", materialize_rows=5) as opened:
        opened.create_table("sale", "sku INT, qty INT")
        opened.create_table("other", "x INT")
        yield opened


def unstored(wh: rt.Warehouse, table: str = "sale") -> int:
    return wh._writer("test").catalyst.tables[table].rows_unstored


@pytest.fixture
def tries(wh: rt.Warehouse, monkeypatch: pytest.MonkeyPatch) -> list[Collection[str]]:
    """What the keeper tried to store; after a step that left rows it waits for a second."""
    monkeypatch.setattr(keeper, "_RETRY_S", 1.0)
    kept, found = wh._writer("test").keeper, []
    store = kept._materialize

    def counted(tables: Collection[str]) -> int:
        found.append(tables)
        return store(tables)

    monkeypatch.setattr(kept, "_materialize", counted)
    return found


def few(tries: list[Collection[str]]) -> bool:
    until(lambda: bool(tries))
    before = len(tries)
    threading.Event().wait(timeout=0.6)
    return len(tries) <= before + 1


def test_rows_beyond_the_bound_are_stored(wh: rt.Warehouse) -> None:
    with wh.producer(name="load") as load:
        load.insert_many("sale", [(number, 1) for number in range(7)])
        load.commit()
        until(lambda: unstored(wh) == 0)


def test_rows_that_a_lazy_producer_holds_up_are_not_tried_all_the_time(wh: rt.Warehouse, tries: list[Collection[str]]) -> None:
    """Half of a commit is here, so nothing of it can be stored; once the other half comes, all of it is."""
    lazy = wh.producer(name="lazy", policy=rt.OnDemand())
    lazy.insert_many("sale", [(number, 1) for number in range(10)])
    lazy.insert("other", (1,))
    lazy.commit()
    assert len(wh.read("sale")) == 10
    assert few(tries)
    assert unstored(wh) == 10
    lazy.flush()
    until(lambda: unstored(wh) == 0)


def test_rows_that_are_staged_are_not_tried_all_the_time(wh: rt.Warehouse, tries: list[Collection[str]]) -> None:
    load = wh.producer(name="load")
    load.insert_many("sale", [(number, 1) for number in range(10)])
    content, _ = load._transaction()
    load._stage(content)  # as a look at the own rows does
    assert few(tries)
    load.commit()
    until(lambda: unstored(wh) == 0)


def test_rows_that_come_while_others_are_stored_are_stored_next(wh: rt.Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no rows that the step had to leave: the last ones of a burst would stay until somebody commits again."""
    kept, load = wh._writer("test").keeper, wh.producer(name="load")
    store, done = kept._materialize, threading.Event()

    def beside(tables: Collection[str]) -> int:
        state = store(tables)
        if not done.is_set():
            load.insert_many("sale", [(number, 2) for number in range(6)])
            load.commit()
            done.set()
        return state

    monkeypatch.setattr(kept, "_materialize", beside)
    with wh.producer(name="first") as first:
        first.insert_many("sale", [(number, 1) for number in range(7)])
        first.commit()
    until(lambda: done.is_set() and unstored(wh) == 0)


def test_what_was_left_and_is_stored_by_hand_keeps_nobody_awake(wh: rt.Warehouse, tries: list[Collection[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    kept, load = wh._writer("test").keeper, wh.producer(name="load")
    load.insert_many("sale", [(number, 1) for number in range(10)])
    content, _ = load._transaction()
    load._stage(content)
    assert few(tries)
    load.rollback()
    waits: list[float | None] = []
    wait_s = kept._wait_s

    def noted(next_s: float | None) -> float | None:
        waits.append(wait_s(next_s))
        return waits[-1]

    monkeypatch.setattr(kept, "_wait_s", noted)
    until(lambda: bool(waits) and waits[-1] is None)
