"""Rows that fail do so in every drain alike, however Spark plans it; what came and went within a job was never there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from righttime.errors.flows import ExpectationFailed
from righttime.pipeline.careful import reason_of
from righttime.pipeline.flow import Flow
from righttime.pipeline.spark import SparkOwner
from tests.support.flows import Bench, dead_letters

pytestmark = pytest.mark.usefixtures("compiled_plans")


@pytest.fixture(scope="module")
def child(spark_owner: SparkOwner) -> Iterator[SparkSession]:
    """One child session for the module."""
    yield spark_owner.child()


def declared(way: str) -> Flow:
    flow = Flow("divide")
    rows = flow.stream("s").derive(unit="a / b")
    if way == "a branch that is not taken":
        rows = rows.derive(c="if(b = 0, 0D, unit)")
    elif way == "a later condition":
        rows = rows.where("b > 0").derive(c="unit")
    elif way == "a condition behind a look-up":
        rows = rows.lookup(flow.stream("d"), on="id", take="name", missing="drop").where("b > 0").derive(c="unit")
    else:
        rows = flow.stream("s").where("a / b > 0").where("b > 0").derive(c="a / b")
    rows.select("id", "c").into("t", keys=["id"])
    return flow


@pytest.mark.parametrize("way", ["a branch that is not taken", "a later condition", "a condition behind a look-up", "a condition that fails"])
def test_an_expression_is_evaluated_for_every_row_that_comes_to_its_step(child: SparkSession, way: str) -> None:
    """Whatever becomes of it later: a row that was let in because nobody looked would stay for ever if somebody looks when it goes."""
    dimension = {"d": ("id INT, name STRING", ["id"])}
    bench = Bench(declared(way), child, streams={"s": ("id INT, a INT, b INT", ["id"])} | dimension, tables={"t": ("id INT, c DOUBLE", ["id"])})
    for number in (1, 2, 3):
        bench.put("d", 1, {"id": number, "name": "x"})
    bench.put("s", 1, {"id": 1, "a": 6, "b": 0}, {"id": 2, "a": 6, "b": 2})
    bench.take("s", 2, {"id": 1})
    bench.put("s", 2, {"id": 3, "a": 1, "b": 0})

    assert [bench.drain(horizon)[0]["t"] for horizon in (1, 2)] == [[{"id": 2, "c": 3.0}], [{"id": 2, "c": 3.0}]]
    letters = [(letter["job"], letter["weight"], letter["row"][:7]) for letter in dead_letters(bench.results)]
    assert sorted(letters) == [(1, 1, '{"id":1'), (2, -1, '{"id":1'), (2, 1, '{"id":3')]


def test_rows_with_structs_go_beside_rows_that_fail(child: SparkSession) -> None:
    """The line of a row that goes has a null where fields of the struct cannot be null."""
    flow = Flow("structs")
    flow.stream("s").where("a / b > 0").select("id", x="named_struct('id', id, 'b', b)").into("t", keys=["id"])
    bench = Bench(flow, child, streams={"s": ("id INT NOT NULL, a INT, b INT NOT NULL", ["id"])}, tables={"t": ("id INT, x STRUCT<id: INT, b: INT>", ["id"])})
    bench.put("s", 1, {"id": 1, "a": 1, "b": 1}, {"id": 2, "a": 1, "b": 1})
    bench.drain(1)
    bench.take("s", 2, {"id": 1})
    bench.put("s", 2, {"id": 3, "a": 1, "b": 0})

    assert bench.drain(2)[0]["t"] == [{"id": 2, "x": {"id": 2, "b": 1}}]
    assert len(dead_letters(bench.results)) == 1


@pytest.mark.parametrize("kind", ["ARRAY<TIMESTAMP>", "ARRAY<STRUCT<a: INT>>", "MAP<STRING, ARRAY<INT>>"])
def test_rows_with_nulls_for_nested_lists_go_beside_rows_that_fail(child: SparkSession, kind: str) -> None:
    """Half of the rows at a time are tried, and half of an Arrow table with such columns is nothing that PySpark takes as it is."""
    flow = Flow("nested")
    flow.stream("s").derive(q="100 DIV v").into("t", keys=["id"])
    columns = f"id INT NOT NULL, v INT, x {kind}"
    bench = Bench(flow, child, streams={"s": (columns, ["id"])}, tables={"t": (f"{columns}, q BIGINT", ["id"])})
    empty: object = {} if kind.startswith("MAP") else []
    for number, (v, x) in enumerate([(1, empty), (0, empty), (2, None), (2, None)], start=1):
        bench.put("s", 1, {"id": number, "v": v, "x": x})

    assert [(row["id"], row["q"]) for row in bench.drain(1)[0]["t"]] == [(1, 100), (3, 50), (4, 50)]
    assert len(dead_letters(bench.results)) == 1


def test_bytes_that_are_no_text_are_told_apart_and_not_stored(child: SparkSession, spark_owner: SparkOwner, tmp_path: Path) -> None:
    """Spark makes a text of any bytes. Kept rows are found by it as by any other; a line that has one in its key is a dead letter until it goes."""
    flow = Flow("texts")
    texts = flow.stream("s").select("id", t="cast(x AS STRING)")
    texts.aggregate(by="t", n="count(*)").into("t", keys=["t"])
    texts.join(texts.select("t", other="id"), on="t").select("id", "other").into("pairs", keys=["id", "other"])
    tables = {"t": ("t STRING, n BIGINT", ["t"]), "pairs": ("id INT, other INT", ["id", "other"])}
    bench = Bench(flow, child, streams={"s": ("id INT, x BINARY", ["id"])}, tables=tables, planned=(spark_owner, tmp_path))
    bench.put("s", 1, {"id": 1, "x": b"\xff"}, {"id": 2, "x": b"ok"})
    bench.put("s", 2, {"id": 3, "x": b"\xff"}, {"id": 4, "x": b"\xfe"})
    bench.take("s", 3, {"id": 1}, {"id": 3})

    assert [len(bench.drain(horizon)[0]["pairs"]) for horizon in (1, 2, 3)] == [2, 6, 2]
    assert bench.rows("t") == [{"t": "ok", "n": 1}]
    letters = [(letter["job"], letter["weight"], json.loads(letter["row"])) for letter in dead_letters(bench.results)]
    once, twice, other = ({"t": text, "n": count} for text, count in (("\\xff", 1), ("\\xff", 2), ("\\xfe", 1)))
    assert sorted(letters, key=str) == [(1, 1, once), (2, 1, other), (2, 1, twice), (3, -1, {"t": "\\xff", "n": None})]


@pytest.mark.parametrize("mended", ["updated", "deleted"])
def test_an_expectation_that_must_hold_can_be_mended(child: SparkSession, mended: str) -> None:
    """The job that failed is run again with what has come since: a bad row that went again within it is no reason to stop."""
    flow = Flow("expect")
    flow.stream("s").expect("a is positive", "a > 0", otherwise="fail").select("id", c="cast(a AS DOUBLE)").into("t", keys=["id"])
    bench = Bench(flow, child, streams={"s": ("id INT, a INT", ["id"])}, tables={"t": ("id INT, c DOUBLE", ["id"])})
    bench.put("s", 1, {"id": 1, "a": 1}, {"id": 2, "a": -1})
    with pytest.raises(ExpectationFailed):
        bench.run(1)
    if mended == "updated":
        bench.put("s", 2, {"id": 2, "a": 2})
    else:
        bench.take("s", 2, {"id": 2})

    assert bench.drain(2)[0]["t"] == [{"id": 1, "c": 1.0}, *([{"id": 2, "c": 2.0}] if mended == "updated" else [])]


def test_a_step_with_a_history_may_have_other_readers(child: SparkSession) -> None:
    """What the history needs to know of a row is not part of the row for others: it goes at another time than it came."""
    flow = Flow("items")
    items = flow.stream("item")
    items.into("item_now", keys=["item"])
    items.distinct().into("item_seen", keys=["item"])
    items.history(keys="item", key="sk", start="since", end="until").into("item_dim", keys=["sk"])
    sold = flow.stream("sale")
    sold.as_of(items.history(keys="item", key="sk", start="since", end="until"), on="item", take="price").into("sold", keys=["id"])
    sold.distinct().into("sold_seen", keys=["id"])
    bench = Bench(
        flow,
        child,
        streams={"item": ("item STRING, price INT", ["item"]), "sale": ("id INT, item STRING", ["id"])},
        tables={
            "item_now": ("item STRING, price INT", ["item"]),
            "item_seen": ("item STRING, price INT", ["item"]),
            "item_dim": ("item STRING, price INT, sk BIGINT, since TIMESTAMP, until TIMESTAMP", ["sk"]),
            "sold": ("id INT, item STRING, price INT", ["id"]),
            "sold_seen": ("id INT, item STRING", ["id"]),
        },
    )
    bench.put("item", 1, {"item": "a", "price": 1})
    bench.put("item", 2, {"item": "a", "price": 2})
    bench.put("sale", 2, {"id": 1, "item": "a"})
    bench.put("item", 3, {"item": "b", "price": 3})

    first = bench.drain(3)[0]
    assert first["item_now"] == first["item_seen"] == [{"item": "a", "price": 2}, {"item": "b", "price": 3}]
    assert (len(first["item_dim"]), first["sold"], first["sold_seen"]) == (3, [{"id": 1, "item": "a", "price": 2}], [{"id": 1, "item": "a"}])
    bench.take("item", 5, {"item": "b"})
    bench.take("sale", 5, {"id": 1})
    second = bench.drain(5)[0]
    assert second["item_now"] == second["item_seen"] == [{"item": "a", "price": 2}]
    assert second["sold"] == second["sold_seen"] == []


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ("ValueError: no number", "ValueError: no number"),
        ("ValueError: kaputt\nline two\n  and three", "ValueError: kaputt line two and three"),
        ("KeyError", "KeyError"),
    ],
    ids=["one line", "several lines", "no message"],
)
def test_the_reason_of_a_function_is_all_that_it_raised(raised: str, reason: str) -> None:
    """A message of several lines begins with its kind and its first line, which say most."""
    trace = 'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n    run()\n    ~~~^^\n  File "shop.py", line 7, in price\n    x()\n'

    assert reason_of(Exception(f"An exception was thrown from the Python worker.\n{trace}{raised}\n\n\tat org.apache.spark.Task.run(Task.scala:1)")) == reason
