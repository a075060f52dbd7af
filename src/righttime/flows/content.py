"""From a drain's lines to what a commit holds: rows that came into being, and the keys of rows that ended.

In: a target's lines of one job: one for each key that the job changes.
Out: the content of that job's commit.
Promise: vectorised; rows end before others begin, so a changed row is one that ended and one that began.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from righttime.catalyst.holder import OperationHolder
from righttime.catalyst.messages import Content
from righttime.changes.conditions import everything
from righttime.changes.encoder import RowEncoder
from righttime.changes.operations import Operations
from righttime.changes.schema import TableSchema
from righttime.pipeline.operators.target import DELETE, INSERT, OPERATION


def job_content(table: TableSchema, lines: pa.Table, *, rebuild: bool = False) -> list[Content]:
    """Return the content of a commit that applies the lines of one job to a keyed table; with `rebuild`, in the place of everything in it."""
    if rebuild:
        every = Operations("delete", np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), condition=everything(table).text)
        return [*RowEncoder(table).encode_arrow(lines.select(table.columns.names)), every]
    begun = lines.filter(pc.not_equal(lines[OPERATION], DELETE)).select(table.columns.names)
    ended = lines.filter(pc.not_equal(lines[OPERATION], INSERT)).select(list(table.keys))
    content: list[Content] = []
    if begun.num_rows:
        content.extend(RowEncoder(table).encode_arrow(begun))
    if ended.num_rows:
        holder = OperationHolder(table)
        holder.add_arrow("delete", ended, after=0)
        content.extend(holder.encoded())
    return content
