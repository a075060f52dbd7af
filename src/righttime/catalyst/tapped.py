"""Tapped tables: those that are streams, too, and what their streams do not have yet.

In: commits to such a table, and the time up to which its streams have its changes.
Out: how many rows wait to be pulled; a wake-up for the flows that want them at once.
Promise: a commit is noted with the lock under which it is made, so that none is missed.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from righttime.catalyst.table import VERSIONS, MemoryTable

_NOTED_MAX = 10_000  # commits that are remembered one by one; beyond it, two and two together


@dataclass(frozen=True, slots=True)
class Reader:
    """A flow over the table; `urgent` tells whether so many rows have to be taken at once."""

    nudge: Callable[[], None]
    urgent: Callable[[int], bool]


@dataclass(slots=True)
class Tapped:
    """One table; the catalyst's lock guards it. Nothing from beyond `stream_us` may be stored: the stream could not tell it apart any more.

    `followers` are told the time of each commit: flows, running or not, which are not fresh from then on.
    """

    stream_us: int = 0
    readers: dict[str, Reader] = field(default_factory=dict)
    followers: dict[str, Callable[[int], None]] = field(default_factory=dict)
    _times: list[int] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)
    _waiting: int = 0

    def note(self, time_us: int, rows: int) -> None:
        """Note a commit to the table, and wake the flows that want it at once."""
        self._times.append(time_us)
        self._rows.append(rows)
        self._waiting += rows
        for follow in self.followers.values():
            follow(time_us)
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

    def waiting(self, after_us: int, up_to_us: int | None = None) -> int:
        """Return how many rows and operations were committed after a time, up to another."""
        last = len(self._times) if up_to_us is None else bisect_right(self._times, up_to_us)
        return sum(self._rows[bisect_right(self._times, after_us) : last])

    def first_after(self, time_us: int) -> int | None:
        """Return when the first of them was committed."""
        place = bisect_right(self._times, time_us)
        return self._times[place] if place < len(self._times) else None

    @property
    def newest_us(self) -> int:
        """The last commit that not all streams have, 0 if they have all."""
        return self._times[-1] if self._times else 0

    def pulled(self, time_us: int) -> None:
        """Note that all streams have the table's changes up to a time."""
        self.stream_us = time_us
        gone = bisect_right(self._times, time_us)
        self._waiting -= sum(self._rows[:gone])
        del self._times[:gone], self._rows[:gone]


def commits_after(table: MemoryTable, time_us: int) -> list[tuple[int, int]]:
    """Return the commits to a table after a time whose rows are in memory, as (time, rows and operations), in their order."""
    found = []
    for lane in table.lanes.values():
        before_id = lane.times.at(time_us)
        for commit_us, last_id in lane.times.entries_after(time_us, up_to_id=lane.times.committed_id) if lane.source != VERSIONS else ():
            if last_id > before_id:
                found.append((commit_us, lane.count(before_id + 1, last_id)))
            before_id = last_id
    return sorted(found)
