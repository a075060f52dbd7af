"""What a query on PostgreSQL must not do behind an answer's back, and tables that cannot be adopted; found by attack."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import righttime as rt
from righttime.errors import BadTable, SchemaChanged
from righttime.query.dbapi import Connection, NotSupportedError
from tests.support.postgres import TempPostgres


@pytest.fixture(scope="module")
def server() -> Iterator[TempPostgres]:
    with TempPostgres() as running:
        yield running


@pytest.fixture
def other(server: TempPostgres) -> Iterator["psycopg.Connection[Any]"]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS sales, righttime CASCADE")
        connection.execute("CREATE SCHEMA sales")
        yield connection
        connection.execute("DROP SCHEMA IF EXISTS sales, righttime CASCADE")


@pytest.fixture
def wh(server: TempPostgres, other: "psycopg.Connection[Any]", tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(server.url, schema="sales", state_dir=tmp_path) as warehouse:
        warehouse.create_table("sale", "id INT, qty INT", keys=["id"])
        with warehouse.producer(name="till") as load:
            load.insert_many("sale", [(1, 1), (2, 3)])
            load.commit(materialize=True)
            load.insert("sale", (3, 11))
            load.commit()
        yield warehouse


@pytest.fixture
def connection(wh: rt.Warehouse) -> Iterator[Connection]:
    with rt.connect(wh) as open_connection:
        yield open_connection


@pytest.mark.parametrize(
    "query",
    [
        "SELECT set_config('search_path', 'sales, pg_temp', false)",
        "SELECT \"set_config\"('search_path', 'sales', false)",
        "SELECT pg_catalog.set_config('role', 'postgres', false)",
        "SELECT pg_notify('a', 'b')",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_terminate_backend(1)",
        "SELECT nextval('x')",
        "SELECT ts_rewrite('b'::tsquery, 'SELECT ''b''::tsquery, ''c''::tsquery')",
        "SELECT U&\"quer\\0079_to_xml\"('select 1', true, true, '')",
    ],
)
def test_a_query_that_does_more_than_answer_is_refused(connection: Connection, query: str) -> None:
    """Sessions keep their settings, and no text is run unseen."""
    with pytest.raises(NotSupportedError):
        connection.cursor().execute(query)
    assert connection.cursor().execute("SELECT count(*), sum(qty) FROM sale").fetchall() == [(3, 15)]


def test_each_query_finds_the_session_as_the_first_one_did(wh: rt.Warehouse, connection: Connection) -> None:
    """Whatever got past the refusals and set something: the next answer has its hot rows."""
    cursor = connection.cursor().execute("SELECT count(*) FROM sale")
    queries = connection._queries
    assert queries is not None
    queries._connection.execute("SET search_path = sales, pg_temp; SET TimeZone = 'Asia/Tokyo'")  # type: ignore[attr-defined]
    assert cursor.execute("SELECT count(*), current_setting('TimeZone') FROM sale").fetchall() == [(3, "UTC")]


def test_a_session_that_was_ended_by_the_server_is_replaced(connection: Connection, other: "psycopg.Connection[Any]") -> None:
    """Nothing of an answer depends on the session, so the query is run again in a new one."""
    cursor = connection.cursor().execute("SELECT count(*) FROM sale")
    other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%count(*) FROM sale%' AND pid <> pg_backend_pid()")
    assert cursor.execute("SELECT count(*), sum(qty) FROM sale").fetchall() == [(3, 15)]


def test_a_declared_view_goes_on_when_stored_rows_of_its_table_change(wh: rt.Warehouse, connection: Connection) -> None:
    """The session's view of the table is made anew under it, to hide stored rows, and back after storing."""
    wh.create_view("large", "SELECT id FROM sale WHERE qty > 2")
    cursor = connection.cursor()
    assert sorted(cursor.execute("SELECT * FROM large").fetchall()) == [(2,), (3,)]
    with wh.producer(name="desk") as load:
        load.update("sale", {"qty": 100}, {"id": 1})
        load.commit()
    assert sorted(cursor.execute("SELECT * FROM large").fetchall()) == [(1,), (2,), (3,)]
    wh.materialize()
    assert sorted(cursor.execute("SELECT id, qty FROM sale").fetchall()) == [(1, 100), (2, 3), (3, 11)]
    assert sorted(cursor.execute("SELECT * FROM large").fetchall()) == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    "setup",
    [
        "CREATE TABLE sales.old (id INT PRIMARY KEY, price NUMERIC(10, 2)); INSERT INTO sales.old VALUES (1, 'NaN')",
        "CREATE TABLE sales.old (id INT PRIMARY KEY, at TIMESTAMPTZ); INSERT INTO sales.old VALUES (1, 'infinity')",
    ],
)
def test_a_table_that_could_not_be_stored_or_read_later_is_not_adopted(wh: rt.Warehouse, other: "psycopg.Connection[Any]", setup: str) -> None:
    """Better now, by name, than when the first change waits to be stored."""
    other.execute(setup.encode())
    with pytest.raises(BadTable):
        wh.adopt("old")
    assert wh.tables() == ["sale"]


def test_a_changed_row_that_others_refer_to_is_never_away(wh: rt.Warehouse, other: "psycopg.Connection[Any]") -> None:
    """If it were deleted first, with ON DELETE CASCADE the rows that refer to it would go for good."""
    other.execute("ALTER TABLE sales.sale ADD UNIQUE (id); CREATE TABLE sales.child (sale INT REFERENCES sales.sale (id) ON DELETE CASCADE)")
    other.execute("INSERT INTO sales.child VALUES (1)")
    with wh.producer(name="desk") as load:
        load.update("sale", {"qty": 5}, {"id": 1})
        load.commit()
        wh.materialize()
    assert other.execute("SELECT count(*) FROM sales.child").fetchall() == [(1,)]
    assert sorted(wh.read("sale").rows()) == [(1, 5), (2, 3), (3, 11)]
    assert other.execute("SELECT * FROM sales.sale ORDER BY id").fetchall() == [(1, 5), (2, 3), (3, 11)]


def test_rows_that_a_trigger_would_change_or_drop_are_not_stored(wh: rt.Warehouse, other: "psycopg.Connection[Any]") -> None:
    """What was answered before storing must be answered after it."""
    other.execute(
        "CREATE FUNCTION sales.drop_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER silent BEFORE INSERT ON sales.sale FOR EACH ROW EXECUTE FUNCTION sales.drop_row()"
    )
    with pytest.raises(SchemaChanged, match="silent"):
        wh.materialize()
    assert len(wh.read("sale").rows()) == 3
    other.execute("DROP TRIGGER silent ON sales.sale")
    wh.materialize()
    assert other.execute("SELECT count(*) FROM sales.sale").fetchall() == [(3,)]
