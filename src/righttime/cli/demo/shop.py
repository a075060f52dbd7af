"""The shop: a star schema, and two sellers that insert sales one by one.

In: an open warehouse.
Out: rows in `sale`, `product` and `store`; for each seller a book of what it had committed at which commit.
Promise: the book is written by the seller alone, so answers are checked against something the warehouse had no hand in.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from righttime.catalyst.policies import Immediate, OnDemand, Policy
from righttime.catalyst.producer import Producer
from righttime.client import Warehouse

SALE = "sale_id BIGINT, at TIMESTAMP, channel STRING, store_id INT, product_id INT, quantity INT, cents BIGINT"
PRODUCT = "product_id INT, title STRING, category STRING, cents BIGINT"
STORE = "store_id INT, city STRING, country STRING"
STORES = [(1, "Aarhus", "Denmark"), (2, "Aalborg", "Denmark"), (3, "Malmo", "Sweden"), (4, "Hamburg", "Germany"), (5, "Web", "everywhere")]
CATEGORIES = ("books", "coffee", "games", "music", "tea")
PRODUCTS = [(number, f"{CATEGORIES[number % 5]} no. {number}", CATEGORIES[number % 5], 199 + 50 * (number % 40)) for number in range(1, 101)]

Step = Literal["memory", "log", "warehouse"]


@dataclass(slots=True)
class Book:
    """What one producer has committed: rows and cents in total after each of its commits, and how many updates of each kind."""

    totals: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    steps: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    busy_s: float = 0.0

    def note(self, number: int, *, rows: int, cents: int, steps: tuple[int, ...] = ()) -> None:
        """Add the commit `number`; commits are numbered without gaps."""
        assert number == len(self.totals), f"commit {number} after {len(self.totals) - 1}"
        self.totals.append((self.totals[-1][0] + rows, self.totals[-1][1] + cents))
        self.steps.append(steps)

    @property
    def commits(self) -> int:
        return len(self.totals) - 1

    @property
    def rows(self) -> int:
        return self.totals[-1][0]

    @property
    def updates(self) -> int:
        return sum(self.steps[-1])


@dataclass(frozen=True, slots=True)
class Habit:
    """How one seller works: rows per commit, a pause between commits, and after how many seconds a commit is logged or stored."""

    channel: str
    policy: Policy
    does: str
    batch: int
    pause_s: float
    log_every_s: float | None = None
    store_every_s: float | None = None
    news_every_s: float | None = None


def habits() -> tuple[Habit, Habit]:
    """Return the two sellers' habits."""
    till = Habit("till", Immediate(), "5 rows a commit", batch=5, pause_s=0.01, log_every_s=3.0)
    web = Habit("web", OnDemand(), "50 a commit, lazily", batch=50, pause_s=0.002, store_every_s=8.0, news_every_s=2.0)
    return till, web


def open_shop(wh: Warehouse) -> None:
    """Declare the tables and store the first products and all stores."""
    wh.create_table("sale", SALE, keys=["sale_id"])
    wh.create_table("product", PRODUCT, keys=["product_id"])
    wh.create_table("store", STORE, keys=["store_id"])
    with wh.producer(name="office") as office:
        office.insert_many("product", PRODUCTS)
        office.insert_many("store", STORES)
        office.commit(materialize=True)


class Seller:
    """One producer in a thread of its own."""

    def __init__(self, wh: Warehouse, habit: Habit, *, seed: int, stop: threading.Event, failed: Callable[[BaseException], None]) -> None:
        self.habit = habit
        self.book = Book()
        self._wh = wh
        self._random = random.Random(seed)
        self._first_id = seed * 10**12
        self._prices = {number: cents for number, _, _, cents in PRODUCTS}
        self._stop = stop
        self._failed = failed
        self._due: dict[str, float] = {}
        self.thread = threading.Thread(target=self._run, name=f"demo-{habit.channel}", daemon=True)

    def _run(self) -> None:
        try:
            with self._wh.producer(name=self.habit.channel, policy=self.habit.policy) as load:
                while not self._stop.is_set():
                    begun_s = time.perf_counter()
                    self._sell(load)
                    self.book.busy_s += time.perf_counter() - begun_s
                    self._stop.wait(self.habit.pause_s)
        except BaseException as error:
            self._failed(error)

    def _sell(self, load: Producer) -> None:
        """Make one commit: some sales, now and then with a new product, which becomes visible together with its first sales."""
        if self._is_due("news", self.habit.news_every_s):
            self._add_product(load)
        total = 0
        for _ in range(self.habit.batch):
            total += self._insert_sale(load)
        published = load.commit(durability=self._step())
        self.book.note(published.commit.number, rows=self.habit.batch, cents=total)

    def _insert_sale(self, load: Producer) -> int:
        draw = self._random.random()
        product = 1 + int(draw * draw * len(self._prices))
        quantity = 1 + int(draw * 10_000) % 3
        cents = quantity * self._prices[product]
        self._first_id += 1
        store = 5 if self.habit.channel == "web" else 1 + int(draw * 1000) % 4
        load.insert("sale", (self._first_id, datetime.now(UTC).replace(tzinfo=None), self.habit.channel, store, product, quantity, cents))
        return cents

    def _add_product(self, load: Producer) -> None:
        number = len(self._prices) + 1
        self._prices[number] = 199 + 50 * (number % 40)
        load.insert("product", (number, f"new no. {number}", "new", self._prices[number]))

    def _step(self) -> Step:
        if self._is_due("store", self.habit.store_every_s):
            return "warehouse"
        return "log" if self._is_due("log", self.habit.log_every_s) else "memory"

    def _is_due(self, what: str, every_s: float | None) -> bool:
        if every_s is None:
            return False
        now_s = time.monotonic()
        due = now_s >= self._due.setdefault(what, now_s + every_s)
        if due:
            self._due[what] = now_s + every_s
        return due
