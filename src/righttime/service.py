"""The service: the one place where the parts of a warehouse are wired, and where handles of one folder share them.

In: a folder and settings.
Out: an `Engine` whose parts know each other.
Promise: one engine per folder and process; it recovers on open, keeps everything committed on close, and goes with its last handle.
"""

import atexit
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from righttime.catalyst.images import Images, forget_spilled
from righttime.catalyst.keeper import Keeper
from righttime.catalyst.log import WriteAheadLog
from righttime.catalyst.mover import Mover
from righttime.catalyst.policies import Policy
from righttime.catalyst.producer import Loading, Producer
from righttime.catalyst.recovery import recover
from righttime.catalyst.shell import Catalyst
from righttime.changes.clock import Clock, SystemClock, TimeAuthority
from righttime.changes.schema import TableSchema
from righttime.errors import BadSetting
from righttime.ledger.pins import PinTable
from righttime.ledger.sqlite import Ledger
from righttime.ledger.state import State
from righttime.ledger.trace import CommitTrace
from righttime.pipeline.spark import SparkOwner
from righttime.pipeline.translate import quiet
from righttime.query.consumer import Consumer
from righttime.query.snapshot import Snapshots
from righttime.query.verify import Verifier
from righttime.roster import write_roster
from righttime.settings import Settings
from righttime.telemetry import get_log
from righttime.warehouse.lakehouse import Lakehouse
from righttime.warehouse.store import Collected, DataFile

log = get_log("service")

_PINS_MAX = 4096


class Engine:
    """All parts of one embedded warehouse that is open for writing."""

    def __init__(self, folder: Path, *, settings: Settings, clock: Clock, create: bool) -> None:
        self.folder = folder
        self.settings = settings
        self.clock = clock
        self.ledger = Ledger.open(folder, settings=settings, create=create)
        try:
            self._wire()
        except BaseException:
            self.ledger.close()
            raise

    def _wire(self) -> None:
        folder, settings, clock, ledger = self.folder, self.settings, self.clock, self.ledger
        self.schemas = {table.name: table for table in ledger.tables()}
        self.views = ledger.views()
        self.store = Lakehouse(folder / "tables", settings=settings, clock=clock)
        self.trace = CommitTrace.open(folder)
        self.wal = WriteAheadLog(folder / "log", settings=settings)
        self.catalyst = Catalyst(settings=settings, clock=clock, authority=TimeAuthority(clock), trace=self.trace)
        state = ledger.newest_state()
        self.recovered = recover(self.catalyst, ledger=ledger, store=self.store, wal=self.wal, trace=self.trace, schemas=self.schemas, state=state)
        forget_spilled(folder)
        self.images = Images(self.catalyst, settings=settings, folder=folder)
        self.mover = Mover(self.catalyst, ledger, self.store, self.wal, schemas=self.schemas, settings=settings)
        self.keeper = Keeper(self.catalyst, materialize=self.mover.materialize, settings=settings)
        self.pins = PinTable(pins_max=_PINS_MAX)
        self.declarations = threading.RLock()
        self.producers: list[Producer] = []
        self._rosters = threading.Lock()
        write_roster(folder, {})
        self.spark = SparkOwner(settings)
        self.snapshots = Snapshots(self.catalyst, self.images, self.store, self.pins, schemas=self.schemas, settings=settings)
        self.consumer = Consumer(self.snapshots, ledger, self.spark, schemas=self.schemas, views=self.views, settings=settings)
        self.verifier = Verifier(self.consumer, self.snapshots, ledger, self.catalyst)
        self.consumer.verifier = self.verifier.verify
        self.loading = Loading(
            catalyst=self.catalyst,
            mover=self.mover,
            images=self.images,
            schemas=self.schemas,
            settings=settings,
            clock=clock,
            known_batch=self._known_batch,
            stage_df=self._stage_df,
            read_files=self._read_files,
            drop_files=self.store.discard,
            own_query=self.consumer.sql,
            producers_changed=self._write_roster,
        )
        log.info("warehouse.opened", path=str(folder), state=self.recovered.state.number, replayed=self.recovered.rows_replayed)

    def _known_batch(self, source: str, batch_id: str) -> Any:
        found = self.ledger.batch(source, batch_id)
        return None if found is None else found.commit

    def _stage_df(self, table: TableSchema, df: Any) -> list[DataFile]:
        folder = self.store.staging(table, batch_id=uuid.uuid4().hex)
        with quiet():
            self.spark.write_parquet(df, table.columns, folder, table=table.name)
        return self.store.take_files(table, folder)

    def _read_files(self, table: TableSchema, files: Sequence[DataFile]) -> pa.Table:
        paths = [self.store.path_of(table, file) for file in files]
        return ds.dataset(paths, schema=table.columns, format="parquet").to_table() if paths else table.columns.empty_table()

    @property
    def state(self) -> State:
        """The newest durable state."""
        return self.mover.durable

    @contextmanager
    def reading(self) -> Iterator["Engine"]:
        """Give the parts that queries need; a writer's are always the newest."""
        yield self

    def open_producer(self, source: str, policy: Policy) -> Producer:
        """Open a producer; the engine closes it at the latest, so that a program's end loses nothing it has committed."""
        producer = Producer(source, policy=policy, loading=self.loading)
        self.producers = [*(known for known in self.producers if not known.closed), producer]
        self._write_roster()
        return producer

    def _write_roster(self) -> None:
        with self._rosters:  # two that change at once must not write the older list last
            with self.catalyst.lock:
                policies = {source: link.policy for source, link in self.catalyst.links.items()}
            write_roster(self.folder, policies)

    def free_source(self) -> str:
        """Return a name for a producer that was given none; names are used again, so that sources do not pile up."""
        number = 1
        while f"producer-{number}" in self.catalyst.links:
            number += 1
        return f"producer-{number}"

    def collect(self) -> dict[str, Collected]:
        """Remove files that nobody needs: no pin here or in another process, no current version, no step under way."""
        schemas = dict(self.schemas)
        with self.catalyst.lock:
            pinned = self.pins.versions_pinned(now_s=self.clock.monotonic_s())
            current = {name: table.version for name, table in self.catalyst.tables.items()}
        states = [state for number in self.ledger.pinned_states(now_us=self.clock.now_us()) for state in self.ledger.state_around(number) if state is not None]
        states.append(self.ledger.newest_state())
        collected = {}
        for name, schema in schemas.items():
            held = {state.tables[name].version for state in states if name in state.tables}
            collected[name] = self.store.collect(
                schema, versions={current[name], *pinned.get(name, ()), *held}, grace_s=self.settings.file_grace_s, now_s=self.clock.now_us() / 1e6
            )
        return collected

    def close(self) -> None:
        """Make everything committed durable and let go of the folder. If that fails everything stays open, to be closed again when there is space."""
        for producer in self.producers:
            producer.close()
        with self.catalyst.lock:
            self.catalyst.closing = True
        try:
            self.mover.make_safe()
        except BaseException:
            with self.catalyst.lock:
                self.catalyst.closing = False
            raise
        self.keeper.stop()
        self.trace.reset()  # only now: until everything is safe, the trace tells what a crash would lose
        self.mover.close()
        self.images.close()
        self.trace.close()
        self.spark.stop()
        self.ledger.close()
        log.info("warehouse.closed", path=str(self.folder))


_engines: dict[Path, tuple[Engine, int]] = {}
_engines_lock = threading.Lock()


def acquire_engine(folder: Path, *, settings: Settings, clock: Clock | None = None, create: bool = True) -> Engine:
    """Return the engine of a folder, opening it for the first handle; give it back with `release_engine`."""
    with _engines_lock:
        known = _engines.get(folder)
        if known is not None and settings != known[0].settings:
            changed = next(name for name, value in settings if value != getattr(known[0].settings, name))
            raise BadSetting(name=changed, reason=f"{folder} is open in this process with other settings")
        engine, handles = known or (Engine(folder, settings=settings, clock=clock or SystemClock(), create=create), 0)
        _engines[folder] = (engine, handles + 1)
        return engine


def release_engine(engine: Engine) -> None:
    """Give a handle's share back; the last one closes the engine."""
    with _engines_lock:
        _, handles = _engines[engine.folder]
        if handles > 1:
            _engines[engine.folder] = (engine, handles - 1)
            return
        engine.close()
        del _engines[engine.folder]


def _forget_all() -> None:
    """A forked child has copies of the engines; files, log and ledger stay with the parent."""
    _engines.clear()


os.register_at_fork(after_in_child=_forget_all)


@atexit.register
def _close_all() -> None:
    """Keep what was committed when a program ends without closing its warehouses."""
    with _engines_lock:
        for engine, _ in list(_engines.values()):
            try:
                engine.close()
            except Exception as error:  # the interpreter is going down; the next open recovers what is durable
                log.error("warehouse.close_failed", path=str(engine.folder), error=repr(error))
        _engines.clear()
