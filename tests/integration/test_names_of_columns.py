"""Columns and fields of any name: what the steps call their own never meets what users call theirs."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from righttime.pipeline.flow import Flow
from righttime.pipeline.spark import SparkOwner
from tests.support.flows import Bench


@pytest.fixture(scope="module")
def child(spark_owner: SparkOwner) -> Iterator[SparkSession]:
    """One child session for the module."""
    yield spark_owner.child()


@pytest.mark.parametrize("name", ["mark", "größe"])
def test_a_key_may_have_any_name_of_a_column(child: SparkSession, name: str) -> None:
    """State is looked up by what the columns are called, and by a name of its own that nobody else can have. Letters are those of any language."""
    flow = Flow("marks")
    rows = flow.stream("s").select("id", name)
    rows.join(rows.select(name, other="id"), on=name).aggregate(by=name, n="count(*)").into("t", keys=[name])
    bench = Bench(flow, child, streams={"s": (f"id INT, `{name}` STRING", ["id"])}, tables={"t": (f"`{name}` STRING, n BIGINT", [name])})
    bench.put("s", 1, {"id": 1, name: "a"})
    bench.put("s", 2, {"id": 2, name: "a"})
    assert [bench.drain(time)[0]["t"] for time in (1, 2)] == [[{name: "a", "n": 1}], [{name: "a", "n": 4}]]


def test_a_field_of_a_struct_is_not_taken_for_a_column(child: SparkSession) -> None:
    """A drain reads `given.x` as its declaration was checked: the field of a column, though there is a column of that name as well."""
    flow = Flow("fields")
    flow.stream("s").where("given.x > 1").select("id", y="given.x").into("t", keys=["id"])
    bench = Bench(flow, child, streams={"s": ("id INT, x INT, given STRUCT<x: INT>", ["id"])}, tables={"t": ("id INT, y INT", ["id"])})
    bench.put("s", 1, {"id": 1, "x": 7, "given": {"x": 1}}, {"id": 2, "x": 0, "given": {"x": 2}})
    assert bench.drain(1)[0]["t"] == [{"id": 2, "y": 2}]


def test_fields_of_structs_may_have_any_name(child: SparkSession) -> None:
    """Also where there is no row to take them from, and as the least of a group."""
    flow = Flow("structs")
    priced = flow.stream("d").select("k", price="named_struct('unit price', w)")
    joined = flow.stream("s").join(priced, on="k", how="left").lookup(priced, on="k", take={"again": "price"})
    joined.select("id", p="price.`unit price`", q="again.`unit price`").into("t", keys=["id"])
    least = priced.derive(one="1").aggregate(by="one", least="min(price)")
    least.select("one", p="least.`unit price`").into("u", keys=["one"])
    tables = {"t": ("id INT, p INT, q INT", ["id"]), "u": ("one INT, p INT", ["one"])}
    bench = Bench(flow, child, streams={"s": ("id INT, k INT", ["id"]), "d": ("k INT, w INT", ["k"])}, tables=tables)
    bench.put("s", 1, {"id": 1, "k": 1}, {"id": 2, "k": 2})
    bench.put("d", 1, {"k": 1, "w": 5}, {"k": 3, "w": 6})
    found = bench.drain(1)[0]
    assert found == {"t": [{"id": 1, "p": 5, "q": 5}, {"id": 2, "p": None, "q": None}], "u": [{"one": 1, "p": 5}]}
