"""The settler: settles a table's operations when somebody needs their outcome, and tries those that could fail before they are committed.

In: tables and times; the catalyst's lanes, the store's rows.
Out: ends and versions in the memory tables; for a producer's own queries, the outcome of its open transaction.
Promise: the catalyst's lock is held to look and to publish, not to compute, except for a commit that others overtook several times;
an outcome that storing has overtaken is dropped and made again.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from righttime.catalyst.ends import Hidden, by_unit
from righttime.catalyst.gathering import gather
from righttime.catalyst.laneview import OPEN_US, LaneView
from righttime.catalyst.links import Link
from righttime.catalyst.port import CheckStorable, anything_goes
from righttime.catalyst.segments import joined
from righttime.catalyst.settle import Settled, Settling
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.steps import Entry
from righttime.catalyst.table import VERSIONS, Lane, MemoryTable
from righttime.catalyst.uniqueness import refuse_taken_keys
from righttime.changes.interrupts import interruptible
from righttime.changes.rows import Chunk
from righttime.changes.schema import TableSchema
from righttime.errors import CommitFailed, FreshnessUnavailable, KeyTaken, RowsMoved, VersionGone, WarehouseDamaged
from righttime.warehouse.store import Store

_TRIES_MAX = 3

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class Overlay:
    """What an open transaction would do to a table: rows it hides, and versions it makes; good as long as the table's `ground` stays the same."""

    ground: tuple[int, int] | None
    hidden: Hidden
    rows: pa.Table


_STALE = Overlay(None, Hidden(), pa.table({}))


def ground_of(memory: MemoryTable) -> tuple[int, int]:
    """Return what names of ended rows stand on: the stored version, and the lane of settled versions."""
    return memory.version, memory.resets


class _Moved(Exception):
    """The version that was read is no longer the table's and has left the store: look again. Never leaves the settler."""


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """One table as it is before some operations, and these; what they come to can be published as long as the table's `ground` stays the same."""

    changes: int
    ground: tuple[int, int]
    hidden: Hidden
    lanes: Sequence[LaneView]
    entries: Sequence[Entry]

    @property
    def version(self) -> int:
        return self.ground[0]


class Settler:
    """Safe to call from any thread; a table is settled by one at a time."""

    def __init__(self, catalyst: Catalyst, store: Store, *, schemas: Mapping[str, TableSchema], check_storable: CheckStorable = anything_goes) -> None:
        self._catalyst = catalyst
        self._check_storable = check_storable
        self._store = store
        self._schemas = schemas
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def settle(self, tables: Collection[str], time_us: int) -> None:
        """Turn operations committed up to `time_us` into ends and versions, as far as everything committed until then is here."""
        for table in tables:
            up_to_us = self._complete_us(table, time_us)
            if self._catalyst.unsettled(table, up_to_us):
                with self._lock_of(table):
                    gather(self._catalyst, self._schemas[table])
                    while not self._settle(table, up_to_us):
                        pass  # storing changed the ground; the store's lock lets the next try pass before the next storing

    def settle_anew(self, table: str) -> None:
        """Forget what was settled and is not stored, because stored rows that it names are no longer where they were."""
        with self._lock_of(table), self._catalyst.lock:
            self._catalyst.table(table).settle_anew(self._catalyst.row_ids.last)

    def _complete_us(self, table: str, time_us: int) -> int:
        """A row that is held back may be one that an operation has to reach, so nothing is settled beyond it."""
        with self._catalyst.lock:
            return min([time_us, *(link.archived_from[table] - 1 for link in self._catalyst.links.values() if table in link.archived_from)])

    def _settle(self, table: str, time_us: int) -> bool:
        view = self._view(table, time_us)
        try:
            outcome = self._compute(table, view)
        except _Moved:
            return False
        with self._catalyst.lock:
            memory = self._catalyst.tables[table]
            # Not the version alone: a step that could store nothing of the table forgets what was settled all the same.
            if ground_of(memory) != view.ground or memory.settled_us >= time_us:
                return memory.settled_us >= time_us
            self._publish(memory, outcome)
            memory.settled_us = time_us
            return True

    def _view(self, table: str, time_us: int) -> _View:
        with self._catalyst.lock:
            memory = self._catalyst.table(table)
            lanes = [LaneView(lane, lane.times.at(time_us)) for lane in memory.lanes.values()]
            entries = [entry for lane in memory.lanes.values() for entry in _entries(lane, memory.settled_us, time_us)]
            ends = memory.ends
            settled_us, changes, ground = memory.settled_us, memory.changes, ground_of(memory)
        return _View(changes, ground, ends.at(settled_us), lanes, entries)

    def _compute(self, table: str, view: _View, *, own: str | None = None, first_id: int = 0) -> Settled:
        """Run the operations; with `own`, look whether unique keys stay so if this source commits from `first_id` on."""
        schema = self._schemas[table]
        settling = Settling(
            schema,
            view.lanes,
            view.hidden,
            scan=lambda columns, ranges: self._store.scan(schema, view.version, columns, ranges=ranges),
            fetch=lambda unit, positions: self._store.fetch(schema, view.version, unit, positions),
        )
        try:
            outcome = settling.run(view.entries)
            if own is not None and schema.unique:
                refuse_taken_keys(settling, outcome, source=own, first_id=first_id)
            return outcome
        except (WarehouseDamaged, VersionGone):
            with self._catalyst.lock:
                if self._catalyst.tables[table].version == view.version:
                    raise
            raise _Moved from None

    def _publish(self, memory: MemoryTable, outcome: Settled) -> None:
        lane = memory.lane(VERSIONS)
        first_id = self._add_versions(memory, lane, outcome)
        ended = np.flatnonzero(outcome.end)
        times = np.concatenate([outcome.hot_times, outcome.end[ended]])
        ids = np.concatenate([outcome.hot_ids, first_id + ended])
        order = np.argsort(times, kind="stable")
        memory.ends = memory.ends.with_more(times[order], ids[order], outcome.stored)

    def _add_versions(self, memory: MemoryTable, lane: Lane, outcome: Settled) -> int:
        chunks = [Chunk(batch) for batch in joined(outcome.rows).to_batches() if batch.num_rows]
        first_id = self._catalyst.row_ids.last + 1
        lane.add(chunks, self._catalyst.row_ids)
        memory.bytes_memory += sum(chunk.nbytes for chunk in chunks)
        times, counts = np.unique(outcome.begin, return_counts=True)
        last_ids = first_id - 1 + np.cumsum(counts)
        for time_us, last_id in zip(times.tolist(), last_ids.tolist(), strict=True):
            lane.times.add(time_us, last_id)
        return first_id

    # -- open transactions -------------------------------------------------------------------------------------------

    def overlay(self, table: str, source: str, time_us: int) -> Overlay | None:
        """Return what the staged operations of `source` do to the table at `time_us`, up to which it is settled; None if there are none."""
        with self._catalyst.lock:
            memory = self._catalyst.table(table)
            own = memory.lanes.get(source)
            if own is None or not own.operations_between(own.times.committed_id + 1, own.last_id):
                return None
            if self._catalyst.unsettled(table, time_us):
                return _STALE  # storing put settling back: what others committed must not be counted to this transaction
            view, ground = self._open_view(memory, source, time_us), ground_of(memory)
        try:
            outcome = self._compute(table, view)
        except _Moved:
            return _STALE
        units = outcome.stored
        hidden = Hidden().with_more(outcome.hot_ids, by_unit(units.codes, units.positions, units.units))
        return Overlay(ground, hidden, outcome.rows.filter(pa.array(outcome.end == 0)))

    @contextmanager
    def checking(self, link: Link, *, wait_s: float) -> Iterator[Callable[[], None]]:
        """Try the staged operations that could fail and the keys that must be unique; give what to call at the commit point, with the lock held.

        That call is free if nothing was committed to these tables meanwhile; otherwise it tries again, and raises as this one does. As long as the
        block lasts nobody commits lazily to these tables: an operation could fail on a row that is held back.
        """
        tables = [name for name in list(link.staged) if self._to_check(name, link.source)]
        if not tables:
            yield lambda: None
            return
        with self._catalyst.gated(tables):
            with interruptible():  # nothing is done yet, and others may be waited for
                seen = self._tried(tables, link, deadline_s=self._catalyst.clock.monotonic_s() + wait_s)

            def confirm() -> None:
                for table in tables:
                    if self._catalyst.tables[table].changes != seen[table]:
                        self._try(table, link.source)

            yield confirm

    def _tried(self, tables: Sequence[str], link: Link, *, deadline_s: float) -> dict[str, int]:
        for tried in range(1, _TRIES_MAX + 1):
            now_us = self._catalyst.authority.read_us()
            try:
                self._catalyst.ensure_accuracy(now_us, tables, deadline_s=deadline_s)
            except FreshnessUnavailable as error:
                raise CommitFailed(
                    source=link.source, step="check", reason=f"it has to be tried on everything committed before. {error}".removesuffix(".")
                ) from error
            try:
                self.settle(tables, now_us)  # what is committed is computed once, not with every commit that is tried after it
                for table in tables:
                    gather(self._catalyst, self._schemas[table])
                seen = {table: self._try(table, link.source) for table in tables}
            except RowsMoved as error:
                if tried == _TRIES_MAX:
                    raise
                self.settle_anew(error.context["table"])
                continue
            with self._catalyst.lock:
                if all(self._catalyst.tables[table].changes == seen[table] for table in tables):
                    break
        return seen

    def _to_check(self, table: str, source: str) -> bool:
        with self._catalyst.lock:
            lane = self._catalyst.tables[table].lane(source)
            staged = lane.operations_between(lane.times.committed_id + 1, lane.last_id)
            computed = self._check_storable is not anything_goes and any(placed.operations.expressions for placed in staged)
            return self._schemas[table].unique or computed or any(not placed.operations.lazy for placed in staged)

    def _try(self, table: str, source: str) -> int:
        """Compute a transaction's outcome and throw it away; raise what committing it would raise."""
        with self._catalyst.lock:
            memory = self._catalyst.tables[table]
            view = self._open_view(memory, source, self._catalyst.authority.read_us())
            first_id = memory.lane(source).times.committed_id + 1
        try:
            outcome = self._compute(table, view, own=source, first_id=first_id)
        except _Moved:
            return self._try(table, source)
        except KeyTaken:
            # It may be taken by a row that was changed already, only that somebody has moved it since.
            self._store.check(self._schemas[table], view.version, view.hidden.stored)
            raise
        for batch in outcome.rows.to_batches():
            self._check_storable(self._schemas[table], batch)
        return view.changes

    def _open_view(self, memory: MemoryTable, source: str, time_us: int) -> _View:
        lanes = [LaneView(lane, lane.last_id if lane.source == source else lane.times.at(time_us)) for lane in memory.lanes.values()]
        own = memory.lane(source)
        entries = [entry for lane in memory.lanes.values() for entry in _entries(lane, memory.settled_us, time_us)]
        entries += [Entry(OPEN_US, source, placed) for placed in own.operations_between(own.times.committed_id + 1, own.last_id)]
        return _View(memory.changes, ground_of(memory), memory.ends.at(min(time_us, memory.settled_us)), lanes, entries)

    def _lock_of(self, table: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(table, threading.Lock())


def _entries(lane: Lane, after_us: int, up_to_us: int) -> list[Entry]:
    first_id = max(lane.times.at(after_us), lane.stored_id) + 1
    return [Entry(lane.times.time_of(placed.first_id), lane.source, placed) for placed in lane.operations_between(first_id, lane.times.at(up_to_us))]
