"""Bad operations: each a coded error that names the table and the way out, and the transaction is as it was."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import righttime as rt
from righttime import Producer, Warehouse
from righttime.changes.conditions import Expression
from righttime.errors import NotStored, OperationFailed, ProducerClosed, RightTimeError, SqlRefused
from righttime.query.dbapi import NotSupportedError
from tests.support.clocks import SteppedClock
from tests.support.state_tables import seen, stored


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(1.0)


@pytest.fixture
def wh(tmp_path: Path, clock: SteppedClock) -> Iterator[Warehouse]:
    with rt.open(tmp_path / "w", clock=clock, bypass_bytes=300, wait_s=0.1) as warehouse:
        warehouse.create_table("sale", "sku INT, qty INT NOT NULL, note VARCHAR(5), price DECIMAL(5,2)", keys=["sku"])
        warehouse.create_table("bare", "a INT, b INT")
        warehouse.create_table("cold", "a INT, b INT", keys=["a"], in_memory=False)
        yield warehouse


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda p: p.update("nothing", {"qty": 1}), "table.unknown"),
        (lambda p: p.update("sale", {"colour": 1}, {"sku": 1}), "column.unknown"),
        (lambda p: p.update("sale", {"qty": 1}, {"colour": 1}), "column.unknown"),
        (lambda p: p.update("sale", {"qty": 1}, "colour = 1"), "column.unknown"),
        (lambda p: p.update("sale", {"qty": Expression("colour + 1")}, {"sku": 1}), "column.unknown"),
        (lambda p: p.update("sale", {}, {"sku": 1}), "operation.refused"),
        (lambda p: p.update("sale", ["qty"], {"sku": 1}), "operation.refused"),
        (lambda p: p.update("sale", {"qty": 1, "QTY": 2}, {"sku": 1}), "operation.refused"),
        (lambda p: p.update("sale", {"qty": 1, "QTY": 2}, "qty > 0"), "operation.refused"),
        (lambda p: p.update("sale", {"qty": 1}, 5), "operation.refused"),
        (lambda p: p.update("sale", {"qty": 1}, {}), "sql.refused"),
        (lambda p: p.delete("sale", {}), "sql.refused"),
        (lambda p: p.delete("sale", ["sku"]), "operation.refused"),
        (lambda p: p.update("sale", {"qty": "x"}, {"sku": 1}), "value.type"),
        (lambda p: p.update("sale", {"qty": 2**40}, {"sku": 1}), "value.type"),
        (lambda p: p.update("sale", {"qty": "x"}, "qty > 0"), "value.type"),
        (lambda p: p.update("sale", {"note": "too long"}, {"sku": 1}), "value.type"),
        (lambda p: p.update("sale", {"qty": 1}, {"sku": "x"}), "value.type"),
        (lambda p: p.update("sale", {"qty": 1}, {"qty": "x"}), "value.type"),
        (lambda p: p.delete("sale", {"sku": 1.5}), "value.type"),
        (lambda p: p.update("sale", {"qty": None}, {"sku": 1}), "value.null"),
        (lambda p: p.update("sale", {"qty": None}, "sku > 1"), "value.null"),
        (lambda p: p.update("sale", {"sku": None}, {"sku": 1}), "value.null"),
        (lambda p: p.upsert("sale", {"qty": 1}), "value.null"),
        (lambda p: p.upsert("sale", {"sku": None, "qty": 1}), "value.null"),
        (lambda p: p.upsert("sale", {"sku": 1}), "value.null"),
        (lambda p: p.upsert("sale", (1, 2)), "value.type"),
        (lambda p: p.upsert("sale", 5), "value.type"),
        (lambda p: p.upsert("bare", (1, 2)), "operation.key_required"),
        (lambda p: p.delete_many("bare", [{"a": 1}]), "operation.key_required"),
        (lambda p: p.upsert_many("sale", [{"sku": 1, "qty": 1}, {"sku": 2, "qty": 1, "note": "x"}]), "value.type"),
        (lambda p: p.upsert_many("sale", [{"sku": 1, "qty": 1}, {"sku": 2, "qty": "x"}]), "value.type"),
        (lambda p: p.upsert_many("sale", [{"sku": 1, "qty": 1}, {"sku": 2, "qty": None}]), "value.null"),
        (lambda p: p.upsert_many("sale", "text"), "value.type"),
        (lambda p: p.upsert_many("sale", 5), "value.type"),
        (lambda p: p.update_many("sale", [5]), "value.type"),
        (lambda p: p.update_many("sale", [{"qty": 1}]), "value.null"),
        (lambda p: p.update_many("sale", [{"sku": 1}]), "operation.refused"),
        (lambda p: p.update_many("sale", pa.table({"sku": [1], "colour": [1]})), "column.unknown"),
        (lambda p: p.update_many("sale", pa.table({"sku": ["x"], "qty": [1]})), "value.type"),
        (lambda p: p.delete_many("sale", [{"sku": 1, "qty": 1}]), "operation.refused"),
        (lambda p: p.delete_many("sale", [{"sku": None}]), "value.null"),
        (lambda p: p.delete("sale", "sku ="), "sql.refused"),
        (lambda p: p.delete("sale", "sku IN (SELECT 1)"), "sql.refused"),
        (lambda p: p.delete("sale", "qty"), "sql.refused"),
        (lambda p: p.delete("sale", "sku = ?"), "sql.refused"),
        (lambda p: p.delete("sale", "sku = ?", parameters=[1, 2]), "sql.refused"),
        (lambda p: p.update("sale", {"qty": Expression("rand()")}, {"sku": 1}), "sql.refused"),
    ],
)
def test_an_operation_that_cannot_be_taken_is_refused_and_leaves_nothing_behind(wh: Warehouse, call: Callable[[Producer], None], code: str) -> None:
    """The rows and operations before it stay in the transaction, and nothing else is."""
    load = wh.producer(name="p")
    load.insert_many("sale", [(1, 1, "ok", None), (7, 7, "ok", None)])
    load.update("sale", {"qty": 8}, {"sku": 7})
    with pytest.raises(RightTimeError) as caught:
        call(load)
    assert caught.value.code == code, caught.value

    load.commit()

    assert wh.read("sale", columns=["sku", "qty"]).rows() == [(1, 1), (7, 8)]


@pytest.mark.parametrize("durability", ["memory", "log", "warehouse"])
@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.update("sale", {"qty": Expression("CAST(10 / qty AS INT)")}, {"sku": 2}),
        lambda p: p.update("sale", {"qty": Expression("qty + 2147483647")}, {"sku": 1}),
        lambda p: p.delete("sale", "10 / qty > 1"),
        lambda p: p.update("sale", {"qty": Expression("NULLIF(qty, qty)")}, "sku = 1 OR sku = 2"),
    ],
)
def test_what_fails_on_a_row_fails_at_commit_and_nothing_is_committed(wh: Warehouse, call: Callable[[Producer], None], durability: Any) -> None:
    """The loader gets `OperationFailed`; other readers see nothing; after a rollback the producer goes on."""
    load = wh.producer(name="p")
    load.insert_many("sale", [(1, 1, None, None), (2, 0, None, None)])
    load.commit()
    before = seen(wh, "sale")
    load.insert("sale", (3, 3, None, None))
    call(load)

    with pytest.raises(OperationFailed) as caught:
        load.commit(durability=durability)

    assert caught.value.code == "operation.failed"
    assert seen(wh, "sale") == before
    load.rollback()
    load.delete("sale", {"sku": 2})
    assert load.commit(durability=durability).commit.number == 2
    assert [row[0] for row in seen(wh, "sale")] == [1]


def test_an_operation_is_not_tried_on_rows_that_it_does_not_reach(wh: Warehouse) -> None:
    """Rows inserted after it, committed after it, or gone before it cannot make it fail: neither at commit nor when it is settled."""
    load = wh.producer(name="p")
    load.insert_many("sale", [(1, 5, None, None), (2, 0, None, None)])
    load.commit(materialize=True)
    load.delete("sale", {"sku": 2})
    load.insert("sale", (3, 0, None, None))
    load.delete("sale", {"sku": 3})
    load.update("sale", {"qty": Expression("CAST(10 / qty AS INT)")}, "10 / qty > 1")
    load.insert("sale", (4, 0, None, None))
    load.commit()
    load.insert("sale", (5, 0, None, None))
    load.commit()

    assert [row[:2] for row in seen(wh, "sale")] == [(1, 2), (4, 0), (5, 0)]
    wh.materialize()
    assert [row[:2] for row in stored(wh, "sale")] == [(1, 2), (4, 0), (5, 0)]


def test_a_null_in_the_key_means_no_row_each_time(wh: Warehouse) -> None:
    """`where` with None for a key column is a condition that no row meets, the first time and every other."""
    load = wh.producer(name="p")
    load.insert("sale", (1, 1, None, None))
    for key in (None, 1, None):
        load.update("sale", {"qty": 5}, {"sku": key})
        load.delete("sale", {"sku": None})
    load.commit()

    assert [row[:2] for row in seen(wh, "sale")] == [(1, 5)]


LONG = "x" * 1_000_001


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.delete("doc", {"body": LONG}),
        lambda p: p.delete("doc", "body = ?", parameters=[LONG]),
        lambda p: p.update("doc", {"body": LONG}, "n > 0"),
        lambda p: p.update("doc", {"body": LONG}),
        lambda p: p.update("doc", {"body": Expression(f"body || '{LONG[:-100]}' || '{'x' * 200}'")}, {"n": 1}),
        lambda p: p.delete("doc", f"n IN ({', '.join('?' * 110_000)})", parameters=range(10**8, 10**8 + 110_000)),
    ],
)
def test_a_text_that_nobody_could_read_again_is_refused_at_once(wh: Warehouse, call: Callable[[Producer], None]) -> None:
    """Conditions and values are kept as text, with parameters as literals; over the bound the call fails, and not the commit of all the others."""
    wh.create_table("doc", "n INT, body STRING", keys=["n"])
    p = wh.producer(name="p")
    p.insert("doc", (1, "a"))
    with pytest.raises(SqlRefused, match="over the bound 1000000"):
        call(p)
    p.update("doc", {"body": LONG}, {"n": 1})
    p.commit()
    assert wh.read("doc").rows() == [(1, LONG)]


def test_a_long_text_among_many_executions_leaves_nothing_behind(wh: Warehouse) -> None:
    """All are taken or none."""
    wh.create_table("doc", "n INT, body STRING", keys=["n"])
    with rt.connect(wh, name="p") as connection:
        cursor = connection.cursor()
        cursor.execute("INSERT INTO doc VALUES (1, 'a')")
        for sql in ("UPDATE doc SET body = ? WHERE n > ?", "UPDATE doc SET body = body || ? WHERE n = ?"):
            with pytest.raises(NotSupportedError, match="over the bound"):
                cursor.executemany(sql, [("b", 0), (LONG, 1)])
        connection.commit()
        assert wh.read("doc").rows() == [(1, "a")]


def test_a_closed_producer_takes_no_operations(wh: Warehouse) -> None:
    """As with rows."""
    load = wh.producer(name="p")
    load.close()
    for call in (load.update, load.delete, load.upsert, load.update_many, load.delete_many, load.upsert_many):
        with pytest.raises(ProducerClosed):
            call("sale", {"sku": 1})


def test_a_commit_that_cannot_be_stored_yet_says_so_and_is_not_committed_twice(wh: Warehouse, clock: SteppedClock) -> None:
    """A dead lazy producer holds an earlier commit back: the rows are logged, `NotStored` names the commit, and its transaction has ended."""
    lazy, load = wh.producer(name="lazy", policy=rt.OnDemand()), wh.producer(name="p")
    lazy._listener.start = lambda: None  # type: ignore[method-assign]
    clock.set(2)
    lazy.insert("bare", (1, 1))
    lazy.commit()
    clock.set(3)
    load.insert("cold", (1, 1))  # straight to the warehouse
    load.upsert("sale", {"sku": 1, "qty": 1})

    with pytest.raises(NotStored) as caught:
        load.commit(materialize=True)

    assert (caught.value.code, caught.value.context["number"], caught.value.retryable) == ("commit.not_stored", 1, True)
    assert not load.in_transaction
    assert load.commit().commit.number == 2
    assert (seen(wh, "cold"), stored(wh, "sale"), [row[:2] for row in seen(wh, "sale")]) == ([(1, 1)], [], [(1, 1)])
    lazy.flush()
    wh.materialize()
    assert [row[:2] for row in stored(wh, "sale")] == [(1, 1)]


def test_rows_that_go_past_the_catalyst_wait_for_operations_before_them(wh: Warehouse, clock: SteppedClock) -> None:
    """A large load is not stored under an older operation that cannot be settled yet: the loader is told, and can commit again."""
    lazy, load = wh.producer(name="lazy", policy=rt.OnDemand()), wh.producer(name="p")
    lazy._listener.start = lambda: None  # type: ignore[method-assign]
    clock.set(2)
    lazy.insert("bare", (9, 9))
    lazy.commit()
    clock.set(3)
    load.update("bare", {"b": 7}, "a = 1")
    lazy.flush()
    load.commit()
    clock.set(4)
    lazy.insert("sale", (1, 1, None, None))
    lazy.commit()
    load.delete("bare", "a = 9")
    load.commit()
    load.insert_many("bare", [(1, 0)] * 200)
    with pytest.raises(RightTimeError) as caught:
        load.commit()
    assert caught.value.retryable
    assert load.in_transaction

    lazy.flush()
    load.commit()

    assert set(seen(wh, "bare")) == set(stored(wh, "bare")) == {(1, 0)}
    assert len(seen(wh, "bare")) == 200


def test_a_large_load_after_its_own_operations_is_not_changed_by_them(wh: Warehouse) -> None:
    """Also if the producer has read its own transaction in between, so that the operations are with the catalyst already."""
    load = wh.producer(name="p")
    load.update("sale", {"qty": 7}, "qty = 0")
    load._stage(load._transaction()[0])
    load.insert_many("sale", [(number, 0, None, None) for number in range(200)])
    load.commit()

    assert {row[1] for row in seen(wh, "sale")} == {0}
