"""The remote session: the loading port of a producer whose catalyst is behind the wire.

In: flushes, commits and rollbacks of one producer, as `catalyst.port.Session` says them.
Out: letters to the service.
Promise: as `port.Session`; a commit happens at most once, and one whose outcome nobody knows raises `CommitUnknown` until it is known.
"""

import itertools
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from righttime.catalyst.messages import Bypass, Content, Flush, Made, Published
from righttime.changes.schema import TableSchema
from righttime.errors import AccessDenied, CommitUnknown, NotStored, ProducerClosed, RightTimeError, ServiceFailed, ServiceUnreachable, SessionLost
from righttime.flight.contents import ContentWriter, fingerprint
from righttime.flight.doubts import COMMITS, LOGGED, MEMORY, STORED, Debts, Meant, commit_made, counts, total
from righttime.flight.frames import Message, typed
from righttime.flight.letters import Letter, Letters
from righttime.flight.records import published_of
from righttime.flight.renewals import Renewals
from righttime.flight.staging import bypass_batches, remove_files
from righttime.flight.transport import Transport
from righttime.telemetry import get_log

log = get_log("flight")


class RemoteSession:
    """One producer, with its catalyst elsewhere."""

    def __init__(self, transport: Transport, renewals: Renewals, *, schemas: Mapping[str, TableSchema], source: str | None, policy: str) -> None:
        self._transport = transport
        self._schemas = schemas
        self._debts = Debts()
        self._rooms = threading.local()
        self._polls = itertools.count(1)
        self._batches = itertools.count(1)
        self._batch_prefix = uuid.uuid4().hex[:16]
        self._ended = threading.Event()
        self._letters = Letters(transport, renewals, source=source, policy=policy, recover=self._debts)

    @property
    def source(self) -> str:
        return self._letters.source

    @property
    def session_id(self) -> str:
        """The id under which the service knows this session now."""
        return self._letters.session_id

    @property
    def apart(self) -> bool:
        return True

    @property
    def staged(self) -> bool:
        return bool(self._debts.stages)

    # -- commits -----------------------------------------------------------------------------------------------------

    def make_room(self, sizes: Mapping[str, int]) -> None:
        """Ask for room with the next message; the service waits, and refuses the message if there is none."""
        self._rooms.sizes = dict(sizes)

    def commit_lazily(self, rows: Mapping[str, int], *, batch_id: str | None, content: Mapping[str, Sequence[Content]] | None = None) -> Published:
        with self._letters.lock:
            meant = self._meant(rows, batch_id, MEMORY, content)
            earlier = self._earlier(meant)
            if earlier is None:
                used = batch_id or self._next_batch()
                answer = self._send("session.lazy", lambda: ({"rows": dict(rows), "batch": used}, ()), key=meant, batch_id=used)
                published = self._published(answer, given=batch_id)
            else:
                # One that went the other way has its rows there already: nothing is left to archive.
                published = earlier[1] if earlier[0] == "session.lazy" else replace(earlier[1], replayed=True)
            self._end_transaction()
            if not published.replayed:
                self._debts.archived |= {table for table, count in rows.items() if count}
            return published

    def commit(self, flushes: Sequence[Flush], content: Mapping[str, Sequence[Content]], *, batch_id: str | None) -> Published:
        with self._letters.lock:
            meant = self._meant(counts(content), batch_id, MEMORY)
            earlier = self._earlier(meant)
            if earlier is None:
                used = batch_id or self._next_batch()
                answer = self._send("session.commit", self._content_writer(flushes, content, batch=used), key=meant, batch_id=used)
                self._flushed(flushes)
                published = self._published(answer, given=batch_id)
            else:
                action, published = earlier
                self.flush(_with_commit(flushes, published.commit.time_us, content) if action == "session.lazy" else flushes)
            self._end_transaction()
            return published

    def commit_durably(self, bypass: Mapping[str, Bypass], *, store: bool, batch_id: str | None) -> Published:
        with self._letters.lock:
            meant = self._meant({table: part.rows for table, part in bypass.items()}, batch_id, STORED if store else LOGGED)
            try:
                earlier = self._earlier(meant)
                if earlier is None:
                    used = batch_id or self._next_batch()
                    answer = self._send("session.durable", self._bypass_writer(bypass, store, used), key=meant, batch_id=used)
                    earlier = "", self._published(answer, given=batch_id)
            except NotStored:
                self._end_durably(bypass)  # it is committed
                raise
            self._end_durably(bypass)
            return earlier[1]

    def _end_durably(self, bypass: Mapping[str, Bypass]) -> None:
        self._end_transaction()
        for part in bypass.values():
            remove_files(file.path for file in part.files)

    def stage(self, flushes: Sequence[Flush], content: Mapping[str, Sequence[Content]]) -> None:
        rows = counts(content)
        with self._letters.lock:
            if not flushes and not any(rows.values()):
                return
            meant = self._meant(rows, None, MEMORY)
            if self._there_already(meant):
                self.flush(flushes)
            else:
                self._send("session.stage", self._content_writer(flushes, content), key=meant)
                self._flushed(flushes)
            if any(rows.values()):
                self._debts.stages.append((self._content_writer((), content), rows))

    def flush(self, flushes: Sequence[Flush]) -> None:
        with self._letters.lock:
            if flushes:
                self._send("session.flush", self._content_writer(flushes, {}))
                self._flushed(flushes)

    def roll_back(self) -> Made | None:
        with self._letters.lock:
            if self._debts.stages or self._letters.doubt is not None:
                self._debts.stages.clear()  # gone either way: a new session need not have it
                self._letters.abandon()
            try:
                return self.made_in_doubt()
            except (ServiceUnreachable, SessionLost, AccessDenied) as error:
                log.info("rollback.left", source=self.source, code=error.code)
                return None

    def made_in_doubt(self) -> Made | None:
        with self._letters.lock:
            if self._letters.doubt is None or not self._letters.doubt.abandoned:
                return None
            doubt = self._letters.settle()
            assert doubt is not None
            self._letters.doubt = None
            if commit_made(doubt) is None:
                return None
            log.warning("commit.had_happened", source=self.source, commit=commit_made(doubt))
            if doubt.action != "session.lazy":
                return None
            assert isinstance(doubt.key, Meant) and doubt.key.content is not None and doubt.published is not None
            self._debts.archived |= set(doubt.key.rows)
            return Made(doubt.published, doubt.key.content)

    def known_batch(self, batch_id: str) -> Published | None:
        with self._letters.lock:
            doubt = self._letters.settle()
            if doubt is not None and doubt.batch_id == batch_id and commit_made(doubt) is not None:
                return None  # the commit itself finds out whether it means the same, or has grown since
            return self._letters.known_batch(batch_id)

    def _end_transaction(self) -> None:
        self._debts.stages.clear()
        self._letters.doubt = None

    # -- in doubt ----------------------------------------------------------------------------------------------------

    def _meant(self, rows: Mapping[str, int], batch_id: str | None, safety: int, content: Mapping[str, Sequence[Content]] | None = None) -> Meant:
        return Meant(total([rows, *(staged for _, staged in self._debts.stages)]), batch_id, safety, content)

    def _earlier(self, meant: Meant) -> tuple[str, Published] | None:
        """Return the commit whose answer never came, if it happened and this call means the same; it stays in doubt until the call has ended."""
        try:
            doubt = self._letters.settle()
        except ServiceUnreachable as error:
            raise self._unknown(error) from error
        if doubt is None:
            return None
        number = commit_made(doubt)
        if number is None:
            self._letters.doubt = None
            if doubt.action == "session.stage" and isinstance(doubt.outcome, Message):
                self._letters.stage_anew()  # the commit brings those rows itself
            return None
        assert isinstance(doubt.key, Meant)
        missing = doubt.key.lacks(meant)
        if missing is not None:
            raise CommitUnknown(source=self.source, reason=f"commit {number} did happen, {missing}")
        if doubt.published is None:
            assert isinstance(doubt.outcome, NotStored)
            raise doubt.outcome
        return doubt.action, replace(doubt.published, replayed=False)

    def _there_already(self, meant: Meant) -> bool:
        """Tell whether rows to be staged are with the service, unseen; where the transaction has grown since, they are dropped to be staged anew."""
        doubt = self._letters.settle()
        if doubt is None:
            return False
        assert isinstance(doubt.key, Meant)
        same = doubt.key.rows == meant.rows
        number = commit_made(doubt)
        if number is not None:
            if doubt.action == "session.lazy" or not same:
                raise CommitUnknown(source=self.source, reason=f"commit {number} did happen, and takes no more rows")
            return True  # committed even, which the next commit will find
        self._letters.doubt = None
        there = doubt.action == "session.stage" and isinstance(doubt.outcome, Message)
        if there and not same:
            self._letters.stage_anew()
        return there and same

    # -- letters -----------------------------------------------------------------------------------------------------

    def _send(self, action: str, write: Callable[[], Any], *, key: Meant | None = None, batch_id: str | None = None) -> Message:
        if self._ended.is_set():
            raise ProducerClosed(source=self.source)
        letter = Letter(action, write, key=key, batch_id=batch_id)
        try:
            return self._letters.send(letter)
        except (CommitUnknown, SessionLost, AccessDenied, ServiceFailed):
            raise
        except RightTimeError as error:
            if letter.unanswered and action in COMMITS:
                raise self._unknown(error) from error
            raise

    def _unknown(self, error: RightTimeError) -> CommitUnknown:
        away = isinstance(error, ServiceUnreachable)
        reason = f"{error.context['target']} did not answer for {error.context['waited_s']:.1f} s" if away else f"no new session ({error})"
        return CommitUnknown(source=self.source, reason=reason)

    def _content_writer(self, flushes: Sequence[Flush], content: Mapping[str, Sequence[Content]], **more: Any) -> Callable[[], Any]:
        room = self._rooms.__dict__.pop("sizes", {})

        def write() -> Any:
            writer = ContentWriter(self._schemas)
            header = {"flushes": writer.flushes(flushes), "content": writer.contents(content), "tables": writer.tables, "room": room, **more}
            return header, writer.parts

        return write

    def _bypass_writer(self, bypass: Mapping[str, Bypass], store: bool, batch_id: str) -> Callable[[], Any]:
        def write() -> Any:
            return {"bypass": self.upload(bypass), "store": store, "batch": batch_id}, ()

        return write

    def upload(self, bypass: Mapping[str, Bypass]) -> dict[str, list[str]]:
        """Send rows that go past the catalyst ahead; return the uploads by table."""
        uploads = {}
        for table, part in bypass.items():
            upload_id = uuid.uuid4().hex
            schema = self._schemas[table]
            header = {"session": self.session_id, "table": table, "mark": fingerprint(schema), "upload": upload_id}
            self._transport.upload(header, schema.columns, lambda part=part, schema=schema: bypass_batches(part, schema))  # type: ignore[misc]
            uploads[table] = [upload_id]
        return uploads

    def drop(self, uploads: Mapping[str, Sequence[str]]) -> None:
        """Let uploads go that were for a query only."""
        if uploads:
            self._transport.call("session.drop", {"session": self.session_id, "uploads": [one for ids in uploads.values() for one in ids]})

    def _next_batch(self) -> str:
        return f"~{self._batch_prefix}-{next(self._batches)}"

    def _published(self, answer: Message, *, given: str | None) -> Published:
        published = published_of(answer.header.get("published"))
        # Under a batch id of our own it can only be this very commit, sent twice.
        return published if given is not None else replace(published, replayed=False)

    def _flushed(self, flushes: Sequence[Flush]) -> None:
        self._debts.archived -= {flush.table for flush in flushes if flush.next_us is None}

    # -- requests for data -------------------------------------------------------------------------------------------

    def await_requests(self, timeout_s: float) -> Mapping[str, int] | None:
        if self._ended.is_set() or self._letters.lost is not None:
            return None
        header = {"session": self.session_id, "poll": next(self._polls), "timeout_s": timeout_s}
        try:
            requests = self._transport.call("session.await", header, timeout_s=timeout_s).header.get("requests")
        except SessionLost:
            requests = None
        if requests is None:
            # Ended by us, or forgotten by the service: the next commit finds out which, or opens a new session.
            return None if self._ended.wait(timeout=timeout_s) else {}
        return {str(table): typed(time_us, int, what="a time") for table, time_us in typed(requests, dict, what="requests").items()}

    def close(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            with self._letters.lock:
                self._letters.close()


def _with_commit(flushes: Sequence[Flush], time_us: int, content: Mapping[str, Sequence[Content]]) -> list[Flush]:
    """Return flushes that also deliver a commit which was made lazily."""
    before = {flush.table: list(flush.commits) for flush in flushes}
    tables = [*before, *(table for table, parts in content.items() if parts and table not in before)]
    return [Flush(table, [*before.get(table, []), *([(time_us, content[table])] if content.get(table) else [])], None) for table in tables]
