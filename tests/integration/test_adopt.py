"""Commits of other Delta writers: refused, adopted, and never in the way of anything else."""

import os
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import righttime as rt
from righttime.errors import AdoptionRefused, CommitFailed, CommitsMixed, ForeignCommit
from righttime.errors.flows import TargetChanged
from righttime.flows.running import RunningFlow
from righttime.testing import ManualClock
from tests.support.plain_flow import run_plain


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


def _fail_once(wh: rt.Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next state not reach the ledger: its Delta commits are there, and nobody knows them."""
    engine = wh._writer("test")
    write_state = engine.ledger.write_state

    def fails(*given: Any, **options: Any) -> None:
        monkeypatch.setattr(engine.ledger, "write_state", write_state)
        raise CommitFailed(source="ledger", step="ledger", reason="disk full")

    monkeypatch.setattr(engine.ledger, "write_state", fails)


def _leave_unclean(wh: rt.Warehouse, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let no commit be taken back, as on a full disk; return what ends that."""
    store = wh._writer("test").store
    undo = store.undo

    def fails(*given: Any, **options: Any) -> int:
        raise CommitFailed(source="undo", step="commit table", reason="disk full")

    monkeypatch.setattr(store, "undo", fails)
    return lambda: monkeypatch.setattr(store, "undo", undo)


def _seen_from_outside(folder: Path, table: str) -> list[int]:
    return sorted(DeltaTable(folder / "tables" / table).to_pyarrow_table().column("n").to_pylist())


def test_an_adoption_that_the_ledger_never_got_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our commit above the foreign one is taken out; other tables, commits and the close go on meanwhile."""
    with rt.open(tmp_path / "shop") as wh:
        wh.create_table("sale", "n INT")
        wh.create_table("visit", "n INT")
        load = wh.producer(name="till")
        load.insert("sale", (1,))
        load.commit(durability="log")
        _append_from_outside(wh, "sale", [7])
        _fail_once(wh, monkeypatch)
        with pytest.raises(CommitFailed):
            wh.adopt("sale")

        assert wh.read("sale").rows() == [(1,)]
        assert _seen_from_outside(wh.path, "sale") == [7]
        load.insert("visit", (2,))
        load.commit(durability="log")
        wh.materialize("visit")
        wh.adopt("sale")
        assert sorted(wh.read("sale").rows()) == [(1,), (7,)]

    with rt.open(tmp_path / "shop") as wh:
        assert sorted(wh.read("sale").rows()) == [(1,), (7,)]
        wh.materialize()
        assert _seen_from_outside(wh.path, "sale") == [1, 7]


def test_a_table_that_cannot_be_cleaned_stops_no_other_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only who stores into it is refused, or adopts it: what it shows from outside is not what was committed."""
    with rt.open(tmp_path / "shop") as wh:
        wh.create_table("sale", "n INT")
        wh.create_table("visit", "n INT")
        load = wh.producer(name="till")
        load.insert("sale", (1,))
        load.commit(durability="log")
        _fail_once(wh, monkeypatch)
        again = _leave_unclean(wh, monkeypatch)
        with pytest.raises(CommitFailed):
            wh.materialize("sale")
        _append_from_outside(wh, "sale", [7])

        load.insert("visit", (2,))
        load.commit(durability="log")
        wh.materialize("visit")
        for refused in (wh.adopt, wh.materialize):
            with pytest.raises(CommitFailed):
                refused("sale")
        again()
        wh.adopt("sale")
        assert sorted(wh.read("sale").rows()) == [(1,), (7,)]
    assert _seen_from_outside(tmp_path / "shop", "sale") == [1, 7]


def _store_and_die(path: Path, append_first: bool) -> None:
    """Store a logged row, and die with the Delta commit made and the ledger without it."""
    wh = rt.open(path)
    wh.create_table("sale", "n INT", keys=["n"])
    load = wh.producer(name="till")
    load.insert("sale", (1,))
    load.commit(durability="log")
    if append_first:
        _append_from_outside(wh, "sale", [7])
    wh._writer("test").mover._publish = lambda step: os._exit(9)  # type: ignore[method-assign]
    (wh.adopt if append_first else wh.materialize)("sale")


def _die_before_the_ledger(path: Path, *, append_first: bool) -> None:
    # A new process: what delta-rs has begun in this one does not survive a fork.
    child = get_context("spawn").Process(target=_store_and_die, args=(path, append_first))
    child.start()
    child.join()
    assert child.exitcode == 9


@pytest.mark.parametrize("append_first", [True, False], ids=["foreign below ours", "foreign above ours"])
def test_a_commit_of_ours_that_died_is_told_apart_from_a_foreign_one(tmp_path: Path, append_first: bool) -> None:
    """After the next open the table has the other writer's rows and ours once, and other readers see no row that was taken back."""
    path = tmp_path / "shop"
    _die_before_the_ledger(path, append_first=append_first)
    if not append_first:
        write_deltalake(path / "tables" / "sale", pa.table({"n": pa.array([7], pa.int32())}), mode="append")

    for _ in range(2):
        with rt.open(path) as wh:
            assert wh.read("sale").rows() == [(1,)]
            assert _seen_from_outside(path, "sale") == [7]
    versions = DeltaTable(path / "tables" / "sale").version()
    assert versions == 3
    with rt.open(path) as wh:
        wh.adopt("sale")
        assert sorted(wh.read("sale").rows()) == [(1,), (7,)]
        assert wh.losses() == []
    assert _seen_from_outside(path, "sale") == [1, 7]


def test_rows_that_another_writer_took_along_refuse_their_table_and_no_other(tmp_path: Path) -> None:
    """A compaction over our unfinished commit cannot be taken apart: the error says so, and its way out leads out."""
    path = tmp_path / "shop"
    _die_before_the_ledger(path, append_first=False)
    folder = path / "tables" / "sale"
    write_deltalake(folder, pa.table({"n": pa.array([7], pa.int32())}), mode="append")
    DeltaTable(folder).optimize.compact()

    with rt.open(path) as wh:
        wh.create_table("visit", "n INT")
        with wh.producer(name="till") as load:
            load.insert("visit", (2,))
            load.commit()
        wh.materialize("visit")
        assert wh.read("sale").rows() == [(1,)]
        with pytest.raises(CommitsMixed) as caught:
            wh.adopt("sale")
        assert caught.value.context["known"] == 0

        DeltaTable(folder).restore(0)
        wh.adopt("sale")
        _append_from_outside(wh, "sale", [7])
        wh.adopt("sale")
        wh.materialize()
        assert sorted(wh.read("sale").rows()) == [(1,), (7,)]
    assert _seen_from_outside(path, "sale") == [1, 7]


def _divided(wh: rt.Warehouse) -> rt.Producer:
    """A stored row (1, 5), and a table that another writer gives the row (2, 0)."""
    wh.create_table("sale", "n INT, q INT", keys=["n"])
    load = wh.producer(name="till")
    load.insert("sale", (1, 5))
    load.commit(materialize=True)
    more = pa.table({"n": pa.array([2], pa.int32()), "q": pa.array([0], pa.int32())})
    write_deltalake(wh.path / "tables" / "sale", more, mode="append")
    return load


def test_a_version_on_which_a_committed_change_fails_is_not_adopted(tmp_path: Path) -> None:
    """Otherwise the table could be neither read nor stored; both ways out that the error names lead out."""
    for number in range(2):
        with rt.open(tmp_path / f"shop{number}") as wh:
            load = _divided(wh)
            folder = wh.path / "tables" / "sale"
            load.update("sale", {"q": rt.expr("100 / q")})
            load.commit()
            with pytest.raises(AdoptionRefused):
                wh.adopt("sale")
            assert wh.read("sale").rows() == [(1, 20)]
            if number == 0:
                DeltaTable(folder).update(updates={"q": "4"}, predicate="n = 2")
                wh.adopt("sale")
                wh.materialize()
                assert sorted(wh.read("sale").rows()) == [(1, 20), (2, 25)]
            else:
                DeltaTable(folder).restore(1)
                wh.adopt("sale")
                wh.materialize()
                write_deltalake(folder, pa.table({"n": pa.array([2], pa.int32()), "q": pa.array([0], pa.int32())}), mode="append")
                wh.adopt("sale")
                assert sorted(wh.read("sale").rows()) == [(1, 20), (2, 0)]


def test_a_change_that_is_committed_while_a_version_is_adopted_is_tried_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last look is at the commit point."""
    with rt.open(tmp_path / "shop") as wh:
        load = _divided(wh)
        mover = wh._writer("test").mover
        write_log = mover._write_log

        def changes_meanwhile(step: Any) -> None:
            monkeypatch.setattr(mover, "_write_log", write_log)
            write_log(step)
            load.update("sale", {"q": rt.expr("100 / q")})
            load.commit()

        monkeypatch.setattr(mover, "_write_log", changes_meanwhile)
        with pytest.raises(AdoptionRefused):
            wh.adopt("sale")
        assert wh.read("sale").rows() == [(1, 20)]


def _shop_with_a_flow(folder: Path) -> rt.Warehouse:
    """A warehouse with a stream whose times are its source's, and its copy in table `t`, stored in two files at 100 s and 200 s."""
    wh = rt.open(folder, clock=ManualClock(1000.0))
    wh.create_table("t", "k INT NOT NULL, v INT", keys=["k"])
    wh.create_stream("s", "k INT NOT NULL, v INT", keys=["k"], times="source")
    for number, second in ((1, 100), (2, 200)):
        runner, _ = run_plain(wh, {"t": "s"})
        wh.stream("s").insert([{"k": number, "v": number}], time=second * 1_000_000)
        RunningFlow(wh._flows("test"), runner).wait(timeout="20s")
        runner.stop()
        wh._writer("test").mover.materialize(["t"])
    return wh


def test_rows_of_others_in_the_target_of_a_flow_are_not_adopted(tmp_path: Path) -> None:
    """It is what the flow makes of its streams; the error says how the way is cleared."""
    with _shop_with_a_flow(tmp_path / "wh") as wh:
        rows = pa.table({"k": pa.array([7], pa.int32()), "v": pa.array([7], pa.int32())}, schema=wh.schema("t").columns)
        write_deltalake(wh.path / "tables" / "t", rows, mode="append")
        for _ in range(2):
            with pytest.raises(TargetChanged, match=r"flow 'plain'.* Restore version 2") as caught:
                wh.adopt("t")
        assert caught.value.code == "table.target_changed"
        assert sorted(wh.read("t", freshness="2h", wait="0s").rows()) == [(1, 1), (2, 2)]
        DeltaTable(wh.path / "tables" / "t").restore(2)
        wh.adopt("t")
        assert sorted(wh.read("t", freshness="2h", wait="0s").rows()) == [(1, 1), (2, 2)]
        assert wh._writer("test").catalyst.table("t").version == 4


def test_files_that_others_put_together_in_the_target_of_a_flow_are_adopted(tmp_path: Path) -> None:
    """They hold the same rows: the target is as old as it was, can be asked, and can be stored into again."""
    with _shop_with_a_flow(tmp_path / "wh") as wh:
        assert DeltaTable(wh.path / "tables" / "t").optimize.compact()["numFilesRemoved"] == 2
        wh.adopt("t")
        assert sorted(wh.read("t", freshness="2h", wait="0s").rows()) == [(1, 1), (2, 2)]
        assert wh._writer("test").catalyst.table("t").stored_us == 200 * 1_000_000
        runner, _ = run_plain(wh, {"t": "s"})
        try:
            wh.stream("s").update([{"k": 1, "v": 11}], time=300 * 1_000_000)
            RunningFlow(wh._flows("test"), runner).wait(timeout="20s")
            assert sorted(wh.read("t", freshness="2h").rows()) == [(1, 11), (2, 2)]
        finally:
            runner.stop()
        wh._writer("test").mover.materialize(["t"])
    with rt.open(tmp_path / "wh", clock=ManualClock(1000.0)) as wh:
        assert sorted(wh.read("t", freshness="2h", wait="0s").rows()) == [(1, 11), (2, 2)]
        assert wh.losses() == []
