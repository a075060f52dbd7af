"""The catalyst behaviours where stored rows are in PostgreSQL, in one process and over Flight."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.catalyst_behaviour import EVERYWHERE, CatalystBehaviour, Opened
from tests.support.everywhere import POSTGRES, POSTGRES_SERVED, opened_at
from tests.support.postgres import TempPostgres


class OnPostgres(CatalystBehaviour):
    """A text in PostgreSQL has no character zero, and a table no structs."""

    place: str
    kinds = (*EVERYWHERE, ("ARRAY<STRING>", ["", None, "{é}"]))

    @pytest.fixture
    def opened(self, tmp_path: Path, postgres: TempPostgres) -> Iterator[Opened]:
        with ExitStack() as ends:

            def opened(**settings: Any) -> Any:
                return ends.enter_context(opened_at(self.place, tmp_path, postgres, **settings))

            yield opened


class TestCatalystInProcess(OnPostgres):
    place = POSTGRES


class TestCatalystOverFlight(OnPostgres):
    place = POSTGRES_SERVED
