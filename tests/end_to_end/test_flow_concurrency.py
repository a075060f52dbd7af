"""A feeder and twenty-one streams of queries on one flow: each answer is the recomputation at its receipt's cut."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from righttime.client import Warehouse
from righttime.pipeline.spark import SparkOwner
from righttime.testing.reference.checker import Begun, violations
from tests.support.flow_journal import Journal
from tests.support.flow_shop import Customers, Sales, expected_sales, open_shop, sales_flow, sales_of

pytestmark = pytest.mark.usefixtures("compiled_plans")

QUERY_STREAMS = 21
QUERIES = int(os.environ.get("RIGHTTIME_FLOW_QUERIES", "42"))  # `RIGHTTIME_FLOW_QUERIES=1000` for the long run
SEED = 4


@pytest.mark.timeout(900)
def test_every_answer_is_what_its_receipt_says(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """Strict queries and tolerant ones, a background threshold, storing in between; nothing later than the cut, and nothing earlier missing."""
    spark_owner.session()
    with open_shop(tmp_path / "wh", background_rows=200, queries_max=QUERY_STREAMS) as wh, wh.run(sales_flow()) as running:
        journal = Journal(wh, "sales", "flow.sales")
        fed, stop = threading.Event(), threading.Event()
        feeder = threading.Thread(target=_feed, args=(wh, fed, stop), daemon=True)
        feeder.start()
        assert fed.wait(60)
        with ThreadPoolExecutor(QUERY_STREAMS) as pool:
            answers = [found for done in pool.map(lambda number: _ask(wh, number), range(QUERY_STREAMS)) for found in done]
        stop.set()
        feeder.join(60)
        assert running.failure is None
        jobs, log = running.jobs(), journal.log()
        assert violations(log, first=journal.first) == []
        assert len(answers) >= QUERIES
        wrong = [(cut_us, found) for cut_us, found in answers if found != expected_sales(wh, cut_us)]
        assert not wrong, wrong[:2]
        assert len({cut_us for cut_us, _ in answers}) > QUERIES // 40, "queries really were cut at different times"
        assert max(job.jobs_in_drain for job in jobs) > 1, "waiting jobs were drained together"
        assert sum(isinstance(action, Begun) for action in log) >= QUERIES


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
