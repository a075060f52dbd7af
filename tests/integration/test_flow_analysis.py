"""Analysis of flows by Spark's analyzer: what each step gives, and errors that point at the user's line, before any row moves."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from righttime.changes.schema import declare_table
from righttime.errors.flows import BadDeclaration
from righttime.pipeline.analysis import Analysed, analyse
from righttime.pipeline.flow import Flow, Step
from righttime.pipeline.spark import SparkOwner

STREAMS = {
    "line": declare_table("line", "line_id INT, purc_id INT, item_id STRING, qty INT, price DECIMAL(8,2), tags MAP<STRING, STRING>", keys=["line_id"]),
    "item": declare_table("item", "item_id STRING, sk BIGINT, name STRING", keys=["item_id"]),
    "loose": declare_table("loose", "item_id STRING, sk BIGINT, name STRING"),
}
TABLES = {
    "t": declare_table("t", "item_id STRING, n BIGINT", keys=["item_id"]),
    "wide": declare_table("wide", "item_id STRING, n BIGINT, must INT NOT NULL, may INT", keys=["item_id"]),
}


@pytest.fixture(scope="module")
def child(spark_owner: SparkOwner) -> Iterator[SparkSession]:
    """One child session for the module."""
    yield spark_owner.child()


def analysed(flow: Flow, child: SparkSession) -> Analysed:
    """Analyse a flow over the streams and tables above."""
    return analyse(flow, STREAMS, TABLES, child)


def counted(step: Step) -> Step:
    """Keep a count of rows by item in table t."""
    return step.aggregate(by="item_id", n="count(*)").into("t", keys=["item_id"])


def derived(value: str) -> Callable[[Flow], Step]:
    """Return what counts items by way of a column that has this value."""
    return lambda flow: counted(flow.stream("item").derive(x=value).where("x IS NULL"))


def test_each_step_has_the_columns_that_spark_gives_it(child: SparkSession) -> None:
    """Types are Spark's own; nobody has to declare them."""
    flow = Flow("f")
    lines = flow.stream("line").derive(amount="qty * price", qty="cast(qty AS BIGINT)").where("QTY > 0")
    sold = lines.lookup(flow.stream("item"), on="item_id", take={"item_sk": "sk"})
    counted(sold.aggregate(by=["item_id"], amount="sum(amount)", most="max(qty)", mean="avg(qty)", n="count(distinct item_sk)").select("item_id"))

    found = analysed(flow, child)

    described = {name: schema.simpleString() for name, schema in found.schemas.items()}
    plain = "line_id:int,purc_id:int,item_id:string,qty:bigint,price:decimal(8,2),tags:map<string,string>"
    assert described["02_derive"] == described["03_where"] == f"struct<{plain},amount:decimal(19,2)>"
    assert described["05_lookup"] == f"struct<{plain},amount:decimal(19,2),item_sk:bigint>"
    assert described["06_aggregate"] == "struct<item_id:string,amount:decimal(29,2),most:bigint,mean:double,n:bigint>"


def test_only_used_columns_are_carried(child: SparkSession) -> None:
    """What nobody reads is neither computed nor kept as state."""
    flow = Flow("f")
    lines = flow.stream("line").derive(amount="qty * price", more="qty + 1").lookup(flow.stream("item"), on="item_id", take=["sk", "name"])
    lines.aggregate(by="item_id", n="sum(sk)").into("t", keys=["item_id"])

    found = analysed(flow, child)

    assert found.used["01_stream"] == found.used["02_derive"] == {"item_id"}
    assert found.used["03_stream"] == {"item_id", "sk"}
    assert found.used["04_lookup"] == {"item_id", "sk"}


def test_dead_letters_have_the_whole_row(child: SparkSession) -> None:
    """A row without counterpart can be read and replayed."""
    flow = Flow("f")
    counted(flow.stream("line").select("line_id", "item_id", "qty").lookup(flow.stream("item"), on="item_id", take=["sk"], missing="dead_letter"))

    assert analysed(flow, child).used["02_select"] == {"line_id", "item_id", "qty"}


def test_system_columns_travel_only_where_they_are_needed(child: SparkSession) -> None:
    """The commit time of a fact reaches its as_of, through look-ups; that of a version its history."""
    flow = Flow("f")
    items = flow.stream("item").where("sk > 0").history(keys=["item_id"], key="item_sk")
    lines = flow.stream("line").lookup(flow.stream("item"), on="item_id", take=["name"])
    counted(lines.as_of(items, on="item_id", take=["item_sk"]))

    found = analysed(flow, child)

    assert found.carried == {
        "01_stream": ("_since",),
        "02_stream": ("_since", "_ordinal", "_commit_timestamp"),
        "03_lookup": ("_since",),
        "04_where": ("_since", "_ordinal", "_commit_timestamp"),
        "05_history": (),
        "06_as_of": (),
        "07_aggregate": (),
    }


@pytest.mark.parametrize(
    ("step", "keys"),
    [
        (lambda flow: flow.stream("item"), "item_id"),
        (lambda flow: flow.stream("item").where("sk > 0").expect("x", "sk > 1"), "item_id"),
        (lambda flow: flow.stream("item").select("sk", id="item_id"), "id"),
        (lambda flow: flow.stream("loose").aggregate(by="item_id", sk="max(sk)"), "item_id"),
        (lambda flow: flow.stream("loose").select("item_id").distinct(), "item_id"),
        (lambda flow: flow.stream("line").lookup(flow.stream("item"), on="item_id", take=["sk"]), "line_id"),
        (lambda flow: flow.stream("line").join(flow.stream("item"), on="item_id"), "line_id"),
        (lambda flow: flow.stream("item").history(keys=["item_id"], key="version"), "version"),
    ],
)
def test_what_is_unique_can_be_looked_up(child: SparkSession, step: Callable[[Flow], Step], keys: str) -> None:
    """Streams by their keys, aggregates by their groups, distinct rows, and what keeps rows apart."""
    flow = Flow("f")
    right = step(flow)
    left = flow.stream("line").select("line_id", "item_id", id="item_id", version="cast(purc_id AS BIGINT)")
    counted(left.select("item_id", taken=f"`{keys}`").lookup(right, on={"taken": keys}, take={"found": keys}))

    analysed(flow, child)


WRONG: dict[str, tuple[str, Callable[[Flow], Any]]] = {
    "unknown stream": ("flow.unknown", lambda flow: counted(flow.stream("lines"))),
    "unknown column in a condition": ("flow.unknown", lambda flow: counted(flow.stream("line").where("quantity > 0"))),
    "unknown column selected": ("flow.unknown", lambda flow: counted(flow.stream("line").select("item"))),
    "unknown column in on": ("flow.unknown", lambda flow: counted(flow.stream("line").join(flow.stream("item"), on="sku"))),
    "unknown column taken": ("flow.unknown", lambda flow: counted(flow.stream("line").lookup(flow.stream("item"), on="item_id", take=["skk"]))),
    "unknown column grouped by": ("flow.unknown", lambda flow: flow.stream("line").aggregate(by="item", n="count(*)").into("t", keys=["item_id"])),
    "unknown column in a measure": ("flow.unknown", lambda flow: flow.stream("line").aggregate(by="item_id", n="sum(q)").into("t", keys=["item_id"])),
    "column the table has not": ("flow.columns_fixed", lambda flow: flow.stream("item").into("t", keys=["item_id"])),
    "key the step has not": ("flow.unknown", lambda flow: flow.stream("item").select("sk").into("t", keys=["item_id"])),
    "system column": ("flow.unknown", lambda flow: counted(flow.stream("line").where("_since > 0"))),
    "no condition": ("flow.type", lambda flow: counted(flow.stream("line").where("qty + 1"))),
    "keys of other types": ("flow.type", lambda flow: counted(flow.stream("line").join(flow.stream("item"), on={"purc_id": "item_id"}))),
    "sum of text": ("flow.type", lambda flow: flow.stream("line").aggregate(by="item_id", n="sum(item_id)").into("t", keys=["item_id"])),
    **{
        f"{kind} between steps": ("flow.type", derived(value))
        for kind, value in {
            "nothing": "NULL",
            "a list of nothing": "array()",
            "days": "make_dt_interval(1)",
            "months": "named_struct('of', make_ym_interval(1))",
            "both": "make_interval(1)",
            "time of day": "map(1, TIME '12:00:00')",
            "variant": "parse_json(name)",
        }.items()
    },
    "variant in a measure": ("flow.type", lambda flow: flow.stream("item").aggregate(by="item_id", n="count(parse_json(name))").into("t", keys=["item_id"])),
    "map as key": ("flow.type", lambda flow: counted(flow.stream("line").distinct())),
    "too wide for the table": ("flow.columns_fixed", lambda flow: flow.stream("line").aggregate(by="item_id", n="sum(price)").into("t", keys=["item_id"])),
    "additive text": ("flow.type", lambda flow: flow.stream("item").select("item_id", n="name").into("t", keys=["item_id"], additive=["n"])),
    "parts of other types": (
        "flow.type",
        lambda flow: counted(flow.stream("item").select("item_id", "sk").union(flow.stream("line").select("item_id", sk="qty"))),
    ),
    "parts with as many other columns": (
        "flow.declaration",
        lambda flow: counted(flow.stream("item").select("item_id", "sk").union(flow.stream("line").select("item_id", "qty"))),
    ),
    "parts with other columns": ("flow.declaration", lambda flow: counted(flow.stream("item").union(flow.stream("line")))),
    "name twice in a join": ("flow.name_twice", lambda flow: counted(flow.stream("item").join(flow.stream("loose"), on="item_id"))),
    "name twice in a look-up": (
        "flow.name_twice",
        lambda flow: counted(flow.stream("line").lookup(flow.stream("item"), on="item_id", take={"QTY": "sk"})),
    ),
    "syntax": ("flow.expression", lambda flow: counted(flow.stream("line").where("qty >"))),
    "unknown function": ("flow.expression", lambda flow: counted(flow.stream("line").where("positive_only(qty)"))),
    "dice": ("flow.expression", lambda flow: counted(flow.stream("line").where("rand() > 0.5"))),
    "time of the run": ("flow.expression", lambda flow: counted(flow.stream("line").derive(at="current_timestamp()").where("at IS NOT NULL"))),
    "text that is the time of the run": ("flow.expression", lambda flow: counted(flow.stream("line").where("TIMESTAMP 'now' > TIMESTAMP '2020-01-01'"))),
    "cast to the day of the run": ("flow.expression", lambda flow: counted(flow.stream("line").where("CAST( ' Today' AS date) > DATE '2020-01-01'"))),
    "cast to the time of the run": ("flow.expression", lambda flow: counted(flow.stream("line").where("'tomorrow UTC' :: timestamp IS NOT NULL"))),
    "text compared with times": ("flow.expression", lambda flow: counted(flow.stream("line").where("TIMESTAMP '2020-01-01' < ' NOW'"))),
    "day of the run by a function": ("flow.expression", lambda flow: counted(flow.stream("line").where("to_date('today') > DATE '2020-01-01'"))),
    "time of the run by a type's name": ("flow.expression", lambda flow: counted(flow.stream("line").derive(at="timestamp('now')").where("at IS NULL"))),
    "time of the run if it is one": ("flow.expression", lambda flow: counted(flow.stream("line").where("try_cast('yesterday' AS timestamp) IS NULL"))),
    "name behind a condition": ("flow.expression", lambda flow: counted(flow.stream("line").where("qty > 0 AS some"))),
    "name behind an expression": ("flow.expression", lambda flow: counted(flow.stream("line").derive(n="qty + 1 n").where("n > 0"))),
    "name in a measure": ("flow.expression", lambda flow: flow.stream("line").aggregate(by="item_id", n="sum(qty AS n)").into("t", keys=["item_id"])),
    "all columns": ("flow.expression", lambda flow: counted(flow.stream("item").derive(all="to_json(struct(*))").where("all > ''"))),
    "all columns in a condition": ("flow.expression", lambda flow: counted(flow.stream("item").where("sk * 2 > hash(*)"))),
    "all columns in a measure": ("flow.expression", lambda flow: flow.stream("item").aggregate(by="item_id", n="sum(xxhash64(*))").into("t", keys=["item_id"])),
    "aggregate in a condition": ("flow.expression", lambda flow: counted(flow.stream("line").derive(all="sum(qty)"))),
    "window": ("flow.expression", lambda flow: counted(flow.stream("line").derive(n="row_number() OVER (ORDER BY qty)"))),
    "subquery": ("flow.expression", lambda flow: counted(flow.stream("line").where("qty > (SELECT 1)"))),
    "several rows": ("flow.expression", lambda flow: counted(flow.stream("line").derive(one="explode(array(1, 2))"))),
    "collation of a group": ("flow.expression", lambda flow: counted(flow.stream("line").derive(item_id="item_id COLLATE UTF8_LCASE"))),
    "collation of a join": (
        "flow.expression",
        lambda flow: counted(flow.stream("item").select("item_id", c="name COLLATE UNICODE").join(flow.stream("loose").select(c="name"), on="c")),
    ),
    "collation of a look-up": (
        "flow.expression",
        lambda flow: counted(flow.stream("line").lookup(flow.stream("item").select("sk", item_id="item_id COLLATE UTF8_LCASE"), on="item_id", take=["sk"])),
    ),
    "collation of different rows": ("flow.expression", lambda flow: counted(flow.stream("item").select(item_id="item_id COLLATE UTF8_LCASE").distinct())),
    "collation of a target's key": (
        "flow.expression",
        lambda flow: flow.stream("item").select(n="sk", item_id="item_id COLLATE UTF8_LCASE").into("t", keys=["item_id"]),
    ),
    "collation of a row that is kept": (
        "flow.expression",
        lambda flow: counted(flow.stream("line").derive(c="array(item_id COLLATE UTF8_LCASE)").join(flow.stream("item"), on="item_id")),
    ),
    "collation in a measure": (
        "flow.expression",
        lambda flow: flow.stream("item").aggregate(by="item_id", n="count(distinct name COLLATE UTF8_LCASE)").into("t", keys=["item_id"]),
    ),
    "aggregate in a measure": ("flow.expression", lambda flow: flow.stream("line").aggregate(by="item_id", n="sum(sum(qty))").into("t", keys=["item_id"])),
    "right side not unique": ("flow.not_unique", lambda flow: counted(flow.stream("line").lookup(flow.stream("loose"), on="item_id", take=["sk"]))),
    "right side not unique by these": (
        "flow.not_unique",
        lambda flow: counted(flow.stream("item").select("item_id", line="sk").lookup(flow.stream("line"), on={"item_id": "item_id"}, take=["qty"])),
    ),
    "key replaced by another case": (
        "flow.not_unique",
        lambda flow: counted(
            flow.stream("line").lookup(flow.stream("item").derive(ITEM_ID="upper(item_id)").select("item_id", "sk"), on="item_id", take=["sk"])
        ),
    ),
    "history without keys": ("flow.not_unique", lambda flow: counted(flow.stream("loose").history(keys=["item_id"], key="k"))),
    "history of a join": (
        "flow.declaration",
        lambda flow: counted(flow.stream("line").join(flow.stream("item"), on="item_id").history(keys=["line_id"], key="k")),
    ),
    "as_of without history": ("flow.declaration", lambda flow: counted(flow.stream("line").as_of(flow.stream("item"), on="item_id", take=["sk"]))),
    "as_of of an aggregate": (
        "flow.declaration",
        lambda flow: counted(
            flow.stream("line").aggregate(by="item_id", m="count(*)").as_of(flow.stream("item").history(keys=["item_id"], key="k"), on="item_id", take=["k"])
        ),
    ),
    "columns of a function": ("flow.declaration", lambda flow: counted(flow.stream("line").apply(lambda table: table, "item_id TEXT("))),
    "other keys than the table": ("flow.columns_fixed", lambda flow: flow.stream("item").select("item_id", n="sk").into("t", keys=["n"])),
    "neither key nor additive": (
        "flow.declaration",
        lambda flow: flow.stream("item").select("item_id", n="sk", may="1").into("wide", keys=["item_id"], additive=["n"]),
    ),
    "column that must be there": ("flow.columns_fixed", lambda flow: flow.stream("item").select("item_id", n="sk").into("wide", keys=["item_id"])),
    "cycle": ("flow.cycle", lambda flow: counted(flow.stream("t"))),
}


@pytest.mark.parametrize(("code", "declare"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_told_with_its_line(child: SparkSession, code: str, declare: Callable[[Flow], Any]) -> None:
    """The error has a code and begins with the file and line of the declaration that is wrong."""
    flow = Flow("f")
    declare(flow)

    with pytest.raises(BadDeclaration) as caught:
        analysed(flow, child)

    assert caught.value.code == code, caught.value
    first = declare.__code__.co_firstlineno
    lines = {line for _, _, line in declare.__code__.co_lines() if line is not None}
    assert caught.value.context["origin"].file == __file__
    assert caught.value.context["origin"].line in lines | {first, counted.__code__.co_firstlineno + 2}
    assert str(caught.value).startswith(f"{__file__}:")


def test_an_unknown_column_is_named_with_those_that_are_known(child: SparkSession) -> None:
    """A typing error is corrected at a glance."""
    flow = Flow("f")
    counted(flow.stream("item").where("skk > 0"))

    with pytest.raises(BadDeclaration, match=r"there is no column 'skk'; known: item_id, sk, name\. Correct the name in flow 'f'; no row was moved\."):
        analysed(flow, child)


def test_a_target_that_exists_says_that_its_columns_stay(child: SparkSession) -> None:
    """Who renames a measure is told that no refresh will do it, and what will."""
    flow = Flow("f")
    flow.stream("line").aggregate(by="item_id", lines="count(*)").into("t", keys=["item_id"])

    with pytest.raises(BadDeclaration) as caught:
        analysed(flow, child)

    assert str(caught.value).endswith(
        ": table 't' exists, and has no column 'lines'. Its columns are fixed, and a refresh does not change them: "
        "keep to them (item_id STRING, n BIGINT; keys item_id), or name another table in into() in flow 'f'; no row was moved."
    )


@pytest.mark.parametrize("of", ["SELECT sk FROM nowhere", "SELECT 1"])
def test_a_subquery_is_told_as_one(child: SparkSession, of: str) -> None:
    """Also one over tables, which Spark would look for, and not find: nothing can be named in it."""
    flow = Flow("f")
    counted(flow.stream("item").where(f"sk IN ({of})"))

    with pytest.raises(BadDeclaration, match=r"cannot be used: it has a subquery; use lookup\(\) or join\(\)\. Correct it in flow 'f'"):
        analysed(flow, child)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("TINYINT", "BIGINT"),
        ("INT", "BIGINT"),
        ("BIGINT", "BIGINT"),
        ("FLOAT", "DOUBLE"),
        ("DOUBLE", "DOUBLE"),
        ("DECIMAL(8,2)", "DECIMAL(18,2)"),
        ("DECIMAL(33,3)", "DECIMAL(38,3)"),
    ],
)
def test_totals_in_a_new_table_have_the_type_of_a_sum(child: SparkSession, given: str, kept: str) -> None:
    """Its columns stay as they are made, so they are made for totals; a table that is there may have the type of the step."""

    def declared() -> Flow:
        flow = Flow("f")
        flow.stream("line").select(item_id="coalesce(item_id, '')", total=f"CAST(qty AS {given})").into("sums", keys="item_id", additive=["total"])
        return flow

    assert analysed(declared(), child).new_tables["sums"].ddl() == f"`item_id` STRING NOT NULL, `total` {kept}"
    for there in (given, kept):
        table = declare_table("sums", f"item_id STRING, total {there}", keys=["item_id"])
        assert analyse(declared(), STREAMS, {"sums": table}, child).new_tables == {}


def test_structs_are_compared_by_their_fields(child: SparkSession) -> None:
    """They can be keys and arguments of measures, unless a field cannot be compared."""
    flow = Flow("f")
    counted(flow.stream("item").derive(both="struct(sk, name)").aggregate(by=["item_id", "both"], most="max(both)"))
    assert analysed(flow, child).schemas["03_aggregate"]["most"].dataType.simpleString() == "struct<sk:bigint,name:string>"

    wrong = Flow("f")
    counted(wrong.stream("line").select("item_id", both="struct(qty, tags)").distinct())
    with pytest.raises(BadDeclaration) as caught:
        analysed(wrong, child)
    assert caught.value.code == "flow.type"


def test_a_condition_may_compare_by_a_collation(child: SparkSession) -> None:
    """Only what is kept has none: a drain would not find again what an earlier one has kept by it."""
    flow = Flow("f")
    counted(flow.stream("item").where("name COLLATE UTF8_LCASE = 'tea'").derive(is_tea="name COLLATE UTF8_LCASE = 'tea'"))

    assert analysed(flow, child).schemas["03_derive"]["is_tea"].dataType.simpleString() == "boolean"


def test_a_column_that_may_be_null_may_be_left_out(child: SparkSession) -> None:
    """It is null in every row."""
    flow = Flow("f")
    flow.stream("item").select("item_id", n="sk", must="1").into("wide", keys=["item_id"])

    assert analysed(flow, child).tables["wide"].names == ["item_id", "n", "must", "may"]
