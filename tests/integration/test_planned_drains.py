"""Plans of small drains that are run again: as often as they can be, and never where a new one would be another."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

import righttime as rt
from righttime.client import Warehouse
from righttime.flows import engine
from righttime.flows.engine import DrainEngine
from righttime.pipeline import execute, planned, reach
from righttime.pipeline.flow import Flow
from righttime.pipeline.spark import SparkOwner
from tests.support.flows import Bench

pytestmark = pytest.mark.usefixtures("compiled_plans")

STREAMS = {"sale": ("id BIGINT, k BIGINT, v BIGINT", ["id"]), "item": ("k BIGINT, w BIGINT", ["k"])}


@pytest.fixture(scope="module")
def child(spark_owner: SparkOwner) -> Iterator[SparkSession]:
    """One child session for the module."""
    yield spark_owner.child()


@pytest.fixture
def bench(child: SparkSession, spark_owner: SparkOwner, tmp_path: Path) -> Bench:
    """Sales with the weight of their item, looked up twice, by id; three items."""
    flow = Flow("weights")
    items = flow.stream("item")
    weighed = flow.stream("sale").lookup(items, on="k", take=["w"], missing="drop").lookup(items, on={"w": "k"}, take={"more": "w"})
    weighed.aggregate(by="id", total="sum(100 * w DIV v + coalesce(more, 0))").into("sales", keys="id")
    made = Bench(flow, child, streams=STREAMS, tables={"sales": ("id BIGINT, total BIGINT", ["id"])}, planned=(spark_owner, tmp_path))
    for k in (1, 2, 3):
        made.put("item", 1, {"k": k, "w": k + 1})
    made.drain(1)
    return made


def sell(bench: Bench, time: int, k: int = 1, v: int = 100) -> list[dict[str, Any]]:
    """Put one sale whose id is greater than all before, and return all sales."""
    bench.put("sale", time, {"id": time, "k": k, "v": v})
    return bench.drain(time)[0]["sales"]


def plans(bench: Bench) -> int:
    assert bench.plans is not None
    return bench.plans.made


def test_new_facts_are_drained_by_one_plan(bench: Bench, tmp_path: Path) -> None:
    """Their changes are other ones each time, and of the last drain nothing is left."""
    before = plans(bench)
    totals = {1: 2 + 3, 2: 3 + 4, 3: 4}
    expected = []
    for time in range(2, 6):
        k = time % 3 + 1
        expected.append({"id": time, "total": totals[k]})
        assert sell(bench, time, k) == expected
    assert plans(bench) == before + 1
    assert not list(tmp_path.glob("flow.*")), "changes are gone when their drain has ended"


def test_old_facts_that_change_with_new_ones_are_drained_by_one_plan(bench: Bench) -> None:
    """They are in the same file each time, and the files of drains in between have nothing to do with them."""
    for number in range(50):
        bench.put("sale", 2, {"id": 10 * number, "k": 1, "v": 100})
    bench.drain(2)
    expected = {10 * number: 2 + 3 for number in range(50)}
    made = []
    for time in range(3, 8):
        for old in (10 * time, 490 - 10 * time):
            bench.put("sale", time, {"id": old, "k": 2, "v": 100})
            expected[old] = 3 + 4
        bench.put("sale", time, {"id": 1000 + time, "k": 3, "v": 100})
        expected[1000 + time] = 4
        assert {row["id"]: row["total"] for row in bench.drain(time)[0]["sales"]} == expected
        made.append(plans(bench))
    assert made[-1] == made[0]


@pytest.fixture
def two_files(bench: Bench) -> Bench:
    """Fifty old sales in one file of each part of the state, and fifty in another; a plan that reads both has been made."""
    for first in (0, 1000):
        for number in range(50):
            bench.put("sale", 2 + first // 1000, {"id": first + number, "k": 1, "v": 100})
        bench.drain(2 + first // 1000)
    assert change(bench, 4, 7, 1007, k=2) == {7: 7, 1007: 7}
    return bench


def change(bench: Bench, time: int, *ids: int, k: int) -> dict[int, int]:
    """Put other items into some old sales; return the totals that are not as they were at first."""
    for number in ids:
        bench.put("sale", time, {"id": number, "k": k, "v": 100})
    return {row["id"]: row["total"] for row in bench.drain(time)[0]["sales"] if row["total"] != 5}


def test_a_plan_that_reads_more_files_than_are_needed_serves_too(two_files: Bench) -> None:
    """Planning takes longer than reading some rows in vain, and these give nothing."""
    before = plans(two_files)
    assert change(two_files, 5, 8, k=2) == {7: 7, 8: 7, 1007: 7}
    assert change(two_files, 6, 1008, k=3) == {7: 7, 8: 7, 1007: 7, 1008: 4}
    assert change(two_files, 7, 9, 1009, k=3) == {7: 7, 8: 7, 9: 4, 1007: 7, 1008: 4, 1009: 4}
    assert plans(two_files) == before


def test_a_plan_that_reads_too_much_in_vain_is_made_anew(two_files: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It adds up, until the plan that reads only what is needed has paid."""
    before, made = plans(two_files), []
    monkeypatch.setattr(planned, "_SPARE_ROWS", 250)  # a hundred in each drain: the groups and the counts of the target in the other file
    for time in range(5, 10):
        assert change(two_files, time, 10 + time, k=2) == dict.fromkeys([7, 1007, *range(15, 11 + time)], 7)
        made.append(plans(two_files) - before)
    assert made == [0, 0, 1, 1, 1]


def test_a_plan_does_not_serve_if_a_file_that_is_needed_is_new(two_files: Bench) -> None:
    """What it reads was put together in other files."""
    before = plans(two_files)
    two_files.states.compact(4, files_max=1)  # type: ignore[union-attr]
    assert change(two_files, 5, 8, k=2) == {7: 7, 8: 7, 1007: 7}
    assert plans(two_files) == before + 1


def test_a_plan_does_not_serve_if_a_file_that_it_would_read_in_vain_is_gone(child: SparkSession, spark_owner: SparkOwner, tmp_path: Path) -> None:
    """The file that is needed is there as before."""
    flow = Flow("sums")
    flow.stream("sale").aggregate(by="id", total="sum(v)").into("sales", keys="id")
    bench = Bench(flow, child, streams={"sale": STREAMS["sale"]}, tables={"sales": ("id BIGINT, total BIGINT", ["id"])}, planned=(spark_owner, tmp_path))
    for time, ids in ((1, range(50)), (2, range(50, 100)), (3, range(1000, 1050)), (4, (7, 57, 1007))):
        for number in ids:
            bench.put("sale", time, {"id": number, "k": 1, "v": time})
        bench.drain(time)
    before = plans(bench)
    bench.states.compact(2, files_max=1)  # type: ignore[union-attr]
    bench.put("sale", 5, {"id": 1008, "k": 1, "v": 40})
    assert {"id": 1008, "total": 40} in bench.drain(5)[0]["sales"]
    assert plans(bench) == before + 1


def test_changed_state_is_read_by_another_plan(bench: Bench) -> None:
    """An item that changes is seen by the next sale, and so is a sale of before that changes."""
    assert sell(bench, 2) == [{"id": 2, "total": 5}]
    bench.put("item", 3, {"k": 2, "w": 70})
    assert bench.drain(3)[0]["sales"] == [{"id": 2, "total": 72}]
    before = plans(bench)
    assert sell(bench, 4)[1] == {"id": 4, "total": 72}
    assert plans(bench) == before + 1
    bench.put("sale", 5, {"id": 2, "k": 3, "v": 100})
    assert bench.drain(5)[0]["sales"] == [{"id": 2, "total": 4}, {"id": 4, "total": 72}]


def test_state_that_was_summed_up_is_read_by_another_plan(bench: Bench) -> None:
    """The files of the plan before are gone."""
    for time in (2, 3, 4):
        sell(bench, time)
    bench.states.compact(4, files_max=1)  # type: ignore[union-attr]
    bench.put("item", 5, {"k": 9, "w": 9})
    bench.drain(5)
    bench.states.compact(5, files_max=1)  # type: ignore[union-attr]
    assert sell(bench, 6)[-1] == {"id": 6, "total": 5}


def test_a_row_that_fails_spoils_no_plan(bench: Bench) -> None:
    """It becomes a dead letter, in a drain by itself; the next drain is right."""
    assert sell(bench, 2) == [{"id": 2, "total": 5}]
    assert sell(bench, 3, v=0) == [{"id": 2, "total": 5}]
    assert [letter["job"] for letter in bench.results[-1].dead_letters.to_pylist()] == [3]
    assert sell(bench, 4) == [{"id": 2, "total": 5}, {"id": 4, "total": 5}]


def test_plans_are_few(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last used ones are kept."""
    monkeypatch.setattr(planned, "_PLANS_MAX", 1)
    sell(bench, 2)
    bench.put("item", 3, {"k": 2, "w": 7})
    bench.drain(3)
    assert sell(bench, 4)[-1] == {"id": 4, "total": 9}
    assert len(bench.plans._plans) == 1  # type: ignore[union-attr]


def test_changes_that_need_larger_files_are_drained_by_themselves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of small numbers takes four times the room in a file."""
    monkeypatch.setattr(planned, "_FILE_BYTES", 64)
    assert sell(bench, 2) == [{"id": 2, "total": 5}]


def test_columns_of_any_name_may_be_planned(child: SparkSession, spark_owner: SparkOwner, tmp_path: Path) -> None:
    """What is looked for in a plan are steps of Spark, not words."""
    flow = Flow("rates")
    flow.stream("rate").where("ExchangeRate > 0").into("copy", keys="id")
    columns = ("id BIGINT, ExchangeRate BIGINT", ["id"])
    bench = Bench(flow, child, streams={"rate": columns}, tables={"copy": columns}, planned=(spark_owner, tmp_path))
    for time in (1, 2, 3):
        bench.put("rate", time, {"id": time, "ExchangeRate": time})
        bench.drain(time)
    assert len(bench.rows("copy")) == 3
    assert plans(bench) <= 2


@pytest.fixture
def wh(tmp_path: Path, spark_owner: SparkOwner) -> Iterator[Warehouse]:
    """A warehouse with a stream, on the Spark of this run."""
    spark_owner.session()
    with rt.open(tmp_path / "wh") as opened:
        opened.create_stream("s", "k INT, g STRING, v INT", keys=["k"])
        yield opened


def totals(wh: Warehouse, commits: int) -> None:
    """Let a flow follow so many commits, each asked for by itself."""
    flow = rt.Flow("f")
    flow.stream("s").aggregate(by="g", total="sum(v)").into("agg", keys="g")
    with wh.run(flow):
        for k in range(1, commits + 1):
            wh.stream("s").insert([{"k": k, "g": "a", "v": 1}])
            assert wh.read("agg", wait="120s").rows() == [("a", k)]


def test_plans_that_fail_though_no_row_does_are_given_up(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their drains are run by themselves, nothing is lost, and nobody pays for them for ever."""
    tried = []

    def fail(*given: Any, **options: Any) -> Any:
        tried.append(1)
        raise Py4JError("no such method")

    monkeypatch.setattr(planned.PlannedDrain, "run", fail)
    totals(wh, 5)
    assert len(tried) == 3


def test_drains_over_much_state_are_run_by_themselves(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not tried as small ones a second time."""
    monkeypatch.setattr(reach, "TASK_STATE_BYTES", 0)
    reaches = []
    run = execute._Work.run

    def note(self: Any, reach: Any, *guard: Any) -> Any:
        reaches.append(reach)
        return run(self, reach, *guard)

    monkeypatch.setattr(execute._Work, "run", note)
    totals(wh, 3)
    assert reaches == ["sent", "sent"], "the first drain finds no state, and is planned"


@pytest.mark.parametrize("reads_what_came", [True, False])
def test_state_is_summed_up_for_those_who_read_it(wh: Warehouse, monkeypatch: pytest.MonkeyPatch, reads_what_came: bool) -> None:
    """Each drain of a total reads what the ones before have left; new keys meet nothing of it, and their plan serves again. Once is for earlier runs."""
    summed = []
    compact = DrainEngine.compact

    def note(self: DrainEngine, up_to_job: int) -> None:
        summed.append(up_to_job)
        compact(self, up_to_job)

    monkeypatch.setattr(engine, "_FILES_MAX", 3)
    monkeypatch.setattr(DrainEngine, "compact", note)
    if reads_what_came:
        totals(wh, 8)
    else:
        flow = rt.Flow("f")
        flow.stream("s").into("copy", keys="k")
        with wh.run(flow):
            for k in range(1, 9):
                wh.stream("s").insert([{"k": k, "g": "a", "v": 1}])
                assert len(wh.read("copy", wait="120s").rows()) == k
    assert len(summed) >= 2 if reads_what_came else len(summed) == 1, summed


def test_a_small_drain_is_one_task(child: SparkSession, spark_owner: SparkOwner, tmp_path: Path) -> None:
    """Its outputs are several, and some of them begin at what was put aside; a task for each would take longer than what they do."""
    flow = Flow("weights")
    flow.stream("sale").join(flow.stream("item"), on="k").into("sales", keys="id")
    tables = {"sales": ("id BIGINT, k BIGINT, v BIGINT, w BIGINT", ["id"])}
    bench = Bench(flow, child, streams=STREAMS, tables=tables, planned=(spark_owner, tmp_path))
    assert bench.plans is not None
    bench.plans._rows_max = 1000
    bench.put("item", 1, {"k": 1, "w": 2})
    bench.drain(1)
    tracker = child.sparkContext.statusTracker()
    child.sparkContext.setJobGroup("one task", "")
    assert sell(bench, 2) == [{"id": 2, "k": 1, "v": 100, "w": 2}]
    jobs = [info for info in map(tracker.getJobInfo, tracker.getJobIdsForGroup("one task")) if info is not None]
    stages = [stage for job in jobs for stage in map(tracker.getStageInfo, job.stageIds) if stage is not None]
    assert {stage.numTasks for stage in stages} == {1}, stages


def kept_rows(bench: Bench) -> dict[tuple[str, str], tuple[pa.Schema, list[dict[str, Any]]]]:
    """Return what the last drain left of each part of the state, in one order."""
    return {name: (rows.schema, sorted(rows.to_pylist(), key=str)) for name, rows in bench.results[-1].states.items() if isinstance(rows, pa.Table)}


def test_state_that_follows_is_what_spark_would_compute(child: SparkSession, spark_owner: SparkOwner, tmp_path: Path) -> None:
    """Changes of streams on both sides of a join and of look-ups, and keys that come, change and go; the types are those of Spark, too."""
    streams = {
        "sale": ("id BIGINT, k BIGINT, at TIMESTAMP, tags ARRAY<STRING>, box STRUCT<w: INT, h: DECIMAL(9, 2)>", ["id"]),
        "item": ("k BIGINT, w BIGINT, name STRING", ["k"]),
    }
    flow = Flow("weights")
    items = flow.stream("item")
    flow.stream("sale").lookup(items, on="k", take={"called": "name"}).join(items, on="k").into("sales", keys="id")
    tables = {
        "sales": ("id BIGINT, k BIGINT, at TIMESTAMP, tags ARRAY<STRING>, box STRUCT<w: INT, h: DECIMAL(9, 2)>, called STRING, w BIGINT, name STRING", ["id"])
    }
    planned = Bench(flow, child, streams=streams, tables=tables, planned=(spark_owner, tmp_path))
    alone = Bench(flow, child, streams=streams, tables=tables)
    sale = {"at": datetime(2026, 11, 18, tzinfo=UTC), "tags": ["a", None], "box": {"w": 1, "h": Decimal("2.50")}}
    history: list[list[tuple[str, dict[str, Any]]]] = [
        [("item", {"k": 1, "w": 2, "name": "one"}), ("item", {"k": 2, "w": 3, "name": None})],
        [("sale", {"id": 1, "k": 1, **sale}), ("sale", {"id": 2, "k": 2, "at": None, "tags": None, "box": None})],
        [("sale", {"id": 1, "k": 2, **sale}), ("item", {"k": 2, "w": 4, "name": "two"})],
        [("item", {"k": 2}), ("sale", {"id": 3, "k": 1, **sale})],
    ]
    for time, changes in enumerate(history, start=1):
        for bench in (planned, alone):
            for stream, row in changes:
                (bench.put if len(row) > 1 else bench.take)(stream, time, row)
        assert planned.drain(time) == alone.drain(time)
        assert kept_rows(planned) == kept_rows(alone)


def resident(child: SparkSession) -> set[int]:
    """Return the numbers of the relations that stay in Spark's memory."""
    context: Any = child.sparkContext._jsc
    return set(context.getPersistentRDDs())


def test_dimensions_stay_in_memory_as_long_as_plans_serve_again(bench: Bench, child: SparkSession) -> None:
    """The two look-ups read theirs once; a plan that is not used any more lets go of them, and one that follows plans for one drain holds none."""
    assert bench.plans is not None
    for time in (2, 3):
        sell(bench, time)
    plan = bench.plans._plans[-1]
    assert len(plan._resident) == 2 and set(plan._resident) <= resident(child)
    plan.runs = 1  # as if it had served once only
    bench.put("item", 4, {"k": 2, "w": 70})
    bench.drain(4)
    assert sell(bench, 5)[-1]["total"] == 72
    assert bench.plans._plans[-1] is not plan and not bench.plans._plans[-1]._resident
    for time in (6, 7, 8):
        bench.put("item", time, {"k": 2, "w": time})
        bench.drain(time)
        sell(bench, time + 10)
    assert plan not in bench.plans._plans
    assert set(plan._resident).isdisjoint(resident(child))


def test_a_plan_for_few_facts_is_not_run_over_many(child: SparkSession, spark_owner: SparkOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few facts are compared with all versions of their key, many are not; a plan for many has no exchange either, and does for few."""
    monkeypatch.setattr(planned, "_FEW", 2)
    flow = Flow("versions")
    versions = flow.stream("item").history(keys="k", key="sk")
    flow.stream("sale").as_of(versions, on="k", take=["w"]).select("id", "w").into("sales", keys="id")
    bench = Bench(flow, child, streams=STREAMS, tables={"sales": ("id BIGINT, w BIGINT", ["id"])}, planned=(spark_owner, tmp_path))
    for time in (1, 2, 3):
        bench.put("item", time, {"k": 1, "w": time})
    bench.drain(3)
    assert bench.plans is not None
    for time, count in ((4, 1), (5, 5), (6, 1)):
        for number in range(count):
            bench.put("sale", time, {"id": 10 * time + number, "k": 1, "v": 1})
        assert {row["w"] for row in bench.drain(time)[0]["sales"]} == {3}
        assert bench.plans._plans[-1].few == (count <= 2)
        assert bench.plans._plans[-1]._computes_all
