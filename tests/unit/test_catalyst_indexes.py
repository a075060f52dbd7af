"""Time index and row ids: examples of each rule; random ones are in tests/properties."""

import pytest

from righttime.catalyst.accuracy import lanes_behind, newest_common, newest_consistent
from righttime.catalyst.indexes import RowIds, TimeIndex


def index(*entries: tuple[int, int]) -> TimeIndex:
    made = TimeIndex()
    for time_us, row_id in entries:
        made.add(time_us, row_id)
    return made


def test_an_empty_index_covers_nothing() -> None:
    """Before the first commit every time is too early."""
    empty = TimeIndex()

    assert (empty.newest_us, empty.committed_id, empty.at(10**18), empty.time_of(1), empty.at_or_after(0)) == (0, 0, -1, 0, [])


def test_a_time_between_two_commits_gives_the_earlier() -> None:
    """τ̂(t) is τ at the greatest time at or below t."""
    times = index((10, 2), (20, 4))

    assert [times.at(time_us) for time_us in (9, 10, 19, 20, 99)] == [-1, 2, 2, 4, 4]


def test_commit_times_only_grow() -> None:
    """O2: a commit time at or below the newest, or fewer rows than before, is a bug of the caller."""
    times = index((10, 2))
    for time_us, row_id in ((10, 3), (9, 3), (11, 1)):
        with pytest.raises(AssertionError):
            times.add(time_us, row_id)


def test_a_run_of_watermarks_keeps_its_two_ends() -> None:
    """However often nothing new is reported, the index stays short and gives the same row for every time between."""
    times = index((10, 4), *((time_us, 4) for time_us in range(11, 5000)), (5000, 5))

    assert list(zip(times.times, times.ids, strict=True)) == [(10, 4), (4999, 4), (5000, 5)]
    assert times.at(2500) == 4


def test_the_time_of_a_row_is_when_it_was_committed() -> None:
    """The first indexed time that covers the row, not a later watermark."""
    times = index((10, 2), (15, 2), (20, 4))

    assert [times.time_of(row_id) for row_id in (1, 2, 3, 4, 5)] == [10, 10, 20, 20, 0]


def test_entries_after_a_time_end_at_the_captured_row() -> None:
    """What a log record has to say of times: later than the last one logged, and no commit beyond the captured rows."""
    times = index((10, 2), (20, 4), (30, 6))

    assert times.entries_after(10, up_to_id=5) == [(20, 4)]
    assert times.entries_after(0, up_to_id=6) == [(10, 2), (20, 4), (30, 6)]
    assert times.entries_after(30, up_to_id=9) == []


def test_forgetting_keeps_the_newest_entry() -> None:
    """G14: rows may go, but the newest time still proves possession of everything up to it."""
    times = index((10, 2), (20, 4), (30, 6))
    times.forget(5)
    assert times.times == [30]
    times.forget(99)
    assert times.times == [30]
    TimeIndex().forget(5)


def test_row_ids_are_one_sequence_without_reuse() -> None:
    """Each taking begins behind the last one."""
    ids = RowIds(last=6)

    assert [ids.take(2), ids.take(0), ids.take(1), ids.last] == [7, 9, 9, 9]


def test_a_lane_with_any_later_time_is_not_behind() -> None:
    """O1, O2: possession of any t' >= t proves possession of everything up to t."""
    x, y = index((3, 1), (7, 3)), index((5, 2))

    assert lanes_behind(6, [x, y]) == [y]
    assert lanes_behind(5, [x, y]) == []
    assert lanes_behind(8, [x, y]) == [x, y]


def test_without_lanes_to_wait_for_the_answer_is_as_new_as_the_clock() -> None:
    """A query over tables that nobody holds back from is answered up to now."""
    assert newest_consistent(2, [], otherwise_us=9) == 9
    assert newest_common(2, []) == 2
