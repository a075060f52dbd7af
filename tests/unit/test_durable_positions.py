"""What a state says to be durable of each source: never more than is, and never less than the state before it said."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import righttime as rt
from righttime.catalyst.mover import Mover
from righttime.catalyst.next_state import next_state
from righttime.changes.position import START
from righttime.flows.running import RunningFlow
from righttime.ledger.state import State
from righttime.testing import ManualClock
from tests.support.crash import crash, engine_of
from tests.support.plain_flow import run_plain

SECOND = 1_000_000
COLUMNS = "k INT NOT NULL, v INT"


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[State]]:
    """All durable states of a test, in order."""
    found: list[State] = []
    publish = Mover._publish

    def noted(mover: Mover, *given: object) -> object:
        published = publish(mover, *given)  # type: ignore[arg-type]
        found.append(mover.durable)
        return published

    monkeypatch.setattr(Mover, "_publish", noted)
    yield found
    for before, after in pairwise(found):
        for source, commit in before.positions.items():
            assert after.positions[source].number >= commit.number, f"{source} has lost what was durable"


def commit_elsewhere(wh: rt.Warehouse, number: int) -> None:
    """Make a durable step that has nothing to do with anybody else's rows."""
    with wh.producer(name="elsewhere") as load:
        load.insert("other", (number, number))
        load.commit(durability="log")


@pytest.mark.parametrize("delivered", [0, 1, 7])
def test_lazy_commits_that_are_held_back_are_not_durable_however_many_there_are(tmp_path: Path, states: list[State], delivered: int) -> None:
    """More than the catalyst remembers of a source that delivers: all of them are lost with the process, and their batch ids may be committed again."""
    wh = rt.open(tmp_path / "wh", commits_max=10, clock=ManualClock(1000.0))
    for table in ("sale", "other"):
        wh.create_table(table, COLUMNS)
    load = wh.producer(name="lazy", policy=rt.OnDemand())
    for number in range(1, 21):
        load.insert("sale", (number, 0))
        load.commit(batch_id=f"b{number}")
        if number == delivered:
            load.flush()
    commit_elsewhere(wh, 1)

    durable = engine_of(wh).mover.durable
    assert durable.positions.get("lazy", START).number == delivered
    assert durable.rows.get("lazy", 0) == delivered
    with rt.open(crash(wh, tmp_path / "left"), commits_max=10, clock=ManualClock(2000.0)) as again:
        assert [(loss.source, loss.first, loss.last, loss.rows) for loss in again.losses()] == [("lazy", delivered + 1, 20, 20 - delivered)]
        with again.producer(name="lazy") as load:
            for number in range(1, 21):
                load.insert("sale", (number, 0))
                assert load.commit(batch_id=f"b{number}").replayed == (number <= delivered)
        assert sorted(again.read("sale").rows()) == [(number, 0) for number in range(1, 21)]


def test_a_source_that_delivers_at_last_is_remembered_no_longer_than_others(tmp_path: Path) -> None:
    """What is held back is remembered beyond the bound, one by one; what came is forgotten again."""
    with rt.open(tmp_path / "wh", commits_max=10, clock=ManualClock(1000.0)) as wh:
        wh.create_table("sale", COLUMNS)
        load, history = wh.producer(name="lazy", policy=rt.OnDemand()), engine_of(wh).catalyst.head.source("lazy")
        for number in range(40):
            load.insert("sale", (number, 0))
            load.commit()
        assert len(history._times) == 40
        load.flush()
        for number in range(3):
            load.insert("sale", (number, 0))
            load.commit()
            load.flush()
        assert len(history._times) <= 10


def test_a_refresh_that_waits_for_a_stream_leaves_durable_what_was(tmp_path: Path, states: list[State]) -> None:
    """A flow gets one more stream, which lags: the jobs that are stored stay durable, and after a crash the old declaration goes on behind them.

    | stream | job 1 | job 2 | the refresh |
    |---|---|---|---|
    | a | 100 s | 300 s | 300 s |
    | b | | | 150 s, and then a change at 200 s |
    """
    wh = rt.open(tmp_path / "wh", clock=ManualClock(1000.0))
    wh.create_table("other", COLUMNS)
    for table, stream in (("t", "a"), ("u", "b")):
        wh.create_table(table, COLUMNS, keys=["k"])
        wh.create_stream(stream, COLUMNS, keys=["k"], times="source")
    runner, _ = run_plain(wh, {"t": "a"})
    for number, second in ((1, 100), (2, 300)):
        wh.stream("a").insert([{"k": number, "v": number}], time=second * SECOND)
        RunningFlow(wh._flows("test"), runner).wait(timeout="20s")
    runner.stop()
    engine_of(wh).mover.materialize(["t"])
    wh.stream("b").heartbeat(150 * SECOND)
    runner, _ = run_plain(wh, {"t": "a", "u": "b"}, rebuild=True)
    try:
        commit_elsewhere(wh, 1)
        wh.stream("b").insert([{"k": 1, "v": 1}], time=200 * SECOND)
        commit_elsewhere(wh, 2)
        assert engine_of(wh).mover.durable.positions["flow.plain"].number == 2
        assert sorted(wh.read("t", as_of=300 * SECOND).rows()) == [(1, 1), (2, 2)]
    finally:
        runner.stop()
    left = crash(wh, tmp_path / "left")
    with rt.open(left, clock=ManualClock(2000.0)) as again:
        assert again.losses() == []
        runner, _ = run_plain(again, {"t": "a"})
        try:
            again.stream("a").insert([{"k": 3, "v": 3}], time=1500 * SECOND)
            RunningFlow(again._flows("test"), runner).wait(timeout="20s")
            assert sorted(again.read("t", freshness="2h").rows()) == [(1, 1), (2, 2), (3, 3)]
        finally:
            runner.stop()


def test_a_state_that_would_take_back_what_is_durable_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason: after a crash rows would be there twice, or be called lost though they are not."""
    with rt.open(tmp_path / "wh", clock=ManualClock(1000.0)) as wh:
        wh.create_table("other", COLUMNS)
        commit_elsewhere(wh, 1)
        mover = engine_of(wh).mover

        def forgetful(*given: object, **options: object) -> State:
            state = next_state(*given, **options)  # type: ignore[arg-type]
            state.positions["elsewhere"] = START  # type: ignore[index]
            return state

        before = mover.durable
        with monkeypatch.context() as patch:
            patch.setattr("righttime.catalyst.mover.next_state", forgetful)
            with pytest.raises(rt.RightTimeError, match="take back"):
                mover.make_safe()
        assert mover.durable is before


def test_no_commit_after_a_crash_gets_a_time_that_an_answer_had_promised(tmp_path: Path) -> None:
    """Though the clock was set back meanwhile: the receipt says that everything up to its cut was inside, of tables and of streams."""
    clock = ManualClock(1000.0)
    wh = rt.open(tmp_path / "wh", clock=clock)
    wh.create_table("t", "k INT")
    wh.create_stream("s", "k INT NOT NULL", keys=["k"])
    with wh.producer(name="p") as load:
        load.insert("t", {"k": 1})
        load.commit(durability="log")
    clock.advance(3600)
    promised = wh.read("t").receipt

    with rt.open(crash(wh, tmp_path / "left"), clock=ManualClock(2000.0)) as again, again.producer(name="p") as load:
        load.insert("t", {"k": 2})
        committed = load.commit(durability="log").commit
        assert committed.time_us > promised.cut_us
        assert again.stream("s").insert([{"k": 1}]).time_us > committed.time_us
        assert sorted(again.read("t").rows()) == [(1,), (2,)]
