"""Our tables in the hands of other readers: delta-rs, DuckDB and plain Spark see what was written, at every version."""

import importlib.util
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from righttime.changes.schema import TableSchema, declare_table
from righttime.pipeline.spark import SparkOwner
from righttime.settings import load_settings
from righttime.warehouse.lakehouse import Lakehouse

Row = dict[str, Any]

ALL_TYPES = declare_table(
    "all_types",
    "id BIGINT, flag BOOLEAN, tiny TINYINT, small SMALLINT, medium INT, real FLOAT, number DOUBLE, "
    "price DECIMAL(12,2), huge DECIMAL(38,4), name STRING COMMENT 'what it\\'s called', "
    "short VARCHAR(5), code CHAR(2), raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>, props MAP<STRING, INT>, "
    "place STRUCT<x: INT, inner: STRUCT<y: DOUBLE, z: ARRAY<DATE>>>, `größe` INT",
    keys=["id"],
    comment="one column of every type",
)
EMPTY_ROW: Row = dict.fromkeys(ALL_TYPES.columns.names)
FULL_ROW: Row = {
    "flag": True,
    "tiny": -128,
    "small": -32768,
    "medium": 2**31 - 1,
    "real": 0.5,
    "number": 1.25e300,
    "price": Decimal("-1234567890.12"),
    "huge": Decimal("1234567890123456789012345678901234.5678"),
    "name": "quote ' \" \\ ä 😀 " + "long " * 20,
    "short": "äbcde",
    "code": "ab",
    "raw": b"\x00\xff",
    "day": date(1582, 10, 4),
    "at": datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=UTC),
    "local": datetime(1969, 12, 31, 23, 59, 59, 999999),
    "tags": ["a", None, ""],
    "props": [("k", 1), ("l", None)],
    "place": {"x": 1, "inner": {"y": 2.5, "z": [date(2024, 1, 1), None]}},
    "größe": 7,
}
NAN_ROW: Row = {**EMPTY_ROW, "number": float("inf"), "real": float("nan")}


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return Lakehouse(tmp_path / "tables", settings=load_settings())


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    wheel = importlib.util.find_spec("duckdb_extension_delta")
    assert wheel is not None and wheel.origin is not None
    (extension,) = Path(wheel.origin).parent.glob(f"extensions/v{duckdb.__version__}/*.duckdb_extension")
    connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkOwner]:
    owner = SparkOwner(load_settings(spark_master="local[1]"))
    yield owner
    owner.stop()


def add(lake: Lakehouse, table: TableSchema, version: int, rows: list[Row]) -> int:
    files = lake.write_files(table, pa.Table.from_pylist(rows, schema=table.columns), batch_id=f"b{version}")
    return lake.commit(table, files, version=version, batch_id=f"b{version}", batch_number=version)


def rows_of(found: pa.Table, table: TableSchema) -> list[Row]:
    rows: list[Row] = found.select(table.columns.names).cast(table.columns).to_pylist()
    return rows


def by_delta_rs(root: Path, table: TableSchema, version: int) -> list[Row]:
    found = DeltaTable(str(root / "tables" / table.name), version=version).to_pyarrow_table()
    return rows_of(found, table)


def by_duckdb(duck: duckdb.DuckDBPyConnection, root: Path, table: TableSchema, version: int) -> list[Row]:
    found = duck.execute(f"FROM delta_scan('{root / 'tables' / table.name}', version={version})").to_arrow_table()
    return rows_of(found, table)


def canonical(rows: list[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def expected(table: TableSchema, rows: list[Row]) -> list[str]:
    return canonical(pa.Table.from_pylist(rows, schema=table.columns).to_pylist())


def check(duck: duckdb.DuckDBPyConnection, root: Path, lake: Lakehouse, table: TableSchema, version: int, rows: list[Row]) -> None:
    """Both readers and our own file list give exactly these rows."""
    assert canonical(by_delta_rs(root, table, version)) == expected(table, rows)
    assert canonical(by_duckdb(duck, root, table, version)) == expected(table, rows)
    assert lake.row_count(table, version) == len(rows)


def test_every_type_reads_back_in_every_version(tmp_path: Path, lake: Lakehouse, duck: duckdb.DuckDBPyConnection) -> None:
    """All types, extremes and nulls; each version has what was committed up to it."""
    first = lake.create(ALL_TYPES)
    rows = [{**FULL_ROW, "id": 1}, {**EMPTY_ROW, "id": 2}]
    second = add(lake, ALL_TYPES, first, rows)
    third = add(lake, ALL_TYPES, second, [{**NAN_ROW, "id": 3}])

    check(duck, tmp_path, lake, ALL_TYPES, first, [])
    check(duck, tmp_path, lake, ALL_TYPES, second, rows)
    check(duck, tmp_path, lake, ALL_TYPES, third, [*rows, {**NAN_ROW, "id": 3}])


def test_comments_nullability_and_names_are_in_the_table(tmp_path: Path, lake: Lakehouse) -> None:
    """A Delta reader sees the declaration, not only the values."""
    lake.create(ALL_TYPES)

    table = DeltaTable(str(tmp_path / "tables" / "all_types"))

    fields = {field.name: field for field in table.schema().fields}
    assert (table.metadata().name, table.metadata().description) == ("all_types", "one column of every type")
    assert fields["name"].metadata["comment"] == "what it's called"
    assert fields["short"].metadata["__CHAR_VARCHAR_TYPE_STRING"] == "varchar(5)"
    assert (fields["id"].nullable, fields["name"].nullable) == (False, True)


def test_a_table_without_local_timestamps_asks_no_special_reader(tmp_path: Path, lake: Lakehouse) -> None:
    """The oldest Delta readers can open a plain table."""
    plain = declare_table("plain", "id INT, at TIMESTAMP")
    lake.create(plain)
    assert DeltaTable(str(tmp_path / "tables" / "plain")).protocol().min_reader_version == 1


PARTITION_VALUES: dict[str, list[Any]] = {
    "flag": [True, False, None],
    "tiny": [-1, 0, None],
    "medium": [1, 2**31 - 1],
    "id": [-(2**63), 5],
    "number": [0.5, -1e300],
    "price": [Decimal("0.01"), Decimal("-10.00"), None],
    "name": ["a b/c%ä=", "x", "'quoted\"", None],
    "day": [date(2024, 2, 29), None],
    "at": [datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=UTC), datetime(1969, 12, 31, 23, 0, tzinfo=UTC), None],
    "local": [datetime(2024, 2, 29, 12, 30, 0, 123456), datetime(1969, 12, 31, 23, 0), None],
}


@pytest.mark.parametrize("column", PARTITION_VALUES)
def test_partition_values_of_every_type_read_back(tmp_path: Path, lake: Lakehouse, duck: duckdb.DuckDBPyConnection, column: str) -> None:
    """Readers take partition values from the log, not from the file; the text there must mean the same."""
    table = declare_table("parts", pa.schema([ALL_TYPES.columns.field(column).with_nullable(True), pa.field("n", pa.int32())]), partition_by=[column])
    rows = [{column: value, "n": n} for n, value in enumerate(PARTITION_VALUES[column] * 2)]

    version = add(lake, table, lake.create(table), rows)

    check(duck, tmp_path, lake, table, version, rows)
    assert len(lake.files(table, version)) == len(PARTITION_VALUES[column])


def test_two_partition_columns_and_a_filter(tmp_path: Path, lake: Lakehouse, duck: duckdb.DuckDBPyConnection) -> None:
    """A filter on partition columns finds the same rows in both readers."""
    table = declare_table("two", "day DATE, shop INT, n INT", partition_by=["shop", "day"])
    rows = [{"day": date(2024, 1, 1 + n % 3), "shop": n % 2, "n": n} for n in range(12)]
    version = add(lake, table, lake.create(table), rows)

    by_duck = duck.execute(f"SELECT n FROM delta_scan('{tmp_path}/tables/two') WHERE shop = 1 AND day = DATE '2024-01-02' ORDER BY n").fetchall()
    by_rust = DeltaTable(f"{tmp_path}/tables/two").to_pyarrow_table(filters=[("shop", "=", 1), ("day", "=", date(2024, 1, 2))])

    assert by_duck == [(1,), (7,)]
    assert sorted(by_rust.column("n").to_pylist()) == [1, 7]
    check(duck, tmp_path, lake, table, version, rows)


def test_undone_commits_are_gone_for_every_reader(tmp_path: Path, lake: Lakehouse, duck: duckdb.DuckDBPyConnection) -> None:
    """After recovery the newest version is the kept one's content; older versions stay until they are collected."""
    kept_rows = [{**FULL_ROW, "id": 1}]
    kept = add(lake, ALL_TYPES, lake.create(ALL_TYPES), kept_rows)
    add(lake, ALL_TYPES, kept, [{**FULL_ROW, "id": 2}])

    now = lake.undo(ALL_TYPES, version=kept)
    later = add(lake, ALL_TYPES, now, [{**FULL_ROW, "id": 3}])
    lake.collect(ALL_TYPES, versions=lambda: [kept, now], grace_s=0, now_s=time.time())

    for version, rows in ((kept, kept_rows), (now, kept_rows), (later, [*kept_rows, {**FULL_ROW, "id": 3}])):
        check(duck, tmp_path, lake, ALL_TYPES, version, rows)


def test_a_checkpoint_reads_the_same_for_every_reader(tmp_path: Path, lake: Lakehouse, duck: duckdb.DuckDBPyConnection) -> None:
    """Behind a checkpoint the log may be gone: statistics, partition values and batch numbers are in the checkpoint."""
    table = declare_table("cp", "day DATE, at TIMESTAMP, n INT, name STRING", partition_by=["day"])
    rows: list[Row] = []
    version = lake.create(table)
    for n in range(5):
        rows.append({"day": date(2024, 1, 1 + n % 2), "at": datetime(2024, 1, 1, n, tzinfo=UTC), "n": n, "name": "x" * 50 + str(n)})
        version = add(lake, table, version, rows[-1:])
        if n == 3:
            lake.checkpoint(table, version)

    assert lake.collect(table, versions=lambda: [version - 1], grace_s=0, now_s=time.time()).log_entries == 4

    check(duck, tmp_path, lake, table, version, rows)
    check(duck, tmp_path, Lakehouse(tmp_path / "tables", settings=load_settings()), table, version - 1, rows[:4])
    assert DeltaTable(f"{tmp_path}/tables/cp").transaction_version("righttime") == version - 1
    assert not list((tmp_path / "tables" / "cp" / "_staging").iterdir())


def without(lake: Lakehouse, table: TableSchema, version: int, ids: list[int], *, new: list[Row]) -> int:
    """Take rows out by their id and add others in the same commit."""
    gone = {part.unit: part.positions[np.isin(part.rows.column("id").to_numpy(), ids)] for part in lake.scan(table, version, ["id"])}
    removal = lake.remove(table, version, gone, batch_id=f"r{version}")
    files = [*removal.files, *lake.write_files(table, pa.Table.from_pylist(new, schema=table.columns), batch_id=f"r{version}")]
    return lake.commit(table, files, version=version, batch_id=f"r{version}", batch_number=version, removed=removal.units)


def test_removed_rows_are_gone_for_every_reader_and_back_after_an_undo(tmp_path: Path, lake: Lakehouse, duck: duckdb.DuckDBPyConnection) -> None:
    """Updates, deletes, a recovery and a checkpoint over them: each version has its own rows in delta-rs, DuckDB and here."""
    table = declare_table("changed", ALL_TYPES.columns, keys=["id"], partition_by=["day"])
    rows = [{**FULL_ROW, "id": 1}, {**EMPTY_ROW, "id": 2}, {**NAN_ROW, "id": 3}, {**FULL_ROW, "id": 4}]
    first = add(lake, table, lake.create(table), rows)
    second = without(lake, table, first, [1, 3], new=[{**EMPTY_ROW, "id": 1, "name": "new"}])
    third = without(lake, table, second, [1, 2, 4], new=[])
    now = Lakehouse(tmp_path / "tables", settings=load_settings()).undo(table, version=second)
    lake.checkpoint(table, now)
    later = without(lake, table, now, [2], new=[{**NAN_ROW, "id": 5}])

    second_rows = [rows[1], rows[3], {**EMPTY_ROW, "id": 1, "name": "new"}]
    contents = {first: rows, second: second_rows, third: [], now: second_rows, later: [*second_rows[1:], {**NAN_ROW, "id": 5}]}
    for version, content in contents.items():
        check(duck, tmp_path, lake, table, version, content)
    assert lake.collect(table, versions=lambda: [now], grace_s=0, now_s=time.time()).files
    for version in (now, later):
        check(duck, tmp_path, Lakehouse(tmp_path / "tables", settings=load_settings()), table, version, contents[version])


def test_filters_that_skip_files_lose_no_rows(tmp_path: Path, lake: Lakehouse, duck: duckdb.DuckDBPyConnection) -> None:
    """Statistics let a reader skip files; whatever it filters on, it finds every row that the filter is true for."""
    version = lake.create(ALL_TYPES)
    for n in range(4):
        at = datetime(2024, 1, 1, 0, 0, n, 999500 + n, tzinfo=UTC)
        times = {"at": at, "local": at.replace(tzinfo=None)}
        row = {**FULL_ROW, **times, "id": n, "name": "z" * 40 + str(n), "price": Decimal(n) / 100}
        version = add(lake, ALL_TYPES, version, [row, {**row, "real": float("nan")}] if n else [row])

    def ids(condition: str) -> list[int]:
        return [one[0] for one in duck.execute(f"SELECT DISTINCT id FROM delta_scan('{tmp_path}/tables/all_types') WHERE {condition} ORDER BY id").fetchall()]

    assert ids("""\"at\" = TIMESTAMPTZ '2024-01-01 00:00:02.999502+00'""") == [2]
    assert ids("""\"at\" > TIMESTAMPTZ '2024-01-01 00:00:02.9995+00'""") == [2, 3]
    assert ids("""\"local\" >= TIMESTAMP '2024-01-01 00:00:03.999503'""") == [3]
    assert ids(f"name = '{'z' * 40}2'") == [2]
    assert ids(f"name > '{'z' * 40}1'") == [2, 3]
    assert ids("price = 0.03") == [3]
    assert ids('"real" > 2') == [1, 2, 3]
    assert ids("huge > 1234567890123456789012345678901234.5677") == [0, 1, 2, 3]
    assert ids("day < DATE '1582-10-05'") == [0, 1, 2, 3]
    assert ids('place.x = 1 AND "größe" = 7') == [0, 1, 2, 3]


@pytest.mark.spark
def test_plain_spark_reads_the_file_list_of_a_version(lake: Lakehouse, spark: SparkOwner) -> None:
    """Spark needs no Delta jar: the pinned files are the version, partition columns included."""
    rows = [{**FULL_ROW, "id": 1}, {**EMPTY_ROW, "id": 2}]
    parts = declare_table("parts", ALL_TYPES.columns, partition_by=["day"])
    version = add(lake, parts, lake.create(parts), rows)
    add(lake, parts, version, [{**FULL_ROW, "id": 3}])

    found = spark.relation(spark.child(), parts.columns, lake.files(parts, version)).toArrow()

    assert canonical(found.cast(parts.columns).to_pylist()) == expected(parts, rows)


@pytest.mark.spark
@pytest.mark.parametrize("order", [[float("nan"), 1.0, None], [1.0, float("nan"), None]], ids=["nan first", "nan last"])
def test_a_row_with_nan_is_found_by_a_filter_in_spark(lake: Lakehouse, spark: SparkOwner, order: list[float | None]) -> None:
    """Spark sorts NaN above all numbers; bounds in a file's footer that leave it out would make Spark skip the row."""
    table = declare_table("nan", "x DOUBLE, s STRUCT<f: FLOAT>, n INT")
    version = add(lake, table, lake.create(table), [{"x": x, "s": {"f": x}, "n": n} for n, x in enumerate(order)])
    relation = spark.relation(spark.child(), table.columns, lake.files(table, version))

    expected_rows = [n for n, x in enumerate(order) if x is not None and x != x]

    assert [row.n for row in relation.where("x > 2").collect()] == expected_rows
    assert [row.n for row in relation.where("s.f > 2").collect()] == expected_rows
    assert relation.where("x = 1").count() == 1


@pytest.mark.spark
def test_files_that_spark_wrote_become_a_version(tmp_path: Path, lake: Lakehouse, spark: SparkOwner, duck: duckdb.DuckDBPyConnection) -> None:
    """A load by executors is taken over, split by partition, and read by everybody."""
    rows = [{**FULL_ROW, "id": 1}, {**EMPTY_ROW, "id": 2}, {**NAN_ROW, "id": 3}]
    parts = declare_table("parts", ALL_TYPES.columns, keys=["id"], partition_by=["day"])
    version = lake.create(parts)
    folder = lake.staging(parts, batch_id="b")
    written = lake.write_files(parts, pa.Table.from_pylist(rows, schema=parts.columns), batch_id="source")
    frame = spark.relation(spark.child(), parts.columns, [str(tmp_path / "tables" / "parts" / file.path) for file in written])

    spark.write_parquet(frame, parts.columns, folder)
    files = lake.take_files(parts, folder)
    version = lake.commit(parts, files, version=version, batch_id="b", batch_number=1)

    check(duck, tmp_path, lake, parts, version, rows)
