"""A running flow, as the one who started it holds it.

In: a runner.
Out: what it does, and the end of it.
Promise: stopping loses nothing: what was not published is taken again when the flow runs again.
"""

from types import TracebackType

from righttime.errors.flows import FlowFailed
from righttime.flows.jobs import JobReport
from righttime.flows.manager import Flows
from righttime.flows.runner import FlowRunner


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

    def jobs(self) -> list[JobReport]:
        """Return the last jobs that were published, oldest first, with the seconds that each step took."""
        return self._runner.reports()

    def stop(self) -> None:
        """Stop after the drain under way."""
        self._flows.stop(self.name)

    def __enter__(self) -> "RunningFlow":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
