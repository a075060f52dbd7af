"""Facts and a slowly changing dimension in one flow: each fact finds the version of its own commit order.

In: changes of the dimension (key, attributes …) and facts, tagged with tasks.
Out: versions of the dimension (surrogate key, key, attributes …, start, end), and facts with the surrogate key.
Promise: look-up of task k, then close and insert of task k as one unit, then look-up of task k + 1 (A17); every reader sees exactly one current version of a
living key.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from righttime.testing.reference.engine import Engine
from righttime.testing.reference.rows import Change, Delta, Row, net_effect
from righttime.testing.reference.staging import Zone
from righttime.testing.reference.steps import Rows, Step

Versions = tuple[Row, ...]


def close_and_open(versions: Versions, changes: Sequence[Change], commit_us: int) -> tuple[Versions, Versions]:
    """Return the versions with those of changed keys ended at the commit, and the new ones (A18). What equals its current version changes nothing."""
    current = {row[1]: row for row in versions if row[-1] is None}
    real = [change for change in changes if change.after is None or current.get(change.after[0], ())[1:-2] != change.after]
    ending = {_key(change) for change in real}
    closed = tuple((*row[:-1], commit_us) if row[-1] is None and row[1] in ending else row for row in versions)
    next_key = 1 + max((row[0] for row in versions), default=0)
    after = [change.after for change in real if change.after is not None]
    return closed, tuple((next_key + number, *row, commit_us, None) for number, row in enumerate(after))


def _key(change: Change) -> Any:
    return (change.before or change.after or (None,))[0]


class History:
    """The dimension with all its versions, and the turn of those who work on it."""

    def __init__(self, changed: threading.Condition, initial: Versions) -> None:
        self._changed = changed
        self.rows = initial  # replaced whole, so a reader needs no lock
        self._jobs = {0: initial}
        self.looked_up = (0, 0)
        self.applied = (0, 0)
        self._parts: dict[str, Versions] = {}

    def hand_in(self, part: str, rows: Versions) -> None:
        """Take one half of a unit."""
        with self._changed:
            self._parts[part] = rows

    def publish(self, task: tuple[int, int]) -> None:
        """Make both halves of a unit visible at once."""
        with self._changed:
            self.rows = self._parts["closed"] + self._parts["opened"]
            self.applied = task
            self._changed.notify_all()

    def finish_look_up(self, task: tuple[int, int]) -> None:
        """Let the unit of the task go on."""
        with self._changed:
            self.looked_up = task
            self._changed.notify_all()

    def finish_job(self, tid: int) -> Versions:
        """Keep the versions after a job, and return them."""
        with self._changed:
            self._jobs[tid] = self.rows
            return self.rows

    def forget_after(self, tid: int) -> None:
        """Go back to the versions after a job."""
        with self._changed:
            self.rows = self._jobs[tid]
            self.looked_up = self.applied = (tid, 0)


class Unit(Step):
    """One half of close and insert: both halves meet at a barrier before anybody sees either."""

    def __init__(self, engine: Engine, name: str, stream: Step | str, history: History, meeting: Zone, part: str) -> None:
        super().__init__(engine, name, [stream])
        self._history, self._meeting, self._part = history, meeting, part

    def reset(self, tid: int) -> None:
        self._changes: list[Change] = []
        self._commit_us = 0

    def take(self, port: int, delta: Delta) -> Rows:
        self._changes.append(Change(delta.row, None) if delta.op == "D" else Change(None, delta.row))
        self._commit_us = delta.commit_us
        return ()

    def end_task(self, task: int) -> None:
        """Wait for the look-ups of the task, compute this half, and meet the other."""
        turn = (self.read_point, task)
        self.wait(lambda: self._history.looked_up >= turn)
        changes = net_effect(self._changes, lambda row: row[0])
        closed, opened = close_and_open(self._history.rows, changes, self._commit_us)
        self._history.hand_in(self._part, closed if self._part == "closed" else opened)
        self._engine.options.gate(self.name, "unit", self.read_point)
        if self._meeting.leave() == 0:
            self._history.publish(turn)
        self.wait(lambda: self._history.applied >= turn)
        self._changes = []


class Opener(Unit):
    """The half that inserts; at the end of a job it delivers the dimension."""

    def finish(self, tid: int) -> Rows:
        rows = self._history.finish_job(tid)
        self.deliver("dimension", lambda content: rows)
        return ()


class KeyLookup(Step):
    """Adds the surrogate key of the current version to each fact, task by task. Facts are inserts."""

    def __init__(self, engine: Engine, name: str, facts: Step | str, history: History, key: Callable[[Row], Any]) -> None:
        super().__init__(engine, name, [facts])
        self._history, self._key = history, key

    def take(self, port: int, delta: Delta) -> Rows:
        current = {row[1]: row[0] for row in self._history.rows if row[-1] is None}
        return [(delta.op, (*delta.row, current.get(self._key(delta.row))))]

    def end_task(self, task: int) -> None:
        """Hand over to the unit of the task, and wait for it."""
        turn = (self.read_point, task)
        self._history.finish_look_up(turn)
        self.wait(lambda: self._history.applied >= turn)


def scd_flow(engine: Engine, facts: Step | str, dimension: str, *, key: Callable[[Row], Any], initial: Versions) -> tuple[KeyLookup, History]:
    """Build look-up, close and insert as one ordered zone; return the look-up, whose output are the facts with their keys."""
    history = engine.shared("history", lambda: History(engine.changed, initial))
    engine.target("dimension", initial)
    meeting = engine.zone(2)
    Unit(engine, "update old", dimension, history, meeting, "closed")
    Opener(engine, "insert new", dimension, history, meeting, "opened")
    return KeyLookup(engine, "look-up", facts, history, key), history
