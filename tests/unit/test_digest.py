"""The digest of an answer: what counts and what does not."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from righttime.query.digest import answer_digest, digests_agree

UTC_US = pa.timestamp("us", "UTC")
POINT = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.int32()))])

# type, two different values of it
KINDS: list[tuple[pa.DataType, Any, Any]] = [
    (pa.bool_(), True, False),
    (pa.int8(), 1, -1),
    (pa.int64(), 2**62, -(2**62)),
    (pa.uint64(), 2**64 - 1, 0),
    (pa.float32(), 1.5, 1.25),
    (pa.float64(), 1.0, 1.000000001),
    (pa.float64(), 5e-324, 0.0),
    (pa.float64(), 1.7e308, 1.6e308),
    (pa.float64(), float("inf"), float("-inf")),
    (pa.float64(), float("nan"), 0.0),
    (pa.decimal128(38, 2), Decimal("1.50"), Decimal("-1.50")),
    (pa.decimal256(60, 2), Decimal("1.50"), Decimal("9" * 50)),
    (pa.string(), "a", "b"),
    (pa.string(), "", "\0"),
    (pa.large_string(), "a", "A"),
    (pa.binary(), b"\0", b""),
    (pa.binary(2), b"ab", b"ba"),
    (pa.date32(), dt.date(2026, 1, 1), dt.date(1969, 12, 31)),
    (UTC_US, dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)),
    (pa.timestamp("us"), dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)),
    (pa.time64("us"), dt.time(1), dt.time(2)),
    (pa.duration("us"), dt.timedelta(1), dt.timedelta(-1)),
    (pa.list_(pa.int32()), [1, 2], [2, 1]),
    (pa.list_(pa.int32()), [], [None]),
    (pa.list_(pa.string()), ["ab", ""], ["a", "b"]),
    (pa.list_(pa.decimal128(5, 1)), [], [Decimal("0.0")]),
    (pa.list_(pa.int32(), 2), [1, 2], [2, 1]),
    (pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", 2)], [("a", 2), ("b", 1)]),
    (POINT, {"x": 1.0, "y": [1]}, {"x": 1.0, "y": [1, 1]}),
    (POINT, {"x": None, "y": None}, {"x": None, "y": []}),
    (pa.dictionary(pa.int8(), pa.string()), "a", "b"),
    (pa.month_day_nano_interval(), pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([1, 2, 4])),
]


def column(kind: pa.DataType, values: list[Any]) -> pa.Table:
    return pa.table({"v": pa.array(values, kind)})


@pytest.mark.parametrize(("kind", "one", "other"), KINDS, ids=lambda value: str(value) if isinstance(value, pa.DataType) else "")
def test_every_type_tells_its_values_apart(kind: pa.DataType, one: Any, other: Any) -> None:
    """Equal rows in any order have one digest; another value, a null, one row more or another count of the same rows has another."""
    rows = [one, None, other, one]
    digest = answer_digest(column(kind, rows))
    assert answer_digest(column(kind, [one, other, one, None])) == digest
    assert answer_digest(pa.concat_tables([column(kind, rows[:1]), column(kind, rows[1:])])) == digest
    assert answer_digest(column(kind, [other, None, None, None, *rows]).slice(4)) == digest
    others = [[one, None, other, other], [one, None, other, None], [*rows, one], rows[:3], []]
    digests = [digest, *(answer_digest(column(kind, changed)) for changed in others)]
    assert len(set(digests)) == len(digests)
    assert not any(digests_agree(digest, changed) for changed in digests[1:])


def test_names_types_and_places_of_columns_count() -> None:
    """An answer is more than its numbers."""
    one = pa.array([1], pa.int32())
    two = pa.array([2], pa.int32())
    tables = [
        pa.table({"a": one, "b": two}),
        pa.table({"b": one, "a": two}),
        pa.table({"b": two, "a": one}),
        pa.table({"a": two, "b": one}),
        pa.table({"a": one, "b": two.cast(pa.int64())}),
        pa.table({"a": one}),
    ]
    assert len({answer_digest(table) for table in tables}) == len(tables)


def test_which_values_stand_in_one_row_counts() -> None:
    """The same columns joined otherwise are another answer."""
    assert answer_digest(pa.table({"a": [1, 2], "b": [1, 2]})) != answer_digest(pa.table({"a": [1, 2], "b": [2, 1]}))


def test_metadata_and_nullability_do_not_count() -> None:
    """They say nothing about the rows, and engines differ in them."""
    plain = pa.table({"a": [1]})
    noted = plain.cast(pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"comment": "x"})], metadata={"k": "v"}))
    assert answer_digest(noted) == answer_digest(plain)


def test_the_order_of_a_maps_entries_does_not_count() -> None:
    """A map has no order."""
    kind = pa.map_(pa.string(), pa.int32())
    assert answer_digest(column(kind, [[("a", 1), ("b", 2)]])) == answer_digest(column(kind, [[("b", 2), ("a", 1)]]))


def test_an_answer_without_rows_or_columns_has_a_digest() -> None:
    """Nothing found is an answer, too."""
    assert answer_digest(pa.table({"a": pa.array([], pa.int32())})) != answer_digest(pa.table({"a": pa.array([], pa.string())}))
    assert len(answer_digest(pa.table({}))) == 64
    assert answer_digest(pa.table({"n": pa.nulls(2)})) != answer_digest(pa.table({"n": pa.nulls(3)}))


def test_zeros_are_equal_and_all_nan_are_one_value() -> None:
    """SQL does not tell them apart."""
    assert answer_digest(column(pa.float64(), [0.0])) == answer_digest(column(pa.float64(), [-0.0]))
    assert answer_digest(column(pa.float64(), [float("nan")])) == answer_digest(column(pa.float64(), [-float("nan")]))


@pytest.mark.parametrize("nudge", [4e-16, -4e-16])
@pytest.mark.parametrize("value", [0.1 + 0.2, 1000.0, 999.9999999999999, 12345678912.5, 12345678.905, 1e300, 1e-300, -2.5])
def test_a_sum_computed_in_another_order_agrees(value: float, nudge: float) -> None:
    """Floats that differ in the last places only are the same answer, also next to a rounding step of decimal numbers."""
    nudged = value * (1 + nudge)
    assert nudged != value
    assert digests_agree(answer_digest(column(pa.float64(), [value])), answer_digest(column(pa.float64(), [nudged])))
    assert digests_agree(answer_digest(column(pa.list_(pa.float64()), [[value]])), answer_digest(column(pa.list_(pa.float64()), [[nudged]])))


def test_a_difference_in_the_ninth_digit_is_a_difference() -> None:
    """What a reader could see counts."""
    assert not digests_agree(answer_digest(column(pa.float64(), [1.00000001])), answer_digest(column(pa.float64(), [1.00000002])))


def test_digests_of_other_forms_do_not_agree() -> None:
    """A cut-off or empty digest is no digest."""
    digest = answer_digest(column(pa.int8(), [1]))
    assert not digests_agree(digest, digest[:-2])
    assert not digests_agree(digest, "")
    assert not digests_agree("", "")
