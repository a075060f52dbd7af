"""Drains on Spark: the worked examples of the sheet, job by job and fused, and rows that fail."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from righttime.errors.flows import ExpectationFailed, KeyTwice, LookupFailed, StepFailed, TooManyDeadLetters, TotalTooLarge
from righttime.flows.letters import LetterBook
from righttime.pipeline.flow import Flow
from righttime.pipeline.spans import Spans
from righttime.pipeline.spark import SparkOwner, set_up
from tests.support.flows import Bench, MemoryStates, Row, dead_letters
from tests.support.quick_java import COMPILED
from tests.support.signed_histories import session


@pytest.fixture(scope="module")
def child(spark_owner: SparkOwner) -> Iterator[SparkSession]:
    """One session for the module; plans are interpreted, because a small drain is over before compiling it pays."""
    yield session(spark_owner.child())


@pytest.fixture(scope="module")
def compiled(spark_owner: SparkOwner) -> Iterator[SparkSession]:
    """A session as drains have it, for the whole flow and for which rows fail: compiled code decides for itself which expressions it computes."""
    yield set_up(spark_owner.child(), COMPILED)


def drained(bench: Bench, horizons: Sequence[int], *, fused: bool) -> list[dict[str, list[Row]]]:
    """Run jobs with these horizons in one drain or one after the other."""
    return bench.drain(*horizons) if fused else [snapshot for horizon in horizons for snapshot in bench.drain(horizon)]


both_ways = pytest.mark.parametrize("fused", [False, True], ids=["job by job", "fused"])


@both_ways
def test_at_6_each_job_adds_its_own_sums(child: SparkSession, fused: bool) -> None:
    """SUM by key into an additive target: nothing of job 1 is added again by job 2."""
    flow = Flow("sums")
    flow.stream("s").select("k", "v").into("t", keys=["k"], additive=["v"])
    bench = Bench(flow, child, streams={"s": ("id INT, k STRING, v BIGINT", ["id"])}, tables={"t": ("k STRING, v BIGINT", ["k"])})
    bench.put("s", 1, {"id": 1, "k": "a", "v": 3}, {"id": 2, "k": "b", "v": 1})
    bench.put("s", 2, {"id": 3, "k": "a", "v": 2}, {"id": 4, "k": "c", "v": 5})

    first, second = drained(bench, [1, 2], fused=fused)

    assert first["t"] == [{"k": "a", "v": 3}, {"k": "b", "v": 1}]
    assert second["t"] == [{"k": "a", "v": 5}, {"k": "b", "v": 1}, {"k": "c", "v": 5}]


def customers(child: SparkSession) -> Bench:
    """Customers joined with their companies."""
    flow = Flow("customers")
    flow.stream("customer").join(flow.stream("company"), on="firm").into("located", keys=["id", "country"])
    streams = {"customer": ("id INT, name STRING, firm STRING", ["id"]), "company": ("firm STRING, country STRING", ["firm", "country"])}
    return Bench(flow, child, streams=streams, tables={"located": ("id INT, name STRING, firm STRING, country STRING", ["id", "country"])})


def ids(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Return rows as tuples of their values."""
    return [tuple(row.values()) for row in rows]


@pytest.fixture(scope="module", params=[False, True], ids=["job by job", "fused"])
def located(child: SparkSession, request: pytest.FixtureRequest) -> dict[str, list[list[tuple[Any, ...]]]]:
    """What is located after each of four jobs, by worked example: AT-9 and the four of AT-11, whose firms have nothing to do with each other, go together."""
    bench = customers(child)
    bench.put("customer", 1, {"id": 1, "name": "jim", "firm": "IBM"})
    bench.put("company", 1, {"firm": "IBM", "country": "USA"})
    bench.put("customer", 2, {"id": 2, "name": "anne", "firm": "SAP"})
    bench.put("company", 2, {"firm": "HP", "country": "USA"})
    bench.put("customer", 3, {"id": 3, "name": "jack", "firm": "HP"})
    bench.put("company", 3, {"firm": "SAP", "country": "GER"})
    bench.put("customer", 4, {"id": 4, "name": "peter", "firm": "SAP"})
    for number, (firm, (before, came, went)) in enumerate(AT_11.items(), start=11):
        rows = {name: {"id": number, "name": name, "firm": firm} if name[0] == "r" else {"firm": firm, "country": name} for name in ("r0", "r1", "s0", "s1")}
        streams = {name: "customer" if name[0] == "r" else "company" for name in rows}
        for name in before:
            bench.put(streams[name], 1, rows[name])
        for name in went:
            bench.take(streams[name], 2, rows[name])
        for name in came:
            bench.put(streams[name], 2, rows[name])
    after = [ids(snapshot["located"]) for snapshot in drained(bench, [1, 2, 3, 4], fused=request.param)]
    examples = {"AT-9": {"IBM", "SAP", "HP"}, **{firm: {firm} for firm in AT_11}}
    return {example: [[row for row in rows if row[2] in firms] for rows in after] for example, firms in examples.items()}


# R = customers and S = companies of one firm: what was there before job 2, what comes in it and what goes; r1 takes the place of r0 where that is there.
AT_11: dict[str, tuple[list[str], list[str], list[str]]] = {
    "AT-11a": (["s0"], ["r1"], ["s0"]),
    "AT-11b": (["r0", "s0"], ["r1", "s1"], ["s0"]),
    "AT-11c": (["r0", "s0"], ["r1", "s1"], []),
    "AT-11d": (["r0", "s0"], [], ["r0", "s0"]),
}


def test_at_9_a_join_misses_nothing_and_sees_no_phantom(located: dict[str, list[list[tuple[Any, ...]]]]) -> None:
    """Each job joins with exactly what the jobs before it left."""
    jim, anne, jack, peter = (1, "jim", "IBM", "USA"), (2, "anne", "SAP", "GER"), (3, "jack", "HP", "USA"), (4, "peter", "SAP", "GER")
    assert located["AT-9"] == [[jim], [jim], [jim, anne, jack], [jim, anne, jack, peter]]


def test_at_11a_a_new_row_does_not_meet_one_deleted_in_the_same_job(located: dict[str, list[list[tuple[Any, ...]]]]) -> None:
    """R={}, S={s0}; +r1, -s0 gives nothing."""
    assert located["AT-11a"] == [[]] * 4


def test_at_11b_updates_of_both_sides_leave_one_pair(located: dict[str, list[list[tuple[Any, ...]]]]) -> None:
    """R={r0}, S={s0}; both updated: D(r0,s0), I(r1,s1)."""
    assert located["AT-11b"] == [[(12, "r0", "AT-11b", "s0")], *[[(12, "r1", "AT-11b", "s1")]] * 3]


def test_at_11c_an_update_meets_old_and_new_rows(located: dict[str, list[list[tuple[Any, ...]]]]) -> None:
    """R={r0}, S={s0}; r0 becomes r1, +s1: D(r0,s0), I(r1,s0), I(r1,s1)."""
    assert located["AT-11c"] == [[(13, "r0", "AT-11c", "s0")], *[[(13, "r1", "AT-11c", "s0"), (13, "r1", "AT-11c", "s1")]] * 3]


def test_at_11d_a_pair_that_loses_both_sides_goes_once(located: dict[str, list[list[tuple[Any, ...]]]]) -> None:
    """-r0, -s0 gives one D(r0,s0)."""
    assert located["AT-11d"] == [[(14, "r0", "AT-11d", "s0")], [], [], []]


def item_history(child: SparkSession) -> Bench:
    """The type 2 dimension of AT-14 and its facts."""
    flow = Flow("scd")
    items = flow.stream("item").history(keys=["item_id"], key="item_sk", key_from=100)
    items.into("item_i", keys=["item_sk"])
    flow.stream("plin").as_of(items, on="item_id", take=["item_sk"]).into("sales", keys=["id"])
    return Bench(
        flow,
        child,
        streams={"item": ("item_id STRING, price INT", ["item_id"]), "plin": ("id INT, item_id STRING", ["id"])},
        tables={
            "item_i": ("item_id STRING, price INT, item_sk BIGINT, valid_from TIMESTAMP, valid_to TIMESTAMP", ["item_sk"]),
            "sales": ("id INT, item_id STRING, item_sk BIGINT", ["id"]),
        },
    )


def feed_item_history(bench: Bench) -> None:
    """Feed T1 to T4 of AT-14, after the version that is there from the beginning."""
    bench.put("item", 0, {"item_id": "abc", "price": 9})
    bench.put("item", 2, {"item_id": "abc", "price": 10})
    bench.put("plin", 5, {"id": 1, "item_id": "abc"})
    bench.put("item", 6, {"item_id": "abc", "price": 12})
    bench.put("plin", 8, {"id": 2, "item_id": "abc"})


def versions(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Return versions as (surrogate key, price, start, end), times as microseconds."""
    found = [(row["item_sk"], row["price"], row["valid_from"].microsecond, None if row["valid_to"] is None else row["valid_to"].microsecond) for row in rows]
    return sorted(found)


@pytest.mark.parametrize("horizons", [[[9]], [[0], [9]], [[0, 1, 5, 9]]], ids=["one job", "loaded before", "fused"])
def test_at_14_a_fact_takes_the_version_of_its_own_commit(child: SparkSession, horizons: list[list[int]]) -> None:
    """One job with two versions and two facts: 101 and 102, neither the oldest nor the newest for both."""
    bench = item_history(child)
    feed_item_history(bench)

    for drain in horizons:
        last = bench.drain(*drain)[-1]

    assert versions(last["item_i"]) == [(100, 9, 0, 2), (101, 10, 2, 6), (102, 12, 6, None)]
    assert ids(last["sales"]) == [(1, "abc", 101), (2, "abc", 102)]


@both_ways
def test_a18_an_update_of_other_columns_opens_no_version(child: SparkSession, fused: bool) -> None:
    """Behind select() an image may equal the one before it; and of several changes in one commit the last one counts."""
    flow = Flow("scd")
    flow.stream("item").select("item_id", "price").history(keys=["item_id"], key="item_sk").into("item_i", keys=["item_sk"])
    columns = "item_id STRING, price INT, item_sk BIGINT, valid_from TIMESTAMP, valid_to TIMESTAMP"
    bench = Bench(flow, child, streams={"item": ("item_id STRING, price INT, stock INT", ["item_id"])}, tables={"item_i": (columns, ["item_sk"])})
    for time, price, stock in ((1, 9, 5), (2, 9, 4), (3, 9, 3), (4, 8, 3), (4, 10, 3), (5, 10, 2)):
        bench.put("item", time, {"item_id": "abc", "price": price, "stock": stock})

    after = [versions(snapshot["item_i"]) for snapshot in drained(bench, [1, 3, 5], fused=fused)]

    assert after == [[(1, 9, 1, None)], [(1, 9, 1, None)], [(1, 9, 1, 4), (5, 10, 4, None)]]


def test_a_fact_may_come_before_the_version_of_its_time_is_known(child: SparkSession) -> None:
    """Another source is late: when its version arrives with an earlier time, the fact takes it."""
    bench = item_history(child)
    bench.put("plin", 5, {"id": 1, "item_id": "abc"})
    assert ids(bench.drain(5)[0]["sales"]) == [(1, "abc", None)]
    bench.put("item", 6, {"item_id": "abc", "price": 9})
    bench.streams["item"].changes[-1]["_since"] = 4
    bench.streams["item"].living[("abc",)]["_since"] = 4

    assert ids(bench.drain(6)[0]["sales"]) == [(1, "abc", 100)]


@both_ways
def test_at_25_a_running_average_is_serial(child: SparkSession, fused: bool) -> None:
    """Class b: each job reads what the one before it wrote: 10, 15, 20."""
    flow = Flow("average")
    flow.stream("price").aggregate(mean="avg(price)", one="max(1)").into("running", keys=["one"])
    bench = Bench(flow, child, streams={"price": ("id INT, price INT", ["id"])}, tables={"running": ("one INT, mean DOUBLE", ["one"])})
    for job, price in enumerate([10, 20, 30], start=1):
        bench.put("price", job, {"id": job, "price": price})

    assert [snapshot["running"] for snapshot in drained(bench, [1, 2, 3], fused=fused)] == [[{"one": 1, "mean": mean}] for mean in (10.0, 15.0, 20.0)]


def store_sales(child: SparkSession) -> Bench:
    """The whole flow of AT-28: two streams, two look-ups, join, aggregate, additive target."""
    flow = Flow("store_sales")
    lines = flow.stream("line").derive(amount="qty * price").lookup(flow.stream("item"), on="item_id", take={"item_sk": "sk"}, missing="dead_letter")
    purchases = flow.stream("purchase").lookup(flow.stream("store"), on="store_id", take={"store_sk": "sk"}, missing="dead_letter")
    sold = lines.join(purchases, on="purc_id").aggregate(by=["item_sk", "store_sk"], qty="sum(qty)", amount="sum(amount)")
    sold.into("store_sales", keys=["item_sk", "store_sk"], additive=["qty", "amount"])
    return Bench(
        flow,
        child,
        streams={
            "item": ("item_id STRING, sk INT", ["item_id"]),
            "store": ("store_id STRING, sk INT", ["store_id"]),
            "purchase": ("purc_id INT, store_id STRING", ["purc_id"]),
            "line": ("purc_id INT, item_id STRING, qty INT, price DOUBLE", ["purc_id", "item_id"]),
        },
        tables={"store_sales": ("item_sk INT, store_sk INT, qty BIGINT, amount DOUBLE", ["item_sk", "store_sk"])},
    )


def line(purchase: int, item: str, qty: int, price: float) -> Row:
    """Return a line of a purchase."""
    return {"purc_id": purchase, "item_id": item, "qty": qty, "price": price}


def feed_store_sales(bench: Bench) -> None:
    """Feed m1 to m3 of AT-28."""
    bench.put("item", 0, {"item_id": "i1", "sk": 11}, {"item_id": "i2", "sk": 12})
    bench.put("store", 0, {"store_id": "s1", "sk": 1})
    bench.put("purchase", 1, {"purc_id": 7, "store_id": "s1"})
    bench.put("line", 1, line(7, "i1", 2, 5.0))
    bench.put("purchase", 2, {"purc_id": 8, "store_id": "s1"})
    bench.put("line", 2, line(7, "i2", 1, 3.0), line(8, "i1", 1, 5.0))
    bench.put("line", 3, line(7, "i1", 4, 5.0))
    bench.take("purchase", 3, {"purc_id": 8})


@both_ways
def test_at_28_the_whole_flow(compiled: SparkSession, fused: bool) -> None:
    """Look-ups, join, aggregation and target: the totals of the sheet after each job, and what each job emits for them: the last touches one group only."""
    bench = store_sales(compiled)
    feed_store_sales(bench)

    after = [ids(snapshot["store_sales"]) for snapshot in drained(bench, [0, 1, 2, 3], fused=fused)]

    assert after == [[], [(11, 1, 2, 10.0)], [(11, 1, 3, 15.0), (12, 1, 1, 3.0)], [(11, 1, 4, 20.0), (12, 1, 1, 3.0)]]
    changed = [result.targets.get("store_sales") for result in bench.results]
    lines = [line for some in changed if isinstance(some, pa.Table) for line in some.to_pylist()]
    emitted = sorted((line["_job"] - 1, line["item_sk"], line["store_sk"], line["_op"], line["qty"], line["amount"]) for line in lines)
    m1, m2, m3 = (1, 11, 1, "insert", 2, 10.0), (2, 11, 1, "update", 3, 15.0), (3, 11, 1, "update", 4, 20.0)
    assert emitted == [m1, m2, (2, 12, 1, "insert", 1, 3.0), m3]
    assert dead_letters(bench.results) == []


def test_a_row_without_counterpart_is_a_dead_letter_until_it_comes(child: SparkSession) -> None:
    """Nothing is lost: when the item arrives, the line is counted, and its dead letter is taken back."""
    bench = store_sales(child)
    bench.put("store", 1, {"store_id": "s1", "sk": 1})
    bench.put("purchase", 1, {"purc_id": 7, "store_id": "s1"})
    bench.put("line", 1, line(7, "i1", 2, 5.0))
    bench.put("item", 2, {"item_id": "i1", "sk": 11})

    after = [ids(bench.drain(horizon)[0]["store_sales"]) for horizon in (1, 2)]

    assert after == [[], [(11, 1, 2, 10.0)]]
    first, second = dead_letters(bench.results)
    assert (first["job"], first["weight"], second["job"], second["weight"]) == (1, 1, 2, -1)
    assert first["step"] == "04_lookup" and first["reason"] == "the look-up has no row with this key" and first["origin"].startswith(__file__)
    assert first["row"] == second["row"] == '{"purc_id":7,"item_id":"i1","qty":2,"price":5.0,"amount":10.0}'


def test_streams_without_changes_are_left_out_of_the_plan(child: SparkSession) -> None:
    """A drain of nothing gives nothing and runs nothing."""
    bench = store_sales(child)

    result = bench.run(1, 2)

    assert (result.targets, result.states, result.dead_letters.num_rows) == ({}, {}, 0)


def simple(child: SparkSession, flow: Flow, columns: str = "id INT, a INT, b INT", target: str = "id INT, c DOUBLE") -> Bench:
    """One stream, one table."""
    return Bench(flow, child, streams={"s": (columns, ["id"])}, tables={"t": (target, ["id"])})


def test_rows_that_fail_are_dead_letters_and_the_others_go_on(compiled: SparkSession) -> None:
    """A division by zero takes out its row only, in every job in which it comes or goes."""
    flow = Flow("divide")
    flow.stream("s").derive(c="a / b").select("id", "c").into("t", keys=["id"])
    bench = simple(compiled, flow)
    bench.put("s", 1, *({"id": number, "a": 6, "b": 0 if number == 5 else 2} for number in range(8)))
    bench.put("s", 2, {"id": 5, "a": 6, "b": 3})

    first, second = (bench.drain(horizon)[0]["t"] for horizon in (1, 2))

    assert {row["id"]: row["c"] for row in first} == {number: 3.0 for number in range(8) if number != 5}
    assert {row["id"]: row["c"] for row in second} == {number: 2.0 if number == 5 else 3.0 for number in range(8)}
    letters = dead_letters(bench.results)
    assert [(letter["job"], letter["weight"], letter["row"]) for letter in letters] == [(1, 1, '{"id":5,"a":6,"b":0}'), (2, -1, '{"id":5,"a":6,"b":0}')]
    assert "DIVIDE_BY_ZERO" in letters[0]["reason"] and letters[0]["step"] == "02_derive"


def test_an_expression_that_nobody_uses_cannot_fail(compiled: SparkSession) -> None:
    """Neither in an ordinary drain nor in a careful one, so a row is either in for good or out for good."""
    flow = Flow("divide")
    flow.stream("s").derive(unused="1 / a", c="a / b").select("id", "c").into("t", keys=["id"])
    bench = simple(compiled, flow)
    bench.put("s", 1, {"id": 1, "a": 0, "b": 1})
    bench.put("s", 2, {"id": 2, "a": 1, "b": 0})
    bench.take("s", 2, {"id": 1})

    assert [bench.drain(horizon)[0]["t"] for horizon in (1, 2)] == [[{"id": 1, "c": 0.0}], []]
    assert [letter["row"] for letter in dead_letters(bench.results)] == ['{"id":2,"a":1,"b":0}']


def test_a_measure_that_fails_takes_out_its_row(compiled: SparkSession) -> None:
    """The argument of a measure is an expression like any other."""
    flow = Flow("divide")
    flow.stream("s").aggregate(by="id", c="sum(a / b)").into("t", keys=["id"])
    bench = simple(compiled, flow)
    bench.put("s", 1, {"id": 1, "a": 6, "b": 2}, {"id": 2, "a": 6, "b": 0})

    assert bench.drain(1)[0]["t"] == [{"id": 1, "c": 3.0}]
    assert len(dead_letters(bench.results)) == 1


def test_too_many_dead_letters_fail_the_drain(child: SparkSession) -> None:
    """A flow that is wrong for every row must not pass for one that works."""
    flow = Flow("divide")
    flow.stream("s").select("id", c="a / b").into("t", keys=["id"])
    bench = simple(child, flow)
    bench.put("s", 1, *({"id": number, "a": 6, "b": 0} for number in range(5)))

    with pytest.raises(TooManyDeadLetters) as caught:
        bench.run(1, dead_letters_max=2)

    assert caught.value.code == "flow.dead_letters" and "division by zero" in str(caught.value)
    assert bench.horizons == []


def waiting(child: SparkSession) -> Bench:
    """Rows with the name of their kind, three of which wait for theirs to come."""
    flow = Flow("wait")
    flow.stream("s").lookup(flow.stream("d"), on={"a": "k"}, take="name", missing="dead_letter").select("id", c="double(name)").into("t", keys=["id"])
    streams = {"s": ("id INT, a INT", ["id"]), "d": ("k INT, name STRING", ["k"])}
    bench = Bench(flow, child, streams=streams, tables={"t": ("id INT, c DOUBLE", ["id"])})
    bench.put("s", 1, *({"id": number, "a": 7} for number in (1, 2, 3)))
    bench.drain(1, dead_letters_max=3)
    return bench


def test_dead_letters_that_go_make_room(child: SparkSession) -> None:
    """What the bound is for are the rows that wait afterwards: the drain that mends three of them may bring three others."""
    bench = waiting(child)
    bench.put("d", 2, {"k": 7, "name": "1"})
    bench.put("s", 2, *({"id": number, "a": 8} for number in (4, 5, 6)))

    assert ids(bench.drain(2, dead_letters_max=3)[0]["t"]) == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert sorted(letter["weight"] for letter in dead_letters(bench.results[-1:])) == [-1, -1, -1, 1, 1, 1]


def test_dead_letters_that_come_and_go_within_a_drain_need_no_room(child: SparkSession) -> None:
    """In one job or in several: what was too much is mended by what comes after it."""
    bench = waiting(child)
    bench.put("s", 2, *({"id": number, "a": 8} for number in (4, 5, 6)))
    with pytest.raises(TooManyDeadLetters):
        bench.run(2, dead_letters_max=2)
    bench.put("d", 3, {"k": 8, "name": "2"})

    assert [len(snapshot["t"]) for snapshot in bench.drain(2, 3, dead_letters_max=2)] == [0, 3]


def test_rows_that_fail_anew_take_the_room_of_those_they_replace(child: SparkSession) -> None:
    """An update of three rows that failed, to three that fail, leaves three; what came and went within the drain leaves none."""
    flow = Flow("divide")
    flow.stream("s").select("id", c="a / b").into("t", keys=["id"])
    bench = simple(child, flow)
    bench.put("s", 1, *({"id": number, "a": 6, "b": 0} for number in (1, 2, 3)))
    bench.drain(1, dead_letters_max=3)
    bench.put("s", 2, *({"id": number, "a": 7, "b": 0} for number in (1, 2, 3)))
    bench.put("s", 2, *({"id": number, "a": 8, "b": 0} for number in (4, 5)))
    bench.take("s", 3, *({"id": number} for number in (4, 5)))

    bench.drain(2, 3, dead_letters_max=3)

    assert sum(letter["weight"] for letter in dead_letters(bench.results)) == 3


def test_the_search_for_rows_that_fail_is_bounded(child: SparkSession) -> None:
    """Each costs several small jobs of Spark, also one that is gone by the end of the drain."""
    flow = Flow("divide")
    flow.stream("s").select("id", c="a / b").into("t", keys=["id"])
    bench = simple(child, flow)
    for number in range(6):
        bench.put("s", 1, {"id": number, "a": 6, "b": 0})
        bench.take("s", 1, {"id": number})

    with pytest.raises(TooManyDeadLetters):
        bench.run(1, dead_letters_max=1)


def test_a_step_that_fails_without_a_guilty_row_is_named(child: SparkSession) -> None:
    """A sum that leaves its range is nobody's single fault."""
    flow = Flow("overflow")
    sums = flow.stream("s").aggregate(by="id", v="sum(v)")
    sums.into("t", keys=["id"])
    sums.where("v > 0").into("u", keys=["id"])
    bench = Bench(flow, child, streams={"s": ("k INT, id INT, v BIGINT", ["k"])}, tables={name: ("id INT, v BIGINT", ["id"]) for name in "tu"})
    bench.put("s", 1, {"k": 1, "id": 1, "v": 2**62}, {"k": 2, "id": 1, "v": 2**62})

    with pytest.raises(StepFailed) as caught:
        bench.run(1)

    assert caught.value.context["origin"] == str(sums.node.origin)


@pytest.mark.parametrize("way", ["aggregate", "additive", "of one of two"])
def test_a_total_that_fails_in_its_table_is_named(child: SparkSession, way: str) -> None:
    """Also where the groups are kept in the table itself, the line is that of the step that adds up, not that of the flow."""
    flow = Flow("overflow")
    rows = flow.stream("s")
    if way == "additive":
        rows.select("id", "v").into("t", keys=["id"], additive=["v"])
        guilty = str(flow.targets[0].origin)
    else:
        sums = rows.aggregate(by="id", v="sum(v)")
        sums.into("t", keys=["id"])
        guilty = str(sums.node.origin)
    if way == "of one of two":
        rows.aggregate(by="id", v="max(v)").into("u", keys=["id"])
    bench = Bench(flow, child, streams={"s": ("k INT, id INT, v BIGINT", ["k"])}, tables={name: ("id INT, v BIGINT", ["id"]) for name in "tu"})
    bench.put("s", 1, {"k": 1, "id": 1, "v": 2**62})
    bench.drain(1)
    bench.put("s", 2, {"k": 2, "id": 1, "v": 2**62})

    with pytest.raises(TotalTooLarge) as caught:
        bench.run(2)

    assert caught.value.context["origin"] == guilty
    total = "v of table 't'" if way == "additive" else "v = sum(v)"
    assert caught.value.context["reason"] == f"{total}: the value {2**63} cannot be cast to BIGINT"


@pytest.mark.parametrize(("kind", "value", "total"), [("INT", 2**31 - 1, "4294967294"), ("DECIMAL(4,2)", Decimal("99.99"), "199.98")])
def test_a_total_that_its_column_cannot_hold_is_named(child: SparkSession, kind: str, value: Any, total: str) -> None:
    """With the table, the key, and a way out that can be gone: the rows are mended at their source, and what was wrong is taken together with that."""
    flow = Flow("narrow")
    flow.stream("s").select("id", "v").into("t", keys=["id"], additive=["v"])
    bench = Bench(flow, child, streams={"s": (f"k INT, id INT, v {kind}", ["k"])}, tables={"t": (f"id INT, v {kind}", ["id"])})
    bench.put("s", 1, {"k": 1, "id": 1, "v": value}, {"k": 2, "id": 2, "v": value}, {"k": 3, "id": 3, "v": value}, {"k": 4, "id": 2, "v": value})

    with pytest.raises(TotalTooLarge) as caught:
        bench.run(1)

    assert caught.value.context["reason"] == f"column `v` {kind} of table 't' would be {total} for key {{'id': 2}}"
    assert "Change or delete rows of it at their source and run the flow again" in str(caught.value)


def test_expectations_keep_drop_and_count(child: SparkSession) -> None:
    """Unmet ones are counted for each job, null included; rows that go are not counted again."""
    flow = Flow("expect")
    rows = flow.stream("s").expect("a is positive", "a > 0").expect("b is positive", "b > 0", otherwise="drop")
    rows.select("id", c="cast(b AS DOUBLE)").into("t", keys=["id"])
    bench = simple(child, flow)
    bench.put("s", 1, {"id": 1, "a": 1, "b": 1}, {"id": 2, "a": -1, "b": 2}, {"id": 3, "a": None, "b": 0}, {"id": 4, "a": 1, "b": None})
    bench.put("s", 2, {"id": 3, "a": 0, "b": 3})
    bench.take("s", 2, {"id": 2})

    first, second = bench.drain(1, 2)

    assert ids(first["t"]) == [(1, 1.0), (2, 2.0)]
    assert ids(second["t"]) == [(1, 1.0), (3, 3.0)]
    counts = {(unmet.name, unmet.job): unmet.rows for unmet in bench.results[0].expectations}
    assert counts == {("a is positive", 1): 2, ("b is positive", 1): 2, ("a is positive", 2): 1}


def test_an_expectation_that_must_hold_fails_the_job(child: SparkSession) -> None:
    """The error names job, line and a row."""
    flow = Flow("expect")
    flow.stream("s").expect("a is positive", "a > 0", otherwise="fail").select("id", c="cast(a AS DOUBLE)").into("t", keys=["id"])
    bench = simple(child, flow)
    bench.put("s", 1, {"id": 1, "a": 1, "b": 1})
    bench.put("s", 2, {"id": 2, "a": -1, "b": 1})

    with pytest.raises(ExpectationFailed) as caught:
        bench.run(1, 2)

    assert caught.value.context["job"] == 2 and '{"id":2,"a":-1,"b":1}' in str(caught.value)


def test_a_lookup_that_must_succeed_fails_the_job(child: SparkSession) -> None:
    """With missing="fail" the first job without a counterpart is named."""
    flow = Flow("lookup")
    flow.stream("s").lookup(flow.stream("r"), on="id", take=["c"], missing="fail").select("id", "c").into("t", keys=["id"])
    bench = Bench(flow, child, streams={"s": ("id INT, a INT", ["id"]), "r": ("id INT, c DOUBLE", ["id"])}, tables={"t": ("id INT, c DOUBLE", ["id"])})
    bench.put("r", 1, {"id": 1, "c": 1.0})
    bench.put("s", 1, {"id": 1, "a": 1})
    bench.put("s", 2, {"id": 2, "a": 2})
    assert ids(bench.drain(1)[0]["t"]) == [(1, 1.0)]

    with pytest.raises(LookupFailed) as caught:
        bench.run(2)

    assert caught.value.context["job"] == 2 and '{"id":2,"a":2}' in str(caught.value)


def test_two_rows_of_one_key_are_an_error(child: SparkSession) -> None:
    """A keyed target has one row for each key; the job that breaks this is named."""
    flow = Flow("twice")
    flow.stream("s").select(id="a", c="cast(b AS DOUBLE)").into("t", keys=["id"])
    bench = simple(child, flow)
    bench.put("s", 1, {"id": 1, "a": 7, "b": 1})
    bench.put("s", 2, {"id": 2, "a": 7, "b": 2})

    with pytest.raises(KeyTwice) as caught:
        bench.run(1, 2)

    assert caught.value.context["job"] == 2 and caught.value.context["key"] == {"id": 7}


def test_rows_without_a_key_are_dead_letters_however_many_they_are(child: SparkSession) -> None:
    """They are not rows of one key: each is a letter by itself, and goes by itself. Rows with a key twice are an error as ever."""
    flow = Flow("nulls")
    flow.stream("s").select(id="a", c="cast(b AS DOUBLE)").into("t", keys=["id"])
    bench = simple(child, flow)
    bench.put("s", 1, {"id": 1, "a": None, "b": 1}, {"id": 2, "a": None, "b": 2}, {"id": 3, "a": 7, "b": 3}, {"id": 4, "a": None, "b": 2})
    bench.take("s", 2, {"id": 1})
    bench.put("s", 3, {"id": 2, "a": 8, "b": 2})
    bench.take("s", 3, {"id": 4})

    assert [ids(bench.drain(horizon)[0]["t"]) for horizon in (1, 2, 3)] == [[(7, 3.0)], [(7, 3.0)], [(7, 3.0), (8, 2.0)]]
    letters = sorted((letter["job"], letter["row"], letter["weight"], letter["origin"]) for letter in dead_letters(bench.results))
    line = str(flow.targets[0].origin)
    one, two = '{"id":null,"c":1.0}', '{"id":null,"c":2.0}'
    assert letters == [(1, one, 1, line), (1, two, 2, line), (2, one, -1, line), (3, two, -2, line)]
    book = LetterBook("nulls", {"into_t": ["id"]}, letters_max=3)
    kept = []
    for result in bench.results:
        book.take(result.dead_letters, result.targets, {})
        kept.append(len(book))
    assert kept == [2, 1, 0]
    bench.put("s", 4, {"id": 5, "a": 7, "b": 1})
    with pytest.raises(KeyTwice):
        bench.run(4)


def test_a_null_in_a_key_meets_nothing(child: SparkSession) -> None:
    """Not even another null, whichever of the two comes first: in joins of both kinds, and in look-ups of what has a row without a key."""
    flow = Flow("nulls")
    rows, others = flow.stream("r"), flow.stream("s").select("k", u="id")
    counts = others.aggregate(by="k", u="max(u)")
    rows.join(others, on="k").select("id", "u").into("inner_join", keys=["id"])
    rows.join(others, on="k", how="left").select("id", "u").into("left_join", keys=["id"])
    rows.lookup(counts, on="k", take="u").select("id", "u").into("or_null", keys=["id"])
    rows.lookup(counts, on="k", take="u", missing="drop").select("id", "u").into("or_drop", keys=["id"])
    rows.lookup(counts, on="k", take="u", missing="dead_letter").select("id", "u").into("or_letter", keys=["id"])
    tables = ("inner_join", "left_join", "or_null", "or_drop", "or_letter")
    columns = ("id INT, k INT", ["id"])
    bench = Bench(flow, child, streams={"r": columns, "s": columns}, tables={name: ("id INT, u INT", ["id"]) for name in tables})
    bench.put("r", 1, {"id": 1, "k": None}, {"id": 2, "k": 7})
    bench.put("s", 2, {"id": 9, "k": None}, {"id": 8, "k": 7})
    bench.put("r", 3, {"id": 3, "k": None}, {"id": 4, "k": 7})

    found = [bench.drain(horizon)[0] for horizon in (1, 2, 3)][-1]

    met = [(2, 8), (4, 8)]
    every = [(1, None), (2, 8), (3, None), (4, 8)]
    assert {name: ids(found[name]) for name in tables} == dict(zip(tables, (met, every, every, met, met), strict=True))
    letters: dict[str, int] = {}
    for letter in dead_letters(bench.results):
        letters[letter["row"]] = letters.get(letter["row"], 0) + letter["weight"]
    assert letters == {'{"id":1,"k":null}': 1, '{"id":3,"k":null}': 1, '{"id":2,"k":7}': 0}


def test_a_null_where_the_table_has_none_is_a_dead_letter(child: SparkSession) -> None:
    """The key of a table cannot be null; the row is reported and the others go on."""
    flow = Flow("nulls")
    flow.stream("s").select(id="a", c="cast(b AS DOUBLE)").into("t", keys=["id"])
    bench = simple(child, flow)
    bench.put("s", 1, {"id": 1, "a": None, "b": 1}, {"id": 2, "a": 7, "b": 2})
    bench.take("s", 2, {"id": 1})

    assert [ids(bench.drain(horizon)[0]["t"]) for horizon in (1, 2)] == [[(7, 2.0)], [(7, 2.0)]]
    assert [(letter["job"], letter["weight"], letter["step"]) for letter in dead_letters(bench.results)] == [(1, 1, "into_t.keys"), (2, -1, "into_t.keys")]


def test_a_bad_version_of_a_row_ends_the_good_one(child: SparkSession) -> None:
    """A target never keeps a row that its source has replaced."""
    flow = Flow("nulls")
    flow.stream("s").select("id", c="cast(b AS DOUBLE)").into("t", keys=["id"])
    bench = simple(child, flow, target="id INT, c DOUBLE NOT NULL")
    bench.put("s", 1, {"id": 1, "a": 1, "b": 1})
    bench.put("s", 2, {"id": 1, "a": 1, "b": None})
    bench.put("s", 3, {"id": 1, "a": 1, "b": 3})

    assert [ids(bench.drain(horizon)[0]["t"]) for horizon in (1, 2, 3)] == [[(1, 1.0)], [], [(1, 3.0)]]


def doubled(table: pa.Table) -> pa.Table:
    """Return one row for each row; a 13 cannot be doubled."""
    if 13 in table.column("a").to_pylist():
        raise ValueError("13 is unlucky")
    return pa.table({"id": table.column("id"), "c": pc.multiply(table.column("a"), 2.0)})


def exploded(table: pa.Table) -> pa.Table:
    """Return as many rows for each row as it says."""
    rows = [{"id": row["id"] * 10 + number, "c": float(number)} for row in table.to_pylist() for number in range(row["a"])]
    return pa.Table.from_pylist(rows, pa.schema([("id", pa.int32()), ("c", pa.float64())]))


def test_a_function_gives_one_row_for_each(child: SparkSession) -> None:
    """Job and weight stay with their row; a row that fails is put aside with the reason."""
    flow = Flow("apply")
    flow.stream("s").apply(doubled, "id INT, c DOUBLE").into("t", keys=["id"])
    bench = simple(child, flow)
    bench.put("s", 1, {"id": 1, "a": 1, "b": 1}, {"id": 2, "a": 13, "b": 1}, {"id": 3, "a": 3, "b": 1})
    bench.put("s", 2, {"id": 1, "a": 5, "b": 1})
    bench.take("s", 2, {"id": 3})

    first, second = drained(bench, [1, 2], fused=True)

    assert ids(first["t"]) == [(1, 2.0), (3, 6.0)]
    assert ids(second["t"]) == [(1, 10.0)]
    (letter,) = dead_letters(bench.results)
    assert letter["reason"] == "ValueError: 13 is unlucky" and letter["row"] == '{"id":2,"a":13,"b":1}'


@both_ways
def test_a_function_may_give_any_number_of_rows(child: SparkSession, fused: bool) -> None:
    """Whatever a row gave is taken back when it goes."""
    flow = Flow("apply")
    flow.stream("s").apply(exploded, "id INT, c DOUBLE", rows="any").into("t", keys=["id"])
    bench = simple(child, flow)
    bench.put("s", 1, {"id": 1, "a": 2, "b": 1}, {"id": 2, "a": 0, "b": 1}, {"id": 3, "a": 1, "b": 1})
    bench.put("s", 2, {"id": 1, "a": 1, "b": 1})
    bench.take("s", 2, {"id": 3})

    first, second = drained(bench, [1, 2], fused=fused)

    assert ids(first["t"]) == [(10, 0.0), (11, 1.0), (30, 0.0)]
    assert ids(second["t"]) == [(10, 0.0)]


def test_a_function_that_returns_another_number_of_rows_is_told_so(child: SparkSession) -> None:
    """With rows="same" nobody could say which job a row belongs to."""
    flow = Flow("apply")
    flow.stream("s").apply(exploded, "id INT, c DOUBLE").into("t", keys=["id"])
    bench = simple(child, flow)
    bench.put("s", 1, {"id": 1, "a": 2, "b": 1}, {"id": 2, "a": 1, "b": 1})

    assert ids(bench.drain(1)[0]["t"]) == [(20, 0.0)]
    assert "declare rows='any'" in dead_letters(bench.results)[0]["reason"]


def test_a_step_with_several_readers_feeds_all_of_them(child: SparkSession) -> None:
    """Several targets of one flow belong to the same job."""
    flow = Flow("fan")
    rows = flow.stream("s").derive(c="a + b")
    rows.select("id", c="cast(c AS DOUBLE)").into("t", keys=["id"])
    rows.aggregate(by="b", n="count(*)", most="max(c)", kinds="count(distinct a)").into("u", keys=["b"])
    bench = Bench(
        flow,
        child,
        streams={"s": ("id INT, a INT, b INT", ["id"])},
        tables={"t": ("id INT, c DOUBLE", ["id"]), "u": ("b INT, n BIGINT, most INT, kinds BIGINT", ["b"])},
    )
    bench.put("s", 1, {"id": 1, "a": 1, "b": 1}, {"id": 2, "a": 5, "b": 1})
    bench.take("s", 2, {"id": 2})

    first, second = bench.drain(1, 2)

    assert (ids(first["t"]), ids(first["u"])) == ([(1, 2.0), (2, 6.0)], [(1, 2, 6, 2)])
    assert (ids(second["t"]), ids(second["u"])) == ([(1, 2.0)], [(1, 1, 2, 1)])


class SummedUpMeanwhile(MemoryStates):
    """States that another thread sums up whenever a part was read: what was taken back is gone, but not from what was read."""

    def __init__(self) -> None:
        super().__init__()
        self._read: set[tuple[str, str]] = set()

    def frame(self, child: SparkSession, node: str, part: str, *, up_to_job: int | None = None, wanted: Spans | None = None) -> DataFrame | None:
        """Return one part as it was."""
        self._read.add((node, part))
        return super().frame(child, node, part, up_to_job=up_to_job, wanted=wanted)

    def is_net(self, node: str, part: str) -> bool:
        """Say what holds after summing up."""
        return (node, part) in self._read or super().is_net(node, part)


def test_a_look_up_is_right_while_its_state_is_summed_up(child: SparkSession) -> None:
    """Whether rows were taken back is asked of the state that is read, not of a later one."""
    flow = Flow("named")
    flow.stream("r").lookup(flow.stream("d"), on="k", take="name").into("t", keys="id")
    streams = {"r": ("id INT, k INT", ["id"]), "d": ("k INT, name STRING", ["k"])}
    bench = Bench(flow, child, streams=streams, tables={"t": ("id INT, k INT, name STRING", ["id"])})
    bench.states = SummedUpMeanwhile()
    bench.put("d", 1, {"k": 1, "name": "old"})
    bench.put("d", 2, {"k": 1, "name": "new"})
    bench.put("r", 3, {"id": 1, "k": 1})

    *_, last = drained(bench, [1, 2, 3], fused=False)

    assert ids(last["t"]) == [(1, 1, "new")]
