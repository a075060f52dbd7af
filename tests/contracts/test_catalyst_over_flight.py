"""The catalyst behaviours over Arrow Flight, and that both sides look the same."""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.flight.server import FlightService
from righttime.flight.warehouse import RemoteWarehouse, open_remote
from tests.contracts.catalyst_behaviour import CatalystBehaviour, Opened
from tests.support.crash import engine_of


class TestCatalystOverFlight(CatalystBehaviour):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Opened]:
        with ExitStack() as ends:

            def opened(**settings: Any) -> RemoteWarehouse:
                warehouse = ends.enter_context(rt.open(tmp_path / "wh", **settings))
                service = FlightService(warehouse, engine_of(warehouse))
                ends.callback(service.stop)
                return ends.enter_context(open_remote(f"righttime://127.0.0.1:{service.port}"))

            yield opened


def test_a_remote_warehouse_has_the_methods_of_a_warehouse() -> None:
    """Same public names, same parameters and defaults: a program changes its address and nothing else."""
    assert _face(RemoteWarehouse) == _face(rt.Warehouse)


def _face(kind: type) -> dict[str, Any]:
    return {name: _signature(inspect.getattr_static(kind, name)) for name in dir(kind) if not name.startswith("_")}


def _signature(member: Any) -> Any:
    if not callable(member):
        return type(member)
    return [(one.name, one.kind, one.default) for one in inspect.signature(member).parameters.values()]
