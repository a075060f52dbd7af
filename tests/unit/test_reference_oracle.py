"""The oracle of declared flows: hand-computed examples of each step, and its expressions."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from righttime.errors import SqlRefused
from righttime.pipeline.flow import Flow, Step
from righttime.testing.reference.expressions import compiled
from righttime.testing.reference.recompute import Recomputed, Refused, recompute
from righttime.testing.reference.relations import moment


def put(time_us: int, **row: Any) -> dict[str, Any]:
    """Return an insert."""
    return {**row, "_change_type": "insert", "_commit_us": time_us}


def end(time_us: int, **row: Any) -> dict[str, Any]:
    """Return a delete."""
    return {**row, "_change_type": "delete", "_commit_us": time_us}


def replaced(time_us: int, before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an update."""
    return [{**before, "_change_type": "update_preimage", "_commit_us": time_us}, {**after, "_change_type": "update_postimage", "_commit_us": time_us}]


def kept(declare: Any, *, key: str, up_to_us: int | None = None, **changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the rows of the one target of a flow, sorted."""
    return sorted(declared(declare, key=key, up_to_us=up_to_us, **changes).tables["t"].bag().elements(), key=repr)


def declared(declare: Any, *, key: str, up_to_us: int | None = None, **changes: list[dict[str, Any]]) -> Recomputed:
    """Recompute a flow with one target `t`."""
    flow = Flow("example")
    step: Step = declare(*(flow.stream(name) for name in changes))
    step.into("t", keys=[key])
    return recompute(flow, changes, up_to_us=up_to_us)


LINES = [put(1, k=1, qty=2, price=5.0), put(2, k=2, qty=0, price=3.0), *replaced(3, {"k": 1, "qty": 2, "price": 5.0}, {"k": 1, "qty": 4, "price": 5.0})]


def test_a_stream_is_the_rows_that_live_at_the_cut() -> None:
    """Updates replace, deletes remove, and what was committed after the time is not there."""
    assert kept(lambda line: line, key="k", line=LINES) == [(1, 4, 5.0), (2, 0, 3.0)]
    assert kept(lambda line: line, key="k", line=LINES, up_to_us=2) == [(1, 2, 5.0), (2, 0, 3.0)]
    assert kept(lambda line: line, key="k", line=[*LINES, end(4, k=2, qty=0, price=3.0)]) == [(1, 4, 5.0)]


def test_steps_on_single_rows() -> None:
    """where, derive, select, expect and apply."""
    assert kept(lambda line: line.where("qty > 0").derive(amount="qty * price"), key="k", line=LINES) == [(1, 4, 5.0, 20.0)]
    assert kept(lambda line: line.select("k", twice="qty + qty"), key="k", line=LINES) == [(1, 8), (2, 0)]
    assert kept(lambda line: line.expect("sold", "qty > 0", otherwise="drop").select("k"), key="k", line=LINES) == [(1,)]
    with pytest.raises(Refused, match="sold"):
        kept(lambda line: line.expect("sold", "qty > 0", otherwise="fail"), key="k", line=LINES)

    def doubled(table: pa.Table) -> pa.Table:
        return pa.table({"k": table["k"], "n": pc.multiply(table["qty"], 2)})

    assert kept(lambda line: line.apply(doubled, "k BIGINT, n BIGINT"), key="k", line=LINES) == [(1, 8), (2, 0)]


CUSTOMERS = [put(1, c=1, company="IBM"), put(1, c=2, company="SAP"), put(1, c=3, company=None)]
COMPANIES = [put(1, company="IBM", land="USA"), put(1, company=None, land="nowhere")]


def test_joins_and_look_ups() -> None:
    """Null has no partner; a left join and a look-up say what is missing."""
    assert kept(lambda c, o: c.join(o, "company"), key="c", c=CUSTOMERS, o=COMPANIES) == [(1, "IBM", "USA")]
    assert kept(lambda c, o: c.join(o, "company", how="left"), key="c", c=CUSTOMERS, o=COMPANIES) == [(1, "IBM", "USA"), (2, "SAP", None), (3, None, None)]
    assert kept(lambda c, o: c.lookup(o, "company", take={"l": "land"}, missing="drop"), key="c", c=CUSTOMERS, o=COMPANIES) == [(1, "IBM", "USA")]
    letters = declared(lambda c, o: c.lookup(o, "company", take=["land"], missing="dead_letter"), key="c", c=CUSTOMERS, o=COMPANIES).dead_letters
    assert [row["c"] for _, row in letters] == [2, 3]
    with pytest.raises(Refused):
        kept(lambda c, o: c.lookup(o, "company", take=["land"], missing="fail"), key="c", c=CUSTOMERS, o=COMPANIES)


def test_union_distinct_and_keys() -> None:
    """Equal rows count each; one key, one row."""
    with pytest.raises(Refused, match="one key"):
        kept(lambda a: a.union(a), key="c", a=CUSTOMERS)
    assert len(kept(lambda a: a.union(a).distinct(), key="c", a=CUSTOMERS)) == 3


VALUES = [put(1, g="a", v=1, k=1), put(1, g="a", v=3, k=2), put(1, g="a", v=None, k=3), put(1, g="b", v=None, k=4), put(1, g="a", v=3, k=5)]


def test_aggregates_leave_nulls_out() -> None:
    """sum, count, avg, min, max, count distinct."""
    measures = {"s": "sum(v)", "n": "count(*)", "c": "count(v)", "a": "avg(v)", "lo": "min(v)", "hi": "max(v)", "d": "count(distinct v)"}
    assert kept(lambda x: x.aggregate("g", **measures), key="g", x=VALUES) == [("a", 7, 4, 3, 7 / 3, 1, 3, 2), ("b", None, 1, 0, None, None, None, 0)]
    assert kept(lambda x: x.where("v > 5").aggregate(n="count(*)"), key="n", x=VALUES) == [], "a group without rows has no row"


ITEMS = [
    put(0, id="abc", price=9),
    *replaced(2, {"id": "abc", "price": 9}, {"id": "abc", "price": 10}),
    *replaced(6, {"id": "abc", "price": 10}, {"id": "abc", "price": 12}),
]
SALES = [put(5, n=1, id="abc"), put(8, n=2, id="abc"), put(8, n=3, id="new"), put(6, n=4, id="abc"), put(2, n=5, id="abc")]


def test_at_14_by_the_oracle() -> None:
    """Versions with their times, and facts with the version of their own commit time."""

    def history(items: Step) -> Step:
        return items.history("id", key="sk", key_from=100, start="since", end="until")

    assert kept(lambda item: history(item), key="sk", item=ITEMS) == [
        ("abc", 10, 101, moment(2), moment(6)),
        ("abc", 12, 102, moment(6), None),
        ("abc", 9, 100, moment(0), moment(2)),
    ]
    assert kept(lambda sale, item: sale.as_of(history(item), "id", take=["sk"]), key="n", sale=SALES, item=ITEMS) == [
        (1, "abc", 101),
        (2, "abc", 102),
        (3, "new", None),
        (4, "abc", 102),
        (5, "abc", 101),
    ]


def test_a18_what_does_not_change_a_version_opens_none() -> None:
    """An update of a column that is not looked at; a price that comes and goes in one commit; a row that is deleted and comes back in one commit, and later."""
    items = [
        put(0, id="abc", price=9, stock=5),
        *replaced(2, {"id": "abc", "price": 9, "stock": 5}, {"id": "abc", "price": 9, "stock": 4}),
        *replaced(4, {"id": "abc", "price": 9, "stock": 4}, {"id": "abc", "price": 10, "stock": 4}),
        *replaced(4, {"id": "abc", "price": 10, "stock": 4}, {"id": "abc", "price": 9, "stock": 3}),
        end(6, id="abc", price=9, stock=3),
        put(6, id="abc", price=9, stock=2),
        end(7, id="abc", price=9, stock=2),
        put(8, id="abc", price=9, stock=1),
    ]

    def history(items: Step) -> Step:
        return items.select("id", "price").history("id", key="sk", start="since", end="until")

    assert kept(history, key="sk", item=items[:3]) == [("abc", 9, 1, moment(0), None)]
    assert kept(history, key="sk", item=items) == [("abc", 9, 1, moment(0), moment(7)), ("abc", 9, 6, moment(8), None)]


def test_an_additive_target_sums_by_key() -> None:
    """Keys whose rows are gone are gone."""
    flow = Flow("example")
    flow.stream("line").select("k", "qty").into("t", keys=["k"], additive=["qty"])
    changes = {"line": [put(1, k=1, qty=2), put(1, k=1, qty=3), put(1, k=2, qty=1), end(2, k=2, qty=1)]}

    assert recompute(flow, changes).tables["t"].bag() == {(1, 5): 1}


def test_tables_with_system_columns_are_taken_as_they_are() -> None:
    """A stream's own table has times as timestamps."""
    flow = Flow("example")
    flow.stream("line").into("t", keys=["k"])
    table = pa.table({"k": [1, 2], "_change_type": ["insert", "insert"], "_commit_timestamp": pa.array([5, 9], pa.timestamp("us", "UTC"))})

    assert recompute(flow, {"line": table}, up_to_us=5).tables["t"].bag() == {(1,): 1}
    assert recompute(flow, {}, columns={"line": ["k"]}).tables["t"].columns == ("k",)


@pytest.mark.parametrize(
    ("text", "row", "expected"),
    [
        ("qty * price", {"qty": 2, "price": 5.0}, 10.0),
        ("qty > 0 and not void", {"qty": 1, "void": None}, None),
        ("qty > 0 and not void", {"qty": 0, "void": None}, False),
        ("a or b", {"a": None, "b": True}, True),
        ("case when a is null then 0 else a + 1 end", {"a": None}, 0),
        ("a in (1, null)", {"a": 2}, None),
        ("coalesce(a, b, 0)", {"a": None, "b": None}, 0),
        ("`A` % 2", {"a": -3}, -1),
        ("a between 1 and 3", {"a": 3}, True),
        ("a is not null", {"a": 3}, True),
        ("upper(concat(s, 'y'))", {"s": "x"}, "XY"),
        ("a * 1.5", {"a": 2}, Decimal("3.0")),
        ("a * 1.5", {"a": 2.0}, 3.0),
        ("a / 2", {"a": 1}, 0.5),
        ("-a <> 1", {"a": 1}, True),
        ("a = null", {"a": 1}, None),
    ],
)
def test_expressions_are_those_of_sql(text: str, row: dict[str, Any], expected: Any) -> None:
    """Null is not known, and numbers keep their kind."""
    assert compiled(text)(row) == expected


def test_what_is_not_known_is_refused() -> None:
    """The oracle does not guess."""
    with pytest.raises(SqlRefused, match="RAND"):
        compiled("rand()")
