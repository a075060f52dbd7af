"""Real processes, cut connections, kills: what was acknowledged is there once, what is lost is reported, and every answer is consistent at its cut."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from righttime.errors import RightTimeError
from righttime.flight.warehouse import RemoteWarehouse
from tests.support.clients import Client
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import end_sessions, fresh_schemas, named
from tests.support.process_client import SOURCES, Note, run_consumer, run_producer
from tests.support.process_judge import Judge
from tests.support.process_plan import SPOTS, TABLES
from tests.support.proxy import Proxy
from tests.support.services import Service

FIRST = int(os.environ.get("RIGHTTIME_SEED", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("RIGHTTIME_SEEDS", "1")))
"""RIGHTTIME_SEEDS=n runs n of them, from RIGHTTIME_SEED on. A seed fixes what clients load and which mishaps happen; when exactly is up to the machine."""
POSTGRES_SEEDS = range(FIRST, FIRST + int(os.environ.get("RIGHTTIME_POSTGRES_SEEDS", "0")))
SHORT = 2
"""The seeds on PostgreSQL, in full; without any, one is run there for a round, in which the service is killed and loses its connections."""
ROUNDS = 2
CONSUMERS = 2
PATIENCE_S = 240.0
BOUNDS: dict[str, Any] = {
    "memory_bytes_max": 6000,
    "segment_rows": 40,
    "archive_bytes_max": 4000,
    "log_file_bytes": 20_000,
    "checkpoint_versions": 5,
    "session_ttl_s": 5,
    "snapshot_ttl_s": 5,
    "producer_lease_s": 3,
    "stop_wait_s": 5,
    "wait_s": 20,
    "full_wait_s": 5,
    "materialize_every_s": 3,
    "file_grace_s": 0,
}
SERVICE = "service-that-dies"
"""What its connections to a database are called."""
MISHAPS = ("kill service", "kill service", "stop service", "kill producer", "kill producer", "cut", "cut", "refuse", "swallow", "swallow answers", "collect")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_processes_die_and_connections_break_and_no_acknowledged_row_is_lost_or_doubled(seed: int, tmp_path: Path) -> None:
    """Durable commits are there once, others are there or reported as lost, those in doubt are wholly in or out; answers are prefixes, fresh as asked."""
    run(seed, tmp_path, rounds=ROUNDS)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "rounds"), [(seed, ROUNDS) for seed in POSTGRES_SEEDS] or [(SHORT, 1)])
def test_the_same_where_the_service_has_its_warehouse_in_postgresql(seed: int, rounds: int, tmp_path: Path, postgres: TempPostgres) -> None:
    """The same rules; its connections to the database break too."""
    run(seed, tmp_path, rounds=rounds, server=postgres)


def run(seed: int, folder: Path, *, rounds: int, server: TempPostgres | None = None) -> None:
    print(f"seed={seed}")  # noqa: T201 - the seed of a failure
    with Simulation(seed, folder, server) as simulation:
        for _ in range(rounds):
            simulation.round()
        simulation.last_look()
    print(f"seed={seed}: {dict(simulation.judge.judged)}, {simulation.mishaps}")  # noqa: T201
    assert simulation.judge.judged["answers"] > 0


class Simulation:
    """One service, its clients, and somebody with bad intentions."""

    def __init__(self, seed: int, folder: Path, server: TempPostgres | None = None) -> None:
        self.seed = seed
        self._dice = random.Random(seed)
        self._folder = folder
        self._server = server
        self._acknowledged = folder / "acknowledged"
        self._acknowledged.write_bytes(bytes(8 * len(SOURCES)))
        self._ending = ExitStack()
        self._producers: dict[str, Client] = {}
        self._consumers: list[Client] = []
        self._loads = dict.fromkeys(SOURCES, 0)
        self.judge = Judge()
        self.mishaps: list[str] = []

    def __enter__(self) -> "Simulation":
        with self._ending:
            self._service = self._ending.enter_context(self._serve())
            # Half of the connections die by themselves after a while, in the middle of a message.
            self._proxies = [
                self._ending.enter_context(Proxy(self._service.port, seed=self.seed + each, bytes_range=(4000, 60_000), grace_bytes=2000, delay_s=delay_s))
                for each, delay_s in enumerate((0.0, 0.002))
            ]
            self._declare()
            lines = [(self._service.address, False), (self._proxies[0].address, True), (self._proxies[1].address, True)]
            self._lines = dict(zip(SOURCES, self._dice.sample(lines, 3), strict=True))
            for source in SOURCES:
                self._start_producer(source)
            for number in range(CONSUMERS):
                self._consumers.append(Client(run_consumer, lines[number][0], self.seed * 10 + number, lines[number][1], self._acknowledged))
            self._hear_from_all("opened")
            self._kept = self._ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._kept:
            for client in (*self._producers.values(), *self._consumers):
                client.kill()
                client.close()

    def _serve(self) -> Service:
        if self._server is None:
            return Service(self._folder / "wh", **BOUNDS)
        schemas = self._ending.enter_context(fresh_schemas(self._server))
        return Service(self._folder / "wh", target=named(self._server, SERVICE), state_dir=self._folder / "state", **schemas, **BOUNDS)

    def _declare(self) -> None:
        with self._service.connect() as warehouse:
            for table, (columns, keys) in TABLES.items():
                warehouse.create_table(table, columns, keys=keys)
            with warehouse.producer(name="setup") as setup:
                setup.insert_many("spot", [(spot, 0) for spot in range(SPOTS)])
                setup.commit(durability="warehouse")

    def _start_producer(self, source: str) -> None:
        address, bad_line = self._lines[source]
        self._loads[source] += 1000  # loads of a killed process are not numbered again
        self._producers[source] = Client(run_producer, address, source, self.seed, self._loads[source], bad_line, self._acknowledged)

    # -- a round -----------------------------------------------------------------------------------------------------

    def round(self) -> None:
        """Let all clients work, disturb them, wait for them, and judge."""
        for client in self._producers.values():
            client.connection.send(self._dice.randint(15, 30))
        for client in self._consumers:
            client.connection.send(self._dice.randint(8, 15))
        busy = {client.connection for client in self._clients()}
        for mishap in self._dice.choices((*MISHAPS, *(() if self._server is None else ("lose database",) * 3)), k=self._dice.randint(2, 4)):
            self._hear(busy, "done", seconds=self._dice.uniform(0.2, 1.5))
            self._disturb(mishap, busy)
        self._hear(busy, "done", seconds=PATIENCE_S)
        assert not busy, f"still at work after {PATIENCE_S} s"
        self._look()

    def _disturb(self, mishap: str, busy: set[Connection]) -> None:
        self.mishaps.append(mishap)
        if mishap == "kill service":
            self.judge.killed = True
            self._service.kill()
            self._service.start()
        elif mishap == "stop service":
            assert self._service.terminate() == 0
            self._service.start()
        elif mishap == "kill producer":
            # One that keeps rows has something to lose.
            self._kill_producer(self._dice.choice(self.judge.keeping() or SOURCES), busy)
        elif mishap == "lose database":
            assert self._server is not None
            end_sessions(self._server.dsn, SERVICE)
        elif mishap == "collect":
            with self._connected() as warehouse:
                warehouse.gc()
        else:
            self._trouble(self._dice.choice(self._proxies), mishap, busy)

    def _trouble(self, proxy: Proxy, mishap: str, busy: set[Connection]) -> None:
        if mishap == "cut":
            proxy.cut()
            return
        if mishap == "refuse":
            proxy.cut(refuse=True)
        elif mishap == "swallow":
            proxy.swallow()
        else:
            proxy.swallow_answers()
        self._hear(busy, "done", seconds=self._dice.uniform(0.5, 4.0))
        proxy.heal()

    def _kill_producer(self, source: str, busy: set[Connection]) -> None:
        client = self._producers[source]
        client.kill()
        self._drain(client.connection)
        busy.discard(client.connection)
        client.close()
        self._start_producer(source)
        # It opens once the service has noticed that the other one is gone.
        self._hear({self._producers[source].connection}, "opened", seconds=PATIENCE_S)

    def _look(self) -> None:
        with self._connected() as warehouse:
            self.judge.look(warehouse, settle=self._dice.random() < 0.4)

    @contextmanager
    def _connected(self) -> Iterator[RemoteWarehouse]:
        with self._service.connect(reconnect_s=60) as warehouse:
            yield warehouse

    def last_look(self) -> None:
        """Let the producers leave, kill or stop the service once more, and judge what is there."""
        for client in self._clients():
            client.connection.send(None)
        for client in self._clients():
            self._drain(client.connection, seconds=PATIENCE_S)
            client.close()
        if self._dice.random() < 0.5:
            self._disturb("kill service", set())
        else:
            self._disturb("stop service", set())
        with self._connected() as warehouse:
            self.judge.look(warehouse, settle=True)
            warehouse.gc()
            self.judge.look(warehouse, settle=True)

    # -- hearing -----------------------------------------------------------------------------------------------------

    def _clients(self) -> list[Client]:
        return [*self._producers.values(), *self._consumers]

    def _hear_from_all(self, what: str) -> None:
        waiting = {client.connection for client in self._clients()}
        self._hear(waiting, what, seconds=PATIENCE_S)
        assert not waiting

    def _hear(self, waiting: set[Connection], what: str, *, seconds: float) -> None:
        """Take events in until everybody has said `what`, or the time is over; those who said it leave the set."""
        deadline_s = time.monotonic() + seconds
        while waiting and (left_s := deadline_s - time.monotonic()) > 0:
            for connection in wait(list(waiting), timeout=left_s):
                assert isinstance(connection, Connection)
                event = connection.recv()
                self.judge.hear(event)
                if isinstance(event, Note) and event.what == what:
                    waiting.discard(connection)

    def _drain(self, connection: Connection, *, seconds: float = 1.0) -> None:
        """Take in what a client said before it ended."""
        try:
            while connection.poll(seconds):
                self.judge.hear(connection.recv())
        except (EOFError, ConnectionError, RightTimeError):
            pass
