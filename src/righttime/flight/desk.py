"""The desk: where every message to the service arrives, is checked, and is answered.

In: the name of an action, a frame, and what the caller may do.
Out: a frame with the answer or with a coded error.
Promise: whatever arrives, the service stays up; work is bounded, each call is carried out once, and nothing new begins while the service stops.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from righttime.errors import AccessDenied, BadMessage, CommitFailed, CommitUnknown, NotLazy, RightTimeError, ServiceBusy, ServiceStopping
from righttime.flight.access import READ, WRITE, Grant, in_words
from righttime.flight.failures import failure_record
from righttime.flight.frames import Message, read_frame, still_there, write_frame
from righttime.flight.group_calls import GroupCalls
from righttime.flight.loading_calls import LoadingCalls
from righttime.flight.reading_calls import ReadingCalls
from righttime.flight.stream_calls import StreamCalls
from righttime.flight.warehouse_calls import Served, WarehouseCalls
from righttime.service import Engine
from righttime.telemetry import METRICS, get_log
from righttime.warehouse.postgres_types import check_storable

log = get_log("flight")

PROTOCOL = 1
_ANSWERS_MAX = 1024
_ID_LENGTH_MAX = 64
_TICKET_BYTES_MAX = 16 * 1024 * 1024
_ROWS_AT_ONCE = 65_536
_Found = TypeVar("_Found")
_APPENDING = frozenset({"stream.append", "stream.replay", "stream.discard"})
# What finishes work under way, which a stopping service still takes; commits only from producers that deliver what they owe by them.
_DELIVERING = frozenset({"session.commit", "session.stage"})
_FINISHING = frozenset(
    {"session.flush", "session.close", "session.rollback", "session.await", "snapshot.issue", "snapshot.release", "group.part", "group.whole", "renew", "hello"}
)
Call = Callable[[Message, Grant], Any]


class Desk:
    """Answers messages; safe to call from any thread."""

    def __init__(self, warehouse: Served, engine: Engine) -> None:
        self._engine = engine
        self.loading = LoadingCalls(engine)
        self.reading = ReadingCalls(engine, self.loading)
        self.group = GroupCalls(engine, self.reading.held)
        self._warehouse = WarehouseCalls(warehouse)
        self.streams = StreamCalls(
            engine.flows.feed.streams,
            bring_up=engine.flows.bring_up_stream,
            tap=lambda table, name: engine.flows.taps.tap(warehouse.schema(table), name),
        )
        self._turns = threading.BoundedSemaphore(engine.settings.calls_max)
        self._answers: OrderedDict[tuple[str, str], _Once] = OrderedDict()
        self._answers_lock = threading.Lock()
        self._idle = threading.Condition()
        self._working = 0
        self.stopping = False
        self._calls = self._table()

    def _table(self) -> Mapping[str, tuple[str, Call]]:
        own, loading, reading = self._warehouse, self.loading, self.reading
        calls: dict[str, tuple[str, Call]] = {
            "hello": (READ, lambda message, grant: self._hello(grant)),
            "renew": (READ, self._renew),
            "session.open": (WRITE, loading.open),
            "session.batch": (WRITE, loading.known_batch),
            "session.await": (WRITE, loading.await_requests),
            "session.drop": (WRITE, loading.drop_uploads),
            "database": (READ, reading.database),
            "snapshot.take": (READ, reading.take),
            "snapshot.release": (READ, reading.release),
            "snapshot.issue": (READ, reading.issue),
            "group.take": (READ, self._take_together),
            "group.clock": (READ, self.group.clock),
            "group.part": (READ, self.group.part),
            "group.whole": (READ, self.group.whole),
            "group.verify": (READ, self.group.verify),
            "group.claim": (WRITE, self.group.claim),
            "group.declared": (WRITE, self.group.declared),
            "group.disclaim": (WRITE, self.group.disclaim),
            "group.view": (WRITE, self.group.create_view),
            "streams": (READ, self.streams.names),
            "stream.schema": (READ, self.streams.schema),
            "stream.cut": (READ, self.streams.cut),
        }
        for name in ("create", "tap", "mark", "append", "replay", "discard", "heartbeat"):
            calls[f"stream.{name}"] = (WRITE, getattr(self.streams, name))
        for name in ("catalog", "receipt", "receipts", "verify", "status", "explain", "losses"):
            calls[name] = (READ, _plain(getattr(own, name)))
        for name in ("create_table", "create_view", "materialize", "adopt", "gc"):
            calls[name] = (WRITE, _plain(getattr(own, name)))
        return calls

    # -- messages ----------------------------------------------------------------------------------------------------

    def answer(self, action: str, frame: pa.Buffer, grant: Grant | None, gone: Callable[[], bool] = still_there) -> pa.Buffer:
        """Answer one message; `gone` tells whether nobody waits for the answer any more."""
        try:
            sent = read_frame(frame, bytes_max=self._engine.settings.message_bytes_max)
            message = Message(sent.header, sent.parts, gone)
            return self._admitted(action, grant, lambda allowed: self._carry_out(action, message, allowed))
        except BaseException as error:
            return failure_frame(action, error)

    def upload(self, frame: pa.Buffer, grant: Grant | None, batches: Iterable[pa.RecordBatch]) -> pa.Buffer:
        """Take a stream of rows; raises what `answer` would return."""
        message = read_frame(frame, bytes_max=self._engine.settings.message_bytes_max)
        return self._admitted("session.upload", grant, lambda allowed: write_frame(self.loading.upload(message, allowed, batches)))

    def rows(self, frame: bytes, grant: Grant | None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return what a ticket stands for; raises what `answer` would return. That of a snapshot is a right of its own, so that executors need no token."""
        ticket = read_frame(frame, bytes_max=_TICKET_BYTES_MAX)
        if "stream" not in ticket.header:
            return self.reading.rows(ticket)
        found = self._admitted("stream.rows", grant, lambda allowed: self.streams.rows(ticket))
        return found.schema, self._sent(found)

    def _sent(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        with self.reading.held.streaming():
            yield from table.to_batches(max_chunksize=_ROWS_AT_ONCE)

    def _admitted(self, action: str, grant: Grant | None, work: Callable[[Grant], _Found]) -> _Found:
        """Work on a call if its caller may make it and there is room for it."""
        if grant is None:
            raise AccessDenied(action=in_words(action), reason="the call carries no token that the service knows")
        scope = READ if action == "stream.rows" else self._calls[action][0] if action in self._calls else WRITE
        grant.require(scope, action=in_words(action))
        if action == "session.await":
            self._refuse_late(action)
            return work(grant)  # it only waits; the bound on sessions bounds it
        bounded = action != "snapshot.release"  # it makes room; calls that wait must not keep it from ending them
        if bounded and not self._turns.acquire(blocking=False):
            raise ServiceBusy(used=self._engine.settings.calls_max, what="calls", setting="calls_max")
        with self._idle:
            self._working += 1
        try:
            self._refuse_late(action)  # counted first: whoever stops the service waits for those who passed this
            return work(grant)
        finally:
            if bounded:
                self._turns.release()
            with self._idle:
                self._working -= 1
                self._idle.notify_all()

    def _refuse_late(self, action: str) -> None:
        """Refuse what is new while the service stops."""
        if self.stopping and action == "session.lazy":
            raise NotLazy(table="*")  # it would wait with its archive, which is needed now
        if self.stopping and action not in _FINISHING | _DELIVERING:
            raise ServiceStopping(target=str(self._engine.folder))

    def _carry_out(self, action: str, message: Message, grant: Grant) -> pa.Buffer:
        METRICS.counter("righttime_calls_total", description="Calls that the service got.").inc(action=action if action in self._known_actions() else "unknown")
        sequenced = self.loading.sequenced.get(action)
        if sequenced is not None:
            session = self.loading.sessions.get(message.text("session"), grant=grant.name)
            self.loading.heard(session)
            if self.stopping and action in _DELIVERING and not session.owed:
                raise ServiceStopping(target=str(self._engine.folder))
            answer = session.once(message.number("sequence"), lambda: _answered(action, lambda: sequenced(session, message)))
            if action == "session.close":
                self.loading.sessions.end(session, why="closed")
            return answer
        if action not in self._calls:
            raise BadMessage(reason=f"{action[:60]!r} is no action of this service")
        call = self._calls[action][1]
        if action in _APPENDING:
            # Those that were taken are known by their ids. This is for refusals: a copy that comes late must not be judged otherwise.
            return self._once((grant.name, message.text("append"))).answer(lambda: _answered(action, lambda: call(message, grant), passed_on=_in_doubt))
        call_id = message.optional_text("call")
        if call_id is None:
            return _answered(action, lambda: call(message, grant))
        return self._once((grant.name, call_id)).answer(lambda: _answered(action, lambda: call(message, grant)))

    def _known_actions(self) -> set[str]:
        return {*self._calls, *self.loading.sequenced}

    def _once(self, key: tuple[str, str]) -> "_Once":
        if len(key[1]) > _ID_LENGTH_MAX:
            raise BadMessage(reason=f"the id of a call has at most {_ID_LENGTH_MAX} characters")
        with self._answers_lock:
            once = self._answers.setdefault(key, _Once())
            self._answers.move_to_end(key)
            if len(self._answers) > _ANSWERS_MAX:
                # One that is still at work is kept: asked again, it must not be carried out again.
                oldest = next((known for known, call in self._answers.items() if call.ended), None)
                if oldest is not None and oldest != key:
                    del self._answers[oldest]
            return once

    def _hello(self, grant: Grant) -> dict[str, Any]:
        settings = self._engine.settings
        shared = ("message_bytes_max", "producer_lease_s", "session_ttl_s", "snapshot_ttl_s", "archive_bytes_max", "bypass_bytes")
        return {
            "protocol": PROTOCOL,
            "warehouse_id": self._engine.ledger.warehouse_id,
            "path": str(self._engine.folder),
            "settings": {name: getattr(settings, name) for name in shared},
            "scopes": sorted(grant.scopes),
            "values": "postgresql" if self._engine.port.check_storable is check_storable else "any",
        }

    def _renew(self, message: Message, grant: Grant) -> dict[str, Any]:
        return {"sessions": self.loading.renew(message, grant), "snapshots": self.reading.renew(message)}

    def _take_together(self, message: Message, grant: Grant) -> Any:
        """Take a snapshot at a time that was chosen for several catalysts."""
        self.group.observe(message.number("observe"), grant)
        try:
            return self.reading.take(message, grant)
        finally:
            self.group.abandon(message.optional_number("ticket"))

    # -- the end -----------------------------------------------------------------------------------------------------

    def await_idle(self, timeout_s: float) -> bool:
        """Wait until no call is under way; tell whether that came true in time."""
        with self._idle:
            return self._idle.wait_for(lambda: self._working == 0, timeout=timeout_s)


class _Once:
    """One call: carried out by the first who asks, the answer for all. One that raises has no answer, and is carried out again if it is asked for again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answer: pa.Buffer | None = None
        self.ended = False

    def answer(self, work: Callable[[], pa.Buffer]) -> pa.Buffer:
        with self._lock:
            if self._answer is None:
                self.ended = False
                try:
                    self._answer = work()
                finally:
                    self.ended = True
            return self._answer


def _answered(action: str, work: Callable[[], Any], *, passed_on: Callable[[BaseException], bool] = lambda error: False) -> pa.Buffer:
    """Return the answer as a frame, or the error, unless that is to be passed on."""
    try:
        answer = work()
        return write_frame(*answer) if isinstance(answer, tuple) else write_frame(answer)
    except BaseException as error:
        if passed_on(error):
            raise
        return failure_frame(action, error)


def _in_doubt(error: BaseException) -> bool:
    """Tell whether an error leaves open what became of an append: its feeder may ask again under the same id, and is not to hear the same for ever."""
    return not isinstance(error, RightTimeError) or isinstance(error, CommitUnknown | CommitFailed)


def failure_frame(action: str, error: BaseException) -> pa.Buffer:
    """Return an error as a frame; one without a name goes to the log."""
    note_failure(action, error)
    return write_frame({"error": failure_record(error)})


def note_failure(action: str, error: BaseException) -> None:
    """Log and count a failed call."""
    if isinstance(error, RightTimeError):
        log.info("call.refused", action=action[:60], code=error.code)
    else:
        log.error("call.failed", action=action[:60], error=repr(error), exc_info=True)
    METRICS.counter("righttime_call_errors_total", description="Calls that ended in an error.").inc(
        code=error.code if isinstance(error, RightTimeError) else "service.failed"
    )


def _plain(method: Callable[[Message], Any]) -> Call:
    return lambda message, grant: method(message)
