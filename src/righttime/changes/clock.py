"""Time as a value that is passed in: clocks, and the authority that issues commit times.

In: a `Clock`, the machine's or a test's.
Out: commit times in microseconds since 1970, strictly increasing over the whole warehouse.
Promise: no commit gets a time at or below one that was already issued, observed or promised to a reader.
"""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now_us(self) -> int:
        """Return the wall-clock time in microseconds since 1970."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds that never run backwards, for leases and waits."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic()


class TimeAuthority:
    """Issues the commit times of one warehouse; safe to call from any thread."""

    def __init__(self, clock: Clock, *, last_us: int = 0) -> None:
        self._clock = clock
        self._last_us = last_us
        self._lock = threading.Lock()

    def next_us(self) -> int:
        """Return a commit time above every time issued or observed before."""
        now_us = self._clock.now_us()
        with self._lock:
            self._last_us = now_us if now_us > self._last_us else self._last_us + 1
            return self._last_us

    def read_us(self) -> int:
        """Return a time that no later commit will be at or below: it can be promised to a reader."""
        now_us = self._clock.now_us()
        with self._lock:
            self._last_us = max(self._last_us, now_us)
            return self._last_us

    def observe(self, time_us: int) -> None:
        """Move past `time_us`, for example one found in the ledger on open."""
        with self._lock:
            self._last_us = max(self._last_us, time_us)
