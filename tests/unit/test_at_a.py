"""AT-A0 to AT-A15: the worked examples of All-RiTE, on the real producer, catalyst and warehouse.

Running set-up: X(A, B) with key A, rows r_i = (i, i). Times are whole seconds of a clock that the test drives. Our row ids begin at 1 where the sheet's
begin at 0, and operations take ids after the rows of their transaction. A new version of a row gets its id when operations are settled, which is when
somebody first needs their outcome; so versions are told here by content, begin and end (ts and te of the sheet), which are exact.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime import Producer, Warehouse
from righttime.catalyst.listener import Listener
from righttime.catalyst.producer import OwnRows
from righttime.catalyst.segments import Segment
from righttime.catalyst.table import VERSIONS
from tests.support.clocks import SteppedClock
from tests.support.state_tables import (
    SECOND,
    archived,
    asking,
    buffered,
    catalyst_of,
    hot,
    lane,
    minmax,
    seen,
    snapshots_of,
    stored,
    time_index,
    tuples,
    versions,
)

R = [(number, number) for number in range(5)]


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(0.0)


@pytest.fixture
def wh(tmp_path: Path, clock: SteppedClock) -> Iterator[Warehouse]:
    with rt.open(tmp_path / "wh", clock=clock, segment_rows=2) as opened:
        opened.create_table("x", "a INT, b INT", keys=["a"])
        yield opened


def own_rows(wh: Warehouse, producer: Producer) -> list[Any]:
    """What a producer sees of X: everything committed, and its open transaction."""
    content, bypass = producer._transaction()
    producer._stage(content)
    snapshots = snapshots_of(wh)
    with snapshots.take(["x"], asking(), own=OwnRows(producer.source, bypass)) as snapshot:
        return sorted(tuples(snapshots.rows(snapshot.tables["x"])))


def at_a6(wh: Warehouse, clock: SteppedClock) -> Producer:
    """Transaction 1: insert r0, r1, r2; U0 = SET B=1 WHERE A=0."""
    producer = wh.producer(name="p")
    clock.set(1)
    producer.insert_many("x", R[:3])
    producer.update("x", {"b": 1}, {"a": 0})
    producer.commit()
    return producer


def at_a7(producer: Producer, clock: SteppedClock) -> None:
    """Transaction 2: insert r3, r4; D0 = DELETE WHERE A=1; U1 = SET B=2 WHERE A=0."""
    clock.set(2)
    producer.insert_many("x", R[3:])
    producer.delete("x", {"a": 1})
    producer.update("x", {"b": 2}, {"a": 0})
    producer.commit()


def at_a8_first(wh: Warehouse, clock: SteppedClock) -> Producer:
    """Time 1: insert r0, r1, r2; U0 = SET B=1 WHERE B=0."""
    producer = wh.producer(name="p")
    clock.set(1)
    producer.insert_many("x", R[:3])
    producer.update("x", {"b": 1}, "b = 0")
    producer.commit()
    return producer


def at_a8_second(producer: Producer) -> None:
    """D0 = DELETE WHERE B=1; U1 = SET B=0 WHERE B=2."""
    producer.delete("x", "b = 1")
    producer.update("x", {"b": 0}, "b = 2")


def test_at_a0_a_load_begins_with_nothing_anywhere(wh: Warehouse) -> None:
    """| Xrow | Xmem | X |
    |------|------|---|
    | ∅    | ∅    | ∅ |
    """
    producer = wh.producer(name="p")

    assert buffered(producer, "x") == []
    assert hot(wh, "x") == {}
    assert stored(wh, "x") == seen(wh, "x") == []


def test_at_a1_instant_flush_moves_rows_at_commit_and_materializes_on_demand(wh: Warehouse, clock: SteppedClock) -> None:
    """
    | when                 | Xrow   | Xmem       | X      |
    |----------------------|--------|------------|--------|
    | t0 insert r0, r1, r2 | r0..r2 | ∅          | ∅      |
    | t1 commit            | ∅      | r0..r2     | ∅      |
    | t2 insert r3, r4     | r3, r4 | r0..r2     | ∅      |
    | t3 commit(True)      | ∅      | deletable  | r0..r4 |
    """
    producer = wh.producer(name="p")
    producer.insert_many("x", R[:3])
    assert (buffered(producer, "x"), hot(wh, "x")) == (R[:3], {})
    clock.set(1)
    producer.commit()
    assert (buffered(producer, "x"), list(hot(wh, "x").values()), stored(wh, "x")) == ([], R[:3], [])
    clock.set(2)
    producer.insert_many("x", R[3:])
    assert (buffered(producer, "x"), list(hot(wh, "x").values()), stored(wh, "x")) == (R[3:], R[:3], [])
    clock.set(3)
    producer.commit(materialize=True)

    assert (buffered(producer, "x"), stored(wh, "x"), seen(wh, "x")) == ([], R, R)
    assert minmax(wh, "x") == (6, 5)


def test_at_a2_lazy_flush_keeps_rows_in_the_archive(wh: Warehouse, clock: SteppedClock) -> None:
    """
    | when             | Xrow   | Xar         | Xmem | X      |
    |------------------|--------|-------------|------|--------|
    | t1 commit        | ∅      | T=1: r0..r2 | ∅    | ∅      |
    | t2 insert r3, r4 | r3, r4 | T=1: r0..r2 | ∅    | ∅      |
    | t3 commit(True)  | ∅      | ∅           |      | r0..r4 |
    """
    producer = wh.producer(name="p", policy=rt.OnDemand())
    producer.insert_many("x", R[:3])
    clock.set(1)
    producer.commit()
    assert (buffered(producer, "x"), archived(producer, "x"), hot(wh, "x")) == ([], {1: R[:3]}, {})
    clock.set(2)
    producer.insert_many("x", R[3:])
    assert (buffered(producer, "x"), archived(producer, "x"), hot(wh, "x")) == (R[3:], {1: R[:3]}, {})
    clock.set(3)
    producer.commit(materialize=True)

    assert (buffered(producer, "x"), archived(producer, "x"), stored(wh, "x")) == ([], {}, R)


def lazily_loaded(wh: Warehouse, clock: SteppedClock, times: tuple[int, int]) -> Producer:
    producer = wh.producer(name="p", policy=rt.OnDemand())
    for second, rows in zip(times, (R[:3], R[3:]), strict=True):
        clock.set(second)
        producer.insert_many("x", rows)
        producer.commit()
    return producer


def test_at_a3_a_query_takes_from_the_archive_what_its_freshness_needs(wh: Warehouse, clock: SteppedClock) -> None:
    """r0-r2 committed at 1, r3, r4 at 2, lazily; at 3 a consumer asks for freshness 2.

    | t | Xmem   | Xar         |
    |---|--------|-------------|
    | 1 | r0..r2 | T=2: r3, r4 |
    """
    producer = lazily_loaded(wh, clock, (1, 2))
    assert archived(producer, "x") == {1: R[:3], 2: R[3:]}
    clock.set(3)

    assert seen(wh, "x", freshness=2) == R[:3]
    assert list(hot(wh, "x").values()) == R[:3]
    assert archived(producer, "x") == {2: R[3:]}


def test_at_a4_a_request_below_the_archive_sends_an_empty_update_and_one_for_now_everything(wh: Warehouse, clock: SteppedClock) -> None:
    """The archive begins at 5.

    | request | Xmem   | Xar    | time index    |
    |---------|--------|--------|---------------|
    | 4       | ∅      | all    | 4: nothing    |
    | now     | r0..r4 | ∅      | 5, 6          |
    """
    producer = lazily_loaded(wh, clock, (5, 6))
    clock.set(7)

    assert seen(wh, "x", as_of=4 * SECOND) == []
    assert archived(producer, "x") == {5: R[:3], 6: R[3:]}
    assert time_index(wh, "x") == {4: 0}

    assert seen(wh, "x") == R
    assert archived(producer, "x") == {}
    assert time_index(wh, "x") == {4: 0, 5: 3, 6: 5, 7: 5}


def test_at_a5_rows_lie_in_segments_and_the_indexes_find_them(wh: Warehouse, clock: SteppedClock) -> None:
    """All five rows flushed, segment capacity 2 (ours: at least 2 rows, whole commits, sealed when first read as files).

    | segment        | row-ID index (first id) | time index |
    |----------------|-------------------------|------------|
    | r0, r1, r2     | 1                       | 1: 3       |
    | r3, r4         | 4                       | 2: 5       |
    """
    producer = wh.producer(name="p")
    snapshots = snapshots_of(wh)
    for second, rows in ((1, R[:3]), (2, R[3:])):
        clock.set(second)
        producer.insert_many("x", rows)
        producer.commit()
        with snapshots.take(["x"], asking()) as snapshot:
            if isinstance(wh, Warehouse):  # a service does so by itself
                snapshots.with_images(snapshot.tables["x"], ())

    pieces = lane(wh, "x").pieces
    assert all(isinstance(piece.content, Segment) for piece in pieces)
    assert [(piece.first_id, piece.rows) for piece in pieces] == [(1, 3), (4, 2)]
    assert time_index(wh, "x") == {1: 3, 2: 5}
    assert hot(wh, "x") == dict(enumerate(R, start=1))


def test_at_a5_rows_that_are_committed_one_by_one_lie_in_segments_of_the_sheets_capacity(wh: Warehouse, clock: SteppedClock) -> None:
    """Capacity 2, and nothing that must not be torn apart; read as files whenever a segment is full, and at last.

    | segment | row-ID index (first id; the sheet's are one less) | time index |
    |---------|---------------------------------------------------|------------|
    | r0, r1  | 1                                                 | 1: 1, 2: 2 |
    | r2, r3  | 3                                                 | 3: 3, 4: 4 |
    | r4      | 5                                                 | 5: 5       |
    """
    producer, snapshots = wh.producer(name="p"), snapshots_of(wh)
    for second, row in enumerate(R, start=1):
        clock.set(second)
        producer.insert("x", row)
        producer.commit()
        if second in (2, 4, 5):
            with snapshots.take(["x"], asking()) as snapshot:
                if isinstance(wh, Warehouse):  # a service does so by itself
                    snapshots.with_images(snapshot.tables["x"], ())

    pieces = lane(wh, "x").pieces
    assert [(piece.first_id, piece.rows, isinstance(piece.content, Segment)) for piece in pieces] == [(1, 2, True), (3, 2, True), (5, 1, True)]
    assert time_index(wh, "x") == {second: second for second in range(1, 6)}
    assert hot(wh, "x") == dict(enumerate(R, start=1))


def live_ids(wh: Warehouse) -> dict[int, int]:
    """The sheet's PK map: the row id of the version that lives, by key."""
    memory = catalyst_of(wh).tables["x"]
    ended = set(memory.ends.hot_ids.tolist())
    return {row[0]: row_id for source in memory.lanes for row_id, row in hot(wh, "x", source).items() if row_id not in ended}


def test_at_a6_an_update_by_key_ends_the_old_version_and_begins_a_new_one(wh: Warehouse, clock: SteppedClock) -> None:
    """Transaction 1: insert r0, r1, r2; U0 = SET B=1 WHERE A=0.

    | A | B | ts | te |
    |---|---|----|----|
    | 0 | 0 | 1  | 1  |
    | 1 | 1 | 1  | -  |
    | 2 | 2 | 1  | -  |
    | 0 | 1 | 1  | -  |
    """
    at_a6(wh, clock)

    assert seen(wh, "x") == [(0, 1), (1, 1), (2, 2)]
    assert versions(wh, "x") == [((0, 0), 1, 1), ((0, 1), 1, None), ((1, 1), 1, None), ((2, 2), 1, None)]
    assert hot(wh, "x") == {1: (0, 0), 2: (1, 1), 3: (2, 2)}  # id 4 is U0's
    assert lane(wh, "x").last_id == 4
    # The sheet's rid 3 and PKmap {0:3, 1:1, 2:2}: one more for the first id, and one for U0's own.
    assert hot(wh, "x", VERSIONS) == {5: (0, 1)}
    assert live_ids(wh) == {0: 5, 1: 2, 2: 3}


def test_at_a7_a_second_transaction_ends_versions_and_the_older_reader_keeps_its_set(wh: Warehouse, clock: SteppedClock) -> None:
    """Transaction 2: insert r3, r4; D0 = DELETE WHERE A=1; U1 = SET B=2 WHERE A=0.

    | A | B | ts | te |
    |---|---|----|----|
    | 0 | 0 | 1  | 1  |
    | 1 | 1 | 1  | 2  |
    | 2 | 2 | 1  | -  |
    | 0 | 1 | 1  | 2  |
    | 3 | 3 | 2  | -  |
    | 4 | 4 | 2  | -  |
    | 0 | 2 | 2  | -  |
    """
    producer = at_a6(wh, clock)
    snapshots = snapshots_of(wh)
    with snapshots.take(["x"], asking()) as before:
        at_a7(producer, clock)

        assert seen(wh, "x") == [(0, 2), (2, 2), (3, 3), (4, 4)]
        assert sorted(tuples(snapshots.rows(before.tables["x"]))) == seen(wh, "x", as_of=2 * SECOND - 1) == [(0, 1), (1, 1), (2, 2)]
    assert versions(wh, "x") == [
        ((0, 0), 1, 1),
        ((0, 1), 1, 2),
        ((0, 2), 2, None),
        ((1, 1), 1, 2),
        ((2, 2), 1, None),
        ((3, 3), 2, None),
        ((4, 4), 2, None),
    ]
    assert lane(wh, "x").last_id == 9  # the version (0,1) took 5; r3, r4, D0 and U1 took 6 to 9
    assert hot(wh, "x") == {1: (0, 0), 2: (1, 1), 3: (2, 2), 6: (3, 3), 7: (4, 4)}  # as in the sheet, D0 took one that no row has
    assert hot(wh, "x", VERSIONS) == {5: (0, 1), 10: (0, 2)}
    assert live_ids(wh) == {0: 10, 2: 3, 3: 6, 4: 7}


def operations(wh: Warehouse) -> list[tuple[str, str | None]]:
    """The sheet's M, in its order: what is to be done to rows, committed or not."""
    return [(placed.operations.kind, placed.operations.condition) for placed in lane(wh, "x").operations]


@pytest.mark.parametrize("between", ["nothing", "a read", "a materialization"])
def test_at_a8_operations_by_condition_reach_what_was_there_before_them(wh: Warehouse, clock: SteppedClock, between: str) -> None:
    """Time 1: r0-r2, U0 = SET B=1 WHERE B=0; time 2: r3, r4, D0 = DELETE WHERE B=1, U1 = SET B=0 WHERE B=2.

    | query     | rows                |
    |-----------|---------------------|
    | 1 <= t < 2 | (0,1) (1,1) (2,2)  |
    | 2 <= t    | (2,0) (3,3) (4,4)   |
    """
    producer = at_a8_first(wh, clock)
    if between == "a read":
        assert seen(wh, "x") == [(0, 1), (1, 1), (2, 2)]
    if between == "a materialization":
        wh.materialize()
        assert stored(wh, "x") == [(0, 1), (1, 1), (2, 2)]
    clock.set(2)
    producer.insert_many("x", R[3:])
    at_a8_second(producer)
    producer.commit()

    assert operations(wh)[-2:] == [("delete", "`b` = 1"), ("update", "`b` = 2")]
    assert seen(wh, "x", as_of=2 * SECOND - 1) == [(0, 1), (1, 1), (2, 2)]
    assert seen(wh, "x") == [(2, 0), (3, 3), (4, 4)]
    if between != "a materialization":
        assert list(hot(wh, "x").values()) == R  # what was inserted is never changed
    wh.materialize()
    assert stored(wh, "x") == seen(wh, "x") == [(2, 0), (3, 3), (4, 4)]


def test_at_a9_the_same_query_gives_the_same_rows_within_one_query_transaction(wh: Warehouse, clock: SteppedClock) -> None:
    """A snapshot taken between the two commits of AT-A8, read three times, with the second commit, its settling and its storing in between."""
    producer = at_a8_first(wh, clock)
    snapshots = snapshots_of(wh)
    with snapshots.take(["x"], asking()) as held:
        answers = [sorted(tuples(snapshots.rows(held.tables["x"])))]
        clock.set(2)
        producer.insert_many("x", R[3:])
        at_a8_second(producer)
        producer.commit()
        answers.append(sorted(tuples(snapshots.rows(held.tables["x"]))))
        wh.materialize()
        wh.gc()
        answers.append(sorted(tuples(snapshots.rows(held.tables["x"]))))

    assert answers == [[(0, 1), (1, 1), (2, 2)]] * 3
    assert seen(wh, "x") == [(2, 0), (3, 3), (4, 4)]


def test_at_a10_operations_that_are_taken_back_never_changed_a_row(wh: Warehouse, clock: SteppedClock) -> None:
    """The sheet removes entry 2 from M; here D0 and U1 are in the catalyst, seen by their producer, and rolled back.

    | reader             | rows                          |
    |--------------------|-------------------------------|
    | their producer     | (2,0) (3,3) (4,4)             |
    | everybody, at last | (0,1) (1,1) (2,2) (3,3) (4,4) |
    """
    producer = at_a8_first(wh, clock)
    clock.set(2)
    producer.insert_many("x", R[3:])
    producer.commit()
    at_a8_second(producer)
    assert own_rows(wh, producer) == [(2, 0), (3, 3), (4, 4)]
    assert operations(wh) == [("update", "`b` = 0"), ("delete", "`b` = 1"), ("update", "`b` = 2")]

    producer.rollback()

    assert operations(wh) == [("update", "`b` = 0")]  # M without entry 2
    assert seen(wh, "x") == own_rows(wh, producer) == [(0, 1), (1, 1), (2, 2), (3, 3), (4, 4)]
    assert list(hot(wh, "x").values()) == R


def counters(wh: Warehouse) -> dict[int, int]:
    """How many consumers hold each row."""
    held = [lease.intervals["x", "p"] for lease in catalyst_of(wh).leases._live.values()]
    return {row_id: sum(low <= row_id <= high for low, high in held) for row_id in hot(wh, "x")}


def kept(wh: Warehouse) -> list[int]:
    """The rows that are still here when everything that may leave memory has left it."""
    catalyst_of(wh).free(catalyst_of(wh).tables["x"])
    return list(hot(wh, "x"))


def test_at_a11_to_a14_rows_that_a_consumer_has_registered_are_not_freed(wh: Warehouse, clock: SteppedClock) -> None:
    """The sheet counts per segment; we keep leases of row-id intervals, which say the same for each row.

    | id  | when                  | minmax | rows 1-3 held by | rows 4, 5 held by | may be freed once stored |
    |-----|-----------------------|--------|------------------|-------------------|--------------------------|
    | A11 | flush r0, r1, r2      | (1, 3) | 0                |                   |                          |
    | A12 | Cons1 registers [1;3] |        | 1                |                   |                          |
    | A13 | flush r3, r4          | (1, 5) | 1                | 0                 |                          |
    | A14 | Cons2 registers [1;5] |        | 2                | 1                 | none                     |
    |     | Cons1 unregisters     |        | 1                | 1                 | none                     |
    |     | Cons2 unregisters     |        | 0                | 0                 | 1-5                      |
    """
    producer = wh.producer(name="p")
    snapshots = snapshots_of(wh)
    producer.insert_many("x", R[:3])
    producer.commit()
    assert (minmax(wh, "x"), counters(wh)) == ((1, 3), {1: 0, 2: 0, 3: 0})

    first = snapshots.take(["x"], asking())
    of_first = first.__enter__()
    assert counters(wh) == {1: 1, 2: 1, 3: 1}
    producer.insert_many("x", R[3:])
    producer.commit()
    assert (minmax(wh, "x"), counters(wh)) == ((1, 5), {1: 1, 2: 1, 3: 1, 4: 0, 5: 0})
    second = snapshots.take(["x"], asking())
    of_second = second.__enter__()
    assert counters(wh) == {1: 2, 2: 2, 3: 2, 4: 1, 5: 1}

    producer.delete("x", {"a": 0})
    producer.commit(materialize=True)
    assert stored(wh, "x") == R[1:]
    assert kept(wh) == [1, 2, 3, 4, 5]
    assert tuples(snapshots.rows(of_first.tables["x"])) == R[:3]
    first.__exit__(None, None, None)
    assert kept(wh) == [1, 2, 3, 4, 5]
    assert tuples(snapshots.rows(of_second.tables["x"])) == R
    second.__exit__(None, None, None)
    assert kept(wh) == []


def test_at_a13_what_came_after_the_registered_rows_is_removable(wh: Warehouse, clock: SteppedClock) -> None:
    """In the state {0:1, 2:1, 4:0} the third segment has no consumer: once stored it goes, and Cons1 reads on.

    Ours are segments of whole commits: r3 is not in one with r2, and goes with r4.

    | when                  | rows 1-3 held by | rows 4, 5 held by | here after storing and freeing |
    |-----------------------|------------------|-------------------|--------------------------------|
    | Cons1 registers [1;3] | 1                |                   |                                |
    | flush r3, r4          | 1                | 0                 | 1-3                            |
    | Cons1 unregisters     | 0                | 0                 | none                           |
    """
    producer = wh.producer(name="p")
    snapshots = snapshots_of(wh)
    producer.insert_many("x", R[:3])
    producer.commit()
    with snapshots.take(["x"], asking()) as of_first:
        producer.insert_many("x", R[3:])
        producer.commit()
        assert counters(wh) == {1: 1, 2: 1, 3: 1, 4: 0, 5: 0}
        receipt = wh.read("x").receipt
        wh.materialize()
        assert kept(wh) == [1, 2, 3]
        assert tuples(snapshots.rows(of_first.tables["x"])) == R[:3]
        assert receipt.verify().method == "ledger"
    assert kept(wh) == []
    assert seen(wh, "x") == R


def test_at_a15_a_flush_wakes_the_queries_that_it_is_enough_for(wh: Warehouse, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries wait for the times 3, 5 and 9; ours wait on one condition, so those that a flush is enough for wake together, in no order of their own.

    | arrives           | awake   | asleep |
    |-------------------|---------|--------|
    | flush with t'=5   | 3 and 5 | 9      |
    | empty update at 9 | 9       |        |
    """
    monkeypatch.setattr(Listener, "start", lambda self: None)
    producer = wh.producer(name="p", policy=rt.OnDemand())
    for second in (2, 5, 10):
        clock.set(second)
        producer.insert("x", (second, second))
        producer.commit()
    catalyst, link = catalyst_of(wh), catalyst_of(wh).links["p"]
    awake: dict[int, threading.Thread] = {}
    for second in (3, 5, 9):
        deadline_s = clock.monotonic_s() + 30
        awake[second] = threading.Thread(
            target=catalyst.ensure_accuracy, args=(second * SECOND, ["x"]), kwargs={"deadline_s": deadline_s, "exact": True}, daemon=True
        )
        awake[second].start()
        assert catalyst.await_requests(link, 30) == {"x": second * SECOND}  # asked, hence asleep

    producer._serve("x", 5 * SECOND)
    awake[3].join(30)
    awake[5].join(30)
    assert [awake[second].is_alive() for second in (3, 5, 9)] == [False, False, True]
    assert catalyst.await_requests(link, 30) == {"x": 9 * SECOND}  # still asking
    assert archived(producer, "x") == {10: [(10, 10)]}

    producer._serve("x", 9 * SECOND)
    awake[9].join(30)
    assert not awake[9].is_alive()
    assert archived(producer, "x") == {10: [(10, 10)]}
    assert time_index(wh, "x") == {2: 1, 5: 2, 9: 2}
