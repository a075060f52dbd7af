"""Statistics and partition values in the Delta log: true for every row, or absent."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from righttime.changes.schema import declare_table
from righttime.warehouse.files import TableFiles
from righttime.warehouse.partitions import split
from righttime.warehouse.stats import text_above


def stats_of(folder: Path, ddl: str, **columns: list[Any]) -> dict[str, Any]:
    table = declare_table("t", ddl)
    writer = TableFiles(table, folder, reserve=lambda _: None, release=lambda _: None)
    (file,) = writer.write(pa.table(columns, schema=table.columns))
    stats: dict[str, Any] = json.loads(file.stats_json, parse_float=str)
    return stats


BOUNDS = [
    ("INT", [3, None, -1], -1, 3),
    ("BIGINT", [2**63 - 1, -(2**63)], -(2**63), 2**63 - 1),
    ("DATE", [date(2024, 2, 29), date(1969, 12, 31)], "1969-12-31", "2024-02-29"),
    ("DECIMAL(10,7)", [Decimal("0.0000001"), Decimal("-1.5")], "-1.5000000", "0.0000001"),
    ("DOUBLE", [1.5, -0.25], "-0.25", "1.5"),
    ("STRING", ["b", "ä", 'a"\\'], 'a"\\', "ä"),
    ("TIMESTAMP", [datetime(2024, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)], "2024-01-01T00:00:00.001Z", "2024-01-01T00:00:00.002Z"),
    ("TIMESTAMP_NTZ", [datetime(1969, 12, 31, 23, 59, 59, 999000)], "1969-12-31T23:59:59.999", "1969-12-31T23:59:59.999"),
]


@pytest.mark.parametrize(("ddl_type", "values", "least", "most"), BOUNDS, ids=[one[0] for one in BOUNDS])
def test_bounds_are_written_as_delta_readers_expect(tmp_path: Path, ddl_type: str, values: list[Any], least: Any, most: Any) -> None:
    """Numbers keep their digits; times are rounded outwards to milliseconds."""
    stats = stats_of(tmp_path, f"c {ddl_type}", c=values)

    assert stats["numRecords"] == len(values)
    assert (stats["minValues"]["c"], stats["maxValues"]["c"]) == (least, most)
    assert stats["nullCount"]["c"] == values.count(None)


UNBOUNDED = [
    ("DOUBLE", [1.0, float("nan")]),  # Spark sorts NaN above 1.0, Parquet's bounds leave it out
    ("FLOAT", [float("nan")]),
    ("DOUBLE", [1.0, float("inf")]),  # JSON has no infinity
    ("DECIMAL(38,0)", [Decimal("1234567890123456789")]),  # would lose digits as a double
    ("STRING", [None, None]),
    ("BOOLEAN", [True, False]),
    ("BINARY", [b"\xff"]),
    ("TIMESTAMP", [2**60]),  # beyond the year 9999
    ("TIMESTAMP", [253402300799999999]),  # the last microsecond of 9999 has no millisecond above it
    ("DATE", [3_000_000]),
    ("STRING", ["\U0010ffff" * 40]),
]


@pytest.mark.parametrize(("ddl_type", "values"), UNBOUNDED, ids=[f"{one[0]}-{str(one[1])[:12]}" for one in UNBOUNDED])
def test_bounds_that_could_mislead_are_left_out(tmp_path: Path, ddl_type: str, values: list[Any]) -> None:
    """A missing bound costs a reader time; a wrong one costs rows."""
    stats = stats_of(tmp_path, f"c {ddl_type}", c=values)

    assert "c" not in stats["minValues"]
    assert "c" not in stats["maxValues"]


def test_structs_are_described_leaf_by_leaf_and_arrays_not_at_all(tmp_path: Path) -> None:
    """Leaves after an array or a map keep their own statistics, not those of its elements."""
    stats = stats_of(
        tmp_path,
        "a ARRAY<STRUCT<i: INT, j: INT>>, m MAP<INT, INT>, s STRUCT<x: INT, y: STRUCT<f: DOUBLE>>, z INT",
        a=[[{"i": 100, "j": 100}], None],
        m=[[(100, 100)], None],
        s=[{"x": 1, "y": {"f": float("nan")}}, None],
        z=[7, 8],
    )

    assert stats["minValues"] == {"s": {"x": 1}, "z": 7}
    assert stats["maxValues"] == {"s": {"x": 1}, "z": 8}
    assert stats["nullCount"] == {"s": {"x": 1}, "z": 0}


def test_a_long_text_is_bounded_by_shorter_ones(tmp_path: Path) -> None:
    """The lower bound is a prefix, the upper one sorts above all texts with its prefix."""
    stats = stats_of(tmp_path, "c STRING", c=["a" * 40, "z" * 40])

    assert stats["minValues"]["c"] == "a" * 32
    assert stats["maxValues"]["c"] == "z" * 31 + "{"


@pytest.mark.parametrize(
    ("text", "above"),
    [("a" * 32, "a" * 32), ("\ud7ff" * 33, "\ud7ff" * 31 + "\ue000"), ("a" + "\U0010ffff" * 40, "b"), ("\U0010ffff" * 33, None)],
)
def test_an_upper_bound_skips_what_is_no_character(text: str, above: str | None) -> None:
    """Surrogates cannot be written as UTF-8, and nothing sorts above the last code point."""
    assert text_above(text) == above
    assert above is None or above >= text


PARTITIONS = [
    (pa.int32(), [1, None, 1], ["1", None]),
    (pa.bool_(), [True, False], ["true", "false"]),
    (pa.string(), ["a b/ä", "", None], ["a b/ä", None]),
    (pa.date32(), [date(2024, 2, 29)], ["2024-02-29"]),
    (pa.decimal128(10, 7), [Decimal("0.0000001")], ["0.0000001"]),
    (pa.float64(), [0.5, float("nan"), float("nan"), float("-inf")], ["0.5", "NaN", "-Infinity"]),
    (pa.timestamp("us", tz="UTC"), [1], ["1970-01-01T00:00:00.000001Z"]),
    (pa.timestamp("us"), [-1], ["1969-12-31 23:59:59.999999"]),
]


@pytest.mark.parametrize(("arrow", "values", "texts"), PARTITIONS, ids=[str(one[0]) for one in PARTITIONS])
def test_partition_values_are_written_as_delta_spells_them(arrow: pa.DataType, values: list[Any], texts: list[str | None]) -> None:
    """Text for every type, null for null; Delta reads an empty text as null, so it is written as one."""
    rows = pa.table({"p": pa.array(values, arrow), "n": range(len(values))})

    parts = list(split(rows, ["p"]))

    assert [partition["p"] for partition, _ in parts if partition["p"] is not None] == [text for text in texts if text is not None]
    assert {partition["p"] for partition, _ in parts} == set(texts)
    assert sum(part.num_rows for _, part in parts) == len(values)


def test_rows_are_split_by_all_partition_columns_in_the_order_they_came() -> None:
    """
    | p | q | n |      p=1 q=a: 0, 3   p=1 q=b: 1   p=2 q=a: 2
    """
    rows = pa.table({"p": [1, 1, 2, 1], "q": ["a", "b", "a", "a"], "n": [0, 1, 2, 3]})

    parts = {tuple(partition.values()): part.column("n").to_pylist() for partition, part in split(rows, ["p", "q"])}

    assert parts == {("1", "a"): [0, 3], ("1", "b"): [1], ("2", "a"): [2]}
