"""When a flow's targets may be shown: the catalyst's book-keeping against a plain list of changes and jobs."""

from threading import Condition

import pytest
from hypothesis import given
from hypothesis import strategies as st

from righttime.catalyst.maintainer import Maintainer, choose_cut, newest_exact


def _maintainer(source: str = "flow.f") -> Maintainer:
    return Maintainer(source, Condition(), "flow", tables=("t",))


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Commit times of changes, horizons of jobs that were published, and how late the last query came."""
    changes = sorted(draw(st.sets(st.integers(1, 60), max_size=12)))
    horizons = sorted(draw(st.sets(st.integers(1, 60), max_size=6)))
    return changes, horizons, 61


def _published(changes: list[int], horizons: list[int]) -> Maintainer:
    flow = _maintainer()
    for time_us in changes:
        flow.change(time_us)
    before_us = 0
    for horizon_us in horizons:
        mine = [time_us for time_us in changes if before_us < time_us <= horizon_us]
        if mine:
            flow.publish(mine[0], horizon_us)
        else:
            flow.advance(horizon_us)
        before_us = horizon_us
    return flow


@given(_histories())
def test_a_time_is_exact_if_the_published_jobs_hold_the_changes_up_to_it_and_no_others(history: tuple[list[int], list[int], int]) -> None:
    """What a cut at t shows is what the jobs with horizons up to t took; that must be the changes up to t."""
    changes, horizons, last_us = history
    flow = _published(changes, horizons)
    for time_us in range(last_us + 1):
        newest = max((horizon for horizon in horizons if horizon <= time_us), default=0)
        shown, due = [c for c in changes if c <= newest], [c for c in changes if c <= time_us]
        assert flow.exact(time_us) == (shown == due), time_us


@given(_histories(), st.integers(0, 61))
def test_the_newest_exact_time_is_exact_and_none_is_between(history: tuple[list[int], list[int], int], time_us: int) -> None:
    """What a query that accepts some staleness is given."""
    flow = _published(*history[:2])
    found = flow.exact_before(time_us)
    assert found == max((t for t in range(time_us + 1) if flow.exact(t)), default=-1)


@given(_histories(), _histories(), st.integers(0, 61))
def test_several_flows_share_a_time_that_is_exact_for_all(one: tuple[list[int], list[int], int], two: tuple[list[int], list[int], int], time_us: int) -> None:
    """A query over the targets of several flows has one cut."""
    flows = [_published(*one[:2]), _published(*two[:2])]
    both = [t for t in range(time_us + 1) if all(flow.exact(t) for flow in flows)]
    assert newest_exact(time_us, flows) == max(both, default=-1)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12)), min_size=1, max_size=12))
def test_at_29_queries_are_served_with_the_fewest_cuts(gaps: list[tuple[int, int]]) -> None:
    """A change between any two times: no cut is shared for free. Greedy stabbing of intervals is the least there is."""
    flow = _maintainer()
    for time_us in range(1, 200):
        flow.change(time_us)
    now_us, cuts, least, newest = 10, set(), 0, -1
    for gap, bound in gaps:
        now_us += gap
        oldest_us = max(now_us - bound, 1)
        cut_us = choose_cut(oldest_us, now_us, [flow])
        with flow.asked:
            flow.want(cut_us)
        cuts.add(cut_us)
        assert oldest_us <= cut_us <= now_us
        if newest < oldest_us:
            newest, least = now_us, least + 1
    assert len(cuts) == least


def test_at_29_the_sheet() -> None:
    """Queries (10,4), (12,1), (13,5), (20,0): cuts at 10, 12 and 20, and the third query is served from 12."""
    flow = _maintainer()
    for time_us in range(1, 30):
        flow.change(time_us)
    chosen = []
    for asked_us, bound in ((10, 4), (12, 1), (13, 5), (20, 0)):
        chosen.append(choose_cut(asked_us - bound, asked_us, [flow]))
        with flow.asked:
            flow.want(chosen[-1])
    assert chosen == [10, 12, 12, 20]


def test_a_backlog_that_was_not_noted_is_never_taken_for_complete() -> None:
    """After a restart only the end of what is unpublished is known."""
    flow = _maintainer()
    flow.backlog_us = 50
    flow.refresh()
    assert [flow.exact(t) for t in (0, 1, 50, 51)] == [True, False, False, False]
    flow.publish(3, 20)
    assert [flow.exact(t) for t in (2, 3, 19, 20, 21, 60)] == [True, False, False, True, False, False]
    flow.publish(30, 70)
    assert flow.exact(70) and flow.exact(99)


def test_at_31_nothing_is_exact_beyond_what_has_arrived() -> None:
    """A stream that is delivered late says up to when it is here."""
    flow = _maintainer()
    flow.arrive(36)
    assert flow.exact(36) and not flow.exact(37)
    assert choose_cut(40, 40, [flow]) == 40 and choose_cut(38, 40, [flow]) == 38 and choose_cut(30, 40, [flow]) == 36
    flow.change(39)
    flow.arrive(46)
    assert flow.exact(38) and not flow.exact(40)


_CALLS = st.lists(st.tuples(st.sampled_from(["change", "arrive", "streams", "publish", "advance", "backlog"]), st.integers(1, 60)), max_size=30)


@given(_CALLS)
def test_what_was_shown_is_not_called_missing_again(calls: list[tuple[str, int]]) -> None:
    """Streams that a flow reads from now on may be behind what it has shown of others: nothing of that is taken back, and nothing beyond it is promised."""
    flow, complete_us = _maintainer(), 0
    for call, time_us in calls:
        if call == "change":
            flow.change(time_us)
        elif call == "arrive":
            flow.arrive(time_us)
        elif call == "streams":
            flow.arrived_us = time_us
            flow.refresh()
        elif call == "publish" and time_us > flow.horizon_us:
            flow.publish(time_us, time_us)
        elif call == "advance":
            flow.advance(time_us)
        elif call == "backlog":
            flow.backlog_us = max(flow.backlog_us, time_us)
            flow.refresh()
        assert flow.complete_us(otherwise_us=99) >= flow.horizon_us >= complete_us
        complete_us = flow.horizon_us
        missing = [missing_us for missing_us in (flow.pending_us, flow.arrived_us) if missing_us is not None]
        assert all(flow.complete_us(otherwise_us=99) <= max(missing_us, flow.horizon_us) for missing_us in missing)


def test_cuts_that_still_wait_cost_a_publication_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a source stands still, every query that waits has a cut; when it goes on, each of their jobs went through all that were left."""
    flow, asked = _maintainer(), list[int]()
    flow.arrive(1)
    for cut_us in range(10, 1010):
        flow.change(cut_us)
    flow.cuts = list(range(10, 1010))
    flow.arrive(2000)
    monkeypatch.setattr(Maintainer, "exact", lambda self, time_us: asked.append(time_us))
    for horizon_us in range(10, 110):
        flow.publish(horizon_us, horizon_us)
        assert flow.cuts == list(range(horizon_us + 1, 1010))
    assert len(asked) <= 100
