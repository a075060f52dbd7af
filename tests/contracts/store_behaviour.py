"""What every store does, whatever keeps its rows.

A store's test module makes a class from `StoreBehaviour` with a `store` fixture that returns an empty one; all rules below then run on it.
"""

import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from righttime.changes.schema import TableSchema, declare_table
from righttime.errors import BadTable, ForeignCommit, NullNotAllowed
from righttime.warehouse.store import Store

SALE = declare_table("sale", "sku INT, qty INT")
BY_DAY = declare_table("by_day", "day DATE, n INT NOT NULL", partition_by=["day"])
LATER_S = 1e6


def rows_of(*skus: int) -> pa.Table:
    return pa.table({"sku": skus, "qty": [1] * len(skus)}, schema=SALE.columns)


def add(store: Store, version: int, *skus: int, table: TableSchema = SALE) -> int:
    files = store.write_files(table, rows_of(*skus), batch_id=f"batch-{version}")
    return store.commit(table, files, version=version, batch_id=f"batch-{version}", batch_number=version + 1)


def skus_at(store: Store, version: int) -> list[int]:
    """Read a version as a query does: exactly its file list."""
    paths = store.files(SALE, version)
    found = sorted(sku for path in paths for sku in pq.read_table(path, partitioning=None).column("sku").to_pylist())
    assert store.row_count(SALE, version) == len(found)
    return found


class StoreBehaviour:
    """The rules; the fixture `store` gives an empty store, `same_store` another handle on the same rows."""

    def test_a_new_table_is_empty(self, store: Store) -> None:
        """A table begins with a version that has no rows."""
        version = store.create(SALE)
        assert (store.newest_version(SALE), store.files(SALE, version), store.row_count(SALE, version)) == (version, (), 0)

    def test_each_commit_makes_the_next_version_and_old_ones_stay(self, store: Store, same_store: Store) -> None:
        """A version's content never changes, for this handle and for a new one."""
        first = store.create(SALE)
        second = add(store, first, 1, 2)
        third = add(store, second, 3)

        for handle in (store, same_store):
            assert [skus_at(handle, version) for version in (first, second, third)] == [[], [1, 2], [1, 2, 3]]
            assert handle.newest_version(SALE) == third == second + 1 == first + 2

    def test_written_files_are_in_no_version_before_the_commit(self, store: Store) -> None:
        """Files alone change nothing; discarded, they are gone."""
        version = store.create(SALE)
        files = store.write_files(SALE, rows_of(1), batch_id="b")
        assert skus_at(store, store.newest_version(SALE)) == []

        store.discard(SALE, files)

        assert store.collect(SALE, versions=[version], grace_s=0, now_s=LATER_S + time.time()).files == 0

    def test_a_commit_without_files_makes_a_version(self, store: Store) -> None:
        """A state may move a table's version without rows."""
        version = add(store, store.create(SALE), 1)
        after = store.commit(SALE, [], version=version, batch_id="empty", batch_number=9)
        assert (after, skus_at(store, after)) == (version + 1, [1])

    def test_no_rows_make_no_files(self, store: Store) -> None:
        """Neither an empty table nor an empty stream costs a file."""
        store.create(SALE)
        assert store.write_files(SALE, rows_of(), batch_id="b") == []
        assert store.write_files(SALE, iter(()), batch_id="b") == []

    def test_rows_may_come_as_a_stream_of_batches(self, store: Store) -> None:
        """A load larger than memory is written as it comes."""
        version = store.create(SALE)
        files = store.write_files(SALE, iter(rows_of(1, 2, 3).to_batches(max_chunksize=1)), batch_id="b")
        assert skus_at(store, store.commit(SALE, files, version=version, batch_id="b", batch_number=1)) == [1, 2, 3]

    def test_a_version_is_made_only_once(self, store: Store) -> None:
        """U5: of two movers that build on one version, one is told; the other's rows are untouched."""
        version = store.create(SALE)
        add(store, version, 1)
        with pytest.raises(ForeignCommit) as caught:
            add(store, version, 2)
        assert (caught.value.context["found"], caught.value.context["known"]) == (version + 1, version)
        assert skus_at(store, store.newest_version(SALE)) == [1]

    def test_many_threads_on_one_version_have_one_winner(self, store: Store) -> None:
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

    def test_undo_brings_back_the_content_of_a_version(self, store: Store, same_store: Store) -> None:
        """Commits that the ledger never heard of leave no trace in the newest version; again, it changes nothing."""
        kept = add(store, store.create(SALE), 1)
        add(store, add(store, kept, 2), 3)

        now = same_store.undo(SALE, version=kept)

        assert now == same_store.newest_version(SALE) > kept
        assert skus_at(same_store, now) == skus_at(store, now) == [1]
        assert same_store.undo(SALE, version=kept) == same_store.undo(SALE, version=now) == now
        assert skus_at(same_store, add(same_store, now, 4)) == [1, 4]

    def test_undo_of_nothing_is_nothing(self, store: Store) -> None:
        """With no newer version, the version is what it was."""
        version = add(store, store.create(SALE), 1)
        assert store.undo(SALE, version=version) == version == store.newest_version(SALE)

    def test_history_names_the_batches_newest_first(self, store: Store) -> None:
        """A batch id is stored with the data it committed."""
        version = add(store, add(store, store.create(SALE), 1), 2)
        history = store.history(SALE)
        assert [entry.version for entry in history] == [version, version - 1, version - 2]
        assert [entry.batch_id for entry in history[:2]] == [f"batch-{version - 1}", f"batch-{version - 2}"]
        assert history[0].time_us >= history[-1].time_us > 0

    def test_collect_keeps_what_kept_versions_need(self, store: Store, same_store: Store) -> None:
        """I5: files of a kept version stay, files of undone commits go, and the kept versions still read."""
        first = add(store, store.create(SALE), 1)
        undone = add(store, first, 2)
        now = store.undo(SALE, version=first)
        newest = add(store, now, 3)

        assert same_store.collect(SALE, versions=[first, undone], grace_s=0, now_s=time.time()).files == 0
        assert skus_at(store, undone) == [1, 2]
        assert same_store.collect(SALE, versions=[first], grace_s=0, now_s=time.time()).files == 1
        assert [skus_at(store, version) for version in (first, newest)] == [[1], [1, 3]]

    def test_collect_removes_what_a_crash_left_and_spares_a_commit_in_progress(self, store: Store, same_store: Store) -> None:
        """The handle that wrote files keeps them until it commits; to a new handle, after a crash, they are waste."""
        version = store.create(SALE)
        files = store.write_files(SALE, rows_of(1), batch_id="b")

        assert store.collect(SALE, versions=[], grace_s=0, now_s=LATER_S + time.time()).files == 0
        after = store.commit(SALE, files, version=version, batch_id="b", batch_number=1)
        assert skus_at(store, after) == [1]

        store.write_files(SALE, rows_of(2), batch_id="c")
        assert same_store.collect(SALE, versions=[], grace_s=3600, now_s=time.time()).files == 1

    def test_collections_beside_commits_lose_nothing(self, store: Store) -> None:
        """I5 under a race: whatever moment a collection looks, files on their way into a version are spared."""
        version = store.create(SALE)
        done = threading.Event()
        failures: list[BaseException] = []

        def collect_on_and_on() -> None:
            try:
                while not done.is_set():
                    store.collect(SALE, versions=[], grace_s=0, now_s=time.time() + LATER_S)
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

    def test_an_uncommitted_file_has_a_path(self, store: Store) -> None:
        """A producer reads its own rows before they are committed."""
        store.create(SALE)
        (file,) = store.write_files(SALE, rows_of(4), batch_id="b")
        assert pq.read_table(store.path_of(SALE, file)).column("sku").to_pylist() == [4]

    def test_our_own_versions_pass_the_check(self, store: Store) -> None:
        """What we wrote has the declared columns."""
        store.check_schema(SALE, add(store, store.create(SALE), 1))

    def test_somebody_elses_files_are_taken_over(self, store: Store) -> None:
        """A load too large for one process is written by others and committed here."""
        version = store.create(SALE)
        folder = store.staging(SALE, batch_id="b/with slash")
        folder.mkdir()
        pq.write_table(rows_of(1, 2), folder / "part-0.parquet")
        pq.write_table(rows_of(3), folder / "part-1.snappy.parquet")
        pq.write_table(rows_of(), folder / "part-2.parquet")
        (folder / "_SUCCESS").touch()

        assert store.collect(SALE, versions=[], grace_s=0, now_s=LATER_S + time.time()).folders == 0
        files = store.take_files(SALE, folder)

        assert sorted(file.rows for file in files) == [1, 2]
        assert not folder.exists()
        assert skus_at(store, store.commit(SALE, files, version=version, batch_id="b", batch_number=1)) == [1, 2, 3]

    def test_staging_that_a_crash_left_is_collected(self, store: Store, same_store: Store) -> None:
        """A folder of a dead writer goes, by the handle that comes after it."""
        version = store.create(SALE)
        folder = store.staging(SALE, batch_id="b")
        folder.mkdir()
        pq.write_table(rows_of(1), folder / "part-0.parquet")
        assert same_store.collect(SALE, versions=[version], grace_s=0, now_s=time.time()).folders == 1
        assert not folder.exists()

    @pytest.mark.parametrize("columns", [{"sku": [1]}, {"sku": ["a"], "qty": [1]}, {"qty": [1], "sku": [1]}, {"sku": [1], "qty": [1.0]}], ids=str)
    def test_files_of_another_shape_are_refused(self, store: Store, columns: dict[str, list[object]]) -> None:
        """Columns and types are checked before a file becomes part of the table."""
        store.create(SALE)
        folder = store.staging(SALE, batch_id="b")
        folder.mkdir()
        pq.write_table(pa.table(columns), folder / "part-0.parquet")
        with pytest.raises(BadTable, match="has other columns"):
            store.take_files(SALE, folder)

    def test_files_with_null_where_none_may_be_are_refused(self, store: Store) -> None:
        """NOT NULL holds for foreign files too, although Spark writes every column as nullable."""
        store.create(BY_DAY)
        folder = store.staging(BY_DAY, batch_id="b")
        folder.mkdir()
        pq.write_table(pa.table({"day": pa.array([None], pa.date32()), "n": pa.array([None], pa.int32())}), folder / "part-0.parquet")
        with pytest.raises(NullNotAllowed):
            store.take_files(BY_DAY, folder)

    def test_a_file_has_one_partition(self, store: Store) -> None:
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

    def test_a_leftover_of_a_crashed_creation_is_replaced(self, store: Store, same_store: Store) -> None:
        """Created, but never written into the ledger: the next creation wins."""
        store.create(SALE)
        other = declare_table("sale", "other STRING")
        assert same_store.create(other) == same_store.newest_version(other) == 0
        assert same_store.row_count(other, 0) == 0

    def test_a_table_with_rows_is_never_replaced(self, store: Store, same_store: Store) -> None:
        """What has content was not left by a crashed creation."""
        version = add(store, store.create(SALE), 1)
        with pytest.raises(BadTable, match="exists"):
            same_store.create(SALE)
        assert skus_at(same_store, version) == [1]

    def test_a_checkpoint_changes_nothing_that_is_read(self, store: Store, same_store: Store) -> None:
        """With a checkpoint, and after the log below it was collected, kept versions read as before."""
        version = store.create(SALE)
        versions = [version := add(store, version, sku) for sku in range(6)]

        store.checkpoint(SALE, versions[2])
        store.checkpoint(SALE, versions[4])
        store.collect(SALE, versions=versions[4:], grace_s=0, now_s=time.time())

        assert [skus_at(same_store, kept) for kept in versions[4:]] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
        assert same_store.newest_version(SALE) == versions[-1]
        assert skus_at(same_store, add(same_store, versions[-1], 6)) == [0, 1, 2, 3, 4, 5, 6]
