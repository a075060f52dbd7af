"""Held snapshots: the states that queries over the network are reading.

In: snapshots taken by the engine, renewals, releases; silence.
Out: for each table the files that are exactly its rows at the cut, and the rows themselves by parts.
Promise: a held snapshot does not change and does not go before its lease lapses; after that every use of it raises `LeaseExpired`.
"""

import hmac
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from righttime.catalyst.memory import GIVEN_UP
from righttime.changes.clock import Clock
from righttime.changes.operations import Numbers
from righttime.changes.schema import TableSchema
from righttime.errors import BadMessage, LeaseExpired, ServiceBusy, TooManySnapshots, WarehouseDamaged
from righttime.flight.frames import Message, typed
from righttime.flight.turns import Asker, Turn
from righttime.query.contract import Contract
from righttime.query.postgres_cut import CutTable
from righttime.query.snapshot import Snapshot, Snapshots
from righttime.settings import Settings
from righttime.telemetry import METRICS, get_log

log = get_log("flight")

BATCH_ROWS = 1 << 16
_GONE_S = 3.0
"""How long one is waited for whose connection broke while it waited: clients try again within two seconds, and find what was taken for them."""
_WITHDRAWN_MAX = 1024
_ID_LENGTH_MAX = 64
_CHECKED_PARQUET = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True))


STORED = ""
"""Stands for stored rows that are not in files, in a list of files."""


@dataclass(frozen=True, slots=True)
class HeldTable:
    """One table of a held snapshot: files, rows in them that are gone at the cut, and what must be kept meanwhile."""

    schema: TableSchema
    files: Sequence[str]
    hidden: Mapping[str, Numbers]
    kept: object
    stored: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]

    def batches(self, places: Sequence[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some of the files, batch by batch; always the same ones in the same order, so that a reader can go on where it was."""
        for place in places:
            path = self.files[place]
            if path == STORED:
                yield from self.stored(columns)
            else:
                yield from _visible(_batches(path, self.schema, columns), self.hidden.get(path))


@dataclass(slots=True)
class Held:
    """One held snapshot; whoever knows its id may read it: `tables` by their files, or `cuts` by a client that is in the database itself."""

    snapshot_id: str
    snapshot: Snapshot
    contract: Contract
    grant: str
    heard_s: float
    granted_s: float
    stack: ExitStack
    tables: dict[str, HeldTable] = field(default_factory=dict)
    cuts: dict[str, CutTable] = field(default_factory=dict)


class HeldSnapshots:
    """The held snapshots of one service; safe to call from any thread."""

    def __init__(self, snapshots: Snapshots, *, settings: Settings, clock: Clock) -> None:
        self._snapshots = snapshots
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._taking: dict[str, Turn] = {}
        self._withdrawn: OrderedDict[str, None] = OrderedDict()
        self._streams = 0
        self._fewer = threading.Condition(self._lock)

    def take(
        self,
        snapshot_id: str,
        contract: Contract,
        take: Callable[[], AbstractContextManager[Snapshot]],
        *,
        grant: str,
        in_database: bool = False,
        asker: Asker | None = None,
    ) -> Held:
        """Take a snapshot and hold it; asking again under the same id gives the same one. What nobody waits for any more ends with `LeaseExpired`."""
        with self._in_turn(snapshot_id, asker or Asker()) as turn:
            held = self._held.get(snapshot_id)
            return held if held is not None else self._take(turn, snapshot_id, contract, take, grant, in_database=in_database)

    @contextmanager
    def _in_turn(self, snapshot_id: str, asker: Asker) -> Iterator[Turn]:
        """Let those who ask for one snapshot in, one after the other."""
        with self._lock:
            if snapshot_id in self._withdrawn:
                raise LeaseExpired(reason=GIVEN_UP)
            known = self._held.keys() | self._taking.keys()
            if len(known) >= self._settings.snapshots_max and snapshot_id not in known:
                raise TooManySnapshots(held=len(known))
            turn = self._taking.get(snapshot_id)
            if turn is None or turn.given_up:  # a client that comes back after all has nothing of what was given up
                turn = self._taking[snapshot_id] = Turn()
            turn.askers.append(asker)
        try:
            with turn.lock:
                yield turn
        finally:
            with self._lock:
                turn.askers.remove(asker)
                # Not before: whoever comes next must not take it beside one that still waits here.
                if not turn.askers and self._taking.get(snapshot_id) is turn:
                    del self._taking[snapshot_id]

    def _take(
        self, turn: Turn, snapshot_id: str, contract: Contract, take: Callable[[], AbstractContextManager[Snapshot]], grant: str, *, in_database: bool
    ) -> Held:
        with ExitStack() as stack:
            snapshot = stack.enter_context(take())
            tables = {} if in_database else {name: self._table(snapshot, name) for name in snapshot.tables}
            cuts = {name: self._snapshots.in_database(table) for name, table in snapshot.tables.items()} if in_database else {}
            now_s = self._clock.monotonic_s()
            held = Held(snapshot_id, snapshot, contract, grant, now_s, now_s, stack.pop_all(), tables, cuts)
        with self._lock:
            given_up = turn.given_up
            if not given_up:
                self._held[snapshot_id] = held
        if given_up:
            held.stack.close()
            raise LeaseExpired(reason=GIVEN_UP)
        self._count()
        return held

    def _table(self, snapshot: Snapshot, name: str) -> HeldTable:
        table = snapshot.tables[name]
        found = self._snapshots.files(table)
        if found is None:
            found = self._snapshots.with_images(table, ())
            found = replace(found, paths=[STORED, *found.paths])

        def stored(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
            return table.stored.pieces(table.schema, columns, hidden=table.hidden.stored)

        hidden = {path: np.sort(positions) for path, positions in found.hidden.items() if len(positions) and path in set(found.paths)}
        return HeldTable(table.schema, found.paths, hidden, found.images, stored)

    def get(self, snapshot_id: str) -> Held:
        """Return a held snapshot and note that it is in use."""
        with self._lock:
            found = next((held for known, held in self._held.items() if hmac.compare_digest(known.encode(), snapshot_id.encode(errors="replace"))), None)
        if found is None:
            reason = f"the service does not know the query: it was restarted, or heard nothing of it for {self._settings.snapshot_ttl_s:g} s (snapshot_ttl_s)"
            raise LeaseExpired(reason=reason, known=False)
        found.heard_s = self._clock.monotonic_s()
        return found

    def renew(self, snapshot_ids: list[str]) -> list[str]:
        """Note signs of life; return those that are unknown."""
        unknown = []
        for snapshot_id in snapshot_ids:
            try:
                self.get(snapshot_id)
            except LeaseExpired:
                unknown.append(snapshot_id)
        return unknown

    def release(self, snapshot_id: str) -> Held | None:
        """Let a snapshot go; raises `LeaseExpired` if its rows may have been freed before. None if it is gone already."""
        with self._lock:
            held = self._held.pop(snapshot_id, None)
            self._fewer.notify_all()
        if held is not None:
            self._count()
            held.tables.clear()
            held.cuts.clear()
            held.stack.close()
        return held

    def withdraw(self, snapshot_id: str) -> None:
        """Let a snapshot go that its client wants no more; also one that is being taken, or that an earlier message asks for which is still on its way."""
        with self._lock:
            if len(snapshot_id) <= _ID_LENGTH_MAX:
                self._withdrawn[snapshot_id] = None
            if len(self._withdrawn) > _WITHDRAWN_MAX:
                self._withdrawn.popitem(last=False)
            waits = self._taking[snapshot_id].end() if snapshot_id in self._taking else []
        for give_up in waits:
            give_up()
        self.release(snapshot_id)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Count a stream of rows while it is sent, beside the calls and within the same bound: it lasts as long as its reader takes to read it."""
        with self._lock:
            if self._streams >= self._settings.calls_max:
                raise ServiceBusy(used=self._streams, what="streams of rows", setting="calls_max")
            self._streams += 1
        try:
            yield
        finally:
            with self._lock:
                self._streams -= 1
                self._fewer.notify_all()

    def await_finished(self, timeout_s: float) -> bool:
        """Wait until no query holds a snapshot or is sent rows; tell whether that came true in time."""
        with self._lock:
            return self._fewer.wait_for(lambda: not self._held and not self._streams, timeout=timeout_s)

    def for_receipt(self, held: Held, message: Message) -> Held:
        """Return what an answer has read: the snapshot that is let go with it or, where more is to be asked, the tables of it that the message names."""
        if "keep" not in message.header:
            if self.release(held.snapshot_id) is None:
                raise LeaseExpired.after(self._clock.monotonic_s() - held.granted_s)
            return held
        tables = [typed(name, str, what="a table") for name in message.listed("keep")]
        if not set(tables) <= held.snapshot.tables.keys():
            raise BadMessage(reason="the snapshot has no such table")
        if not held.snapshot.live():
            raise LeaseExpired.after(self._clock.monotonic_s() - held.granted_s)
        return replace(held, snapshot=held.snapshot.only(tables))

    def expire(self, *, everything: bool = False) -> None:
        """Let go of snapshots whose query was silent for too long, and of those that are being taken for clients that are gone."""
        now_s = self._clock.monotonic_s()
        bound_s = now_s - self._settings.snapshot_ttl_s
        with self._lock:
            lapsed = [held.snapshot_id for held in self._held.values() if everything or held.heard_s < bound_s]
            gone_s = min(_GONE_S, self._settings.snapshot_ttl_s)
            alone = {taken: turn.end() for taken, turn in self._taking.items() if not turn.given_up and turn.alone_s(now_s) >= gone_s}
        for snapshot_id, waits in alone.items():
            log.info("snapshot.given_up", snapshot=snapshot_id[:8])
            for give_up in waits:
                give_up()
        for snapshot_id in lapsed:
            log.info("snapshot.lapsed", snapshot=snapshot_id[:8])
            try:
                self.release(snapshot_id)
            except LeaseExpired:
                continue

    def _count(self) -> None:
        METRICS.gauge("righttime_snapshots_held", description="Snapshots held for queries over the network.").set(len(self._held))


def _batches(path: str, schema: TableSchema, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        scanner = ds.dataset([path], schema=schema.columns, format=_CHECKED_PARQUET).scanner(
            columns=list(columns or schema.columns.names), batch_size=BATCH_ROWS
        )
        yield from scanner.to_batches()
    except (OSError, pa.ArrowException, UnicodeError) as error:
        raise WarehouseDamaged(path=schema.name, reason=f"a data file cannot be read ({error})") from error


def _visible(batches: Iterator[pa.RecordBatch], hidden: Numbers | None) -> Iterator[pa.RecordBatch]:
    """Leave rows out by their place in the file; the scanner keeps the file's order."""
    begin = 0
    for batch in batches:
        end = begin + batch.num_rows
        if hidden is not None and len(hidden):
            gone = hidden[np.searchsorted(hidden, begin) : np.searchsorted(hidden, end)] - begin
            if len(gone):
                mask = np.ones(batch.num_rows, dtype=bool)
                mask[gone] = False
                batch = batch.filter(pa.array(mask))
        begin = end
        if batch.num_rows:
            yield batch
