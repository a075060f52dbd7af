"""A database that goes out of reach at the commit point: what is in doubt is finished or taken back once it answers, and nothing is acknowledged meanwhile."""

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import righttime as rt
from righttime import Warehouse
from righttime.cli.serve import _unready
from righttime.errors import CommitUnknown, DatabaseUnreachable, StateInDoubt, WriterLost
from righttime.flight.health import HealthServer
from righttime.flight.server import FlightService
from righttime.flight.warehouse import open_remote
from tests.support.crash import engine_of
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_schemas
from tests.support.proxy import Proxy
from tests.support.waits import until


@pytest.fixture
def place(postgres: TempPostgres) -> Iterator[dict[str, Any]]:
    with fresh_schemas(postgres) as schemas:
        yield schemas


@pytest.fixture
def line(postgres: TempPostgres) -> Iterator[Proxy]:
    """The network between the warehouse and its database."""
    with Proxy(int(postgres.url.rpartition(":")[2].partition("/")[0])) as proxy:
        yield proxy


@pytest.fixture
def wh(postgres: TempPostgres, place: dict[str, Any], line: Proxy, tmp_path: Path) -> Iterator[Warehouse]:
    warehouse = rt.open(through(postgres, line), state_dir=tmp_path, wait_s=10, **place)
    warehouse.create_table("sale", "sku INT", keys=["sku"])
    yield warehouse
    line.heal()
    with suppress(WriterLost):
        warehouse.close()


def through(postgres: TempPostgres, line: Proxy) -> str:
    host, _, rest = postgres.url.rpartition(":")
    return f"{host}:{line.port}/{rest.partition('/')[2]}"


@contextmanager
def gone_at_commit(wh: Warehouse, line: Proxy, server: TempPostgres, *, made: bool) -> Iterator[None]:
    """The network goes away during the next COMMIT, before the server has it or before its answer is here, and stays away."""
    writer: Any = engine_of(wh).ledger._writer  # type: ignore[attr-defined]
    publish, cutters = writer.publish, []

    def cut_once_made(number: int) -> None:
        with psycopg.connect(server.dsn, autocommit=True) as direct:
            until(lambda: direct.execute(writer.address.ours("SELECT 1 FROM {0}.state WHERE number = %s"), (number,)).fetchone())
        line.cut(refuse=True)

    def interrupted(number: int, time_us: int) -> None:
        del writer.publish
        if made:
            line.swallow_answers()
            cutters.append(threading.Thread(target=cut_once_made, args=(number,)))
            cutters[0].start()
        else:
            line.cut(refuse=True)
        publish(number, time_us)

    writer.publish = interrupted
    yield
    for cutter in cutters:
        cutter.join()


def rows(wh: Warehouse) -> list[int]:
    return sorted(sku for (sku,) in wh.read("sale").rows())


def known(wh: Warehouse) -> None:
    until(lambda: engine_of(wh).catalyst.halted is None, seconds=15)


DURABLY: list[dict[str, Any]] = [{"durability": "log"}, {"materialize": True}]


@pytest.mark.parametrize("how", DURABLY)
@pytest.mark.parametrize("made", [True, False])
def test_a_commit_in_doubt_is_made_once_the_database_answers(
    wh: Warehouse, line: Proxy, postgres: TempPostgres, place: dict[str, Any], tmp_path: Path, made: bool, how: dict[str, Any]
) -> None:
    """Nobody else's commit is acknowledged until then; committing again makes it once, and storing, other producers and the next start go on from there."""
    load, other = wh.producer(name="till"), wh.producer(name="web")
    load.insert("sale", (0,))
    load.commit()
    load.insert("sale", (1,))
    other.insert("sale", (2,))
    with gone_at_commit(wh, line, postgres, made=made), pytest.raises(CommitUnknown):
        load.commit(**how)
    for lazy in (False, True):
        with pytest.raises(StateInDoubt):
            other.commit() if not lazy else wh.producer(name="another")
    with pytest.raises(CommitUnknown):
        load.commit(**how)
    with pytest.raises((StateInDoubt, DatabaseUnreachable)):
        wh.read("sale", wait="0s")
    with pytest.raises((StateInDoubt, DatabaseUnreachable)):
        wh.materialize(wait="0s")

    line.heal()
    assert load.commit(**how).commit.number == 2
    other.commit()
    assert rows(wh) == [0, 1, 2]
    load.insert("sale", (3,))
    assert load.commit(**how).commit.number == 3
    wh.materialize()
    assert rows(wh) == [0, 1, 2, 3]
    assert wh.status().tables[0].rows_hot == 0
    wh.close()
    with rt.open(postgres.url, state_dir=tmp_path / "again", **place) as again:
        assert rows(again) == [0, 1, 2, 3]
        assert again.losses() == []


@pytest.mark.parametrize("made", [True, False])
def test_what_is_rolled_back_in_doubt_is_there_if_it_was_made_and_gone_if_not(wh: Warehouse, line: Proxy, postgres: TempPostgres, made: bool) -> None:
    """Without waiting for the database; the producer and others go on when it is known, and a second try under the batch id finds out."""
    load = wh.producer(name="till")
    load.insert("sale", (1,))
    with gone_at_commit(wh, line, postgres, made=made), pytest.raises(CommitUnknown):
        load.commit(durability="log", batch_id="b")
    load.rollback()
    line.heal()
    known(wh)
    assert rows(wh) == ([1] if made else [])
    load.insert("sale", (1,))
    assert load.commit(durability="log", batch_id="b").replayed is made
    load.insert("sale", (2,))
    load.commit(materialize=True)
    assert rows(wh) == [1, 2]


def test_a_transaction_that_has_grown_since_is_not_taken_for_the_one_in_doubt(wh: Warehouse, line: Proxy, postgres: TempPostgres) -> None:
    """What was made is made; the rest is committed after a rollback."""
    load = wh.producer(name="till")
    load.insert("sale", (1,))
    with gone_at_commit(wh, line, postgres, made=True), pytest.raises(CommitUnknown):
        load.commit(durability="log")
    line.heal()
    known(wh)
    load.insert("sale", (2,))
    with pytest.raises(CommitUnknown, match="commit 1 did happen"):
        load.commit(durability="log")
    load.rollback()
    load.insert("sale", (2,))
    load.commit()
    assert rows(wh) == [1, 2]


@pytest.mark.parametrize("made", [True, False])
def test_storing_and_declaring_in_doubt_are_finished_or_taken_back(wh: Warehouse, line: Proxy, postgres: TempPostgres, made: bool) -> None:
    """By themselves, when the database is back: nobody has to ask for it."""
    load = wh.producer(name="till")
    load.insert("sale", (1,))
    load.commit()
    with gone_at_commit(wh, line, postgres, made=made), pytest.raises(CommitUnknown):
        wh.materialize()
    with pytest.raises(StateInDoubt):
        load.commit()
    line.heal()
    known(wh)
    assert wh.status().tables[0].rows_hot == (0 if made else 1)
    assert rows(wh) == [1]

    with gone_at_commit(wh, line, postgres, made=made), pytest.raises(CommitUnknown):
        wh.create_table("product", "sku INT")
    line.heal()
    known(wh)
    assert wh.tables() == (["product", "sale"] if made else ["sale"])
    wh.create_table("product", "sku INT", if_not_exists=True)
    load.insert("product", (1,))
    load.commit(materialize=True)
    assert wh.read("product").rows() == [(1,)]


def test_a_table_declared_in_doubt_is_known_before_anybody_goes_on(wh: Warehouse, line: Proxy, postgres: TempPostgres) -> None:
    """Who was halted until it was known would otherwise be told that there is no such table."""
    engine: Any = engine_of(wh)
    know, halted = engine.mover.declared_late, []

    def watched(declared: Any) -> None:
        halted.append(engine.catalyst.halted)
        know(declared)

    engine.mover.declared_late = watched
    with gone_at_commit(wh, line, postgres, made=True), pytest.raises(CommitUnknown):
        wh.create_table("product", "sku INT")
    line.heal()
    known(wh)
    assert wh.tables() == ["product", "sale"]
    assert [type(reason) for reason in halted] == [StateInDoubt]


def test_a_writer_that_is_lost_acknowledges_nothing_more(wh: Warehouse, line: Proxy, postgres: TempPostgres, place: dict[str, Any], tmp_path: Path) -> None:
    """Another process has taken the warehouse over: commits to memory, which could never be kept, and answers, which would lack its rows, are refused."""
    load = wh.producer(name="till")
    load.insert("sale", (0,))
    load.commit()
    load.insert("sale", (1,))
    line.cut(refuse=True)
    with psycopg.connect(postgres.dsn, autocommit=True) as direct:
        until(lambda: not direct.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchall())
    with rt.open(postgres.url, state_dir=tmp_path / "elsewhere", **place) as thief, thief.producer(name="thief") as stolen:
        stolen.insert("sale", (7,))
        stolen.commit(materialize=True)
    line.heal()
    with pytest.raises(WriterLost):
        load.commit(durability="log")
    with pytest.raises(WriterLost):
        load.commit()
    with pytest.raises(WriterLost):
        wh.read("sale")
    with pytest.raises(WriterLost):
        wh.close()  # tells that something is lost, and lets go
    with rt.open(through(postgres, line), state_dir=tmp_path, **place) as again:
        assert rows(again) == [7]
        assert [(loss.source, loss.first, loss.last) for loss in again.losses()] == [("till", 1, 1)]


def test_a_service_in_doubt_is_not_ready_and_a_client_commits_once(wh: Warehouse, line: Proxy, postgres: TempPostgres) -> None:
    """/readyz says why; the client's commit stays in doubt, is made once, and a second client's is refused until then."""
    service = FlightService(wh, engine_of(wh))
    health = HealthServer(host="127.0.0.1", port=0, unready=lambda: _unready(service, wh), status=wh.status)

    def ready() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{health.port}/readyz") as answer:
                return f"{answer.status} {answer.read().decode()}"
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()}"

    try:
        with open_remote(service.address) as client, open_remote(service.address) as second:
            load, other = client.producer(name="till"), second.producer(name="web")
            load.insert("sale", (1,))
            other.insert("sale", (2,))
            assert ready() == "200 ready\n"
            with gone_at_commit(wh, line, postgres, made=True), pytest.raises(CommitUnknown):
                load.commit(durability="log")
            assert ready().startswith("503 warehouse.in_doubt: Nobody knows yet whether state")
            with pytest.raises(StateInDoubt):
                other.commit()
            with pytest.raises(CommitUnknown):
                load.commit(durability="log")
            line.heal()
            until(lambda: ready() == "200 ready\n", seconds=15)
            assert load.commit(durability="log").commit.number == 1
            other.commit()
            load.insert("sale", (3,))
            load.commit()
            assert rows(wh) == [1, 2, 3]
    finally:
        health.stop()
        service.stop()
