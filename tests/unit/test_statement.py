"""Statements: what they read, what they insert, and what is refused before an engine sees it."""

from typing import Any

import pytest

from righttime.errors import BadFreshness, SqlRefused
from righttime.query.statement import STATEMENT_CHARS_MAX, InsertStatement, Placeholder, insert_statement, read_statement, split_currency
from tests.support.statements import LITERALS, READS


@pytest.mark.parametrize(("sql", "tables"), [(sql, tuple(names.split())) for sql, names in READS])
def test_a_query_reads_its_free_tables(sql: str, tables: tuple[str, ...]) -> None:
    """Names come from every place a query can read from, in lower case, and never from WITH, aliases, strings, hints or comments."""
    assert read_statement(sql).tables == tables


@pytest.mark.parametrize("sql", ["VALUES ((SELECT max(x) FROM a))", "SELECT 1 WHERE 1 > ALL (SELECT y FROM a)", "SELECT * FROM f(TABLE a)"])
def test_tables_are_found_also_where_spark_has_no_use_for_them_yet(sql: str) -> None:
    """What the next Spark understands must not slip through."""
    assert read_statement(sql).tables == ("a",)


def test_a_quoted_name_may_hold_anything() -> None:
    """Whether there is such a table is for the warehouse to say."""
    assert read_statement("SELECT * FROM `odd name`").tables == ("odd name",)


def test_the_text_goes_to_the_engine_unchanged() -> None:
    """Only closing semicolons and what follows the last word are left out."""
    assert read_statement("/* a */ SELECT 'x;'  FROM `T` ; ; -- b").text == "/* a */ SELECT 'x;'  FROM `T`"
    assert read_statement("TABLE t").text == "TABLE t"


def test_placeholders_are_counted_outside_strings_and_comments() -> None:
    """One value is bound for each."""
    assert read_statement("SELECT ?, '?' FROM a WHERE x = ? AND y IN (?, ?) -- ?").placeholders == 4
    assert read_statement("SELECT 1").placeholders == 0


@pytest.mark.parametrize(
    ("sql", "volatile"),
    [
        ("SELECT x FROM a ORDER BY x", ()),
        ("SELECT x FROM a ORDER BY x LIMIT 3", ("limit",)),
        ("SELECT x FROM a LIMIT 3", ("limit",)),
        ("SELECT * FROM (SELECT x FROM a LIMIT 3) ORDER BY x", ("limit",)),
        ("SELECT x FROM a OFFSET 5", ("offset",)),
        ("SELECT x FROM a ORDER BY x LIMIT 3 OFFSET 5", ("limit", "offset")),
        ("VALUES (1), (2) LIMIT 1", ("limit",)),
        ("SELECT limit, `offset` FROM a", ()),
        ("SELECT max_by(x, y), min_by(x, y), mode(x) FROM a", ("max_by", "min_by", "mode")),
        ("SELECT max(x), median(x), count(DISTINCT x) FROM a", ()),
        ("SELECT lag(x) OVER (ORDER BY y), lead(x, 2) OVER w, nth_value(x, 2) OVER w FROM a WINDOW w AS (ORDER BY y)", ("lag", "lead", "nth_value")),
        ("SELECT rank() OVER w, dense_rank() OVER w, percent_rank() OVER w, sum(x) OVER w FROM a WINDOW w AS (ORDER BY y)", ()),
        ("SELECT sum(x) OVER (ORDER BY y RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) FROM a", ()),
        ("SELECT sum(x) OVER (ORDER BY y ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM a", ("rows",)),
        ("SELECT sum(x) OVER (ORDER BY y ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM a", ()),
        ("SELECT sum(x) OVER w FROM a WINDOW w AS (ORDER BY y ROWS UNBOUNDED PRECEDING)", ("rows",)),
        (
            "SELECT percentile_approx(x, 0.5), approx_percentile(x, 0.5), histogram_numeric(x, 5) FROM a",
            ("approx_percentile", "histogram_numeric", "percentile_approx"),
        ),
        ("SELECT kll_sketch_agg_double(x), hll_sketch_estimate(hll_sketch_agg(x)) FROM a", ("hll_sketch_agg", "kll_sketch_agg_double")),
        ("SELECT rand(), now(), CURRENT_DATE FROM a", ("current_date", "now", "rand")),
        ("SELECT now, rand, 'uuid()' FROM a", ()),
        ("SELECT collect_list(x) FROM a TABLESAMPLE (3 ROWS)", ("collect_list", "tablesample")),
    ],
)
def test_what_may_differ_between_two_runs_is_named(sql: str, volatile: tuple[str, ...]) -> None:
    """A receipt is checked by running the query again, so it matters whether the same rows give the same answer."""
    assert read_statement(sql).volatile == volatile


WRITES = """
INSERT INTO a VALUES (1)
INSERT OVERWRITE a SELECT * FROM b
WITH c AS (SELECT 1) INSERT INTO a SELECT * FROM c
FROM a INSERT INTO b SELECT *
FROM a INSERT OVERWRITE b SELECT * INSERT INTO c SELECT *
WITH c AS (INSERT INTO a VALUES (1)) SELECT * FROM c
UPDATE a SET x = 1
DELETE FROM a
MERGE INTO a USING b ON a.k = b.k WHEN MATCHED THEN DELETE
CREATE TABLE a (x INT)
CREATE OR REPLACE TEMP VIEW v AS SELECT 1
CREATE TABLE a AS SELECT 1
CREATE FUNCTION f AS 'x'
DROP TABLE a
DROP VIEW IF EXISTS a
ALTER TABLE a ADD COLUMN y INT
TRUNCATE TABLE a
CACHE TABLE a
CACHE LAZY TABLE a AS SELECT 1
UNCACHE TABLE a
CLEAR CACHE
SET spark.sql.ansi.enabled = false
SET VAR x = 1
RESET
USE other
USE DATABASE other
ADD JAR '/x.jar'
ADD FILE '/x'
LIST JARS
REFRESH TABLE a
REFRESH '/path'
ANALYZE TABLE a COMPUTE STATISTICS
EXPLAIN SELECT 1
DESCRIBE a
SHOW TABLES
CALL p()
EXECUTE IMMEDIATE 'DROP TABLE a'
DECLARE VARIABLE x INT
LOAD DATA INPATH '/x' INTO TABLE a
COPY INTO a FROM '/x'
MSCK REPAIR TABLE a
OPTIMIZE a
VACUUM a
GRANT SELECT ON a TO b
COMMENT ON TABLE a IS 'x'
BEGIN SELECT 1; END
SELECT * INTO b FROM a
SELECT x FROM (SELECT x INTO b FROM a)
""".strip().splitlines()


@pytest.mark.parametrize("sql", WRITES)
def test_a_statement_that_writes_or_acts_is_refused(sql: str) -> None:
    """Queries read; each refusal has a code, a reason and a way out."""
    with pytest.raises(SqlRefused) as caught:
        read_statement(sql)
    assert caught.value.code == "sql.refused"
    assert caught.value.context["reason"]
    assert caught.value.context["way_out"].endswith(".")


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT 1; SELECT 2", "several statements"),
        ("SELECT 1; DROP TABLE a", "several statements"),
        ("; SELECT 1", "several statements"),
        ("", "empty"),
        (" ;; ", "empty"),
        ("-- nothing", "empty"),
        ("SELECT FROM WHERE", "cannot be read"),
        ("SELECT * FROM (SELECT 1", "cannot be read"),
        ("SELECT 'open", "cannot be read"),
        ("SELECT java_method('java.lang.System', 'exit', 1)", "arbitrary code"),
        ("SELECT x FROM a WHERE ReFlect ('java.lang.Runtime', 'x') = 1", "arbitrary code"),
        ("SELECT `reflect`('a', 'b')", "arbitrary code"),
        ("SELECT system.builtin.try_reflect('a', 'b')", "arbitrary code"),
        ("SELECT reflect /* no */ ('a', 'b')", "arbitrary code"),
        ("SELECT TRANSFORM(x) USING 'rm -rf' FROM a", "script"),
        ("FROM a MAP x USING 'cat'", "script"),
        ("SELECT * FROM (FROM a REDUCE x USING 'cat')", "script"),
        ("FROM a JOIN b MAP (x) USING 'cat'", "script"),
        ("FROM a JOIN b MAP (x) USING r'cat'", "script"),
        ("SELECT * FROM IDENTIFIER('a')", "hides"),
        ("SELECT IDENTIFIER('ref' || 'lect')('a', 'b')", "hides"),
        ("SELECT * FROM f(TABLE(a))", "hides"),
        ("SELECT * FROM STREAM(a)", "stream"),
        ("SELECT * FROM ?", "not written out|cannot be read"),
        ("SELECT * FROM shop.a", "shop.a is a qualified name"),
        ("SELECT * FROM spark_catalog.shop.a", "qualified name"),
        ("WITH b AS (SELECT 1) SELECT * FROM a.b", "qualified name"),
        ("SELECT * FROM parquet.`/etc/x`", "a file"),
        ("SELECT * FROM `json`.`/etc/x`", "a file"),
        ("SELECT * FROM a, a.items", "qualified name"),
        ("SELECT * FROM a VERSION AS OF 3", "another version"),
        ("SELECT * FROM a TIMESTAMP AS OF '2026-01-01'", "another version"),
        ("SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "too deeply"),
        ("SELECT '" + "x" * STATEMENT_CHARS_MAX + "'", "over the bound"),
    ],
)
def test_what_hides_acts_or_makes_no_sense_is_refused_with_the_reason(sql: str, reason: str) -> None:
    """A table that is not seen here would not be pinned; code that runs here would not be a query."""
    with pytest.raises(SqlRefused, match=reason):
        read_statement(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "--\\\nSELECT 1 /*\nDROP TABLE a -- */",
        "/* /*+ */ DROP TABLE a -- */ SELECT 1",
        "-- x\rDROP TABLE a /*\nSELECT 1 -- */",
        "SELECT 1 /* a \r DROP TABLE a */",
    ],
)
def test_comments_that_spark_ends_elsewhere_are_refused(sql: str) -> None:
    """What is a comment to one reader and a statement to another may not pass."""
    with pytest.raises(SqlRefused):
        read_statement(sql)


def test_a_long_chain_of_conditions_is_no_problem() -> None:
    """Programs write such queries."""
    sql = "SELECT * FROM a WHERE " + " OR ".join(f"x = {number}" for number in range(5_000))
    assert read_statement(sql).tables == ("a",)


# text, what is left, the bound in microseconds
BOUNDS = [
    ("SELECT 1", "SELECT 1", None),
    ("SELECT * FROM a CURRENCY BOUND 10 MIN", "SELECT * FROM a", 600_000_000),
    ("SELECT * FROM a currency Bound 10 min ;", "SELECT * FROM a", 600_000_000),
    ("SELECT * FROM a CURRENCY BOUND 0 SEC", "SELECT * FROM a", 0),
    ("SELECT * FROM a CURRENCY BOUND 250 MS", "SELECT * FROM a", 250_000),
    ("SELECT * FROM a CURRENCY BOUND 1.5 SECONDS;;", "SELECT * FROM a", 1_500_000),
    ("SELECT * FROM a CURRENCY BOUND 1 SECOND -- fresh", "SELECT * FROM a", 1_000_000),
    ("SELECT * FROM a CURRENCY /* x */ BOUND /* y */ 2 /* z */ MINUTES", "SELECT * FROM a", 120_000_000),
    ("SELECT * FROM a\nCURRENCY BOUND\n3 HOURS", "SELECT * FROM a", 10_800_000_000),
    ("SELECT * FROM a CURRENCY BOUND 1 DAY", "SELECT * FROM a", 86_400_000_000),
    ("SELECT * FROM a CURRENCY BOUND 2 DAYS", "SELECT * FROM a", 172_800_000_000),
    ("SELECT * FROM a CURRENCY BOUND 10MIN", "SELECT * FROM a", 600_000_000),
    ("SELECT * FROM a CURRENCY BOUND 2D", "SELECT * FROM a", 172_800_000_000),
    ("SELECT 'ü€😀' FROM a CURRENCY BOUND 1 SEC", "SELECT 'ü€😀' FROM a", 1_000_000),
    ("SELECT 'CURRENCY BOUND 10 MIN'", "SELECT 'CURRENCY BOUND 10 MIN'", None),
    ("SELECT 1 -- CURRENCY BOUND 10 MIN", "SELECT 1 -- CURRENCY BOUND 10 MIN", None),
    ("SELECT 1 /* CURRENCY BOUND 10 MIN */", "SELECT 1 /* CURRENCY BOUND 10 MIN */", None),
    ("SELECT 'CURRENCY BOUND 1 MIN' CURRENCY BOUND 2 MIN", "SELECT 'CURRENCY BOUND 1 MIN'", 120_000_000),
    ("SELECT * FROM a JOIN currency bound", "SELECT * FROM a JOIN currency bound", None),
    ("SELECT currency bound FROM a", "SELECT currency bound FROM a", None),
    ("SELECT `currency` `bound` FROM a", "SELECT `currency` `bound` FROM a", None),
    ("", "", None),
]


@pytest.mark.parametrize(("sql", "rest", "bound_us"), BOUNDS)
def test_a_currency_bound_is_cut_off_the_end(sql: str, rest: str, bound_us: int | None) -> None:
    """The clause counts where it is a clause: at the end, outside strings and comments."""
    assert split_currency(sql) == (rest, bound_us)


@pytest.mark.parametrize("clause", ["3 FORTNIGHTS", "-5 SEC", "- 5 SEC", "5", "? SEC", "'5' SEC", "'5s'", "90000 DAYS"])
def test_a_currency_bound_that_is_no_duration_is_refused(clause: str) -> None:
    """A misread bound would be a silently stale answer."""
    with pytest.raises(BadFreshness, match="CURRENCY BOUND"):
        split_currency(f"SELECT 1 CURRENCY BOUND {clause}")


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM (SELECT 1 CURRENCY BOUND 1 SEC) x", "SELECT 1 CURRENCY BOUND 1 SEC LIMIT 3", "SELECT 1 CURRENCY BOUND 1 SEC; SELECT 2"]
)
def test_a_currency_bound_in_the_middle_is_refused(sql: str) -> None:
    """One query has one freshness."""
    with pytest.raises(SqlRefused, match="end of the statement"):
        split_currency(sql)


def test_an_insert_names_its_table_columns_and_values() -> None:
    """Placeholders are counted over all rows."""
    assert insert_statement("INSERT INTO Sale VALUES (?, 2, ?), (3, ?, (?)) ;") == InsertStatement(
        table="sale", columns=None, rows=((Placeholder(0), 2, Placeholder(1)), (3, Placeholder(2), Placeholder(3))), placeholders=4
    )
    assert insert_statement("insert into table `sale` (Sku, `odd name`) values (?, ?)") == InsertStatement(
        table="sale", columns=("Sku", "odd name"), rows=((Placeholder(0), Placeholder(1)),), placeholders=2
    )


@pytest.mark.parametrize("sql", ["SELECT 1", "", "DELETE FROM a", "WITH c AS (SELECT 1) INSERT INTO a SELECT * FROM c", "FROM a INSERT INTO b SELECT *"])
def test_what_does_not_begin_with_insert_is_no_insert(sql: str) -> None:
    """Those go to the query path, which refuses what it must."""
    assert insert_statement(sql) is None


@pytest.mark.parametrize(("literal", "value"), LITERALS)
def test_a_literal_becomes_the_value_it_stands_for(literal: str, value: Any) -> None:
    """The type matters as much as the value: 1.5 is exact, 1e3 is not."""
    statement = insert_statement(f"INSERT INTO a VALUES ({literal})")
    assert statement is not None
    assert statement.rows == ((value,),)
    assert type(statement.rows[0][0]) is type(value)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO a SELECT * FROM b",
        "INSERT INTO a TABLE b",
        "INSERT INTO a FROM b SELECT *",
        "INSERT OVERWRITE a VALUES (1)",
        "INSERT OVERWRITE TABLE a SELECT 1",
        "INSERT OVERWRITE DIRECTORY '/x' SELECT 1",
        "INSERT INTO a PARTITION (x = 1) VALUES (2)",
        "INSERT INTO a BY NAME SELECT 1 AS x",
        "INSERT INTO a REPLACE WHERE x = 1 VALUES (1)",
        "INSERT INTO a DEFAULT VALUES",
        "INSERT INTO a VALUES (1) ON CONFLICT DO NOTHING",
        "INSERT INTO a VALUES (1) RETURNING x",
        "INSERT INTO a AS b VALUES (1)",
        "INSERT INTO a VALUES (1); DELETE FROM a",
        "INSERT INTO shop.a VALUES (1)",
        "INSERT INTO parquet.`/x` VALUES (1)",
        "INSERT INTO IDENTIFIER('a') VALUES (1)",
        "INSERT INTO a () VALUES (1)",
        "INSERT INTO a (x, X) VALUES (1, 2)",
        "INSERT INTO a (x, y) VALUES (1)",
        "INSERT INTO a (x, y) VALUES (1, 2), (3)",
        "INSERT INTO a VALUES (1, 2), (3)",
        "INSERT INTO a VALUES (:name)",
        "INSERT INTO a VALUES (DEFAULT)",
        "INSERT INTO a VALUES (1 + 1)",
        "INSERT INTO a VALUES (now())",
        "INSERT INTO a VALUES (current_timestamp)",
        "INSERT INTO a VALUES (x)",
        "INSERT INTO a VALUES (CAST('1' AS INT))",
        "INSERT INTO a VALUES (CAST(1.55 AS DECIMAL(2, 1)))",
        "INSERT INTO a VALUES ('1'::INT)",
        "INSERT INTO a VALUES (1.55::DECIMAL(2, 1))",
        "INSERT INTO a VALUES (300::TINYINT)",
        "INSERT INTO a VALUES (array(1, 2))",
        "INSERT INTO a VALUES (INTERVAL 1 DAY)",
        "INSERT INTO a VALUES ((SELECT 1))",
        "INSERT INTO a VALUES (-'x')",
        "INSERT INTO a VALUES (-TRUE)",
        "INSERT INTO a VALUES (concat('a', 1))",
        "INSERT INTO a VALUES (DATE '2026-02-30')",
        "INSERT INTO a VALUES (DATE 'today')",
        "INSERT INTO a VALUES (TIMESTAMP '2026-01-31 25:00:00')",
        "INSERT INTO a VALUES (TIMESTAMP '2026-01-31 12:00:00 Europe/Paris')",
        "INSERT INTO a VALUES (TIMESTAMP_NTZ '2026-01-31 12:00:00Z')",
        "INSERT INTO a VALUES (X'zz')",
        "INSERT INTO a VALUES (1) CURRENCY BOUND 1 SEC",
        "INSERT INTO a VALUES",
        "INSERT",
    ],
)
def test_any_other_insert_is_refused(sql: str) -> None:
    """Only scalar values go to a producer; what would have to be computed, nobody here computes."""
    with pytest.raises(SqlRefused) as caught:
        insert_statement(sql)
    assert caught.value.context["way_out"].endswith(".")


@pytest.mark.parametrize(
    ("sql", "way_out"),
    [("INSERT INTO a VALUES (1)", "producer"), ("CREATE TABLE a (x INT)", "create_table"), ("EXPLAIN SELECT 1", r"explain\(\)"), ("SET a = 1", "spark_conf")],
)
def test_the_way_out_depends_on_the_verb(sql: str, way_out: str, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal says where to go instead, and the parser's own doubts do not reach the log."""
    with pytest.raises(SqlRefused, match=f"does not begin a query.*{way_out}"):
        read_statement(sql)
    assert not caplog.records


def test_an_insert_followed_by_another_statement_is_refused_as_such() -> None:
    """The first statement alone would be half of what was asked for."""
    with pytest.raises(SqlRefused, match="several statements"):
        insert_statement("INSERT INTO a VALUES (1); INSERT INTO a VALUES (2)")
