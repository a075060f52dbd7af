"""The changes of a table between two times, as its stream takes them.

In: a snapshot of the table at the later time, and a look at the earlier one.
Out: rows with their change types; where a stream has come to differ, what sets it right.
Promise: pure; what comes out, added to the table at the earlier time, is the table at the later one.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from righttime.catalyst.messages import Look
from righttime.catalyst.segments import rows_of, visible_rows
from righttime.catalyst.table import Slice
from righttime.changes.hashing import EXACT, row_words
from righttime.changes.operations import Numbers
from righttime.query.snapshot import TableSnapshot
from righttime.queues.declared import StreamSchema
from righttime.queues.events import by_key


def ended_hot(found: TableSnapshot, before: Look, gone: Numbers) -> list[pa.Table]:
    """Return the rows in memory at the earlier look whose ids are in `gone`."""
    columns, parts = found.schema.columns, []
    for key, slices in found.lanes.items():
        old = _up_to(slices, before.intervals.get(key, (1, 0))[1])
        rows, kept = rows_of(old, columns), visible_rows(old, columns, gone)
        if rows.num_rows != kept.num_rows:
            parts.append(_only(old, columns, gone))
    return parts


def begun(found: TableSnapshot, before: Look) -> pa.Table:
    """Return the rows that came after the earlier look and are there at the snapshot's cut."""
    columns = found.schema.columns
    parts = [columns.empty_table()]
    for key, slices in found.lanes.items():
        parts.append(visible_rows(_after(slices, before.intervals.get(key, (1, 0))[1]), columns, found.hidden.hot))
    return pa.concat_tables(parts)


def _up_to(slices: Sequence[Slice], row_id: int) -> list[Slice]:
    cut = [Slice(part.piece, part.start, min(part.stop, max(part.piece.rows_up_to(row_id), part.start))) for part in slices]
    return [part for part in cut if part.rows]


def _after(slices: Sequence[Slice], row_id: int) -> list[Slice]:
    cut = [Slice(part.piece, max(part.start, min(part.piece.rows_up_to(row_id), part.stop)), part.stop) for part in slices]
    return [part for part in cut if part.rows]


def _only(slices: Sequence[Slice], columns: pa.Schema, ids: Numbers) -> pa.Table:
    """Return just the rows with these ids."""
    wanted = []
    for part in slices:
        for first_id, rows in part.piece.runs(part.start, part.stop):
            wanted.append(np.isin(np.arange(first_id, first_id + rows), ids))
    return rows_of(slices, columns).filter(pa.array(np.concatenate(wanted))) if wanted else columns.empty_table()


def typed(rows: pa.Table, change_type: str) -> pa.Table:
    """Return rows as changes of one type."""
    return rows.append_column("_change_type", pa.repeat(pa.scalar(change_type), rows.num_rows))


def difference(rows: pa.Table, changes: pa.Table, schema: StreamSchema) -> pa.Table:
    """Return what makes a stream with these changes have exactly `rows`."""
    names = schema.columns.names
    keys = _words(changes.select(list(schema.keys)))
    order = by_key(keys)
    lasts = order[np.append((keys[order][1:] != keys[order][:-1]).any(axis=1), True)] if len(order) else order
    last = changes.take(pa.array(lasts))
    living = last.filter(pa.array(last.column("_w").to_numpy() > 0)).select(names).cast(rows.schema)
    there, wanted = _values(living), _values(rows)
    too_much, lacking = living.filter(pa.array(~np.isin(there, wanted))), rows.filter(pa.array(~np.isin(wanted, there)))
    return pa.concat_tables([typed(too_much, "delete"), typed(lacking, "insert")])


def _words(rows: pa.Table) -> npt.NDArray[np.uint64]:
    return np.concatenate([np.empty((0, 2), np.uint64), *(row_words(batch, EXACT) for batch in rows.to_batches())])


def _values(rows: pa.Table) -> npt.NDArray[np.void]:
    """Return one value per row that can be looked up among others: both words, bit by bit."""
    words = np.ascontiguousarray(_words(rows))
    return words.view([("one", np.uint64), ("other", np.uint64)]).reshape(-1)
