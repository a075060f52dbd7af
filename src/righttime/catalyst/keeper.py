"""The keeper: materializes by itself, where a setting says so.

In: `materialize_rows` and `materialize_every_s`; both 0, the default, leave the decision to the producers.
Out: orders to the mover, from one background thread.
Promise: it only moves rows that are committed; a failure is logged, shown in the status and tried again, and never touches a commit.
"""

import threading
from collections.abc import Callable, Collection

from righttime.catalyst.shell import Catalyst
from righttime.errors import RightTimeError
from righttime.settings import Settings
from righttime.telemetry import get_log

log = get_log("keeper")

_RETRY_S = 5.0


class Keeper:
    """One thread per warehouse, and only if it has something to do."""

    def __init__(self, catalyst: Catalyst, *, materialize: Callable[[Collection[str]], int], settings: Settings) -> None:
        self._catalyst = catalyst
        self._materialize = materialize
        self._rows = settings.materialize_rows
        self._every_s = settings.materialize_every_s
        self._stopped = False
        self._retry_at_s = 0.0
        self.failure: str | None = None
        self._thread: threading.Thread | None = None
        if self._rows or self._every_s:
            catalyst.hot_rows_max = self._rows or None
            self._thread = threading.Thread(target=self._run, name="righttime-keeper", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, after the step it is in."""
        if self._thread is None:
            return
        with self._catalyst.lock:
            self._stopped = True
            self._catalyst.grown.notify_all()
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        clock = self._catalyst.clock
        next_s = clock.monotonic_s() + self._every_s
        while True:
            with self._catalyst.lock:
                due = self._every_s > 0 and clock.monotonic_s() >= next_s
                tables = self._due(everything=due)
                if self._stopped:
                    return
                if not tables:
                    self._catalyst.grown.wait(timeout=max(next_s - clock.monotonic_s(), 0.01) if self._every_s else None)
                    continue
            if due:
                next_s = clock.monotonic_s() + self._every_s
            self._store(tables)

    def _due(self, *, everything: bool) -> list[str]:
        if self._catalyst.clock.monotonic_s() < self._retry_at_s:
            return []
        return [
            name for name, table in self._catalyst.tables.items() if table.rows_unstored and (everything or (self._rows and table.rows_unstored >= self._rows))
        ]

    def _store(self, tables: list[str]) -> None:
        try:
            self._materialize(tables)
            self.failure = None
        except RightTimeError as error:
            self.failure = str(error)
            self._retry_at_s = self._catalyst.clock.monotonic_s() + _RETRY_S
            log.warning("materialize.failed", tables=tables, code=error.code, error=str(error))
