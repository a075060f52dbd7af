"""The incremental join in its zones: AT-9 to AT-11 and AT-13 on the reference engine."""

import threading
from collections import Counter
from typing import Any

import pytest

from righttime.testing.reference.engine import Engine
from righttime.testing.reference.join_flow import ExactJoin, Layout, join_flow
from righttime.testing.reference.joins import On, by_lifetimes, by_new_and_old, by_sign, papers_rule
from righttime.testing.reference.options import Gate, Options
from righttime.testing.reference.rows import Bag, Change, Signed, insert, net_effect
from righttime.testing.reference.sinks import BagSink

WAIT_S = 5.0
COORDINATED: list[Layout] = ["two_zones", "one_barrier", "versioned"]
COMPANY = On(lambda customer: customer[2], lambda company: company[0], lambda customer, company: (*customer, company[1]))
INITIAL = (Counter([(1, "jim", "IBM")]), Counter([("IBM", "USA")]))

# | job | customer       | company    | joined                                   |
# | m2  | (2, anne, SAP)  | (HP, USA)  |                                          |
# | m3  | (3, jack, HP)   | (SAP, GER) | (3, jack, HP, USA), (2, anne, SAP, GER)  |
# | m4  | (4, peter, SAP) |            | (4, peter, SAP, GER)                     |
CUSTOMERS = {2: insert(2, "anne", "SAP"), 3: insert(3, "jack", "HP"), 4: insert(4, "peter", "SAP")}
COMPANIES = {2: insert("HP", "USA"), 3: insert("SAP", "GER")}
EXPECTED = {2: set(), 3: {(3, "jack", "HP", "USA"), (2, "anne", "SAP", "GER")}, 4: {(4, "peter", "SAP", "GER")}}


def customers(layout: Layout | str, gate: Gate | None = None) -> Engine:
    """Return an engine that joins customers with companies; job 1 is the initial load."""

    def build(engine: Engine) -> None:
        if layout == "exact":
            BagSink(engine, "t", ExactJoin(engine, "merger", "customer", "company", COMPANY, initial=INITIAL))
        else:
            BagSink(engine, "t", join_flow(engine, "customer", "company", COMPANY, layout=layout, initial=INITIAL))  # type: ignore[arg-type]

    return Engine(build, ["customer", "company"], options=Options(gate=gate) if gate else None)


def play(engine: Engine) -> dict[int, set[Any]]:
    """Feed m1 (empty) to m4 and return what the join emitted in m2 to m4."""
    for tid in (1, 2, 3, 4):
        changes = {name: [rows[tid]] for name, rows in (("customer", CUSTOMERS), ("company", COMPANIES)) if tid in rows}
        engine.feed(tid, changes)
        engine.cut(tid)
    engine.settle()
    return {tid: {row for _, row in engine.steps["merger"].emitted[tid]} for tid in (2, 3, 4)}


class Delays:
    """Holds update S at m2 until dR with S has passed m3, and R with dS at m3 until update R has passed m4; not longer than a moment."""

    def __init__(self, moment_s: float) -> None:
        self._moment_s = moment_s
        self._passed = {("dR with S", 3): threading.Event(), ("update R", 4): threading.Event()}
        self.timed_out = 0

    def __call__(self, who: str, point: str, tid: int) -> None:
        awaited = {("update S", "start", 2): ("dR with S", 3), ("R with dS", "start", 3): ("update R", 4)}.get((who, point, tid))
        if awaited is not None and not self._passed[awaited].wait(self._moment_s):
            self.timed_out += 1
        if point == "end" and (who, tid) in self._passed:
            self._passed[who, tid].set()


@pytest.mark.parametrize("layout", [*COORDINATED, "exact"])
def test_at_09_every_layout_joins_the_states_before_the_job(layout: Layout) -> None:
    """Without delays: nothing missed, no phantom."""
    with customers(layout) as engine:
        assert play(engine) == EXPECTED


@pytest.mark.parametrize("layout", COORDINATED)
def test_at_09_zones_hold_against_the_delays_that_provoke_the_anomaly(layout: Layout) -> None:
    """The delays ask for an order that a zone forbids, so they run out, and the result stays right."""
    delays = Delays(0.05)
    with customers(layout, delays) as engine:
        assert play(engine) == EXPECTED
    assert delays.timed_out >= (1 if layout == "versioned" else 2)


def test_at_09_the_uncoordinated_run_misses_a_row_and_shows_a_phantom() -> None:
    """Company as after m1 and customer as after m4: jack is missed and peter appears too early."""
    with customers("uncoordinated", Delays(WAIT_S)) as engine:
        assert play(engine)[3] == {(2, "anne", "SAP", "GER"), (4, "peter", "SAP", "GER")}


@pytest.mark.parametrize("layout", ["two_zones", "one_barrier"])
def test_at_10_what_a_zone_leaves_open_the_merger_removes(layout: Layout) -> None:
    """Both updates come before both joins: three equal rows, one after duplicate elimination."""
    updated = {"update R": threading.Event(), "update S": threading.Event()}

    def gate(who: str, point: str, tid: int) -> None:
        waits_for = {"R with dS": "update R", "dR with S": "update S"}.get(who)
        if point == "start" and waits_for is not None:
            assert updated[waits_for].wait(WAIT_S)
        if point == "end" and who in updated:
            updated[who].set()

    with customers(layout, gate) as engine:
        engine.feed(5, {"customer": [insert(5, "kim", "BMW")], "company": [insert("BMW", "GER")]})
        result = engine.query("q", 5).begin()["t"]
        before = [row for name in ("R with dS", "dR with S", "dR with dS") for _, row in engine.steps[name].emitted[1]]

    assert before == [(5, "kim", "BMW", "GER")] * 3
    assert result == {(5, "kim", "BMW", "GER"): 1}


ON_KEY = On(lambda row: row[0], lambda row: row[0], lambda left, right: (left[1], right[1]))
R0, R1, S0, S1 = ("k", "r0"), ("k", "r1"), ("k", "s0"), ("k", "s1")
MIXED: dict[str, tuple[list[Any], list[Any], list[Signed], list[Signed], Bag, set[Signed]]] = {
    # R, S before; changes of R; changes of S; the right outcome; what the papers' rule adds
    "a": ([], [S0], [("I", R1)], [("D", S0)], Counter(), {("I", ("r1", "s0"))}),
    "b": (
        [R0],
        [S0],
        [("D", R0), ("I", R1)],
        [("D", S0), ("I", S1)],
        Counter({("r0", "s0"): -1, ("r1", "s1"): 1}),
        {("I", ("r0", "s1")), ("I", ("r1", "s0"))},
    ),
    "c": ([R0], [S0], [("D", R0), ("I", R1)], [("I", S1)], Counter({("r0", "s0"): -1, ("r1", "s0"): 1, ("r1", "s1"): 1}), {("I", ("r0", "s1"))}),
    "d": ([R0], [S0], [("D", R0)], [("D", S0)], Counter({("r0", "s0"): -1}), set()),
}


@pytest.mark.parametrize("case", MIXED)
def test_at_11_exact_joins_are_right_for_mixed_actions(case: str) -> None:
    """Inserts and deletes in one job on both sides; three exact forms agree, the papers' rule adds pairs that never were."""
    left, right, d_left, d_right, expected, too_much = MIXED[case]

    assert by_sign(d_left, d_right, Counter(left), Counter(right), ON_KEY) == expected
    assert by_new_and_old(d_left, d_right, Counter(left), Counter(right), ON_KEY) == expected
    assert by_lifetimes([d_left], [d_right], Counter(left), Counter(right), ON_KEY) == [expected]
    exact = {("I" if count > 0 else "D", row) for row, count in expected.items()}
    assert papers_rule(d_left, d_right, Counter(left), Counter(right), ON_KEY) == exact | too_much


def as_changes(rows: list[Signed]) -> list[Change]:
    """Return signed rows as changes."""
    return [Change(row, None) if op == "D" else Change(None, row) for op, row in rows]


@pytest.mark.parametrize("case", MIXED)
@pytest.mark.parametrize("exact", [True, False])
def test_at_11_on_threads(case: str, exact: bool) -> None:
    """The exact join as an operator gives the same; the papers' operators give what their rule says, and so too much."""
    left, right, d_left, d_right, expected, too_much = MIXED[case]
    initial = (Counter(left), Counter(right))

    def build(engine: Engine) -> None:
        joined = ExactJoin(engine, "merger", "r", "s", ON_KEY, initial=initial) if exact else None
        BagSink(engine, "t", joined or join_flow(engine, "r", "s", ON_KEY, layout="versioned", initial=initial))

    with Engine(build, ["r", "s"]) as engine:
        engine.feed(1, {"r": as_changes(d_left), "s": as_changes(d_right)})
        engine.query("q", 1).begin()
        emitted = engine.steps["merger"].emitted[1]

    right_rows: set[Signed] = {("I" if count > 0 else "D", row) for row, count in expected.items()}
    assert sorted(emitted) == sorted(right_rows if exact else right_rows | too_much)


@pytest.mark.parametrize("layout", COORDINATED)
def test_at_13_zones_advance_at_their_own_pace(layout: Layout) -> None:
    """Update S is held at m2: with two zones, R with dS and update R go on to m4; with one barrier nobody does; the results are those of the serial run."""
    held = threading.Event()
    ahead = {"two_zones": 4, "one_barrier": 2, "versioned": 4}[layout]

    def gate(who: str, point: str, tid: int) -> None:
        if (who, point, tid) == ("update S", "start", 2):
            assert held.wait(WAIT_S)

    with customers(layout, gate) as engine:
        for tid in (1, 2, 3, 4):
            changes = {name: [rows[tid]] for name, rows in (("customer", CUSTOMERS), ("company", COMPANIES)) if tid in rows}
            engine.feed(tid, changes)
            engine.cut(tid)
        steps = engine.steps
        engine.wait(lambda: steps["R with dS"].finished == ahead and steps["update R"].finished == ahead, timeout_s=WAIT_S)
        engine.wait(lambda: steps["dR with S"].finished == 2, timeout_s=WAIT_S)
        assert steps["merger"].read_point <= 3 if layout == "versioned" else steps["merger"].finished <= 2
        assert set(steps["update S"].pipes[0].waiting()) == {2, 3}
        held.set()
        engine.settle()

        assert {tid: {row for _, row in steps["merger"].emitted[tid]} for tid in (2, 3, 4)} == EXPECTED


def test_net_effect_of_a_batch() -> None:
    """A15: what the changes of a key amount to, in their order."""
    a, b, c = ("k", 1), ("k", 2), ("k", 3)
    cases = [
        ([Change(None, a), Change(a, None)], []),
        ([Change(None, a), Change(a, b)], [Change(None, b)]),
        ([Change(a, b), Change(b, c)], [Change(a, c)]),
        ([Change(a, None), Change(None, b)], [Change(a, b)]),
        ([Change(a, None), Change(None, a)], []),
        ([Change(a, b), Change(b, None)], [Change(a, None)]),
    ]
    for changes, expected in cases:
        assert net_effect(changes, lambda row: row[0]) == expected
