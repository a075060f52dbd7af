"""Connections that break: each commit happens once, each answer is whole, and what nobody can know is said."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.errors import CommitUnknown, FreshnessUnavailable, LeaseExpired, RightTimeError, ServiceUnreachable
from righttime.flight import reading
from righttime.flight.server import FlightService
from righttime.flight.warehouse import RemoteWarehouse, open_remote
from righttime.query.contract import Contract
from tests.support.crash import engine_of
from tests.support.proxy import Proxy
from tests.support.services import Service
from tests.support.waits import until

SEEDS = int(os.environ.get("RIGHTTIME_SEEDS", "1"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "wh", session_ttl_s=5, snapshot_ttl_s=3, producer_lease_s=1) as running:
        yield running


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Service]:
    """One that soon forgets those who are silent, for tests that wait for it."""
    with Service(tmp_path / "wh", session_ttl_s=2, snapshot_ttl_s=1, producer_lease_s=1) as running:
        yield running


def shop(wh: RemoteWarehouse) -> RemoteWarehouse:
    wh.create_table("sale", "sku INT, qty INT", keys=["sku"], if_not_exists=True)
    return wh


def skus(wh: RemoteWarehouse) -> list[int]:
    return sorted(row[0] for row in wh.read("sale").rows())


@pytest.mark.parametrize("seed", range(max(2, SEEDS)))
def test_a_proxy_that_cuts_everything_after_a_while_costs_time_and_no_row(service: Service, seed: int) -> None:
    """Connections that die in the middle of messages, in both directions: every commit once, in order, under each policy."""
    print(f"seed={seed}")  # noqa: T201 - the seed of a failure
    with shop(service.connect()) as direct, Proxy(service.port, seed=seed, bytes_range=(200, 6000), grace_bytes=1500) as proxy:
        with open_remote(proxy.address) as wh:
            policies = {"now": None, "later": rt.OnDemand()}
            numbers: dict[str, list[int]] = {}
            for place, (source, policy) in enumerate(policies.items()):
                with wh.producer(name=source, policy=policy) as load:
                    numbers[source] = []
                    for number in range(25):
                        load.insert_many("sale", [(place * 10_000 + number * 10 + each, number) for each in range(3)])
                        numbers[source].append(load.commit(durability="log" if number % 7 == 3 else None).commit.number)
                    assert len(wh.read("sale")) == 75 * (place + 1)
        assert proxy.cuts > 5
        assert numbers == {source: list(range(1, 26)) for source in policies}
        assert skus(direct) == sorted(place * 10_000 + number * 10 + each for place in range(2) for number in range(25) for each in range(3))
        assert direct.losses() == []


def test_images_that_cannot_be_seen_from_here_are_not_read_as_files_after_a_restart_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sees the tables and not the memory of the other machine gets hot rows over Flight, though the service has its images elsewhere now."""
    monkeypatch.setattr(reading, "_same", lambda place: str(tmp_path) in place["path"])

    def read_as_files(wh: RemoteWarehouse) -> list[str]:
        """Return the files of the table that Spark is to read itself; the rows of the others are streamed."""
        with wh._consumer._snapshots.take(["sale"], Contract(0, 5.0, "error", None)) as snapshot:
            table = snapshot.tables["sale"]
        assert len(table.files) == 2
        return [path for path in table.files if table.places.readable(path)]

    with serving(tmp_path / "wh", port=0) as service:
        port = service.port
        wh = shop(open_remote(f"righttime://127.0.0.1:{port}"))
        load = wh.producer(name="till")
        load.insert("sale", (1, 1))
        load.commit(materialize=True)
        load.insert("sale", (2, 1))
        load.commit(durability="log")
        before = read_as_files(wh)
    with serving(tmp_path / "wh", port=port), wh:
        assert read_as_files(wh) == before
        assert len(before) == 1


def test_a_verification_that_takes_long_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that finds the service slow asks again and waits for the same run: each further one would make the service slower."""
    with serving(tmp_path / "wh", port=0) as service, open_remote(f"righttime://127.0.0.1:{service.port}", call_timeout_s=0.2) as wh:
        receipt = shop(wh).read("sale").receipt
        consumer, runs = service._engine.consumer, []
        rerun = consumer.rerun

        def slow(*arguments: Any) -> Any:
            """Take so long that the client has asked for the same run twice more."""
            runs.append(1)
            until(lambda: service.desk._working >= 3)
            return rerun(*arguments)

        monkeypatch.setattr(consumer, "rerun", slow)
        assert receipt.verify() and receipt.verify().method == "rerun"
        assert len(runs) == 2


@contextmanager
def serving(folder: Path, *, port: int) -> Iterator[FlightService]:
    with rt.open(folder, stop_wait_s=1) as warehouse:
        service = FlightService(warehouse, engine_of(warehouse), port=port)
        try:
            yield service
        finally:
            service.stop()


def test_declarations_and_large_uploads_survive_cuts(service: Service) -> None:
    """A call that was carried out and whose answer was lost is not carried out again; an upload begins anew."""
    with Proxy(service.port, seed=11, bytes_range=(60_000, 90_000)) as proxy, open_remote(proxy.address) as wh:
        for number in range(12):
            wh.create_table(f"table_{number}", "a INT, b STRING")
        with wh.producer(name="bulk") as load:
            load._with.settings.__dict__["bypass_bytes"] = 10_000
            for round_number in range(3):
                load.insert_many("table_0", [(number, f"text {number} {round_number}") for number in range(1500)])
                load.commit()
        assert (len(wh.tables()), len(wh.read("table_0"))) == (12, 4500)
        assert proxy.cuts > 0


def test_a_call_that_was_carried_out_unseen_is_not_carried_out_again(service: Service) -> None:
    """The table was declared and the answer swallowed; the same call, sent again, gets that answer and no TableExists."""
    with Proxy(service.port) as proxy, service.connect() as direct, open_remote(proxy.address, call_timeout_s=0.5) as wh:
        outcome: list[object] = []
        wh.tables()
        proxy.swallow_answers()
        thread = threading.Thread(target=lambda: outcome.append(wh.create_table("once", "a INT")))
        thread.start()
        until(direct.tables)
        proxy.heal()
        thread.join(timeout=30)
        assert outcome == [direct.schema("once")]


def test_a_service_out_of_reach_is_said_to_be_and_the_commit_in_doubt_is_settled(service: Service) -> None:
    """The commit's answer never comes: CommitUnknown; once the service is back, the same commit returns what happened."""
    with Proxy(service.port) as proxy, open_remote(proxy.address, reconnect_s=0.5, call_timeout_s=0.5) as wh:
        shop(wh)
        load = wh.producer(name="till")
        load.insert("sale", (1, 1))
        first = load.commit()
        load.insert("sale", (2, 2))
        proxy.cut(refuse=True)
        with pytest.raises(CommitUnknown):
            load.commit()
        with pytest.raises(ServiceUnreachable):
            wh.tables()
        proxy.heal()
        assert load.commit().commit.number == first.commit.number + 1
        assert skus(wh) == [1, 2]
        load.close()


def test_a_commit_that_happened_unseen_is_not_made_twice(service: Service) -> None:
    """The service got the message and its answer was swallowed; committing again gives the commit that happened."""
    with Proxy(service.port) as proxy, shop(service.connect()) as direct, open_remote(proxy.address, reconnect_s=0.5, call_timeout_s=0.5) as wh:
        load = wh.producer(name="till")
        load.insert("sale", (1, 1))
        load.commit()
        load.insert("sale", (2, 2))
        proxy.swallow_answers()
        with pytest.raises(CommitUnknown):
            load.commit()
        assert skus(direct) == [1, 2]
        proxy.heal()
        assert load.commit().commit.number == 2
        assert skus(direct) == [1, 2]
        load.insert("sale", (3, 3))
        assert load.commit().commit.number == 3
        load.close()


def test_a_transaction_that_grew_after_an_unknown_commit_is_refused_until_it_is_rolled_back(service: Service) -> None:
    """What was committed cannot be told from what came later, so nothing is committed twice."""
    with Proxy(service.port) as proxy, shop(service.connect()) as direct, open_remote(proxy.address, reconnect_s=0.5, call_timeout_s=0.5) as wh:
        load = wh.producer(name="till")
        load.insert("sale", (1, 1))
        proxy.swallow_answers()
        with pytest.raises(CommitUnknown):
            load.commit()
        proxy.heal()
        load.insert("sale", (2, 2))
        for _ in range(2):
            with pytest.raises(CommitUnknown, match="commit 1 did happen"):
                load.commit()
        load.rollback()
        load.insert("sale", (3, 3))
        assert load.commit().commit.number == 2
        assert skus(direct) == [1, 3]
        load.close()


def test_a_lazy_commit_in_doubt_keeps_its_rows(service: Service) -> None:
    """A lazy commit that happened unseen is archived when it is committed again, and delivered."""
    with Proxy(service.port) as proxy, shop(service.connect()) as direct, open_remote(proxy.address, reconnect_s=0.5, call_timeout_s=0.5) as wh:
        load = wh.producer(name="till", policy=rt.OnDemand())
        load.insert("sale", (1, 1))
        proxy.swallow_answers()
        with pytest.raises(CommitUnknown):
            load.commit()
        proxy.heal()
        assert load.commit().commit.number == 1
        assert skus(direct) == [1]
        load.close()
    with shop(service.connect()) as wh:
        assert (skus(wh), wh.losses()) == ([1], [])


def test_a_slow_service_is_waited_for(service: Service) -> None:
    """Delays longer than a call's time-out are no failure while the service answers a knock."""
    with Proxy(service.port, delay_s=0.05) as proxy, open_remote(proxy.address, call_timeout_s=0.3) as wh:
        shop(wh)
        with wh.producer(name="till") as load:
            for number in range(3):
                load.insert("sale", (number, 0))
                load.commit(materialize=True)
        assert skus(wh) == [0, 1, 2]


def test_a_silent_lazy_producer_is_reported_then_lost(hasty: Service) -> None:
    """A client that vanishes with archived commits: queries say so; after session_ttl_s its commits are noted as lost and its name is free."""
    with Proxy(hasty.port) as proxy, shop(hasty.connect()) as direct:
        gone = open_remote(proxy.address, reconnect_s=0.2, call_timeout_s=0.3)
        load = gone.producer(name="till", policy=rt.OnDemand())
        for number in range(3):
            load.insert("sale", (number, 0))
            load.commit()
        proxy.cut(refuse=True)
        with pytest.raises(FreshnessUnavailable, match="no longer answers"):
            direct.read("sale", wait="10s")
        with pytest.raises(rt.RightTimeError) as caught:
            direct.producer(name="till")
        assert caught.value.code == "source.bad"
        losses = until(direct.losses)
        assert [(loss.source, loss.first, loss.last, loss.rows) for loss in losses] == [("till", 1, 3, 3)]
        assert skus(direct) == []
        with direct.producer(name="till") as anew:
            anew.insert("sale", (9, 9))
            assert anew.commit().commit.number == 4
        proxy.heal()
        load.insert("sale", (5, 5))
        with pytest.raises(RightTimeError) as lost:
            load.commit()
        assert lost.value.code == "session.lost"
        assert "acknowledged and not flushed" in str(lost.value)
        load.close()  # as the error advises; it has said what is lost
        gone.close()
        assert skus(direct) == [9]


def test_an_idle_producer_that_was_forgotten_goes_on_in_a_new_session(hasty: Service) -> None:
    """Nothing uncommitted, nothing archived: the client opens a new session and nobody notices."""
    with Proxy(hasty.port) as proxy, shop(hasty.connect()) as direct:
        with open_remote(proxy.address, call_timeout_s=0.5) as wh:
            load = wh.producer(name="till")
            load.insert("sale", (1, 1))
            load.commit()
            proxy.cut(refuse=True)
            until(lambda: not direct.status().producers)
            proxy.heal()
            load.insert("sale", (2, 2))
            assert load.commit().commit.number == 2
            load.close()
        assert skus(direct) == [1, 2]


def test_a_query_whose_snapshot_lapsed_gets_no_other_rows(hasty: Service) -> None:
    """Cut off for longer than snapshot_ttl_s between reading and receipt: LeaseExpired."""
    with Proxy(hasty.port) as proxy, shop(hasty.connect()) as direct, open_remote(proxy.address) as wh:
        with direct.producer(name="till") as load:
            load.insert("sale", (1, 1))
            load.commit()
        snapshots = wh._consumer._snapshots
        wh.tables()
        with pytest.raises(LeaseExpired), snapshots.take(["sale"], Contract(0, 1.0, "error", None)) as snapshot:
            proxy.cut(refuse=True)
            until(lambda: direct.status().queries == 0)
            proxy.heal()
            snapshots.rows(snapshot.tables["sale"])
