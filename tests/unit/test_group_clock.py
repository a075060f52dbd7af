"""The clock of a group's client: whom it asks for the time of a commit in doubt, and for how long."""

from typing import Any, cast

import pytest

from righttime.errors import ServiceUnreachable
from righttime.flight import group_members
from righttime.flight.frames import Message
from righttime.flight.group_members import GroupClock, Member


class Answering:
    """A catalyst that can be asked for its time, or not; `silent_s` is how long it takes to find out."""

    def __init__(self, name: str, clock: "Monotonic") -> None:
        self.name = name
        self.calls: list[dict[str, Any]] = []
        self.read_us = 0
        self.silent_s: float | None = None
        self.meanwhile: Any = lambda: None
        self._clock = clock

    def call(self, _action: str, header: dict[str, Any] | None = None, **_options: Any) -> Message:
        self.calls.append(header or {})
        self.meanwhile()
        if self.silent_s is not None:
            self._clock.now_s += self.silent_s
            raise ServiceUnreachable(target=self.name, waited_s=self.silent_s, reason="the test says so")
        return Message({"read": self.read_us})


class Monotonic:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    clock = Monotonic()
    monkeypatch.setattr(group_members, "time", clock)
    return clock


def bring(clock: GroupClock, member: Answering) -> None:
    clock.bring(cast(Member, member))


def test_a_doubt_stays_until_its_catalyst_answers(passing: Monotonic) -> None:
    """One that is down may have the commit all the same, and show it when it is back; who commits elsewhere then is told its time first."""
    clock, away, here = GroupClock(), Answering("away", passing), Answering("here", passing)
    clock.doubt(cast(Member, away))
    away.silent_s, away.read_us = 0.001, 500
    bring(clock, here)
    assert (len(away.calls), here.calls) == (1, [])
    away.silent_s = None
    passing.now_s += 1
    bring(clock, here)
    assert here.calls == [{"observe": 500}]
    bring(clock, here)
    assert (len(away.calls), len(here.calls)) == (2, 1)


def test_a_catalyst_that_stays_away_takes_a_tenth_of_the_time_at_most(passing: Monotonic) -> None:
    """A hundred commits elsewhere, each of a tenth of a second, while it takes two seconds to find out that it is still away."""
    clock, away, here = GroupClock(), Answering("away", passing), Answering("here", passing)
    clock.doubt(cast(Member, away))
    away.silent_s = 2.0
    for _ in range(100):
        bring(clock, here)
        passing.now_s += 0.1
    assert len(away.calls) == 1
    passing.now_s += 20.0
    bring(clock, here)
    assert len(away.calls) == 2


def test_a_doubt_that_comes_while_one_is_answered_is_asked_for_again(passing: Monotonic) -> None:
    """The answer may have been given before the second commit."""
    clock, away, here = GroupClock(), Answering("away", passing), Answering("here", passing)
    clock.doubt(cast(Member, away))
    away.meanwhile = lambda: clock.doubt(cast(Member, away)) if len(away.calls) == 1 else None
    for read_us, calls in ((500, 1), (600, 2), (700, 2)):
        away.read_us = read_us
        bring(clock, here)
        assert len(away.calls) == calls
    assert clock.seen_us == 600
