"""Pipes between operators: bounded in memory, and never full.

In: rows and end-of-job markers of a provider.
Out: to the consumer, only the rows of the job that it asks for.
Promise: rows of later jobs are invisible; what does not fit into memory goes to a file, so that a put never waits and pipes cannot deadlock.
"""

import pickle
import tempfile
import threading
from collections import Counter, defaultdict, deque
from typing import IO, Literal

from righttime.testing.reference.rows import Delta, EndOfTask

Item = Delta | EndOfTask
END: Literal["end"] = "end"


class PipeFull(Exception):
    """A pipe that may not spill stayed full for too long: its consumer waits for somebody who waits for its provider."""


class Pipe:
    """The rows of several jobs on their way to one consumer."""

    def __init__(self, changed: threading.Condition, *, rows_max: int | None = None, spill: bool = True, timeout_s: float = 5.0) -> None:
        """`changed` guards the pipe and is notified; at most `rows_max` rows stay in memory. Without `spill` a put waits for room, as in the papers."""
        self._changed, self._rows_max, self._timeout_s = changed, rows_max, timeout_s
        self._rows: dict[int, deque[Item]] = defaultdict(deque)
        self._spill = spill
        self._spilled: dict[int, SpillFile] = {}
        self._ended: set[int] = set()

    def put(self, item: Item) -> None:
        """Add a row at the end of its job."""
        with self._changed:
            if self._spill and (self._is_full() or item.tid in self._spilled):
                self._spilled.setdefault(item.tid, SpillFile()).put(item)
            elif self._changed.wait_for(lambda: not self._is_full(), self._timeout_s):
                self._rows[item.tid].append(item)
            else:
                raise PipeFull
            self._changed.notify_all()

    def end(self, tid: int) -> None:
        """Say that the job has no more rows."""
        with self._changed:
            self._ended.add(tid)
            self._changed.notify_all()

    def poll(self, tid: int) -> Item | Literal["end"] | None:
        """Take the next row of the job, its end once, or None while there is neither."""
        with self._changed:
            rows = self._rows[tid]
            if not rows and tid in self._spilled:
                self._refill(tid)
            if rows:
                item = rows.popleft()
                self._changed.notify_all()
                return item
            if tid in self._ended:
                self._ended.discard(tid)
                del self._rows[tid]
                return END
            return None

    def drop(self, tid: int) -> None:
        """Forget the rows of a job that nobody has read yet."""
        with self._changed:
            self._rows.pop(tid, None)
            spilled = self._spilled.pop(tid, None)
            if spilled is not None:
                spilled.close()

    def waiting(self) -> Counter[int]:
        """Return how many rows wait for each job."""
        with self._changed:
            counts = Counter({tid: len(rows) for tid, rows in self._rows.items() if rows})
            counts.update({tid: spilled.rows for tid, spilled in self._spilled.items()})
            return counts

    def close(self) -> None:
        """Remove the files."""
        with self._changed:
            for tid in list(self._spilled):
                self.drop(tid)

    def _is_full(self) -> bool:
        return self._rows_max is not None and sum(map(len, self._rows.values())) >= self._rows_max

    def _refill(self, tid: int) -> None:
        spilled = self._spilled[tid]
        self._rows[tid].extend(spilled.take(self._rows_max or 1))
        if not spilled.rows:
            self._spilled.pop(tid).close()


class SpillFile:
    """Rows in a file, first in, first out."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the rows
        self._read = 0
        self.rows = 0

    def put(self, item: Item) -> None:
        """Write a row behind the others."""
        self._file.seek(0, 2)
        pickle.dump(item, self._file)
        self.rows += 1

    def take(self, rows_max: int) -> list[Item]:
        """Read the oldest rows."""
        self._file.seek(self._read)
        items: list[Item] = [pickle.load(self._file) for _ in range(min(rows_max, self.rows))]
        self._read = self._file.tell()
        self.rows -= len(items)
        return items

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
