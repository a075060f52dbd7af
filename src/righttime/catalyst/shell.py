"""The catalyst inside one process: memory tables, the head and the leases, behind one lock.

In: commits, flushes and rollbacks of producers; demands, looks and registrations of queries; notices of the mover.
Out: cuts, looks (the min/max of every lane) and slices of rows.
Promise: whatever one call makes visible becomes visible at once, in one state; no call does file work under the lock,
except the mover's ledger transaction, which is the commit point.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition, RLock

from righttime.catalyst.accuracy import newest_consistent
from righttime.catalyst.head import Head
from righttime.catalyst.indexes import RowIds
from righttime.catalyst.leases import LaneKey, Lease, LeaseTable
from righttime.catalyst.links import Link
from righttime.catalyst.maintainer import Admission, Maintainer, choose_cut, newest_exact
from righttime.catalyst.messages import Accuracy, Content, Flush, Look, Published, Trace
from righttime.catalyst.table import VERSIONS, Lane, MemoryTable, Slice
from righttime.changes.clock import Clock, TimeAuthority
from righttime.changes.operations import rows_and_operations
from righttime.changes.position import Commit, time_text
from righttime.errors import AsOfUnavailable, BadSource, FreshnessUnavailable, NotLazy, ProducerClosed, UnknownTable
from righttime.errors.flows import TableMaintained
from righttime.settings import Settings


class Catalyst:
    """Safe to call from any thread."""

    def __init__(self, *, settings: Settings, clock: Clock, authority: TimeAuthority, trace: Trace) -> None:
        self.lock = RLock()
        self.arrivals = Condition(self.lock)
        self.space = Condition(self.lock)
        self.grown = Condition(self.lock)
        self.hot_rows_max: int | None = None
        self.closing = False
        self.leases = LeaseTable()
        self.head = Head(settings.commits_max)
        self.row_ids = RowIds()
        self.tables: dict[str, MemoryTable] = {}
        self.links: dict[str, Link] = {}
        self.gates: Counter[str] = Counter()  # tables to which nobody may commit lazily now
        self.maintained: dict[str, Maintainer] = {}  # by target table
        self.admissions: list[Admission] = []
        self.tapped: dict[str, int] = {}  # tables that are streams too, and the time up to which their streams have their changes
        self.authority = authority
        self.clock = clock
        self._settings = settings
        self._trace = trace
        self._slots: dict[str, int] = {}
        self._opened_us = authority.read_us()

    # -- producers ---------------------------------------------------------------------------------------------------

    def open_link(self, source: str, *, policy: str) -> Link:
        """Admit a producer; a source has one producer at a time."""
        with self.lock:
            self._refuse_closing(source)
            if source in self.links:
                raise BadSource(source=source, reason="it has an open producer")
            if source not in self.head.sources and len(self.head.sources) >= self._settings.sources_max:
                raise BadSource(
                    source=source, reason=f"the warehouse knows {len(self.head.sources)} sources, which is the bound (sources_max); use their names again"
                )
            link = self.links[source] = Link(source, Condition(self.lock), policy, alive_s=self.clock.monotonic_s())
            self._slots.setdefault(source, self._trace.slot(source))
            return link

    def close_link(self, link: Link) -> None:
        """Let a producer go; its history stays."""
        with self.lock:
            link.closed = True
            self.links.pop(link.source, None)
            link.asked.notify_all()
            self.arrivals.notify_all()

    def await_requests(self, link: Link, timeout_s: float) -> dict[str, int] | None:
        """Wait for what queries ask of a producer and note that it is alive; None once it is closed."""
        with self.lock:
            if not link.requests and not link.closed:
                link.asked.wait(timeout=timeout_s)
            if link.closed:
                return None
            link.alive_s = self.clock.monotonic_s()
            requests = dict(link.requests)
            link.requests.clear()
            return requests

    @contextmanager
    def gated(self, tables: Sequence[str]) -> Iterator[None]:
        """Let nobody commit lazily to these tables as long as the block lasts; such commits come at once instead."""
        with self.lock:
            self.gates.update(tables)
        try:
            yield
        finally:
            with self.lock:
                self.gates.subtract(tables)

    def commit_lazily(self, link: Link, rows: Mapping[str, int], *, batch_id: str | None = None) -> Commit:
        """Number a commit whose rows stay with the producer; from here on queries know that they have to ask for them."""
        with self.lock:
            self._refuse_closing(link.source)
            self.refuse_maintained(link, rows)
            gated = next((table for table in rows if self.gates[table] > 0), None)
            if gated is not None:
                raise NotLazy(table=gated)
            commit = self._number(link, self.authority.next_us(), rows=sum(rows.values()))
            link.alive_s = self.clock.monotonic_s()
            link.archive([table for table, count in rows.items() if count], commit.time_us, rows=sum(rows.values()))
            if batch_id is not None:
                self.head.note_batch(link.source, batch_id, commit, batches_max=self._settings.batches_max)
            return commit

    def flush(self, link: Link, flushes: Iterable[Flush]) -> int:
        """Take archived commits in; they become visible together. Return the state."""
        with self.lock:
            self._take(link, flushes)
            self.arrivals.notify_all()
            return self.head.advance()

    def commit(self, link: Link, flushes: Iterable[Flush], rows: Mapping[str, Sequence[Content]], *, batch_id: str | None = None) -> Published:
        """Take archives and the rows of this commit in, all visible together in one new state."""
        with self.lock:
            self._refuse_closing(link.source)
            self.refuse_maintained(link, rows)
            self._take(link, flushes)
            count = self._stage(link, rows)
            published = self.finish(link, self.authority.next_us(), rows=count, batch_id=batch_id)
            self.arrivals.notify_all()
            return published

    def stage(self, link: Link, flushes: Iterable[Flush], rows: Mapping[str, Sequence[Content]]) -> None:
        """Take archives in, and the rows of an open transaction as uncommitted: only their own producer can read those."""
        with self.lock:
            self.refuse_maintained(link, rows)
            self._take(link, flushes)
            link.staged_rows += self._stage(link, rows)
            self.head.advance()
            self.arrivals.notify_all()

    def finish(self, link: Link, time_us: int, *, rows: int, batch_id: str | None) -> Published:
        """Commit everything staged for this producer at `time_us`; the lock is held by the caller or taken here."""
        with self.lock:
            for name in link.staged:
                table = self.tables[name]
                table.lane(link.source).commit(time_us)
                table.changes += 1  # others see these rows only now, so whoever was tried before has to be tried again
            if link.staged:
                self.space.notify_all()  # committed rows can be spilled
            link.staged.clear()
            commit = self._number(link, time_us, rows=rows + link.staged_rows)
            link.staged_rows = 0
            if batch_id is not None:
                self.head.note_batch(link.source, batch_id, commit, batches_max=self._settings.batches_max)
            return Published(commit, self.head.advance())

    def roll_back(self, link: Link) -> None:
        """Drop the uncommitted rows of this producer."""
        with self.lock:
            for name in link.staged:
                table = self.tables[name]
                lane = table.lane(link.source)
                held = lane.operations_nbytes
                table.discount(lane.roll_back())
                table.bytes_operations -= held - lane.operations_nbytes
                table.rows_unstored -= link.staged[name]
                table.changes += 1
            link.staged.clear()
            link.staged_rows = 0
            self.head.advance()
            self.space.notify_all()

    def _take(self, link: Link, flushes: Iterable[Flush]) -> None:
        for flush in flushes:
            table = self.table(flush.table)
            lane = table.lane(link.source)
            assert not lane.uncommitted or not flush.commits, "archived rows must come before uncommitted ones (O3)"
            for time_us, chunks in flush.commits:
                self._add(table, lane, chunks)
                lane.commit(time_us)
                link.archived_rows -= sum(chunk.rows for chunk in chunks)
            if flush.watermark_us is not None:
                lane.watermark(flush.watermark_us)
            if flush.next_us is None:
                link.archived_from.pop(flush.table, None)
            else:
                link.archived_from[flush.table] = flush.next_us

    def _stage(self, link: Link, rows: Mapping[str, Sequence[Content]]) -> int:
        count = 0
        for name, parts in rows.items():
            if parts:
                table = self.table(name)
                lane = table.lane(link.source)
                self._add(table, lane, parts)
                lane.times.uncommitted_id = lane.last_id
                staged = sum(part.rows for part in parts)
                link.staged[name] = link.staged.get(name, 0) + staged
                count += staged
        return count

    def _add(self, table: MemoryTable, lane: Lane, content: Sequence[Content]) -> None:
        chunks, operations = rows_and_operations(content)
        lane.add(chunks, self.row_ids, operations)
        table.bytes_memory += sum(chunk.nbytes for chunk in chunks)
        table.bytes_operations += sum(each.nbytes for each in operations)
        table.rows_unstored += sum(part.rows for part in content)
        table.changes += 1
        if self.hot_rows_max is not None and table.rows_unstored >= self.hot_rows_max:
            self.grown.notify_all()

    def refuse_maintained(self, link: Link, tables: Iterable[str]) -> None:
        """Refuse rows for a table that a flow maintains: it is what the flow makes of its streams, and nothing else."""
        for table in tables:
            flow = self.maintained.get(table)
            if flow is not None and flow is not link:
                raise TableMaintained(table=table, flow=flow.source.removeprefix("flow."))

    def _refuse_closing(self, source: str) -> None:
        """Refuse what would be acknowledged and then lost: the last look at what has to be safe is under way."""
        if self.closing:
            raise ProducerClosed(source=source)

    def forget_slots(self, positions: Mapping[str, Commit]) -> None:
        """Give the trace's slots of closed sources back once all their commits are durable; the caller has the lock."""
        for source in [known for known in self._slots if known not in self.links]:
            if positions.get(source) == self.head.source(source).last:
                self._trace.release(source)
                del self._slots[source]

    def _number(self, link: Link, time_us: int, *, rows: int) -> Commit:
        commit = self.head.commit(link.source, time_us, rows=rows)
        self._trace.record(self._slots[link.source], commit.number, time_us, self.head.source(link.source).rows)
        return commit

    # -- flows -------------------------------------------------------------------------------------------------------

    def maintain(self, source: str, tables: Sequence[str]) -> Maintainer:
        """Let a flow have its target tables; it stays their maintainer until the warehouse is closed, running or not."""
        with self.lock:
            for table in tables:
                known = self.maintained.get(table)
                if known is not None and known.source != source:
                    raise TableMaintained(table=table, flow=known.source.removeprefix("flow."))
            found = self.links.get(source)
            if not isinstance(found, Maintainer):
                self._slots.setdefault(source, self._trace.slot(source))
                found = self.links[source] = Maintainer(source, Condition(self.lock), "flow", alive_s=self.clock.monotonic_s())
                found.horizon_us = self.head.source(source).last.time_us
            for table in found.tables:
                self.maintained.pop(table, None)
            found.tables = tuple(tables)
            self.maintained.update(dict.fromkeys(tables, found))
            found.refresh()
            return found

    def publish_job(self, link: Maintainer, content: Mapping[str, Sequence[Content]], *, first_us: int, horizon_us: int) -> Published:
        """Show what a job made, in all targets, at its horizon."""
        with self.lock:
            assert horizon_us > self.head.source(link.source).last.time_us, "jobs are published in order, by one runner"
            rows = 0
            for name in link.tables:
                table, parts = self.table(name), content.get(name, ())
                lane = table.lane(link.source)
                if parts:
                    self._add(table, lane, parts)
                    rows += sum(part.rows for part in parts)
                lane.commit(horizon_us)
            commit = self._number(link, horizon_us, rows=rows)
            link.publish(first_us, horizon_us)
            self.arrivals.notify_all()
            return Published(commit, self.head.advance())

    def advance_flow(self, link: Maintainer, horizon_us: int) -> None:
        """Note that the streams of a flow have nothing that is not published up to `horizon_us`."""
        with self.lock:
            link.advance(horizon_us)
            self.arrivals.notify_all()

    def await_cuts(self, link: Maintainer, *, timeout_s: float) -> list[int]:
        """Wait for cuts that queries want of a flow, and settle that jobs end there; empty after the time-out or when it is nudged."""
        with self.lock:
            if not any(cut_us > link.closed_us for cut_us in link.cuts) and timeout_s > 0:
                link.asked.wait(timeout=timeout_s)
            cuts = [cut_us for cut_us in link.cuts if cut_us > link.closed_us]
            link.closed_us = max([link.closed_us, *cuts])
            return cuts

    def close_job(self, link: Maintainer) -> int:
        """Settle that a job ends now, though no query asked for it; return when. Queries that come from here on may share it."""
        with self.lock:
            now_us = self.authority.read_us()
            link.closed_us = max(link.closed_us, now_us if link.arrived_us is None else min(now_us, link.arrived_us))
            link.want(link.closed_us)
            return link.closed_us

    @contextmanager
    def admitted(self, tables: Sequence[str]) -> Iterator[Admission]:
        """Keep what is stored of these tables from running past a query that waits for its cut, as long as the block lasts."""
        admission = Admission(frozenset(tables))
        with self.lock:
            self.admissions.append(admission)
        try:
            yield admission
        finally:
            with self.lock:
                self.admissions.remove(admission)

    def _admit(self, flows: Sequence[Maintainer], admission: Admission, oldest_us: int, asked_us: int, *, exact: bool) -> int:
        """Choose the cut of a query over flows' targets and ask them for it; the caller has the lock."""
        if admission.cut_us is None or admission.cut_us < oldest_us:
            # A job that is closed cannot be parted again, so a query comes after it.
            came_us = max([asked_us, oldest_us, *(flow.closed_us for flow in flows)])
            admission.cut_us = oldest_us if exact else choose_cut(oldest_us, came_us, flows)
        for flow in flows:
            flow.want(admission.cut_us)
        return admission.cut_us

    def _await_flows(self, flows: Sequence[Maintainer], cut_us: int, started_s: float, *, deadline_s: float, floor_us: int, accept_late: bool) -> Accuracy:
        """Wait until all flows have published what a cut needs."""
        while True:
            behind = [flow for flow in flows if not flow.exact(cut_us)]
            if not behind:
                return Accuracy(cut_us, {})
            now_s = self.clock.monotonic_s()
            stuck = next((flow for flow in behind if flow.trouble), None)  # a runner that ends, however it ends, says so
            blurred = next((flow for flow in behind if cut_us <= flow.horizon_us), None)
            if blurred is not None:
                self._refuse_blurred(blurred, cut_us)
            if stuck is None and now_s < deadline_s:
                self.arrivals.wait(timeout=max(deadline_s - now_s, 0.001))
                continue
            late_us = newest_exact(cut_us, flows)
            if accept_late and late_us >= floor_us:
                return Accuracy(late_us, {flow.source: late_us for flow in behind})
            raise self._flow_late(stuck or behind[0], cut_us, started_s)

    def _tolerated_us(self, flows: Sequence[Maintainer], came_us: int) -> int:
        """Return back to when a query puts up with changes that have not arrived; those that have are never left out for it."""
        arrived_us = min((flow.arrived_us for flow in flows if flow.arrived_us is not None), default=came_us)
        return max(came_us - min(flow.tolerance_us for flow in flows), min(arrived_us, came_us))

    def _late_with_flows(self, flows: Sequence[Maintainer], late: Accuracy, started_s: float, *, floor_us: int) -> Accuracy:
        """Return a late answer's cut where flows have targets in it, too: one time for all, at which those are exact as they are."""
        cut_us = newest_exact(late.cut_us, flows)
        if cut_us < floor_us:
            raise self._flow_late(flows[0], late.cut_us, started_s)
        sources = {source: min(time_us, cut_us) for source, time_us in late.late.items()}
        return Accuracy(cut_us, sources | {flow.source: cut_us for flow in flows if cut_us < late.cut_us})

    def _flow_late(self, flow: Maintainer, cut_us: int, started_s: float) -> FreshnessUnavailable:
        newest_us = flow.exact_before(cut_us)
        return FreshnessUnavailable(
            table=flow.tables[0],
            source=flow.source,
            waited_s=self.clock.monotonic_s() - started_s,
            stale_s=max(self.authority.read_us() - max(newest_us, flow.horizon_us, self._opened_us), 0) / 1e6,
            why=flow.trouble or "the flow has not come so far yet",
        )

    def _refuse_blurred(self, flow: Maintainer, cut_us: int) -> None:
        raise AsOfUnavailable(
            asked=time_text(cut_us),
            table=flow.tables[0],
            reason="the flow that maintains it took changes before and after that time in one job",
            earliest=time_text(flow.horizon_us),
        )

    # -- queries -----------------------------------------------------------------------------------------------------

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
        """Bring the lanes of `tables` up to `time_us` (P8'), asking lazy producers; wait until `deadline_s` on the monotonic clock.

        Tables that flows maintain are cut between two jobs, at `time_us` or later and not beyond `asked_us`, when the query came.
        """
        with self.lock:
            flows = list({flow.source: flow for name in tables if (flow := self.maintained.get(name)) is not None}.values())
            # Neither rows that are stored nor commits that are forgotten can be told apart by time any more.
            floor_us = max([self.head.oldest_us, *(self.table(name).stored_us for name in tables)])
            if exact and time_us < floor_us:
                self._refuse_as_of(time_us, tables)
            wanted_us = max(time_us, floor_us)
            started_s = self.clock.monotonic_s()
            if flows:
                came_us = self.authority.read_us() if asked_us is None else asked_us
                if not exact:
                    wanted_us = max(min(wanted_us, self._tolerated_us(flows, came_us)), floor_us)
                wanted_us = self._admit(flows, admission or Admission(frozenset(tables)), wanted_us, came_us, exact=exact)
            while True:
                behind = [(table, link) for table, link in self.lazy_lanes(tables) if self.tables[table].lane(link.source).times.newest_us < wanted_us]
                if not behind:
                    break
                now_s = self.clock.monotonic_s()
                # A producer whose oldest unflushed commit is younger owes nothing, whether it answers or not.
                owing = [(table, link) for table, link in behind if link.archived_from[table] <= wanted_us]
                silent = [pair for pair in behind if now_s - pair[1].alive_s > self._settings.producer_lease_s]
                dead = next((pair for pair in owing if pair in silent), None)
                if dead is not None or now_s >= deadline_s or len(silent) == len(behind):
                    if owing:
                        late = self._late(owing, wanted_us, started_s, floor_us=floor_us, tables=tables, dead=dead, accept_late=accept_late)
                        return self._late_with_flows(flows, late, started_s, floor_us=floor_us) if flows else late
                    break
                for table, link in behind:
                    link.request(table, wanted_us)
                lapses_s = min(link.alive_s for table, link in behind if (table, link) not in silent) + self._settings.producer_lease_s - now_s
                self.arrivals.wait(timeout=max(min(deadline_s - now_s, lapses_s + 0.001), 0.001))
            if flows:
                return self._await_flows(flows, wanted_us, started_s, deadline_s=deadline_s, floor_us=floor_us, accept_late=accept_late)
            if exact:
                return Accuracy(wanted_us, {})
            lanes = [self.tables[table].lane(link.source).times for table, link in self.lazy_lanes(tables)]
            return Accuracy(newest_consistent(wanted_us, lanes, otherwise_us=self.authority.read_us()), {})

    def _refuse_as_of(self, time_us: int, tables: Sequence[str]) -> None:
        newest = max((self.tables[name] for name in tables), key=lambda table: table.stored_us)
        stored = newest.stored_us > time_us
        raise AsOfUnavailable(
            asked=time_text(time_us),
            table=newest.name,
            reason="rows committed later are stored, and stored rows carry no commit time" if stored else "commits that far back are not known one by one",
            earliest=time_text(max(newest.stored_us, self.head.oldest_us)),
        )

    def lazy_lanes(self, tables: Sequence[str]) -> list[tuple[str, Link]]:
        """Lanes whose producer holds committed rows back; all others are complete up to now."""
        return [(table, link) for link in self.links.values() for table in tables if table in link.archived_from and not isinstance(link, Maintainer)]

    def _late(
        self,
        behind: list[tuple[str, Link]],
        wanted_us: int,
        started_s: float,
        *,
        floor_us: int,
        tables: Sequence[str],
        dead: tuple[str, Link] | None,
        accept_late: bool,
    ) -> Accuracy:
        # Everything before the oldest commit that a producer still holds back is here.
        late = {link.source: min(mine.archived_from[table] for table, mine in behind if mine is link) - 1 for _, link in behind}
        torn = [source for source, newest_us in late.items() if any(source in t.lanes and t.lanes[source].stored_us > newest_us for t in self.tables.values())]
        torn += [source for source, newest_us in late.items() if self.head.source(source).oldest_us > newest_us]
        if accept_late and any(self.tables[name].has_operations for name in tables):
            # An operation may have to reach a row that is held back: where there are any, all sources are cut at the same, older time.
            wanted_us = min(late.values())
            torn += [source for source in late if wanted_us < floor_us]
        if accept_late and not torn:
            return Accuracy(wanted_us, late)
        table, link = dead or behind[0]
        raise FreshnessUnavailable(
            table=table,
            source=link.source,
            waited_s=self.clock.monotonic_s() - started_s,
            stale_s=(self.authority.read_us() - link.archived_from.get(table, wanted_us)) / 1e6,
            why="its producer no longer answers" if dead else "its producer has not delivered yet",
        )

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
        known = all(history.oldest_us <= accuracy.time_of(source) for source, history in self.head.sources.items())
        lanes = (lane for name in look.versions for lane in self.tables[name].lanes.values())
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
            for (table, source), (first_id, _) in wanted.items():
                if table not in self.tables or source not in self.tables[table].lanes or not self.tables[table].lanes[source].holds(first_id):
                    return None, {}
            lease = self.leases.hold(wanted, now_s=self.clock.monotonic_s(), ttl_s=self._settings.lease_ttl_s)
            return lease, self._slices(wanted)

    def _slices(self, intervals: Mapping[LaneKey, tuple[int, int]]) -> dict[LaneKey, list[Slice]]:
        return {(table, source): list(self.tables[table].lane(source).slices(*span)) for (table, source), span in intervals.items()}

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

    # -- tables ------------------------------------------------------------------------------------------------------

    def table(self, name: str) -> MemoryTable:
        found = self.tables.get(name)
        if found is None:
            raise UnknownTable(table=name, known=", ".join(sorted(self.tables)) or "none")
        return found

    def free(self, table: MemoryTable) -> None:
        """Let rows go that are stored and that no query holds; the caller has the lock."""
        now_s = self.clock.monotonic_s()
        for lane in table.lanes.values():
            table.discount(lane.free(self.leases.row_freeable_max((table.name, lane.source), stored_id=lane.stored_id, now_s=now_s)))
