"""A feeder and twenty-one streams of queries on one flow: each answer is the recomputation at its receipt's cut."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from righttime.catalyst.messages import Accuracy, Look
from righttime.client import Warehouse
from righttime.pipeline.spark import SparkOwner
from righttime.testing.reference.checker import Begun, Committed, violations
from tests.support.flow_shop import Customers, Sales, expected_sales, open_shop, sales_flow, sales_of

QUERY_STREAMS = 21
QUERIES = int(os.environ.get("RIGHTTIME_FLOW_QUERIES", "63"))  # `RIGHTTIME_FLOW_QUERIES=1000` for the long run
SEED = 4


@pytest.mark.timeout(900)
def test_every_answer_is_what_its_receipt_says(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """Strict queries and tolerant ones, a background threshold, storing in between; nothing later than the cut, and nothing earlier missing."""
    spark_owner.session()
    with open_shop(tmp_path / "wh", background_rows=200, queries_max=QUERY_STREAMS) as wh, wh.run(sales_flow()) as running:
        log = _journal(wh)
        fed, stop = threading.Event(), threading.Event()
        feeder = threading.Thread(target=_feed, args=(wh, fed, stop), daemon=True)
        feeder.start()
        assert fed.wait(60)
        with ThreadPoolExecutor(QUERY_STREAMS) as pool:
            answers = [found for done in pool.map(lambda number: _ask(wh, number), range(QUERY_STREAMS)) for found in done]
        stop.set()
        feeder.join(60)
        assert running.failure is None
        jobs = running.jobs()
        assert len(answers) >= QUERIES
        wrong = [(cut_us, found) for cut_us, found in answers if found != expected_sales(wh, cut_us)]
        assert not wrong, wrong[:2]
        assert len({cut_us for cut_us, _ in answers}) > QUERIES // 40, "queries really were cut at different times"
        assert max(job.jobs_in_drain for job in jobs) > 1, "waiting jobs were drained together"
        assert violations(log, first=log[0].tid - 1 if isinstance(log[0], Committed) else log[0].tid) == []
        assert sum(isinstance(action, Begun) for action in log) >= QUERIES


def _journal(wh: Warehouse) -> list[Committed | Begun]:
    """Write down each commit of the flow and each begin of a query as it happens, under the catalyst's lock."""
    catalyst, log = wh._writer("test").catalyst, list[Committed | Begun]()
    publish, register = catalyst.publish_job, catalyst.register

    def publishing(*args: Any, **kwargs: Any) -> Any:
        with catalyst.lock:
            published = publish(*args, **kwargs)
            log.append(Committed(published.commit.number))
            return published

    def registering(look: Look, accuracy: Accuracy) -> Any:
        with catalyst.lock:
            lease, rows = register(look, accuracy)
            if lease is not None and "sales" in look.versions:
                tid = catalyst.head.source("flow.sales").cut("flow.sales", accuracy.cut_us).last_inside.number
                log.append(Begun(f"q{len(log)}", tid, pinned=tid))
            return lease, rows

    catalyst.publish_job, catalyst.register = publishing, registering  # type: ignore[method-assign]
    return log


def _feed(wh: Warehouse, fed: threading.Event, stop: threading.Event) -> None:
    customers = Customers(SEED)
    while not stop.wait(0.01):
        wh.append(customers.transaction())
        fed.set()


def _ask(wh: Warehouse, number: int) -> list[tuple[int, Sales]]:
    dice = random.Random(SEED * 1000 + number)
    found = []
    for turn in range(QUERIES // QUERY_STREAMS + 1):
        if number == 0 and turn % 12 == 2:
            wh.materialize("sales", wait="120s")
        freshness = dice.choice(["0s", "0s", "500ms", "5s"])
        arrived_us = wh._writer("test").catalyst.authority.read_us()
        answer = wh.read("sales", freshness=freshness, wait="120s")
        cut_us = answer.receipt.cut_us
        assert cut_us >= arrived_us - {"0s": 0, "500ms": 500_000, "5s": 5_000_000}[freshness], "never staler than asked"
        found.append((cut_us, sales_of(answer.rows())))
    return found
