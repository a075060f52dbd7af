"""Producers: a loader's connection. Rows go in one by one or in bulk, commits are cheap, and a policy says when rows move.

In: rows, commits, rollbacks; requests for data from the catalyst, served by a listener while commits are archived.
Out: flushes to the catalyst, durable steps to the mover.
Promise: a call that raises leaves the transaction as it was before the call.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa

from righttime.catalyst.archive import Archive, Buffer
from righttime.catalyst.images import Images
from righttime.catalyst.listener import Listener
from righttime.catalyst.messages import Flush, Published
from righttime.catalyst.mover import Bypass, Mover
from righttime.catalyst.policies import Policy, start_policy
from righttime.catalyst.shell import Catalyst
from righttime.changes.clock import Clock
from righttime.changes.durations import Duration
from righttime.changes.encoder import RowEncoder
from righttime.changes.faults import CrashPoint, reach
from righttime.changes.position import Commit
from righttime.changes.rows import Chunk, Row
from righttime.changes.schema import TableSchema
from righttime.errors import BadSetting, BatchTooLarge, ProducerClosed, UnknownTable, WrongType
from righttime.settings import Settings
from righttime.telemetry import get_log
from righttime.warehouse.store import DataFile

log = get_log("producer")

Durability = Literal["memory", "log", "warehouse"]
_DURABILITIES = ("memory", "log", "warehouse")


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Uncommitted rows of a producer that are not in the catalyst, for its own queries."""

    source: str
    bypass: Mapping[str, Bypass]


@dataclass(frozen=True, slots=True)
class Loading:
    """What a producer works with; put together by the service."""

    catalyst: Catalyst
    mover: Mover
    images: Images
    schemas: Mapping[str, TableSchema]
    settings: Settings
    clock: Clock
    known_batch: Callable[[str, str], Commit | None]
    stage_df: Callable[[TableSchema, Any], list[DataFile]]
    read_files: Callable[[TableSchema, Sequence[DataFile]], pa.Table]
    drop_files: Callable[[TableSchema, Sequence[DataFile]], None]
    own_query: Callable[..., Any]
    producers_changed: Callable[[], None]


class Producer:
    """One source's loader. Calls from several threads are taken one after the other."""

    def __init__(self, source: str, *, policy: Policy, loading: Loading) -> None:
        self.source = source
        self.policy = start_policy(policy, _Probe(loading.clock))
        self._with = loading
        self._buffers: dict[str, Buffer] = {}
        self._archive = Archive()
        self._calls = threading.RLock()
        self._archive_lock = threading.Lock()
        self._closed = False
        self._link = loading.catalyst.open_link(source, policy=repr(policy))
        self._listener = Listener(
            loading.catalyst, self._link, serve=self._serve, poll=self._poll, poll_s=loading.settings.policy_poll_s, lease_s=loading.settings.producer_lease_s
        )

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
            if schema.in_memory and sum(file.size for file in files) <= self._with.settings.bypass_bytes:
                rows = self._with.read_files(schema, files)
                self._with.drop_files(schema, files)
                self._add(table, buffer, buffer.encoder.encode_arrow(rows))
            else:
                buffer.encode_pending()
                buffer.files.extend(files)

    def _add(self, table: str, buffer: Buffer, chunks: list[Chunk]) -> None:
        size = sum(chunk.nbytes for chunk in chunks)
        if size > self._with.settings.batch_bytes_max:
            raise BatchTooLarge(table=table, size=size, bound=self._with.settings.batch_bytes_max)
        buffer.add(chunks)

    def _buffer(self, table: str) -> Buffer:
        if self._closed:
            raise ProducerClosed(source=self.source)
        return self._buffers.get(table) or self._open_buffer(table)

    def _open_buffer(self, table: str) -> Buffer:
        schema = self._with.schemas.get(str(table).lower())
        if schema is None:
            raise UnknownTable(table=table, known=", ".join(sorted(self._with.schemas)) or "none")
        return self._buffers.setdefault(schema.name, Buffer(RowEncoder(schema)))

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
            if batch_id is not None and (known := self._known(batch_id)) is not None:
                self.rollback()
                return Published(known, self._with.catalyst.head.number, replayed=True)
            rows, bypass = self._transaction()
            reach(CrashPoint.COMMIT_STAGED)
            if wanted == "memory" and not bypass:
                published = self._commit_in_memory(rows, batch_id)
            else:
                published = self._commit_durably(rows, bypass, batch_id, store=wanted == "warehouse")
            for buffer in self._buffers.values():
                buffer.clear()
            reach(CrashPoint.COMMIT_PUBLISHED)
            return published

    def _durability(self, materialize: bool, durability: Durability | None) -> Durability:
        if self._closed:
            raise ProducerClosed(source=self.source)
        if durability is not None and durability not in _DURABILITIES:
            raise BadSetting(name="durability", reason=f'{durability!r} is not "memory", "log" or "warehouse"')
        if materialize and durability not in (None, "warehouse"):
            raise BadSetting(name="durability", reason='materialize=True means durability="warehouse"; give only one of them')
        return "warehouse" if materialize else durability or "memory"

    def _known(self, batch_id: str) -> Commit | None:
        with self._with.catalyst.lock:
            found = self._with.catalyst.head.batches.get((self.source, batch_id))
        return found or self._with.known_batch(self.source, batch_id)

    def _transaction(self) -> tuple[dict[str, list[Chunk]], dict[str, Bypass]]:
        """Return the open transaction's rows: those for the catalyst, and those that go past it."""
        rows: dict[str, list[Chunk]] = {}
        bypass: dict[str, Bypass] = {}
        for name, buffer in self._buffers.items():
            schema = self._with.schemas[name]
            buffer.encode_pending()
            if buffer.files or (buffer.chunks and (not schema.in_memory or buffer.nbytes > self._with.settings.bypass_bytes)):
                bypass[name] = Bypass(tuple(buffer.chunks), tuple(buffer.files))
            elif buffer.chunks:
                rows[name] = list(buffer.chunks)
        return rows, bypass

    def _commit_in_memory(self, rows: dict[str, list[Chunk]], batch_id: str | None) -> Published:
        # Rows that the producer read back before commit are in the catalyst already, so there is nothing to hold back.
        if not self._link.staged and not self.policy.should_flush() and self._archive.nbytes <= self._with.settings.archive_bytes_max:
            return self._commit_lazily(rows, batch_id)
        self._make_room(rows)
        with self._archive_lock:
            published = self._with.catalyst.commit(self._link, self._archive.take_all(), rows, batch_id=batch_id)
        self._tell_policy()
        return published

    def _commit_lazily(self, rows: dict[str, list[Chunk]], batch_id: str | None) -> Published:
        with self._archive_lock:
            commit = self._with.catalyst.commit_lazily(
                self._link, {table: sum(chunk.rows for chunk in chunks) for table, chunks in rows.items()}, batch_id=batch_id
            )
            for table, chunks in rows.items():
                self._archive.add(table, commit.time_us, chunks)
        self._listener.start()
        return Published(commit, self._with.catalyst.head.number)

    def _commit_durably(self, rows: dict[str, list[Chunk]], bypass: dict[str, Bypass], batch_id: str | None, *, store: bool) -> Published:
        # Rows that are stored in this very step may stand over the bound for that long; storing is the way out of a full catalyst.
        self._stage(rows, bounded=not store)
        tables = self._unstored() if store else set()
        published = self._with.mover.commit(
            self._link, tables=tables, bypass=bypass, batch_id=batch_id, kind="materialize" if store else "bypass" if bypass else "log"
        )
        self._tell_policy()
        return published

    def _stage(self, rows: dict[str, list[Chunk]], *, bounded: bool = True) -> None:
        """Move archives and the transaction's rows into the catalyst, the latter uncommitted; they leave the buffers."""
        if bounded:
            self._make_room(rows)
        with self._archive_lock:
            self._with.catalyst.stage(self._link, self._archive.take_all(), rows)
        for table in rows:
            self._buffers[table].clear()

    def _unstored(self) -> set[str]:
        with self._with.catalyst.lock:
            lanes = ((name, table.lanes.get(self.source)) for name, table in self._with.catalyst.tables.items())
            return {name for name, lane in lanes if lane is not None and lane.last_id > lane.stored_id}

    def _make_room(self, rows: Mapping[str, Sequence[Chunk]]) -> None:
        waiting = self._archived()
        for table in rows.keys() | waiting.keys():
            self._with.images.make_room(self._with.schemas[table], waiting.get(table, 0) + sum(chunk.nbytes for chunk in rows.get(table, ())))

    def _archived(self, *, up_to_us: int | None = None) -> dict[str, int]:
        """Return the archived bytes of each table that has any."""
        with self._archive_lock:
            return {table: self._archive.bytes_of(table, up_to_us=up_to_us) for table in self._archive.tables()}

    def rollback(self) -> None:
        """Drop the rows of the open transaction."""
        with self._calls:
            for name, buffer in self._buffers.items():
                if buffer.files:
                    self._with.drop_files(self._with.schemas[name], buffer.files)
                buffer.clear()
            if self._link.staged:
                self._with.catalyst.roll_back(self._link)

    def _tell_policy(self) -> None:
        """Tell the policy of a flush. What has happened stays happened, whatever a user's policy makes of it."""
        try:
            self.policy.flushed()
        except Exception as error:
            log.error("policy.failed", source=self.source, error=repr(error))

    # -- own reads ---------------------------------------------------------------------------------------------------

    def sql(
        self, query: str, *, freshness: Duration | None = None, wait: Duration | None = None, on_late: str = "error", parameters: Sequence[Any] | None = None
    ) -> Any:
        """Answer a query on what is committed, under the same contract as `Warehouse.sql`, and on the rows of this transaction."""
        with self._calls:
            rows, bypass = self._transaction()
            self._stage(rows)
            return self._with.own_query(query, freshness=freshness, wait=wait, on_late=on_late, parameters=parameters or (), own=OwnRows(self.source, bypass))

    # -- flushing ----------------------------------------------------------------------------------------------------

    def flush(self, *tables: str) -> None:
        """Move lazily committed rows to the catalyst now: those of the named tables, or all."""
        with self._calls:
            self._flush([self._open_buffer(table).encoder.table.name for table in tables] or list(self._archived()))

    def _flush(self, tables: Sequence[str]) -> None:
        archived = self._archived()
        for table in tables:
            self._with.images.make_room(self._with.schemas[table], archived.get(table, 0))
        with self._archive_lock:
            flushes: list[Flush] = [self._archive.take(table) for table in tables]
            self._with.catalyst.flush(self._link, flushes)
        self._tell_policy()

    def _serve(self, table: str, time_us: int) -> None:
        """Answer a request for data (P5): archived commits up to the time, then the assurance that this is all."""
        self._with.images.make_room(self._with.schemas[table], self._archived(up_to_us=time_us).get(table, 0))
        with self._archive_lock:
            self._with.catalyst.flush(self._link, [self._archive.take(table, up_to_us=time_us, watermark_us=time_us)])
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
            with self._archive_lock:
                self._with.catalyst.flush(self._link, self._archive.take_all())
            self._tell_policy()
            self._closed = True
            self._buffers.clear()
            self._with.catalyst.close_link(self._link)
        self._listener.join()
        self._with.producers_changed()

    @property
    def closed(self) -> bool:
        """Whether the producer has ended."""
        return self._closed

    @property
    def in_transaction(self) -> bool:
        """Whether there are rows that are neither committed nor rolled back."""
        with self._calls:
            return bool(self._link.staged) or any(buffer.rows for buffer in self._buffers.values())

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None and not self._closed and self.in_transaction:
                self.commit()
        finally:
            self.close()


class _Probe:
    """The machine as policies see it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def load(self) -> float:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
