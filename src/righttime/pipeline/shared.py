"""Changes that several steps of a plan read, computed once.

In: the changes of each step as they are planned.
Out: the same, put aside where they are read more than once.
Promise: the plan of whatever follows begins at what was put aside: without that it would be written out anew for each use, and again for each use of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from righttime.pipeline.analysis import Analysed
from righttime.pipeline.kept import Kept, remembered
from righttime.pipeline.nodes import Apply, Derive, Lookup, Node, Select, StreamNode, Union, Where
from righttime.pipeline.operators.join import LEFT
from righttime.pipeline.operators.query import Frame, Query, Reach, frame_of, in_partitions
from righttime.pipeline.operators.signed import Signed

Inputs = Mapping[str, DataFrame | None]

_TASKS_MAX = 16  # for each core
_AS_BYTES = StorageLevel.MEMORY_AND_DISK


class Shared:
    """What one plan puts aside."""

    def __init__(self, analysed: Analysed, inputs: Inputs, kept: Kept, *, reach: Reach) -> None:
        self._analysed = analysed
        self._inputs = inputs
        self._kept = kept
        self._reach = reach
        self._changing = self._find_changing()
        self._uses = self._count_uses()
        self._cuts: list[tuple[DataFrame, DataFrame]] = []  # as planned, and as put aside

    def once(self, step: str, node: Node, made: Signed | None) -> Signed | None:
        """Return the changes of a step so that they are computed once, however often they are used."""
        # A few rows of a file are read again sooner than they are put aside.
        if made is None or self._uses[node] < 2 or (isinstance(node, StreamNode) and self._reach == "task"):
            return made
        columns = tuple(name for name in made.columns if name.startswith("_") or name in self._analysed.used[step])
        before = frame_of(self._gathered(replace(made, columns=columns).rows()))
        # As bytes where rows are few: of objects Spark estimates the size again and again, which takes longer than writing them.
        frame = before.localCheckpoint(eager=False, storageLevel=_AS_BYTES if self._reach == "task" else None)
        self._cuts.append((before, frame))
        return replace(made, frame=frame, columns=columns)

    def _gathered(self, rows: Frame) -> Frame:
        """Return rows in as few partitions as they need to be put aside in."""
        if self._reach == "task":
            # Of a union Spark does not know that it is in one partition, and would shuffle whatever comes after it.
            return self._kept.near(rows)
        # A union or a join has the partitions of all its parts. Where these are parts of one step there are twice as many with each step, and soon too many.
        with Query(rows) as sql:
            return sql.run(in_partitions(sql.view(rows), _TASKS_MAX * rows.sparkSession.sparkContext.defaultParallelism))

    @property
    def rdds(self) -> list[Any]:
        """What is computed once and put aside, as the JVM's RDDs."""
        return [rdd_of(frame) for _, frame in self._cuts]

    @property
    def planned(self) -> list[DataFrame]:
        """What is put aside, as it was planned."""
        return [before for before, _ in self._cuts]

    def close(self) -> None:
        """Let go of what was computed once."""
        for rdd in self.rdds:
            rdd.unpersist(False)

    def _count_uses(self) -> dict[Node, int]:
        """Return how often the changes of each step are read: once by a step that looks at rows, several times by one that keeps state."""
        uses = dict.fromkeys(self._analysed.ids, 0)
        for node in self._analysed.nodes.values():
            once = isinstance(node, Where | Select | Derive | Apply | Union) or (isinstance(node, Lookup) and self._reads_once(node))
            for given in node.inputs:
                uses[given] += 1 if once else 2
        for target in self._analysed.flow.targets:
            uses[target.node] += 2
        return uses

    def _reads_once(self, node: Lookup) -> bool:
        """Return whether a look-up only puts its left changes to rows that stay as they are."""
        plain = node.missing == "drop" or (node.missing == "null" and self._kept.is_plain(node))
        return plain and LEFT not in remembered(node) and node.right not in self._changing

    def _find_changing(self) -> set[Node]:
        """Return the steps behind which a stream has changes."""
        found: set[Node] = set()
        for node in self._analysed.nodes.values():
            changes = self._inputs.get(node.stream) is not None if isinstance(node, StreamNode) else not found.isdisjoint(node.inputs)
            if changes:
                found.add(node)
        return found


def rdd_of(frame: DataFrame) -> Any:
    """Return what a frame that was put aside begins at, as the JVM's RDD."""
    plan: Any = frame._jdf.queryExecution().logical()
    return plan.rdd()
