"""Maintainers: what the catalyst knows of a flow, the one source that writes its target tables.

In: changes of streams, cuts that queries want, jobs that are published.
Out: at which times the targets are exactly what the streams were, and what a query has to wait for.
Promise: a time is called exact only if every change up to it, and none after it, is in the targets at that time.

A job takes all changes up to its horizon and shows them at its horizon. Between its first change and its horizon the targets lag behind: no query may
be cut there.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from righttime.catalyst.links import Link
from righttime.changes.position import time_text
from righttime.errors.flows import FlowFailed
from righttime.errors.queries import FlowAsleep, FreshnessUnavailable

HOW_TO_TELL = "append to it, or tell with heartbeat() that nothing has happened"
_JOBS_MAX = 100_000  # published jobs whose times are remembered
_NOTED_MAX = 100_000  # changes that are not published, one by one


@dataclass(slots=True)
class Maintainer(Link):
    """One flow; the catalyst's lock guards it, `asked` wakes its runner.

    `backlog_us` is the time up to which there may be changes that were not noted one by one, none of them before `backlog_from_us`, `arrived_us` the time
    up to which every source has delivered (None: always up to now), `late_stream` the one that is behind, and `tolerance_us` the lag that queries put up
    with there. Commits to tables that are streams are noted as changes when they are made; `pulled_us` is up to when those streams have them (None: there
    are none).
    What is built anew is shown later than `shown_us`, up to when the state before it may have been.
    Up to `closed_us` it is settled where jobs end, and up to `insisted_us` somebody waits or has waited for them: other jobs are made ahead.
    `trouble` says why nothing will be delivered, `failure` is the error that the flow has stopped with, and
    `hindrance` says why a stream does not go on for the moment.
    Who is `nudged` looks around before it waits again. With `loose`, queries take what is there (near-real-time loading, the yardstick of the benchmarks).
    """

    tables: tuple[str, ...] = ()
    arrived_us: int | None = None
    late_stream: str = ""
    pulled_us: int | None = None
    horizon_us: int = 0
    shown_us: int = 0
    closed_us: int = 0
    insisted_us: int = 0
    tolerance_us: int = 0
    backlog_us: int = 0
    backlog_from_us: int = 0
    loose: bool = False
    cuts: list[int] = field(default_factory=list)
    trouble: str = ""
    failure: FlowFailed | None = None
    hindrance: str = ""
    nudged: bool = False
    _noted: list[int] = field(default_factory=list)
    _firsts: list[int] = field(default_factory=list)
    _horizons: list[int] = field(default_factory=list)
    _known_us: int = 0

    def change(self, time_us: int) -> None:
        """Note a commit to one of the streams, before anybody can read it; one to a table may be noted again when its stream has it."""
        place = bisect_left(self._noted, time_us)
        if self._noted[place : place + 1] == [time_us]:
            return
        self._noted.insert(place, time_us)
        if len(self._noted) > _NOTED_MAX:
            self.backlog_from_us, self.backlog_us = self.pending_us or 0, max(self.backlog_us, self._noted[-1])
            self._noted.clear()
        self.refresh()

    def arrive(self, time_us: int, stream: str = "") -> None:
        """Note up to which time every source has delivered, and whose stream is behind; such times only grow."""
        self.arrived_us, self.late_stream = max(self.arrived_us or 0, time_us), stream
        self.refresh()

    def has_arrived(self, time_us: int) -> bool:
        """Tell whether every stream has everything up to a time."""
        return all(mark_us is None or time_us <= mark_us for mark_us in (self.arrived_us, self.pulled_us))

    def is_delivered(self, time_us: int) -> bool:
        """Tell whether the sources have delivered everything up to a time; what is in tables is pulled when it is wanted."""
        return self.arrived_us is None or time_us <= self.arrived_us

    def cuts_due(self) -> list[int]:
        """Return the cuts at which jobs can end and are not closed yet. One that lies beyond what has been delivered keeps nobody from an earlier one."""
        return [cut_us for cut_us in self.cuts if self.closed_us < cut_us and self.is_delivered(cut_us)]

    @property
    def told(self) -> str:
        """Say how far the source that is behind has come."""
        return f"everything up to {time_text(self.arrived_us)}" if self.arrived_us else "nothing yet"

    def waits_for_source_s(self, time_us: int) -> float:
        """Return how long before a time the source ends that is farthest behind."""
        return 0.0 if self.arrived_us is None else max(time_us - self.arrived_us, 0) / 1e6

    @property
    def pending_us(self) -> int | None:
        """The oldest change that is not published; earlier than it really is once a part of a backlog is."""
        oldest = self._noted[:1]
        if self.horizon_us < self.backlog_us:
            oldest.append(max(self.backlog_from_us, self.horizon_us + 1))
        return min(oldest, default=None)

    def publish(self, first_us: int, horizon_us: int) -> None:
        """Note a published job: its first change, and its horizon."""
        self._firsts.append(first_us)
        self._horizons.append(horizon_us)
        if len(self._firsts) > _JOBS_MAX:
            half = _JOBS_MAX // 2
            self._known_us = self._horizons[half - 1]
            del self._firsts[:half], self._horizons[:half]
        self.advance(horizon_us)

    def advance(self, horizon_us: int) -> None:
        """Note that there is nothing more up to `horizon_us`."""
        self.horizon_us = max(self.horizon_us, horizon_us)
        self.closed_us = max(self.closed_us, self.horizon_us)
        del self._noted[: bisect_right(self._noted, self.horizon_us)]
        self.refresh()
        if self.cuts:
            # In their order, and after the horizon what is exact ends at one time: there may be many, of queries that wait for a source that stands still.
            exact_us = max(self.horizon_us, self.exact_before(self.cuts[-1]))
            self.cuts = self.cuts[bisect_right(self.cuts, exact_us) :]

    def refresh(self) -> None:
        """Bring what the rest of the catalyst reads of a link up to date: from when on something is missing in the tables.

        That is never what was shown already, though streams that are new to a flow may be behind it: they count from the state that is built with them.
        """
        missing = [time_us for time_us in (self.pending_us, None if self.arrived_us is None else self.arrived_us + 1) if time_us is not None]
        self.archived_from = dict.fromkeys(self.tables, max(min(missing), self.horizon_us + 1)) if missing else {}

    def exact(self, time_us: int) -> bool:
        """Tell whether the targets at `time_us` are what the streams were then."""
        return self.exact_before(time_us) == time_us

    def exact_before(self, time_us: int) -> int:
        """Return the newest exact time at or before `time_us`, -1 if none is known."""
        if self.loose:
            return time_us
        newest_us = min([time_us, *(missing_us - 1 for missing_us in self.archived_from.values())])
        place = bisect_right(self._firsts, newest_us) - 1
        if place >= 0 and newest_us < self._horizons[place]:
            newest_us = self._firsts[place] - 1
        return newest_us if newest_us >= self._known_us else -1

    def is_closed(self, time_us: int) -> bool:
        """Tell whether a job that is closed goes across a time, so that none can end there any more."""
        return time_us < self.closed_us and time_us not in self.cuts and not self.exact(time_us)

    def late(self, table: str, *, waited_s: float, stale_s: float, why: str) -> FreshnessUnavailable:
        """Return the error for a table that is not fresh enough: of a flow that nobody runs it says that waiting does not help."""
        if self.trouble:
            return FlowAsleep(table=table, source=self.source, flow=self.source.removeprefix("flow."), waited_s=waited_s, stale_s=stale_s, why=why)
        return FreshnessUnavailable(table=table, source=self.source, waited_s=waited_s, stale_s=stale_s, why=why)

    def nudge(self) -> None:
        """Have the runner look around, also if it is about to wait."""
        self.nudged = True
        self.asked.notify_all()

    def want(self, cut_us: int) -> None:
        """Ask for a job boundary at `cut_us`."""
        if cut_us not in self.cuts and not self.exact(cut_us):
            self.cuts.append(cut_us)
            self.cuts.sort()
            self.asked.notify_all()

    def insist(self, cut_us: int) -> None:
        """Ask for a job boundary at `cut_us` because somebody waits for it."""
        self.insisted_us = max(self.insisted_us, cut_us)
        self.want(cut_us)

    def forgo(self, cut_us: int) -> None:
        """Take back a cut for which nobody waits any more, unless it can be made: what was committed before it is to be loaded anyway."""
        if not self.is_delivered(cut_us) and cut_us > self.closed_us and cut_us in self.cuts:
            self.cuts.remove(cut_us)


def newest_exact(time_us: int, maintainers: Sequence[Maintainer]) -> int:
    """Return the newest time at or before `time_us` that is exact for all, -1 if there is none."""
    newest_us = time_us
    while newest_us >= 0:
        lower_us = min((flow.exact_before(newest_us) for flow in maintainers), default=newest_us)
        if lower_us == newest_us:
            return newest_us
        newest_us = lower_us
    return -1


def choose_cut(oldest_us: int, asked_us: int, maintainers: Sequence[Maintainer]) -> int:
    """Return where to cut for a query that came at `asked_us` and accepts anything back to `oldest_us`.

    A state that is there and fresh enough is shared; so is a cut that others wait for. Otherwise the cut is made at the query's own time, or where
    changes are late to arrive, at the newest time that has arrived or that the query insists on. Queries come in the order of their times, so this
    makes the fewest cuts that satisfy all of them.
    """
    shared_us = newest_exact(asked_us, maintainers)
    if shared_us >= oldest_us:
        return shared_us
    arrived = [flow.arrived_us for flow in maintainers if flow.arrived_us is not None]
    newest_us = min(asked_us, max(oldest_us, min(arrived))) if arrived else asked_us
    # What others insist on may lie beyond what has arrived: who is content with less does not wait with them.
    latest_us = asked_us if arrived and oldest_us > min(arrived) else newest_us
    common = [
        cut_us for cut_us in _wanted(maintainers) if oldest_us <= cut_us <= latest_us and all(cut_us in flow.cuts or flow.exact(cut_us) for flow in maintainers)
    ]
    if common:
        return common[-1]
    cut_us = max([newest_us, *(cut_us for flow in maintainers for cut_us in flow.cuts if cut_us <= min(asked_us, flow.closed_us))])
    # Where a flow's jobs are closed already, they end where they end.
    while closed := [flow.closed_us for flow in maintainers if flow.is_closed(cut_us)]:
        cut_us = max(closed)
    return cut_us


def _wanted(maintainers: Iterable[Maintainer]) -> list[int]:
    return sorted({cut_us for flow in maintainers for cut_us in flow.cuts})


@dataclass(slots=True, eq=False)
class Admission:
    """A query between its arrival and its begin: nothing of its tables may be stored from beyond its cut meanwhile. Once nobody is there any more for whom
    it waits, it is `given_up`."""

    tables: frozenset[str]
    cut_us: int | None = None
    given_up: bool = False
