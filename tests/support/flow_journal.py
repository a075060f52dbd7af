"""A journal of what really happened to the target of a flow, for the independent checker.

In: a warehouse, a target and its flow.
Out: commits of jobs and begins of queries in their order, each with the state that it really had.
Promise: nothing is taken from what the product says of itself: a begin is known by the rows that it was given, a commit by the rows that it left.
"""

from typing import Any

from righttime.catalyst.messages import Accuracy, Look
from righttime.client import Warehouse
from righttime.testing.reference.checker import Begun, Committed


class Journal:
    """Each commit of a flow and each begin of a query as it happens, under the catalyst's lock: what was done, not what was meant.

    A job is known by its horizon and by the last row or operation that the table had when it was shown; a begin by its cut and by the last one that it was
    given. Which job a query belongs to, and which it really saw, is told from these when everything is over.
    """

    def __init__(self, wh: Warehouse, table: str, source: str) -> None:
        self._table, self._source = table, source
        self._catalyst = wh._writer("test").catalyst
        self._publish, self._register = self._catalyst.publish_job, self._catalyst.register
        self._happened: list[tuple[int, int, int] | tuple[int, int]] = []
        with self._catalyst.lock:
            self.first = self._catalyst.head.source(self._source).last.number
            self._jobs = [(0, self._last_id(), self.first)]
            self._catalyst.publish_job, self._catalyst.register = self._publishing, self._registering  # type: ignore[method-assign]

    def _last_id(self) -> int:
        lane = self._catalyst.table(self._table).lanes.get(self._source)
        return 0 if lane is None else lane.last_id

    def _publishing(self, *given: Any, horizon_us: int, **options: Any) -> Any:
        with self._catalyst.lock:
            published = self._publish(*given, horizon_us=horizon_us, **options)
            self._jobs.append((horizon_us, self._last_id(), published.commit.number))
            self._happened.append(self._jobs[-1])
            return published

    def _registering(self, look: Look, accuracy: Accuracy) -> Any:
        with self._catalyst.lock:
            lease, rows = self._register(look, accuracy)
            if lease is not None and self._table in look.versions:
                self._happened.append((accuracy.cut_us, look.intervals.get((self._table, self._source), (1, 0))[1]))
            return lease, rows

    def log(self) -> list[Committed | Begun]:
        """Return what happened in the words of the checker. Jobs that left the table as it was are one with the job before them."""
        by_last_id: dict[int, int] = {}
        for _, last_id, number in self._jobs:
            by_last_id.setdefault(last_id, number)
        found: list[Committed | Begun] = []
        for place, happened in enumerate(self._happened):
            if len(happened) == 3:
                found.append(Committed(happened[2]))
            else:
                cut_us, last_id = happened
                wanted = max(job for job in self._jobs if job[0] <= cut_us)
                found.append(Begun(f"q{place}", by_last_id[wanted[1]], pinned=by_last_id.get(last_id, -1)))
        return found
