"""Declaring flows: frozen steps that know their line, stable ids, fingerprints, and what is refused at once."""

import dataclasses
import decimal
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import DoubleType, StructType

from righttime.changes.schema import declare_table
from righttime.errors.flows import BadDeclaration, FlowCycle, FlowFrozen, NameTwice, TableNoStream, UnknownInFlow
from righttime.errors.known import known_names
from righttime.flows.names import refuse_tables
from righttime.pipeline.cycles import check_cycles
from righttime.pipeline.fingerprint import FORMAT, fingerprint
from righttime.pipeline.flow import Flow, Refresh, Step
from righttime.pipeline.measures import parse_measure
from righttime.pipeline.nodes import Aggregate, Derived, Join, Lookup, Measure, Select, StreamNode
from righttime.pipeline.operators.accumulators import sum_of
from righttime.pipeline.target_tables import TargetTables


def sales_flow(**changed: str) -> Flow:
    """The flow of AT-28, with some texts changed."""
    flow = Flow("sales")
    lines = flow.stream("line").derive(amount=changed.get("amount", "qty * price"))
    sold = lines.lookup(flow.stream("item"), on="item_id", take={"item_sk": "sk"}, missing="dead_letter").join(flow.stream("purchase"), on="purc_id")
    groups = sold.aggregate(by=["item_sk", "store_sk"], qty="sum(qty)", amount="sum(amount)")
    groups.into("store_sales", keys=["item_sk", "store_sk"], additive=["qty", "amount"])
    return flow


def test_a_declaration_is_a_graph_of_frozen_steps() -> None:
    """Engines read values: nothing of them can be changed."""
    nodes = sales_flow().nodes()

    assert list(nodes) == ["01_stream", "02_derive", "03_stream", "04_lookup", "05_stream", "06_join", "07_aggregate"]
    lookup, join, aggregate = nodes["04_lookup"], nodes["06_join"], nodes["07_aggregate"]
    assert isinstance(lookup, Lookup) and isinstance(join, Join) and isinstance(aggregate, Aggregate)
    assert (lookup.on, lookup.take, lookup.missing) == ((("item_id", "item_id"),), (("item_sk", "sk"),), "dead_letter")
    assert (join.inputs, join.how) == ((lookup, nodes["05_stream"]), "inner")
    assert aggregate.measures == (Measure("qty", "sum", "qty"), Measure("amount", "sum", "amount"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        join.how = "left"  # type: ignore[misc]


def test_a_step_knows_the_line_that_declared_it() -> None:
    """Also through wrappers of the user, it is the line of the call, in the user's file."""
    flow = Flow("sales")
    lines = flow.stream("line")
    kept = lines.where("qty > 0")

    assert kept.node.origin.file == __file__
    assert kept.node.origin.line == lines.node.origin.line + 1
    assert str(kept.node.origin) == f"{__file__}:{kept.node.origin.line}"


def test_a_stream_is_one_step_however_often_it_is_read() -> None:
    """Names of streams do not depend on case."""
    flow = Flow("sales")

    assert flow.stream("line").node is flow.stream("LINE").node
    flow.stream("line").into("copy", keys=["id"])
    assert flow.streams == ("line",)


def test_steps_that_reach_no_target_are_left_out() -> None:
    """What nobody keeps is not computed."""
    flow = Flow("sales")
    flow.stream("unused").where("a > 1")
    flow.stream("line").into("copy", keys=["id"])

    assert [type(node) for node in flow.nodes().values()] == [StreamNode]


def test_select_keeps_order_and_renames() -> None:
    """Named columns come first, derived ones after them."""
    node = Flow("sales").stream("line").select("id", amount="qty * price").node

    assert isinstance(node, Select)
    assert node.columns == (Derived("id", "`id`"), Derived("amount", "qty * price"))


@pytest.mark.parametrize(
    ("text", "measure"),
    [
        ("sum(qty)", Measure("m", "sum", "qty")),
        (" SUM ( qty * (1 + tax) ) ", Measure("m", "sum", "qty * (1 + tax)")),
        ("count(*)", Measure("m", "count", "*")),
        ("count(DISTINCT sku)", Measure("m", "count_distinct", "sku")),
        ("count_distinct(sku)", Measure("m", "count_distinct", "sku")),
        ("max(concat(a, ')'))", Measure("m", "max", "concat(a, ')')")),
        ("sum(a) + sum(b)", None),
        ("sum()", None),
        ("sum(*)", None),
        ("median(a)", None),
        ("sum(distinct a)", None),
        ("count(distinct a, b)", None),
        ("sum(a, b)", None),
        ("sum(coalesce(a, 0))", Measure("m", "sum", "coalesce(a, 0)")),
        ("max(concat(a, ',', `b,c`))", Measure("m", "max", "concat(a, ',', `b,c`)")),
        ("qty", None),
        ("sum(a", None),
        ("sum(a))", None),
    ],
)
def test_measures_are_one_call_of_a_known_function(text: str, measure: Measure | None) -> None:
    """Anything else is no measure, because it could not be maintained."""
    assert parse_measure("m", text) == measure


@pytest.mark.parametrize(
    ("refresh", "expected"),
    [
        ("on_demand", Refresh("on_demand")),
        ("immediate", Refresh("immediate")),
        ("every 5m", Refresh("every", 300_000_000)),
        ("Every 90 s", Refresh("every", 90_000_000)),
    ],
)
def test_refresh_says_when_jobs_are_cut(refresh: str, expected: Refresh) -> None:
    """On demand, with each commit, or periodically."""
    assert Flow("sales", refresh=refresh).refresh == expected


WRONG: dict[str, Callable[[Step], Any]] = {
    "name of the flow": lambda step: Flow("my flow"),
    "refresh": lambda step: Flow("f", refresh="sometimes"),
    "refresh duration": lambda step: Flow("f", refresh="every now and then"),
    "refresh of no time": lambda step: Flow("f", refresh="every 0s"),
    "empty condition": lambda step: step.where("  "),
    "condition is no text": lambda step: step.where(3),  # type: ignore[arg-type]
    "nothing selected": lambda step: step.select(),
    "nothing derived": lambda step: step.derive(),
    "system column": lambda step: step.derive(_job="1"),
    "otherwise": lambda step: step.expect("x", "a > 1", otherwise="ignore"),  # type: ignore[arg-type]
    "no function": lambda step: step.apply("f", "a INT"),  # type: ignore[arg-type]
    "rows": lambda step: step.apply(len, "a INT", rows="some"),  # type: ignore[arg-type]
    "join kind": lambda step: step.join(step, on="a", how="outer"),  # type: ignore[arg-type]
    "no key": lambda step: step.join(step, on=[]),
    "other flow": lambda step: step.join(Flow("g").stream("s"), on="a"),
    "no step": lambda step: step.join("s", on="a"),  # type: ignore[arg-type]
    "nothing taken": lambda step: step.lookup(step, on="a", take=[]),
    "missing": lambda step: step.lookup(step, on="a", take=["b"], missing="maybe"),  # type: ignore[arg-type]
    "union of one": lambda step: step.union(),
    "no measure": lambda step: step.aggregate(by="a", total="a + 1"),
    "empty aggregate": lambda step: step.aggregate(),
    "history without keys": lambda step: step.history([], key="sk"),
    "history from text": lambda step: step.history(["a"], key="sk", key_from="1"),  # type: ignore[arg-type]
    "target without keys": lambda step: step.into("t", keys=[]),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_by_itself_is_refused_in_its_line(call: Callable[[Step], Any]) -> None:
    """The error names this file and the line of the call."""
    with pytest.raises(BadDeclaration) as caught:
        call(Flow("sales").stream("line"))

    assert caught.value.context["origin"].file == __file__
    assert caught.value.context["origin"].line == call.__code__.co_firstlineno
    assert str(caught.value).startswith(__file__)


@pytest.mark.parametrize(
    "call",
    [
        lambda step: step.select("a", A="b"),
        lambda step: step.aggregate(by=["a"], a="sum(b)"),
        lambda step: step.lookup(step, on="a", take=["b", "b"]),
        lambda step: step.into("t", keys=["a"], additive=["A"]),
    ],
)
def test_a_column_named_twice_is_refused(call: Callable[[Step], Any]) -> None:
    """Names differ without regard to case."""
    with pytest.raises(NameTwice) as caught:
        call(Flow("sales").stream("line"))

    assert caught.value.code == "flow.name_twice"


def test_what_is_wrong_is_said_once_and_in_words() -> None:
    """No repr of our own objects, no second full stop, no advice twice."""
    flow, other = Flow("sales"), Flow("stock").stream("item")
    with pytest.raises(BadDeclaration) as step:
        flow.stream("line").join(other, on="a")
    with pytest.raises(BadDeclaration) as refresh:
        Flow("f", refresh="every banana")
    flow.stream("line").into("t", keys="zz")
    tables = TargetTables(flow, {flow.targets[0].node: StructType().add("a", "integer")}, expressions=None)  # type: ignore[arg-type]
    with pytest.raises(UnknownInFlow) as key:
        tables.new_table(flow.targets[0])

    assert f"the stream step declared at {other.node.origin} is of flow 'stock'" in str(step.value) and "StreamNode" not in str(step.value)
    assert "refresh='every banana' must be on_demand, immediate or such as 'every 5m' (it is not a number" in str(refresh.value)
    assert ".." not in str(refresh.value).removeprefix(str(refresh.value.context["origin"]))
    assert "there is no column 'zz'; known: a. Correct the name" in str(key.value)


@pytest.mark.parametrize(
    ("keepers", "unique", "advice"),
    [
        ({}, True, "make its changes one with Warehouse.tap('customer')"),
        ({}, False, "only a table that was created with keys, unique=True"),
        ({"customer": "people"}, False, "flow 'people' keeps this table, so declare these steps in that flow"),
    ],
)
def test_a_table_is_not_read_as_a_stream(keepers: dict[str, str], unique: bool, advice: str) -> None:
    """Whoever tries is told how the changes of this table can be had."""
    flow = Flow("sales")
    flow.stream("line").join(flow.stream("customer"), on="id").into("t", keys=["id"])
    tables = {"customer": declare_table("customer", "id INT, name STRING", keys=["id"], unique=unique)}

    with pytest.raises(TableNoStream, match="there is no stream 'customer'; it is a table") as refused:
        refuse_tables(flow, streams=["line"], tables=tables, keepers=keepers)

    assert advice in str(refused.value) and __file__ in str(refused.value)
    refuse_tables(flow, streams=["line", "customer"], tables=tables, keepers=keepers)  # a tap has the name of its table


def test_names_that_look_like_the_wrong_one_are_shown_and_not_all() -> None:
    """Few names are shown as they are; of many, those that may have been meant."""
    many = [f"stream_{number}" for number in range(60)] + ["Customer", "customers"]
    assert known_names("custmer", many) == "Customer, customers and 60 others"
    assert known_names("zz", many) == "stream_0, stream_1, stream_2, stream_3, stream_4 and 57 others"
    assert known_names("zz", ["a", "b"]) == "a, b"
    assert known_names("zz", []) == "none"


def test_a_table_is_one_target_only() -> None:
    """Two steps into one table would be a union that nobody declared."""
    flow = Flow("sales")
    flow.stream("line").into("t", keys=["a"])

    with pytest.raises(BadDeclaration, match="target of this flow already"):
        flow.stream("other").into("T", keys=["a"])


def test_a_flow_in_use_cannot_be_changed() -> None:
    """What runs is what was declared when it began to run."""
    flow = Flow("sales")
    with pytest.raises(BadDeclaration, match=r"end one with into\(\)"):
        flow.freeze()
    flow.stream("line").into("t", keys=["a"])
    flow.freeze()

    with pytest.raises(FlowFrozen):
        flow.stream("line").into("u", keys=["a"])


def test_equal_declarations_have_equal_fingerprints() -> None:
    """Where something was declared does not count."""
    assert fingerprint(sales_flow()) == fingerprint(sales_flow())


def test_what_sums_keep_belongs_to_the_format() -> None:
    """State without one of these columns, or with another meaning of it, would be read as if it were of now: other columns need another number."""
    exact, inexact = ["large", "whole", "fine", "finest"], ["tiny", "huge"]
    kinds = {"count": "BIGINT", "nan": "BIGINT", "plus_inf": "BIGINT", "minus_inf": "BIGINT", **dict.fromkeys(exact, "DECIMAL(38, 0)")}
    kinds |= dict.fromkeys(inexact, "DOUBLE") | {f"{name}_rows": "BIGINT" for name in inexact}

    kept = {name.removeprefix("_acc_0_"): term.kind for name, term in sum_of(0, "v", DoubleType()).terms.items()}

    assert (FORMAT, kept) == (3, kinds)


@pytest.mark.parametrize("changed", [{"amount": "qty * price * 2"}, {"amount": "price * qty"}])
def test_another_expression_is_another_fingerprint(changed: dict[str, str]) -> None:
    """State kept for the old expression is of no use."""
    assert fingerprint(sales_flow(**changed)) != fingerprint(sales_flow())


def _with(function: Callable[[Any], Any]) -> str:
    flow = Flow("sales")
    flow.stream("line").apply(function, "a INT").into("t", keys=["a"])
    return fingerprint(flow)


def test_the_source_of_a_function_counts() -> None:
    """Another body, another closure, another default: another fingerprint."""

    def plus(number: int) -> Callable[[Any], Any]:
        return lambda table: (table, number)

    def same(table: Any) -> Any:
        return table

    def other(table: Any) -> Any:
        return table.slice(0)

    assert _with(same) == _with(same)
    assert len({_with(same), _with(other), _with(plus(1)), _with(plus(2)), _with(functools.partial(same))}) == 5


class _Scale:
    """Rows of a user's own class of functions; its settings are what makes two of them different."""

    __slots__ = ("more", "rate")

    def __init__(self, rate: Any, more: Any = None) -> None:
        self.rate = rate
        self.more = more

    def __call__(self, table: Any) -> Any:
        return (table, self.rate)

    def scaled(self, table: Any) -> Any:
        return (table, self.rate)


@dataclasses.dataclass(frozen=True)
class _Rates:
    net: decimal.Decimal
    names: frozenset[str] = frozenset()


def _rated(table: Any, rate: Any = 0, *, more: Any = None) -> Any:
    return (table, rate, more)


def _keyword_default(value: int) -> Callable[[Any], Any]:
    def scaled(table: Any, *, rate: int = value) -> Any:
        return (table, rate)

    return scaled


def _closure(value: Any) -> Callable[[Any], Any]:
    return lambda table: (table, value)


MADE: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "argument of a partial": lambda value: functools.partial(_rated, rate=value),
    "argument of a partial of a partial": lambda value: functools.partial(functools.partial(_rated, rate=value), more=3),
    "attribute of an object": _Scale,
    "attribute of the object of a method": lambda value: _Scale(value).scaled,
    "attribute of an attribute": lambda value: _Scale(1, _Scale(value)),
    "keyword default": _keyword_default,
    "closure over a list": lambda value: _closure([1, value]),
    "closure over a mapping": lambda value: _closure({"b": 1, "a": value}),
    "closure over a partial": lambda value: _closure(functools.partial(_rated, rate=value)),
    "closure over a pattern": lambda value: _closure(re.compile(f"[{value}]")),
    "closure over values": lambda value: _closure(_Rates(decimal.Decimal(value), frozenset({"a", "b", "c", str(value)}))),
}


@pytest.mark.parametrize("made", MADE.values(), ids=list(MADE))
def test_the_values_that_a_function_is_made_with_count(made: Callable[[Any], Callable[[Any], Any]]) -> None:
    """State that was kept with other ones would be taken back wrongly; equal ones are equal, though they were made again."""
    assert _with(made(2)) == _with(made(2))
    assert _with(made(2)) != _with(made(3))


def test_the_function_of_a_partial_counts() -> None:
    """What it calls is what it does."""
    assert _with(functools.partial(_rated)) != _with(functools.partial(_Scale(1).scaled))


def test_a_function_may_know_itself() -> None:
    """By its closure, or by an object that it belongs to."""
    known = _Scale(1)
    known.more = [known]

    def even(table: Any) -> Any:
        return odd(table)

    def odd(table: Any) -> Any:
        return even(table)

    assert len({_with(known), _with(known.scaled), _with(even)}) == 3


def test_a_function_may_name_a_variable_that_has_no_value_yet() -> None:
    """Its fingerprint is that of what is known; declaring raised a `ValueError` about a cell."""

    def fallback(rows: Any) -> Any:
        return later(rows)

    declared = _with(fallback)

    def later(rows: Any) -> Any:
        return rows

    assert _with(fallback) != declared


def test_fingerprints_are_the_same_in_every_process() -> None:
    """The order of a set is another one in each; a flow that was restarted is still the flow it was."""
    program = "from tests.unit.test_flow_declarations import MADE, _with\nprint(*[_with(made(2)) for made in MADE.values()])"
    run = [subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True) for seed in "12"]
    assert [one.returncode for one in run] == [0, 0], run[0].stderr
    assert run[0].stdout == run[1].stdout


def test_a_flow_that_reads_what_it_writes_is_a_cycle() -> None:
    """Directly, over the changes of a table under another name, or over another flow."""
    one, two = Flow("one"), Flow("two")
    one.stream("a").into("b", keys=["k"])
    two.stream("b_changes").into("c", keys=["k"])
    check_cycles([one, two])
    with pytest.raises(FlowCycle, match="one → b → one"):
        check_cycles([one], tables_by_stream={"a": "b"})

    with pytest.raises(FlowCycle, match="one → b → two → c → one") as caught:
        check_cycles([one, two], tables_by_stream={"b_changes": "b", "a": "c"})

    assert caught.value.context["origin"].file == __file__
    assert caught.value.code == "flow.cycle"
