"""What a table cannot hold is found line by line, before it is published."""

from typing import Any

import pyarrow as pa

from righttime.changes.schema import TableSchema, declare_table
from righttime.pipeline.limits import TableLimits
from righttime.warehouse.postgres_types import check_storable

TABLE = declare_table(
    "t", "k VARCHAR(2), area STRING, x VARCHAR(3), n INT NOT NULL, s STRUCT<a: INT NOT NULL>, l ARRAY<INT>", keys=["k"], partition_by=["area"]
)
GOOD = {"k": "a", "area": "n", "x": "äöü", "n": 1, "s": {"a": 1}, "l": [1, None]}


def lines(*changed: dict[str, Any], table: TableSchema = TABLE) -> pa.Table:
    """Return lines that differ from a good one in some columns."""
    nullable = pa.schema([pa.field("_job", pa.int64()), *(field.with_nullable(True) for field in table.columns)])
    return pa.Table.from_pylist([{"_job": 1, **GOOD, **each} for each in changed], schema=nullable)


def refused(rows: pa.Table, *, found_max: int = 9, **options: Any) -> dict[int, str]:
    """Return what is refused of all lines."""
    limits = TableLimits(TABLE, options.get("check"), found_max=found_max)
    return limits.refused_rows(rows, pa.chunked_array([pa.repeat(True, rows.num_rows)]))


def test_each_line_that_does_not_fit_is_found_with_its_reason() -> None:
    """Wherever it is, and whatever is wrong with it; the others are not touched."""
    wrong: dict[int, tuple[dict[str, Any], str]] = {
        1: ({"x": "abcd"}, "table 't', column 'x': a text of 4 characters does not fit at most 3"),
        3: ({"area": ""}, "table 't', column 'area': an empty text does not fit a partition value: Delta reads the empty one as null"),
        4: ({"n": None}, "a null in a NOT NULL column of table 't'"),
        6: ({"s": {"a": None}}, "table 't', column 's': a null inside"),
        7: ({"k": "abc"}, "table 't', column 'k': a text of 3 characters does not fit at most 2"),
    }
    rows = lines(*(wrong.get(place, ({}, ""))[0] for place in range(9)), {"s": None, "x": None, "l": None, "area": None})

    assert refused(rows) == {place: reason for place, (_, reason) in wrong.items()}
    assert refused(lines({}, {})) == {} == refused(lines())


def test_what_a_store_cannot_hold_is_found_too() -> None:
    """PostgreSQL has no U+0000; a Delta table holds it."""
    rows = lines({"x": "a"}, {"x": "\0"})

    assert refused(rows) == {}
    assert refused(rows, check=check_storable) == {1: "table 't', column 'x': a text with the character U+0000 does not fit a column in PostgreSQL"}


def test_keys_are_looked_at_by_themselves() -> None:
    """A line that takes a row away has nothing else; one that was never there because of its key cannot be taken away."""
    taken = lines({"k": "a", "n": None, "s": None}, {"k": "abc", "n": None}, {"k": None, "n": None})

    found = TableLimits(TABLE, None, found_max=9).refused_keys(taken)

    assert list(found) == [2, 1]
    assert TableLimits(TABLE, None, found_max=9).refused_rows(taken, pa.chunked_array([[False] * 3])) == {}


def test_the_search_ends_when_there_are_too_many() -> None:
    """Each costs several trials; one more than the bound says that there are too many."""
    assert len(refused(lines(*({"x": "abcd"} for _ in range(100))), found_max=3)) == 4
