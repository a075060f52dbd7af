"""A whole warehouse in PostgreSQL, as its users see it when the database is changed or restarted under it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import righttime as rt
from righttime.cli.dry_run import Known, look
from righttime.errors import BadSetting, LeaseExpired, NotAWarehouse, RightTimeError, SchemaChanged, TooManySnapshots, WarehouseDamaged, WrongType
from righttime.flight.frames import Message
from righttime.flight.loading_calls import LoadingCalls
from righttime.flight.reading_calls import ReadingCalls
from righttime.project import Project
from righttime.query.contract import Contract
from righttime.service import Engine
from righttime.testing import ManualClock
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database


@pytest.fixture
def url(postgres: TempPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def warehouse(url: str, tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(url, state_dir=tmp_path, lock_wait_s=2) as warehouse:
        warehouse.create_table("sale", "sku INT, name STRING", keys=["sku"])
        yield warehouse


def skus(warehouse: rt.Warehouse) -> list[int]:
    return sorted(sku for (sku,) in warehouse.read("sale", columns=["sku"]).rows())


def test_a_changed_table_stops_storing_and_hot_rows_stay(url: str, warehouse: rt.Warehouse) -> None:
    """ALTER TABLE by somebody is told before anything is written; changed back, the same commit succeeds."""
    producer = warehouse.producer()
    producer.insert("sale", (1, "a"))
    producer.commit()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("ALTER TABLE sale RENAME name TO label")
        producer.insert("sale", (2, "b"))
        with pytest.raises(SchemaChanged, match="'name' is missing"):
            producer.commit(materialize=True)
        with pytest.raises(SchemaChanged):
            warehouse.read("sale")
        other.execute("ALTER TABLE sale RENAME label TO name")
    assert skus(warehouse) == [1]
    producer.commit(materialize=True)
    assert skus(warehouse) == [1, 2]


_UNSTORABLE: list[Callable[[rt.Producer], None]] = [
    lambda load: load.insert("sale", (1, "a\0b")),
    lambda load: load.insert("sale", {"sku": 1, "name": "é\0"}),
    lambda load: load.insert_many("sale", [(1, "a"), (2, "\0")]),
    lambda load: load.update("sale", {"name": "\0"}, {"sku": 2}),
    lambda load: load.update("sale", {"name": "\0"}, {"name": "b"}),
    lambda load: load.update("sale", {"name": rt.expr("name || '\0'")}, {"sku": 2}),
    lambda load: load.upsert("sale", {"sku": 2, "name": "\0"}),
    lambda load: load.update_many("sale", [{"sku": 2, "name": "c"}, {"sku": 3, "name": "\0"}]),
    lambda load: load.upsert_many("sale", pa.table({"sku": pa.array([2], pa.int32()), "name": ["\0"]})),
]


@pytest.mark.parametrize("call", _UNSTORABLE)
def test_a_text_that_postgresql_cannot_hold_is_refused_by_the_call(url: str, tmp_path: Path, call: Callable[[rt.Producer], None]) -> None:
    """Otherwise it would be a hot row that can never be stored. The transaction is as it was, as the error says."""
    with rt.open(url, state_dir=tmp_path) as warehouse, warehouse.producer() as producer:
        warehouse.create_table("sale", "sku INT, name STRING", keys=["sku"])
        producer.insert("sale", (2, "b"))
        with pytest.raises(WrongType, match=r"U\+0000"):
            call(producer)
        producer.commit(materialize=True)
        assert warehouse.read("sale").rows() == [(2, "b")]


@pytest.mark.parametrize("asked", ["read", "materialize", "reopen"])
def test_rows_that_somebody_moved_are_found_again(url: str, warehouse: rt.Warehouse, tmp_path: Path, asked: str) -> None:
    """VACUUM FULL between a delete and its storing: no other row is touched, and the delete is done where the row is now."""
    producer = warehouse.producer(name="till")
    producer.insert_many("sale", [(sku, "old") for sku in range(100)])
    producer.commit(materialize=True)
    producer.delete("sale", {"sku": 7})
    producer.commit()
    assert 7 not in skus(warehouse)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("DELETE FROM sale WHERE sku < 3")
        other.execute("VACUUM FULL sale")
    if asked == "materialize":
        warehouse.materialize()
    if asked == "reopen":
        warehouse.close()
    with rt.open(url, state_dir=tmp_path, lock_wait_s=2) as again:
        wanted = [sku for sku in range(3, 100) if sku != 7]
        assert skus(again) == wanted
        again.materialize()
        assert skus(again) == wanted


def test_loaders_go_on_however_many_queries_are_held(url: str, tmp_path: Path) -> None:
    """Commits that look stored rows up, and storing, do not wait for readers to be done."""
    with rt.open(url, state_dir=tmp_path, lock_wait_s=1, holds_max=2) as warehouse, ExitStack() as stack:
        warehouse.create_table("sale", "sku INT, qty INT", keys=["sku"], unique=True)
        producer = warehouse.producer(name="till")
        producer.insert_many("sale", [(1, 1), (2, 2)])
        producer.commit(materialize=True)
        engine = warehouse._shared
        assert isinstance(engine, Engine)
        for _ in range(2):
            held = engine.foundation.hold([engine.schemas["sale"]], {"sale": engine.store.newest_version(engine.schemas["sale"])})
            assert held is not None
            stack.callback(held.close)
        producer.update("sale", {"qty": rt.expr("qty + 10")})
        producer.insert("sale", (3, 3))
        producer.commit(materialize=True)
        with pytest.raises(TooManySnapshots):
            warehouse.read("sale")
        stack.close()
        assert sorted(warehouse.read("sale").rows()) == [(1, 11), (2, 12), (3, 3)]


@pytest.mark.parametrize(("happens", "told"), [("released", LeaseExpired), ("lapsed", LeaseExpired), ("damaged", WarehouseDamaged)])
def test_rows_of_a_snapshot_that_went_while_they_were_sent_are_told_as_that(url: str, tmp_path: Path, happens: str, told: type[Exception]) -> None:
    """Whoever runs the query again gets an answer; a version that is gone or damage would send them elsewhere."""
    clock = ManualClock(1_000.0)
    with rt.open(url, state_dir=tmp_path, clock=clock, lease_ttl_s=60) as warehouse:
        warehouse.create_table("sale", "sku INT, name STRING", keys=["sku"])
        producer = warehouse.producer()
        producer.insert("sale", (1, "stored"))
        producer.commit(materialize=True)
        producer.insert("sale", (2, "hot"))
        producer.commit()
        engine = warehouse._shared
        assert isinstance(engine, Engine)
        calls, contract = ReadingCalls(engine, LoadingCalls(engine)), Contract(0, 1.0, "error", None)
        held = calls.held.take("s" * 32, contract, lambda: engine.snapshots.take(["sale"], contract), grant="reader")
        stored, hot = range(2)
        _, batches = calls.rows(Message({"snapshot": "s" * 32, "table": "sale", "places": [stored if happens == "released" else hot]}))
        if happens == "released":
            calls.held.release("s" * 32)
        else:
            Path(held.tables["sale"].files[hot]).unlink()
            clock.advance(61 if happens == "lapsed" else 1)
        with pytest.raises(told):
            list(batches)
        with suppress(LeaseExpired):
            calls.held.release("s" * 32)


@pytest.mark.parametrize(("first", "later"), [({"schema": "sales"}, {}), ({}, {"schema": "sales"})])
def test_a_handle_without_schema_means_the_remembered_one(url: str, tmp_path: Path, first: dict[str, Any], later: dict[str, Any]) -> None:
    """In one process as well, whoever names it; another schema is refused, and so is any other setting."""
    rt.open(url, state_dir=tmp_path, schema="sales").close()
    with rt.open(url, state_dir=tmp_path, **first) as warehouse:
        warehouse.create_table("sale", "sku INT")
        with rt.open(url, state_dir=tmp_path, **later) as again, rt.connect(url, state_dir=tmp_path, **later) as connection:
            assert again.tables() == ["sale"]
            assert connection.cursor().execute("SELECT * FROM sale").fetchall() == []
        with pytest.raises(BadSetting, match="table_schema"):
            rt.open(url, state_dir=tmp_path, schema="other")
        with pytest.raises(BadSetting, match="queries_max"):
            rt.open(url, state_dir=tmp_path, queries_max=3, **later)


def test_the_schema_can_be_named_until_there_is_a_table(url: str, tmp_path: Path) -> None:
    """Who began without saying where, as with a service that was started once, says it with the next start; from the first table on it is fixed."""
    rt.open(url, state_dir=tmp_path).close()
    with rt.open(url, state_dir=tmp_path, schema="sales") as warehouse:
        warehouse.create_table("sale", "sku INT")
    with rt.open(url, state_dir=tmp_path) as warehouse:
        assert warehouse.tables() == ["sale"]
    with pytest.raises(BadSetting, match="'sales', not in 'public'"):
        rt.open(url, state_dir=tmp_path, schema="public")


def test_a_restarted_server_costs_no_committed_row(tmp_path: Path) -> None:
    """The database crashes and comes back: hot rows are still in memory, and the next commit stores them, each once."""
    with TempPostgres() as server, rt.open(server.url, state_dir=tmp_path) as warehouse:
        warehouse.create_table("sale", "sku INT, name STRING", keys=["sku"])
        producer = warehouse.producer()
        for sku in range(6):
            producer.insert("sale", (sku, "x"))
            producer.commit(durability=("warehouse", "log", "memory")[sku % 3])
            if sku % 2:
                server._run("pg_ctl", "restart", "-w", "-m", "immediate", "-D", "cluster", "-l", "server.log", "-o", server._options({}))
        assert skus(warehouse) == list(range(6))
        warehouse.materialize()
        with psycopg.connect(server.url) as other:
            assert other.execute("SELECT array_agg(sku ORDER BY sku) FROM sale").fetchone() == (list(range(6)),)


def test_a_server_that_is_down_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    """While the database is away, commits to memory go on and durable ones fail; afterwards all is well."""
    with TempPostgres() as server, rt.open(server.url, state_dir=tmp_path) as warehouse:
        warehouse.create_table("sale", "sku INT, name STRING", keys=["sku"])
        producer = warehouse.producer()
        producer.insert("sale", (1, "x"))
        producer.commit(materialize=True)
        server._run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", "cluster")
        producer.insert("sale", (2, "x"))
        producer.commit()
        producer.insert("sale", (3, "x"))
        with pytest.raises(RightTimeError) as caught:
            producer.commit(materialize=True)
        assert caught.value.retryable
        with pytest.raises(RightTimeError):
            warehouse.read("sale")
        server._run("pg_ctl", "start", "-w", "-D", "cluster", "-l", "server.log", "-o", server._options({}))
        producer.commit(materialize=True)
        assert skus(warehouse) == [1, 2, 3]


def test_a_dry_run_takes_an_empty_database_for_new_and_no_other(url: str, tmp_path: Path) -> None:
    """What stands where the ledger would be is refused before a run comes upon it."""
    project = Project(tmp_path, url, (), ())
    assert look(project) == Known()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("CREATE SCHEMA righttime; CREATE TABLE righttime.guests (name text)")
    with pytest.raises(NotAWarehouse, match="holds something else"):
        look(project)
