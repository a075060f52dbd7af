"""Lazy commits of a producer: in its archive until its policy, a query or the loader wants them in the catalyst.

In: commits whose rows stay here, and requests for data from the catalyst, served by a listener while commits are archived.
Out: flushes to the catalyst.
Promise: what is taken from the archive and cannot be delivered is put back; a commit that is archived is delivered once, in the order of its source,
wherever Ctrl-C comes.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from righttime.catalyst.archive import Archive
from righttime.catalyst.listener import Listener
from righttime.catalyst.messages import Content, Flush, Made, Published
from righttime.catalyst.policies import Policy
from righttime.catalyst.port import Session
from righttime.changes.interrupts import uninterrupted
from righttime.settings import Settings
from righttime.telemetry import get_log

log = get_log("producer")

_AT_ANY_TIME = nullcontext()


class LazyCommits:
    """A producer's side of the catalyst: its session, and the archive, which `_archive_lock` guards, since the listener takes from it as well."""

    def __init__(self, session: Session, policy: Policy, *, settings: Settings) -> None:
        self.policy = policy
        self.source = session.source
        self._session = session
        self._archive = Archive()
        self._archive_lock = threading.Lock()
        self._listener = Listener(session, serve=self._serve, poll=self._poll, poll_s=settings.policy_poll_s, lease_s=settings.producer_lease_s)

    def _whole(self) -> AbstractContextManager[None]:
        """Keep Ctrl-C out of what the catalyst and the producer have to do both or not at all. Not over a wire, where an answer may take long."""
        return _AT_ANY_TIME if self._session.apart else uninterrupted()

    # -- into the archive --------------------------------------------------------------------------------------------

    def _commit_lazily(self, content: dict[str, list[Content]], batch_id: str | None) -> Published:
        self._listener.start()  # first: a commit that nobody would deliver is not made
        rows = {table: sum(part.rows for part in parts) for table, parts in content.items()}
        with self._archive_lock:
            self._keep_made(self._session.made_in_doubt())
            published = self._session.commit_lazily(rows, batch_id=batch_id, content=content)
            if not published.replayed:
                self._archive_commit(published, content)
        return published

    def _archive_commit(self, published: Published, content: Mapping[str, Sequence[Content]]) -> None:
        for table, parts in content.items():
            self._archive.add(table, published.commit.time_us, list(parts))

    def _keep_made(self, made: Made | None) -> None:
        """Archive a lazy commit that was rolled back while nobody knew whether it was made: it was, and what is made is delivered."""
        if made is not None:
            self._archive_commit(made.published, made.content)

    def _roll_back(self) -> None:
        with self._archive_lock:
            made = self._session.roll_back()
            self._keep_made(made)
        if made is not None:
            self._listener.start()

    # -- out of the archive ------------------------------------------------------------------------------------------

    def _flush(self, tables: Sequence[str]) -> None:
        archived = self._archived()
        self._session.make_room({table: archived.get(table, 0) for table in tables})
        with self._whole(), self._taken(lambda: [self._archive.take(table) for table in tables]) as flushes:
            self._session.flush(flushes)
        self._tell_policy()

    def _serve(self, table: str, time_us: int) -> None:
        """Answer a request for data (P5): archived commits up to the time, then the assurance that this is all."""
        archived = self._archived(up_to_us=time_us)
        tables = {table, *archived} if self._session.apart else {table}
        self._session.make_room({each: archived.get(each, 0) for each in tables})
        with self._taken(lambda: [self._archive.take(each, up_to_us=time_us, watermark_us=time_us) for each in tables]) as flushes:
            self._session.flush(flushes)
        self._tell_policy()

    def _poll(self) -> None:
        """Ask the policy, between commits."""
        archived = self._archived()
        if archived and self.policy.should_flush():
            self._flush(list(archived))

    @contextmanager
    def _taken(self, take: Callable[[], list[Flush]]) -> Iterator[list[Flush]]:
        """Take from the archive for one delivery; if that fails, everything is put back."""
        with self._archive_lock:
            self._keep_made(self._session.made_in_doubt())
            flushes = take()
            try:
                yield flushes
            except BaseException:
                self._archive.restore(flushes)
                raise

    def _make_room(self, content: Mapping[str, Sequence[Content]]) -> None:
        waiting = self._archived()
        sizes = {table: waiting.get(table, 0) + sum(part.nbytes for part in content.get(table, ())) for table in content.keys() | waiting.keys()}
        if sizes:
            self._session.make_room(sizes)

    def _archived(self, *, up_to_us: int | None = None) -> dict[str, int]:
        """Return the archived bytes of each table that has any."""
        with self._archive_lock:
            return {table: self._archive.bytes_of(table, up_to_us=up_to_us) for table in self._archive.tables()}

    def _tell_policy(self) -> None:
        """Tell the policy of a flush. What has happened stays happened, whatever a user's policy makes of it."""
        try:
            self.policy.flushed()
        except Exception as error:
            log.error("policy.failed", source=self.source, error=repr(error))
