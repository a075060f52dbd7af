"""The service under load: 20 producers and 20 consumers at once, rows in = rows out, every receipt verifies, memory within its bounds."""

import os
import re
import statistics
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.flight.warehouse import RemoteWarehouse
from righttime.status import Status
from tests.support.clients import Client
from tests.support.load_client import Told, run_client
from tests.support.load_plan import COLUMNS, PRODUCERS, TABLES, Expected, note, source_name
from tests.support.postgres_warehouse import fresh_schemas
from tests.support.services import Service

SECONDS = float(os.environ.get("RIGHTTIME_LOAD_S", "60"))
PLACE = os.environ.get("RIGHTTIME_LOAD_PLACE", "delta")
"""Where the service has its warehouse: `delta`, or `postgresql`."""
PROCESSES = 4
MEMORY_BYTES = 64 * 1024
SPILL_BYTES = 4 * 1024 * 1024
BOUNDS: dict[str, Any] = {
    "memory_bytes_max": MEMORY_BYTES,
    "spill_bytes_max": SPILL_BYTES,
    "segment_rows": 2048,
    "materialize_every_s": 4,
    "materialize_rows": 5000,
    "full_wait_s": 60,
    "producer_lease_s": 30,
    "states_max": 500,
    "checkpoint_versions": 20,
}
# A message of each producer may have been let in at the same moment, and what is stored in the same step may stand over the bound for that long.
IN_FLIGHT_BYTES = PRODUCERS * 32 * 1024
RESIDENT_BYTES = 700 * 1024 * 1024


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """The target, and the settings that it is opened with."""
    if PLACE == "delta":
        yield str(tmp_path / "wh"), {}
        return
    assert PLACE == "postgresql", PLACE
    server = request.getfixturevalue("postgres")
    with fresh_schemas(server) as schemas:
        yield server.url, {"state_dir": tmp_path / "state", **schemas}


@pytest.fixture
def service(tmp_path: Path, place: tuple[str, dict[str, Any]]) -> Iterator[Service]:
    target, settings = place
    with Service(tmp_path / "wh", "--metrics-port", "0", cold=True, target=target, **settings, **BOUNDS) as running:
        yield running


@pytest.mark.timeout(2 * SECONDS + 600)
def test_twenty_producers_and_twenty_consumers_lose_nothing(service: Service, place: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """Rows in = rows out, every answer is a consistent prefix and fresh, every receipt verifies, bounds hold, and a stop keeps everything."""
    acknowledged = tmp_path / "acknowledged"
    acknowledged.write_bytes(bytes(8 * PRODUCERS))
    with service.connect() as warehouse:
        for table in TABLES:
            warehouse.create_table(table, COLUMNS[table], keys=["source", "line"])
        with ExitStack() as ending:
            shares = [range(first, PRODUCERS, PROCESSES) for first in range(PROCESSES)]
            clients = [ending.enter_context(Client(run_client, service.address, share, SECONDS, acknowledged)) for share in shares]
            watch = Watch(service, warehouse)
            told = watch.until_all_told(clients)
        failures = [failure for one in told for failure in one.failures]
        assert not failures, failures[0]
        commits = {place: number for one in told for place, number in one.commits.items()}
        assert commits.keys() == set(range(PRODUCERS))
        assert warehouse.losses() == []
        check_everything(warehouse, commits)
        watch.round()
        summary(told, watch)
        watch.check_bounds_were_felt()
    assert service.terminate() == 0
    target, settings = place
    with rt.open(target, **settings) as reopened:
        check_everything(reopened, commits)
        assert reopened.losses() == []
        for receipt in [one.receipts[place] for one in told for place in (0, -1) if one.receipts]:
            assert reopened.verify(receipt).ok


def check_everything(warehouse: RemoteWarehouse | rt.Warehouse, commits: dict[int, int]) -> None:
    """Every row of every table is what the producers' transactions, one after the other, leave."""
    for table in TABLES:
        answer = warehouse.read(table, wait="120s")
        wanted = set()
        for place, number in commits.items():
            expected = Expected(place)
            expected.after(table, number)
            wanted |= {(place, line, qty, note(place, line)) if table == "sale" else (place, line, qty) for line, qty in expected.lines[table].items()}
        rows = answer.rows()
        assert len(rows) == len(wanted)
        assert set(map(tuple, rows)) == wanted
        assert {cut.source: cut.last_inside.number for cut in answer.receipt.cut} == {source_name(place): number for place, number in commits.items()}


class Watch:
    """Somebody who looks at the service all the time, as a monitor does."""

    def __init__(self, service: Service, warehouse: RemoteWarehouse) -> None:
        self._service = service
        self._warehouse = warehouse
        self.rounds = 0
        self.memory_max = self.spill_max = self.resident_max = 0
        self.states: set[int] = set()

    def until_all_told(self, clients: Sequence[Client]) -> list[Told]:
        """Look until every client has told what it did, or died."""
        told: list[Told] = []
        waiting = [client.connection for client in clients]
        while waiting:
            for connection in wait(waiting, timeout=0.5):
                assert isinstance(connection, Connection)
                waiting.remove(connection)
                told.append(connection.recv())
            self.round()
        return told

    def round(self) -> None:
        self.rounds += 1
        assert self._get("/healthz") == "ok\n"
        assert self._get("/readyz") == "ready\n"
        metrics = self._get("/metrics")
        assert re.search(r"^righttime_sessions \d", metrics, re.MULTILINE)
        self._check(self._warehouse.status())
        resident = self._resident()
        self.resident_max = max(self.resident_max, resident)
        assert resident <= RESIDENT_BYTES, f"the service has {resident >> 20} MiB"

    def _check(self, status: Status) -> None:
        self.states.add(status.state_durable)
        for table in status.tables:
            self.memory_max = max(self.memory_max, table.bytes_memory)
            self.spill_max = max(self.spill_max, table.bytes_spilled)
            assert table.bytes_memory <= MEMORY_BYTES + IN_FLIGHT_BYTES, f"{table}"
            assert table.bytes_spilled <= SPILL_BYTES, f"{table}"

    def check_bounds_were_felt(self) -> None:
        """The run was long and hard enough to mean something."""
        assert self.memory_max > MEMORY_BYTES // 2
        assert self.spill_max > 0
        assert len(self.states) > 2

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._service.health_port}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def _resident(self) -> int:
        found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{self._service.process.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024


def summary(told: Sequence[Told], watch: Watch) -> None:
    """Say how fast it was; on a shared machine this is no measurement."""
    commits = [took for one in told for took in one.commit_s]
    reads = [took for one in told for took in one.read_s]
    rows, late, full = (sum(getattr(one, name) for one in told) for name in ("rows", "late", "full"))
    verified = {method: sum(one.verified.get(method, 0) for one in told) for method in ("rerun", "ledger")}
    print(  # noqa: T201 - this is what a load test is run for
        f"\n{SECONDS:.0f} s: {rows / SECONDS:.0f} rows/s, {len(commits) / SECONDS:.1f} commits/s ({_times(commits)}), "
        f"{len(reads) / SECONDS:.1f} reads/s ({_times(reads)}, {late} late), receipts verified {verified}, {full} times full, "
        f"{len(watch.states)} stored states seen, memory {watch.memory_max >> 10} KiB, spill {watch.spill_max >> 10} KiB, "
        f"resident {watch.resident_max >> 20} MiB"
    )


def _times(seconds: Sequence[float]) -> str:
    parts = statistics.quantiles(seconds, n=100) if len(seconds) > 1 else [0.0] * 99
    return f"p50 {parts[49] * 1e3:.1f} ms, p99 {parts[98] * 1e3:.0f} ms"
