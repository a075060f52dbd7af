"""Reading a warehouse that another process may be writing: answers at the newest durable state.

In: the folder of a warehouse, opened with `read_only=True`.
Out: parts for queries, rebuilt when the writer has made a newer state durable, pinned in the ledger so that its gc leaves them alone.
Promise: what the writer holds only in memory cannot be seen from here, so while a writer is alive no freshness is promised:
a query raises `FreshnessUnknown`, or with `on_late="answer"` says in its receipt that nobody can tell how old it is.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from righttime.catalyst.images import Images
from righttime.catalyst.maintainer import Admission
from righttime.catalyst.messages import Accuracy
from righttime.catalyst.recovery import recover
from righttime.catalyst.settler import Settler
from righttime.catalyst.shell import Catalyst
from righttime.changes.clock import Clock, TimeAuthority
from righttime.changes.schema import TableSchema
from righttime.errors import FreshnessUnavailable, FreshnessUnknown, WarehouseDamaged, WarehouseReadOnly
from righttime.flows.catalogue import Catalogue, FlowEntry
from righttime.flows.elsewhere import FlowsElsewhere
from righttime.flows.explain import Explanation
from righttime.foundation import Foundation
from righttime.ledger.book import NO_PIN, Book
from righttime.ledger.pins import PinTable
from righttime.ledger.state import State
from righttime.pipeline.spark import SparkOwner
from righttime.query.consumer import Consumer
from righttime.query.snapshot import Snapshots
from righttime.query.stored import StoredTables
from righttime.query.verify import Verifier
from righttime.queues.looked_at import LookedAtStreams
from righttime.settings import Settings
from righttime.telemetry import get_log

log = get_log("reading")

_TRIES_MAX = 5


class _NoTrace:
    """A reader commits nothing, so it has nothing to note."""

    def slot(self, source: str) -> int:
        return 0  # a flow has one, whether it runs here or not

    def release(self, source: str) -> None:
        raise AssertionError(source)

    def record(self, slot: int, number: int, time_us: int, rows_total: int) -> None:
        raise AssertionError(slot)


class Superseded(Exception):
    """A query waited its turn until its state was no longer the newest; it starts again with the newest."""


class _DurableCatalyst(Catalyst):
    """Hot rows of one durable state; knows whether somebody may have committed more since."""

    def __init__(self, state: State, *, ledger: Book, settings: Settings, clock: Clock) -> None:
        super().__init__(settings=settings, clock=clock, authority=TimeAuthority(clock), trace=_NoTrace())
        self._state = state
        self._ledger = ledger
        self.flows = FlowsElsewhere(self, (), Path())

    def attend(self, entries: Iterable[FlowEntry], streams_in: Path) -> None:
        """Answer for the targets of flows."""
        self.flows = FlowsElsewhere(self, entries, streams_in)

    def explain(self, tables: Sequence[str], *, freshness_us: int) -> Explanation:
        """Return what a query over `tables` would be answered on and lack, if it came now."""
        if (writer := self._ledger.living_writer()) is not None:
            raise self._unknown(tables, writer)
        self._look(tables)
        return self.flows.explain(tables, freshness_us=freshness_us)

    def _look(self, tables: Sequence[str]) -> None:
        """Look at the streams behind these tables, before the state is compared: a writer that came and went in between has made a newer one."""
        self.flows.look(tables)
        if self._ledger.newest_state().number != self._state.number:
            raise Superseded

    def ensure_accuracy(
        self,
        time_us: int,
        tables: Sequence[str],
        *,
        deadline_s: float,
        exact: bool = False,
        accept_late: bool = False,
        asked_us: int | None = None,
        admission: Admission | None = None,
    ) -> Accuracy:
        writer = self._ledger.living_writer()
        if writer is None:
            self._look(tables)
            return super().ensure_accuracy(time_us, tables, deadline_s=deadline_s, exact=exact, accept_late=accept_late, asked_us=asked_us, admission=admission)
        if accept_late:
            cut_us = self._state.time_us
            if exact and time_us < cut_us:
                # The state has later commits than that, and has to be able to leave them out.
                found = super().ensure_accuracy(time_us, tables, deadline_s=deadline_s, exact=True, accept_late=True, asked_us=asked_us, admission=admission)
                cut_us = found.cut_us
            return Accuracy(cut_us, {f"process {writer}": cut_us}, unknown=True)
        raise self._unknown(tables, writer)

    def _unknown(self, tables: Sequence[str], writer: int) -> FreshnessUnknown:
        # An exact time is as unknown as now: a state lacks what was committed before it by lazy producers, and by others while it was being written.
        stale_s = (self.authority.read_us() - self._state.time_us) / 1e6
        why = "another process writes this warehouse, and what it holds in memory cannot be seen from here"
        return FreshnessUnknown(table=", ".join(tables), source=f"process {writer}", waited_s=0.0, stale_s=stale_s, why=why)


class Parts:
    """Everything queries need, at one durable state."""

    def __init__(self, engine: "ReadingEngine", pin: int, state: State) -> None:
        ledger, settings, clock, folder = engine.ledger, engine.settings, engine.clock, engine.folder
        self.pin = pin
        self.state = state
        self.ledger = ledger
        self.users = 0
        self.schemas = {table.name: table for table in ledger.tables() if table.name in self.state.tables}
        self.views = ledger.views()
        self.catalyst = _DurableCatalyst(self.state, ledger=ledger, settings=settings, clock=clock)
        self.wal = engine.foundation.open_log()
        recover(self.catalyst, ledger=ledger, store=engine.store, wal=self.wal, trace=None, schemas=self.schemas, state=self.state)
        self.catalyst.attend(Catalogue(folder / "flows").entries(), folder / "streams")
        self.images = Images(self.catalyst, settings=settings, folder=folder)
        settler = Settler(self.catalyst, engine.store, schemas=self.schemas)
        pins = PinTable(pins_max=4096)
        self.snapshots = Snapshots(self.catalyst, settler, self.images, engine.store, pins, hold=engine.hold, schemas=self.schemas, settings=settings)
        self.snapshots.stream_cuts = self.catalyst.flows.stream_cuts
        self.consumer = Consumer(self.snapshots, ledger, engine.spark, schemas=self.schemas, views=self.views, settings=settings)
        self.verifier = Verifier(self.consumer, self.snapshots, ledger, self.catalyst, writer_elsewhere=ledger.living_writer)
        self.consumer.verifier = self.verifier.verify
        self.consumer.is_stream = lambda name: name in engine.streams.names()

    def close(self) -> None:
        self.images.close()
        self.ledger.remove_pin(self.pin)


class ReadingEngine:
    """The engine of a read-only handle."""

    def __init__(self, foundation: Foundation, *, settings: Settings, clock: Clock) -> None:
        self.foundation = foundation
        self.name = foundation.name
        self.folder = foundation.folder
        self.settings = settings
        self.clock = clock
        self.ledger = foundation.ledger
        self.store = foundation.store
        self.spark = SparkOwner(settings)
        self.streams = LookedAtStreams(foundation.folder / "streams", answer_bytes_max=settings.answer_bytes_max, refuse=self.refuse)
        self._lock = threading.Lock()
        self._parts: Parts | None = None
        _open.add(self)

    @contextmanager
    def reading(self) -> Iterator[Parts]:
        """Give parts at the newest durable state, held until the block ends."""
        with self._lock:
            parts = self._newest()
            parts.users += 1
        try:
            yield parts
        except WarehouseDamaged as error:
            if parts.pin != NO_PIN or self.ledger.newest_state().number == parts.state.number:
                raise
            raise self._collected(parts) from error
        finally:
            with self._lock:
                parts.users -= 1
                self._drop_unused(parts)

    def _collected(self, parts: Parts) -> FreshnessUnavailable:
        """Return the error for files that are gone because nobody knew that they were read."""
        stale_s = (self.clock.now_us() - parts.state.time_us) / 1e6
        why = f"the writer has removed files of state {parts.state.number}, which nobody can pin without the right to write; ask again"
        return FreshnessUnavailable(table="*", source=self.name, waited_s=0.0, stale_s=stale_s, why=why)

    def hold(self, tables: Sequence[TableSchema], versions: Mapping[str, int]) -> StoredTables:
        """Hold stored tables; where only the newest version can be read and the writer has made another, the query starts again."""
        held = self.foundation.hold(tables, versions)
        if held is None:
            raise Superseded
        return held

    def _newest(self) -> Parts:
        known = self._parts
        if known is not None and known.state.number == self.ledger.newest_state().number and self._renewed(known):
            return known
        self._parts = self._build()
        if known is not None:
            self._drop_unused(known)
        return self._parts

    def _renewed(self, parts: Parts) -> bool:
        return self.ledger.renew_pin(parts.pin, expires_us=self._expires_us(), now_us=self.clock.now_us())

    def _expires_us(self) -> int:
        return self.clock.now_us() + round(self.settings.lease_ttl_s * 1e6)

    def _build(self) -> Parts:
        for attempt in range(_TRIES_MAX):
            pin, state = self.ledger.pin_newest(f"process {os.getpid()}", expires_us=self._expires_us())
            try:
                return Parts(self, pin, state)
            except BaseException as error:
                self.ledger.remove_pin(pin)
                # The writer may have stored what we were about to replay and removed its log; the ledger has a newer state then.
                if not isinstance(error, WarehouseDamaged | FileNotFoundError) or attempt == _TRIES_MAX - 1:
                    raise
        raise AssertionError("unreachable")

    def _drop_unused(self, parts: Parts) -> None:
        if parts.users == 0 and parts is not self._parts:
            parts.close()

    def refuse(self, action: str) -> WarehouseReadOnly:
        """Return the error for what only a writer may do."""
        return WarehouseReadOnly(path=self.name, action=action)

    def close(self) -> None:
        """Give the pins back and close the ledger."""
        _open.discard(self)
        with self._lock:
            parts, self._parts = self._parts, None
            if parts is not None:
                self._drop_unused(parts)
        self.spark.stop()
        self.foundation.close()


_open: "weakref.WeakSet[ReadingEngine]" = weakref.WeakSet()

# A forked child has copies; pins and images stay with the parent.
os.register_at_fork(after_in_child=_open.clear)


@atexit.register
def _close_all() -> None:
    """Give back what handles hold that a program has not closed: others would keep files for their pins until these lapse."""
    for engine in list(_open):
        try:
            engine.close()
        except Exception as error:  # the interpreter is going down, and a pin lapses by itself
            log.warning("reader.close_failed", path=engine.name, error=repr(error))
