"""Taps: streams of what happens to a table of the warehouse itself.

In: a table with unique keys, and times up to which a flow, or storing, needs its changes.
Out: the commits to the table since the last time as commits of its stream, each at its own time.
Promise: the table at any time up to the stream's watermark is exactly what the stream's changes until then add up to, after a crash too: what the stream
takes is durable in the table before. Nothing is stored from beyond the watermark before the stream has it: stored rows carry no commit time, and could
not be told apart any more. So it does not depend on when a stream is pulled what it has.
"""

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass

from righttime.catalyst.capture import table_complete_us
from righttime.catalyst.maintainer import Maintainer
from righttime.catalyst.mover import Mover
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import VERSIONS
from righttime.catalyst.tapped import Reader, Tapped, commits_after
from righttime.changes.schema import TableSchema
from righttime.errors import RightTimeError
from righttime.errors.flows import BadStream, ChangeRefused
from righttime.flows.table_commits import TableCommits
from righttime.flows.tap_changes import difference
from righttime.query.snapshot import Snapshots
from righttime.queues.commits import CommitIn
from righttime.queues.declared import StreamSchema
from righttime.queues.streams import Streams
from righttime.telemetry import get_log
from righttime.warehouse.store import Store

log = get_log("taps")


@dataclass(frozen=True, slots=True)
class TapParts:
    """What taps read with, and the mover, which makes durable what they have read."""

    catalyst: Catalyst
    snapshots: Snapshots
    store: Store
    mover: Mover
    wait_s: float


class Taps:
    """The tapped tables of one warehouse; safe to call from any thread. Its lock comes before the mover's and the feed's."""

    def __init__(self, parts: TapParts, streams: Streams, *, starting: AbstractContextManager[object]) -> None:
        """Take `starting` along, which is held while a flow begins to run and takes its targets."""
        self._parts = parts
        self._streams = streams
        self._starting = starting
        self._catalyst = parts.catalyst
        self._table = TableCommits(parts.catalyst, parts.snapshots, parts.store)
        self._lock = threading.Lock()
        self._streams_of: dict[str, list[str]] = {}
        for name in streams.names():
            self._note(streams.schema(name))

    def tap(self, table: TableSchema, stream: str) -> None:
        """Make what happens to a table a stream; its rows as they are become the first changes."""
        self._refuse_kept(table, stream)  # first: how it is declared is not what stands in the way
        if not table.unique or not table.in_memory:
            raise BadStream(stream=stream, reason=f"table {table.name!r} is not unique by keys, or has no memory table: its changes could not be told by key")
        now_us = self._catalyst.authority.read_us()
        self._await_producers(table.name, now_us, deadline_s=self._catalyst.clock.monotonic_s() + self._parts.wait_s)
        with self._starting:
            self._refuse_kept(table, stream)
            self._begin(table, stream)

    def _refuse_kept(self, table: TableSchema, stream: str) -> None:
        if (keeper := self._catalyst.maintained.get(table.name)) is not None:
            flow = keeper.source.removeprefix("flow.")
            reason = f"table {table.name!r} is kept by flow {flow!r}, and only tables that producers load can be tapped; add steps to that flow instead"
            raise BadStream(stream=stream, reason=reason)

    def _begin(self, table: TableSchema, stream: str) -> None:
        schema = self._streams.create(stream, table.columns, keys=table.keys, times="source", table=table.name)
        self._note(schema)
        try:
            self.pull(stream, self._catalyst.authority.read_us())
        except BaseException:
            self._take_back(schema)
            raise

    def _take_back(self, schema: StreamSchema) -> None:
        """Forget a tap that could not be filled: nobody would know whether its table may be stored."""
        with self._lock:
            if schema.table is None or not self._streams.drop(schema.name):
                return
            self._streams_of[schema.table].remove(schema.name)
            least_us = self._least_us(schema.table) if self._streams_of[schema.table] else None
            with self._catalyst.lock:
                if least_us is None:
                    del self._catalyst.tapped[schema.table]
                else:
                    self._catalyst.tapped[schema.table].stream_us = least_us

    def _note(self, schema: StreamSchema) -> None:
        if schema.table is None:
            return
        self._streams_of.setdefault(schema.table, []).append(schema.name)
        marks = [self._watermark_us(name) for name in self._streams_of[schema.table]]
        # What comes from now on is after everything that the stream says it has.
        self._catalyst.authority.observe(self._watermark_us(schema.name))
        with self._catalyst.lock:
            now_us, memory = self._catalyst.authority.read_us(), self._catalyst.table(schema.table)
            known = self._catalyst.tapped.get(schema.table)
            # A stream that has nothing yet takes the whole table first, later than now: what is here by now may be stored before.
            stream_us = min(mark_us or now_us for mark_us in marks)
            tapped = self._catalyst.tapped[schema.table] = Tapped(stream_us)
            for time_us, rows in commits_after(memory, min(marks)):
                tapped.note(time_us, rows)
            if known is not None:  # who read another stream of the table has been told of these before, and may have published them
                tapped.readers, tapped.followers = known.readers, known.followers

    def watch(self, link: Maintainer, streams: Collection[str], urgent: Callable[[int], bool]) -> None:
        """Wake a flow that reads `streams` when so many rows came to their tables that it is urgent."""
        tables = {self._streams.schema(name).table for name in streams}
        with self._catalyst.lock:
            for name, tapped in self._catalyst.tapped.items():
                tapped.readers.pop(link.source, None)
                if name in tables:
                    tapped.readers[link.source] = Reader(link.nudge, urgent)

    def waiting(self, streams: Collection[str], after_us: int) -> int | None:
        """Return how many rows came to the tables of `streams` after a time and were not pulled; None if none of them is of a table."""
        return sum(self.unpulled(streams, after_us).values()) if self._taps(streams) else None

    def unpulled(self, streams: Collection[str], after_us: int, up_to_us: int | None = None) -> dict[str, int]:
        """Return how many rows came to the table of each stream after a time, up to another, that the stream does not have."""
        counted = {}
        for name in self._taps(streams):
            pulled_us = max(after_us, self._watermark_us(name))
            with self._catalyst.lock:
                counted[name] = self._catalyst.tapped[self._table_of(name)].waiting(pulled_us, up_to_us)
        return {name: rows for name, rows in counted.items() if rows}

    def first_unpulled(self, streams: Collection[str], after_us: int) -> int | None:
        """Return the time of the first of these commits."""
        marks = {name: max(after_us, self._watermark_us(name)) for name in self._taps(streams)}
        with self._catalyst.lock:
            firsts = [self._catalyst.tapped[self._table_of(name)].first_after(mark_us) for name, mark_us in marks.items()]
        return min((first_us for first_us in firsts if first_us is not None), default=None)

    def pull_for(self, streams: Collection[str], up_to_us: int) -> str:
        """Bring those of `streams` that tap tables up to a time, or try: what is held back is asked for, and what fails now may do so no more later.

        Returns what stands in the way, empty if nothing does.
        """
        hindrance = ""
        for name in self._taps(streams):
            try:
                hindrance = self.pull(name, up_to_us) or hindrance
            except RightTimeError as error:
                if not error.retryable:
                    raise
                log.warning("tap.not_pulled", stream=name, code=error.code, error=str(error))
                hindrance = f"its stream {name!r} cannot be brought up to its table: {str(error).removesuffix('.')}"
        return hindrance

    def bring_up(self, streams: Collection[str], *, deadline_s: float) -> None:
        """Bring those of `streams` that tap tables up to now; raises what stands in the way."""
        now_us = self._catalyst.authority.read_us()
        for name in self._taps(streams):
            self._await_producers(self._table_of(name), now_us, deadline_s=deadline_s)
            self.pull(name, now_us)

    def before_storing(self, tables: Collection[str]) -> None:
        """Bring the streams of these tables up to what is here, so that storing has something to do; all that can be, then raise what stands in the way."""
        failure: RightTimeError | None = None
        for table in tables:
            for name in list(self._streams_of.get(table, ())):
                with self._catalyst.lock:
                    up_to_us = table_complete_us(self._catalyst, table, self._catalyst.authority.read_us())
                try:
                    self.pull(name, up_to_us, storing=True)
                except RightTimeError as error:
                    if name in self._streams_of[table]:  # else it was taken back meanwhile
                        failure = failure or error
        if failure is not None:
            raise failure

    def pull(self, stream: str, up_to_us: int, *, storing: bool = False) -> str:
        """Append what happened to the stream's table up to a time; nothing if a producer holds some of it back, which it is asked for and named."""
        schema, table = self._streams.schema(stream), self._table_of(stream)
        with self._lock:
            after_us = self._watermark_us(stream)
            if up_to_us <= after_us:
                return ""
            if (owing := self._asked(table, up_to_us)) is not None:
                return f"its stream {stream!r} waits for producer {owing!r}, which holds commits back"
            # A crash must not take from the table what the stream has: not even an insert and its delete, of which one alone may be durable.
            if self._safe_us(table, up_to_us) < up_to_us:
                self._parts.mover.make_safe(bounded=not storing)  # storing is the way out of a full log
                assert self._safe_us(table, up_to_us) == up_to_us, "nobody holds anything back up to here"
            self._append(schema, table, after_us, up_to_us)
            least_us = self._least_us(table)
            with self._catalyst.lock:
                self._catalyst.tapped[table].pulled(least_us)
            return ""

    def _append(self, schema: StreamSchema, table: str, after_us: int, up_to_us: int) -> None:
        changes, commits = self._table.changes(table, after_us, up_to_us)
        try:
            self._streams.append_commits(schema.name, changes, commits, up_to_us=up_to_us)
        except ChangeRefused as error:
            changes = difference(self._table.rows(table, up_to_us), self._streams.table(schema.name, 0, after_us), schema)
            log.error("tap.mended", stream=schema.name, table=table, rows=changes.num_rows, error=str(error))
            self._streams.append_commits(schema.name, changes, [CommitIn(changes.num_rows, up_to_us, None)], up_to_us=up_to_us)

    # -- what is here, and what is durable ---------------------------------------------------------------------------

    def _asked(self, table: str, up_to_us: int) -> str | None:
        """Ask producers for what they hold back of a table up to a time, and of commits that cannot be durable without it; return one of them, if any."""
        owing = None
        with self._catalyst.lock:
            lanes = self._catalyst.table(table).lanes
            for link in self._catalyst.links.values():
                if isinstance(link, Maintainer) or not link.archived_from:
                    continue
                lane = lanes.get(link.source)
                needed_us = up_to_us if link.archived_from.get(table, up_to_us + 1) <= up_to_us else 0
                if lane is not None and lane.times.at(up_to_us) > lane.logged_id:
                    needed_us = max(needed_us, lane.times.time_of(lane.times.at(up_to_us)))
                for held, from_us in link.archived_from.items():
                    if from_us <= needed_us:
                        link.request(held, up_to_us)
                        owing = link.source
        return owing

    def _await_producers(self, table: str, up_to_us: int, *, deadline_s: float) -> None:
        """Wait until nobody holds back what `_asked` would ask for."""
        with self._catalyst.lock:
            known = [link for link in self._catalyst.links.values() if not isinstance(link, Maintainer)]
            mine = [link for link in known if table in link.archived_from or link.source in self._catalyst.table(table).lanes]
            tables = {table, *(held for link in mine for held in link.archived_from)}
        self._catalyst.ensure_accuracy(up_to_us, sorted(tables), deadline_s=deadline_s)

    def _safe_us(self, table: str, up_to_us: int) -> int:
        """Return up to when, and not beyond `up_to_us`, no commit to a table is only in memory."""
        with self._catalyst.lock:
            lanes = [lane for lane in self._catalyst.table(table).lanes.values() if lane.source != VERSIONS]
            hot = [lane for lane in lanes if lane.times.at(up_to_us) > max(lane.logged_id, lane.stored_id)]
            return min([up_to_us, *(lane.times.time_of(max(lane.logged_id, lane.stored_id) + 1) - 1 for lane in hot)])

    # -- names and times ---------------------------------------------------------------------------------------------

    def _taps(self, streams: Collection[str]) -> list[str]:
        return [name for name in streams if self._streams.schema(name).table is not None]

    def _table_of(self, stream: str) -> str:
        table = self._streams.schema(stream).table
        assert table is not None
        return table

    def _watermark_us(self, stream: str) -> int:
        return self._streams.watermark_us(stream) or 0

    def _least_us(self, table: str) -> int:
        return min(self._watermark_us(name) for name in self._streams_of[table])
