"""Letters: a session's messages in order, each delivered once, whatever happens between.

In: what a producer's session has to say.
Out: answers; a new session where the service has forgotten the old one and nothing is lost by it.
Promise: a letter has one number and is sent under it until it is answered; one that nobody answered stays in doubt and is settled before the next.
"""

import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from righttime.catalyst.messages import Published
from righttime.errors import RightTimeError, ServiceUnreachable, SessionLost
from righttime.flight.frames import Message, write_frame
from righttime.flight.records import published_of, published_record
from righttime.flight.renewals import Renewals
from righttime.flight.transport import Transport
from righttime.telemetry import get_log

log = get_log("flight")

Content = tuple[dict[str, Any], Sequence[Any]]


@dataclass(slots=True)
class Letter:
    """One message: `write` makes its content for the session it goes to; `key` tells whether a later call means the same."""

    action: str
    write: Callable[[], Content]
    key: object = None
    batch_id: str | None = None
    sequence: int = 0
    session_id: str = ""
    content: Content | None = field(default=None, repr=False)
    outcome: Message | RightTimeError | None = None


class Recover(Protocol):
    """What a new session needs to know of its producer."""

    def at_stake(self) -> str | None:
        """Say what the forgotten session takes along; None if nothing."""
        ...

    def staged(self) -> Iterable[Letter]:
        """Return letters that stage the open transaction again."""
        ...


class Letters:
    """The ordered messages of one producer; one thread at a time."""

    def __init__(self, transport: Transport, renewals: Renewals, *, source: str | None, policy: str, recover: "Recover") -> None:
        self._transport = transport
        self._renewals = renewals
        self._policy = policy
        self._recover = recover
        self._sequence = 0
        self.lock = threading.RLock()
        self.doubt: Letter | None = None
        self.lost: SessionLost | None = None
        self.session_id = ""
        self.source = self._open(source)

    def _open(self, source: str | None) -> str:
        session_id = uuid.uuid4().hex
        answer = self._transport.call("session.open", {"session": session_id, "source": source, "policy": self._policy})
        self._renewals.remove(self.session_id)
        self.session_id, self._sequence = session_id, 0
        self._renewals.add_session(session_id)
        return answer.text("source")

    def send(self, letter: Letter) -> Message:
        """Deliver a letter and return its answer."""
        with self.lock:
            self.settle()
            return self._deliver(letter)

    def settle(self) -> Letter | None:
        """Find out what became of a letter that nobody answered; it stays until somebody takes it."""
        with self.lock:
            if self.lost is not None:
                raise self.lost
            doubt = self.doubt
            if doubt is not None and doubt.outcome is None:
                try:
                    doubt.outcome = self._deliver(doubt)
                except (ServiceUnreachable, SessionLost):
                    raise
                except RightTimeError as error:
                    doubt.outcome = error
            return doubt

    def _deliver(self, letter: Letter) -> Message:
        try:
            return self._post(letter)
        except SessionLost:
            return self._deliver_anew(letter)
        except ServiceUnreachable:
            if letter.action != "session.flush":  # what was flushed before is flushed again without harm
                self.doubt = letter
            raise

    def _post(self, letter: Letter, *, again: bool = False) -> Message:
        if letter.session_id != self.session_id or letter.content is None:
            self._sequence += 1
            letter.session_id, letter.sequence = self.session_id, self._sequence
            letter.content = letter.write()
        header, parts = letter.content
        header = {**header, "session": letter.session_id, "sequence": letter.sequence, "again": again}
        return self._transport.send(letter.action, write_frame(header, parts, bytes_max=self._transport.message_bytes_max))

    def _deliver_anew(self, letter: Letter) -> Message:
        """Go on in a new session, if nothing of this producer was only in the old one, or if the letter had arrived there."""
        self._open(self.source)
        log.info("session.reopened", source=self.source)
        known = self.known_batch(letter.batch_id) if letter.batch_id is not None and letter.action != "session.lazy" else None
        if known is not None:
            return Message({"published": published_record(known)})
        stake = self._recover.at_stake()
        if stake is not None:
            self.lost = SessionLost(source=self.source, lost=stake)
            self.close()
            raise self.lost
        for staged in self._recover.staged():
            self._post(staged)
        return self._post(letter, again=True)

    def known_batch(self, batch_id: str) -> Published | None:
        """Ask what this source committed under a batch id."""
        answer = self._transport.call("session.batch", {"session": self.session_id, "batch": batch_id})
        found = answer.header.get("published")
        return None if found is None else published_of(found)

    def close(self) -> None:
        """End the session at the service; if that is out of reach it ends by itself."""
        self._renewals.remove(self.session_id)
        try:
            self._sequence += 1
            self._transport.call("session.close", {"session": self.session_id, "sequence": self._sequence})
        except (ServiceUnreachable, SessionLost) as error:
            log.info("session.left", source=self.source, code=error.code)
