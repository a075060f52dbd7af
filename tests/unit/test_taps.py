"""Taps on the real catalyst, the real mover and the real runner: what a flow over a table sees, when, and what happens where producers or disks fail."""

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import righttime as rt
from righttime.catalyst.durable import Order
from righttime.catalyst.links import Link
from righttime.catalyst.messages import Flush
from righttime.catalyst.mover import Mover
from righttime.changes.encoder import RowEncoder
from righttime.errors import BadArgument, CommitFailed, FreshnessUnavailable, LogFull
from righttime.errors.flows import BadStream, TableTapped
from righttime.flows.runner import FlowRunner
from righttime.flows.running import RunningFlow
from righttime.flows.schedule import Triggers
from righttime.flows.table_commits import TableCommits
from righttime.flows.taps import Taps
from righttime.service import Engine
from righttime.testing import ManualClock
from tests.support.plain_flow import run_plain, until

COLUMNS = "k INT NOT NULL, v INT"
OLD = "1 day"


class Stage:
    """A tapped table `orders`, its copy `copy` that a flow keeps, and a producer."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = ManualClock(1000.0)
        self.wh = rt.open(folder, clock=self.clock, **settings)
        self.wh.create_table("orders", COLUMNS, keys=["k"], unique=True)
        self.wh.create_table("copy", COLUMNS, keys=["k"])
        self.load = self.wh.producer(name="shop")
        self.runner: FlowRunner | None = None

    def run(self, *, triggers: Triggers | None = None) -> FlowRunner:
        self.runner, _ = run_plain(self.wh, {"copy": "orders"}, triggers=triggers)
        return self.runner

    def insert(self, k: int, v: int, **options: Any) -> None:
        self.clock.advance(1)
        self.load.insert("orders", (k, v))
        self.load.commit(**options)
        self.clock.advance(1)

    def rows(self, table: str, **contract: Any) -> dict[int, int]:
        return dict(self.wh.read(table, **{"wait": "20s", **contract}).rows())

    def lazy(self, k: int, v: int) -> tuple[Link, Callable[[], None]]:
        """Commit a row with a producer that holds it back and does not answer; what is returned delivers it."""
        engine = self.wh._writer("test")
        link = engine.catalyst.open_link("lazy", policy="on demand")
        commit = engine.catalyst.commit_lazily(link, {"orders": 1})
        chunk = RowEncoder(engine.schemas["orders"]).encode([{"k": k, "v": v}])
        flush = Flush("orders", [(commit.time_us, [chunk])], None)

        def deliver() -> None:
            engine.catalyst.flush(link, [flush])

        return link, deliver

    def close(self) -> None:
        if self.runner is not None:
            self.runner.stop()
        self.wh.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path / "wh")
    yield found
    found.close()


def test_what_is_no_name_of_a_table_or_a_stream_is_refused(stage: Stage) -> None:
    """Nor is something that is no flow asked which streams it declares."""
    for table, stream in ((5, None), ("orders", 5), (None, "copy"), (b"orders", None)):
        with pytest.raises(BadArgument, match="is no name; give one as text"):
            stage.wh.tap(table, stream=stream)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="a str was given; give a Flow"):
        stage.wh.create_streams("copy")  # type: ignore[arg-type]
    assert stage.wh.streams() == []


def test_what_a_stream_has_of_a_table_is_durable_in_the_table(stage: Stage) -> None:
    """A commit that only memory had is logged before the stream takes it, also if nothing is left of it: a crash could take a delete and leave the insert."""
    stage.wh.tap("orders")
    stage.run()
    mover = stage.wh._writer("test").mover
    stage.insert(1, 10)
    assert stage.rows("copy") == {1: 10}
    assert mover.durable.positions["shop"].number == 1
    stage.insert(2, 20, durability="log")
    stage.load.delete("orders", where={"k": 2})
    stage.load.commit()
    stage.clock.advance(1)
    assert stage.rows("copy") == {1: 10}
    assert mover.durable.positions["shop"].number == 3


def test_waiting_for_a_flow_over_a_table_waits_for_what_was_committed_to_it(stage: Stage) -> None:
    """Nobody has asked a query; `righttime run` waits in the same way."""
    stage.wh.tap("orders")
    runner = stage.run()
    for k in (1, 2):
        stage.insert(k, k)
        RunningFlow(stage.wh._flows("test"), runner).wait(timeout="20s")
        assert stage.rows("copy", freshness=OLD) == {each: each for each in range(1, k + 1)}


SCHEDULES = {"immediate": ({"immediate": True}, 1), "rows": ({"rows_max": 2}, 3), "idle": ({"idle_s": 60}, 1), "every": ({"every_s": 60}, 1)}


@pytest.mark.parametrize(("triggers", "commits"), SCHEDULES.values(), ids=SCHEDULES)
def test_commits_to_a_table_are_seen_by_the_schedule_of_a_flow_over_it(stage: Stage, triggers: dict[str, Any], commits: int) -> None:
    """One job for what has come, though no query asked, and none after it for nothing."""
    stage.wh.tap("orders")
    runner = stage.run(triggers=Triggers(**{"rows_max": 10**9, **triggers}))
    RunningFlow(stage.wh._flows("test"), runner).wait(timeout="20s")
    for k in range(commits):
        stage.insert(k, k)
    stage.clock.advance(120)
    until(stage.wh, lambda: sum(job.rows_in for job in runner.reports()) == commits)
    assert stage.rows("copy", freshness=OLD) == {k: k for k in range(commits)}
    stage.clock.advance(120)
    stage.insert(10, 10)
    assert stage.rows("copy")[10] == 10
    assert not [job for job in runner.reports() if not job.rows_in]


def test_commits_before_a_flow_runs_are_seen_by_its_schedule(tmp_path: Path) -> None:
    """Also those of an earlier process, which were never pulled."""
    stage = Stage(tmp_path / "wh")
    stage.wh.tap("orders")
    stage.insert(1, 10)
    stage.close()
    clock = ManualClock(2000.0)
    with rt.open(tmp_path / "wh", clock=clock) as wh:
        runner, _ = run_plain(wh, {"copy": "orders"}, triggers=Triggers(rows_max=10**9, immediate=True))
        pause = threading.Event()
        for _ in range(2000):
            if runner.reports():
                break
            pause.wait(0.01)
        assert [(job.kind, job.rows_in) for job in runner.reports()] == [("background", 1)]
        assert wh.read("copy", freshness=OLD).rows() == [(1, 10)]
        runner.stop()


def test_a_flow_over_a_table_is_built_anew_from_all_that_was_committed(stage: Stage) -> None:
    """Also from what nobody has pulled yet."""
    stage.wh.tap("orders")
    runner = stage.run()
    stage.insert(1, 10)
    assert stage.rows("copy") == {1: 10}
    runner.stop()
    stage.insert(2, 20)
    stage.runner, _ = run_plain(stage.wh, {"copy": "orders"}, rebuild=True, factor=2)
    RunningFlow(stage.wh._flows("test"), stage.runner).wait(timeout="20s")
    assert stage.rows("copy", freshness=OLD) == {1: 20, 2: 40}


def test_a_producer_that_does_not_answer_leaves_the_job_waiting(stage: Stage) -> None:
    """The query is late and says so, storing goes on with what is here, and when the producer delivers, the flow goes on."""
    stage.insert(1, 10)
    stage.wh.tap("orders")
    runner = stage.run()
    assert stage.rows("copy") == {1: 10}
    stage.insert(2, 20)
    link, deliver = stage.lazy(3, 30)
    stage.clock.advance(1)
    with pytest.raises(FreshnessUnavailable):
        stage.rows("copy", wait="0s")
    until(stage.wh, lambda: len(runner.queue()) == 1)
    with pytest.raises(FreshnessUnavailable, match="stream 'orders' waits for producer 'lazy'"):
        stage.rows("copy", wait="0s")
    assert stage.rows("copy", wait="0s", on_late="answer") == {1: 10}
    engine = stage.wh._writer("test")
    engine.mover.materialize(["orders"])
    assert engine.catalyst.table("orders").rows_stored == 2, "what was committed before the row that is held back"
    assert runner.failure is None and runner.running
    with pytest.raises(FreshnessUnavailable, match="lazy"):
        RunningFlow(stage.wh._flows("test"), runner).wait(timeout="0s")
    deliver()
    assert stage.rows("copy") == {1: 10, 2: 20, 3: 30}
    engine.catalyst.close_link(link)


def test_what_was_told_of_one_stream_takes_nothing_back_that_was_pulled_of_another(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow over a table and a stream: an append to the stream is noted while the table is pulled for a query, which waits for nothing else."""
    stage.wh.create_table("other", COLUMNS, keys=["k"])
    stage.wh.create_stream("s", COLUMNS, keys=["k"])
    stage.wh.tap("orders")
    stage.runner, _ = run_plain(stage.wh, {"copy": "orders", "other": "s"})
    stage.insert(1, 1)
    flows, read, pulled = stage.wh._flows("test"), threading.Event(), threading.Event()
    mark_of, pull_for = flows.feed.streams.watermark_us, flows.taps.pull_for
    feeder = threading.Thread(target=lambda: stage.wh.stream("s").insert([{"k": 2, "v": 2}]))

    def slowly(name: str) -> int | None:
        mark_us = mark_of(name)
        if threading.current_thread() is feeder and name == "orders":
            read.set()
            pulled.wait(1)
        return mark_us

    def and_noted(streams: Collection[str], up_to_us: int) -> str:
        hindrance = pull_for(streams, up_to_us)
        if read.is_set():
            pulled.set()
            feeder.join(20)
        return hindrance

    monkeypatch.setattr(flows.feed.streams, "watermark_us", slowly)
    monkeypatch.setattr(flows.taps, "pull_for", and_noted)
    feeder.start()
    assert read.wait(20)
    stage.clock.advance(1)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stage.rows, "copy")
        try:
            assert asked.result(10) == {1: 1}
        finally:
            stage.runner.stop()  # or it would wait for ever: the time is the test's
            feeder.join(20)


def test_the_table_of_a_flow_is_not_tapped(stage: Stage) -> None:
    """Whatever its declaration is: what stands in the way is the flow, which is named."""
    stage.wh.tap("orders")
    stage.run()
    with pytest.raises(BadStream, match="kept by flow 'plain', and only tables that producers load can be tapped; add steps to that flow"):
        stage.wh.tap("copy")


def test_a_table_that_a_flow_begins_to_keep_is_tapped_before_it_or_not_at_all(stage: Stage) -> None:
    """Who taps while a flow takes its targets comes after it: else each would have looked before the other was there, and the flow wrote into a stream."""
    stage.wh.create_table("target", COLUMNS, keys=["k"], unique=True)
    flows = stage.wh._flows("test")
    with ThreadPoolExecutor(1) as pool:
        with flows._lock:  # as `Flows.run` has it
            tapping = pool.submit(stage.wh.tap, "target")
            assert wait([tapping], timeout=0.3).not_done
            stage.wh._writer("test").catalyst.maintain("flow.plain", ["target"])
        with pytest.raises(BadStream, match="kept by flow 'plain'"):
            tapping.result(timeout=20)
    assert "target" not in stage.wh.streams()


def test_a_table_is_not_tapped_while_a_producer_holds_rows_of_it_back(stage: Stage) -> None:
    """A tap that cannot begin leaves no stream behind."""
    link, deliver = stage.lazy(1, 10)
    with stage.wh._writer("test").catalyst.lock:
        link.alive_s = -1e9
    with pytest.raises(FreshnessUnavailable):
        stage.wh.tap("orders")
    assert stage.wh.streams() == []
    deliver()
    assert stage.wh.tap("orders").last is not None
    stage.wh._writer("test").catalyst.close_link(link)


def test_a_version_of_a_tapped_table_is_not_adopted(stage: Stage) -> None:
    """Its rows would never reach the stream. The table goes on at the version that it has."""
    stage.insert(1, 10)
    stage.wh.tap("orders")
    stage.wh.materialize("orders")
    rows = pa.table({"k": pa.array([7], pa.int32()), "v": pa.array([70], pa.int32())}, schema=stage.wh.schema("orders").columns)
    write_deltalake(stage.wh.path / "tables" / "orders", rows, mode="append")
    with pytest.raises(TableTapped, match="'orders'"):
        stage.wh.adopt("orders")
    stage.run()
    assert stage.rows("copy") == stage.rows("orders") == {1: 10}


def test_a_stream_that_differs_from_its_table_is_mended(stage: Stage) -> None:
    """However it came to differ: what the stream has too much ends, what it lacks begins, and nobody is stuck.

    | key | table | stream before |
    |---|---|---|
    | 1 | 10 | 10 |
    | 2 | 21 | 20 |
    | 3 | | 30 |
    | 4 | 40 | |
    """
    stage.insert(1, 10)
    stage.wh.tap("orders")
    stage.run()
    assert stage.rows("copy") == {1: 10}
    stage.clock.advance(1)
    engine, streams = stage.wh._writer("test"), stage.wh._flows("test").feed.streams
    streams.append({"orders": [{"k": 2, "v": 20}, {"k": 3, "v": 30}]}, time_us=engine.catalyst.authority.read_us(), tapping=True)
    stage.insert(2, 21)
    stage.insert(4, 40)
    assert stage.rows("copy") == {1: 10, 2: 21, 4: 40}
    stage.wh.materialize("orders")
    stage.insert(3, 33)
    assert stage.rows("copy") == {1: 10, 2: 21, 3: 33, 4: 40}


def pull_overtaken(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pull the stream of `orders`; once, a step of storing runs between its snapshot and its look at the rows."""
    take, steps = engine.snapshots.take, iter([Order("materialize", tables={"orders"})])

    @contextmanager
    def overtaken(tables: Any, contract: Any) -> Iterator[Any]:
        with take(tables, contract) as snapshot:
            for step in steps:
                with engine.mover._lock:
                    engine.mover._run(step)
            yield snapshot

    with monkeypatch.context() as patch:
        patch.setattr(engine.snapshots, "take", overtaken)
        engine.flows.taps.pull("orders", engine.catalyst.authority.read_us())
    assert not list(steps)


def test_rows_that_are_stored_while_a_stream_is_pulled_are_looked_at_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storing up to the watermark goes on beside pulling; places of rows are those of one version."""
    stage.insert(1, 10)
    stage.wh.tap("orders")
    stage.load.update("orders", set={"v": 11}, where={"k": 1})
    stage.insert(2, 20)
    engine = stage.wh._writer("test")
    memory = engine.catalyst.table("orders")
    version = memory.version
    pull_overtaken(engine, monkeypatch)
    assert memory.version > version
    stage.run()
    assert stage.rows("copy") == stage.rows("orders") == {1: 11, 2: 20}


def test_what_is_settled_anew_while_a_stream_is_pulled_is_looked_at_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that can store nothing, because somebody holds an earlier commit back, forgets what was settled: numbers of versions are those of one settling.

    | time | orders | held |
    |---|---|---|
    | 1 | | a lazy commit, not delivered |
    | 2 | k=1: v=11 | |
    | 3 | k=1 is deleted | |
    """
    stage.wh.create_table("held", COLUMNS)
    stage.insert(1, 10, durability="warehouse")
    stage.wh.tap("orders")
    engine = stage.wh._writer("test")
    link = engine.catalyst.open_link("lazy", policy="on demand")
    engine.catalyst.commit_lazily(link, {"held": 1})
    stage.clock.advance(1)
    stage.load.update("orders", set={"v": 11}, where={"k": 1})
    stage.load.commit(durability="log")
    stage.clock.advance(1)
    engine.flows.taps.pull("orders", engine.catalyst.authority.read_us())
    stage.load.delete("orders", where={"k": 1})
    stage.load.commit(durability="log")
    stage.clock.advance(1)
    memory = engine.catalyst.table("orders")
    resets, version = memory.resets, memory.version
    pull_overtaken(engine, monkeypatch)
    assert memory.resets > resets and memory.version == version
    assert living(stage.wh) == stage.rows("orders") == {}
    engine.catalyst.close_link(link)


def living(wh: rt.Warehouse) -> dict[int, int]:
    """Return what the changes of the stream `orders` add up to."""
    rows: dict[tuple[int, int], int] = {}
    for change in wh._flows("test").feed.streams.table("orders", 0, 2**62).to_pylist():
        row = change["k"], change["v"]
        rows[row] = rows.get(row, 0) + change["_w"]
    assert set(rows.values()) <= {0, 1}
    return dict(row for row, weight in rows.items() if weight)


def test_rows_that_are_stored_while_their_table_is_tapped_reach_the_stream(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are committed after the stream was filled: they are only logged then, and stored when the stream has them."""
    stage.insert(1, 10, durability="warehouse")
    engine = stage.wh._writer("test")
    commit = engine.store.commit

    def tapped_meanwhile(*given: Any, **options: Any) -> int:
        if not stage.wh.streams():
            stage.wh.tap("orders")
        return commit(*given, **options)

    monkeypatch.setattr(engine.store, "commit", tapped_meanwhile)
    stage.insert(2, 20, durability="warehouse")
    assert engine.catalyst.table("orders").rows_stored == 2
    stage.run()
    stage.insert(3, 30)
    assert stage.rows("copy") == stage.rows("orders") == {1: 10, 2: 20, 3: 30}


def test_storing_that_began_before_a_tap_stores_nothing_that_came_after_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it captures may have come after the stream was filled; what was there before is stored."""
    stage.insert(1, 10, durability="log")
    settled = Mover._settled

    def tapped_meanwhile(self: Mover, tables: Any, *, guarded: bool) -> dict[str, int]:
        cuts = settled(self, tables, guarded=guarded)
        if not stage.wh.streams():
            stage.wh.tap("orders")
            stage.insert(2, 20)
        return cuts

    monkeypatch.setattr(Mover, "_settled", tapped_meanwhile)
    stage.wh.materialize("orders")
    assert stage.wh._writer("test").catalyst.table("orders").rows_stored == 1
    stage.run()
    assert stage.rows("copy") == stage.rows("orders") == {1: 10, 2: 20}


def test_storing_under_way_when_its_table_is_tapped_stores_what_was_there(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is filled with the whole table after that, wherever its rows are."""
    stage.insert(1, 10)
    engine = stage.wh._writer("test")
    commit = engine.store.commit

    with ThreadPoolExecutor(1) as pool:
        tapped: list[Future[Any]] = []

        def tapped_meanwhile(*given: Any, **options: Any) -> int:
            tapped.append(pool.submit(stage.wh.tap, "orders"))  # waits for us: the row has to be durable first
            until(stage.wh, lambda: "orders" in engine.catalyst.tapped)
            return commit(*given, **options)

        monkeypatch.setattr(engine.store, "commit", tapped_meanwhile)
        stage.wh.materialize("orders")
        tapped[0].result(20)
    assert len(tapped) == 1 and engine.catalyst.table("orders").rows_stored == 1
    stage.run()
    stage.insert(2, 20)
    assert stage.rows("copy") == stage.rows("orders") == {1: 10, 2: 20}


def test_a_full_log_does_not_keep_a_tapped_table_from_being_stored(tmp_path: Path) -> None:
    """Its rows are logged over the bound for the moment between the stream that takes them and the table that stores them."""
    stage = Stage(tmp_path / "wh", log_bytes_max=200_000, stream_log_bytes=20_000)
    try:
        stage.wh.tap("orders")
        engine = stage.wh._writer("test")
        numbers = iter(range(10**9))
        with pytest.raises(LogFull):
            while True:
                stage.load.insert_many("orders", [(next(numbers), 1) for _ in range(1000)])
                stage.load.commit(durability="log")
                engine.flows.taps.pull("orders", engine.catalyst.authority.read_us())
        stage.load.commit()
        stage.clock.advance(1)
        with pytest.raises(LogFull):
            engine.mover.make_safe()
        stage.wh.materialize("orders")
        assert engine.catalyst.table("orders").rows_unstored == 0
        assert stage.wh.stream("orders").last.time_us >= engine.catalyst.table("orders").stored_us  # type: ignore[union-attr]
    finally:
        stage.close()


def test_a_table_that_is_larger_than_the_log_is_tapped(tmp_path: Path) -> None:
    """What does not fit into the feed log goes past it, in one commit: the table as it was, and all that a single statement changed."""
    stage = Stage(tmp_path / "wh", log_bytes_max=50_000, stream_log_bytes=20_000)
    try:
        stage.load.insert_many("orders", [(k, 0) for k in range(10_000)])
        stage.load.commit(materialize=True)
        stage.clock.advance(1)
        stage.wh.tap("orders")
        assert len(living(stage.wh)) == 10_000
        stage.insert(10_000, 0, durability="log")
        engine = stage.wh._writer("test")
        engine.flows.taps.pull("orders", engine.catalyst.authority.read_us())
        stage.load.update("orders", set={"v": 1})
        stage.load.commit(durability="log")
        stage.clock.advance(1)
        stage.wh.materialize()
        assert stage.wh.stream("orders").last.number == 3  # type: ignore[union-attr]
        assert living(stage.wh) == dict.fromkeys(range(10_001), 1)
    finally:
        stage.close()
    with rt.open(tmp_path / "wh", clock=ManualClock(5000.0), log_bytes_max=50_000, stream_log_bytes=20_000) as wh:
        assert living(wh) == dict(wh.read("orders").rows())
        with wh.producer(name="shop") as load:
            load.delete("orders", where={"k": 7})
            load.commit(materialize=True)
        assert living(wh) == dict(wh.read("orders").rows())


@pytest.mark.parametrize(("part", "fails"), [(TableCommits, "changes"), (Taps, "_append")])
def test_a_tap_that_fails_leaves_no_stream(stage: Stage, monkeypatch: pytest.MonkeyPatch, part: type, fails: str) -> None:
    """Nor a table that can be stored no more; tapped again, also after a restart, it is as if nothing had been."""
    stage.insert(1, 10)

    def full(*given: Any) -> None:
        stage.wh._flows("test").feed.streams._feed.make_room(2**62)  # a file of the log is begun meanwhile, and names the stream
        raise CommitFailed(source="streams", step="feed log", reason="No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(part, fails, full)
        with pytest.raises(CommitFailed, match="No space left"):
            stage.wh.tap("orders")
    assert stage.wh.streams() == []
    stage.insert(2, 20)
    stage.wh.materialize("orders")
    assert stage.wh._writer("test").catalyst.table("orders").rows_unstored == 0
    stage.close()
    stage.wh = rt.open(stage.wh.path, clock=stage.clock)
    assert stage.wh.streams() == []
    stage.wh.tap("orders")
    assert living(stage.wh) == stage.rows("orders") == {1: 10, 2: 20}


def test_a_tap_that_cannot_be_pulled_stops_no_other_table_and_says_why(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are stored, then its error is raised; a flow over it waits, and does not blame a source for standing still."""
    stage.wh.create_table("other", COLUMNS)
    stage.wh.tap("orders")
    stage.run()
    stage.load.insert("other", (7, 70))
    stage.insert(1, 10)

    def full(*given: Any) -> None:
        raise LogFull(used=2, bound=1)

    with monkeypatch.context() as disk:
        disk.setattr(Taps, "_append", full)
        with pytest.raises(LogFull):
            stage.wh.materialize("orders", "other")
        catalyst = stage.wh._writer("test").catalyst
        assert [catalyst.table(name).rows_stored for name in ("orders", "other")] == [0, 1]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(stage.rows, "copy", wait="1s")
            until(stage.wh, lambda: bool(catalyst.maintained["copy"].hindrance))
            stage.clock.advance(2)
            with catalyst.lock:
                catalyst.arrivals.notify_all()
            with pytest.raises(FreshnessUnavailable, match=r"stream 'orders' cannot be brought up.*log_bytes_max"):
                waiting.result(20)
    assert stage.rows("copy") == {1: 10}
    assert catalyst.maintained["copy"].hindrance == ""
