"""What a query would wait for: told before it is asked, and as it then is."""

from pathlib import Path
from random import Random

import pytest

import righttime as rt
from righttime.errors import FlowFailed, FreshnessUnknown
from righttime.flows.catalogue import Catalogue
from righttime.flows.explain import estimate_s
from righttime.flows.jobs import JobReport
from righttime.flows.runner import FlowRunner
from righttime.queues.stream import Stream
from righttime.testing import ManualClock
from tests.support.flow_stage import SECOND, contract_of
from tests.support.plain_flow import PlainEngine, run_plain, until

COLUMNS = "k INT NOT NULL, v INT"


def report(number: int, *, rows: int, jobs: int, compute_s: float, publish_s: float = 0.0, wait_s: float = 0.0) -> JobReport:
    seconds = {"prepare_s": wait_s, "wait_s": wait_s, "compute_s": compute_s, "publish_s": publish_s}
    return JobReport(number, "query", number, rows, rows, jobs, seconds)


def test_nothing_is_estimated_before_the_first_job() -> None:
    """There is nothing to go by."""
    assert estimate_s(10, []) is None


def test_jobs_that_were_drained_together_share_their_seconds() -> None:
    """Fifty jobs of 62 rows took two seconds together: 10,000 rows take about 6.5 s, and not 160 times as long as one of them."""
    reports = [report(number, rows=62, jobs=50, compute_s=1.9, publish_s=number * 0.002) for number in range(1, 51)]
    assert estimate_s(10_000, reports) == pytest.approx(6.45, abs=0.01)
    assert estimate_s(10_000, reports[25:]) == pytest.approx(6.45, abs=0.01), "the first of them may be forgotten"


def test_what_a_job_waited_for_is_no_part_of_an_estimate() -> None:
    """A job waits for its source, or for the drain before; that says nothing of the next one."""
    reports = [report(1, rows=10, jobs=1, compute_s=0.5, wait_s=100.0), report(2, rows=1_000, jobs=1, compute_s=1.0, wait_s=100.0)]
    assert estimate_s(1, reports) == 0.5
    assert estimate_s(10_000, reports) == 10.0


def test_drains_without_rows_have_a_fixed_part_only() -> None:
    """As those of streams that only sent heartbeats."""
    assert estimate_s(10_000, [report(1, rows=0, jobs=1, compute_s=0.25)]) == 0.25


@pytest.mark.parametrize("seed", range(3))
def test_the_cut_that_is_told_is_the_cut_that_a_query_gets(tmp_path: Path, seed: int) -> None:
    """Over a stream whose source lags, one that is here at once, and a table; with tolerance, and with freshness in the call or in the query."""
    dice, clock = Random(seed), ManualClock(100.0)
    with rt.open(tmp_path / "wh", clock=clock) as wh:
        wh.create_table("orders", COLUMNS, keys=["k"], unique=True)
        for table in ("copy", "late", "now"):
            wh.create_table(table, COLUMNS, keys=["k"])
        lagging = wh.create_stream("lagging", COLUMNS, keys=["k"], times="source", tolerance="4s")
        here = wh.create_stream("here", COLUMNS, keys=["k"])
        wh.tap("orders")
        runners = [run_plain(wh, {"late": "lagging", "copy": "orders"}, name="one")[0], run_plain(wh, {"now": "here"}, name="two")[0]]
        engine = wh._writer("test")
        with wh.producer(name="shop") as load:
            for k in range(40):
                clock.advance(dice.choice([0.3, 1.0]))
                match dice.choice(["orders", "here", "lagging", "beat", "ask", "ask"]):
                    case "orders":
                        load.insert("orders", (k, 0))
                        load.commit()
                    case "here":
                        here.insert([{"k": k, "v": 0}])
                    case "lagging":
                        lagging.insert([{"k": k, "v": 0}], time=clock.now_us())
                    case "beat":
                        lagging.heartbeat(clock.now_us())
                    case _:
                        lagging.heartbeat(clock.now_us() - 3 * SECOND)  # less than is put up with, or nobody would answer while the clock stands still
                        freshness, tables = dice.choice(["0s", "1s", "5s"]), dice.choice([["copy"], ["late"], ["now"], ["copy", "now"], ["late", "now"]])
                        query = f"SELECT * FROM {' NATURAL JOIN '.join(tables)}"
                        told = wh.explain(query, freshness=freshness)
                        assert wh.explain(f"{query} CURRENCY BOUND {freshness.removesuffix('s')} SEC").cut_us == told.cut_us
                        with engine.snapshots.take(tables, contract_of(freshness=freshness)) as snapshot:
                            assert snapshot.accuracy.cut_us == told.cut_us, (k, freshness, tables)
        for runner in runners:
            runner.stop()


def test_a_reader_explains_from_files_and_not_beside_a_writer(tmp_path: Path) -> None:
    """What a flow lacks is in the files of its streams; what a writer has in memory is not."""
    clock = ManualClock(100.0)
    with rt.open(tmp_path / "wh", clock=clock) as wh:
        wh.create_table("copy", COLUMNS, keys=["k"])
        stream = wh.create_stream("here", COLUMNS, keys=["k"])
        Catalogue(tmp_path / "wh" / "flows").begin("plain", ["here"], ["copy"], "", next_job=1)  # as a flow that is declared does
        runner, _ = run_plain(wh, {"copy": "here"})
        stream.insert([{"k": 1, "v": 0}])
        assert wh.read("copy", wait="20s").rows() == [(1, 0)]
        runner.stop()
        clock.advance(1)
        stream.insert([{"k": 2, "v": 0}, {"k": 3, "v": 0}])
        clock.advance(1)
        with rt.open(tmp_path / "wh", read_only=True, clock=clock) as reader, pytest.raises(FreshnessUnknown, match="another process writes"):
            assert [(flow.name, flow.rows_waiting, flow.running) for flow in reader.flows()] == [("plain", 3, False)], "as of the durable state"
            reader.explain("SELECT * FROM copy")
    with rt.open(tmp_path / "wh", read_only=True, clock=clock) as reader:
        found = reader.explain("SELECT * FROM copy")
        assert (found.shared, found.estimate_s, [(need.flow, need.rows) for need in found.flows]) == (False, None, [("plain", 2)])
        assert "righttime run" in found.flows[0].trouble
        assert reader.flows() == list(reader.status().flows)
        assert reader.explain("SELECT * FROM copy", freshness="5s").shared


def test_a_flow_that_failed_has_no_estimate(tmp_path: Path) -> None:
    """It never gets there, however long its drains took before."""
    with rt.open(tmp_path / "wh", clock=ManualClock(100.0)) as wh:
        runner, engine, stream = declared(wh)
        stream.insert([{"k": 1, "v": 0}])
        assert wh.read("copy", wait="20s").rows() == [(1, 0)]
        engine.give_up()  # the next drain raises
        stream.insert([{"k": 2, "v": 0}])
        with pytest.raises(FlowFailed):
            wh.read("copy", wait="20s")
        found = wh.explain("SELECT * FROM copy")
        assert (found.estimate_s, [need.rows for need in found.flows]) == (None, [1])
        assert "has stopped" in found.flows[0].trouble
        runner.stop()


def test_while_targets_are_built_anew_that_is_said_and_no_time(tmp_path: Path) -> None:
    """Drains of a few changes say nothing of one that takes all there ever were."""
    with rt.open(tmp_path / "wh", clock=ManualClock(100.0)) as wh:
        runner, engine, stream = declared(wh)
        stream.insert([{"k": 1, "v": 0}, {"k": 2, "v": 0}])
        assert len(wh.read("copy", wait="20s").rows()) == 2
        runner.stop()
        stream.insert([{"k": 3, "v": 0}])
        runner, engine, _ = declared(wh, rebuild=True, held=True)
        until(wh, lambda: runner.under_way() is not None)
        (need,) = wh.explain("SELECT * FROM copy").flows
        assert (need.rows, need.estimate_s) == (1, None)
        assert need.trouble == "its targets are being built anew from 3 changes, 0 of 1 parts are done, and a fresh answer waits for that"
        engine.gate.set()
        assert len(wh.read("copy", wait="20s").rows()) == 3
        runner.stop()


def declared(wh: rt.Warehouse, *, rebuild: bool = False, held: bool = False) -> tuple[FlowRunner, PlainEngine, Stream]:
    """Return a flow that the warehouse knows of, and its stream."""
    if "copy" not in wh.tables():
        wh.create_table("copy", COLUMNS, keys=["k"])
        wh.create_stream("here", COLUMNS, keys=["k"])
    runner, engine = run_plain(wh, {"copy": "here"}, rebuild=rebuild, held=held)
    wh._flows("test").runners["plain"] = runner
    return runner, engine, wh.stream("here")


@pytest.mark.parametrize("read_only", [True, False])
def test_staleness_is_counted_from_the_oldest_change_that_was_not_loaded(tmp_path: Path, read_only: bool) -> None:
    """Nothing happened for an hour after the last load: what is stored is as fresh as the first change after that hour lets it be."""
    clock = ManualClock(100.0)
    with rt.open(tmp_path / "wh", clock=clock) as wh:
        wh.create_table("copy", COLUMNS, keys=["k"])
        stream = wh.create_stream("here", COLUMNS, keys=["k"])
        Catalogue(tmp_path / "wh" / "flows").begin("plain", ["here"], ["copy"], "", next_job=1)
        runner, _ = run_plain(wh, {"copy": "here"})
        stream.insert([{"k": 1, "v": 0}])
        assert wh.read("copy", wait="20s").rows() == [(1, 0)]
        runner.stop()
        wh.materialize()
        clock.advance(3600)
        stream.insert([{"k": 2, "v": 0}])
        clock.advance(10)
        stream.insert([{"k": 3, "v": 0}])
        clock.advance(10)
    with rt.open(tmp_path / "wh", read_only=read_only, clock=clock) as reader:
        assert reader.explain("SELECT * FROM copy", freshness="21s").shared
        assert not reader.explain("SELECT * FROM copy", freshness="19s").shared
        answer = reader.read("copy", freshness="21s")
        assert (answer.rows(), answer.receipt.late) == ([(1, 0)], False)
        assert answer.receipt.given_s == pytest.approx(20, abs=0.1)
        with pytest.raises(rt.FreshnessUnavailable) as refused:
            reader.read("copy", freshness="19s")
        assert refused.value.context["stale_s"] == pytest.approx(20, abs=0.1)
        late = reader.read("copy", on_late="answer")
        assert (late.rows(), late.receipt.late) == ([(1, 0)], True)
        assert late.receipt.given_s == pytest.approx(20, abs=0.1)
        assert [(cut.last_inside.number, cut.first_outside.number) for cut in late.receipt.streams if cut.last_inside and cut.first_outside] == [(1, 2)]
