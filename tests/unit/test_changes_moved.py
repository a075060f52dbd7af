"""Updates and deletes where rows move: straight to the warehouse, spilled, adopted, collected, undone after a crash, read by another process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import righttime as rt
from righttime import Warehouse
from righttime.catalyst.producer import OwnRows
from righttime.catalyst.segments import Segment
from righttime.changes.conditions import Expression
from righttime.changes.faults import CrashPoint
from righttime.errors import FreshnessUnavailable
from tests.support.clocks import SteppedClock
from tests.support.crash import abandon, crash, engine_of, killed_at
from tests.support.state_tables import SECOND, archived, asking, catalyst_of, seen, stored, tuples

ROWS = [(number, number) for number in range(6)]


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(1.0)


@pytest.fixture
def wh(tmp_path: Path, clock: SteppedClock) -> Iterator[Warehouse]:
    opened = rt.open(tmp_path / "wh", clock=clock, bypass_bytes=10_000, file_grace_s=0, segment_rows=4)
    opened.create_table("x", "a INT, b INT", keys=["a"])
    opened.create_table("y", "a INT, b INT", keys=["a"])
    opened.create_table("cold", "a INT, b INT", keys=["a"], in_memory=False)
    yield opened
    if opened._shared is not None:
        opened.close()


def test_a_table_without_memory_table_takes_operations_and_stores_their_outcome(wh: Warehouse, tmp_path: Path) -> None:
    """Rows and operations of one commit are stored when it returns; nothing of it is left in memory, and it survives a crash."""
    p = wh.producer(name="p")
    p.insert_many("cold", ROWS)
    p.update("cold", {"b": 10}, {"a": 0})
    p.commit()
    p.delete("cold", "a > 3")
    p.upsert("cold", {"a": 3, "b": 30})
    p.upsert("cold", {"a": 9})
    p.insert("cold", (8, 8))
    p.update("cold", {"b": Expression("b + 1")}, "a >= 3")
    p.commit()

    expected = [(0, 10), (1, 1), (2, 2), (3, 31), (8, 9)]
    assert sorted(seen(wh, "cold"), key=str) == sorted([*expected, (9, None)], key=str)
    assert not catalyst_of(wh).tables["cold"].has_operations
    assert len(wh.read("cold").rows()) == catalyst_of(wh).tables["cold"].rows_stored
    with rt.open(crash(wh, tmp_path / "after")) as again:
        assert sorted(again.read("cold").rows(), key=str) == sorted([*expected, (9, None)], key=str)
        assert again.losses() == []


@pytest.mark.parametrize("when", ["before", "between"])
def test_operations_and_versions_are_right_on_spilled_rows(tmp_path: Path, clock: SteppedClock, when: str) -> None:
    """Rows, and versions that updates made, leave memory for files; what is hidden in them stays hidden, for readers of Arrow and of files."""
    with rt.open(tmp_path / "wh", clock=clock, memory_bytes_max=2_000, segment_rows=10_000, bypass_bytes=1_000_000) as wh:
        wh.create_table("x", "a INT, b INT", keys=["a"])
        p = wh.producer(name="p")
        for first in range(0, 400, 50):
            p.insert_many("x", [(number, 0) for number in range(first, first + 50)])
            if when == "between" and first == 200:
                p.update("x", {"b": Expression("b + 1")}, "a % 2 = 0")
                p.delete("x", "a % 5 = 0")
            p.commit()
            seen(wh, "x")
        if when == "before":
            p.update("x", {"b": Expression("b + 1")}, "a % 2 = 0 AND a < 250")
            p.delete("x", "a % 5 = 0 AND a < 250")
            p.commit()
            seen(wh, "x")
            p.insert_many("x", [(number, 0) for number in range(1000, 1050)])
            p.commit()
        contents = [piece.content for lane in catalyst_of(wh).tables["x"].lanes.values() for piece in lane.pieces]
        assert any(isinstance(content, Segment) and not content.in_memory for content in contents)

        expected = [(number, 1 - number % 2 if number < 250 else 0) for number in range(400) if number % 5 or number >= 250]
        expected += [(number, 0) for number in range(1000, 1050)] if when == "before" else []
        assert seen(wh, "x") == expected
        wh.materialize()
        assert stored(wh, "x") == expected


def test_a_foreign_version_is_adopted_under_pending_operations(wh: Warehouse, clock: SteppedClock) -> None:
    """Another writer rewrites the table while updates of it are hot. Its version is taken as what these updates are done to, whatever its files are.

    Stored rows carry no commit time, so an operation that was committed before the adoption reaches the rows that were adopted, too.
    """
    p = wh.producer(name="p")
    p.insert_many("x", ROWS)
    p.commit(materialize=True)
    clock.set(2)
    p.update("x", {"b": 50}, {"a": 5})
    p.delete("x", {"a": 0})
    p.insert("x", (7, 7))
    p.commit()
    assert seen(wh, "x") == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 50), (7, 7)]
    clock.set(3)
    folder = engine_of(wh).folder / "tables" / "x"
    write_deltalake(str(folder), pa.table({"a": pa.array([0, 3, 5, 9], pa.int32()), "b": pa.array([0, 3, 5, 9], pa.int32())}), mode="overwrite")

    wh.adopt("x")

    expected = [(3, 3), (5, 50), (7, 7), (9, 9)]
    assert seen(wh, "x") == expected
    wh.materialize()
    assert stored(wh, "x") == seen(wh, "x") == expected
    assert sorted(tuples(pa.table(DeltaTable(str(folder)).to_pyarrow_table()).select(["a", "b"]))) == expected


def test_collecting_removes_rewritten_files_and_leaves_those_that_a_reader_holds(wh: Warehouse, clock: SteppedClock) -> None:
    """Files that a materialization replaced go once no version that anybody holds needs them."""
    p = wh.producer(name="p")
    p.insert_many("x", ROWS)
    p.commit(materialize=True)
    snapshots = engine_of(wh).snapshots
    with snapshots.take(["x"], asking()) as held:
        for number in range(3):
            clock.advance(1)
            p.update("x", {"b": Expression("b + 10")}, "a % 2 = 0")
            p.delete("x", {"a": 5 - number})
            p.commit(materialize=True)
            wh.gc()
            assert tuples(snapshots.rows(held.tables["x"])) == ROWS
    clock.advance(1)
    assert wh.gc()["x"].files > 0

    folder = engine_of(wh).folder / "tables" / "x"
    assert {path.name for path in folder.glob("*.parquet")} == {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()}
    assert seen(wh, "x") == stored(wh, "x") == [(0, 30), (1, 1), (2, 32)]


_BEFORE = [CrashPoint.FILES_WRITTEN, CrashPoint.TABLE_COMMITTED, CrashPoint.TABLES_COMMITTED, CrashPoint.LEDGER_BEGUN]
_AFTER = [CrashPoint.LEDGER_COMMITTED, CrashPoint.NOTICE_GIVEN]


@pytest.mark.parametrize("durability", ["memory", "log"])
@pytest.mark.parametrize("point", [*_BEFORE, *_AFTER])
def test_a_kill_while_changed_rows_are_stored_leaves_each_row_once(
    wh: Warehouse, clock: SteppedClock, tmp_path: Path, point: CrashPoint, durability: Any
) -> None:
    """Files were rewritten and the Delta commit made, the ledger not: the removed files are back, and logged operations are done to them again."""
    p = wh.producer(name="p")
    for table in "xy":
        p.insert_many(table, ROWS)
    p.commit(materialize=True)
    for table in "xy":
        p.update(table, {"b": 40}, {"a": 4})
        p.delete(table, "a < 2")
        p.insert(table, (7, 7))
    p.commit(durability=durability)
    changed = [(2, 2), (3, 3), (4, 40), (5, 5), (7, 7)]
    assert seen(wh, "x") == changed
    with killed_at(wh, point, tmp_path / "after") as left:
        engine_of(wh).mover.materialize(["x", "y"])
    assert left, "the point was not reached"
    abandon(wh)

    kept = durability == "log" or point in _AFTER
    with rt.open(left[0], clock=clock, file_grace_s=0) as again:
        for table in "xy":
            assert seen(again, table) == (changed if kept else ROWS)
            assert stored(again, table) == (changed if point in _AFTER else ROWS)
        assert [(loss.first, loss.last, loss.rows) for loss in again.losses()] == ([] if kept else [(2, 2, 6)])
        again.materialize()
        assert stored(again, "x") == stored(again, "y") == (changed if kept else ROWS)
        again.gc()
        assert seen(again, "x") == (changed if kept else ROWS)


def test_logged_operations_are_seen_by_a_process_that_only_reads(wh: Warehouse, clock: SteppedClock, tmp_path: Path) -> None:
    """A reader settles what the log holds for itself."""
    p = wh.producer(name="p")
    p.insert_many("x", ROWS[:3])
    p.commit(materialize=True)
    p.update("x", {"b": 9}, {"a": 1})
    p.insert("x", (8, 8))
    p.delete("x", "b = 0")
    p.commit(durability="log")
    left = crash(wh, tmp_path / "after")

    with rt.open(left, read_only=True, clock=clock) as reader:
        answer = reader.read("x", on_late="answer")  # the lock in the copied folder names this very process
        assert sorted(answer.rows()) == [(1, 9), (2, 2), (8, 8)]
        assert reader.verify(answer.receipt.to_json()).ok


def test_receipts_of_answers_with_changed_rows_verify_before_and_after_storing(wh: Warehouse, clock: SteppedClock) -> None:
    """Run again as long as the rows are here, compared with the ledger afterwards."""
    p = wh.producer(name="p")
    p.insert_many("x", ROWS)
    p.commit(materialize=True)
    receipts = []
    for number in range(3):
        clock.advance(1)
        p.update("x", {"b": 100 + number}, {"a": number})
        p.delete("x", {"a": 5 - number})
        p.commit()
        receipts.append(wh.read("x").receipt)
    assert [(receipt.rows, receipt.tables[0].rows_hidden) for receipt in receipts] == [(5, 2), (4, 4), (3, 6)]

    assert [wh.verify(receipt).method for receipt in receipts] == ["rerun"] * 3
    wh.materialize()
    found = [wh.verify(receipt) for receipt in receipts]
    assert all(one.ok for one in found)
    assert [one.method for one in found] == ["ledger"] * 3


def test_a_producer_reads_on_from_its_newest_commit_however_old_an_answer_may_be(wh: Warehouse, clock: SteppedClock) -> None:
    """Its own committed rows are never shown without what it did to them, and no lazy producer is asked for more than that."""
    lazy, p = wh.producer(name="lazy", policy=rt.OnDemand()), wh.producer(name="p")
    clock.set(2)
    lazy.insert("x", (9, 9))
    lazy.commit()
    lazy.flush()
    clock.set(3)
    p.insert("x", (1, 1))
    p.commit()
    clock.set(4)
    p.update("x", {"b": 7}, {"a": 1})
    p.commit()
    clock.set(5)
    lazy.insert("x", (8, 8))
    lazy.commit()
    clock.set(6)
    p.insert("x", (2, 2))
    p._stage(p._transaction()[0])
    snapshots = engine_of(wh).snapshots

    with snapshots.take(["x"], asking(100 * SECOND), own=OwnRows("p", {})) as snapshot:
        assert snapshot.accuracy.cut_us == 4 * SECOND
        assert sorted(tuples(snapshots.rows(snapshot.tables["x"]))) == [(1, 7), (2, 2), (9, 9)]
    assert archived(lazy, "x") == {5: [(8, 8)]}


def test_a_late_answer_is_cut_at_one_time_where_operations_are_and_settles_nothing_for_good(wh: Warehouse, clock: SteppedClock) -> None:
    """A silent producer holds a row back that an operation has to reach: the late answer lies before both, and once the row comes it is reached."""
    lazy, p = wh.producer(name="lazy", policy=rt.OnDemand()), wh.producer(name="p")
    lazy._listener.start = lambda: None  # type: ignore[method-assign]
    p.insert("x", (1, 1))
    p.commit()
    clock.set(2)
    lazy.insert("x", (5, 0))
    lazy.commit()
    clock.set(3)
    p.update("x", {"b": 7}, {"a": 5})
    p.insert("x", (6, 6))
    p.commit()

    with pytest.raises(FreshnessUnavailable):
        wh.read("x", wait=0)
    late = wh.read("x", wait=0, on_late="answer")
    assert (late.rows(), late.receipt.late, late.receipt.cut_us) == ([(1, 1)], True, 2 * SECOND - 1)
    engine_of(wh).settler.settle(["x"], 3 * SECOND)  # somebody who does not know that a row is missing
    lazy.flush()

    assert seen(wh, "x") == [(1, 1), (5, 7), (6, 6)]
