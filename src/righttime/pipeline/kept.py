"""What earlier drains left, as the steps of one drain read it.

In: the states of a flow, and the jobs of the drain.
Out: frames of the kept rows; of a look-up's left side also where nothing is kept of it.
Promise: in a drain of one task every frame is one partition. Of look-ups in a row only the first keeps its left rows: what the others had follows from these
and from the right sides, which are kept, and is made again when a right side changes, for the rows that the change concerns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from righttime.pipeline.analysis import Analysed
from righttime.pipeline.nodes import AsOf, Lookup
from righttime.pipeline.operators.join import BOTH, LEFT, RIGHT, Remember, columns_of, join, lookup, lookup_or_null
from righttime.pipeline.operators.normal import needs_grouping
from righttime.pipeline.operators.query import Frame, Query, Reach, frame_of, in_one_partition
from righttime.pipeline.operators.signed import Parts, Signed, touched
from righttime.pipeline.reach import RESIDENT_BYTES, States, bytes_of
from righttime.pipeline.spans import Spans, Traced

Wanted = Callable[[Traced], Spans]
"""Tells which values of a part matter, given those of a drain's changes."""


@dataclass(frozen=True)
class Read:
    """One look at the state: which part (None: all of a step) with which values, or whether something was ever taken back from it."""

    step: str
    part: str | None
    wanted: Wanted | None = None
    only_is_net: bool = False


class Kept:
    """The state that one drain reads; `reads` tells what that was, so that another drain can find out whether it would read the same.

    Where the plan `serves_again`, small right sides of look-ups are read once and stay in memory: `resident` has them, for whoever lets them go.
    """

    def __init__(
        self, analysed: Analysed, child: SparkSession, states: States, jobs: range, traced: Traced, *, reach: Reach, serves_again: bool = False
    ) -> None:
        self._analysed = analysed
        self._child = child
        self._states = states
        self._up_to_job = jobs.start - 1
        self._traced = traced
        self._reach = reach
        self._serves_again = serves_again
        self.reads: list[Read] = []
        self.resident: list[DataFrame] = []
        self._resident_bytes = 0

    def near(self, relation: Frame) -> Frame:
        """Return the relation as the operators of this drain take it."""
        if self._reach != "task":
            return relation
        with Query(relation) as sql:
            return sql.run(in_one_partition(sql.view(relation)))

    def parts(self, step: str, wanted: Wanted) -> Parts:
        """Return all parts of a step that have rows; of those that cannot have the wanted values some may be left out."""
        self.reads.append(Read(step, None, wanted))
        found = self._states.frames(self._child, step, up_to_job=self._up_to_job, wanted=wanted(self._traced))
        return {part: self.near(frame) for part, frame in found.items()}

    def part(self, step: str, part: str, wanted: Wanted | None = None) -> Frame | None:
        """Return the rows of one part, None if there are none; as `parts` otherwise."""
        self.reads.append(Read(step, part, wanted))
        found = self._states.frame(self._child, step, part, up_to_job=self._up_to_job, wanted=None if wanted is None else wanted(self._traced))
        return None if found is None else self.near(found)

    def sides(self, step: str, left: Signed | None, right: Signed | None, wanted: tuple[Wanted, Wanted] | None = None, *, always_right: bool = False) -> Parts:
        """Return the kept rows of a join that changes of the other side meet; what cannot have the wanted keys, given for each side, may be left out."""
        of_left, of_right = (None, None) if wanted is None else wanted
        found = {
            LEFT: self.part(step, LEFT, of_left) if right is not None else None,
            RIGHT: self.part(step, RIGHT, of_right) if left is not None or always_right else None,
        }
        return {part: frame for part, frame in found.items() if frame is not None}

    def is_net(self, step: str, part: str) -> bool:
        """Return whether no row of a part was ever taken back, so that each of its lines is a row; true of whatever is read of it after this was asked."""
        self.reads.append(Read(step, part, only_is_net=True))
        return self._states.is_net(step, part)

    def is_plain(self, node: Lookup) -> bool:
        """Return whether left rows of a look-up can be joined with its kept right rows as they are: none was taken back, and grouping would change no value."""
        step = self._analysed.ids[node]
        names = {*self._analysed.read_columns(node, 0), *taken(self._analysed, node)}
        return not any(map(needs_grouping, types_of(self._analysed, step, names).values())) and self.is_net(step, RIGHT)

    # -- look-ups ----------------------------------------------------------------------------------------------------

    def sides_of_lookup(self, node: Lookup, left: Signed | None, right: Signed | None) -> Parts:
        """Return the kept rows of a look-up that changes of the other side meet."""
        step = self._analysed.ids[node]
        rows = self.part(step, RIGHT) if left is not None else None
        found = {LEFT: self._left_of(node, right) if right is not None else None, RIGHT: rows if rows is None else self._in_memory(rows)}
        return {part: frame for part, frame in found.items() if frame is not None}

    def _in_memory(self, rows: Frame) -> Frame:
        """Return rows so that the runs of a plan after the first one find them in memory, if they are few, and open no file again."""
        if not self._serves_again:
            return rows
        frame = frame_of(rows)
        size = bytes_of(frame)
        if self._resident_bytes + size > RESIDENT_BYTES:
            return rows
        self._resident_bytes += size
        self.resident.append(frame.localCheckpoint(eager=False))
        return self.resident[-1]

    def _left_of(self, node: Lookup, right: Signed) -> Frame | None:
        """Return the left rows that changes of the right side may meet."""
        before = lookups_before(node)
        kept = self.part(self._analysed.ids[before[0] if before else node], LEFT)
        if kept is None or not before:
            return kept
        rows = Signed(kept, columns_of(kept), "shuffled")
        if {name for name, _ in node.on} <= set(rows.columns):
            with Query(kept) as sql:
                few = sql.run(touched(sql.view(kept), sql.view(right.frame), node.on, reach=self._reach))
            rows = replace(rows, frame=few)
        for one in before:
            there = self._looked_up(one, rows)
            if there is None:
                return None
            rows = there
        # The first one has kept more than this one reads; a dead letter of a later step would be another with it.
        return replace(rows, columns=self._analysed.read_columns(node, 0)).rows()

    def _looked_up(self, node: Lookup, left: Signed) -> Signed | None:
        """Return what a look-up had made of some of its left rows before this drain."""
        step = self._analysed.ids[node]
        right = self.part(step, RIGHT)
        state = {} if right is None else {RIGHT: right}
        take = taken(self._analysed, node)
        if node.missing == "null":
            return lookup_or_null(left, None, state, on=node.on, take=take, types=types_of(self._analysed, step, take), remember=())[0]
        if node.missing == "drop":
            return join(left, None, state, on=node.on, take=take, remember=())[0]
        return lookup(left, None, state, on=node.on, take=take, remember=())[0]


def lookups_before(node: Lookup) -> list[Lookup]:
    """Return the look-ups in a row that end right before this one, first one first."""
    found: list[Lookup] = []
    while isinstance(node.left, Lookup):
        node = node.left
        found.insert(0, node)
    return found


def remembered(node: Lookup) -> Remember:
    """Return which sides of a look-up are kept."""
    return (RIGHT,) if isinstance(node.left, Lookup) else BOTH


def taken(analysed: Analysed, node: Lookup | AsOf) -> dict[str, str]:
    """Return the columns that a look-up takes and somebody uses, by their new name."""
    used = analysed.used[analysed.ids[node]]
    return {name: column for name, column in node.take if name in used}


def types_of(analysed: Analysed, step: str, names: Collection[str]) -> dict[str, DataType]:
    """Return the types of some columns of a step."""
    return {field.name: field.dataType for field in analysed.schemas[step] if field.name in names}
