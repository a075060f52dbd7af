"""Queries that wait at a service for clients that are gone: in some seconds nothing of them is left, and others are answered."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.flight.server import FlightService
from righttime.flight.warehouse import open_remote
from tests.support.clients import Client
from tests.support.crash import engine_of
from tests.support.plain_flow import run_plain
from tests.support.proxy import Proxy
from tests.support.waits import until

COLUMNS = "k INT NOT NULL, v INT"


class Stage:
    """A service with a table `u` and a flow's target `t`, whose source stands still."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.wh = rt.open(folder, stop_wait_s=1, **settings)
        self.wh.create_table("t", COLUMNS, keys=["k"])
        self.wh.create_table("u", COLUMNS, keys=["k"])
        self.source = self.wh.create_stream("s", COLUMNS, keys=["k"], times="source")
        self.runner, _ = run_plain(self.wh, {"t": "s"})
        self.service = FlightService(self.wh, engine_of(self.wh))
        self.catalyst = engine_of(self.wh).catalyst
        self.source.heartbeat(self.now_us())

    def now_us(self) -> int:
        return self.catalyst.authority.read_us()

    def waiting(self) -> int:
        with self.catalyst.lock:
            return len(self.catalyst.admissions)

    def left(self) -> tuple[int, int, int, int]:
        """Return what there is of queries: admissions, calls, snapshots and cuts."""
        held = self.service.desk.reading.held
        with self.catalyst.lock:
            return len(self.catalyst.admissions), self.service.desk._working, len(held._held) + len(held._taking), len(self.runner.link.cuts)

    def close(self) -> None:
        with self.catalyst.lock:  # only a test that has failed leaves any
            for admission in self.catalyst.admissions:
                admission.given_up = True
            self.catalyst.arrivals.notify_all()
        self.service.stop()
        self.runner.stop()
        self.wh.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "wh", snapshots_max=4, snapshot_ttl_s=2)
    yield made
    made.close()


def asks_for_long(address: str, tables: list[str], pipe: Connection) -> None:
    """Wait for tables until killed."""
    with rt.open(address) as wh, wh.snapshot(*tables, freshness="0s", wait="1 hour"):
        pipe.send("it was answered")


def asks_until_interrupted(address: str, pipe: Connection) -> None:
    """Wait for a table until Ctrl-C; then ask for what is there, and stay."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with rt.open(address) as wh:
        try:
            wh.read("t", freshness="0s", wait="1 hour")
        except KeyboardInterrupt:
            pipe.send("interrupted")
        pipe.recv()
        pipe.send(wh.read("t", freshness="1 day", wait="5s").rows())
        pipe.recv()


def asks_a_group_until_interrupted(addresses: str, pipe: Connection) -> None:
    """Wait for tables of two services until Ctrl-C, and stay."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with rt.open(addresses) as wh:
        try:
            with wh.snapshot("t", "item", freshness="0s", wait="1 hour"):
                pipe.send("it was answered")
        except KeyboardInterrupt:
            pipe.send("interrupted")
        pipe.recv()


def pressed(client: Client) -> float:
    """Press Ctrl-C at a client that waits; return how long it took to end the wait."""
    began_s = time.monotonic()
    os.kill(client.process.pid or 0, signal.SIGINT)
    assert client.connection.poll(30)
    assert client.connection.recv() == "interrupted"
    return time.monotonic() - began_s


def test_ctrl_c_ends_a_query_that_waits_at_a_service(stage: Stage) -> None:
    """At once, here and there; the program goes on with the same handle, and its next question is answered."""
    with Client(asks_until_interrupted, stage.service.address) as client:
        until(lambda: stage.left() == (1, 1, 1, 1))
        assert pressed(client) < 10
        until(lambda: stage.left() == (0, 0, 0, 0))
        client.connection.send("go on")
        assert client.connection.poll(30)
        assert client.connection.recv() == []
        client.connection.send("end")


def test_ctrl_c_ends_a_query_whose_service_says_nothing(stage: Stage) -> None:
    """The service cannot be told; once it sees that the connection is gone, nothing is left there either."""
    with Proxy(stage.service.port) as proxy, Client(asks_until_interrupted, proxy.address) as client:
        until(stage.waiting)
        proxy.swallow()
        assert pressed(client) < 10
        client.kill()
        proxy.cut()
        until(lambda: stage.left() == (0, 0, 0, 0))


def test_ctrl_c_ends_a_query_that_waits_at_several_services(stage: Stage, tmp_path: Path) -> None:
    """At all of them: those that have their part hold it no longer than the one that waits."""
    with rt.open(tmp_path / "other", stop_wait_s=1) as other:
        other.create_table("item", COLUMNS)
        second = FlightService(other, engine_of(other))
        addresses = f"{stage.service.address},{second.address.partition('://')[2]}"
        try:
            with Client(asks_a_group_until_interrupted, addresses) as client:
                until(stage.waiting)
                assert pressed(client) < 10
                until(lambda: stage.left() == (0, 0, 0, 0))
                until(lambda: not second.desk.reading.held._held)
                client.connection.send("end")
        finally:
            second.stop()


def test_nothing_is_left_of_queries_whose_clients_were_killed(stage: Stage) -> None:
    """As many as the service holds snapshots: the next client has a place, what the source then tells is loaded, and answers are exact."""
    with ExitStack() as clients:
        killed = [clients.enter_context(Client(asks_for_long, stage.service.address, ["t"])) for _ in range(4)]
        until(lambda: stage.left() == (4, 4, 4, 4))
        for client in killed:
            client.kill()
        until(lambda: stage.left() == (0, 0, 0, 0))
    with open_remote(stage.service.address) as other:
        assert other.read("t", freshness="1 day", wait="5s").rows() == []
        stage.source.insert([{"k": 1, "v": 1}], time=stage.now_us())
        asked_us = stage.now_us()
        answers: list[Any] = []
        asks = threading.Thread(target=lambda: answers.append(other.read("t", freshness="0s", wait="30s").rows()))
        asks.start()
        until(stage.waiting)
        stage.source.heartbeat(max(asked_us, stage.now_us()))
        asks.join(30)
        assert answers == [[(1, 1)]]


def test_a_job_is_made_though_the_query_that_cut_it_is_gone(stage: Stage) -> None:
    """What was committed before the cut is to be loaded anyway."""
    stage.source.insert([{"k": 1, "v": 1}], time=stage.now_us())
    with Client(asks_for_long, stage.service.address, ["t"]) as client:
        until(stage.waiting)
        client.kill()
        stage.source.heartbeat(stage.now_us())
        until(lambda: stage.left() == (0, 0, 0, 0))
    assert stage.wh.read("t", freshness="1 day", wait="20s").rows() == [(1, 1)]


def test_storing_goes_on_when_the_client_of_a_query_is_gone(stage: Stage) -> None:
    """A query that waits holds back what is stored of its tables, also of those that it does not wait for."""
    with Client(asks_for_long, stage.service.address, ["t", "u"]) as client:
        until(stage.waiting)
        with stage.wh.producer(name="till") as load:
            load.insert("u", (1, 1))
            load.commit()
        client.kill()
        until(lambda: not stage.waiting())
    stage.wh.materialize("u", wait="20s")
    with stage.catalyst.lock:
        assert stage.catalyst.table("u").rows_stored == 1


def test_a_query_outlasts_its_connection(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client comes back before it is taken for gone, and gets what was waited for all the time."""
    answers: list[Any] = []
    held, looks = stage.service.desk.reading.held, list[int]()
    expire = held.expire

    def looked() -> None:
        expire()
        looks.append(1)

    with Proxy(stage.service.port) as proxy, open_remote(proxy.address) as wh:
        asks = threading.Thread(target=lambda: answers.append(wh.read("t", freshness="0s", wait="60s").rows()))
        asks.start()
        until(stage.waiting)
        with stage.catalyst.lock:
            (admission,) = stage.catalyst.admissions
        (turn,) = held._taking.values()
        proxy.cut()
        monkeypatch.setattr(held, "expire", looked)
        until(lambda: turn.waiting == 2)
        until(lambda: [asker.gone() for asker in turn.askers] == [True, False])
        until(lambda: len(looks) > 8)  # half a second each: far longer than clients that are gone are waited for
        with stage.catalyst.lock:
            assert stage.catalyst.admissions == [admission]
        stage.source.heartbeat(stage.now_us())
        asks.join(30)
    assert answers == [[]]
