"""Streams of queries over a target while its flow runs, and whether each answer is right.

In: a shop, threads with ten templates each, transactions that are fed meanwhile.
Out: for each query its template, its latency, how long it waited for its state, and whether the answer is what the transactions before its cut make it.
Promise: every way gets the same transactions and queries: each query that ends lets the feeder append the next ones, spread over the time until the next end.
The clock runs from the first arrival to the last answer, and on until everything is in the target: a way that puts loading off does not win by it.
Answers are kept and all compared with the expectation afterwards.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import pyarrow as pa

from benchmarks.flows_data import Changes
from benchmarks.flows_shop import ANSWER_S, Shop
from benchmarks.flows_templates import TEMPLATES, Template
from righttime.flows.runner import Mode
from righttime.query.answer import Answer

_GAP_MAX_S = 0.5


@dataclass(frozen=True, slots=True)
class Asked:
    """One query: when it came everything up to transaction `came` was committed; its answer is of transaction `cut`."""

    template: Template
    came: int
    cut: int
    latency_s: float
    waited_s: float
    rows: pa.Table

    @property
    def run_s(self) -> float:
        """Seconds from the query's begin to its answer."""
        return self.latency_s - self.waited_s


@dataclass(frozen=True, slots=True)
class Streams:
    """What all streams of queries of one run saw; `wall_s` is until the last answer, `loaded_s` until all changes are in the target, too."""

    asked: Sequence[Asked]
    wall_s: float
    loaded_s: float
    jobs: int
    wrong: int
    stale: int


class Feeder(threading.Thread):
    """Appends transactions, some for each query that ends."""

    def __init__(self, opened: Shop, transactions: Sequence[Changes], *, each: int) -> None:
        super().__init__(daemon=True)
        self._opened = opened
        self._transactions = transactions
        self._each = each
        self._allowed = 0
        self._credits = threading.Semaphore(0)
        self._stopped = threading.Event()
        self.failure: BaseException | None = None

    def allow(self, queries: int) -> None:
        """Let as many transactions go as belong to so many queries."""
        self._allowed += queries * self._each  # read without care: it only says whether there is time to pause
        self._credits.release(queries * self._each)

    def run(self) -> None:
        begun_s = time.perf_counter()
        try:
            for number, changes in enumerate(self._transactions, start=1):
                self._credits.acquire()
                if self._stopped.is_set():
                    return
                self._opened.append(changes)
                if self._allowed - number <= self._each:  # else it is behind
                    self._stopped.wait(min((time.perf_counter() - begun_s) / number / 2, _GAP_MAX_S))
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        """Append what is left without pausing, so that the data go on from here."""
        self._stopped.set()
        self._credits.release()
        self.join()
        if self.failure is not None:
            raise self.failure


def serve(opened: Shop, mode: Mode, *, threads: int, queries_each: int, purchases: int, each: int) -> Streams:
    """Let threads query while `each` transactions for each query are fed; they have so many purchases all together."""
    total = threads * queries_each
    before, *transactions = opened.shop.transactions(1 + total * each, purchases=purchases)
    feeder = Feeder(opened, transactions, each=each)
    with opened.running(mode):
        _warm(opened, before, queries_each)
        first = opened.appended + 1
        jobs = opened.jobs()
        feeder.allow(threads)
        feeder.start()
        begun_s = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            streams = list(pool.map(lambda number: _stream(opened, feeder, number, queries_each), range(threads)))
        wall_s = time.perf_counter() - begun_s
        jobs = opened.jobs() - jobs
        feeder.stop()
        for changes in transactions[opened.appended + 1 - first :]:
            opened.append(changes)
        opened.cut()
        opened.wait()
        loaded_s = time.perf_counter() - begun_s
    asked = [one for stream in streams for one in stream]
    return Streams(asked, wall_s, loaded_s, jobs, _wrong(opened, asked), sum(one.cut < one.came for one in asked))


def _warm(opened: Shop, changes: Changes, queries: int) -> None:
    """Load one transaction and ask each template once, not measured: what a flow and a warehouse do first when they are opened, they do not do every time."""
    opened.append(changes)
    opened.cut()
    opened.wait()
    for template in TEMPLATES[:queries]:
        opened.wh.sql(template.sql, wait=ANSWER_S)


def _stream(opened: Shop, feeder: Feeder, number: int, count: int) -> list[Asked]:
    """Ask the templates one after the other, in an order of this stream's own."""
    order = Random(number).sample(TEMPLATES, len(TEMPLATES))
    asked = []
    for place in range(count):
        template, came = order[place % len(order)], opened.appended
        begun_s = time.perf_counter()
        answer = opened.wh.sql(template.sql, wait=ANSWER_S)
        latency_s = time.perf_counter() - begun_s
        feeder.allow(1)
        asked.append(Asked(template, came, _cut(answer), latency_s, answer.receipt.waited_s, answer.arrow()))
    return asked


def _cut(answer: Answer) -> int:
    """Return the last transaction inside an answer, as its receipt says."""
    return max(int(cut.last_inside.transaction or 0) for cut in answer.receipt.streams if cut.last_inside is not None)


def _wrong(opened: Shop, asked: Sequence[Asked]) -> int:
    """Compare every answer with what it must be at its cut; return how many differ."""
    wrong, number, sales = 0, -1, None
    for one in sorted(asked, key=lambda each: each.cut):
        if one.cut != number:
            number, sales = one.cut, opened.shop.sales_at(one.cut)
        wrong += not one.template.agrees(one.rows, sales)
    return wrong
