"""Queries in PostgreSQL's own SQL: run by PostgreSQL, with hot rows in them, each row once; in the process of the warehouse and in one of its clients."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

import righttime as rt
from righttime.errors import AnswerTooLarge, NotATable, SqlFailedInDatabase, SqlRefused, UnknownTable, WarehouseClosed
from righttime.flight.server import FlightService
from righttime.flight.warehouse import RemoteWarehouse
from righttime.query import postgres_hot, postgres_queries
from righttime.query.postgres_queries import PostgresQueries, is_postgres_query
from righttime.service import Engine
from tests.support.crash import engine_of
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database, reader_of
from tests.support.waits import until


@pytest.fixture
def url(postgres: TempPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def warehouse(url: str, tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(url, state_dir=tmp_path) as warehouse:
        warehouse.create_table("sale", "sku INT, qty INT, Name STRING", keys=["sku"])
        yield warehouse


@pytest.fixture(params=["in its process", "over a service"])
def handle(request: pytest.FixtureRequest, warehouse: rt.Warehouse) -> Iterator[rt.Warehouse]:
    """The warehouse as the one has it who asks."""
    if request.param == "in its process":
        yield warehouse
        return
    service = FlightService(warehouse, engine_of(warehouse))
    try:
        with rt.open(service.address) as remote:
            yield remote
    finally:
        service.stop()


@pytest.fixture
def queries(handle: rt.Warehouse, url: str) -> Iterator[PostgresQueries]:
    asking: Any = handle
    opened = asking._open_database(reader_of(url)) if isinstance(asking, RemoteWarehouse) else queries_of(handle)
    yield opened
    opened.close()


def queries_of(warehouse: rt.Warehouse) -> PostgresQueries:
    engine = warehouse._shared
    assert isinstance(engine, Engine)
    store: Any = engine.store
    return PostgresQueries(
        store.address,
        engine.snapshots,
        engine.consumer,
        schemas=engine.schemas,
        views=engine.views,
        settings=engine.settings,
    )


def rows(queries: PostgresQueries, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    return queries.sql(sql, parameters=parameters).rows()


def test_hot_and_stored_rows_are_one_table(warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """Each row is there once, whether hot, stored, or stored between two queries of the same connection."""
    producer = warehouse.producer(name="till")
    seen = []
    for sku in range(1, 7):
        producer.insert("sale", (sku, sku * 10, None))
        producer.commit(materialize=sku % 3 == 0)
        seen.append(rows(queries, "SELECT count(*), sum(qty), max(sku) FROM sale")[0])
    assert seen == [(n, 10 * n * (n + 1) // 2, n) for n in range(1, 7)]


def test_plain_postgresql_runs_unchanged(warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """Casts, DISTINCT ON, FILTER, window functions, CTEs, %, LIKE and parameters are PostgreSQL's."""
    producer = warehouse.producer()
    producer.insert_many("sale", [(1, 10, "it's 5%"), (2, 20, "b"), (2, 21, "c"), (3, None, None)])
    producer.commit()

    assert rows(queries, "SELECT 7 / 2, '12'::int + 1, 7 % 4") == [(3, 13, 3)]
    assert rows(queries, "SELECT DISTINCT ON (sku) sku, qty FROM sale ORDER BY sku, qty DESC NULLS LAST") == [(1, 10), (2, 21), (3, None)]
    assert rows(queries, "SELECT count(*) FILTER (WHERE qty > 10) FROM Sale WHERE NAME LIKE '%5\\%' OR qty > 0") == [(2,)]
    assert rows(queries, "WITH big AS (SELECT * FROM sale WHERE qty >= ?) SELECT name, ? FROM big WHERE sku % 2 = 0 ORDER BY 1", 20, "x") == [
        ("b", "x"),
        ("c", "x"),
    ]
    assert rows(queries, "SELECT sku, row_number() OVER (ORDER BY sku, qty) FROM sale ORDER BY 2 LIMIT 2") == [(1, 1), (2, 2)]
    assert rows(queries, "TABLE sale")[0] == (1, 10, "it's 5%")
    assert rows(queries, "VALUES (1), (2);") == [(1,), (2,)]


def test_changes_of_stored_and_hot_rows_are_seen(warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """An updated row is there once, in its new version; a deleted one is not, before and after it is stored."""
    producer = warehouse.producer()
    producer.insert_many("sale", [(sku, 1, "old") for sku in range(5)])
    producer.commit(materialize=True)
    producer.insert_many("sale", [(sku, 1, "old") for sku in range(5, 8)])
    producer.commit()
    assert len(rows(queries, "SELECT * FROM sale")) == 8
    for sku in (1, 6):
        producer.update("sale", {"name": "new"}, {"sku": sku})
    for sku in (2, 7):
        producer.delete("sale", {"sku": sku})
    producer.commit()
    wanted = [(0, "old"), (1, "new"), (3, "old"), (4, "old"), (5, "old"), (6, "new")]

    assert rows(queries, "SELECT sku, name FROM sale ORDER BY sku") == wanted
    warehouse.materialize()
    assert rows(queries, "SELECT sku, name FROM sale ORDER BY sku") == wanted
    producer.delete("sale", "name = 'old'")
    producer.commit()
    assert rows(queries, "SELECT sku, name FROM sale ORDER BY sku") == [(1, "new"), (6, "new")]


def test_a_connection_sees_its_own_rows_and_others_do_not(handle: rt.Warehouse, queries: PostgresQueries) -> None:
    """Rows of an open transaction are the producer's own; rolled back, they are nobody's."""
    producer: Any = handle.producer(name="me")
    producer._with = replace(producer._with, own_query=queries.sql)
    producer.insert("sale", (1, 1, "committed"))
    producer.commit()
    producer.insert("sale", (2, 1, "open"))
    producer.update("sale", {"qty": 5}, {"sku": 1})

    assert producer.sql("SELECT sku, qty FROM sale ORDER BY sku").rows() == [(1, 5), (2, 1)]
    assert rows(queries, "SELECT sku, qty FROM sale") == [(1, 1)]
    assert producer.sql("SELECT sum(qty) FROM sale").rows() == [(6,)]
    producer.rollback()
    assert rows(queries, "SELECT sku, qty FROM sale") == [(1, 1)]


def test_an_older_cut_after_a_newer_one(warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """Rows that are in the session already are left out of an answer that must not have them."""
    producer = warehouse.producer()
    producer.insert("sale", (1, 1, None))
    first = producer.commit()
    producer.insert("sale", (2, 1, None))
    producer.commit()

    assert rows(queries, "SELECT count(*) FROM sale") == [(2,)]
    assert queries.sql("SELECT count(*) FROM sale", as_of=first.commit.time_us).rows() == [(1,)]
    assert rows(queries, "SELECT count(*) FROM sale") == [(2,)]


def test_a_query_keeps_its_view_while_rows_change_and_are_stored(warehouse: rt.Warehouse, queries: PostgresQueries, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is committed and materialized after the cut, before PostgreSQL reads the first row, the answer is of the cut; the next one has it all."""
    producer = warehouse.producer()
    producer.insert_many("sale", [(sku, 1, "old") for sku in range(4)])
    producer.commit(materialize=True)
    producer.insert("sale", (4, 1, "old"))
    producer.delete("sale", {"sku": 0})
    producer.commit()
    begin = postgres_queries._begin

    def meanwhile(*arguments: Any) -> None:
        producer.update("sale", {"name": "new"}, {"sku": 1})
        producer.delete("sale", {"sku": 4})
        producer.insert("sale", (5, 1, "new"))
        producer.commit(materialize=True)
        begin(*arguments)

    monkeypatch.setattr(postgres_queries, "_begin", meanwhile)
    before = queries.sql("SELECT sku, name FROM sale ORDER BY sku")
    monkeypatch.undo()

    assert before.rows() == [(1, "old"), (2, "old"), (3, "old"), (4, "old")]
    assert before.receipt.verify().ok
    assert rows(queries, "SELECT sku, name FROM sale ORDER BY sku") == [(1, "new"), (2, "old"), (3, "old"), (5, "new")]


@pytest.mark.parametrize("handle", ["in its process"], indirect=True)  # what a session does is the same over a service
def test_many_rows_leave_a_session_at_once(warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """Half of many hot rows are deleted between two queries: the server looks each of them up, and does not go through all of the others for it."""
    producer = warehouse.producer()
    producer.insert_many("sale", [(sku, 1, None) for sku in range(200_000)])
    producer.commit()
    assert rows(queries, "SELECT count(*) FROM sale") == [(200_000,)]
    producer.delete("sale", "sku % 2 = 0")
    producer.commit()
    begun_s = time.monotonic()
    assert rows(queries, "SELECT count(*) FROM sale") == [(100_000,)]
    assert time.monotonic() - begun_s < 20


def test_the_receipt_says_what_was_read_and_in_which_language(warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """A receipt of PostgreSQL's SQL is marked: Spark would divide otherwise."""
    producer = warehouse.producer()
    producer.insert("sale", (7, 2, None))
    producer.commit()
    receipt = queries.sql("SELECT sku / qty FROM sale").receipt
    assert is_postgres_query(receipt.query)
    assert (receipt.tables[0].name, receipt.tables[0].rows_hot, receipt.rows) == ("sale", 1, 1)


def test_tables_that_are_not_the_warehouses_can_be_joined(url: str, warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """Ordinary tables of the database are read at the same moment, with or without their schema."""
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("CREATE TABLE item (sku int, label text)")
        other.execute("INSERT INTO item VALUES (1, 'one')")
    producer = warehouse.producer()
    producer.insert("sale", (1, 5, None))
    producer.commit()
    wanted = [("one", 5)]
    assert rows(queries, "SELECT label, qty FROM sale JOIN item USING (sku)") == wanted
    assert rows(queries, "SELECT label, qty FROM sale s JOIN public.item i ON i.sku = s.sku") == wanted


def test_declared_views_are_known(warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """A view of the warehouse stands for its query, with hot rows."""
    warehouse.create_view("big", "SELECT * FROM sale WHERE qty > 5")
    warehouse.create_view("biggest", "SELECT max(qty) AS most FROM big")
    producer = warehouse.producer()
    producer.insert_many("sale", [(1, 5, None), (2, 50, None)])
    producer.commit()
    assert rows(queries, "SELECT most FROM biggest") == [(50,)]


@pytest.mark.parametrize("handle", ["in its process"], indirect=True)  # nothing of the service is asked
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM public.sale",
        'SELECT (SELECT count(*) FROM "public"."sale")',
        "SELECT * FROM public.sale_view",
        "SELECT * FROM sale_view",
        "SELECT * FROM sale_view_view",
        "SELECT public.sale_count()",
        "SELECT query_to_xml('select * from public.sale', true, false, '')",
        "SELECT * FROM pg_temp.rt_hot_1",
        "DELETE FROM sale",
        "WITH gone AS (DELETE FROM sale RETURNING *) SELECT * FROM gone",
        "SELECT * INTO copy FROM sale",
        "SELECT * FROM sale FOR UPDATE",
        "SELECT 1; SELECT 2",
        "",
        "SELEC 1 FRO",
        "BEGIN",
        "COPY sale TO STDOUT",
    ],
)
def test_what_would_miss_hot_rows_or_write_is_refused(url: str, queries: PostgresQueries, sql: str) -> None:
    """Names with a schema, views and functions of the database do not know of hot rows, so an answer would be silently incomplete."""
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("CREATE VIEW sale_view AS SELECT * FROM sale")
        other.execute("CREATE VIEW sale_view_view AS SELECT count(*) FROM sale_view")
        other.execute("CREATE FUNCTION sale_count() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM public.sale'")
    with pytest.raises(SqlRefused):
        queries.sql(sql)


def test_a_query_that_fails_leaves_the_connection_usable(warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """The server's error is told, and the next query has all rows."""
    producer = warehouse.producer()
    producer.insert_many("sale", [(1, 0, None), (2, 1, None)])
    producer.commit()
    with pytest.raises(SqlFailedInDatabase, match="division by zero"):
        queries.sql("SELECT 1 / qty FROM sale")
    with pytest.raises(SqlFailedInDatabase, match="does not exist"):
        queries.sql("SELECT nothing FROM sale")
    for place in ("nowhere", "public.nowhere", "sale JOIN (WITH here AS (SELECT 1) SELECT * FROM here, nowhere) AS it ON true"):
        with pytest.raises(UnknownTable, match=r"no table '(public\.)?nowhere'; known tables: .*sale"):
            queries.sql(f"SELECT * FROM {place}")
    warehouse.create_stream("visit", "id INT")
    with pytest.raises(NotATable, match="'visit' is a stream"):
        queries.sql("SELECT * FROM visit")
    assert rows(queries, "SELECT count(*) FROM sale") == [(2,)]


def test_a_killed_session_begins_anew(url: str, warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """Hot rows are sent again to the next session, and the query is run there."""
    producer = warehouse.producer()
    producer.insert("sale", (1, 1, None))
    producer.commit()
    assert rows(queries, "SELECT count(*) FROM sale") == [(1,)]
    assert queries._connection is not None
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (queries._connection.info.backend_pid,))
    assert rows(queries, "SELECT count(*) FROM sale") == [(1,)]


def test_a_query_that_failed_before_its_names_were_there_can_be_asked_again(warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """What was made for it is made whole or not at all."""
    producer = warehouse.producer()
    producer.insert("sale", (1, 1, None))
    producer.commit()
    rows(queries, "SELECT 1")
    assert queries._connection is not None
    queries._connection.execute("CREATE TEMP TABLE sale (a int)")
    with pytest.raises(SqlFailedInDatabase):
        rows(queries, "SELECT count(*) FROM sale")
    queries._connection.execute("DROP TABLE pg_temp.sale")
    assert rows(queries, "SELECT count(*) FROM sale") == [(1,)]


def test_a_change_of_the_table_that_waits_for_a_query_does_not_stop_it(
    url: str, warehouse: rt.Warehouse, queries: PostgresQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others queue behind ALTER TABLE, our own session too, and it waits for what the query holds: the query lets go, and begins again."""
    producer = warehouse.producer()
    producer.insert("sale", (1, 1, None))
    producer.commit()
    prepare = queries._prepare
    with psycopg.connect(url, autocommit=True) as dba, psycopg.connect(url, autocommit=True) as other:
        waiting = threading.Thread(target=dba.execute, args=("ALTER TABLE sale ADD note text",))

        def prepared(*arguments: Any) -> None:
            if not waiting.ident:
                waiting.start()
                until(lambda: other.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'relation'").fetchall())
            prepare(*arguments)

        monkeypatch.setattr(queries, "_prepare", prepared)
        assert rows(queries, "SELECT count(*) FROM sale") == [(1,)]
        waiting.join()
        assert other.execute("SELECT note FROM sale").fetchall() == []


def test_hot_rows_come_once_after_a_query_that_was_interrupted(warehouse: rt.Warehouse, queries: PostgresQueries, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when the session has the rows already, before that is noted: the next query of the connection does not send them again."""
    producer = warehouse.producer()
    producer.insert("sale", (1, 1, None))
    producer.commit()
    rows(queries, "SELECT 1")
    connection = queries._connection
    assert connection is not None
    execute = connection.execute

    def interrupted(query: Any, *arguments: Any) -> Any:
        done = execute(query, *arguments)
        if query == "COMMIT":
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(connection, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rows(queries, "SELECT count(*) FROM sale")
    monkeypatch.undo()
    assert rows(queries, "SELECT count(*) FROM sale") == [(1,)]


def test_cleaning_up_in_a_session_is_no_part_of_an_answer(warehouse: rt.Warehouse, queries: PostgresQueries, monkeypatch: pytest.MonkeyPatch) -> None:
    """VACUUM and ANALYZE of one table may fail, after the answer is there: it is given, and rows of no table come twice."""
    warehouse.create_table("item", "sku INT")
    producer = warehouse.producer()
    producer.insert("sale", (1, 1, None))
    producer.insert("item", (1,))
    producer.commit()
    rows(queries, "SELECT 1")
    connection = queries._connection
    assert connection is not None
    execute = connection.execute

    def cancelled(query: Any, *arguments: Any) -> Any:
        if "ANALYZE" in str(query):
            raise psycopg.errors.QueryCanceled("canceling statement due to user request")
        return execute(query, *arguments)

    monkeypatch.setattr(postgres_hot, "_VACUUM_ROWS", 0)
    monkeypatch.setattr(connection, "execute", cancelled)
    for _ in range(2):
        assert rows(queries, "SELECT (SELECT count(*) FROM item), (SELECT count(*) FROM sale)") == [(1, 1)]


def test_answers_have_types_and_a_bound(warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """Numbers stay numbers, sums stay exact, what has no type of ours comes as text; a large answer stops in time."""
    found = queries.sql(
        "SELECT 1::smallint a, 2 b, 3::bigint c, 1.5::real d, 2.5::float8 e, 1.25 f, NULL::numeric g, true h, 'x' i, '\\x00ff'::bytea j, "
        "DATE '2024-02-29' k, TIMESTAMP '2024-02-29 01:02:03.5' l, '{1,NULL}'::int[] m, '{\"a\": [1]}'::jsonb n, gen_random_uuid()::uuid IS NULL o, "
        "TIME '01:02' p, sum(n) q FROM generate_series(1::bigint, 3) n"
    )
    (row,) = found.rows()
    assert row[:10] == (1, 2, 3, 1.5, 2.5, Decimal("1.25"), None, True, "x", b"\x00\xff")
    assert (row[12], row[13], row[15], row[16]) == ([1, None], '{"a": [1]}', "01:02:00", Decimal(6))
    assert [str(field.type) for field in found.arrow().schema][:5] == ["int16", "int32", "int64", "float", "double"]
    queries._settings = queries._settings.model_copy(update={"answer_bytes_max": 1_000_000})
    with pytest.raises(AnswerTooLarge):
        queries.sql("SELECT repeat('x', 1000) FROM generate_series(1, 10000000)")


def test_closed_is_closed(queries: PostgresQueries) -> None:
    """After close there is no session."""
    queries.close()
    with pytest.raises(WarehouseClosed):
        queries.sql("SELECT 1")


def test_every_row_is_seen_once_while_rows_move(warehouse: rt.Warehouse, queries: PostgresQueries) -> None:
    """Beside commits and materializations, each answer is a whole number of commits and never goes back."""
    producer = warehouse.producer(name="till")
    done = threading.Event()
    counts: list[tuple[int, ...]] = []
    loaded = 0

    def load() -> None:
        nonlocal loaded
        while loaded < 60 or (len(counts) < 5 and loaded < 1000):  # a busy machine may answer late
            producer.insert_many("sale", [(loaded, 1, None)] * 10)
            producer.commit(materialize=loaded % 5 == 4)
            loaded += 1
        done.set()

    loader = threading.Thread(target=load)
    loader.start()
    try:
        while not done.is_set():
            counts.append(rows(queries, "SELECT count(*), sum(qty), count(DISTINCT sku) * 10 FROM sale")[0])
    finally:
        loader.join()
    assert len(counts) > 3
    assert all(count % 10 == 0 and (total or 0) == count == distinct for count, total, distinct in counts), counts
    assert [count for count, _, _ in counts] == sorted(count for count, _, _ in counts)
    assert rows(queries, "SELECT count(*) FROM sale") == [(10 * loaded,)]


def test_a_receipt_over_others_tables_and_views_that_differ_each_time_is_left_to_the_ledger(
    url: str, warehouse: rt.Warehouse, queries: PostgresQueries
) -> None:
    """No state holds the tables of others, and a declared view may look at the clock: another answer is no wrong one. The rest is proved, or wrong."""
    producer = warehouse.producer(name="till")
    producer.insert_many("sale", [(1, 10, "pen"), (2, 20, "ink")])
    producer.commit()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("CREATE TABLE kind (sku int, label text)")
        other.execute("INSERT INTO kind VALUES (1, 'old')")
        warehouse.create_view("moments", "SELECT qty, clock_timestamp() AS at FROM sale")
        joined = queries.sql("WITH few AS (SELECT sku FROM sale) SELECT label FROM few JOIN kind USING (sku)").receipt
        named = queries.sql("SELECT label FROM public.kind JOIN sale USING (sku)").receipt
        clock = queries.sql("SELECT at FROM moments").receipt
        plain = queries.sql("WITH few AS (SELECT sku FROM sale) SELECT sum(sku) FROM few").receipt
        assert joined.verify().method == named.verify().method == "rerun"
        other.execute("UPDATE kind SET label = 'new'")

    found = [receipt.verify() for receipt in (joined, named, clock, plain)]

    assert [(one.ok, one.method) for one in found] == [(True, "ledger"), (True, "ledger"), (True, "ledger"), (True, "rerun")]
    assert "kind" in found[0].detail and "public.kind" in found[1].detail and "clock_timestamp" in found[2].detail


@pytest.mark.parametrize("sql", ["SELECT FROM sale", "SELECT ARRAY[ARRAY[sku], ARRAY[qty]] AS both FROM sale"])
def test_what_arrow_cannot_hold_is_refused_and_leaves_the_connection_usable(warehouse: rt.Warehouse, queries: PostgresQueries, sql: str) -> None:
    """No columns, and arrays of several dimensions."""
    with warehouse.producer() as producer:
        producer.insert("sale", (1, 10, None))
        producer.commit()
        with pytest.raises(SqlRefused):
            queries.sql(sql)
        assert rows(queries, "SELECT qty, ARRAY[ARRAY[sku], ARRAY[qty]]::text FROM sale") == [(10, "{{1},{10}}")]
