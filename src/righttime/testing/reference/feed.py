"""Source transactions on their way into the pipes: tagged with their job and their task.

In: transactions in commit order, cuts, and jobs that have everything.
Out: signed rows and markers in the source pipes.
Promise: a row is in exactly the job whose horizon covers its commit time; a new task begins behind each commit on a dimension. The caller holds the lock.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from righttime.testing.reference.pipes import Pipe
from righttime.testing.reference.rows import Change, Delta, EndOfTask, signed


class Transaction(NamedTuple):
    """All changes of one source transaction, by stream."""

    commit_us: int
    changes: Mapping[str, Sequence[Change]]


class Feed:
    """What every job was given, and the pipes it goes into."""

    def __init__(self, streams: Iterable[str], dimensions: Iterable[str] = ()) -> None:
        self._streams, self._dimensions = tuple(streams), frozenset(dimensions)
        self._pipes: list[tuple[str, Pipe]] = []
        self._staged: dict[int, list[Transaction]] = defaultdict(list)
        self._tasks: dict[int, int] = defaultdict(lambda: 1)

    def connect(self, stream: str, pipe: Pipe) -> Pipe:
        """Give a consumer its own pipe from a stream."""
        assert stream in self._streams, f"there is no stream {stream}"
        self._pipes.append((stream, pipe))
        return pipe

    def place(self, transaction: Transaction, tid: int) -> None:
        """Put a transaction into the pipes, dimensions first: its facts belong to the dimension as this transaction leaves it (A1, A16)."""
        self._staged[tid].append(transaction)
        for stream in sorted(transaction.changes, key=lambda stream: stream not in self._dimensions):
            self._put(stream, transaction, tid)
            if stream in self._dimensions:
                self._end_task(tid)

    def split(self, tid: int, horizon_us: int) -> None:
        """At a cut, move what was committed after the horizon to the next job. Nobody has read it yet (A2)."""
        transactions = self._staged[tid]
        if all(transaction.commit_us <= horizon_us for transaction in transactions):
            return
        self._forget(tid)
        for _, pipe in self._pipes:
            pipe.drop(tid)
        for transaction in transactions:
            self.place(transaction, tid if transaction.commit_us <= horizon_us else tid + 1)

    def end(self, tid: int) -> None:
        """Put the end-of-job marker into every pipe, empty ones included."""
        for _, pipe in self._pipes:
            pipe.end(tid)

    def disconnect(self) -> None:
        """Forget the pipes; unfinished jobs stay."""
        self._pipes.clear()

    def again(self, tid: int) -> None:
        """Put everything of an unfinished job into new pipes."""
        transactions = self._staged[tid]
        self._forget(tid)
        for transaction in transactions:
            self.place(transaction, tid)

    def rows(self, tid: int) -> dict[str, int]:
        """Return how many rows a job was given from each stream; both images of an update are rows."""
        counts = dict.fromkeys(self._streams, 0)
        for transaction in self._staged[tid]:
            for stream, changes in transaction.changes.items():
                counts[stream] += sum(len(signed(change)) for change in changes)
        return counts

    def first_us(self, tid: int) -> int | None:
        """Return the first commit time in a job."""
        return min((transaction.commit_us for transaction in self._staged[tid]), default=None)

    def transactions(self, tid: int) -> list[int]:
        """Return the commit times of a job's transactions."""
        return [transaction.commit_us for transaction in self._staged[tid]]

    def _put(self, stream: str, transaction: Transaction, tid: int) -> None:
        for change in transaction.changes[stream]:
            for op, row in signed(change):
                delta = Delta(op, row, tid, self._tasks[tid], transaction.commit_us)
                for name, pipe in self._pipes:
                    if name == stream:
                        pipe.put(delta)

    def _end_task(self, tid: int) -> None:
        for _, pipe in self._pipes:
            pipe.put(EndOfTask(tid, self._tasks[tid]))
        self._tasks[tid] += 1

    def _forget(self, tid: int) -> None:
        self._staged.pop(tid, None)
        self._tasks.pop(tid, None)
