"""Texts within arrays and structs, more than 2 GiB of them: Arrow puts those into no one piece, and then they stay in several."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from righttime.catalyst.gathering import _joined as gathered
from righttime.catalyst.images import _joined as written
from righttime.catalyst.log import LogEntry
from righttime.catalyst.recovery import _replay
from righttime.catalyst.table import Lane, MemoryTable, Piece, Slice
from righttime.changes.rows import Chunk
from righttime.changes.schema import TableSchema
from righttime.query.digest import answer_digest

_BYTES = 1_200_000_000  # of zeros that nobody reads, so that they take no memory
_ROWS = 1000


def _texts() -> pa.Array:
    ends = np.linspace(0, _BYTES, _ROWS + 1).astype(np.int32)
    return pa.StringArray.from_buffers(_ROWS, pa.py_buffer(ends), pa.py_buffer(np.zeros(_BYTES, dtype=np.uint8)))


@pytest.fixture(params=["array", "struct"])
def rows(request: pytest.FixtureRequest) -> pa.Table:
    if request.param == "array":
        long = pa.ListArray.from_arrays(pa.array(np.arange(_ROWS + 1, dtype=np.int32)), _texts())
    else:
        long = pa.StructArray.from_arrays([_texts()], names=["a"])
    found = pa.table({"x": pa.chunked_array([long, long])})
    with pytest.raises(pa.ArrowInvalid):
        found.combine_chunks()
    return found


def test_they_are_replayed_from_the_log(rows: pa.Table) -> None:
    """Each piece with its ids, also where a run of ids goes over from one to the next."""
    memory = MemoryTable("t", 0)
    catalyst: Any = SimpleNamespace(tables={"t": memory})

    assert _replay(catalyst, LogEntry("t", "s", [(1, 700), (1001, 1300)], [(5, 2300)], rows)) == 2000

    pieces = memory.lane("s").pieces
    assert [list(piece.runs(0, piece.rows)) for piece in pieces] == [[(1, 700), (1001, 300)], [(1301, 1000)]]
    assert memory.bytes_memory == sum(piece.content.nbytes for piece in pieces)


def test_they_are_not_gathered(rows: pa.Table) -> None:
    """A query that finds them reads them as they are."""
    pieces = [Piece(Chunk(batch), (1 + number * _ROWS,), (0,)) for number, batch in enumerate(rows.to_batches())]
    catalyst: Any = SimpleNamespace(tables={"t": MemoryTable("t", 0, lanes={"s": Lane("s", pieces)})})
    run = [Slice(piece, 0, piece.rows) for piece in pieces]

    assert gathered(catalyst, TableSchema("t", rows.schema), "s", run) == run


def test_they_are_written_piece_by_piece(rows: pa.Table) -> None:
    assert written(rows).column(0).num_chunks == 2


def test_an_answer_with_them_has_a_digest() -> None:
    """That of the same rows in any other pieces. Those that are long are behind nulls here, so that nobody reads them."""
    ends = pa.array(np.arange(_ROWS + 1, dtype=np.int32))
    hidden = pa.ListArray.from_arrays(ends, _texts(), mask=pa.array(np.ones(_ROWS, dtype=bool)))
    answer = pa.table({"x": pa.chunked_array([hidden, hidden, pa.array([["a", "b"]])])})
    with pytest.raises(pa.ArrowInvalid):
        answer.combine_chunks()

    assert answer_digest(answer) == answer_digest(pa.table({"x": pa.array([None, ["a", "b"]] + [None] * (2 * _ROWS - 1))}))
