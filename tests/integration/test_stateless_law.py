"""The law of steps that keep no state: any history, in any jobs, in any drains, gives at every job what the step makes of the whole rows."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from righttime.pipeline import execute
from righttime.pipeline.flow import Flow
from righttime.pipeline.spark import SparkOwner
from righttime.testing.reference.recompute import recompute
from tests.integration.test_random_flows import feed, oracle_changes, repeated, shifted
from tests.integration.test_signed_operators import JOBS, SHORT_LAW
from tests.support.flows import Bench
from tests.support.signed_histories import Drains, drainings, in_several_jobs, session

Happened = list[tuple[int, str, int, int | None, int | None, int]]
STREAMS = {name: ("id BIGINT, k BIGINT, v BIGINT", ["id"]) for name in "rs"}
VALUES = st.sampled_from([None, 0, 1, 2, 5])
# Time, stream, id, k, v, and what happens: a row comes, changes or goes. Few examples are tried: none of them is small.
STEPS = st.tuples(st.integers(1, JOBS), st.sampled_from("rs"), st.integers(0, 5), VALUES, VALUES, st.integers(0, 3))
HISTORIES = st.lists(STEPS, min_size=24, max_size=40).filter(in_several_jobs)


def every_step() -> tuple[Flow, dict[str, tuple[str, list[str]]]]:
    """Return a flow with a target for each step, behind the stream and nothing else."""
    flow = Flow("steps")
    r, s = flow.stream("r"), flow.stream("s")
    r.where("v > 1 OR k = 2").into("where", keys=["id"])
    r.select("id", k="v", v="k").into("select", keys=["id"])
    r.derive(v="v * 2 - k", more="coalesce(k, 0) + 1").into("derive", keys=["id"])
    r.expect("few", "v < 2").into("expect_and_keep", keys=["id"])
    r.expect("most", "v < 5", otherwise="drop").into("expect_or_drop", keys=["id"])
    r.select("v", k="id").apply(shifted, "k BIGINT, v BIGINT").into("apply_same", keys=["k"])
    r.select("v", k="id").apply(repeated, "k BIGINT, v BIGINT", rows="any").into("apply_any", keys=["k"], additive=["v"])
    r.derive(id="id * 2").union(s.derive(id="id * 2 + 1")).into("union", keys=["id"])
    pairs, rows = ("k BIGINT, v BIGINT", ["k"]), ("id BIGINT, k BIGINT, v BIGINT", ["id"])
    tables = {"apply_same": pairs, "apply_any": pairs, "derive": ("id BIGINT, k BIGINT, v BIGINT, more BIGINT", ["id"])}
    return flow, {target.table: tables.get(target.table, rows) for target in flow.targets}


@pytest.fixture(scope="module")
def child(spark_owner: SparkOwner) -> SparkSession:
    """One session for the file."""
    return session(spark_owner.child())


@SHORT_LAW
@given(happened=HISTORIES, drains=drainings(JOBS))
def test_each_step_without_state_is_exact_at_every_job(child: SparkSession, happened: Happened, drains: Drains) -> None:
    """Where, select, derive, expect, apply and union, each into a table of its own; what is expected and not met is counted in the job in which it comes."""
    flow, tables = every_step()
    bench = Bench(flow, child, streams=STREAMS, tables=tables)
    feed(bench, happened)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "reach_of", lambda inputs: drains.reach)
        for jobs in drains.groups:
            for job, found in zip(jobs, bench.drain(*jobs), strict=True):
                expected = recompute(flow, oracle_changes(bench), columns={name: ["id", "k", "v"] for name in STREAMS}, up_to_us=job)
                for table, relation in expected.tables.items():
                    assert Counter(tuple(row[name] for name in relation.columns) for row in found[table]) == relation.bag(), (table, job)
    unmet: Counter[Any] = Counter()
    for result in bench.results:
        unmet.update({(each.name, each.job): each.rows for each in result.expectations})
    came = [change for change in bench.streams["r"].changes if change["_w"] > 0]
    least = {"few": 2, "most": 5}
    assert unmet == Counter((name, change["_commit_timestamp"]) for name, bad in least.items() for change in came if change["v"] is None or change["v"] >= bad)
