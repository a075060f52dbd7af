"""UPDATE, DELETE and upserts through PEP 249 connections, on the real warehouse."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.errors import WrongType
from righttime.query.dbapi import Connection, DataError, IntegrityError, NotSupportedError, ProgrammingError

Rows = list[tuple[object, ...]]


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(tmp_path / "wh") as warehouse:
        yield warehouse


@pytest.fixture
def wh(empty: rt.Warehouse) -> rt.Warehouse:
    empty.create_table("item", "sku INT, qty INT, name STRING", keys=["sku"])
    return empty


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


COMPARED: list[tuple[str, Any, Any, bool]] = [
    ("INT", 1, 1.0, True),
    ("INT", 1, Decimal("1.0"), True),
    ("INT", 1, 1.5, False),
    ("INT", 1, 3_000_000_000, False),
    ("DECIMAL(4,2)", Decimal("1.50"), Decimal("1.500"), True),
    ("DECIMAL(4,2)", Decimal("1.50"), Decimal("1.505"), False),
    ("DATE", dt.date(2026, 1, 31), "2026-01-31", True),
    ("DATE", dt.date(2026, 1, 31), dt.datetime(2026, 1, 31), True),
    ("DATE", dt.date(2026, 1, 31), dt.datetime(2026, 1, 31, 12), False),
    ("VARCHAR(3)", "abc", "abcdef", False),
    ("DOUBLE", 1.0, Decimal(1), True),
    ("FLOAT", 0.1, 0.1, False),
]
"""Type of the key, a key that is there, what it is compared with, and whether that finds it."""


@pytest.mark.parametrize("where", ["k = ?", "k = ? AND k IS NOT NULL", "? = k", "k <=> ?"])
def test_a_parameter_beside_a_key_is_a_literal_there_too(empty: rt.Warehouse, where: str) -> None:
    """It is compared and not stored: what no row can have finds none, and the way by key means what the condition means."""
    with rt.connect(empty, name="loader") as conn:
        for number, (declared, held, given, found) in enumerate(COMPARED):
            table = f"t{number}"
            empty.create_table(table, f"k {declared}, v INT", keys=["k"])
            conn.cursor().execute(f"INSERT INTO {table} VALUES (?, 0)", (held,))
            conn.commit()
            conn.cursor().execute(f"UPDATE {table} SET v = ? WHERE {where}", (1, given))
            conn.cursor().executemany(f"UPDATE {table} SET v = v + ? WHERE {where}", [(2, held), (4, given)])
            conn.cursor().executemany(f"DELETE FROM {table} WHERE {where}", [(given,)] if not found else [])
            conn.commit()
            touched = 2 if declared != "FLOAT" else 0
            assert [v for _, v in empty.read(table).rows()] == [touched + (5 if found else 0)], (declared, held, given)


def test_a_key_that_cannot_be_compared_and_a_value_that_does_not_fit_are_refused(wh: rt.Warehouse, conn: Connection) -> None:
    """As the same words in the text are: text is no number, and a value is checked as that of an insert, with its row."""
    with pytest.raises((ProgrammingError, NotSupportedError), match="comparing"):
        conn.cursor().executemany("DELETE FROM item WHERE sku = ?", [(1,), ("two",)])
    with pytest.raises(DataError, match="'many' in row 1"):
        conn.cursor().executemany("UPDATE item SET qty = ? WHERE sku = ?", [(5, 1), ("many", 2.0)])
    conn.commit()
    assert rows(wh) == [(1, 10, "one"), (2, 20, "two"), (3, 30, "three")]


def test_a_key_in_an_sql_text_that_no_row_can_have_finds_none(empty: rt.Warehouse) -> None:
    """The text of a condition is compared; a mapping gives values, which are checked as those of an insert."""
    empty.create_table("t", "k VARCHAR(3), p STRING, v INT", keys=["k", "p"], partition_by=["p"])
    with empty.producer(name="p") as load:
        load.insert("t", ("abc", "x", 1))
        load.delete("t", "k = 'abcdef' AND p = 'x'")
        load.delete("t", "k = 'abc' AND p = ''")
        load.update("t", {"v": 2}, "k = ? AND p = ?", parameters=["toolong", "x"])
        with pytest.raises(WrongType):
            load.delete("t", {"k": "abcdef", "p": "x"})
        load.commit()
        assert empty.read("t").rows() == [("abc", "x", 1)]


@pytest.mark.parametrize("number", [10**400, Decimal("1E+400"), Decimal("-1E+400"), Decimal("sNaN")], ids=["int", "Decimal", "negative", "sNaN"])
def test_a_number_beyond_every_double_does_not_fit(empty: rt.Warehouse, number: Any) -> None:
    """It is refused as an insert refuses it, and does not become infinity."""
    with rt.connect(empty, name="loader") as conn:
        empty.create_table("t", "k INT, r DOUBLE", keys=["k"])
        for where in ("k = 1", "k = ?", "r IS NULL"):
            with pytest.raises(DataError):
                conn.cursor().execute(f"UPDATE t SET r = ? WHERE {where}", (number, *[1] * where.count("?")))
        conn.cursor().execute("INSERT INTO t VALUES (1, NULL)")
        conn.cursor().execute("UPDATE t SET r = ?", (Decimal("-Infinity"),))
        conn.commit()
        assert empty.read("t").rows() == [(1, float("-inf"))]


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
