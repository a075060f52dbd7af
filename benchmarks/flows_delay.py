"""The synchronisation delay: from a query's arrival to its begin, with more and more changes waiting.

In: 1, 100, 10,000 and 1,000,000 changes in the streams that no job has taken when a query arrives.
Out: the median seconds that the query waited, as figures and a plot; how long the first drains of each kind took, whose plans serve the others.
Promise: nothing is taken before the query comes; its answer is compared with the expectation.
"""

import os
import statistics
from pathlib import Path

from benchmarks import svg
from benchmarks.figure import Figure
from benchmarks.flows import RESULTS, command
from benchmarks.flows_data import LINES_EACH, SIZES, ShopData
from benchmarks.flows_shop import ANSWER_S, NEVER, Shop, open_shop, sums

QUERY = "SELECT count(*), sum(qty), sum(amount), sum(cost) FROM store_sales"
_TRANSACTION_ROWS = 130_000
_MANY = 100_000
_PLANNED = 2


def run(size: str = "S", rounds: int = 5, plots: Path = RESULTS) -> list[Figure]:
    """Measure each number of waiting changes several times, the largest once."""
    chosen = SIZES[size]
    with open_shop(ShopData(chosen), **NEVER) as opened, opened.running("on_demand"):
        delays, first = {}, {}
        for rows in chosen.queued:
            # The first drains of a kind are planned, and later ones run by their plans; so the first are told apart.
            first[rows] = [_delay_s(opened, rows) for _ in range(_PLANNED if size != "XS" and rows < _MANY else 0)]
            delays[rows] = [_delay_s(opened, rows) for _ in range(rounds if rows < _MANY else 1)]
    context: dict[str, float | str] = {"load": os.getloadavg()[0]}
    medians = {rows: statistics.median(of_one) for rows, of_one in delays.items()}
    points = {"ours": [(float(rows), seconds) for rows, seconds in medians.items()]}
    path, title = plots / f"delay_{size}.svg", f"arrival of a query to its begin, {chosen.history * LINES_EACH:,} rows of history"
    svg.lines(path, title, ("changes that wait", "s"), points, command=command("flows_delay", size), logarithmic=True)
    return [
        Figure(f"arrival to begin, {rows:,} changes wait", "s", ours=seconds, note=_note(delays[rows], first[rows]), context=context)
        for rows, seconds in medians.items()
    ]


def _note(counted: list[float], first: list[float]) -> str:
    before = f", the first {max(first):.2f} s" if first else ""
    return f"longest {max(counted):.2f} s of {len(counted)}{before}"


def _delay_s(opened: Shop, rows: int) -> float:
    """Let exactly so many changes wait, and ask: whole purchases, and deletes of lines for the rest."""
    left = rows
    while left:
        purchases = min(left, _TRANSACTION_ROWS) // (LINES_EACH + 1)
        deletes = 0 if purchases else left
        opened.append(opened.shop.transaction(purchases, deletes=deletes))
        left -= purchases * (LINES_EACH + 1) + deletes
    answer = opened.wh.sql(QUERY, wait=ANSWER_S)
    assert list(answer.rows()[0]) == sums(opened.shop.sales_at(opened.shop.number)), "the answer is not what the transactions make it"
    return answer.receipt.waited_s
