"""Receipts that are run again: what a right answer may differ in, and what it may not."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

import righttime as rt
from righttime.query.answer import Answer
from righttime.query.contract import make_contract
from righttime.query.digest import is_digest_of
from righttime.query.postgres_statement import MARK
from righttime.query.snapshot import TableSnapshot
from tests.support.crash import engine_of

_NESTED = pa.struct([pa.field("x", pa.int32(), nullable=False)])


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[rt.Warehouse]:
    """Two sources whose names are in another order than their lanes: b, then a."""
    with rt.open(tmp_path / "shop") as warehouse:
        warehouse.create_table("sale", "qty INT, price DOUBLE")
        for source, rows in (("b", [(1, 1e16), (2, -1e16)]), ("a", [(3, 1.0)])):
            load = warehouse.producer(name=source)
            load.insert_many("sale", rows)
            load.commit()
        yield warehouse


Run = Callable[[Mapping[str, TableSnapshot]], pa.Table]


def _asked(wh: rt.Warehouse, query: str, run: Run, again: Run) -> Answer:
    """Answer a query as a database does that runs `run`, and `again` when it is asked a second time."""
    engine = engine_of(wh)
    contract = make_contract(freshness=None, wait=None, on_late="error", as_of=None, bound_us=None, wait_default_s=5.0)
    engine.consumer.rerun_in_database = lambda text, tables, parameters: again(tables)
    return engine.consumer.answer(MARK + query, (), contract, engine.snapshots.take(["sale"], contract), run)


def _added_up(wh: rt.Warehouse, column: str, *, backwards: bool = False, more: int = 0) -> Run:
    """A sum over rows as they come."""

    def run(tables: Mapping[str, TableSnapshot]) -> pa.Table:
        values = engine_of(wh).snapshots.rows(tables["sale"])[column].to_pylist()
        return pa.table({"s": [sum(reversed(values) if backwards else values) + more]})

    return run


def test_rows_come_in_the_same_order_again(wh: rt.Warehouse) -> None:
    """The lanes of a table are read as the answer read them: a sum of floats whose large parts cancel out is the same."""
    run = _added_up(wh, "price")
    answer = _asked(wh, "SELECT sum(price) AS s FROM sale", run, run)
    assert answer.rows() == [(1.0,)]

    found = answer.receipt.verify()

    assert (found.ok, found.method) == (True, "rerun")


def test_a_sum_of_floats_in_another_order_is_not_called_wrong_and_not_proved(wh: rt.Warehouse) -> None:
    """No engine promises an order of rows; the ledger decides, and the reason is told."""
    answer = _asked(wh, "SELECT sum(price) AS s FROM sale", _added_up(wh, "price"), _added_up(wh, "price", backwards=True))

    found = answer.receipt.verify()

    assert (found.ok, found.method) == (True, "ledger")
    assert "sums of floats depend on the order of rows (sum)" in found.detail


def test_a_sum_of_whole_numbers_is_the_same_in_any_order_or_wrong(wh: rt.Warehouse) -> None:
    """Floats in the same table do not excuse it."""
    query = "SELECT sum(qty) AS s FROM sale"
    right = _asked(wh, query, _added_up(wh, "qty"), _added_up(wh, "qty", backwards=True)).receipt.verify()
    wrong = _asked(wh, query, _added_up(wh, "qty"), _added_up(wh, "qty", more=1)).receipt.verify()

    assert (right.ok, right.method) == (True, "rerun")
    assert (wrong.ok, wrong.method) == (False, "rerun")


def test_floats_that_are_only_read_are_the_same_or_wrong(wh: rt.Warehouse) -> None:
    """Nothing is added up."""

    def prices(tables: Mapping[str, TableSnapshot]) -> pa.Table:
        return engine_of(wh).snapshots.rows(tables["sale"]).select(["price"])

    found = _asked(wh, "SELECT price FROM sale", prices, lambda tables: pa.table({"price": [1e16, -1e16, 2.0]})).receipt.verify()

    assert (found.ok, found.method) == (False, "rerun")


def test_what_is_volatile_in_a_declared_view_counts_on_postgresql(wh: rt.Warehouse) -> None:
    """The query's own text shows none of it."""
    engine_of(wh).views["recent"] = "SELECT qty FROM sale WHERE now() > '2026-01-01'"
    engine_of(wh).views["sums"] = "SELECT sum(qty) AS s FROM recent"

    found = _asked(wh, "SELECT s FROM sums", _added_up(wh, "qty"), _added_up(wh, "qty", more=1)).receipt.verify()

    assert (found.ok, found.method) == (True, "ledger")
    assert "(now)" in found.detail


def test_a_query_of_postgresql_is_not_run_again_by_spark(wh: rt.Warehouse) -> None:
    """A handle that has no session in the database leaves the decision to the ledger."""
    answer = _asked(wh, "SELECT sum(qty) AS s FROM sale", _added_up(wh, "qty"), _added_up(wh, "qty"))
    engine_of(wh).consumer.rerun_in_database = None

    found = answer.receipt.verify()

    assert (found.ok, found.method) == (True, "ledger")


def test_nullability_within_a_value_is_no_part_of_an_answer() -> None:
    """Spark's answers have none. Receipts from when it counted hold."""
    values = [{"x": 1}, {"x": 2}]
    strict = pa.table({"s": pa.array(values, _NESTED), "l": pa.array([[1], []], pa.list_(pa.field("element", pa.int32(), nullable=False)))})
    plain = pa.table({"s": pa.array(values, pa.struct([("x", pa.int32())])), "l": pa.array([[1], []], pa.list_(pa.field("element", pa.int32())))})
    by_read_once, by_spark = "62c912757b199f3a02b5256f5bf1486e" * 2, "2b06dfd719d95959837697b1599f5ca8" * 2  # as they were issued

    assert is_digest_of(by_spark, plain) and is_digest_of(by_spark, strict)
    assert is_digest_of(by_read_once, strict) and not is_digest_of(by_read_once, plain)
    assert not is_digest_of(by_spark, strict.slice(1))
