"""Conditions: what they mean, which key they name, which ranges they imply, and what is refused."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from righttime.changes.conditions import condition_of, everything, parse_condition
from righttime.changes.schema import declare_table
from righttime.errors import OperationFailed, SqlRefused, UnknownColumn, WrongType

COLUMNS = "id BIGINT, Shop INT, qty INT, price DECIMAL(10,2), note STRING, rate DOUBLE, weight FLOAT, day DATE, at TIMESTAMP, ok BOOLEAN, tags ARRAY<STRING>"
SALE = declare_table("sale", COLUMNS, keys=["id", "shop"])
ROWS = pa.Table.from_pylist(
    [
        {
            "id": 1,
            "Shop": 1,
            "qty": 0,
            "price": Decimal("1.50"),
            "note": "a",
            "rate": 1.5,
            "weight": 0.1,
            "day": dt.date(2026, 1, 31),
            "ok": True,
            "tags": ["x"],
        },
        {
            "id": 2,
            "Shop": 1,
            "qty": 5,
            "price": Decimal("9.99"),
            "note": "B",
            "rate": math.nan,
            "weight": 2.0,
            "day": dt.date(2026, 2, 1),
            "ok": False,
            "tags": [],
        },
        {"id": 3, "Shop": 2, "qty": None, "price": None, "note": None, "rate": None, "weight": None, "day": None, "ok": None, "tags": None},
    ],
    schema=SALE.columns,
)


def meant(text: str, *parameters: Any) -> list[int]:
    """Return the ids of the rows that a condition means."""
    found: list[int] = ROWS.filter(parse_condition(text, SALE, parameters).mask(ROWS))["id"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("qty = 5", [2]),
        ("qty <> 5", [1]),
        ("NOT qty = 5", [1]),
        ("qty <=> NULL", [3]),
        ("qty IS NULL OR ok", [1, 3]),
        ("NOT (ok AND NULL)", [2]),
        ("qty NOT IN (5, NULL)", []),
        ("qty BETWEEN 0 AND 4", [1]),
        ("note LIKE '_' AND lower(note) = 'b'", [2]),
        ("price * 2 >= 3", [1, 2]),
        ("rate > 1e300", [2]),
        ("rate = CAST('NaN' AS DOUBLE)", [2]),
        ("day < '2026-02-01'", [1]),
        ("tags IS NOT NULL", [1, 2]),
        ("sale.SHOP = 2", [3]),
        ("weight = 0.1", []),
        ("weight = 0.1F", [1]),
        ("TRUE", [1, 2, 3]),
        ("NULL", []),
        ("CASE WHEN qty = 0 THEN FALSE ELSE 10 / qty > 1 END", [2]),
        ("qty <> 0 AND 10 / qty > 1", [2]),
        ("id = 99 AND 1 / 0 > 1", []),
        ("7 % 4 + qty = 8", [2]),
        ("concat(upper('ß'), note) = 'SSa'", [1]),
        ("note LIKE concat('a', '')", [1]),
    ],
)
def test_a_condition_means_the_rows_for_which_it_is_true(text: str, ids: list[int]) -> None:
    """Null is not true, NaN is above every number, and a branch that is not taken cannot fail."""
    assert meant(text) == ids


@pytest.mark.parametrize(
    ("text", "canonical", "ids"),
    [
        ("note IN ('a', 'b')", "`note` IN ('a', 'b')", [1]),
        ("note NOT IN ('a', 'b')", "NOT (`note` IN ('a', 'b'))", [2]),
        ("note IN ('a', NULL)", "`note` IN ('a', NULL)", [1]),
        ("note NOT IN ('a', NULL)", "NOT (`note` IN ('a', NULL))", []),
        ("lower(note) IN ('b', 'c')", "lower(`note`) IN ('b', 'c')", [2]),
        ("note IN ('a')", "`note` = 'a'", [1]),
        ("day IN ('2026-01-31', '2026-03-01')", "`day` IN (DATE '2026-01-31', DATE '2026-03-01')", [1]),
    ],
)
def test_a_list_of_texts_is_one_list(text: str, canonical: str, ids: list[int]) -> None:
    """As a list of numbers is, and not a comparison for each: thousands of those take seconds."""
    condition = parse_condition(text, SALE)
    assert condition.text == canonical
    assert parse_condition(condition.text, SALE) == condition
    assert meant(text) == ids


def test_a_list_of_texts_implies_a_range() -> None:
    """Files whose texts are all outside of it need not be read."""
    assert parse_condition("note IN ('b', NULL, 'a')", SALE).ranges() == {"note": ("a", "b")}


@pytest.mark.parametrize(
    "text",
    [
        "ok = qty < 5",
        "qty < 5 = ok",
        "ok = ok = ok",
        "ok = qty <> 5",
        "ok = qty IN (1, 2)",
        "ok = qty NOT IN (1, 2)",
        "qty BETWEEN 1 AND 5 = ok",
        "qty < qty BETWEEN 1 AND 5",
        "ok = note LIKE 'a'",
        "note LIKE 'a' = ok",
        "note LIKE 'a' ESCAPE '#' = ok",
        "ok = NOT qty = 5",
    ],
)
def test_chains_of_comparisons_take_brackets(text: str) -> None:
    """Spark reads comparisons from left to right, and IN, BETWEEN and LIKE after them; the parser here ranks them otherwise."""
    with pytest.raises(SqlRefused, match="brackets"):
        parse_condition(text, SALE)


@pytest.mark.parametrize(
    ("text", "ids"),
    [("ok = (qty < 5)", [1, 2]), ("(qty BETWEEN 1 AND 5) = NOT (ok)", [1, 2]), ("(qty IS NULL) = (ok IS NULL)", [1, 2, 3]), ("ok = ok IS TRUE", [1, 2])],
)
def test_comparisons_in_brackets_are_compared(text: str, ids: list[int]) -> None:
    """Brackets say what is meant."""
    condition = parse_condition(text, SALE)
    assert meant(text) == ids
    assert parse_condition(condition.text, SALE) == condition


def test_parameters_stand_for_literals_in_their_order() -> None:
    """`?` takes the next value, and the text that is kept holds it."""
    condition = parse_condition("note = ? OR qty = ? OR day = ?", SALE, ["it's", 5, dt.date(2026, 1, 31)])
    assert condition.text == "((`note` = 'it\\'s') OR (`qty` = 5)) OR (`day` = DATE '2026-01-31')"
    assert condition.mask(ROWS).to_pylist() == [True, True, False]
    assert parse_condition(condition.text, SALE) == condition


@pytest.mark.parametrize(
    ("text", "parameters", "canonical"),
    [
        ("qty = -CAST(? AS INT)", [5], "`qty` = (-CAST(5 AS INT))"),
        ("qty = -CAST(? AS INT) OR id = ?", [5, 7], "(`qty` = (-CAST(5 AS INT))) OR (`id` = 7)"),
        ("qty = -CAST(-CAST(? AS INT) AS INT) AND id = ?", [5, 7], "(`qty` = (-CAST(-CAST(5 AS INT) AS INT))) AND (`id` = 7)"),
        (
            f"qty = -CAST(? AS INT) AND id IN ({', '.join('?' * 120)})",
            [5, *range(120)],
            f"(`qty` = (-CAST(5 AS INT))) AND (`id` IN ({', '.join(map(str, range(120)))}))",
        ),
    ],
)
def test_each_parameter_is_taken_once(text: str, parameters: list[Any], canonical: str) -> None:
    """Minus in front of a CAST looks at it twice, and must not take the next parameter for it."""
    assert parse_condition(text, SALE, parameters).text == canonical


@pytest.mark.parametrize("number", [2**63 + 1, 10**25 + 1, -(2**63) - 1, 10**30 - 1])
@pytest.mark.parametrize(
    "text", ["big - ? = 0", "CASE WHEN ok THEN ? ELSE big END = big", "coalesce(NULL, ?) = big", "big IN (?, 1)", "big = ?", "big * 1 < ? + 1"]
)
def test_a_whole_number_beyond_bigint_keeps_every_digit(text: str, number: int) -> None:
    """It is a DECIMAL, as the same digits in the text are, and not the DOUBLE next to it."""
    table = declare_table("wide", "big DECIMAL(30,0), ok BOOLEAN")
    rows = pa.table({"big": [Decimal(number), Decimal(number - 1)], "ok": [True, True]}, table.columns)

    condition = parse_condition(text, table, [number])

    assert condition == parse_condition(text.replace("?", str(number)), table)
    assert condition == parse_condition(condition.text, table)
    assert condition.mask(rows).to_pylist()[0]


@pytest.mark.parametrize("number", [np.uint64(2**63 + 1), Decimal("1E+30"), Decimal("-12E+28")])
def test_other_classes_of_large_numbers_keep_every_digit(number: Any) -> None:
    """Those of numpy, and a Decimal with more places than Python's default precision has."""
    table = declare_table("wide", "big DECIMAL(38,0)")
    condition = parse_condition("big + ? = 0", table, [number])
    assert condition == parse_condition(f"big + {int(number)} = 0", table)


@pytest.mark.parametrize("given", [math.nan, -math.nan])
@pytest.mark.parametrize("text", ["rate IN (?, 5)", "rate = ?", "rate <=> ?", "rate >= ?", "NOT rate < ?", "CASE rate WHEN ? THEN TRUE END"])
def test_not_a_number_is_one_value_whatever_its_bits(text: str, given: float) -> None:
    """Inf - inf gives NaN with another sign than Python's, in Arrow as well: `=` and IN find both."""
    table = declare_table("t", "rate DOUBLE")
    rows = pa.table({"rate": pa.array([math.nan, -math.nan, 0.0, None])})
    assert parse_condition(text, table, [given]).mask(rows).to_pylist() == [True, True, False, False]


def test_a_naive_datetime_means_utc() -> None:
    """As in an insert."""
    naive, aware = (
        parse_condition("at = ?", SALE, [at]) for at in (dt.datetime(2026, 1, 31, 12), dt.datetime(2026, 1, 31, 13, tzinfo=dt.timezone(dt.timedelta(hours=1))))
    )
    assert naive == aware
    assert naive.text == "`at` = TIMESTAMP '2026-01-31 12:00:00+00:00'"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("id = 7 AND shop = 2", (7, 2)),
        ("2 = SHOP AND (`ID` = 7L)", (7, 2)),
        ("id <=> 7 AND shop = 2", (7, 2)),
        ("id IN (7) AND shop IN (2L)", (7, 2)),
        ("id IN (7, 8) AND shop = 2", None),
        ("id = 7", None),
        ("id = 7 AND shop = 2 AND qty = 1", None),
        ("id = 7 AND shop = 2 AND id = 7", None),
        ("id = 7 OR shop = 2", None),
        ("id = 7 AND shop > 2", None),
        ("id = 7 AND shop = 3000000000", None),
        ("id = 7 AND shop = NULL", None),
        ("id = 7 AND shop = 1 + 1", None),
        ("id = 7.0 AND shop = 2.5", None),
        ("TRUE", None),
    ],
)
def test_a_key_is_named_by_all_its_columns_and_nothing_else(text: str, key: tuple[Any, ...] | None) -> None:
    """Only such a condition can be settled without looking at other columns."""
    assert parse_condition(text, SALE).key_values() == key


def test_a_mapping_on_the_key_names_the_key() -> None:
    """In the key's order and in any spelling; with another column, or a null, it names none."""
    assert condition_of({"SHOP": 2, "id": 7}, SALE).key_values() == (7, 2)
    assert condition_of({"id": 7, "shop": 2, "ok": True}, SALE).key_values() is None
    assert condition_of({"id": 7, "shop": None}, SALE).key_values() is None
    assert everything(SALE).key_values() is None
    assert everything(declare_table("t", "a INT")).key_values() is None


def test_a_mapping_and_its_sql_are_equal() -> None:
    """So that both ways share what is made of them."""
    mapping = condition_of({"id": 7, "price": Decimal("1.5"), "note": None}, SALE)
    assert mapping == parse_condition("(id = 7 AND price = 1.5) AND note IS NULL", SALE)
    assert mapping.columns == ("id", "price", "note")


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("qty = 5", {"qty": (5, 5)}),
        ("qty > 5 AND qty <= 9 AND note = 'a'", {"qty": (5, 9), "note": ("a", "a")}),
        ("5 > qty", {"qty": (None, 5)}),
        ("qty IN (3, NULL, 1)", {"qty": (1, 3)}),
        ("qty = 1 OR qty = 4", {"qty": (1, 4)}),
        ("qty = 1 OR note = 'a'", {}),
        ("qty > 1 OR qty < 0", {}),
        ("NOT qty = 1", {}),
        ("qty <> 1 OR qty IS NULL", {}),
        ("qty = 1 AND qty = 2", {"qty": (2, 1)}),
        ("rate > 5e0", {}),
        ("rate > 5e0 AND rate < 9e0", {"rate": (5.0, 9.0)}),
        ("rate <= CAST('NaN' AS DOUBLE)", {}),
        ("rate IN (1e0, CAST('NaN' AS DOUBLE))", {}),
        ("price BETWEEN 1 AND 2.5", {"price": (Decimal("1.00"), Decimal("2.50"))}),
        ("price < 2.555", {}),
        ("qty + 1 = 5", {}),
        ("TRUE", {}),
    ],
)
def test_ranges_are_implied(text: str, ranges: dict[str, tuple[Any, Any]]) -> None:
    """A bound is given only where every row that is meant lies within, NaN and what statistics say of it included."""
    assert parse_condition(text, SALE).ranges() == ranges


@pytest.mark.parametrize(
    ("text", "can_fail"),
    [
        ("qty = 5", False),
        ("qty + 1 = 5", True),
        ("rate + 1e0 = 5", False),
        ("price + 1 = 5", False),
        ("price / 3 = 5", True),
        ("10 / qty = 5", True),
        ("CAST(note AS INT) = 5", True),
        ("CAST(qty AS BIGINT) = 5", False),
        ("qty > 3000000000", False),
        ("length(note) = 1", False),
    ],
)
def test_a_condition_knows_whether_it_can_fail(text: str, can_fail: bool) -> None:
    """Those that can are tried at commit; the others need not be."""
    assert parse_condition(text, SALE).can_fail is can_fail


def test_a_failure_is_coded_and_names_the_columns() -> None:
    """Division by zero, overflow and texts that are no numbers are the loader's errors."""
    with pytest.raises(OperationFailed, match="division by zero") as caught:
        meant("10 / qty > 1")
    assert caught.value.code == "operation.failed"
    assert caught.value.context["column"] == "qty"
    with pytest.raises(OperationFailed, match="overflow"):
        meant("qty + 2147483647 > 1")
    with pytest.raises(OperationFailed, match="'a' is not a whole number"):
        meant("CAST(note AS INT) = 1")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("id IN (SELECT 1)", "subquery"),
        ("(SELECT 1) = 1", "subquery"),
        ("EXISTS (SELECT 1)", "subquery"),
        ("sum(qty) > 1", "several rows"),
        ("row_number() OVER (ORDER BY id) = 1", "several rows"),
        ("rand() > 0.5", "not known here"),
        ("at > now()", "not known here"),
        ("day = current_date", "not known here"),
        ("at > 'now'", "not known here"),
        ("my_function(qty) = 1", "not known here"),
        ("other.qty = 1", "not a column of sale"),
        ("qty", "no condition"),
        ("qty = 'five'", "comparing"),
        ("note + 1 = 2", "takes numbers"),
        ("qty LIKE '5'", "takes text"),
        ("note LIKE note", "pattern"),
        ("note LIKE 'a\\\\b'", "escape character"),
        ("note LIKE 'a' ESCAPE '##'", "one character"),
        ("tags = tags", "array, map or struct"),
        ("qty IN (shop, 1)", "list of literals"),
        ("TRY_CAST(note AS INT) = 1", "TRY_CAST"),
        ("CAST(note AS ARRAY<INT>) IS NULL", "CAST to ARRAY"),
        ("CAST(note AS INTERVAL) IS NULL", "type INTERVAL"),
        ("CAST(rate AS STRING) = 'a'", "CAST from DOUBLE to STRING"),
        ("note RLIKE 'a'", "not known here"),
        ("qty = :five", "named parameter"),
        ("qty = ?", "0 values were passed"),
        ("qty = 1; DROP TABLE sale", "not one expression"),
        ("qty = 1) OR (1 = 1", "not one expression"),
        ("qty = 1 FROM other", "cannot be read|not one expression"),
        ("qty = 1 -- \\\n AND TRUE", "comment"),
        ("qty = = 1", "cannot be read"),
        ("'open", "cannot be read"),
        ("qty = " + "1" * 39, "38 digits"),
        ("x" * 1_000_001, "over the bound"),
    ],
)
def test_what_is_not_known_is_refused(text: str, reason: str) -> None:
    """With a reason and a way out; nothing is ignored or guessed."""
    with pytest.raises(SqlRefused, match=reason) as caught:
        parse_condition(text, SALE)
    assert str(caught.value).endswith(".")


def test_unknown_columns_and_values_that_do_not_fit_are_refused() -> None:
    """As for an insert."""
    with pytest.raises(UnknownColumn, match="ghost"):
        parse_condition("ghost = 1", SALE)
    with pytest.raises(UnknownColumn, match="ghost"):
        condition_of({"ghost": 1}, SALE)
    with pytest.raises(WrongType, match="'five'"):
        condition_of({"qty": "five"}, SALE)
    with pytest.raises(WrongType):
        condition_of({"qty": 2**31}, SALE)
    with pytest.raises(SqlRefused, match="empty"):
        condition_of({}, SALE)
    with pytest.raises(SqlRefused, match="no literal"):
        parse_condition("qty = ?", SALE, [object()])


def test_deep_nesting_is_refused_or_computed() -> None:
    """A text cannot crash the reader."""
    assert meant(" OR ".join(["qty = 5"] * 50)) == [2]
    with pytest.raises(SqlRefused, match=r"nested too deeply|cannot be read"):
        meant("(" * 5_000 + "qty = 5" + ")" * 5_000)


def test_conditions_do_not_change_and_compare_by_text() -> None:
    """They are shared between threads and kept in sets."""
    condition = parse_condition("QTY=5", SALE)
    assert {condition, parse_condition("5 = 5 AND TRUE", SALE), parse_condition("`qty` = 5", SALE)} == {condition, parse_condition("5 = 5 AND TRUE", SALE)}
    with pytest.raises(AttributeError):
        condition.text = "TRUE"
    assert repr(condition) == "Condition(`qty` = 5)"


def test_rows_may_come_without_the_columns_that_are_not_read() -> None:
    """A scan fetches only what the condition reads, and for everything that is nothing."""
    assert parse_condition("qty = 5", SALE).mask(ROWS.select(["qty"])).to_pylist() == [False, True, False]
    assert everything(SALE).mask(ROWS.select([])).to_pylist() == [True, True, True]
    assert everything(SALE).mask(ROWS.slice(0, 0)).to_pylist() == []
    assert parse_condition("10 / qty > 1 OR 1 / 0 > 1", SALE).mask(ROWS.slice(0, 0)).to_pylist() == []
    assert parse_condition("1 / 0 > 1", SALE).mask(ROWS.slice(0, 0)).to_pylist() == []
    with pytest.raises(OperationFailed):
        parse_condition("1 / 0 > 1", SALE).mask(ROWS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("qty = %s", "%s is no placeholder here, ? is"),
        ("qty = %(qty)s", "%(qty)s is no placeholder here, ? is"),
        ("qty = $1", "is no placeholder here"),
        ("qty =", "it ends too early"),
        ("(qty = 1", "it ends too early"),
        ("qty BETWEEN 1", "it ends too early"),
        ("qty = = 1", "something is missing near '='"),
        ("qty = 5 6", "'6' is not expected there"),
        ("note = 'open", "a text, a name or a comment in it does not end"),
        ("at AT TIME ZONE 'x' = at", "at AT TIME ZONE 'x' is not known here"),
        ("other.sale.qty = 1", "other.sale.qty is not known here"),
    ],
)
def test_what_cannot_be_read_is_said_in_our_words(text: str, reason: str) -> None:
    """The parser's own words and classes help nobody."""
    with pytest.raises(SqlRefused) as caught:
        parse_condition(text, SALE)
    assert reason in str(caught.value)
    assert "sqlglot" not in str(caught.value)
