"""What somebody else sees in the database while a warehouse works in it: a second connection, one snapshot per look.

In: the server, and the schemas of a warehouse.
Out: looks, each from one REPEATABLE READ transaction.
Promise: looking waits for nobody and holds nobody up.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from psycopg import sql

from righttime import Warehouse
from tests.support.crash import engine_of
from tests.support.postgres import TempPostgres


class Look(NamedTuple):
    """One table at one moment: its rows, and what minmax says of it; `lanes` are (min, max) by source."""

    rows: list[tuple[int, ...]]
    version: int
    rows_stored: int
    lanes: dict[str, tuple[int, int]]


class Eyes:
    """A connection that only looks."""

    def __init__(self, connection: psycopg.Connection, tables: str, ledger: str) -> None:
        self._connection = connection
        self._tables = tables
        self._ledger = ledger

    def look(self, *names: str) -> dict[str, Look]:
        """Return the named tables, all as of one moment."""
        with self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return {name: self._look(name) for name in names}

    def _look(self, name: str) -> Look:
        minmax = sql.SQL("SELECT version, rows_stored, lanes FROM {} WHERE tablename = %s").format(sql.Identifier(self._ledger, "minmax"))
        found = self._connection.execute(minmax, (name,)).fetchone()
        assert found is not None
        rows = self._connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(self._tables, name))).fetchall()
        lanes = {source: (low, high) for source, (low, high) in json.loads(found[2]).items()}
        return Look(sorted(rows), found[0], found[1], lanes)


@contextmanager
def eyes_on(server: TempPostgres, wh: Warehouse) -> Iterator[Eyes]:
    """Look at an open warehouse."""
    settings = engine_of(wh).settings
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        yield Eyes(connection, settings.table_schema or "public", settings.ledger_schema)
