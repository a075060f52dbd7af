"""Sessions: the producers that are open over the network.

In: messages with a session's id and a number that grows; renewals; silence.
Out: each message carried out once, and its answer as often as it is asked for.
Promise: a session that ends by silence or with the service leaves nothing uncommitted behind, and what it owes is noted as lost (never silently gone).
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from righttime.catalyst.port import Session
from righttime.changes.clock import Clock
from righttime.errors import BadMessage, RightTimeError, ServiceBusy, SessionLost
from righttime.flight.owed import Owed
from righttime.flight.uploads import Upload
from righttime.ledger.sqlite import Loss
from righttime.settings import Settings
from righttime.telemetry import METRICS, get_log

log = get_log("flight")

_UPLOADS_MAX = 1000


@dataclass(slots=True)
class ProducerSession:
    """One producer; `guard` orders its messages, `polls` those of its listener."""

    session_id: str
    local: Session
    grant: str
    heard_s: float
    guard: threading.Lock = field(default_factory=threading.Lock)
    polls: threading.Lock = field(default_factory=threading.Lock)
    owed: Owed = field(default_factory=Owed)
    uploads: dict[str, Upload] = field(default_factory=dict)
    sequence: int = 0
    answer: pa.Buffer | None = None
    poll: int = 0
    requests: Mapping[str, int] | None = None
    ended: bool = False

    def once(self, sequence: int, work: Callable[[], pa.Buffer]) -> pa.Buffer:
        """Carry a message out, or give the answer again that it had; one that comes after a later one is refused."""
        with self.guard:
            if self.ended:
                raise SessionLost(source=self.local.source, lost="it has ended")
            if sequence < self.sequence or sequence < 1:
                raise BadMessage(reason="it comes after a later message of the same session")
            if sequence > self.sequence or self.answer is None:
                self.answer = work()
                self.sequence = sequence
            return self.answer

    def await_requests(self, poll: int, timeout_s: float) -> Mapping[str, int] | None:
        """Wait for requests for data; the same poll gets the same answer, so that none is lost with a connection."""
        with self.polls:
            if poll != self.poll:
                self.requests, self.poll = self.local.await_requests(timeout_s), poll
            return self.requests

    def keep(self, upload_id: str, upload: Upload) -> Upload | None:
        """Remember an upload until it is committed or dropped; return the one under its id that is not needed, if it was sent again.

        A stream that broke off ends like any other, perhaps long after all of it came on another one: the one with more rows is whole.
        """
        with self.guard:
            if self.ended:
                raise SessionLost(source=self.local.source, lost="it has ended")
            earlier = self.uploads.get(upload_id)
            if earlier is None and len(self.uploads) >= _UPLOADS_MAX:
                raise ServiceBusy(used=len(self.uploads), what="uploads of one producer", setting=str(_UPLOADS_MAX))
            if earlier is not None and earlier.rows > upload.rows:
                return upload
            self.uploads[upload_id] = upload
            return earlier


class SessionTable:
    """The open sessions of one service; safe to call from any thread."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        note_loss: Callable[["ProducerSession", list[Loss]], None],
        drop: Callable[[Upload], None],
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._note_loss = note_loss
        self._drop = drop
        self._changed = changed
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._sessions: dict[str, ProducerSession] = {}

    def open(self, session_id: str, connect: Callable[[], Session], *, grant: str) -> ProducerSession:
        """Open a session, or find it: its id is the client's, so that asking twice opens one."""
        with self._opening:
            known = self._sessions.get(session_id)
            if known is not None:
                return known
            if len(self._sessions) >= self._settings.sessions_max:
                raise ServiceBusy(used=len(self._sessions), what="producers", setting="sessions_max")
            session = ProducerSession(session_id, connect(), grant, self._clock.monotonic_s())
            with self._lock:
                self._sessions[session_id] = session
            self._count()
        self._changed()
        return session

    def get(self, session_id: str, *, grant: str) -> ProducerSession:
        """Return a session and note that its producer was heard of; it belongs to the token that opened it."""
        with self._lock:
            session = self._sessions.get(session_id)
        if session is None or session.grant != grant:
            raise SessionLost(source="?", lost="the service does not know the session")
        session.heard_s = self._clock.monotonic_s()
        return session

    def renew(self, session_ids: list[str], *, grant: str) -> list[str]:
        """Note signs of life; return those that are unknown."""
        unknown = []
        for session_id in session_ids:
            try:
                self.get(session_id, grant=grant)
            except SessionLost:
                unknown.append(session_id)
        return unknown

    def expire(self) -> None:
        """End sessions that were silent for too long."""
        bound_s = self._clock.monotonic_s() - self._settings.session_ttl_s
        for session in self.all():
            # One that is at work right now is not silent, however long the work takes.
            if session.heard_s < bound_s and session.guard.acquire(blocking=False):
                try:
                    if session.heard_s < bound_s:
                        self._end(session, why="silent")
                except RightTimeError as error:  # its losses could not be written down; the next round tries again, and the others end now
                    log.error("session.not_ended", source=session.local.source, code=error.code, error=str(error))
                finally:
                    session.guard.release()

    def end(self, session: ProducerSession, *, why: str) -> None:
        """End a session: roll back, note what it owes as lost, let go of its uploads."""
        with session.guard:
            self._end(session, why=why)

    def _end(self, session: ProducerSession, *, why: str) -> None:
        if session.ended:
            return
        losses = session.owed.losses(session.local.source, found_us=self._clock.now_us())
        if losses:
            self._note_loss(session, losses)
            log.warning("session.lost", source=session.local.source, why=why, commits=[(loss.first, loss.last) for loss in losses], rows=session.owed.rows)
        session.local.roll_back()
        session.local.close()
        session.ended = True
        for upload in session.uploads.values():
            self._drop(upload)
        session.uploads.clear()
        with self._lock:
            self._sessions.pop(session.session_id, None)
        self._count()
        self._changed()
        log.info("session.ended", source=session.local.source, why=why)

    def all(self) -> list[ProducerSession]:
        """Return the open sessions."""
        with self._lock:
            return list(self._sessions.values())

    def _count(self) -> None:
        METRICS.gauge("righttime_sessions", description="Producers open over the network.").set(len(self._sessions))
