"""Words of rows for an index: equal values have equal words wherever they lie, different ones do not."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from righttime.changes.hashing import EXACT, row_words
from tests.unit.test_digest import KINDS

TEXTS = ["", "\0", "a", "ab", "abcdefgh", "abcdefgh\0", "abcdefghi", "é" * 7, "x" * 511, "x" * 512, "x" * 513, "x" * 5000, None]


def words(values: list[Any], kind: pa.DataType) -> list[bytes]:
    return [row.tobytes() for row in row_words(pa.record_batch({"v": pa.array(values, kind)}), EXACT)]


@pytest.mark.parametrize(("kind", "one", "other"), KINDS, ids=lambda value: str(value) if isinstance(value, pa.DataType) else "")
def test_every_type_tells_its_values_apart(kind: pa.DataType, one: Any, other: Any) -> None:
    first, null, second, again = words([one, None, other, one], kind)
    assert first == again
    assert len({first, null, second}) == 3


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_texts_of_any_length_have_their_own_words_whatever_lies_beside_them(kind: pa.DataType) -> None:
    """The words of a text are the same alone, in a column and in a slice of one."""
    column = words(TEXTS, kind)
    assert len(set(column)) == len(TEXTS)
    assert [words([text], kind)[0] for text in TEXTS] == column
    sliced = pa.record_batch({"v": pa.array(["before", *TEXTS, "behind"], kind)}).slice(1, len(TEXTS))
    assert [row.tobytes() for row in row_words(sliced, EXACT)] == column
    assert words(TEXTS, pa.string()) == words(TEXTS, pa.large_string())


def test_floats_count_to_the_last_bit_but_for_zero_and_nan() -> None:
    near, payload = float(np.nextafter(1.0, 2.0)), float(np.frombuffer(b"\x01\0\0\0\0\0\xf8\x7f", dtype="<f8")[0])
    one, other, plus, minus, nan, second_nan = words([1.0, near, 0.0, -0.0, float("nan"), payload], pa.float64())
    assert (plus, nan) == (minus, second_nan)
    assert len({one, other, plus, nan}) == 4


def test_a_hundred_thousand_keys_have_as_many_words() -> None:
    """Neighbouring numbers, in one column and in two, never meet."""
    numbers = np.arange(100_000)
    one = row_words(pa.record_batch({"a": numbers}), EXACT)
    two = row_words(pa.record_batch({"a": numbers // 300, "b": numbers % 300}), EXACT)
    decimals = row_words(pa.record_batch({"d": pa.array([Decimal(int(number)) / 100 for number in numbers[:10_000]], pa.decimal128(12, 2))}), EXACT)
    for found in (one, two, decimals):
        assert len(np.unique(found[:, 0])) == len(np.unique(found[:, 1])) == len(found)
