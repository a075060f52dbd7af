"""The stage: starts the shop, lets it run, and brings everybody home.

In: an open warehouse and a number of seconds.
Out: what happened so far, for the display; at the end a `Result`.
Promise: whatever happens, every thread has ended when `close` returns, and the first failure is raised.
"""

import threading
import time
from dataclasses import dataclass

from righttime.cli.demo.checks import Check, checks_of
from righttime.cli.demo.orders import DESK, Desk, open_desk, store_orders
from righttime.cli.demo.readers import CLOSING, QUESTIONS, Reader, Seen, ask
from righttime.cli.demo.shop import Book, Seller, habits, open_shop
from righttime.client import Warehouse
from righttime.status import Status

JOIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Result:
    """How the demo ended."""

    answers: tuple[Seen, ...]
    checks: tuple[Check, ...]
    books: dict[str, Book]
    selling_s: float

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


class Stage:
    """One run of the demo."""

    def __init__(self, wh: Warehouse) -> None:
        self.wh = wh
        self.spark_ready = threading.Event()
        self.opened_s = time.monotonic()
        self._answers: list[Seen] = []
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._asking, self._selling, self._wake = threading.Event(), threading.Event(), threading.Event()
        open_shop(wh)
        open_desk(wh)
        self.sellers = [Seller(wh, habit, seed=number, stop=self._selling, failed=self._fail) for number, habit in enumerate(habits(), 1)]
        self.desk = Desk(wh, stop=self._selling, failed=self._fail)
        self.readers = [Reader(wh, question, stop=self._asking, seen=self._note, failed=self._fail) for question in QUESTIONS]
        self._spark = threading.Thread(target=self._start_spark, name="demo-spark", daemon=True)

    def open(self) -> None:
        """Begin to sell at once; Spark starts meanwhile, and the readers after it."""
        self.opened_s = time.monotonic()
        for thread in (self._spark, self.desk.thread, *(seller.thread for seller in self.sellers)):
            thread.start()

    def _start_spark(self) -> None:
        try:
            # Spark needs seconds to start and to compile its first query; four readers at once would only wait for each other.
            assert self.wh.spark is not None
            if not self._asking.is_set():
                self._note(ask(self.wh, QUESTIONS[0]))
            if not self._asking.is_set():
                for reader in self.readers:
                    reader.thread.start()
        except BaseException as error:
            self._fail(error)
        finally:
            self.spark_ready.set()
            self._wake.set()

    def _note(self, seen: Seen) -> None:
        with self._lock:
            self._answers.append(seen)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
        self._wake.set()

    def pause(self, seconds: float) -> None:
        """Let time pass; return early, with the failure, if something broke."""
        if self._wake.wait(seconds):
            self._wake.clear()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what broke first, if anything did."""
        with self._lock:
            if self._failure is not None:
                raise self._failure

    @property
    def answers(self) -> list[Seen]:
        with self._lock:
            return list(self._answers)

    @property
    def books(self) -> dict[str, Book]:
        return {seller.habit.channel: seller.book for seller in self.sellers} | {DESK: self.desk.book}

    def status(self) -> Status:
        return self.wh.status()

    def finish(self) -> Result:
        """Stop asking, stop selling, count once more, and check everything."""
        self._stop_readers()
        self._stop_sellers()
        selling_s = time.monotonic() - self.opened_s
        self.raise_failure()
        closing = ask(self.wh, CLOSING)
        answers = (*self.answers, closing)
        checks = checks_of(answers, self.books, closing=closing, orders=store_orders(self.wh), verify=self.wh.verify)
        return Result(answers, tuple(checks), self.books, selling_s)

    def close(self) -> None:
        """End every thread, also after a failure or Ctrl-C."""
        self._stop_readers()
        self._stop_sellers()

    def _stop_readers(self) -> None:
        self._asking.set()
        _join(self._spark, *(reader.thread for reader in self.readers))

    def _stop_sellers(self) -> None:
        self._selling.set()
        _join(self.desk.thread, *(seller.thread for seller in self.sellers))


def _join(*threads: threading.Thread) -> None:
    for thread in threads:
        if thread.ident is not None:
            thread.join(JOIN_S)
