"""A star schema that exists in PostgreSQL: dimension tables that foreign keys refer to, and facts that refer to them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import righttime as rt
from righttime.errors import ColumnNotKept, NotStored, ReferenceBroken, SchemaChanged, StoringFailed
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database

STAR = """
CREATE TABLE city (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE customer (id int PRIMARY KEY, name text, city int REFERENCES city);
CREATE TABLE sale (id bigint PRIMARY KEY, customer int NOT NULL REFERENCES customer, qty int);
INSERT INTO city VALUES (1, 'London'), (2, 'Paris');
INSERT INTO customer VALUES (1, 'Ada', 1), (2, 'Grace', 2), (3, 'Edsger', NULL);
INSERT INTO sale VALUES (1, 1, 10), (2, 2, 20);
"""


@pytest.fixture
def url(postgres: TempPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else at the same database."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def warehouse(url: str, tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(url, state_dir=tmp_path, lock_wait_s=2) as warehouse:
        yield warehouse


@pytest.fixture
def load(warehouse: rt.Warehouse) -> rt.Producer:
    return warehouse.producer(name="till")


@pytest.fixture
def star(warehouse: rt.Warehouse, other: psycopg.Connection[Any]) -> rt.Warehouse:
    other.execute(STAR.encode())
    for table in ("sale", "customer", "city"):
        warehouse.adopt(table)
    return warehouse


def stored(other: psycopg.Connection[Any], table: str) -> list[tuple[Any, ...]]:
    return other.execute(f"SELECT * FROM {table} ORDER BY id".encode()).fetchall()


def read(warehouse: rt.Warehouse, table: str) -> list[tuple[Any, ...]]:
    return sorted(warehouse.read(table).rows(), key=str)


# Updates


def test_rows_that_others_refer_to_are_updated_where_they_are(star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Updates, upserts, inserts and deletes of a dimension are stored beside each other; the facts never miss their rows."""
    load.update("customer", {"name": "Ada L."}, {"id": 1})
    load.upsert("customer", {"id": 2, "name": "Grace H.", "city": 1})
    load.upsert("customer", {"id": 4, "name": "Alan", "city": 2})
    load.insert("customer", (5, "Barbara", None))
    load.delete("customer", {"id": 3})
    load.commit()
    wanted = [(1, "Ada L.", 1), (2, "Grace H.", 1), (4, "Alan", 2), (5, "Barbara", None)]
    assert read(star, "customer") == wanted
    star.materialize()
    assert stored(other, "customer") == wanted
    assert read(star, "customer") == wanted
    load.update("customer", {"city": rt.expr("coalesce(city, 1)")})
    load.commit(materialize=True)
    assert stored(other, "customer") == [(1, "Ada L.", 1), (2, "Grace H.", 1), (4, "Alan", 2), (5, "Barbara", 1)]
    assert other.execute("SELECT rows_stored FROM righttime.minmax WHERE tablename = 'customer'").fetchone() == (4,)


def test_a_row_that_is_deleted_and_inserted_again_is_the_same_row(star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Between two steps nobody sees that it was away, so what refers to it does not mind; not even by RESTRICT."""
    other.execute("ALTER TABLE sale DROP CONSTRAINT sale_customer_fkey, ADD FOREIGN KEY (customer) REFERENCES customer ON DELETE RESTRICT")
    load.delete("customer", {"id": 1})
    load.commit()
    load.insert("customer", (1, "Ada again", 2))
    load.commit(materialize=True)
    assert stored(other, "customer")[0] == (1, "Ada again", 2)


def test_many_rows_are_updated_in_one_statement(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """More than one piece of places, all types of columns, nulls."""
    other.execute("CREATE TABLE item (id int PRIMARY KEY, price numeric(9,2), name varchar(20), tags text[], day date)")
    other.execute("INSERT INTO item SELECT n, n / 4.0, 'item ' || n, '{a,NULL}', '2026-01-01' FROM generate_series(1, 70000) n")
    other.execute("CREATE TABLE sold (item int REFERENCES item)")
    other.execute("INSERT INTO sold SELECT n FROM generate_series(1, 70000) n")
    warehouse.adopt("item")
    load.update("item", {"price": None, "name": rt.expr("concat(name, '!')")})
    load.delete("item", "id > 70000")
    load.insert("item", (70001, None, None, None, None))
    load.commit(materialize=True)
    query = "SELECT count(*), count(price), count(*) FILTER (WHERE name = 'item ' || id || '!'), count(*) FILTER (WHERE tags = '{a,NULL}'), max(id) FROM item"
    assert other.execute(query).fetchone() == (70001, 0, 70000, 70000, 70001)


def test_columns_of_others_keep_what_they_hold_in_a_table_that_is_referred_to(star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """They are not among those that are set; where a row could not be found again, nothing is written."""
    other.execute("ALTER TABLE customer ADD number int GENERATED ALWAYS AS IDENTITY, ADD note text, ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    other.execute("UPDATE customer SET note = 'note ' || id")
    load.update("customer", {"name": "Ada L."}, {"id": 1})
    load.commit(materialize=True)
    assert stored(other, "customer")[0] == (1, "Ada L.", 1, 1, "note 1", 2)
    load.update("customer", {"id": 7}, {"id": 3})
    load.commit()
    with pytest.raises(ColumnNotKept, match="key column 'id'"):
        star.materialize()
    assert len(stored(other, "customer")) == 3


def test_a_row_that_somebody_changed_meanwhile_is_looked_up_anew(star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Nothing is updated at a place where another row lies by now."""
    load.update("customer", {"name": "Ada L."}, {"id": 1})
    load.update("customer", {"name": "Edsger D."}, {"id": 3})
    load.commit()
    assert len(read(star, "customer")) == 3
    other.execute("UPDATE customer SET city = 2 WHERE id = 1")
    other.execute("DELETE FROM customer WHERE id = 3")
    other.execute("VACUUM customer")
    other.execute("INSERT INTO customer VALUES (9, 'Kurt', NULL)")
    star.materialize()
    assert stored(other, "customer") == [(1, "Ada L.", 2), (2, "Grace", 2), (9, "Kurt", None)]


def test_references_to_another_key_than_the_declared_one_are_kept(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Without a primary key a row is known by the unique columns of the database; a unique value may pass from a row that leaves to one that comes."""
    other.execute("CREATE TABLE item (id int NOT NULL, code text NOT NULL UNIQUE, price int); CREATE TABLE sold (item text REFERENCES item (code))")
    other.execute("INSERT INTO item VALUES (1, 'a', 10), (2, 'b', 20); INSERT INTO sold VALUES ('a')")
    warehouse.adopt("item")
    load.update("item", {"price": 11}, "code = 'a'")
    load.delete("item", "code = 'b'")
    load.insert("item", (3, "b", 30))
    load.commit(materialize=True)
    assert stored(other, "item") == [(1, "a", 11), (3, "b", 30)]


def test_a_row_is_known_by_a_key_that_cannot_be_null(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """A null would not be found again, and the row would be another one."""
    other.execute("CREATE TABLE item (code text UNIQUE, id int NOT NULL UNIQUE); CREATE TABLE sold (item int REFERENCES item (id) ON DELETE CASCADE)")
    other.execute("INSERT INTO item VALUES (NULL, 1); INSERT INTO sold VALUES (1)")
    warehouse.adopt("item")
    load.update("item", {"code": "a"}, "id = 1")
    load.commit(materialize=True)
    assert (stored(other, "item"), other.execute("SELECT * FROM sold").fetchall()) == ([("a", 1)], [(1,)])


def test_a_value_that_is_unique_passes_on_within_a_step(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """From a deleted row to an updated one, and from that to a new one."""
    other.execute("CREATE TABLE item (id int PRIMARY KEY, code text UNIQUE); CREATE TABLE sold (item int REFERENCES item)")
    other.execute("INSERT INTO item VALUES (1, 'a'), (2, 'b'); INSERT INTO sold VALUES (2)")
    warehouse.adopt("item")
    load.delete("item", {"id": 1})
    load.update("item", {"code": "a"}, {"id": 2})
    load.insert("item", (3, "b"))
    load.commit(materialize=True)
    assert stored(other, "item") == [(2, "a"), (3, "b")]


def test_two_new_rows_with_one_key_of_the_database_are_not_taken_for_one(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """The declaration allows them, the database does not: no row is dropped."""
    warehouse.create_table("item", "id INT, price INT", keys=["id"])
    load.insert("item", (1, 10))
    load.commit(materialize=True)
    other.execute("ALTER TABLE item ADD UNIQUE (id); CREATE TABLE sold (item int REFERENCES item (id)); INSERT INTO sold VALUES (1)")
    load.update("item", {"price": 11}, {"id": 1})
    load.insert("item", (1, 12))
    load.commit()
    with pytest.raises(StoringFailed, match="1 new rows have the key"):
        warehouse.materialize()
    assert read(warehouse, "item") == [(1, 11), (1, 12)]
    load.delete("item", "price = 12")
    load.commit(materialize=True)
    assert stored(other, "item") == [(1, 11)]


def test_a_trigger_that_may_change_an_update_is_refused(star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Where updates are stored as such, the same holds for their triggers as for those of inserts; elsewhere they are not fired."""
    other.execute("CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.name = upper(NEW.name); RETURN NEW; END'")
    for table in ("customer", "city"):
        other.execute(f"CREATE TRIGGER stamp BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION stamp()".encode())
    load.insert("customer", (4, "Alan", 1))
    load.commit(materialize=True)
    load.update("customer", {"name": "x"}, {"id": 4})
    load.commit()
    with pytest.raises(SchemaChanged, match="trigger stamp"):
        star.materialize()
    other.execute("DROP TRIGGER stamp ON customer")
    star.materialize()
    assert stored(other, "customer")[3] == (4, "x", 1)


# Deletes


def test_a_deleted_row_that_others_refer_to_is_told_and_stops_no_other_table(star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Answers go on without it, the error names what refers to it, and each way out leads out."""
    star.create_table("visit", "n INT")
    load.delete("customer", {"id": 1})
    load.insert("city", (3, "Rome"))
    load.insert("visit", (1,))
    load.commit()
    with pytest.raises(ReferenceBroken, match=r'"sale".*\(id\)=\(1\)') as caught:
        star.materialize()
    assert caught.value.context["table"] == "customer"
    assert other.execute("SELECT count(*) FROM visit").fetchone() == (1,)
    assert [row[0] for row in stored(other, "city")] == [1, 2, 3]
    assert [row[0] for row in read(star, "customer")] == [2, 3]
    load.insert("city", (4, "Oslo"))
    load.delete("customer", {"id": 3})
    load.commit()
    star.materialize("city")  # customer fails again, and nobody asked for it
    assert len(stored(other, "city")) == 4

    load.delete("sale", "customer = 1")
    load.commit(materialize=True)
    assert (stored(other, "customer"), stored(other, "sale")) == ([(2, "Grace", 2)], [(2, 2, 20)])
    load.delete("customer", {"id": 2})
    with pytest.raises(NotStored) as not_stored:
        load.commit(materialize=True)
    assert isinstance(not_stored.value.__cause__, ReferenceBroken)
    load.upsert("customer", {"id": 2, "name": "Grace again"})
    load.commit(materialize=True)
    assert stored(other, "customer") == [(2, "Grace again", None)]


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "RESTRICT", "NO ACTION DEFERRABLE INITIALLY DEFERRED"])
def test_no_foreign_key_changes_other_rows_by_itself(star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any], action: str) -> None:
    """Whatever it does on delete: rows that are there in an answer are there after storing. Deleted together they go together."""
    other.execute("ALTER TABLE customer DROP CONSTRAINT customer_city_fkey")
    other.execute(f"ALTER TABLE customer ADD FOREIGN KEY (city) REFERENCES city ON DELETE {action}".encode())
    load.delete("city", {"id": 1})
    load.commit()
    before = read(star, "customer")
    with pytest.raises(ReferenceBroken, match="customer") as caught:
        star.materialize()
    assert caught.value.context["table"] == "city"
    assert read(star, "customer") == stored(other, "customer") == before
    load.update("customer", {"city": 2}, {"id": 1})
    load.commit(materialize=True)
    assert (stored(other, "city"), stored(other, "customer")[0]) == ([(2, "Paris")], (1, "Ada", 2))


def test_an_update_of_what_is_referred_to_is_not_passed_on(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """ON UPDATE would change rows of another table as well."""
    other.execute("CREATE TABLE item (id int PRIMARY KEY, code text UNIQUE); CREATE TABLE sold (item text REFERENCES item (code) ON UPDATE CASCADE)")
    other.execute("INSERT INTO item VALUES (1, 'a'), (2, 'b'); INSERT INTO sold VALUES ('a')")
    warehouse.adopt("item")
    load.update("item", {"code": "c"}, {"id": 2})
    load.commit(materialize=True)
    load.update("item", {"code": "d"}, {"id": 1})
    load.commit()
    with pytest.raises(ReferenceBroken, match="ON UPDATE"):
        warehouse.materialize()
    assert other.execute("SELECT * FROM sold").fetchall() == [("a",)]
    other.execute("DELETE FROM sold")
    warehouse.materialize()
    assert stored(other, "item") == [(1, "d"), (2, "c")]


def test_an_update_is_not_passed_on_with_a_column_of_others(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """A foreign key may refer to a column of the table together with one that somebody has added."""
    other.execute("CREATE TABLE item (id int PRIMARY KEY, code text); INSERT INTO item VALUES (1, 'a')")
    warehouse.adopt("item")
    other.execute("ALTER TABLE item ADD tenant int DEFAULT 1, ADD UNIQUE (code, tenant)")
    other.execute("CREATE TABLE sold (code text, tenant int, FOREIGN KEY (code, tenant) REFERENCES item (code, tenant) ON UPDATE CASCADE)")
    other.execute("INSERT INTO sold VALUES ('a', 1)")
    load.update("item", {"code": "b"}, {"id": 1})
    load.commit()
    with pytest.raises(ReferenceBroken, match="ON UPDATE"):
        warehouse.materialize()
    assert other.execute("SELECT * FROM sold").fetchall() == [("a", 1)]


# Several tables


@pytest.mark.parametrize("deferred", [False, True], ids=["immediate", "deferred"])
def test_tables_that_refer_to_each_other_are_stored_in_the_order_that_works(
    star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any], deferred: bool
) -> None:
    """One commit brings new rows of dimension and fact, moves references, and takes away what nobody refers to any more."""
    if deferred:
        other.execute("ALTER TABLE sale ALTER CONSTRAINT sale_customer_fkey DEFERRABLE INITIALLY DEFERRED")
        other.execute("ALTER TABLE customer ALTER CONSTRAINT customer_city_fkey DEFERRABLE")
    load.insert("sale", (3, 4, 30))
    load.insert("customer", (4, "Alan", 3))
    load.insert("city", (3, "Rome"))
    load.commit(materialize=True)
    assert stored(other, "sale")[2] == (3, 4, 30)
    load.insert("sale", (4, 5, 40))
    load.update("sale", {"customer": 5}, {"id": 1})
    load.upsert("customer", {"id": 5, "name": "Barbara", "city": 4})
    load.update("customer", {"city": 4}, {"id": 2})
    load.upsert("city", {"id": 4, "name": "Oslo"})
    for city in (1, 2):
        load.delete("city", {"id": city})
    load.delete("customer", {"id": 1})
    load.commit(materialize=True)
    assert [stored(other, table) for table in ("city", "customer", "sale")] == [
        [(3, "Rome"), (4, "Oslo")],
        [(2, "Grace", 4), (3, "Edsger", None), (4, "Alan", 3), (5, "Barbara", 4)],
        [(1, 5, 10), (2, 2, 20), (3, 4, 30), (4, 5, 40)],
    ]
    for table in ("city", "customer", "sale"):
        load.delete(table)
    load.commit(materialize=True)
    assert [stored(other, table) for table in ("city", "customer", "sale")] == [[], [], []]


def test_a_table_is_stored_with_what_it_refers_to(star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Whoever stores the facts, by hand or with a commit, need not think of the dimensions, be they another producer's."""
    dimensions = star.producer(name="dimensions")
    dimensions.upsert("customer", {"id": 4, "name": "Alan"})
    dimensions.commit()
    load.insert("sale", (3, 4, 30))
    load.commit()
    star.materialize("sale")
    dimensions.insert("customer", (5, "Barbara", None))
    dimensions.commit()
    load.insert("sale", (4, 5, 40))
    load.commit(materialize=True)
    dimensions.insert("customer", (6, "Kurt", None))
    dimensions.commit()
    load.insert_arrow("sale", pa.table({"id": pa.array(range(100, 200), pa.int64()), "customer": pa.array([6] * 100, pa.int32()), "qty": [None] * 100}))
    load.commit()
    star.materialize("customer")
    assert len(stored(other, "sale")) == 104


def test_a_tapped_table_is_stored_with_what_refers_to_it(star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """Its stream gets the rows first, also where another table was named."""
    star.tap("customer")
    load.insert("customer", (4, "Alan", None))
    load.insert("sale", (3, 4, 30))
    load.commit()
    star.materialize("sale")
    load.insert("customer", (5, "Barbara", None))
    load.insert("sale", (4, 5, 40))
    load.commit(materialize=True)
    assert len(stored(other, "sale")) == 4


def test_rows_that_go_past_memory_take_along_what_they_refer_to(url: str, other: psycopg.Connection[Any], tmp_path: Path) -> None:
    """A bulk load is stored at once; rows of the dimension that are in memory go with it."""
    other.execute(STAR.replace("id bigint PRIMARY KEY", "id bigint").encode())  # unique keys are looked up in memory
    with rt.open(url, state_dir=tmp_path, bypass_bytes=1000) as warehouse:
        for table in ("sale", "customer", "city"):
            warehouse.adopt(table)
        load = warehouse.producer(name="till")
        load.insert("customer", (4, "Alan", None))
        load.insert_arrow("sale", pa.table({"id": pa.array(range(100, 300), pa.int64()), "customer": pa.array([4] * 200, pa.int32()), "qty": [None] * 200}))
        load.commit()
        assert len(stored(other, "sale")) == 202
        assert len(stored(other, "customer")) == 4


def test_a_fact_without_its_dimension_is_told_and_stored_once_that_is_there(star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """The fact's error names it; the tables that it refers to are stored."""
    load.insert("sale", (3, 8, 30))
    load.insert("customer", (7, "Kurt", None))
    load.commit()
    with pytest.raises(ReferenceBroken, match=r"\(customer\)=\(8\)") as caught:
        star.materialize()
    assert caught.value.context["table"] == "sale"
    assert [row[0] for row in stored(other, "customer")] == [1, 2, 3, 7]
    assert len(read(star, "sale")) == 3
    load.insert("customer", (8, "Alonzo", None))
    load.commit(materialize=True)
    star.materialize()
    assert stored(other, "sale")[2] == (3, 8, 30)


def test_a_fact_whose_dimension_could_not_be_stored_now_is_told_to_try_again(
    star: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any], url: str
) -> None:
    """Nothing is missing: the dimension waits for somebody, and the fact for the dimension."""
    load.update("customer", {"name": "Ada L."}, {"id": 1})
    load.insert("customer", (4, "Alan", None))
    load.insert("sale", (3, 4, 30))
    load.commit()
    with psycopg.connect(url) as somebody:
        somebody.execute("SELECT FROM customer WHERE id = 1 FOR UPDATE")
        with pytest.raises(StoringFailed, match="lock timeout") as caught:
            star.materialize("sale")
        assert (caught.value.context["table"], caught.value.retryable) == ("customer", True)
    star.materialize("sale")
    assert stored(other, "sale")[2] == (3, 4, 30)


@pytest.mark.parametrize("circle", [True, False], ids=["two tables", "one table"])
def test_rows_that_refer_to_each_other_in_a_circle_are_stored_together(
    warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any], circle: bool
) -> None:
    """Within a table always; between tables where the foreign keys are deferrable."""
    if circle:
        other.execute("CREATE TABLE a (id int PRIMARY KEY, b int); CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a DEFERRABLE)")
        other.execute("ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b DEFERRABLE")
    else:
        other.execute("CREATE TABLE a (id int PRIMARY KEY, b int REFERENCES a ON DELETE CASCADE)")
    tables = ("a", "b") if circle else ("a",)
    for table in tables:
        warehouse.adopt(table)
        load.insert(table, (1, 1))
        load.insert(table, (2, 1))
    load.commit(materialize=True)
    for table in tables:
        load.upsert(table, (3, 3))
        load.update(table, {"a" if table == "b" else "b": 3}, {"id": 2})
        load.delete(table, {"id": 1})
    load.commit(materialize=True)
    assert [stored(other, table) for table in tables] == [[(2, 3), (3, 3)]] * len(tables)
    for table in tables:
        load.delete(table)
    load.commit(materialize=True)
    assert [stored(other, table) for table in tables] == [[]] * len(tables)
