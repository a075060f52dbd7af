"""Cuts: the time at which a query is answered, and the wait until everything committed up to it is in the catalyst.

In: how fresh a query must be, and how long it waits.
Out: a time for all its tables; requests to lazy producers and wants of flows on the way there.
Promise: at the time that is returned every lane of the tables is complete, or the sources that are not are named with the time up to which they are.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from righttime.catalyst.accuracy import newest_consistent
from righttime.catalyst.links import Link
from righttime.catalyst.maintainer import HOW_TO_TELL, Admission, Maintainer, choose_cut, newest_exact
from righttime.catalyst.memory import CatalystMemory
from righttime.catalyst.messages import Accuracy
from righttime.changes.position import time_text
from righttime.errors import AsOfUnavailable, FlowFailed, FreshnessUnavailable, RightTimeError


@dataclass(frozen=True, slots=True)
class _Wait:
    """How long one query over some tables waits, and what it takes if that is not enough: nothing, or a cut down to `floor_us`."""

    tables: tuple[str, ...]
    admission: Admission
    started_s: float
    deadline_s: float
    floor_us: int
    accept_late: bool

    def table_of(self, flow: Maintainer) -> str:
        """Return the table for whose sake the query waits for a flow."""
        return next(name for name in self.tables if name in flow.tables)


class Cuts(CatalystMemory):
    """What a query asks of the catalyst before it looks; what is not public is called with the lock held."""

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
        admission = admission or Admission(frozenset(tables))
        with self.lock:
            self._await_unhalted(deadline_s, admission)
            flows, floor_us = self.flows_behind(tables), self.floor_us(tables)
            if exact and time_us < floor_us:
                self._refuse_as_of(time_us, tables)
            wanted_us = max(time_us, floor_us)
            wait = _Wait(tuple(tables), admission, self.clock.monotonic_s(), deadline_s, floor_us, accept_late)
            if flows:
                came_us = self.authority.read_us() if asked_us is None else asked_us
                if not exact:
                    wanted_us = self._accepted_us(flows, wanted_us, came_us, floor_us)
                wanted_us = self._admit(flows, admission, wanted_us, came_us, exact=exact)
            late = self._await_lazy(tables, wanted_us, wait)
            if late is not None:
                return self._late_with_flows(flows, late, wait) if flows else late
            if flows:
                return self._await_flows(flows, wanted_us, wait)
            if exact:
                return Accuracy(wanted_us, {})
            lanes = [self.tables[table].lane(link.source).times for table, link in self.lazy_lanes(tables)]
            return Accuracy(newest_consistent(wanted_us, lanes, otherwise_us=self.authority.read_us()), {})

    def planned_cut(self, time_us: int, tables: Sequence[str], *, asked_us: int) -> int:
        """Return where `ensure_accuracy` would cut a query that came at `asked_us` and is content with `time_us`; asks nobody for it."""
        with self.lock:
            flows, floor_us = self.flows_behind(tables), self.floor_us(tables)
            if not flows:
                return asked_us
            return _chosen(flows, self._accepted_us(flows, max(time_us, floor_us), asked_us, floor_us), asked_us)

    def flows_behind(self, tables: Sequence[str]) -> list[Maintainer]:
        """Return the flows that maintain these tables; the caller has the lock."""
        return list({flow.source: flow for name in tables if (flow := self.maintained.get(name)) is not None}.values())

    def floor_us(self, tables: Sequence[str]) -> int:
        """Return the oldest time at which these tables can be read: neither rows that are stored nor commits that are forgotten, of sources that have any
        in them, can be told apart by time any more; the caller has the lock."""
        return max([self._known_us(tables), *(self.table(name).stored_us for name in tables)])

    def _known_us(self, tables: Sequence[str]) -> int:
        sources = {source for name in tables for source in self.table(name).lanes}
        return max((self.head.sources[source].oldest_us for source in sources if source in self.head.sources), default=0)

    @contextmanager
    def admitted(self, tables: Sequence[str], admission: Admission | None = None) -> Iterator[Admission]:
        """Keep what is stored of these tables from running past a query that waits for its cut, as long as the block lasts; whoever has its admission can
        `give_up` the wait."""
        admission = admission or Admission(frozenset(tables))
        with self.lock:
            self.admissions.append(admission)
            self.space.notify_all()  # a drain that lets queries run first may begin when enough wait
        try:
            yield admission
        finally:
            with self.lock:
                self.admissions.remove(admission)
                self._forgo(admission)

    def _forgo(self, gone: Admission) -> None:
        """Let go of the cut of a query that has begun or given up, if no other waits for it: a source that stands still must not make them pile up."""
        cut_us = gone.cut_us
        if cut_us is None or any(other.cut_us == cut_us for other in self.admissions):
            return
        for flow in self.flows_behind(sorted(gone.tables)):
            flow.forgo(cut_us)

    def _refuse_as_of(self, time_us: int, tables: Sequence[str]) -> None:
        newest = max((self.tables[name] for name in tables), key=lambda table: table.stored_us)
        stored = newest.stored_us > time_us
        raise AsOfUnavailable(
            asked=time_text(time_us),
            table=newest.name,
            reason="rows committed later are stored, and stored rows carry no commit time" if stored else "commits that far back are not known one by one",
            earliest=time_text(self.floor_us(tables)),
        )

    # -- lazy producers ----------------------------------------------------------------------------------------------

    def _await_lazy(self, tables: Sequence[str], wanted_us: int, wait: _Wait) -> Accuracy | None:
        """Ask lazy producers and wait until none is behind; return a late cut if one owes rows and the query takes it, None if nothing is owed."""
        while True:
            behind = [(table, link) for table, link in self.lazy_lanes(tables) if self.tables[table].lane(link.source).times.newest_us < wanted_us]
            if not behind:
                return None
            now_s = self.clock.monotonic_s()
            # A producer whose oldest unflushed commit is younger owes nothing, whether it answers or not.
            owing = [(table, link) for table, link in behind if link.archived_from[table] <= wanted_us]
            silent = [pair for pair in behind if now_s - pair[1].alive_s > self._settings.producer_lease_s]
            dead = next((pair for pair in owing if pair in silent), None)
            if dead is not None or now_s >= wait.deadline_s or len(silent) == len(behind):
                return self._late(owing, wanted_us, wait, tables=tables, dead=dead) if owing else None
            for table, link in behind:
                link.request(table, wanted_us)
            lapses_s = min(link.alive_s for table, link in behind if (table, link) not in silent) + self._settings.producer_lease_s - now_s
            self._await_arrivals(max(min(wait.deadline_s - now_s, lapses_s + 0.001), 0.001), wait.admission)

    def lazy_lanes(self, tables: Sequence[str]) -> list[tuple[str, Link]]:
        """Lanes whose producer holds committed rows back; all others are complete up to now."""
        return [(table, link) for link in self.links.values() for table in tables if table in link.archived_from and not isinstance(link, Maintainer)]

    def _late(self, behind: list[tuple[str, Link]], wanted_us: int, wait: _Wait, *, tables: Sequence[str], dead: tuple[str, Link] | None) -> Accuracy:
        """Return the cut without what these producers owe, or raise `FreshnessUnavailable`."""
        # Everything before the oldest commit that a producer still holds back is here.
        late = {link.source: min(mine.archived_from[table] for table, mine in behind if mine is link) - 1 for _, link in behind}
        torn = [source for source, newest_us in late.items() if any(source in t.lanes and t.lanes[source].stored_us > newest_us for t in self.tables.values())]
        torn += [source for source, newest_us in late.items() if self.head.source(source).oldest_us > newest_us]
        if wait.accept_late and any(self.tables[name].has_operations for name in tables):
            # An operation may have to reach a row that is held back: where there are any, all sources are cut at the same, older time.
            wanted_us = min(late.values())
            torn += [source for source in late if wanted_us < wait.floor_us]
        if wait.accept_late and not torn:
            return Accuracy(wanted_us, late)
        table, link = dead or behind[0]
        raise FreshnessUnavailable(
            table=table,
            source=link.source,
            waited_s=self.clock.monotonic_s() - wait.started_s,
            stale_s=(self.authority.read_us() - link.archived_from.get(table, wanted_us)) / 1e6,
            why="its producer no longer answers" if dead else "its producer has not delivered yet",
        )

    # -- flows -------------------------------------------------------------------------------------------------------

    def _admit(self, flows: Sequence[Maintainer], admission: Admission, oldest_us: int, asked_us: int, *, exact: bool) -> int:
        """Choose the cut of a query over flows' targets and ask them for it; the caller has the lock."""
        if admission.cut_us is None or admission.cut_us < oldest_us:
            admission.cut_us = oldest_us if exact else _chosen(flows, oldest_us, asked_us)
        for flow in flows:
            if not flow.trouble:  # nobody would make the job, nor ever let go of the cut
                flow.insist(admission.cut_us)
        self.space.notify_all()  # a drain that nobody asked for is held back no longer
        return admission.cut_us

    def _accepted_us(self, flows: Sequence[Maintainer], wanted_us: int, came_us: int, floor_us: int) -> int:
        """Return the oldest time that will do for a query over flows' targets."""
        return max(min(wanted_us, self._tolerated_us(flows, came_us)), floor_us)

    def _tolerated_us(self, flows: Sequence[Maintainer], came_us: int) -> int:
        """Return back to when a query puts up with changes that have not arrived; those that have are never left out for it."""
        arrived = [flow.arrived_us for flow in flows if flow.arrived_us is not None]
        # A flow whose changes are all here at once has nothing to put up with, and makes nobody stricter.
        tolerance_us = min((flow.tolerance_us for flow in flows if flow.arrived_us is not None), default=0)
        return max(came_us - tolerance_us, min([came_us, *arrived]))

    def _await_flows(self, flows: Sequence[Maintainer], cut_us: int, wait: _Wait) -> Accuracy:
        """Wait until all flows have published what a cut needs."""
        while True:
            behind = [flow for flow in flows if not flow.exact(cut_us)]
            if not behind:
                return Accuracy(cut_us, {})
            now_s = self.clock.monotonic_s()
            stuck = next((flow for flow in behind if flow.trouble), None)  # a runner that ends, however it ends, says so
            blurred = next((flow for flow in behind if cut_us <= flow.horizon_us), None)
            if blurred is not None:
                self._refuse_blurred(blurred, cut_us, wait)
            if stuck is None and now_s < wait.deadline_s:
                self._await_arrivals(max(wait.deadline_s - now_s, 0.001), wait.admission)
                continue
            late_us = newest_exact(cut_us, flows)
            if wait.accept_late and late_us >= wait.floor_us:
                return Accuracy(late_us, {flow.source: late_us for flow in behind})
            raise self._flow_late(stuck or behind[0], cut_us, wait)

    def _late_with_flows(self, flows: Sequence[Maintainer], late: Accuracy, wait: _Wait) -> Accuracy:
        """Return a late answer's cut where flows have targets in it, too: one time for all, at which those are exact as they are."""
        cut_us = newest_exact(late.cut_us, flows)
        if cut_us < wait.floor_us:
            raise self._flow_late(flows[0], late.cut_us, wait)
        sources = {source: min(time_us, cut_us) for source, time_us in late.late.items()}
        return Accuracy(cut_us, sources | {flow.source: cut_us for flow in flows if cut_us < late.cut_us})

    def _flow_late(self, flow: Maintainer, cut_us: int, wait: _Wait) -> RightTimeError:
        if flow.failure is not None:
            # Waiting or asking again does not help. An error of the query's own: each has its traceback.
            return FlowFailed(**flow.failure.context)
        newest_us = max(flow.exact_before(cut_us), flow.horizon_us)
        waited_s, stale_s, why = self.clock.monotonic_s() - wait.started_s, self.stale_s(newest_us), _why_late(flow, cut_us)
        return flow.late(wait.table_of(flow), waited_s=waited_s, stale_s=stale_s, why=why)

    def stale_s(self, newest_us: int) -> float:
        """Return how old a state is. One that has loaded nothing yet is as stale as it has been possible to ask for it."""
        return max(self.authority.read_us() - (newest_us if newest_us > 0 else self._opened_us), 0) / 1e6

    def _refuse_blurred(self, flow: Maintainer, cut_us: int, wait: _Wait) -> None:
        raise AsOfUnavailable(
            asked=time_text(cut_us),
            table=wait.table_of(flow),
            reason="the flow that maintains it took changes before and after that time in one job",
            earliest=time_text(flow.horizon_us),
        )


def _chosen(flows: Sequence[Maintainer], oldest_us: int, asked_us: int) -> int:
    # A job that is closed cannot be parted again, so a query comes after it.
    return choose_cut(oldest_us, max([asked_us, oldest_us, *(flow.closed_us for flow in flows)]), flows)


def _why_late(flow: Maintainer, cut_us: int) -> str:
    """Say what a query waits for: somebody to run the flow, its sources, or just a job."""
    reasons = [flow.trouble] if flow.trouble else []
    if flow.arrived_us is not None and flow.arrived_us < cut_us:
        short = f", {flow.waits_for_source_s(cut_us):.3f} s short of what the query needs" if flow.arrived_us else ""
        reasons.append(f"its stream {flow.late_stream!r} has told of {flow.told}{short}; {HOW_TO_TELL}")
    return "; ".join(reasons) or flow.hindrance or "a job with these changes is being computed"
