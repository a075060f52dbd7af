"""Encoding: one by one, many at once and as Arrow are the same rows."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from righttime.changes.encoder import RowEncoder
from righttime.changes.rows import table_of
from righttime.changes.schema import declare_table
from tests.support.state_tables import tuples

TABLE = declare_table("t", "a INT, b BIGINT, c STRING, d DOUBLE, e BOOLEAN, f DATE, g BINARY")
NUMBERS = declare_table("n", "a SMALLINT, b SMALLINT")
KINDS: list[Any] = [
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(st.characters(codec="utf-8"), max_size=8),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.booleans(),
    st.none() | st.dates(),
    st.none() | st.binary(max_size=8),
]
rows_of_many_kinds = st.lists(st.tuples(*KINDS), max_size=12)


@given(rows=rows_of_many_kinds, cuts=st.lists(st.integers(0, 12), max_size=3))
def test_every_way_in_gives_the_same_rows(rows: list[tuple[Any, ...]], cuts: list[int]) -> None:
    """Rows encoded in any pieces, one by one, or as an Arrow table are those rows in that order."""
    encoder = RowEncoder(TABLE)
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {0, len(rows)})
    pieces = [encoder.encode(rows[start:stop]) for start, stop in pairwise(ends)]
    singles = [encoder.encode([encoder.checked(dict(zip(TABLE.columns.names, row, strict=True)))]) for row in rows]
    arrow = encoder.encode_arrow(pa.Table.from_pylist([dict(zip(TABLE.columns.names, row, strict=True)) for row in rows], schema=TABLE.columns))

    for chunks in (pieces, singles, arrow):
        assert tuples(table_of(chunks, TABLE.columns)) == rows
        assert table_of(chunks, TABLE.columns).schema == TABLE.columns


@given(row=st.tuples(st.integers(-40_000, 40_000), st.integers(-40_000, 40_000)))
def test_a_number_fits_one_by_one_exactly_if_it_fits_among_many(row: tuple[int, int]) -> None:
    """Blocks are checked as strictly as single rows: no number is cut."""
    encoder = RowEncoder(NUMBERS)
    outcomes = []
    for encode in (lambda: encoder.checked(row), lambda: encoder.encode([row]), lambda: encoder.encode([(1, 2), row])):
        try:
            encode()
            outcomes.append(True)
        except Exception as error:
            outcomes.append(type(error).__name__ != "WrongType")
    assert outcomes == [all(-(2**15) <= value < 2**15 for value in row)] * 3
