"""Ctrl-C in a durable step: it comes before the step or after it, and either way the rows are there once."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import righttime as rt
from righttime.catalyst import log, mover
from righttime.changes.faults import CrashPoint
from righttime.changes.interrupts import uninterrupted
from righttime.ledger import sqlite
from righttime.warehouse import lakehouse

_STEP = [
    CrashPoint.FILES_WRITTEN,
    CrashPoint.LOG_WRITTEN,
    CrashPoint.LOG_SYNCED,
    CrashPoint.TABLE_COMMITTED,
    CrashPoint.TABLES_COMMITTED,
    CrashPoint.LEDGER_BEGUN,
    CrashPoint.LEDGER_COMMITTED,
    CrashPoint.NOTICE_GIVEN,
]


@pytest.fixture(autouse=True)
def plain_handler() -> Iterator[None]:
    """Interrupts as a program has them; where a Spark runs in this process, it has put a handler of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _interrupt_at(point: CrashPoint, monkeypatch: pytest.MonkeyPatch) -> list[CrashPoint]:
    """Press Ctrl-C when a step comes to `point`, once; return where it was pressed."""
    pressed: list[CrashPoint] = []

    def reach(at: CrashPoint) -> None:
        if at is point and not pressed:
            pressed.append(at)
            signal.raise_signal(signal.SIGINT)

    for module in (log, mover, sqlite, lakehouse):
        monkeypatch.setattr(module, "reach", reach)
    return pressed


@pytest.mark.parametrize("point", _STEP)
def test_rows_are_there_once_wherever_a_step_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: CrashPoint) -> None:
    """In memory, in the table as other Delta readers see it, and after the next open; the next step finds nothing in its way."""
    with rt.open(tmp_path / "shop") as wh:
        wh.create_table("sale", "n INT")
        wh.create_table("visit", "n INT")
        load = wh.producer(name="till")
        load.insert("sale", (1,))
        load.commit()
        load.insert("visit", (1,))
        load.commit()
        pressed = _interrupt_at(point, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            wh.materialize("sale")
        assert pressed
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

        assert wh.read("sale").rows() == [(1,)]
        load.insert("sale", (2,))
        load.commit()
        wh.materialize("sale")
        assert sorted(wh.read("sale").rows()) == [(1,), (2,)]
        assert sorted(DeltaTable(wh.path / "tables" / "sale").to_pyarrow_table().column("n").to_pylist()) == [1, 2]

    with rt.open(tmp_path / "shop") as wh:
        assert sorted(wh.read("sale").rows()) == [(1,), (2,)]
        assert wh.read("visit").rows() == [(1,)]
        assert wh.losses() == []


@pytest.mark.parametrize("bypass_bytes", [1, 1 << 30], ids=["past the catalyst", "through the catalyst"])
@pytest.mark.parametrize("point", _STEP)
def test_rows_are_committed_once_wherever_their_commit_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: CrashPoint, bypass_bytes: int
) -> None:
    """The transaction is over or open as before, and the producer knows which: to commit again is always right."""
    with rt.open(tmp_path / "shop", bypass_bytes=bypass_bytes) as wh:
        wh.create_table("sale", "n INT")
        wh.create_table("visit", "n INT")
        other = wh.producer(name="gate", policy=rt.Immediate())
        if bypass_bytes > 1:
            other.insert("visit", (1,))
            other.commit()
        load = wh.producer(name="till")
        load.insert("sale", (1,))
        pressed = _interrupt_at(point, monkeypatch)
        try:
            load.commit(durability="warehouse")
        except KeyboardInterrupt:
            assert load.in_transaction == (wh.read("sale").rows() == [])
        load.commit(durability="warehouse")
        assert wh.read("sale").rows() == [(1,)]
        assert pressed or bypass_bytes == 1  # which has nothing to log
    with rt.open(tmp_path / "shop") as wh:
        assert wh.read("sale").rows() == [(1,)]


def test_a_table_whose_declaration_is_interrupted_after_the_ledger_has_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalyst keeps a table that the ledger has: the next state would be written without it."""
    with rt.open(tmp_path / "shop") as wh:
        _interrupt_at(CrashPoint.LEDGER_COMMITTED, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            wh.create_table("sale", "n INT")
        wh.create_table("sale", "n INT", if_not_exists=True)
        with wh.producer() as load:
            load.insert("sale", (1,))
            load.commit(materialize=True)
        assert wh.read("sale").rows() == [(1,)]


def test_an_interrupt_waits_for_the_end_of_the_outermost_block() -> None:
    """It is not lost, and comes as often as it was pressed."""
    done: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
                done.append("inner")
            done.append("outer")
        done.append("after")
    assert done == ["inner", "outer"]
    with uninterrupted():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
