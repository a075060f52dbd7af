"""Chunks and the encoder: what goes in comes out, in blocks of numbers and in Arrow batches alike. Bad input is in test_bad_input.py."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from righttime.changes.encoder import RowEncoder
from righttime.changes.rows import Chunk, table_of
from righttime.changes.schema import declare_table
from righttime.errors import UnknownColumn, WrongType
from tests.support.state_tables import tuples

NUMBERS = declare_table("n", "a INT, b INT")
MIXED = declare_table("m", "a INT, b STRING", keys=["a"])


def test_plain_integers_become_a_block_and_all_else_an_arrow_batch() -> None:
    """Both forms, mixed in one lane, give one Arrow table in order."""
    encoder = RowEncoder(NUMBERS)
    chunks = [encoder.encode([(1, 2)]), encoder.encode([(3, 4), (5, 6)]), encoder.encode([(7, None)]), encoder.encode([{"B": 9, "a": 8}])]

    assert [isinstance(chunk.content, np.ndarray) for chunk in chunks] == [True, True, False, False]
    assert tuples(table_of(chunks, NUMBERS.columns)) == [(1, 2), (3, 4), (5, 6), (7, None), (8, 9)]
    assert table_of([], NUMBERS.columns).num_rows == 0


@pytest.mark.parametrize("table", [NUMBERS, MIXED])
def test_a_slice_shares_the_rows(table: Any) -> None:
    """Parts of a chunk are the same rows; the whole of it is the chunk itself."""
    rows = [(n, n if table is NUMBERS else str(n)) for n in range(5)]
    chunk = RowEncoder(table).encode(rows)

    assert tuples(table_of([chunk.slice(1, 4)], table.columns)) == rows[1:4]
    assert chunk.slice(0, 5) is chunk
    assert chunk.slice(2, 2).rows == 0


def test_a_chunk_is_never_free_of_charge() -> None:
    """Each counts at least one byte, so that a bound on bytes bounds their number too."""
    assert Chunk(pa.record_batch({"a": pa.array([], pa.int32())})).nbytes == 1


def test_arrow_columns_come_in_any_order_and_case() -> None:
    """Columns are matched by name; those left out are null; unknown or doubled ones are refused."""
    encoder = RowEncoder(NUMBERS)
    chunks = encoder.encode_arrow(pa.table({"B": pa.array([2], pa.int64()), "a": pa.array([1], pa.int8())}))
    assert tuples(table_of(chunks, NUMBERS.columns)) == [(1, 2)]
    assert tuples(table_of(encoder.encode_arrow(pa.table({"a": [1]})), NUMBERS.columns)) == [(1, None)]
    assert encoder.encode_arrow(pa.table({"a": pa.array([], pa.int32())})) == []
    with pytest.raises(UnknownColumn):
        encoder.encode_arrow(pa.table({"a": [1], "c": [1]}))
    with pytest.raises(WrongType):
        encoder.encode_arrow(pa.table([pa.array([1]), pa.array([1])], names=["a", "A"]))


@pytest.mark.parametrize("row", [b"ab", {0: 1, 1: 2}, {1, 2}, "ab"])
def test_what_is_no_row_alone_is_none_among_many(row: Any) -> None:
    """The fast way for many rows takes nothing that the careful way for one row refuses."""
    encoder = RowEncoder(NUMBERS)
    with pytest.raises((WrongType, UnknownColumn)):
        encoder.checked(row)
    with pytest.raises((WrongType, UnknownColumn)):
        encoder.encode([row])
