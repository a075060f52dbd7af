"""I1 to I6 of the papers' argument that each row is seen exactly once, on PostgreSQL, each by name.

A second connection looks at the database at every step of a commit: at the points where crash tests kill, or all the time. Kills at those points are in
tests/faults/test_postgres_one_transaction_kill.py.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import righttime as rt
import righttime.catalyst.mover
import righttime.catalyst.postgres_log
import righttime.ledger.postgres
import righttime.query.postgres_queries
import righttime.warehouse.postgres
from righttime import Warehouse
from righttime.changes.faults import CrashPoint
from righttime.query.postgres_answers import collect
from righttime.warehouse.postgres_hold import Held
from tests.support.crash import engine_of
from tests.support.everywhere import POSTGRES, opened_at
from tests.support.postgres import TempPostgres
from tests.support.postgres_eyes import Eyes, eyes_on
from tests.support.state_tables import archived, catalyst_of, lane, seen

_WITH_POINTS = (righttime.catalyst.mover, righttime.catalyst.postgres_log, righttime.ledger.postgres, righttime.warehouse.postgres)
DONE = (CrashPoint.LEDGER_COMMITTED, CrashPoint.NOTICE_GIVEN)
"""After these the database has the step."""


@pytest.fixture
def wh(tmp_path: Path, postgres: TempPostgres) -> Iterator[Warehouse]:
    with opened_at(POSTGRES, tmp_path, postgres) as opened:
        opened.create_table("x", "a INT, b INT", keys=["a"])
        opened.create_table("y", "a INT, b INT", in_memory=False)
        yield opened


@pytest.fixture
def eyes(postgres: TempPostgres, wh: Warehouse) -> Iterator[Eyes]:
    with eyes_on(postgres, wh) as opened:
        yield opened


def at_every_point(monkeypatch: pytest.MonkeyPatch, look: Callable[[], Any]) -> dict[CrashPoint, Any]:
    """Return, filled while the test goes on, what `look` found at each point."""
    found: dict[CrashPoint, Any] = {}

    def reach(point: CrashPoint) -> None:
        found[point] = look()

    for module in _WITH_POINTS:
        monkeypatch.setattr(module, "reach", reach)
    return found


def test_i1_rows_and_minmax_change_in_one_transaction(wh: Warehouse, eyes: Eyes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows copied, rows deleted, versions raised, states written: at no point does anybody else see one without the other."""
    producer = wh.producer(name="p")
    producer.insert_many("x", [(1, 1), (2, 2)])
    producer.commit(materialize=True)
    producer.insert("x", (3, 3))
    producer.update("x", {"b": 9}, {"a": 1})
    producer.delete("x", {"a": 2})
    producer.commit()
    before = eyes.look("x")["x"]
    found = at_every_point(monkeypatch, lambda: eyes.look("x")["x"])

    wh.materialize()

    after = eyes.look("x")["x"]
    assert (before.rows, before.rows_stored, before.lanes["p"][0]) == ([(1, 1), (2, 2)], 2, 3)
    assert (after.rows, after.rows_stored, after.version) == ([(1, 9), (3, 3)], 2, before.version + 1)
    assert after.lanes["p"][0] > before.lanes["p"][0]
    assert {CrashPoint.FILES_WRITTEN, CrashPoint.TABLES_COMMITTED, CrashPoint.LEDGER_BEGUN, *DONE} <= found.keys()
    assert found == {point: after if point in DONE else before for point in found}


def test_i1_holds_at_any_time_while_commits_go_on(wh: Warehouse, eyes: Eyes) -> None:
    """Commit n adds row n to X and stores it; whoever looks finds rows 1 to n, and minmax that says n."""
    producer, stop = wh.producer(name="p"), threading.Event()

    def load() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            producer.insert("x", (number, number))
            producer.commit(materialize=number % 3 == 0)

    loader = threading.Thread(target=load)
    loader.start()
    try:
        for _ in range(200):
            look = eyes.look("x")["x"]
            stored = look.lanes["p"][0] - 1 if look.lanes else 0
            assert look.rows == [(number, number) for number in range(1, stored + 1)]
            assert look.rows_stored == stored
    finally:
        stop.set()
        loader.join()
    assert eyes.look("x")["x"].version > 0


def test_i2_max_changes_in_the_transaction_of_the_producers_other_writes(wh: Warehouse, eyes: Eyes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit with rows for X, in memory, and for Y, which has no memory table: Y's row and X's new max become visible together."""
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    producer.insert("y", (1, 1))
    producer.commit()

    def both() -> tuple[list[tuple[int, ...]], int]:
        looks = eyes.look("x", "y")
        assert looks["x"].rows == []
        return looks["y"].rows, looks["x"].lanes["p"][1]

    before = both()
    producer.insert("x", (2, 2))
    producer.insert("y", (2, 2))
    found = at_every_point(monkeypatch, both)
    producer.commit()

    assert before == ([(1, 1)], 1)
    assert both() == ([(1, 1), (2, 2)], 2)
    assert found == {point: both() if point in DONE else before for point in found}


def test_i3_the_catalyst_is_told_after_the_database_has_committed(wh: Warehouse, eyes: Eyes, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    | point            | DW X  | catalyst: stored up to |
    |------------------|-------|------------------------|
    | before COMMIT    | ∅     | 0                      |
    | after COMMIT     | (1,1) | 0                      |
    | notice given     | (1,1) | 1                      |
    """
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    producer.commit()
    found = at_every_point(monkeypatch, lambda: (eyes.look("x")["x"].rows, lane(wh, "x").stored_id))

    wh.materialize()

    assert found[CrashPoint.LEDGER_BEGUN] == ([], 0)
    assert found[CrashPoint.LEDGER_COMMITTED] == ([(1, 1)], 0)
    assert found[CrashPoint.NOTICE_GIVEN] == ([(1, 1)], 1)


def test_i4_minmax_is_the_first_thing_that_a_querys_transaction_reads(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fixes the snapshot: before it there is only BEGIN, and a lock, which fixes none; and all of the query's tables come after it."""
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    producer.commit(materialize=True)
    statements: list[tuple[int, str]] = []
    execute = psycopg.Connection.execute

    def noting(self: Any, query: Any, *rest: Any, **options: Any) -> Any:
        statements.append((id(self), query if isinstance(query, str) else query.as_string(self) if not isinstance(query, bytes) else query.decode()))
        return execute(self, query, *rest, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", noting)
    assert wh.read("x").rows() == [(1, 1)]

    begun = next(place for place, (_, text) in enumerate(statements) if "REPEATABLE READ" in text)
    mine = [text for connection, text in statements[begun:] if connection == statements[begun][0]]
    assert mine[0].startswith("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE")
    assert "SELECT" not in mine[0]
    assert "minmax" in mine[1]


def test_i4_a_query_that_waited_for_a_lock_sees_what_was_stored_meanwhile(wh: Warehouse, postgres: TempPostgres) -> None:
    """Somebody has X locked; while the query waits for it, a commit is stored. Its snapshot begins after the wait, so it looks again and has all."""
    wh.create_table("z", "a INT")
    producer = wh.producer(name="p")
    producer.insert("z", (1,))
    producer.commit()
    answers: list[Any] = []
    with psycopg.connect(postgres.dsn) as other:
        other.execute(f"LOCK TABLE {engine_of(wh).settings.table_schema}.x IN ACCESS EXCLUSIVE MODE".encode())
        connection = rt.connect(wh)
        query = threading.Thread(target=lambda: answers.append(connection.cursor().execute("SELECT (SELECT count(*) FROM x), count(*) FROM z").fetchall()))
        query.start()
        with psycopg.connect(postgres.dsn, autocommit=True) as watch:
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while watch.execute(waits).fetchone() == (0,):
                query.join(timeout=0.01)
                assert query.is_alive()
        producer.insert("z", (2,))
        producer.commit()
        wh.materialize("z")
        other.rollback()
    query.join(60)
    connection.close()

    assert answers in ([[(0, 1)]], [[(0, 2)]])  # whole at one of its moments; never a row twice, never (0, 0)


def test_i5_accuracy_is_ensured_before_the_database_is_looked_at(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lazy producer has delivered, and what it delivered is even stored, before the query's snapshot of the database is taken."""
    producer = wh.producer(name="p", policy=rt.OnDemand())
    producer.insert("x", (1, 1))
    producer.commit()
    assert archived(producer, "x") != {}
    snapshots, at_hold = engine_of(wh).snapshots, []
    hold = snapshots._hold

    def noting(tables: Any, versions: Any) -> Any:
        at_hold.append((archived(producer, "x"), lane(wh, "x").times.committed_id))
        return hold(tables, versions)

    monkeypatch.setattr(snapshots, "_hold", noting)

    assert seen(wh, "x") == [(1, 1)]
    assert at_hold == [({}, 1)]


def test_i6_rows_stay_registered_until_the_last_is_fetched(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the rows are read as they are or PostgreSQL answers a query: leases and transaction end after the last row, and then they do end."""
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    producer.commit(materialize=True)
    producer.insert("x", (2, 2))
    producer.commit()
    leases = catalyst_of(wh).leases
    held: list[int] = []
    rows = Held.rows

    def all_rows(*args: Any, **options: Any) -> Any:
        answer = rows(*args, **options)
        held.append(len(leases._live))
        return answer

    def all_answers(*args: Any, **options: Any) -> Any:
        answer = collect(*args, **options)
        held.append(len(leases._live))
        return answer

    monkeypatch.setattr(Held, "rows", all_rows)
    monkeypatch.setattr(righttime.query.postgres_queries, "collect", all_answers)

    assert seen(wh, "x") == [(1, 1), (2, 2)]
    assert (held, len(leases._live)) == ([1], 0)
    with rt.connect(wh) as connection:
        assert connection.cursor().execute("SELECT sum(a) FROM x").fetchall() == [(3,)]
    assert (held, len(leases._live)) == ([1, 1], 0)
