"""Flush policies: when they say yes."""

from typing import Any

import pytest

import righttime as rt
from righttime.catalyst.policies import start_policy
from righttime.errors import BadFreshness, BadPolicy


class Machine:
    """A machine whose time and load the test sets."""

    def __init__(self) -> None:
        self.now_s, self.busy = 100.0, 1.0

    def monotonic_s(self) -> float:
        return self.now_s

    def load(self) -> float:
        return self.busy


def test_immediate_always_and_on_demand_never() -> None:
    """The two ends."""
    machine = Machine()
    assert start_policy(rt.Immediate(), machine).should_flush()
    assert not start_policy(rt.OnDemand(), machine).should_flush()


def test_every_counts_from_the_last_flush() -> None:
    """A flush for another reason, a request for example, begins the interval anew."""
    machine = Machine()
    policy = start_policy(rt.Every("10s"), machine)
    machine.now_s = 109.9
    assert not policy.should_flush()
    machine.now_s = 110
    assert policy.should_flush()
    policy.flushed()
    assert not policy.should_flush()
    machine.now_s = 120
    assert policy.should_flush()


def test_load_aware_flushes_when_idle_or_when_time_is_up() -> None:
    """Load below the bound, or so long since the last flush."""
    machine = Machine()
    policy = start_policy(rt.LoadAware(load_max=0.7, every="20s"), machine)
    machine.busy = 0.7
    assert not policy.should_flush()
    machine.busy = 0.69
    assert policy.should_flush()
    machine.busy, machine.now_s = 9.0, 120
    assert policy.should_flush()
    policy.flushed()
    assert not policy.should_flush()


def test_a_policy_that_was_not_started_flushes_nothing() -> None:
    """Without a clock nothing is due."""
    assert not rt.Every("1s").should_flush()
    assert not rt.LoadAware().should_flush()


def test_two_methods_make_a_policy() -> None:
    """Any object with them is accepted as it is."""

    class Mine:
        def should_flush(self) -> bool:
            return True

        def flushed(self) -> None:
            return None

    mine = Mine()
    assert start_policy(mine, Machine()) is mine


@pytest.mark.parametrize("bad", [None, "now", rt.Immediate, object()])
def test_anything_else_is_refused(bad: Any) -> None:
    """A class instead of an object, or an object without the methods."""
    with pytest.raises(BadPolicy):
        start_policy(bad, Machine())


def test_impossible_intervals_are_refused() -> None:
    """Zero, negative, unreadable."""
    with pytest.raises(BadPolicy):
        rt.Every(0)
    with pytest.raises(BadPolicy):
        rt.LoadAware(load_max=0)
    with pytest.raises(BadFreshness):
        rt.Every("soon")
    with pytest.raises(BadFreshness):
        rt.Every(-1)


def test_policies_show_themselves() -> None:
    """Status shows them as they would be written."""
    assert [repr(policy) for policy in (rt.Immediate(), rt.OnDemand())] == ["Immediate()", "OnDemand()"]
    assert "0.7" in repr(rt.LoadAware(load_max=0.7, every="20s"))
    assert "0:05:00" in repr(rt.Every("5m"))
