"""AT-X10: one query, asked again and again while rows come, change and move, answered by Spark on each store, in this process and over Flight."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import righttime as rt
from righttime.flight import reading
from righttime.pipeline.spark import SparkOwner
from tests.support.everywhere import DELTA, DELTA_SERVED, ELSEWHERE, opened_at
from tests.support.postgres import TempPostgres

FAR = "delta over flight, whose files cannot be seen from here"


@pytest.fixture(params=[DELTA, *ELSEWHERE, FAR])
def wh(
    tmp_path: Path, postgres: TempPostgres, spark_owner: SparkOwner, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[rt.Warehouse]:
    spark_owner.session()
    if request.param == FAR:
        monkeypatch.setattr(reading, "_same", lambda place: False)
    with opened_at(DELTA_SERVED if request.param == FAR else request.param, tmp_path, postgres, segment_rows=10) as opened:
        opened.create_table("sale", "sku INT, qty INT", keys=["sku"])
        opened.create_view("total", "SELECT count(*) AS rows, sum(qty) AS qty FROM sale")
        yield opened


def check(wh: rt.Warehouse, model: dict[int, int]) -> None:
    """Ask by view and by a self-join of the table, in one query; each must see every row of the model once."""
    found = wh.sql("SELECT a.sku, a.qty, b.qty, total.* FROM sale a JOIN sale b ON a.sku = b.sku CROSS JOIN total ORDER BY a.sku").rows()
    assert found == [(sku, qty, qty, len(model), sum(model.values())) for sku, qty in sorted(model.items())]


def test_at_x10_the_same_view_is_right_before_and_after_every_commit_and_materialization(wh: rt.Warehouse) -> None:
    """The sheet's steps, and the same with rows that change: a relation that lives longer than its query would fail each of them.

    | step                             | model            |
    |----------------------------------|------------------|
    | queried                          | 0-19             |
    | rows committed, queried          | 0-39             |
    | materialized, queried            | 0-39             |
    | changed while stored, queried    | 1-40, some new   |
    | materialized, queried            | the same         |
    """
    producer = wh.producer(name="till")
    model = {sku: sku % 7 for sku in range(20)}
    producer.insert_many("sale", list(model.items()))
    producer.commit()
    check(wh, model)

    model |= (more := dict.fromkeys(range(20, 40), 1))
    producer.insert_many("sale", list(more.items()))
    producer.commit()
    check(wh, model)
    wh.materialize()
    check(wh, model)

    model = {sku: 100 if sku % 10 == 3 else qty for sku, qty in model.items() if sku} | {40: 40}
    producer.update("sale", {"qty": 100}, "sku % 10 = 3")
    producer.delete("sale", {"sku": 0})
    producer.insert("sale", (40, 40))
    producer.commit()
    check(wh, model)
    wh.materialize()
    check(wh, model)
    receipt = wh.sql("SELECT * FROM total").receipt
    assert receipt.verify().ok
