"""Tapped tables: those that are streams, too, and what their streams do not have yet.

In: commits to such a table, and the time up to which its streams have its changes.
Out: how many rows wait to be pulled; a wake-up for the flows that want them at once.
Promise: a commit is noted with the lock under which it is made, so that none is missed.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

_NOTED_MAX = 10_000  # commits that are remembered one by one; beyond it, two and two together


@dataclass(frozen=True, slots=True)
class Reader:
    """A flow over the table; `urgent` tells whether so many rows have to be taken at once."""

    nudge: Callable[[], None]
    urgent: Callable[[int], bool]


@dataclass(slots=True)
class Tapped:
    """One table; the catalyst's lock guards it. Nothing from beyond `stream_us` may be stored: the stream could not tell it apart any more."""

    stream_us: int = 0
    readers: dict[str, Reader] = field(default_factory=dict)
    _times: list[int] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)
    _waiting: int = 0

    def note(self, time_us: int, rows: int) -> None:
        """Note a commit to the table, and wake the flows that want it at once."""
        self._times.append(time_us)
        self._rows.append(rows)
        self._waiting += rows
        if len(self._times) > _NOTED_MAX:
            self._times = [*self._times[1::2], *self._times[len(self._times) // 2 * 2 :]]
            self._rows = [sum(self._rows[place : place + 2]) for place in range(0, len(self._rows), 2)]
        for reader in self.readers.values():
            if reader.urgent(self._waiting):
                reader.nudge()

    def arrived(self) -> None:
        """Wake all flows: rows that were held back are here."""
        for reader in self.readers.values():
            reader.nudge()

    def waiting(self, after_us: int) -> int:
        """Return how many rows and operations were committed after a time."""
        return sum(self._rows[bisect_right(self._times, after_us) :])

    def pulled(self, time_us: int) -> None:
        """Note that all streams have the table's changes up to a time."""
        self.stream_us = time_us
        gone = bisect_right(self._times, time_us)
        self._waiting -= sum(self._rows[:gone])
        del self._times[:gone], self._rows[:gone]
