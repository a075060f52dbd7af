"""Flows as the handle of a warehouse shows them.

In: calls of users.
Out: flows that run.
Promise: the same methods on every handle; where the warehouse is open in another process they say so and change nothing.
"""

from abc import abstractmethod
from collections.abc import Callable

from righttime.changes.durations import Duration
from righttime.errors.flows import NotHere
from righttime.flows.explain import Explanation
from righttime.flows.jobs import FlowStatus
from righttime.flows.manager import Flows
from righttime.flows.running import RunningFlow
from righttime.flows.streams_face import StreamMethods
from righttime.pipeline.flow import Flow
from righttime.queues.port import StreamPort


class FlowMethods(StreamMethods):
    """What a warehouse can do with streams and flows."""

    @abstractmethod
    def _flows(self, what: str) -> Flows:
        """Return the flows of this process; raises if they are elsewhere or the handle only reads."""

    def _streams(self, what: str) -> StreamPort:
        return self._flows(what).feed.streams

    def _bringing_up(self) -> Callable[[str], None]:
        return self._flows("open a stream").bring_up_stream

    def _tap(self, table: str, name: str) -> None:
        self._flows("tap a table").taps.tap(self.schema(table), name)

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
