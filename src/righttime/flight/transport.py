"""The transport: a client's way to the service, over any number of connections that break.

In: the address, a token, frames.
Out: answers, streams, uploads.
Promise: a message is sent again, unchanged, until it is answered or the service has been out of reach for `reconnect_s`; then `ServiceUnreachable`.
A service that is slow is waited for as long as it answers a knock.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from righttime.changes.interrupts import left_alone
from righttime.errors import (
    AccessDenied,
    BadMessage,
    BadSetting,
    NotAWarehouse,
    RightTimeError,
    ServiceBusy,
    ServiceFailed,
    ServiceStopping,
    ServiceUnreachable,
)
from righttime.flight.access import Bearer
from righttime.flight.failures import failure_from_text, failure_of
from righttime.flight.frames import Message, read_frame, write_frame
from righttime.settings import Settings
from righttime.telemetry import get_log

log = get_log("flight")

SCHEME = "righttime"
PORT = 8815
_BACK_OFF_S = (0.05, 2.0)
_KNOCK_S = 5.0
_HURRY_S = 1.0
_FRAME_BYTES_MAX = 2**31 - 1
# Every client has its own connections, and gRPC tries again as soon as we do instead of after a pause of its own.
CHANNEL = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a service is, and whose certificate it must show."""

    host: str
    port: int
    tls: bool = False
    roots: bytes | None = None

    @classmethod
    def parse(cls, text: str, *, tls_ca: str | Path | None = None, tls: bool = False) -> "Target":
        """Read `righttime://host[:port]`. Without a word on certificates, `RIGHTTIME_TLS_CA` counts: a file with those to trust, or `system`."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if host is None or parts.scheme != SCHEME or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
            shown = re.split(r"[?#]", text.rpartition("@")[2])[0]  # what stands before an @ or after a ? may be a secret
            raise NotAWarehouse(path=shown, reason="the address of a service is righttime://host:port, and nothing else belongs into it")
        roots = None
        if tls_ca is None and not tls:
            tls_ca = os.environ.get("RIGHTTIME_TLS_CA") or None
            tls, tls_ca = (True, None) if tls_ca == "system" else (False, tls_ca)
        if tls_ca is not None:
            try:
                roots = Path(tls_ca).expanduser().read_bytes()
            except (OSError, RuntimeError) as error:
                raise BadSetting(name="tls_ca", reason=f"the certificate file {tls_ca} cannot be read ({getattr(error, 'strerror', error)})") from error
        return cls(host, port or PORT, tls or roots is not None, roots)

    @property
    def location(self) -> str:
        """The address as Flight writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"grpc{'+tls' if self.tls else '+tcp'}://{host}:{self.port}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME}://{host}:{self.port}"

    def client(self) -> Any:
        """Return a new client; it connects on first use."""
        return flight.FlightClient(self.location, tls_root_certs=self.roots, generic_options=CHANNEL)


class Transport:
    """One client's connection; safe to call from any thread."""

    def __init__(self, target: Target, bearer: Bearer, *, settings: Settings) -> None:
        self.target = target
        self._bearer = bearer
        self._settings = settings
        self._lock = threading.Lock()
        self._client = target.client()
        self._closed = threading.Event()
        self.message_bytes_max = settings.message_bytes_max
        self.reconnect_s = settings.reconnect_s

    def call(self, action: str, header: Mapping[str, Any] | None = None, parts: Sequence[Any] = (), **options: Any) -> Message:
        """Send one message and return its answer; a coded error of the service is raised."""
        return self.send(action, write_frame(header or {}, parts, bytes_max=self.message_bytes_max), **options)

    def send(self, action: str, frame: pa.Buffer, *, timeout_s: float = 0.0, reconnect_s: float | None = None, abandon: bool = False) -> Message:
        """Send a frame until it is answered; `timeout_s` is how long the service itself may wait before it answers. Ctrl-C may `abandon` a call that only
        waits there."""

        def attempt(patience: int) -> Message:
            bound_s = timeout_s + patience * self._settings.call_timeout_s
            return left_alone(lambda: self._attempt(action, frame, bound_s)) if abandon else self._attempt(action, frame, bound_s)

        answer: Message = self._patiently(attempt, reconnect_s)
        return answer

    def tell(self, action: str, header: Mapping[str, Any]) -> None:
        """Send one message once, for somebody who is in a hurry: a service that does not answer in a moment need not have got it."""
        try:
            self._attempt(action, write_frame(header), _HURRY_S)
        except (_Cut, _Slow, RightTimeError) as error:
            log.info("message.not_answered", action=action, error=repr(error))

    def _attempt(self, action: str, frame: pa.Buffer, timeout_s: float) -> Message:
        options = self._options(timeout_s)
        with _errors_read(self.target):
            results = list(self._client.do_action(flight.Action(action, frame), options))
        if len(results) != 1:
            raise BadMessage(reason="the service gave no answer")
        message = read_frame(results[0].body, bytes_max=_FRAME_BYTES_MAX)
        if "error" in message.header:
            failure = failure_of(message.header["error"])
            raise _Cut(str(failure)) if _passes(failure) else failure
        return message

    def upload(self, header: Mapping[str, Any], schema: pa.Schema, batches: Callable[[], Iterable[pa.RecordBatch]]) -> Message:
        """Send a stream of rows, from its beginning if the connection breaks."""
        answer: Message = self._patiently(lambda _: self._upload(header, schema, batches()), None)
        return answer

    def _upload(self, header: Mapping[str, Any], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Message:
        with _errors_read(self.target):
            descriptor = flight.FlightDescriptor.for_command(write_frame(header).to_pybytes())
            writer, reader = self._client.do_put(descriptor, schema, self._options(None))
            with writer:
                for batch in batches:
                    writer.write_batch(batch)
                writer.done_writing()
                answer = reader.read()
        if answer is None:
            raise _Cut("an upload was not answered")
        return read_frame(answer, bytes_max=_FRAME_BYTES_MAX)

    def rows(self, ticket: Mapping[str, Any], parts: Sequence[Any] = ()) -> pa.Table:
        """Read a whole stream of rows, from its beginning if the connection breaks."""
        frame = write_frame(ticket, parts).to_pybytes()
        table: pa.Table = self._patiently(lambda _: self._rows(frame), None)
        return table

    def _rows(self, frame: bytes) -> pa.Table:
        with _errors_read(self.target):
            return self._client.do_get(flight.Ticket(frame), self._options(None)).read_all()

    def _patiently(self, attempt: Callable[[int], Any], reconnect_s: float | None) -> Any:
        """Try until there is an answer. Each time a service is only slow we wait twice as long: a call that waits there is work for it, too."""
        patience = 1
        bound_s = self.reconnect_s if reconnect_s is None else reconnect_s
        failing_s: float | None = None
        delay_s = _BACK_OFF_S[0]
        while True:
            if self._closed.is_set():
                raise ServiceUnreachable(target=str(self.target), waited_s=0.0, reason="this client is closed")
            try:
                return attempt(patience)
            except _Slow:
                if self._knock():
                    failing_s, patience = None, 2 * patience
                    continue
                reason = "it does not answer"
            except _Cut as error:
                reason = str(error)
            now_s = time.monotonic()
            failing_s = now_s if failing_s is None else failing_s
            if now_s - failing_s + delay_s > bound_s:
                # What a service that encrypts says to a plain client.
                hint = "; if it encrypts, name its certificate (tls_ca= or RIGHTTIME_TLS_CA)" if not self.target.tls and "closed" in reason.lower() else ""
                raise ServiceUnreachable(target=str(self.target), waited_s=now_s - failing_s, reason=reason + hint)
            log.info("service.cut", target=str(self.target), reason=reason, retry_s=delay_s)
            self._closed.wait(timeout=delay_s)
            delay_s = min(2 * delay_s, _BACK_OFF_S[1])
            self._renew_client()

    def _knock(self) -> bool:
        """Tell whether the service answers at all."""
        try:
            with _errors_read(self.target):
                list(self._client.do_action(flight.Action("hello", write_frame({})), self._options(min(_KNOCK_S, self._settings.call_timeout_s))))
        except (_Cut, _Slow, RightTimeError):
            return False
        return True

    def _renew_client(self) -> None:
        """Take a new connection; calls that still use the old one end by themselves."""
        with self._lock:
            self._client = self.target.client()

    def _options(self, timeout_s: float | None) -> Any:
        return flight.FlightCallOptions(timeout=timeout_s, headers=self._bearer.headers())

    def close(self) -> None:
        """End; calls under way fail."""
        self._closed.set()
        with self._lock:
            self._client.close()

    def __repr__(self) -> str:
        return f"<Transport {self.target}>"


class _Cut(Exception):
    """The connection broke, or was never there."""


class _Slow(Exception):
    """No answer came in time."""


@contextmanager
def _errors_read(target: Target) -> Iterator[None]:
    """Turn what Flight raises into our errors, or into a broken connection."""
    try:
        yield
    except flight.FlightError as error:
        raise _read(error, target) from error
    except (pa.ArrowException, OSError) as error:
        known = failure_from_text(getattr(error, "extra_info", b"") or b"")
        raise known or _Cut(type(error).__name__) from error


def _passes(failure: RightTimeError) -> bool:
    """Tell whether a refusal is only for the moment, and nothing has happened."""
    return isinstance(failure, ServiceStopping) or (isinstance(failure, ServiceBusy) and failure.context.get("setting") == "calls_max")


def _read(error: Any, target: Target) -> Exception:
    known = failure_from_text(error.extra_info or b"")
    if known is not None:
        return _Cut(str(known)) if _passes(known) else known
    text = str(error).split(". Detail:")[0]
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return AccessDenied(action="connect", reason="the token is not accepted")
    if any(word in text.lower() for word in ("certificate", "ssl", "handshake")):
        # Nothing that waiting could cure.
        return ServiceUnreachable(target=str(target), waited_s=0.0, reason=f"no trusted connection ({text.rpartition('last error: ')[2][:300]})")
    if isinstance(error, flight.FlightTimedOutError):
        return _Slow(text)
    if isinstance(error, flight.FlightServerError) and not isinstance(error, flight.FlightUnavailableError | flight.FlightInternalError):
        return ServiceFailed(reason=text[:200])
    return _Cut(text[:200])
