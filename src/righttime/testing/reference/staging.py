"""Staging tables that operators share, zones that keep them in step, and the versioned warehouse tables behind the sinks.

In: rows of jobs from operators.
Out: states before a job, and snapshots of all targets at once.
Promise: a version, once published, never changes; all targets of a job become visible by one assignment.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from righttime.testing.reference.rows import Bag, Signed, applied

Content = Any  # of a target: a bag, or a dictionary by key
Write = Callable[[Content], Content]  # makes the next content, and leaves the old one alone


class Staging:
    """A copy of a source inside the pipeline: one live bag that all see, and a version for each job."""

    def __init__(self, changed: threading.Condition, initial: Bag) -> None:
        self._changed = changed
        self.live = Counter(initial)
        self._versions = {0: Counter(initial)}

    def apply(self, rows: Iterable[Signed]) -> None:
        """Change the live bag; readers without a zone may see it half done."""
        with self._changed:
            self.live = applied(self.live, rows)

    def publish(self, tid: int) -> None:
        """Keep the live bag as the state after job `tid`."""
        with self._changed:
            self._versions[tid] = Counter(self.live)
            self._changed.notify_all()

    def published(self, tid: int) -> bool:
        """Return whether the state after the job is there."""
        return tid in self._versions

    def at(self, tid: int) -> Bag:
        """Return the state after job `tid`."""
        with self._changed:
            return self._versions[tid]

    def forget_after(self, tid: int) -> None:
        """Go back to the state after job `tid`, to run the later ones again."""
        with self._changed:
            self._versions = {number: bag for number, bag in self._versions.items() if number <= tid}
            self.live = Counter(self._versions[tid])


class Zone:
    """Operators that go on to the next job together: a cyclic barrier with a time-out."""

    def __init__(self, members: int, *, timeout_s: float) -> None:
        self._barrier = threading.Barrier(members, timeout=timeout_s)

    def leave(self) -> int:
        """Wait until all members have finished; raise BrokenBarrierError if one does not come. One of them gets 0."""
        return self._barrier.wait()

    def abort(self) -> None:
        """Release the members with an error."""
        self._barrier.abort()


class Warehouse:
    """The targets. A snapshot is a mapping of table to content, taken whole."""

    def __init__(self) -> None:
        self._newest: Mapping[str, Content] = {}
        self.states: dict[int, Mapping[str, Content]] = {}  # by job, for tests and pinned queries

    def create(self, table: str, initial: Content) -> None:
        """Add a table to the state before the first job."""
        self._newest = {**self._newest, table: initial}
        self.states[0] = self._newest

    def commit(self, tid: int, writes: Mapping[str, Write], *, between: Callable[[str], None]) -> None:
        """Write all tables of a job, then publish them at once; `between` is called after each table."""
        following = dict(self._newest)
        for table, write in writes.items():
            following[table] = write(following[table])
            between(table)
        self.states[tid] = following
        self._newest = following

    def snapshot(self) -> Mapping[str, Content]:
        """Return the newest state."""
        return self._newest
