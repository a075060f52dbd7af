"""Held transactions: one moment of the stored tables, for one query.

In: the versions that the catalyst's look named.
Out: their rows, whole or by position, here or to Spark's workers through an exported snapshot.
Promise: minmax is the first thing that the transaction reads (I4); its snapshot is used for everything, until `close`. Where the database has
gone on to another version, there is no hold, and the caller looks again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psycopg
import pyarrow as pa
from psycopg import sql

from righttime.changes.schema import TableSchema
from righttime.errors import VersionGone
from righttime.ledger.postgres_connect import SERVER, Address, Connection, Pool, coded_errors, run
from righttime.warehouse.postgres_catalog import Found, look_up, require
from righttime.warehouse.postgres_places import places_of
from righttime.warehouse.postgres_scan import TableScan, selected
from righttime.warehouse.store import EVERYTHING, Positions, Ranges, StoredRows

_Piece = TypeVar("_Piece")


@dataclass(frozen=True, slots=True)
class Moment:
    """What other connections see the same moment by: the name of an exported snapshot, the server and database that know it, the schema of the tables."""

    snapshot: str
    server: str
    schema: str


def hold(pool: Pool, tables: Sequence[TableSchema], versions: Mapping[str, int], *, reserves: int = 0) -> Held | None:
    """Hold the tables at these versions; None if the database has others. Raises `SchemaChanged`, `TooManySnapshots`, `DatabaseUnreachable`."""
    connection = pool.take(reserves=reserves)
    try:
        found = _begin(connection, pool, tables, versions)
    except BaseException:
        pool.give_back(connection)
        raise
    if found is None:
        pool.give_back(connection)
        return None
    return Held(pool, connection, {table.name: (table, found[table.name]) for table in tables})


def _begin(connection: Connection, pool: Pool, tables: Sequence[TableSchema], versions: Mapping[str, int]) -> dict[str, Found] | None:
    address, names = pool.address, [table.name for table in tables]
    with coded_errors(address, step="hold", table=", ".join(names)):
        begin = sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").format()
        if names:
            # Before the snapshot: TRUNCATE and some ALTER TABLE empty a table for older snapshots too, so they have to wait for us.
            begin += sql.SQL("; LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.SQL(", ").join(address.table(name) for name in names))
        connection.execute(begin)
        known = dict(run(connection, address.ours("SELECT tablename, version FROM {0}.minmax WHERE tablename = ANY(%s)"), (names,)))
        if any(known.get(name) != versions[name] for name in names):
            return None
        found = look_up(connection, address, names)
    for table in tables:
        require(found.get(table.name), table).names(table, writing=False)
    return found


class Held:
    """The stored rows of some tables at one moment; safe to call from any thread. Close it when all is read."""

    def __init__(self, pool: Pool, connection: Connection, tables: Mapping[str, tuple[TableSchema, Found]]) -> None:
        self._pool = pool
        self._connection: Connection | None = connection
        self._tables = tables
        self._guard = threading.RLock()
        self._moment: Moment | None = None

    def rows(self, table: str, *, hidden: Mapping[str, Positions] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a table without the rows at the `hidden` positions, of which `check` says that they are there."""
        schema, _ = self._tables[table]
        names = schema.columns.names if columns is None else columns
        with self._guard:
            parts = list(self.pieces(table, names, hidden=hidden))
        return pa.Table.from_batches(parts, schema=selected(schema, names))

    def pieces(self, table: str, columns: Sequence[str], *, hidden: Mapping[str, Positions] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the same rows as they are read, always in the same order; other readers may take their pieces in between."""
        gone = places_of(self._tables[table][1], hidden or {}).ctids
        return self._in_turns(self.reading(table).without(columns, gone))

    def scan(self, table: str, columns: Sequence[str], *, ranges: Ranges = EVERYTHING) -> Iterator[StoredRows]:
        """Yield the rows in pieces, with their positions; with `ranges`, those outside of one may be missing."""
        return self._in_turns(self.reading(table).rows(columns, ranges=ranges))

    def _in_turns(self, pieces: Iterator[_Piece]) -> Iterator[_Piece]:
        while True:
            with self._guard:
                self._open()  # once it is given back, the connection is somebody else's
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def fetch(self, table: str, unit: str, positions: Positions) -> pa.Table:
        """Return whole rows, one for each position, in that order."""
        with self._guard:
            return self.reading(table).fetch(positions, unit=unit)

    def check(self, table: str, *, hidden: Mapping[str, Positions]) -> None:
        """Raise `RowsMoved` if a hidden row is not at its position: it would be read from where it is now, and another row hidden in its stead."""
        if hidden:
            with self._guard:
                self.reading(table).check(hidden)

    def reading(self, table: str) -> TableScan:
        """Return a reader of one table, for one caller at a time."""
        schema, found = self._tables[table]
        return TableScan(self._open(), self._pool.address, schema, found)

    @property
    def address(self) -> Address:
        """Where the database is."""
        return self._pool.address

    def found(self, table: str) -> Found:
        """Return the table as the database's catalog has it."""
        return self._tables[table][1]

    def moment(self) -> Moment:
        """Return how other connections can see the same moment, for as long as this one is held."""
        with self._guard, coded_errors(self._pool.address, step="hold"):
            if self._moment is None:
                snapshot, server = run(self._open(), f"SELECT pg_export_snapshot(), {SERVER}")[0]
                self._moment = Moment(snapshot, server, self._pool.address.tables)
            return self._moment

    def parts(self, table: str, *, parts_max: int) -> list[tuple[int, int]]:
        """Cut the table into ranges of positions, for as many readers."""
        with self._guard:
            blocks = self.reading(table).blocks()
        step = max(1, -(-blocks // max(1, parts_max)))
        return [(block << 16, min(block + step, blocks) << 16) for block in range(0, blocks, step)]

    def close(self) -> None:
        """End the transaction; a second call does nothing."""
        with self._guard:
            connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(connection)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> psycopg.Connection[tuple[object, ...]]:
        if self._connection is None:
            raise VersionGone(table=", ".join(sorted(self._tables)), version="of this query", found="no longer held")
        return self._connection
