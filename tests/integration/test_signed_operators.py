"""The law of joins and distinct: any history, in any jobs, in any drains, gives at every job what the plain operator gives on the whole sets."""

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StringType

from righttime.pipeline.operators.distinct import distinct
from righttime.pipeline.operators.join import join, left_join, lookup, lookup_or_null
from righttime.pipeline.operators.signed import Signed, consolidate
from righttime.pipeline.spark import SparkOwner
from tests.support import signed_models as model
from tests.support.signed_histories import Changes, Drains, Row, Runner, compare_every_job, drainings, histories, session

JOBS = 5
EXAMPLES = int(os.environ.get("RIGHTTIME_LAW_EXAMPLES", "0"))  # `RIGHTTIME_LAW_EXAMPLES=100` for the long run
LAW = settings(
    max_examples=EXAMPLES or 2,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # shrinking with Spark takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
SHORT_LAW = settings(LAW, max_examples=EXAMPLES or 1)

LEFT = pa.schema([("id", pa.int32()), ("k", pa.int32()), ("m", pa.string())])
RIGHT = pa.schema([("k", pa.int32()), ("M", pa.string()), ("x", pa.string())])
KEYS = st.sampled_from([None, 1, 2, 3])
LEFT_ROWS = st.tuples(st.integers(0, 3), KEYS, st.sampled_from(["a", "b", None]))
RIGHT_ROWS = st.tuples(KEYS, st.sampled_from(["a", "b", None]), st.sampled_from(["x", "y", None]))
LEFT_CHANGES = histories(LEFT, LEFT_ROWS, jobs_max=JOBS)
RIGHT_CHANGES = histories(RIGHT, RIGHT_ROWS, jobs_max=JOBS)


@pytest.fixture(scope="module")
def runner(spark_owner: SparkOwner) -> Runner:
    """One session for the whole file."""
    return Runner(session(spark_owner.child()))


def frame_of(signed: Signed | None) -> Any:
    return None if signed is None else signed.rows()


@LAW
@given(left=LEFT_CHANGES, right=RIGHT_CHANGES, drains=drainings(JOBS))
def test_an_inner_join_is_exact_at_every_job(runner: Runner, left: Changes, right: Changes, drains: Drains) -> None:
    """Two key columns, nulls among them, mixed actions on both sides, weights beyond one."""

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        made, parts = join(deltas[0], deltas[1], state, on=[("k", "k"), ("m", "M")], take={"x": "x", "m2": "M"})
        return {"out": frame_of(made)}, parts

    found = runner.run([left, right], drains, operate).get("out", [])
    expected = lambda job: model.joined(left.at(job), right.at(job), on=[(1, 0), (2, 1)], take=[2, 1])  # noqa: E731
    compare_every_job(found, expected, jobs_max=JOBS, width=5)


@LAW
@given(left=LEFT_CHANGES, right=RIGHT_CHANGES, drains=drainings(JOBS))
def test_a_left_join_is_exact_at_every_job(runner: Runner, left: Changes, right: Changes, drains: Drains) -> None:
    """Rows without counterpart get nulls, also in a key column that is taken, and lose them when a counterpart comes."""

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        made, parts = left_join(deltas[0], deltas[1], state, on=[("k", "k")], take={"x": "x", "k2": "k"}, types={"x": StringType(), "k2": IntegerType()})
        return {"out": frame_of(made)}, parts

    found = runner.run([left, right], drains, operate).get("out", [])
    expected = lambda job: model.left_joined(left.at(job), right.at(job), on=[(1, 0)], take=[2, 0])  # noqa: E731
    compare_every_job(found, expected, jobs_max=JOBS, width=5)


VERSIONS = st.lists(st.tuples(st.integers(1, JOBS), st.integers(1, 3), st.sampled_from(["x", "y", None, "gone"])), min_size=8, max_size=16)


@LAW
@given(left=LEFT_CHANGES, versions=VERSIONS, drains=drainings(JOBS))
def test_a_look_up_finds_the_one_row_or_says_what_is_missing(runner: Runner, left: Changes, versions: list[Row], drains: Drains) -> None:
    """The right side has one row for each key; what is found, what is missing, and both together are exact at every job."""
    right = one_row_for_each_key(versions)

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        found, missing, parts = lookup(deltas[0], deltas[1], state, on=[("k", "k")], take={"x": "x"})
        both, _ = lookup_or_null(deltas[0], deltas[1], state, on=[("k", "k")], take={"x": "x"}, types={"x": StringType()})
        return {"found": frame_of(found), "missing": frame_of(missing), "both": frame_of(both)}, parts

    def missing(job: int) -> Counter[Row]:
        keys = {row[0] for row in right.at(job)}
        return Counter({row: n for row, n in left.at(job).items() if row[1] not in keys})

    made = runner.run([left, right], drains, operate)
    found = lambda job: model.joined(left.at(job), right.at(job), on=[(1, 0)], take=[2])  # noqa: E731
    both = lambda job: model.left_joined(left.at(job), right.at(job), on=[(1, 0)], take=[2])  # noqa: E731
    compare_every_job(made.get("both", []), both, jobs_max=JOBS, width=4)
    compare_every_job(made.get("found", []), found, jobs_max=JOBS, width=4)
    compare_every_job(made.get("missing", []), missing, jobs_max=JOBS, width=3)


def one_row_for_each_key(versions: list[Row]) -> Changes:
    """Each version takes the place of the key's row, or removes it."""
    living: dict[int, Row] = {}
    rows: list[Row] = []
    for job, key, text in sorted(versions, key=lambda one: one[0]):
        if key in living:
            rows.append((*living.pop(key), job, -1))
        if text != "gone":
            living[key] = (key, None, text)
            rows.append((*living[key], job, 1))
    return Changes(RIGHT, rows)


ODD = pa.schema([("a b", pa.int32()), ("b`", pa.float64()), ("c.d", pa.string())])
ODD_ROWS = st.tuples(st.sampled_from([None, 1]), st.sampled_from([None, 0.0, -0.0, float("nan")]), st.sampled_from([None, "s"]))


@LAW
@given(changes=histories(ODD, ODD_ROWS, jobs_max=JOBS), drains=drainings(JOBS))
def test_distinct_is_exact_at_every_job(runner: Runner, changes: Changes, drains: Drains) -> None:
    """Nulls are equal, NaN is equal to itself, -0.0 is 0.0; a row that goes and comes back in one drain is there once. Column names may be odd."""

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        made, parts = distinct(deltas[0], state)
        return {"out": frame_of(made)}, parts

    found = runner.run([changes], drains, operate).get("out", [])
    assert {row[-1] for row in found} <= {1, -1}
    compare_every_job(found, lambda job: model.distinct(changes.at(job)), jobs_max=JOBS, width=3)


def test_without_changes_there_is_nothing() -> None:
    """What is known to be empty is not planned at all; no session is needed for it."""
    assert join(None, None, {}, on=[("k", "k")], take={}) == (None, {})
    assert left_join(None, None, {}, on=[("k", "k")], take={}, types={}) == (None, {})
    assert lookup(None, None, {}, on=[("k", "k")], take={}) == (None, None, {})
    assert distinct(None, {}) == (None, {})


# AT-11: R(k, r) and S(k, s), each case with a k of its own. Job 1 makes the start, job 2 the changes.
AT_11 = {
    "a": ([], ["s0"], [("r1", 1)], [("s0", -1)], set()),
    "b": (["r0"], ["s0"], [("r0", -1), ("r1", 1)], [("s0", -1), ("s1", 1)], {("r0", "s0", -1), ("r1", "s1", 1)}),
    "c": (["r0"], ["s0"], [("r0", -1), ("r1", 1)], [("s1", 1)], {("r0", "s0", -1), ("r1", "s0", 1), ("r1", "s1", 1)}),
    "d": (["r0"], ["s0"], [("r0", -1)], [("s0", -1)], {("r0", "s0", -1)}),
}


@pytest.mark.parametrize("drains", [Drains([range(1, 3)]), Drains([range(1, 2), range(2, 3)])], ids=["one drain", "two drains"])
def test_at_11_mixed_actions_on_both_sides(runner: Runner, drains: Drains) -> None:
    """Inserts, deletes and updates on both sides of a join in one job give exactly the net pairs."""
    schema = pa.schema([("k", pa.string()), ("v", pa.string())])
    left, right = Changes(schema, []), Changes(schema, [])
    for case, (r_old, s_old, r_new, s_new, _) in AT_11.items():
        for side, old, new in ((left, r_old, r_new), (right, s_old, s_new)):
            side.rows.extend([(case, row, 1, 1) for row in old] + [(case, row, 2, weight) for row, weight in new])

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        made, parts = join(deltas[0], deltas[1], state, on=[("k", "k")], take={"s": "v"})
        return {"out": frame_of(consolidate(made))}, parts

    found = runner.run([left, right], drains, operate).get("out", [])
    for case, (*_, expected) in AT_11.items():
        assert {(row[1], row[2], row[-1]) for row in found if (row[0], row[-2]) == (case, 2)} == expected, case


@LAW
@given(left=LEFT_CHANGES, right=RIGHT_CHANGES, drains=drainings(JOBS))
def test_at_12_the_three_forms_of_the_join_agree(runner: Runner, left: Changes, right: Changes, drains: Drains) -> None:
    """A13: signed sets on Spark, new/old states and tag algebra in plain Python give the same changes in every job."""
    # New/old and tag algebra are about sets: a row is there or not.
    left, right = as_set(left), as_set(right)

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        made, parts = join(deltas[0], deltas[1], state, on=[("k", "k")], take={"n": "M", "x": "x"})
        return {"out": frame_of(consolidate(made))}, parts

    found = runner.run([left, right], drains, operate).get("out", [])
    for job in range(1, JOBS + 1):
        signed = {(row[:-2], row[-1]) for row in found if row[-2] == job}
        assert signed == new_and_old(left, right, job) == tag_algebra(left, right, job)


def as_set(changes: Changes) -> Changes:
    """Return changes of the same rows, each there at most once."""
    rows = []
    for job in range(1, JOBS + 1):
        was, now = set(changes.at(job - 1)), set(changes.at(job))
        rows += [(*row, job, -1) for row in was - now] + [(*row, job, 1) for row in now - was]
    return Changes(changes.schema, rows)


def pairs(left: set[Row], right: set[Row]) -> set[Row]:
    return {(*one, *other[1:]) for one in left for other in right if one[1] is not None and one[1] == other[0]}


def new_and_old(left: Changes, right: Changes, job: int) -> set[tuple[Row, int]]:
    """A13.2: inserts join the new states, deletes the old ones."""
    old_left, new_left, old_right, new_right = (set(side.at(at)) for side in (left, right) for at in (job - 1, job))
    came = pairs(new_left - old_left, new_right) | pairs(new_left, new_right - old_right)
    went = pairs(old_left - new_left, old_right) | pairs(old_left, old_right - new_right)
    return {(row, 1) for row in came} | {(row, -1) for row in went}


def tag_algebra(left: Changes, right: Changes, job: int) -> set[tuple[Row, int]]:
    """A13.3: rows with their life [from, to) in job numbers; a pair lives while both do."""
    found = set()
    for one, begun, ended in lives(left):
        for other, begun_too, ended_too in lives(right):
            begin, end = max(begun, begun_too), min(ended, ended_too)
            if begin < end and one[1] is not None and one[1] == other[0]:
                found |= {((*one, *other[1:]), sign) for at, sign in ((begin, 1), (end, -1)) if at == job}
    return found


def lives(changes: Changes) -> list[tuple[Row, int, int]]:
    out, begun = [], {}
    for *row, job, weight in changes.rows:
        if weight > 0:
            begun[tuple(row)] = job
        else:
            out.append((tuple(row), begun.pop(tuple(row)), job))
    return out + [(row, job, JOBS + 1) for row, job in begun.items()]
