"""Where the values of a column lie: all of them inside, the widest gaps outside, and two meet if they have a value in common."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from righttime.pipeline import stretches
from righttime.pipeline.stretches import Stretches, fewer, meet, merged, stretches_of

KINDS = {pa.int8(): 8, pa.uint8(): -8, pa.int64(): 64, pa.uint64(): -64}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def column(values: list[Any], kind: pa.DataType) -> pa.ChunkedArray:
    """In several chunks, as tables that were put together have it."""
    middle = len(values) // 2
    return pa.chunked_array([pa.array(values[:middle], kind), pa.array(values[middle:], kind)])


def check(found: Stretches, values: set[Any], most: int) -> None:
    """At most so many, in order and apart; they hold all values, and end at values."""
    assert len(found) <= most
    assert all(low <= high for low, high in found) and all(left[1] < right[0] for left, right in pairwise(found))
    assert all(any(low <= value <= high for low, high in found) for value in values)
    assert {end for stretch in found for end in stretch} <= values


@st.composite
def numbers(draw: st.DrawFn) -> tuple[pa.DataType, list[int | None]]:
    kind = draw(st.sampled_from(list(KINDS)))
    bits = KINDS[kind]
    ends = (-(1 << bits - 1), (1 << bits - 1) - 1) if bits > 0 else (0, (1 << -bits) - 1)
    return kind, draw(st.lists(st.none() | st.integers(*ends) | st.integers(max(ends[0], -3), 20), max_size=30))


@given(numbers(), st.integers(1, 8))
@example((pa.int64(), [-(2**63), 2**63 - 1, 0]), 2)
def test_numbers_are_parted_at_the_widest_gaps(given: tuple[pa.DataType, list[int | None]], most: int) -> None:
    """Whatever their type; nulls are told by the span."""
    kind, some = given
    values = {value for value in some if value is not None}
    found = stretches_of(column(some, kind), most=most)
    assert found is not None
    check(found, values, most)
    gaps = sorted((right - left for left, right in pairwise(sorted(values)) if right - left > 1), reverse=True)
    if values and max(values) - min(values) >= 2:
        assert sorted((right[0] - left[1] for left, right in pairwise(found)), reverse=True) == gaps[: most - 1]


@given(st.lists(st.none() | texts, max_size=30), st.integers(1, 8))
def test_texts_lie_in_stretches(some: list[str | None], most: int) -> None:
    """In the order of their bytes in UTF-8."""
    values = {value for value in some if value is not None}
    found = stretches_of(column(some, pa.string()), most=most)
    assert found is not None
    check(found, values, most)
    if most > 1 and len(values) <= most:
        assert found == tuple((value, value) for value in sorted(values))


def test_texts_are_parted_where_what_follows_their_common_beginning_jumps() -> None:
    """Orders 17 to 20 and 90,000 to 90,080 are far apart, though most of each text is the same."""
    names = [f"order-{number:09d}" for number in (*range(17, 21), *range(90_000, 90_081))]
    assert stretches_of(column(names, pa.string()), most=2) == ((names[0], names[3]), (names[4], names[-1]))


def test_what_is_too_much_or_too_long_to_be_parted_is_one_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for gaps has its price; a long text says nothing worth keeping, and one between short ends is held by them."""
    assert stretches_of(column(["a", "b" * 65, "c"], pa.string())) == (("a", "c"),)
    assert stretches_of(column(["a", "c" * 65], pa.string())) is None
    monkeypatch.setattr(stretches, "_NUMBERS_MAX", 2)
    monkeypatch.setattr(stretches, "_TEXTS_MAX", 2)
    assert stretches_of(column([1, 5, 9], pa.int64())) == ((1, 9),) and stretches_of(column([1, 9], pa.int64())) == ((1, 1), (9, 9))
    assert stretches_of(column(["a", "e", "i"], pa.string())) == (("a", "i"),)


def test_bytes_that_are_no_text_are_held_by_what_is_around_them() -> None:
    """Spark takes any bytes for a text, in the order of bytes; Python has no words for where they lie."""

    def no_text(*values: bytes) -> pa.ChunkedArray:
        return pa.chunked_array([pa.array(values, pa.binary()).view(pa.string())])

    assert stretches_of(no_text(b"a", b"b\xff", b"c")) == (("a", "c"),)
    assert stretches_of(no_text(b"a", b"\xff\xfe")) is None


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), min_size=1, max_size=5), st.integers(1, 6))
def test_stretches_that_are_put_together_hold_what_each_holds(some: list[list[int]], most: int) -> None:
    """Also where they overlap, and where there are too many of them."""
    parts = [stretches_of(column(list(values), pa.int64()), most=3) or () for values in some]
    found = merged((stretch for part in parts for stretch in part), most=most)
    check(found, {end for part in parts for stretch in part for end in stretch} | {value for values in some for value in values}, most)


some_stretches = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=6).map(lambda some: merged((low, low + more) for low, more in some))


@given(some_stretches, some_stretches)
def test_stretches_meet_if_they_have_a_value_in_common(some: Stretches, others: Stretches) -> None:
    """Neither one more nor one less."""
    values = [{value for low, high in one for value in range(low, high + 1)} for one in (some, others)]
    assert meet(some, others) == meet(others, some) == bool(values[0] & values[1])


def test_what_is_nearest_goes_together() -> None:
    """However many gaps are as wide as each other."""
    assert fewer([(1, 1), (3, 3), (9, 9), (11, 12)], most=2) == ((1, 3), (9, 12))
    assert fewer([(1, 1), (3, 3), (5, 5)], most=1) == ((1, 5),)
    assert len(fewer([(number, number) for number in np.arange(0, 200, 2).tolist()], most=64)) == 64
