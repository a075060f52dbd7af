"""Columns of PostgreSQL that are read as another type: uuid, json and jsonb as texts, numeric as decimals."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import righttime as rt
from righttime.errors import SchemaChanged, WarehouseDamaged, WrongType
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database

ONE, TWO, THREE, FOUR = (f"{number:08x}-aaaa-4bcd-8def-0123456789ab" for number in range(1, 5))


@pytest.fixture
def url(postgres: TempPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else at the same database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE event (id uuid PRIMARY KEY, raw json, facts jsonb, amount numeric)")
        connection.execute("INSERT INTO event VALUES (%s, '{\"b\":  1}', '{\"b\":  1}', 1.50), (%s, NULL, NULL, NULL)", (ONE, TWO))
        yield connection


@pytest.fixture
def warehouse(url: str, other: psycopg.Connection[Any], tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(url, state_dir=tmp_path) as warehouse:
        warehouse.adopt("event")
        yield warehouse


@pytest.fixture
def load(warehouse: rt.Warehouse) -> rt.Producer:
    return warehouse.producer(name="till")


def read(warehouse: rt.Warehouse) -> list[tuple[Any, ...]]:
    return sorted(warehouse.read("event").rows())


def stored(other: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return other.execute("SELECT id::text, raw::text, facts::text, amount::text FROM event ORDER BY id").fetchall()


def test_they_are_read_changed_and_stored_as_they_are(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """The declaration says text and decimal; an answer is the same before and after storing, in every way of asking; others see their own types."""
    assert warehouse.schema("event").ddl() == "`id` STRING NOT NULL, `raw` STRING, `facts` STRING, `amount` DECIMAL(38,18)"
    load.insert("event", (THREE, "[1, 2 ]", '{"a": null, "bb": [1, 2.50, "ä\\n"]}', Decimal("-0.000000000000000001")))
    load.upsert("event", {"id": ONE, "raw": "null"})
    load.update("event", {"facts": "7", "amount": Decimal(10**19)}, {"id": TWO})
    load.insert_arrow("event", pa.table({"id": [FOUR], "raw": ["1"], "facts": ["{}"], "amount": pa.array([Decimal("12345.6700")], pa.decimal128(38, 18))}))
    load.commit()
    wanted = [
        (ONE, "null", '{"b": 1}', Decimal("1.5")),
        (TWO, None, "7", Decimal(10**19)),
        (THREE, "[1, 2 ]", '{"a": null, "bb": [1, 2.50, "ä\\n"]}', Decimal("-0.000000000000000001")),
        (FOUR, "1", "{}", Decimal("12345.67")),
    ]
    assert read(warehouse) == wanted
    with rt.connect(warehouse) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT id::text, raw::text, facts::text, amount FROM event ORDER BY id")
        assert cursor.fetchall() == wanted
        cursor.execute("SELECT count(*) FROM event WHERE facts @> '{\"b\": 1}' OR id = CAST(? AS uuid)", (FOUR,))
        assert cursor.fetchall() == [(2,)]
    warehouse.materialize()
    assert read(warehouse) == wanted
    amounts = ["1.5", "10000000000000000000", "-0.000000000000000001", "12345.67"]
    assert stored(other) == [(*row[:3], amount) for row, amount in zip(wanted, amounts, strict=True)]


def test_rows_are_found_by_what_these_columns_hold(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """By key, and by condition on a text; in a condition a text that is none of the type finds nothing, and is no error."""
    with pytest.raises(WrongType, match="no UUID"):
        load.delete("event", {"id": "no uuid"})
    load.delete("event", "id > 'zzz' OR raw = 'no json'")
    load.update("event", {"amount": 3}, "facts = '{\"b\": 1}' AND amount = 1.5")
    load.delete("event", "id IN ('x', 'y')")
    load.delete("event", f"id = '{ONE}\n' AND amount > 0")
    load.delete_many("event", [{"id": TWO}])
    load.commit(materialize=True)
    assert stored(other) == [(ONE, '{"b":  1}', '{"b": 1}', "3")]


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("id", "x", "no UUID"),
        ("id", ONE.upper(), "no UUID in lower case"),
        ("id", f"{{{ONE}}}", "no UUID"),
        ("id", f"{ONE}\n", "no UUID"),
        ("raw", "{'a': 1}", "no JSON"),
        ("raw", "NaN", "no JSON"),
        ("raw", "", "no JSON"),
        ("facts", "{", "no JSON"),
        ("facts", '"\\u0000"', "no JSON"),
        ("facts", "[1e1000000000000000000]", "no JSON"),
        ("facts", '{"bb":1,"a":1e1}', r'has to be written as .*"a": 10, "bb": 1'),
        ("amount", Decimal("1e-19"), "DECIMAL"),
        ("amount", Decimal("1e20"), "DECIMAL"),
    ],
)
def test_what_the_type_would_not_give_back_is_refused_when_it_is_loaded(
    warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any], column: str, value: Any, words: str
) -> None:
    """By each way of loading, with the transaction as it was; so nothing has to be refused when it is stored."""
    row = {"id": THREE, column: value}
    with pytest.raises(WrongType, match=words):
        load.insert("event", row)
    with pytest.raises(WrongType, match=words):
        load.insert_many("event", [row])
    with pytest.raises(WrongType, match=words):
        load.upsert("event", row)
    with pytest.raises(WrongType, match=words):
        load.update("event", {column: value}, {"amount": 0})
    load.commit(materialize=True)
    assert len(stored(other)) == 2


def test_a_computed_text_is_looked_at_before_the_commit(warehouse: rt.Warehouse, load: rt.Producer, other: psycopg.Connection[Any]) -> None:
    """As any value that the database could not hold."""
    load.update("event", {"facts": rt.expr("concat(facts, '}')")}, {"id": ONE})
    with pytest.raises(WrongType, match="no JSON"):
        load.commit()
    load.rollback()
    load.update("event", {"facts": rt.expr("concat('[', facts, ']')")}, {"id": ONE})
    load.commit(materialize=True)
    assert stored(other)[0][2] == '[{"b": 1}]'


def test_a_number_of_others_that_does_not_fit_is_told_and_not_rounded(warehouse: rt.Warehouse, other: psycopg.Connection[Any]) -> None:
    """Table and column are named; corrected there, reading goes on."""
    other.execute("UPDATE event SET amount = 0.1234567890123456789 WHERE id = %s", (TWO,))
    with pytest.raises(WarehouseDamaged, match=r"table event: column 'amount' holds a number with more than 20 digits"):
        warehouse.read("event")
    other.execute("UPDATE event SET amount = 0.1 WHERE id = %s", (TWO,))
    assert len(read(warehouse)) == 2


def test_a_column_that_gets_another_type_is_told(url: str, other: psycopg.Connection[Any], tmp_path: Path) -> None:
    """The declaration remembers the database's own type, over a restart, too."""
    for again in (False, True):
        with rt.open(url, state_dir=tmp_path) as warehouse, warehouse.producer(name="till") as load:
            if not again:
                warehouse.adopt("event")
            load.insert("event", (FOUR if again else THREE, None, None, None))
            load.commit()
            other.execute("ALTER TABLE event ALTER raw TYPE text")
            with pytest.raises(SchemaChanged, match="'raw' is text, declared was json"):
                warehouse.materialize()
            other.execute("ALTER TABLE event ALTER raw TYPE json USING raw::json")
    assert len(stored(other)) == 2
    with rt.open(url, state_dir=tmp_path) as warehouse:
        assert len(read(warehouse)) == 4
        warehouse.materialize()
    assert len(stored(other)) == 4
