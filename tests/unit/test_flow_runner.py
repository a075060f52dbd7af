"""Cutting and publishing on the real catalyst, the real streams and the real runner; the drain itself is a dictionary.

AT ids are those of the sheet on on-demand ETL. Times are a test's; nobody sleeps.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.catalyst.producer import Producer
from righttime.errors import AsOfUnavailable, FlowAsleep, FreshnessUnavailable
from righttime.errors.flows import BadStream, ExpectationFailed, FlowFailed, LookupFailed, StepFailed, TableMaintained, UnknownFlowLetter
from righttime.flight.failures import failure_of, failure_record
from righttime.flows import cutter, runner
from righttime.flows.catalogue import Catalogue
from righttime.flows.jobs import FlowJob, UnderWay
from righttime.flows.runner import FlowRunner, _failed
from righttime.flows.running import RunningFlow
from righttime.flows.schedule import Triggers
from righttime.query.dbapi_types import OperationalError, as_dbapi
from righttime.testing import ManualClock
from tests.support.flow_stage import SECOND, Stage, contract_of
from tests.support.plain_flow import PlainDrained, run_plain, until


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path / "wh")
    yield found
    found.close()


def test_a_query_gets_what_was_committed_before_it(stage: Stage) -> None:
    """Nothing moves until somebody asks."""
    stage.run()
    stage.insert(1, 10)
    stage.clock.advance(1)
    assert stage.engine is not None and stage.engine.drains == []
    assert stage.query() == {1: 10}
    assert stage.engine.drains == [[1]]


def test_at_1_cuts(tmp_path: Path) -> None:
    """Two transactions, a query, an update, two queries that share a snapshot, and a source that is late."""
    stage = Stage(tmp_path / "wh", times="source")
    try:
        stage.run()

        def now(seconds: float, *, arrived: float | None = None) -> None:
            stage.clock.set(seconds)
            if arrived is not None:
                stage.wh.stream("s").heartbeat(round(arrived * SECOND))

        now(1.0)
        stage.insert(1, 10, 1.0)
        now(1.8)
        stage.insert(2, 20, 1.8)
        now(2.0, arrived=2.0)
        assert stage.query() == {1: 10, 2: 20}
        now(2.6)
        stage.update(1, 11, 2.6)
        now(3.0, arrived=3.0)
        assert stage.query() == {1: 11, 2: 20}
        assert stage.query(as_of=2 * SECOND) == {1: 10, 2: 20}
        until(stage.wh, lambda: stage.published() == 2)
        now(3.5, arrived=3.5)
        assert stage.query() == {1: 11, 2: 20}
        assert stage.published() == 2, "nothing new: the snapshot is shared"
        now(4.0, arrived=3.6)
        assert stage.query(freshness="1s") == {1: 11, 2: 20}, "tolerance of 1 s: starts at once"
        tolerant, strict = stage.ask(freshness="200ms"), stage.ask()
        stage.waiting(2)
        assert not tolerant.done() and not strict.done()
        now(4.4, arrived=3.8)
        assert tolerant.result(20) == {1: 11, 2: 20}
        assert not strict.done()
        now(4.5)
        stage.insert(3, 30, 3.9)
        now(4.6, arrived=4.0)
        assert strict.result(20) == {1: 11, 2: 20, 3: 30}
    finally:
        stage.close()


def test_at_4_storing_does_not_run_past_a_query_that_waits(stage: Stage) -> None:
    """Stored rows carry no commit time, so they must not come from beyond the cut of a query that has not begun."""
    stage.run()
    stage.insert(1, 1)
    assert stage.query() == {1: 1}
    catalyst = stage.wh._writer("test").catalyst
    cut_us = catalyst.authority.read_us()
    with catalyst.admitted(["t"]) as admission:
        admission.cut_us = cut_us
        stage.clock.advance(1)
        stage.update(1, 2)
        stage.clock.advance(1)
        assert stage.query() == {1: 2}
        stage.wh.materialize("t")
        assert catalyst.table("t").stored_us <= cut_us
    stage.wh.materialize("t")
    assert catalyst.table("t").stored_us > cut_us
    assert stage.query() == {1: 2}


def test_at_5_background_jobs(stage: Stage) -> None:
    """More than five rows wait for no query; a query after them propagates nothing."""
    stage.run(triggers=Triggers(rows_max=5))
    assert stage.runner is not None
    for k in range(12):
        stage.insert(k, k)
        stage.clock.advance(0.001)
        if k in (5, 11):
            until(stage.wh, lambda: stage.published() == (k + 1) // 6)  # noqa: B023 - called at once
    reports = stage.runner.reports()
    assert [(job.kind, job.rows_in) for job in reports] == [("background", 6), ("background", 6)]
    assert stage.query() == {k: k for k in range(12)}
    assert stage.published() == 2


def test_background_jobs_do_not_pile_up_behind_a_drain(stage: Stage) -> None:
    """While one job waits for the drain before it, what else comes is left for the job after; that is cut as soon as the one that waits is taken."""
    stage.run(triggers=Triggers(rows_max=5))
    assert stage.runner is not None and stage.engine is not None
    stage.engine.gate.clear()

    def rows(first: int, count: int) -> None:
        for k in range(first, first + count):
            stage.insert(k, k)
            stage.clock.advance(0.001)

    def queued(*counts: int) -> None:
        """Wait until so many jobs are cut, the first in its drain and the others with so many rows."""
        runner = stage.runner
        assert runner is not None
        until(stage.wh, lambda: runner._queue.unpublished == len(counts) + 1 and [job.rows_in for job in runner.queue()] == list(counts))

    rows(0, 6)
    queued()
    rows(6, 6)
    queued(6)
    rows(12, 24)
    queued(6)
    stage.engine.gate.set()
    until(stage.wh, lambda: stage.published() == 3)
    assert [(job.kind, job.rows_in) for job in stage.runner.reports()] == [("background", 6), ("background", 6), ("background", 24)]
    assert stage.query() == {k: k for k in range(36)}


def test_a_nudge_before_the_wait_is_not_lost(stage: Stage) -> None:
    """A runner that was about to wait looks around first, once."""
    catalyst = stage.wh._writer("test").catalyst
    link = catalyst.maintain("flow.idle", [])
    with catalyst.lock:
        link.nudge()
    assert stage.pool.submit(catalyst.await_cuts, link, timeout_s=60).result(20) == []
    assert not link.nudged


def test_at_31_late_commits_go_to_their_own_job(tmp_path: Path) -> None:
    """A strict query of 4.0 waits; of two rows that then come, only the one committed before 4.0 is its own."""
    stage = Stage(tmp_path / "wh", times="source")
    try:
        stage.run()
        stage.clock.set(3.6)
        stage.wh.stream("s").heartbeat(round(3.6 * SECOND))
        stage.clock.set(4.0)
        strict = stage.ask()
        stage.waiting(1)
        stage.clock.set(4.5)
        stage.insert(1, 39, 3.9)
        stage.insert(2, 405, 4.05)
        assert strict.result(20) == {1: 39}
        stage.wh.stream("s").heartbeat(round(4.5 * SECOND))
        assert stage.query() == {1: 39, 2: 405}
    finally:
        stage.close()


def test_a_cut_inside_a_job_is_refused(stage: Stage) -> None:
    """Between its first change and its horizon a job shows neither."""
    stage.run()
    stage.insert(1, 1)
    catalyst = stage.wh._writer("test").catalyst
    between_us = catalyst.authority.read_us()
    stage.clock.advance(1)
    stage.insert(2, 2)
    stage.clock.advance(1)
    assert stage.query() == {1: 1, 2: 2}
    with pytest.raises(AsOfUnavailable, match="in one job"):
        stage.query(as_of=between_us)


def test_nobody_else_writes_into_a_target(stage: Stage) -> None:
    """A target is what its flow makes of its streams. Rows that a producer took before it became one are refused at commit."""
    with stage.wh.producer() as load:
        load.insert("t", {"k": 1, "v": 1})
        stage.run()
        with pytest.raises(TableMaintained):
            load.commit()
        load.rollback()


@pytest.mark.parametrize(
    "call",
    [
        lambda load: load.insert("T", {"k": 1, "v": 1}),
        lambda load: load.insert_many("t", [(1, 1)]),
        lambda load: load.update("t", {"v": 2}, {"k": 1}),
        lambda load: load.delete_many("t", [(1,)]),
    ],
)
def test_a_call_that_would_write_into_a_target_is_refused_at_once(stage: Stage, call: Callable[[Producer], None]) -> None:
    """Whoever is told at commit has to find the call again; the rest of the transaction stays as it was."""
    stage.run()
    with stage.wh.producer() as load:
        with pytest.raises(TableMaintained, match="maintained by flow"):
            call(load)
        assert not load.in_transaction


def test_why_a_flow_has_stopped_names_it_once() -> None:
    """Errors of a flow begin with its name."""
    error = ExpectationFailed(flow="ff", job=2, rows=1, name="some", condition="qty > 0", origin="sales.py:3", example="{}")
    assert str(_failed("ff", error)).startswith("Flow 'ff' has stopped: job 2: 1 row does not meet expectation 'some'")
    assert "job 3: 1 row has no counterpart" in str(_failed("ff", LookupFailed(flow="ff", job=3, rows=1, origin="sales.py:4", example="{}")))
    assert "job 3: 21 rows have no counterpart" in str(_failed("ff", LookupFailed(flow="ff", job=3, rows=21, origin="sales.py:4", example="{}")))
    assert str(_failed("ff", StepFailed(flow="ff", origin="sales.py:3", reason="no"))).startswith("Flow 'ff' has stopped: the step declared at")
    assert str(_failed("ff", ValueError())).startswith("Flow 'ff' has stopped: ValueError.")


@pytest.mark.parametrize(("ids", "unknown", "said"), [("zz", "zz", "nothing was tried again"), (["zz", "a1"], "zz", "the others were tried again")])
def test_letters_that_are_not_known_are_named(stage: Stage, monkeypatch: pytest.MonkeyPatch, ids: str | list[str], unknown: str, said: str) -> None:
    """A text is one id, not as many as it has letters; that others were tried is said only if there were any."""
    stage.run()
    assert stage.runner is not None and stage.engine is not None
    drain = stage.engine.drain

    def told(jobs: Sequence[FlowJob]) -> PlainDrained:
        assert jobs[0].replay is not None and jobs[0].replay.ids is not None
        jobs[0].replay.unknown = tuple(sorted(jobs[0].replay.ids - {"a1"}))
        return drain(jobs)

    monkeypatch.setattr(stage.engine, "drain", told)
    stage.clock.advance(1)
    with pytest.raises(UnknownFlowLetter) as refused:
        stage.runner.replay(ids, wait_s=20, still_s=20)
    assert refused.value.context["ids"] == unknown and str(refused.value).endswith(f"; {said}.")


def test_a_flow_that_stopped_is_never_taken_for_fresh(stage: Stage) -> None:
    """What was published is answered; what came after is missing, and the query says so."""
    stage.run()
    stage.insert(1, 1)
    assert stage.query() == {1: 1}
    assert stage.runner is not None
    stage.runner.stop()
    assert stage.query() == {1: 1}, "nothing came since"
    stage.clock.advance(10)
    stage.insert(2, 2)
    with pytest.raises(FreshnessUnavailable, match="does not run") as refused:
        stage.query()
    assert isinstance(refused.value, FlowAsleep) and not refused.value.retryable
    assert "Waiting does not help: run the flow" in str(refused.value) and "restart the source" not in str(refused.value)
    stage.clock.advance(5)
    assert stage.query(freshness="1 min") == {1: 1}
    answer = stage.wh.read("t", on_late="answer", wait="0s")
    assert answer.rows() == [(1, 1)] and answer.receipt.late
    stage.run()
    assert stage.query() == {1: 1, 2: 2}


def test_how_stale_a_stopped_flow_is_does_not_depend_on_when_the_warehouse_was_opened(stage: Stage) -> None:
    """The error says what a late answer's receipt says; with the time since the opening, a user would ask again in vain."""
    stage.run()
    stage.insert(1, 1)
    assert stage.query() == {1: 1}
    assert stage.runner is not None
    stage.runner.stop()
    stage.insert(2, 2)
    stage.wh.close()
    stage.clock.advance(60)
    stage.wh = rt.open(stage.wh.path, clock=stage.clock)
    stage.run()
    stage.runner.stop()
    with pytest.raises(FreshnessUnavailable) as caught:
        stage.query()
    late = stage.wh.read("t", on_late="answer", wait="0s").receipt
    assert 50 < caught.value.context["stale_s"] == pytest.approx(late.given_s, abs=0.1)


def test_a_receipt_names_the_source_transactions(stage: Stage) -> None:
    """Per stream the last transaction inside and the first outside."""
    stage.run()
    stream = stage.wh.stream("s")
    stream.insert([{"k": 1, "v": 1}], transaction="T1")
    cut_us = stage.wh._writer("test").catalyst.authority.read_us()
    assert stage.query() == {1: 1}
    stream.insert([{"k": 2, "v": 2}], transaction="T2")
    receipt = stage.wh.read("t", as_of=cut_us).receipt
    assert [(each.stream, each.flow, each.last_inside.transaction, each.first_outside.transaction) for each in receipt.streams] == [("s", "plain", "T1", "T2")]  # type: ignore[union-attr]
    assert receipt.verify().ok
    assert type(receipt).from_json(receipt.to_json()) == receipt


def test_a_reader_names_the_source_transactions_that_were_loaded(stage: Stage, tmp_path: Path) -> None:
    """A read-only handle finds them in files; what no job has taken is outside, whatever time the answer has."""
    Catalogue(tmp_path / "wh" / "flows").begin("plain", ["s"], ["t"], "", next_job=1)  # as a flow that is declared does
    stage.run()
    stream = stage.wh.stream("s")
    stream.insert([{"k": 1, "v": 1}], transaction="T1")
    assert stage.query() == {1: 1}
    assert stage.runner is not None
    stage.runner.stop()
    with rt.open(tmp_path / "wh", read_only=True, clock=stage.clock) as reader:
        assert reader.read("t", on_late="answer").receipt.streams == (), "a writer has more than its files tell"
    stage.clock.advance(1)
    stream.insert([{"k": 2, "v": 2}], transaction="T2")
    stage.wh.close()

    with rt.open(tmp_path / "wh", read_only=True, clock=stage.clock) as reader:
        answer = reader.read("t", on_late="answer", wait="0s")

    assert (answer.rows(), answer.receipt.late) == ([(1, 1)], True)
    found = [(each.stream, each.flow, each.last_inside.transaction, each.first_outside.transaction) for each in answer.receipt.streams]  # type: ignore[union-attr]
    assert found == [("s", "plain", "T1", "T2")]


def test_a_tables_own_changes_are_a_stream(tmp_path: Path) -> None:
    """Rows inserted, updated, deleted, stored in between and held back by a lazy producer: the copy is the table at every cut."""
    clock = ManualClock(1.0)
    with rt.open(tmp_path / "wh", clock=clock) as wh:
        wh.create_table("orders", "k INT NOT NULL, v INT", keys=["k"], unique=True)
        wh.create_table("copy", "k INT NOT NULL, v INT", keys=["k"])
        load = wh.producer(name="shop")
        load.insert_many("orders", [(1, 10), (2, 20), (3, 30)])
        load.commit()
        wh.materialize("orders")
        wh.tap("orders")
        runner, _ = run_plain(wh, {"copy": "orders"})
        try:
            for turn in range(6):
                clock.advance(1)
                load.update("orders", set={"v": 100 + turn}, where={"k": 1})
                load.delete("orders", where={"k": 2}) if turn == 1 else load.upsert("orders", {"k": 2, "v": turn})
                load.insert("orders", (10 + turn, turn))
                load.commit(materialize=turn == 2)
                if turn % 2:
                    wh.materialize("orders")
                clock.advance(1)
                assert sorted(wh.read("copy", wait="20s").rows()) == sorted(wh.read("orders").rows()), turn
        finally:
            runner.stop()
        load.insert("orders", (50, 5))
        load.commit()
        newest = wh.stream("orders").changes().to_pylist()[-1]
        assert (newest["k"], newest["_change_type"]) == (50, "insert"), "read up to now, though no flow asked"
        with pytest.raises(BadStream, match="or changed like this: it has the changes of table 'orders'; change the table"):
            wh.stream("orders").insert([{"k": 99, "v": 1}])


def test_a_runner_tells_what_it_computes(tmp_path: Path) -> None:
    """Changes and time of the drain; of targets that are built anew all changes, and the parts that are done."""
    stage = Stage(tmp_path / "wh", drain_rows_max=2)
    stage.run()
    assert stage.runner is not None and stage.engine is not None and stage.runner.under_way() is None
    stage.engine.gate.clear()
    stage.insert(1, 10)
    asked, begun = stage.ask(), stage.runner
    until(stage.wh, lambda: begun.under_way() is not None)
    stage.clock.advance(7)
    assert begun.under_way() == UnderWay(1, 7.0)
    stage.engine.gate.set()
    assert asked.result(20) == {1: 10}
    until(stage.wh, lambda: begun.under_way() is None)
    begun.stop()

    for k in (2, 3, 4):
        stage.insert(k, k)
    stage.runner, stage.engine = anew, _ = run_plain(stage.wh, {"t": "s"}, rebuild=True, held=True)
    until(stage.wh, lambda: anew.under_way() is not None and anew.parts == (0, 2))
    assert anew.under_way() == UnderWay(4, 0.0, (0, 2))
    stage.close()


def test_a_full_refresh_replaces_a_target_while_queries_go_on_at_the_old_state(stage: Stage) -> None:
    """Another declaration, from all changes there ever were; until it is published the old state answers whoever accepts it."""
    stage.run()
    for k in range(4):
        stage.insert(k, k)
    assert stage.query() == {k: k for k in range(4)}
    stage.wh.materialize("t")
    stage.update(1, 10)
    assert stage.query() == {0: 0, 1: 10, 2: 2, 3: 3}
    assert stage.runner is not None
    stage.runner.stop()
    stage.clock.advance(1)
    stage.insert(4, 4)
    stage.runner, stage.engine = run_plain(stage.wh, {"t": "s"}, rebuild=True, factor=2, held=True)
    stage.clock.advance(1)
    assert stage.query(freshness="1 min") == {0: 0, 1: 10, 2: 2, 3: 3}
    new = stage.ask()
    stage.engine.gate.set()
    assert new.result(20) == {0: 0, 1: 20, 2: 4, 3: 6, 4: 8}
    stage.wh.materialize("t")
    stage.clock.advance(1)
    stage.update(0, 7)
    assert stage.query() == {0: 14, 1: 20, 2: 4, 3: 6, 4: 8}


def test_a_source_that_has_delivered_nothing_yet_is_waited_for(tmp_path: Path) -> None:
    """Nothing has arrived is not the same as everything has: what comes before the cut is the query's own."""
    stage = Stage(tmp_path / "wh", times="source")
    try:
        stage.run()
        stage.clock.set(20.0)
        waiting = stage.ask()
        stage.waiting(1)
        stage.insert(1, 1, 10.0)
        stage.insert(2, 2, 31.0)
        assert waiting.result(20) == {1: 1}
        stage.clock.set(32.0)
        stage.wh.stream("s").heartbeat(32 * SECOND)
        assert stage.query() == {1: 1, 2: 2}
    finally:
        stage.close()


def test_a_flow_whose_source_is_behind_is_at_no_moment_taken_for_fresh_when_it_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its target is what the source had told up to 2 s. Whoever asks at 10 s is refused, also while the flow begins to read its stream."""
    stage = Stage(tmp_path / "wh", times="source")
    try:
        stage.clock.set(2.0)
        stage.insert(1, 10, 2.0)
        stage.run()
        assert stage.query() == {1: 10} and stage.runner is not None
        stage.runner.stop()
        stage.clock.set(10.0)
        streams, asked = stage.wh._flows("test").feed.streams, list[BaseException | None]()
        mark_of, main = streams.watermark_us, threading.current_thread()

        def asked_meanwhile(name: str) -> int | None:
            if threading.current_thread() is main:
                asked.append(stage.ask(wait="0s").exception(20))
            return mark_of(name)

        monkeypatch.setattr(streams, "watermark_us", asked_meanwhile)
        stage.run()
        assert asked and all(isinstance(error, FreshnessUnavailable) for error in asked)
    finally:
        stage.close()


def test_a_late_answer_over_a_flow_and_a_dead_producer_has_one_cut_for_both(stage: Stage) -> None:
    """The flow is asked too, and its stream is not said to be inside where it is not."""
    stage.run()
    stage.wh.create_table("x", "k INT")
    stage.insert(1, 1)
    assert stage.query() == {1: 1}
    producer = stage.wh.producer(name="lazy", policy=rt.OnDemand())
    producer.insert("x", (1,))
    producer.commit()
    assert stage.engine is not None
    stage.engine.gate.clear()
    stage.clock.advance(1)
    stage.insert(2, 2)
    engine = stage.wh._writer("test")
    with engine.catalyst.lock:  # nobody can answer meanwhile
        engine.catalyst.links["lazy"].alive_s = -1e9
        with engine.snapshots.take(["t", "x"], contract_of(wait="0s", on_late="answer")) as snapshot:
            assert set(snapshot.accuracy.late) == {"lazy", "flow.plain"}
            assert engine.snapshots.rows(snapshot.tables["t"]).to_pylist() == [{"k": 1, "v": 1}]
            assert [cut.last_inside.number for cut in snapshot.streams if cut.last_inside] == [1]
    stage.engine.gate.set()
    producer.close()


def test_a_query_over_two_flows_is_not_cut_inside_a_job_of_either(tmp_path: Path) -> None:
    """One flow has what arrived up to 10 s, the other a job from 12 to 20 s; a query of 30 s that accepts 15 s is cut at 20 s."""
    clock = ManualClock(10.0)
    with rt.open(tmp_path / "wh", clock=clock) as wh:
        for table in ("t", "u"):
            wh.create_table(table, "k INT NOT NULL, v INT", keys=["k"])
        late = wh.create_stream("a", "k INT NOT NULL, v INT", keys=["k"], times="source")
        quick = wh.create_stream("b", "k INT NOT NULL, v INT", keys=["k"])
        late.heartbeat(10 * SECOND)
        runners = [run_plain(wh, {"t": "a"}, name="a")[0], run_plain(wh, {"u": "b"}, name="b")[0]]
        for second, k in ((12.0, 1), (16.0, 2)):
            clock.set(second)
            quick.insert([{"k": k, "v": 1}])
        clock.set(20.0)
        assert len(wh.read("u", wait="20s").rows()) == 2
        clock.set(30.0)
        quick.insert([{"k": 3, "v": 1}])
        with ThreadPoolExecutor(1) as pool:
            link = runners[0].link
            asked = pool.submit(lambda: _cut_of(wh, ["t", "u"], "15s"))
            pause = threading.Event()
            while not link.cuts and not asked.done():
                pause.wait(0.01)
            late.heartbeat(31 * SECOND)
            assert asked.result(20) == 20 * SECOND
        for runner in runners:
            runner.stop()


def test_tolerance_is_for_what_has_not_arrived(tmp_path: Path) -> None:
    """A strict query has everything that is here, whatever lag it would put up with."""
    stage = Stage(tmp_path / "wh")
    try:
        stage.wh.create_stream("lagging", "k INT NOT NULL, v INT", keys=["k"], times="source", tolerance="30s")
        stage.runner, stage.engine = run_plain(stage.wh, {"t": "lagging"})
        stage.clock.set(120.0)
        stage.wh.stream("lagging").insert([{"k": 1, "v": 1}], time=100 * SECOND)
        stage.wh.stream("lagging").heartbeat(110 * SECOND)
        assert stage.query() == {1: 1}, "10 s behind is put up with, and what is here is there"
    finally:
        stage.close()


def _cut_of(wh: rt.Warehouse, tables: list[str], freshness: str) -> int:
    with wh._writer("test").snapshots.take(tables, contract_of(freshness=freshness)) as snapshot:
        return snapshot.accuracy.cut_us


def test_waiting_for_a_flow_ends_when_its_targets_have_what_had_arrived(stage: Stage) -> None:
    """Nobody has to ask a query for it; what is built anew is waited for, too."""
    stage.run()
    assert stage.runner is not None
    stage.insert(1, 10)
    RunningFlow(stage.wh._flows("test"), stage.runner).wait()
    assert stage.query(freshness="1 min") == {1: 10}
    stage.runner.stop()
    stage.clock.advance(1)
    stage.runner, stage.engine = run_plain(stage.wh, {"t": "s"}, rebuild=True, factor=2, held=True)
    with pytest.raises(FreshnessUnavailable, match="built anew"):
        RunningFlow(stage.wh._flows("test"), stage.runner).wait(timeout=0.1)
    waiting = stage.pool.submit(RunningFlow(stage.wh._flows("test"), stage.runner).wait, timeout="20s")
    with pytest.raises(TimeoutError):
        waiting.result(0.2)
    stage.engine.gate.set()
    waiting.result(20)
    assert stage.query(freshness="1 min") == {1: 20}


def test_waiting_for_a_flow_that_fails_raises_its_reason(stage: Stage) -> None:
    """Whoever waits learns why, not only that it took too long."""
    stage.run()
    assert stage.runner is not None and stage.engine is not None
    stage.engine.gate.clear()
    stage.insert(1, 10)
    waiting = stage.pool.submit(RunningFlow(stage.wh._flows("test"), stage.runner).wait)
    stage.engine.rows.clear()  # the drain finds no table
    stage.engine.gate.set()
    with pytest.raises(FlowFailed, match="'t'"):
        waiting.result(20)


def test_a_query_over_a_flow_that_failed_is_told_so_and_not_to_try_again(stage: Stage) -> None:
    """Asking again or waiting longer does not help: the error is the flow's own, at a service as here, also when what is left of the flow is stopped."""
    stage.run()
    stage.insert(1, 10)
    assert stage.query() == {1: 10}
    assert stage.runner is not None and stage.engine is not None
    stage.engine.rows.clear()  # the drain finds no table
    stage.insert(2, 20)
    for _ in range(2):
        with pytest.raises(FlowFailed, match=r"Flow 'plain' has stopped: 't'\. .*mend the cause and run the flow again") as caught:
            stage.query()
        assert (caught.value.code, caught.value.retryable) == ("flow.failed", False)
        stage.runner.stop()
    sent = failure_of(failure_record(caught.value))
    assert (type(sent), sent.code, sent.retryable, str(sent)) == (FlowFailed, "flow.failed", False, str(caught.value))
    assert isinstance(as_dbapi(sent), OperationalError), "the query is right, and cannot be answered"
    assert stage.wh.read("t", on_late="answer", wait="0s").rows() == [(1, 10)]
    stage.run()
    assert stage.query() == {1: 10, 2: 20}


def test_a_background_job_ends_at_the_cuts_that_queries_already_wait_for(stage: Stage) -> None:
    """A query may come between the runner's look at the cuts and its decision to end a job: the job must not run across the query's cut."""
    stage.run()
    assert stage.runner is not None
    catalyst, link = stage.wh._writer("test").catalyst, stage.runner.link
    stage.runner.stop()
    stage.insert(1, 10)
    stage.clock.advance(1)
    with catalyst.lock:
        wanted_us = catalyst.authority.read_us()
        link.want(wanted_us)
        stage.clock.advance(1)
        assert catalyst.close_job(link) == [wanted_us, link.closed_us]
        assert catalyst.close_job(link) == [link.closed_us]


def test_queries_beside_jobs_that_end_by_themselves_are_never_refused(stage: Stage) -> None:
    """Each sees what was committed before it, though every change ends a job."""
    stage.run(triggers=Triggers(rows_max=1, immediate=True))

    def ask(_: int) -> None:
        for _ in range(15):
            with lock:
                stage.clock.advance(0.001)
                k = len(known)
                known.append(k)
                stage.insert(k, k)
            seen = stage.query()
            assert k in seen

    known: list[int] = []
    lock = threading.Lock()
    for done in [stage.pool.submit(ask, number) for number in range(6)]:
        done.result(60)


def test_a_late_answer_names_the_table_that_was_asked_for(stage: Stage) -> None:
    """Not another target of the same flow."""
    stage.wh.create_table("u", "k INT NOT NULL, v INT", keys=["k"])
    stage.runner, stage.engine = run_plain(stage.wh, {"t": "s", "u": "s"})
    stage.runner.stop()
    stage.insert(1, 1)
    with pytest.raises(FreshnessUnavailable, match="Table 'u'"):
        stage.wh.read("u")


def test_a_query_that_waits_for_a_flow_keeps_no_other_from_running(tmp_path: Path) -> None:
    """Only one may run at once, and yet the one that takes what is there does not stand behind the one that waits."""
    stage = Stage(tmp_path / "wh", queries_max=1)
    try:
        stage.runner, stage.engine = run_plain(stage.wh, {"t": "s"}, held=True)
        stage.insert(1, 1)
        stage.clock.advance(1)
        waiting = stage.ask()
        stage.waiting(1)
        assert stage.query(freshness="1 min") == {}
        stage.engine.gate.set()
        assert waiting.result(20) == {1: 1}
    finally:
        stage.close()


def test_a_drain_lets_a_crowd_of_queries_come_to_its_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come meanwhile are taken along. Not for ever: after some time the drain begins anyway."""
    monkeypatch.setattr(runner, "_YIELD_S", 20.0)
    catalyst = stage.wh._writer("test").catalyst
    stage.run()
    assert stage.engine is not None

    def crowd(count: int) -> list[Any]:
        with catalyst.lock:
            return [catalyst.leases.hold({}, now_s=catalyst.clock.monotonic_s(), ttl_s=1000) for _ in range(count)]

    held = crowd(3)  # more than the cores of a plain flow
    asked = []
    for k in range(2):
        stage.insert(k, k)
        stage.clock.advance(1)
        asked.append(stage.ask())
        stage.waiting(k + 1)  # it has chosen its cut before the next row comes
    until(stage.wh, lambda: stage.runner is not None and len(stage.runner.queue()) == 2)
    threading.Event().wait(0.3)
    assert stage.engine.drains == []
    catalyst.release(held[0])
    assert [answer.result(20) for answer in asked] == [{0: 0}, {0: 0, 1: 1}]
    assert stage.engine.drains == [[1, 2]]
    crowd(1)
    monkeypatch.setattr(runner, "_YIELD_S", 0.2)
    stage.insert(3, 3)
    stage.clock.advance(1)
    assert stage.query() == {0: 0, 1: 1, 3: 3}


@pytest.fixture
def held_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A query runs, and a job that nobody asked for has waited for its end for a while; the query's lease."""
    monkeypatch.setattr(runner, "_PATIENCE_S", 60.0)
    catalyst = stage.wh._writer("test").catalyst
    stage.run(triggers=Triggers(rows_max=1))
    with catalyst.lock:
        lease = catalyst.leases.hold({}, now_s=catalyst.clock.monotonic_s(), ttl_s=1000)
    for k in range(2):
        stage.insert(k, k)
        stage.clock.advance(1)
    until(stage.wh, lambda: stage.runner is not None and [job.kind for job in stage.runner.queue()] == ["background"])
    threading.Event().wait(0.3)
    assert stage.engine is not None and stage.engine.drains == []
    return lease


def test_a_drain_that_nobody_asked_for_begins_when_no_query_runs(stage: Stage, held_back: Any) -> None:
    """It would only make the query that runs later."""
    stage.wh._writer("test").catalyst.release(held_back)
    until(stage.wh, lambda: stage.published() == 1)


def test_a_query_takes_along_what_was_held_back(stage: Stage, held_back: Any) -> None:
    """One drain for both, though the other query runs on."""
    assert stage.engine is not None
    stage.insert(2, 2)
    stage.clock.advance(1)
    assert stage.ask().result(20) == {0: 0, 1: 1, 2: 2}
    assert stage.engine.drains == [[1, 2]]


def test_waiting_for_a_flow_does_not_wait_for_queries_that_run(stage: Stage, held_back: Any) -> None:
    """Who waits for a flow to come up to now has asked, as a query has."""
    assert stage.runner is not None
    stage.wh._flows("test").bring_up(stage.runner, wait_s=20)
    assert stage.published() == 1


def test_many_changes_are_not_held_back(stage: Stage, held_back: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain of many takes longer than one of few: the next query would have to wait for all of them."""
    monkeypatch.setattr(runner, "PATIENCE_ROWS", 2)
    monkeypatch.setattr(cutter, "PATIENCE_ROWS", 0)
    stage.insert(3, 3)
    until(stage.wh, lambda: stage.published() >= 1)


def test_a_replay_does_not_wait_for_queries_that_run(stage: Stage, held_back: Any) -> None:
    """Who has rows tried again waits for a job, and the one that is held back will do."""
    assert stage.runner is not None
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(stage.runner.replay, None, wait_s=20, still_s=20).result(20) == 0
    assert stage.published() == 1


def test_a_query_whose_lease_has_lapsed_holds_nothing_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may read no more, and nobody may ever release it."""
    monkeypatch.setattr(runner, "_PATIENCE_S", 60.0)
    catalyst = stage.wh._writer("test").catalyst
    stage.run(triggers=Triggers(rows_max=0))
    with catalyst.lock:
        catalyst.leases.hold({}, now_s=catalyst.clock.monotonic_s(), ttl_s=5)
    stage.clock.advance(5)
    stage.insert(1, 1)
    stage.clock.advance(1)
    until(stage.wh, lambda: stage.published() == 1)


def test_a_stop_does_not_wait_for_a_drain_that_is_held_back(stage: Stage, held_back: Any) -> None:
    """What is held back is cut again when the flow runs again."""
    assert stage.runner is not None
    stage.runner.stop(wait_s=20)
    assert not stage.runner.running
    assert not any(thread.is_alive() for thread in stage.runner._threads)


@pytest.mark.parametrize("triggers", [Triggers(rows_max=1, immediate=True), Triggers(rows_max=1, every_s=0.5)])
def test_jobs_that_the_user_wants_at_their_time_are_not_held_back(stage: Stage, monkeypatch: pytest.MonkeyPatch, triggers: Triggers) -> None:
    """Refresh policies are kept, whatever runs."""
    monkeypatch.setattr(runner, "_PATIENCE_S", 60.0)
    catalyst = stage.wh._writer("test").catalyst
    stage.run(triggers=triggers)
    with catalyst.lock:
        catalyst.leases.hold({}, now_s=catalyst.clock.monotonic_s(), ttl_s=1000)
    for k in range(2):
        stage.insert(k, k)
        stage.clock.advance(1)
    until(stage.wh, lambda: stage.published() >= 1)


def test_snapshots_that_nobody_asks_are_no_crowd(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are held for questions to come, for minutes maybe, and keep no core busy meanwhile: a drain that waited for them would be late each time."""
    monkeypatch.setattr(runner, "_YIELD_S", 60.0)
    stage.run()
    with ExitStack() as held:
        states = [held.enter_context(stage.wh.snapshot("t")) for _ in range(5)]
        stage.insert(1, 1)
        stage.clock.advance(1)
        assert stage.ask().result(20) == {1: 1}
        assert [state.read("t").rows() for state in states] == [[]] * 5


def test_a_drain_begins_though_a_crowd_runs_when_twice_as_many_wait(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the crowd does not come to its end long before the drain does. Queries on other tables do not count: they do not wait for it."""
    monkeypatch.setattr(runner, "_YIELD_S", 20.0)
    stage.wh.create_table("other", "k INT")
    catalyst = stage.wh._writer("test").catalyst
    stage.run()
    assert stage.runner is not None and stage.engine is not None
    with catalyst.lock:
        for _ in range(5):
            catalyst.leases.hold({}, now_s=catalyst.clock.monotonic_s(), ttl_s=1000)
    stage.insert(1, 1)
    stage.clock.advance(1)
    first = stage.ask()
    stage.waiting(1)
    with catalyst.admitted(["other"]), ExitStack() as waiting:
        for _ in range(8):
            waiting.enter_context(catalyst.admitted(["t"]))
        assert not threading.Event().wait(0.3) and stage.engine.drains == []
        waiting.enter_context(catalyst.admitted(["t"]))
        assert first.result(15) == {1: 1}


@pytest.mark.parametrize("mode", ["on_demand", "sequential"])
def test_one_run_after_the_other_begins_when_the_one_before_is_published(stage: Stage, mode: runner.Mode) -> None:
    """The yardstick (A27) is one run of the flow to completion for each job; ours computes while the drain before is published."""
    stage.run(mode=mode)
    assert stage.runner is not None and stage.engine is not None
    reached, go_on = threading.Event(), threading.Event()
    publish = FlowRunner._publish

    def held(self: FlowRunner, job: Any, drained: Any) -> None:
        reached.set()
        assert go_on.wait(30)
        publish(self, job, drained)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FlowRunner, "_publish", held)
        stage.insert(1, 10)
        first = stage.ask()
        assert reached.wait(30)
        stage.insert(2, 20)
        second = stage.ask()
        stage.waiting(2)
        if mode == "on_demand":
            until(stage.wh, lambda: len(stage.engine.drains) == 2)  # type: ignore[union-attr]
        else:
            until(stage.wh, lambda: [("prepared" in job.marks) for job in stage.runner.queue()] == [True, True])  # type: ignore[union-attr]
            assert not threading.Event().wait(0.1) and stage.engine.drains == [[1]]
        go_on.set()
        assert (first.result(30), second.result(30)) == ({1: 10}, {1: 10, 2: 20})
    assert stage.engine.drains == [[1], [2]]


def test_who_holds_a_run_that_has_ended_does_not_stop_the_next_one(stage: Stage) -> None:
    """As the block does in which a flow failed, or was stopped, and was run again."""
    flows, handles = stage.wh._flows("test"), []
    for _ in range(2):
        stage.run()
        assert stage.runner is not None
        flows.runners["plain"] = stage.runner
        handles.append(RunningFlow(flows, stage.runner))
        if len(handles) == 1:
            handles[0].stop()
    handles[0].stop()
    assert [handle.running for handle in handles] == [False, True]
    handles[1].stop()
    assert not handles[1].running


def test_a_flow_begins_again_only_when_the_run_before_has_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in one thread and run in another: two runners would take each other's state away."""
    stage.run()
    assert stage.runner is not None and stage.engine is not None
    flows, running, came, alive = stage.wh._flows("test"), stage.runner, threading.Event(), []
    flows.runners["plain"] = running

    def check(flow: rt.Flow, *, refresh: bool) -> None:
        alive.append([thread.name for thread in running._threads if thread.is_alive()])
        came.set()
        raise BadStream(stream="s", reason="far enough")

    monkeypatch.setattr(flows, "check", check)
    stage.engine.gate.clear()
    stage.insert(1, 1)
    asked = stage.ask()
    until(stage.wh, lambda: running._queue.unpublished == 1 and not running.queue())  # it is in its drain
    stopped = stage.pool.submit(flows.stop, "plain")
    with pytest.raises(FreshnessUnavailable):
        asked.result(20)
    begun = stage.pool.submit(flows.run, rt.Flow("plain"))
    assert not came.wait(0.3), "it begins beside the drain under way"
    stage.engine.gate.set()
    stopped.result(20)
    with pytest.raises(BadStream, match="far enough"):
        begun.result(20)
    assert alive == [[]]
