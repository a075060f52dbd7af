"""The ledger as its callers see it: what is written is there again, what is refused changes nothing."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from righttime.changes.position import Commit, SourceCut
from righttime.changes.schema import declare_table
from righttime.errors import (
    AsOfUnavailable,
    CommitFailed,
    NotAWarehouse,
    WarehouseClosed,
    WarehouseDamaged,
    WarehouseLocked,
    WarehouseNewer,
    WarehouseReadOnly,
)
from righttime.ledger.receipts import Receipt
from righttime.ledger.sqlite import Batch, Ledger, Loss
from righttime.ledger.state import EMPTY, LaneState, LogPosition, State, TableState
from righttime.settings import Settings, load_settings


def make_state(number: int) -> State:
    lane = LaneState("till", stored_id=number, visible_id=number + 2, stored_us=number * 10)
    table = TableState("sale", version=number, rows_stored=number, stored_us=number * 10, lanes=(lane,))
    return State(number, number * 10, number + 2, {"sale": table}, {"till": Commit(number, number * 10)}, LogPosition(0, 0), LogPosition(1, number))


def make_receipt(name: str) -> Receipt:
    cut = (SourceCut("till", Commit(1, 10), None),)
    return Receipt(name, "w", 1, "SELECT 1", (), (), cut, 10, 0.0, 0.0, False, 0.0, 1, "d", 20).sealed(b"key")


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


# Opening


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


def test_a_reader_leaves_pins_and_receipts_but_no_state(tmp_path: Path, settings: Settings, ledger: Ledger) -> None:
    """What a reader writes is visible to the writer; states and losses are refused."""
    ledger.write_state(make_state(1), kind="commit")
    reader = Ledger.open(tmp_path / "shop", settings=settings, read_only=True)

    pin, state = reader.pin_newest("reader", expires_us=100)
    reader.save_receipt(make_receipt("r1"))

    assert state == make_state(1)
    assert ledger.pinned_states(now_us=50) == [1]
    assert ledger.receipt("r1") == make_receipt("r1")
    with pytest.raises(WarehouseReadOnly):
        reader.write_state(make_state(2), kind="commit")
    with pytest.raises(WarehouseReadOnly):
        reader.note_loss([])
    reader.remove_pin(pin)
    assert ledger.pinned_states(now_us=50) == []
    reader.close()


def test_a_closed_ledger_says_so(ledger: Ledger) -> None:
    """Every call after close is WarehouseClosed; closing twice is fine."""
    ledger.close()
    ledger.close()

    with pytest.raises(WarehouseClosed):
        ledger.newest_state()
    with pytest.raises(WarehouseClosed):
        ledger.write_state(make_state(1), kind="commit")


# States and batches


def test_states_are_found_exactly_and_around(ledger: Ledger) -> None:
    """Numbers between durable states find both neighbours."""
    for number in (2, 5):
        ledger.write_state(make_state(number), kind="commit")

    assert ledger.state(5) == make_state(5)
    assert ledger.state(3) is None
    assert ledger.state_around(3) == (make_state(2), make_state(5))
    assert ledger.state_around(5) == (make_state(5), make_state(5))
    assert ledger.state_around(9) == (make_state(5), None)
    assert ledger.state_around(-1) == (None, EMPTY)


@pytest.mark.parametrize("number", [1, 2])
def test_a_state_that_is_not_newer_is_refused(ledger: Ledger, number: int) -> None:
    """U5: of two movers that build on the same state, the second commits nothing."""
    ledger.write_state(make_state(2), kind="commit")

    with pytest.raises(CommitFailed):
        ledger.write_state(make_state(number), kind="commit", batches=[Batch("till", "b1", Commit(1, 1), number, 1)])

    assert ledger.newest_state() == make_state(2)
    assert ledger.batch("till", "b1") is None


def test_a_batch_id_is_committed_once_per_source(ledger: Ledger) -> None:
    """I7: a replayed batch commits nothing, nor does anything that came with it."""
    batch = Batch("till", "b1", Commit(1, 10), state=1, rows=7)
    ledger.write_state(make_state(1), kind="commit", batches=[batch])
    other = Batch("web", "b1", Commit(1, 20), state=2, rows=1)

    with pytest.raises(CommitFailed) as caught:
        ledger.write_state(make_state(2), kind="commit", batches=[other, batch])

    assert caught.value.retryable
    assert ledger.batch("till", "b1") == batch
    assert ledger.batch("web", "b1") is None
    assert ledger.newest_state().number == 1
    ledger.write_state(make_state(2), kind="commit", batches=[other])
    assert ledger.batch("web", "b1") == other


def test_old_states_and_batches_are_forgotten_within_bounds(ledger: Ledger) -> None:
    """Both stay near their maximum, and the newest always stay; a pin on the state that is only in memory holds no old ones."""
    ledger.add_pin("head", 10**6, expires_us=10**9)
    for number in range(1, 101):
        ledger.write_state(make_state(number), kind="commit", batches=[Batch("till", f"b{number}", Commit(number, number), number, 1)])

    held = [number for number in range(101) if ledger.state(number)]
    batches = [number for number in range(1, 101) if ledger.batch("till", f"b{number}")]

    for kept in (held, batches):
        assert 8 <= len(kept) <= 8 + 2
        assert kept == list(range(101 - len(kept), 101))


def test_pinned_states_are_not_forgotten(ledger: Ledger) -> None:
    """A pin on a state that was never durable keeps the durable neighbours on both sides; an expired pin keeps nothing."""
    for number in (2, 4, 6, 8):
        ledger.write_state(make_state(number), kind="commit")
    ledger.add_pin("long", 5, expires_us=1_000_000)
    ledger.add_pin("short", 2, expires_us=90)

    for number in range(10, 60):
        ledger.write_state(make_state(number), kind="commit")

    assert [number for number in range(10) if ledger.state(number)] == [4, 6]
    assert ledger.state_around(5) == (make_state(4), make_state(6))


def test_a_forgotten_state_cannot_be_pinned(ledger: Ledger) -> None:
    """A pin that could hold nothing is refused, and says what can still be had."""
    for number in range(1, 30):
        ledger.write_state(make_state(number), kind="commit")

    with pytest.raises(AsOfUnavailable, match="state"):
        ledger.add_pin("late", 1, expires_us=10**9)
    assert ledger.pinned_states(now_us=0) == []


def test_a_pin_lives_until_its_time_and_cannot_be_revived(ledger: Ledger) -> None:
    """Renewal works on live pins only: what an ended pin held may be gone."""
    pin = ledger.add_pin("query", 0, expires_us=10)

    assert ledger.renew_pin(pin, expires_us=20, now_us=9)
    assert ledger.pinned_states(now_us=19) == [0]
    assert ledger.pinned_states(now_us=20) == []
    assert not ledger.renew_pin(pin, expires_us=30, now_us=20)


def test_an_unreadable_state_is_reported_as_damage(tmp_path: Path, settings: Settings, ledger: Ledger) -> None:
    """Text that is no state does not leave the ledger as a Python error."""
    ledger.write_state(make_state(1), kind="commit")
    vandal = sqlite3.connect(tmp_path / "shop" / "ledger.db")
    vandal.execute("UPDATE state SET json = '[1,2]' WHERE number = 1")
    vandal.commit()
    vandal.close()

    with pytest.raises(WarehouseDamaged):
        ledger.newest_state()


# Receipts and losses


def test_receipts_come_back_newest_first_and_bounded(ledger: Ledger) -> None:
    """The ledger keeps about receipts_max of them; saving one twice keeps one."""
    for number in range(50):
        ledger.save_receipt(make_receipt(f"r{number}"))
        ledger.save_receipt(make_receipt(f"r{number}"))

    assert [receipt.receipt_id for receipt in ledger.receipts(limit=3)] == ["r49", "r48", "r47"]
    assert 8 <= len(ledger.receipts(limit=1000)) <= 8 + 2
    assert ledger.receipt("r0") is None


def test_losses_of_one_trace_are_noted_once(ledger: Ledger) -> None:
    """Recovery that was killed after noting and runs again reports no loss twice; a new crash does count."""
    loss = Loss("till", first=3, last=9, rows=700, found_us=5)

    ledger.note_loss([loss], trace_id="t1")
    ledger.note_loss([loss], trace_id="t1")
    assert ledger.losses() == [loss]

    ledger.note_loss([loss], trace_id="t2")
    assert ledger.losses() == [loss, loss]


def test_many_threads_share_one_ledger(ledger: Ledger) -> None:
    """Receipts, pins and states from several threads all arrive."""

    def work(thread: int) -> None:
        for number in range(20):
            ledger.save_receipt(make_receipt(f"{thread}-{number}"))
            ledger.remove_pin(ledger.add_pin("t", 10**6, expires_us=10**12))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 21):
        ledger.write_state(make_state(number), kind="commit")
    for thread in threads:
        thread.join()

    assert ledger.newest_state() == make_state(20)
    assert ledger.pinned_states(now_us=0) == []
