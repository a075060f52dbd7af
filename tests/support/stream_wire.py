"""Streams as a client sees them, with every message written and read as on the wire, and no wire.

In: streams of this process.
Out: the same behind `RemoteStreams`; what only this process can ask is asked directly.
Promise: whatever crosses is bytes, as between two processes.
"""

from typing import Any

import pyarrow as pa

from righttime.errors import RightTimeError
from righttime.flight.access import READ, WRITE, Grant
from righttime.flight.desk import _answered
from righttime.flight.failures import failure_of, failure_record
from righttime.flight.frames import Message, read_frame, write_frame
from righttime.flight.stream_calls import StreamCalls
from righttime.flight.streams import RemoteStreams
from righttime.queues.streams import Streams

GRANT = Grant("tester", frozenset({READ, WRITE}))


class Wire:
    """Takes messages as a transport does, and hands them to the calls of streams."""

    message_bytes_max = 1 << 24

    def __init__(self, streams: Streams) -> None:
        self._calls = StreamCalls(streams, bring_up=lambda name: None, tap=lambda table, name: None)

    def call(self, action: str, header: dict[str, Any] | None = None, parts: Any = (), **options: Any) -> Message:
        return self.send(action, write_frame(header or {}, parts, bytes_max=self.message_bytes_max))

    def send(self, action: str, frame: pa.Buffer, **options: Any) -> Message:
        message = read_frame(frame.to_pybytes(), bytes_max=self.message_bytes_max)
        name = {"streams": "names"}.get(action, action.removeprefix("stream."))
        answer = read_frame(_answered(action, lambda: getattr(self._calls, name)(message, GRANT)).to_pybytes(), bytes_max=1 << 30)
        if "error" in answer.header:
            raise failure_of(answer.header["error"])
        return answer

    def rows(self, ticket: dict[str, Any]) -> pa.Table:
        try:
            return self._calls.rows(read_frame(write_frame(ticket).to_pybytes(), bytes_max=1 << 20))
        except RightTimeError as error:
            raise failure_of(failure_record(error)) from error


class WiredStreams(RemoteStreams):
    """Streams of this process, fed and read over messages."""

    def __init__(self, streams: Streams) -> None:
        wire: Any = Wire(streams)
        super().__init__(lambda: wire)
        self._here = streams

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here, name)
