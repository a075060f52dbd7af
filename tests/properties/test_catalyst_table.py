"""Lanes against a dictionary of row id to commit time."""

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from righttime.catalyst.indexes import RowIds
from righttime.catalyst.table import Lane
from righttime.changes.rows import Chunk


def chunk(rows: int) -> Chunk:
    return Chunk(pa.record_batch({"a": pa.nulls(rows, pa.int8())}))


class LaneMachine(RuleBasedStateMachine):
    """Add, commit, mark, roll back, store, free and seal in any order: the lane holds what the dictionary holds."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = RowIds()
        self.lane = Lane("p")
        self.rows: dict[int, int | None] = {}
        self.time_us = 0

    @rule(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), gap=st.integers(0, 2))
    def add(self, sizes: list[int], gap: int) -> None:
        self.ids.take(gap)
        for size in sizes:
            self.lane.add([chunk(size)], self.ids)
            self.rows.update(dict.fromkeys(range(self.ids.last - size + 1, self.ids.last + 1)))
        self.lane.times.uncommitted_id = self.lane.last_id

    @rule(later=st.integers(1, 3))
    def commit(self, later: int) -> None:
        self.time_us += later
        self.lane.commit(self.time_us)
        self.rows = {row_id: self.time_us if committed is None else committed for row_id, committed in self.rows.items()}

    @rule(later=st.integers(1, 3))
    def mark(self, later: int) -> None:
        self.time_us += later
        self.lane.watermark(self.time_us)

    @rule()
    def roll_back(self) -> None:
        gone = sum(piece.rows for piece in self.lane.roll_back())
        assert gone == sum(committed is None for committed in self.rows.values())
        self.rows = {row_id: committed for row_id, committed in self.rows.items() if committed is not None}

    @rule(back=st.integers(0, 5))
    def store(self, back: int) -> None:
        self.lane.stored_id = max(self.lane.stored_id, self.lane.times.committed_id - back)

    @rule(low=st.integers(0, 40), middle=st.integers(0, 9), back=st.integers(0, 5))
    def free(self, low: int, middle: int, back: int) -> None:
        high, low = self.lane.stored_id - back, min(low, self.lane.stored_id)
        for piece in self.lane.free([(low % 10, low), (low + middle + 1, high)]):
            for position in range(piece.rows):
                row_id = piece.id_at(position)
                assert low % 10 <= row_id <= low or low + middle < row_id <= high
                del self.rows[row_id]

    @precondition(lambda self: len(self.lane.pieces) > 1)
    @rule(start=st.integers(0, 10), length=st.integers(1, 4))
    def seal(self, start: int, length: int) -> None:
        start %= len(self.lane.pieces)
        old = self.lane.pieces[start : start + length]
        if old[-1].last_id <= self.lane.times.committed_id:
            assert self.lane.replace(old, chunk(sum(piece.rows for piece in old)))

    @rule(first_id=st.integers(0, 40), span=st.integers(-1, 40))
    def read(self, first_id: int, span: int) -> None:
        found = [part.piece.id_at(position) for part in self.lane.slices(first_id, first_id + span) for position in range(part.start, part.stop)]
        assert found == [row_id for row_id in sorted(self.rows) if first_id <= row_id <= first_id + span]
        runs = [
            row_id
            for part in self.lane.slices(first_id, first_id + span)
            for first, rows in part.piece.runs(part.start, part.stop)
            for row_id in range(first, first + rows)
        ]
        assert runs == found

    @rule(time_us=st.integers(0, 60))
    def cut(self, time_us: int) -> None:
        last_id = self.lane.times.at(time_us)
        hot = {row_id for row_id, committed in self.rows.items() if row_id > self.lane.stored_id}
        if time_us >= self.lane.times.time_of(self.lane.stored_id):
            assert {row_id for row_id in hot if row_id <= last_id} == {
                row_id for row_id in hot if self.rows[row_id] is not None and (self.rows[row_id] or 0) <= time_us
            }

    @invariant()
    def what_is_held_is_known(self) -> None:
        assert all(self.lane.holds(row_id, row_id) for row_id in self.rows if row_id > self.lane.stored_id)
        assert self.lane.uncommitted == any(committed is None for committed in self.rows.values())


test_a_lane_holds_what_the_dictionary_holds = LaneMachine.TestCase
