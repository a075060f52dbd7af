"""The incremental join as operators: the papers' three joins, two updates and a merger in zones, or one exact step.

In: two inputs and a layout.
Out: the last operator, which gives the changes of the join.
Promise: in every layout but `uncoordinated` each job joins the states after the job before it, whatever the threads' pace.
"""

from typing import Literal

from righttime.testing.reference.engine import Engine
from righttime.testing.reference.joins import On, by_sign
from righttime.testing.reference.rows import Bag, Delta, Signed, listed
from righttime.testing.reference.staging import Zone
from righttime.testing.reference.steps import Matcher, Merger, Prober, Rows, Step, Updater

Layout = Literal["two_zones", "one_barrier", "versioned", "uncoordinated"]


def join_flow(engine: Engine, left: Step | str, right: Step | str, on: On, *, layout: Layout, initial: tuple[Bag, Bag] | None = None) -> Step:
    """Join in source mode (A12): right for jobs whose changes all have the same sign."""
    table_left, table_right = engine.staging("R", initial and initial[0]), engine.staging("S", initial and initial[1])
    on_left, on_right = _zones(engine, layout)
    versioned = layout == "versioned"
    Updater(engine, "update R", left, table_left, zones=on_left)
    by_right = Prober(engine, "R with dS", right, table_left, on, left=False, versioned=versioned, zones=on_left)
    by_left = Prober(engine, "dR with S", left, table_right, on, left=True, versioned=versioned, zones=on_right)
    Updater(engine, "update S", right, table_right, zones=on_right)
    both = Matcher(engine, "dR with dS", left, right, on)
    return Merger(engine, "merger", [by_left, by_right, both])


def _zones(engine: Engine, layout: Layout) -> tuple[list[Zone], list[Zone]]:
    """Return the zones of those who touch R and of those who touch S."""
    if layout == "two_zones":
        return [engine.zone(2)], [engine.zone(2)]
    if layout == "one_barrier":
        zone = engine.zone(4)
        return [zone], [zone]
    return [], []


class ExactJoin(Step):
    """The join by signs (A13.1): right for all changes and for bags. It alone has the staging tables, so it needs no zone."""

    def __init__(self, engine: Engine, name: str, left: Step | str, right: Step | str, on: On, *, initial: tuple[Bag, Bag] | None = None) -> None:
        super().__init__(engine, name, [left, right])
        self._on = on
        self._left = engine.staging(f"{name} R", initial and initial[0])
        self._right = engine.staging(f"{name} S", initial and initial[1])

    def reset(self, tid: int) -> None:
        self._rows: tuple[list[Signed], list[Signed]] = ([], [])

    def take(self, port: int, delta: Delta) -> Rows:
        self._rows[port].append((delta.op, delta.row))
        return ()

    def finish(self, tid: int) -> Rows:
        more_left, more_right = self._rows
        joined = by_sign(more_left, more_right, self._left.at(tid - 1), self._right.at(tid - 1), self._on)
        for table, rows in ((self._left, more_left), (self._right, more_right)):
            table.apply(rows)
            table.publish(tid)
        return listed(joined)
