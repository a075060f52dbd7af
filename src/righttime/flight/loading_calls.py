"""Calls of producers: what the service does with a producer's messages.

In: messages of a session.
Out: answers, from the same local session that a producer of this process would have.
Promise: a message is checked as a whole before anything of it happens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from righttime.catalyst.local import LocalSession
from righttime.catalyst.messages import Bypass, Flush, Published
from righttime.catalyst.port import Session, checked_source
from righttime.changes.schema import TableSchema
from righttime.errors import BadMessage, CommitUnknown, NotStored, RightTimeError, SessionLost, UnknownTable
from righttime.flight.access import Grant
from righttime.flight.contents import ContentReader, refuse_other
from righttime.flight.frames import Message, typed
from righttime.flight.records import published_record
from righttime.flight.sessions import ProducerSession, SessionTable
from righttime.flight.uploads import Uploads
from righttime.ledger.sqlite import Loss
from righttime.service import Engine

Answer = dict[str, Any]
_POLL_S_MAX = 30.0


class LoadingCalls:
    """The producer's side of the service."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.uploads = Uploads(engine.folder, bytes_max=engine.settings.uploads_bytes_max, check=engine.port.check_storable)
        self.sessions = SessionTable(
            settings=engine.settings,
            clock=engine.clock,
            note_loss=self._note_loss,
            drop=self.uploads.drop,
            changed=engine.port.producers_changed,
        )
        self.sequenced: Mapping[str, Callable[[ProducerSession, Message], Answer]] = {
            "session.lazy": self._commit_lazily,
            "session.commit": self._commit,
            "session.stage": self._stage,
            "session.durable": self._commit_durably,
            "session.flush": self._flush,
            "session.rollback": self._roll_back,
            "session.close": self._close,
        }

    def _note_loss(self, session: ProducerSession, losses: list[Loss]) -> None:
        """Write losses down. The batch ids of commits of which nothing came are free again: whoever has the rows may commit them anew."""
        catalyst, source, owed = self._engine.catalyst, session.local.source, session.owed.by_commit()
        with catalyst.lock:
            history = catalyst.head.source(source)
            for (known, batch_id), commit in list(catalyst.head.batches.items()):
                made = history.rows_at(commit.time_us) - history.rows_at(commit.time_us - 1)
                if known == source and owed.get(commit.number) == made:
                    del catalyst.head.batches[known, batch_id]
        self._engine.ledger.note_loss(losses)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def open(self, message: Message, grant: Grant) -> Answer:
        """Open a session for a source, or for a free name."""
        wanted, policy = message.optional_text("source"), message.text("policy")[:1000]
        session = self.sessions.open(message.text("session"), lambda: self._connect(wanted, policy), grant=grant.name)
        return {"source": session.local.source}

    def _connect(self, wanted: str | None, policy: str) -> Session:
        with self._engine.declarations:
            return self._engine.port.open_session(self._engine.free_source() if wanted is None else checked_source(wanted), policy=policy)

    def renew(self, message: Message, grant: Grant) -> list[str]:
        """Note that producers are alive; return the sessions that are unknown."""
        return self.sessions.renew([typed(one, str, what="a session") for one in message.listed("sessions")], grant=grant.name)

    def known_batch(self, message: Message, grant: Grant) -> Answer:
        """Tell what a source committed under a batch id."""
        found = self.sessions.get(message.text("session"), grant=grant.name).local.known_batch(message.text("batch"))
        return {"published": None if found is None else published_record(found)}

    def await_requests(self, message: Message, grant: Grant) -> Answer:
        """Wait for requests for data."""
        session = self.sessions.get(message.text("session"), grant=grant.name)
        requests = session.await_requests(message.number("poll"), min(message.seconds("timeout_s"), _POLL_S_MAX))
        return {"requests": None if requests is None else dict(requests)}

    def upload(self, message: Message, grant: Grant, batches: Iterable[pa.RecordBatch]) -> Answer:
        """Take a stream of rows that a later commit will name."""
        session = self.sessions.get(message.text("session"), grant=grant.name)
        schema = self._schema(message.text("table"))
        refuse_other(schema, message.text("mark"))
        upload = self.uploads.take(schema, _readable(batches))
        try:
            other = session.keep(message.text("upload"), upload)
        except BaseException:
            self.uploads.drop(upload)
            raise
        if other is not None:
            self.uploads.drop(other)
        return {"rows": upload.rows}

    def drop_uploads(self, message: Message, grant: Grant) -> Answer:
        """Let uploads go that will not be committed."""
        session = self.sessions.get(message.text("session"), grant=grant.name)
        with session.guard:
            for upload_id in message.listed("uploads"):
                upload = session.uploads.pop(str(upload_id), None)
                if upload is not None:
                    self.uploads.drop(upload)
        return {}

    def bypass_of(self, session: ProducerSession, record: object) -> dict[str, Bypass]:
        """Return the rows of uploads, by table."""
        bypass = {}
        for table, upload_ids in typed(record, dict, what="what goes past the catalyst").items():
            uploads = [session.uploads.get(str(upload_id)) for upload_id in typed(upload_ids, list, what="uploads")]
            if any(upload is None or upload.table.name != table for upload in uploads):
                raise BadMessage(reason=f"it names uploads of table {table!r} that are not there")
            bypass[table] = Bypass(chunks=tuple(chunk for upload in uploads if upload is not None for chunk in upload.chunks()))
        return bypass

    def _schema(self, table: str) -> TableSchema:
        schema = self._engine.schemas.get(table)
        if schema is None:
            raise UnknownTable(table=table, known=", ".join(sorted(self._engine.schemas)) or "none")
        return schema

    def heard(self, session: ProducerSession) -> None:
        """Note that a producer talks to us: it will answer requests for data, too."""
        if isinstance(session.local, LocalSession):
            session.local.link.alive_s = self._engine.clock.monotonic_s()

    # -- messages in order -------------------------------------------------------------------------------------------

    def _commit_lazily(self, session: ProducerSession, message: Message) -> Answer:
        rows = {self._schema(table).name: _count(rows) for table, rows in message.mapping("rows").items()}
        return self._committed(session, message, lambda batch_id: self._lazily(session, rows, batch_id))

    def _lazily(self, session: ProducerSession, rows: Mapping[str, int], batch_id: str) -> Published:
        published = session.local.commit_lazily(rows, batch_id=batch_id)
        session.owed.note(published.commit, rows)
        return published

    def _commit(self, session: ProducerSession, message: Message) -> Answer:
        flushes, content = self._contents(session, message)

        def commit(batch_id: str) -> Published:
            self._make_room(session, message)
            published = session.local.commit(flushes, content, batch_id=batch_id)
            session.owed.delivered(flushes)
            return published

        return self._committed(session, message, commit)

    def _commit_durably(self, session: ProducerSession, message: Message) -> Answer:
        bypass, store = self.bypass_of(session, message.header.get("bypass")), message.flag("store")

        def commit(batch_id: str) -> Published:
            try:
                published = session.local.commit_durably(bypass, store=store, batch_id=batch_id)
            except NotStored:
                self._drop_all(session)  # it is committed
                raise
            self._drop_all(session)
            return published

        return self._committed(session, message, commit)

    def _committed(self, session: ProducerSession, message: Message, commit: Callable[[str], Published]) -> Answer:
        """Commit under the message's batch id; one that is sent again to a new session may have happened in an earlier one."""
        batch_id = message.text("batch")
        if not batch_id:
            raise BadMessage(reason="a commit has a batch id")
        known = self._known_before(session, batch_id) if message.header.get("again") is True else None
        if known is not None and message.header.get("rows") is not None:
            raise SessionLost(source=session.local.source, lost=f"commit {known.commit.number} was announced and its rows never came")
        return {"published": published_record(known if known is not None else commit(batch_id))}

    def _known_before(self, session: ProducerSession, batch_id: str) -> Published | None:
        try:
            return session.local.known_batch(batch_id)
        except RightTimeError as error:  # any other error would say that it did not happen
            raise CommitUnknown(source=session.local.source, reason=f"it could not be looked up ({error.code})") from error

    def _stage(self, session: ProducerSession, message: Message) -> Answer:
        flushes, content = self._contents(session, message)
        self._make_room(session, message)
        try:
            session.local.stage(flushes, content)
        finally:
            staged = session.local.staged
        session.owed.delivered(flushes)
        return {"staged": staged}

    def _flush(self, session: ProducerSession, message: Message) -> Answer:
        flushes, _ = self._contents(session, message)
        self._make_room(session, message)
        session.local.flush(flushes)
        session.owed.delivered(flushes)
        return {}

    def _roll_back(self, session: ProducerSession, _message: Message) -> Answer:
        session.local.roll_back()
        self._drop_all(session)
        return {}

    def _close(self, session: ProducerSession, _message: Message) -> Answer:
        return {}  # the desk ends the session after the answer is kept

    def _contents(self, session: ProducerSession, message: Message) -> tuple[list[Flush], dict[str, Any]]:
        reader = ContentReader(self._engine.schemas, message.parts, message.mapping("tables"), check=self._engine.port.check_storable)
        flushes, content = reader.flushes(message.header.get("flushes", [])), reader.contents(message.header.get("content", {}))
        return session.owed.outstanding(flushes, now_us=self._engine.catalyst.authority.read_us()), content

    def _make_room(self, session: ProducerSession, message: Message) -> None:
        sizes = {self._schema(table).name: _count(size) for table, size in typed(message.header.get("room", {}), dict, what="sizes").items()}
        if sizes:
            session.local.make_room(sizes)

    def _drop_all(self, session: ProducerSession) -> None:
        for upload in session.uploads.values():
            self.uploads.drop(upload)
        session.uploads.clear()


def _readable(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what comes; `BadMessage` where it ends otherwise than a stream does, or names columns by what is no text."""
    try:
        for batch in batches:
            if not batch.schema.names:
                raise BadMessage(reason="an upload has no columns")
            yield batch
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise BadMessage(reason="an upload cannot be read") from error


def _count(value: object) -> int:
    count = typed(value, int, what="a count")
    if count < 0:
        raise BadMessage(reason="a count is negative")
    return count
