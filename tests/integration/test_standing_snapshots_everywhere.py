"""Standing snapshots on PostgreSQL, behind a service, and over two services."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.errors import LeaseExpired
from righttime.flight.server import FlightService
from righttime.testing import ManualClock
from tests.support.crash import engine_of
from tests.support.everywhere import ELSEWHERE, examples_of, opened_at
from tests.support.postgres import TempPostgres
from tests.support.services import Service
from tests.unit import test_standing_snapshots
from tests.unit.test_standing_snapshots import clock, load

__all__ = ["clock", "load"]

GROUP = "two services"
globals().update(examples_of(test_standing_snapshots, without=("test_closing_waits",)))


@pytest.fixture(params=[*ELSEWHERE, GROUP])
def wh(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock, postgres: TempPostgres) -> Iterator[Any]:
    with ExitStack() as ends:
        if request.param != GROUP:
            yield ends.enter_context(opened_at(request.param, tmp_path, postgres, clock=clock, lease_ttl_s=60.0))
            return
        ports = []
        for name in ("first", "second"):
            warehouse = ends.enter_context(rt.open(tmp_path / name, clock=clock, lease_ttl_s=60.0))
            service = FlightService(warehouse, engine_of(warehouse))
            ends.callback(service.stop)
            ports.append(service.port)
        yield ends.enter_context(rt.open("righttime://" + ",".join(f"127.0.0.1:{port}" for port in ports), clock=clock))


def test_spark_asks_one_state_of_two_services(tmp_path: Path) -> None:
    """Both tables, each at its own catalyst, at one cut; a commit in between is in none of the answers."""
    with ExitStack() as ends:
        ports = []
        for name in ("first", "second"):
            warehouse = ends.enter_context(rt.open(tmp_path / name))
            service = FlightService(warehouse, engine_of(warehouse))
            ends.callback(service.stop)
            ports.append(service.port)
        wh = ends.enter_context(rt.open("righttime://" + ",".join(f"127.0.0.1:{port}" for port in ports)))
        load = ends.enter_context(wh.producer(name="till"))
        for name in ("sale", "item"):
            wh.create_table(name, "k INT, v INT")
            load.insert(name, (1, 1))
            load.commit()
        question = "SELECT count(*), sum(s.v + i.v) FROM sale s JOIN item i ON s.k = i.k"
        with wh.snapshot("sale", "item") as state:
            first = state.sql(question)
            for name in ("sale", "item"):
                load.insert(name, (1, 5))
                load.commit()
            second = state.sql(question)
            assert (first.rows(), second.rows()) == ([(1, 2)], [(1, 2)])
            assert first.receipt.cut_us == second.receipt.cut_us
            assert wh.verify(second.receipt).ok
            assert wh.verify(state.read("item").receipt).ok
        assert wh.sql(question).rows()[0][0] == 4


def test_a_service_that_was_killed_has_no_state_for_it(tmp_path: Path) -> None:
    """Its answers would be of another state; the handle goes on, and closing what is gone is no error."""
    with Service(tmp_path / "wh") as service, service.connect() as wh:
        wh.create_table("sale", "k INT")
        with wh.producer(name="till") as load:
            load.insert("sale", (1,))
            load.commit(durability="log")
        state = wh.snapshot("sale")
        assert state.read("sale").rows() == [(1,)]
        service.kill()
        service.start()
        with pytest.raises(LeaseExpired):
            state.read("sale")
        state.close()
        with wh.snapshot() as again:
            assert again.read("sale").rows() == [(1,)]
