"""Hot rows inside one session of PostgreSQL: temporary tables that hold exactly what the current query may see.

In: tables at the cut of a query.
Out: temporary tables with their visible hot rows and with the places of hidden stored rows, and a view of the table's own name over both.
Promise: rows travel once; a query sends only what came since the last one of the same connection, and removes what is stored or ended by now.
Everything is done inside the query's transaction, so it is kept or undone with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from psycopg import sql

from righttime.catalyst.ends import NONE, among
from righttime.changes.operations import Numbers
from righttime.changes.schema import TableSchema
from righttime.ledger.postgres_connect import Address, Connection
from righttime.query.postgres_cut import ID, CutTable, numbered
from righttime.warehouse.postgres_catalog import Found
from righttime.warehouse.postgres_encode import copy_blocks, stored_forms
from righttime.warehouse.postgres_places import Tids
from righttime.warehouse.postgres_types import sql_type

_VACUUM_ROWS = 1000


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
        connection.execute(sql.SQL("CREATE TEMP TABLE {} ({} bigint, {})").format(self._hot, sql.Identifier(ID), sql.SQL(", ").join(columns)))
        connection.execute(sql.SQL("CREATE TEMP TABLE {} (place tid)").format(self._gone))

    def fill(self, connection: Connection, cut: CutTable) -> Kept:
        """Bring the temporary tables to the cut; return what they hold, for `keep` once the transaction is committed."""
        self._change(connection, sql.SQL("DELETE FROM {} WHERE place = ANY(%s)").format(self._gone), _missing(self._kept.gone, cut.gone), tids=True)
        new_places = _missing(cut.gone, self._kept.gone)
        if len(new_places):
            connection.execute(sql.SQL("INSERT INTO {} SELECT unnest(%s)").format(self._gone), (Tids(new_places),))
        # Of the column's own type, or the server compares every row with every id: psycopg sends small numbers as a smaller type.
        delete = sql.SQL("DELETE FROM {} WHERE {} = ANY(%s::bigint[])").format(self._hot, sql.Identifier(ID))
        self._change(connection, delete, _missing(self._kept.ids, cut.ids), tids=False)
        own = cut.own()
        own_ids = -np.arange(1, own.num_rows + 1, dtype=np.int64)
        self._copy(connection, chain(cut.rows(_missing(cut.ids, self._kept.ids)), numbered(own, own_ids)))
        return Kept(np.concatenate([own_ids[::-1], cut.ids]), cut.gone)

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
            for block in copy_blocks(chain([first], batches), stored_forms(self._table.columns)):
                copying.write(block)


def _missing(values: Numbers, ascending: Numbers) -> Numbers:
    """Return the values that are not in an ascending array."""
    return values[~among(values, ascending)]
