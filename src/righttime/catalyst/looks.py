"""Looks: what a query reads of the catalyst in one go, and the lease that keeps it there.

In: cuts of queries, registrations and releases.
Out: looks (the min/max of every lane) and slices of rows.
Promise: a look that is registered stays readable until its lease ends; one that was overtaken by a materialization is refused and gets priority.
"""

from collections.abc import Mapping, Sequence

from righttime.catalyst.leases import LaneKey, Lease
from righttime.catalyst.memory import CatalystMemory
from righttime.catalyst.messages import Accuracy, Look
from righttime.catalyst.table import VERSIONS, Slice


class Looks(CatalystMemory):
    """What a query asks of the catalyst once it has a cut."""

    def look(self, tables: Sequence[str], accuracy: Accuracy, *, own: str | None = None) -> Look:
        """Read the state and each lane's row-id interval at the cut; with `own`, that source's uncommitted rows too."""
        with self.lock:
            intervals = {}
            for name in tables:
                for lane in self.table(name).lanes.values():
                    last_id = lane.last_id if lane.source == own else lane.times.at(accuracy.time_of(lane.source))
                    intervals[name, lane.source] = (lane.stored_id + 1, last_id)
            return Look(
                state=self.head.number,
                seen_us=self.authority.read_us(),
                versions={name: self.tables[name].version for name in tables},
                rows_stored={name: self.tables[name].rows_stored for name in tables},
                intervals=intervals,
                cuts=tuple(self.head.source(source).cut(source, accuracy.time_of(source)) for source in sorted({lane[1] for lane in intervals} - {VERSIONS})),
                resets={name: self.tables[name].resets for name in tables},
                ends={name: self.tables[name].ends for name in tables if self.tables[name].ends},
            )

    def register(self, look: Look, accuracy: Accuracy) -> tuple[Lease | None, dict[LaneKey, list[Slice]]]:
        """Hold the rows of a look and return them; (None, {}) if it is out of date: take priority, ensure, look, and register again."""
        with self.lock:
            now_s = self.clock.monotonic_s()
            stored = {lane: self.tables[lane[0]].lane(lane[1]).stored_id for lane in look.intervals}
            lease = None
            if self._current(look, accuracy):
                lease = self.leases.register(look.intervals, stored=stored, now_s=now_s, ttl_s=self._settings.lease_ttl_s)
            if lease is None:
                return None, {}
            return lease, self._slices(look.intervals)

    def give_priority(self, ticket: int | None) -> int:
        """Let the next materialization wait for a query that was refused, for a short time; give the ticket back with `abandon`."""
        with self.lock:
            self.leases.close_ticket(ticket)
            return self.leases.open_ticket(now_s=self.clock.monotonic_s(), ttl_s=self._settings.retry_ttl_s)

    def _current(self, look: Look, accuracy: Accuracy) -> bool:
        """Tell whether no table was stored into since: neither a newer version, nor rows from beyond the cut (G21); and that the cut is still known.

        Operations up to the cut must be settled; storing in between may have put that back.
        """
        if any(self.unsettled(name, accuracy.cut_us) for name in look.versions):
            return False
        versions = all(self.tables[name].version == version for name, version in look.versions.items())
        lanes = [lane for name in look.versions for lane in self.tables[name].lanes.values()]
        histories = self.head.sources
        known = all(histories[lane.source].oldest_us <= accuracy.time_of(lane.source) for lane in lanes if lane.source in histories)
        return versions and known and all(lane.stored_us <= accuracy.time_of(lane.source) for lane in lanes)

    def unsettled(self, table: str, time_us: int) -> bool:
        """Tell whether operations committed up to `time_us` wait to become ends and versions."""
        with self.lock:
            memory = self.table(table)
            return memory.settled_us < time_us and any(
                lane.operations_between(max(lane.times.at(memory.settled_us), lane.stored_id) + 1, lane.times.at(time_us)) for lane in memory.lanes.values()
            )

    def abandon(self, ticket: int | None) -> None:
        """Give up the priority of a query that was refused."""
        with self.lock:
            self.leases.close_ticket(ticket)
            self.space.notify_all()

    def hold_again(self, intervals: Mapping[LaneKey, tuple[int, int]]) -> tuple[Lease | None, dict[LaneKey, list[Slice]]]:
        """Hold rows of an earlier state, stored or not; None if some of them have left memory."""
        with self.lock:
            wanted = {lane: span for lane, span in intervals.items() if span[0] <= span[1]}
            for (table, source), span in wanted.items():
                if table not in self.tables or source not in self.tables[table].lanes or not self.tables[table].lanes[source].holds(*span):
                    return None, {}
            lease = self.leases.hold(wanted, now_s=self.clock.monotonic_s(), ttl_s=self._settings.lease_ttl_s)
            return lease, self._slices(wanted)

    def _slices(self, intervals: Mapping[LaneKey, tuple[int, int]]) -> dict[LaneKey, list[Slice]]:
        return {(table, source): self.tables[table].lane(source).slices(*span) for (table, source), span in intervals.items()}

    def release(self, lease: Lease) -> bool:
        """End a query's hold; False if it had lapsed before."""
        with self.lock:
            live = self.leases.release(lease, now_s=self.clock.monotonic_s())
            self.space.notify_all()
            return live

    def await_retries(self) -> None:
        """Let queries that were refused once register before the next materialization is noticed (P10.5)."""
        with self.lock:
            while (wait_s := self.leases.retry_wait_s(now_s=self.clock.monotonic_s())) > 0:
                self.space.wait(timeout=wait_s)
