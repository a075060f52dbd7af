"""Crashes without a second process: the folder as it is on disk, and the engine left behind.

What SIGKILL leaves is exactly what the files hold: SQLite's write-ahead log and the mapped trace are read through the page cache
like every other file. So a copy of the folder, opened, is the warehouse after the crash. One in PostgreSQL loses its connections
as well, so that the server rolls back what was open; its local folder is copied like the other.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

import righttime.catalyst.log
import righttime.catalyst.mover
import righttime.catalyst.postgres_log
import righttime.catalyst.producer
import righttime.ledger.postgres
import righttime.ledger.sqlite
import righttime.warehouse.collect
import righttime.warehouse.lakehouse
import righttime.warehouse.postgres
from righttime import Warehouse, service
from righttime.changes.faults import CrashPoint
from righttime.service import Engine
from tests.support.postgres_warehouse import end_sessions

_WITH_POINTS = (
    righttime.catalyst.log,
    righttime.catalyst.mover,
    righttime.catalyst.postgres_log,
    righttime.catalyst.producer,
    righttime.ledger.postgres,
    righttime.ledger.sqlite,
    righttime.warehouse.collect,
    righttime.warehouse.lakehouse,
    righttime.warehouse.postgres,
)


class Killed(BaseException):
    """The process died here; not an `Exception`, so nobody cleans up after it."""


def engine_of(wh: Warehouse) -> Engine:
    """The parts of a warehouse that is open for writing."""
    engine = wh._engine
    assert isinstance(engine, Engine)
    return engine


def copy_of(wh: Warehouse, to: Path) -> Path:
    """Copy the warehouse's folder as a kill at this moment would leave it; connections to a database are killed."""
    engine = engine_of(wh)
    # Checkpoints are written in the background; a copy that takes time must not see half of one.
    engine.mover._checkpoints.submit(lambda: None).result()
    if engine.foundation.table_schema is None:
        shutil.copytree(wh.path, to)
        return to
    drop_connections(wh)
    writer: Any = engine.ledger
    writer._writer._lost = "killed"  # a dead process does not connect again
    shutil.copytree(engine.folder.parent, to)
    return to


def drop_connections(wh: Warehouse) -> None:
    """End all connections of a warehouse in PostgreSQL, from the server's side: all that go by its application_name."""
    store: Any = engine_of(wh).store
    address = store.address.secret.get_secret_value()
    end_sessions(address, str(conninfo_to_dict(address)["application_name"]))


def abandon(wh: Warehouse) -> None:
    """Let go of an engine without closing it: nothing more is written to its folder, and its threads end."""
    engine = engine_of(wh)
    with service._engines_lock:
        for target in [target for target, (known, _) in service._engines.items() if known is engine]:
            del service._engines[target]
    for link in list(engine.catalyst.links.values()):
        engine.catalyst.close_link(link)
    wh._shared = None
    engine.keeper.stop()
    engine.mover.close()
    engine.images.close()
    engine.trace.close()
    engine.foundation.close()


def crash(wh: Warehouse, to: Path) -> Path:
    """Kill the warehouse now; return the folder that a new process would find."""
    left = copy_of(wh, to)
    abandon(wh)
    return left


@contextmanager
def killed_at(wh: Warehouse, point: CrashPoint, to: Path, *, arrivals: int = 1) -> Iterator[list[Path]]:
    """Within the block, the n-th arrival at `point` copies the folder and raises `Killed`, which ends the block; the list then has the copy."""
    left: list[Path] = []

    def die() -> None:
        left.append(copy_of(wh, to))
        raise Killed

    def reach(_: CrashPoint) -> None:
        if left:
            raise Killed  # a dead process does nothing more

    with happening_at(point, die, arrivals=arrivals, always=reach), suppress(Killed):
        yield left


@contextmanager
def happening_at(point: CrashPoint, event: Callable[[], None], *, arrivals: int = 1, always: Callable[[CrashPoint], None] | None = None) -> Iterator[None]:
    """Within the block, let something happen at the n-th arrival at `point`; `always` is called before, at every point."""
    count = 0

    def reach(reached: CrashPoint) -> None:
        nonlocal count
        if always is not None:
            always(reached)
        if reached is point:
            count += 1
            if count == arrivals:
                event()

    with pytest.MonkeyPatch.context() as patch:
        for module in _WITH_POINTS:
            patch.setattr(module, "reach", reach)
        yield
