"""What a row means does not depend on the drain it comes in: names, types, values, and what a table cannot hold."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from righttime.pipeline.flow import Flow
from righttime.pipeline.operators.query import Reach
from righttime.pipeline.spark import SparkOwner
from tests.support.flows import Bench, dead_letters
from tests.support.signed_histories import session


@pytest.fixture(scope="module")
def child(spark_owner: SparkOwner) -> Iterator[SparkSession]:
    """One session for the module."""
    yield session(spark_owner.child())


reaches = pytest.mark.parametrize("reach", ["task", "sent"])


# -- names -----------------------------------------------------------------------------------------------------------


@reaches
def test_a_column_may_be_spelled_in_another_case(child: SparkSession, reach: Reach) -> None:
    """It is the same column: what an earlier step made of it counts, and it is carried as far as it is read."""
    flow = Flow("case")
    rows = flow.stream("s").derive(price="price * 2").where("ID > 0")
    rows.select("id", total="PRICE * Qty").into("t", keys="id")
    rows.aggregate(by="g", total="sum(QTY)").into("u", keys="g")
    rows.lookup(flow.stream("d"), on="g", take="name").select("id", "g", name="upper(NAME)").into("v", keys="id")
    tables = {"t": ("id INT, total INT", ["id"]), "u": ("g INT, total BIGINT", ["g"]), "v": ("id INT, g INT, name STRING", ["id"])}
    bench = Bench(flow, child, streams={"s": ("id INT, g INT, price INT, qty INT", ["id"]), "d": ("g INT, name STRING", ["g"])}, tables=tables)
    bench.put("d", 1, {"g": 1, "name": "a"})
    bench.put("s", 1, {"id": 1, "g": 1, "price": 5, "qty": 3})
    bench.put("s", 2, {"id": 1, "g": 1, "price": 5, "qty": 4})

    first, second = (bench.drain(horizon, reach=reach)[0] for horizon in (1, 2))

    assert (first["t"], first["u"]) == ([{"id": 1, "total": 30}], [{"g": 1, "total": 3}])
    assert (second["t"], second["u"], second["v"]) == ([{"id": 1, "total": 40}], [{"g": 1, "total": 4}], [{"id": 1, "g": 1, "name": "A"}])
    assert dead_letters(bench.results) == []


def test_a_careful_drain_reads_a_column_spelled_in_another_case(child: SparkSession) -> None:
    """A row that fails in one branch buries none of another."""
    flow = Flow("case")
    rows = flow.stream("s")
    rows.aggregate(by="g", total="sum(V)").into("u", keys="g")
    rows.select("id", c="6 / w").into("t", keys="id")
    tables = {"t": ("id INT, c DOUBLE", ["id"]), "u": ("g INT, total BIGINT", ["g"])}
    bench = Bench(flow, child, streams={"s": ("id INT, g INT, v INT, w INT", ["id"])}, tables=tables)
    bench.put("s", 1, {"id": 1, "g": 1, "v": 5, "w": 0}, {"id": 2, "g": 1, "v": 6, "w": 2})

    found = bench.drain(1)[0]

    assert (found["t"], found["u"]) == ([{"id": 2, "c": 3.0}], [{"g": 1, "total": 11}])
    assert [letter["step"] for letter in dead_letters(bench.results)] == ["03_select"]
