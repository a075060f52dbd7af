"""Spark reads a held table of PostgreSQL: every partition at the same moment, and only while it is held."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from righttime.changes.schema import declare_table
from righttime.pipeline.spark import SparkOwner
from righttime.query.postgres_parts import PostgresParts
from righttime.query.postgres_source import _packed, _unpacked, postgres_frame
from tests.properties.test_postgres_codec import ALL, OTHERS
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import add, create, fresh_database, open_parts

SALE = declare_table("sale", "sku INT NOT NULL, name STRING, price DECIMAL(12, 2), at TIMESTAMP")


def sales(*skus: int) -> pa.Table:
    rows = [{"sku": sku, "name": None if sku % 7 == 0 else f"item {sku}", "price": sku, "at": None} for sku in skus]
    return pa.Table.from_pylist(rows, schema=SALE.columns)


@pytest.fixture
def url(postgres: TempPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def parts(url: str, tmp_path: Path) -> Iterator[PostgresParts]:
    opened = open_parts(url, tmp_path)
    create(opened, SALE)
    yield opened
    opened.close()


def test_all_partitions_see_the_held_moment_without_hidden_rows(parts: PostgresParts, url: str, spark_owner: SparkOwner) -> None:
    """Rows that are stored meanwhile are in no partition; rows at hidden positions are left out."""
    version = add(parts, SALE, sales(*range(20_000)))
    held = parts.store.hold([SALE], {"sale": version})
    assert held is not None
    with held:
        (first, *_) = held.scan("sale", ["sku"])
        hidden = {first.unit: first.positions[[5, 0, 777]]}
        frame = postgres_frame(spark_owner.child(), held, SALE, hidden=hidden)
        add(parts, SALE, sales(-1, -2))
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("DELETE FROM sale WHERE sku < 100")

        assert frame.rdd.getNumPartitions() > 1
        found = frame.orderBy("sku").toArrow()
        total = frame.selectExpr("count(*)", "sum(price)", "count(name)").first()

    wanted = [sku for sku in range(20_000) if sku not in (0, 5, 777)]
    assert found.column("sku").to_pylist() == wanted
    assert total is not None and (total[0], total[1]) == (len(wanted), sum(wanted))
    assert total[2] == sum(sku % 7 != 0 for sku in wanted)


def test_after_the_hold_a_query_fails_loudly(parts: PostgresParts, spark_owner: SparkOwner) -> None:
    """A DataFrame that outlives its query never reads another moment."""
    version = add(parts, SALE, sales(1, 2, 3))
    held = parts.store.hold([SALE], {"sale": version})
    assert held is not None
    with held:
        frame = postgres_frame(spark_owner.child(), held, SALE, hidden={})
    with pytest.raises(PySparkException, match="snapshot"):
        frame.count()


def test_an_empty_table_and_some_columns(parts: PostgresParts, spark_owner: SparkOwner) -> None:
    """Nothing stored gives no rows with the right columns; columns that nobody needs are not sent."""
    held = parts.store.hold([SALE], {"sale": 0})
    assert held is not None
    with held:
        frame = postgres_frame(spark_owner.child(), held, SALE, hidden={}, columns=["price", "sku"])
        assert (frame.columns, frame.count()) == (["price", "sku"], 0)


def test_every_type_reaches_spark(parts: PostgresParts, spark_owner: SparkOwner) -> None:
    """The relation's columns are those of the declaration."""
    create(parts, ALL)
    version = add(parts, ALL, pa.Table.from_pylist([{}, {}], schema=ALL.columns))
    held = parts.store.hold([ALL], {ALL.name: version})
    assert held is not None
    with held:
        found = postgres_frame(spark_owner.child(), held, ALL, hidden={}).toArrow()
    assert found.num_rows == 2 and found.column_names == ALL.columns.names


def test_a_password_is_not_in_the_plan(parts: PostgresParts, spark_owner: SparkOwner, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever explains a query does not see how to connect."""
    held = parts.store.hold([SALE], {"sale": 0})
    assert held is not None
    with held:
        postgres_frame(spark_owner.child(), held, SALE, hidden={}).explain(True)
    assert "dbname" not in capsys.readouterr().out


def test_positions_travel_as_text() -> None:
    """What is packed is unpacked."""
    positions = np.array([1, 2, 65537, 2**40], dtype=np.int64)
    assert _unpacked(_packed(positions)).tolist() == positions.tolist()
    assert len(_packed(np.arange(1_000_000))) < 100_000


def test_columns_that_are_read_as_another_type_reach_spark(parts: PostgresParts, spark_owner: SparkOwner) -> None:
    """uuid and JSON as texts, numeric as decimals, from the workers' own connections."""
    create(parts, OTHERS)
    row = {"c_uuid": "00000000-0000-4000-8000-0123456789ab", "c_json": "[ 1]", "c_jsonb": '{"a": 1.50}', "c_numeric": Decimal("-1.5")}
    version = add(parts, OTHERS, pa.Table.from_pylist([row, dict.fromkeys(row)], schema=OTHERS.columns))
    held = parts.store.hold([OTHERS], {"others": version})
    assert held is not None
    with held:
        found = postgres_frame(spark_owner.child(), held, OTHERS, hidden={}).toArrow().to_pylist()
    assert found == [row, dict.fromkeys(row)]
