"""Commits of other Delta writers: refused, adopted, and never in the way of anything else."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import righttime as rt
from righttime.errors import ForeignCommit


def _append_from_outside(wh: rt.Warehouse, table: str, numbers: list[int]) -> None:
    write_deltalake(wh.path / "tables" / table, pa.table({"n": pa.array(numbers, pa.int32())}), mode="append")


def test_a_store_that_met_a_foreign_commit_can_be_done_after_adopting_it(tmp_path: Path) -> None:
    """The way out that the error names works: adopt, commit again; both writers' rows are there once."""
    with rt.open(tmp_path / "shop") as wh:
        wh.create_table("sale", "n INT")
        with wh.producer(name="till") as load:
            load.insert("sale", (1,))
            _append_from_outside(wh, "sale", [7, 8])
            with pytest.raises(ForeignCommit):
                load.commit(materialize=True)

            wh.adopt("sale")
            load.commit(materialize=True)

        assert sorted(wh.read("sale").rows()) == [(1,), (7,), (8,)]


def test_a_foreign_commit_in_one_table_stops_no_other_table_and_no_close(tmp_path: Path) -> None:
    """After a refused store, other tables are stored, commits are logged, and the warehouse closes with everything in it."""
    with rt.open(tmp_path / "shop") as wh:
        wh.create_table("sale", "n INT")
        wh.create_table("visit", "n INT")
        with wh.producer(name="till") as load:
            load.insert("sale", (1,))
            load.insert("visit", (2,))
            load.commit()
            _append_from_outside(wh, "sale", [7])
            with pytest.raises(ForeignCommit):
                wh.materialize()

            wh.materialize("visit")
            load.insert("sale", (3,))
            load.commit(durability="log")

    with rt.open(tmp_path / "shop") as wh:
        assert sorted(wh.read("sale").rows()) == [(1,), (3,)]
        assert wh.read("visit").rows() == [(2,)]
        assert wh.losses() == []
