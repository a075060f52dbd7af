"""Capture: the part of the head that a durable step has to make safe, read in one go.

In: the catalyst, and the producer whose commit it is, if any.
Out: per lane the rows to store or to log and where they end; per source the commit they reach.
Promise: no commit is captured in one table and left out in another, so a crash can never show half of it.
"""

from collections.abc import Collection
from dataclasses import dataclass

from righttime.catalyst.links import Link
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import Lane, Slice
from righttime.changes.position import Commit


@dataclass(frozen=True, slots=True)
class LaneCapture:
    """One lane up to `last_id`; `time_us` is None where the commit under way will give the time."""

    table: str
    source: str
    last_id: int
    time_us: int | None
    store: list[Slice]
    log: list[Slice]
    times: list[tuple[int, int]]

    hot: bool

    @property
    def log_times(self) -> bool:
        """Tell whether rows that were logged before have commit times that were not."""
        return self.hot and bool(self.times)


@dataclass(frozen=True, slots=True)
class Capture:
    """All lanes and sources at one moment."""

    lanes: list[LaneCapture]
    positions: dict[str, Commit]
    rows: dict[str, int]
    row_id: int

    def of_table(self, table: str) -> list[LaneCapture]:
        return [lane for lane in self.lanes if lane.table == table]


def capture(catalyst: Catalyst, *, own: Link | None, stored_tables: Collection[str]) -> Capture:
    """Read what has to be stored (tables in `stored_tables`) and what has to be logged (unlogged rows of all others)."""
    with catalyst.lock:
        now_us = catalyst.authority.read_us()
        lanes = [
            _lane(
                lane,
                name,
                stored=name in stored_tables,
                own=own is not None and lane.source == own.source,
                complete_us=_complete_us(catalyst, lane.source, now_us),
            )
            for name, table in catalyst.tables.items()
            for lane in table.lanes.values()
        ]
        complete = {source: _complete_us(catalyst, source, now_us) for source in catalyst.head.sources}
        positions = {source: catalyst.head.source(source).cut(source, complete_us).last_inside for source, complete_us in complete.items()}
        rows = {source: catalyst.head.source(source).rows_at(complete_us) for source, complete_us in complete.items()}
        return Capture(lanes, positions, rows, catalyst.row_ids.last)


def _complete_us(catalyst: Catalyst, source: str, now_us: int) -> int:
    """Rows of a lazy producer count only up to its oldest unflushed commit: later ones may be here for one table and not for another."""
    link = catalyst.links.get(source)
    return now_us if link is None else link.complete_us(otherwise_us=now_us)


def _lane(lane: Lane, table: str, *, stored: bool, own: bool, complete_us: int) -> LaneCapture:
    pending = own and lane.uncommitted
    last_id = lane.last_id if pending else max(lane.times.at(complete_us), lane.stored_id)
    first_unlogged = max(lane.logged_id, lane.stored_id) + 1
    return LaneCapture(
        table=table,
        source=lane.source,
        last_id=last_id,
        time_us=None if pending else lane.times.time_of(last_id),
        store=list(lane.slices(lane.stored_id + 1, last_id)) if stored else [],
        log=[] if stored else list(lane.slices(first_unlogged, last_id)),
        times=lane.times.entries_after(lane.logged_us, up_to_id=last_id),
        hot=not stored and last_id > lane.stored_id,
    )
