"""What every store does with rows, whatever keeps them.

A store's test module makes a class from `StoreBehaviour` with the fixtures `store`, an empty one, and `same_store`, another handle on the
same rows; all rules below then run on it. What is about files is in the modules of the stores that have some.
"""

import time
from collections.abc import Collection, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from righttime.changes.schema import TableSchema, declare_table
from righttime.errors import BadTable, ForeignCommit
from righttime.warehouse.store import DataFile, Positions, Ranges, Removal, Store

SALE = declare_table("sale", "sku INT, qty INT")
BY_DAY = declare_table("by_day", "day DATE, n INT NOT NULL", partition_by=["day"])
LATER_S = 1e6

TYPED = declare_table(
    "typed",
    "n INT, flag BOOLEAN, tiny TINYINT, small SMALLINT, id BIGINT, real FLOAT, number DOUBLE, price DECIMAL(12,2), name STRING, raw BINARY, "
    "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>",
)
NAN = float("nan")
VALUES: dict[str, list[Any]] = {
    "flag": [True, False, None],
    "tiny": [-128, 0, 127, None],
    "small": [-32768, 5, None],
    "id": [-(2**63), 2**53 + 1, 2**63 - 1, None],
    "real": [-0.0, 0.5, NAN, float("-inf"), None],
    "number": [0.0, 1e300, NAN, float("inf"), None],
    "price": [Decimal("-10.00"), Decimal("0.01"), None],
    "name": ["", "a", "ä", "😀" * 40, "z" * 100, None],
    "raw": [b"", b"\xff", None],
    "day": [date(1582, 10, 4), date(2024, 2, 29), None],
    "at": [datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC), None],
    "local": [datetime(2024, 2, 29, 12, 30, 0, 123456), datetime(1969, 12, 31), None],
}


def rows_of(*skus: int) -> pa.Table:
    return pa.table({"sku": skus, "qty": [1] * len(skus)}, schema=SALE.columns)


def add(store: Store, version: int, *skus: int, table: TableSchema = SALE) -> int:
    files = store.write_files(table, rows_of(*skus), batch_id=f"batch-{version}")
    return store.commit(table, files, version=version, batch_id=f"batch-{version}", batch_number=version + 1)


def load(store: Store, table: TableSchema, version: int, rows: Iterable[dict[str, Any]]) -> int:
    files = store.write_files(table, pa.Table.from_pylist(list(rows), schema=table.columns), batch_id=f"batch-{version}")
    return store.commit(table, files, version=version, batch_id=f"batch-{version}", batch_number=version + 1)


def skus_at(store: Store, version: int) -> list[int]:
    """Read a version's rows from the store; they are as many as it says."""
    found = sorted(sku for part in store.scan(SALE, version, ["sku"]) for sku in part.rows.column("sku").to_pylist())
    assert store.row_count(SALE, version) == len(found)
    return found


def places(store: Store, version: int, skus: Collection[int]) -> dict[str, Positions]:
    """Return where the rows of some skus are."""
    found: dict[str, list[Positions]] = {}
    for part in store.scan(SALE, version, ["sku"]):
        found.setdefault(part.unit, []).append(part.positions[np.isin(part.rows.column("sku").to_numpy(), list(skus))])
    return {unit: np.concatenate(parts) for unit, parts in found.items()}


def prepare(store: Store, version: int, *skus: int) -> Removal:
    return store.remove(SALE, version, places(store, version, skus), batch_id=f"remove-{version}")


def finish(store: Store, version: int, removal: Removal, *, more: Iterable[DataFile] = ()) -> int:
    files = [*removal.files, *more]
    return store.commit(SALE, files, version=version, batch_id=f"remove-{version}", batch_number=version + 1, removed=removal.units)


def take_out(store: Store, version: int, *skus: int) -> int:
    return finish(store, version, prepare(store, version, *skus))


def numbers(store: Store, table: TableSchema, version: int, *, ranges: Ranges) -> list[int]:
    return sorted(number for part in store.scan(table, version, ["n"], ranges=ranges) for number in part.rows.column("n").to_pylist())


class StoreBehaviour:
    """The rules. `keep` makes commits final where a store leaves that to the ledger's transaction."""

    def keep(self, store: Store) -> None:
        """Do what the write of the ledger does after the commits of a step; a store whose commits are final needs nothing."""

    def test_a_new_table_is_empty(self, store: Store) -> None:
        """A table begins with a version that has no rows."""
        version = store.create(SALE)
        assert (store.newest_version(SALE), skus_at(store, version)) == (version, [])

    def test_each_commit_makes_the_next_version(self, store: Store, same_store: Store) -> None:
        """Numbers have no gap, for this handle and for a new one."""
        first = store.create(SALE)
        last = add(store, add(store, first, 1, 2), 3)
        self.keep(store)

        for handle in (store, same_store):
            assert handle.newest_version(SALE) == last == first + 2
            assert skus_at(handle, last) == [1, 2, 3]

    def test_written_rows_are_in_no_version_before_the_commit(self, store: Store, same_store: Store) -> None:
        """Writing alone changes nothing; discarded, the rows are gone."""
        version = store.create(SALE)
        self.keep(store)
        files = store.write_files(SALE, rows_of(1), batch_id="b")
        assert skus_at(same_store, same_store.newest_version(SALE)) == []

        store.discard(SALE, files)

        assert skus_at(store, store.newest_version(SALE)) == []
        assert store.collect(SALE, versions=lambda: [version], grace_s=0, now_s=LATER_S + time.time()).files == 0

    def test_taken_files_become_part_of_a_step_and_outlive_one_that_fails(self, store: Store) -> None:
        """What stands for them is committed; a step that is given up before leaves them for the next one."""
        version = store.create(SALE)
        self.keep(store)
        folder = store.staging(SALE, batch_id="b")
        folder.mkdir(parents=True)
        pq.write_table(rows_of(1, 2), folder / "part-0.parquet")
        taken = store.take_files(SALE, folder)
        store.add_files(SALE, taken)
        store.undo(SALE, version=version)
        files = store.add_files(SALE, taken)
        after = store.commit(SALE, files, version=version, batch_id="b", batch_number=1)
        self.keep(store)
        assert skus_at(store, after) == [1, 2]

    def test_tables_without_foreign_keys_refer_to_nothing(self, store: Store) -> None:
        """So their order is free."""
        store.create(SALE)
        store.create(BY_DAY)
        assert store.references(["sale", "by_day"]) == {}

    def test_a_commit_without_rows_makes_a_version(self, store: Store) -> None:
        """A state may move a table's version without rows."""
        version = add(store, store.create(SALE), 1)
        after = store.commit(SALE, [], version=version, batch_id="empty", batch_number=9)
        assert (after, skus_at(store, after)) == (version + 1, [1])

    def test_no_rows_make_no_files(self, store: Store) -> None:
        """Neither an empty table nor an empty stream costs anything."""
        store.create(SALE)
        assert store.write_files(SALE, rows_of(), batch_id="b") == []
        assert store.write_files(SALE, iter(()), batch_id="b") == []

    def test_rows_may_come_as_a_stream_of_batches(self, store: Store) -> None:
        """A load larger than memory is written as it comes."""
        version = store.create(SALE)
        files = store.write_files(SALE, iter(rows_of(1, 2, 3).to_batches(max_chunksize=1)), batch_id="b")
        assert sum(file.rows for file in files) == 3
        assert skus_at(store, store.commit(SALE, files, version=version, batch_id="b", batch_number=1)) == [1, 2, 3]

    def test_a_version_is_made_only_once(self, store: Store) -> None:
        """U5: of two movers that build on one version, one is told; the other's rows are untouched."""
        version = store.create(SALE)
        add(store, version, 1)
        self.keep(store)
        with pytest.raises(ForeignCommit) as caught:
            add(store, version, 2)
        assert (caught.value.context["found"], caught.value.context["known"]) == (version + 1, version)
        assert skus_at(store, store.newest_version(SALE)) == [1]

    def test_undo_brings_back_the_rows_of_a_version(self, store: Store) -> None:
        """Commits that the ledger never heard of leave no trace in the newest version; again, it changes nothing."""
        kept = add(store, store.create(SALE), 1)
        self.keep(store)
        add(store, add(store, kept, 2), 3)

        now = store.undo(SALE, version=kept)

        assert now == store.newest_version(SALE) >= kept
        assert skus_at(store, now) == [1]
        assert store.undo(SALE, version=kept) == store.undo(SALE, version=now) == now
        assert skus_at(store, add(store, now, 4)) == [1, 4]

    def test_undo_of_nothing_is_nothing(self, store: Store) -> None:
        """With no newer version, the version is what it was."""
        version = add(store, store.create(SALE), 1)
        self.keep(store)
        assert store.undo(SALE, version=version) == version == store.newest_version(SALE)

    def test_our_own_versions_pass_the_check(self, store: Store) -> None:
        """What we wrote has the declared columns."""
        store.check_schema(SALE, add(store, store.create(SALE), 1))

    def test_a_leftover_of_a_crashed_creation_is_replaced(self, store: Store, same_store: Store) -> None:
        """Created, but never written into the ledger: the next creation wins."""
        store.create(SALE)
        self.keep(store)
        other = declare_table("sale", "other STRING")
        assert same_store.create(other) == same_store.newest_version(other) == 0
        assert same_store.row_count(other, 0) == 0

    def test_a_table_with_rows_is_never_replaced(self, store: Store, same_store: Store) -> None:
        """What has content was not left by a crashed creation."""
        version = add(store, store.create(SALE), 1)
        self.keep(store)
        with pytest.raises(BadTable, match="exists"):
            same_store.create(SALE)
        assert skus_at(same_store, version) == [1]

    def test_every_row_has_a_place_and_can_be_fetched_from_it(self, store: Store) -> None:
        """Positions of a unit ascend and are never the same; a place gives the whole row, in the order that was asked for."""
        version = add(store, add(store, store.create(SALE), *range(5)), *range(5, 9))
        seen = []
        for part in store.scan(SALE, version, ["sku"]):
            assert part.rows.schema.equals(pa.schema([SALE.columns.field("sku")]))
            assert part.positions.dtype == np.int64
            assert (np.diff(part.positions) > 0).all()
            backwards = store.fetch(SALE, version, part.unit, part.positions[::-1])
            assert backwards.schema.equals(SALE.columns)
            assert backwards.to_pylist() == [{"sku": sku, "qty": 1} for sku in part.rows.column("sku").to_pylist()[::-1]]
            seen += [(part.unit, position) for position in part.positions.tolist()]
        assert len(set(seen)) == len(seen) == 9

    def test_fetching_no_rows_gives_no_rows(self, store: Store) -> None:
        """An empty question has an empty answer with the declared columns."""
        version = add(store, store.create(SALE), 1)
        (part,) = store.scan(SALE, version, ["sku"])
        assert store.fetch(SALE, version, part.unit, part.positions[:0]).equals(SALE.columns.empty_table())

    def test_a_scan_of_no_columns_still_has_the_places(self, store: Store) -> None:
        """Deleting everything needs no values."""
        version = add(store, store.create(SALE), *range(7))
        parts = list(store.scan(SALE, version, []))
        assert sum(len(part.positions) for part in parts) == sum(part.rows.num_rows for part in parts) == 7

    def test_whole_rows_of_every_type_come_back_as_they_were(self, store: Store) -> None:
        """Reading by place loses no value, null or element."""
        rows = [{"n": n, **{column: values[n % len(values)] for column, values in VALUES.items()}, "tags": ["a", None, ""]} for n in range(8)]
        version = load(store, TYPED, store.create(TYPED), rows)
        found = [row for part in store.scan(TYPED, version, ["n"]) for row in store.fetch(TYPED, version, part.unit, part.positions).to_pylist()]
        assert sorted(map(repr, found)) == sorted(map(repr, pa.Table.from_pylist(rows, schema=TYPED.columns).to_pylist()))

    @pytest.mark.parametrize("column", VALUES)
    def test_a_range_never_loses_a_row_that_lies_in_it(self, store: Store, column: str) -> None:
        """Statistics may spare reading; whatever the type, a wanted row is found. NaN is above all numbers."""
        values = VALUES[column]
        version = store.create(TYPED)
        for n, value in enumerate(values):
            version = load(store, TYPED, version, [{"n": n, column: value}, {"n": n, column: values[0]}])
        for n, value in enumerate(values):
            if value is not None:
                assert n in numbers(store, TYPED, version, ranges={column: (value, value)})
                assert n in numbers(store, TYPED, version, ranges={column: (value, None)})
                assert n in numbers(store, TYPED, version, ranges={column: (None, value), "n": (n, n)})
                assert values.index(None) in numbers(store, TYPED, version, ranges={column: (None, None)})
        if NAN in values:
            assert values.index(NAN) in numbers(store, TYPED, version, ranges={column: (1.0, None)})

    def test_removed_rows_are_gone_and_the_others_stay(self, store: Store, same_store: Store) -> None:
        """A removal takes out exactly the rows at its places."""
        version = add(store, add(store, store.create(SALE), *range(6)), *range(6, 9))

        removal = prepare(store, version, 0, 4, 7)
        after = finish(store, version, removal)
        self.keep(store)

        assert removal.rows == 3
        assert after == version + 1 == store.newest_version(SALE)
        assert skus_at(store, after) == skus_at(same_store, after) == [1, 2, 3, 5, 6, 8]
        assert skus_at(store, take_out(store, add(store, after, 9), 1, 9)) == [2, 3, 5, 6, 8]

    def test_a_removal_is_seen_by_nobody_before_its_commit(self, store: Store, same_store: Store) -> None:
        """Preparing changes no version; discarded, it never was."""
        version = add(store, store.create(SALE), 1, 2)
        self.keep(store)

        removal = prepare(store, version, 1)
        assert skus_at(same_store, same_store.newest_version(SALE)) == [1, 2]
        store.discard(SALE, removal.files)
        store.undo(SALE, version=version)

        assert skus_at(store, store.newest_version(SALE)) == [1, 2]

    def test_rows_leave_and_come_in_one_commit(self, store: Store, same_store: Store) -> None:
        """An update is one version: never without the old row and the new one, never with both."""
        version = add(store, store.create(SALE), 1, 2)
        removal = prepare(store, version, 2)
        new = store.write_files(SALE, rows_of(20), batch_id="b")
        after = finish(store, version, removal, more=new)
        self.keep(store)
        assert (after, skus_at(same_store, after)) == (version + 1, [1, 20])

    def test_all_rows_may_leave(self, store: Store) -> None:
        """An emptied table is an empty table."""
        version = add(store, add(store, store.create(SALE), 1, 2), 3)
        removal = prepare(store, version, 1, 2, 3)
        after = finish(store, version, removal)
        assert (removal.rows, removal.rows_kept, list(removal.files), skus_at(store, after)) == (3, 0, [], [])
        assert skus_at(store, add(store, after, 4)) == [4]

    def test_removing_nothing_costs_nothing(self, store: Store) -> None:
        """A condition that no row meets leaves a removal that changes nothing."""
        version = add(store, store.create(SALE), 1)
        removal = prepare(store, version, 99)
        assert (list(removal.files), list(removal.units), removal.rows, removal.rows_kept) == ([], [], 0, 0)
        assert skus_at(store, finish(store, version, removal)) == [1]

    def test_places_may_come_in_any_order_and_twice(self, store: Store) -> None:
        """A row that leaves by two operations leaves once."""
        version = add(store, store.create(SALE), *range(5))
        gone = {unit: np.concatenate([positions, positions])[::-1] for unit, positions in places(store, version, [1, 3]).items()}
        removal = store.remove(SALE, version, gone, batch_id="b")
        assert (removal.rows, skus_at(store, finish(store, version, removal))) == (2, [0, 2, 4])

    def test_undo_brings_removed_rows_back(self, store: Store) -> None:
        """I6: removals that the ledger never heard of are as if they had never been, however many, mixed with additions."""
        kept = add(store, add(store, store.create(SALE), 1, 2, 3), 4)
        self.keep(store)
        version = take_out(store, take_out(store, add(store, kept, 5, 6), 1, 4, 5), 2, 6)
        assert skus_at(store, version) == [3]

        now = store.undo(SALE, version=kept)

        assert skus_at(store, now) == [1, 2, 3, 4]
        assert store.undo(SALE, version=kept) == now == store.newest_version(SALE)
        assert skus_at(store, take_out(store, now, 1)) == [2, 3, 4]

    def test_undo_brings_back_a_table_that_was_emptied(self, store: Store) -> None:
        """A commit that only removes is undone, too."""
        kept = add(store, store.create(SALE), 1, 2)
        self.keep(store)
        take_out(store, kept, 1, 2)
        assert skus_at(store, store.undo(SALE, version=kept)) == [1, 2]

    def test_a_removal_on_an_old_version_is_refused_and_nothing_is_lost(self, store: Store) -> None:
        """U5 for removals: whoever built on a version that is not the newest is told."""
        version = add(store, store.create(SALE), 1, 2)
        removal = prepare(store, version, 1)
        store.discard(SALE, removal.files)
        store.undo(SALE, version=version)
        add(store, version, 3)
        self.keep(store)
        with pytest.raises(ForeignCommit):
            store.commit(SALE, [], version=version, batch_id="late", batch_number=7, removed=removal.units)
        assert skus_at(store, store.newest_version(SALE)) == [1, 2, 3]

    def test_rows_stay_in_their_partition(self, store: Store) -> None:
        """What is left of a removal is found by the same partition values."""
        days = [date(2024, 1, 1), date(2024, 1, 2), None]
        version = load(store, BY_DAY, store.create(BY_DAY), [{"day": days[n % 3], "n": n} for n in range(12)])
        gone = {part.unit: part.positions[np.isin(part.rows.column("n").to_numpy(), [0, 4])] for part in store.scan(BY_DAY, version, ["n"])}
        removal = store.remove(BY_DAY, version, gone, batch_id="b")
        after = store.commit(BY_DAY, removal.files, version=version, batch_id="b", batch_number=2, removed=removal.units)
        found = [row for part in store.scan(BY_DAY, after, ["day", "n"]) for row in part.rows.to_pylist()]
        assert sorted(row["n"] for row in found) == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
        assert all(row["day"] == days[row["n"] % 3] for row in found)
        assert set(numbers(store, BY_DAY, after, ranges={"day": (days[0], days[0])})) >= {3, 6, 9}
