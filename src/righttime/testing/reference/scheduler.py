"""The dispatcher, the sink transactions and the begins of queries, each in its own thread.

In: the rows of complete jobs, and queries that wait.
Out: commits and begins in the order of the chain, and a log of what really happened.
Promise: nothing is permitted before the last permitted action was acknowledged, unless a test forbids acknowledgements. A query that does not begin in time
is forgotten.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from righttime.pipeline.chain import Begin, Chain, Commit, Job
from righttime.testing.reference.checker import Begun, Committed
from righttime.testing.reference.options import EngineFailed, Options, Stopped
from righttime.testing.reference.staging import Warehouse, Write

T = TypeVar("T")


class Scheduler:
    """One chain under one condition, and those who act on it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.changed = threading.Condition()
        self.chain = Chain(strict=True)
        self.warehouse = Warehouse()
        self.log: list[Committed | Begun] = []
        self.generation = 0
        self.failure: BaseException | None = None
        self.restarts = 0
        self.queries_running = 0
        self.stopping = False
        self.granted: set[Commit | Begin] = set()

    def wait(self, ready: Callable[[], T], *, generation: int | None = None, timeout_s: float | None = None) -> T:
        """Wait until `ready` returns something true and return that; raise Stopped when the engine or the generation ends."""

        def check() -> T:
            if self.stopping or (generation is not None and generation != self.generation):
                raise Stopped
            return ready()

        with self.changed:
            found = self.changed.wait_for(check, timeout_s)
            if not found:
                raise TimeoutError
            return found

    def raise_failure(self) -> bool:
        """Raise if an operator failed and jobs may not be run again; else return False."""
        if self.failure is not None and self.restarts >= self.options.restarts_max:
            raise EngineFailed from self.failure
        return False

    def sink(self, tid: int, writes: Mapping[str, Write], generation: int) -> None:
        """Write, say so, wait for permission, commit, acknowledge (A6)."""
        self.options.gate("sink", "write", tid)
        with self.changed:
            self.wait(lambda: True, generation=generation)
            self.chain.complete(tid)
            self.changed.notify_all()
        self.wait(lambda: Commit(tid) in self.granted, generation=generation)
        self.options.gate("sink", "commit", tid)
        with self.changed:
            self.wait(lambda: True, generation=generation)
            self.warehouse.commit(tid, writes, between=lambda table: self.options.gate(table, "table", tid))
            self.log.append(Committed(tid))
            if self.options.acknowledge:
                self.chain.committed(tid)
            self.granted.discard(Commit(tid))
            self.changed.notify_all()

    def begin(self, name: str, job: Job, *, waits: bool, cancelled: Callable[[], bool]) -> Mapping[str, Any]:
        """Take the snapshot of a query as soon as it may begin, and acknowledge (A7)."""
        action = Begin(name, job.tid)
        if waits:
            self.wait(lambda: self.raise_failure() or cancelled() or action in self.granted, timeout_s=self.options.timeout_s)
        self.options.gate(name, "begin", job.tid)
        with self.changed:
            if cancelled():
                raise Stopped
            self.log.append(Begun(name, job.tid))
            self.queries_running += 1
            if waits and self.options.acknowledge:
                self.chain.begun(name)
            self.granted.discard(action)
            self.changed.notify_all()
            return self.warehouse.snapshot()

    def dispatch(self, run_again: Callable[[], None]) -> None:
        """Look at the head of the schedule only, permit, and wait for the acknowledgement (A5); run jobs again after a failure."""
        try:
            while True:
                action = self.wait(lambda: self.failure or self.chain.next_action())
                if isinstance(action, BaseException):
                    self.raise_failure()
                    run_again()
                elif action is not None:
                    self._permit(action)
        except (Stopped, EngineFailed):
            with self.changed:
                self.changed.notify_all()

    def _permit(self, action: Commit | Begin) -> None:
        with self.changed:
            self.granted.add(action)
            self.changed.notify_all()
            if isinstance(action, Commit):
                if not self.options.acknowledge:  # the mistake that the papers leave open: whoever may act is taken to have acted
                    self.chain.committed(action.tid)
            elif not self.options.acknowledge:
                self.chain.begun(action.query)
            else:
                self._await_begin(action)

    def _await_begin(self, action: Begin) -> None:
        """Forget a query that does not begin: it blocks everything behind it."""
        try:
            self.wait(lambda: self.failure or action.query not in self.chain.waiting(), timeout_s=self.options.begin_timeout_s)
        except TimeoutError:
            self.chain.cancel(action.query)
            self.granted.discard(action)
