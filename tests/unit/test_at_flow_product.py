"""AT-3, AT-4, AT-23 and AT-26 on the real catalyst, the real streams and the real runner; the drain itself is a dictionary. Times are a test's."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from righttime.catalyst.table import Lane
from righttime.flows.jobs import FlowJob
from righttime.flows.schedule import Triggers
from righttime.query.snapshot import Snapshots
from righttime.testing.reference.checker import Begun, Committed, violations
from tests.support import waits
from tests.support.flow_journal import Journal
from tests.support.flow_stage import Stage, contract_of
from tests.support.plain_flow import PlainDrained, PlainEngine, run_plain, until


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path / "wh")
    yield found
    found.close()


class Hesitant(PlainEngine):
    """Takes its time, now more and now less."""

    dice = Random(3)

    def drain(self, jobs: Sequence[FlowJob]) -> PlainDrained:
        threading.Event().wait(self.dice.choice([0, 0, 0.002, 0.01]))
        return super().drain(jobs)


def test_at_3_whatever_the_timing_each_query_begins_on_its_own_job(stage: Stage) -> None:
    """A hundred queries, strict and tolerant, beside a feeder, jobs of any duration, and storing: c(i) < b(i) < c(i + 1), or b(i) on the rows of i alone."""
    stage.run(kind=Hesitant, triggers=Triggers(rows_max=20))
    journal, stop, streams = Journal(stage.wh, "t", "flow.plain"), threading.Event(), stage.wh._flows("test").feed.streams

    def feed() -> None:
        for k in count():
            if stop.wait(0.001):
                return
            stage.insert(k, k)
            if k > 3:
                stage.wh.stream("s").delete([{"k": k - 4}])
            stage.clock.advance(0.001)

    def ask(number: int) -> list[tuple[int, dict[int, int]]]:
        dice, found = Random(number), []
        for turn in range(25):
            answer = stage.wh.read("t", freshness=dice.choice(["0s", "0s", "5ms", "50ms"]), wait="20s")
            found.append((answer.receipt.cut_us, dict(answer.rows())))
            if number == 0 and turn % 8 == 5:
                stage.wh.materialize("t")
        return found

    def living(cut_us: int) -> dict[int, int]:
        rows: Counter[tuple[int, int]] = Counter()
        for change in streams.table("s", 0, cut_us).to_pylist():
            rows[change["k"], change["v"]] += change["_w"]
        return dict(rows.elements())

    feeding = stage.pool.submit(feed)
    answers = [answer for done in [stage.pool.submit(ask, number) for number in range(4)] for answer in done.result(60)]
    stop.set()
    feeding.result(20)
    log = journal.log()
    assert violations(log, first=journal.first) == []
    assert [(cut_us, found) for cut_us, found in answers if found != living(cut_us)] == []
    assert sum(isinstance(action, Begun) for action in log) >= 100 and sum(isinstance(action, Committed) for action in log) > 10


def test_at_4_a_successor_that_is_faster_is_not_seen(stage: Stage) -> None:
    """Two queries wait for two jobs of one drain; each sees its own."""
    stage.run()
    stage.insert(1, 1)
    assert stage.query() == {1: 1}
    assert stage.engine is not None
    stage.engine.gate.clear()
    stage.clock.advance(1)
    stage.update(1, 2)
    stage.clock.advance(1)
    first = stage.ask()
    stage.waiting(1)
    stage.clock.advance(1)
    stage.update(1, 3)
    stage.clock.advance(1)
    second = stage.ask()
    stage.waiting(2)
    stage.engine.gate.set()
    assert (first.result(20), second.result(20)) == ({1: 2}, {1: 3})


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored meanwhile"])
def test_at_4_a_query_that_begins_late_sees_its_own_job(stage: Stage, monkeypatch: pytest.MonkeyPatch, stored: bool) -> None:
    """m1 sets x to 1 and m2 to 2; Q1 is held between c(ST1) and its begin until m2 is committed, and asked for, and storing was tried."""
    look, late, go_on = Snapshots._try, threading.Event(), threading.Event()

    def held(self: Snapshots, *given: Any) -> Any:
        if not late.is_set():
            late.set()
            assert go_on.wait(20)
        return look(self, *given)

    monkeypatch.setattr(Snapshots, "_try", held)
    stage.run()
    stage.insert(1, 1)
    stage.clock.advance(1)
    first = stage.ask()
    assert late.wait(20)
    until(stage.wh, lambda: stage.published() == 1)
    stage.clock.advance(1)
    stage.update(1, 2)
    stage.clock.advance(1)
    assert stage.query() == {1: 2}
    until(stage.wh, lambda: stage.published() == 2)
    if stored:
        stage.wh.materialize("t")
    go_on.set()
    assert first.result(20) == {1: 1}
    assert stage.query() == {1: 2}


def test_at_23_a_reader_between_two_tables_of_a_job_sees_both_before_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readers ask all the time for whatever is there, also while a job is in one table and not yet in the other: both tables are always of one job."""
    stage.wh.create_table("u", "k INT NOT NULL, v INT", keys=["k"])
    stage.runner, stage.engine = run_plain(stage.wh, {"t": "s", "u": "s"})
    commit, stop = Lane.commit, threading.Event()
    inside = [False, False]
    met = 0
    seen: Counter[tuple[int, int]] = Counter()

    def half_done(lane: Lane, *given: Any) -> Any:
        nonlocal met
        done = commit(lane, *given)
        if lane.source == "flow.plain":
            stop.wait(0.02)  # readers come, and a reader that is let in has its answer before the other table has the job
            met += any(inside)
        return done

    def sample(number: int) -> None:
        snapshots = stage.wh._writer("test").snapshots
        while not stop.is_set():
            inside[number] = True
            with snapshots.take(["t", "u"], contract_of(freshness="1 day")) as snapshot:
                inside[number] = False
                rows = [snapshots.rows(snapshot.tables[name]).to_pylist() for name in ("t", "u")]
            seen[rows[0][0]["v"] if rows[0] else 0, rows[1][0]["v"] if rows[1] else 0] += 1

    monkeypatch.setattr(Lane, "commit", half_done)
    readers = [stage.pool.submit(sample, number) for number in range(2)]
    for value in range(1, 100):
        (stage.insert if value == 1 else stage.update)(1, value)
        stage.clock.advance(1)
        with stage.wh._writer("test").snapshots.take(["t", "u"], contract_of()) as snapshot:
            assert [stage.wh._writer("test").snapshots.rows(snapshot.tables[name]).to_pylist() for name in ("t", "u")] == [[{"k": 1, "v": value}]] * 2
        waits.until(partial(seen.__getitem__, (value, value)))  # on a busy machine, readers do not come by themselves
        if value > 8 and met:
            break
    stop.set()
    for reader in readers:
        reader.result(20)
    assert all(t == u for t, u in seen), seen
    assert met and len(seen) > 2, "there were readers in between, and they saw several jobs"


@pytest.mark.parametrize(
    ("pending", "bound", "jobs", "seen"),
    [
        (True, "10 min", 0, False),
        (True, "2 min", 1, True),
        (True, "0s", 1, True),
        (False, "10 min", 0, False),
        (False, "2 min", 0, False),
        (False, "0s", 0, False),
    ],
)
def test_at_26_currency(stage: Stage, pending: bool, bound: str, jobs: int, seen: bool) -> None:
    """A change of 10:01 is not in the snapshot of 10:00; a query of 10:04 may or may not do without it. Without that change all share the snapshot."""
    stage.run()
    stage.insert(1, 10)
    assert stage.query() == {1: 10}
    until(stage.wh, lambda: stage.published() == 1)
    stage.clock.advance(60)
    if pending:
        stage.insert(2, 20)
    stage.clock.advance(180)
    answer = stage.wh.read("t", freshness=bound, wait="20s")
    assert dict(answer.rows()) == ({1: 10, 2: 20} if seen else {1: 10})
    assert answer.receipt.given_s is not None and answer.receipt.given_s <= {"10 min": 600, "2 min": 120, "0s": 0}[bound]
    assert stage.engine is not None and [len(drain) for drain in stage.engine.drains] == [1] * (1 + jobs)
    until(stage.wh, lambda: stage.published() == 1 + jobs)
