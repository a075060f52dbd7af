"""The service: the one place where the parts of a warehouse are wired, and where handles of one warehouse share them.

In: a folder or a database, and settings.
Out: an `Engine` whose parts know each other.
Promise: one engine per warehouse and process; it recovers on open, keeps everything committed on close, and goes with its last handle.
"""

import atexit
import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from righttime.catalyst.durable import Declared
from righttime.catalyst.images import Images, forget_spilled
from righttime.catalyst.keeper import Keeper
from righttime.catalyst.local import LocalSessions
from righttime.catalyst.mover import Mover
from righttime.catalyst.policies import Policy
from righttime.catalyst.port import Port
from righttime.catalyst.producer import Producer
from righttime.catalyst.recovery import recover
from righttime.catalyst.room import Room
from righttime.catalyst.settler import Settler
from righttime.catalyst.shell import Catalyst
from righttime.changes.clock import Clock, SystemClock, TimeAuthority
from righttime.changes.interrupts import uninterrupted
from righttime.changes.schema import TableSchema
from righttime.errors import BadSetting, WriterLost
from righttime.flows.manager import FlowParts, Flows
from righttime.flows.taps import TapParts
from righttime.foundation import Foundation, open_foundation
from righttime.ledger.pins import PinTable
from righttime.ledger.state import State
from righttime.pipeline.spark import SparkOwner
from righttime.pipeline.translate import quiet
from righttime.query.consumer import Consumer
from righttime.query.postgres_queries import PostgresQueries
from righttime.query.snapshot import Snapshots, TableSnapshot
from righttime.query.verify import Verifier
from righttime.roster import write_roster
from righttime.settings import Settings
from righttime.telemetry import get_log
from righttime.warehouse.store import Collected, DataFile

log = get_log("service")

_PINS_MAX = 4096


class Engine:
    """All parts of one warehouse that is open for writing."""

    def __init__(self, foundation: Foundation, *, settings: Settings, clock: Clock) -> None:
        assert foundation.trace is not None
        self.foundation = foundation
        self.name = foundation.name
        self.folder = foundation.folder
        self.settings = settings
        self.clock = clock
        self.ledger = foundation.ledger
        self.store = foundation.store
        self.wal = foundation.wal
        self.trace = foundation.trace
        try:
            self._wire()
        except BaseException:
            foundation.close()
            raise

    def _wire(self) -> None:
        """Put the parts together, each after those it stands on."""
        self._recover_catalyst()
        self._wire_storing()
        self._wire_queries()
        self._wire_loading()
        self._wire_flows()
        log.info("warehouse.opened", path=self.name, state=self.recovered.state.number, replayed=self.recovered.rows_replayed)

    def _recover_catalyst(self) -> None:
        """Build the catalyst as the newest durable state and the log have it."""
        self.schemas = {table.name: table for table in self.ledger.tables()}
        self.views = self.ledger.views()
        self.declarations = threading.RLock()
        self.catalyst = Catalyst(settings=self.settings, clock=self.clock, authority=TimeAuthority(self.clock), trace=self.trace)
        state = self.ledger.newest_state()
        self.recovered = recover(self.catalyst, ledger=self.ledger, store=self.store, wal=self.wal, trace=self.trace, schemas=self.schemas, state=state)
        forget_spilled(self.folder)

    def _wire_storing(self) -> None:
        """Images, settling and the mover, and the keeper, which materializes on its own."""
        self.images = Images(self.catalyst, settings=self.settings, folder=self.folder)
        self.room = Room(self.catalyst, self.images, settings=self.settings)
        self.settler = Settler(self.catalyst, self.store, schemas=self.schemas, check_storable=self.foundation.check_storable)
        self.mover = Mover(self.catalyst, self.settler, self.ledger, self.store, self.wal, schemas=self.schemas, settings=self.settings)
        self.mover.declared_late = self._declared_late
        self.keeper = Keeper(self.catalyst, materialize=self.mover.materialize, settings=self.settings)

    def _wire_queries(self) -> None:
        """Snapshots, the consumer that answers from them, and the verifier that has it answer again."""
        self.spark = SparkOwner(self.settings)
        self.pins = PinTable(pins_max=_PINS_MAX)
        self.snapshots = Snapshots(
            self.catalyst, self.settler, self.images, self.store, self.pins, hold=self.foundation.hold, schemas=self.schemas, settings=self.settings
        )
        self.snapshots.relieve = self.room.relieve
        self.consumer = Consumer(self.snapshots, self.ledger, self.spark, schemas=self.schemas, views=self.views, settings=self.settings)
        self.verifier = Verifier(self.consumer, self.snapshots, self.ledger, self.catalyst)
        self.consumer.verifier = self.verifier.verify
        if self.foundation.open_queries is not None:
            self.consumer.rerun_in_database = self._rerun_in_database

    def _wire_loading(self) -> None:
        """Sessions, and the port that producers are built on; nobody is on the roster yet."""
        self.producers: list[Producer] = []
        self._rosters = threading.Lock()
        write_roster(self.folder, {})
        self.sessions = LocalSessions(
            self.catalyst, self.settler, self.mover, self.room, schemas=self.schemas, settings=self.settings, known_batch=self._known_batch
        )
        self.port = Port(
            schemas=self.schemas,
            settings=self.settings,
            clock=self.clock,
            open_session=self.sessions.open,
            stage_df=self._stage_df,
            read_files=self._read_files,
            drop_files=self.store.discard,
            own_query=self.consumer.sql,
            producers_changed=self._write_roster,
            check_storable=self.foundation.check_storable,
            check_writable=lambda table: self.catalyst.refuse_maintained(None, [table]),
            is_stream=lambda name: self.consumer.is_stream(name),  # which is known when there are streams
        )

    def _wire_flows(self) -> None:
        """Flows, last: they use all other parts, and tell queries where their streams are cut."""
        parts = FlowParts(
            catalyst=self.catalyst,
            mover=self.mover,
            images=self.images,
            room=self.room,
            spark=self.spark,
            schemas=self.schemas,
            views=self.views,
            declarations=self.declarations,
            settings=self.settings,
            folder=self.folder,
            create_table=self.declare,
            check_storable=self.foundation.check_storable,
            taps=TapParts(self.catalyst, self.snapshots, self.store, self.mover, self.settings.wait_s),
        )
        self.flows = Flows(parts)
        self.snapshots.stream_cuts = self.flows.attention.stream_cuts
        self.consumer.is_stream = lambda name: name in self.flows.feed.streams.names()

    def declare(self, schema: TableSchema) -> None:
        """Make a new table known."""
        with self.declarations, uninterrupted():
            version = self.store.create(schema)
            self.mover.declare(Declared(table=schema, version=version))
            self.schemas[schema.name] = schema

    def _declared_late(self, declared: Declared) -> None:
        """Know what was declared by a step that was in doubt; whoever declared it has been told so."""
        if declared.table is not None:
            self.schemas[declared.table.name] = declared.table
        if declared.view is not None:
            name, text = declared.view
            self.views[name] = text

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

    def open_queries(self) -> PostgresQueries | None:
        """Open a session for queries that the database answers in its own SQL; None where there is no database."""
        opener = self.foundation.open_queries
        return None if opener is None else opener(self.snapshots, self.consumer, self.schemas, self.views)

    def _rerun_in_database(self, text: str, tables: Mapping[str, TableSnapshot], parameters: Sequence[Any]) -> pa.Table:
        """Run the query of a receipt again, in a session of its own: one that stayed open would keep others from changing the tables."""
        queries = self.open_queries()
        assert queries is not None
        with closing(queries):
            return queries.rerun(text, tables, parameters)

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
        producer = Producer(source, policy=policy, port=self.port)
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
        grace_s, collected = self.settings.file_grace_s, {}
        for name, schema in dict(self.schemas).items():
            collected[name] = self.store.collect(schema, versions=partial(self._versions_held, name), grace_s=grace_s, now_s=self.clock.now_us() / 1e6)
        return collected

    def _versions_held(self, table: str) -> set[int]:
        """Return the versions of a table that somebody may read, now: what was held when another table was collected tells nothing."""
        with self.catalyst.lock:
            pinned = self.pins.versions_pinned(now_s=self.clock.monotonic_s()).get(table, ())
            current = self.catalyst.tables[table].version
        # After the current version: a process that pins a state later than this pins a newer one.
        states = [state for number in self.ledger.pinned_states(now_us=self.clock.now_us()) for state in self.ledger.state_around(number) if state is not None]
        return {current, *pinned, *(state.tables[table].version for state in [*states, self.ledger.newest_state()] if table in state.tables)}

    def close(self) -> None:
        """Make everything committed durable and let go of the folder. If that fails everything stays open, to be closed again when there is space; only
        what can never be kept, because another process writes now, is let go all the same, and `WriterLost` tells so."""
        self.flows.stop_all()
        for producer in self.producers:
            producer.close()
        with self.catalyst.lock:
            self.catalyst.closing = True
        lost: WriterLost | None = None
        try:
            self.mover.make_safe()
        except WriterLost as error:
            lost = error
        except BaseException:
            with self.catalyst.lock:
                self.catalyst.closing = False
            raise
        self.keeper.stop()
        self.flows.close()
        if lost is None:
            self.trace.reset()  # only now: until everything is safe, the trace tells what a crash would lose
        self.mover.close()
        self.images.close()
        self.trace.close()
        self.spark.stop()
        self.foundation.close()
        log.info("warehouse.closed", path=self.name)
        if lost is not None:
            raise lost


Target = Path | str
"""A folder, or the address of a database."""

_engines: dict[Target, tuple[Engine, int]] = {}
_engines_lock = threading.Lock()


def acquire_engine(target: Target, *, settings: Settings, clock: Clock | None = None, create: bool = True) -> Engine:
    """Return the engine of a warehouse, opening it for the first handle; give it back with `release_engine`."""
    with _engines_lock:
        known = _engines.get(target)
        if known is not None:
            _refuse_other_settings(known[0], settings)
        if known is None:
            time = clock or SystemClock()
            known = Engine(open_foundation(target, settings=settings, clock=time, create=create), settings=settings, clock=time), 0
        engine, handles = known
        _engines[target] = (engine, handles + 1)
        return engine


def _refuse_other_settings(engine: Engine, settings: Settings) -> None:
    for name, value in settings:
        # A warehouse remembers its schema, so it is the same one whether it was named or not.
        same = name == "table_schema" and value in (None, engine.foundation.table_schema)
        if not same and value != getattr(engine.settings, name):
            raise BadSetting(name=name, reason=f"{engine.name} is open in this process with other settings")


def release_engine(engine: Engine) -> None:
    """Give a handle's share back; the last one closes the engine."""
    with _engines_lock:
        found = next(((target, handles) for target, (known, handles) in _engines.items() if known is engine), None)
        if found is None:
            return  # it has been let go without keeping everything, and its last handle was told
        target, handles = found
        if handles > 1:
            _engines[target] = (engine, handles - 1)
            return
        try:
            engine.close()
        except WriterLost:
            del _engines[target]
            raise
        del _engines[target]


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
                log.error("warehouse.close_failed", path=engine.name, error=repr(error))
        _engines.clear()
