"""Clients of a service whose queries run in PostgreSQL, on a login of their own: who gets in, what is sent, and what a restart or a wrong address does."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import righttime as rt
from righttime.flight import cuts
from righttime.flight.server import FlightService
from righttime.flight.transport import Transport
from righttime.ledger.postgres_connect import Address
from righttime.query import dbapi
from righttime.query.postgres_queries import PostgresQueries
from righttime.settings import load_settings
from tests.support.crash import engine_of
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database, fresh_schemas, reader_of
from tests.support.services import Service

SECRET = "s3cret-of-nobody"
COUNT = "SELECT count(*), sum(qty) FROM sale"


@pytest.fixture
def url(postgres: TempPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def warehouse(url: str, tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(url, state_dir=tmp_path) as warehouse:
        warehouse.create_table("sale", "sku INT, qty INT", keys=["sku"])
        yield warehouse


@pytest.fixture
def service(warehouse: rt.Warehouse) -> Iterator[FlightService]:
    service = FlightService(warehouse, engine_of(warehouse))
    yield service
    service.stop()


@pytest.fixture
def address(service: FlightService) -> str:
    return service.address


@pytest.fixture
def conn(address: str, url: str) -> Iterator[dbapi.Connection]:
    with rt.connect(address, database=reader_of(url)) as conn:
        yield conn


def asked(conn: dbapi.Connection, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    return conn.cursor().execute(sql, parameters).fetchall()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each ticket for hot rows brought."""
    counts: list[int] = []
    rows = Transport.rows

    def counted(self: Transport, ticket: Any, parts: Any = ()) -> Any:
        table = rows(self, ticket, parts)
        counts.append(table.num_rows)
        return table

    monkeypatch.setattr(Transport, "rows", counted)
    return counts


def test_only_rows_that_the_connection_does_not_have_are_sent(warehouse: rt.Warehouse, conn: dbapi.Connection, sent: list[int]) -> None:
    """A query sends what came since the last one: new rows and new versions, and nothing where nothing came, was deleted or was stored."""
    load = warehouse.producer(name="till")
    load.insert_many("sale", [(sku, 1) for sku in range(100)])
    load.commit()
    assert asked(conn, COUNT) == [(100, 100)] and sent == [100]
    assert asked(conn, COUNT) == [(100, 100)] and sent == [100]
    load.insert_many("sale", [(sku, 1) for sku in range(100, 110)])
    load.update("sale", {"qty": 5}, {"sku": 7})
    load.delete("sale", {"sku": 8})
    load.commit()
    assert asked(conn, COUNT) == [(109, 113)] and sent == [100, 11]
    warehouse.materialize()
    load.delete("sale", {"sku": 9})
    load.commit()
    assert asked(conn, COUNT) == [(108, 112)] and sent == [100, 11]


def test_many_rows_come_in_parts(warehouse: rt.Warehouse, conn: dbapi.Connection, sent: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is a ticket of its own, so that a cut connection costs one of them and a client needs memory for one."""
    monkeypatch.setattr(cuts, "_ROWS_AT_ONCE", 40)
    load = warehouse.producer()
    load.insert_many("sale", [(sku, 1) for sku in range(100)])
    load.delete("sale", "sku % 3 = 0")
    load.commit()
    assert asked(conn, "SELECT count(*), sum(sku) FROM sale") == [(66, 3267)]
    assert sent == [40, 26]


def test_what_is_loaded_through_the_connection_goes_to_the_service(warehouse: rt.Warehouse, conn: dbapi.Connection) -> None:
    """INSERT, UPDATE and DELETE are the producer's: the connection sees them at once, others after commit, and its login needs no right to write."""
    load = warehouse.producer()
    load.insert_many("sale", [(1, 1), (2, 2)])
    load.commit(materialize=True)
    cursor = conn.cursor()
    cursor.executemany("INSERT INTO sale (sku, qty) VALUES (?, ?)", [(3, 3), (4, 4)])
    cursor.execute("UPDATE sale SET qty = 10 WHERE sku = 1")
    cursor.execute("DELETE FROM sale WHERE sku = 2")
    own = [(1, 10), (3, 3), (4, 4)]
    assert asked(conn, "SELECT * FROM sale ORDER BY sku") == own
    assert sorted(warehouse.read("sale").rows()) == [(1, 1), (2, 2)]
    conn.rollback()
    assert asked(conn, "SELECT * FROM sale ORDER BY sku") == [(1, 1), (2, 2)]
    cursor.execute("INSERT INTO sale (sku, qty) VALUES (5, 5)")
    conn.commit()
    assert len(warehouse.read("sale")) == 3


def test_freshness_is_asked_for_as_on_every_connection(warehouse: rt.Warehouse, conn: dbapi.Connection) -> None:
    """CURRENCY BOUND and ensure_accuracy let a lazy producer keep its rows; without them it is asked for them. The receipt verifies at the service."""
    lazy = warehouse.producer(name="lazy", policy=rt.OnDemand())
    lazy.insert("sale", (1, 1))
    lazy.commit()
    assert asked(conn, "SELECT count(*) FROM sale CURRENCY BOUND 10 MIN") == [(0,)]
    conn.ensure_accuracy("10min", "sale")
    assert asked(conn, "SELECT count(*) FROM sale") == [(0,)]
    conn.ensure_accuracy("0s")
    cursor = conn.cursor()
    assert cursor.execute("SELECT 7 / 2 AS half, count(*) FROM sale").fetchall() == [(3, 1)]
    receipt = cursor.receipt
    assert receipt is not None and receipt.tables[0].rows_hot == 1
    assert receipt.verify().method == "rerun" and warehouse.verify(receipt).ok
    lazy.close()


def test_a_query_that_the_service_has_forgotten_is_asked_once_more(
    warehouse: rt.Warehouse, service: FlightService, conn: dbapi.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its transaction begins, and before its receipt is sealed: nothing was answered yet. Forgotten again, it fails, and the next is answered."""
    load = warehouse.producer()
    load.insert("sale", (1, 1))
    load.commit()
    for step in ("_prepare", "_clean"):
        done, forgets = getattr(PostgresQueries, step), [True]

        def forgotten(*arguments: Any, done: Any = done, forgets: list[bool] = forgets) -> None:
            if forgets.pop() if forgets else False:
                service.desk.reading.held.expire(everything=True)
            done(*arguments)

        monkeypatch.setattr(PostgresQueries, step, forgotten)
        assert asked(conn, COUNT) == [(1, 1)]
        forgets += [True, True]
        with pytest.raises(dbapi.OperationalError) as refused:
            asked(conn, COUNT)
        assert refused.value.code == "lease.expired" and refused.value.retryable
        assert asked(conn, COUNT) == [(1, 1)]
        monkeypatch.undo()


def test_a_query_that_takes_longer_than_rows_are_held_is_not_answered(url: str, tmp_path: Path) -> None:
    """It would be answered from what nobody holds, so it fails, and is not tried again: it would take as long."""
    with rt.open(url, state_dir=tmp_path, lease_ttl_s=1) as warehouse:
        warehouse.create_table("sale", "sku INT, qty INT")
        service = FlightService(warehouse, engine_of(warehouse))
        try:
            with rt.connect(service.address, database=reader_of(url)) as conn:
                with pytest.raises(dbapi.OperationalError, match="lease_ttl_s") as refused:
                    asked(conn, "SELECT count(*), pg_sleep(1.2)::text FROM sale")
                assert refused.value.code == "lease.expired"
                assert asked(conn, "SELECT count(*) FROM sale") == [(0,)]
        finally:
            service.stop()


def test_a_login_that_may_not_read_a_table_is_told_so(url: str, warehouse: rt.Warehouse, address: str) -> None:
    """The database decides what its logins read; once the right is given the same connection goes on."""
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS rt_stranger")
        owner.execute("CREATE ROLE rt_stranger LOGIN")
        try:
            with rt.connect(address, database=url.replace("postgres@", "rt_stranger@")) as conn:
                with pytest.raises(dbapi.OperationalError, match="permission denied") as refused:
                    asked(conn, COUNT)
                assert refused.value.code == "database.rights"
                owner.execute("GRANT SELECT ON sale TO rt_stranger")
                assert asked(conn, COUNT) == [(0, None)]
        finally:
            owner.execute("DROP OWNED BY rt_stranger; DROP ROLE rt_stranger")


def test_another_database_is_refused(postgres: TempPostgres, url: str, warehouse: rt.Warehouse, address: str) -> None:
    """Another one of the same server, and a server elsewhere that would know the same names: neither has the service's moments."""
    with warehouse.producer() as load:
        load.insert("sale", (1, 1))
        load.commit(materialize=True)
    with pytest.raises(dbapi.OperationalError) as refused:
        rt.connect(address, database=postgres.url)
    assert refused.value.code == "database.other"
    with TempPostgres() as elsewhere, pytest.raises(dbapi.OperationalError) as refused:
        rt.connect(address, database=elsewhere.url)
    assert refused.value.code == "database.other"


def test_a_session_that_is_led_elsewhere_begins_anew_or_is_refused(postgres: TempPostgres, url: str, warehouse: rt.Warehouse, conn: dbapi.Connection) -> None:
    """Each query names the server that holds its moment: a session on another one is of no use, and an address that leads there is told."""
    load = warehouse.producer()
    load.insert("sale", (1, 1))
    load.commit()
    assert asked(conn, COUNT) == [(1, 1)]
    queries: Any = conn._queries
    queries._server = "of yesterday"
    assert asked(conn, COUNT) == [(1, 1)]
    here = queries._address
    queries._address = replace(here, secret=Address.of(postgres.url, load_settings()).secret)
    queries._forget()
    with pytest.raises(dbapi.OperationalError) as refused:
        asked(conn, COUNT)
    assert refused.value.code == "database.other"
    queries._address = here
    assert asked(conn, COUNT) == [(1, 1)]


def test_a_database_is_asked_beside_one_service_that_has_it(url: str, tmp_path: Path, address: str) -> None:
    """A folder, a database of one's own, a group, and a service with Delta tables: each is refused before anything is made, and says why."""
    for target in (str(tmp_path / "new"), url, f"{address},righttime://127.0.0.1:1"):
        with pytest.raises(dbapi.ProgrammingError) as refused:
            rt.connect(target, database=url)
        assert refused.value.code == "setting.bad"
    assert not (tmp_path / "new").exists()
    with rt.open(tmp_path / "delta") as delta:
        service = FlightService(delta, engine_of(delta))
        try:
            with pytest.raises(dbapi.ProgrammingError, match="Delta"):
                rt.connect(service.address, database=url)
        finally:
            service.stop()


@pytest.mark.parametrize(
    "database",
    [f"postgresql://postgres:{SECRET}@127.0.0.1:1/shop", f"postgresql://postgres:{SECRET}/x@127.0.0.1/shop", f"mysql://root:{SECRET}@db/shop", 7],
)
def test_the_password_of_a_database_is_in_no_message(address: str, database: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is wrong with the address, it is not shown with what may be a secret."""
    with caplog.at_level(logging.DEBUG), pytest.raises(dbapi.Error) as refused:
        rt.connect(address, database=database)
    assert refused.value.code in ("database.unreachable", "warehouse.not_one", "setting.bad")
    assert SECRET not in str(refused.value) + repr(refused.value.context) + caplog.text


def test_a_service_that_is_killed_and_started_again(postgres: TempPostgres, tmp_path: Path) -> None:
    """While it is away a query is told so; then the connection goes on. Rows that the crash took are not in its answers, though other rows have their ids."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"reports read {'r' * 20}\nloader read,write {'w' * 20}\nblind write {'b' * 20}\n")
    tokens.chmod(0o600)
    with (
        fresh_schemas(postgres) as schemas,
        Service(tmp_path / "wh", "--token-file", tokens, target=postgres.url, state_dir=tmp_path / "state", **schemas) as service,
        service.connect(token="w" * 20) as wh,
    ):
        for token in ("x" * 20, "b" * 20):
            with pytest.raises(dbapi.OperationalError) as refused:
                rt.connect(service.address, token=token, database=reader_of(postgres.url))
            assert refused.value.code == "access.denied"
        wh.create_table("sale", "sku INT, qty INT", keys=["sku"])
        with wh.producer(name="till") as load, rt.connect(service.address, token="r" * 20, database=reader_of(postgres.url), reconnect_s=0.5) as conn:
            load.insert_many("sale", [(1, 1), (2, 1)])
            load.commit()
            assert asked(conn, COUNT) == [(2, 2)]
            service.kill()
            with pytest.raises(dbapi.OperationalError) as refused:
                asked(conn, COUNT)
            assert refused.value.code == "service.unreachable" and refused.value.retryable
            service.start()
            assert asked(conn, COUNT) == [(0, None)]
        with wh.producer(name="again") as load, rt.connect(service.address, token="r" * 20, database=reader_of(postgres.url)) as conn:
            load.insert_many("sale", [(1, 10), (2, 10)])
            load.commit()
            assert asked(conn, COUNT) == [(2, 20)]
            service.kill()
            service.start()
            with wh.producer(name="third") as other:
                other.insert_many("sale", [(3, 100), (4, 100)])
                other.commit()
                assert asked(conn, COUNT) == [(2, 200)]
