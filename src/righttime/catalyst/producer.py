"""Producers: a loader's connection. Rows go in one by one or in bulk, commits are cheap, and a policy says when rows move.

In: rows, commits, rollbacks; requests for data from the catalyst, served by a listener while commits are archived.
Out: flushes to the catalyst, durable steps to the mover.
Promise: a call that raises leaves the transaction as it was before the call.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa

from righttime.catalyst.archive import Archive, Buffer
from righttime.catalyst.holder import OperationHolder, Where
from righttime.catalyst.listener import Listener
from righttime.catalyst.messages import Bypass, Content, Flush, Published
from righttime.catalyst.policies import Policy, start_policy
from righttime.catalyst.port import Port, anything_goes
from righttime.changes.clock import Clock
from righttime.changes.durations import Duration
from righttime.changes.encoder import RowEncoder
from righttime.changes.faults import CrashPoint, reach
from righttime.changes.operations import Kind, Operations
from righttime.changes.rows import Chunk, Row
from righttime.changes.schema import TableSchema
from righttime.errors import (
    BadSetting,
    BatchTooLarge,
    CommitUnknown,
    NotLazy,
    NotStored,
    OperationRefused,
    ProducerClosed,
    RightTimeError,
    UnknownTable,
    WrongType,
)
from righttime.telemetry import get_log

log = get_log("producer")

Durability = Literal["memory", "log", "warehouse"]
_DURABILITIES = ("memory", "log", "warehouse")


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Uncommitted rows of a producer that are not in the catalyst, for its own queries."""

    source: str
    bypass: Mapping[str, Bypass]


class Producer:
    """One source's loader. Calls from several threads are taken one after the other."""

    def __init__(self, source: str, *, policy: Policy, port: Port) -> None:
        self.policy = start_policy(policy, _Probe(port.clock))
        self._with = port
        self._buffers: dict[str, Buffer] = {}
        self._archive = Archive()
        self._in_doubt: dict[str, list[Content]] = {}  # a lazy commit whose answer did not come
        self._calls = threading.RLock()
        self._archive_lock = threading.Lock()
        self._closed = False
        self._session = port.open_session(source, policy=repr(policy))
        self.source = self._session.source
        self._listener = Listener(self._session, serve=self._serve, poll=self._poll, poll_s=port.settings.policy_poll_s, lease_s=port.settings.producer_lease_s)

    # -- rows in -----------------------------------------------------------------------------------------------------

    def insert(self, table: str, row: Row) -> None:
        """Add one row: a mapping of column to value, or the values in column order."""
        with self._calls:
            buffer = self._buffers.get(table) or self._buffer(table)
            buffer.pending.append(buffer.encoder.checked(row))

    def insert_many(self, table: str, rows: Sequence[Row]) -> None:
        """Add many rows; all of them or, if one does not fit, none."""
        with self._calls:
            buffer = self._buffer(table)
            if not isinstance(rows, list | tuple):
                rows = self._listed(table, rows)
            if rows:
                self._add(table, buffer, [buffer.encoder.encode(rows)])

    def _listed(self, table: str, rows: Any) -> list[Row]:
        if isinstance(rows, str | bytes | Mapping) or not hasattr(rows, "__iter__"):
            raise WrongType(table=table, column="*", value=f"a {type(rows).__name__}", expected="rows (sequences or mappings)")
        return list(rows)

    def insert_arrow(self, table: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Add Arrow data; columns are matched by name and cast without loss."""
        with self._calls:
            buffer = self._buffer(table)
            if not isinstance(rows, pa.Table | pa.RecordBatch):
                raise WrongType(table=table, column="*", value=f"a {type(rows).__name__}", expected="an Arrow table or record batch")
            self._add(table, buffer, buffer.encoder.encode_arrow(rows))

    def insert_df(self, table: str, df: Any) -> None:
        """Add a Spark DataFrame. Its rows are computed and written by the executors now; large ones never pass the driver."""
        with self._calls:
            buffer = self._buffer(table)
            if not hasattr(df, "schema") or not hasattr(df, "write"):
                raise WrongType(table=table, column="*", value=f"a {type(df).__name__}", expected="a Spark DataFrame")
            schema = self._with.schemas[table.lower()]
            files = self._with.stage_df(schema, df)
            if schema.unique or (schema.in_memory and sum(file.size for file in files) <= self._with.settings.bypass_bytes):
                rows = self._with.read_files(schema, files)
                self._with.drop_files(schema, files)
                self._add(table, buffer, buffer.encoder.encode_arrow(rows))
            else:
                if buffer.operations.count:
                    self._with.drop_files(schema, files)
                    raise OperationRefused(
                        table=schema.name, reason="so many rows go straight to the warehouse, past the operations before them; commit those first"
                    )
                buffer.encode_pending()
                buffer.files.extend(files)

    def _add(self, table: str, buffer: Buffer, chunks: list[Chunk]) -> None:
        size = sum(chunk.nbytes for chunk in chunks)
        if size > self._with.settings.batch_bytes_max:
            raise BatchTooLarge(table=table, size=size, bound=self._with.settings.batch_bytes_max)
        self._check(buffer.encoder.table, chunks)
        buffer.add(chunks)

    def _check(self, schema: TableSchema, content: Sequence[Content]) -> None:
        """Refuse what the table's store could not hold, before it is committed and can never be stored."""
        for part in content:
            for batch in [part.content] if isinstance(part, Chunk) else _contents(part):
                if isinstance(batch, pa.RecordBatch):  # blocks of numbers fit everywhere
                    self._with.check_storable(schema, batch)

    def _buffer(self, table: str) -> Buffer:
        if self._closed:
            raise ProducerClosed(source=self.source)
        return self._buffers.get(table) or self._open_buffer(table)

    def _open_buffer(self, table: str) -> Buffer:
        schema = self._with.schemas.get(str(table).lower())
        if schema is None:
            raise UnknownTable(table=table, known=", ".join(sorted(self._with.schemas)) or "none")
        return self._buffers.setdefault(schema.name, Buffer(RowEncoder(schema), OperationHolder(schema)))

    # -- operations --------------------------------------------------------------------------------------------------

    def update(self, table: str, set: Mapping[str, Any], where: Where = None, *, parameters: Sequence[Any] = ()) -> None:
        """Change rows: `set` gives columns their new values (or `expr("qty + 1")`), `where` chooses the rows.

        A mapping chooses by equality, text is an SQL condition with `?` for `parameters`, None means every row. It takes effect at commit, on everything
        committed before and on the rows that this transaction inserted before.
        """
        with self._calls:
            buffer = self._changing(table)
            buffer.operations.update(set, where, parameters, after=buffer.rows_inserted)

    def delete(self, table: str, where: Where = None, *, parameters: Sequence[Any] = ()) -> None:
        """Delete rows, chosen as by `update`."""
        with self._calls:
            buffer = self._changing(table)
            buffer.operations.delete(where, parameters, after=buffer.rows_inserted)

    def upsert(self, table: str, row: Row) -> None:
        """Give the row with this key the given columns, or insert it if there is none."""
        with self._calls:
            buffer = self._changing(table)
            buffer.operations.upsert(row, after=buffer.rows_inserted)

    def update_many(self, table: str, rows: Sequence[Row] | pa.Table) -> None:
        """Update by key, many rows at once: mappings with the key columns and those to set, or all columns in order. All of them are taken or none."""
        self._change_many("update", table, rows)

    def upsert_many(self, table: str, rows: Sequence[Row] | pa.Table) -> None:
        """Upsert many rows at once, all of them or none."""
        self._change_many("upsert", table, rows)

    def delete_many(self, table: str, rows: Sequence[Row] | pa.Table) -> None:
        """Delete by key, many rows at once: mappings with the key columns, or the key's values in order. All of them are taken or none."""
        self._change_many("delete", table, rows)

    def _change_many(self, kind: Kind, table: str, rows: Any) -> None:
        with self._calls:
            buffer = self._changing(table)
            if isinstance(rows, pa.Table):
                buffer.operations.add_arrow(kind, rows, after=buffer.rows_inserted)
            else:
                buffer.operations.add_rows(kind, rows if type(rows) is list else self._listed(table, rows), after=buffer.rows_inserted)

    def _changing(self, table: str) -> Buffer:
        buffer = self._buffer(table)
        if buffer.files:
            raise OperationRefused(
                table=buffer.encoder.table.name, reason="rows of this transaction go straight to the warehouse (a large DataFrame); commit them first"
            )
        return buffer

    # -- transactions ------------------------------------------------------------------------------------------------

    def commit(self, *, materialize: bool = False, durability: Durability | None = None, batch_id: str | None = None) -> Published:
        """Commit the transaction: all its rows, in all tables, become visible together.

        `durability`: "memory" (lost in a crash, and then reported), "log" (written ahead, synced), "warehouse" (stored; the same as
        `materialize=True`). With a `batch_id` that this source has committed before, the rows are dropped and the earlier commit is returned.
        """
        with self._calls:
            wanted = self._durability(materialize, durability)
            if batch_id is not None and (type(batch_id) is not str or not batch_id):
                raise BadSetting(name="batch_id", reason=f"{batch_id!r} is no text")
            if batch_id is not None and (known := self._session.known_batch(batch_id)) is not None:
                self.rollback()
                return known
            content, bypass = self._transaction()
            reach(CrashPoint.COMMIT_STAGED)
            if wanted == "memory" and not bypass and not self._must_store(content):
                published = self._commit_in_memory(content, batch_id)
            else:
                try:
                    published = self._commit_durably(content, bypass, batch_id, store=wanted == "warehouse")
                except NotStored:
                    self._end_transaction()  # it is committed
                    raise
            self._end_transaction()
            reach(CrashPoint.COMMIT_PUBLISHED)
            return published

    def _end_transaction(self) -> None:
        for buffer in self._buffers.values():
            buffer.clear()

    def _durability(self, materialize: bool, durability: Durability | None) -> Durability:
        if self._closed:
            raise ProducerClosed(source=self.source)
        if durability is not None and durability not in _DURABILITIES:
            raise BadSetting(name="durability", reason=f'{durability!r} is not "memory", "log" or "warehouse"')
        if materialize and durability not in (None, "warehouse"):
            raise BadSetting(name="durability", reason='materialize=True means durability="warehouse"; give only one of them')
        return "warehouse" if materialize else durability or "memory"

    def _transaction(self) -> tuple[dict[str, list[Content]], dict[str, Bypass]]:
        """Return the open transaction: what is for the catalyst, and rows that go past it."""
        content: dict[str, list[Content]] = {}
        bypass: dict[str, Bypass] = {}
        for name, buffer in self._buffers.items():
            schema = self._with.schemas[name]
            if buffer.pending:
                buffer.encode_pending()
                self._check(schema, buffer.chunks[-1:])
            large = buffer.chunks and (not schema.in_memory or buffer.nbytes > self._with.settings.bypass_bytes)
            # Rows with operations after them need ids, which only the catalyst gives; unique keys are looked up there.
            if buffer.files or (large and not buffer.operations.count and not buffer.rows_staged and not schema.unique):
                bypass[name] = Bypass(tuple(buffer.chunks), tuple(buffer.files))
            elif buffer.in_use:
                content[name] = buffer.content()
                self._check(schema, [part for part in content[name] if isinstance(part, Operations)])
        return content, bypass

    def _must_store(self, content: Mapping[str, Sequence[Content]]) -> bool:
        """A table without memory table keeps its rows in the warehouse, those that were changed as well."""
        held = (name for name, buffer in self._buffers.items() if name in content or buffer.rows_staged or buffer.operations.count)
        return any(not self._with.schemas[name].in_memory for name in held)

    def _commit_in_memory(self, content: dict[str, list[Content]], batch_id: str | None) -> Published:
        operations = [part for parts in content.values() for part in parts if isinstance(part, Operations)]
        tried = any(self._with.schemas[table].unique for table in content) or any(not part.lazy for part in operations)
        # What an expression makes may be a value that the store cannot hold.
        tried = tried or (self._with.check_storable is not anything_goes and any(part.expressions for part in operations))
        # What the producer read back before commit is in the catalyst already, so there is nothing to hold back. Operations always go there:
        # rows that others commit later could be stored first, and stored rows carry no time that would keep an older operation off them.
        lazy = not tried and not operations and not self._session.staged
        if lazy and not self.policy.should_flush() and self._archive.nbytes <= self._with.settings.archive_bytes_max:
            try:
                return self._commit_lazily(content, batch_id)
            except NotLazy:
                pass  # an operation of another producer needs every row of these tables now
        if tried:
            # What can fail is tried where the rows are; if it does, the transaction is there and can be rolled back.
            self._stage(content)
            content = {}
        self._make_room(content)
        with self._taken(self._archive.take_all) as flushes:
            published = self._session.commit(flushes, content, batch_id=batch_id)
        self._tell_policy()
        return published

    def _commit_lazily(self, content: dict[str, list[Content]], batch_id: str | None) -> Published:
        with self._archive_lock:
            try:
                published = self._session.commit_lazily({table: sum(part.rows for part in parts) for table, parts in content.items()}, batch_id=batch_id)
            except CommitUnknown:
                self._in_doubt = content
                raise
            self._in_doubt = {}
            if not published.replayed:
                self._archive_commit(published, content)
        self._listener.start()
        return published

    def _archive_commit(self, published: Published, content: Mapping[str, list[Content]]) -> None:
        for table, parts in content.items():
            self._archive.add(table, published.commit.time_us, parts)

    def _commit_durably(self, content: dict[str, list[Content]], bypass: dict[str, Bypass], batch_id: str | None, *, store: bool) -> Published:
        # Rows that are stored in this very step may stand over the bound for that long; storing is the way out of a full catalyst.
        self._stage(content, bounded=not store)
        published = self._session.commit_durably(bypass, store=store, batch_id=batch_id)
        self._tell_policy()
        return published

    def _stage(self, content: dict[str, list[Content]], *, bounded: bool = True) -> None:
        """Move archives and the transaction into the catalyst, the latter uncommitted; it leaves the buffers."""
        if bounded:
            self._make_room(content)
        with self._taken(self._archive.take_all) as flushes:
            self._session.stage(flushes, content)
        for table in content:
            self._buffers[table].stage()

    @contextmanager
    def _taken(self, take: Callable[[], list[Flush]]) -> Iterator[list[Flush]]:
        """Take from the archive for one delivery; if that fails, everything is put back."""
        with self._archive_lock:
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

    def rollback(self) -> None:
        """Drop the open transaction: its rows and its operations."""
        with self._calls:
            for name, buffer in self._buffers.items():
                if buffer.files:
                    self._with.drop_files(self._with.schemas[name], buffer.files)
                buffer.clear()
            made = self._session.roll_back()
            if made is not None:
                self._keep_made(made)

    def _keep_made(self, made: Published) -> None:
        """Archive a lazy commit that was rolled back while nobody knew whether it was made: it was, and what is made is delivered."""
        with self._archive_lock:
            self._archive_commit(made, self._in_doubt)
            self._in_doubt = {}
        self._listener.start()

    def _tell_policy(self) -> None:
        """Tell the policy of a flush. What has happened stays happened, whatever a user's policy makes of it."""
        try:
            self.policy.flushed()
        except Exception as error:
            log.error("policy.failed", source=self.source, error=repr(error))

    # -- own reads ---------------------------------------------------------------------------------------------------

    def sql(
        self,
        query: str,
        *,
        freshness: Duration | None = None,
        wait: Duration | None = None,
        on_late: str = "error",
        parameters: Sequence[Any] | None = None,
        ask: Callable[..., Any] | None = None,
    ) -> Any:
        """Answer a query on what is committed, under the same contract as `Warehouse.sql`, and on the rows of this transaction.

        `ask` is who answers it: a connection to a PostgreSQL warehouse has the database answer; None is Spark.
        """
        with self._calls:
            content, bypass = self._transaction()
            self._stage(content)
            own = OwnRows(self.source, bypass)
            return (ask or self._with.own_query)(query, freshness=freshness, wait=wait, on_late=on_late, parameters=parameters or (), own=own)

    # -- flushing ----------------------------------------------------------------------------------------------------

    def flush(self, *tables: str) -> None:
        """Move lazily committed rows to the catalyst now: those of the named tables, or all. A service always gets all: its commits stay whole."""
        with self._calls:
            named = [self._open_buffer(table).encoder.table.name for table in tables]
            self._flush(list(self._archived()) if self._session.apart or not named else named)

    def _flush(self, tables: Sequence[str]) -> None:
        archived = self._archived()
        self._session.make_room({table: archived.get(table, 0) for table in tables})
        with self._taken(lambda: [self._archive.take(table) for table in tables]) as flushes:
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

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush what is committed, drop what is not, and end."""
        with self._calls:
            if self._closed:
                return
            self.rollback()
            # Over the bound if need be: what was acknowledged must not be lost because memory is full.
            try:
                with self._taken(self._archive.take_all) as flushes:
                    self._session.flush(flushes)
                self._tell_policy()
            except RightTimeError as error:
                if not error.retryable:
                    self._end()  # nobody will ever take it: the loader is told, and is rid of the producer
                raise
            self._end()
        self._listener.join()
        self._with.producers_changed()

    def _end(self) -> None:
        self._closed = True
        self._buffers.clear()
        self._session.close()

    @property
    def closed(self) -> bool:
        """Whether the producer has ended."""
        return self._closed

    @property
    def in_transaction(self) -> bool:
        """Whether there are rows or operations that are neither committed nor rolled back."""
        with self._calls:
            return self._session.staged or any(buffer.in_use for buffer in self._buffers.values())

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None and not self._closed and self.in_transaction:
                self.commit()
        finally:
            self.close()


def _contents(operations: Operations) -> list[object]:
    """Return the values of operations, and their expressions as values: such a text holds every character that it can bring into a row."""
    texts = [pa.record_batch({column: [text]}) for column, text in operations.expressions]
    return [*(part.chunk.content for part in (operations.key_rows, operations.value_rows) if part is not None), *texts]


class _Probe:
    """The machine as policies see it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def load(self) -> float:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
