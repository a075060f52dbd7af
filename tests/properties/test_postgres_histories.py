"""Any history of a warehouse in PostgreSQL, cut into any steps, equals plain dictionaries; by all ways of reading, with and without foreign keys."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import righttime as rt
from righttime.changes.expressions import Expression
from righttime.errors import ReferenceBroken
from righttime.flight.server import FlightService
from righttime.flight.warehouse import open_remote
from righttime.query.postgres_queries import PostgresQueries
from righttime.service import Engine
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database, reader_of

KEYS = st.integers(0, 6)
CHANGES = st.one_of(
    st.tuples(st.just("upsert"), KEYS, st.integers(0, 99)),
    st.tuples(st.just("update"), KEYS, st.integers(0, 99)),
    st.tuples(st.just("delete"), KEYS, st.just(0)),
    st.tuples(st.just("delete_below"), st.just(0), st.integers(0, 99)),
    st.tuples(st.just("add_to_even"), st.just(0), st.integers(0, 9)),
)
STEPS: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just("commit"), st.lists(CHANGES, min_size=1, max_size=4)),
    st.tuples(st.just("roll_back"), st.lists(CHANGES, min_size=1, max_size=2)),
    st.sampled_from([("store", []), ("log", []), ("vacuum", []), ("ask", []), ("ask", []), ("restart", [])]),
)
Step = tuple[str, list[tuple[str, int, int]]]


@pytest.fixture(scope="module")
def url(postgres: TempPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


class History:
    """A warehouse and its model, side by side. A client of a service asks, too, and stays the same over restarts."""

    def __init__(self, url: str, folder: Path, number: int) -> None:
        self.url = url
        self.options: dict[str, Any] = {"state_dir": folder, "table_schema": f"t{number}", "ledger_schema": f"l{number}"}
        self.model: dict[int, int] = {}
        self.port = 0
        self.open()
        self.warehouse.create_table("stock", "sku INT, qty INT", keys=["sku"])
        self.client = open_remote(self.service.address)
        self.elsewhere = self.client._open_database(reader_of(url))

    def open(self) -> None:
        self.warehouse = rt.open(self.url, **self.options)
        engine = self.warehouse._shared
        assert isinstance(engine, Engine)
        store: Any = engine.store
        self.queries = PostgresQueries(
            store.address,
            engine.snapshots,
            engine.consumer,
            schemas=engine.schemas,
            views=engine.views,
            settings=engine.settings,
        )
        self.producer = self.warehouse.producer(name="till")
        self.service = FlightService(self.warehouse, engine, port=self.port)
        self.port = self.service.port

    def close(self) -> None:
        self.queries.close()
        self.service.stop()
        self.warehouse.close()

    def leave(self) -> None:
        self.elsewhere.close()
        self.client.close()
        self.close()

    def run(self, step: Step) -> None:
        name, changes = step
        if name in ("commit", "roll_back"):
            model = dict(self.model)
            for change in changes:
                self.change(model, *change)
            if name == "commit":
                self.producer.commit()
                self.model = model
            else:
                self.producer.rollback()
        elif name == "restart":
            self.close()
            self.open()
        elif name == "vacuum":
            with psycopg.connect(self.url, autocommit=True) as other:
                other.execute(f"VACUUM {self.options['table_schema']}.stock".encode())
        elif name != "ask":
            self.producer.commit(durability="log" if name == "log" else "warehouse")
        if name in ("ask", "restart", "store"):
            self.check()

    def change(self, model: dict[int, int], kind: str, sku: int, qty: int) -> None:
        if kind == "upsert":
            self.producer.upsert("stock", (sku, qty))
            model[sku] = qty
        elif kind == "update":
            self.producer.update("stock", {"qty": qty}, {"sku": sku})
            if sku in model:
                model[sku] = qty
        elif kind == "delete":
            self.producer.delete("stock", {"sku": sku})
            model.pop(sku, None)
        elif kind == "delete_below":
            self.producer.delete("stock", "qty < ?", parameters=[qty])
            for gone in [known for known, held in model.items() if held < qty]:
                del model[gone]
        else:
            self.producer.update("stock", {"qty": Expression(f"qty + {qty}")}, "sku % 2 = 0")
            for known in [known for known in model if known % 2 == 0]:
                model[known] += qty

    def check(self) -> None:
        wanted = sorted(self.model.items())
        assert sorted(self.warehouse.read("stock").rows()) == wanted
        for queries in (self.queries, self.elsewhere):
            assert queries.sql("SELECT sku, qty FROM stock ORDER BY sku").rows() == wanted


def test_any_history_equals_its_model(url: str, tmp_path: Path) -> None:
    """Changes of hot and of stored rows, in any order with storing, logging, vacuum and restarts, give what serial execution gives."""
    count = iter(range(1_000_000))

    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(steps=st.lists(STEPS, max_size=14))
    def check(steps: list[Step]) -> None:
        history = History(url, tmp_path, next(count))
        try:
            for step in steps:
                history.run(step)
            history.check()
        finally:
            history.leave()

    check()


TABLES = ("stock", "sold", "returned")
ROWS = st.tuples(st.sampled_from(TABLES), st.integers(0, 3), st.integers(0, 3))
STAR_CHANGES = st.tuples(st.sampled_from(["upsert", "upsert", "upsert", "update", "delete"]), ROWS)
STAR_STEPS = st.one_of(
    st.lists(STAR_CHANGES, min_size=1, max_size=6),
    st.lists(STAR_CHANGES, min_size=1, max_size=6),
    st.sampled_from(["store", "store", "store one", "log", "vacuum"]),
)


class StarHistory:
    """Three tables in a row of references, and a dictionary for each; with deferred foreign keys or without."""

    def __init__(self, url: str, folder: Path, number: int, *, deferred: bool) -> None:
        self.schema = f"star{number}"
        self.other = psycopg.connect(url, autocommit=True)
        later = "DEFERRABLE INITIALLY DEFERRED" if deferred else ""
        self.other.execute(
            f"""CREATE SCHEMA {self.schema}; SET search_path = {self.schema}; CREATE TABLE stock (id int PRIMARY KEY, v int);
            CREATE TABLE sold (id int PRIMARY KEY, v int REFERENCES stock {later}); CREATE TABLE returned (id int, v int REFERENCES sold {later})""".encode()
        )
        self.warehouse = rt.open(url, state_dir=folder, table_schema=self.schema, ledger_schema=f"{self.schema}_ledger")
        for table in TABLES:
            self.warehouse.adopt(table)
        self.producer = self.warehouse.producer(name="till")
        self.model: dict[str, dict[int, int]] = {table: {} for table in TABLES}

    def close(self) -> None:
        self.warehouse.close()
        self.other.close()

    def run(self, step: list[tuple[str, tuple[str, int, int]]] | str) -> None:
        if isinstance(step, list):
            for kind, row in step:
                self.change(kind, *row)
            self.producer.commit()
        elif step == "vacuum":
            self.other.execute("VACUUM")
        elif step == "log":
            self.producer.commit(durability="log")
        else:
            self.store(whole=step == "store")

    def change(self, kind: str, table: str, number: int, value: int) -> None:
        rows = self.model[table]
        if kind == "delete":
            self.producer.delete(table, {"id": number})
            rows.pop(number, None)
        elif kind == "update" or number in rows:
            self.producer.update(table, {"v": value}, {"id": number})
            if number in rows:
                rows[number] = value
        elif table == "returned":
            self.producer.insert(table, (number, value))
            rows[number] = value
        else:
            self.producer.upsert(table, {"id": number, "v": value})
            rows[number] = value

    def store(self, *, whole: bool) -> None:
        """What refers to nothing cannot be stored; everything else can, whatever was stored before."""
        chain = [self.model[table] for table in TABLES]
        broken = any(value not in referred for referred, holder in pairwise(chain) for value in holder.values())
        if broken:
            with pytest.raises(ReferenceBroken):
                self.warehouse.materialize()
        elif whole:
            self.warehouse.materialize()
        else:
            self.warehouse.materialize("sold")
        if not broken:
            for table in TABLES:
                assert self.other.execute(f"SELECT id, v FROM {table} ORDER BY id".encode()).fetchall() == sorted(self.model[table].items())
        self.check()

    def check(self) -> None:
        for table in TABLES:
            assert sorted(self.warehouse.read(table).rows()) == sorted(self.model[table].items())


@pytest.mark.parametrize("deferred", [False, True], ids=["immediate", "deferred"])
def test_any_history_of_tables_that_refer_to_each_other_equals_its_model(url: str, tmp_path: Path, deferred: bool) -> None:
    """Answers are the model's at any time; storing succeeds exactly if nothing refers to what is not there."""
    count = iter(range(1_000_000))

    @settings(max_examples=8, suppress_health_check=list(HealthCheck))
    @given(steps=st.lists(STAR_STEPS, min_size=4, max_size=12))
    def check(steps: list[Any]) -> None:
        history = StarHistory(url, tmp_path, 2 * next(count) + deferred, deferred=deferred)
        try:
            for step in steps:
                history.run(step)
            history.store(whole=True)
        finally:
            history.close()

    check()
