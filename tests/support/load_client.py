"""One client process of the load test: some of the producers and some of the consumers, a thread each.

In: the service's address, which producers and consumers, for how long.
Out: a `Told` with what was done and how long it took, or what went wrong.
Promise: each answer is judged when it comes, against what was acknowledged before it was asked for; every receipt is verified.
"""

import bisect
import random
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from righttime.catalyst.producer import Producer
from righttime.errors import CatalystFull
from righttime.flight.warehouse import RemoteWarehouse, open_remote
from righttime.query.answer import Answer
from tests.support.load_plan import PRODUCERS, TABLES, Expected, Plan, Transaction, policy_of, rows_of, source_name, sums_of

WAIT_S = 120.0
VERIFIED_LIVE = 0.1
PACE_S = 0.5

Contract = tuple[float, str, float]
CONTRACTS: Sequence[Contract] = ((0.0, "error", WAIT_S), (0.0, "error", WAIT_S), (0.5, "error", WAIT_S), (5.0, "error", WAIT_S), (0.0, "answer", 0.02))
"""Freshness in seconds, what to do if it cannot be had, and how long to wait."""


@dataclass
class Told:
    """What one client process did."""

    commits: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    commit_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    late: int = 0
    verified: dict[str, int] = field(default_factory=dict)
    receipts: list[str] = field(default_factory=list)
    full: int = 0
    failures: list[str] = field(default_factory=list)


def run_client(address: str, places: Sequence[int], seconds: float, acknowledged: Path, answer: Connection) -> None:
    """Be the client process."""
    told = Told()
    try:
        with open_remote(address, reconnect_s=60) as warehouse:
            _Client(warehouse, places, acknowledged, told).run(seconds)
    except BaseException:
        told.failures.append(traceback.format_exc())
    answer.send(told)


class _Client:
    def __init__(self, warehouse: RemoteWarehouse, places: Sequence[int], acknowledged: Path, told: Told) -> None:
        self._warehouse = warehouse
        self._places = places
        self._acknowledged = np.memmap(acknowledged, dtype=np.int64, mode="r+", shape=(PRODUCERS,))
        self._times: dict[int, list[float]] = {place: [] for place in places}
        self._expected = {place: Expected(place) for place in range(PRODUCERS)}
        self._judging = threading.Lock()
        self._told = told
        self._stop = threading.Event()

    def run(self, seconds: float) -> None:
        """Load and read for so long, then verify every receipt that is left."""
        loads = [partial(self._produce, place) for place in self._places]
        reads = [partial(self._consume, place) for place in self._places]
        self._together([*loads, *reads], seconds)
        self._together([partial(self._verify, self._told.receipts[part::2]) for part in range(2)], 0.0)

    def _together(self, works: Sequence[Callable[[], None]], seconds: float) -> None:
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        self._stop.wait(timeout=seconds)
        self._stop.set()
        for thread in threads:
            thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            self._told.failures.append(traceback.format_exc())
            self._stop.set()

    # -- producers ---------------------------------------------------------------------------------------------------

    def _produce(self, place: int) -> None:
        dice = random.Random(-place)
        with self._warehouse.producer(name=source_name(place), policy=policy_of(place)) as producer:
            for transaction in Plan(place).transactions():
                self._load(producer, place, transaction)
                if self._stop.wait(timeout=dice.uniform(0, 2 * PACE_S)):
                    break
        self._told.commits[place] = transaction.number

    def _load(self, producer: Producer, place: int, transaction: Transaction) -> None:
        if transaction.abandoned:
            producer.insert_many("sale", rows_of("sale", place, dict.fromkeys(range(-transaction.abandoned, 0), 0)))
            producer.rollback()
        for change in transaction.changes:
            change.give(producer)
        begun_s = time.monotonic()
        number = self._commit(producer, transaction)
        self._told.commit_s.append(time.monotonic() - begun_s)
        assert number == transaction.number, f"{source_name(place)}: commit {transaction.number} came out as {number}"
        self._times[place].append(time.monotonic())
        self._acknowledged[place] = number
        self._told.rows += sum(change.rows for change in transaction.changes)
        if transaction.batch_id is not None:
            self._again(producer, place, transaction)

    def _commit(self, producer: Producer, transaction: Transaction) -> int:
        while True:
            try:
                return producer.commit(durability=transaction.durability, batch_id=transaction.batch_id).commit.number
            except CatalystFull:
                self._told.full += 1

    def _again(self, producer: Producer, place: int, transaction: Transaction) -> None:
        """A batch that is loaded twice is there once."""
        producer.insert_many("sale", rows_of("sale", place, {-1: 0}))
        published = producer.commit(batch_id=transaction.batch_id)
        assert (published.replayed, published.commit.number) == (True, transaction.number)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def _consume(self, place: int) -> None:
        dice = random.Random(1000 + place)
        while not self._stop.wait(timeout=dice.uniform(0, 4 * PACE_S)):
            table, contract = dice.choice(TABLES), dice.choice(CONTRACTS)
            before, asked_s = self._acknowledged.tolist(), time.monotonic()
            freshness, on_late, wait = contract
            answer = self._warehouse.read(table, freshness=freshness, on_late=on_late, wait=wait)
            self._told.read_s.append(time.monotonic() - asked_s)
            self._judge(answer, table, before, asked_s, contract)
            if dice.random() < VERIFIED_LIVE:
                self._verify([answer.receipt.to_json()])
            else:
                self._told.receipts.append(answer.receipt.to_json())

    def _judge(self, answer: Answer, table: str, before: list[int], asked_s: float, contract: Contract) -> None:
        freshness, on_late, _ = contract
        receipt = answer.receipt
        assert not receipt.late or on_late == "answer"
        self._told.late += receipt.late
        inside = {cut.source: cut.last_inside.number for cut in receipt.cut}
        found = sums_of(answer.arrow())
        assert found.keys() <= set(range(PRODUCERS)), f"{table}: rows of {sorted(found)}"
        for place in range(PRODUCERS):
            wanted = 0 if receipt.late else before[place] if freshness == 0 else self._known_before(place, asked_s - freshness)
            # A source that has put nothing into the table is not named.
            number = inside.get(source_name(place), wanted)
            assert number >= wanted, f"{table}: commit {wanted} of {source_name(place)} was acknowledged {freshness} s before, the cut is {number}"
            with self._judging:
                expected = self._expected[place].after(table, number)
            assert found.get(place, (0, 0, 0, 0)) == expected, f"{table} after commit {number} of {source_name(place)}: {found.get(place)} is not {expected}"

    def _known_before(self, place: int, time_s: float) -> int:
        return bisect.bisect_right(self._times[place], time_s) if place in self._times else 0

    def _verify(self, receipts: Sequence[str]) -> None:
        for receipt in receipts:
            verification = self._warehouse.verify(receipt)
            assert verification.ok, f"{verification.detail}: {receipt}"
            with self._judging:
                self._told.verified[verification.method] = self._told.verified.get(verification.method, 0) + 1
