"""The order desk: an accumulating fact. An order is one row, and the row changes as the order is accepted, packed, sent and paid.

In: an open warehouse.
Out: rows in `orders` and updates of them by key, a book of both, and at the end what one materialization made of them.
Promise: nothing of it is stored while the desk works, so every update meets a row that is only in memory.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from righttime.catalyst.policies import Immediate
from righttime.catalyst.producer import Producer
from righttime.cli.demo.shop import Book, Habit
from righttime.client import Warehouse

DESK = "desk"
STEPS = ("accepted", "packed", "sent", "paid")
STEP_S = 0.8
TABLE = "order_id BIGINT, cents BIGINT, ordered TIMESTAMP, " + ", ".join(f"{step} TIMESTAMP" for step in STEPS)


@dataclass(frozen=True, slots=True)
class Stored:
    """What one materialization wrote: versions of the table, rows in the last of them, and how many orders these are."""

    versions: int
    rows: int
    orders: int


def open_desk(wh: Warehouse) -> None:
    """Declare the table of orders."""
    wh.create_table("orders", TABLE, keys=["order_id"])


def store_orders(wh: Warehouse) -> Stored:
    """Materialize the orders and look what is stored then."""
    before = _version(wh)
    wh.materialize("orders")
    ids = wh.read("orders", columns=["order_id"]).arrow().column(0).to_pylist()
    return Stored(_version(wh) - before, len(ids), len(set(ids)))


def _version(wh: Warehouse) -> int:
    return next(table.version for table in wh.status().tables if table.name == "orders")


class Desk:
    """The producer of orders, in a thread of its own."""

    def __init__(self, wh: Warehouse, *, stop: threading.Event, failed: Callable[[BaseException], None]) -> None:
        self.habit = Habit(DESK, Immediate(), "orders, 4 updates each", batch=2, pause_s=0.02)
        self.book = Book()
        self._wh = wh
        self._stop = stop
        self._failed = failed
        self._under_way: deque[tuple[float, int, int]] = deque()  # when the next step is due, order, step; oldest first
        self._done = [0] * len(STEPS)
        self.thread = threading.Thread(target=self._run, name=f"demo-{DESK}", daemon=True)

    def _run(self) -> None:
        try:
            with self._wh.producer(name=DESK, policy=self.habit.policy) as load:
                while not self._stop.is_set():
                    begun_s = time.perf_counter()
                    self._work(load)
                    self.book.busy_s += time.perf_counter() - begun_s
                    self._stop.wait(self.habit.pause_s)
        except BaseException as error:
            self._failed(error)

    def _work(self, load: Producer) -> None:
        """Make one commit: a few new orders, and the next step of those that are due."""
        now, now_s = datetime.now(UTC).replace(tzinfo=None), time.monotonic()
        cents_paid = 0
        while self._under_way and self._under_way[0][0] <= now_s:
            _, order, step = self._under_way.popleft()
            load.update("orders", set={STEPS[step]: now}, where={"order_id": order})
            self._done[step] += 1
            if step + 1 < len(STEPS):
                self._under_way.append((now_s + STEP_S, order, step + 1))
            else:
                cents_paid += cents_of(order)
        for order in range(self.book.rows + 1, self.book.rows + 1 + self.habit.batch):
            load.insert("orders", {"order_id": order, "cents": cents_of(order), "ordered": now})
            self._under_way.append((now_s + STEP_S, order, 0))
        published = load.commit()
        self.book.note(published.commit.number, rows=self.habit.batch, cents=cents_paid, steps=tuple(self._done))


def cents_of(order: int) -> int:
    """Return what an order costs."""
    return 500 + 7 * (order % 400)
