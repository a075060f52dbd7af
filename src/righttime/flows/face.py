"""Streams and flows as the handle of a warehouse shows them.

In: calls of users.
Out: streams to feed, flows that run.
Promise: the same methods on every handle; where the warehouse is open in another process they say so and change nothing.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from datetime import timedelta

import pyarrow as pa

from righttime.changes.durations import Duration
from righttime.changes.schema import TableSchema
from righttime.errors.flows import NotHere
from righttime.flows.explain import Explanation
from righttime.flows.jobs import FlowStatus
from righttime.flows.manager import Flows
from righttime.flows.running import RunningFlow
from righttime.pipeline.flow import Flow
from righttime.queues.declared import Appended, ChangesIn, OnBad, Times
from righttime.queues.stream import Moment, Stream, moment_us


class FlowMethods:
    """What a warehouse can do with streams and flows."""

    @abstractmethod
    def _flows(self, what: str) -> Flows:
        """Return the flows of this process; raises if they are elsewhere or the handle only reads."""

    def create_stream(
        self,
        name: str,
        columns: str | pa.Schema,
        *,
        keys: Iterable[str] = (),
        times: Times = "warehouse",
        on_bad: OnBad = "error",
        tolerance: Duration | None = None,
        comment: str | None = None,
        if_not_exists: bool = False,
    ) -> Stream:
        """Declare a stream: the ordered changes of a source table, columns as Spark DDL or a pyarrow schema.

        With `times="source"` the source says when its commits were; queries then wait until it has delivered, at most as long as they allow, and
        `tolerance` is the lag that they put up with. With `on_bad="dead_letter"` changes that cannot be are kept apart and the others taken.
        """
        streams = self._flows("create a stream").feed.streams
        streams.create(name, columns, keys=keys, times=times, on_bad=on_bad, tolerance=tolerance, comment=comment, if_not_exists=if_not_exists)
        return self.stream(name)

    def create_streams(self, flow: Flow) -> list[Stream]:
        """Make the streams that a flow declares with their columns, as far as they are missing; `run` does the same. Returns all of them."""
        streams = self._flows("create streams").feed.streams
        for schema in flow.missing({name: streams.schema(name) for name in streams.names()}):
            tolerance = None if schema.tolerance_us is None else timedelta(microseconds=schema.tolerance_us)
            streams.create(schema.name, schema.columns, keys=schema.keys, times=schema.times, on_bad=schema.on_bad, tolerance=tolerance, comment=schema.comment)
        return [self.stream(schema.name) for schema in flow.declared]

    def tap(self, table: str, *, stream: str | None = None) -> Stream:
        """Make what happens to a table of the warehouse a stream, named like the table if no other name is given; flows read it like any other.

        The table has `unique=True`, so that its changes can be told by key. Its rows as they are become the first changes.
        """
        flows, name = self._flows("tap a table"), stream or table
        flows.taps.tap(self.schema(table), name.lower())
        return self.stream(name)

    @abstractmethod
    def schema(self, table: str) -> TableSchema:
        """Return a table's declaration."""

    def stream(self, name: str) -> Stream:
        """Return a stream, to feed it or to look at it."""
        flows = self._flows("open a stream")
        return Stream(flows.feed.streams, name, bring_up=flows.bring_up_stream)

    def streams(self) -> list[str]:
        """Return the names of the streams."""
        return sorted(self._flows("list streams").feed.streams.names())

    def append(self, changes: Mapping[str, ChangesIn], *, transaction: str | None = None, time: Moment | None = None) -> Appended:
        """Append one transaction of a source to several streams: all of it or nothing, at one commit time."""
        return self._flows("append changes").feed.streams.append(changes, transaction=transaction, time_us=moment_us(time))

    def run(self, flow: Flow, *, refresh: bool = False) -> RunningFlow:
        """Keep the targets of a flow as it declares them, until the handle is stopped or the warehouse closed.

        The first time, everything that its streams have is loaded. A flow that is declared differently than before is refused, and with
        `refresh=True` its targets are built anew; until that is done, queries are answered on the old state.
        """
        flows = self._flows("run a flow")
        self.create_streams(flow)
        return RunningFlow(flows, flows.run(flow, refresh=refresh))

    def flows(self) -> list[FlowStatus]:
        """Return how each flow is: what waits, how far it is, its last jobs."""
        return self._flows("list flows").status()

    @abstractmethod
    def explain(self, query: str, *, freshness: Duration | None = None) -> Explanation:
        """Say what a query would wait for if it came now: flows, streams, jobs, rows, and an estimate of the time."""


class NoFlows(FlowMethods):
    """The same where the warehouse is open in another process."""

    def _flows(self, what: str) -> Flows:
        raise NotHere(what=what)

    def explain(self, query: str, *, freshness: Duration | None = None) -> Explanation:
        raise NotHere(what="explain a query")
