"""Laws of the digest, for any rows."""

import json
import math
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from righttime.query.digest import answer_digest, digests_agree

COLUMNS = pa.schema(
    [
        ("number", pa.int64()),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("numbers", pa.list_(pa.int16())),
        ("pair", pa.struct([("left", pa.string()), ("right", pa.int32())])),
    ]
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.none() | st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
            "text": st.none() | st.sampled_from(["", "a", "b", "ab"]) | st.text(max_size=4),
            "flag": st.none() | st.booleans(),
            "numbers": st.none() | st.lists(st.none() | st.integers(-2, 2), max_size=3),
            "pair": st.none() | st.fixed_dictionaries({"left": st.none() | st.sampled_from(["", "a"]), "right": st.none() | st.integers(-2, 2)}),
        }
    ),
    max_size=8,
)


def digest(rows: list[dict[str, Any]]) -> str:
    return answer_digest(pa.Table.from_pylist(rows, schema=COLUMNS))


def multiset(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


@given(first=ROWS, second=ROWS)
def test_digests_are_equal_exactly_if_the_multisets_of_rows_are(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """The digest stands for the rows without their order, and for nothing else."""
    assert (digest(first) == digest(second)) == (multiset(first) == multiset(second))
    assert digests_agree(digest(first), digest(second)) == (multiset(first) == multiset(second))


@given(rows=ROWS, order=st.randoms(use_true_random=False), cut=st.integers(0, 8))
def test_order_and_chunks_do_not_matter(rows: list[dict[str, Any]], order: Any, cut: int) -> None:
    """However an engine cuts and orders its rows, the answer is the same."""
    shuffled = list(rows)
    order.shuffle(shuffled)
    parts = [pa.Table.from_pylist(part, schema=COLUMNS) for part in (shuffled[:cut], shuffled[cut:])]
    assert answer_digest(pa.concat_tables(parts)) == digest(rows)


@given(rows=ROWS, start=st.integers(0, 8), length=st.integers(0, 8))
def test_a_slice_has_the_digest_of_its_rows(rows: list[dict[str, Any]], start: int, length: int) -> None:
    """Where rows lie in memory does not matter."""
    whole = pa.Table.from_pylist(rows, schema=COLUMNS)
    assert answer_digest(whole.slice(start, length)) == digest(rows[start : start + length])


@given(value=st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False))
def test_a_float_off_by_one_place_in_the_last_digit_agrees(value: float) -> None:
    """No float lies on a rounding step of both grids."""
    neighbour = math.nextafter(value, math.inf)
    tables = [pa.table({"v": pa.array([number], pa.float64())}) for number in (value, neighbour)]
    ordinary = math.isfinite(neighbour) and min(abs(value), abs(neighbour)) >= 2.3e-308
    assert not ordinary or digests_agree(*map(answer_digest, tables))


@given(value=st.floats(min_value=1e-300, max_value=1e300), negative=st.booleans())
def test_a_float_off_in_the_ninth_digit_does_not_agree(value: float, negative: bool) -> None:
    """Rounding hides noise, not differences."""
    signed = -value if negative else value
    tables = [pa.table({"v": pa.array([number], pa.float64())}) for number in (signed, signed * (1 + 2e-9), -signed)]
    one, off, mirrored = map(answer_digest, tables)
    assert not digests_agree(one, off)
    assert not digests_agree(one, mirrored)
