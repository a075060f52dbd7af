"""What queries wait for where some streams have a source that lags and others are tables of the warehouse, which never do."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.errors import FreshnessUnavailable
from righttime.errors.flows import ReplayUnfinished
from righttime.flows.catalogue import Catalogue
from righttime.flows.runner import FlowRunner
from righttime.testing import ManualClock
from tests.support.flow_stage import SECOND, contract_of
from tests.support.plain_flow import run_plain
from tests.support.waits import until

COLUMNS = "k INT NOT NULL, v INT"


class Stage:
    """A tapped table `orders` with its copy, and a stream `lagging` whose source tells its times, with its copy `late`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(100.0)
        self.wh = rt.open(folder, clock=self.clock)
        self.wh.create_table("orders", COLUMNS, keys=["k"], unique=True)
        for table in ("copy", "late"):
            self.wh.create_table(table, COLUMNS, keys=["k"])
        self.lagging = self.wh.create_stream("lagging", COLUMNS, keys=["k"], times="source", tolerance="30s")
        self.wh.tap("orders")
        self.load = self.wh.producer(name="shop")
        self.runners: list[FlowRunner] = []

    def run(self, name: str = "plain", **targets: str) -> FlowRunner:
        Catalogue(self.folder / "flows").begin(name, sorted(targets.values()), list(targets), "", next_job=1)  # as a flow that is declared does
        self.runners.append(run_plain(self.wh, targets, name=name)[0])
        return self.runners[-1]

    def commit(self, k: int, v: int = 0) -> None:
        self.load.insert("orders", (k, v))
        self.load.commit()

    def rows(self, table: str, **contract: Any) -> dict[int, int]:
        return dict(self.wh.read(table, **{"wait": "20s", **contract}).rows())

    def cut_of(self, *tables: str, freshness: str = "0s") -> int:
        with self.wh._writer("test").snapshots.take(tables, contract_of(freshness=freshness, wait="0s")) as snapshot:
            return snapshot.accuracy.cut_us

    def stop(self) -> None:
        for runner in self.runners:
            runner.stop()

    def reader(self) -> rt.Warehouse:
        self.stop()
        self.wh.close()
        return rt.open(self.folder, read_only=True, clock=self.clock)

    def open_again(self) -> rt.Warehouse:
        self.stop()
        self.wh.close()
        self.wh = rt.open(self.folder, clock=self.clock)
        self.lagging = self.wh.stream("lagging")
        return self.wh


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path / "wh")
    yield found
    found.stop()
    found.wh.close()


# -- tolerance -------------------------------------------------------------------------------------------------------


def test_a_flow_whose_changes_are_here_at_once_takes_no_tolerance_from_another(stage: Stage) -> None:
    """A query over the targets of both puts up with the lag of the one that lags."""
    stage.wh.create_stream("here", COLUMNS, keys=["k"])
    stage.run("one", late="lagging")
    stage.run("two", copy="here")
    stage.clock.set(101.0)
    stage.lagging.insert([{"k": 1, "v": 1}], time=101 * SECOND)
    assert stage.rows("late") == {1: 1}
    stage.clock.set(120.0)
    assert stage.cut_of("late", "copy") == 101 * SECOND


def test_a_table_among_the_streams_of_a_flow_takes_no_tolerance_from_the_others(stage: Stage) -> None:
    """What happens to the table is known at once; the other stream lags as before. So it is in files, too."""
    stage.run(copy="orders", late="lagging")
    stage.commit(1)
    stage.clock.set(101.0)
    stage.lagging.insert([{"k": 1, "v": 1}], time=101 * SECOND)
    assert stage.rows("late") == {1: 1} and stage.rows("copy") == {1: 0}
    stage.clock.set(120.0)
    assert stage.rows("late", wait="0s") == {1: 1}
    with stage.reader() as reader:
        assert reader.read("late").rows() == [(1, 1)]
        stage.clock.set(132.0)
        with pytest.raises(FreshnessUnavailable, match="this handle only reads; its stream 'lagging' has told of everything up to"):
            reader.read("late")


def test_commits_of_others_make_no_table_staler_after_a_restart(stage: Stage) -> None:
    """Commits from before it are not known one by one any more, but none of them is in the targets of a flow that stopped before; so they can be read as
    they are, by whoever accepts that, whoever has committed elsewhere since."""
    stage.run(late="lagging")
    stage.clock.set(101.0)
    stage.lagging.insert([{"k": 1, "v": 1}], time=101 * SECOND)
    assert stage.rows("late") == {1: 1}
    stage.clock.set(110.0)
    stage.commit(1)
    stage.wh.materialize("orders")
    stage.clock.set(200.0)
    with stage.reader() as reader:
        _is_read_as_it_is(reader)
    _is_read_as_it_is(stage.open_again())
    stage.run(late="lagging")
    answer = stage.wh.read("late", on_late="answer", wait="0s", freshness="1s")
    assert answer.receipt.late and answer.receipt.cut_us == 101 * SECOND
    stage.lagging.insert([{"k": 2, "v": 2}], time=200 * SECOND)
    assert stage.rows("late") == {1: 1, 2: 2}


def _is_read_as_it_is(wh: rt.Warehouse) -> None:
    answer = wh.read("late", on_late="answer")
    assert answer.rows() == [(1, 1)] and answer.receipt.late and answer.receipt.cut_us == 101 * SECOND
    answer = wh.read("late", freshness="2 min")
    assert answer.rows() == [(1, 1)] and not answer.receipt.late and answer.receipt.cut_us == 101 * SECOND
    assert answer.receipt.verify()
    with pytest.raises(FreshnessUnavailable):
        wh.read("late")
    assert wh.read("orders").rows() == [(1, 0)]


def test_a_source_that_stands_still_keeps_nothing_from_being_stored(stage: Stage) -> None:
    """What the flow has published is stored as it is, running or not, and so are the tables that it has nothing to do with."""
    stage.run(late="lagging")
    stage.clock.set(101.0)
    stage.lagging.insert([{"k": 1, "v": 1}], time=101 * SECOND)
    assert stage.rows("late") == {1: 1}
    stage.clock.set(500.0)
    for k in (1, 2):
        stage.commit(k)
        stage.wh.materialize(wait="0s")
        stored = {table.name: (table.rows_stored, table.rows_hot) for table in stage.wh.status().tables}
        assert (stored["late"], stored["orders"]) == ((1, 0), (k, 0))
        stage.stop()
    stage.wh.materialize("late", wait="0s")


def test_a_flow_says_which_changes_no_run_can_load_and_what_they_wait_for(stage: Stage) -> None:
    """Of two sources one goes on: a state shows both up to one time. Who waits for the flow is told when that is loaded, and not that nothing is left."""
    other = stage.wh.create_stream("other", COLUMNS, keys=["k"], times="source")
    runner, flows = stage.run(late="lagging", copy="other"), stage.wh._flows("test")
    flows.runners["plain"] = runner
    stage.clock.set(110.0)
    other.insert([{"k": 1, "v": 1}], time=105 * SECOND)
    (status,) = stage.wh.flows()
    assert "1 change waits for its stream 'lagging', which has told of nothing yet; append to it, or tell with heartbeat()" in status.hindrance
    stage.lagging.insert([{"k": 7, "v": 7}], time=101 * SECOND)
    other.insert([{"k": 2, "v": 2}], time=106 * SECOND)
    flows.bring_up(runner, wait_s=20)
    (status,) = stage.wh.flows()
    assert (status.running, status.trouble, status.rows_waiting) == (True, "", 2)
    assert re.search("^2 changes wait for its stream 'lagging', which has told of everything up to .*:41", status.hindrance)
    stage.lagging.heartbeat(105 * SECOND)
    flows.bring_up(runner, wait_s=20)
    assert stage.wh.flows()[0].hindrance.startswith("1 change waits")
    stage.lagging.heartbeat(107 * SECOND)
    flows.bring_up(runner, wait_s=20)
    (status,) = stage.wh.flows()
    assert (status.hindrance, status.rows_waiting) == ("", 0)
    del flows.runners["plain"]


# -- tables are no sources that lag ----------------------------------------------------------------------------------


def test_at_29_queries_over_a_tapped_table_share_cuts(stage: Stage) -> None:
    """Eight queries that accept 2 s, one second apart, with a commit before each: every third one makes a job, and the others share what is there."""
    runner = stage.run(copy="orders")
    stage.commit(0)
    assert stage.rows("copy") == {0: 0}
    before = len(runner.reports())
    stage.clock.advance(10)
    for k in range(1, 9):
        stage.commit(k)
        stage.clock.advance(1)
        assert set(range(k - 1)) <= stage.rows("copy", freshness="2s").keys()
    assert len(runner.reports()) - before == 2


def test_a_flow_over_a_table_that_stopped_is_fresh_as_long_as_nothing_is_committed(stage: Stage) -> None:
    """Nobody has to pull to know that: the table is here. Readers find the same in files."""
    stage.run(copy="orders")
    stage.commit(1)
    assert stage.rows("copy") == {1: 0}
    stage.stop()
    stage.clock.advance(60)
    assert stage.rows("copy", wait="0s") == {1: 0}
    with stage.reader() as reader:
        assert reader.read("copy").rows() == [(1, 0)]
        assert reader.explain("SELECT * FROM copy").shared
    with rt.open(stage.folder, clock=stage.clock) as wh:
        assert wh.read("copy", wait="0s").rows() == [(1, 0)], "also after a restart"
        with wh.producer(name="shop") as load:
            load.insert("orders", (2, 0))
            load.commit()
        stage.clock.advance(1)
        with pytest.raises(FreshnessUnavailable, match="does not run"):
            wh.read("copy", wait="0s")
    with rt.open(stage.folder, read_only=True, clock=stage.clock) as reader, pytest.raises(FreshnessUnavailable, match="has not loaded"):
        reader.read("copy")


def test_what_came_to_a_table_waits_like_what_came_to_a_stream(stage: Stage) -> None:
    """The status of a flow that stopped, and what a query would wait for, count commits that no stream has yet; so do readers."""
    stage.run(copy="orders")
    stage.commit(0)
    assert stage.rows("copy") == {0: 0}
    stage.stop()
    stage.clock.advance(5)
    for k in range(1, 11):
        stage.commit(k)
    stage.clock.advance(7)
    (status,) = stage.wh.flows()
    assert [stream.unpulled for stream in stage.wh.status().streams] == [0, 10]
    assert (status.rows_waiting, round(status.lag_s, 2)) == (10, 7.0)
    (need,) = stage.wh.explain("SELECT * FROM copy").flows
    assert (need.rows, need.streams, need.waits_for_source_s) == (10, {"orders": 10}, 0.0)
    with stage.reader() as reader:
        (status,) = reader.status().flows
        assert [stream.unpulled for stream in reader.status().streams] == [0, 10]
        assert (status.rows_waiting, round(status.lag_s, 2)) == (10, 7.0)
        (need,) = reader.explain("SELECT * FROM copy").flows
        assert (need.rows, need.streams, need.waits_for_source_s) == (10, {"orders": 10}, 0.0)


def test_a_commit_that_leaves_nothing_makes_no_job(stage: Stage) -> None:
    """A row that comes and goes in one commit is no change of the stream, though nobody knows before it is pulled."""
    runner = stage.run(copy="orders")
    stage.load.insert("orders", (1, 0))
    stage.load.delete("orders", where={"k": 1})
    stage.load.commit()
    stage.clock.advance(1)
    assert stage.rows("copy") == {} and runner.reports() == []


# -- sources that stop -----------------------------------------------------------------------------------------------


def test_a_query_over_a_silent_source_is_told_which_stream_it_waits_for(stage: Stage) -> None:
    """Its stream, and how far behind it is; a stopped flow and a reader say so as well, and not that a run would help."""
    stage.run(copy="orders", late="lagging")
    with pytest.raises(FreshnessUnavailable, match="its stream 'lagging' has told of nothing yet"):
        stage.rows("late", wait="0s")
    stage.clock.set(101.0)
    stage.lagging.insert([{"k": 1, "v": 1}], time=101 * SECOND)
    assert stage.rows("late") == {1: 1}
    stage.clock.set(146.0)
    told = r"its stream 'lagging' has told of everything up to 1970-01-01T00:01:41\S*"
    late = rf"{told}, 15.000 s short of what the query needs; append to it, or tell with heartbeat\(\)"
    with pytest.raises(FreshnessUnavailable, match=late):
        stage.rows("late", wait="0s")
    (need,) = stage.wh.explain("SELECT * FROM late").flows
    assert need.waits_for_source_s == 15.0, "45 seconds without the 30 that are put up with"
    with stage.reader() as reader, pytest.raises(FreshnessUnavailable, match=f"this handle only reads; {late}"):
        reader.read("late")


# -- sources that stand still ----------------------------------------------------------------------------------------


@pytest.fixture
def silent(stage: Stage) -> Stage:
    """A flow that has loaded one row; its source has told of nothing since, for longer than anybody puts up with."""
    stage.run(late="lagging")
    stage.clock.set(101.0)
    stage.lagging.insert([{"k": 1, "v": 1}], time=101 * SECOND)
    assert stage.rows("late") == {1: 1}
    stage.clock.set(200.0)
    return stage


def test_a_query_that_gave_up_keeps_nobody_from_what_has_arrived(silent: Stage) -> None:
    """Its cut lies beyond what the source has told of; those who ask for less are answered as if it had never come."""
    with pytest.raises(FreshnessUnavailable, match="'lagging' has told of everything up to"):
        silent.rows("late", wait="0s")
    silent.lagging.update([{"k": 1, "v": 2}], time=110 * SECOND)
    silent.lagging.update([{"k": 1, "v": 3}], time=120 * SECOND)

    assert silent.rows("late", as_of=110 * SECOND) == {1: 2}
    assert silent.rows("late", freshness="80s") == {1: 3}


def test_a_query_that_still_waits_keeps_nobody_from_what_has_arrived(silent: Stage) -> None:
    """It gets its own cut when the source goes on, and nothing that was committed after it."""
    found: list[dict[int, int]] = []
    # Longer than the clock is set forward below, which it may see before the change.
    waiting = threading.Thread(target=lambda: found.append(silent.rows("late", wait="1000s")), daemon=True)
    waiting.start()
    link = silent.runners[0].link
    until(lambda: link.cuts)
    silent.lagging.update([{"k": 1, "v": 2}], time=110 * SECOND)

    assert silent.rows("late", freshness="90s") == {1: 2}
    silent.clock.set(300.0)
    silent.lagging.update([{"k": 1, "v": 3}], time=300 * SECOND)
    waiting.join(timeout=20)

    assert found == [{1: 2}]


def test_queries_that_give_up_leave_nothing_behind(silent: Stage) -> None:
    """While a source stands still, they would be as many as ever ask; each is one that nobody waits for any more."""
    for second in range(20):
        silent.clock.set(201.0 + second)
        with pytest.raises(FreshnessUnavailable):
            silent.rows("late", wait="0s")

    runner = silent.runners[0]
    assert (runner.link.cuts, runner.queue()) == ([], [])


def test_a_replay_names_the_source_that_keeps_it_from_ending(silent: Stage) -> None:
    """A job with nothing but dead letters ends later than the last one, and nothing is later before the source says so: it waited for a week."""
    (runner,) = silent.runners
    with pytest.raises(ReplayUnfinished, match=r"stream 'lagging' has told of everything up to 1970-01-01T00:01:41.* which is published.*heartbeat"):
        runner.replay(None, wait_s=20.0, still_s=0.0)
    assert not runner._queue.replays.is_waiting()
    silent.lagging.heartbeat(200 * SECOND)
    assert runner.replay(None, wait_s=20.0, still_s=0.0) == 0
