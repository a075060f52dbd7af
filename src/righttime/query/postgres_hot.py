"""Hot rows inside one session of PostgreSQL: temporary tables that hold exactly what the current query may see.

In: tables at the cut of a query.
Out: temporary tables with their visible hot rows and with the places of hidden stored rows, and a view of the table's own name over both.
Promise: rows travel once; a query sends only what came since the last one of the same connection, and removes what is stored or ended by now.
Everything is done inside the query's transaction, so it is kept or undone with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from psycopg import sql

from righttime.catalyst.ends import NONE, among
from righttime.catalyst.segments import rows_of
from righttime.catalyst.table import Slice
from righttime.changes.operations import Numbers
from righttime.changes.rows import table_of
from righttime.changes.schema import TableSchema
from righttime.ledger.postgres_connect import Address, Connection
from righttime.query.snapshot import TableSnapshot
from righttime.warehouse.postgres_catalog import Found
from righttime.warehouse.postgres_encode import copy_blocks
from righttime.warehouse.postgres_places import Tids, places_of
from righttime.warehouse.postgres_types import sql_type

_ID = "_righttime_id"
_VACUUM_ROWS = 1000
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Kept:
    """What the temporary tables hold: ids of hot rows and ctids of hidden ones, ascending."""

    ids: Numbers
    gone: Numbers


class HotTable:
    """One table of the warehouse in one session."""

    def __init__(self, table: TableSchema, number: int) -> None:
        self._table = table
        self._hot = sql.Identifier("pg_temp", f"rt_hot_{number}")
        self._gone = sql.Identifier("pg_temp", f"rt_gone_{number}")
        self._kept = Kept(NONE, NONE)
        self._shape: tuple[tuple[str, ...], bool] | None = None
        self._removed = 0
        self._analysed = 0

    def shape(self, connection: Connection, address: Address, found: Found, *, hides: bool) -> bool:
        """Make the temporary tables and the view, or the view anew if the table's columns or the need to hide rows have changed; between transactions.

        True if views that stood on it went with it.
        """
        names = found.names(self._table, writing=False)
        if self._shape == (names, hides):
            return False
        # With the same columns it is replaced in place: declared views of this session may stand on it.
        replaced = self._shape is not None and self._shape[0] == names
        with connection.transaction():
            if self._shape is None:
                self._create(connection, names)
            if not replaced:
                connection.execute(sql.SQL("DROP VIEW IF EXISTS {} CASCADE").format(sql.Identifier("pg_temp", self._table.name)))
            connection.execute(self._view(address, names, hides=hides))
        dropped = self._shape is not None and not replaced
        self._shape = (names, hides)
        return dropped

    def _view(self, address: Address, names: tuple[str, ...], *, hides: bool) -> sql.Composed:
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        shown = sql.SQL("WHERE NOT EXISTS (SELECT FROM {} g WHERE g.place = s.ctid)").format(self._gone) if hides else sql.SQL("")
        return sql.SQL("CREATE OR REPLACE TEMP VIEW {} AS SELECT {} FROM {} s {} UNION ALL SELECT {} FROM {}").format(
            sql.Identifier(self._table.name), columns, address.table(self._table.name), shown, columns, self._hot
        )

    def _create(self, connection: Connection, names: tuple[str, ...]) -> None:
        columns = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(sql_type(field))) for name, field in zip(names, self._table.columns, strict=True)]
        # An interrupt may have come between the transaction's end and the note of it.
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}, {} CASCADE").format(self._hot, self._gone))
        connection.execute(sql.SQL("CREATE TEMP TABLE {} ({} bigint, {})").format(self._hot, sql.Identifier(_ID), sql.SQL(", ").join(columns)))
        connection.execute(sql.SQL("CREATE TEMP TABLE {} (place tid)").format(self._gone))

    def fill(self, connection: Connection, table: TableSnapshot, found: Found, own: pa.Table) -> Kept:
        """Bring the temporary tables to the cut; return what they hold, for `keep` once the transaction is committed. `own` are rows without ids."""
        gone = places_of(found, table.hidden.stored).ctids
        self._change(connection, sql.SQL("DELETE FROM {} WHERE place = ANY(%s)").format(self._gone), _missing(self._kept.gone, gone), tids=True)
        new_places = _missing(gone, self._kept.gone)
        if len(new_places):
            connection.execute(sql.SQL("INSERT INTO {} SELECT unnest(%s)").format(self._gone), (Tids(new_places),))
        parts = [(part, _ids(part)) for slices in table.lanes.values() for part in slices]
        ids = np.sort(np.concatenate([NONE, *(numbers for _, numbers in parts)]))
        visible = ids[~among(ids, table.hidden.hot)]
        delete = sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(self._hot, sql.Identifier(_ID))
        self._change(connection, delete, _missing(self._kept.ids, visible), tids=False)
        new = _missing(visible, self._kept.ids)
        own_ids = -np.arange(1, own.num_rows + 1, dtype=np.int64)
        self._copy(connection, self._rows(parts if len(new) else [], new, own, own_ids))
        return Kept(np.concatenate([own_ids[::-1], visible]), gone)

    def keep(self, kept: Kept) -> None:
        """Note what the tables hold."""
        self._kept = kept

    def clean(self, connection: Connection) -> None:
        """Clean up after many changes, which nobody else can do in a temporary table."""
        kept = self._kept
        if self._removed > _VACUUM_ROWS + len(kept.ids) + len(kept.gone):
            connection.execute(sql.SQL("VACUUM (ANALYZE) {}, {}").format(self._hot, self._gone))
            self._removed, self._analysed = 0, len(kept.ids)
        elif abs(len(kept.ids) - self._analysed) > _VACUUM_ROWS + self._analysed:
            connection.execute(sql.SQL("ANALYZE {}, {}").format(self._hot, self._gone))
            self._analysed = len(kept.ids)

    def _change(self, connection: Connection, query: sql.Composed, values: Numbers, *, tids: bool) -> None:
        if len(values):
            connection.execute(query, (Tids(values) if tids else values.tolist(),))
            self._removed += len(values)

    def _copy(self, connection: Connection, batches: Iterator[pa.RecordBatch]) -> None:
        first = next(batches, None)
        if first is None:
            return
        with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(self._hot)) as copying:
            for block in copy_blocks(_chained(first, batches)):
                copying.write(block)

    def _rows(self, parts: Sequence[tuple[Slice, Numbers]], new: Numbers, own: pa.Table, own_ids: Numbers) -> Iterator[pa.RecordBatch]:
        """Yield the rows with these ids, and the producer's own, each with its id in front."""
        for part, ids in parts:
            wanted = among(ids, new)
            if wanted.any():
                yield from _numbered(rows_of([part], self._table.columns).filter(pa.array(wanted)), ids[wanted])
        yield from _numbered(own, own_ids)


def own_rows(table: TableSnapshot, files: pa.Table) -> pa.Table:
    """Return the rows of the connection's open transaction that are in no lane."""
    return pa.concat_tables([table_of(table.own.chunks, table.schema.columns), files])


def _ids(part: Slice) -> Numbers:
    runs = [np.arange(first, first + rows, dtype=np.int64) for first, rows in part.piece.runs(part.start, part.stop)]
    return runs[0] if len(runs) == 1 else np.concatenate([NONE, *runs])


def _missing(values: Numbers, ascending: Numbers) -> Numbers:
    """Return the values that are not in an ascending array."""
    return values[~among(values, ascending)]


def _numbered(rows: pa.Table, ids: Numbers) -> Iterator[pa.RecordBatch]:
    yield from rows.add_column(0, _ID, pa.array(ids)).combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
