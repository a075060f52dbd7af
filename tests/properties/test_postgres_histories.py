"""Any history of a warehouse in PostgreSQL, cut into any steps, equals a plain dictionary; by all ways of reading."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import righttime as rt
from righttime.changes.expressions import Expression
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
