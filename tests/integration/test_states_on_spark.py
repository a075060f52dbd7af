"""Operators on a store of state: summed up, opened again and cut off between drains, it gives what it would have given."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from righttime.pipeline.nodes import Measure
from righttime.pipeline.operators.aggregate import aggregate
from righttime.pipeline.operators.join import left_join
from righttime.pipeline.operators.query import frame_of
from righttime.pipeline.operators.signed import Signed
from righttime.pipeline.reach import ONE_TASK, set_up
from righttime.pipeline.spark import SparkOwner
from righttime.pipeline.states import StateStore
from tests.integration.test_signed_operators import JOBS, SHORT_LAW
from tests.support import signed_models as model
from tests.support.signed_histories import Changes, Drains, Row, Runner, compare_every_job, drainings, histories, rows_of, session

SCHEMA = pa.schema([("g", pa.string()), ("v", pa.float64())])
ROWS = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([None, 0.25, -0.0, float("nan"), 7.5]))
MEASURES = [Measure("n", "count", "*"), Measure("s", "sum", "v"), Measure("high", "max", "v"), Measure("many", "count_distinct", "v")]


@pytest.fixture(scope="module")
def runner(spark_owner: SparkOwner) -> Runner:
    """One session for the whole file."""
    return Runner(session(spark_owner.child()))


def drained(runner: Runner, store: StateStore, changes: Changes, jobs: range) -> list[Row]:
    """Run an aggregate over one drain, keep its state, and return its changes."""
    delta = runner.signed(changes, jobs, "sent")
    made, parts = aggregate(delta, store.frames(runner.child, "agg", up_to_job=jobs.start - 1), by=["g"], measures=MEASURES)
    found = [] if made is None else rows_of(frame_of(made.rows()).toArrow())
    store.append(jobs.start, jobs.stop - 1, {("agg", part): frame_of(frame).toArrow() for part, frame in parts.items()})
    return found


@SHORT_LAW
@given(changes=histories(SCHEMA, ROWS, jobs_max=JOBS), drains=drainings(JOBS), again=st.booleans())
def test_the_law_holds_on_a_store_that_is_summed_up_and_opened_again(
    runner: Runner, tmp_path_factory: pytest.TempPathFactory, changes: Changes, drains: Drains, again: bool
) -> None:
    """After each drain everything is summed up; or the drain is taken back in its middle and its rest done anew."""
    folder = tmp_path_factory.mktemp("states")
    store = StateStore(folder, "f")
    found: list[Row] = []
    for jobs in drains.groups:
        made = drained(runner, store, changes, jobs)
        if again and len(jobs) > 1:
            store.forget_after(jobs.start)
            made = [row for row in made if row[-2] <= jobs.start] + drained(runner, store, changes, jobs[1:])
        else:
            store.compact(jobs.stop - 1, files_max=0)
        found += made
        store = StateStore(folder, "f")
    measures = [model.count_all, model.total(1), model.greatest(1), model.count_distinct(1)]
    compare_every_job(found, lambda job: model.grouped(changes.at(job), by=[0], measures=measures), jobs_max=JOBS, width=5)


def test_a_plan_made_before_a_compaction_still_reads_what_it_saw(runner: Runner, tmp_path: Path) -> None:
    """Its files stay until the next drain is appended; a plan made after it reads the sum."""
    store = StateStore(tmp_path, "f")
    table = pa.table({"k": pa.array([1, 2], pa.int32()), "x": ["a", None], "_job": [1, 1], "_w": [1, 1]})
    store.append(1, 1, {("join", "right"): table})
    store.append(2, 2, {("join", "right"): pa.table({"k": pa.array([1, 3], pa.int32()), "x": ["a", "c"], "_job": [2, 2], "_w": [-1, 1]})})
    left = Changes(pa.schema([("k", pa.int32())]), [(1, 3, 1), (2, 3, 1), (3, 3, 1)])

    def plan() -> Signed | None:
        delta = runner.signed(left, range(3, 4), "sent")
        types = {"x": runner.child.createDataFrame(table).schema["x"].dataType}
        return left_join(delta, None, store.frames(runner.child, "join", up_to_job=2), on=[("k", "k")], take={"x": "x"}, types=types)[0]

    before = plan()
    assert store.compact(2, files_max=1) == 1
    after = plan()
    assert before is not None and after is not None
    expected = Counter([(1, None, 3, 1), (2, None, 3, 1), (3, "c", 3, 1)])
    assert Counter(rows_of(frame_of(before.rows()).toArrow())) == expected
    assert Counter(rows_of(frame_of(after.rows()).toArrow())) == expected
    assert store.table("join", "right").num_rows == 2  # type: ignore[union-attr]


def test_a_small_drain_leaves_no_wrong_size_of_state_behind(runner: Runner, tmp_path: Path) -> None:
    """A relation serves several drains; a large drain that took it for tiny would send it to every executor."""
    store = StateStore(tmp_path / "states", "print")
    store.append(1, 1, {("join", "left"): pa.table({"k": [1, 2, 3], "_job": [1, 1, 1], "_w": [1, 1, 1]})})

    def size() -> int:
        frame = store.frame(runner.child, "join", "left")
        assert frame is not None
        frame.createOrReplaceTempView("state_of_test")
        plan: Any = runner.child.sql("SELECT * FROM state_of_test")._jdf.queryExecution().optimizedPlan()
        return int(str(plan.stats().sizeInBytes()))

    large = size()
    with set_up(runner.child, ONE_TASK):
        small = size()
    assert small < 100 < large
    assert size() == large
