"""The catalyst behaviours over a group of two services, with all tables at one of them: what a group adds changes none of them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.flight.group import GroupWarehouse, open_service
from righttime.flight.group_members import Member
from righttime.flight.server import FlightService
from tests.contracts.catalyst_behaviour import CatalystBehaviour, Opened
from tests.support.crash import engine_of


class TestCatalystOverGroup(CatalystBehaviour):
    @pytest.fixture
    def opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
        # The behaviours have transactions over two tables, which a group takes only at one catalyst.
        monkeypatch.setattr(GroupWarehouse, "_place_for", _at_the_first)
        with ExitStack() as ends:

            def opened(**settings: Any) -> Any:
                ports = []
                for name in ("first", "second"):
                    warehouse = ends.enter_context(rt.open(tmp_path / name, **settings))
                    service = FlightService(warehouse, engine_of(warehouse))
                    ends.callback(service.stop)
                    ports.append(service.port)
                return ends.enter_context(open_service("righttime://" + ",".join(f"127.0.0.1:{port}" for port in ports)))

            yield opened


def _at_the_first(group: GroupWarehouse, _name: str) -> Member:
    return group._members.all[0]
