"""How much one drain takes, when it begins by itself, and what becomes of the work of a query that is given up.

The runner, the catalyst and the streams are the real ones; the drain itself is a dictionary. Times are a test's.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from errno import ENOSPC
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError

from righttime.errors import FreshnessUnavailable
from righttime.flows.jobs import FlowJob, fused
from righttime.flows.schedule import Schedule
from righttime.pipeline.careful import GROUP, DrainGivenUp, raise_if_given_up
from tests.support.flow_stage import Stage, Turns
from tests.support.plain_flow import run_plain, until


@contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[Stage]:
    """Give a stage, and close it."""
    stage = Stage(folder / "wh", **settings)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with opened(tmp_path) as found:
        yield found


@pytest.fixture
def two_jobs(tmp_path: Path) -> Iterator[Stage]:
    with opened(tmp_path, drain_jobs_max=2) as found:
        yield found


@pytest.fixture
def three_rows(tmp_path: Path) -> Iterator[Stage]:
    with opened(tmp_path, drain_rows_max=3) as found:
        yield found


def by_turns(stage: Stage) -> tuple[Turns, "Future[dict[int, int]]"]:
    """Run the flow, and let a drain be computed only when it is its turn. The first has begun, with the one job of a query: what comes now waits behind it."""
    stage.run(held=True)
    assert stage.engine is not None and stage.runner is not None
    stage.engine.gate = turns = Turns()
    asked, queue = ask_after(stage, 1), stage.runner._queue
    until(stage.wh, lambda: queue.unpublished == 1 and not queue.jobs())
    return turns, asked


def ask_after(stage: Stage, *keys: int) -> "Future[dict[int, int]]":
    """Ask for all there is after a commit with each of these keys; the query has its cut before anything else comes."""
    assert stage.runner is not None
    waiting = len(stage.runner.link.cuts)
    for k in keys:
        stage.insert(k, k)
    stage.clock.advance(1)
    asked = stage.ask()
    stage.waiting(waiting + 1)
    return asked


def jobs(rows: Sequence[int]) -> list[FlowJob]:
    """Return prepared jobs with so many changes."""
    return [FlowJob(number, 0, 0, 0, "query", {"s": count}) for number, count in enumerate(rows, start=1)]


# -- size ------------------------------------------------------------------------------------------------------------


@given(rows=st.lists(st.integers(0, 5), min_size=1, max_size=9), rows_max=st.integers(1, 8), jobs_max=st.integers(1, 6))
def test_a_drain_takes_as_many_jobs_as_fit_and_always_one(rows: list[int], rows_max: int, jobs_max: int) -> None:
    """One job more would be too many jobs, or too many rows; a job that is too large comes alone."""
    taken = fused(jobs(rows), rows_max=rows_max, jobs_max=jobs_max)

    fits = [count <= jobs_max and total <= rows_max for count, total in enumerate(accumulate(rows), start=1)]
    assert taken == max(fits.index(False) if False in fits else len(rows), 1)


def test_the_first_of_many_queries_is_not_held_by_the_last(two_jobs: Stage) -> None:
    """Five cuts, two jobs to a drain: each query is answered when its own drain is done, while those behind it have not begun.

    | drain | jobs | answered |
    |---|---|---|
    | 1 | 1 | query 1 |
    | 2 | 2, 3 | queries 2 and 3 |
    | 3 | 4, 5 | queries 4 and 5 |
    """
    turns, first = by_turns(two_jobs)
    asked = [first, *(ask_after(two_jobs, k) for k in range(2, 6))]
    expected = [{k: k for k in range(1, last + 1)} for last in range(1, 6)]
    begin = 0
    for end in (1, 3, 5):
        assert not any(query.done() for query in asked[begin:])
        turns.give()
        assert [query.result(20) for query in asked[begin:end]] == expected[begin:end]
        begin = end
    assert two_jobs.engine is not None and two_jobs.engine.drains == [[1], [2, 3], [4, 5]]


def test_a_large_job_does_not_hold_the_query_before_it(three_rows: Stage) -> None:
    """The three rows that wait for the last query are not drained with the one row of the query before it."""
    turns, first = by_turns(three_rows)
    small, large = ask_after(three_rows, 2), ask_after(three_rows, 3, 4, 5)
    for query, last in (first, 1), (small, 2):
        turns.give()
        assert query.result(20) == {k: k for k in range(1, last + 1)}
        assert not large.done()
    turns.give()
    assert large.result(20) == {k: k for k in range(1, 6)}
    assert three_rows.engine is not None and three_rows.engine.drains == [[1], [2], [3]]


def test_a_cut_with_many_rows_is_parted_at_commits(three_rows: Stage) -> None:
    """Ten commits and one query: no drain takes more than three rows, the parts before the last are nobody's, and the answer has every row once."""
    stage = three_rows
    for k in range(10):
        stage.insert(k, k)
        stage.clock.advance(0.001)
    stage.run()
    assert stage.runner is not None
    answer = stage.wh.read("t", wait="20s")
    assert sorted(answer.rows()) == [(k, k) for k in range(10)]
    until(stage.wh, lambda: stage.published() == 4)
    reports = stage.runner.reports()
    assert [job.rows_in for job in reports] == [3, 3, 3, 1]
    assert [job.kind for job in reports] == ["background"] * 3 + ["query"]
    assert reports[-1].horizon_us == answer.receipt.cut_us
    assert stage.engine is not None and stage.engine.drains == [[1], [2], [3], [4]]


def test_no_more_changes_are_in_memory_than_the_next_drain_takes(three_rows: Stage) -> None:
    """However many wait: behind a drain that is being computed the jobs of one more are prepared, the others when their turn has come."""
    stage = three_rows
    for k in range(30):
        stage.insert(k, k)
        stage.clock.advance(0.001)
    stage.run(held=True)
    assert stage.runner is not None and stage.engine is not None
    asked, queue = stage.ask(), stage.runner._queue
    until(stage.wh, lambda: len(queue.in_drain()) == 1 and any(job.inputs for job in queue.jobs()))
    assert not threading.Event().wait(0.1)
    assert [sum(rows.num_rows for rows in job.inputs.values()) for job in queue.jobs()] == [3, *[0] * 8]
    stage.engine.gate.set()
    assert asked.result(20) == {k: k for k in range(30)}


def test_a_commit_is_never_parted(three_rows: Stage) -> None:
    """One of five rows is a job and a drain of its own, between what was committed before and after it."""
    stage = three_rows
    stage.insert(0, 0)
    stage.wh.stream("s").insert([{"k": k, "v": k} for k in range(1, 6)])
    stage.insert(6, 6)
    stage.clock.advance(1)
    stage.run()
    assert stage.runner is not None
    assert stage.query() == {k: k for k in range(7)}
    until(stage.wh, lambda: stage.published() == 3)
    assert [job.rows_in for job in stage.runner.reports()] == [1, 5, 1]


# -- what its jobs leave in memory -----------------------------------------------------------------------------------


def test_jobs_of_one_drain_are_stored_one_by_one_where_memory_cannot_hold_them_together(tmp_path: Path) -> None:
    """The keys of a hundred changed rows take 2,000 bytes: two jobs more than fill what a table may hold, and neither they nor the next wait for room."""
    with opened(tmp_path, operations_bytes_max=3000, full_wait_s=0) as stage:
        assert [set(answer.values()) for answer in updated_together(stage, 4)] == [{0}, {1}, {2}, {3}, {4}]
        assert stage.engine is not None and stage.engine.drains == [[1], [2], [3, 4, 5]]


def test_a_flow_stores_its_targets_when_no_query_keeps_it_from_that_any_more(tmp_path: Path) -> None:
    """One waits for a source, and has a cut: nothing later is stored. When it has given up, what the flow has is stored, and the next job published."""
    with opened(tmp_path, operations_bytes_max=3000) as stage, ExitStack() as waiting:
        catalyst = stage.wh._writer("test").catalyst
        stage.clock.advance(1)
        waiting.enter_context(catalyst.admitted(["t"])).cut_us = catalyst.authority.read_us()
        answered = stage.pool.submit(updated_together, stage, 3)
        until(stage.wh, lambda: catalyst.table("t").bytes_operations == 4000)
        waiting.close()
        for _ in range(12):  # seconds; after ten it would give up
            if not answered.done():
                stage.clock.advance(1)
                with catalyst.lock:
                    catalyst.space.notify_all()
                wait([answered], 0.3)
        assert [set(answer.values()) for answer in answered.result(20)] == [{0}, {1}, {2}, {3}]


def test_a_flow_goes_on_where_its_targets_cannot_be_stored_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was published is in memory and in the streams; it is stored after a later job."""
    with opened(tmp_path, operations_bytes_max=5000) as stage:
        store = stage.wh._writer("test").mover._store
        commit, errors = store.commit, [OSError(ENOSPC, "No space left on device")]

        def full(*given: Any, **options: Any) -> int:
            if errors:
                raise errors.pop()
            return commit(*given, **options)

        monkeypatch.setattr(store, "commit", full)
        assert [set(answer.values()) for answer in updated_together(stage, 3)] == [{0}, {1}, {2}, {3}]
        assert not errors and stage.runner is not None and stage.runner.running
        assert stage.wh.status().tables[0].rows_stored == 100


def updated_together(stage: Stage, times: int) -> list[dict[int, int]]:
    """Change all of a hundred rows several times and ask each time; all but the first wait for one drain. Returns what was there before, and the answers."""
    stage.wh.stream("s").insert([{"k": k, "v": 0} for k in range(100)])
    stage.run(relieved=True)
    stage.clock.advance(1)
    answers = [stage.query()]
    assert stage.engine is not None and stage.runner is not None
    stage.engine.gate.clear()
    asked, queue = [], stage.runner._queue
    for v in range(1, times + 1):
        stage.wh.stream("s").update([{"k": k, "v": v} for k in range(100)])
        stage.clock.advance(1)
        asked.append(stage.ask())
        until(stage.wh, lambda: queue.unpublished == len(asked) and len(queue.in_drain()) == 1)
    stage.engine.gate.set()
    return answers + [query.result(20) for query in asked]


# -- a drain that is given up ----------------------------------------------------------------------------------------


def test_a_drain_that_is_given_up_is_not_waited_for_and_its_changes_are_taken_by_the_next_run(tmp_path: Path) -> None:
    """Nothing of it is published, giving it up is no failure, and the flow that runs again has all of it, once."""
    with opened(tmp_path) as stage:
        stage.insert(1, 1)
        stage.run()
        assert stage.query() == {1: 1}
        assert stage.runner is not None and stage.engine is not None
        stage.engine.gate.clear()
        stage.insert(2, 2)
        stage.clock.advance(1)
        waiting = stage.ask(wait="300ms")
        until(stage.wh, lambda: stage.runner is not None and stage.runner.under_way() is not None)

        stage.runner.give_up()
        stage.runner.stop(wait_s=20)

        assert (stage.runner.running, stage.runner.failure, stage.published()) == (False, None, 1)
        with pytest.raises(FreshnessUnavailable, match="the flow does not run"):
            waiting.result(20)
        stage.run()
        assert stage.query() == {1: 1, 2: 2}


def test_no_row_is_searched_for_in_a_drain_that_was_given_up() -> None:
    """Spark tells of a cancelled job as of any other failure; jobs that somebody else has cancelled are tried again."""
    ours = Py4JError(f"[SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group {GROUP}1f SQLSTATE: XXKDA")
    with pytest.raises(DrainGivenUp):
        raise_if_given_up(ours)
    raise_if_given_up(Py4JError("[SPARK_JOB_CANCELLED] Job 7 cancelled as part of cancellation of all jobs"))
    raise_if_given_up(Py4JError("[DIVIDE_BY_ZERO] Division by zero."))


# -- a query that is given up ----------------------------------------------------------------------------------------


def test_at_27_a_query_that_runs_out_of_time_leaves_its_job(tmp_path: Path) -> None:
    """It keeps nothing from being stored, nobody from running, and the next query has its job."""
    with opened(tmp_path, queries_max=1) as stage:
        stage.run(held=True)
        stage.insert(1, 1)
        stage.clock.advance(1)
        waiting = stage.ask(wait="300ms")
        stage.waiting(1)
        assert len(admissions(stage)) == 1
        stage.clock.advance(0.4)
        with pytest.raises(FreshnessUnavailable, match="is being computed"):
            waiting.result(20)
        goes_on(stage)


def test_at_27_ctrl_c_while_a_query_waits_leaves_its_job(tmp_path: Path) -> None:
    """The same, wherever in the wait it is pressed: the query is gone, its job is not."""
    with opened(tmp_path, queries_max=1) as stage:
        stage.run(held=True)
        stage.insert(1, 1)
        stage.clock.advance(1)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            pressed = stage.pool.submit(press_ctrl_c, stage)
            with pytest.raises(KeyboardInterrupt):
                stage.query()
            pressed.result(20)
        finally:
            signal.signal(signal.SIGINT, before)
        goes_on(stage)


def press_ctrl_c(stage: Stage) -> None:
    """Wait for a query that waits, and interrupt it."""
    stage.waiting(1)
    os.kill(os.getpid(), signal.SIGINT)


def admissions(stage: Stage) -> list[Any]:
    """Return the queries that have come and not begun."""
    catalyst = stage.wh._writer("test").catalyst
    with catalyst.lock:
        return list(catalyst.admissions)


def goes_on(stage: Stage) -> None:
    """See that a query was given up and nothing else: no admission and no lease is left, its job is published, and what comes after it is one of its own."""
    assert stage.engine is not None and stage.runner is not None
    catalyst = stage.wh._writer("test").catalyst
    assert admissions(stage) == [] and len(catalyst.leases) == 0
    stage.insert(2, 2)
    stage.clock.advance(1)
    after = stage.ask()
    stage.waiting(2)
    stage.engine.gate.set()
    assert after.result(20) == {1: 1, 2: 2}
    until(stage.wh, lambda: stage.published() == 2)
    assert [(job.kind, job.rows_in) for job in stage.runner.reports()] == [("query", 1), ("query", 1)]
    stage.wh.materialize("t")
    assert catalyst.table("t").stored_us == stage.runner.link.horizon_us, "nobody is waited for"
    assert stage.query() == {1: 1, 2: 2}


# -- a refresh policy ------------------------------------------------------------------------------------------------


def test_a_flow_with_refresh_immediate_takes_each_commit_unasked(stage: Stage) -> None:
    """As the flow declares it, without a query."""
    stage.runner, stage.engine = run_plain(stage.wh, {"t": "s"}, refresh="immediate")
    for k in range(3):
        stage.insert(k, k)
        stage.clock.advance(0.001)
        until(stage.wh, lambda: stage.published() == k + 1)  # noqa: B023 - called at once
    assert [(job.kind, job.rows_in) for job in stage.runner.reports()] == [("background", 1)] * 3
    assert stage.query(freshness="1 min") == {0: 0, 1: 1, 2: 2}


def test_a_commit_that_comes_while_what_a_cut_left_is_counted_is_taken_unasked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the last one for long: nothing that comes later counts it again."""
    feed = stage.wh._flows("test").feed
    count, late = feed.rows, [lambda: stage.insert(2, 2)]

    def counted(streams: Sequence[str], after_us: int, *until_us: int) -> dict[str, int]:
        found = count(streams, after_us, *until_us)
        if not until_us and stage.runner is not None and stage.runner.queue() and late:
            late.pop()()
        return found

    stage.runner, stage.engine = run_plain(stage.wh, {"t": "s"}, refresh="immediate")
    monkeypatch.setattr(feed, "rows", counted)
    stage.insert(1, 1)
    until(stage.wh, lambda: stage.published() == 2)
    assert not late and [job.rows_in for job in stage.runner.reports()] == [1, 1]


def test_a_commit_that_comes_while_a_flow_starts_is_taken_unasked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits was counted before, and the flow is told of commits from later on."""
    flows = stage.wh._flows("test")
    schedule = flows._schedule

    def made(*given: Any) -> Schedule:
        found = schedule(*given)
        stage.insert(1, 1)
        return found

    monkeypatch.setattr(flows, "_schedule", made)
    stage.runner, stage.engine = run_plain(stage.wh, {"t": "s"}, refresh="immediate")
    until(stage.wh, lambda: stage.published() == 1)


def test_a_flow_with_refresh_every_takes_what_has_come_in_each_interval(tmp_path: Path) -> None:
    """Nothing before five seconds have passed since the last cut, and then all of it; the triggers of the settings are those of a flow on demand."""
    with opened(tmp_path, background_idle_s=0) as stage:
        stage.runner, stage.engine = run_plain(stage.wh, {"t": "s"}, refresh="every 5s")
        for turn in range(2):
            for k in range(2 * turn, 2 * turn + 2):
                stage.insert(k, k)
                stage.clock.advance(2)
            assert not threading.Event().wait(0.1) and stage.published() == turn
            stage.clock.advance(1)
            with stage.wh._writer("test").catalyst.lock:
                stage.runner.link.nudge()  # the time is the test's, and nobody else knows that it has passed
            until(stage.wh, lambda: stage.published() == turn + 1)  # noqa: B023 - called at once
        assert [(job.kind, job.rows_in) for job in stage.runner.reports()] == [("background", 2)] * 2


@pytest.mark.parametrize(
    ("settings", "passed_s", "published"), [({"background_idle_s": 3}, 4, 1), ({"background_idle_s": 0}, 4, 0), ({"background_rows": 2}, 0, 1)]
)
def test_a_flow_on_demand_takes_what_the_settings_say(tmp_path: Path, settings: dict[str, Any], passed_s: float, published: int) -> None:
    """Three rows: after an idle time, never, or because they are more than two."""
    with opened(tmp_path, **settings) as stage:
        stage.runner, stage.engine = run_plain(stage.wh, {"t": "s"}, refresh="on_demand")
        stage.wh.stream("s").insert([{"k": k, "v": k} for k in range(3)])
        stage.clock.advance(passed_s)
        if published:
            until(stage.wh, lambda: stage.published() == 1)
        assert not threading.Event().wait(0.1) and stage.published() == published
