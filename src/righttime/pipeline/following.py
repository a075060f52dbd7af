"""State that follows from what a drain is given, or from what else it gives: nothing that Spark would have to compute.

In: the changes of a drain as Arrow tables, and the lines of its targets.
Out: rows of state.
Promise: the rows that the same output would have if Spark computed it, as one set: a part of state has no order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from righttime.pipeline.nodes import Join, Lookup, Node, StreamNode
from righttime.pipeline.operators.join import LEFT, RIGHT
from righttime.pipeline.operators.signed import JOB, WEIGHT
from righttime.pipeline.operators.target import DELETE, INSERT, OPERATION


@dataclass(frozen=True)
class ChangesKept:
    """The changes of a stream, kept as they are."""

    stream: str

    def rows(self, columns: pa.Schema, changes: Mapping[str, pa.Table], lines: Mapping[str, pa.Table]) -> pa.Table:
        """Return them with the columns of the part."""
        return changes[self.stream].select(columns.names).cast(columns)


@dataclass(frozen=True)
class LinesCounted:
    """By how much the lines of a target change the number of rows of each key: an update does not, and a clash stops the flow."""

    table: str
    keys: tuple[str, ...]

    def rows(self, columns: pa.Schema, changes: Mapping[str, pa.Table], lines: Mapping[str, pa.Table]) -> pa.Table:
        """Return that by job and key."""
        there = lines[self.table]
        operation = there.column(OPERATION)
        weight = pc.subtract(pc.equal(operation, INSERT).cast(pa.int64()), pc.equal(operation, DELETE).cast(pa.int64()))
        counted = there.select([*self.keys, JOB]).append_column(WEIGHT, weight)
        return counted.filter(pc.not_equal(weight, 0)).select(columns.names).cast(columns)


Follows = ChangesKept | LinesCounted


def changes_kept(node: Node, part: str) -> ChangesKept | None:
    """Return what a part of a step's state is, if that is the changes of a stream."""
    if not isinstance(node, Join | Lookup) or part not in (LEFT, RIGHT):
        return None
    given = node.inputs[0 if part == LEFT else 1]
    return ChangesKept(given.stream) if isinstance(given, StreamNode) else None
