"""Any history of additions, removals, undone commits, checkpoints and collections reads like a list of lists."""

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from righttime.warehouse.store import Store
from tests.contracts.store_behaviour import SALE, finish, places, rows_of, skus_at
from tests.contracts.test_store_on_delta import foreign_append, open_lakehouse

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 6)),
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.just("foreign"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["remove", "update", "fetch"]), st.integers(1, 2**16 - 1)),
        st.tuples(st.sampled_from(["keep", "crash", "reopen", "checkpoint", "collect", "prepare"]), st.just(0)),
    ),
    min_size=3,
    max_size=14,
)


class Model:
    """Versions as lists of skus; the ledger knows one of them, and a crash goes back to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store: Store = open_lakehouse(root)
        self.newest = self.known = self.store.create(SALE)
        self.versions: dict[int, list[int]] = {self.newest: []}
        self.next_sku = 0

    def do(self, step: str, number: int) -> None:
        getattr(self, f"_{step}")(number)
        assert self.store.newest_version(SALE) == self.newest

    def _new_skus(self, count: int) -> list[int]:
        self.next_sku += count
        return list(range(self.next_sku - count, self.next_sku))

    def _chosen(self, bits: int) -> list[int]:
        return [sku for place, sku in enumerate(self.versions[self.newest]) if bits >> (place % 16) & 1]

    def _became(self, version: int, skus: list[int]) -> None:
        self.newest, self.versions[version] = version, sorted(skus)

    def _add(self, count: int) -> None:
        skus = self._new_skus(count)
        files = self.store.write_files(SALE, rows_of(*skus), batch_id="b")
        version = self.store.commit(SALE, files, version=self.newest, batch_id="b", batch_number=self.newest)
        self._became(version, self.versions[self.newest] + skus)

    def _take(self, count: int) -> None:
        skus = self._new_skus(count)
        folder = self.store.staging(SALE, batch_id="b")
        folder.mkdir()
        pq.write_table(rows_of(*skus), folder / "part.parquet", row_group_size=2)
        version = self.store.commit(SALE, self.store.take_files(SALE, folder), version=self.newest, batch_id="b", batch_number=1)
        self._became(version, self.versions[self.newest] + skus)

    def _foreign(self, count: int) -> None:
        skus = self._new_skus(count)
        foreign_append(self.root, *skus)
        self._became(self.newest + 1, self.versions[self.newest] + skus)
        self.known = self.newest  # adopted at once; a foreign commit cannot be undone

    def _remove(self, bits: int, new: int = 0) -> None:
        gone, skus = self._chosen(bits), self._new_skus(new)
        removal = self.store.remove(SALE, self.newest, places(self.store, self.newest, gone), batch_id="b")
        assert removal.rows == len(gone)
        version = finish(self.store, self.newest, removal, more=self.store.write_files(SALE, rows_of(*skus), batch_id="b"))
        self._became(version, [sku for sku in self.versions[self.newest] if sku not in gone] + skus)

    def _update(self, bits: int) -> None:
        self._remove(bits, new=len(self._chosen(bits)))

    def _prepare(self, _: int) -> None:
        self.store.remove(SALE, self.newest, places(self.store, self.newest, self._chosen(0b101)), batch_id="given up")

    def _fetch(self, bits: int) -> None:
        wanted = self._chosen(bits)
        for unit, positions in places(self.store, self.newest, wanted).items():
            back = self.store.fetch(SALE, self.newest, unit, positions[::-1]).column("sku").to_pylist()
            again = self.store.fetch(SALE, self.newest, unit, positions).column("sku").to_pylist()
            assert back == again[::-1]
            wanted = [sku for sku in wanted if sku not in back]
        assert wanted == []

    def _keep(self, _: int) -> None:
        self.known = self.newest

    def _crash(self, _: int) -> None:
        self._reopen(0)
        self._became(self.store.undo(SALE, version=self.known), self.versions[self.known])
        self.known = self.newest

    def _reopen(self, _: int) -> None:
        self.store = open_lakehouse(self.root)

    def _checkpoint(self, _: int) -> None:
        self.store.checkpoint(SALE, self.newest)

    def _collect(self, _: int) -> None:
        kept = {self.known, *list(self.versions)[-3:]}
        self.store.collect(SALE, versions=lambda: kept, grace_s=3600, now_s=time.time())
        self.versions = {version: skus for version, skus in self.versions.items() if version in kept | {self.newest}}

    def check(self) -> None:
        """Every version that was kept reads as the list says, from memory and from the log, and each row is at one place."""
        for handle in (self.store, open_lakehouse(self.root)):
            for version, skus in self.versions.items():
                assert skus_at(handle, version) == skus
        for part in self.store.scan(SALE, self.newest, []):
            assert len(np.unique(part.positions)) == part.rows.num_rows


@settings(max_examples=60)
@given(steps=STEPS)
def test_any_history_of_changes_reads_like_a_list(steps: list[tuple[str, int]]) -> None:
    """Additions, removals and updates, ours and others', with crashes that undo what the ledger does not know, at every kept version."""
    with tempfile.TemporaryDirectory() as folder:
        model = Model(Path(folder))
        for step, number in steps:
            model.do(step, number)
        model.check()
