"""Relations that leave rows out by their position: exact whatever Spark does with the files."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from righttime.errors import WarehouseDamaged
from righttime.pipeline.hidden import hidden_files
from righttime.pipeline.spark import SparkOwner

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
GROUP_ROWS = 500


def write(path: Path, ids: Iterable[int]) -> str:
    """Write a file of several row groups; the name of a row says its id."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = list(ids)
    pq.write_table(pa.table({"id": ids, "name": [f"row {one}" for one in ids]}, schema=COLUMNS), path, row_group_size=GROUP_ROWS)
    return str(path)


def ids_of(relation: DataFrame) -> list[int]:
    found = relation.toArrow()
    assert found.column("name").to_pylist() == [f"row {one}" for one in found.column("id").to_pylist()]
    return sorted(found.column("id").to_pylist())


def positions(*given: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(given, dtype=np.int64)


def test_hidden_rows_are_missing_and_no_others(spark_owner: SparkOwner, tmp_path: Path) -> None:
    """Touched files lose exactly the named positions, untouched ones nothing; equal positions in two files are two rows."""
    files = [write(tmp_path / f"{number}.parquet", range(10 * number, 10 * number + 10)) for number in range(4)]
    hidden = {files[0]: positions(0, 9), files[2]: positions(3, 9), files[3]: positions()}

    relation = spark_owner.relation(spark_owner.child(), COLUMNS, files, hidden=hidden)

    assert relation.columns == COLUMNS.names
    assert ids_of(relation) == [one for one in range(40) if one not in (0, 9, 23, 29)]


@pytest.mark.parametrize("hidden", [None, {}, {"/not/here.parquet": positions(1)}], ids=["none", "empty", "another file"])
def test_without_hidden_rows_it_is_one_plain_scan(spark_owner: SparkOwner, tmp_path: Path, hidden: dict[str, np.ndarray] | None) -> None:
    """Who never updates pays nothing."""
    file = write(tmp_path / "a.parquet", range(5))
    relation = spark_owner.relation(spark_owner.child(), COLUMNS, [file], hidden=hidden)
    plan = relation._jdf.queryExecution().executedPlan().toString()
    assert ids_of(relation) == [0, 1, 2, 3, 4]
    assert plan.count("FileScan") == 1
    assert "row_index" not in plan
    assert spark_owner.relation(spark_owner.child(), COLUMNS, [], hidden=hidden).count() == 0


def test_all_rows_of_a_file_may_be_hidden(spark_owner: SparkOwner, tmp_path: Path) -> None:
    """A file without a visible row is an empty file."""
    files = [write(tmp_path / "a.parquet", range(5)), write(tmp_path / "b.parquet", range(5, 8))]
    assert ids_of(spark_owner.relation(spark_owner.child(), COLUMNS, files, hidden={files[0]: np.arange(5)})) == [5, 6, 7]
    assert ids_of(spark_owner.relation(spark_owner.child(), COLUMNS, files[:1], hidden={files[0]: np.arange(5)})) == []


@pytest.mark.parametrize("count", [1, 40, 3_000, 11_000])
def test_splits_and_pushed_filters_do_not_shift_positions(spark_owner: SparkOwner, tmp_path: Path, count: int) -> None:
    """Spark reads parts of files, and passes over row groups that a filter rules out; a position stays a position in the file."""
    files = [write(tmp_path / f"{number}.parquet", range(4_000 * number, 4_000 * number + 4_000)) for number in range(3)]
    gone = np.random.default_rng(count).choice(12_000, count, replace=False)
    hidden = {file: gone[gone // 4_000 == number] % 4_000 for number, file in enumerate(files)}
    left = sorted(set(range(12_000)) - set(gone.tolist()))
    child = spark_owner.child()
    child.conf.set("spark.sql.files.maxPartitionBytes", "4096")
    child.conf.set("spark.sql.files.minPartitionNum", "12")

    relation = spark_owner.relation(child, COLUMNS, files, hidden=hidden)

    assert relation.rdd.getNumPartitions() > 12
    assert ids_of(relation) == left
    assert ids_of(relation.where("id >= 4321 AND id < 9876")) == [one for one in left if 4321 <= one < 9876]
    assert relation.where("id % 7 = 3").count() == sum(one % 7 == 3 for one in left)
    child.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    assert ids_of(spark_owner.relation(child, COLUMNS, files, hidden=hidden)) == left
    child.conf.set("spark.sql.codegen.wholeStage", "false")
    assert spark_owner.relation(child, COLUMNS, files, hidden=hidden).count() == len(left)


@pytest.mark.parametrize(
    "name", ["plain", "with space", "brackets [1]", "star * and {a,b}", "percent %20", "ümläut 😀", "colon a:b", "hash # question ?", "a+b=c&d"]
)
def test_files_and_folders_may_have_any_name(spark_owner: SparkOwner, tmp_path: Path, name: str) -> None:
    """Spark encodes what it says about a file; the row is found all the same."""
    files = [write(tmp_path / name / file, [number]) for number, file in enumerate(["a.parquet", f"{name.replace(':', '')}.parquet", "part=x%2Fy/a.parquet"])]
    for number, file in enumerate(files):
        shown = spark_owner.relation(spark_owner.child(), COLUMNS, files, hidden={file: positions(0)})
        assert ids_of(shown) == [other for other in range(3) if other != number]


def test_two_files_with_one_number_are_told_apart(spark_owner: SparkOwner, tmp_path: Path) -> None:
    """Numbers are 32 bits of a checksum: files that share one are read in scans of their own."""
    numbers: dict[int, str] = {}
    dice = Random(0)
    for _ in range(2**20):
        name = f"{dice.getrandbits(64):x}.parquet"
        other = numbers.setdefault(zlib.crc32(f"file:{tmp_path}/{name}".encode()), name)
        if other != name:
            break
    files = [write(tmp_path / one, [number, number + 10]) for number, one in enumerate((other, name, "c.parquet"))]
    hidden = {files[0]: positions(0), files[1]: positions(1), files[2]: positions(1)}
    child = spark_owner.child()

    assert [len(part) for part in hidden_files(child, hidden)] == [2, 1]
    assert ids_of(spark_owner.relation(child, COLUMNS, files, hidden=hidden)) == [1, 2, 10]


def test_a_file_that_is_gone_is_damage(spark_owner: SparkOwner, tmp_path: Path) -> None:
    """Rows to hide in a file that is not there mean lost rows, not none."""
    with pytest.raises(WarehouseDamaged, match="missing"):
        spark_owner.relation(spark_owner.child(), COLUMNS, [f"{tmp_path}/a.parquet"], hidden={f"{tmp_path}/a.parquet": positions(0)})
