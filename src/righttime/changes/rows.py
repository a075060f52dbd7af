"""Rows as chunks: what buffers, archives, lanes and the log pass along by reference.

In: encoded rows.
Out: slices and Arrow tables of them.
Promise: a chunk never changes; turning many into Arrow costs one pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Row = Sequence[Any] | Mapping[str, Any]


class Chunk:
    """Some rows of one table: a record batch or, for tables of one integer type, a block of numbers. A block is made in half the
    time of a batch, which a commit every hundred rows feels; `make bench ARGS=interfaces` shows insert_many with it, insert_arrow without."""

    __slots__ = ("content", "nbytes", "rows")
    in_memory = True

    def __init__(self, content: "pa.RecordBatch | npt.NDArray[Any]") -> None:
        self.content = content
        self.rows: int = content.num_rows if isinstance(content, pa.RecordBatch) else content.shape[0]
        self.nbytes: int = max(content.nbytes, 1)

    def slice(self, start: int, stop: int) -> "Chunk":
        """Return rows start..stop-1 without copying them."""
        if start == 0 and stop == self.rows:
            return self
        if isinstance(self.content, pa.RecordBatch):
            return Chunk(self.content.slice(start, stop - start))
        return Chunk(self.content[start:stop])


def table_of(chunks: Iterable[Chunk], columns: pa.Schema) -> pa.Table:
    """Return the rows of all chunks, in order, as one Arrow table; neighbouring blocks are joined first."""
    batches: list[Any] = []
    for kind, group in groupby([chunk.content for chunk in chunks], type):
        contents = list(group)
        batches += contents if kind is pa.RecordBatch else [_block_batch(contents, columns)]
    return pa.Table.from_batches(batches, schema=columns)


def _block_batch(blocks: list["npt.NDArray[Any]"], columns: pa.Schema) -> pa.RecordBatch:
    by_column = np.empty((len(columns), sum(map(len, blocks))), dtype=blocks[0].dtype)
    # Turned while they are joined: each block fits into the processor's cache, all of them together do not, which takes five times as long.
    np.concatenate([block.T for block in blocks], axis=1, out=by_column)
    return pa.RecordBatch.from_arrays([pa.array(column) for column in by_column], schema=columns)
