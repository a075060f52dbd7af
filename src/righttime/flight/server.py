"""The server: the desk behind Arrow Flight.

In: Flight calls: actions for messages, do_put for uploads, do_get for the rows of held snapshots.
Out: what the desk answers.
Promise: a call that is not of this service gets a coded error, and the next call is served.
"""

import errno
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from righttime.catalyst.messages import Accuracy
from righttime.errors import AccessDenied, BadMessage, BadSetting, RightTimeError
from righttime.flight.access import READ, GrantFactory, GrantMiddleware, Tokens, check_exposure
from righttime.flight.desk import Desk, note_failure
from righttime.flight.failures import failure_text
from righttime.flight.transport import Target
from righttime.flight.warehouse_calls import Served
from righttime.service import Engine
from righttime.telemetry import get_log

log = get_log("flight")

_LOOK_S = 1.0
_SHUTDOWN = "righttime-flight-shutdown"


class FlightService:
    """One served warehouse: starts to listen when it is made, ends with `stop`."""

    def __init__(
        self, warehouse: Served, engine: Engine, *, host: str = "127.0.0.1", port: int = 0, tokens: Tokens | None = None, tls: tuple[bytes, bytes] | None = None
    ) -> None:
        tokens, host = tokens or Tokens(), host.strip("[]")
        check_address(host, port, tokens)
        self._engine = engine
        self.desk = Desk(warehouse, engine)
        self.desk.reading.lay_out()
        self.host = host
        self.tls = tls is not None
        try:
            self._server = _Server(self.desk, host, port, tokens, tls)
        except BaseException as error:
            self.desk.reading.clear_away()
            if isinstance(error, RightTimeError):
                raise
            # The address was free a moment ago, so mostly it is the certificate; Flight says neither.
            name = "tls-cert, tls-key" if tls else "host, port"
            raise BadSetting(name=name, reason=f"the service cannot listen on {_shown(host, port)} ({type(error).__name__})") from error
        self._ended = threading.Event()
        self._reaper = threading.Thread(target=self._reap, name="righttime-flight-reaper", daemon=True)
        self._reaper.start()
        log.info("service.started", host=host, port=self.port, tls=self.tls, tokens=bool(tokens))

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.port)

    @property
    def address(self) -> str:
        """The address that clients open."""
        return str(Target(self.host, self.port))

    @property
    def ready(self) -> bool:
        """Whether it takes new work."""
        return not self.desk.stopping and not self._ended.is_set()

    def _reap(self) -> None:
        """End what was silent for too long, four times in the shorter of the two times, and look every second after those who wait."""
        settings = self._engine.settings
        round_s = min(settings.session_ttl_s / 4, settings.snapshot_ttl_s / 4, _LOOK_S)
        while not self._ended.wait(timeout=round_s):
            for expire in (self.desk.loading.sessions.expire, self.desk.reading.held.expire):
                try:
                    expire()
                except Exception as error:  # the next round tries again
                    log.error("reaper.failed", error=repr(error))

    def stop(self) -> None:
        """Take no new work, let calls, queries and lazy producers finish, end all sessions. What is owed then is noted as lost. The warehouse stays open."""
        if self._ended.is_set():
            return
        self.desk.stopping = True
        wait_s = self._engine.settings.stop_wait_s
        deadline_s = self._engine.clock.monotonic_s() + wait_s
        self.desk.await_idle(wait_s / 2)  # after that nobody makes new debts
        self._collect_debts(deadline_s)
        if not self.desk.reading.held.await_finished(self._left_s(deadline_s)):
            log.warning("service.queries_under_way", host=self.host)
        self.desk.await_idle(self._left_s(deadline_s))
        self._ended.set()
        for session in self.desk.loading.sessions.all():
            self.desk.loading.sessions.end(session, why="service stopped")
        self.desk.reading.held.expire(everything=True)
        self._shut_down()
        self._reaper.join(timeout=10)
        self.desk.reading.clear_away()
        log.info("service.stopped", host=self.host)

    def _left_s(self, deadline_s: float) -> float:
        return max(deadline_s - self._engine.clock.monotonic_s(), 0.1)

    def _shut_down(self) -> None:
        """Stop listening. That waits for calls under way, for which a client that reads slowly may take for ever."""
        ending = threading.Thread(target=self._server.shutdown, name=_SHUTDOWN, daemon=True)
        ending.start()
        ending.join(timeout=max(self._engine.settings.stop_wait_s, 1.0))
        if ending.is_alive():
            log.warning("service.call_under_way", host=self.host)
            _spare_exit(self._server)

    def _collect_debts(self, deadline_s: float) -> None:
        """Ask lazy producers for everything they have; those that do not answer in time are late."""
        catalyst = self._engine.catalyst
        accuracy: Accuracy | None = None
        try:
            accuracy = catalyst.ensure_accuracy(catalyst.authority.read_us(), list(self._engine.schemas), deadline_s=deadline_s, accept_late=True)
        except RightTimeError as error:
            log.warning("service.owed", code=error.code, error=str(error))
        if accuracy is not None and accuracy.late:
            log.warning("service.owed", sources=sorted(accuracy.late))


def calls_under_way() -> bool:
    """Tell whether a service of this process was stopped and a call of it goes on."""
    return any(thread.name == _SHUTDOWN for thread in threading.enumerate())


def _spare_exit(server: flight.FlightServerBase) -> None:
    """Keep Python's exit from shutting a server down that is being shut down: pyarrow arranges for that, and it waits for the same calls without end."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # pyarrow does not show its finalizer
        found = finalizer.peek()
        if found is not None and found[0] is server:
            finalizer.detach()


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    """What pyarrow calls, in threads of its own."""

    def __init__(self, desk: Desk, host: str, port: int, tokens: Tokens, tls: tuple[bytes, bytes] | None) -> None:
        self._desk = desk
        super().__init__((_bracketed(host), port), tls_certificates=[tls] if tls else None, middleware={"grant": GrantFactory(tokens)})

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        with _Caller(context) as caller:
            answer = self._desk.answer(action.type, action.body, _grant(context), caller.gone)
        return iter([flight.Result(answer)])

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        try:
            frame = descriptor.command
            if frame is None:
                raise BadMessage(reason="an upload has a command")
            writer.write(self._desk.upload(pa.py_buffer(frame), _grant(context), _batches(reader)))
        except BaseException as error:
            raise _flight_error("session.upload", error) from None

    def do_get(self, context: Any, ticket: Any) -> Any:
        try:
            schema, batches = self._desk.rows(ticket.ticket, _grant(context))
        except BaseException as error:
            raise _flight_error("rows", error) from None
        return flight.GeneratorStream(schema, _guarded(batches))

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        raise _flight_error("exchange", BadMessage(reason="there is nothing to exchange"))

    def list_flights(self, context: Any, criteria: Any) -> Any:
        raise _flight_error("list", BadMessage(reason="there is nothing to list"))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        raise _flight_error("info", BadMessage(reason="there is nothing to describe"))

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        raise _flight_error("schema", BadMessage(reason="there is nothing to describe"))

    def list_actions(self, context: Any) -> list[Any]:
        grant = _grant(context)
        try:
            if grant is None:
                raise AccessDenied(action="list actions", reason="the call carries no token that the service knows")
            grant.require(READ, action="list actions")
        except BaseException as error:
            raise _flight_error("list", error) from None
        return []


class _Caller:
    """Who waits for the answer of a call. Any thread may ask as long as the call lasts; what pyarrow knows of it lasts no longer."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._lock = threading.Lock()

    def gone(self) -> bool:
        """Tell whether the client has broken off, or its connection."""
        with self._lock:
            return self._context is not None and bool(self._context.is_cancelled())

    def __enter__(self) -> "_Caller":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._context = None


def check_address(host: str, port: int, tokens: Tokens) -> None:
    """Refuse an address that a service could not listen on, with the system's reason, or that lets other machines in without a token."""
    check_exposure(host, tokens)
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        failures = [failure for place in places if (failure := _try_to_bind(place[0], place[4])) is not None]
    except (OSError, OverflowError, UnicodeError) as error:
        raise BadSetting(name="host, port", reason=f"{_shown(host, port)} is no address to listen on ({getattr(error, 'strerror', error)})") from error
    # A name may stand for several addresses, and not each must be one of this machine; but one that is taken answers our clients as somebody else.
    failure = next((one for one in failures if one.errno == errno.EADDRINUSE), failures[0] if len(failures) == len(places) else None)
    if failure is not None:
        raise BadSetting(name="host, port", reason=f"the service cannot listen on {_shown(host, port)} ({failure.strerror})") from failure


def _try_to_bind(family: int, address: Any) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does, or connections of a service that has just ended would count
            trial.bind(address)
    except OSError as error:
        return error
    return None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _shown(host: str, port: int) -> str:
    return f"{_bracketed(host)}:{port}"


def _grant(context: Any) -> Any:
    middleware = context.get_middleware("grant")
    return middleware.grant if isinstance(middleware, GrantMiddleware) else None


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    for chunk in reader:
        if chunk.data is not None:
            yield chunk.data


def _guarded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except GeneratorExit:
        raise
    except BaseException as error:
        raise _flight_error("rows", error) from None


def _flight_error(action: str, error: BaseException) -> Exception:
    """Return an error as Flight carries it: the code in the extra information, nothing else in the text."""
    note_failure(action, error)
    code = error.code if isinstance(error, RightTimeError) else "service.failed"
    kind = flight.FlightUnauthenticatedError if isinstance(error, AccessDenied) else flight.FlightServerError
    raised: Exception = kind(code, extra_info=failure_text(error))
    return raised
