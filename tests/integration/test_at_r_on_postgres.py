"""AT-R5, R6, R11, R15 and R16 as the database itself shows them: minmax is read from its own table, on a second connection.

minmax in the database is written with each durable state; between two of them the catalyst alone knows the newest rows in memory.
"""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from righttime import Warehouse
from tests.support.clocks import SteppedClock
from tests.support.crash import engine_of
from tests.support.everywhere import POSTGRES, opened_at
from tests.support.postgres import TempPostgres
from tests.support.postgres_eyes import Eyes, eyes_on
from tests.support.state_tables import asking, catalyst_of, hot, seen, tuples
from tests.unit.test_at_r import at_r2


@pytest.fixture
def wh(tmp_path: Path, postgres: TempPostgres) -> Iterator[Warehouse]:
    with opened_at(POSTGRES, tmp_path, postgres, clock=SteppedClock(0.0)) as opened:
        opened.create_table("x", "a INT, b INT")
        opened.create_table("y", "c INT, d INT", in_memory=False)
        yield opened


@pytest.fixture
def eyes(postgres: TempPostgres, wh: Warehouse) -> Iterator[Eyes]:
    with eyes_on(postgres, wh) as opened:
        yield opened


def test_at_r5_and_r6_rows_and_minmax_in_the_database(wh: Warehouse, eyes: Eyes) -> None:
    """
    | after | DW X         | DW Y  | minmax.min | minmax.max | selects from memory |
    |-------|--------------|-------|------------|------------|---------------------|
    | AT-R2 | ∅            | (3,3) | 1          | 2          | 1, 2                |
    | AT-R5 | (1,1), (2,2) | (3,3) | 3          | 2          | nothing             |
    """
    producer = at_r2(wh)
    before = eyes.look("x", "y")
    assert (before["x"].rows, before["x"].lanes["p"], before["x"].rows_stored) == ([], (1, 2), 0)
    assert before["y"].rows == [(3, 3)]

    producer.commit(materialize=True)

    after = eyes.look("x")["x"]
    assert (after.rows, after.lanes["p"], after.rows_stored) == ([(1, 1), (2, 2)], (3, 2), 2)
    assert after.version == before["x"].version + 1
    assert hot(wh, "x") == {1: (1, 1), 2: (2, 2)}  # deletable
    assert seen(wh, "x") == [(1, 1), (2, 2)]


def test_at_r11_a_query_keeps_its_moment_of_the_database_while_minmax_goes_on(wh: Warehouse, eyes: Eyes) -> None:
    """C registers ids 3, 4; ids 5, 6 are committed; everything is materialized; somebody else even vacuums.

    | read by C | DW part, at C's moment | catalyst part    | minmax in the database |
    |-----------|------------------------|------------------|------------------------|
    | 1st, 2nd  | (1,1), (2,2)           | 3:(5,5), 4:(6,6) | (3, 2)                 |
    | 3rd       | (1,1), (2,2)           | 3:(5,5), 4:(6,6) | (7, 6)                 |
    """
    producer = at_r2(wh)
    producer.commit(materialize=True)
    producer.insert_many("x", [(5, 5), (6, 6)])
    producer.commit()
    catalyst, snapshots = catalyst_of(wh), engine_of(wh).snapshots

    with snapshots.take(["x"], asking()) as held:
        table, expected = held.tables["x"], [(1, 1), (2, 2), (5, 5), (6, 6)]
        assert dict(table.intervals) == {("x", "p"): (3, 4)}
        assert sorted(tuples(snapshots.rows(table))) == expected
        producer.insert_many("x", [(7, 7), (8, 8)])
        producer.commit()
        assert sorted(tuples(snapshots.rows(table))) == expected
        assert eyes.look("x")["x"].lanes["p"] == (3, 2)
        producer.commit(materialize=True)
        assert eyes.look("x")["x"].lanes["p"] == (7, 6)
        eyes._connection.execute(f"VACUUM {engine_of(wh).settings.table_schema}.x".encode())
        catalyst.free(catalyst.tables["x"])
        assert sorted(tuples(snapshots.rows(table))) == expected
        assert {3, 4} <= hot(wh, "x").keys()

    catalyst.free(catalyst.tables["x"])
    assert hot(wh, "x") == {}
    assert seen(wh, "x") == eyes.look("x")["x"].rows == [(n, n) for n in (1, 2, 5, 6, 7, 8)]


class Between:
    """Does something between a query's look at memory and its look at the database."""

    def __init__(self, wh: Warehouse, monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
        self.held: list[bool] = []
        snapshots = engine_of(wh).snapshots
        hold = snapshots._hold

        def slowly(tables: Any, versions: Any) -> Any:
            work(len(self.held), versions)
            found = hold(tables, versions)
            self.held.append(found is not None)
            return found

        monkeypatch.setattr(snapshots, "_hold", slowly)


def test_at_r15_a_materialization_between_the_two_looks_makes_the_query_look_again(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    | step                         | minmax in the database | the query         |
    |------------------------------|------------------------|-------------------|
    | looks at memory              | (3, 2)                 | wants version 1   |
    | a materialization completes  | (5, 4)                 |                   |
    | looks at the database        | (5, 4)                 | refused           |
    | looks at both again          | (5, 4)                 | each row once     |
    """
    producer = at_r2(wh)
    producer.commit(materialize=True)
    producer.insert_many("x", [(5, 5), (6, 6)])
    producer.commit()

    def materialize(tries: int, _versions: Any) -> None:
        if tries == 0:
            producer.commit(materialize=True)

    between = Between(wh, monkeypatch, materialize)

    assert seen(wh, "x") == [(1, 1), (2, 2), (5, 5), (6, 6)]
    assert between.held == [False, True]
    assert not catalyst_of(wh).leases._live  # what the refused try had registered is free again


def test_at_r16_a_query_is_refused_at_most_once_by_a_tight_loop_of_materializations(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first look at the database comes after another materialization; the second try has priority, and each row is there once."""
    producer, catalyst, stop = wh.producer(name="p"), catalyst_of(wh), threading.Event()

    def load() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            producer.insert("x", (number, number))
            producer.commit(materialize=True)

    def newer(version: int) -> bool:
        return catalyst.tables["x"].version > version

    def slip_in(_tries: int, versions: Any) -> None:
        # A materialization is given every chance to slip in between; against a retry it must not use it.
        slow_s = 5.0 if not between.held or between.held[-1] else 0.05
        with catalyst.lock:
            catalyst.arrivals.wait_for(partial(newer, versions["x"]), timeout=slow_s)

    between = Between(wh, monkeypatch, slip_in)
    loader = threading.Thread(target=load)
    loader.start()
    try:
        for _ in range(10):
            rows = seen(wh, "x")
            assert rows == [(n, n) for n in range(1, len(rows) + 1)]
    finally:
        stop.set()
        loader.join()

    assert between.held == [False, True] * 10
