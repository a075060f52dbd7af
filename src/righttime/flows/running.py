"""A running flow, as the one who started it holds it.

In: a runner.
Out: what it does, and the end of it.
Promise: stopping loses nothing: what was not published is taken again when the flow runs again.
"""

from collections.abc import Iterable
from types import TracebackType

from righttime.changes.durations import Duration, duration_us
from righttime.errors.flows import FlowFailed
from righttime.flows.jobs import JobReport, UnderWay
from righttime.flows.manager import Flows
from righttime.flows.runner import FlowRunner

_WAIT_S = 7 * 24 * 3600.0  # a load takes as long as it takes; a flow that fails says so at once


class RunningFlow:
    """A flow that is kept up; use it in a `with` block, or stop it."""

    def __init__(self, flows: Flows, runner: FlowRunner) -> None:
        self._flows = flows
        self._runner = runner
        self.name = runner.link.source.removeprefix("flow.")

    @property
    def failure(self) -> FlowFailed | None:
        """Why the flow has stopped by itself, None if it has not."""
        return self._runner.failure

    @property
    def running(self) -> bool:
        """Whether the flow is at work."""
        return self._runner.running

    @property
    def _rebuilding(self) -> bool:
        """Whether its targets are built anew and still are what they were before."""
        return not self._runner.await_rebuilt(0)

    def jobs(self) -> list[JobReport]:
        """Return the last jobs that were published, oldest first, with the seconds that each step took."""
        return self._runner.reports()

    def _under_way(self) -> UnderWay | None:
        """Return what is being computed, None if nothing is."""
        return self._runner.under_way()

    def wait(self, *, timeout: Duration | None = None) -> None:
        """Return when the targets have all changes that had arrived when this was called; targets that are built anew are there, too.

        Raises `FlowFailed` if the flow stops by itself, `FreshnessUnavailable` if it has not got there by then; without a time-out, waits as long as it takes.
        """
        self._flows.bring_up(self._runner, wait_s=_WAIT_S if timeout is None else duration_us(timeout, what="timeout") / 1e6)

    def replay(self, ids: Iterable[str] | None = None, *, timeout: Duration | None = None) -> int:
        """Try steps again on the rows that they could not take, all or those of some letters (column `id`), and return how many passed.

        They pass in the next job, which is published when this returns; what fails again stays, with its new reason. Letters of look-ups and of targets are
        not tried: they go by themselves when what they lack has come. Raises `UnknownFlowLetter`, `FlowFailed` if the flow stops, and `ReplayUnfinished`
        if it is not done by then: without a time-out only if a source stands still for as long as a query would wait for it (`wait_s`), which it names.
        """
        wait_s = None if timeout is None else duration_us(timeout, what="timeout") / 1e6
        still_s = self._runner.patience_s if wait_s is None else wait_s
        return self._runner.replay(ids, wait_s=_WAIT_S if wait_s is None else wait_s, still_s=still_s)

    def stop(self) -> None:
        """Stop after the drain under way; if the flow was run again since, that run goes on."""
        self._flows.stop(self.name, self._runner)

    def __enter__(self) -> "RunningFlow":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
