"""The keeper: materializes by itself, where a setting says so.

In: `materialize_rows` and `materialize_every_s`; both 0, the default, leave the decision to the producers.
Out: orders to the mover, from one background thread.
Promise: it only moves rows that are committed; a failure is logged, shown in the status and tried again, and never touches a commit.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

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
        self._left: dict[str, _Left] = {}
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
                    self._catalyst.grown.wait(timeout=self._wait_s(next_s if self._every_s else None))
                    continue
                before = self._catalyst.head.number, {name: self._stored(name) for name in tables}
            if due:
                next_s = clock.monotonic_s() + self._every_s
            if self._store(tables):
                self._note_left(*before)

    def _wait_s(self, next_s: float | None) -> float | None:
        """Return how long there is nothing to do unless somebody commits; None if for ever."""
        now_s = self._catalyst.clock.monotonic_s()
        times = [*(left.retry_at_s for left in self._left.values()), *([] if next_s is None else [next_s])]
        times += [self._retry_at_s] if self._retry_at_s > now_s else []
        return max(min(times) - now_s, 0.01) if times else None

    def _due(self, *, everything: bool) -> list[str]:
        if self._catalyst.clock.monotonic_s() < self._retry_at_s:
            return []
        unstored = {name: table.rows_unstored for name, table in self._catalyst.tables.items() if table.rows_unstored}
        self._left = {name: left for name, left in self._left.items() if unstored.get(name, 0) >= self._rows}
        return [name for name, rows in unstored.items() if everything or (self._rows and rows >= self._rows and not self._held_back(name))]

    def _held_back(self, name: str) -> bool:
        """Tell whether rows are those that the last step had to leave, uncommitted or behind a lazy producer: another step would leave them, too."""
        left = self._left.get(name)
        if left is None or self._catalyst.tables[name].rows_unstored >= left.rows + self._rows:
            return False
        now_s = self._catalyst.clock.monotonic_s()
        if now_s >= left.retry_at_s and self._catalyst.head.number == left.state:
            self._left[name] = replace(left, retry_at_s=now_s + _RETRY_S)  # nothing has happened since
        return now_s < self._left[name].retry_at_s

    def _stored(self, name: str) -> int:
        """Return a number that grows when rows of the table are stored."""
        return sum(lane.stored_id for lane in self._catalyst.tables[name].lanes.values())

    def _store(self, tables: list[str]) -> bool:
        try:
            self._materialize(tables)
        except RightTimeError as error:
            self.failure = str(error)
            self._retry_at_s = self._catalyst.clock.monotonic_s() + _RETRY_S
            log.warning("materialize.failed", tables=tables, code=error.code, error=str(error))
            return False
        self.failure = None
        return True

    def _note_left(self, state: int, stored: Mapping[str, int]) -> None:
        """Remember tables of which the step stored nothing. Where it did, what is there now may have come meanwhile, and the next step tells."""
        with self._catalyst.lock:
            number = self._catalyst.head.number
            for name, before in stored.items():
                self._left.pop(name, None)
                rows = self._catalyst.tables[name].rows_unstored
                if self._rows and rows >= self._rows and self._stored(name) == before:
                    # The step itself made one state. If there are more, somebody committed beside it, and that may be all that was missing.
                    known = number if number <= state + 1 else -1
                    self._left[name] = _Left(rows, known, self._catalyst.clock.monotonic_s() + _RETRY_S)


@dataclass(frozen=True, slots=True)
class _Left:
    """Rows of a table of which a step stored nothing, the state after it, and when to try again if that has changed."""

    rows: int
    state: int
    retry_at_s: float
