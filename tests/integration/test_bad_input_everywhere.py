"""Bad input on PostgreSQL and through a service: each is a coded error, everybody else goes on, and nothing acknowledged is lost."""

import resource
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from righttime import Warehouse
from righttime.changes.conditions import Expression
from righttime.changes.schema import declare_table
from righttime.errors import BadMessage, CommitFailed, FileNotWritten, KeyTaken, RightTimeError, SchemaChanged, WrongType
from tests.support.crash import engine_of
from tests.support.everywhere import DELTA, ELSEWHERE, POSTGRES, POSTGRES_SERVED, opened_at
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_schemas
from tests.support.services import Service
from tests.support.state_tables import seen, stored

Alter = Callable[[str], object]


@pytest.fixture
def wh(tmp_path: Path, postgres: TempPostgres, request: pytest.FixtureRequest) -> Iterator[Warehouse]:
    with opened_at(request.param, tmp_path, postgres, lock_wait_s=1) as opened:
        opened.create_table("x", "a INT, b INT")
        opened.create_table("y", "a INT, b INT")
        opened.create_table("u", "a INT NOT NULL, b INT", keys=["a"], unique=True)
        yield opened


@pytest.fixture
def alter(postgres: TempPostgres, wh: Warehouse) -> Iterator[Alter]:
    """Somebody else at the database."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"SET search_path = {engine_of(wh).settings.table_schema}".encode())
        yield lambda statement: connection.execute(statement.encode())


on_postgres = pytest.mark.parametrize("wh", [POSTGRES, POSTGRES_SERVED], indirect=True)
everywhere = pytest.mark.parametrize("wh", [DELTA, *ELSEWHERE], indirect=True)
over_flight = pytest.mark.parametrize("wh", [place for place in ELSEWHERE if place != POSTGRES], indirect=True)


# -- ALTER TABLE -------------------------------------------------------------------------------------------------------


CHANGED = [
    ("ALTER TABLE x RENAME b TO c", "ALTER TABLE x RENAME c TO b", "'b' is missing"),
    ("ALTER TABLE x ALTER b TYPE BIGINT", "ALTER TABLE x ALTER b TYPE INT", "bigint"),
    ("ALTER TABLE x ALTER b TYPE TEXT USING b::text", "ALTER TABLE x ALTER b TYPE INT USING b::int", "text"),
    ("ALTER TABLE x ALTER b SET NOT NULL", "ALTER TABLE x ALTER b DROP NOT NULL", "NOT NULL"),
    ("ALTER TABLE x RENAME TO gone", "ALTER TABLE gone RENAME TO x", "x"),
]


@on_postgres
def test_a_changed_table_is_told_and_its_hot_rows_wait(wh: Warehouse, alter: Alter) -> None:
    """ALTER TABLE while rows wait: storing and reading that table fail with a code, others go on, logging goes on; changed back, all rows are there."""
    producer, other = wh.producer(name="p"), wh.producer(name="q")
    for place, (change, back, told) in enumerate(CHANGED):
        first, second, third, fourth = (place * 4 + number for number in (1, 2, 3, 4))
        producer.insert("x", (first, first))
        producer.commit(materialize=True)
        producer.insert("x", (second, second))
        producer.commit()
        alter(change)

        with pytest.raises(RightTimeError, match=told) as raised:
            wh.materialize("x")
        assert raised.value.code.startswith("table."), (change, raised.value.code)
        with pytest.raises(RightTimeError, match=told):
            wh.read("x")
        producer.insert("x", (third, third))
        producer.commit()
        producer.insert("x", (fourth, fourth))
        producer.commit(durability="log")
        other.insert("y", (place, 1))
        other.commit()
        wh.materialize("y")
        assert seen(wh, "y") == stored(wh, "y") == [(number, 1) for number in range(place + 1)], change

        alter(back)
        assert seen(wh, "x") == [(number, number) for number in range(1, fourth + 1)], change
        wh.materialize()
        assert stored(wh, "x") == [(number, number) for number in range(1, fourth + 1)], change


@on_postgres
def test_a_dropped_column_costs_what_was_stored_in_it_and_no_hot_row(wh: Warehouse, alter: Alter) -> None:
    """What somebody dropped is gone; made again, the column has the hot rows' values and NULL for the stored ones."""
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    producer.commit(materialize=True)
    producer.insert("x", (2, 2))
    producer.commit()
    alter("ALTER TABLE x DROP COLUMN b")
    with pytest.raises(SchemaChanged, match="'b' is missing"):
        producer.commit(materialize=True)

    alter("ALTER TABLE x ADD COLUMN b INT")
    wh.materialize()
    assert sorted(wh.read("x").rows()) == [(1, None), (2, 2)]


@on_postgres
def test_an_added_column_is_left_alone_unless_it_must_be_given(wh: Warehouse, alter: Alter) -> None:
    """A nullable one, or one with a default, hinders nobody; one that is NOT NULL without a default stops storing, and reading goes on."""
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    producer.commit()
    alter("ALTER TABLE x ADD COLUMN c TEXT, ADD COLUMN d INT NOT NULL DEFAULT 7")
    wh.materialize()
    producer.insert("x", (2, 2))
    producer.commit()
    alter("ALTER TABLE x ALTER d DROP DEFAULT")

    with pytest.raises(SchemaChanged, match="'d' was added, is NOT NULL and has no default"):
        wh.materialize("x")
    assert seen(wh, "x") == [(1, 1), (2, 2)]
    alter("ALTER TABLE x DROP COLUMN d")
    wh.materialize()
    assert stored(wh, "x") == [(1, 1), (2, 2)]


def test_a_service_that_stops_while_a_table_is_changed_keeps_its_hot_rows(tmp_path: Path, postgres: TempPostgres) -> None:
    """They cannot be stored, so they are logged: it ends as it should, begins again, and has them once the table is changed back."""
    with fresh_schemas(postgres) as schemas, psycopg.connect(postgres.dsn, autocommit=True) as other:
        name = f"{schemas['table_schema']}.x"
        with Service(tmp_path / "wh", target=postgres.url, state_dir=tmp_path / "state", **schemas) as service, service.connect() as wh:
            wh.create_table("x", "a INT, b INT")
            producer = wh.producer(name="p")
            producer.insert("x", (1, 1))
            producer.commit(materialize=True)
            producer.insert("x", (2, 2))
            producer.commit()
            other.execute(f"ALTER TABLE {name} RENAME b TO c".encode())
            assert service.terminate() == 0
            service.start()
            with pytest.raises(SchemaChanged):
                wh.read("x")
            other.execute(f"ALTER TABLE {name} RENAME c TO b".encode())
            assert sorted(wh.read("x").rows()) == [(1, 1), (2, 2)]
            wh.materialize()
            assert sorted(wh.read("x").rows()) == [(1, 1), (2, 2)]
            assert wh.losses() == []


@on_postgres
def test_a_table_that_somebody_else_has_locked_is_told(wh: Warehouse, postgres: TempPostgres) -> None:
    """A lock that does not go ends in a coded error, not in a service that hangs; commits to memory go on, and nothing is lost."""
    producer = wh.producer(name="p")
    producer.insert("x", (1, 1))
    producer.commit()
    with psycopg.connect(postgres.dsn) as other:
        other.execute(f"LOCK TABLE {engine_of(wh).settings.table_schema}.x IN ACCESS EXCLUSIVE MODE".encode())
        with pytest.raises(RightTimeError) as raised:
            wh.materialize("x")
        assert raised.value.retryable, raised.value
        with pytest.raises(RightTimeError) as raised:
            wh.read("x")
        assert raised.value.retryable, raised.value
        producer.insert("y", (1, 1))
        producer.commit()
        assert seen(wh, "y") == [(1, 1)]
    wh.materialize()
    assert stored(wh, "x") == stored(wh, "y") == [(1, 1)]


# -- values ------------------------------------------------------------------------------------------------------------


NUL: dict[str, Callable[[Any, str], None]] = {
    "insert": lambda load, table: load.insert(table, (2, "a\0b")),
    "upsert": lambda load, table: load.upsert(table, {"number": 1, "words": "a\0b"}),
    "update": lambda load, table: load.update(table, {"words": "a\0b"}, {"number": 1}),
    "update by condition": lambda load, table: load.update(table, {"words": "a\0b"}, "number < 2"),
    "expression": lambda load, table: load.update(table, {"words": Expression(r"concat(words, '\u0000')")}, "number < 2"),
}


@on_postgres
def test_a_text_that_postgresql_cannot_hold_is_refused_however_it_comes(wh: Warehouse) -> None:
    """Otherwise there would be a hot row that can never be stored, and nothing of its table after it."""
    for way, change in NUL.items():
        table = f"note_{len(wh.tables())}"
        wh.create_table(table, "number INT, words STRING", keys=["number"])
        with wh.producer(name="p") as producer:
            producer.insert(table, (1, "one"))
            producer.commit()
            with pytest.raises(WrongType, match=r"U\+0000"):
                change(producer, table)
                producer.commit()
            producer.rollback()
            producer.insert(table, (3, "three"))
            producer.commit(materialize=True)
        assert stored(wh, table) == [(1, "one"), (3, "three")], way


# -- unique keys -------------------------------------------------------------------------------------------------------


@everywhere
def test_of_two_producers_with_one_key_at_once_exactly_one_commits(wh: Warehouse) -> None:
    """Both insert the same keys in the same moment: every key is taken once, the other is told which, rolls back and goes on; storing sees no conflict."""
    keys, together = range(12), threading.Barrier(2, timeout=60)
    won: dict[str, list[int]] = {"p": [], "q": []}
    failures: list[BaseException] = []

    def load(name: str) -> None:
        try:
            with wh.producer(name=name) as producer:
                for key in keys:
                    together.wait()
                    producer.insert("u", (key, ord(name)))
                    try:
                        producer.commit(durability=("memory", "log", "warehouse")[key % 3])
                    except KeyTaken as taken:
                        assert taken.context["key"] == f"a={key}"
                        producer.rollback()
                    else:
                        won[name].append(key)
        except BaseException as error:
            failures.append(error)
            together.abort()

    loaders = [threading.Thread(target=load, args=(name,)) for name in won]
    for loader in loaders:
        loader.start()
    for loader in loaders:
        loader.join()

    assert failures == []
    assert sorted(won["p"] + won["q"]) == list(keys)
    rows = sorted((key, ord(name)) for name, mine in won.items() for key in mine)
    assert seen(wh, "u") == rows
    wh.materialize()
    assert stored(wh, "u") == rows


@on_postgres
def test_a_key_that_somebody_else_put_into_the_database_is_a_coded_error(wh: Warehouse, alter: Alter) -> None:
    """Past us, with our hot row of that key waiting: the primary key of the database refuses it, the hot rows stay, and so does the service."""
    producer = wh.producer(name="p")
    producer.insert_many("u", [(1, 1), (2, 2)])
    producer.commit()
    alter("INSERT INTO u VALUES (2, 99)")

    with pytest.raises(CommitFailed, match="duplicate key"):
        wh.materialize("u")
    producer.insert("x", (1, 1))
    producer.commit()
    assert seen(wh, "x") == [(1, 1)]
    alter("DELETE FROM u WHERE b = 99")
    wh.materialize()
    assert stored(wh, "u") == [(1, 1), (2, 2)]


# -- rows of another schema --------------------------------------------------------------------------------------------


OTHERS = ["a INT", "a INT, b STRING", "b INT, a INT", "a BIGINT, b INT", "a INT, b INT, c INT", "a INT NOT NULL, b INT"]


@over_flight
def test_a_client_that_knows_other_columns_is_refused(wh: Warehouse) -> None:
    """Whatever a client believes a table to be, small rows, large ones and operations are refused as a whole; its next transaction is served."""
    catalog, right = vars(wh)["_schemas"], wh.schema("x")
    producer: Any = wh.producer(name="p")
    producer._with.settings.__dict__["bypass_bytes"] = 5_000  # so that the many rows below are sent ahead
    producer.insert("y", (1, 1))
    producer.commit()
    for place, columns in enumerate(OTHERS):
        other = declare_table("x", columns)
        catalog._known["x"] = other
        row = tuple("t" if pa.types.is_string(field.type) else 1 for field in other.columns)
        works: list[Callable[[], Any]] = [
            partial(producer.insert, "x", row),
            partial(producer.insert_many, "x", [row] * 3_000),
            partial(producer.delete, "x", "a = 1"),
        ]
        for work in works:
            producer._buffers.pop("x", None)
            work()
            producer.insert("y", (2, 2))
            with pytest.raises(BadMessage, match="other columns"):
                producer.commit(materialize=True)
            producer.rollback()
        catalog._known["x"] = right
        producer._buffers.pop("x", None)

        assert seen(wh, "x") == [(number, number) for number in range(place)], columns
        assert seen(wh, "y") == [(1, 1)], columns
        producer.insert("x", (place, place))
        producer.commit(materialize=True)
        assert stored(wh, "x") == [(number, number) for number in range(place + 1)], columns


# -- a full disk -------------------------------------------------------------------------------------------------------

FULL = 200_000
WORDS = "w" * 1000


def test_a_disk_that_is_full_while_logging_is_told_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """The service cannot make files longer than a bound: a logged commit fails, with a code and whole; the service stays up, takes what fits,
    and goes on when there is space. After a kill everything acknowledged as logged is there."""
    with Service(tmp_path / "wh") as service, service.connect() as wh:
        wh.create_table("note", "number INT, words STRING")
        producer = wh.producer(name="p")
        producer.insert("note", (1, WORDS))
        producer.commit(durability="log")
        limit_files(service.process.pid, FULL)

        producer.insert_many("note", [(number, WORDS + str(number)) for number in range(1000, 2000)])
        with pytest.raises(RightTimeError) as raised:
            producer.commit(durability="log")
        assert (raised.value.code, raised.value.retryable) == ("commit.failed", True)
        assert len(wh.read("note")) == 1
        other = wh.producer(name="q")
        other.insert("note", (2, "small"))
        other.commit(durability="log")
        assert len(wh.read("note")) == 2

        limit_files(service.process.pid, None)
        producer.commit(durability="log")
        assert len(wh.read("note")) == 1002
        service.kill()
        service.start()
        assert len(wh.read("note")) == 1002
        assert wh.losses() == []


def test_a_disk_that_is_full_while_a_query_needs_files_is_told(tmp_path: Path) -> None:
    """Hot rows are handed to a reader as files; where these cannot be written, and rows cannot be stored, the reader is told, and nothing is lost."""
    with Service(tmp_path / "wh") as service, service.connect() as wh:
        wh.create_table("note", "number INT, words STRING")
        producer = wh.producer(name="p")
        producer.insert_many("note", [(number, f"{number}{WORDS}") for number in range(1000)])
        producer.commit()
        limit_files(service.process.pid, FULL)
        with pytest.raises(FileNotWritten):
            wh.read("note")
        limit_files(service.process.pid, 10_000)
        with pytest.raises(CommitFailed):
            wh.materialize()

        limit_files(service.process.pid, None)
        assert len(wh.read("note")) == 1000
        wh.materialize()
        assert len(wh.read("note")) == 1000


def test_a_database_whose_disk_is_full_while_logging_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    """The same where the log is a table: no process of the database can make a file longer than a bound. What does not fit is refused as a whole;
    what fits is logged, and there after the database has crashed."""
    with TempPostgres() as server:
        # Not below the 16 MiB of a segment of the database's own log: without that it cannot live. Its processes inherit the bound from us.
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (17 << 20, before[1]))
        try:
            restart(server)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        with opened_at(POSTGRES_SERVED, tmp_path, server) as wh:
            wh.create_table("note", "number INT, words STRING")
            producer = wh.producer(name="p")
            producer.insert("note", (1, WORDS))
            producer.commit(durability="log")
            producer.insert_many("note", [(number, WORDS) for number in range(24_000)])
            with pytest.raises(RightTimeError) as raised:
                producer.commit(durability="log")
            assert (raised.value.code, raised.value.retryable) == ("commit.failed", True)
            assert len(wh.read("note")) == 1

            producer.rollback()
            producer.insert("note", (2, WORDS))
            producer.commit(durability="log")
            restart(server)
            assert len(wh.read("note")) == 2
            producer.insert_many("note", [(number, WORDS) for number in range(24_000)])
            producer.commit(durability="log")  # the restart has lifted the bound
            assert len(wh.read("note")) == 24_002
            wh.materialize()
            assert len(stored(wh, "note")) == 24_002


def restart(server: TempPostgres) -> None:
    server._run("pg_ctl", "restart", "-w", "-m", "immediate", "-D", "cluster", "-l", "server.log", "-o", server._options({}))


def limit_files(process: int, size: int | None) -> None:
    """Let a process of this user write no file beyond `size`, or any again; what the machine bounds it to stays."""
    _, most = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (most if size is None else size, most))
