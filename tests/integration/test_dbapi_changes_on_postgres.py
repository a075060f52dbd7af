"""UPDATE, DELETE and upserts through PEP 249 connections to a warehouse in PostgreSQL: the examples of tests/unit/test_dbapi_changes.py, unchanged.

And what only PostgreSQL has: queries in its own SQL, which see what the cursor has changed and not committed.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import righttime as rt
from righttime.query.dbapi import Connection
from tests.support.everywhere import POSTGRES, examples_of, opened_at
from tests.support.postgres import TempPostgres
from tests.unit import test_dbapi_changes


@pytest.fixture
def empty(tmp_path: Path, postgres: TempPostgres) -> Iterator[rt.Warehouse]:
    with opened_at(POSTGRES, tmp_path, postgres) as warehouse:
        yield warehouse


globals().update(examples_of(test_dbapi_changes), wh=test_dbapi_changes.wh, conn=test_dbapi_changes.conn)

IN_ITS_SQL = "SELECT sku, qty::text, upper(name) FROM item WHERE qty > ? ORDER BY sku"


@pytest.mark.parametrize("stored", [False, True])
def test_a_cursor_reads_back_its_own_open_changes_in_the_sql_of_postgresql(wh: rt.Warehouse, conn: Connection, stored: bool) -> None:
    """Its UPDATE, DELETE and upsert are in its own answers at once, of hot and of stored rows, and in nobody else's until they are committed."""
    if stored:
        wh.materialize()
    before = [(1, "10", "ONE"), (2, "20", "TWO"), (3, "30", "THREE")]
    after = [(1, "11", "ONE"), (2, "200", "TWO"), (9, "900", None)]
    with rt.connect(wh, name="other") as other:
        cursor = conn.cursor()
        for end in (conn.rollback, conn.commit):
            cursor.execute("UPDATE item SET qty = qty + 1 WHERE sku = ?", (1,))
            cursor.executemany(test_dbapi_changes.UPSERT, [(2, 200), (9, 900)])
            cursor.execute("DELETE FROM item WHERE name = 'three'")
            assert cursor.execute(IN_ITS_SQL, (0,)).fetchall() == after
            assert cursor.execute(IN_ITS_SQL, (100,)).fetchall() == after[1:]
            assert other.cursor().execute(IN_ITS_SQL, (0,)).fetchall() == before
            end()
            assert cursor.execute(IN_ITS_SQL, (0,)).fetchall() == (after if end == conn.commit else before)
        assert other.cursor().execute(IN_ITS_SQL, (0,)).fetchall() == after
    wh.materialize()
    assert cursor.execute(IN_ITS_SQL, (0,)).fetchall() == after
