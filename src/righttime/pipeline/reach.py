"""How far the rows of a drain travel: not at all in small drains, which run as one task without exchanges.

In: the frames of a drain.
Out: the reach that its operators are written for, and a session that is set up for it.
Promise: the outcome does not depend on it, only the time that it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from righttime.pipeline.nodes import Node
from righttime.pipeline.operators.query import Reach
from righttime.pipeline.spans import Spans

MIB = 1024 * 1024
TASK_BYTES = 16 * MIB
TASK_STATE_BYTES = 128 * MIB
SENT_BYTES = 256 * MIB
RESIDENT_BYTES = 8 * MIB  # of files; rows in memory take several times as much
WAYS_MAX = 256

# Everything is in one partition: no exchange is needed, hash tables are built in place, and nothing is decided while the drain runs.
ONE_TASK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
    # One partition is parted again if Spark thinks it too large, and it takes a join to be as large as the product of its sides: after three or four of
    # them larger than any bound that can be set. So everything counts as small.
    "spark.sql.maxSinglePartitionBytes": str(2**63 - 1),
    "spark.sql.sources.fileCompressionFactor": "1e-12",
    "spark.sql.files.minPartitionNum": "1",
    # It would move a join below the step that makes one partition of a relation.
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PushDownLeftSemiAntiJoin",
}


class States(Protocol):
    """What earlier drains left, by step."""

    def frame(self, child: SparkSession, node: str, part: str, *, up_to_job: int | None = None, wanted: Spans | None = None) -> DataFrame | None: ...

    def frames(self, child: SparkSession, node: str, *, up_to_job: int | None = None, wanted: Spans | None = None) -> dict[str, DataFrame]: ...

    def is_net(self, node: str, part: str) -> bool: ...


class TooMuchState(Exception):
    """The state that a drain reads is too much for one task."""


class Watched:
    """States that say when they are too much for one task."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._bytes = 0

    def frame(self, child: SparkSession, node: str, part: str, *, up_to_job: int | None = None, wanted: Spans | None = None) -> DataFrame | None:
        """Return one part."""
        found = self._states.frame(child, node, part, up_to_job=up_to_job, wanted=wanted)
        self._count([found] if found is not None else [])
        return found

    def frames(self, child: SparkSession, node: str, *, up_to_job: int | None = None, wanted: Spans | None = None) -> dict[str, DataFrame]:
        """Return all parts of a step."""
        found = self._states.frames(child, node, up_to_job=up_to_job, wanted=wanted)
        self._count(found.values())
        return found

    def is_net(self, node: str, part: str) -> bool:
        """Return whether no row of a part was ever taken back."""
        return self._states.is_net(node, part)

    def _count(self, frames: Iterable[DataFrame]) -> None:
        self._bytes += sum(map(bytes_of, frames))
        if self._bytes > TASK_STATE_BYTES:
            raise TooMuchState


def reach_of(inputs: Iterable[DataFrame | None]) -> Reach:
    """Return the reach for changes of this size."""
    size = sum(bytes_of(frame) for frame in inputs if frame is not None)
    return "task" if size <= TASK_BYTES else "sent" if size <= SENT_BYTES else "shuffled"


def one_task(order: Iterable[Node]) -> dict[str, str]:
    """Return how a session is set up for drains of one task of a flow with these steps, inputs first."""
    ways: dict[Node, int] = {}
    for node in order:
        ways[node] = sum(ways[given] for given in node.inputs) or 1
    if max(ways.values(), default=1) <= WAYS_MAX:
        return ONE_TASK
    # Of a union of parts that are in one partition Spark makes one, too, and asks along every way down to the files where it is best computed. There are
    # twice as many with each step that is read twice, and from some number on it is sooner done to exchange a few rows.
    return ONE_TASK | {"spark.sql.unionOutputPartitioning": "false"}


@contextmanager
def set_up(child: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set the session up for a drain."""
    conf: Any = child._jsparkSession.conf()
    before = {name: conf.getOption(name) for name in settings}
    for name in before:
        conf.set(name, settings[name])
    try:
        yield
    finally:
        for name, value in before.items():
            conf.set(name, value.get()) if value.isDefined() else conf.unset(name)


def bytes_of(frame: DataFrame) -> int:
    """Return the size of the files that a frame scans, as they are on disk; of other relations what Spark takes it to be."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = [leaves.apply(place) for place in range(leaves.size())]
    sizes = [leaf.relation().location() if leaf.getClass().getSimpleName() == "LogicalRelation" else leaf.stats() for leaf in found]
    return sum(int(str(size.sizeInBytes())) for size in sizes)
