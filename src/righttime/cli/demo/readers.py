"""The readers: four people who ask Spark the same shop different questions, each for the freshness it needs.

In: an open warehouse.
Out: `Seen`, one for each answer, with its receipt verified right away.
Promise: each query returns the sales and cents it counted, so that they can be compared with the loaders' books.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from righttime.cli.demo.orders import STEPS
from righttime.client import Warehouse
from righttime.ledger.receipts import Receipt, Verification
from righttime.query.answer import Answer

BY_CHANNEL = "SELECT channel, count(*) AS sales, sum(cents) AS cents FROM sale GROUP BY channel ORDER BY channel"
BY_CATEGORY = """
SELECT p.category, count(*) AS sales, sum(s.cents) AS cents
FROM sale s JOIN product p ON p.product_id = s.product_id
GROUP BY p.category ORDER BY cents DESC"""
BY_CITY = """
SELECT st.city, p.category, count(*) AS sales, sum(s.cents) AS cents, rank() OVER (PARTITION BY st.city ORDER BY sum(s.cents) DESC) AS place
FROM sale s JOIN product p ON p.product_id = s.product_id JOIN store st ON st.store_id = s.store_id
GROUP BY st.city, p.category ORDER BY st.city, place"""
BY_STEP = f"""
SELECT 'orders' AS what, count(*) AS sales, coalesce(sum(CASE WHEN paid IS NOT NULL THEN cents END), 0) AS cents,
{", ".join(f"count({step}) AS {step}" for step in STEPS)} FROM orders"""


@dataclass(frozen=True, slots=True)
class Question:
    """What one reader asks, how fresh, and how often."""

    reader: str
    freshness: str
    freshness_s: float
    every_s: float
    query: str
    about: str


QUESTIONS = (
    Question("cashier", "0s", 0.0, 2.5, BY_CHANNEL, "sales by channel"),
    Question("buyer", "2s", 2.0, 1.5, BY_CATEGORY, "sales ⋈ product, by category"),
    Question("dispatch", "1s", 1.0, 2.0, BY_STEP, "orders, and how far they are"),
    Question("head office", "10s", 10.0, 3.0, BY_CITY, "sales ⋈ product ⋈ store, ranked by city"),
)
CLOSING = Question("closing", "0s", 0.0, 0.0, BY_CITY, "everything, after the last sale")


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer: what it counted, how long it took, and how its receipt was verified. `steps` are those of the orders, if it asked for them."""

    question: Question
    receipt: Receipt
    verification: Verification
    sales: int
    cents: int
    took_s: float
    top: str
    steps: tuple[int, ...] = ()

    @property
    def given_s(self) -> float:
        """How stale the answer was, counted from when it was asked for."""
        return self.receipt.given_s or 0.0  # a writer's own answers always have one

    @property
    def rows_hot(self) -> int:
        return sum(table.rows_hot for table in self.receipt.tables)

    @property
    def rows_stored(self) -> int:
        return sum(table.rows_stored for table in self.receipt.tables)


def ask(wh: Warehouse, question: Question) -> Seen:
    """Ask once and verify the receipt."""
    begun_s = time.perf_counter()
    answer = wh.sql(question.query, freshness=question.freshness, wait="20s")
    took_s = time.perf_counter() - begun_s
    rows = answer.arrow()
    sales, cents = (sum(rows.column(name).to_pylist()) for name in ("sales", "cents"))
    steps = tuple(rows.column(step)[0].as_py() for step in STEPS if step in rows.column_names)
    return Seen(question, answer.receipt, answer.receipt.verify(), sales, cents, took_s, _top(answer, steps), steps)


def _top(answer: Answer, steps: tuple[int, ...]) -> str:
    """Return the answer's first rows as a few words."""
    if steps:
        return " · ".join(f"{step} {count:,}" for step, count in zip(STEPS, steps, strict=True))
    rows = answer.arrow().slice(0, 3).to_pylist()
    return " · ".join(f"{next(iter(row.values()))} {row['cents'] / 100:,.0f}" for row in rows)


class Reader:
    """One reader in a thread of its own."""

    def __init__(
        self, wh: Warehouse, question: Question, *, stop: threading.Event, seen: Callable[[Seen], None], failed: Callable[[BaseException], None]
    ) -> None:
        self.question = question
        self._wh = wh
        self._stop = stop
        self._seen = seen
        self._failed = failed
        self.thread = threading.Thread(target=self._run, name=f"demo-{question.reader}", daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                begun_s = time.monotonic()
                self._seen(ask(self._wh, self.question))
                self._stop.wait(max(begun_s + self.question.every_s - time.monotonic(), 0.05))
        except BaseException as error:
            self._failed(error)
