"""The time index and ensure accuracy against plain dictionaries."""

from hypothesis import given
from hypothesis import strategies as st

from righttime.catalyst.accuracy import lanes_behind, newest_common, newest_consistent
from righttime.catalyst.head import SourceHistory
from righttime.catalyst.indexes import TimeIndex
from righttime.changes.position import START, Commit

steps = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=25)
"""How much later, and how many rows more (0 is a watermark)."""


def both(changes: list[tuple[int, int]]) -> tuple[TimeIndex, dict[int, int]]:
    index, model = TimeIndex(), {}
    time_us = row_id = 0
    for later, more in changes:
        time_us, row_id = time_us + later, row_id + more
        index.add(time_us, row_id)
        model[time_us] = row_id
    return index, model


@given(changes=steps, time_us=st.integers(0, 130))
def test_at_gives_the_newest_row_committed_by_then(changes: list[tuple[int, int]], time_us: int) -> None:
    """τ̂ over any history, watermarks folded or not, equals the dictionary's."""
    index, model = both(changes)

    assert index.at(time_us) == max(((at, row_id) for at, row_id in model.items() if at <= time_us), default=(0, -1))[1]
    assert index.newest_us == max(model, default=0)
    assert index.committed_id == max(model.values(), default=0)


@given(changes=steps, row_id=st.integers(1, 80))
def test_time_of_gives_the_commit_that_brought_the_row(changes: list[tuple[int, int]], row_id: int) -> None:
    """The first time in the history that covers a row."""
    index, model = both(changes)

    assert index.time_of(row_id) == min((at for at, covered in model.items() if covered >= row_id), default=0)


@given(changes=steps, forgotten=st.integers(0, 80), time_us=st.integers(0, 130))
def test_forgetting_changes_no_answer_about_rows_that_are_left(changes: list[tuple[int, int]], forgotten: int, time_us: int) -> None:
    """After rows up to an id are gone, every answer at or above that id is what it was, and the newest time stays."""
    index, _ = both(changes)
    before, newest_us = index.at(time_us), index.newest_us
    index.forget(forgotten)

    assert index.newest_us == newest_us
    if before >= forgotten:
        assert index.at(time_us) == before
    else:
        assert index.at(time_us) <= max(before, -1) or index.at(time_us) == before


@given(histories=st.lists(steps, min_size=1, max_size=4), time_us=st.integers(0, 60))
def test_the_consistent_time_is_as_asked_complete_everywhere_and_never_older_than_the_published_one(
    histories: list[list[tuple[int, int]]], time_us: int
) -> None:
    """P8': at least t; once no lane is behind, every lane has everything up to it; never below P8's."""
    lanes = [both(history)[0] for history in histories]
    found = newest_consistent(time_us, lanes, otherwise_us=10**6)

    assert found >= time_us
    if not lanes_behind(time_us, lanes):
        assert all(lane.newest_us >= found for lane in lanes)
        assert found >= newest_common(time_us, lanes)


@given(gaps=st.lists(st.integers(1, 4), max_size=40), commits_max=st.integers(1, 10), lost=st.integers(0, 5), time_us=st.integers(0, 170))
def test_a_history_that_forgets_still_cuts_exactly_above_its_oldest_time(gaps: list[int], commits_max: int, lost: int, time_us: int) -> None:
    """Numbers and times on both sides of a cut are those of the full list, for every time that is still known; memory is bounded."""
    history = SourceHistory(START, commits_max=commits_max, first_number=1 + lost)
    commits: list[Commit] = []
    for gap in gaps:
        commits.append(history.append((commits[-1].time_us if commits else 0) + gap, rows=gap))
    assert [commit.number for commit in commits] == list(range(1 + lost, 1 + lost + len(gaps)))
    assert history.last == (commits[-1] if commits else START)
    assert history.next_number == 1 + lost + len(gaps)
    if time_us >= history.oldest_us:
        cut = history.cut("p", time_us)
        assert cut.last_inside == max((commit for commit in commits if commit.time_us <= time_us), default=START)
        assert cut.first_outside == min((commit for commit in commits if commit.time_us > time_us), default=None)
        assert history.rows_at(time_us) == sum(gap for commit, gap in zip(commits, gaps, strict=True) if commit.time_us <= time_us)
    assert history.rows == sum(gaps)
    assert len(history._times) <= commits_max


@given(gaps=st.lists(st.integers(1, 4), max_size=40), commits_max=st.integers(1, 10), held=st.integers(0, 40))
def test_a_history_does_not_forget_what_its_source_holds_back(gaps: list[int], commits_max: int, held: int) -> None:
    """The last commit before the oldest that is held back, and its rows, can be told as long as that is held back."""
    history = SourceHistory(START, commits_max=commits_max)
    commits: list[Commit] = []
    for gap in gaps:
        held_us = commits[held].time_us if held < len(commits) else None
        commits.append(history.append((commits[-1].time_us if commits else 0) + gap, rows=gap, held_us=held_us))
    if held < len(commits):
        before_us = commits[held].time_us - 1
        assert history.oldest_us <= before_us
        assert history.cut("p", before_us).last_inside == (commits[held - 1] if held else START)
        assert history.rows_at(before_us) == sum(gaps[:held])
    assert len(history._times) <= max(commits_max, 2 * (len(commits) - held) + 1)
