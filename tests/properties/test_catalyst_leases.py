"""Leases: no row inside a live one may go, and every other stored row may."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from righttime.catalyst.indexes import RowIds
from righttime.catalyst.leases import Lease, LeaseTable
from righttime.catalyst.table import Lane
from righttime.changes.rows import Chunk

LANE = ("x", "p")


@given(
    held=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10), st.integers(1, 20), st.booleans()), max_size=8),
    stored_id=st.integers(0, 60),
    now_s=st.integers(0, 20),
)
def test_every_stored_row_that_no_live_lease_holds_is_freeable_and_no_other(held: list[tuple[int, int, int, bool]], stored_id: int, now_s: int) -> None:
    """Whatever was granted and released; the intervals ascend and do not touch."""
    leases = LeaseTable()
    live: set[int] = set()
    for first_id, rows, ttl_s, released in held:
        lease = leases.hold({LANE: (first_id, first_id + rows)}, now_s=0, ttl_s=ttl_s)
        if released:
            leases.release(lease, now_s=0)
        elif ttl_s > now_s:
            live.update(range(first_id, first_id + rows + 1))

    spans = leases.freeable(LANE, stored_id=stored_id, now_s=now_s)

    assert [row_id for low, high in spans for row_id in range(low, high + 1)] == [row_id for row_id in range(stored_id + 1) if row_id not in live]
    assert all(low <= high for low, high in spans)


class LeasedLane(RuleBasedStateMachine):
    """Commits, stores, joins of pieces, leases as queries and as verifications take them, and frees, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = RowIds()
        self.lane = Lane("p")
        self.leases = LeaseTable()
        self.now_s = self.time_us = 0
        self.committed: list[int] = []
        self.live: dict[int, tuple[Lease, list[int]]] = {}
        self.seen: list[tuple[int, int]] = []

    def ids_here(self, first_id: int, last_id: int) -> list[int]:
        return [part.piece.id_at(position) for part in self.lane.slices(first_id, last_id) for position in range(part.start, part.stop)]

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), others=st.integers(0, 2))
    def commit(self, sizes: list[int], others: int) -> None:
        for size in sizes:
            self.ids.take(others)
            self.lane.add([_chunk(size)], self.ids)
            self.committed += range(self.ids.last - size + 1, self.ids.last + 1)
        self.time_us += 1
        self.lane.commit(self.time_us)

    @rule(back=st.integers(0, 6))
    def store(self, back: int) -> None:
        self.lane.stored_up_to(self.lane.times.committed_id - back)

    @rule(back=st.integers(0, 4), ttl_s=st.integers(1, 9))
    def query(self, back: int, ttl_s: int) -> None:
        span = self.lane.stored_id + 1, self.lane.times.committed_id - back
        if span[0] <= span[1]:
            self.seen.append(span)
            self.hold(span, ttl_s)

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), ttl_s=st.integers(1, 9))
    def verify(self, data: st.DataObject, ttl_s: int) -> None:
        span = data.draw(st.sampled_from(self.seen))
        if self.lane.holds(*span):
            self.hold(span, ttl_s)

    def hold(self, span: tuple[int, int], ttl_s: int) -> None:
        lease = self.leases.hold({LANE: span}, now_s=self.now_s, ttl_s=ttl_s)
        self.live[lease.lease_id] = lease, [row_id for row_id in self.committed if span[0] <= row_id <= span[1]]
        assert self.ids_here(*span) == self.live[lease.lease_id][1]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease, _ = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        assert self.leases.release(lease, now_s=self.now_s)

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds
        self.live = {lease_id: (lease, rows) for lease_id, (lease, rows) in self.live.items() if lease.expires_s > self.now_s}

    @precondition(lambda self: len(self.lane.pieces) > 1)
    @rule(start=st.integers(0, 10), length=st.integers(2, 4))
    def join(self, start: int, length: int) -> None:
        old = self.lane.pieces[start % len(self.lane.pieces) :][:length]
        if len({self.lane.holes_before(piece) for piece in old}) == 1:
            assert self.lane.replace(old, _chunk(sum(piece.rows for piece in old))) is not None

    @rule()
    def free(self) -> None:
        self.lane.free(self.leases.freeable(LANE, stored_id=self.lane.stored_id, now_s=self.now_s))
        spans = [lease.intervals[LANE] for lease, _ in self.live.values()]
        stored = [piece for piece in self.lane.pieces if piece.last_id <= self.lane.stored_id]
        assert all(any(low <= piece.last_id and piece.first_id <= high for low, high in spans) for piece in stored)

    @invariant()
    def every_lease_reads_its_rows(self) -> None:
        for lease, rows in self.live.values():
            assert self.ids_here(*lease.intervals[LANE]) == rows

    @invariant()
    def what_is_said_to_be_here_is_here(self) -> None:
        for first_id, last_id in self.seen:
            if self.lane.holds(first_id, last_id):
                assert self.ids_here(first_id, last_id) == [row_id for row_id in self.committed if first_id <= row_id <= last_id]

    @invariant()
    def what_is_known_to_be_gone_is_no_more_than_what_is_here(self) -> None:
        assert len(self.lane.freed) <= len(self.lane.pieces) + 1


def _chunk(rows: int) -> Chunk:
    return Chunk(pa.record_batch({"a": pa.nulls(rows, pa.int8())}))


test_a_lease_reads_its_rows_and_keeps_no_others = LeasedLane.TestCase
