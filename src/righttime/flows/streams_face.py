"""Streams as the handle of a warehouse shows them.

In: calls of users.
Out: streams to feed and to look at.
Promise: the same methods on every handle, built on the streams of this process or of a service.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

import pyarrow as pa

from righttime.changes.durations import Duration
from righttime.changes.schema import TableSchema
from righttime.errors import BadArgument
from righttime.pipeline.flow import Flow
from righttime.queues.declared import Appended, ChangesIn, OnBad, Times
from righttime.queues.port import StreamPort
from righttime.queues.stream import Moment, Stream, moment_us


class StreamMethods:
    """What a warehouse can do with streams."""

    @abstractmethod
    def _streams(self, what: str) -> StreamPort:
        """Return the streams; raises if they cannot be used with this handle."""

    @abstractmethod
    def _tap(self, table: str, name: str) -> None:
        """Make what happens to a table a stream."""

    @abstractmethod
    def _bringing_up(self) -> Callable[[str], None]:
        """Return what lets a stream of a table have what happened to it until now."""

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
        `tolerance`, which only such streams have, is the lag that they put up with.
        With `on_bad="dead_letter"` changes that cannot be are kept apart and the others taken.
        """
        streams = self._streams("create a stream")
        streams.create(name, columns, keys=keys, times=times, on_bad=on_bad, tolerance=tolerance, comment=comment, if_not_exists=if_not_exists)
        return self.stream(name)

    def create_streams(self, flow: Flow) -> list[Stream]:
        """Make the streams that a flow declares with their columns, as far as they are missing; `run` does the same. Returns all of them."""
        streams = self._streams("create streams")
        if not isinstance(flow, Flow):
            raise BadArgument(name="flow", reason=f'a {type(flow).__name__} was given; give a Flow, as `flow = Flow("name")` makes one')
        for schema in flow.missing({name: streams.schema(name) for name in streams.names()}):
            tolerance = None if schema.tolerance_us is None else timedelta(microseconds=schema.tolerance_us)
            streams.create(schema.name, schema.columns, keys=schema.keys, times=schema.times, on_bad=schema.on_bad, tolerance=tolerance, comment=schema.comment)
        return [self.stream(schema.name) for schema in flow.declared]

    def tap(self, table: str, *, stream: str | None = None) -> Stream:
        """Make what happens to a table of the warehouse a stream, named like the table if no other name is given; flows read it like any other.

        The table has `unique=True`, so that its changes can be told by key. Its rows as they are become the first changes.
        """
        name = table if stream is None else stream
        for argument, given in (("table", table), ("stream", name)):
            if not isinstance(given, str):
                raise BadArgument(name=argument, reason=f"{given!r} is no name; give one as text")
        self._tap(table, name.lower())
        return self.stream(name)

    @abstractmethod
    def schema(self, table: str) -> TableSchema:
        """Return a table's declaration."""

    def stream(self, name: str) -> Stream:
        """Return a stream, to feed it or to look at it."""
        return Stream(self._streams("open a stream"), name, bring_up=self._bringing_up())

    def streams(self) -> list[str]:
        """Return the names of the streams."""
        return sorted(self._streams("list streams").names())

    def append(self, changes: Mapping[str, ChangesIn], *, transaction: str | None = None, time: Moment | None = None) -> Appended:
        """Append one transaction of a source to several streams: all of it or nothing, at one commit time."""
        streams = self._streams("append changes")
        if not isinstance(changes, Mapping):
            reason = f"a {type(changes).__name__} was given; give the changes of each stream under its name, or use Stream.append"
            raise BadArgument(name="changes", reason=reason)
        return streams.append(changes, transaction=transaction, time_us=moment_us(time))
