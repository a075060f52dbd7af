"""AT-R1 to AT-R16: the worked examples of RiTE, on the real producer, catalyst and warehouse.

Running set-up: tables X(A, B) and Y(C, D), both empty; only X has a memory table. The state tables say where rows are:
the producer's buffer and archives, the catalyst (row id: row), the warehouse (DW). Times are whole seconds of a clock that the test drives.
"""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import righttime as rt
from righttime import Producer, Warehouse
from righttime.catalyst.messages import Accuracy
from tests.support.clocks import SteppedClock
from tests.support.crash import engine_of
from tests.support.state_tables import (
    INFINITY,
    MINUTE,
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
)


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(0.0)


@pytest.fixture
def wh(tmp_path: Path, clock: SteppedClock) -> Iterator[Warehouse]:
    with rt.open(tmp_path / "wh", clock=clock) as opened:
        opened.create_table("x", "a INT, b INT")
        opened.create_table("y", "c INT, d INT", in_memory=False)
        yield opened


@pytest.fixture
def two(tmp_path: Path, clock: SteppedClock) -> Iterator[Warehouse]:
    """X and Y both with memory tables."""
    with rt.open(tmp_path / "two", clock=clock) as opened:
        opened.create_table("x", "a INT, b INT")
        opened.create_table("y", "c INT, d INT")
        yield opened


def at_r1(producer: Producer) -> None:
    """Insert (1,1), (2,2) into X and (3,3) into Y."""
    producer.insert("x", (1, 1))
    producer.insert("x", (2, 2))
    producer.insert("y", (3, 3))


def at_r2(wh: Warehouse) -> Producer:
    """AT-R1 and an ordinary commit."""
    producer = wh.producer(name="p")
    at_r1(producer)
    producer.commit()
    return producer


def at_r8(wh: Warehouse, clock: SteppedClock, *, policy: rt.Policy | None = None) -> Producer:
    """Rows 1, 2 committed at 1 s and rows 3, 4 at 2 s."""
    producer = wh.producer(name="p", policy=policy)
    for second, first in ((1, 1), (2, 3)):
        clock.set(second)
        producer.insert_many("x", [(first, first), (first + 1, first + 1)])
        producer.commit()
    return producer


def at_r12(wh: Warehouse, clock: SteppedClock) -> Producer:
    """AT-R8, then rows 5 and 6 in the catalyst as uncommitted, as an own query puts them there."""
    producer = at_r8(wh, clock)
    producer.insert_many("x", [(5, 5), (6, 6)])
    producer._stage(producer._transaction()[0])
    return producer


def test_at_r1_inserted_rows_wait_in_the_buffer(wh: Warehouse) -> None:
    """Uncommitted rows are with their producer only.

    | buffer X     | archive | catalyst X | DW X | DW Y |
    |--------------|---------|------------|------|------|
    | (1,1), (2,2) | ∅       | ∅          | ∅    | ∅    |

    The sheet has (3,3) in Y already, inside the producer's open transaction of the DBMS. A table without memory table here takes its rows
    at commit, in the same state as all others; until then they are in the buffer, as invisible to others as an open transaction.
    """
    producer = wh.producer(name="p")
    at_r1(producer)

    assert buffered(producer, "x") == [(1, 1), (2, 2)]
    assert buffered(producer, "y") == [(3, 3)]
    assert archived(producer, "x") == {}
    assert hot(wh, "x") == {}
    assert stored(wh, "x") == stored(wh, "y") == []
    assert seen(wh, "x") == seen(wh, "y") == []


def test_at_r2_a_commit_flushes_to_the_catalyst(wh: Warehouse) -> None:
    """The immediate policy moves rows to the catalyst at commit; the table without memory table gets its row in the same commit.

    | buffer X | catalyst X         | DW X | DW Y  | view X       |
    |----------|--------------------|------|-------|--------------|
    | ∅        | 1:(1,1), 2:(2,2)   | ∅    | (3,3) | (1,1), (2,2) |
    """
    producer = at_r2(wh)

    assert buffered(producer, "x") == buffered(producer, "y") == []
    assert hot(wh, "x") == {1: (1, 1), 2: (2, 2)}
    assert stored(wh, "x") == []
    assert stored(wh, "y") == [(3, 3)]
    assert seen(wh, "x") == [(1, 1), (2, 2)]
    assert seen(wh, "y") == [(3, 3)]


def test_at_r3_a_lazy_commit_archives_and_a_later_flush_gives_r2(wh: Warehouse, clock: SteppedClock) -> None:
    """A lazy commit leaves the rows with the producer, stamped with the commit time.

    | when        | buffer X | archive X          | catalyst X       | DW X |
    |-------------|----------|--------------------|------------------|------|
    | lazy commit | ∅        | T=2: (1,1), (2,2)  | ∅                | ∅    |
    | flush       | ∅        | ∅                  | 1:(1,1), 2:(2,2) | ∅    |
    """
    producer = wh.producer(name="p", policy=rt.OnDemand())
    producer.insert_many("x", [(1, 1), (2, 2)])
    clock.set(2)
    producer.commit()

    assert buffered(producer, "x") == []
    assert archived(producer, "x") == {2: [(1, 1), (2, 2)]}
    assert hot(wh, "x") == {}
    assert stored(wh, "x") == []

    producer.flush()

    assert archived(producer, "x") == {}
    assert hot(wh, "x") == {1: (1, 1), 2: (2, 2)}
    assert stored(wh, "x") == []


def test_at_r3_a_commit_that_stores_directly_is_durable_and_hence_flushes(wh: Warehouse) -> None:
    """With a row for Y in the transaction, laziness ends: Y is stored at commit, and one commit is visible and durable as a whole (G22).

    | buffer X | archive X | catalyst X       | DW X | DW Y  |
    |----------|-----------|------------------|------|-------|
    | ∅        | ∅         | 1:(1,1), 2:(2,2) | ∅    | (3,3) |
    """
    producer = wh.producer(name="p", policy=rt.OnDemand())
    at_r1(producer)
    producer.commit()

    assert archived(producer, "x") == {}
    assert hot(wh, "x") == {1: (1, 1), 2: (2, 2)}
    assert stored(wh, "x") == []
    assert stored(wh, "y") == [(3, 3)]


def test_at_r4_a_request_flushes_archives_up_to_the_asked_time(wh: Warehouse, clock: SteppedClock) -> None:
    """r=(1,1) committed lazily at 2, s=(2,2) at 4; at 5 a consumer asks for accuracy 2, that is for everything up to 3.

    | after the request | archive X  | catalyst X | τ X        | view X |
    |-------------------|------------|------------|------------|--------|
    |                   | T=4: (2,2) | 1:(1,1)    | 2:1, 3:1   | (1,1)  |

    The entry at 3 is the empty update: the same request again causes no traffic.
    """
    producer = wh.producer(name="p", policy=rt.OnDemand())
    for second, value in ((1, 1), (3, 2)):
        clock.set(second)
        producer.insert("x", (value, value))
        clock.set(second + 1)
        producer.commit()
    clock.set(5)

    answer = wh.read("x", freshness="2s")

    assert answer.rows() == [(1, 1)]
    assert answer.receipt.cut_us == 3 * SECOND
    assert archived(producer, "x") == {4: [(2, 2)]}
    assert hot(wh, "x") == {1: (1, 1)}
    assert time_index(wh, "x") == {2: 1, 3: 1}
    state = catalyst_of(wh).head.number
    assert wh.read("x", freshness="2s").rows() == [(1, 1)]
    assert catalyst_of(wh).head.number == state
    assert catalyst_of(wh).links["p"].requests == {}


def test_at_r5_materialized_rows_stay_in_memory_and_are_seen_once(wh: Warehouse) -> None:
    """After commit(True) the rows are in both places, and every query takes them from one.

    | catalyst X                   | DW X         | view X       |
    |------------------------------|--------------|--------------|
    | 1:(1,1), 2:(2,2), deletable  | (1,1), (2,2) | (1,1), (2,2) |
    """
    producer = at_r2(wh)
    producer.commit(materialize=True)

    assert hot(wh, "x") == {1: (1, 1), 2: (2, 2)}
    assert stored(wh, "x") == [(1, 1), (2, 2)]
    assert seen(wh, "x") == [(1, 1), (2, 2)]

    catalyst_of(wh).free(catalyst_of(wh).tables["x"])

    assert hot(wh, "x") == {}
    assert seen(wh, "x") == [(1, 1), (2, 2)]


def test_at_r6_minmax_moves_with_flush_and_materialization(wh: Warehouse) -> None:
    """The row-id interval of a new query.

    | after | min | max | selects  |
    |-------|-----|-----|----------|
    | AT-R2 | 1   | 2   | 1, 2     |
    | AT-R5 | 3   | 2   | nothing  |
    """
    producer = at_r2(wh)
    assert minmax(wh, "x") == (1, 2)

    producer.commit(materialize=True)

    assert minmax(wh, "x") == (3, 2)


def test_at_r7_the_row_index_finds_each_row_by_its_id(wh: Warehouse) -> None:
    """| row id | row   |
    |--------|-------|
    | 1      | (1,1) |
    | 2      | (2,2) |
    """
    at_r2(wh)

    assert hot(wh, "x", first_id=1, last_id=1) == {1: (1, 1)}
    assert hot(wh, "x", first_id=2, last_id=2) == {2: (2, 2)}


def test_at_r8_the_time_index_names_the_last_row_of_each_commit(wh: Warehouse, clock: SteppedClock) -> None:
    """Rows 1, 2 committed at t1 = 1 and rows 3, 4 at t2 = 2.

    | τ X  | row id |
    |------|--------|
    | 1    | 2      |
    | 2    | 4      |
    """
    at_r8(wh, clock)

    assert time_index(wh, "x") == {1: 2, 2: 4}
    times = lane(wh, "x").times
    first_us, second_us = times.times
    assert [times.at(time_us) for time_us in (first_us - 1, first_us, second_us - 1, second_us)] == [-1, 2, 2, 4]


def test_at_r9_an_empty_update_extends_the_time_index(wh: Warehouse, clock: SteppedClock) -> None:
    """AT-R8, a commit at t3 = 3 without rows for X, one at 4 with a row that is still archived, and a request for 3.

    | τ X  | row id |                      |
    |------|--------|----------------------|
    | 1    | 2      |                      |
    | 2    | 4      |                      |
    | 3    | 4      | the empty update     |
    """
    producer = at_r8(wh, clock, policy=rt.OnDemand())
    producer.flush()
    clock.set(3)
    producer.commit()
    clock.set(4)
    producer.insert("x", (5, 5))
    producer.commit()

    assert seen(wh, "x", freshness="1s") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert time_index(wh, "x") == {1: 2, 2: 4, 3: 4}
    assert archived(producer, "x") == {4: [(5, 5)]}


def test_at_r9_a_lazy_commit_without_rows_for_a_table_needs_no_request(wh: Warehouse, clock: SteppedClock) -> None:
    """Our producers announce which tables a lazy commit touches, so a query for t3 of a table it does not touch is answered at once."""
    producer = at_r8(wh, clock, policy=rt.OnDemand())
    producer.flush()
    clock.set(3)
    producer.commit()
    state = catalyst_of(wh).head.number

    answer = wh.read("x", freshness=0)

    assert len(answer) == 4
    assert [(cut.last_inside.number, cut.last_inside.time_us) for cut in answer.receipt.cut] == [(3, 3 * SECOND)]
    assert catalyst_of(wh).head.number == state


def test_at_r10_the_time_stamp_keeps_two_tables_consistent(two: Warehouse, clock: SteppedClock) -> None:
    """Memory tables for X and Y, lazy; minutes. 1: X row a, Y row b, commit. 2: Y flushed. 3: X row c, Y row d, commit. 4: X flushed.
    5: accuracy 4 minutes for {X, Y}.

    | table | catalyst | τ          | archive | read at t = 1 |
    |-------|----------|------------|---------|---------------|
    | X     | 2:a, 3:c | 1:2, 3:3   | ∅       | a             |
    | Y     | 1:b      | 1:1        | T=3: d  | b             |

    To return c, whose companion d is not there, would be the inconsistency that the time stamp prevents.
    """
    a, b, c, d = (1, 1), (2, 2), (3, 3), (4, 4)
    producer = two.producer(name="p", policy=rt.OnDemand())
    for minute, x_row, y_row, flushed in ((1, a, b, "y"), (3, c, d, "x")):
        clock.set(60 * minute)
        producer.insert("x", x_row)
        producer.insert("y", y_row)
        producer.commit()
        clock.set(60 * (minute + 1))
        producer.flush(flushed)
    clock.set(60 * 5)

    assert hot(two, "y") == {1: b}
    assert hot(two, "x") == {2: a, 3: c}
    assert time_index(two, "y", unit_us=MINUTE) == {1: 1}
    assert time_index(two, "x", unit_us=MINUTE) == {1: 2, 3: 3}
    with engine_of(two).snapshots.take(["x", "y"], asking(4 * MINUTE)) as snapshot:
        assert snapshot.accuracy == Accuracy(1 * MINUTE, {})
        assert {name: tuples(engine_of(two).snapshots.rows(table)) for name, table in snapshot.tables.items()} == {"x": [a], "y": [b]}
    assert archived(producer, "y") == {180: [d]}


def test_at_r11_a_registered_query_reads_the_same_rows_three_times(wh: Warehouse) -> None:
    """C registers ids 3, 4; then ids 5, 6 are committed; then everything is materialized.

    | read by C                   | DW part      | catalyst part    |
    |-----------------------------|--------------|------------------|
    | 1st                         | (1,1), (2,2) | 3:(5,5), 4:(6,6) |
    | 2nd, after ids 5, 6         | (1,1), (2,2) | 3:(5,5), 4:(6,6) |
    | 3rd, after materialization  | (1,1), (2,2) | 3:(5,5), 4:(6,6) |
    | a new query: minmax (7, 6)  | all six      | ∅                |
    """
    producer = at_r2(wh)
    producer.commit(materialize=True)
    producer.insert_many("x", [(5, 5), (6, 6)])
    producer.commit()
    assert minmax(wh, "x") == (3, 4)
    catalyst, snapshots = catalyst_of(wh), snapshots_of(wh)

    with snapshots.take(["x"], asking()) as held:
        table = held.tables["x"]

        def parts() -> tuple[dict[tuple[str, str], tuple[int, int]], list[tuple[int, int]]]:
            (lease,) = catalyst.leases._live.values()
            return dict(lease.intervals), sorted(tuples(snapshots.rows(table)))

        expected = ({("x", "p"): (3, 4)}, [(1, 1), (2, 2), (5, 5), (6, 6)])
        assert parts() == expected
        producer.insert_many("x", [(7, 7), (8, 8)])
        producer.commit()
        assert parts() == expected
        producer.commit(materialize=True)
        catalyst.free(catalyst.tables["x"])
        assert parts() == expected
        assert table.version == 1
        assert {3, 4} <= hot(wh, "x").keys()

    catalyst.free(catalyst.tables["x"])
    assert hot(wh, "x") == {}
    assert minmax(wh, "x") == (7, 6)
    new = wh.read("x")
    assert sorted(new.rows()) == [(1, 1), (2, 2), (5, 5), (6, 6), (7, 7), (8, 8)]
    assert (new.receipt.tables[0].rows_stored, new.receipt.tables[0].rows_hot) == (6, 0)


def test_at_r12_uncommitted_rows_are_seen_by_their_producer_only(wh: Warehouse, clock: SteppedClock) -> None:
    """Rows 5, 6 are in the catalyst with the time stamp ∞.

    | τ X          | minmax.max | consumers see | the producer sees |
    |--------------|------------|---------------|-------------------|
    | 1:2 2:4 ∞:6  | 4          | rows 1-4      | rows 1-6          |
    """
    at_r12(wh, clock)

    assert time_index(wh, "x") == {1: 2, 2: 4, INFINITY: 6}
    assert minmax(wh, "x")[1] == 4
    assert seen(wh, "x") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    own = catalyst_of(wh).look(["x"], Accuracy(9 * SECOND, {}), own="p")
    assert own.intervals["x", "p"] == (1, 6)
    assert catalyst_of(wh).look(["x"], Accuracy(9 * SECOND, {})).intervals["x", "p"] == (1, 4)


def test_at_r13_rollback_removes_uncommitted_rows_and_their_ids_for_good(wh: Warehouse, clock: SteppedClock) -> None:
    """| after rollback | τ X      | catalyst X | next id |
    |----------------|----------|------------|---------|
    |                | 1:2 2:4  | 1-4        | 7       |
    """
    producer = at_r12(wh, clock)
    producer.rollback()

    assert time_index(wh, "x") == {1: 2, 2: 4}
    assert sorted(hot(wh, "x")) == [1, 2, 3, 4]
    producer.insert("x", (7, 7))
    producer.commit()
    assert hot(wh, "x")[7] == (7, 7)
    assert seen(wh, "x") == [(1, 1), (2, 2), (3, 3), (4, 4), (7, 7)]


def test_at_r14_a_commit_takes_the_uncommitted_rows_with_it(wh: Warehouse, clock: SteppedClock) -> None:
    """AT-R12, then row 7 is added with t3 = 3: rows 5, 6, 7 are all committed at 3.

    | τ X          |
    |--------------|
    | 1:2 2:4 3:7  |
    """
    producer = at_r12(wh, clock)
    clock.set(3)
    producer.insert("x", (7, 7))
    producer.commit()

    assert time_index(wh, "x") == {1: 2, 2: 4, 3: 7}
    assert seen(wh, "x") == [(n, n) for n in range(1, 8)]
    assert seen(wh, "x", as_of=3 * SECOND - 1) == [(n, n) for n in range(1, 5)]


def test_at_r15_registration_of_rows_that_were_materialized_meanwhile_is_refused(wh: Warehouse) -> None:
    """A consumer reads minmax (3,4), a materialization completes, the consumer registers (3,4).

    | step                  | minmax | registered |
    |-----------------------|--------|------------|
    | look                  | (3,4)  |            |
    | materialization       | (5,4)  |            |
    | register the old look |        | refused    |
    | look, register again  | (5,4)  | ∅          |
    """
    producer = at_r2(wh)
    producer.commit(materialize=True)
    producer.insert_many("x", [(5, 5), (6, 6)])
    producer.commit()
    catalyst = catalyst_of(wh)
    accuracy = catalyst.ensure_accuracy(catalyst.authority.read_us(), ["x"], deadline_s=0)
    look = catalyst.look(["x"], accuracy)
    assert look.intervals["x", "p"] == (3, 4)

    producer.commit(materialize=True)
    lease, rows = catalyst.register(look, accuracy)

    assert lease is None
    assert rows == {}
    accuracy = catalyst.ensure_accuracy(catalyst.authority.read_us(), ["x"], deadline_s=0)
    again = catalyst.look(["x"], accuracy)
    assert again.intervals["x", "p"] == (5, 4)
    lease, rows = catalyst.register(again, accuracy)
    assert lease is not None
    assert rows == {("x", "p"): []}
    catalyst.release(lease)
    assert seen(wh, "x") == [(1, 1), (2, 2), (5, 5), (6, 6)]


def test_at_r16_a_consumer_is_refused_at_most_once_by_a_tight_loop_of_materializations(wh: Warehouse) -> None:
    """Priority of the retry: whoever was refused once gets in before the next materialization is noticed.

    The consumer looks and registers in two steps here, as over a network; a query inside the process does both under one lock.
    """
    producer = wh.producer(name="p")
    catalyst, stop = catalyst_of(wh), threading.Event()

    def materialize() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            producer.insert("x", (number, number))
            producer.commit(materialize=True)

    def newer(version: int) -> bool:
        return catalyst.tables["x"].version > version

    mover = threading.Thread(target=materialize)
    mover.start()
    refused_in_a_row = []
    try:
        for _ in range(20):
            tries, lease, ticket = 0, None, None
            while lease is None:
                accuracy = catalyst.ensure_accuracy(catalyst.authority.read_us(), ["x"], deadline_s=0)
                look = catalyst.look(["x"], accuracy)
                # A materialization is given every chance to slip in between; against a retry it must not use it.
                slow_s = 5.0 if ticket is None else 0.05
                with catalyst.lock:
                    catalyst.arrivals.wait_for(partial(newer, look.versions["x"]), timeout=slow_s)
                lease, _ = catalyst.register(look, accuracy)
                ticket = catalyst.give_priority(ticket) if lease is None else ticket
                tries += 1
            catalyst.abandon(ticket)
            catalyst.release(lease)
            refused_in_a_row.append(tries - 1)
    finally:
        stop.set()
        mover.join()

    assert max(refused_in_a_row) == 1
