"""The remote session: the loading port of a producer whose catalyst is behind the wire.

In: flushes, commits and rollbacks of one producer, as `catalyst.port.Session` says them.
Out: letters to the service.
Promise: as `port.Session`; a commit happens at most once, and one whose outcome nobody knows raises `CommitUnknown` until it is known.
"""

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from righttime.catalyst.messages import Bypass, Content, Flush, Published
from righttime.changes.rows import table_of
from righttime.changes.schema import TableSchema
from righttime.errors import CommitUnknown, ProducerClosed, ServiceUnreachable, SessionLost
from righttime.flight.contents import ContentWriter
from righttime.flight.frames import Message, typed
from righttime.flight.letters import Letter, Letters
from righttime.flight.records import published_of
from righttime.flight.renewals import Renewals
from righttime.flight.transport import Transport
from righttime.telemetry import get_log

log = get_log("flight")

_UPLOAD_ROWS = 1 << 16
_COMMITS = ("session.lazy", "session.commit", "session.durable")


class RemoteSession:
    """One producer, with its catalyst elsewhere."""

    def __init__(self, transport: Transport, renewals: Renewals, *, schemas: Mapping[str, TableSchema], source: str | None, policy: str) -> None:
        self._transport = transport
        self._schemas = schemas
        self._debts = _Debts()
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

    def commit_lazily(self, rows: Mapping[str, int], *, batch_id: str | None) -> Published:
        def lazily() -> Published:
            answer = self._send("session.lazy", lambda: ({"rows": dict(rows), "batch": used}, ()), key=dict(rows), batch_id=used)
            return self._published(answer, given=batch_id)

        used = batch_id or self._next_batch()
        with self._letters.lock:
            earlier = self._earlier(dict(rows))
            # One that went the other way has its rows there already: nothing is left to archive.
            published = lazily() if earlier is None else earlier[1] if earlier[0] == "session.lazy" else replace(earlier[1], replayed=True)
            if not published.replayed:
                self._debts.archived |= {table for table, count in rows.items() if count}
            return published

    def commit(self, flushes: Sequence[Flush], content: Mapping[str, Sequence[Content]], *, batch_id: str | None) -> Published:
        rows = {table: sum(part.rows for part in parts) for table, parts in content.items()}
        with self._letters.lock:
            earlier = self._earlier(rows)
            if earlier is not None:
                if earlier[0] == "session.lazy":
                    self.flush(_with_commit(flushes, earlier[1].commit.time_us, content))
                return earlier[1]
            used = batch_id or self._next_batch()
            answer = self._send("session.commit", self._content_writer(flushes, content, batch=used), key=rows, batch_id=used)
            self._flushed(flushes)
            self._debts.stages.clear()
            return self._published(answer, given=batch_id)

    def commit_durably(self, bypass: Mapping[str, Bypass], *, store: bool, batch_id: str | None) -> Published:
        key = {table: part.rows for table, part in bypass.items()}
        with self._letters.lock:
            earlier = self._earlier(key)
            if earlier is None:
                used = batch_id or self._next_batch()
                write = self._bypass_writer(bypass, store, used)
                earlier = "", self._published(self._send("session.durable", write, key=key, batch_id=used), given=batch_id)
            self._debts.stages.clear()
            for part in bypass.values():
                remove_files(file.path for file in part.files)
            return earlier[1]

    def stage(self, flushes: Sequence[Flush], content: Mapping[str, Sequence[Content]]) -> None:
        rows = {table: sum(part.rows for part in parts) for table, parts in content.items()}
        with self._letters.lock:
            if not flushes and not any(rows.values()):
                return
            if not self._staged_before(rows):
                self._send("session.stage", self._content_writer(flushes, content), key=rows)
                self._flushed(flushes)
            if any(rows.values()):
                self._debts.stages.append(self._content_writer((), content))

    def flush(self, flushes: Sequence[Flush]) -> None:
        with self._letters.lock:
            if flushes:
                self._send("session.flush", self._content_writer(flushes, {}))
                self._flushed(flushes)

    def roll_back(self) -> Published | None:
        """Drop what is staged. If the service is out of reach, it is dropped before anything else happens there.

        A lazy commit in doubt that did happen is returned: the service waits for its rows, and without them for none that come later.
        """
        made: Published | None = None
        with self._letters.lock:
            try:
                doubt = self._letters.settle()
                if doubt is not None and doubt.action in _COMMITS and isinstance(doubt.outcome, Message):
                    published = published_of(doubt.outcome.header.get("published"))
                    log.warning("commit.had_happened", source=self.source, commit=published.commit.number)
                    if doubt.action == "session.lazy" and isinstance(doubt.key, dict):
                        made = published
                        self._debts.archived |= {table for table, count in doubt.key.items() if count}
                self._letters.doubt = None
                if self._debts.stages or doubt is not None:
                    self._debts.stages.clear()  # gone either way: a new session need not have it
                    self._send("session.rollback", lambda: ({}, ()))
            except (ServiceUnreachable, SessionLost) as error:
                log.info("rollback.left", source=self.source, code=error.code)
            self._debts.stages.clear()
        return made

    def known_batch(self, batch_id: str) -> Published | None:
        with self._letters.lock:
            self._letters.settle()
            try:
                return self._letters.known_batch(batch_id)
            except SessionLost:
                self._send("session.rollback", lambda: ({}, ()))  # opens a new session, or says what is lost
                return self._letters.known_batch(batch_id)

    # -- in doubt ----------------------------------------------------------------------------------------------------

    def _earlier(self, key: object) -> tuple[str, Published] | None:
        """Return the commit whose answer never came, if it happened and this call means the same; None if it did not happen."""
        doubt = self._letters.settle()
        if doubt is None:
            return None
        if doubt.action not in _COMMITS or not isinstance(doubt.outcome, Message):
            self._letters.doubt = None
            if doubt.action == "session.stage" and isinstance(doubt.outcome, Message):
                self._unstage()  # the commit brings those rows itself
            return None
        published = published_of(doubt.outcome.header.get("published"))
        if doubt.key != key:
            reason = f"commit {published.commit.number} did happen, without what came into the transaction after it"
            raise CommitUnknown(source=self.source, reason=reason)
        self._letters.doubt = None
        return doubt.action, replace(published, replayed=False)

    def _staged_before(self, key: object) -> bool:
        """Tell whether rows are staged that nobody knew of; where the transaction has grown since, they are dropped to be staged anew."""
        doubt = self._letters.settle()
        if doubt is None or doubt.action != "session.stage":
            return False
        self._letters.doubt = None
        if not isinstance(doubt.outcome, Message):
            return False
        if doubt.key == key:
            return True
        self._unstage()
        return False

    def _unstage(self) -> None:
        """Take back what was staged unseen, which takes everything back; stage again what was known to be there."""
        self._send("session.rollback", lambda: ({}, ()))
        for letter in self._debts.staged():
            self._letters.send(letter)

    # -- letters -----------------------------------------------------------------------------------------------------

    def _send(self, action: str, write: Callable[[], Any], *, key: object = None, batch_id: str | None = None) -> Message:
        if self._ended.is_set():
            raise ProducerClosed(source=self.source)
        try:
            return self._letters.send(Letter(action, write, key=key, batch_id=batch_id))
        except ServiceUnreachable as error:
            if action in _COMMITS:
                raise CommitUnknown(source=self.source, reason=f"{error.context['target']} did not answer for {error.context['waited_s']:.1f} s") from error
            raise

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
            header = {"session": self.session_id, "table": table, "upload": upload_id}
            self._transport.upload(header, schema.columns, lambda part=part, schema=schema: _batches(part, schema))  # type: ignore[misc]
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


class _Debts:
    """What is only between this producer and its session: commits that are archived here, and the open transaction as it was staged."""

    def __init__(self) -> None:
        self.archived: set[str] = set()
        self.stages: list[Callable[[], Any]] = []

    def at_stake(self) -> str | None:
        """Say what a forgotten session takes along; what is staged is kept here until its commit, to be staged again."""
        if not self.archived:
            return None
        return f"commits that were acknowledged and not flushed are lost (tables {', '.join(sorted(self.archived))})"

    def staged(self) -> list[Letter]:
        return [Letter("session.stage", write) for write in self.stages]


def _with_commit(flushes: Sequence[Flush], time_us: int, content: Mapping[str, Sequence[Content]]) -> list[Flush]:
    """Return flushes that also deliver a commit which was made lazily."""
    before = {flush.table: list(flush.commits) for flush in flushes}
    tables = [*before, *(table for table, parts in content.items() if parts and table not in before)]
    return [Flush(table, [*before.get(table, []), *([(time_us, content[table])] if content.get(table) else [])], None) for table in tables]


def _batches(part: Bypass, schema: TableSchema) -> Iterator[pa.RecordBatch]:
    yield from table_of(part.chunks, schema.columns).to_batches(max_chunksize=_UPLOAD_ROWS)
    for file in part.files:
        with pq.ParquetFile(file.path) as source:
            for batch in source.iter_batches(batch_size=_UPLOAD_ROWS):
                yield pa.RecordBatch.from_arrays(
                    [batch.column(name).cast(schema.columns.field(name).type) for name in schema.columns.names], schema=schema.columns
                )


def remove_files(paths: Iterator[str]) -> None:
    """Remove files of this client."""
    for path in paths:
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            log.info("file.left", path=path, error=repr(error))
