"""Queries that wait at a service: they end when nobody waits for them any more, and not before."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.catalyst.lazy import LazyCommits
from righttime.catalyst.maintainer import Admission
from righttime.errors import LeaseExpired, StateInDoubt
from righttime.flight.access import READ, Grant
from righttime.flight.desk import Desk
from righttime.flight.frames import Message, read_frame, write_frame
from righttime.flight.held import HeldSnapshots
from righttime.flight.records import contract_record
from righttime.flight.turns import Asker
from righttime.query.contract import Contract
from righttime.testing import ManualClock
from tests.support.crash import engine_of
from tests.support.flow_stage import contract_of
from tests.support.plain_flow import run_plain
from tests.support.waits import until

COLUMNS = "k INT NOT NULL, v INT"
LONG = Contract(0, 3600.0, "error", None)
READER = Grant("reader", frozenset({READ}))


class Stage:
    """A warehouse with a table and a flow's target that waits for a source which stands still."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.wh = rt.open(folder, **settings)
        self.wh.create_table("sale", COLUMNS, keys=["k"])
        self.wh.create_table("t", COLUMNS, keys=["k"])
        self.wh.create_stream("s", COLUMNS, keys=["k"], times="source")
        self.runner, _ = run_plain(self.wh, {"t": "s"})
        self.engine = engine_of(self.wh)
        self.catalyst = self.engine.catalyst
        self.wh.stream("s").heartbeat(self.catalyst.authority.read_us())
        self.desk = Desk(self.wh, self.engine)
        self.held = self.desk.reading.held
        self.pool = ThreadPoolExecutor(8)

    def ask(self, snapshot_id: str, *tables: str) -> "Future[Message]":
        header = {"snapshot": snapshot_id, "tables": list(tables or ("t",)), "contract": contract_record(LONG)}
        return self.pool.submit(self.answer, "snapshot.take", header)

    def answer(self, action: str, header: dict[str, Any]) -> Message:
        return read_frame(self.desk.answer(action, write_frame(header), READER), bytes_max=1 << 20)

    def wait(self, admission: Admission, *tables: str) -> "Future[None]":
        def taken() -> None:
            with self.engine.snapshots.take(tables, LONG, admission=admission):
                pass

        return self.pool.submit(taken)

    def waiting(self) -> int:
        with self.catalyst.lock:
            return len(self.catalyst.admissions)

    def close(self) -> None:
        with self.catalyst.lock:
            waits = list(self.catalyst.admissions)
        for admission in waits:
            self.catalyst.give_up(admission)
        self.pool.shutdown()
        self.runner.stop()
        self.wh.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "wh", calls_max=2)
    yield made
    made.close()


# -- what a query waits for ----------------------------------------------------------------------------------------------


def test_a_query_that_is_given_up_waits_for_no_flow(stage: Stage) -> None:
    """Its cut goes with it, and the next query is answered as if it had not been there."""
    admission = Admission(frozenset({"t"}))
    waits = stage.wait(admission, "t")
    until(lambda: stage.runner.link.cuts)
    stage.catalyst.give_up(admission)
    with pytest.raises(LeaseExpired, match="is gone, or has taken its question back"):
        waits.result(20)
    assert (stage.waiting(), stage.runner.link.cuts) == (0, [])
    assert stage.wh.read("t", freshness="1 day").rows() == []


def test_a_query_that_is_given_up_waits_for_no_lazy_producer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer lives and does not deliver; what it holds back stays its own."""
    monkeypatch.setattr(LazyCommits, "_serve", lambda *_: None)
    with stage.wh.producer(name="till", policy=rt.OnDemand()) as load:
        load.insert("sale", (1, 1))
        load.commit()
        admission = Admission(frozenset({"sale"}))
        waits = stage.wait(admission, "sale")
        until(stage.waiting)
        stage.catalyst.give_up(admission)
        with pytest.raises(LeaseExpired):
            waits.result(20)
        load.flush()
        assert stage.wh.read("sale").rows() == [(1, 1)]


def test_a_query_that_is_given_up_waits_for_no_end_of_a_halt(stage: Stage) -> None:
    stage.catalyst.halt(StateInDoubt(state=1, reason="the test says so"))
    admission = Admission(frozenset({"sale"}))
    waits = stage.wait(admission, "sale")
    until(stage.waiting)
    stage.catalyst.give_up(admission)
    with pytest.raises(LeaseExpired):
        waits.result(20)
    stage.catalyst.halt(None)
    assert stage.wh.read("sale").rows() == []


# -- a client that says so -----------------------------------------------------------------------------------------------


def test_a_snapshot_can_be_released_while_it_is_taken(stage: Stage) -> None:
    """Nothing of it is left, and others that wait go on."""
    mine, other = "m" * 32, "o" * 32
    first, second = stage.ask(mine), stage.ask(other)
    until(lambda: stage.waiting() == 2)
    assert stage.answer("snapshot.release", {"snapshot": mine}).header == {}  # though all calls that may be at work are
    assert first.result(20).header["error"]["code"] == "lease.expired"
    until(lambda: stage.waiting() == 1)
    assert (set(stage.held._taking), stage.held._held) == ({other}, {})
    assert not second.done()
    stage.answer("snapshot.release", {"snapshot": other})
    assert "error" in second.result(20).header
    assert stage.runner.link.cuts == []


def test_a_release_that_overtakes_its_question_holds(stage: Stage) -> None:
    """Messages of one client are answered by several threads, so the later one may be first."""
    stage.answer("snapshot.release", {"snapshot": "m" * 32})
    assert stage.ask("m" * 32).result(20).header["error"]["code"] == "lease.expired"
    assert (stage.waiting(), stage.held._taking) == (0, {})


def test_only_so_many_releases_are_remembered(stage: Stage) -> None:
    """Whatever clients send, memory is bounded."""
    for number in range(2000):
        stage.held.withdraw(f"{number:032d}")
    stage.held.withdraw("x" * 100_000)
    assert len(stage.held._withdrawn) <= 1024
    assert sum(map(len, stage.held._withdrawn)) <= 1024 * 64


# -- a client that is gone -----------------------------------------------------------------------------------------------


class Taking:
    """Snapshots that are being taken for clients, each present or gone as a test says, by a clock that it drives."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(1000.0)
        self.wh = rt.open(folder, clock=self.clock, snapshot_ttl_s=30)
        self.wh.create_table("sale", COLUMNS)
        engine = engine_of(self.wh)
        self.held = HeldSnapshots(engine.snapshots, settings=engine.settings, clock=self.clock)
        self._snapshots = engine.snapshots
        self.pool = ThreadPoolExecutor(4)
        self.ended = 0
        self.go_on = threading.Event()

    def take(self, gone: Callable[[], bool]) -> "Future[Any]":
        """Take a snapshot that comes when the wait is ended, or the test lets it come."""

        @contextmanager
        def snapshot() -> Iterator[Any]:
            assert self.go_on.wait(20)
            with self._snapshots.take(["sale"], contract_of()) as taken:
                yield taken

        def give_up() -> None:
            self.ended += 1
            self.go_on.set()

        def take() -> AbstractContextManager[Any]:
            return snapshot()

        asked = self.waiting()
        future = self.pool.submit(lambda: self.held.take("one", LONG, take, grant="g", asker=Asker(gone, give_up)))
        until(lambda: self.waiting() == asked + 1)
        return future

    def waiting(self) -> int:
        return self.held._taking["one"].waiting if "one" in self.held._taking else 0

    def look(self, after_s: float = 0.0) -> None:
        self.clock.advance(after_s)
        self.held.expire()


@pytest.fixture
def taking(tmp_path: Path) -> Iterator[Taking]:
    made = Taking(tmp_path / "taking")
    yield made
    made.go_on.set()
    made.pool.shutdown()
    made.held.expire(everything=True)
    made.wh.close()


def test_a_wait_ends_some_seconds_after_its_client_is_gone(taking: Taking) -> None:
    """What comes after all is not held: nobody would let it go."""
    waits = taking.take(lambda: True)
    taking.look()
    taking.look(2.9)
    assert taking.ended == 0
    taking.look(0.2)
    taking.look(5.0)
    assert taking.ended == 1
    with pytest.raises(LeaseExpired):
        waits.result(20)
    assert (taking.held._held, taking.held._taking) == ({}, {})


def test_a_wait_whose_client_is_there_goes_on(taking: Taking) -> None:
    waits = taking.take(lambda: False)
    for _ in range(5):
        taking.look(1000.0)
    assert taking.ended == 0
    taking.go_on.set()
    assert waits.result(20).snapshot_id == "one"


def test_a_client_whose_connection_broke_finds_what_was_taken_for_it(taking: Taking) -> None:
    """The first call has nobody behind it any more, the second has."""
    first = taking.take(lambda: True)
    taking.look()
    taking.look(2.0)
    second = taking.take(lambda: False)
    taking.look(10.0)
    taking.look(10.0)
    assert taking.ended == 0
    taking.go_on.set()
    assert first.result(20) is second.result(20)


def test_a_client_that_comes_back_late_gets_a_snapshot_of_its_own(taking: Taking) -> None:
    """What was given up meanwhile is not its answer, and no error for it either."""
    ends = threading.Event()

    @contextmanager
    def slow() -> Iterator[Any]:
        assert ends.wait(20)
        with taking._snapshots.take(["sale"], contract_of()) as taken:
            yield taken

    first = taking.pool.submit(lambda: taking.held.take("one", LONG, slow, grant="g", asker=Asker(lambda: True)))
    until(taking.waiting)
    taking.look()
    taking.look(4.0)
    taking.go_on.set()
    second = taking.pool.submit(lambda: taking.held.take("one", LONG, lambda: taking._snapshots.take(["sale"], contract_of()), grant="g"))
    assert second.result(20).snapshot_id == "one"
    ends.set()
    with pytest.raises(LeaseExpired):
        first.result(20)
    assert set(taking.held._held) == {"one"}
    taking.held.release("one")
