"""Operator threads on a chain of jobs: AT-6 to AT-8, AT-23, AT-25, AT-28, pipes, restarts and the baselines, on the reference engine."""

import threading
from typing import Any

import pytest

from righttime.testing.reference.checker import Begun, Committed, violations
from righttime.testing.reference.engine import Engine
from righttime.testing.reference.join_flow import ExactJoin
from righttime.testing.reference.joins import On
from righttime.testing.reference.options import EngineFailed, Options
from righttime.testing.reference.rows import Change, Row, delete, insert, update
from righttime.testing.reference.sinks import AdditiveSink, BagSink, KeyedSink, RunningAverage, sums
from righttime.testing.reference.steps import Map, Matcher, Rows, Sort, Step, Sums, Union

WAIT_S = 5.0


class Gate:
    """Holds threads at chosen points (who, point, job) until they are released."""

    def __init__(self, *points: tuple[str, str, int]) -> None:
        self._held = {point: threading.Event() for point in points}

    def __call__(self, who: str, point: str, tid: int) -> None:
        held = self._held.get((who, point, tid))
        assert held is None or held.wait(WAIT_S), f"{who} was never released at {point} of job {tid}"

    def release(self, *point: Any) -> None:
        """Let those at a point go on."""
        self._held[point].set()


def same(row: Row) -> list[Row]:
    """Return the row itself."""
    return [row]


@pytest.mark.parametrize(("forgetful", "second", "total"), [(True, {"a": 2, "c": 5}, 5), (False, {"a": 5, "b": 1, "c": 5}, 8)])
def test_at_06_an_aggregation_begins_each_job_clean(forgetful: bool, second: dict[str, int], total: int) -> None:
    """m1: (a,3), (b,1); m2: (a,2), (c,5). Without re-initialisation the sums of m1 would be added again."""

    def build(engine: Engine) -> None:
        AdditiveSink(engine, "t", Sums(engine, "sums", "source", lambda row: row[:1], lambda row: row[1:], forgetful=forgetful))

    with Engine(build, ["source"]) as engine:
        engine.feed(1, {"source": [insert("a", 3), insert("b", 1)]})
        engine.query("q1", 1).begin()
        engine.feed(2, {"source": [insert("a", 2), insert("c", 5)]})
        after = sums(engine.query("q2", 2).begin()["t"])
        emitted = {tid: {key[0]: values[0] for _, (key, values, _) in rows} for tid, rows in engine.steps["sums"].emitted.items()}

    assert emitted == {1: {"a": 3, "b": 1}, 2: second}
    assert after == {("a",): (total,), ("b",): (1 if forgetful else 2,), ("c",): (5,)}


def test_at_06_a_sort_never_mixes_jobs() -> None:
    """m1: 3, 1; m2: 2, 5."""
    with Engine(lambda engine: BagSink(engine, "t", Sort(engine, "sort", ["source"])), ["source"]) as engine:
        engine.feed(1, {"source": [insert(3), insert(1)]})
        engine.cut(1)
        engine.feed(2, {"source": [insert(2), insert(5)]})
        engine.query("q", 2).begin()

        assert {tid: [row[0] for _, row in rows] for tid, rows in engine.steps["sort"].emitted.items()} == {1: [1, 3], 2: [2, 5]}


def test_at_07_each_step_is_on_its_own_job_and_none_on_an_open_one() -> None:
    """T1, T2 closed, T3 open: step 1 is at T2 while step 2 is at T1; then step 1 idles though rows of T3 wait, until T3 is closed."""
    gate = Gate(("step 2", "start", 1), ("step 1", "end", 2))

    def build(engine: Engine) -> None:
        BagSink(engine, "t", Map(engine, "step 2", Map(engine, "step 1", "source", same), same))

    with Engine(build, ["source"], options=Options(gate=gate)) as engine:
        for tid in (1, 2):
            engine.feed(tid, {"source": [insert(tid)]})
            engine.cut(tid)
        engine.feed(3, {"source": [insert(3)]})
        one, two = engine.steps["step 1"], engine.steps["step 2"]
        engine.wait(lambda: one.read_point == 2 and two.read_point == 1 and one.emitted.get(2), timeout_s=WAIT_S)
        gate.release("step 1", "end", 2)
        gate.release("step 2", "start", 1)
        engine.settle()
        engine.wait(lambda: one.finished == 2, timeout_s=WAIT_S)

        assert one.read_point == 2
        assert one.pipes[0].waiting() == {3: 1}
        assert sorted(engine.query("q", 3).begin()["t"]) == [(1,), (2,), (3,)]
        engine.wait(lambda: one.finished == 3, timeout_s=WAIT_S)


ON_FIRST = On(lambda row: row[0], lambda row: row[0], lambda left, right: left + right[1:])


class HeldEnd(Map):
    """Holds its end-of-job markers back at a gate."""

    def finish(self, tid: int) -> Rows:
        self._engine.options.gate(self.name, "marker", tid)
        return ()


def test_at_08_rows_of_later_jobs_are_invisible() -> None:
    """The left side has m2 and m3, the right side has not ended m2: the join takes nothing of m3, and the aggregation that delivered m1 waits on m2."""
    gate = Gate(("right", "marker", 2))

    def build(engine: Engine) -> None:
        left, right = Map(engine, "left", "l", same), HeldEnd(engine, "right", "r", same)
        joined = Matcher(engine, "join", left, right, ON_FIRST)
        AdditiveSink(engine, "t", Sums(engine, "sums", joined, lambda row: row[:1], lambda row: (1,)))

    with Engine(build, ["l", "r"], options=Options(gate=gate)) as engine:
        for tid in (1, 2, 3):
            engine.feed(tid, {"l": [insert(f"k{tid}", "x")], "r": [insert(f"k{tid}", "y")]})
            engine.cut(tid)
        join, aggregation = engine.steps["join"], engine.steps["sums"]
        engine.wait(lambda: engine.steps["left"].finished == 3 and aggregation.taken == [1, 2], timeout_s=WAIT_S)
        engine.wait(lambda: join.taken == [1, 1, 2, 2], timeout_s=WAIT_S)
        assert join.pipes[0].waiting() == {3: 1}
        assert (join.read_point, join.finished) == (2, 1)
        assert (aggregation.read_point, aggregation.finished) == (2, 1)
        gate.release("right", "marker", 2)
        engine.settle()

        assert join.taken == [1, 1, 2, 2, 3, 3]
        assert [row for _, row in join.emitted[2]] == [("k2", "x", "y")]


def test_at_23_all_tables_of_a_job_appear_at_once() -> None:
    """Between the writes of two tables a reader sees the old state of both."""
    seen: list[tuple[bool, bool]] = []

    def gate(who: str, point: str, tid: int) -> None:
        if point == "table":
            snapshot = engine.warehouse.snapshot()
            seen.append((bool(snapshot["x"]), bool(snapshot["y"])))

    def build(engine: Engine) -> None:
        BagSink(engine, "x", "source")
        BagSink(engine, "y", Map(engine, "again", "source", same))

    with Engine(build, ["source"], options=Options(gate=gate)) as engine:
        engine.feed(1, {"source": [insert(1)]})
        snapshot = engine.query("q", 1).begin()

    assert seen == [(False, False), (False, False)]
    assert snapshot["x"] == snapshot["y"] == {(1,): 1}


def test_at_25_sinks_overlap_and_commit_in_order() -> None:
    """Class a: the write of m2 is done before that of m1; m1 commits first all the same."""
    gate = Gate(("sink", "write", 1))
    with Engine(lambda engine: BagSink(engine, "t", "source"), ["source"], options=Options(gate=gate)) as engine:
        for tid in (1, 2):
            engine.feed(tid, {"source": [insert(tid)]})
            engine.cut(tid)
        engine.wait(lambda: [element for element in engine.chain.elements() if element.tid == 2 and element.state == "complete"], timeout_s=WAIT_S)
        assert engine.log == []
        gate.release("sink", "write", 1)
        engine.settle()

        assert engine.log == [Committed(1), Committed(2)]


def test_at_25_a_step_that_reads_what_it_writes_goes_job_by_job() -> None:
    """Class b: the running average of 10, 20, 30 is 10, 15, 20, and m2 does not begin before m1 has committed."""
    gate = Gate(("sink", "commit", 1))
    with Engine(lambda engine: RunningAverage(engine, "t", "source"), ["source"], options=Options(gate=gate)) as engine:
        for tid in (1, 2, 3):
            engine.feed(tid, {"source": [insert(10 * tid)]})
            engine.cut(tid)
        step = engine.steps["sink t"]
        engine.wait(lambda: step.finished == 1, timeout_s=WAIT_S)
        assert step.read_point == 1
        gate.release("sink", "commit", 1)
        engine.settle()

        assert [engine.warehouse.states[tid]["t"]["average"] for tid in (1, 2, 3)] == [10, 15, 20]


AT_28: list[dict[str, list[Change]]] = [
    {"purchase": [insert(7, "s1")], "line": [insert(7, "i1", 2, 5.0)]},
    {"purchase": [insert(8, "s1")], "line": [insert(7, "i2", 1, 3.0), insert(8, "i1", 1, 5.0)]},
    {"purchase": [delete(8, "s1")], "line": [update((7, "i1", 2, 5.0), (7, "i1", 4, 5.0))]},
]
AT_28_TARGETS = [{(11, 1): (2, 10)}, {(11, 1): (3, 15), (12, 1): (1, 3)}, {(11, 1): (4, 20), (12, 1): (1, 3)}]


def sales(engine: Engine) -> None:
    """Build the flow of the paper's figure 4 in small."""
    stores, items = {"s1": 1}, {"i1": 11, "i2": 12}
    purchases = Map(engine, "store look-up", "purchase", lambda row: [(row[0], stores[row[1]])])
    lines = Map(engine, "item look-up", "line", lambda row: [(row[0], items[row[1]], row[2], row[2] * row[3])])
    on = On(lambda row: row[0], lambda row: row[0], lambda purchase, line: (line[1], purchase[1], line[2], line[3]))
    joined = ExactJoin(engine, "join", purchases, lines, on)
    AdditiveSink(engine, "store_sales", Sums(engine, "sums", joined, lambda row: row[:2], lambda row: row[2:]))


@pytest.mark.parametrize("mode", ["pipelined", "seq"])
def test_at_28_the_whole_flow(mode: Any) -> None:
    """Look-ups, join, aggregation and an additive target over three jobs, pipelined and one job after the other."""
    with Engine(sales, ["purchase", "line"], options=Options(mode=mode)) as engine:
        queries = []
        for number, changes in enumerate(AT_28, start=1):
            engine.feed(number, changes)
            queries.append(engine.query(f"q{number}", number))
        seen = [sums(query.begin()["store_sales"]) for query in queries]
        emitted = {tid: {key: values for _, (key, values, _) in rows} for tid, rows in engine.steps["sums"].emitted.items()}

    assert emitted == {1: {(11, 1): (2, 10)}, 2: {(12, 1): (1, 3), (11, 1): (1, 5)}, 3: {(11, 1): (1, 5)}}
    assert seen == AT_28_TARGETS
    assert violations(engine.log) == []


def test_seq_starts_a_job_after_the_commit_of_the_one_before() -> None:
    """In the sequential baseline no step runs ahead."""
    gate = Gate(("sink", "commit", 1))
    with Engine(sales, ["purchase", "line"], options=Options(mode="seq", gate=gate)) as engine:
        for number, changes in enumerate(AT_28, start=1):
            engine.feed(number, changes)
            engine.cut(number)
        engine.wait(lambda: all(step.finished == 1 for step in engine.steps.values()), timeout_s=WAIT_S)
        assert {step.read_point for step in engine.steps.values()} == {1}
        gate.release("sink", "commit", 1)
        engine.settle()


def test_nrt_answers_at_once_and_wrongly() -> None:
    """In the unsynchronised baseline a query begins on whatever is there."""
    gate = Gate(("sink", "write", 1))
    with Engine(lambda engine: BagSink(engine, "t", "source"), ["source"], options=Options(mode="nrt", gate=gate)) as engine:
        engine.feed(1, {"source": [insert(1)]})
        assert not engine.query("q", 1).begin()["t"]
        gate.release("sink", "write", 1)
        engine.settle()

        assert engine.log == [Begun("q", 1), Committed(1)]
        assert violations(engine.log) != []


class InTurn(Union):
    """A merge that reads its inputs one after the other, which is what makes bounded pipes deadlock."""

    @staticmethod
    def _poll(reading: dict[int, Any], tid: int) -> Any:
        port, pipe = next(iter(reading.items()))
        item = pipe.poll(tid)
        return None if item is None else (port, item)


def forked(engine: Engine) -> None:
    """Build a fork whose branches are merged in turn."""
    fork = Map(engine, "fork", "source", same)
    first, second = Sort(engine, "first", [fork]), Map(engine, "second", fork, same)
    BagSink(engine, "t", InTurn(engine, "merge", [first, second]))


def test_trap_8_bounded_pipes_do_not_deadlock() -> None:
    """A pipe holds two rows in memory; the rest waits in a file, in order."""
    with Engine(forked, ["source"], options=Options(pipe_rows_max=2)) as engine:
        engine.feed(1, {"source": [insert(number) for number in range(50)]})

        assert sum(engine.query("q", 1).begin()["t"].values()) == 100
        assert [row[0] for _, row in engine.steps["second"].emitted[1]] == list(range(50))


def test_trap_8_the_same_pipes_without_spilling_deadlock() -> None:
    """The fork waits for room in the second pipe, its reader for the end of the first: only the time-out ends it."""
    with Engine(forked, ["source"], options=Options(pipe_rows_max=2, spill=False, pipe_timeout_s=0.2)) as engine:
        engine.feed(1, {"source": [insert(number) for number in range(50)]})
        engine.cut(1)
        with pytest.raises(EngineFailed):
            engine.wait(engine.raise_failure, timeout_s=WAIT_S)


def zoned(engine: Engine) -> None:
    """Build a flow of two members of one zone."""
    zone = engine.zone(2)
    BagSink(engine, "t", Map(engine, "second", Map(engine, "first", "source", same, zones=[zone]), same, zones=[zone]))


def test_a_zone_whose_member_hangs_is_broken_and_its_job_run_again() -> None:
    """The barrier's time-out fails the job; it is replayed from the last commit, and later jobs follow (A10.4, A28)."""
    gate = Gate(("second", "start", 2))

    def once(who: str, point: str, tid: int) -> None:
        if engine.generation == 0:
            gate(who, point, tid)

    with Engine(zoned, ["source"], options=Options(restarts_max=20, zone_timeout_s=0.1, gate=once)) as engine:
        queries = []
        for number in (1, 2, 3):
            engine.feed(number, {"source": [insert(number)]})
            queries.append(engine.query(f"q{number}", number))
        assert sorted(queries[0].begin()["t"]) == [(1,)]
        engine.wait(lambda: engine.failure is not None, timeout_s=WAIT_S)
        gate.release("second", "start", 2)

        assert sorted(queries[1].begin()["t"].elements()) == [(1,), (2,)]
        assert sorted(queries[2].begin()["t"].elements()) == [(1,), (2,), (3,)]
        assert engine.restarts >= 1
        assert violations(engine.log) == []


def test_a_job_that_is_run_again_finds_the_states_before_it() -> None:
    """The step behind the join fails once, when the join has already changed its staging tables: the outcome is that of a run without failure."""
    failing = {2, 3}

    def gate(who: str, point: str, tid: int) -> None:
        if (who, point) == ("sums", "end") and tid in failing:
            failing.remove(tid)
            raise RuntimeError("once")

    with Engine(sales, ["purchase", "line"], options=Options(restarts_max=2, gate=gate)) as engine:
        for number, changes in enumerate(AT_28, start=1):
            engine.feed(number, changes)
            engine.cut(number)
        engine.settle()

        assert [sums(engine.warehouse.states[tid]["store_sales"]) for tid in (1, 2, 3)] == AT_28_TARGETS
        assert engine.restarts == 2


def test_a_failure_without_restarts_reaches_the_query() -> None:
    """Nobody waits for a job that will never be."""

    def fail(row: Row) -> list[Row]:
        raise ValueError("bad row")

    with Engine(lambda engine: BagSink(engine, "t", Map(engine, "bad", "source", fail)), ["source"]) as engine:
        engine.feed(1, {"source": [insert(1)]})
        with pytest.raises(EngineFailed) as caught:
            engine.query("q", 1).begin()

    assert isinstance(caught.value.__cause__, ValueError)


def test_states_are_kept_by_job() -> None:
    """What each job left can be read again."""
    with Engine(lambda engine: KeyedSink(engine, "t", "source", lambda row: row[0]), ["source"]) as engine:
        engine.feed(1, {"source": [insert("x", 1)]})
        engine.cut(1)
        engine.feed(2, {"source": [update(("x", 1), ("x", 2))]})
        engine.cut(2)
        engine.settle()

        assert [engine.warehouse.states[tid]["t"] for tid in (0, 1, 2)] == [{}, {"x": ("x", 1)}, {"x": ("x", 2)}]


def test_two_operators_of_one_name_are_refused() -> None:
    """A name means one operator."""

    def build(engine: Engine) -> Step:
        Map(engine, "twice", "source", same)
        return Map(engine, "twice", "source", same)

    with pytest.raises(AssertionError, match="two operators"), Engine(build, ["source"]):
        pass
