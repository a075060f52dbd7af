"""The desk when calls meet: snapshots that are asked for together, calls that outlast the memory of answers, a stop in between, silence."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.errors import CommitFailed, CommitUnknown, LeaseExpired, TooManySnapshots
from righttime.flight import desk as desk_module
from righttime.flight.access import READ, WRITE, Grant
from righttime.flight.desk import Desk
from righttime.flight.frames import Message, read_frame, write_frame
from righttime.flight.given import write_given
from righttime.query.contract import Contract
from tests.support.waits import until

GRANT = Grant("tester", frozenset({READ, WRITE}))


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(tmp_path / "wh") as opened:
        opened.create_table("sale", "sku INT, qty INT")
        yield opened


@pytest.fixture
def desk(wh: rt.Warehouse) -> Desk:
    return Desk(wh, wh._writer("test"))


def ask(desk: Desk, action: str, header: dict[str, Any], grant: Grant = GRANT) -> Message:
    return read_frame(desk.answer(action, write_frame(header), grant), bytes_max=1 << 20)


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_snapshot_is_taken_once_though_the_first_try_fails_and_others_wait(desk: Desk) -> None:
    """One that waits for the failed try and one that comes after it must take turns: of two snapshots under one id, one would be held for ever."""
    held, inside, go_on, taken = desk.reading.held, threading.Event(), threading.Event(), []
    second_inside, second_go_on = threading.Event(), threading.Event()
    contract = Contract(0, 10.0, "error", None)

    @contextmanager
    def fails() -> Iterator[Any]:
        inside.set()
        go_on.wait(timeout=10)
        raise CommitFailed(source="-", step="-", reason="the test says so")
        yield

    @contextmanager
    def works(began: threading.Event, may_end: threading.Event) -> Iterator[Any]:
        began.set()
        may_end.wait(timeout=10)
        with desk._engine.snapshots.take(["sale"], contract) as snapshot:
            taken.append(1)
            yield snapshot

    def first() -> None:
        with pytest.raises(CommitFailed):
            held.take("id", contract, fails, grant="g")

    threads = [in_thread(first)]
    assert inside.wait(timeout=10)
    threads.append(in_thread(lambda: held.take("id", contract, lambda: works(second_inside, second_go_on), grant="g")))
    until(lambda: held._taking["id"].waiting == 2)
    go_on.set()
    assert second_inside.wait(timeout=10)
    done = threading.Event()
    done.set()
    threads.append(in_thread(lambda: held.take("id", contract, lambda: works(threading.Event(), done), grant="g")))
    until(lambda: held._taking["id"].waiting == 2)
    second_go_on.set()
    for thread in threads:
        thread.join(timeout=10)
    assert taken == [1]
    assert held._taking == {}
    held.release("id")


def test_a_snapshot_that_is_asked_for_again_does_not_count_against_itself(tmp_path: Path) -> None:
    """A client whose connection broke sends the same message again while the first one still works: it is one snapshot, for which there is a place."""
    with rt.open(tmp_path / "one", snapshots_max=1) as wh:
        wh.create_table("sale", "sku INT, qty INT")
        desk = Desk(wh, wh._writer("test"))
        held, inside, go_on, contract = desk.reading.held, threading.Event(), threading.Event(), Contract(0, 10.0, "error", None)
        answers: list[Any] = []

        @contextmanager
        def slow() -> Iterator[Any]:
            inside.set()
            go_on.wait(timeout=10)
            with desk._engine.snapshots.take(["sale"], contract) as snapshot:
                yield snapshot

        threads = [in_thread(lambda: answers.append(held.take("id", contract, slow, grant="g")))]
        assert inside.wait(timeout=10)
        threads.append(in_thread(lambda: answers.append(held.take("id", contract, slow, grant="g"))))
        until(lambda: held._taking["id"].waiting == 2)
        with pytest.raises(TooManySnapshots):
            held.take("another", contract, slow, grant="g")
        go_on.set()
        for thread in threads:
            thread.join(timeout=10)
        assert [one.snapshot_id for one in answers] == ["id", "id"]
        assert answers[0] is answers[1]
        held.release("id")


def test_a_query_that_a_restarted_service_does_not_know_is_told_so(desk: Desk) -> None:
    with pytest.raises(LeaseExpired, match="restarted, or heard nothing of it for 30 s"):
        desk.reading.held.get("from before")


def test_a_call_at_work_is_not_forgotten_however_many_come(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again under its id, it gives its answer and is not carried out twice."""
    monkeypatch.setattr(desk_module, "_ANSWERS_MAX", 4)
    begun, go_on, count = threading.Event(), threading.Event(), []

    def slow(message: Message, grant: Grant) -> dict[str, Any]:
        count.append(1)
        begun.set()
        go_on.wait(timeout=10)
        return {"count": len(count)}

    desk._calls = {**desk._calls, "slow": (READ, slow), "quick": (READ, lambda message, grant: {})}
    answers: list[Message] = []
    threads = [in_thread(lambda: answers.append(ask(desk, "slow", {"call": "one"})))]
    assert begun.wait(timeout=10)
    for number in range(20):
        ask(desk, "quick", {"call": f"quick-{number}"})
    threads.append(in_thread(lambda: answers.append(ask(desk, "slow", {"call": "one"}))))
    go_on.set()
    for thread in threads:
        thread.join(timeout=10)
    assert [answer.header["count"] for answer in answers] == [1, 1]
    assert len(desk._answers) <= 5


def test_whoever_stops_the_service_waits_for_calls_that_were_let_in(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is counted before it is asked whether the service stops, so none is carried out after those who stop it have stopped waiting."""
    seen: list[bool] = []
    refuse = desk._refuse_late

    def late(action: str) -> None:
        seen.append(desk.await_idle(0.0))
        refuse(action)

    monkeypatch.setattr(desk, "_refuse_late", late)
    ask(desk, "catalog", {})
    assert seen == [False]
    desk.stopping = True
    assert ask(desk, "catalog", {}).header["error"]["code"] == "service.stopping"
    assert desk.await_idle(0.0)


def test_a_time_that_a_reader_waited_for_is_observed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a clock that is set back would give a later commit a time that the answer had before it."""
    authority, clock = desk._engine.catalyst.authority, desk._engine.clock
    ahead_us = clock.now_us() + 50_000
    desk.group.observe(ahead_us, Grant("reader", frozenset({READ})))
    assert authority.read_us() >= ahead_us
    seen: list[int] = []
    monkeypatch.setattr(authority, "observe", seen.append)
    desk.group.observe(clock.now_us() + 20_000, Grant("reader", frozenset({READ})))
    assert len(seen) == 1


def test_a_session_whose_losses_cannot_be_written_keeps_no_other_from_ending(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = desk.loading.sessions
    for name in ("a", "b"):
        ask(desk, "session.open", {"session": name, "source": name, "policy": ""})
        ask(desk, "session.lazy", {"session": name, "sequence": 1, "rows": {"sale": 1}, "batch": f"{name}1"})
        sessions.get(name, grant="tester").heard_s = -1e9
    noted: list[str] = []

    def note(session: Any, losses: Any) -> None:
        if session.session_id == "a":
            raise CommitFailed(source="a", step="losses", reason="the database is away")
        noted.append(session.session_id)

    monkeypatch.setattr(sessions, "_note_loss", note)
    sessions.expire()
    assert (noted, [session.session_id for session in sessions.all()]) == (["b"], ["a"])


def appended(desk: Desk, append: int, rows: list[Any], stream: str = "line") -> str | int:
    """Append rows under an id; return the code of the refusal, or the commit's number."""
    given, parts = write_given(rows)
    header = {"append": f"{append:032x}", "mark": 0, "changes": [{"stream": stream, "given": given}]}
    answer = read_frame(desk.answer("stream.append", write_frame(header, parts), GRANT), bytes_max=1 << 20).header
    found: str | int = answer["error"]["code"] if "error" in answer else answer["appended"]["numbers"][stream]
    return found


def test_an_append_that_was_refused_is_not_taken_by_a_copy_that_comes_late(wh: rt.Warehouse, desk: Desk) -> None:
    """Its feeder was told that nothing was taken; what another one does meanwhile must not change that."""
    line = wh.create_stream("line", "id INT", keys=["id"])
    line.insert([{"id": 1}])
    assert appended(desk, 1, [{"id": 1}]) == "change.row_exists"
    line.delete([{"id": 1}])
    assert appended(desk, 1, [{"id": 1}]) == "change.row_exists"
    assert appended(desk, 2, [{"id": 1}]) == appended(desk, 2, [{"id": 1}]) == 3


@pytest.mark.parametrize("error", [MemoryError(), CommitUnknown(source="streams", reason="-"), CommitFailed(source="streams", step="-", reason="-")], ids=repr)
def test_an_append_that_failed_may_come_again_under_its_id(wh: rt.Warehouse, desk: Desk, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The service did not know what became of it, and need not say so for ever."""
    line = wh.create_stream("line", "id INT", keys=["id"])

    def fails(*arguments: Any, **options: Any) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(wh._writer("test").flows.feed.streams, "append", fails)
        assert appended(desk, 1, [{"id": 1}]) == getattr(error, "code", "service.failed")
    assert appended(desk, 1, [{"id": 1}]) == appended(desk, 1, [{"id": 1}]) == 1
    assert line.changes().num_rows == 1


def test_appends_that_failed_are_forgotten_like_others(wh: rt.Warehouse, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk fails every append, each under an id of its own; the memory of answers is bounded all the same."""
    monkeypatch.setattr(desk_module, "_ANSWERS_MAX", 3)
    wh.create_stream("line", "id INT", keys=["id"])

    def fails(*arguments: Any, **options: Any) -> None:
        raise CommitFailed(source="streams", step="-", reason="no space left")

    monkeypatch.setattr(wh._writer("test").flows.feed.streams, "append", fails)
    for number in range(20):
        assert appended(desk, number, [{"id": 1}]) == CommitFailed.code
    assert len(desk._answers) == 3


@pytest.mark.parametrize("action", ["stream.append", "stream.heartbeat"])
def test_an_id_that_is_no_id_is_not_kept(desk: Desk, action: str) -> None:
    """What is remembered of each call is bounded, too: a stranger's id may be as long as a message."""
    answer = ask(desk, action, {"append": "x" * 1000, "call": "x" * 1000, "mark": 0, "changes": []})
    assert answer.header["error"]["code"] == "message.bad"
    assert not desk._answers
