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
from righttime.warehouse.postgres_places import Tids, between, within
from righttime.warehouse.store import EVERYTHING, Positions, Ranges, StoredRows

PIECE_BYTES = 1 << 23
PIECE_ROWS = 1 << 16
_SCAN_FROM = 4  # reading the whole table beats looking up more than a quarter of its rows by position

_NOWHERE: Positions = np.empty(0, dtype=np.int64)


class TableScan:
    """One table at the moment of the connection's transaction; one caller at a time."""

    def __init__(self, connection: Connection, address: Address, table: TableSchema, found: Found) -> None:
        self._connection = connection
        self._address = address
        self._table = table
        self._names = found.names(table, writing=False)
        self._found = found
        self.unit = found.unit

    def rows(self, columns: Sequence[str], *, ranges: Ranges = EVERYTHING, places: bool = True) -> Iterator[StoredRows]:
        """Yield the rows; with `ranges`, those outside of one may be missing. Without `places`, positions are empty."""
        condition = within(self._table, self._names, ranges)
        if condition is None:
            yield from self.part(columns, 0, self.blocks() << 16, places=places)
            return
        found = self._positions(*condition)
        if found is None:
            yield from self.part(columns, 0, self.blocks() << 16, places=places, condition=condition)
            return
        for start in range(0, len(found), PIECE_ROWS):
            yield self._at(columns, found[start : start + PIECE_ROWS])

    def part(
        self, columns: Sequence[str], low: int, high: int, *, places: bool = True, condition: tuple[sql.Composed, tuple[Any, ...]] | None = None
    ) -> Iterator[StoredRows]:
        """Yield the rows that lie from `low` to before `high`."""
        decoder, step = self._decoder(columns, places=places), self._piece_blocks() << 16
        for start in range(low, high, step):
            for rows, positions in self._piece(decoder, start, min(start + step, high), condition or (sql.SQL("true").format(), ())):
                if rows.num_rows:
                    yield StoredRows(self.unit, _NOWHERE if positions is None else positions, rows)

    def fetch(self, positions: Positions, *, unit: str) -> pa.Table:
        """Return whole rows, one for each position, in that order."""
        columns, wanted = self._table.columns, hidden_positions(self._found, {unit: positions})
        parts = [self._at(columns.names, wanted[start : start + PIECE_ROWS]).rows for start in range(0, len(wanted), PIECE_ROWS)]
        found = pa.Table.from_batches(parts, schema=columns)
        if found.num_rows != len(wanted):
            raise RowsMoved(table=self._table.name, reason=f"{len(wanted) - found.num_rows} rows are not where they were")
        return found.take(pa.array(np.searchsorted(wanted, positions)))

    def check(self, places: Mapping[str, Positions]) -> None:
        """Raise `RowsMoved` if there is no row at one of the positions."""
        positions = hidden_positions(self._found, places)
        query, there = sql.SQL("SELECT count(*) {}").format(self._origin(sql.SQL("ctid = ANY(%s)").format())), 0
        for start in range(0, len(positions), PIECE_ROWS):
            there += self._run(query, (Tids(positions[start : start + PIECE_ROWS]),))[0][0]
        if there != len(positions):
            raise RowsMoved(table=self._table.name, reason=f"{len(positions) - there} of {len(positions)} rows are not where they were")

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

    def _piece(
        self, decoder: Decoder, low: int, high: int, condition: tuple[sql.Composed, tuple[Any, ...]]
    ) -> Iterator[tuple[pa.RecordBatch, Positions | None]]:
        """Read the rows between two positions; where they are more than PostgreSQL can send as one value, in halves."""
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
        """Return the position of the row that has half of the rows between two positions before it."""
        found = self._where(sql.SQL("FROM {} WHERE {}").format(self._address.table(self._table.name), limits))
        if len(found) < 2:
            raise WarehouseDamaged(path=f"table {self._table.name}", reason="a row is too large to be read")
        return int(found[len(found) // 2])

    def _at(self, columns: Sequence[str], positions: Positions) -> StoredRows:
        with coded_errors(self._address, step="read", table=self._table.name):
            rows, found = self._decoder(columns, places=True).piece(self._connection, self._origin(sql.SQL("ctid = ANY(%s)").format()), (Tids(positions),))
        assert found is not None
        if not np.all(found[1:] > found[:-1]):
            order = np.argsort(found)
            rows, found = rows.take(pa.array(order)), found[order]
        return StoredRows(self.unit, found, rows)

    def _positions(self, condition: sql.Composed, values: tuple[Any, ...]) -> Positions | None:
        """Return where the rows of a condition lie, None if they are so many that reading all is cheaper."""
        ((rows,),) = self._run("SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = %s::bigint::oid", (self._found.oid,))
        bound = max(PIECE_ROWS, rows // _SCAN_FROM)
        found = self._where(sql.SQL("FROM (SELECT ctid {} LIMIT {}) found").format(self._origin(condition), sql.Literal(bound + 1)), values)
        return None if len(found) > bound else np.sort(found)

    def _where(self, origin: sql.Composed, values: tuple[Any, ...] = ()) -> Positions:
        with coded_errors(self._address, step="read", table=self._table.name):
            _, found = Decoder(self._table.name, pa.schema([]), (), places=True).piece(self._connection, origin, values)
        assert found is not None
        return found

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


def hidden_positions(found: Found, hidden: Mapping[str, Positions]) -> Positions:
    """Return positions, ascending and each once; raise `RowsMoved` if they belong to a file that the table has left."""
    wanted = {unit: positions for unit, positions in hidden.items() if len(positions)}
    if wanted.keys() - {found.unit}:
        raise RowsMoved(table=found.name, reason="VACUUM FULL, CLUSTER, TRUNCATE or ALTER TABLE")
    return np.unique(wanted[found.unit]) if wanted else _NOWHERE


def without(part: StoredRows, gone: Positions) -> pa.RecordBatch:
    """Return the rows of a piece that do not lie at one of the ascending positions `gone`."""
    if not len(gone):
        return part.rows
    places = np.searchsorted(gone, part.positions)
    kept = gone[np.minimum(places, len(gone) - 1)] != part.positions
    return part.rows if kept.all() else part.rows.filter(pa.array(kept))


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
