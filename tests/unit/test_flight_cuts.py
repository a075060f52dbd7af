"""Ids and places on the way to a client: as runs of neighbours, and the same again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from righttime.errors import BadMessage
from righttime.flight.cuts import _within, numbers_of, runs_of

NUMBERS = st.sets(st.integers(-5, 60) | st.integers(2**60, 2**60 + 9)).map(sorted).map(lambda found: np.array(found, dtype=np.int64))


@given(numbers=NUMBERS)
def test_numbers_are_the_same_again(numbers: np.ndarray) -> None:
    """Whatever ascending numbers are written, they are read."""
    assert numbers_of(runs_of(numbers)).tolist() == numbers.tolist()


@given(numbers=NUMBERS, wanted=NUMBERS)
def test_wanted_numbers_are_found_among_others(numbers: np.ndarray, wanted: np.ndarray) -> None:
    """A ticket gets what it names of what there is, and nothing else."""
    assert numbers[_within(numbers, runs_of(wanted))].tolist() == [number for number in numbers.tolist() if number in wanted]


def test_a_million_neighbours_are_a_few_bytes() -> None:
    """Hot rows of one load have ids one after the other."""
    assert len(runs_of(np.arange(7, 1_000_007, dtype=np.int64))) == 16


def test_a_ticket_that_names_more_than_there_can_be_costs_nothing() -> None:
    """Runs are compared and never written out; what is no run is refused."""
    some = np.array([1, 5], dtype=np.int64)
    assert _within(some, np.array([0, 2**62], dtype="<i8").tobytes()).tolist() == [True, True]
    with pytest.raises(BadMessage):
        _within(some, b"123456789")
