"""Files and versions of the lakehouse: what is kept, what is taken over, what is collected, and what a removal leaves on the disk."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from righttime.changes.schema import declare_table
from righttime.errors import BadTable, CommitFailed, ForeignCommit, NullNotAllowed, WarehouseDamaged
from righttime.warehouse import removal, scan
from righttime.warehouse.lakehouse import Lakehouse
from righttime.warehouse.store import FileStore
from tests.contracts.store_behaviour import BY_DAY, LATER_S, SALE, add, finish, places, prepare, rows_of, skus_at, take_out
from tests.contracts.test_store_on_delta import foreign_append, log_of, open_lakehouse


@pytest.fixture
def store(tmp_path: Path) -> Lakehouse:
    return open_lakehouse(tmp_path)


@pytest.fixture
def same_store(tmp_path: Path) -> Lakehouse:
    return open_lakehouse(tmp_path)


def entry(root: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (log_of(root) / f"{version:020d}.json").read_text().splitlines()]


def adds(root: Path, version: int) -> list[dict[str, Any]]:
    return [action["add"] for action in entry(root, version) if "add" in action]


def data_files(root: Path) -> set[str]:
    return {str(path) for path in (root / "tables" / "sale").glob("*.parquet")}


def test_each_commit_makes_the_next_version_and_old_ones_stay(store: FileStore, same_store: FileStore) -> None:
    """A version's content never changes, for this handle and for a new one."""
    first = store.create(SALE)
    second = add(store, first, 1, 2)
    third = add(store, second, 3)

    for handle in (store, same_store):
        assert [skus_at(handle, version) for version in (first, second, third)] == [[], [1, 2], [1, 2, 3]]
        assert handle.newest_version(SALE) == third == second + 1 == first + 2


def test_many_threads_on_one_version_have_one_winner(store: FileStore) -> None:
    """Put-if-absent holds under races."""
    version = store.create(SALE)
    outcomes: list[object] = []

    def race(sku: int) -> None:
        try:
            outcomes.append(add(store, version, sku))
        except ForeignCommit:
            outcomes.append(None)

    threads = [threading.Thread(target=race, args=(sku,)) for sku in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outcomes, key=str) == [version + 1] + [None] * 7
    assert len(skus_at(store, version + 1)) == 1


def test_undo_brings_back_the_content_of_a_version(store: FileStore, same_store: FileStore) -> None:
    """Commits that the ledger never heard of leave no trace in the newest version; again, it changes nothing."""
    kept = add(store, store.create(SALE), 1)
    add(store, add(store, kept, 2), 3)

    now = same_store.undo(SALE, version=kept)

    assert now == same_store.newest_version(SALE) > kept
    assert skus_at(same_store, now) == skus_at(store, now) == [1]
    assert same_store.undo(SALE, version=kept) == same_store.undo(SALE, version=now) == now
    assert skus_at(same_store, add(same_store, now, 4)) == [1, 4]


def test_history_names_the_batches_newest_first(store: FileStore) -> None:
    """A batch id is stored with the data it committed."""
    version = add(store, add(store, store.create(SALE), 1), 2)
    history = store.history(SALE)
    assert [entry.version for entry in history] == [version, version - 1, version - 2]
    assert [entry.batch_id for entry in history[:2]] == [f"batch-{version - 1}", f"batch-{version - 2}"]
    assert history[0].time_us >= history[-1].time_us > 0


def test_collect_keeps_what_kept_versions_need(store: FileStore, same_store: FileStore) -> None:
    """I5: files of a kept version stay, files of undone commits go, and the kept versions still read."""
    first = add(store, store.create(SALE), 1)
    undone = add(store, first, 2)
    now = store.undo(SALE, version=first)
    newest = add(store, now, 3)

    assert same_store.collect(SALE, versions=lambda: [first, undone], grace_s=0, now_s=time.time()).files == 0
    assert skus_at(store, undone) == [1, 2]
    assert same_store.collect(SALE, versions=lambda: [first], grace_s=0, now_s=time.time()).files == 1
    assert [skus_at(store, version) for version in (first, newest)] == [[1], [1, 3]]


def test_collect_removes_what_a_crash_left_and_spares_a_commit_in_progress(store: FileStore, same_store: FileStore) -> None:
    """The handle that wrote files keeps them until it commits; to a new handle, after a crash, they are waste."""
    version = store.create(SALE)
    files = store.write_files(SALE, rows_of(1), batch_id="b")

    assert store.collect(SALE, versions=list, grace_s=0, now_s=LATER_S + time.time()).files == 0
    after = store.commit(SALE, files, version=version, batch_id="b", batch_number=1)
    assert skus_at(store, after) == [1]

    store.write_files(SALE, rows_of(2), batch_id="c")
    assert same_store.collect(SALE, versions=list, grace_s=3600, now_s=time.time()).files == 1


def test_collections_beside_commits_lose_nothing(store: FileStore) -> None:
    """I5 under a race: whatever moment a collection looks, files on their way into a version are spared."""
    version = store.create(SALE)
    done = threading.Event()
    failures: list[BaseException] = []

    def collect_on_and_on() -> None:
        try:
            while not done.is_set():
                store.collect(SALE, versions=list, grace_s=0, now_s=time.time() + LATER_S)
        except BaseException as error:
            failures.append(error)

    collector = threading.Thread(target=collect_on_and_on)
    collector.start()
    try:
        for sku in range(40):
            version = add(store, version, sku)
    finally:
        done.set()
        collector.join()

    assert failures == []
    assert skus_at(store, version) == list(range(40))


def test_an_uncommitted_file_has_a_path(store: FileStore) -> None:
    """A producer reads its own rows before they are committed."""
    store.create(SALE)
    (file,) = store.write_files(SALE, rows_of(4), batch_id="b")
    assert pq.read_table(store.path_of(SALE, file)).column("sku").to_pylist() == [4]


def test_somebody_elses_files_are_taken_over(store: FileStore) -> None:
    """A load too large for one process is written by others and committed here."""
    version = store.create(SALE)
    folder = store.staging(SALE, batch_id="b/with slash")
    folder.mkdir()
    pq.write_table(rows_of(1, 2), folder / "part-0.parquet")
    pq.write_table(rows_of(3), folder / "part-1.snappy.parquet")
    pq.write_table(rows_of(), folder / "part-2.parquet")
    (folder / "_SUCCESS").touch()

    assert store.collect(SALE, versions=list, grace_s=0, now_s=LATER_S + time.time()).folders == 0
    files = store.take_files(SALE, folder)

    assert sorted(file.rows for file in files) == [1, 2]
    assert not folder.exists()
    assert skus_at(store, store.commit(SALE, files, version=version, batch_id="b", batch_number=1)) == [1, 2, 3]


def test_staging_that_a_crash_left_is_collected(store: FileStore, same_store: FileStore) -> None:
    """A folder of a dead writer goes, by the handle that comes after it."""
    version = store.create(SALE)
    folder = store.staging(SALE, batch_id="b")
    folder.mkdir()
    pq.write_table(rows_of(1), folder / "part-0.parquet")
    assert same_store.collect(SALE, versions=lambda: [version], grace_s=0, now_s=time.time()).folders == 1
    assert not folder.exists()


@pytest.mark.parametrize("columns", [{"sku": [1]}, {"sku": ["a"], "qty": [1]}, {"qty": [1], "sku": [1]}, {"sku": [1], "qty": [1.0]}], ids=str)
def test_files_of_another_shape_are_refused(store: FileStore, columns: dict[str, list[object]]) -> None:
    """Columns and types are checked before a file becomes part of the table."""
    store.create(SALE)
    folder = store.staging(SALE, batch_id="b")
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "part-0.parquet")
    with pytest.raises(BadTable, match="has other columns"):
        store.take_files(SALE, folder)


def test_files_with_null_where_none_may_be_are_refused(store: FileStore) -> None:
    """NOT NULL holds for foreign files too, although Spark writes every column as nullable."""
    store.create(BY_DAY)
    folder = store.staging(BY_DAY, batch_id="b")
    folder.mkdir()
    pq.write_table(pa.table({"day": pa.array([None], pa.date32()), "n": pa.array([None], pa.int32())}), folder / "part-0.parquet")
    with pytest.raises(NullNotAllowed):
        store.take_files(BY_DAY, folder)


def test_a_file_has_one_partition(store: FileStore) -> None:
    """Rows are split by their partition values, also those in files of others."""
    version = store.create(BY_DAY)
    rows = pa.table({"day": pa.array([1, 2, 1, None], pa.date32()), "n": pa.array([1, 2, 3, 4], pa.int32())})
    folder: Path = store.staging(BY_DAY, batch_id="b")
    folder.mkdir()
    pq.write_table(rows, folder / "mixed.parquet")
    pq.write_table(rows.slice(0, 1), folder / "single.parquet")

    files = [*store.write_files(BY_DAY, rows.cast(BY_DAY.columns), batch_id="b"), *store.take_files(BY_DAY, folder)]

    assert sorted(str(file.partition["day"]) for file in files) == sorted(["1970-01-02", "1970-01-03", "None"] * 2 + ["1970-01-02"])
    assert store.row_count(BY_DAY, store.commit(BY_DAY, files, version=version, batch_id="b", batch_number=1)) == 9


def test_a_checkpoint_changes_nothing_that_is_read(store: FileStore, same_store: FileStore) -> None:
    """With a checkpoint, and after the log below it was collected, kept versions read as before."""
    version = store.create(SALE)
    versions = [version := add(store, version, sku) for sku in range(6)]

    store.checkpoint(SALE, versions[2])
    store.checkpoint(SALE, versions[4])
    store.collect(SALE, versions=lambda: versions[4:], grace_s=0, now_s=time.time())

    assert [skus_at(same_store, kept) for kept in versions[4:]] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert same_store.newest_version(SALE) == versions[-1]
    assert skus_at(same_store, add(same_store, versions[-1], 6)) == [0, 1, 2, 3, 4, 5, 6]


def test_a_removal_leaves_earlier_versions_as_they_were(store: FileStore, same_store: FileStore) -> None:
    """Time travel goes on across removals: the old files are untouched."""
    first = add(store, store.create(SALE), 1, 2)
    second = take_out(store, first, 1)
    third = take_out(store, add(store, second, 3), 2)
    for handle in (store, same_store):
        assert [skus_at(handle, version) for version in (first, second, third)] == [[1, 2], [2], [3]]


def test_removed_files_are_collected_with_the_last_version_that_has_them(tmp_path: Path, store: FileStore, same_store: FileStore) -> None:
    """I5 for removals: a kept version keeps its files, whichever versions came after it."""
    first = add(store, add(store, store.create(SALE), 1, 2), 3)
    second = take_out(store, first, 1)
    third = take_out(store, second, 2, 3)

    assert same_store.collect(SALE, versions=lambda: [first, second, third], grace_s=0, now_s=time.time()).files == 0
    assert same_store.collect(SALE, versions=lambda: [first], grace_s=0, now_s=time.time()).files == 1
    assert [skus_at(same_store, version) for version in (first, third)] == [[1, 2, 3], []]
    assert same_store.collect(SALE, versions=lambda: [third], grace_s=0, now_s=time.time()).files == 2
    assert data_files(tmp_path) == set()


def test_files_of_a_removal_in_progress_are_spared(store: FileStore, same_store: FileStore) -> None:
    """What is left of a file is safe from the moment it is written; of a dead process it is waste."""
    version = add(store, store.create(SALE), 1, 2)
    prepared = prepare(store, version, 1)
    assert store.collect(SALE, versions=lambda: [version], grace_s=0, now_s=LATER_S + time.time()).files == 0
    assert same_store.collect(SALE, versions=lambda: [version], grace_s=0, now_s=time.time()).files == 1

    again = prepare(store, version, 2)
    store.discard(SALE, prepared.files)
    assert skus_at(store, finish(store, version, again)) == [1]


def test_a_removal_is_no_blind_append(tmp_path: Path, store: FileStore) -> None:
    """Other writers judge conflicts by what a commit says about itself."""
    version = add(store, store.create(SALE), 1, 2)
    merged = take_out(store, version, 1)
    deleted = take_out(store, merged, 2)
    said = [entry(tmp_path, number)[0]["commitInfo"] for number in (version, merged, deleted)]
    assert [(about["operation"], about["isBlindAppend"]) for about in said] == [("WRITE", True), ("MERGE", False), ("DELETE", False)]
    assert [one.operation for one in store.history(SALE)[:2]] == ["DELETE", "MERGE"]
    assert DeltaTable(str(tmp_path / "tables" / "sale")).transaction_version("righttime") == deleted


def test_undo_brings_a_file_back_word_for_word(tmp_path: Path, store: FileStore, same_store: FileStore) -> None:
    """Size, statistics and partition values are those of the first time; the handle after a crash knows no more than the log."""
    kept = add(store, store.create(SALE), 1, 2)
    take_out(store, kept, 1)

    now = same_store.undo(SALE, version=kept)

    assert adds(tmp_path, now) == adds(tmp_path, kept)
    assert now == kept + 2
    assert same_store.files(SALE, now) == store.files(SALE, now) == store.files(SALE, kept)
    assert [skus_at(handle, now) for handle in (store, same_store, open_lakehouse(tmp_path))] == [[1, 2]] * 3
    assert same_store.collect(SALE, versions=lambda: [kept], grace_s=0, now_s=time.time()).files == 1
    assert skus_at(same_store, kept) == [1, 2]


@pytest.mark.parametrize("odd", [False, True], ids=["plain", "foreign"])
def test_removal_and_undo_find_their_files_behind_a_checkpoint(tmp_path: Path, store: FileStore, same_store: FileStore, odd: bool) -> None:
    """When the log is shortened, the checkpoint still knows how each file came in."""
    version = add(store, store.create(SALE), 1, 2)
    if odd:
        foreign_append(tmp_path, 3, 4)
        version += 1
    original = adds(tmp_path, version)
    version = add(store, version, 5)
    store.checkpoint(SALE, version)
    version = add(store, version, 6)
    store.collect(SALE, versions=lambda: [version], grace_s=0, now_s=time.time())
    assert not (log_of(tmp_path) / f"{1:020d}.json").exists()
    before = skus_at(same_store, version)

    after = take_out(same_store, version, 1, 3, 5)
    assert skus_at(open_lakehouse(tmp_path), after) == [sku for sku in before if sku not in (1, 3, 5)]
    now = same_store.undo(SALE, version=version)

    assert skus_at(open_lakehouse(tmp_path), now) == before
    kept = ("path", "partitionValues", "size", "modificationTime", "stats")
    back = {add["path"]: [add[name] for name in kept] for add in adds(tmp_path, now)}
    assert all(back[add["path"]] == [add[name] for name in kept] for add in original)


def test_undo_without_the_removed_file_is_damage(tmp_path: Path, store: FileStore, same_store: FileStore) -> None:
    """A version is not promised again when its file is gone."""
    kept = add(store, store.create(SALE), 1, 2)
    (path,) = store.files(SALE, kept)
    take_out(store, kept, 1)
    Path(path).unlink()
    with pytest.raises(WarehouseDamaged, match="needs this file"):
        same_store.undo(SALE, version=kept)


def test_rows_leave_only_files_of_the_version(store: FileStore) -> None:
    """A place of another version names a file that this one does not have: neither prepared nor committed."""
    first = add(store, store.create(SALE), 1, 2)
    second = take_out(store, first, 1)
    stale = places(store, first, [2])
    with pytest.raises(WarehouseDamaged, match="does not have it"):
        store.remove(SALE, second, stale, batch_id="b")
    with pytest.raises(WarehouseDamaged, match="does not have it"):
        store.commit(SALE, [], version=second, batch_id="b", batch_number=1, removed=list(stale))
    assert store.newest_version(SALE) == second


def test_what_is_left_of_small_files_becomes_one_file_and_large_ones_stay_apart(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequent commits leave small files; a removal that touches them leaves fewer."""
    version = store.create(SALE)
    for start in range(0, 40, 4):
        version = add(store, version, *range(start, start + 4))
    assert [file.rows for file in prepare(store, version, *range(0, 40, 4)).files] == [30]
    monkeypatch.setattr(removal, "FILE_ROWS_MAX", 6)
    prepared = prepare(store, version, *range(0, 40, 4))
    assert [file.rows for file in prepared.files] == [6] * 5
    assert (prepared.rows, prepared.rows_kept, len(prepared.units)) == (10, 30, 10)


def test_untouched_files_are_not_rewritten(store: FileStore) -> None:
    """A removal costs what the files it touches cost."""
    first = add(store, store.create(SALE), 1, 2)
    second = add(store, first, 3, 4)
    untouched = store.files(SALE, first)
    assert set(untouched) < set(store.files(SALE, take_out(store, second, 3)))


def test_files_of_other_writers_lose_rows_like_ours(tmp_path: Path, store: FileStore, same_store: FileStore) -> None:
    """Several row groups, another order of columns, encoded names: positions count through the whole file."""
    version = store.create(SALE)
    folder = store.staging(SALE, batch_id="b")
    folder.mkdir()
    pq.write_table(rows_of(*range(10)), folder / "part 0.parquet", row_group_size=3)
    version = store.commit(SALE, store.take_files(SALE, folder), version=version, batch_id="b", batch_number=1)
    write_deltalake(str(tmp_path / "tables" / "sale"), rows_of(*range(10, 14)), mode="append")

    after = take_out(same_store, version + 1, 0, 4, 5, 9, 10)

    assert skus_at(same_store, after) == [1, 2, 3, 6, 7, 8, 11, 12, 13]
    assert skus_at(open_lakehouse(tmp_path), same_store.undo(SALE, version=version + 1)) == list(range(14))


def test_rows_in_foreign_partition_folders_leave(tmp_path: Path, store: FileStore) -> None:
    """The path in the log is encoded, the unit is the real name, and the remove action has the log's words again."""
    table = declare_table("odd", "p STRING, n INT", partition_by=["p"])
    rows = pa.Table.from_pylist([{"p": "a b/ä%=", "n": 1}, {"p": "a b/ä%=", "n": 2}], schema=table.columns)
    version = store.create(table)
    (file,) = store.write_files(table, rows, batch_id="b")
    folder = tmp_path / "tables" / "odd" / "p=a%20b ä"
    folder.mkdir()
    (tmp_path / "tables" / "odd" / file.path).rename(folder / "x%y.parquet")
    moved = type(file)("p=a%20b ä/x%y.parquet", file.size, file.rows, file.partition, file.stats_json)
    version = store.commit(table, [moved], version=version, batch_id="b", batch_number=1)

    prepared = store.remove(table, version, {str(folder / "x%y.parquet"): np.array([0])}, batch_id="b")
    after = store.commit(table, prepared.files, version=version, batch_id="b", batch_number=2, removed=prepared.units)

    assert [file.partition for file in prepared.files] == [file.partition]
    assert DeltaTable(str(tmp_path / "tables" / "odd")).to_pyarrow_table().to_pylist() == [{"p": "a b/ä%=", "n": 2}]
    assert [row for part in open_lakehouse(tmp_path).scan(table, after, ["n"]) for row in part.rows.column("n").to_pylist()] == [2]


def test_ranges_spare_files_and_row_groups(store: FileStore) -> None:
    """A change of one key reads one row group, however large the table is."""
    version = add(store, store.create(SALE), *range(100, 200))
    folder = store.staging(SALE, batch_id="b")
    folder.mkdir()
    pq.write_table(rows_of(*range(30)), folder / "part.parquet", row_group_size=10)
    version = store.commit(SALE, store.take_files(SALE, folder), version=version, batch_id="b", batch_number=1)

    def positions(low: object, high: object) -> list[tuple[int, int]]:
        parts = store.scan(SALE, version, ["qty"], ranges={"sku": (low, high)})
        return [(int(part.positions[0]), int(part.positions[-1])) for part in parts]

    assert positions(15, 15) == [(10, 19)]
    assert positions(None, 9) == [(0, 9)]
    assert positions(150, None) == [(0, 99)]
    assert positions(None, None) == [(0, 99), (0, 9), (10, 19), (20, 29)]
    assert positions(200, 300) == []
    # Not to be compared exactly: nothing is spared.
    assert positions(15.0, 15.0) == positions("15", "15") == positions(None, None)


def test_bounds_of_other_writers_do_not_lose_nan(store: FileStore) -> None:
    """Most writers leave NaN out of a file's bounds, and it is above all numbers: only an upper bound rules it out."""
    table = declare_table("measure", "x DOUBLE")
    version = store.create(table)
    folder = store.staging(table, batch_id="b")
    folder.mkdir()
    pq.write_table(pa.table({"x": [float("nan"), 1.0, 2.0]}), folder / "part.parquet")
    pq.write_table(pa.table({"x": pa.array([None, None], pa.float64())}), folder / "null.parquet")
    version = store.commit(table, store.take_files(table, folder), version=version, batch_id="b", batch_number=1)

    def rows(low: float | None, high: float | None) -> int:
        return sum(part.rows.num_rows for part in store.scan(table, version, ["x"], ranges={"x": (low, high)}))

    assert (rows(None, None), rows(5.0, None), rows(5.0, float("nan")), rows(5.0, 6.0), rows(None, 0.5)) == (5, 3, 3, 0, 0)


def test_remembered_footers_are_bounded(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for bounds does not grow with the table; a forgotten footer is read again."""
    monkeypatch.setattr(scan, "FOOTERS_MAX", 2)
    footers = scan.Footers()
    version = add(store, add(store, add(store, store.create(SALE), 1), 2), 3)
    for _ in range(2):
        assert [len(footers.groups(path, ranges={"sku": (2, 2)})) for path in store.files(SALE, version)] == [0, 1, 0]
    assert len(footers._known) == 2


def test_a_large_unit_is_read_in_pieces(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds a batch, not a file; places go on across batches."""
    monkeypatch.setattr(scan, "BATCH_ROWS_MAX", 4)
    version = add(store, store.create(SALE), *range(10))
    (unit,) = store.files(SALE, version)
    assert [part.positions.tolist() for part in store.scan(SALE, version, ["sku"])] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert store.fetch(SALE, version, unit, np.array([9, 0, 5, 5])).column("sku").to_pylist() == [9, 0, 5, 5]
    assert skus_at(store, take_out(store, version, 3, 4, 9)) == [0, 1, 2, 5, 6, 7, 8]


@pytest.mark.parametrize("harm", ["missing", "garbage"])
def test_a_file_that_cannot_be_read_is_damage(store: FileStore, harm: str) -> None:
    """Neither a scan, a fetch nor a removal takes a broken file for an empty one."""
    version = add(store, store.create(SALE), 1, 2)
    (unit,) = store.files(SALE, version)
    gone = places(store, version, [1])
    Path(unit).unlink()
    if harm == "garbage":
        Path(unit).write_bytes(b"PAR1 not really PAR1")
    for call in (
        lambda: list(store.scan(SALE, version, ["sku"])),
        lambda: store.fetch(SALE, version, unit, gone[unit]),
        lambda: store.remove(SALE, version, gone, batch_id="b"),
    ):
        with pytest.raises(WarehouseDamaged, match="a data file"):
            call()


def test_a_removal_that_finds_no_room_leaves_no_half_files(tmp_path: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error in the second new file the first is gone, too, and the same removal succeeds when there is room."""
    version = add(store, add(store, store.create(SALE), *range(4)), *range(4, 8))
    before, sync, left = data_files(tmp_path), os.fsync, [2]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(removal, "FILE_ROWS_MAX", 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CommitFailed, match="No space left"):
            prepare(store, version, 0, 4)
    assert data_files(tmp_path) == before
    assert skus_at(store, take_out(store, version, 0, 4)) == [1, 2, 3, 5, 6, 7]
