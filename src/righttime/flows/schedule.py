"""The schedule of a flow: when to cut a job that no query asked for.

In: rows that come, cuts that were made, queries that asked; times are passed in.
Out: whether a cut is due, and how long to wait before asking again.
Promise: pure but for its own counts, which one lock guards; no clock.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

_FOREVER_S = 3600.0
PATIENCE_ROWS = 10_000  # up to so many changes a drain costs what any drain costs: taken with the next query's they are free


@dataclass(frozen=True, slots=True)
class Triggers:
    """`rows_max`: more changes than this wait for no query. `idle_s`: changes that waited this long while no query came are taken (0: never).
    `every_s`: a cut this often (0: never). `immediate`: a cut with every change. All say when a cut is due; it is made when no job waits for its drain.
    """

    rows_max: int
    idle_s: float = 0.0
    every_s: float = 0.0
    immediate: bool = False


class Schedule:
    """Counts of one flow."""

    def __init__(self, triggers: Triggers, *, rows: int, now_s: float) -> None:
        self._triggers = triggers
        self._lock = threading.Lock()
        self._rows = rows
        self._told = 0
        self._last_cut_s = now_s
        self._last_asked_s = now_s

    @property
    def rows(self) -> int:
        """Changes that no job has taken."""
        return self._rows

    def changed(self, rows: int) -> None:
        with self._lock:
            self._rows += rows
            self._told += rows

    def count(self, waiting: Callable[[], int]) -> None:
        """Count all changes that no job has taken anew. Those that come meanwhile may count twice; left out, they would wait until others come."""
        with self._lock:
            told = self._told
        rows = waiting()
        with self._lock:
            self._rows = rows + self._told - told

    def urgent(self, rows: int) -> bool:
        """Tell whether so many changes make a cut due, whatever the time is."""
        return rows > 0 and (self._triggers.immediate or rows > self._triggers.rows_max)

    @property
    def is_patient(self) -> bool:
        """Whether jobs that no query asked for are made so that later queries have less to wait for, and not because the user wants them at their time."""
        return not (self._triggers.immediate or self._triggers.every_s)

    def asked(self, now_s: float) -> None:
        with self._lock:
            self._last_asked_s = now_s

    def cut(self, waiting: Callable[[], int], now_s: float) -> None:
        """Note that a cut was made, and count what it has left, as `count` does."""
        self.count(waiting)
        with self._lock:
            self._last_cut_s = now_s

    def due(self, now_s: float) -> bool:
        """Tell whether a cut should be made now."""
        with self._lock:
            return self.urgent(self._rows) or (self._rows > 0 and self._deadline_s() <= now_s)

    def wait_s(self, now_s: float) -> float:
        """Return how long nothing can become due by itself."""
        with self._lock:
            return min(max(self._deadline_s() - now_s, 0.001), _FOREVER_S) if self._rows else _FOREVER_S

    def _deadline_s(self) -> float:
        triggers = self._triggers
        idle_s = max(self._last_asked_s, self._last_cut_s) + triggers.idle_s if triggers.idle_s else float("inf")
        every_s = self._last_cut_s + triggers.every_s if triggers.every_s else float("inf")
        return min(idle_s, every_s)
