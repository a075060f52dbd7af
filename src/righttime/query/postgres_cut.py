"""Tables at a cut, as a session of PostgreSQL takes them: a moment of the database, its rows that are gone, and the hot rows that come on top.

In: a table of a snapshot, whose stored rows are held in the database.
Out: ids and places, and the rows with the ids that a session does not have yet.
Promise: moment, places and ids are of one state; rows come with their ids, whether they are taken here or sent by a service.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from righttime.catalyst.ends import NONE, Hidden, among
from righttime.catalyst.segments import rows_of
from righttime.catalyst.table import Slice
from righttime.changes.operations import Numbers
from righttime.changes.schema import TableSchema
from righttime.warehouse.postgres_catalog import Found
from righttime.warehouse.postgres_hold import Held, Moment
from righttime.warehouse.postgres_places import places_of

ID = "_righttime_id"
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class CutTable:
    """`gone` are ctids of stored rows that do not count, `ids` those of the visible hot rows, both ascending; `rows` yields hot rows of some ids, each
    with its id in front, and `own` returns those of an open transaction that have none. An id is that of one row in one `life` of the catalyst: what a
    crash took leaves its ids to other rows."""

    schema: TableSchema
    found: Found
    moment: Moment
    gone: Numbers
    ids: Numbers
    life: str
    rows: Callable[[Numbers], Iterator[pa.RecordBatch]]
    own: Callable[[], pa.Table]


def cut_table(schema: TableSchema, held: Held, lanes: Sequence[Sequence[Slice]], hidden: Hidden, own: Callable[[], pa.Table], *, life: str) -> CutTable:
    """Return a table that is held in the database of this process, with the hot rows of its lanes."""
    parts = [(part, _ids(part)) for slices in lanes for part in slices]
    ids = np.sort(np.concatenate([NONE, *(numbers for _, numbers in parts)]))

    def rows(wanted: Numbers) -> Iterator[pa.RecordBatch]:
        for part, numbers in parts if len(wanted) else ():
            chosen = among(numbers, wanted)
            if chosen.any():
                yield from numbered(rows_of([part], schema.columns).filter(pa.array(chosen)), numbers[chosen])

    found = held.found(schema.name)
    return CutTable(schema, found, held.moment(), places_of(found, hidden.stored).ctids, ids[~among(ids, hidden.hot)], life, rows, own)


def numbered(rows: pa.Table, ids: Numbers) -> Iterator[pa.RecordBatch]:
    """Yield rows with their ids in front."""
    yield from rows.add_column(0, ID, pa.array(ids)).combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


def _ids(part: Slice) -> Numbers:
    runs = [np.arange(first, first + rows, dtype=np.int64) for first, rows in part.piece.runs(part.start, part.stop)]
    return runs[0] if len(runs) == 1 else np.concatenate([NONE, *runs])
