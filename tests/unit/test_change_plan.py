"""UPDATE, DELETE and upserts as SQL: cut into parts, bound to tables, refused where they say more."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from righttime.changes.conditions import everything, parse_condition
from righttime.changes.schema import declare_table
from righttime.errors import RightTimeError, SqlRefused, UnknownColumn, WrongType
from righttime.query.change_plan import DeleteStatement, UpdateStatement, UpsertStatement, change_statement, plan_change, plan_upsert
from righttime.query.dbapi_types import ProgrammingError

SALE = declare_table(
    "sale", "id BIGINT, shop INT, qty INT, price DECIMAL(10,2), note STRING, ok BOOLEAN, day DATE, weight FLOAT, at TIMESTAMP_NTZ", keys=["id"]
)


def planned(sql: str, *parameters: Any) -> tuple[str, dict[str, str], str]:
    """Return kind, texts of the assignments by column, and the text of the condition."""
    statement = change_statement(sql)
    assert isinstance(statement, UpdateStatement | DeleteStatement)
    kind, assignments, condition = plan_change(statement, SALE, parameters)
    return kind, {one.column: one.text for one in assignments}, condition.text


@pytest.mark.parametrize(
    ("sql", "parameters", "plan"),
    [
        ("UPDATE sale SET qty = 1", (), ("update", {"qty": "1"}, "TRUE")),
        ("update SALE set QTY = qty + ? where ID = ?", (2, 7), ("update", {"qty": "`qty` + 2"}, "`id` = 7")),
        ("UPDATE `sale` SET `qty` = ?, note = ? WHERE id = ?;", (1, "a,b", 7), ("update", {"qty": "1", "note": "'a,b'"}, "`id` = 7")),
        ("UPDATE sale SET note = concat(note, ', WHERE '), ok = qty = 7 AND shop > 1", (), None),
        ("UPDATE sale SET ok = shop IS DISTINCT FROM 3 WHERE day = '2026-01-31' -- done", (), None),
        ("UPDATE sale SET qty = CASE WHEN ok THEN ? ELSE ? END WHERE shop IN (?, ?)", (1, 2, 3, 4), None),
        ("DELETE FROM sale", (), ("delete", {}, "TRUE")),
        ("DELETE FROM sale WHERE id = ? AND shop = ?", (7, 1), ("delete", {}, "(`id` = 7) AND (`shop` = 1)")),
        ("DELETE FROM sale WHERE note = 'x; DELETE FROM sale' OR qty < ?", (5,), None),
        ("DELETE FROM sale WHERE trim(BOTH FROM note) = ''", (), ("delete", {}, "trim(`note`) = ''")),
    ],
)
def test_statements_become_assignments_and_a_condition(sql: str, parameters: tuple[Any, ...], plan: tuple[str, dict[str, str], str] | None) -> None:
    """Parameters go in order, names in any case, and words in texts and brackets cut nothing."""
    found = planned(sql, *parameters)
    assert plan is None or found == plan


def test_words_in_texts_do_not_cut_a_statement() -> None:
    """Commas, WHERE and AND belong to the expression they stand in."""
    assert planned("UPDATE sale SET note = concat(note, ', WHERE '), ok = qty = 7 AND shop > 1") == (
        "update",
        {"note": "concat(`note`, ', WHERE ')", "ok": "(`qty` = 7) AND (`shop` > 1)"},
        "TRUE",
    )
    assert planned("UPDATE sale SET qty = CASE WHEN ok THEN ? ELSE ? END WHERE shop IN (?, ?)", 1, 2, 3, 4)[1:] == (
        {"qty": "CASE WHEN `ok` THEN 1 ELSE 2 END"},
        "`shop` IN (3, 4)",
    )


@pytest.mark.parametrize("value", [7, 7.0, Decimal("7.00"), None, 2**40, "7"])
@pytest.mark.parametrize("column", ["id", "shop", "price", "weight"])
def test_the_short_way_means_what_the_long_way_means(column: str, value: Any) -> None:
    """`column = ?` is planned without a parser; the condition is the same, or refused alike."""
    statement = change_statement(f"DELETE FROM sale WHERE {column} = ?")
    assert isinstance(statement, DeleteStatement)
    assert statement.keyed == (column,)
    try:
        wanted = parse_condition(f"{column} = ?", SALE, [value])
    except SqlRefused:
        with pytest.raises(SqlRefused):
            plan_change(statement, SALE, [value])
    else:
        assert plan_change(statement, SALE, [value])[2] == wanted


def test_a_condition_on_the_key_is_a_key_operation() -> None:
    """Whichever way it came."""
    for sql, parameters in [("DELETE FROM sale WHERE id = ?", [7]), ("DELETE FROM sale WHERE id = 7", []), ("DELETE FROM sale WHERE (7 = id)", [])]:
        statement = change_statement(sql)
        assert isinstance(statement, DeleteStatement)
        assert plan_change(statement, SALE, parameters)[2].key_values() == (7,)
    assert planned("UPDATE sale SET at = ?", dt.datetime(2026, 1, 31))[1] == {"at": "TIMESTAMP_NTZ '2026-01-31 00:00:00'"}


@pytest.mark.parametrize("sql", ["SELECT 1", "INSERT INTO sale VALUES (1)", "", "'open", "CREATE TABLE t (a INT)", "-- nothing"])
def test_other_statements_are_left_to_others(sql: str) -> None:
    """None says: this is no change of rows."""
    assert change_statement(sql) is None


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("UPDATE sale s SET qty = 1", "alias"),
        ("UPDATE sale AS s SET s.qty = 1", "alias"),
        ("UPDATE sale SET sale.qty = 1", "qualified"),
        ("UPDATE shop.sale SET qty = 1", "qualified"),
        ("UPDATE sale JOIN b SET qty = 1", "joins"),
        ("UPDATE sale SET qty = b.qty FROM b", "FROM"),
        ("UPDATE sale SET qty = 1 RETURNING *", "RETURNING"),
        ("UPDATE sale SET qty = 1 WHERE id = 1 ORDER BY id", "ORDER BY"),
        ("UPDATE sale SET (qty, shop) = (1, 2)", "name of a column"),
        ("UPDATE sale SET qty = 1, QTY = 2", "twice"),
        ("UPDATE sale SET qty", "gets no value"),
        ("UPDATE sale SET qty = 1,", "name of a column"),
        ("UPDATE sale SET qty = 1 WHERE", "no condition"),
        ("UPDATE sale SET qty = 1 WHERE ok WHERE ok", "twice"),
        ("UPDATE", "name of its table"),
        ("DELETE sale WHERE id = 1", "FROM"),
        ("DELETE FROM sale s WHERE s.id = 1", "alias"),
        ("DELETE FROM sale VERSION AS OF 3", "alias"),
        ("DELETE FROM sale USING b WHERE sale.id = b.id", "USING"),
        ("DELETE FROM sale WHERE id = 1 LIMIT 1", "LIMIT"),
        ("DELETE FROM sale; DELETE FROM sale", "several statements"),
        ("DELETE FROM sale WHERE id IN (SELECT id FROM b)", "subquery"),
        ("MERGE INTO sale USING b ON sale.id = b.id WHEN MATCHED THEN DELETE", "MERGE"),
        ("INSERT INTO sale VALUES (1) ON DUPLICATE KEY UPDATE qty = 1", "ON DUPLICATE KEY"),
        ("INSERT INTO sale (id) VALUES (1) ON CONFLICT (id) DO NOTHING", "DO UPDATE SET"),
        ("INSERT INTO sale (id, qty) VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET qty = 3", "EXCLUDED.qty"),
        ("INSERT INTO sale (id, qty) VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET qty = EXCLUDED.shop", "EXCLUDED.qty"),
        ("INSERT INTO sale (id, qty) VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET qty = EXCLUDED.qty WHERE ok", "WHERE"),
        ("INSERT INTO sale (id, qty) VALUES (1, 2) ON CONFLICT (id) WHERE ok DO UPDATE SET qty = EXCLUDED.qty", "DO UPDATE SET"),
        ("INSERT INTO sale (id, qty) SELECT 1, 2 ON CONFLICT (id) DO UPDATE SET qty = EXCLUDED.qty", "VALUES"),
        ("INSERT INTO sale (id, qty) VALUES (1, 2) ON CONFLICT (qty) DO UPDATE SET qty = EXCLUDED.qty", "key of sale"),
        ("INSERT INTO sale (id, qty, shop) VALUES (1, 2, 3) ON CONFLICT (id) DO UPDATE SET qty = EXCLUDED.qty", "every given column"),
        ("INSERT INTO sale (qty) VALUES (2) ON CONFLICT DO UPDATE SET qty = EXCLUDED.qty", "every given column"),
    ],
)
def test_forms_that_are_not_known_are_refused(sql: str, reason: str) -> None:
    """Each with its reason and the form that is accepted."""
    with pytest.raises(SqlRefused, match=reason):
        statement = change_statement(sql)
        assert statement is not None
        plan_upsert(statement, SALE) if isinstance(statement, UpsertStatement) else plan_change(statement, SALE)


def test_wrong_columns_values_and_counts_are_refused() -> None:
    """As for an INSERT."""
    for sql, parameters, kind in (
        ("UPDATE sale SET ghost = 1", (), UnknownColumn),
        ("UPDATE sale SET ghost = ?", (1,), UnknownColumn),
        ("DELETE FROM sale WHERE ghost = ?", (1,), UnknownColumn),
        ("UPDATE sale SET qty = ?", ("a",), WrongType),
        ("UPDATE sale SET qty = 1.5", (), WrongType),
        ("UPDATE sale SET qty = ?", (), ProgrammingError),
        ("DELETE FROM sale WHERE id = ?", (1, 2), ProgrammingError),
    ):
        expected: type[Exception] = kind
        with pytest.raises(expected) as caught:
            planned(sql, *parameters)
        assert isinstance(caught.value, RightTimeError | ProgrammingError)


def test_an_upsert_gives_rows_of_the_named_columns() -> None:
    """With or without the keys named, in the order of the statement's columns."""
    for keys in ("", "(id)", "(`ID`)"):
        statement = change_statement(f"INSERT INTO sale (QTY, id) VALUES (?, ?), (3, ?) ON CONFLICT {keys} DO UPDATE SET qty = EXCLUDED.`qty`;")
        assert isinstance(statement, UpsertStatement)
        assert (statement.table, statement.placeholders) == ("sale", 3)
        plan = plan_upsert(statement, SALE)
        assert plan.columns == ("qty", "id")
        assert plan.insert.rows([1, 2, 4]) == [(1, 2), (3, 4)]


def test_an_upsert_without_columns_gives_whole_rows() -> None:
    """All columns of the table, in its order."""
    updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in SALE.columns.names if name != "id")
    statement = change_statement(f"INSERT INTO sale VALUES ({', '.join('?' * 9)}) ON CONFLICT DO UPDATE SET {updates}")
    assert isinstance(statement, UpsertStatement)
    assert plan_upsert(statement, SALE).columns == tuple(SALE.columns.names)
    with pytest.raises(SqlRefused, match="has no key"):
        plan_upsert(statement, declare_table("sale", SALE.columns))
    assert everything(SALE).text == "TRUE"
