"""One warehouse in each place it can be: on Delta or PostgreSQL, in this process or behind a service.

In: the place's name, a folder, the server of the run and settings.
Out: a warehouse whose producers and readers are those of the place; `engine_of` finds the parts behind it, for the state tables.
Promise: nothing of it is left when the block ends.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import righttime as rt
from righttime import Warehouse
from righttime.changes.clock import Clock
from righttime.flight.server import FlightService
from tests.support.crash import engine_of
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_schemas

DELTA, POSTGRES, DELTA_SERVED, POSTGRES_SERVED = "delta", "postgresql", "delta over flight", "postgresql over flight"
ELSEWHERE = (POSTGRES, DELTA_SERVED, POSTGRES_SERVED)
"""Everywhere but on Delta in one process, where the unit tests are."""


@contextmanager
def opened_at(place: str, folder: Path, server: TempPostgres, *, clock: Clock | None = None, **settings: Any) -> Iterator[Warehouse]:
    """Open a new warehouse at a place."""
    with ExitStack() as ends:
        target: str | Path = folder / "wh"
        if place in (POSTGRES, POSTGRES_SERVED):
            target, schemas = server.url, ends.enter_context(fresh_schemas(server))
            settings |= {"state_dir": folder / "state", **schemas}
        warehouse = ends.enter_context(rt.open(target, clock=clock, **settings))
        if place in (DELTA_SERVED, POSTGRES_SERVED):
            service = FlightService(warehouse, engine_of(warehouse))
            ends.callback(service.stop)
            remote = ends.enter_context(rt.open(f"righttime://127.0.0.1:{service.port}", clock=clock))
            # Users cannot see what is behind a service; the state tables of the tests have to.
            vars(remote)["_engine"] = engine_of(warehouse)
            yield remote
        else:
            yield warehouse


def examples_of(module: ModuleType, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the tests of a module, to be run again on other fixtures; `without` names beginnings of those that make no sense there."""
    return {name: test for name, test in vars(module).items() if name.startswith("test_") and not (without and name.startswith(without))}
