"""SparkOwner: one session per process, child sessions that do not depend on their parent, exact file lists."""

import datetime as dt
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from righttime.errors import NullNotAllowed, SqlFailed, UnknownColumn, WrongType
from righttime.pipeline.reach import ONE_TASK, set_up
from righttime.pipeline.spark import SparkOwner
from righttime.settings import load_settings

SALE = pa.schema([pa.field("sku", pa.int32(), nullable=False), pa.field("qty", pa.int64()), pa.field("at", pa.timestamp("us", tz="UTC"))])
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)


def store(folder: Path, name: str, rows: list[tuple[int, int | None, dt.datetime | None]]) -> str:
    """Write one Parquet file of sales."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=SALE)
    pq.write_table(table, folder / name)
    return str(folder / name)


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    """Return the rows of a frame, sorted."""
    return sorted(tuple(row.values()) for row in frame.toArrow().to_pylist())


@pytest.fixture
def awkward_parent(spark_owner: SparkOwner) -> Iterator[SparkSession]:
    """The session of a user who changed settings that answers depend on."""
    session = spark_owner.session()
    theirs = {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.parquet.outputTimestampType": "INT96"}
    before = {name: session.conf.get(name) for name in theirs}
    for name, value in theirs.items():
        session.conf.set(name, value)
    yield session
    for name, old in before.items():
        session.conf.set(name, str(old))


def test_making_an_owner_starts_nothing() -> None:
    """A producer or a status call must never start a JVM."""
    assert not SparkOwner(load_settings()).started


def test_threads_that_ask_at_once_get_the_same_session(spark_owner: SparkOwner) -> None:
    """The first need starts Spark once; everybody else waits for it."""
    with ThreadPoolExecutor(4) as threads:
        sessions = list(threads.map(lambda _: spark_owner.session(), range(4)))

    assert spark_owner.started
    assert all(session is sessions[0] for session in sessions)


def test_an_owner_uses_the_session_that_is_there_and_does_not_stop_it(spark_owner: SparkOwner) -> None:
    """Two warehouses in one process share Spark; closing one leaves the other its session."""
    first = spark_owner.session()
    second = SparkOwner(load_settings())

    assert second.session() is first
    second.stop()
    assert not second.started
    assert spark_owner.started
    assert spark_owner.session().range(3).count() == 3


def test_children_have_their_own_views(spark_owner: SparkOwner) -> None:
    """A query's names are invisible to every other query."""
    one, other = spark_owner.child(), spark_owner.child()
    one.range(1).createOrReplaceTempView("only_here")

    assert one.catalog.tableExists("only_here")
    assert not other.catalog.tableExists("only_here")
    assert not spark_owner.session().catalog.tableExists("only_here")


def test_children_have_their_own_settings(spark_owner: SparkOwner) -> None:
    """What a child is told stays with it, also where another one is made later."""
    one = spark_owner.child()
    one.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")

    assert spark_owner.child().conf.get("spark.sql.session.timeZone") == "UTC"
    assert one.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"


_SET_UP_BY_SPARK = """
from righttime.pipeline.spark import SparkOwner
from righttime.settings import load_settings
conf = {"spark.sql.legacy.sessionInitWithConfigDefaults": "true", "spark.sql.ansi.enabled": "false"}
owner = SparkOwner(load_settings(spark_master="local[1]", spark_conf=conf))
assert owner.session().conf.get("spark.sql.ansi.enabled") == "false"
assert [owner.child().conf.get("spark.sql.ansi.enabled") for _ in range(2)] == ["true", "true"]
owner.stop()
print("as declared")
"""


def test_children_are_set_up_by_us_also_where_spark_does_so() -> None:
    """A legacy option makes Spark set up every session, clones too."""
    done = subprocess.run([sys.executable, "-c", _SET_UP_BY_SPARK], capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout == "as declared\n", done.stderr


def test_a_child_does_not_take_over_what_the_user_set(spark_owner: SparkOwner, awkward_parent: SparkSession) -> None:
    """Answers are in UTC and overflow is an error, whatever the user's session says."""
    child = spark_owner.child()

    assert child.conf.get("spark.sql.session.timeZone") == "UTC"
    assert child.conf.get("spark.sql.ansi.enabled") == "true"
    assert awkward_parent.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"


def test_many_joins_of_a_few_rows_have_room_in_one_task(spark_owner: SparkOwner) -> None:
    """As small drains of wide flows have them: each took a page of 64 MiB, and after some thirty Spark had no memory left."""
    child, places = spark_owner.child(), range(1, 45)
    child.range(3).selectExpr("CAST(id AS STRING) AS k").coalesce(1).createOrReplaceTempView("t")
    joins = " ".join(f"JOIN t t{place} ON t.k = t{place}.k" for place in places)
    with set_up(child, ONE_TASK):
        assert child.sql(f"SELECT /*+ SHUFFLE_HASH({', '.join(f't{place}' for place in places)}) */ count(*) FROM t {joins}").collect() == [(3,)]


def test_a_relation_holds_the_rows_of_its_files_and_of_no_others(spark_owner: SparkOwner, tmp_path: Path) -> None:
    """A snapshot is a file list: a neighbour file in the same folder is not read."""
    named = [store(tmp_path, "a.parquet", [(1, 10, NOON)]), store(tmp_path, "b.parquet", [(2, None, None)])]
    store(tmp_path, "c.parquet", [(3, 30, NOON)])

    relation = spark_owner.relation(spark_owner.child(), SALE, named)

    assert sorted(rows(relation), key=str) == [(1, 10, NOON), (2, None, None)]


def test_a_relation_of_no_files_has_the_columns_and_no_rows(spark_owner: SparkOwner) -> None:
    """A table that was never materialized can be queried."""
    relation = spark_owner.relation(spark_owner.child(), SALE, [])

    assert relation.columns == SALE.names
    assert relation.count() == 0


@pytest.mark.parametrize(
    "name", ["plain", "with space", "brackets [1]", "star * and {a,b}", "percent %20", "ümläut", "colon a:b", "hash # question ?", "back\\\\slash"]
)
def test_a_folder_may_have_any_name(spark_owner: SparkOwner, tmp_path: Path, name: str) -> None:
    """Paths are names, never patterns or addresses: for reading, each file once, and for writing."""
    stored = [store(tmp_path / name, f"{sku}.parquet", [(sku, 10, NOON)]) for sku in (1, 2, 3)]
    relation = spark_owner.relation(spark_owner.child(), SALE, stored)

    assert rows(relation) == [(1, 10, NOON), (2, 10, NOON), (3, 10, NOON)]
    spark_owner.write_parquet(relation, SALE, tmp_path / name / "new")
    assert pq.read_table(tmp_path / name / "new").num_rows == 3


def test_a_file_that_is_gone_is_an_error_and_not_an_empty_answer(spark_owner: SparkOwner, tmp_path: Path) -> None:
    """No setting may turn lost files into missing rows."""
    stored = store(tmp_path, "a.parquet", [(1, 10, NOON)])
    relation = spark_owner.relation(spark_owner.child(), SALE, [stored])
    Path(stored).unlink()

    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|PATH_NOT_FOUND|FAILED_READ_FILE"):
        relation.toArrow()


def test_naming_many_files_starts_no_job(spark_owner: SparkOwner, tmp_path: Path) -> None:
    """Listing happens in the driver, whatever the number of files."""
    named = [store(tmp_path, f"{number}.parquet", [(number, 1, NOON)]) for number in range(200)]
    context = spark_owner.session().sparkContext
    context.setJobGroup("list", "listing")

    relation = spark_owner.relation(spark_owner.child(), SALE, named)

    assert list(context.statusTracker().getJobIdsForGroup("list")) == []
    assert relation.count() == 200


def test_many_queries_leave_a_bounded_number_of_threads_behind(spark_owner: SparkOwner) -> None:
    """Each of Spark's pool threads keeps a child session alive; without a bound, memory grows by every query."""
    queries_max = load_settings().queries_max
    for _ in range(3 * queries_max):
        spark_owner.child().range(10).groupBy("id").count().toArrow()

    virtual_machine = spark_owner.session()._jvm
    names = [thread.getName() for thread in virtual_machine.java.lang.Thread.getAllStackTraces().keySet().toArray()]  # type: ignore[union-attr]
    assert 0 < sum(name.startswith("ResultQueryStageExecution") for name in names) <= queries_max
    assert sum(name.startswith("shuffle-exchange") for name in names) <= 2 * queries_max


def test_executors_write_the_columns_of_the_table_whatever_the_frame_looks_like(spark_owner: SparkOwner, awkward_parent: SparkSession, tmp_path: Path) -> None:
    """Columns are matched by name, cast as by an INSERT, and missing ones that may be null are null."""
    frame = awkward_parent.sql("SELECT 5S AS QTY, 7L AS sku UNION ALL SELECT NULL, 8L")

    spark_owner.write_parquet(frame, SALE, tmp_path / "new", table="sale")

    written = pq.read_table(tmp_path / "new")
    assert sorted(written.to_pylist(), key=lambda row: row["sku"]) == [{"sku": 7, "qty": 5, "at": None}, {"sku": 8, "qty": None, "at": None}]
    assert [str(field.type) for field in written.schema] == ["int32", "int64", "timestamp[us, tz=UTC]"]
    assert [path for path in (tmp_path / "new").iterdir() if path.name == "_SUCCESS"] == []


@pytest.mark.parametrize(
    ("query", "refusal", "column"),
    [
        ("SELECT 1 AS sku, 2 AS colour", UnknownColumn, "colour"),
        ("SELECT 1L AS qty", NullNotAllowed, "sku"),
        ("SELECT CAST(NULL AS INT) AS sku", NullNotAllowed, "sku"),
        ("SELECT 'seven' AS sku", WrongType, "sku"),
        ("SELECT 3000000000L AS sku", WrongType, "sku"),
        ("SELECT 1 AS sku, ARRAY(1) AS qty", WrongType, "qty"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_by_column(
    spark_owner: SparkOwner, awkward_parent: SparkSession, tmp_path: Path, query: str, refusal: type[Exception], column: str
) -> None:
    """The error names table and column; lenient settings of the user do not turn bad values into nulls."""
    with pytest.raises(refusal) as caught:
        spark_owner.write_parquet(awkward_parent.sql(query), SALE, tmp_path / "new", table="sale")

    assert caught.value.context["table"] == "sale"  # type: ignore[attr-defined]
    assert caught.value.context["column"] == column  # type: ignore[attr-defined]


def test_a_frame_that_fails_while_it_runs_says_why(spark_owner: SparkOwner, tmp_path: Path) -> None:
    """An error of the user's own query is passed on as such."""
    frame = spark_owner.session().sql("SELECT CAST(raise_error('no stock') AS INT) AS sku")

    with pytest.raises(SqlFailed, match="no stock"):
        spark_owner.write_parquet(frame, SALE, tmp_path / "new", table="sale")
