"""Commits that store everything at once, over many operations that were only in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import righttime as rt
from righttime.catalyst import local
from righttime.catalyst.log import LogEntry, WriteAheadLog
from righttime.catalyst.mover import Mover
from righttime.errors import NotStored, StoringFailed
from tests.support.crash import engine_of


@pytest.fixture
def wh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[rt.Warehouse]:
    monkeypatch.setattr(local, "_OPERATIONS_MANY", 3)
    with rt.open(tmp_path / "wh") as warehouse:
        warehouse.create_table("stock", "sku INT, qty INT", keys=["sku"])
        yield warehouse


def changed(wh: rt.Warehouse, times: int) -> rt.Producer:
    """Insert a row and update it some times, each in a commit of its own to memory."""
    load = wh.producer(name="till")
    load.insert("stock", (1, 0))
    load.commit()
    for quantity in range(1, times + 1):
        load.update("stock", set={"qty": quantity}, where={"sku": 1})
        load.commit()
    return load


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[LogEntry]:
    """The entries that are written into the log."""
    seen: list[LogEntry] = []
    append = WriteAheadLog.append

    def noted(self: WriteAheadLog, entries: list[LogEntry], **options: object) -> object:
        seen.extend(entries)
        return append(self, entries, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(WriteAheadLog, "append", noted)
    return seen


def test_operations_that_are_stored_at_once_are_not_logged_before(wh: rt.Warehouse, logged: list[LogEntry]) -> None:
    """Many of them take ten times as long to be logged as their net effect takes to be stored."""
    with changed(wh, 5) as load:
        load.commit(materialize=True)
        assert not [entry for entry in logged if entry.operations]
        assert engine_of(wh).catalyst.table("stock").rows_stored == 1
    assert wh.read("stock").rows() == [(1, 5)]


def test_only_the_operations_of_the_commit_itself_are_logged(wh: rt.Warehouse, logged: list[LogEntry]) -> None:
    """Their outcome depends on when the commit was made, so that they are stored after it."""
    with changed(wh, 5) as load:
        load.update("stock", set={"qty": 9}, where={"sku": 1})
        load.commit(materialize=True)
        assert [sum(placed.operations.rows for placed in entry.operations) for entry in logged if entry.operations] == [1]
    assert wh.read("stock").rows() == [(1, 9)]


def test_few_operations_are_logged_and_stored_together(wh: rt.Warehouse, logged: list[LogEntry]) -> None:
    """A step of their own would cost more."""
    with changed(wh, 3) as load:
        load.commit(materialize=True)
        assert [entry for entry in logged if entry.operations]
    assert wh.read("stock").rows() == [(1, 3)]


def test_a_commit_is_made_though_earlier_ones_cannot_be_stored(wh: rt.Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged with them, and then told as not stored."""
    load = changed(wh, 5)

    def refused(*_: object) -> int:
        raise StoringFailed(source="-", step="write", reason="no room")

    with monkeypatch.context() as patch:
        patch.setattr(Mover, "materialize", refused)
        load.insert("stock", (2, 2))
        with pytest.raises(NotStored):
            load.commit(materialize=True)
    assert sorted(wh.read("stock").rows()) == [(1, 5), (2, 2)]
    load.close()
    path = wh.path
    wh.close()
    with rt.open(path) as again:
        assert sorted(again.read("stock").rows()) == [(1, 5), (2, 2)]
