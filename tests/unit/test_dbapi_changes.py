"""UPDATE, DELETE and upserts through PEP 249 connections, on the real warehouse."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import righttime as rt
from righttime.query.dbapi import Connection, DataError, IntegrityError, NotSupportedError, ProgrammingError

Rows = list[tuple[object, ...]]


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(tmp_path / "wh") as warehouse:
        warehouse.create_table("item", "sku INT, qty INT, name STRING", keys=["sku"])
        yield warehouse


@pytest.fixture
def conn(wh: rt.Warehouse) -> Iterator[Connection]:
    with rt.connect(wh, name="loader") as connection:
        connection.cursor().executemany("INSERT INTO item VALUES (?, ?, ?)", [(1, 10, "one"), (2, 20, "two"), (3, 30, "three")])
        connection.commit()
        yield connection


def rows(wh: rt.Warehouse) -> Rows:
    return sorted(wh.read("item").rows())


def test_updates_by_key_and_by_condition_take_effect_at_commit(wh: rt.Warehouse, conn: Connection) -> None:
    """Nothing changes before commit(); then all statements have been run in their order."""
    cursor = conn.cursor()
    cursor.execute("UPDATE item SET qty = ?, name = 'uno' WHERE sku = ?", (11, 1))
    cursor.execute("UPDATE item SET qty = qty + 1 WHERE qty BETWEEN 11 AND 20")
    assert rows(wh) == [(1, 10, "one"), (2, 20, "two"), (3, 30, "three")]
    conn.commit()
    assert rows(wh) == [(1, 12, "uno"), (2, 21, "two"), (3, 30, "three")]


def test_executemany_changes_many_rows(wh: rt.Warehouse, conn: Connection) -> None:
    """One statement, many executions; `rowcount` stays unknown."""
    cursor = conn.cursor().executemany("UPDATE item SET qty = ? WHERE sku = ?", [(1, 1), (2, 2)])
    assert cursor.rowcount == -1
    conn.cursor().executemany("DELETE FROM item WHERE sku = ?", [(3,)])
    conn.commit()
    assert rows(wh) == [(1, 1, "one"), (2, 2, "two")]


def test_an_upsert_updates_or_inserts(wh: rt.Warehouse, conn: Connection) -> None:
    """INSERT … ON CONFLICT DO UPDATE is an upsert by key; columns it does not name stay."""
    upsert = "INSERT INTO item (sku, qty) VALUES (?, ?) ON CONFLICT (sku) DO UPDATE SET qty = EXCLUDED.qty"
    conn.cursor().executemany(upsert, [(1, 100), (9, 900)])
    conn.commit()
    assert rows(wh) == [(1, 100, "one"), (2, 20, "two"), (3, 30, "three"), (9, 900, None)]


def test_rollback_drops_changes(wh: rt.Warehouse, conn: Connection) -> None:
    """What was not committed never was."""
    conn.cursor().execute("DELETE FROM item")
    conn.rollback()
    conn.commit()
    assert len(rows(wh)) == 3


def test_a_refused_execution_leaves_the_transaction_as_it_was(wh: rt.Warehouse, conn: Connection) -> None:
    """One bad value among many: none of them is taken."""
    with pytest.raises(DataError):
        conn.cursor().executemany("UPDATE item SET qty = ? WHERE sku = ?", [(5, 1), ("many", 2)])
    with pytest.raises(ProgrammingError):
        conn.cursor().execute("UPDATE item SET quantity = 1 WHERE sku = 1")
    with pytest.raises((ProgrammingError, NotSupportedError)):
        conn.cursor().execute("UPDATE item SET qty = (SELECT max(qty) FROM item)")
    conn.commit()
    assert rows(wh) == [(1, 10, "one"), (2, 20, "two"), (3, 30, "three")]


UPSERT = "INSERT INTO item (sku, qty) VALUES (?, ?) ON CONFLICT (sku) DO UPDATE SET qty = EXCLUDED.qty"


@pytest.mark.parametrize("bad", [(2, "bad"), (None, 3), (2**31, 3), (2, 2**31)])
def test_a_refused_upsert_of_many_leaves_nothing_behind(wh: rt.Warehouse, conn: Connection, bad: tuple[object, ...]) -> None:
    """All are taken or none: rows before the bad one are not in the transaction, and not in the next commit."""
    with pytest.raises((DataError, IntegrityError)):
        conn.cursor().executemany(UPSERT, [(1, 1), bad])
    conn.commit()
    assert rows(wh) == [(1, 10, "one"), (2, 20, "two"), (3, 30, "three")]


def test_upserts_of_many_keep_their_order(wh: rt.Warehouse, conn: Connection) -> None:
    """The last of two rows with one key counts, in one statement and over several executions."""
    conn.cursor().executemany(UPSERT.replace("(?, ?)", "(?, ?), (?, ?)"), [(1, 1, 9, 90), (9, 91, 1, 2)])
    conn.commit()
    assert rows(wh) == [(1, 2, "one"), (2, 20, "two"), (3, 30, "three"), (9, 91, None)]
