"""A type 2 history and its facts over tables of the warehouse: the tables' own commits decide, not when queries come."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import righttime as rt
from righttime.client import Warehouse
from righttime.pipeline.spark import SparkOwner


@pytest.fixture
def wh(tmp_path: Path, spark_owner: SparkOwner) -> Iterator[Warehouse]:
    """A warehouse with the two tables of AT-14, tapped, on the Spark of this run."""
    spark_owner.session()
    with rt.open(tmp_path / "wh") as opened:
        opened.create_table("item", "item_id STRING NOT NULL, price INT", keys=["item_id"], unique=True)
        opened.create_table("plin", "id INT NOT NULL, item_id STRING", keys=["id"], unique=True)
        opened.tap("item")
        opened.tap("plin")
        yield opened


def history() -> rt.Flow:
    flow = rt.Flow("scd")
    items = flow.stream("item").history(keys=["item_id"], key="item_sk", key_from=100)
    items.into("item_i", keys=["item_sk"])
    flow.stream("plin").as_of(items, on="item_id", take=["item_sk"]).into("sales", keys=["id"])
    return flow


def test_at_14_facts_of_tapped_tables_take_the_version_of_their_own_commit(wh: Warehouse) -> None:
    """Two prices and two lines in one job: 101 and 102. As a stored row has no commit time, nothing is stored before the streams have it."""
    with wh.run(history()), wh.producer(name="shop") as load:
        for table, row in (("item", ("abc", 9)), ("item", ("abc", 10)), ("plin", (1, "abc")), ("item", ("abc", 12)), ("plin", (2, "abc"))):
            load.upsert("item", {"item_id": row[0], "price": row[1]}) if table == "item" else load.insert("plin", row)
            load.commit()
        wh.materialize("item", "plin")

        sales, items = (sorted(wh.read(table, wait="120s").rows()) for table in ("sales", "item_i"))

        assert sales == [(1, "abc", 101), (2, "abc", 102)]
        assert [(price, key, end is None) for _, price, key, _, end in items] == [(9, 100, False), (10, 101, False), (12, 102, True)]
