"""Long histories of the state machine: one life after the other on the same rows, which are stored, changed, read and lost; Hypothesis prefers short ones.

In: a machine, and dice.
Out: an assertion, if an answer is not that of the list model.
Promise: the same dice, bounds and steps give the same history.
"""

import random
from collections.abc import Callable, Sequence

from righttime.changes.faults import CrashPoint
from tests.simulation.test_state_machine import BOUNDS, CHANGES, POLICIES, SOURCES, TABLES, Machine

POINTS = [CrashPoint.LOG_WRITTEN, CrashPoint.FILES_WRITTEN, CrashPoint.TABLE_COMMITTED, CrashPoint.TABLES_COMMITTED, CrashPoint.LEDGER_BEGUN]
POINTS += [CrashPoint.LEDGER_COMMITTED, CrashPoint.NOTICE_GIVEN]
"""Steps of a durable commit, in every place."""
STEPS = 120
Move = tuple[int, Callable[[], None]]
"""How often, compared with others, and what."""


class Walk:
    """Chooses what happens next."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine = machine
        self.dice = random.Random(seed)
        self.bounds = sorted(BOUNDS)[seed % len(BOUNDS)]

    def run(self, moves: Sequence[Move] = ()) -> None:
        """Live through it; `moves` are further ones that only this place has."""
        self.machine.begin(self.bounds)
        try:
            every = [*self._moves(), *moves]
            for move in self.dice.choices([move for _, move in every], [weight for weight, _ in every], k=STEPS):
                move()
                self.machine.bounds_are_kept()
            self.machine.read_together(list(TABLES), 0)
        finally:
            self.machine.teardown()

    def _moves(self) -> list[Move]:
        machine, dice = self.machine, self.dice
        return [
            (6, lambda: machine.load(self.source(), [(self.table(), dice.randint(1, 9)), (self.table(), 2)], self.way())),
            (8, lambda: machine.load_changes(self.source(), self.changes(), self.way())),
            (1, lambda: machine.flush(self.source(), [])),
            (3, lambda: machine.materialize(self.some())),
            (4, lambda: machine.read(self.table(), dice.choice([0, 0, 1, 10]), True)),
            (3, lambda: machine.read_together(self.some(), dice.choice([0, 10]))),
            (3, lambda: machine.read_as_of(self.some(), dice.randint(0, 1000), dice.choice([-1, 0, 1]))),
            (2, lambda: machine.read_own(self.source(), self.some())),
            (2, lambda: machine.hold(self.some(), 0)),
            (4, lambda: machine.read_held(dice.randint(0, 2), True)),
            (1, lambda: machine.verify(dice.randint(0, 1000))),
            (1, lambda: machine.disk_fails(self.source(), self.table(), dice.choice(["write_files", "remove", "commit", "write_state"]), 1, "warehouse")),
            (1, lambda: machine.time_passes(7.0)),
            (1, lambda: machine.open_anew(self.source(), dice.choice(sorted(POLICIES)))),
            (1, lambda: machine.reopen()),
            (2, lambda: machine.crash()),
            (
                2,
                lambda: machine.crash_in_commit(self.source(), self.table(), ("warehouse", self.point()), dice.choice([None, "b1"]), 1, dice.choice([None, 3])),
            ),
        ]

    def source(self) -> str:
        return self.dice.choice(SOURCES)

    def table(self) -> str:
        return self.dice.choice(sorted(TABLES))

    def some(self) -> list[str]:
        return self.dice.sample(sorted(TABLES), self.dice.randint(1, 3))

    def changes(self) -> list[tuple[str, str, int, int]]:
        count = self.dice.randint(1, 3)
        return [(self.table(), self.dice.choice(CHANGES), self.dice.randint(0, 25), self.dice.randint(1, 4)) for _ in range(count)]

    def way(self) -> str:
        return self.dice.choice(["memory", "memory", "log", "warehouse"])

    def back(self) -> int | None:
        return self.dice.choice([None, 3])

    def point(self) -> CrashPoint:
        return self.dice.choice(POINTS)
