"""Ctrl-C in a commit to memory, a flush or a rollback: wherever it comes, the call is done or not begun, and the producer knows which."""

import signal
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

import righttime as rt
from righttime.catalyst.listener import Listener
from righttime.catalyst.table import VERSIONS
from righttime.errors import KeyTaken
from tests.support.crash import engine_of
from tests.support.ctrl_c import pressed_at

Call = Callable[[], object]


@pytest.fixture(autouse=True)
def plain_handler() -> Iterator[None]:
    """Interrupts as a program has them; where a Spark runs in this process, it has put a handler of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _check_accounts(wh: rt.Warehouse, load: rt.Producer) -> None:
    """Nothing is uncommitted or held back, and what the catalyst counts is what it has."""
    catalyst = engine_of(wh).catalyst
    link = catalyst.links[load.source]
    assert (link.archived_from, link.archived_rows, link.staged, link.staged_rows) == ({}, 0, {}, 0)
    assert +catalyst.gates == {}
    for memory in catalyst.tables.values():
        lanes = memory.lanes.values()
        pieces = [piece for lane in lanes for piece in lane.pieces]
        operations = [placed.operations for lane in lanes for placed in lane.operations]
        assert not any(lane.uncommitted for lane in lanes)
        assert memory.bytes_memory == sum(piece.content.nbytes for piece in pieces)
        assert memory.bytes_operations == sum(each.nbytes for each in operations)
        loaded = [piece.rows for source, lane in memory.lanes.items() if source != VERSIONS for piece in lane.pieces]
        assert memory.rows_unstored == sum(loaded) + sum(each.rows for each in operations)


def _check(wh: rt.Warehouse, load: rt.Producer, rows: int) -> None:
    assert sorted(n for n, *_ in wh.read("sale").rows()) == list(range(1, rows + 1))
    _check_accounts(wh, load)


def _commit_at_every_place(wh: rt.Warehouse, load: rt.Producer, prepare: Callable[[int], object], *, step: int = 1) -> int:
    """Press Ctrl-C at every place of a commit, or at every few, one after the other; to commit again is right each time. Return how often."""
    for number in count(1):
        prepare(number)
        far = pressed_at(1 + (number - 1) * step, load.commit)
        assert len(wh.read("sale")) == number - load.in_transaction
        load.commit()
        load.flush()
        assert not load.in_transaction
        _check(wh, load, number)
        if not far:
            return number
    raise AssertionError


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(tmp_path / "shop") as opened:
        yield opened


@pytest.mark.parametrize("policy", [rt.Immediate(), rt.OnDemand()], ids=["at once", "lazily"])
def test_a_commit_happens_once_wherever_it_is_interrupted(wh: rt.Warehouse, policy: rt.Policy) -> None:
    """Its transaction is over, or open and nothing of it is to be seen."""
    wh.create_table("sale", "n INT")
    with wh.producer(name="till", policy=policy) as load:
        _commit_at_every_place(wh, load, lambda number: load.insert("sale", (number,)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops what is raised while a generator is closed
def test_a_commit_that_is_tried_first_happens_once_wherever_it_is_interrupted(wh: rt.Warehouse) -> None:
    """Its rows are with the catalyst before it is made."""
    wh.create_table("sale", "n INT", keys=["n"], unique=True)
    with wh.producer(name="till") as load:
        _commit_at_every_place(wh, load, lambda number: load.insert("sale", (number,)), step=3)


def test_operations_are_done_once_wherever_their_commit_is_interrupted(wh: rt.Warehouse) -> None:
    wh.create_table("sale", "n INT, v INT", keys=["n"])
    with wh.producer(name="till") as load:

        def change(number: int) -> None:
            load.insert("sale", (number, 0))
            load.update("sale", {"v": number}, {"n": 1})

        changes = _commit_at_every_place(wh, load, change, step=3)
        assert (1, changes) in wh.read("sale").rows()
        assert sum(placed.operations.rows for placed in engine_of(wh).catalyst.tables["sale"].lane("till").operations) == changes


def test_a_flush_happens_once_wherever_it_is_interrupted(wh: rt.Warehouse) -> None:
    """What the catalyst has taken is not delivered again, and what it has not is still there."""
    wh.create_table("sale", "n INT")
    with wh.producer(name="till", policy=rt.OnDemand()) as load:
        for place in count(1):
            load.insert("sale", (place,))
            load.commit()
            far = pressed_at(place, load.flush)
            load.flush()
            _check(wh, load, place)
            if not far:
                return


def test_a_rollback_drops_everything_wherever_it_is_interrupted(wh: rt.Warehouse) -> None:
    wh.create_table("sale", "n INT", keys=["n"], unique=True)
    with wh.producer(name="till") as load:
        load.insert("sale", (1,))
        load.commit()
        for place in count(1):
            load.insert("sale", (1,))
            with pytest.raises(KeyTaken):
                load.commit()
            assert load.in_transaction
            far = pressed_at(place, load.rollback)
            load.rollback()
            assert not load.in_transaction
            _check(wh, load, 1)
            if not far:
                return


def test_a_producer_can_be_closed_wherever_its_closing_is_interrupted(wh: rt.Warehouse) -> None:
    """Nothing that it had committed is lost, and its name is free."""
    wh.create_table("sale", "n INT")
    for place in count(1):
        load = wh.producer(name="till", policy=rt.OnDemand())
        load.insert("sale", (place,))
        load.commit()
        far = pressed_at(place, load.close)
        load.close()
        assert load.closed and "till" not in engine_of(wh).catalyst.links
        assert len(wh.read("sale")) == place
        if not far:
            return


def test_a_commit_that_waits_for_others_can_be_interrupted(wh: rt.Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is done then, and its transaction is open: whoever presses Ctrl-C there does not wait for `wait_s`."""
    monkeypatch.setattr(Listener, "start", lambda self: None)  # of a producer that does not answer
    wh.create_table("sale", "n INT, v INT", keys=["n"])
    with wh.producer(name="gate", policy=rt.OnDemand()) as gate, wh.producer(name="till") as load:
        gate.insert("sale", (1, 1))
        gate.commit()
        load.update("sale", {"v": rt.expr("6 / v")}, {"n": 1})
        main = threading.main_thread().ident
        assert main is not None
        press = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
        press.start()
        with pytest.raises(KeyboardInterrupt):
            load.commit()
        press.join()
        assert load.in_transaction
        gate.flush()
        load.commit()
        assert wh.read("sale").rows() == [(1, 6)]
        _check_accounts(wh, load)


def test_a_lazy_commit_without_a_thread_for_its_listener_is_not_made(wh: rt.Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would deliver it. The transaction stays open, and the next commit tries again to begin the thread."""
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def fail_once(self: threading.Thread) -> None:
        if "producer" in self.name and failures:
            raise failures.pop()
        start(self)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    wh.create_table("sale", "n INT")
    with wh.producer(name="till", policy=rt.OnDemand()) as load:
        load.insert("sale", (1,))
        with pytest.raises(RuntimeError, match="new thread"):
            load.commit()
        assert load.in_transaction
        assert wh.read("sale").rows() == []
        load.commit()
        assert wh.read("sale", wait="10s").rows() == [(1,)]
