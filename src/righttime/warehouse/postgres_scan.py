"""Reading one table of PostgreSQL inside a transaction that somebody holds.

In: a connection with a snapshot, the table as declared and as found.
Out: its rows in pieces with their positions: all, those of a range of blocks, those at given positions, those within ranges of values.
Promise: memory for a piece or two, whatever the table's size; pieces come in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from righttime.changes.schema import TableSchema
from righttime.errors import RowsMoved, WarehouseDamaged
from righttime.ledger.postgres_connect import Address, Connection, Query, coded_errors, run
from righttime.warehouse.postgres_catalog import Found
from righttime.warehouse.postgres_decode import Decoder
from righttime.warehouse.postgres_places import NOWHERE, Places, Tids, Xids, between, counted, places_of, within
from righttime.warehouse.store import EVERYTHING, Positions, Ranges, StoredRows

PIECE_BYTES = 1 << 23
PIECE_ROWS = 1 << 16
_SCAN_FROM = 4  # reading the whole table beats looking up more than a quarter of its rows by position
_Condition = tuple[sql.Composed, tuple[Any, ...]]
_EVERY_ROW: _Condition = (sql.SQL("true").format(), ())


class TableScan:
    """One table at the moment of the connection's transaction; one caller at a time."""

    def __init__(self, connection: Connection, address: Address, table: TableSchema, found: Found) -> None:
        self._connection = connection
        self._address = address
        self._table = table
        self._names = found.names(table, writing=False)
        self._found = found

    def rows(self, columns: Sequence[str], *, ranges: Ranges = EVERYTHING) -> Iterator[StoredRows]:
        """Yield the rows; with `ranges`, those outside of one may be missing."""
        condition = within(self._table, self._names, ranges)
        found = None if condition is None else self._ctids(*condition)
        if found is None:
            pieces = self._pieces(self._decoder(columns, places=True), 0, self.blocks() << 16, condition or _EVERY_ROW)
        else:
            pieces = (self._at(columns, found[start : start + PIECE_ROWS]) for start in range(0, len(found), PIECE_ROWS))
        for rows, places in pieces:
            assert places is not None
            for unit, chosen, positions in places.by_unit(self._found):
                yield StoredRows(unit, positions, rows if isinstance(chosen, slice) else rows.take(pa.array(chosen)))

    def without(self, columns: Sequence[str], gone: Positions, *, low: int = 0, high: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows that lie from `low` to before `high` and at none of the ascending ctids `gone`."""
        end = self.blocks() << 16 if high is None else high
        for rows, places in self._pieces(self._decoder(columns, places=bool(len(gone))), low, end, _EVERY_ROW):
            if places is None:
                yield rows
                continue
            nearest = np.minimum(np.searchsorted(gone, places.ctids), len(gone) - 1)
            kept = gone[nearest] != places.ctids
            yield rows if kept.all() else rows.filter(pa.array(kept))

    def fetch(self, positions: Positions, *, unit: str) -> pa.Table:
        """Return whole rows, one for each position, in that order."""
        columns, wanted = self._table.columns, places_of(self._found, {unit: positions})
        parts = [self._at_places(columns.names, wanted[start : start + PIECE_ROWS]) for start in range(0, len(wanted), PIECE_ROWS)]
        return pa.Table.from_batches(parts, schema=columns).take(pa.array(np.searchsorted(np.unique(positions), positions)))

    def check(self, named: Mapping[str, Positions]) -> None:
        """Raise `RowsMoved` if one of the rows is not at its position, be it that another one is."""
        places, there = places_of(self._found, named), 0
        versions = sql.SQL("(SELECT ctid AS place, xmin AS made {}) AS found").format(self._origin(sql.SQL("ctid = ANY(%s)").format()))
        for start in range(0, len(places), PIECE_ROWS):
            part = places[start : start + PIECE_ROWS]
            there += self._run(counted(versions), (Tids(part.ctids), Tids(part.ctids), Xids(part.made)))[0][0]
        if there != len(places):
            raise RowsMoved(table=self._table.name, reason=f"{len(places) - there} of {len(places)} rows are not where they were")

    def blocks(self) -> int:
        """Return how many blocks the table has."""
        ((size, block),) = self._run("SELECT pg_relation_size(%s::bigint::oid::regclass), current_setting('block_size')::bigint", (self._found.oid,))
        return int(-(-size // block))

    def _piece_blocks(self) -> int:
        """Return how many blocks make a piece; values that are kept outside of the blocks count too."""
        query = """SELECT greatest(pg_relation_size(found), 1), pg_table_size(found), current_setting('block_size')::bigint
            FROM (SELECT %s::bigint::oid::regclass AS found) found"""
        ((main, whole, block),) = self._run(query, (self._found.oid,))
        return max(1, int(PIECE_BYTES * main // max(whole, main) // block))

    def _pieces(self, decoder: Decoder, low: int, high: int, condition: _Condition) -> Iterator[tuple[pa.RecordBatch, Places | None]]:
        step = self._piece_blocks() << 16
        for start in range(low, high, step):
            yield from (piece for piece in self._piece(decoder, start, min(start + step, high), condition) if piece[0].num_rows)

    def _piece(self, decoder: Decoder, low: int, high: int, condition: _Condition) -> Iterator[tuple[pa.RecordBatch, Places | None]]:
        """Read the rows between two ctids; where they are more than PostgreSQL can send as one value, in halves."""
        origin = self._origin(sql.SQL("{} AND {}").format(between(low, high), condition[0]))
        try:
            with coded_errors(self._address, step="read", table=self._table.name), _too_much_is_allowed(self._connection, high - low):
                found = decoder.piece(self._connection, origin, condition[1])
        except _TooMuch:
            middle = self._middle(between(low, high))
            yield from self._piece(decoder, low, middle, condition)
            yield from self._piece(decoder, middle, high, condition)
            return
        yield found

    def _middle(self, limits: sql.Composed) -> int:
        """Return the ctid of the row that has half of the rows between two ctids before it."""
        found = self._where(sql.SQL("FROM {} WHERE {}").format(self._address.table(self._table.name), limits))
        if len(found) < 2:
            raise WarehouseDamaged(path=f"table {self._table.name}", reason="a row is too large to be read")
        return int(found[len(found) // 2])

    def _at_places(self, columns: Sequence[str], wanted: Places) -> pa.RecordBatch:
        rows, found = self._at(columns, wanted.ctids)
        there = int((found.made == wanted.made).sum()) if len(found) == len(wanted) else len(found)
        if there != len(wanted):
            raise RowsMoved(table=self._table.name, reason=f"{len(wanted) - there} rows are not where they were")
        return rows

    def _at(self, columns: Sequence[str], ctids: Positions) -> tuple[pa.RecordBatch, Places]:
        with coded_errors(self._address, step="read", table=self._table.name):
            rows, found = self._decoder(columns, places=True).piece(self._connection, self._origin(sql.SQL("ctid = ANY(%s)").format()), (Tids(ctids),))
        assert found is not None
        if not np.all(found.ctids[1:] > found.ctids[:-1]):
            order = np.argsort(found.ctids)
            rows, found = rows.take(pa.array(order)), found[order]
        return rows, found

    def _ctids(self, condition: sql.Composed, values: tuple[Any, ...]) -> Positions | None:
        """Return where the rows of a condition lie, None if they are so many that reading all is cheaper."""
        ((rows,),) = self._run("SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = %s::bigint::oid", (self._found.oid,))
        bound = max(PIECE_ROWS, rows // _SCAN_FROM)
        found = self._where(sql.SQL("FROM (SELECT ctid, xmin {} LIMIT {}) found").format(self._origin(condition), sql.Literal(bound + 1)), values)
        return None if len(found) > bound else np.sort(found)

    def _where(self, origin: sql.Composed, values: tuple[Any, ...] = ()) -> Positions:
        with coded_errors(self._address, step="read", table=self._table.name):
            _, found = Decoder(self._table.name, pa.schema([]), (), places=True).piece(self._connection, origin, values)
        return (found or NOWHERE).ctids

    def _decoder(self, columns: Sequence[str], *, places: bool) -> Decoder:
        spelled = dict(zip(self._table.columns.names, self._names, strict=True))
        return Decoder(self._table.name, selected(self._table, columns), tuple(spelled[name] for name in columns), places)

    def _origin(self, condition: sql.Composed) -> sql.Composed:
        return sql.SQL("FROM {} WHERE {}").format(self._address.table(self._table.name), condition)

    def _run(self, query: Query, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        with coded_errors(self._address, step="read", table=self._table.name):
            return run(self._connection, query, parameters)


def selected(table: TableSchema, columns: Sequence[str]) -> pa.Schema:
    """Return some of a table's columns."""
    return pa.schema([table.columns.field(name) for name in columns])


class _TooMuch(Exception):
    """A column of a piece is longer than what PostgreSQL sends as one value."""


class _too_much_is_allowed:
    """Lets a statement fail because of the size of its result without ending the transaction; a single row must fit."""

    def __init__(self, connection: Connection, places: int) -> None:
        self._savepoint = connection.transaction() if places > 1 else None

    def __enter__(self) -> None:
        if self._savepoint is not None:
            self._savepoint.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._savepoint is None:
            return
        self._savepoint.__exit__(kind, error, trace)
        if isinstance(error, psycopg.errors.ProgramLimitExceeded | psycopg.errors.OutOfMemory) or "memory alloc" in str(error):
            raise _TooMuch from error
