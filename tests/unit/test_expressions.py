"""Assignments: values that a column gets, checked as an insert checks them, computed as Spark computes them."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from righttime.changes.conditions import Assignment, Expression, parse_assignment
from righttime.changes.schema import declare_table
from righttime.errors import NullNotAllowed, OperationFailed, SqlRefused, UnknownColumn, WrongType

STOCK = declare_table(
    "stock",
    "id BIGINT, Qty INT, small TINYINT, price DECIMAL(6,2), name VARCHAR(5), note STRING, rate DOUBLE, day DATE, at TIMESTAMP, ok BOOLEAN NOT NULL, "
    "area STRING, tags ARRAY<INT>, more ARRAY<INT>",
    keys=["id"],
    partition_by=["area"],
)
ROWS = pa.Table.from_pylist(
    [
        {
            "id": 1,
            "Qty": 3,
            "small": 100,
            "price": Decimal("1.55"),
            "name": "abc",
            "note": "x",
            "rate": 0.5,
            "day": dt.date(2026, 1, 31),
            "ok": True,
            "area": "n",
        },
        {"id": 2, "Qty": None, "small": 1, "price": None, "name": None, "note": "", "rate": None, "day": None, "ok": False, "area": "s", "more": [1]},
    ],
    schema=STOCK.columns,
)


def computed(column: str, text: str, *parameters: Any) -> list[Any]:
    """Return what an expression gives the column, row by row."""
    found: list[Any] = parse_assignment(column, Expression(text), STOCK, parameters).values(ROWS).to_pylist()
    return found


def assert_reads_back(assignment: Assignment) -> None:
    """Check that the text stands for the assignment."""
    again = parse_assignment(assignment.column, Expression(assignment.text), STOCK)
    assert again == assignment
    assert (again.literal, again.columns, again.can_fail) == (assignment.literal, assignment.columns, assignment.can_fail)
    assert again.values(ROWS) == assignment.values(ROWS)


@pytest.mark.parametrize(
    ("column", "text", "values"),
    [
        ("qty", "qty + 1", [4, None]),
        ("QTY", "coalesce(qty, 0) * ?", [6, 0]),
        ("price", "price * 1.1", [Decimal("1.71"), None]),
        ("price", "qty", [Decimal("3.00"), None]),
        ("qty", "price", [1, None]),
        ("qty", "rate * 7", [3, None]),
        ("rate", "price", [1.55, None]),
        ("note", "upper(note) || '!'", ["X!", "!"]),
        ("note", "qty", ["3", None]),
        ("note", "CASE WHEN ok THEN 'yes' ELSE note END", ["yes", ""]),
        ("at", "day", [dt.datetime(2026, 1, 31, tzinfo=dt.UTC), None]),
        ("ok", "qty IS NULL", [False, True]),
        ("tags", "more", [None, [1]]),
        ("name", "lower(name)", ["abc", None]),
    ],
)
def test_an_expression_is_computed_for_each_row(column: str, text: str, values: list[Any]) -> None:
    """The result has the column's type, by Spark's rules for storing: numbers among each other, anything simple as text."""
    assignment = parse_assignment(column, Expression(text), STOCK, [2] * text.count("?"))
    found = assignment.values(ROWS)
    assert found.to_pylist() == values
    assert found.type == STOCK.columns.field(assignment.column).type
    assert not assignment.literal
    assert_reads_back(assignment)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("qty", 5, "5"),
        ("qty", None, "NULL"),
        ("price", Decimal("1.5"), "1.50"),
        ("price", 2, "2.00"),
        ("note", "it's \\ n", "'it\\'s \\\\ n'"),
        ("rate", 1.5, "1.5E0"),
        ("rate", float("inf"), "CAST('Infinity' AS DOUBLE)"),
        ("day", dt.date(2026, 1, 31), "DATE '2026-01-31'"),
        ("at", dt.datetime(2026, 1, 31, 12), "TIMESTAMP '2026-01-31 12:00:00+00:00'"),
        ("ok", True, "TRUE"),
        ("small", -128, "-128"),
        ("tags", None, "NULL"),
    ],
)
def test_a_value_is_a_literal_that_reads_back(column: str, value: Any, text: str) -> None:
    """It is known without rows, cannot fail, and its text gives the same value."""
    assignment = parse_assignment(column, value, STOCK)
    assert (assignment.literal, assignment.can_fail, assignment.columns, assignment.text) == (True, False, (), text)
    assert_reads_back(assignment)


def test_sql_literals_and_constants_are_literals() -> None:
    """What reads no column is computed at once."""
    assert parse_assignment("price", Expression("1.5"), STOCK) == parse_assignment("price", Decimal("1.50"), STOCK)
    assert parse_assignment("qty", Expression("(2 + 3) * 2"), STOCK).value == 10
    assert parse_assignment("rate", Expression("1"), STOCK).value == 1.0
    assert parse_assignment("qty", Expression("?"), STOCK, [7]).value == 7
    with pytest.raises(OperationFailed, match="division by zero"):
        parse_assignment("rate", Expression("1 / 0"), STOCK)


def test_a_value_that_does_not_fit_is_refused_as_by_an_insert() -> None:
    """Strictly: nothing is cut off."""
    for column, value in [("qty", 2**31), ("qty", 1.5), ("price", Decimal("1.555")), ("name", "toolong"), ("area", ""), ("day", "2026-01-31"), ("ok", 1)]:
        with pytest.raises(WrongType):
            parse_assignment(column, value, STOCK)
    for column in ("id", "ok"):
        with pytest.raises(NullNotAllowed):
            parse_assignment(column, None, STOCK)
        with pytest.raises(NullNotAllowed):
            parse_assignment(column, Expression("NULL"), STOCK)
    with pytest.raises(UnknownColumn):
        parse_assignment("ghost", 1, STOCK)


@pytest.mark.parametrize(
    ("column", "text", "reason"),
    [
        ("qty", "qty + 2147483647", "overflow"),
        ("small", "small * 2", "not in range|outside"),
        ("price", "price * 10000", "more digits than DECIMAL"),
        ("qty", "1 / (qty - 3)", "division by zero"),
        ("qty", "CAST(note AS INT)", "'x' is not a whole number"),
        ("id", "qty", "NULL, and the column is part of the key"),
        ("ok", "qty > 1", "NULL, and the column is declared NOT NULL"),
        ("name", "name || 'def'", "6 characters, over the bound 5"),
        ("area", "note", "empty text"),
    ],
)
def test_a_result_that_cannot_be_stored_fails_with_a_reason(column: str, text: str, reason: str) -> None:
    """Never a wrapped number, a cut text or a null in silence; and the assignment says beforehand that it can fail."""
    assert parse_assignment(column, Expression(text), STOCK).can_fail
    with pytest.raises(OperationFailed, match=reason) as caught:
        computed(column, text)
    assert (caught.value.context["table"], caught.value.context["column"]) == ("stock", STOCK.columns.field(column if column != "qty" else "Qty").name)


@pytest.mark.parametrize(
    ("left", "right", "product"),
    [
        ("2", "2", "4"),
        ("-9999999999999999999", "9999999999999999999", "-99999999999999999980000000000000000001"),
        ("0", "99999999999999999999999999999999999999", "0"),
        ("99999999999999999999999999999999999999", "1", "99999999999999999999999999999999999999"),
        ("10000000000000000000", "10000000000000000000", None),
        ("99999999999999999999999999999999999999", "-99999999999999999999999999999999999999", None),
    ],
)
def test_the_largest_decimals_are_multiplied(left: str, right: str, product: str | None) -> None:
    """Two of 38 digits have a product if it has no more, as in Spark; Arrow alone refuses them whatever they hold."""
    table = declare_table("t", "a DECIMAL(38,0), b DECIMAL(38,0)")
    rows = pa.table({"a": [Decimal(left), None], "b": [Decimal(right), Decimal(1)]}, table.columns)
    for text in ("a * b", f"a * CAST({right} AS DECIMAL(38,0))", f"CAST({left} AS DECIMAL(38,0)) * b"):
        assignment = parse_assignment("a", Expression(text), table)
        assert assignment.can_fail
        if product is None:
            with pytest.raises(OperationFailed, match="more digits"):
                assignment.values(rows.slice(0, 1))
        else:
            assert assignment.values(rows)[0].as_py() == Decimal(product)


def test_what_cannot_fail_says_so() -> None:
    """Such assignments need no trial."""
    for column, text in [("note", "upper(note)"), ("rate", "rate * 2"), ("price", "price"), ("rate", "qty / 2e0 + 1"), ("ok", "ok"), ("id", "id")]:
        assert parse_assignment(column, Expression(text), STOCK).can_fail is ("/" in text)


@pytest.mark.parametrize(
    ("column", "text", "reason"),
    [
        ("qty", "note", "cannot take STRING"),
        ("day", "note", "cannot take STRING"),
        ("qty", "ok", "cannot take BOOLEAN"),
        ("ok", "qty", "cannot take INT"),
        ("tags", "qty", "cannot take INT"),
        ("qty", "day", "cannot take DATE"),
        ("note", "rate", "cannot take DOUBLE"),
        ("qty", "(SELECT 1)", "subquery"),
        ("qty", "max(qty)", "several rows"),
        ("qty", "qty + 'a'", "takes numbers"),
        ("qty", "uuid()", "not known here"),
        ("price", "CAST(price AS DECIMAL(38,20)) / CAST(price AS DECIMAL(38,20))", "76 digits"),
        ("price", "CAST(price AS DECIMAL(38,0)) + CAST(price AS DECIMAL(38,38))", "76 digits"),
        ("note", "CASE WHEN ok THEN 1 ELSE 'a' END", "CASE of"),
        ("qty", "qty,", "cannot be read|not one expression"),
    ],
)
def test_an_expression_of_another_type_is_refused(column: str, text: str, reason: str) -> None:
    """Before anything is computed, with the CAST or the way that helps."""
    with pytest.raises(SqlRefused, match=reason):
        parse_assignment(column, Expression(text), STOCK)


def test_arrays_are_copied_or_emptied_but_not_written() -> None:
    """There is no literal for them that could be logged; an upsert gives whole rows."""
    assert computed("tags", "more") == [None, [1]]
    with pytest.raises(SqlRefused, match="upsert"):
        parse_assignment("tags", [1, 2], STOCK)


def test_no_rows_give_no_values() -> None:
    """With the column's type all the same."""
    for value in (5, Expression("qty + 1"), Expression("1 / (qty - 3)")):
        found = parse_assignment("qty", value, STOCK).values(ROWS.slice(0, 0))
        assert (len(found), found.type) == (0, pa.int32())
