"""AT-R1 to AT-R16 once more, on PostgreSQL and over Flight: the examples of tests/unit/test_at_r.py, unchanged, on the other places.

What the database itself has in minmax after some of them is in test_at_r_on_postgres.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from righttime import Warehouse
from tests.support.clocks import SteppedClock
from tests.support.everywhere import ELSEWHERE, POSTGRES, examples_of, opened_at
from tests.support.postgres import TempPostgres
from tests.unit import test_at_r


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(0.0)


@pytest.fixture(params=ELSEWHERE)
def wh(tmp_path: Path, clock: SteppedClock, postgres: TempPostgres, request: pytest.FixtureRequest) -> Iterator[Warehouse]:
    with opened_at(request.param, tmp_path, postgres, clock=clock) as opened:
        opened.create_table("x", "a INT, b INT")
        opened.create_table("y", "c INT, d INT", in_memory=False)
        yield opened


@pytest.fixture
def two(tmp_path: Path, clock: SteppedClock, postgres: TempPostgres) -> Iterator[Warehouse]:
    """X and Y both with memory tables; in this process only, since a service always gets all tables of a commit and AT-R10 cannot arise."""
    with opened_at(POSTGRES, tmp_path, postgres, clock=clock) as opened:
        opened.create_table("x", "a INT, b INT")
        opened.create_table("y", "c INT, d INT")
        yield opened


globals().update(examples_of(test_at_r))
