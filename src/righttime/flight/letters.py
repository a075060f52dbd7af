"""Letters: a session's messages in order, each delivered once, whatever happens between.

In: what a producer's session has to say.
Out: answers; a new session where the service has forgotten the old one and nothing is lost by it.
Promise: a letter has one number and is sent under it until it is answered; one that nobody answered stays in doubt and is settled before the next.
One that is rolled back in doubt is not carried out any more; it is found out whether it had been.
"""

import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from righttime.catalyst.messages import Published
from righttime.errors import AccessDenied, CommitUnknown, RightTimeError, ServiceFailed, ServiceUnreachable, SessionLost
from righttime.flight.frames import Message, write_frame
from righttime.flight.records import published_of, published_record
from righttime.flight.renewals import Renewals
from righttime.flight.transport import Transport
from righttime.telemetry import get_log

log = get_log("flight")

Content = tuple[dict[str, Any], Sequence[Any]]

_HARMLESS = frozenset({"session.flush", "session.rollback"})  # what they do twice they have done once: they are never in doubt
_SESSIONS_MAX = 3  # that may be lost under one letter


@dataclass(slots=True)
class Letter:
    """One message: `write` makes its content for the session it goes to; `key` tells whether a later call means the same.

    `unanswered`: it was sent, and nobody has said what became of it. `abandoned`: rolled back meanwhile; `over` once the service knows that, too.
    """

    action: str
    write: Callable[[], Content]
    key: object = None
    batch_id: str | None = None
    sequence: int = 0
    session_id: str = ""
    content: Content | None = field(default=None, repr=False)
    again: bool = False
    unanswered: bool = False
    abandoned: bool = False
    over: bool = False
    outcome: Message | RightTimeError | None = None

    @property
    def published(self) -> Published | None:
        """The commit that this letter turned out to have made."""
        found = self.outcome.header.get("published") if isinstance(self.outcome, Message) else None
        return None if found is None else published_of(found)


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
        self._anew = False  # the session is new to what was archived for an earlier one
        self._unstaged = False  # what is staged there is not what should be
        self.lock = threading.RLock()
        self.doubt: Letter | None = None
        self.lost: SessionLost | None = None
        self.session_id = self._opening = ""
        self.source = self._open(source)

    def _open(self, source: str | None) -> str:
        # Under one id until it is answered: a session that was opened unseen would keep the source from us.
        session_id = self._opening = self._opening or uuid.uuid4().hex
        answer = self._transport.call("session.open", {"session": session_id, "source": source, "policy": self._policy})
        self._renewals.remove(self.session_id)
        self.session_id, self._sequence, self._opening = session_id, 0, ""
        self._renewals.add_session(session_id)
        return answer.text("source")

    def _reopen(self) -> None:
        self._open(self.source)
        self._anew = self._unstaged = True
        log.info("session.reopened", source=self.source)

    # -- delivery ----------------------------------------------------------------------------------------------------

    def send(self, letter: Letter) -> Message:
        """Deliver a letter and return its answer."""
        with self.lock:
            self.settle()
            return self._deliver(letter)

    def stage_anew(self) -> None:
        """Have the next letter find what is staged as the producer knows it, and nothing else."""
        self._unstaged = True

    def _deliver(self, letter: Letter) -> Message:
        def deliver() -> Message:
            known = self._restore(letter)
            return known if known is not None else self._post(letter)

        try:
            return self._surviving(deliver)
        except BaseException:  # Ctrl-C leaves it as open as a broken connection does
            if letter.unanswered and letter.action not in _HARMLESS:
                self.doubt = letter
            raise

    def _surviving(self, work: Callable[[], Message]) -> Message:
        """Do what needs a session, in a new one if the service has forgotten it."""
        for _ in range(_SESSIONS_MAX - 1):
            try:
                return work()
            except SessionLost:
                if self.lost is not None:
                    raise
                self._reopen()
        return work()

    def _restore(self, letter: Letter) -> Message | None:
        """Bring the session to where the producer is, from the beginning if that was interrupted; return the answer if the letter has arrived before."""
        if self._anew:
            known = self.known_batch(letter.batch_id) if letter.batch_id is not None and letter.action != "session.lazy" else None
            if known is not None:
                letter.unanswered = False
                return Message({"published": published_record(known)})
            stake = self._recover.at_stake()
            if stake is not None:
                self.lost = SessionLost(source=self.source, lost=stake)
                self.close()
                raise self.lost
            self._anew = False
        if self._unstaged:
            for each in [_rollback(), *self._recover.staged()]:
                self._post(each)
            self._unstaged = False
        return None

    def _post(self, letter: Letter) -> Message:
        if letter.session_id != self.session_id or letter.content is None:
            letter.content = letter.write()
            letter.again = letter.unanswered  # it may have been carried out in an earlier session, or under an earlier number
            self._sequence += 1
            letter.session_id, letter.sequence = self.session_id, self._sequence
        header, parts = letter.content
        header = {**header, "session": letter.session_id, "sequence": letter.sequence, "again": letter.again}
        frame = write_frame(header, parts, bytes_max=self._transport.message_bytes_max)
        letter.unanswered = True
        try:
            answer = self._transport.send(letter.action, frame)
        except (ServiceUnreachable, SessionLost, AccessDenied):
            raise  # whatever an earlier attempt of it has met
        except (CommitUnknown, ServiceFailed):
            letter.content = None  # the service does not know it either, and under this number it would say so for ever
            raise
        except RightTimeError:
            letter.unanswered = False
            raise
        letter.unanswered = False
        return answer

    # -- in doubt ----------------------------------------------------------------------------------------------------

    def settle(self) -> Letter | None:
        """Find out what became of a letter that nobody answered; it stays until somebody takes it."""
        with self.lock:
            if self.lost is not None:
                raise self.lost
            doubt = self.doubt
            if doubt is None:
                return None
            if doubt.abandoned and not doubt.over:
                self._give_up(doubt)
            elif doubt.outcome is None:
                try:
                    doubt.outcome = self._deliver(doubt)
                except RightTimeError as error:
                    if doubt.unanswered:
                        raise
                    doubt.outcome = error
            return doubt

    def abandon(self) -> None:
        """Roll back. What nobody answered is not carried out from now on; until the service has heard of that, nothing else happens there."""
        with self.lock:
            if self.doubt is None:
                self.doubt = _rollback()
            self.doubt.abandoned = True

    def _give_up(self, doubt: Letter) -> None:
        sent_to = doubt.session_id
        self._deliver(_rollback())  # a later number: if the letter is still on its way, it comes too late
        if doubt.outcome is None:
            known = self.known_batch(doubt.batch_id) if doubt.batch_id is not None else None
            if known is not None and doubt.action == "session.lazy" and sent_to != self.session_id:
                known = None  # announced to a session that is gone, which has noted the rows as lost
            doubt.outcome = Message({} if known is None else {"published": published_record(known)})
        doubt.over = True

    def known_batch(self, batch_id: str) -> Published | None:
        """Ask what this source committed under a batch id."""
        answer = self._surviving(lambda: self._transport.call("session.batch", {"session": self.session_id, "batch": batch_id}))
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


def _rollback() -> Letter:
    return Letter("session.rollback", lambda: ({}, ()))
