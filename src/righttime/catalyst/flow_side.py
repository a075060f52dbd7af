"""The catalyst's side of flows: their links, the cuts that they owe to queries, and the jobs that they publish.

In: targets, jobs and horizons of flows.
Out: rows and operations in the lanes of the targets; cuts at which jobs have to end.
Promise: a job becomes visible in all its targets at once, at its horizon; a target has one writer, its flow.
"""

from collections.abc import Mapping, Sequence
from threading import Condition

from righttime.catalyst.maintainer import Maintainer
from righttime.catalyst.memory import CatalystMemory
from righttime.catalyst.messages import Published
from righttime.catalyst.table import Rows
from righttime.changes.operations import Operations
from righttime.errors.flows import TableMaintained


class FlowSide(CatalystMemory):
    """What the runners of flows ask of the catalyst."""

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
            for name in set(tables) - set(found.tables):
                memory = self.tables.get(name)  # a flow may have been about to make it when its process died
                if memory is not None and not memory.rows_stored and not memory.rows_unstored:
                    # What others did to it is over, but jobs of a source that lags may be shown at times before that: all is settled anew, in its order.
                    memory.settle_anew(self.row_ids.last)
            for table in found.tables:
                self.maintained.pop(table, None)
            found.tables = tuple(tables)
            self.maintained.update(dict.fromkeys(tables, found))
            found.refresh()
            return found

    def publish_job(self, link: Maintainer, content: Mapping[str, Sequence[Rows | Operations]], *, first_us: int, horizon_us: int) -> Published:
        """Show what a job made, in all targets, at its horizon."""
        with self.lock:
            assert horizon_us > self.head.source(link.source).last.time_us, "jobs are published in order, by one runner"
            assert content.keys() <= set(link.tables), "a flow writes its own targets only"
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
            if not link.nudged and not link.cuts_due() and timeout_s > 0:
                link.asked.wait(timeout=timeout_s)
            link.nudged = False
            cuts = link.cuts_due()
            link.closed_us = max([link.closed_us, *cuts])
            return cuts

    def close_job(self, link: Maintainer, *, anew: bool = False) -> list[int]:
        """Settle that a job ends now, though no query asked for it; queries that come from here on may share it. Returns all cuts up to then, it last.

        A query may have come since the runner looked for cuts: its cut is settled here, too, or the job would go across it.
        A job that builds the targets `anew` ends after the last one in any case, and after all that was read of them: it has to wait until its streams have
        come so far.
        """
        with self.lock:
            now_us = self.authority.read_us()
            least_us = max(self.head.source(link.source).last.time_us, link.shown_us) + 1 if anew else 0
            after_us = max(link.closed_us, least_us - 1)
            here_us = min(mark_us for mark_us in (now_us, link.arrived_us, link.pulled_us) if mark_us is not None)
            link.closed_us = max(link.closed_us, here_us, least_us)
            link.want(link.closed_us)
            return [*(cut_us for cut_us in link.cuts if after_us < cut_us < link.closed_us), link.closed_us]
