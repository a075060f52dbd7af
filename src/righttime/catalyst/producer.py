"""Producers: a loader's connection. Rows go in one by one or in bulk, commits are cheap, and a policy says when rows move.

In: rows and operations (`transaction.py`), commits, rollbacks; requests for data from the catalyst (`lazy.py`).
Out: commits and flushes to the catalyst, durable steps to the mover.
Promise: a call that raises leaves the transaction as it was before the call.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from righttime.catalyst.face import Ask, ProducerFace
from righttime.catalyst.lazy import LazyCommits
from righttime.catalyst.messages import Bypass, Content, Published
from righttime.catalyst.policies import Policy, start_policy
from righttime.catalyst.port import Port, anything_goes
from righttime.catalyst.transaction import OpenTransaction
from righttime.changes.clock import Clock
from righttime.changes.faults import CrashPoint, reach
from righttime.changes.interrupts import InterruptedAfterCommit
from righttime.changes.operations import Operations
from righttime.errors import BadArgument, NotLazy, NotStored, ProducerClosed, RightTimeError, SessionLost

Durability = Literal["memory", "log", "warehouse"]
_DURABILITIES = ("memory", "log", "warehouse")


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Uncommitted rows of a producer that are not in the catalyst, for its own queries."""

    source: str
    bypass: Mapping[str, Bypass]


class Producer(OpenTransaction, LazyCommits, ProducerFace):
    """One source's loader. Calls from several threads are taken one after the other."""

    def __init__(self, source: str, *, policy: Policy, port: Port) -> None:
        started = start_policy(policy, _Probe(port.clock))
        OpenTransaction.__init__(self, port)
        LazyCommits.__init__(self, port.open_session(source, policy=repr(policy)), started, settings=port.settings)
        self._loss_told = False

    # -- transactions ------------------------------------------------------------------------------------------------

    def commit(self, *, materialize: bool = False, durability: Durability | None = None, batch_id: str | None = None) -> Published:
        """Commit the transaction: all its rows, in all tables, become visible together.

        `durability`: "memory" (lost in a crash, and then reported), "log" (written ahead, synced), "warehouse" (stored; the same as
        `materialize=True`). With a `batch_id` that this source has committed before, the rows are dropped and the earlier commit is returned.
        """
        with self._calls:
            try:
                return self._commit(self._durability(materialize, durability), batch_id)
            except SessionLost:
                self._loss_told = True  # closing the producer, as the error advises, says nothing new
                raise

    def _commit(self, wanted: Durability, batch_id: str | None) -> Published:
        if batch_id is not None and (type(batch_id) is not str or not batch_id):
            raise BadArgument(name="batch_id", reason=f"{batch_id!r} is no text")
        if batch_id is not None and (known := self._session.known_batch(batch_id)) is not None:
            self.rollback()
            return known
        content, bypass = self._transaction()
        reach(CrashPoint.COMMIT_STAGED)
        if wanted == "memory" and not bypass and not self._must_store(content):
            published = self._commit_in_memory(content, batch_id)
        else:
            published = self._commit_durably(content, bypass, batch_id, store=wanted == "warehouse")
        reach(CrashPoint.COMMIT_PUBLISHED)
        return published

    def _durability(self, materialize: bool, durability: Durability | None) -> Durability:
        if self._closed:
            raise ProducerClosed(source=self.source)
        if durability is not None and durability not in _DURABILITIES:
            raise BadArgument(name="durability", reason=f'{durability!r} is not "memory", "log" or "warehouse"')
        if materialize and durability not in (None, "warehouse"):
            raise BadArgument(name="durability", reason='materialize=True means durability="warehouse"; give only one of them')
        return "warehouse" if materialize else durability or "memory"

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
                with self._whole():
                    published = self._commit_lazily(content, batch_id)
                    self._end_transaction()
                return published
            except NotLazy:
                pass  # an operation of another producer needs every row of these tables now
        if tried:
            # What can fail is tried where the rows are; if it does, the transaction is there and can be rolled back.
            self._stage(content)
            content = {}
        self._make_room(content)
        with self._whole():
            with self._taken(self._archive.take_all) as flushes:
                published = self._session.commit(flushes, content, batch_id=batch_id)
            self._end_transaction()
        self._tell_policy()
        return published

    def _commit_durably(self, content: dict[str, list[Content]], bypass: dict[str, Bypass], batch_id: str | None, *, store: bool) -> Published:
        # Rows that are stored in this very step may stand over the bound for that long; storing is the way out of a full catalyst.
        self._stage(content, bounded=not store)
        try:
            published = self._session.commit_durably(bypass, store=store, batch_id=batch_id)
        except (NotStored, InterruptedAfterCommit):
            self._end_transaction()  # it is committed
            raise
        self._end_transaction()  # at once: rows that go past the catalyst are still here, and must not be committed again
        self._tell_policy()
        return published

    def _stage(self, content: dict[str, list[Content]], *, bounded: bool = True) -> None:
        """Move archives and the transaction into the catalyst, the latter uncommitted; it leaves the buffers."""
        if bounded:
            self._make_room(content)
        with self._whole():
            with self._taken(self._archive.take_all) as flushes:
                self._session.stage(flushes, content)
            for table in content:
                self._buffers[table].stage()

    def rollback(self) -> None:
        """Drop the open transaction: its rows and its operations."""
        with self._calls, self._whole():
            self._drop_transaction()
            self._roll_back()

    # -- own reads ---------------------------------------------------------------------------------------------------

    def _answer_own(self, query: str, ask: Ask | None, **options: Any) -> Any:
        with self._calls:
            content, bypass = self._transaction()
            self._stage(content)
            return (ask or self._with.own_query)(query, own=OwnRows(self.source, bypass), **options)

    # -- flushing ----------------------------------------------------------------------------------------------------

    def flush(self, *tables: str) -> None:
        """Move lazily committed rows to the catalyst now: those of the named tables, or all. A service always gets all: its commits stay whole."""
        with self._calls:
            named = [self._open_buffer(table).encoder.table.name for table in tables]
            try:
                self._flush(list(self._archived()) if self._session.apart or not named else named)
            except SessionLost:
                self._loss_told = True
                raise

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush what is committed, drop what is not, and end."""
        with self._calls:
            if self._closed:
                return
            self.rollback()
            # Over the bound if need be: what was acknowledged must not be lost because memory is full.
            try:
                with self._whole(), self._taken(self._archive.take_all) as flushes:
                    self._session.flush(flushes)
                self._tell_policy()
            except RightTimeError as error:
                if not error.retryable:
                    self._end()  # nobody will ever take it: the loader is told, and is rid of the producer
                if not (self._loss_told and isinstance(error, SessionLost)):
                    raise
            self._end()
        self._listener.join()
        self._with.producers_changed()

    def _end(self) -> None:
        with self._whole():
            self._closed = True
            self._buffers.clear()
            self._session.close()

    @property
    def in_transaction(self) -> bool:
        """Whether there are rows or operations that are neither committed nor rolled back."""
        with self._calls:
            return self._session.staged or any(buffer.in_use for buffer in self._buffers.values())


class _Probe:
    """The machine as policies see it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def load(self) -> float:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
