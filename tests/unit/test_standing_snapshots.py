"""Standing snapshots: one state for several questions, whatever happens meanwhile."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import righttime as rt
from righttime import Warehouse
from righttime.errors import BadFreshness, LeaseExpired, NotInSnapshot, UnknownTable, WarehouseClosed
from righttime.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def wh(tmp_path: Path, clock: ManualClock) -> Iterator[Warehouse]:
    with rt.open(tmp_path / "wh", clock=clock, lease_ttl_s=60.0) as warehouse:
        yield warehouse


@pytest.fixture
def load(wh: Warehouse) -> Iterator[rt.Producer]:
    for name in ("sale", "item"):
        wh.create_table(name, "k INT, v INT", keys=["k"])
    with wh.producer(name="till") as producer:
        for key in range(4):
            producer.insert("sale", (key, 10 * key))
        producer.commit()
        wh.materialize()
        for table, row in (("sale", (4, 40)), ("item", (1, 1))):  # which may be at two catalysts
            producer.insert(table, row)
            producer.commit()
        yield producer


BEFORE = [(key, 10 * key) for key in range(5)]


def change_everything(wh: Warehouse, load: rt.Producer) -> None:
    load.insert("sale", (5, 50))
    load.update("sale", set={"v": 0}, where={"k": 4})
    load.delete("sale", where={"k": 1})
    load.commit()
    wh.materialize()
    load.delete("sale", where="k > 2")
    load.commit()
    wh.materialize()
    wh.gc()


def test_at_a9_every_answer_is_of_one_state(wh: Warehouse, load: rt.Producer) -> None:
    """F50: a question inside one query transaction can be repeated. Each answer has a receipt of its own, with what it read."""
    with wh.snapshot() as state:
        assert state.tables == ("item", "sale")
        before = state.read("sale")
        change_everything(wh, load)
        again, item = state.read("SALE", columns=["K"]), state.read("item")
        assert (sorted(before.rows()), sorted(again.rows()), item.rows()) == (BEFORE, [(key,) for key in range(5)], [(1, 1)])
        answers = (before, again, item)
        assert len({answer.receipt.cut_us for answer in answers}) == 1
        assert before.receipt.state == again.receipt.state
        assert len({answer.receipt.receipt_id for answer in answers}) == 3
        assert [[table.name for table in answer.receipt.tables] for answer in answers] == [["sale"], ["sale"], ["item"]]
        assert all(answer.receipt.verify().ok for answer in answers)
    assert sorted(wh.read("sale").rows()) == [(0, 0), (2, 20)]


def test_only_its_tables_can_be_asked_for(wh: Warehouse, load: rt.Producer) -> None:
    """What was not named when it was taken has no state; a view stands for its tables."""
    wh.create_view("big", "SELECT * FROM sale WHERE v > 10")
    with wh.snapshot("big") as state:
        assert state.tables == ("sale",)
        with pytest.raises(NotInSnapshot, match=r"'item'.*which has sale"):
            state.read("item")
        with pytest.raises(UnknownTable):
            state.read("nothing")
        with pytest.raises(BadFreshness, match="is taken"):
            state.sql("SELECT * FROM sale CURRENCY BOUND 1 MIN")
        assert sorted(state.read("sale").rows()) == BEFORE
    with pytest.raises(UnknownTable):
        wh.snapshot("sale", "nothing")


def test_after_it_was_closed_there_is_no_answer(wh: Warehouse, load: rt.Producer) -> None:
    """By itself, by its block, or with its warehouse."""
    state = wh.snapshot("sale")
    with state:
        assert not state.closed
    state.close()
    assert state.closed and repr(state) == "<StandingSnapshot of sale (closed)>"
    with pytest.raises(LeaseExpired, match="closed"):
        state.read("sale")
    other = wh.snapshot("sale")
    load.close()
    wh.close()
    assert other.closed
    with pytest.raises(WarehouseClosed):
        wh.snapshot("sale")


def test_a_lease_that_lapses_ends_it(wh: Warehouse, load: rt.Producer, clock: ManualClock) -> None:
    """Its rows may be freed then; closing it is no error."""
    with wh.snapshot("sale") as state:
        clock.advance(59)
        assert sorted(state.read("sale").rows()) == BEFORE
        clock.advance(2)
        change_everything(wh, load)
        with pytest.raises(LeaseExpired, match="lease_ttl_s"):
            state.read("sale")


def test_the_contract_is_that_of_any_query(wh: Warehouse, load: rt.Producer, clock: ManualClock) -> None:
    """A relaxed state leaves out what a lazy producer holds back; an exact one is as of its time."""
    first = wh.read("item").receipt.cut_us
    clock.advance(10)
    with wh.producer(name="lazy", policy=rt.OnDemand()) as lazy:
        lazy.insert("item", (2, 2))
        lazy.commit()
        clock.advance(1)
        with wh.snapshot("item", freshness="5s") as relaxed, wh.snapshot("item", as_of=first) as earlier, wh.snapshot("item") as strict:
            assert [len(state.read("item")) for state in (relaxed, earlier, strict)] == [1, 1, 2]
            assert relaxed.read("item").receipt.asked_s == 5.0


def test_closing_waits_for_questions_under_way(wh: Warehouse, load: rt.Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they read stays until they have their answers."""
    state, reading, go_on = wh.snapshot("sale"), threading.Event(), threading.Event()
    rows = state._consumer._snapshots.rows

    def slowly(*given: object) -> object:
        reading.set()
        assert go_on.wait(timeout=60)
        return rows(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(state._consumer._snapshots, "rows", slowly)
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(state.read, "sale")
        assert reading.wait(timeout=60)
        closing = pool.submit(state.close)
        with pytest.raises(TimeoutError):
            closing.result(timeout=0.1)
        go_on.set()
        assert len(asked.result(timeout=60)) == 5
        closing.result(timeout=60)


def test_an_interrupt_while_it_is_closed_leaves_it_to_be_closed_again(wh: Warehouse, load: rt.Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while a question is waited for: nothing is let go, and nothing is forgotten."""
    state = wh.snapshot("sale")

    def interrupted(_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(state._idle, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            state.close()
    assert len(state.read("sale")) == 5
    state.close()
    assert state.closed


def test_a_warehouse_without_tables_has_an_empty_state(tmp_path: Path) -> None:
    """There is nothing to ask, and that is told."""
    with rt.open(tmp_path / "empty") as empty, empty.snapshot() as state:
        assert state.tables == ()
        with pytest.raises(UnknownTable):
            state.read("sale")
