"""What only a ledger in a file does: opening, refusing and damage. What every ledger does is in tests/contracts/book_behaviour.py."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from righttime.changes.position import Commit
from righttime.changes.schema import declare_table
from righttime.errors import NotAWarehouse, WarehouseDamaged, WarehouseLocked, WarehouseNewer
from righttime.ledger.sqlite import Ledger
from righttime.ledger.state import EMPTY, LaneState, LogPosition, State, TableState
from righttime.settings import Settings, load_settings


def make_state(number: int) -> State:
    lane = LaneState("till", stored_id=number, visible_id=number + 2, stored_us=number * 10)
    table = TableState("sale", version=number, rows_stored=number, stored_us=number * 10, lanes=(lane,))
    return State(number, number * 10, number + 2, {"sale": table}, {"till": Commit(number, number * 10)}, LogPosition(0, 0), LogPosition(1, number))


@pytest.fixture
def settings() -> Settings:
    return load_settings(states_max=8, receipts_max=8, batches_max=8)


@pytest.fixture
def ledger(tmp_path: Path, settings: Settings) -> Iterator[Ledger]:
    ledger = Ledger.open(tmp_path / "shop", settings=settings)
    yield ledger
    ledger.close()


def snapshot_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_folder_becomes_a_warehouse_with_the_empty_state(tmp_path: Path, settings: Settings) -> None:
    """A missing folder is created, parents included; its newest state is state 0."""
    ledger = Ledger.open(tmp_path / "deep" / "shop", settings=settings)

    assert ledger.newest_state() == EMPTY
    assert len(ledger.seal_key) == 32
    ledger.close()


def test_identity_and_content_survive_reopening(tmp_path: Path, settings: Settings) -> None:
    """Id, key, states, tables and views are the same after close and open."""
    sale = declare_table("sale", "sku INT, qty INT", keys=["sku"])
    first = Ledger.open(tmp_path, settings=settings)
    first.write_state(make_state(1), kind="create", table=sale)
    first.write_state(make_state(4), kind="create", view=("big", "SELECT * FROM sale WHERE qty > 9"))
    first.close()

    again = Ledger.open(tmp_path, settings=settings, create=False)

    assert (again.warehouse_id, again.seal_key) == (first.warehouse_id, first.seal_key)
    assert again.newest_state() == make_state(4)
    assert again.tables() == [sale]
    assert again.views() == {"big": "SELECT * FROM sale WHERE qty > 9"}
    again.close()


def test_leftovers_of_a_killed_creation_do_not_count_as_content(tmp_path: Path, settings: Settings) -> None:
    """A half-built ledger under its temporary name is replaced."""
    (tmp_path / "ledger.db.new").write_bytes(b"half")
    (tmp_path / "writer.lock").touch()

    ledger = Ledger.open(tmp_path, settings=settings)

    assert ledger.newest_state() == EMPTY
    assert not (tmp_path / "ledger.db.new").exists()
    ledger.close()


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path, settings: Settings) -> None:
    """Content without a ledger is never taken over."""
    (tmp_path / "holiday.jpg").write_bytes(b"...")
    before = snapshot_of(tmp_path)

    with pytest.raises(NotAWarehouse, match=r"holiday\.jpg"):
        Ledger.open(tmp_path, settings=settings)
    assert snapshot_of(tmp_path) == before


def test_a_file_is_not_a_warehouse(tmp_path: Path, settings: Settings) -> None:
    """A path to a file, and a path below a file, are refused."""
    (tmp_path / "shop").write_text("a file")

    for path in (tmp_path / "shop", tmp_path / "shop" / "inner"):
        with pytest.raises(NotAWarehouse):
            Ledger.open(path, settings=settings)


@pytest.mark.parametrize("asked", [{"create": False}, {"read_only": True}])
def test_nothing_is_created_where_it_was_not_asked_for(tmp_path: Path, settings: Settings, asked: dict[str, bool]) -> None:
    """Without create, or read-only, a missing warehouse is an error and stays missing."""
    with pytest.raises(NotAWarehouse):
        Ledger.open(tmp_path / "shop", settings=settings, read_only=asked.get("read_only", False), create=asked.get("create", True))
    assert not (tmp_path / "shop").exists()


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, b"SQLite format 3\0"])
def test_a_ledger_file_of_garbage_is_damage_and_is_left_alone(tmp_path: Path, settings: Settings, content: bytes) -> None:
    """What is no SQLite file is reported, not overwritten."""
    (tmp_path / "ledger.db").write_bytes(content)

    with pytest.raises(WarehouseDamaged):
        Ledger.open(tmp_path, settings=settings)
    assert snapshot_of(tmp_path) == {"ledger.db": content}


def test_a_database_of_another_program_is_not_a_warehouse(tmp_path: Path, settings: Settings) -> None:
    """The name ledger.db alone makes no warehouse."""
    foreign = sqlite3.connect(tmp_path / "ledger.db")
    foreign.execute("CREATE TABLE account (id)")
    foreign.close()

    with pytest.raises(NotAWarehouse, match="another program"):
        Ledger.open(tmp_path, settings=settings)


def test_a_newer_format_is_refused_and_nothing_is_changed(tmp_path: Path, settings: Settings) -> None:
    """Every byte of a warehouse of the future stays, for writers and readers alike."""
    Ledger.open(tmp_path, settings=settings).close()
    newer = sqlite3.connect(tmp_path / "ledger.db")
    newer.execute("PRAGMA user_version=99")
    newer.close()
    before = snapshot_of(tmp_path)

    for read_only in (False, True):
        with pytest.raises(WarehouseNewer) as caught:
            Ledger.open(tmp_path, settings=settings, read_only=read_only)
        assert caught.value.context["found"] == 99
    assert snapshot_of(tmp_path) == before


def test_a_ledger_cut_short_is_reported_as_damaged(tmp_path: Path, settings: Settings) -> None:
    """Half a file opens as damage, and the writer lock is free again."""
    Ledger.open(tmp_path, settings=settings).close()
    whole = (tmp_path / "ledger.db").read_bytes()
    (tmp_path / "ledger.db").write_bytes(whole[:5000])

    with pytest.raises(WarehouseDamaged):
        Ledger.open(tmp_path, settings=settings)
    (tmp_path / "ledger.db").write_bytes(whole)
    Ledger.open(tmp_path, settings=settings).close()


def test_a_second_writer_is_refused_and_a_reader_is_not(tmp_path: Path, settings: Settings, ledger: Ledger) -> None:
    """One writer at a time, in one process too; readers see what is durable."""
    folder = tmp_path / "shop"
    with pytest.raises(WarehouseLocked):
        Ledger.open(folder, settings=settings)

    reader = Ledger.open(folder, settings=settings, read_only=True)
    ledger.write_state(make_state(3), kind="commit")

    assert reader.newest_state().number == 3
    reader.close()


def test_an_unreadable_state_is_reported_as_damage(tmp_path: Path, settings: Settings, ledger: Ledger) -> None:
    """Text that is no state does not leave the ledger as a Python error."""
    ledger.write_state(make_state(1), kind="commit")
    vandal = sqlite3.connect(tmp_path / "shop" / "ledger.db")
    vandal.execute("UPDATE state SET json = '[1,2]' WHERE number = 1")
    vandal.commit()
    vandal.close()

    with pytest.raises(WarehouseDamaged):
        ledger.newest_state()
