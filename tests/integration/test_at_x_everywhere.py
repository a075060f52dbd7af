"""AT-X1, X4 to X7, X11 and X12 once more, on PostgreSQL and over Flight: the examples of tests/unit/test_at_x.py, unchanged, on the other places.

Left out are the ones that open a folder of their own or copy it; AT-X8 on PostgreSQL lies in tests/faults/test_postgres_kill.py, and over Flight in
tests/integration/test_flight_crash.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from righttime import Warehouse
from tests.support.clocks import SteppedClock
from tests.support.everywhere import ELSEWHERE, examples_of, opened_at
from tests.support.postgres import TempPostgres
from tests.unit import test_at_x

LEFT_OUT = ("test_at_x6_a_dead_producer_is_known", "test_at_x8", "test_at_x9")


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(0.0)


@pytest.fixture(params=ELSEWHERE)
def wh(tmp_path: Path, clock: SteppedClock, postgres: TempPostgres, request: pytest.FixtureRequest) -> Iterator[Warehouse]:
    with opened_at(request.param, tmp_path, postgres, clock=clock) as opened:
        for name in "xy":
            opened.create_table(name, test_at_x.ROW)
        yield opened


globals().update(examples_of(test_at_x, without=LEFT_OUT))
