"""Rows per second of a flow, against the same flow as a Structured Streaming job with foreachBatch.

In: the transactions of X1, with ten percent updates and deletes, on the same history.
Out: changes per second from the first append (ours) or the first file (rival) until all are in the target; the rival in one batch, and in ten.
Promise: the same Spark, in turns; both targets are compared with the expectation. Ours shows a state for each of the transactions, the rival one per batch.
"""

import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.figure import Figure
from benchmarks.flows_data import SIZES, Changes, ShopData
from benchmarks.flows_rival import Rival
from benchmarks.flows_shop import NEVER, TABLE, Shop, open_shop, sorted_rows
from righttime.pipeline.spark import CHILD_CONF

_BATCHES = 10


def run(size: str = "S", rounds: int = 3) -> list[Figure]:
    """Measure in turns, without and with updates and deletes."""
    return [figure for share in (0.0, 0.1) for figure in _with_share(size, share, rounds)]


def _with_share(size: str, share: float, rounds: int) -> list[Figure]:
    shop, chosen = ShopData(SIZES[size], share=share), SIZES[size]
    rates: dict[str, list[float]] = {"ours": [], "one": [], "ten": []}
    files_each = -(-chosen.jobs // _BATCHES)
    batches = -(-chosen.jobs // files_each)
    with tempfile.TemporaryDirectory(prefix="rt_bench_") as folder, open_shop(shop, **NEVER) as opened:
        rival = make_rival(opened.wh.spark, shop, Path(folder))
        _both(opened, rival, shop.transactions(3, purchases=6), files_each=None)  # not measured
        for _ in range(rounds):
            for name, each in (("one", None), ("ten", files_each)):
                ours, theirs = _both(opened, rival, shop.transactions(chosen.jobs, purchases=chosen.purchases), files_each=each)
                rates["ours"].append(ours)
                rates[name].append(theirs)
            opened.wh.materialize(TABLE)
    medians = {name: statistics.median(of_one) for name, of_one in rates.items()}
    title, states = f"flow against foreachBatch, size {size}, {share:.0%} updates and deletes", f"ours {chosen.jobs} states"
    return [
        Figure(f"{title}: one batch", "rows/s", ours=medians["ours"], rival=medians["one"], note=f"{states}, rival 1"),
        Figure(f"{title}: {batches} batches", "rows/s", ours=medians["ours"], rival=medians["ten"], note=f"{states}, rival {batches}"),
    ]


def make_rival(spark: SparkSession, shop: ShopData, folder: Path) -> Rival:
    """Make the rival's tables of the history that ours has."""
    child = spark.newSession()
    for name, value in CHILD_CONF.items():
        child.conf.set(name, value)
    child.conf.set("spark.sql.shuffle.partitions", "4")  # two cores: the default of 200 would be slow for no reason
    again = ShopData(shop.size)
    rival = Rival(child, folder, again.dimensions())
    rival.load_history(again.history(), again.sales_at(0))
    return rival


def check(rival: Rival, shop: ShopData, number: int) -> None:
    """Compare the rival's target with what it must be after a transaction."""
    expected, found = shop.sales_at(number), rival.sales()
    assert sorted_rows(found, expected.column_names).equals(sorted_rows(expected, expected.column_names)), "the rival's target is wrong"


def _both(opened: Shop, rival: Rival, transactions: list[Changes], *, files_each: int | None) -> tuple[float, float]:
    """Return changes per second of ours and of the rival for the same transactions."""
    rows = sum(table.num_rows for changes in transactions for table in changes.values())
    with opened.running("on_demand"):
        begun_s = time.perf_counter()
        for changes in transactions:
            opened.append(changes)
            opened.cut()
        opened.wait()
        ours_s = time.perf_counter() - begun_s
        opened.check()
    begun_s = time.perf_counter()
    rival.feed(transactions)
    rival.run(files_each=files_each)
    rival_s = time.perf_counter() - begun_s
    check(rival, opened.shop, opened.appended)
    return rows / ours_s, rows / rival_s
