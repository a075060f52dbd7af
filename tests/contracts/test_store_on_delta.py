"""The behaviour of a store, and what is Delta's own, on the embedded lakehouse."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from righttime.changes.schema import declare_table
from righttime.errors import BadTable, ForeignCommit, WarehouseDamaged
from righttime.settings import load_settings
from righttime.warehouse import files as files_module
from righttime.warehouse.lakehouse import Lakehouse
from righttime.warehouse.snapshots import SNAPSHOTS_MAX
from righttime.warehouse.store import DataFile, FileStore
from tests.contracts.store_behaviour import SALE, StoreBehaviour, add, rows_of, skus_at


def open_lakehouse(root: Path) -> Lakehouse:
    return Lakehouse(root / "tables", settings=load_settings())


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return open_lakehouse(tmp_path)


@pytest.fixture
def same_store(tmp_path: Path) -> FileStore:
    return open_lakehouse(tmp_path)


class TestLakehouse(StoreBehaviour):
    """All rules of a store hold on Delta tables."""


def log_of(root: Path) -> Path:
    return root / "tables" / "sale" / "_delta_log"


def foreign_append(root: Path, *skus: int) -> None:
    write_deltalake(str(root / "tables" / "sale"), rows_of(*skus), mode="append")


def test_a_commit_stores_its_batch_in_the_log(tmp_path: Path, store: FileStore) -> None:
    """Exactly once is a stored id: another reader sees the batch number as an app transaction and the id in the commit."""
    version = store.create(SALE)
    files = store.write_files(SALE, rows_of(1), batch_id="ä-7")
    store.commit(SALE, files, version=version, batch_id="ä-7", batch_number=41)

    table = DeltaTable(str(tmp_path / "tables" / "sale"))

    assert table.transaction_version("righttime") == 41
    assert table.history(1)[0]["righttimeBatch"] == "ä-7"


def test_a_commit_after_a_foreign_one_is_refused_and_nothing_is_lost(tmp_path: Path, store: FileStore) -> None:
    """Another Delta writer's version is neither overwritten nor taken for ours; undo refuses too."""
    version = add(store, store.create(SALE), 1)
    foreign_append(tmp_path, 2)

    with pytest.raises(ForeignCommit):
        add(store, version, 3)
    with pytest.raises(ForeignCommit) as caught:
        store.undo(SALE, version=version)

    assert caught.value.context == {"table": "sale", "found": version + 1, "known": version}
    assert skus_at(store, store.newest_version(SALE)) == [1, 2]
    assert store.history(SALE)[0].batch_id is None


def test_a_foreign_append_of_the_same_columns_can_be_taken_over(tmp_path: Path, store: FileStore) -> None:
    """Plain files with all columns are as good as ours."""
    version = add(store, store.create(SALE), 1)
    foreign_append(tmp_path, 2)
    store.check_schema(SALE, version + 1)
    assert skus_at(store, add(store, version + 1, 3)) == [1, 2, 3]


def test_a_foreign_version_that_cannot_be_read_by_its_files_is_refused(tmp_path: Path, store: FileStore) -> None:
    """Another column, or a partition column that is not in the file, would give other rows than a Delta reader sees."""
    store.create(SALE)
    more = rows_of(1).append_column("more", pa.array(["x"]))
    write_deltalake(str(tmp_path / "tables" / "sale"), more, mode="append", schema_mode="merge")
    with pytest.raises(BadTable, match="has other columns"):
        store.check_schema(SALE, 1)

    parts = declare_table("parts", "p STRING, n INT", partition_by=["p"])
    store.create(parts)
    write_deltalake(str(tmp_path / "tables" / "parts"), pa.table({"p": ["a"], "n": pa.array([1], pa.int32())}), mode="append", partition_by=["p"])
    with pytest.raises(BadTable, match="without the columns"):
        store.check_schema(parts, 1)


def test_foreign_files_are_collected_only_after_the_grace_period(tmp_path: Path, store: FileStore) -> None:
    """An unknown file may belong to a writer that has not committed yet; its age decides. Files in its versions stay."""
    version = add(store, store.create(SALE), 1)
    foreign_append(tmp_path, 2)
    stray = tmp_path / "tables" / "sale" / "part-of-somebody.parquet"
    pq.write_table(rows_of(9), stray)

    assert store.collect(SALE, versions=lambda: [version], grace_s=3600, now_s=time.time()).files == 0
    assert store.collect(SALE, versions=lambda: [version], grace_s=3600, now_s=time.time() + 4000).files == 1
    assert not stray.exists()
    assert skus_at(store, version + 1) == [1, 2]


def test_foreign_partition_folders_with_odd_names_are_found(tmp_path: Path, store: FileStore) -> None:
    """Paths in the log are percent-encoded; the file list has the real names, and collection spares them."""
    table = declare_table("odd", "p STRING, n INT", partition_by=["p"])
    version = store.create(table)
    write_deltalake(str(tmp_path / "tables" / "odd"), pa.table({"p": ["a b/ä%=", "c"], "n": pa.array([1, 2], pa.int32())}), mode="append", partition_by=["p"])

    paths = store.files(table, version + 1)

    assert len(paths) == 2
    assert all(Path(path).is_file() for path in paths)
    assert store.collect(table, versions=list, grace_s=0, now_s=time.time() + 10).files == 0
    assert store.row_count(table, version + 1) == 2


def test_files_after_our_own_commit_need_no_replay_of_the_log(tmp_path: Path, store: FileStore) -> None:
    """A query right after a commit costs nothing: even without the log on disk the list is there."""
    version = add(store, store.create(SALE), 1)
    shutil.rmtree(log_of(tmp_path))
    assert len(store.files(SALE, version)) == 1


def test_old_snapshots_make_room_and_are_replayed_when_asked_for(store: FileStore) -> None:
    """Memory for file lists is bounded; a forgotten version reads the same."""
    version = first = store.create(SALE)
    for sku in range(SNAPSHOTS_MAX + 3):
        version = add(store, version, sku)
    assert skus_at(store, first + 2) == [0, 1]
    assert len(skus_at(store, version)) == SNAPSHOTS_MAX + 3


def test_a_half_written_entry_of_a_crash_is_invisible_and_collected(tmp_path: Path, store: FileStore, same_store: FileStore) -> None:
    """A temporary entry has no version; it hinders neither readers nor the next commit."""
    version = add(store, store.create(SALE), 1)
    half = log_of(tmp_path) / "_righttime_00ff.tmp"
    half.write_text('{"add":{"pa')

    assert same_store.newest_version(SALE) == version
    assert same_store.undo(SALE, version=version) == version
    assert DeltaTable(str(log_of(tmp_path).parent)).version() == version
    assert skus_at(same_store, add(same_store, version, 2)) == [1, 2]
    assert same_store.collect(SALE, versions=list, grace_s=60, now_s=time.time()).log_entries == 1
    assert not half.exists()


@pytest.mark.parametrize("missing", ["tables", "tables/sale", "tables/sale/_delta_log"])
def test_a_table_that_somebody_deleted_is_reported_as_damage(tmp_path: Path, store: FileStore, missing: str) -> None:
    """Every call on a table without its folder or log says which folder is missing; none makes it anew."""
    version = add(store, store.create(SALE), 1)
    files = store.write_files(SALE, rows_of(2), batch_id="b")
    shutil.rmtree(tmp_path / missing)
    fresh = open_lakehouse(tmp_path)

    calls: list[Callable[[], object]] = [
        lambda: store.commit(SALE, files, version=version, batch_id="b", batch_number=1),
        lambda: store.newest_version(SALE),
        lambda: store.undo(SALE, version=version),
        lambda: store.history(SALE),
        lambda: store.staging(SALE, batch_id="b"),
        lambda: store.collect(SALE, versions=lambda: [version], grace_s=0, now_s=0),
        lambda: store.checkpoint(SALE, version),
        lambda: fresh.files(SALE, version),
        lambda: fresh.commit(SALE, files, version=version, batch_id="b", batch_number=1),
    ]
    for call in calls:
        with pytest.raises(WarehouseDamaged, match="sale") as caught:
            call()
        assert caught.value.code == "warehouse.damaged"
    assert not log_of(tmp_path).exists()


def test_files_cannot_be_written_to_a_deleted_table(tmp_path: Path, store: FileStore) -> None:
    """Writing does not bring a deleted folder back."""
    store.create(SALE)
    shutil.rmtree(tmp_path / "tables" / "sale")
    with pytest.raises(WarehouseDamaged):
        store.write_files(SALE, rows_of(1), batch_id="b")


def test_a_log_that_lost_its_newest_entries_is_damage(tmp_path: Path, store: FileStore, same_store: FileStore) -> None:
    """An old copy of a table must not be continued as if it were the newest."""
    version = add(store, add(store, store.create(SALE), 1), 2)
    (log_of(tmp_path) / f"{version:020d}.json").unlink()
    with pytest.raises(WarehouseDamaged, match="ledger knows"):
        add(same_store, version, 3)
    with pytest.raises(WarehouseDamaged, match="ledger knows"):
        same_store.undo(SALE, version=version)


def test_a_log_entry_that_is_not_json_is_damage(tmp_path: Path, store: FileStore, same_store: FileStore) -> None:
    """Garbage is named with its path, not with a parser's trace."""
    version = store.create(SALE)
    add(store, version, 1)
    (log_of(tmp_path) / f"{version + 1:020d}.json").write_text("{half")
    for call in (lambda: same_store.history(SALE), lambda: same_store.undo(SALE, version=version), lambda: same_store.files(SALE, version + 1)):
        with pytest.raises(WarehouseDamaged):
            call()


def test_a_collection_that_cannot_read_a_kept_version_removes_nothing(tmp_path: Path, store: FileStore, same_store: FileStore) -> None:
    """Not knowing what a version needs is no licence to delete."""
    version = add(store, store.create(SALE), 1)
    store.write_files(SALE, rows_of(2), batch_id="left over")
    with pytest.raises(WarehouseDamaged):
        same_store.collect(SALE, versions=lambda: [version, version + 5], grace_s=0, now_s=time.time())
    newest = add(store, version, 3)
    (log_of(tmp_path) / f"{version:020d}.json").unlink()
    with pytest.raises(WarehouseDamaged):
        same_store.collect(SALE, versions=lambda: [version, newest], grace_s=0, now_s=time.time())
    assert len(list((tmp_path / "tables" / "sale").glob("*.parquet"))) == 3


def test_an_unknown_folder_is_not_replaced_by_a_new_table(tmp_path: Path, store: FileStore) -> None:
    """A folder with somebody's files, or somebody's Delta table, is left alone."""
    (tmp_path / "tables" / "sale").mkdir(parents=True)
    (tmp_path / "tables" / "sale" / "letter.txt").write_text("dear")
    with pytest.raises(BadTable, match="move it away"):
        store.create(SALE)
    shutil.rmtree(tmp_path / "tables" / "sale")
    DeltaTable.create(str(tmp_path / "tables" / "sale"), SALE.columns)
    with pytest.raises(BadTable, match="move it away"):
        store.create(SALE)


def test_large_loads_are_cut_into_files(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows per file are bounded, whether they come as one table or as a stream."""
    monkeypatch.setattr(files_module, "FILE_ROWS_MAX", 4)
    store.create(SALE)
    assert [file.rows for file in store.write_files(SALE, rows_of(*range(10)), batch_id="b")] == [4, 4, 2]
    stream = iter(rows_of(*range(10)).to_batches(max_chunksize=3))
    assert sum(file.rows for file in store.write_files(SALE, stream, batch_id="b")) == 10


def test_columns_are_matched_by_name_and_extra_ones_left_out(store: FileStore) -> None:
    """The catalyst's own columns never reach the table."""
    version = store.create(SALE)
    rows = pa.table({"_id": [1], "qty": pa.array([5], pa.int32()), "sku": pa.array([7], pa.int32())})
    files = store.write_files(SALE, rows, batch_id="b")
    (path,) = store.files(SALE, store.commit(SALE, files, version=version, batch_id="b", batch_number=1))
    assert pq.read_table(path).to_pylist() == [{"sku": 7, "qty": 5}]


def test_log_paths_are_percent_encoded(tmp_path: Path, store: FileStore) -> None:
    """The Delta protocol wants encoded paths, whatever the file is called."""
    version = store.create(SALE)
    (file,) = store.write_files(SALE, rows_of(1), batch_id="b")
    odd = tmp_path / "tables" / "sale" / "a b%ä.parquet"
    (tmp_path / "tables" / "sale" / file.path).rename(odd)
    store.commit(SALE, [DataFile(odd.name, file.size, 1, {}, file.stats_json)], version=version, batch_id="b", batch_number=1)

    entry = (log_of(tmp_path) / f"{version + 1:020d}.json").read_text().splitlines()

    assert json.loads(entry[-1])["add"]["path"] == "a%20b%25%C3%A4.parquet"
    assert skus_at(open_lakehouse(tmp_path), version + 1) == [1]
    assert DeltaTable(str(tmp_path / "tables" / "sale")).to_pyarrow_table().num_rows == 1


def write_under_limit(root: Path, limit_bytes: int) -> str:
    """Run write and commit in a process whose files may not grow beyond a limit; return the error's code and step."""
    program = f"""
import resource, signal
from pathlib import Path
from righttime.errors import RightTimeError
from tests.contracts.store_behaviour import SALE, add, rows_of
from tests.contracts.test_store_on_delta import open_lakehouse
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_lakehouse(Path({str(root)!r}))
files = store.write_files(SALE, rows_of(1), batch_id="first")
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, resource.RLIM_INFINITY))
try:
    store.commit(SALE, files, version=0, batch_id="b", batch_number=1)
    store.write_files(SALE, rows_of(*range(100_000)), batch_id="b")
except RightTimeError as error:
    print(error.code, error.retryable, error.context["step"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2], env=_environment())
    return done.stdout.strip()


def _environment() -> dict[str, str]:
    repository = Path(__file__).parents[2]
    return {"PYTHONPATH": f"{repository / 'src'}:{repository}"}


@pytest.mark.parametrize(("limit_bytes", "step"), [(10, "commit table"), (2000, "write files")])
def test_a_full_disk_fails_the_commit_and_leaves_no_half_files(tmp_path: Path, store: FileStore, limit_bytes: int, step: str) -> None:
    """What could not be written whole is not there; the same work succeeds when there is room again."""
    store.create(SALE)

    assert write_under_limit(tmp_path, limit_bytes) == f"commit.failed True {step}"

    folder = tmp_path / "tables" / "sale"
    assert len(list(folder.glob("*.parquet"))) == 1
    assert not list(log_of(tmp_path).glob("*.tmp"))
    newest = store.newest_version(SALE)
    assert skus_at(store, add(store, newest, 5))[-1] == 5
    assert DeltaTable(str(folder)).version() == newest + 1


def test_everything_is_synced_before_a_commit_returns(tmp_path: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power loss: data file, its folder, log entry and the log's folder are on the disk, in this order, once each."""
    version = store.create(SALE)
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    (file,) = store.write_files(SALE, rows_of(1), batch_id="b")
    store.commit(SALE, [file], version=version, batch_id="b", batch_number=1)

    assert synced[:2] == [file.path, "sale"]
    assert synced[2].startswith("_righttime_")
    assert synced[3:] == ["_delta_log"]
