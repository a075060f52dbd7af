"""Spark reads statements as we do: the same tables, the same values."""

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from righttime.errors import SqlRefused
from righttime.query.statement import read_statement
from tests.support.statements import LITERALS, READS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from righttime.pipeline.spark import SparkOwner

COLUMNS = "k INT, x INT, y INT, z INT, n INT, sku INT, items ARRAY<INT>, xs ARRAY<INT>"


def missing_table(session: "SparkSession", sql: str) -> bool:
    """Tell whether Spark looks for a table that is not there; other errors are about columns, which do not matter here."""
    try:
        session.sql(sql)
    except PySparkException as error:
        assert error.getCondition() != "PARSE_SYNTAX_ERROR", sql
        return error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"
    return False


@pytest.mark.parametrize("sql", [sql for sql, _ in READS])
def test_spark_looks_for_exactly_the_tables_that_we_name(sql: str, spark_owner: "SparkOwner") -> None:
    """With views of these names Spark misses nothing; without any one of them it does."""
    statement = read_statement(sql)
    session = spark_owner.child()
    for table in statement.tables:
        session.createDataFrame([], COLUMNS).createOrReplaceTempView(f"`{table.replace('`', '``')}`")
    assert not missing_table(session, statement.text)
    for table in statement.tables:
        poorer = spark_owner.child()
        for other in set(statement.tables) - {table}:
            poorer.createDataFrame([], COLUMNS).createOrReplaceTempView(f"`{other.replace('`', '``')}`")
        assert missing_table(poorer, statement.text)


@pytest.mark.parametrize(("literal", "value"), LITERALS)
def test_spark_gives_literals_the_same_values(literal: str, value: Any, spark_owner: "SparkOwner") -> None:
    """What an INSERT puts in is what Spark would have read."""
    found = spark_owner.child().sql(f"SELECT {literal} AS v").toArrow().column("v")[0].as_py()
    if isinstance(value, dt.datetime) and isinstance(found, dt.datetime):
        value, found = (instant.replace(tzinfo=instant.tzinfo or dt.UTC) for instant in (value, found))
    assert found == value
    assert type(found) is type(value) or isinstance(value, int)


@pytest.mark.parametrize("hidden", ["--\\\nSELECT 1 /*\nDROP VIEW ghost -- */", "/* /*+ */ DROP VIEW ghost -- */ SELECT 1"])
def test_what_spark_reads_as_a_write_behind_a_comment_is_refused(hidden: str, spark_owner: "SparkOwner") -> None:
    """These texts are queries to other readers and a DROP to Spark: the reason for the rule on comments."""
    with pytest.raises(PySparkException, match="ghost"):
        spark_owner.child().sql(hidden)
    with pytest.raises(SqlRefused):
        read_statement(hidden)
