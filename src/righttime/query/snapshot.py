"""Snapshots: one state, held for one query, as file lists and slices of hot rows.

In: the tables of a query and its contract.
Out: for each table the exact stored files and the exact hot rows at the cut.
Promise: everything comes from one state (I2), no staler than the contract (I4), and stays until the snapshot is closed (I5).
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from righttime.catalyst.ends import NOTHING, Hidden
from righttime.catalyst.gathering import gathered
from righttime.catalyst.images import Images
from righttime.catalyst.leases import LaneKey, Lease
from righttime.catalyst.maintainer import Admission
from righttime.catalyst.messages import Accuracy, Bypass, Look
from righttime.catalyst.producer import OwnRows
from righttime.catalyst.segments import Segment, visible_rows
from righttime.catalyst.settler import Overlay, Settler, ground_of
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import Slice
from righttime.changes.operations import Numbers
from righttime.changes.rows import Chunk, table_of
from righttime.changes.schema import TableSchema
from righttime.errors import LeaseExpired, RowsMoved
from righttime.ledger.pins import PinTable
from righttime.ledger.receipts import HotInterval, StreamReceipt, TableReceipt
from righttime.pipeline.spark import SparkOwner
from righttime.query.contract import Contract
from righttime.query.postgres_cut import CutTable, cut_table
from righttime.query.stored import HeldTables, HoldTables, StoredTables, read_files
from righttime.settings import Settings
from righttime.warehouse.store import Store

_MOVED_MAX = 5  # somebody who changes the same rows all the time must not keep a query for ever


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One table at the cut: a stored version and slices of each lane, without what is hidden; `own` are uncommitted rows that are in no lane."""

    schema: TableSchema
    version: int
    rows_stored: int
    intervals: Mapping[LaneKey, tuple[int, int]]
    lanes: Mapping[LaneKey, Sequence[Slice]]
    own: Bypass
    own_source: str
    stored: StoredTables
    hidden: Hidden = NOTHING

    def receipt(self) -> TableReceipt:
        hot = [
            HotInterval(source, *self.intervals[table, source], rows=sum(part.rows for part in slices))
            for (table, source), slices in self.lanes.items()  # in the order in which they are read, and will be again
            if slices
        ]
        if self.own.rows:
            # Rows without an id; the empty interval keeps a later re-run from claiming that it still has them.
            hot.append(HotInterval(self.own_source, 0, -1, self.own.rows))
        rows_hidden = len(self.hidden.hot) + self.hidden.rows_stored
        return TableReceipt(self.schema.name, self.version, self.rows_stored, tuple(hot), sum(one.rows for one in hot), rows_hidden)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a query may read; `asked_us` is when it was asked, from which freshness counts. `uncommitted` names a producer that asks for its own rows.
    `live` tells whether it is still held."""

    asked_us: int
    look: Look
    accuracy: Accuracy
    tables: Mapping[str, TableSnapshot]
    waited_s: float
    uncommitted: str = ""
    streams: tuple[StreamReceipt, ...] = ()
    live: Callable[[], bool] = lambda: True

    def only(self, tables: Sequence[str]) -> "Snapshot":
        """Return what one of several questions reads of it."""
        return replace(self, tables={name: self.tables[name] for name in tables})


StreamCuts = Callable[[Sequence[str], Accuracy], tuple[StreamReceipt, ...]]
"""Tells where an answer over some tables cuts the streams behind them."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table as files: all paths, the positions in some of them that do not count, and the images among them."""

    paths: Sequence[str]
    hidden: Mapping[str, Numbers]
    images: Sequence[Segment]


class Snapshots:
    """Takes snapshots and reads them."""

    def __init__(
        self,
        catalyst: Catalyst,
        settler: Settler,
        images: Images,
        store: Store,
        pins: PinTable,
        *,
        hold: HoldTables,
        schemas: Mapping[str, TableSchema],
        settings: Settings,
    ) -> None:
        self._hold = hold
        self._catalyst = catalyst
        self._settler = settler
        self._images = images
        self._store = store
        self._pins = pins
        self._schemas = schemas
        self._settings = settings
        self._life = uuid.uuid4().hex
        self.stream_cuts: StreamCuts = lambda tables, accuracy: ()
        self.relieve: Callable[[TableSchema], None] = lambda table: None

    @contextmanager
    def take(self, tables: Sequence[str], contract: Contract, *, own: OwnRows | None = None, admission: Admission | None = None) -> Iterator[Snapshot]:
        """Bring `tables` up to the contract and hold one state of them until the block ends. By its `admission` another thread can end the wait."""
        catalyst = self._catalyst
        started_s, asked_us = catalyst.clock.monotonic_s(), catalyst.authority.read_us()
        with catalyst.admitted(tables, admission) as admitted:
            taken, accuracy = self._taken(tables, contract, own, admitted, asked_us=asked_us, deadline_s=started_s + contract.wait_s)
        try:
            if contract.standing:
                with catalyst.lock:
                    catalyst.leases.stand(taken.lease)
                    catalyst.space.notify_all()  # a drain that lets queries run first may begin
            waited_s = catalyst.clock.monotonic_s() - started_s
            expires_s, streams = taken.lease.expires_s, self.stream_cuts(tables, accuracy)
            yield Snapshot(
                asked_us, taken.look, accuracy, taken.tables, waited_s, self._uncommitted(own), streams, lambda: catalyst.clock.monotonic_s() <= expires_s
            )
        finally:
            live = self._let_go(taken.lease, taken.pin, taken.stored)
        if not live:
            raise LeaseExpired.after(catalyst.clock.monotonic_s() - taken.lease.granted_s)

    def _taken(
        self, tables: Sequence[str], contract: Contract, own: OwnRows | None, admission: Admission, *, asked_us: int, deadline_s: float
    ) -> tuple["_Taken", Accuracy]:
        """Ensure, settle, look and register, until nothing was stored in between."""
        ticket: int | None = None
        taken: _Taken | None = None
        moved = 0
        try:
            while True:
                accuracy = self._accuracy(tables, contract, own, admission, asked_us=asked_us, deadline_s=deadline_s)
                try:
                    self._settler.settle(tables, accuracy.cut_us)
                    for table in tables:
                        self.relieve(self._schemas[table])  # of what settling made of stored rows, before it is read
                    overlays = {table: self._settler.overlay(table, own.source, accuracy.cut_us) for table in tables} if own else {}
                    taken = self._try(tables, accuracy, overlays, own)
                except RowsMoved as error:
                    moved += 1
                    if moved > _MOVED_MAX:
                        raise
                    self._settler.settle_anew(error.context["table"])
                    continue
                if taken is not None:
                    return taken, accuracy
                # Stored into meanwhile. The next storing waits until this query has registered, so that it need not try for ever.
                ticket = self._catalyst.give_priority(ticket)
        finally:
            self._catalyst.abandon(ticket)

    def _uncommitted(self, own: OwnRows | None) -> str:
        """Return the producer whose open transaction a query sees, empty if there is nothing in it."""
        if own is None:
            return ""
        with self._catalyst.lock:
            link = self._catalyst.links.get(own.source)
            return own.source if own.bypass or (link is not None and link.staged) else ""

    def _try(self, tables: Sequence[str], accuracy: Accuracy, overlays: Mapping[str, Overlay | None], own: OwnRows | None) -> "_Taken | None":
        """Look, register and hold; None if a table was stored into in between."""
        catalyst = self._catalyst
        with catalyst.lock:
            look = catalyst.look(tables, accuracy, own=own.source if own else None)
            if any(overlay is not None and overlay.ground != ground_of(catalyst.tables[table]) for table, overlay in overlays.items()):
                return None  # the places it hides are no longer those
            lease, lanes = catalyst.register(look, accuracy)
            if lease is None:
                return None
            pin = self._pin(look.state, look.versions, lease)
        stored: StoredTables | None = None
        try:
            stored = self._hold([self._schemas[table] for table in tables], look.versions)
            if stored is not None:
                found = self._tables(tables, look, lanes, stored, own, overlays, cut_us=accuracy.cut_us)
                for table in found.values():
                    stored.check(table.schema, hidden=table.hidden.stored)
        except BaseException:
            self._let_go(lease, pin, stored)
            raise
        if stored is None:
            self._let_go(lease, pin, None)
            return None
        return _Taken(look, lease, pin, stored, found)

    @contextmanager
    def again(self, receipts: Sequence[TableReceipt], *, cut_us: int) -> Iterator[dict[str, TableSnapshot] | None]:
        """Hold the rows and files of an earlier answer once more; None if they are not all here any more."""
        intervals = {(table.name, hot.source): (hot.first_id, hot.last_id) for table in receipts for hot in table.hot}
        versions = {table.name: table.version for table in receipts}
        with self._catalyst.lock:
            hidden = {table.name: self._hidden_again(table, cut_us) for table in receipts}
            lease, lanes = self._catalyst.hold_again(intervals) if None not in hidden.values() else (None, {})
            pin = self._pin(0, versions, lease)
        stored: StoredTables | None = None
        try:
            if lease is not None and versions.keys() <= self._schemas.keys():
                stored = self._hold([self._schemas[name] for name in versions], versions)
            there = stored is not None and self._all_there(stored, hidden)
            yield self._rebuilt(receipts, lanes, {name: found or NOTHING for name, found in hidden.items()}, stored) if stored is not None and there else None
        finally:
            self._let_go(lease, pin, stored)

    def _all_there(self, stored: StoredTables, hidden: Mapping[str, Hidden | None]) -> bool:
        try:
            for name, found in hidden.items():
                stored.check(self._schemas[name], hidden=(found or NOTHING).stored)
        except RowsMoved:
            return False
        return True

    def _hidden_again(self, table: TableReceipt, cut_us: int) -> Hidden | None:
        """Return what the answer left out of a table, None if that is not known any more."""
        if not table.rows_hidden:
            return NOTHING
        memory = self._catalyst.tables.get(table.name)
        if memory is None or memory.version != table.version:
            return None  # stored since: ends and versions went with the older version
        hidden = memory.ends.at(cut_us)
        return hidden if len(hidden.hot) + hidden.rows_stored == table.rows_hidden else None

    def _rebuilt(
        self, receipts: Sequence[TableReceipt], lanes: Mapping[LaneKey, Sequence[Slice]], hidden: Mapping[str, Hidden], stored: StoredTables
    ) -> dict[str, TableSnapshot] | None:
        tables = {}
        for table in receipts:
            mine = {key: slices for key, slices in lanes.items() if key[0] == table.name}
            if sum(part.rows for slices in mine.values() for part in slices) != table.rows_hot:
                return None
            tables[table.name] = TableSnapshot(self._schemas[table.name], table.version, table.rows_stored, {}, mine, Bypass(), "", stored, hidden[table.name])
        return tables

    def files(self, table: TableSnapshot) -> TableFiles | None:
        """Return Parquet files that are exactly this table at the cut; None if its stored rows are not in files."""
        stored = table.stored.files(table.schema, table.version, rows=table.rows_stored)
        return None if stored is None else self.with_images(table, stored)

    def with_images(self, table: TableSnapshot, stored: Sequence[str]) -> TableFiles:
        images = self._images.files(table.schema, table.lanes, table.hidden.hot) if any(table.lanes.values()) else []
        own = [self._images.image_of(table.schema, table.own.chunks)] if table.own.chunks else []
        hidden = {segment.path: positions for segment, positions in images if len(positions)}
        kept = [*(segment for segment, _ in images), *own]
        paths = [*stored, *self._own_files(table), *(segment.path for segment in kept)]
        return TableFiles(paths, {**table.hidden.stored, **hidden}, kept)

    def _own_files(self, table: TableSnapshot) -> list[str]:
        return [self._store.path_of(table.schema, file) for file in table.own.files]

    def relation(self, spark: SparkOwner, child: Any, table: TableSnapshot) -> tuple[Any, object]:
        """Return a fresh Spark relation that is exactly this table at the cut, and what must be kept until the query has ended."""
        stored = table.stored.files(table.schema, table.version, rows=table.rows_stored)
        files = self.with_images(table, stored or ())
        frame = spark.relation(child, table.schema.columns, files.paths, hidden=files.hidden)
        if stored is None:
            frame = table.stored.frame(child, table.schema, hidden=table.hidden.stored).unionByName(frame)
        return frame, files.images

    def in_database(self, table: TableSnapshot) -> CutTable:
        """Return this table as a session of the database takes it that holds its stored rows."""
        assert isinstance(table.stored, HeldTables), "a table of PostgreSQL is held"
        return cut_table(table.schema, table.stored.held, list(table.lanes.values()), table.hidden, lambda: self._own_rows(table), life=self._life)

    def _own_rows(self, table: TableSnapshot) -> pa.Table:
        """Return the rows of an open transaction that are in no lane."""
        return pa.concat_tables([table_of(table.own.chunks, table.schema.columns), read_files(table.schema, self._own_files(table), {})])

    def rows(self, table: TableSnapshot) -> pa.Table:
        """Return this table at the cut as Arrow, without Spark."""
        columns = table.schema.columns
        parts = [table.stored.rows(table.schema, table.version, rows=table.rows_stored, hidden=table.hidden.stored)]
        parts.append(read_files(table.schema, self._own_files(table), {}))
        for (_, source), slices in table.lanes.items():
            parts += [visible_rows(gathered(self._catalyst, table.schema, source, slices), columns, table.hidden.hot)] if slices else []
        parts.append(table_of(table.own.chunks, columns))
        return pa.concat_tables(parts)

    def _accuracy(self, tables: Sequence[str], contract: Contract, own: OwnRows | None, admission: Admission, *, asked_us: int, deadline_s: float) -> Accuracy:
        wanted_us = min(contract.as_of_us, asked_us) if contract.as_of_us is not None else asked_us - contract.freshness_us
        accept_late = contract.on_late == "answer"
        if own is not None:
            with self._catalyst.lock:
                # A producer reads on from its newest commit; a cut below would show rows of its own and not what became of them.
                wanted_us = max(wanted_us, self._catalyst.head.source(own.source).last.time_us)
                accept_late = accept_late and not any(self._catalyst.table(name).has_operations for name in tables)
        return self._catalyst.ensure_accuracy(
            wanted_us,
            tables,
            deadline_s=deadline_s,
            exact=contract.as_of_us is not None,
            accept_late=accept_late,
            asked_us=asked_us,
            admission=admission,
        )

    def _pin(self, state: int, versions: Mapping[str, int], lease: Lease | None) -> int:
        """Pin the files that go with a lease; if there is no place for them, the lease is given back."""
        now_s = self._catalyst.clock.monotonic_s()
        try:
            return self._pins.pin(state, versions=versions, expires_s=now_s + self._settings.lease_ttl_s, now_s=now_s)
        except BaseException:
            if lease is not None:
                self._catalyst.release(lease)
            raise

    def _tables(
        self,
        names: Sequence[str],
        look: Look,
        lanes: Mapping[LaneKey, Sequence[Slice]],
        stored: StoredTables,
        own: OwnRows | None,
        overlays: Mapping[str, Overlay | None],
        *,
        cut_us: int,
    ) -> dict[str, TableSnapshot]:
        tables = {}
        for name in names:
            bypass = own.bypass.get(name, Bypass()) if own else Bypass()
            hidden = look.ends[name].at(cut_us) if name in look.ends else NOTHING
            overlay = overlays.get(name)
            if overlay is not None:
                hidden = hidden.with_more(overlay.hidden.hot, overlay.hidden.stored)
                bypass = Bypass((*bypass.chunks, *(Chunk(batch) for batch in overlay.rows.to_batches() if batch.num_rows)), bypass.files)
            tables[name] = TableSnapshot(
                schema=self._schemas[name],
                version=look.versions[name],
                rows_stored=look.rows_stored[name],
                intervals=look.intervals,
                lanes={key: slices for key, slices in lanes.items() if key[0] == name},
                own=bypass,
                own_source=own.source if own else "",
                stored=stored,
                hidden=hidden,
            )
        return tables

    def _let_go(self, lease: Lease | None, pin: int, stored: StoredTables | None) -> bool:
        if stored is not None:
            stored.close()
        with self._catalyst.lock:
            self._pins.release(pin)
            return lease is None or self._catalyst.release(lease)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a query holds."""

    look: Look
    lease: Lease
    pin: int
    stored: StoredTables
    tables: Mapping[str, TableSnapshot]
