"""Client processes of the process simulation: a producer or a consumer that does what its seed says, and says what came of it.

In: bursts to do, from a pipe; the service, directly or through a proxy that treats it badly.
Out: events on the pipe, written before and after each step, so that what a killed client had begun is known.
Promise: nothing is judged here.
"""

import random
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import righttime as rt
from righttime.catalyst.producer import Producer
from righttime.errors import BadSource, CommitUnknown, NotStored, RightTimeError, SessionLost
from righttime.flight.warehouse import RemoteWarehouse, open_remote
from tests.support.process_plan import TABLES, Load, plan_load

SOURCES = ("p", "q", "r")
PATIENCE_S = 90.0
POLICIES: dict[str, Callable[[], rt.Policy]] = {"now": rt.Immediate, "asked": rt.OnDemand, "every": lambda: rt.Every("300ms")}
BAD_LINE: dict[str, Any] = {"reconnect_s": 8.0, "call_timeout_s": 1.5}
FINE_LINE: dict[str, Any] = {"reconnect_s": 40.0, "call_timeout_s": 5.0}


@dataclass(frozen=True)
class Begun:
    """A transaction is about to be committed, or to be rolled back; `lazy` if its rows may stay with the producer."""

    load: Load
    lazy: bool


@dataclass(frozen=True)
class Ended:
    """How it ended: `acknowledged` (with the commit), `refused` (certainly not there), or in `doubt`."""

    source: str
    load: int
    how: str
    number: int = 0
    time_us: int = 0
    replayed: bool = False
    why: str = ""


@dataclass(frozen=True)
class Seen:
    """An answer: rows, where it cuts each source, and what had been acknowledged when it was asked for."""

    table: str
    rows: tuple[tuple[Any, ...], ...]
    cut: dict[str, int]
    freshness: float
    late: bool
    acknowledged: dict[str, int]
    receipt: str


@dataclass(frozen=True)
class Note:
    """Something worth telling in a failure, and the ends of bursts ("opened", "done", "failed")."""

    what: str
    text: str = ""


def run_producer(address: str, source: str, seed: int, first: int, bad_line: bool, acknowledged: Path, pipe: Connection) -> None:
    """Be a producer's process, until the pipe says so."""
    try:
        with open_remote(address, **(BAD_LINE if bad_line else FINE_LINE)) as warehouse:
            _Loader(warehouse, source, seed, first, acknowledged, pipe).run()
    except BaseException:
        pipe.send(Note("failed", f"{source}: {traceback.format_exc()}"))


def run_consumer(address: str, seed: int, bad_line: bool, acknowledged: Path, pipe: Connection) -> None:
    """Be a consumer's process."""
    try:
        known = np.memmap(acknowledged, dtype=np.int64, mode="r", shape=(len(SOURCES),))
        dice, pause = random.Random(seed), threading.Event()
        with open_remote(address, **(BAD_LINE if bad_line else FINE_LINE)) as warehouse:
            pipe.send(Note("opened"))
            while (count := pipe.recv()) is not None:
                for _ in range(count):
                    _read(warehouse, dice, known, pipe)
                    pause.wait(timeout=dice.uniform(0, 0.8))  # so that lazy producers have something to lose
                pipe.send(Note("done"))
    except BaseException:
        pipe.send(Note("failed", f"consumer: {traceback.format_exc()}"))


def _read(warehouse: RemoteWarehouse, dice: random.Random, known: Any, pipe: Connection) -> None:
    table, freshness = dice.choice(sorted(TABLES)), dice.choice((0.0, 0.0, 0.2, 5.0, 5.0))
    on_late, wait = dice.choice((("error", 20.0), ("error", 20.0), ("answer", 0.05)))
    before = dict(zip(SOURCES, known.tolist(), strict=True))
    try:
        answer = warehouse.read(table, freshness=freshness, on_late=on_late, wait=wait)
    except RightTimeError as error:
        if not error.retryable:
            raise
        pipe.send(Note("no answer", f"{table}: {error.code}"))
        return
    cut = {one.source: one.last_inside.number for one in answer.receipt.cut}
    rows = tuple(tuple(row) for row in answer.rows())
    pipe.send(Seen(table, rows, cut, freshness, answer.receipt.late, before, answer.receipt.to_json()))


class _Loader:
    """One source: its producers, one after the other."""

    def __init__(self, warehouse: RemoteWarehouse, source: str, seed: int, first: int, acknowledged: Path, pipe: Connection) -> None:
        self._warehouse = warehouse
        self._source = source
        self._seed = seed
        self._next = first
        self._dice = random.Random(f"{seed} {source} {first}")
        self._known = np.memmap(acknowledged, dtype=np.int64, mode="r+", shape=(len(SOURCES),))
        self._pipe = pipe
        self._lazy = False
        self._pause = threading.Event()
        self._producer = self._open()

    def run(self) -> None:
        self._pipe.send(Note("opened"))
        while (count := self._pipe.recv()) is not None:
            for _ in range(count):
                self._step()
            self._pipe.send(Note("done"))
        self._leave()

    def _open(self) -> Producer:
        policy = self._dice.choice((*POLICIES, "asked"))
        self._lazy = policy != "now"
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._warehouse.producer(name=self._source, policy=POLICIES[policy]())
            except RightTimeError as error:
                # The service may not have noticed yet that the producer before this one is gone.
                if time.monotonic() > deadline_s or not (error.retryable or isinstance(error, BadSource)):
                    raise
                self._pause.wait(timeout=0.2)

    def _leave(self) -> None:
        """Close the producer; what it could not deliver is lost, and the ledger says so."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._producer.close()
                return
            except RightTimeError as error:
                self._pipe.send(Note("close failed", f"{self._source}: {error}"))
                if not error.retryable or time.monotonic() > deadline_s:
                    return

    def _step(self) -> None:
        chance = self._dice.random()
        if chance < 0.06:
            self._leave()
            self._producer = self._open()
        elif chance < 0.14:
            self._care(self._producer.flush)
        elif chance < 0.18:
            self._care(lambda: self._warehouse.materialize(wait=5.0))
        else:
            load = plan_load(self._seed, self._source, self._next, lazy=self._lazy)
            self._next += 1
            self._load(load)
            self._pause.wait(timeout=self._dice.uniform(0, 0.05))

    def _care(self, work: Callable[[], object]) -> None:
        try:
            work()
        except SessionLost:
            self._leave()
            self._producer = self._open()
        except RightTimeError as error:
            if not error.retryable:
                raise
            self._pipe.send(Note("care", f"{self._source}: {error.code}"))

    def _load(self, load: Load) -> None:
        self._pipe.send(Begun(load, self._lazy))
        load.give(self._producer)
        if not load.kept:
            self._producer.rollback()
            self._pipe.send(Ended(load.source, load.number, "refused", why="rolled back"))
            return
        ended = self._commit(load)
        if ended.how == "doubt" and load.batch_id is not None:
            # Loaded once more under the same id, it is there once.
            self._pipe.send(Note("again", f"{load.source}-{load.number}"))
            load.give(self._producer)
            ended = self._commit(load)
        if ended.how == "acknowledged":
            self._known[SOURCES.index(self._source)] = ended.number
        self._pipe.send(ended)

    def _commit(self, load: Load) -> Ended:
        """Commit until the outcome is known, or give it up: then it is in doubt, and rolled back here."""
        tries = self._dice.choice((1, 40, 40))
        name = (load.source, load.number)
        deadline_s = time.monotonic() + PATIENCE_S
        unknown = False
        while True:
            try:
                published = self._producer.commit(durability=load.durability, batch_id=load.batch_id)
                return Ended(*name, "acknowledged", published.commit.number, published.commit.time_us, published.replayed)
            except NotStored as error:
                return Ended(*name, "acknowledged", error.context["number"], 0, False, error.code)
            except SessionLost as error:
                self._leave()
                self._producer = self._open()
                return Ended(*name, "doubt", why=str(error))
            except RightTimeError as error:
                if not error.retryable:
                    raise
                unknown = unknown or isinstance(error, CommitUnknown)
                tries -= isinstance(error, CommitUnknown)
                if tries <= 0 or time.monotonic() > deadline_s:
                    self._producer.rollback()
                    return Ended(*name, "doubt" if unknown else "refused", why=str(error))
                self._pause.wait(timeout=0.05)
