"""The freshness contract: durations as people write them, and what cannot be said together."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import righttime as rt
from righttime.changes.durations import duration_us
from righttime.errors import BadFreshness, BadSetting, FreshnessUnavailable
from righttime.query import consumer as consumer_module
from righttime.query.answer import Answer
from righttime.query.contract import Contract, make_contract
from righttime.query.snapshot import Snapshot


@pytest.mark.parametrize(
    ("value", "expected_us"),
    [
        ("500ms", 500_000),
        ("5s", 5_000_000),
        ("5 SEC", 5_000_000),
        ("1.5 seconds", 1_500_000),
        (".5s", 500_000),
        ("2 min", 120_000_000),
        ("5m", 300_000_000),
        ("1 hour", 3_600_000_000),
        ("1h", 3_600_000_000),
        ("1 day", 86_400_000_000),
        ("  3  minutes ", 180_000_000),
        ("250us", 250),
        ("250µs", 250),
        ("0", 0),
        ("0.0", 0),
        ("0s", 0),
        (0, 0),
        (5, 5_000_000),
        (0.57, 570_000),
        (1e-7, 0),
        (np.int64(2), 2_000_000),
        (np.float64(0.25), 250_000),
        (timedelta(milliseconds=3), 3_000),
    ],
)
def test_a_duration_is_read_as_people_write_it(value: Any, expected_us: int) -> None:
    """Text has a unit, plain numbers are seconds, and parts of a microsecond are dropped: the answer gets fresher, never staler."""
    assert duration_us(value) == expected_us


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "number followed by a unit"),
        ("5", "unit is missing"),
        ("s", "number followed by a unit"),
        ("5 parsecs", "'parsecs' is no unit"),
        ("5s 3ms", "number followed by a unit"),
        ("1e3s", "number followed by a unit"),
        ("nan", "number followed by a unit"),
        ("-5s", "negative"),
        (-1, "negative"),
        (-0.001, "negative"),
        (timedelta(seconds=-1), "negative"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        ("101 years", "no unit"),
        ("40000 days", "hundred years"),
        (10**30, "hundred years"),
        (True, "bool is no duration"),
        (None, "NoneType is no duration"),
        ([5], "list is no duration"),
        (b"5s", "bytes is no duration"),
    ],
)
def test_anything_else_is_refused_with_the_reason(value: Any, reason: str) -> None:
    """A freshness that cannot be understood is an error with a code, never a default."""
    with pytest.raises(BadFreshness, match=reason) as caught:
        duration_us(value)
    assert caught.value.code == "freshness.bad"


def test_the_error_names_what_was_misread() -> None:
    """A bad wait is not reported as a bad freshness."""
    with pytest.raises(BadFreshness, match="is not a wait"):
        duration_us("soon", what="wait")


def made(**asked: Any) -> Contract:
    defaults: dict[str, Any] = {"freshness": None, "wait": None, "on_late": "error", "as_of": None, "bound_us": None, "wait_default_s": 30.0}
    return make_contract(**{**defaults, **asked})


def test_without_wishes_a_query_gets_everything_committed_before_now() -> None:
    """The default freshness is zero, and the default wait is the warehouse's."""
    assert made() == Contract(freshness_us=0, wait_s=30.0, on_late="error", as_of_us=None)


def test_freshness_comes_from_the_argument_or_from_the_text() -> None:
    """Both say the same thing, so either will do."""
    assert made(freshness="5s", wait="500ms", on_late="answer") == Contract(5_000_000, 0.5, "answer", None)
    assert made(bound_us=7, wait=0).freshness_us == 7
    assert made(bound_us=0).freshness_us == 0


@pytest.mark.parametrize(
    "twice", [{"freshness": "5s", "bound_us": 1}, {"freshness": 0, "bound_us": 0}, {"as_of": 5, "freshness": "0s"}, {"as_of": 5, "bound_us": 0}]
)
def test_a_wish_said_twice_is_refused(twice: dict[str, Any]) -> None:
    """Two freshnesses, or a freshness and an exact cut, cannot both be kept."""
    with pytest.raises(BadFreshness):
        made(**twice)


def test_an_unknown_choice_for_late_answers_is_refused() -> None:
    """There are two ways to be late."""
    with pytest.raises(BadSetting, match=r"Argument 'on_late': 'maybe' is neither .* Correct the call") as caught:
        made(on_late="maybe")
    assert caught.value.code == "argument.bad"


@pytest.mark.parametrize(
    ("as_of", "expected_us"),
    [
        (1_700_000_000_000_001, 1_700_000_000_000_001),
        (datetime(1970, 1, 1, 0, 0, 1, 5), 1_000_005),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1_000_000),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(2026, 3, 1, 12, 0, 0, 999_999, tzinfo=UTC), 1_772_366_400_999_999),
    ],
)
def test_as_of_is_exact_to_the_microsecond_and_naive_times_are_utc(as_of: Any, expected_us: int) -> None:
    """The cut that is asked for is the cut that is compared with commit times."""
    assert made(as_of=as_of).as_of_us == expected_us


@pytest.mark.parametrize("as_of", [-1, datetime(1969, 12, 31), True, 1.5, "2026-01-01"])
def test_an_as_of_that_is_no_time_is_refused(as_of: Any) -> None:
    """Only datetimes and whole microseconds name a cut."""
    with pytest.raises(BadFreshness):
        made(as_of=as_of)


class Time:
    """Stands for the module; goes on only when somebody lets it."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Turns:
    """Stands for the semaphore: says how long it was waited for, and lets time pass for it."""

    def __init__(self, clock: Time, *, free_after_s: float) -> None:
        self._clock, self._free_after_s = clock, free_after_s
        self.timeouts: list[float] = []

    def acquire(self, timeout: float) -> bool:
        self.timeouts.append(timeout)
        self._clock.now_s += min(timeout, self._free_after_s)
        return timeout >= self._free_after_s

    def release(self) -> None:
        pass


def test_a_query_waits_once_for_its_rows_and_for_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wait` bounds both together, and the receipt has both."""
    clock = Time()
    with rt.open(tmp_path) as wh:
        wh.create_table("sale", "sku INT")
        consumer = wh._writer("test").consumer
        monkeypatch.setattr(consumer_module, "time", clock)

        @contextmanager
        def slowly(contract: Contract) -> Iterator[Snapshot]:
            clock.now_s += 6.0
            with consumer._snapshots.take(["sale"], contract) as snapshot:
                yield snapshot

        def ask(turns: Turns) -> Answer:
            monkeypatch.setattr(consumer, "_turns", turns)
            contract = Contract(freshness_us=0, wait_s=10.0, on_late="error", as_of_us=None)
            return consumer.answer("TABLE sale", (), contract, slowly(contract), lambda tables: consumer._snapshots.rows(tables["sale"]))

        late = Turns(clock, free_after_s=5.0)
        with pytest.raises(FreshnessUnavailable, match="queries_max") as raised:
            ask(late)
        assert late.timeouts == [4.0]
        assert raised.value.context["waited_s"] == 10.0
        assert ask(Turns(clock, free_after_s=3.0)).receipt.waited_s == pytest.approx(3.0, abs=2.0)  # the rows were there in no time of the real clock
