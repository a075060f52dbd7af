"""How the flows of a warehouse are, and what a query would wait for.

In: maintainers and runners of flows, streams and the tables that are streams.
Out: statuses and explanations, as values.
Promise: asks and starts nothing. What only a table has counts as what its stream has: it is brought there when it is needed.
"""

from collections.abc import Mapping, Sequence

from righttime.catalyst.maintainer import HOW_TO_TELL, Maintainer
from righttime.catalyst.shell import Catalyst
from righttime.flows.attention import Attention
from righttime.flows.explain import Explanation, FlowNeed, estimate_s
from righttime.flows.feed import FOREVER_US, Feed
from righttime.flows.jobs import FlowStatus
from righttime.flows.letters import letters_kept
from righttime.flows.runner import FlowRunner
from righttime.flows.taps import Taps


class Overview:
    """Looks at the flows of this process; safe to call from any thread."""

    def __init__(self, catalyst: Catalyst, feed: Feed, taps: Taps, attention: Attention, runners: Mapping[str, FlowRunner]) -> None:
        self._catalyst = catalyst
        self._feed = feed
        self._taps = taps
        self._attention = attention
        self._runners = runners

    def explain(self, tables: Sequence[str], *, freshness_us: int) -> Explanation:
        """Return what a query over `tables` would be answered on and wait for, if it came now."""
        catalyst = self._catalyst
        with catalyst.lock:
            asked_us = catalyst.authority.read_us()
            cut_us = catalyst.planned_cut(asked_us - freshness_us, tables, asked_us=asked_us)
            lazy = tuple(sorted({link.source for table, link in catalyst.lazy_lanes(tables) if link.archived_from[table] <= cut_us}))
            behind = [link for link in catalyst.flows_behind(tables) if not link.exact(cut_us)]
        needs = tuple(self._need(link, tables, cut_us) for link in sorted(behind, key=lambda each: each.source))
        return Explanation(tuple(tables), freshness_us / 1e6, cut_us, not behind, needs, lazy)

    def _need(self, link: Maintainer, tables: Sequence[str], cut_us: int) -> FlowNeed:
        streams = self._lacking(link, cut_us)
        runner = self._runners.get(link.source.removeprefix("flow."))
        rows = sum(streams.values())
        runs = runner is not None and runner.running
        rebuilding = _rebuilding(runner) if runner is not None and runs else ""
        return FlowNeed(
            flow=link.source.removeprefix("flow."),
            tables=tuple(name for name in tables if name in link.tables),
            streams=streams,
            jobs_queued=0 if runner is None else len(runner.queue()),
            rows=rows,
            # Drains of a few changes say nothing of one that takes all there ever were, nor of one that never comes.
            estimate_s=estimate_s(rows, runner.reports()) if runner is not None and runs and not rebuilding else None,
            waits_for_source_s=link.waits_for_source_s(cut_us),
            trouble=link.trouble or rebuilding,
        )

    def status(self) -> list[FlowStatus]:
        """Return how each flow is, running or not."""
        catalyst = self._catalyst
        with catalyst.lock:
            now_us = catalyst.authority.read_us()
            links = sorted({link.source: link for link in catalyst.maintained.values()}.items())
            letters = {source: letters_kept(source.removeprefix("flow."), catalyst.tables) for source, _ in links}
        return [self._status(link, self._runners.get(source.removeprefix("flow.")), now_us, letters[source]) for source, link in links]

    def _status(self, link: Maintainer, runner: FlowRunner | None, now_us: int, letters: int) -> FlowStatus:
        streams = self._attention.streams(link.source)
        firsts = (self._feed.first_after(streams, link.horizon_us), self._taps.first_unpulled(streams, link.horizon_us))
        pending_us = min((first_us for first_us in firsts if first_us is not None), default=now_us)
        return FlowStatus(
            name=link.source.removeprefix("flow."),
            running=runner is not None and runner.running,
            trouble=link.trouble,
            streams=streams,
            targets=link.tables,
            jobs_waiting=0 if runner is None else len(runner.queue()),
            rows_waiting=sum(self._lacking(link, FOREVER_US).values()),
            horizon_us=link.horizon_us,
            lag_s=max(now_us - pending_us, 0) / 1e6,
            jobs=tuple(runner.reports()) if runner is not None else (),
            hindrance=self._hindrance(link) if runner is not None and runner.running else "",
            dead_letters=letters,
        )

    def _hindrance(self, link: Maintainer) -> str:
        """Say what changes wait for that no run can load: a state shows all sources up to one time."""
        if link.hindrance or link.arrived_us is None:
            return link.hindrance
        held = sum(self._lacking(link, FOREVER_US).values()) - sum(self._lacking(link, link.arrived_us).values())
        if not held:
            return ""
        wait = "1 change waits" if held == 1 else f"{held:,} changes wait"
        return f"{wait} for its stream {link.late_stream!r}, which has told of {link.told}; {HOW_TO_TELL}"

    def _lacking(self, link: Maintainer, up_to_us: int) -> dict[str, int]:
        """Return the changes up to a time that are not published, by stream."""
        streams = self._attention.streams(link.source)
        here, unpulled = self._feed.rows(streams, link.horizon_us, up_to_us), self._taps.unpulled(streams, link.horizon_us, up_to_us)
        return {name: here.get(name, 0) + unpulled.get(name, 0) for name in streams if name in here or name in unpulled}


def _rebuilding(runner: FlowRunner) -> str:
    """Say how far targets that are built anew are; nothing if they are not."""
    if runner.await_rebuilt(0):
        return ""
    drain = runner.under_way()
    if drain is None or drain.parts is None:
        return "its targets are about to be built anew from all changes of its streams, and a fresh answer waits for that"
    done, parts = drain.parts
    return f"its targets are being built anew from {drain.rows:,} changes, {done} of {parts} parts are done, and a fresh answer waits for that"
