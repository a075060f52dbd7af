"""Cuts, admission and the schedule: AT-1 to AT-5, AT-26, AT-27, AT-29 and AT-31 on the reference engine."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from righttime.pipeline.admission import background_cut, fewest_cuts
from righttime.pipeline.chain import Begin, Chain, Commit
from righttime.testing.reference.checker import Begun, Committed, misplaced, violations
from righttime.testing.reference.engine import Engine
from righttime.testing.reference.options import Options, Stopped
from righttime.testing.reference.rows import insert, update
from righttime.testing.reference.sinks import KeyedSink

WAIT_S = 5.0


def s(seconds: float) -> int:
    """Return seconds as microseconds."""
    return round(seconds * 1_000_000)


def identity(**options: Any) -> Engine:
    """Return an engine that keeps stream `source`, rows (k, v), as table `t`."""
    return Engine(lambda engine: KeyedSink(engine, "t", "source", lambda row: row[0]), ["source"], options=Options(**options))


def values(snapshot: Mapping[str, Any]) -> dict[Any, Any]:
    """Return table `t` as k: v."""
    return {key: row[1] for key, row in snapshot["t"].items()}


def shop_until_q3(engine: Engine) -> dict[str, dict[Any, Any]]:
    """Play AT-1 up to 3.6, with the sources exact so far; return what the first three queries saw."""
    seen = {}
    engine.feed(s(1.0), {"source": [insert(1, 10)]})
    engine.feed(s(1.8), {"source": [insert(2, 20)]})
    engine.advance(s(2.0))
    first = engine.query("q1", s(2.0))
    seen["q1"] = values(first.begin())
    engine.feed(s(2.6), {"source": [update((1, 10), (1, 11))]})
    engine.advance(s(3.0))
    seen["q2"] = values(engine.query("q2", s(3.0)).begin())
    engine.advance(s(3.5))
    seen["q3"] = values(engine.query("q3", s(3.5)).begin())
    assert first.snapshot is not None
    seen["q1 again"] = values(first.snapshot)
    engine.advance(s(3.6))
    return seen


def test_at_01_each_query_sees_what_was_committed_before_it() -> None:
    """Jobs are cut by arrival; a query without new changes shares the snapshot; a snapshot does not change."""
    with identity(lagging=True) as engine:
        seen = shop_until_q3(engine)

        assert seen == {"q1": {1: 10, 2: 20}, "q2": {1: 11, 2: 20}, "q3": {1: 11, 2: 20}, "q1 again": {1: 10, 2: 20}}
        assert engine.transactions(1) == [s(1.0), s(1.8)]
        assert engine.transactions(2) == [s(2.6)]
        assert engine.chain.last_closed.tid == 2, "the third query cut nothing"
        assert violations(engine.log) == []


@pytest.mark.parametrize(
    ("tolerance_s", "starts_at_s", "expected"), [(1.0, 4.0, {1: 11, 2: 20}), (0.2, 4.4, {1: 11, 2: 20}), (0.0, 4.6, {1: 11, 2: 20, 3: 30})]
)
def test_at_01_a_lagging_source_is_tolerated_or_waited_for(tolerance_s: float, starts_at_s: float, expected: dict[int, int]) -> None:
    """From 3.6 on the watermark is max(3.6, t - 0.6), so the commit at 3.9 arrives at 4.5."""
    with identity(lagging=True) as engine:
        shop_until_q3(engine)
        query = engine.query("q4", s(4.0), tolerance_us=s(tolerance_s))
        may_start_s = 4.0 if query.job.arrived else None
        for tenths in range(41, 48):
            if tenths == 45:
                engine.feed(s(3.9), {"source": [insert(3, 30)]})
            engine.advance(max(s(3.6), s(tenths / 10) - s(0.6)))
            may_start_s = may_start_s or (tenths / 10 if query.job.arrived else None)

        assert values(query.begin()) == expected
        assert may_start_s == starts_at_s
        assert query.job.tid == (2 if tolerance_s == 1.0 else 3)
        assert violations(engine.log) == []


def drawn(chain: Chain) -> str:
    """Return the schedule as the sheet draws it."""
    return ", ".join(f"C{element.tid} {element.state}" if element.kind == "C" else f"B{element.tid}" for element in chain.elements())


def at_2() -> Chain:
    """Return the schedule before the fourth query; job 3 of the sheet is 4 here, since the background job has a number too."""
    chain = Chain(strict=True, tid=1, horizon_us=10)
    chain.cut(20, "query", "q2")
    chain.cut(30, "background")
    chain.cut(40, "query", "q3")
    return chain


def test_at_02_the_schedule_after_an_arrival() -> None:
    """A query's arrival closes the open element, adds its begin and a new open element."""
    chain = at_2()
    assert drawn(chain) == "C2 closed, B2, C3 closed, C4 closed, B4, C5 open"
    chain.cut(50, "query", "q4")

    assert drawn(chain) == "C2 closed, B2, C3 closed, C4 closed, B4, C5 closed, B5, C6 open"
    assert misplaced(chain.elements()) == []


def test_at_02_actions_happen_in_the_order_of_the_schedule() -> None:
    """Whoever completes first: c2, b2, cb, c3, b3, c4, b4."""
    chain = at_2()
    chain.cut(50, "query", "q4")
    log: list[str] = []
    for tid in (5, 4, 3, 2):
        chain.complete(tid)
        while (action := chain.next_action()) is not None:
            assert chain.next_action() is None, "nothing else before the acknowledgement"
            if isinstance(action, Commit):
                chain.committed(action.tid)
                log.append(f"c{action.tid}")
            else:
                chain.begun(action.query)
                log.append(f"b{action.tid}")
        assert log == [] or tid == 2

    assert log == ["c2", "b2", "c3", "c4", "b4", "c5", "b5"]
    assert drawn(chain) == "C6 open"


def is_complete(chain: Chain, tid: int) -> bool:
    """Return whether the sink transaction of a job waits for its commit."""
    return any(element.tid == tid and element.state == "complete" for element in chain.elements())


def test_at_02_on_threads_a_snapshot_has_its_job_and_no_later_one() -> None:
    """Sink transactions complete in the opposite order; the snapshot of the third query has jobs 2, b and 3, not 4."""
    last_first = {4: threading.Event(), 3: threading.Event(), 2: threading.Event(), 1: threading.Event()}
    last_first[4].set()

    def gate(who: str, point: str, tid: int) -> None:
        if point == "write":
            assert last_first[tid].wait(WAIT_S)

    with identity(gate=gate) as engine:
        queries = []
        for number in (1, 2, 3, 4):
            engine.feed(s(number), {"source": [insert(number, number)]})
            if number == 2:
                engine.cut(s(number))
            else:
                queries.append(engine.query(f"q{number}", s(number)))
        for tid in (4, 3, 2):
            engine.wait(lambda: is_complete(engine.chain, tid), timeout_s=WAIT_S)  # noqa: B023 - called before the next turn
            last_first[tid - 1].set()
        seen = [sorted(values(query.begin())) for query in queries]

    assert seen == [[1], [1, 2, 3], [1, 2, 3, 4]]
    assert engine.log == [Committed(1), Begun("q1", 1), Committed(2), Committed(3), Begun("q3", 3), Committed(4), Begun("q4", 4)]


def test_at_04_a_fast_successor_waits_for_the_begin() -> None:
    """The second job is complete while the first query has not begun: its commit comes after that begin."""
    held = threading.Event()

    def gate(who: str, point: str, tid: int) -> None:
        if (who, point) == ("q1", "begin"):
            assert held.wait(WAIT_S)

    with identity(gate=gate) as engine:
        engine.feed(1, {"source": [insert("x", 1)]})
        first = engine.query("q1", 1)
        seen: list[Any] = []
        reader = threading.Thread(target=lambda: seen.append(values(first.begin())))
        reader.start()
        engine.feed(2, {"source": [update(("x", 1), ("x", 2))]})
        engine.query("q2", 2)
        engine.wait(lambda: is_complete(engine.chain, 2) and engine.log, timeout_s=WAIT_S)
        assert engine.log == [Committed(1)]
        held.set()
        reader.join(WAIT_S)

    assert seen == [{"x": 1}]
    assert violations(engine.log) == []


def test_at_04_without_acknowledgements_the_successor_overtakes() -> None:
    """The same timing, with permission taken for the action: the query reads the later state, and the checker says so."""
    first, second = threading.Event(), threading.Event()

    def gate(who: str, point: str, tid: int) -> None:
        if (who, point) == ("q1", "begin"):
            assert second.wait(WAIT_S)
        elif (point, tid) == ("commit", 2):
            assert first.wait(WAIT_S)
        elif (point, tid) == ("table", 1):
            first.set()

    with identity(gate=gate, acknowledge=False) as engine:
        engine.feed(1, {"source": [insert("x", 1)]})
        query = engine.query("q1", 1)
        seen: list[Any] = []
        reader = threading.Thread(target=lambda: seen.append(values(query.begin())))
        reader.start()
        engine.feed(2, {"source": [update(("x", 1), ("x", 2))]})
        engine.cut(2)
        engine.wait(lambda: Committed(2) in engine.log, timeout_s=WAIT_S)
        second.set()
        reader.join(WAIT_S)

    assert seen == [{"x": 2}]
    assert violations(engine.log) != []


def test_at_05_background_jobs_leave_nothing_to_the_query() -> None:
    """More than five rows make a job without a query; the query then moves nothing."""
    with identity(stream_rows_max=5) as engine:
        for number in range(1, 13):
            engine.feed(number, {"source": [insert(number, number)]})
        assert [(job.kind, job.queries) for job in map(engine.chain.job, (1, 2))] == [("background", []), ("background", [])]
        assert (engine.rows(1), engine.rows(2), engine.rows(3)) == (6, 6, 0)
        query = engine.query("q", 13)

        assert len(query.begin()["t"]) == 12
        assert query.job.tid == 2
        assert engine.log == [Committed(1), Committed(2), Begun("q", 2)]


def test_an_idle_warehouse_moves_what_there_is() -> None:
    """Without queries every commit is taken at once; while one runs, nothing is."""
    with identity(idle=True) as engine:
        engine.feed(1, {"source": [insert(1, 1)]})
        assert engine.chain.open_tid == 2
        with engine.query("q", 1):
            engine.feed(2, {"source": [insert(2, 2)]})
            assert engine.chain.open_tid == 2
        assert engine.chain.open_tid == 3, "the end of the query leaves the warehouse idle"


@pytest.mark.parametrize(
    ("rows", "watermark_us", "idle", "expected"),
    [
        ({"a": 5}, 20, False, None),
        ({"a": 6}, 20, False, 20),
        ({"a": 4, "b": 5}, 20, False, 20),
        ({"a": 1}, 20, True, 20),
        ({"a": 0}, 20, True, None),
        ({"a": 9}, 9, True, None),
    ],
)
def test_background_cuts_wait_for_the_last_job_to_arrive(rows: dict[str, int], watermark_us: int, idle: bool, expected: int | None) -> None:
    """Due above the bound of a stream (5) or of all (8), or when idle; never while the last closed job (horizon 10) still waits for changes."""
    assert background_cut(rows, watermark_us=watermark_us, horizon_us=10, stream_rows_max=5, total_rows_max=8, idle=idle) == expected


MINUTE = 60


@pytest.mark.parametrize(
    ("bound_min", "pending", "new_job"), [(10, True, False), (2, True, True), (0, True, True), (10, False, False), (2, False, False), (0, False, False)]
)
def test_at_26_a_currency_bound_takes_the_snapshot_that_is_there(bound_min: int, pending: bool, new_job: bool) -> None:
    """Committed up to 10:00, one change of 10:01, query at 10:04."""
    with identity() as engine:
        engine.feed(s(1), {"source": [insert(0, 0)]})
        engine.query("first", s(600 * MINUTE)).begin()
        if pending:
            engine.feed(s(601 * MINUTE), {"source": [insert(1, 1)]})
        query = engine.query("q", s(604 * MINUTE), bound_us=s(bound_min * MINUTE))

        assert query.job.tid == (2 if new_job else 1)
        assert sorted(values(query.begin())) == ([0, 1] if new_job else [0])
        assert violations(engine.log) == []


def test_at_27_a_cancelled_query_leaves_its_job_in_the_chain() -> None:
    """The job of the cancelled query commits, and the next query contains it."""
    first_held = threading.Event()

    def gate(who: str, point: str, tid: int) -> None:
        if (point, tid) == ("write", 1):
            assert first_held.wait(WAIT_S)

    with identity(gate=gate) as engine:
        queries = []
        for number in (1, 2, 3):
            engine.feed(number, {"source": [insert(number, number)]})
            queries.append(engine.query(f"q{number}", number))
        queries[1].cancel()
        first_held.set()
        with pytest.raises(Stopped):
            queries[1].begin()
        queries[0].begin()

        assert sorted(values(queries[2].begin())) == [1, 2, 3]
        assert engine.log == [Committed(1), Begun("q1", 1), Committed(2), Committed(3), Begun("q3", 3)]


def test_at_27_a_query_that_never_begins_is_forgotten() -> None:
    """Its begin blocks everything behind it, so it has a time-out."""
    with identity(begin_timeout_s=0.4) as engine:
        engine.feed(1, {"source": [insert(1, 1)]})
        engine.query("dead", 1)
        engine.feed(2, {"source": [insert(2, 2)]})

        assert sorted(values(engine.query("alive", 2).begin())) == [1, 2]
        assert engine.log == [Committed(1), Committed(2), Begun("alive", 2)]


def test_at_29_the_fewest_cuts_serve_a_group() -> None:
    """Each query accepts any time in [arrival - bound, arrival]."""
    cuts = fewest_cuts([(10, 4), (12, 1), (13, 5), (20, 0)])

    assert cuts.times == (10, 12, 20)
    assert cuts.served == (10, 12, 12, 20)
    assert fewest_cuts([(10, 0), (12, 2)]).times == (10,), "both ends of a query's interval serve it"


def test_at_31_late_commits_go_where_their_time_belongs() -> None:
    """A strict query at 4.0, the watermark at 3.6; commits of 3.9 and 4.05 arrive together at 4.5."""
    with identity(lagging=True) as engine:
        engine.advance(s(3.6))
        query = engine.query("q", s(4.0))
        engine.feed(s(3.9), {"source": [insert(1, 1)]})
        engine.feed(s(4.05), {"source": [insert(2, 2)]})
        engine.advance(s(4.5))

        assert values(query.begin()) == {1: 1}
        assert engine.transactions(query.job.tid) == [s(3.9)]
        assert engine.transactions(query.job.tid + 1) == [s(4.05)]


def test_at_31_what_came_early_leaves_the_job_at_the_cut() -> None:
    """A commit after the horizon that is already here belongs to the next job (A2.1)."""
    with identity(lagging=True) as engine:
        engine.feed(s(1.0), {"source": [insert(1, 1)]})
        engine.feed(s(2.0), {"source": [insert(2, 2)]})
        engine.advance(s(1.5))
        query = engine.query("q", s(1.5))

        assert values(query.begin()) == {1: 1}
        assert engine.transactions(2) == [s(2.0)]


def test_a_query_does_not_join_a_state_that_is_about_to_be_replaced() -> None:
    """In strict mode, once the next commit is permitted, a query with a loose bound takes that one."""
    chain = Chain(strict=True, horizon_us=10)
    chain.cut(20, "background")
    chain.advance(20)
    chain.complete(1)
    assert chain.next_action() == Commit(1)

    assert chain.admit("q", arrived_us=25, bound_us=100, watermark_us=25).tid == 1
    chain.committed(1)
    assert chain.next_action() == Begin("q", 1)


def test_pinned_queries_hold_nobody_up() -> None:
    """With time travel (strict=False) the next commit does not wait for a begin, and older states can be shared."""
    chain = Chain(strict=False, horizon_us=10)
    chain.cut(20, "query", "q1")
    chain.cut(30, "query", "q2")
    chain.complete(1)
    chain.complete(2)

    assert chain.next_action() == Commit(1)
    chain.committed(1)
    assert [chain.next_action(), chain.next_action()] == [Begin("q1", 1), Commit(2)]
    chain.committed(2)
    chain.begun("q1")
    assert chain.suspend("q3", 1).tid == 1
    assert chain.next_action() == Begin("q3", 1)
    assert chain.next_action() == Begin("q2", 2)


def test_a_failed_commit_is_tried_again_in_its_place() -> None:
    """A commit that was permitted and did not happen holds everything behind it until it does."""
    chain = Chain(strict=True)
    chain.cut(10, "query", "q1")
    chain.cut(20, "background")
    chain.complete(1)
    chain.complete(2)
    assert chain.next_action() == Commit(1)
    chain.failed(1)
    assert chain.next_action() is None
    chain.complete(1)
    assert chain.next_action() == Commit(1)
    chain.committed(1)
    assert chain.next_action() == Begin("q1", 1)


def test_the_checker_finds_what_is_wrong() -> None:
    """Each violation is seen; a pinned query may begin later."""
    assert violations([Committed(1), Begun("q", 1, pinned=1), Committed(2)]) == []
    assert violations([Committed(1), Committed(2), Begun("q", 1, pinned=1)]) == []
    logs: list[list[Committed | Begun]] = [
        [Committed(2)],
        [Committed(1), Committed(1)],
        [Begun("q", 1), Committed(1)],
        [Committed(1), Committed(2), Begun("q", 1)],
        [Committed(1), Begun("q", 1), Begun("q", 1)],
        [Committed(1), Begun("q", 2, pinned=2)],
    ]
    assert [len(violations(log)) for log in logs] == [1] * 6
