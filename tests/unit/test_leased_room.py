"""Room beside queries that run on: what they read stays, and nothing else does for their sake."""

from pathlib import Path

import pytest

import righttime as rt
from tests.support.crash import engine_of
from tests.support.state_tables import asking, catalyst_of, tuples


@pytest.mark.parametrize("spill_bytes_max", [0, 20_000])
def test_a_query_that_holds_one_row_keeps_no_others_in_memory(tmp_path: Path, spill_bytes_max: int) -> None:
    """Fifty times as much as fits is committed and stored while it runs; it still reads its row, and what was freed is never taken for what is there."""
    with rt.open(tmp_path / "wh", memory_bytes_max=10_000, spill_bytes_max=spill_bytes_max, full_wait_s=0) as wh:
        wh.create_table("sale", "n INT")
        load = wh.producer(name="till")
        load.insert("sale", (0,))
        load.commit()
        snapshots = engine_of(wh).snapshots
        first, receipts = wh.read("sale").receipt, []
        with snapshots.take(["sale"], asking()) as held:
            for begin in range(1, 5000, 100):
                load.insert_many("sale", [(number,) for number in range(begin, begin + 100)])
                load.commit()
                receipts.append(wh.read("sale").receipt)
                wh.materialize()
            assert tuples(snapshots.rows(held.tables["sale"])) == [(0,)]
            assert (first.verify().method, receipts[0].verify().method, receipts[-1].verify().method) == ("rerun", "ledger", "rerun")
            table = wh.status().tables[0]
            assert table.bytes_memory <= 10_000 and 0 < table.bytes_leased < 2_000
        assert wh.status().tables[0].bytes_leased == 0
        assert sorted(wh.read("sale").rows()) == [(number,) for number in range(5001)]


def test_rows_on_either_side_of_what_was_freed_are_spilled_apart(tmp_path: Path) -> None:
    """The first row is held, and the ones after it are stored and gone: a file with the rows before and after them would stay as long as the query."""
    with rt.open(tmp_path / "wh", memory_bytes_max=10_000, spill_bytes_max=50_000, full_wait_s=0) as wh:
        wh.create_table("sale", "n INT")
        load = wh.producer(name="till")
        load.insert("sale", (0,))
        load.commit()
        with engine_of(wh).snapshots.take(["sale"], asking()):
            for begin in range(1, 15_000, 500):
                load.insert_many("sale", [(number,) for number in range(begin, begin + 500)])
                load.commit()
                if begin < 5_000:
                    wh.materialize()
            wh.materialize()
            catalyst = catalyst_of(wh)
            catalyst.free(catalyst.tables["sale"])
            assert [piece.rows for piece in catalyst.tables["sale"].lanes["till"].pieces] == [1]
