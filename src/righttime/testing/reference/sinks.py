"""Sinks: the rows of a job become the next content of a target.

In: signed rows of one job.
Out: a write that the job's sink transaction carries out at its commit, in the order of the jobs.
Promise: a sink may be jobs ahead of the commits (class a), except the one that reads what it writes (class b).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from righttime.testing.reference.engine import Engine
from righttime.testing.reference.rows import Delta, Row, Signed, applied
from righttime.testing.reference.staging import Content
from righttime.testing.reference.steps import Rows, Step


class Sink(Step, ABC):
    """Collects the rows of a job for a table; subclasses say what they make of its content."""

    def __init__(self, engine: Engine, table: str, source: Step | str, *, initial: Content = None) -> None:
        super().__init__(engine, f"sink {table}", [source])
        self.table = table
        engine.target(table, self.written({}, []) if initial is None else initial)

    def reset(self, tid: int) -> None:
        self._rows: list[Signed] = []

    def take(self, port: int, delta: Delta) -> Rows:
        self._rows.append((delta.op, delta.row))
        return ()

    def finish(self, tid: int) -> Rows:
        rows = self._rows
        self.deliver(self.table, lambda content: self.written(content, rows))
        return ()

    @abstractmethod
    def written(self, content: Content, rows: list[Signed]) -> Content:
        """Return the next content, and leave the old one alone."""


class BagSink(Sink):
    """A bag of rows."""

    def written(self, content: Content, rows: list[Signed]) -> Content:
        return applied(Counter(content), rows)


class KeyedSink(Sink):
    """A row for each key; deletes before inserts, so that an update keeps its row."""

    def __init__(self, engine: Engine, table: str, source: Step | str, key: Callable[[Row], Hashable]) -> None:
        self._key = key
        super().__init__(engine, table, source)

    def written(self, content: Content, rows: list[Signed]) -> Content:
        removed = {self._key(row) for op, row in rows if op == "D"}
        kept = {key: row for key, row in content.items() if key not in removed}
        return {**kept, **{self._key(row): row for op, row in rows if op == "I"}}


class AdditiveSink(Sink):
    """Sums for each key, fed by `Sums`; a key without rows disappears."""

    def written(self, content: Content, rows: list[Signed]) -> Content:
        totals = dict(content)
        for _, (key, more, weight) in rows:
            sums, rows_now = totals.get(key, ((0,) * len(more), 0))
            totals[key] = (tuple(one + other for one, other in zip(sums, more, strict=True)), rows_now + weight)
        return {key: total for key, total in totals.items() if total[1]}


class RunningAverage(Step):
    """The average of all values so far: reads the table that it writes, so each job waits for the commit before it (class b)."""

    serial = True

    def __init__(self, engine: Engine, table: str, source: Step | str) -> None:
        super().__init__(engine, f"sink {table}", [source])
        self.table = table
        engine.target(table, {"sum": 0, "count": 0, "average": None})

    def reset(self, tid: int) -> None:
        self._values: list[Any] = []

    def take(self, port: int, delta: Delta) -> Rows:
        self._values.append(delta.row[0])
        return ()

    def finish(self, tid: int) -> Rows:
        known = self._engine.warehouse.snapshot()[self.table]
        total, count = known["sum"] + sum(self._values), known["count"] + len(self._values)
        following = {"sum": total, "count": count, "average": total / count if count else None}
        self.deliver(self.table, lambda content: following)
        return ()


def sums(content: Mapping[Any, tuple[Row, int]]) -> dict[Any, Row]:
    """Return the sums of an additive target without the numbers of rows."""
    return {key: values for key, (values, _) in content.items()}
