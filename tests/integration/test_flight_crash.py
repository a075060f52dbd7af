"""A service that ends, politely or not: what was promised is there after the next start, and the rest is named."""

import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.catalyst.producer import Durability
from righttime.changes.conditions import Expression
from righttime.errors import LeaseExpired, RightTimeError, ServiceUnreachable, SessionLost
from righttime.flight import reading
from righttime.flight.warehouse import RemoteWarehouse, open_remote
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_schemas
from tests.support.proxy import Proxy
from tests.support.services import Service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "wh", stop_wait_s=5) as running:
        yield running


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Service]:
    """The same, started as a user starts it, Python and all."""
    with Service(tmp_path / "wh", cold=True, stop_wait_s=5) as running:
        yield running


def shop(wh: RemoteWarehouse) -> RemoteWarehouse:
    wh.create_table("sale", "sku INT, qty INT", keys=["sku"], if_not_exists=True)
    return wh


def skus(wh: RemoteWarehouse) -> list[int]:
    return sorted(row[0] for row in wh.read("sale").rows())


def test_after_sigterm_everything_committed_is_there(cold: Service) -> None:
    """Rows in memory, rows that lazy producers held back: all are kept; exit code 0, nothing lost, and the clients go on by themselves."""
    with shop(cold.connect()) as wh:
        now, later = wh.producer(name="now"), wh.producer(name="later", policy=rt.OnDemand())
        now.insert("sale", (1, 1))
        now.commit()
        for number in range(2, 5):
            later.insert("sale", (number, 1))
            later.commit()
        assert cold.terminate() == 0
        cold.start()
        assert (skus(wh), wh.losses()) == ([1, 2, 3, 4], [])
        now.insert("sale", (5, 5))
        later.insert("sale", (6, 6))
        assert (now.commit().commit.number, later.commit().commit.number) == (2, 4)
        assert skus(wh) == [1, 2, 3, 4, 5, 6]


def test_after_sigkill_what_was_durable_is_there_and_the_rest_is_named(cold: Service) -> None:
    """Logged and stored rows stay, commits in memory are reported as lost, and a producer without debts goes on."""
    with shop(cold.connect()) as wh:
        load = wh.producer(name="till")
        durabilities: tuple[Durability, ...] = ("log", "warehouse", "memory", "memory")
        for number, durability in enumerate(durabilities):
            load.insert("sale", (number, 1))
            load.commit(durability=durability)
        cold.kill()
        cold.start()
        assert skus(wh) == [0, 1]
        assert [(loss.source, loss.first, loss.last, loss.rows) for loss in wh.losses()] == [("till", 3, 4, 2)]
        load.insert("sale", (9, 9))
        assert load.commit(durability="log").commit.number == 5
        assert skus(wh) == [0, 1, 9]


def test_a_commit_under_way_when_the_service_dies_happens_once(service: Service) -> None:
    """A client keeps committing durably while the service is killed again and again: every batch exactly once."""
    with shop(service.connect()) as wh:
        kills = [threading.Event() for _ in range(3)]
        failures: list[BaseException] = []

        def load() -> None:
            try:
                with wh.producer(name="till") as producer:
                    for number in range(60):
                        if number % 15 == 5 and number < 45:
                            kills[number // 15].set()
                        producer.insert("sale", (number, 1))
                        try:
                            producer.commit(durability="log")
                        except SessionLost:
                            # What was staged is gone with the service, and the message says so: load it again, elsewhere if need be.
                            failures.append(AssertionError("a durable commit of one step must not be lost"))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        for due in kills:
            assert due.wait(timeout=60), failures
            service.kill()
            service.start()
        thread.join(timeout=120)
        assert not failures, failures
        assert skus(wh) == list(range(60))


# The points that each kind of commit passes, and at which arrival to die: after the table was made and the first commit.
POINTS: dict[Durability, dict[str, int]] = {
    "log": {"log.synced": 2, "ledger.begun": 3, "ledger.committed": 3},
    "warehouse": {"ledger.begun": 3, "ledger.committed": 3, "materialize.files_written": 2, "materialize.tables_committed": 2},
}


@pytest.mark.parametrize(("durability", "point", "arrival"), [(kind, point, arrival) for kind, points in POINTS.items() for point, arrival in points.items()])
def test_a_service_that_dies_in_the_middle_of_a_commit_has_it_once(tmp_path: Path, durability: Durability, point: str, arrival: int) -> None:
    """Before or after the commit point, answered or not: the client asks again, and the rows are there once."""
    with Service(tmp_path / "wh", crash_at=f"{point}:{arrival}") as service:
        commit_through_a_crash(service, durability)


@pytest.mark.parametrize(
    ("durability", "point", "arrival"),
    [("log", "log.synced", 2), ("log", "ledger.committed", 3), ("warehouse", "materialize.tables_committed", 2), ("warehouse", "ledger.committed", 4)],
)
def test_one_that_has_its_warehouse_in_postgresql_has_it_once_too(
    tmp_path: Path, postgres: TempPostgres, durability: Durability, point: str, arrival: int
) -> None:
    """The server rolls back what was open, and knows what was committed."""
    with (
        fresh_schemas(postgres) as schemas,
        Service(tmp_path / "wh", target=postgres.url, state_dir=tmp_path / "state", crash_at=f"{point}:{arrival}", **schemas) as service,
    ):
        commit_through_a_crash(service, durability)


def commit_through_a_crash(service: Service, durability: Durability) -> None:
    """Commit inserts, an update that shows how often it was done, and a delete, until the service has died and for some time after."""
    with shop(service.connect()) as wh:
        reviver = threading.Thread(target=service.revive, daemon=True)
        reviver.start()
        with wh.producer(name="till") as load:
            load.insert("sale", (1, 0))
            load.commit(durability=durability)
            for number in range(2, 5):
                load.insert_many("sale", [(number, 1), (number + 100, 1)])
                load.update("sale", {"qty": Expression("qty + 1")}, {"sku": 1})
                load.delete("sale", {"sku": number + 99})
                assert load.commit(durability=durability).commit.number == number
            reviver.join(timeout=60)
            assert not reviver.is_alive(), "the point was not reached so often"
        assert sorted(wh.read("sale").rows()) == [(1, 3), (2, 1), (3, 1), (4, 1), (104, 1)]


def test_rows_that_were_read_back_before_a_restart_are_committed_after_it(service: Service) -> None:
    """The open transaction was with the service when that died; the client has it still, and commits all of it once."""
    with shop(service.connect()) as wh:
        with wh.producer(name="till") as load:
            load.insert("sale", (1, 1))
            load._stage(load._transaction()[0])
            load.insert("sale", (2, 2))
            load._stage(load._transaction()[0])
            assert load.in_transaction
            service.kill()
            service.start()
            load.insert("sale", (3, 3))
            load.commit(durability="log")
        assert skus(wh) == [1, 2, 3]


_SLOW = """
import sys, threading
from righttime.cli import main
from righttime.flight.desk import Desk
answer = Desk.answer
def slow(self, action, *arguments):
    if action == "status":
        print("asked", flush=True)
        while not threading.Event().wait(timeout=0.2):
            pass
    return answer(self, action, *arguments)
Desk.answer = slow
sys.argv[1:] = ["serve", sys.argv[1], "--port", "0"]
main()
"""


def test_a_call_that_never_ends_does_not_keep_a_service_from_ending(tmp_path: Path) -> None:
    """It is waited for as long as `stop_wait_s` says; then everything is stored, and the process ends with 0 around the call."""
    environment = {**os.environ, "RIGHTTIME_STOP_WAIT_S": "1"}
    outcome: list[BaseException] = []

    def ask() -> None:
        try:
            wh.status()
        except RightTimeError as error:
            outcome.append(error)

    with subprocess.Popen([sys.executable, "-c", _SLOW, tmp_path / "wh"], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            wh = open_remote(process.stdout.readline().split()[-1], reconnect_s=0.1, call_timeout_s=300)
            shop(wh)
            with wh.producer(name="till") as load:
                load.insert("sale", (1, 1))
                load.commit()
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            assert process.stdout.readline() == "asked\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=100) == 0
            asking.join(timeout=60)
        finally:
            process.kill()
    assert [type(error) for error in outcome] == [ServiceUnreachable]
    with rt.open(tmp_path / "wh") as stored:
        assert (stored.read("sale").rows(), stored.losses()) == ([(1, 1)], [])


def test_acknowledged_commits_survive_every_polite_stop(service: Service) -> None:
    """Two producers commit to memory without pause while the service is stopped and started again: each row once, nothing lost."""
    with shop(service.connect()) as wh:
        failures: list[BaseException] = []
        stop = threading.Event()
        made: dict[str, int] = {}

        def load(source: str, policy: rt.Policy | None, base: int) -> None:
            try:
                with wh.producer(name=source, policy=policy) as producer:
                    for number in range(100_000):
                        if stop.is_set():
                            return
                        producer.insert("sale", (base + number, 1))
                        assert producer.commit().commit.number == number + 1
                        made[source] = number + 1
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=load, args=("now", None, 0)), threading.Thread(target=load, args=("later", rt.OnDemand(), 1_000_000))]
        for thread in threads:
            thread.start()
        for _ in range(3):
            stop.wait(timeout=0.5)
            assert service.terminate() == 0
            service.start()
        stop.wait(timeout=0.5)
        stop.set()
        for thread in threads:
            thread.join(timeout=120)
        assert not failures, failures
        assert skus(wh) == [*range(made["now"]), *range(1_000_000, 1_000_000 + made["later"])]
        assert wh.losses() == []


def test_a_stopping_service_refuses_new_work_says_so_and_names_what_it_never_got(tmp_path: Path) -> None:
    """A lazy producer that cannot deliver: the stop waits stop_wait_s for it, /readyz says 503, others wait for the next start; then the loss is named."""
    with (
        Service(tmp_path / "wh", "--metrics-port", "0", stop_wait_s=3, producer_lease_s=30) as service,
        Proxy(service.port) as proxy,
        shop(service.connect(reconnect_s=0.5)) as wh,
    ):
        gone = open_remote(proxy.address, reconnect_s=0.2, call_timeout_s=0.3)
        load = gone.producer(name="till", policy=rt.OnDemand())
        load.insert("sale", (1, 1))
        load.commit()
        proxy.cut(refuse=True)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(service.terminate()))
        thread.start()
        assert _stops_being_ready(service.health_port)
        with pytest.raises(ServiceUnreachable, match="stopping"):
            wh.producer(name="new")
        thread.join(timeout=60)
        assert codes == [0]
        service.start()
        assert [(loss.source, loss.first, loss.rows) for loss in wh.losses()] == [("till", 1, 1)]
        with pytest.raises(RightTimeError):
            gone.close()


def _stops_being_ready(port: int) -> bool:
    waiting = threading.Event()
    for _ in range(100):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz").close()
        except urllib.error.HTTPError as error:
            return error.code == 503
        waiting.wait(timeout=0.05)
    return False


def test_lazy_commits_that_died_with_the_service_are_said_to_be_lost(service: Service) -> None:
    """The service forgot what it had acknowledged: the producer is told which, the ledger knows it, and a new producer goes on."""
    with shop(service.connect()) as wh:
        load = wh.producer(name="till", policy=rt.OnDemand())
        load.insert("sale", (1, 1))
        load.commit()
        service.kill()
        service.start()
        load.insert("sale", (2, 2))
        with pytest.raises(SessionLost, match="acknowledged and not flushed"):
            load.commit()
        assert [(loss.source, loss.first, loss.last, loss.rows) for loss in wh.losses()] == [("till", 1, 1, 1)]
        try:
            load.close()
        except SessionLost:
            pass
        with wh.producer(name="till") as anew:
            anew.insert_many("sale", [(1, 1), (2, 2)])
            assert anew.commit().commit.number == 2
        assert skus(wh) == [1, 2]


def test_a_folder_has_one_service(tmp_path: Path) -> None:
    """Two services cannot have one folder; the second one says who has it."""
    with Service(tmp_path / "wh") as first, pytest.raises(AssertionError, match=r"warehouse\.locked"):
        assert first.process.poll() is None
        Service(tmp_path / "wh")


def test_queries_wait_for_a_restart(service: Service) -> None:
    """A query that is asked while the service is away is answered when it is back."""
    with shop(service.connect()) as wh:
        with wh.producer(name="till") as load:
            load.insert("sale", (1, 1))
            load.commit(durability="log")
        service.kill()
        answers: list[list[int]] = []
        thread = threading.Thread(target=lambda: answers.append(skus(wh)))
        thread.start()
        service.start()
        thread.join(timeout=60)
        assert answers == [[1]]


def test_a_query_under_way_when_the_service_is_restarted_is_asked_once_more(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service that held its rows is gone, and nothing was answered: the client asks the new one. A second time it says so instead."""
    with shop(service.connect()) as wh:
        with wh.producer(name="till") as load:
            load.insert("sale", (1, 1))
            load.commit(durability="log")
        rows, reads = reading.RemoteSnapshots.rows, []

        def interrupted(self: Any, table: Any, *columns: Any) -> Any:
            reads.append(table.snapshot_id)
            if len(reads) == 1:
                service.kill()
                service.start()
            elif len(reads) > 2:
                self._release(table.snapshot_id)
            return rows(self, table, *columns)

        monkeypatch.setattr(reading.RemoteSnapshots, "rows", interrupted)
        answer = wh.read("sale")
        assert (answer.rows(), len(set(reads)), answer.receipt.verify().ok) == ([(1, 1)], 2, True)
        with pytest.raises(LeaseExpired):
            wh.read("sale")
        assert len(set(reads)) == 4


def test_receipts_hold_over_a_restart(service: Service) -> None:
    """A receipt that the service sealed verifies after it was started anew, and a forged one does not."""
    with shop(service.connect()) as wh:
        with wh.producer(name="till") as load:
            load.insert("sale", (1, 1))
            load.commit(materialize=True)
        receipt = wh.read("sale").receipt
        assert service.terminate() == 0
        service.start()
        assert wh.verify(receipt.to_json()).ok
        with pytest.raises(RightTimeError) as caught:
            wh.verify(receipt.to_json().replace(receipt.digest, "0" * len(receipt.digest)))
        assert caught.value.code == "receipt.forged"
