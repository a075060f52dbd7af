"""A stage for flows without Spark: one warehouse, one stream, its copy, and queries in the background; the time is the test's.

In: a folder, settings.
Out: a flow that runs, rows that come, questions that wait.
Promise: the runner, the catalyst and the streams are the real ones; only the drain is a dictionary, which a test can hold up drain by drain.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import righttime as rt
from righttime.flows.runner import FlowRunner
from righttime.query.contract import Contract, make_contract
from righttime.testing import ManualClock
from tests.support.plain_flow import PlainEngine, run_plain, until

SECOND = 1_000_000


class Stage:
    """A warehouse with a stream `s` and its copy `t`, and queries in the background."""

    def __init__(self, folder: Path, *, times: Literal["warehouse", "source"] = "warehouse", **settings: Any) -> None:
        self.clock = ManualClock(1.0)
        self.wh = rt.open(folder, clock=self.clock, **settings)
        self.wh.create_table("t", "k INT NOT NULL, v INT", keys=["k"])
        self.wh.create_stream("s", "k INT NOT NULL, v INT", keys=["k"], times=times)
        self.runner: FlowRunner | None = None
        self.engine: PlainEngine | None = None
        self.pool = ThreadPoolExecutor(8)

    def run(self, **options: Any) -> None:
        self.runner, self.engine = run_plain(self.wh, {"t": "s"}, **options)

    def insert(self, k: int, v: int, at_s: float | None = None) -> None:
        self.wh.stream("s").insert([{"k": k, "v": v}], time=None if at_s is None else round(at_s * SECOND))

    def update(self, k: int, v: int, at_s: float | None = None) -> None:
        self.wh.stream("s").update([{"k": k, "v": v}], time=None if at_s is None else round(at_s * SECOND))

    def query(self, **contract: Any) -> dict[int, int]:
        rows = self.wh.read("t", **{"wait": "20s", **contract}).rows()
        return dict(rows)

    def ask(self, **contract: Any) -> "Future[dict[int, int]]":
        return self.pool.submit(self.query, **contract)

    def waiting(self, count: int) -> None:
        """Wait until so many cuts are wanted of the flow."""
        assert self.runner is not None
        link = self.runner.link
        until(self.wh, lambda: len(link.cuts) >= count)

    def published(self) -> int:
        """Return how many jobs were published."""
        assert self.runner is not None
        return len(self.runner.reports())

    def close(self) -> None:
        if self.runner is not None:
            if self.engine is not None:
                self.engine.gate.set()
            self.runner.stop()
        self.pool.shutdown()
        self.wh.close()


class Turns(threading.Event):
    """A gate that lets one drain through for each `give`; `set` opens it for good."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = threading.Semaphore(0)

    def give(self) -> None:
        """Let one more drain be computed."""
        self._turns.release()

    def set(self) -> None:
        super().set()
        self._turns.release(1000)

    def wait(self, timeout: float | None = None) -> bool:
        return self._turns.acquire(timeout=timeout)


def contract_of(*, freshness: str | None = None, wait: str = "20s", on_late: str = "error") -> Contract:
    """Return how fresh and how late a snapshot may be, as a query would say it."""
    return make_contract(freshness=freshness, wait=wait, on_late=on_late, as_of=None, bound_us=None, wait_default_s=20.0)
