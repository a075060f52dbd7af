"""What a row means does not depend on the drain it comes in: names, types, values, and what a table cannot hold."""

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from righttime.errors.flows import ColumnsFixed
from righttime.flows.letters import LetterBook
from righttime.pipeline.flow import Flow, Step
from righttime.pipeline.operators.query import Reach
from righttime.pipeline.spark import SparkOwner
from righttime.pipeline.states import StateStore
from tests.support.flows import Bench, MemoryStates, Row, dead_letters
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


# -- types -----------------------------------------------------------------------------------------------------------


def test_a_table_has_the_values_that_spark_would_store(child: SparkSession) -> None:
    """Where its column is wider than what the step gives: as a CAST of Spark SQL makes them."""
    day, moment = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    cases: list[tuple[str, Any, str, str, Any]] = [
        ("DOUBLE", 1e20, "{}", "STRING", "1.0E20"),
        ("DOUBLE", 0.5, "{}", "STRING", "0.5"),
        ("BOOLEAN", True, "{}", "STRING", "true"),
        ("TIMESTAMP", moment, "{}", "STRING", "2026-01-02 03:04:05"),
        ("DATE", day, "{}", "TIMESTAMP", dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
        ("BIGINT", 2**53 + 1, "{}", "DOUBLE", 2.0**53),
        ("INT", 7, "named_struct('a', {}, 'b', 1.5D)", "STRUCT<a: BIGINT, b: STRING>", {"a": 7, "b": "1.5"}),
        ("INT", 7, "array({})", "ARRAY<STRING>", ["7"]),
    ]
    numbers = range(len(cases))
    flow = Flow("types")
    flow.stream("s").select("id", **{f"x{number}": cases[number][2].format(f"v{number}") for number in numbers}).into("t", keys="id")
    given = ", ".join(f"v{number} {cases[number][0]}" for number in numbers)
    kinds = ", ".join(f"x{number} {cases[number][3]}" for number in numbers)
    bench = Bench(flow, child, streams={"s": (f"id INT, {given}", ["id"])}, tables={"t": (f"id INT, {kinds}", ["id"])})
    bench.put("s", 1, {"id": 1, **{f"v{number}": cases[number][1] for number in numbers}})

    (row,) = bench.drain(1)[0]["t"]

    for number in numbers:
        assert row[f"x{number}"] == cases[number][4], cases[number]


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("v", "TIMESTAMP"),
        ("timestamp_micros(v)", "BIGINT"),
        ("named_struct('a', v, 'b', v)", "STRUCT<c: BIGINT, d: BIGINT>"),
        ("named_struct('a', v, 'b', v)", "STRUCT<b: BIGINT, a: BIGINT>"),
        ("array(named_struct('a', v))", "ARRAY<STRUCT<c: BIGINT>>"),
        ("array(v)", "ARRAY<TIMESTAMP>"),
        ("CAST(CAST(v AS STRING) AS BINARY)", "STRING"),
    ],
)
def test_what_would_mean_something_else_in_its_table_is_refused(child: SparkSession, expression: str, kind: str) -> None:
    """A number is no time, bytes are no text, and a field is known by its name: the declaration says what is meant."""
    flow = Flow("types")
    flow.stream("s").select("id", x=expression).into("t", keys="id")
    with pytest.raises(ColumnsFixed, match="its column 'x' is"):
        Bench(flow, child, streams={"s": ("id INT, v BIGINT", ["id"])}, tables={"t": (f"id INT, x {kind}", ["id"])})


def test_a_key_is_refused_where_two_could_become_one(child: SparkSession) -> None:
    """Of large whole numbers several are one DOUBLE."""
    flow = Flow("types")
    flow.stream("s").select("v").into("t", keys="v")
    with pytest.raises(ColumnsFixed, match="its column 'v' is double"):
        Bench(flow, child, streams={"s": ("v BIGINT", ["v"])}, tables={"t": ("v DOUBLE", ["v"])})


def test_totals_are_stored_as_spark_would(child: SparkSession) -> None:
    """Of additive columns, too: a total that no DOUBLE is equal to is the nearest one."""
    flow = Flow("types")
    flow.stream("s").select("k", "v").into("t", keys="k", additive="v")
    bench = Bench(flow, child, streams={"s": ("id INT, k INT, v BIGINT", ["id"])}, tables={"t": ("k INT, v DOUBLE", ["k"])})
    bench.put("s", 1, {"id": 1, "k": 1, "v": 2**53}, {"id": 2, "k": 1, "v": 1})

    assert bench.drain(1)[0]["t"] == [{"k": 1, "v": 2.0**53}]


# -- letters ---------------------------------------------------------------------------------------------------------


def left(bench: Bench) -> dict[str, int]:
    """Return how often each row is a dead letter after all drains."""
    times: Counter[str] = Counter()
    for letter in dead_letters(bench.results):
        times[letter["row"]] += letter["weight"]
    return {row: number for row, number in times.items() if number}


@pytest.mark.parametrize("missing", ["null", "drop", "dead_letter"])
def test_a_letter_behind_look_ups_in_a_row_ends_when_a_right_side_mends_it(child: SparkSession, missing: Any) -> None:
    """The row is made again from what the first look-up has kept, and is the row that failed, with the same columns."""
    flow = Flow("row")
    rows = flow.stream("fact").lookup(flow.stream("d1"), on="k", take={"a": "w"}, missing=missing)
    rows = rows.lookup(flow.stream("d2"), on="j", take={"b": "w"}, missing=missing)
    rows.derive(c="v / b").select("id", "a", "c").into("t", keys="id")
    streams = {"fact": ("id INT, k INT, j INT, v INT", ["id"]), "d1": ("k INT, w INT", ["k"]), "d2": ("j INT, w INT", ["j"])}
    bench = Bench(flow, child, streams=streams, tables={"t": ("id INT, a INT, c DOUBLE", ["id"])})
    bench.put("d1", 1, {"k": 1, "w": 5})
    bench.put("d2", 1, {"j": 1, "w": 0})
    bench.drain(1)
    bench.put("fact", 2, {"id": 1, "k": 1, "j": 1, "v": 6})
    bench.drain(2)
    assert list(left(bench).values()) == [1]
    bench.put("d2", 3, {"j": 1, "w": 2})

    assert bench.drain(3)[0]["t"] == [{"id": 1, "a": 5, "c": 3.0}]
    assert left(bench) == {}


# -- values ----------------------------------------------------------------------------------------------------------


def test_a_row_goes_from_a_look_up_as_it_came(child: SparkSession) -> None:
    """Whether its right side was ever changed or not, and whichever way it takes: a zero has no sign behind a look-up."""
    flow = Flow("zero")
    rows = flow.stream("fact").lookup(flow.stream("dim"), on="k", take=["w"])
    rows.derive(t="to_json(struct(a, b, c, d))").aggregate(by="t", n="count(*)").into("c", keys="t")
    zeros = {"a": -0.0, "b": -0.0, "c": {"x": -0.0}, "d": [-0.0]}
    columns = "id INT, k INT, a DOUBLE, b FLOAT, c STRUCT<x: DOUBLE>, d ARRAY<DOUBLE>"
    bench = Bench(flow, child, streams={"fact": (columns, ["id"]), "dim": ("k INT, w INT", ["k"])}, tables={"c": ("t STRING, n BIGINT", ["t"])})
    bench.put("dim", 1, {"k": 1, "w": 1})
    bench.drain(1)
    bench.put("fact", 2, {"id": 1, "k": 1, **zeros})
    came = bench.drain(2)[0]["c"]
    bench.put("dim", 3, {"k": 1, "w": 2})
    assert bench.drain(3)[0]["c"] == came
    bench.take("fact", 4, {"id": 1})

    assert [row["t"] for row in came] == ['{"a":0.0,"b":0.0,"c":{"x":0.0},"d":[0.0]}']
    assert bench.drain(4)[0]["c"] == []


# -- what a table cannot hold ----------------------------------------------------------------------------------------


def kept_letters(bench: Bench) -> list[list[Row]]:
    """Return the letters after each drain, as the flow keeps them."""
    book = LetterBook("f", {"into_t": ["id"]}, letters_max=9)
    found = []
    for result in bench.results:
        book.take(result.dead_letters, result.targets, {})
        found.append([{"reason": letter.reason, "row": letter.row} for letter in book._letters.values()])
    return found


def of_stream(flow: Flow) -> Step:
    return flow.stream("s").select("id", x="v")


def test_a_text_that_is_too_long_for_its_column_is_a_dead_letter(child: SparkSession) -> None:
    """The flow goes on, the row before it ends, and the letter ends when a text comes that fits."""
    flow = Flow("f")
    of_stream(flow).into("t", keys="id")
    bench = Bench(flow, child, streams={"s": ("id INT, v STRING", ["id"])}, tables={"t": ("id INT, x VARCHAR(3)", ["id"])})
    bench.put("s", 1, {"id": 1, "v": "abc"}, {"id": 2, "v": "äöü"})
    bench.put("s", 2, {"id": 1, "v": "abcd"})
    bench.put("s", 3, {"id": 1, "v": "ab"})

    shown = [[row["x"] for row in bench.drain(horizon)[0]["t"]] for horizon in (1, 2, 3)]

    assert shown == [["abc", "äöü"], ["äöü"], ["ab", "äöü"]]
    reason = "table 't', column 'x': a text of 4 characters does not fit at most 3"
    assert kept_letters(bench) == [[], [{"reason": reason, "row": '{"id": 1, "x": "abcd"}'}], []]


def test_a_key_that_is_too_long_is_a_dead_letter_that_ends_nothing(child: SparkSession) -> None:
    """It was never in the table, so nothing is taken away when it goes."""
    flow = Flow("f")
    flow.stream("s").select(id="v", x="id").into("t", keys="id")
    bench = Bench(flow, child, streams={"s": ("id INT, v STRING", ["id"])}, tables={"t": ("id VARCHAR(2), x INT", ["id"])})
    bench.put("s", 1, {"id": 1, "v": "abc"}, {"id": 2, "v": "ab"})
    bench.take("s", 2, {"id": 1})

    assert [bench.drain(horizon)[0]["t"] for horizon in (1, 2)] == [[{"id": "ab", "x": 2}]] * 2
    assert [len(letters) for letters in kept_letters(bench)] == [1, 0]


# -- state -----------------------------------------------------------------------------------------------------------


def test_state_of_a_step_that_a_history_reads_too_comes_to_nothing(child: SparkSession) -> None:
    """What only the history needs, above all the time of a change, is no part of what others keep: a row that went would never cancel out."""
    flow = Flow("both")
    items, others = flow.stream("item"), flow.stream("other")
    items.history(keys="item", key="sk", start="since", end="until").into("dim", keys="sk")
    items.lookup(others, on="item", take="name").into("t", keys="item")
    items.join(others, on="item").into("u", keys="item")
    flow.stream("other").lookup(items, on="item", take="price").into("v", keys="item")
    wide = ("item INT, price INT, name STRING", ["item"])
    bench = Bench(
        flow,
        child,
        streams={"item": ("item INT, price INT", ["item"]), "other": ("item INT, name STRING", ["item"])},
        tables={
            "dim": ("item INT, price INT, sk BIGINT, since TIMESTAMP, until TIMESTAMP", ["sk"]),
            "t": wide,
            "u": wide,
            "v": ("item INT, name STRING, price INT", ["item"]),
        },
    )
    bench.put("item", 1, {"item": 1, "price": 1})
    bench.put("item", 2, {"item": 1, "price": 2})
    bench.take("item", 3, {"item": 1})
    for horizon in (1, 2, 3):
        bench.drain(horizon)

    assert isinstance(bench.states, MemoryStates)
    parts = {name: pa.concat_tables(tables) for name, tables in bench.states.parts.items() if name[1] in ("left", "right")}
    assert len(parts) == 3
    for name, table in parts.items():
        rows = [column for column in table.column_names if column not in ("_job", "_w")]
        assert not [column for column in rows if column.startswith("_")], name
        assert set(table.group_by(rows).aggregate([("_w", "sum")])["_w_sum"].to_pylist()) == {0}


def test_a_null_struct_is_kept_and_sifted_as_one(child: SparkSession, tmp_path: Path) -> None:
    """Though its fields cannot be null: neither in state, nor beside rows that fail."""
    flow = Flow("structs")
    flow.stream("s").derive(x="if(a = 0, NULL, named_struct('a', a))").where("8 / b > 0").select("id", "x", "b").distinct().select(
        "id", n="x.a", none="x IS NULL"
    ).into("t", keys=["id"])
    columns = "id INT NOT NULL, a INT NOT NULL, b INT NOT NULL"
    bench = Bench(flow, child, streams={"s": (columns, ["id"])}, tables={"t": ("id INT, n INT, none BOOLEAN", ["id"])})
    bench.states = StateStore(tmp_path, bench.analysed.fingerprint)
    bench.put("s", 1, {"id": 1, "a": 0, "b": 1}, {"id": 2, "a": 7, "b": 1})
    bench.put("s", 2, {"id": 1, "a": 0, "b": 2}, {"id": 2, "a": 7, "b": 0}, {"id": 3, "a": 0, "b": 1})

    found = [bench.drain(1), bench.drain(2)]

    nothing, seven = {"n": None, "none": True}, {"n": 7, "none": False}
    assert [rows[0]["t"] for rows in found] == [
        [{"id": 1, **nothing}, {"id": 2, **seven}],
        [{"id": 1, **nothing}, {"id": 3, **nothing}],
    ]
