"""Adoption: whether operations that are committed and not stored yet can be settled on the version of another writer.

In: a table's lanes, and a version that is about to be adopted.
Out: nothing, or `AdoptionRefused` with what fails.
Promise: settling never fails after an adoption; the outcome is thrown away, for the operations are settled anew when somebody needs it.
"""

from righttime.catalyst.ends import Hidden
from righttime.catalyst.laneview import LaneView
from righttime.catalyst.settle import Settling
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.steps import Entry
from righttime.catalyst.table import VERSIONS
from righttime.changes.schema import TableSchema
from righttime.errors import AdoptionRefused, OperationFailed
from righttime.warehouse.store import Store


class Adoption:
    """One table and the version that it is to get. Operations were tried on the version before when they were committed, not on this one."""

    def __init__(self, catalyst: Catalyst, store: Store, table: TableSchema, *, version: int) -> None:
        self._catalyst = catalyst
        self._store = store
        self._table = table
        self._version = version
        self._changes: int | None = None

    def check(self) -> None:
        """Try the operations; again only if something was committed to the table since the last time."""
        with self._catalyst.lock:
            memory = self._catalyst.tables[self._table.name]
            if memory.changes == self._changes:
                return
            changes, known = memory.changes, memory.version
            lanes = [lane for lane in memory.lanes.values() if lane.source != VERSIONS]
            views = [LaneView(lane, lane.times.committed_id) for lane in lanes]
            entries = [
                Entry(lane.times.time_of(placed.first_id), lane.source, placed)
                for lane in lanes
                for placed in lane.operations_between(lane.stored_id + 1, lane.times.committed_id)
            ]
        if not all(entry.placed.operations.lazy for entry in entries):
            self._try(views, entries, known)
        self._changes = changes

    def _try(self, views: list[LaneView], entries: list[Entry], known: int) -> None:
        settling = Settling(
            self._table,
            views,
            Hidden(),
            scan=lambda columns, ranges: self._store.scan(self._table, self._version, columns, ranges=ranges),
            fetch=lambda unit, positions: self._store.fetch(self._table, self._version, unit, positions),
        )
        try:
            settling.run(entries)
        except OperationFailed as error:
            reason = f"column {error.context['column']!r}: {error.context['reason']}"
            raise AdoptionRefused(table=self._table.name, version=self._version, known=known, reason=reason) from error
