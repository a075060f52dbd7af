"""Facts and a slowly changing dimension in one flow: AT-14 to AT-16 on the reference engine."""

import itertools
import threading
from typing import Any

from righttime.testing.reference.checker import violations
from righttime.testing.reference.engine import Engine
from righttime.testing.reference.options import Gate, Options
from righttime.testing.reference.rows import Change, delete, insert, update
from righttime.testing.reference.scd import close_and_open, scd_flow
from righttime.testing.reference.sinks import BagSink

WAIT_S = 5.0

# | item (sk, id, price, start, end) | events: T1 item 10 at 2, T2 line 1 at 5, T3 item 12 at 6, T4 line 2 at 8 |
INITIAL = ((100, "abc", 9, 0, None),)
EVENTS: dict[int, dict[str, list[Change]]] = {
    2: {"item": [update(("abc", 9), ("abc", 10))]},
    5: {"line": [insert(1, "abc")]},
    6: {"item": [update(("abc", 10), ("abc", 12))]},
    8: {"line": [insert(2, "abc")]},
}
ITEMS = {(100, "abc", 9, 0, 2), (101, "abc", 10, 2, 6), (102, "abc", 12, 6, None)}


def shop(gate: Gate | None = None) -> Engine:
    """Return an engine with sales (line, item, sk) and the dimension's versions."""

    def build(engine: Engine) -> None:
        lookup, _ = scd_flow(engine, "line", "item", key=lambda row: row[1], initial=INITIAL)
        BagSink(engine, "sales", lookup)

    return Engine(build, ["line", "item"], dimensions=["item"], options=Options(gate=gate) if gate else None)


def test_at_14_each_fact_finds_the_version_of_its_own_order() -> None:
    """One job with all four transactions: sale 1 has version 101 and sale 2 has 102."""
    with shop() as engine:
        for time, changes in EVENTS.items():
            engine.feed(time, changes)
        snapshot = engine.query("q", 9).begin()

    assert set(snapshot["dimension"]) == ITEMS
    assert snapshot["sales"] == {(1, "abc", 101): 1, (2, "abc", 102): 1}


def test_at_14_whatever_the_threads_do() -> None:
    """Each member is held in turn until the others cannot go on; forbidden outcomes are 101/101 and 102/102."""
    for slow in ("look-up", "update old", "insert new"):
        moment = threading.Event()

        def gate(who: str, point: str, tid: int, slow: str = slow, moment: threading.Event = moment) -> None:
            if who == slow and point in ("start", "unit"):
                moment.wait(0.02)

        with shop(gate) as engine:
            for time, changes in EVENTS.items():
                engine.feed(time, changes)
            assert engine.query("q", 9).begin()["sales"] == {(1, "abc", 101): 1, (2, "abc", 102): 1}


def test_at_14_tasks_are_numbered_by_the_commits_on_the_dimension() -> None:
    """item: 1 T1, 2 T3; line: 1 nothing, 2 T2, 3 T4."""
    with shop() as engine:
        pipes = {name: engine.steps[step].pipes[0] for name, step in (("item", "update old"), ("line", "look-up"))}
        for time, changes in EVENTS.items():
            engine.feed(time, changes)
        items: list[Any] = [pipes["item"].poll(1) for _ in range(6)]
        lines: list[Any] = [pipes["line"].poll(1) for _ in range(4)]

        assert [getattr(item, "commit_us", f"end {item.task}") for item in items] == [2, 2, "end 1", 6, 6, "end 2"]
        assert [getattr(line, "commit_us", f"end {line.task}") for line in lines] == ["end 1", 5, "end 2", 8]
        assert [line.task for line in lines] == [1, 2, 2, 3]


def test_at_15_there_is_exactly_one_current_version_at_all_times() -> None:
    """Readers at every point inside the unit, and one that never stops, see one row of the key with no end."""
    seen: set[int] = set()
    ends = threading.Event()

    def current() -> int:
        history: Any = engine.shared("history", lambda: None)
        return sum(row[1] == "abc" and row[-1] is None for row in history.rows)

    def gate(who: str, point: str, tid: int) -> None:
        if point == "unit":
            seen.add(current())

    def watch() -> None:
        while not ends.is_set():
            seen.add(current())

    with shop(gate) as engine:
        reader = threading.Thread(target=watch)
        reader.start()
        for time, (before, after) in enumerate(itertools.pairwise(range(9, 60)), start=1):
            engine.feed(time, {"item": [update(("abc", before), ("abc", after))]})
        snapshot = engine.query("q", 100).begin()
        ends.set()
        reader.join(WAIT_S)

    assert seen == {1}
    assert len(snapshot["dimension"]) == 51


def test_at_16_the_same_events_in_two_jobs() -> None:
    """A query at 5.5 cuts {T1, T2} from {T3, T4}: same final tables, and it sees only the first sale."""
    with shop() as engine:
        snapshots = []
        for time, changes in EVENTS.items():
            if time == 6:
                snapshots.append(engine.query("early", 5).begin())
            engine.feed(time, changes)
        snapshots.append(engine.query("late", 9).begin())

        assert (engine.transactions(1), engine.transactions(2)) == ([2, 5], [6, 8])
        assert violations(engine.log) == []
    assert snapshots[0]["sales"] == {(1, "abc", 101): 1}
    assert snapshots[0]["dimension"] == ((100, "abc", 9, 0, 2), (101, "abc", 10, 2, None))
    assert snapshots[1]["sales"] == {(1, "abc", 101): 1, (2, "abc", 102): 1}
    assert set(snapshots[1]["dimension"]) == ITEMS


def test_facts_of_the_dimensions_own_transaction_see_it() -> None:
    """A fact that is committed together with a version belongs to that version."""
    with shop() as engine:
        engine.feed(3, {"line": [insert(1, "abc")], "item": [update(("abc", 9), ("abc", 10))]})
        assert engine.query("q", 3).begin()["sales"] == {(1, "abc", 101): 1}


def test_a_version_is_closed_by_a_delete_and_kept_by_an_equal_row() -> None:
    """A18: unchanged attributes change nothing; a delete only closes; a new key opens."""
    assert close_and_open(INITIAL, [insert("abc", 9)], 5) == (INITIAL, ())
    assert close_and_open(INITIAL, [delete("abc", 9)], 5) == (((100, "abc", 9, 0, 5),), ())
    assert close_and_open(INITIAL, [insert("new", 1)], 5) == (INITIAL, ((101, "new", 1, 5, None),))
