"""Capture: the part of the head that a durable step has to make safe, read in one go.

In: the catalyst, and the producer whose commit it is, if any.
Out: per lane the rows to store or to log and where they end; per source the commit they reach.
Promise: no commit is captured in one table and left out in another, so a crash can never show half of it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from righttime.catalyst.ends import Ends
from righttime.catalyst.links import Link
from righttime.catalyst.maintainer import Maintainer
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import VERSIONS, Lane, Slice
from righttime.changes.operations import Placed
from righttime.changes.position import Commit


class Overtaken(Exception):
    """Operations came to a table that was to be stored without any: the step has to begin anew. Never leaves the mover."""


@dataclass(frozen=True, slots=True)
class LaneCapture:
    """One lane: rows up to `stored_id` are stored by this step or were before, later ones up to `last_id` logged.

    `time_us` is the time of the newest stored row, None where the commit under way will give it.
    """

    table: str
    source: str
    stored_id: int
    last_id: int
    time_us: int | None
    store: list[Slice]
    log: list[Slice]
    operations: list[Placed]
    times: list[tuple[int, int]]
    stores: bool

    @property
    def log_times(self) -> bool:
        """Tell whether rows that were logged before have commit times that were not."""
        return self.last_id > self.stored_id and bool(self.times)


@dataclass(frozen=True, slots=True)
class Capture:
    """All lanes and sources at one moment; `ends` of the tables that are stored up to a time of their own."""

    lanes: list[LaneCapture]
    positions: dict[str, Commit]
    rows: dict[str, int]
    row_id: int
    cuts: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, Ends] = field(default_factory=dict)

    def of_table(self, table: str) -> list[LaneCapture]:
        return [lane for lane in self.lanes if lane.table == table]


def capture(catalyst: Catalyst, *, own: Link | None, stored_tables: Collection[str], cuts: Mapping[str, int]) -> Capture:
    """Read what has to be stored (tables in `stored_tables`) and what has to be logged (all other rows that are not logged).

    Tables with operations are stored up to a time in `cuts`, at which these are settled; one that is not there raises `Overtaken`.
    """
    with catalyst.lock:
        source = own.source if own is not None else None
        if any(name not in cuts and catalyst.tables[name].must_settle(source) for name in stored_tables):
            raise Overtaken
        if any(catalyst.unsettled(name, cut_us) for name, cut_us in cuts.items()):
            raise Overtaken  # a query has found stored rows elsewhere, and settling begins anew
        now_us = catalyst.authority.read_us()
        complete = {source: complete_us(catalyst, source, now_us) for source in catalyst.head.sources}
        lanes = [
            _lane(
                lane,
                name,
                stored=name in stored_tables,
                own=own is not None and lane.source == own.source,
                complete_us=complete.get(lane.source, now_us),
                cut_us=cuts.get(name),
            )
            for name, table in catalyst.tables.items()
            for lane in table.lanes.values()
            if lane.source != VERSIONS or name in stored_tables
        ]
        histories = catalyst.head.sources
        assert all(histories[source].oldest_us <= until_us for source, until_us in complete.items()), "what is held back is known one by one"
        positions = {source: histories[source].cut(source, until_us).last_inside for source, until_us in complete.items()}
        rows = {source: histories[source].rows_at(until_us) for source, until_us in complete.items()}
        ends = {name: catalyst.tables[name].ends for name in cuts if name in stored_tables}
        return Capture(lanes, positions, rows, catalyst.row_ids.last, cuts, ends)


def storable_cuts(catalyst: Catalyst, tables: Collection[str], *, guarded: bool) -> dict[str, int]:
    """Return up to which time each table can be stored, of those that cannot be stored as they are; operations have to be settled up to there first."""
    with catalyst.lock:
        now_us = catalyst.authority.read_us()
        cuts = {}
        for table in tables:
            waiting = [each.cut_us for each in catalyst.admissions if table in each.tables and each.cut_us is not None] if guarded else []
            waiting += [catalyst.tapped[table].stream_us] if table in catalyst.tapped else []
            if waiting or catalyst.table(table).must_settle():
                cuts[table] = min([table_complete_us(catalyst, table, now_us), *waiting])
        return cuts


def table_complete_us(catalyst: Catalyst, table: str, now_us: int) -> int:
    """Return up to when everything is here that can concern `table`: of its flow if it has one, else of all sources that are no flows."""
    flow = catalyst.maintained.get(table)
    if flow is not None:
        return complete_us(catalyst, flow.source, now_us)
    others = (source for source in catalyst.head.sources if not isinstance(catalyst.links.get(source), Maintainer))
    return min((complete_us(catalyst, source, now_us) for source in others), default=now_us)


def complete_us(catalyst: Catalyst, source: str, now_us: int) -> int:
    """Rows of a lazy producer count only up to its oldest unflushed commit: later ones may be here for one table and not for another."""
    link = catalyst.links.get(source)
    return now_us if link is None else link.complete_us(otherwise_us=now_us)


def _lane(lane: Lane, table: str, *, stored: bool, own: bool, complete_us: int, cut_us: int | None) -> LaneCapture:
    pending = own and lane.uncommitted
    last_id = lane.last_id if pending else max(lane.times.at(complete_us), lane.stored_id)
    stored_id = lane.stored_id
    if stored:
        stored_id = last_id if cut_us is None else max(lane.times.at(cut_us), lane.stored_id)
    if lane.source == VERSIONS:
        last_id = stored_id  # versions are made from operations, and these are what is logged
    first_unlogged = max(lane.logged_id, stored_id) + 1
    return LaneCapture(
        table=table,
        source=lane.source,
        stored_id=stored_id,
        last_id=last_id,
        time_us=None if pending and cut_us is None and stored else lane.times.time_of(stored_id),
        store=lane.slices(lane.stored_id + 1, stored_id),
        log=lane.slices(first_unlogged, last_id),
        operations=lane.operations_between(first_unlogged, last_id),
        times=lane.times.entries_after(lane.logged_us, up_to_id=last_id),
        stores=stored_id > lane.stored_id,
    )
