"""The catalyst behaviours with everything in one process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from tests.contracts.catalyst_behaviour import CatalystBehaviour, Opened


class TestCatalystInProcess(CatalystBehaviour):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Opened]:
        handles: list[rt.Warehouse] = []

        def opened(**settings: Any) -> rt.Warehouse:
            handles.append(rt.open(tmp_path / "wh", **settings))
            return handles[-1]

        yield opened
        for handle in handles:
            handle.close()
