"""Taps: streams of what happens to a table of the warehouse itself.

In: a table with unique keys, and times up to which a flow, or storing, needs its changes.
Out: appends to the table's stream: rows that ended, and rows that came into being, since the last time.
Promise: the table at the stream's watermark is exactly what the stream's changes add up to. Nothing is stored from beyond the watermark before the
stream has it: stored rows carry no commit time, and could not be told apart any more.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from righttime.catalyst.ends import NONE, NOTHING
from righttime.catalyst.images import rows_of, visible_rows
from righttime.catalyst.messages import Accuracy, Look
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import Slice
from righttime.changes.operations import Numbers
from righttime.changes.schema import TableSchema
from righttime.errors.flows import BadStream
from righttime.query.contract import Contract
from righttime.query.snapshot import Snapshot, Snapshots, TableSnapshot
from righttime.queues.declared import StreamSchema
from righttime.queues.streams import Streams
from righttime.warehouse.store import Store


@dataclass(frozen=True, slots=True)
class TapParts:
    """What taps read with."""

    catalyst: Catalyst
    snapshots: Snapshots
    store: Store
    schemas: Mapping[str, TableSchema]
    wait_s: float


class Taps:
    """The tapped tables of one warehouse; safe to call from any thread."""

    def __init__(self, parts: TapParts, streams: Streams) -> None:
        self._parts = parts
        self._streams = streams
        self._lock = threading.Lock()
        self._streams_of: dict[str, list[str]] = {}
        for name in streams.names():
            self._note(streams.schema(name))

    def tap(self, table: TableSchema, stream: str) -> None:
        """Make what happens to a table a stream; its rows as they are become the first changes."""
        if not table.unique or not table.in_memory:
            raise BadStream(stream=stream, reason=f"table {table.name!r} is not unique by keys, or has no memory table: its changes could not be told by key")
        if table.name in self._parts.catalyst.maintained:
            raise BadStream(stream=stream, reason=f"table {table.name!r} is kept by a flow; read the streams of that flow")
        self._note(self._streams.create(stream, table.columns, keys=table.keys, times="source", table=table.name))
        self.pull(stream, self._parts.catalyst.authority.read_us())

    def _note(self, schema: StreamSchema) -> None:
        if schema.table is None:
            return
        self._streams_of.setdefault(schema.table, []).append(schema.name)
        with self._parts.catalyst.lock:
            self._parts.catalyst.tapped[schema.table] = self._streams.watermark_us(schema.name) or 0

    def pull_for(self, streams: Collection[str], up_to_us: int) -> None:
        """Bring those of `streams` that tap tables up to a time."""
        for name in streams:
            if self._streams.schema(name).table is not None:
                self.pull(name, up_to_us)

    def before_storing(self, tables: Collection[str]) -> None:
        """Bring the streams of these tables up to now, so that storing has something to do."""
        now_us = self._parts.catalyst.authority.read_us()
        for table in tables:
            for name in self._streams_of.get(table, ()):
                self.pull(name, now_us)

    def pull(self, stream: str, up_to_us: int) -> None:
        """Append what happened to the stream's table up to a time."""
        schema = self._streams.schema(stream)
        assert schema.table is not None
        with self._lock:
            after_us = self._streams.watermark_us(stream) or 0
            if up_to_us <= after_us:
                return
            changes = self._changes(schema.table, after_us, up_to_us)
            if changes.num_rows:
                self._streams.append({stream: changes}, time_us=up_to_us, tapping=True)
            else:
                self._streams.heartbeat(stream, up_to_us)
            with self._parts.catalyst.lock:
                self._parts.catalyst.tapped[schema.table] = min(self._streams.watermark_us(name) or 0 for name in self._streams_of[schema.table])

    def _changes(self, table: str, after_us: int, up_to_us: int) -> pa.Table:
        contract = Contract(0, self._parts.wait_s, "error", up_to_us)
        with ExitStack() as held:
            snapshot = held.enter_context(self._parts.snapshots.take([table], contract))
            found = snapshot.tables[table]
            if after_us == 0:
                return _typed(self._parts.snapshots.rows(found), "insert")
            before = self._parts.catalyst.look([table], Accuracy(after_us, {}))
            assert before.versions == snapshot.look.versions, "nothing was stored beyond the watermark"
            ended = self._ended(found, snapshot, before, after_us)
            return pa.concat_tables([_typed(ended, "delete"), _typed(_begun(found, before), "insert")])

    def _ended(self, found: TableSnapshot, snapshot: Snapshot, before: Look, after_us: int) -> pa.Table:
        """Return the rows that were there at `after_us` and are not at the snapshot's cut."""
        name, columns = found.schema.name, found.schema.columns
        ends = snapshot.look.ends.get(name)
        earlier = NOTHING if ends is None else ends.at(after_us)
        parts = [columns.empty_table()]
        gone = np.setdiff1d(found.hidden.hot, earlier.hot)
        for key, slices in found.lanes.items():
            old = _up_to(slices, before.intervals.get(key, (1, 0))[1])
            rows, kept = rows_of(old, columns), visible_rows(old, columns, gone)
            if rows.num_rows != kept.num_rows:
                parts.append(_only(old, columns, gone))
        for unit, positions in found.hidden.stored.items():
            new = np.setdiff1d(positions, earlier.stored.get(unit, NONE))
            if len(new):
                parts.append(self._parts.store.fetch(found.schema, found.version, unit, new).select(columns.names))
        return pa.concat_tables(parts)


def _begun(found: TableSnapshot, before: Look) -> pa.Table:
    """Return the rows that came after the earlier look and are there at the snapshot's cut."""
    columns = found.schema.columns
    parts = [columns.empty_table()]
    for key, slices in found.lanes.items():
        parts.append(visible_rows(_after(slices, before.intervals.get(key, (1, 0))[1]), columns, found.hidden.hot))
    return pa.concat_tables(parts)


def _up_to(slices: Sequence[Slice], row_id: int) -> list[Slice]:
    cut = [Slice(part.piece, part.start, min(part.stop, max(part.piece.rows_up_to(row_id), part.start))) for part in slices]
    return [part for part in cut if part.rows]


def _after(slices: Sequence[Slice], row_id: int) -> list[Slice]:
    cut = [Slice(part.piece, max(part.start, min(part.piece.rows_up_to(row_id), part.stop)), part.stop) for part in slices]
    return [part for part in cut if part.rows]


def _only(slices: Sequence[Slice], columns: pa.Schema, ids: Numbers) -> pa.Table:
    """Return just the rows with these ids."""
    wanted = []
    for part in slices:
        for first_id, rows in part.piece.runs(part.start, part.stop):
            wanted.append(np.isin(np.arange(first_id, first_id + rows), ids))
    return rows_of(slices, columns).filter(pa.array(np.concatenate(wanted))) if wanted else columns.empty_table()


def _typed(rows: pa.Table, change_type: str) -> pa.Table:
    return rows.append_column("_change_type", pa.repeat(pa.scalar(change_type), rows.num_rows))
