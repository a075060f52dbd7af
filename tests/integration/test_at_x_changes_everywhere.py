"""AT-X2 to AT-X5 for updates and deletes once more, on PostgreSQL and over Flight: the examples of tests/unit/test_at_x_changes.py, unchanged.

Producers, readers and their snapshots are those of the place. Where rows are is read from the engine, which for a service is the one behind it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from righttime import Warehouse
from tests.support.clocks import SteppedClock
from tests.support.everywhere import ELSEWHERE, examples_of, opened_at
from tests.support.postgres import TempPostgres
from tests.unit import test_at_x_changes


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(0.0)


@pytest.fixture(params=ELSEWHERE)
def wh(tmp_path: Path, clock: SteppedClock, postgres: TempPostgres, request: pytest.FixtureRequest) -> Iterator[Warehouse]:
    with opened_at(request.param, tmp_path, postgres, clock=clock) as opened:
        opened.create_table("x", "a INT, b INT, c INT", keys=["a"])
        yield opened


globals().update(examples_of(test_at_x_changes))
