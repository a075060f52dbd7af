"""Appends on their way to a service: each under one id until it is answered.

In: messages that append to streams.
Out: their answers; an id for each, which the service keeps with what it makes of it.
Promise: an append is taken once, however often it is sent. One that nobody answered stays in doubt, and when the same one is sent again it goes under its
old id; what the service cannot know any more it says (`AppendForgotten`).
"""

import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from righttime.errors import (
    AccessDenied,
    AppendForgotten,
    AppendUnknown,
    BadMessage,
    CommitFailed,
    CommitUnknown,
    RightTimeError,
    ServiceFailed,
    ServiceUnreachable,
)
from righttime.flight.frames import Message, write_frame
from righttime.flight.transport import Transport
from righttime.queues.known import AppendId
from righttime.telemetry import get_log

log = get_log("flight")

_MARK_S = 1.0  # as long as this a mark is new: a service takes far fewer appends meanwhile than it remembers
_DOUBTS_MAX = 10_000
_OPEN = (ServiceUnreachable, ServiceFailed, CommitUnknown, CommitFailed, AccessDenied, BadMessage)
"""Errors that say nothing of an earlier attempt of the same append."""


class Appends:
    """The appends of one client; safe to call from any thread."""

    def __init__(self, transport: Callable[[], Transport]) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._doubts: dict[bytes, AppendId] = {}
        self._mark: tuple[int, float] | None = None

    def send(self, action: str, streams: str, header: Mapping[str, Any], parts: Sequence[Any] = ()) -> Message:
        """Send an append until it is answered; raise `AppendUnknown` if nobody answers."""
        transport = self._transport()
        append_id = self._doubted(action, header, parts) or AppendId(uuid.uuid4().hex, self._current_mark(transport))
        try:
            frame = write_frame({**header, "append": append_id.name, "mark": append_id.mark}, parts, bytes_max=transport.message_bytes_max)
            answer = transport.send(action, frame)
        except BaseException as error:  # Ctrl-C leaves it as open as a broken connection does
            if isinstance(error, AppendForgotten):
                self._mark = None  # the next one is to have a newer one
            elif isinstance(error, _OPEN) or not isinstance(error, RightTimeError):
                self._doubt(_digest(action, header, parts), append_id)
            if isinstance(error, ServiceUnreachable | ServiceFailed):
                raise AppendUnknown(stream=streams, reason=str(error).rstrip(".")) from error
            raise
        self._note(answer.number("mark"))
        return answer

    def _doubted(self, action: str, header: Mapping[str, Any], parts: Sequence[Any]) -> AppendId | None:
        """Return the id of the same append, if it is in doubt; it is nobody else's from now on."""
        if not self._doubts:
            return None
        with self._lock:
            return self._doubts.pop(_digest(action, header, parts), None)

    def _doubt(self, digest: bytes, append_id: AppendId) -> None:
        with self._lock:
            self._doubts[digest] = append_id
            if len(self._doubts) > _DOUBTS_MAX:
                left = self._doubts.pop(next(iter(self._doubts)))
                log.warning("append.left", append=left.name)

    def _current_mark(self, transport: Transport) -> int:
        """Return how many appends the service had taken a moment ago; if it cannot be asked, nothing has been sent yet."""
        mark = self._mark
        if mark is None or time.monotonic() - mark[1] > _MARK_S:
            mark = self._note(transport.call("stream.mark").number("mark"))
        return mark[0]

    def _note(self, mark: int) -> tuple[int, float]:
        self._mark = noted = (mark, time.monotonic())
        return noted


def _digest(action: str, header: Mapping[str, Any], parts: Sequence[Any]) -> bytes:
    digest = hashlib.sha256(json.dumps([action, header]).encode())
    for part in parts:
        digest.update(memoryview(part))
    return digest.digest()
