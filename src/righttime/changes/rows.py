"""Rows as chunks: what buffers, archives, lanes and the log pass along by reference.

In: encoded rows.
Out: slices and Arrow tables of them.
Promise: a chunk never changes; turning many into Arrow costs one pass.
"""

from collections.abc import Iterable, Mapping, Sequence
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
    batches: list[pa.RecordBatch] = []
    blocks: list[npt.NDArray[Any]] = []
    for chunk in chunks:
        if isinstance(chunk.content, pa.RecordBatch):
            if blocks:
                batches.append(_block_batch(blocks, columns))
                blocks = []
            batches.append(chunk.content)
        else:
            blocks.append(chunk.content)
    if blocks:
        batches.append(_block_batch(blocks, columns))
    return pa.Table.from_batches(batches, schema=columns)


def _block_batch(blocks: list["npt.NDArray[Any]"], columns: pa.Schema) -> pa.RecordBatch:
    joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    by_column = np.ascontiguousarray(joined.T)
    return pa.RecordBatch.from_arrays([pa.array(column) for column in by_column], schema=columns)
