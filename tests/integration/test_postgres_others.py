"""A PostgreSQL warehouse whose tables others use as well: columns of their own, rows that they change, sessions that must not stand in their way."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import righttime as rt
from righttime.errors import BadTable, ColumnNotKept, KeyTaken, NotAWarehouse, NotStored, RightsMissing, RowsMoved, UnknownTable
from righttime.query.postgres_queries import PostgresQueries
from righttime.service import Engine
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database


@pytest.fixture
def url(postgres: TempPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def warehouse(url: str, tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(url, state_dir=tmp_path, lock_wait_s=2) as warehouse:
        yield warehouse


@pytest.fixture
def load(warehouse: rt.Warehouse) -> rt.Producer:
    return warehouse.producer(name="till")


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else at the same database."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def sale(warehouse: rt.Warehouse, load: rt.Producer, **options: Any) -> None:
    warehouse.create_table("sale", "id BIGINT, qty INT", **options)
    load.insert_many("sale", [(1, 1), (2, 2), (3, 3)])
    load.commit(materialize=True)


def rows(warehouse: rt.Warehouse) -> list[tuple[Any, ...]]:
    return sorted(warehouse.read("sale").rows())


def stored(other: psycopg.Connection[Any], columns: str) -> list[tuple[Any, ...]]:
    return other.execute(f"SELECT {columns} FROM sale ORDER BY id".encode()).fetchall()


def queries_of(warehouse: rt.Warehouse) -> PostgresQueries:
    engine = warehouse._shared
    assert isinstance(engine, Engine)
    queries = engine.open_queries()
    assert queries is not None
    return queries


# Columns of others


@pytest.mark.parametrize("unique", [True, False])
def test_what_others_keep_in_a_column_of_theirs_survives_an_update(
    warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any], unique: bool
) -> None:
    """Storing an update changes the declared columns only; a row that is deleted and one that is new are not concerned."""
    sale(warehouse, load, keys=["id"], unique=unique)
    other.execute("ALTER TABLE sale ADD note text, ADD \"When\" date DEFAULT '2026-01-01', ADD facts json, ADD twice int GENERATED ALWAYS AS (qty * 2) STORED")
    other.execute("UPDATE sale SET note = 'keep ' || id, \"When\" = NULL, facts = '{\"a\": 1}'")
    load.update("sale", {"qty": 50}, {"id": 1})
    load.upsert("sale", {"id": 2, "qty": 60})
    load.delete("sale", {"id": 3})
    load.insert("sale", (4, 4))
    load.commit(materialize=True)
    wanted = [(1, 50, "keep 1", None, {"a": 1}, 100), (2, 60, "keep 2", None, {"a": 1}, 120)]
    assert stored(other, 'id, qty, note, "When"::text, facts, twice') == [*wanted, (4, 4, None, "2026-01-01", None, 8)]
    assert rows(warehouse) == [(1, 50), (2, 60), (4, 4)]
    load.update("sale", {"qty": rt.expr("qty + 1")})
    load.commit(materialize=True)
    assert stored(other, "id, qty, note") == [(1, 51, "keep 1"), (2, 61, "keep 2"), (4, 5, None)]


def test_numbers_that_the_database_gave_stay_with_their_rows(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """GENERATED ALWAYS AS IDENTITY beside the declaration: others refer to these numbers, so an updated row has the one it had."""
    other.execute("CREATE TABLE sale (id bigint PRIMARY KEY, qty int, number bigint GENERATED ALWAYS AS IDENTITY UNIQUE)")
    other.execute("INSERT INTO sale (id, qty) SELECT n, n FROM generate_series(1, 3) n")
    warehouse.adopt("sale")
    load.update("sale", {"qty": 50}, {"id": 1})
    load.insert("sale", (4, 4))
    load.commit(materialize=True)
    found = stored(other, "id, qty, number")
    assert found[:3] == [(1, 50, 1), (2, 2, 2), (3, 3, 3)]
    assert found[3][:2] == (4, 4)
    assert found[3][2] > 3


def test_an_update_that_cannot_keep_a_column_of_others_is_not_stored(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Without keys nobody can tell which new row a value belongs to: the error names the column, nothing is written, and hot rows stay."""
    sale(warehouse, load)
    other.execute("ALTER TABLE sale ADD note text")
    other.execute("UPDATE sale SET note = 'keep ' || id")
    load.delete("sale", {"id": 3})
    load.commit(materialize=True)  # a deleted row takes its note along
    load.update("sale", {"qty": 50}, {"id": 1})
    with pytest.raises(NotStored) as caught:
        load.commit(materialize=True)
    assert isinstance(caught.value.__cause__, ColumnNotKept)
    assert caught.value.__cause__.context["column"] == "note"
    assert stored(other, "*") == [(1, 1, "keep 1"), (2, 2, "keep 2")]
    assert rows(warehouse) == [(1, 50), (2, 2)]
    other.execute("ALTER TABLE sale DROP note")
    warehouse.materialize()
    assert stored(other, "*") == [(1, 50), (2, 2)]


def test_an_update_of_a_key_is_not_stored_where_others_keep_a_column(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """With another key the row would not get back what others keep in it."""
    sale(warehouse, load, keys=["id"])
    other.execute("ALTER TABLE sale ADD note text")
    load.update("sale", {"id": 7}, {"id": 1})
    load.commit()
    with pytest.raises(ColumnNotKept, match=r"'note'.*key"):
        warehouse.materialize()
    assert stored(other, "id") == [(1,), (2,), (3,)]
    assert rows(warehouse) == [(2, 2), (3, 3), (7, 1)]


def test_rows_of_one_key_with_different_values_of_others_are_not_mixed_up(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Keys need not be unique; where they are not, only equal values can be given back."""
    warehouse.create_table("sale", "id BIGINT, qty INT", keys=["id"])
    load.insert_many("sale", [(1, 1), (1, 2)])
    load.commit(materialize=True)
    other.execute("ALTER TABLE sale ADD note text")
    other.execute("UPDATE sale SET note = 'same'")
    load.update("sale", {"qty": 5}, {"id": 1})
    load.commit(materialize=True)
    assert stored(other, "*") == [(1, 5, "same"), (1, 5, "same")]
    other.execute("UPDATE sale SET note = ctid::text")
    before = stored(other, "*")
    load.update("sale", {"qty": 6}, {"id": 1})
    load.commit()
    with pytest.raises(ColumnNotKept, match="several rows"):
        warehouse.materialize()
    assert stored(other, "*") == before


# Rows that others change


def test_a_row_that_others_change_is_never_there_twice(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """A change that waits for storing is applied to the row as it is now, in every way of reading, without reopening."""
    sale(warehouse, load, keys=["id"])
    load.update("sale", {"qty": 10}, {"id": 1})
    load.delete("sale", {"id": 3})
    load.commit()
    wanted = [(1, 10), (2, 2)]
    assert rows(warehouse) == wanted
    other.execute("UPDATE sale SET qty = 99 WHERE id IN (1, 3)")
    assert rows(warehouse) == wanted
    other.execute("UPDATE sale SET qty = 98 WHERE id IN (1, 3)")
    assert sorted(warehouse.sql("SELECT * FROM sale").rows()) == wanted
    other.execute("UPDATE sale SET qty = 97 WHERE id IN (1, 3)")
    queries = queries_of(warehouse)
    assert sorted(queries.sql("SELECT * FROM sale").rows()) == wanted
    queries.close()
    other.execute("UPDATE sale SET qty = 96 WHERE id IN (1, 3)")
    warehouse.materialize()
    assert rows(warehouse) == wanted
    assert stored(other, "*") == wanted


def test_a_producer_s_own_read_sees_rows_as_others_left_them(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """What an open transaction ended is looked up anew too."""
    sale(warehouse, load, keys=["id"])
    queries = queries_of(warehouse)
    load._with = replace(load._with, own_query=queries.sql)
    load.update("sale", {"qty": 10}, {"id": 1})
    load.commit()
    load.update("sale", {"qty": 20}, {"id": 2})
    assert sorted(load.sql("SELECT * FROM sale").rows()) == [(1, 10), (2, 20), (3, 3)]
    other.execute("UPDATE sale SET qty = 99 WHERE id < 3")
    assert sorted(load.sql("SELECT * FROM sale").rows()) == [(1, 10), (2, 20), (3, 3)]
    queries.close()
    load.commit()
    assert rows(warehouse) == [(1, 10), (2, 20), (3, 3)]


def test_a_key_is_not_taken_by_the_row_that_others_moved(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """A row that is changed twice, and by somebody else in between, is still one row; a key that really is taken is refused."""
    sale(warehouse, load, keys=["id"], unique=True)
    load.update("sale", {"qty": 10}, {"id": 1})
    load.commit()
    assert rows(warehouse) == [(1, 10), (2, 2), (3, 3)]
    other.execute("UPDATE sale SET qty = 99 WHERE id = 1")
    load.update("sale", {"qty": 11}, {"id": 1})
    load.commit()
    assert rows(warehouse) == [(1, 11), (2, 2), (3, 3)]
    load.insert("sale", (1, 5))
    with pytest.raises(KeyTaken):
        load.commit()


def test_a_receipt_does_not_confirm_rows_that_others_moved(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """The rows of the answer are not all here any more, which is said, and no error."""
    sale(warehouse, load, keys=["id"])
    load.update("sale", {"qty": 10}, {"id": 1})
    load.commit()
    receipt = warehouse.read("sale").receipt
    assert receipt.verify().method == "rerun"
    other.execute("UPDATE sale SET qty = 99 WHERE id = 1")
    again = receipt.verify()
    assert (again.ok, again.method) == (True, "ledger")


def test_missing_places_are_told_by_the_hold(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Each hidden place is looked at, also where they are many."""
    warehouse.create_table("sale", "id BIGINT, qty INT", keys=["id"])
    load.insert_many("sale", [(n, n) for n in range(70_000)])
    load.commit(materialize=True)
    engine = warehouse._shared
    assert isinstance(engine, Engine)
    schema = engine.schemas["sale"]
    version = engine.store.newest_version(schema)
    hidden = {piece.unit: piece.positions for piece in [next(iter(engine.store.scan(schema, version, ["id"])))]}
    stored_tables = engine.foundation.hold([schema], {"sale": version})
    assert stored_tables is not None
    stored_tables.check(schema, hidden=hidden)
    stored_tables.close()
    other.execute("UPDATE sale SET qty = 0 WHERE id = 5")
    stored_tables = engine.foundation.hold([schema], {"sale": version})
    assert stored_tables is not None
    with pytest.raises(RowsMoved, match="1 of"):
        stored_tables.check(schema, hidden=hidden)
    stored_tables.close()


def test_a_row_at_the_place_of_another_is_not_taken_for_it(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """VACUUM gives the place of a row that somebody deleted to the next that is inserted: that one is neither hidden nor deleted."""
    sale(warehouse, load, keys=["id"])
    queries = queries_of(warehouse)
    load.delete("sale", {"id": 3})
    load.commit()
    assert rows(warehouse) == [(1, 1), (2, 2)]
    _replace_row(other, 3, 7)
    assert sorted(queries.sql("SELECT * FROM sale").rows()) == [(1, 1), (2, 2), (7, 7)]
    queries.close()
    load.delete("sale", {"id": 7})
    load.commit()
    assert rows(warehouse) == [(1, 1), (2, 2)]
    _replace_row(other, 7, 8)
    assert rows(warehouse) == [(1, 1), (2, 2), (8, 8)]
    load.delete("sale", {"id": 8})
    load.commit()
    assert rows(warehouse) == [(1, 1), (2, 2)]
    _replace_row(other, 8, 9)
    warehouse.materialize()
    assert stored(other, "*") == [(1, 1), (2, 2), (9, 9)]


@pytest.mark.parametrize("further", ["", "note text DEFAULT 'mine'"])
def test_an_update_does_not_take_the_row_that_got_the_place_of_its_own(
    warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any], further: str
) -> None:
    """An update whose row is gone changes nothing, also where others keep a column."""
    sale(warehouse, load, keys=["id"])
    if further:
        other.execute(f"ALTER TABLE sale ADD {further}".encode())
    load.update("sale", {"qty": 30}, {"id": 3})
    load.commit()
    assert rows(warehouse) == [(1, 1), (2, 2), (3, 30)]
    _replace_row(other, 3, 7)
    warehouse.materialize()
    assert stored(other, "id, qty") == [(1, 1), (2, 2), (7, 7)]


def _replace_row(other: psycopg.Connection[Any], gone: int, new: int) -> None:
    """Delete a row and put another one where it was."""
    place = other.execute("SELECT ctid FROM sale WHERE id = %s", (gone,)).fetchone()
    other.execute("DELETE FROM sale WHERE id = %s", (gone,))
    other.execute("VACUUM sale")
    other.execute("INSERT INTO sale VALUES (%s, %s)", (new, new))
    assert other.execute("SELECT ctid FROM sale WHERE id = %s", (new,)).fetchone() == place


# Sessions


def test_verifying_leaves_no_session_behind_that_stands_in_the_way(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Once the user's connections are closed, a DBA may change the table."""
    sale(warehouse, load, keys=["id"])
    queries = queries_of(warehouse)
    receipt = queries.sql("SELECT sum(qty) / 4 FROM sale").receipt
    queries.close()
    assert receipt.verify().method == "rerun"
    assert other.execute("SELECT count(*) FROM pg_class WHERE relname = 'sale' AND relkind = 'v'").fetchone() == (0,)
    other.execute("ALTER TABLE sale ALTER qty TYPE bigint")


# Messages


def test_what_is_refused_names_the_way_out_of_a_database(url: str, warehouse: rt.Warehouse, other: psycopg.Connection[Any], tmp_path: Path) -> None:
    """Messages speak of what users of a database have: adopt(), other tables, rights, databases."""
    other.execute("CREATE TABLE customer (id int); CREATE TABLE item (id int)")
    with pytest.raises(BadTable, match=r"take it over with adopt\(\)"):
        warehouse.create_table("customer", "id INT")
    with pytest.raises(UnknownTable, match="known tables: customer, item in schema 'public'"):
        warehouse.adopt("custmer")
    with pytest.raises(NotAWarehouse, match="database"):
        rt.open(f"{url}?connect_timeout=5", create=False, ledger_schema="elsewhere", state_dir=tmp_path)


def test_missing_rights_are_told_as_such(url: str, other: psycopg.Connection[Any], tmp_path: Path) -> None:
    """Not as a commit that could be tried again."""
    other.execute("DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN; CREATE SCHEMA righttime AUTHORIZATION clerk")
    other.execute("CREATE SCHEMA shop; GRANT USAGE ON SCHEMA shop TO clerk; CREATE TABLE shop.customer (id int)")
    try:
        with rt.open(url.replace("postgres@", "clerk@"), table_schema="shop", state_dir=tmp_path) as warehouse:
            for attempt in (lambda: warehouse.create_table("sale", "id INT"), lambda: warehouse.adopt("customer")):
                with pytest.raises(RightsMissing, match="permission denied") as caught:
                    attempt()
                assert not caught.value.retryable
    finally:
        other.execute("DROP OWNED BY clerk CASCADE; DROP ROLE clerk")
