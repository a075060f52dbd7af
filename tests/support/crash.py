"""Crashes without a second process: the folder as it is on disk, and the engine left behind.

What SIGKILL leaves is exactly what the files hold: SQLite's write-ahead log and the mapped trace are read through the page cache
like every other file. So a copy of the folder, opened, is the warehouse after the crash.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import righttime.catalyst.log
import righttime.catalyst.mover
import righttime.catalyst.producer
import righttime.ledger.sqlite
import righttime.warehouse.collect
import righttime.warehouse.lakehouse
from righttime import Warehouse, service
from righttime.changes.faults import CrashPoint
from righttime.service import Engine

_WITH_POINTS = (
    righttime.catalyst.log,
    righttime.catalyst.mover,
    righttime.catalyst.producer,
    righttime.ledger.sqlite,
    righttime.warehouse.collect,
    righttime.warehouse.lakehouse,
)


class Killed(BaseException):
    """The process died here; not an `Exception`, so nobody cleans up after it."""


def engine_of(wh: Warehouse) -> Engine:
    """The parts of a warehouse that is open for writing."""
    engine = wh._engine
    assert isinstance(engine, Engine)
    return engine


def copy_of(wh: Warehouse, to: Path) -> Path:
    """Copy the warehouse's folder as a kill at this moment would leave it."""
    # Checkpoints are written in the background; a copy that takes time must not see half of one.
    engine_of(wh).mover._checkpoints.submit(lambda: None).result()
    shutil.copytree(wh.path, to)
    return to


def abandon(wh: Warehouse) -> None:
    """Let go of an engine without closing it: nothing more is written to its folder, and its threads end."""
    engine = engine_of(wh)
    with service._engines_lock:
        service._engines.pop(engine.folder, None)
    for link in list(engine.catalyst.links.values()):
        engine.catalyst.close_link(link)
    wh._shared = None
    engine.keeper.stop()
    engine.mover.close()
    engine.images.close()
    engine.trace.close()
    engine.ledger.close()


def crash(wh: Warehouse, to: Path) -> Path:
    """Kill the warehouse now; return the folder that a new process would find."""
    left = copy_of(wh, to)
    abandon(wh)
    return left


@contextmanager
def killed_at(wh: Warehouse, point: CrashPoint, to: Path, *, arrivals: int = 1) -> Iterator[list[Path]]:
    """Within the block, the n-th arrival at `point` copies the folder and raises `Killed`, which ends the block; the list then has the copy."""
    left: list[Path] = []
    count = 0

    def reach(reached: CrashPoint) -> None:
        nonlocal count
        if left:
            raise Killed  # a dead process does nothing more
        if reached is point:
            count += 1
            if count == arrivals:
                left.append(copy_of(wh, to))
                raise Killed

    with pytest.MonkeyPatch.context() as patch:
        for module in _WITH_POINTS:
            patch.setattr(module, "reach", reach)
        try:
            yield left
        except Killed:
            pass
