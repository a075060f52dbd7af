"""Doubles that our own tests use, shipped for yours.

In: a test's wish for time to stand still or to pass.
Out: `ManualClock`, a clock that only moves when told.
Promise: what these doubles replace is the outside world (time), never a part of righttime.
"""

import threading


class ManualClock:
    """A clock that a test drives; pass it to `righttime.open(path, clock=...)`."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_us = round(now_s * 1_000_000)
        self._lock = threading.Lock()

    def now_us(self) -> int:
        """Return the time that was set last, in microseconds."""
        with self._lock:
            return self._now_us

    def monotonic_s(self) -> float:
        """Return the same time in seconds."""
        return self.now_us() / 1e6

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now_us += round(seconds * 1_000_000)

    def set(self, now_s: float) -> None:
        """Move to a time at or after the present one."""
        with self._lock:
            self._now_us = max(self._now_us, round(now_s * 1_000_000))
