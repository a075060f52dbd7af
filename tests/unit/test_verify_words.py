"""Which queries may give other rows when they are run again over the same ones."""

import pytest

from righttime.query.repeats import float_sums, volatile_in_postgres


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT count(*), rank() OVER (ORDER BY n) FROM sale", ""),
        ("SELECT limits, offsets, model, lagging, current_price FROM sale", ""),
        ('SELECT "user", "limit", mode, lag, rows, ARRAY[n], t FROM sale WHERE t = \'limit\' -- now()', ""),
        ("SELECT * FROM sale ORDER BY n LIMIT 1", "limit"),
        ("SELECT * FROM sale ORDER BY n FETCH FIRST 2 ROWS ONLY", "fetch"),
        ("SELECT * FROM sale OFFSET 2", "offset"),
        ("SELECT DISTINCT  ON (n) * FROM sale", "distinct on"),
        ("SELECT row_number() OVER (ORDER BY n), string_agg(t, ','), jsonb_agg(t) FROM sale", "jsonb_agg row_number string_agg"),
        ("SELECT mode() WITHIN GROUP (ORDER BY n), now() FROM sale", "mode now"),
        ("SELECT sum(n) OVER (ORDER BY n ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM sale", "rows"),
        ("SELECT sum(n) OVER (ORDER BY n ROWS 2 PRECEDING) FROM sale", "rows"),
        ("SELECT * FROM sale WHERE sold < 'today'::date", "today"),
        ("SELECT * FROM sale WHERE sold BETWEEN DATE 'Yesterday' AND timestamp ' tomorrow 04:05'", "tomorrow yesterday"),
        ("SELECT * FROM sale WHERE sold < $$now$$::timestamp", "now"),
        ("SELECT age(sold) FROM sale", "age"),
        ("SELECT any_value(n), json_arrayagg(n), json_objectagg(t: n), json_agg_strict(n) FROM sale", "any_value json_agg_strict json_arrayagg json_objectagg"),
        ("SELECT ARRAY (SELECT n FROM sale)", "array"),
        ("SELECT session_user, user, current_date, localtime", "current_date localtime session_user user"),
    ],
)
def test_what_may_differ_between_two_runs_on_postgresql_is_named(query: str, found: str) -> None:
    """Clocks, dice, whoever asks, and whatever ties or the order of rows decide; not columns or texts that are called so."""
    assert " ".join(sorted(volatile_in_postgres(query))) == found


def test_a_moment_may_come_as_a_parameter() -> None:
    """PostgreSQL reads `today` in a text that becomes a date."""
    assert volatile_in_postgres("SELECT * FROM sale WHERE sold < ?::date", ["str:today"]) == {"today"}


@pytest.mark.parametrize("dialect", ["spark", "postgres"])
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT sum(qty), count(*), avg(qty * 2) FROM sale", ""),
        ("SELECT price, max(price) FROM sale GROUP BY price", ""),
        ("SELECT sum(price) FROM sale", "sum"),
        ("SELECT k FROM sale GROUP BY k HAVING avg(s.Price) > 0", "avg"),
        ("SELECT sum(qty / 3), stddev_pop(qty) FROM sale", "stddev_pop sum"),
        ("SELECT k FROM sale GROUP BY k HAVING sum(sqrt(qty)) > 3", "sum"),
        ("SELECT sum(CAST(qty AS FLOAT)) FROM sale", "sum"),
        ("SELECT sum(qty * 1e3) FROM sale", "sum"),
        ("SELECT sum(b) FROM (SELECT s.* FROM sale s) t", "sum"),
        ("SELECT sum(b) FROM sale AS s(a, b)", "sum"),
        ("SELECT sum(b) FROM sale s(a, b)", "sum"),
        ("WITH t AS (TABLE sale) SELECT sum(b) FROM t", "sum"),
    ],
)
def test_sums_of_floats_depend_on_the_order_of_rows(dialect: str, query: str, found: str) -> None:
    """What adds up floats, by name, by a star or made on the way; whole numbers beside a float column are exact."""
    sums = float_sums([query], dialect=dialect, float_columns={"price"}, in_answer=False, in_parameters=False)
    assert " ".join(sorted(sums)) == found


def test_floats_may_be_in_a_view_in_a_parameter_or_only_in_the_answer() -> None:
    """A query's own text need not show them. Averages of whole numbers are floats in Spark, and exact."""

    def found(*texts: str, in_answer: bool = False, in_parameters: bool = False) -> set[str]:
        return float_sums(texts, dialect="spark", float_columns={"price"}, in_answer=in_answer, in_parameters=in_parameters)

    assert found("SELECT sum(p) FROM v", "SELECT price AS p FROM sale") == {"sum"}
    assert found("SELECT sum(qty * ?) FROM sale", in_parameters=True) == {"sum"}
    assert found("SELECT corr(qty, n) FROM sale", in_answer=True) == {"corr"}
    assert found("SELECT avg(qty) FROM sale", in_answer=True) == set()
    assert found("SELECT price FROM sale", in_answer=True) == set()
