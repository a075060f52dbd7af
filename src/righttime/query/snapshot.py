"""Snapshots: one state, held for one query, as file lists and slices of hot rows.

In: the tables of a query and its contract.
Out: for each table the exact stored files and the exact hot rows at the cut.
Promise: everything comes from one state (I2), no staler than the contract (I4), and stays until the snapshot is closed (I5).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds

from righttime.catalyst.images import Images, Segment, rows_of
from righttime.catalyst.leases import LaneKey, Lease
from righttime.catalyst.messages import Accuracy, Look
from righttime.catalyst.mover import Bypass
from righttime.catalyst.producer import OwnRows
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import Slice
from righttime.changes.rows import table_of
from righttime.changes.schema import TableSchema
from righttime.errors import LeaseExpired, WarehouseDamaged
from righttime.ledger.pins import PinTable
from righttime.ledger.receipts import HotInterval, TableReceipt
from righttime.query.contract import Contract
from righttime.settings import Settings
from righttime.warehouse.store import Store

_CHECKED_PARQUET = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True))


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One table at the cut: a stored version and slices of each lane; `own` are uncommitted rows that bypass the catalyst."""

    schema: TableSchema
    version: int
    rows_stored: int
    intervals: Mapping[LaneKey, tuple[int, int]]
    lanes: Mapping[LaneKey, Sequence[Slice]]
    own: Bypass
    own_source: str

    @property
    def rows_hot(self) -> int:
        return sum(part.rows for slices in self.lanes.values() for part in slices) + self.own.rows

    def receipt(self) -> TableReceipt:
        hot = [
            HotInterval(source, *self.intervals[table, source], rows=sum(part.rows for part in slices))
            for (table, source), slices in sorted(self.lanes.items())
            if slices
        ]
        if self.own.rows:
            # Rows without an id; the empty interval keeps a later re-run from claiming that it still has them.
            hot.append(HotInterval(self.own_source, 0, -1, self.own.rows))
        return TableReceipt(self.schema.name, self.version, self.rows_stored, tuple(hot), self.rows_hot)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one query may read; `asked_us` is when it was asked, from which freshness counts."""

    asked_us: int
    look: Look
    accuracy: Accuracy
    tables: Mapping[str, TableSnapshot]
    waited_s: float


class Snapshots:
    """Takes snapshots and reads them."""

    def __init__(self, catalyst: Catalyst, images: Images, store: Store, pins: PinTable, *, schemas: Mapping[str, TableSchema], settings: Settings) -> None:
        self._catalyst = catalyst
        self._images = images
        self._store = store
        self._pins = pins
        self._schemas = schemas
        self._settings = settings

    @contextmanager
    def take(self, tables: Sequence[str], contract: Contract, *, own: OwnRows | None = None) -> Iterator[Snapshot]:
        """Bring `tables` up to the contract and hold one state of them until the block ends."""
        catalyst = self._catalyst
        started_s, asked_us = catalyst.clock.monotonic_s(), catalyst.authority.read_us()
        ticket: int | None = None
        try:
            while True:
                accuracy = self._accuracy(tables, contract, asked_us=asked_us, deadline_s=started_s + contract.wait_s)
                with catalyst.lock:
                    look = catalyst.look(tables, accuracy, own=own.source if own else None)
                    lease, lanes, ticket = catalyst.register(look, accuracy, ticket=ticket)
                    if lease is not None:
                        pin = self._pin(look, lease)
                        break
        finally:
            catalyst.abandon(ticket)
        snapshot = Snapshot(asked_us, look, accuracy, self._tables(tables, look, lanes, own), catalyst.clock.monotonic_s() - started_s)
        try:
            yield snapshot
        finally:
            live = self._let_go(lease, pin)
        if not live:
            raise LeaseExpired(held_s=catalyst.clock.monotonic_s() - lease.granted_s)

    @contextmanager
    def again(self, receipts: Sequence[TableReceipt]) -> Iterator[dict[str, TableSnapshot] | None]:
        """Hold the rows and files of an earlier answer once more; None if they are not all here any more."""
        intervals = {(table.name, hot.source): (hot.first_id, hot.last_id) for table in receipts for hot in table.hot}
        with self._catalyst.lock:
            lease, lanes = self._catalyst.hold_again(intervals)
            now_s = self._catalyst.clock.monotonic_s()
            pin = self._pins.pin(0, versions={table.name: table.version for table in receipts}, expires_s=now_s + self._settings.lease_ttl_s, now_s=now_s)
        try:
            yield None if lease is None else self._rebuilt(receipts, lanes)
        finally:
            self._let_go(lease, pin)

    def _rebuilt(self, receipts: Sequence[TableReceipt], lanes: Mapping[LaneKey, Sequence[Slice]]) -> dict[str, TableSnapshot] | None:
        tables = {}
        for table in receipts:
            mine = {key: slices for key, slices in lanes.items() if key[0] == table.name}
            if table.name not in self._schemas or sum(part.rows for slices in mine.values() for part in slices) != table.rows_hot:
                return None
            tables[table.name] = TableSnapshot(self._schemas[table.name], table.version, table.rows_stored, {}, mine, Bypass(), "")
        return tables

    def files(self, table: TableSnapshot) -> tuple[list[str], list[Segment]]:
        """Return one list of Parquet files that is exactly this table at the cut, and the images that must be kept meanwhile."""
        images = self._images.files(table.schema, table.lanes) if any(table.lanes.values()) else []
        own = [self._images.image_of(table.schema, table.own.chunks)] if table.own.chunks else []
        return [*self._stored(table), *(segment.path for segment in (*images, *own))], [*images, *own]

    def rows(self, table: TableSnapshot) -> pa.Table:
        """Return this table at the cut as Arrow, without Spark."""
        columns, stored = table.schema.columns, self._stored(table)
        try:
            parts = [ds.dataset(stored, schema=columns, format=_CHECKED_PARQUET).to_table()] if stored else []
        except (OSError, pa.ArrowException, UnicodeError) as error:
            raise WarehouseDamaged(path=table.schema.name, reason=f"a data file of version {table.version} cannot be read ({error})") from error
        parts.extend(rows_of(slices, columns) for slices in table.lanes.values() if slices)
        parts.append(table_of(table.own.chunks, columns))
        return pa.concat_tables(parts)

    def _stored(self, table: TableSnapshot) -> list[str]:
        """Return the stored files, after a look whether the table's log still says what the ledger knows."""
        rows = self._store.row_count(table.schema, table.version)
        if rows != table.rows_stored:
            raise WarehouseDamaged(path=table.schema.name, reason=f"version {table.version} has {rows} rows, and the ledger knows {table.rows_stored}")
        return [*self._store.files(table.schema, table.version), *(self._store.path_of(table.schema, file) for file in table.own.files)]

    def _accuracy(self, tables: Sequence[str], contract: Contract, *, asked_us: int, deadline_s: float) -> Accuracy:
        wanted_us = min(contract.as_of_us, asked_us) if contract.as_of_us is not None else asked_us - contract.freshness_us
        return self._catalyst.ensure_accuracy(
            wanted_us, tables, deadline_s=deadline_s, exact=contract.as_of_us is not None, accept_late=contract.on_late == "answer"
        )

    def _pin(self, look: Look, lease: Lease) -> int:
        now_s = self._catalyst.clock.monotonic_s()
        try:
            return self._pins.pin(look.state, versions=look.versions, expires_s=now_s + self._settings.lease_ttl_s, now_s=now_s)
        except BaseException:
            self._catalyst.release(lease)
            raise

    def _tables(self, names: Sequence[str], look: Look, lanes: Mapping[LaneKey, Sequence[Slice]], own: OwnRows | None) -> dict[str, TableSnapshot]:
        return {
            name: TableSnapshot(
                schema=self._schemas[name],
                version=look.versions[name],
                rows_stored=look.rows_stored[name],
                intervals=look.intervals,
                lanes={key: slices for key, slices in lanes.items() if key[0] == name},
                own=own.bypass.get(name, Bypass()) if own else Bypass(),
                own_source=own.source if own else "",
            )
            for name in names
        }

    def _let_go(self, lease: Lease | None, pin: int) -> bool:
        with self._catalyst.lock:
            self._pins.release(pin)
            return lease is None or self._catalyst.release(lease)
