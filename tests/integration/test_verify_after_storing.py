"""Receipts after their rows were stored: run again as long as the rows are in memory, whoever else loads beside."""

from pathlib import Path

import righttime as rt


def test_a_receipt_is_run_again_after_storing_although_row_ids_of_other_lanes_come_first(tmp_path: Path) -> None:
    """Row ids come from one sequence; the ids before a lane's first row are not rows that have left memory."""
    with rt.open(tmp_path / "shop") as wh:
        wh.create_table("product", "n INT")
        wh.create_table("sale", "n INT")
        for source, table in (("office", "product"), ("till", "sale"), ("web", "sale")):
            load = wh.producer(name=source)
            load.insert_many(table, [(1,), (2,)])
            load.commit()
        receipt = wh.read("sale").receipt

        wh.materialize()

        assert receipt.verify().method == "rerun"


def test_a_receipt_whose_rows_have_left_memory_is_checked_against_the_ledger(tmp_path: Path) -> None:
    """What was freed is never taken for what is there."""
    with rt.open(tmp_path / "shop", memory_bytes_max=4_000, spill_bytes_max=0) as wh:
        wh.create_table("sale", "n INT")
        with wh.producer(name="till") as load:
            load.insert_many("sale", [(number,) for number in range(500)])
            load.commit()
            receipt = wh.read("sale").receipt
            wh.materialize()
            load.insert_many("sale", [(number,) for number in range(900)])
            load.commit()

        found = receipt.verify()

        assert (found.ok, found.method) == (True, "ledger")
