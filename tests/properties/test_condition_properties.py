"""Laws of conditions and values: random expressions over random rows, against an evaluator that goes row by row in plain Python."""

import contextlib
import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from righttime.changes.conditions import Condition, Expression, condition_of, parse_assignment, parse_condition
from righttime.changes.schema import declare_table
from righttime.errors import InputError, OperationFailed

TABLE = declare_table("t", "n INT, a INT, c BIGINT, x DOUBLE, s STRING, ok BOOLEAN, p DECIMAL(10,2), d DATE", keys=["n"])
INT, BIG = range(-(2**31), 2**31), range(-(2**63), 2**63)
Row = dict[str, Any]

numbers = st.sampled_from([0, 1, -1, 2, 7, 2**31 - 1, -(2**31)])
rows = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.integers(0, 3),
            "a": st.none() | numbers,
            "c": st.none() | numbers | st.sampled_from([2**63 - 1, -(2**63), 3_000_000_000]),
            "x": st.none() | st.sampled_from([0.0, -0.0, 1.5, -2.0, math.nan, -math.nan, math.inf]),
            "s": st.none() | st.sampled_from(["", "a", "ab", "b%", "é", "A"]),
            "ok": st.none() | st.booleans(),
            "p": st.none() | st.sampled_from([Decimal("0.00"), Decimal("1.50"), Decimal("-99999999.99")]),
            "d": st.none() | st.dates(dt.date(2025, 1, 1), dt.date(2025, 1, 5)),
        }
    ),
    max_size=6,
)


@dataclass(frozen=True)
class Node:
    """An expression: its text, its kind (range of integers, or a name), and its value for one row."""

    text: str
    kind: Any
    value: Callable[[Row], Any]


def wider(left: Node, right: Node) -> range:
    """Return the integers of a result."""
    return BIG if BIG in (left.kind, right.kind) else INT


def within(value: int, kind: range) -> int:
    """Return the value if the type holds it."""
    if value not in kind:
        raise ArithmeticError(value)
    return value


def sum_of(left: Node, right: Node, operator: str) -> Node:
    """Return `left operator right` for + - *."""
    compute = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator]

    def value(row: Row) -> Any:
        first = left.value(row)
        second = right.value(row) if first is not None else None
        return None if second is None else within(compute(first, second), wider(left, right))

    return Node(f"({left.text} {operator} {right.text})", wider(left, right), value)


def remainder_of(left: Node, right: Node) -> Node:
    """Return `left % right`, with the sign of the dividend; the divisor is looked at first."""

    def value(row: Row) -> Any:
        divisor = right.value(row)
        dividend = left.value(row) if divisor is not None else None
        if dividend is None:
            return None
        if divisor == 0:
            raise ArithmeticError("zero")
        return abs(dividend) % abs(divisor) * (1 if dividend >= 0 else -1)

    return Node(f"({left.text} % {right.text})", wider(left, right), value)


def case_of(test: Node, yes: Node, no: Node) -> Node:
    """Return CASE WHEN, which computes one branch."""
    return Node(f"CASE WHEN {test.text} THEN {yes.text} ELSE {no.text} END", wider(yes, no), lambda row: yes.value(row) if test.value(row) else no.value(row))


def coalesce_of(left: Node, right: Node) -> Node:
    """Return the first that is not null."""

    def value(row: Row) -> Any:
        first = left.value(row)
        return right.value(row) if first is None else first

    return Node(f"coalesce({left.text}, {right.text})", wider(left, right), value)


@st.composite
def integers(draw: Any, depth: int = 2) -> Node:
    """Draw an expression of whole numbers."""
    shape = draw(st.sampled_from(["a", "c", "literal"] if depth == 0 else ["a", "c", "literal", "+", "-", "*", "%", "case", "coalesce", "length"]))
    if shape in ("a", "c"):
        return Node(draw(st.sampled_from([shape, shape.upper(), f"`{shape}`"])), INT if shape == "a" else BIG, lambda row: row[shape])
    if shape == "literal":
        number = draw(numbers)
        return Node(f"({number})", INT, lambda _row: number)
    if shape == "length":
        return Node("length(s)", INT, lambda row: None if row["s"] is None else len(row["s"]))
    left, right = draw(integers(depth - 1)), draw(integers(depth - 1))
    if shape == "case":
        return case_of(draw(booleans(depth - 1)), left, right)
    if shape == "coalesce":
        return coalesce_of(left, right)
    return remainder_of(left, right) if shape == "%" else sum_of(left, right, shape)


def ordered(left: Any, right: Any) -> int:
    """Compare as Spark does: NaN is equal to itself and above every number."""
    if isinstance(left, float) and isinstance(right, float):
        left, right = ((math.isnan(one), 0.0 if math.isnan(one) else one) for one in (left, right))
    return int(left > right) - int(left < right)


def comparison_of(left: Node, right: Node, operator: str) -> Node:
    """Return `left operator right`."""
    holds = {"=": (0,), "<>": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1), "<=>": (0,)}[operator]

    def value(row: Row) -> Any:
        first = left.value(row)
        if operator == "<=>":
            second = right.value(row)
            return first is second if first is None or second is None else ordered(first, second) == 0
        second = right.value(row) if first is not None else None
        return None if second is None else ordered(first, second) in holds

    return Node(f"({left.text} {operator} {right.text})", "boolean", value)


def logic_of(left: Node, right: Node, operator: str) -> Node:
    """Return AND or OR, which looks to the right only if the left does not decide."""
    decided = operator == "OR"

    def value(row: Row) -> Any:
        first = left.value(row)
        if first is decided:
            return decided
        second = right.value(row)
        return decided if second is decided else None if None in (first, second) else not decided

    return Node(f"({left.text} {operator} {right.text})", "boolean", value)


def opposite(part: Node) -> Node:
    """Return NOT."""

    def value(row: Row) -> Any:
        found = part.value(row)
        return None if found is None else not found

    return Node(f"NOT ({part.text})", "boolean", value)


def leaves(draw: Any) -> Node:
    """Draw a condition without parts that are conditions."""
    operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"]))
    shape = draw(st.sampled_from(["x", "s", "d", "n", "ok", "in", "null"]))
    if shape == "x":
        number = draw(st.sampled_from([0.0, 1.5, -2.0]))
        return comparison_of(Node("x", "double", lambda row: row["x"]), Node(f"({number!r}D)", "double", lambda _row: number), operator)
    if shape == "s":
        word = draw(st.sampled_from(["", "a", "ab", "é"]))
        return comparison_of(Node("s", "text", lambda row: row["s"]), Node(f"'{word}'", "text", lambda _row: word), operator)
    if shape == "d":
        day = draw(st.dates(dt.date(2025, 1, 1), dt.date(2025, 1, 5)))
        return comparison_of(Node(f"'{day}'", "date", lambda _row: day), Node("d", "date", lambda row: row["d"]), operator)
    if shape == "n":
        number = draw(st.integers(-1, 4))
        return comparison_of(Node("n", INT, lambda row: row["n"]), Node(f"({number})", INT, lambda _row: number), operator)
    if shape == "in":
        choices = draw(st.lists(st.none() | numbers, min_size=1, max_size=3))
        listed = ", ".join("NULL" if choice is None else str(choice) for choice in choices)
        return Node(
            f"(a IN ({listed}))", "boolean", lambda row: None if row["a"] is None else True if row["a"] in choices else None if None in choices else False
        )
    if shape == "null":
        return Node("(s IS NULL)", "boolean", lambda row: row["s"] is None)
    return Node("ok", "boolean", lambda row: row["ok"])


@st.composite
def booleans(draw: Any, depth: int = 3) -> Node:
    """Draw a condition."""
    shape = draw(st.sampled_from(["leaf"] if depth == 0 else ["leaf", "compare", "AND", "OR", "NOT", "between"]))
    if shape == "leaf":
        return leaves(draw)
    if shape == "compare":
        operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
        return comparison_of(draw(integers(depth - 1)), draw(integers(depth - 1)), operator)
    if shape == "between":
        part, low, high = Node("a", INT, lambda row: row["a"]), draw(integers(0)), draw(integers(0))
        both = logic_of(comparison_of(part, low, ">="), comparison_of(part, high, "<="), "AND")
        return Node(f"(a BETWEEN {low.text} AND {high.text})", "boolean", both.value)
    left = draw(booleans(depth - 1))
    return opposite(left) if shape == "NOT" else logic_of(left, draw(booleans(depth - 1)), shape)


def table_of(found: list[Row]) -> pa.Table:
    """Return rows as the table holds them."""
    return pa.Table.from_pylist(found, schema=TABLE.columns)


def modelled(node: Node, found: list[Row]) -> tuple[list[Any], list[Row]]:
    """Return the value of each row that has one, and these rows."""
    values, good = [], []
    for row in found:
        with contextlib.suppress(ArithmeticError):
            values.append(node.value(row))
            good.append(row)
    return values, good


@settings(max_examples=300)
@given(node=booleans(), found=rows)
def test_a_mask_is_what_a_row_by_row_evaluation_gives(node: Node, found: list[Row]) -> None:
    """Three-valued logic, Spark's order of NaN, failures only where a row needs the failing part."""
    condition = parse_condition(node.text, TABLE)
    values, good = modelled(node, found)
    if len(good) < len(found):
        assert condition.can_fail
        with pytest.raises(OperationFailed):
            condition.mask(table_of(found))
    assert condition.mask(table_of(good)).to_pylist() == [value is True for value in values]


@settings(max_examples=200)
@given(node=integers(depth=3), found=rows)
def test_computed_values_are_those_of_a_row_by_row_evaluation(node: Node, found: list[Row]) -> None:
    """Overflow and division by zero fail, null stays null, everything else is exact."""
    assignment = parse_assignment("c", Expression(f"{node.text} + 0 * c"), TABLE)
    whole = sum_of(node, Node("(0 * c)", BIG, lambda row: None if row["c"] is None else 0), "+")
    values, good = modelled(whole, found)
    if len(good) < len(found):
        with pytest.raises(OperationFailed):
            assignment.values(table_of(found))
    assert assignment.values(table_of(good)).to_pylist() == values


@given(node=booleans(), found=rows)
def test_the_text_of_a_condition_is_the_condition(node: Node, found: list[Row]) -> None:
    """What is logged and sent reads back as an equal condition with the same mask."""
    condition = parse_condition(node.text, TABLE)
    again = parse_condition(condition.text, TABLE)
    _, good = modelled(node, found)
    assert (again, hash(again), again.columns, again.can_fail) == (condition, hash(condition), condition.columns, condition.can_fail)
    assert again.mask(table_of(good)) == condition.mask(table_of(good))
    assert (again.ranges(), again.key_values()) == (condition.ranges(), condition.key_values())


@settings(max_examples=300)
@given(node=booleans(), found=rows)
def test_ranges_hold_every_row_that_is_meant(node: Node, found: list[Row]) -> None:
    """Pruning by ranges never loses a row, also where statistics leave NaN out."""
    condition = parse_condition(node.text, TABLE)
    values, good = modelled(node, found)
    for row in [row for row, value in zip(good, values, strict=True) if value is True]:
        for column, (low, high) in condition.ranges().items():
            assert row[column] is not None
            assert low is None or low <= row[column]
            assert high is None or row[column] <= high


@given(node=booleans(), found=rows, cuts=st.lists(st.integers(0, 6), max_size=3))
def test_chunks_make_no_difference(node: Node, found: list[Row], cuts: list[int]) -> None:
    """Rows in any chunks get the mask that they get in one."""
    condition = parse_condition(node.text, TABLE)
    _, good = modelled(node, found)
    whole = table_of(good)
    places = [0, *sorted(min(cut, len(good)) for cut in cuts), len(good)]
    cut = pa.concat_tables([whole.slice(start, stop - start) for start, stop in pairwise(places)])
    assert condition.mask(cut).to_pylist() == condition.mask(whole).to_pylist()


@given(
    values=st.fixed_dictionaries(
        {
            "a": st.integers(-(2**31), 2**31 - 1),
            "c": st.integers(-(2**63), 2**63 - 1),
            "x": st.floats(),
            "s": st.text(st.characters(exclude_categories=["Cs"])),
            "ok": st.booleans(),
            "p": st.decimals(-99_999_999, 99_999_999, places=2),
            "d": st.dates(),
        }
    )
)
def test_every_value_of_a_mapping_finds_its_row(values: Row) -> None:
    """A row meets the condition made of its own values, and so does the condition's text."""
    condition = condition_of(values, TABLE)
    row = table_of([{"n": 1, **values}])
    assert condition.mask(row).to_pylist() == [True]
    again = parse_condition(condition.text, TABLE)
    assert again == condition
    assert again.mask(row).to_pylist() == [True]


def assert_key(table: Any, value: Any) -> None:
    """Check that the key of a mapping comes back, from its text as well."""
    condition: Condition = condition_of({"k": value}, table)
    for one in (condition, parse_condition(condition.text, table), parse_condition("? = K", table, [value])):
        found = one.key_values()
        assert found is not None
        assert found[0] == value or value != value
        assert type(found[0]) is type(value)


@given(whole=st.integers(-128, 127), text=st.text(st.characters(exclude_categories=["Cs"])), raw=st.binary(), day=st.dates(), at=st.datetimes())
def test_every_key_comes_back_as_it_was(whole: int, text: str, raw: bytes, day: dt.date, at: dt.datetime) -> None:
    """Key operations are settled by these values: the same value and class, whatever way they came."""
    assert_key(declare_table("t", "k TINYINT", keys=["k"]), whole)
    assert_key(declare_table("t", "k STRING", keys=["k"]), text)
    assert_key(declare_table("t", "k BINARY", keys=["k"]), raw)
    assert_key(declare_table("t", "k DATE", keys=["k"]), day)
    assert_key(declare_table("t", "k TIMESTAMP_NTZ", keys=["k"]), at)
    assert_key(declare_table("t", "k TIMESTAMP", keys=["k"]), at.replace(tzinfo=dt.UTC))


WORDS = (
    "a c x s ok p d ghost ( ) , . ? + - * / % || = <> < <=> ! NOT AND OR IS NULL IN BETWEEN LIKE ESCAPE CASE WHEN THEN ELSE END CAST AS INT DATE "
    "'2025-01-01' 'a%' 1 1.5 1e3 5L X'0f' SELECT FROM count rand coalesce nullif lower trim length abs -- /* */ ; :: [ ] { } \\ ` \" interval true OVER"
)


@given(words=st.lists(st.sampled_from(WORDS.split()), max_size=12))
def test_any_text_is_a_condition_or_refused(words: list[str]) -> None:
    """Whatever is written, the answer is a condition that reads back, or a coded error of the caller."""
    with contextlib.suppress(InputError):
        condition = parse_condition(" ".join(words), TABLE, [1] * words.count("?"))
        assert parse_condition(condition.text, TABLE) == condition
        condition.mask(table_of([]))
