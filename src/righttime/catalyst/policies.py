"""Flush policies: when lazily committed rows move from their producer to the catalyst.

In: the load of the machine and the passing of time, through a probe.
Out: `should_flush()`, asked at every commit and at a steady interval while committed rows are unflushed.
Promise: a policy only says when to move; requests of queries, materialization and close move rows whatever it says.
"""

from datetime import timedelta
from typing import Protocol, runtime_checkable

from righttime.changes.durations import Duration, duration_us
from righttime.errors import BadPolicy


@runtime_checkable
class Policy(Protocol):
    """What a user writes to have a policy of their own: two methods."""

    def should_flush(self) -> bool:
        """Tell whether unflushed commits should be flushed now."""
        ...

    def flushed(self) -> None:
        """Be told that a flush happened, for whatever reason."""
        ...


class Probe(Protocol):
    """What the shipped policies look at."""

    def monotonic_s(self) -> float: ...

    def load(self) -> float:
        """Return the load of the machine, 1.0 when every core is busy."""
        ...


class Immediate:
    """Flush at every commit: rows are in the catalyst when commit returns. The default."""

    def should_flush(self) -> bool:
        return True

    def flushed(self) -> None:
        return None

    def __repr__(self) -> str:
        return "Immediate()"


class OnDemand:
    """Flush only when a query, a materialization or close asks for the rows."""

    def should_flush(self) -> bool:
        return False

    def flushed(self) -> None:
        return None

    def __repr__(self) -> str:
        return "OnDemand()"


class _Timed:
    """A policy that knows how long ago the last flush was; bound to a probe by the producer."""

    def __init__(self, every: Duration) -> None:
        self.every_s = duration_us(every, what="policy interval") / 1e6
        if self.every_s <= 0:
            raise BadPolicy(policy=every, reason="the interval must be longer than nothing")
        self._probe: Probe | None = None
        self._flushed_s = 0.0

    def started(self, probe: Probe) -> None:
        """Begin to measure time and load with `probe`."""
        self._probe = probe
        self._flushed_s = probe.monotonic_s()

    def should_flush(self) -> bool:
        return self._probe is not None and self._probe.monotonic_s() - self._flushed_s >= self.every_s

    def flushed(self) -> None:
        if self._probe is not None:
            self._flushed_s = self._probe.monotonic_s()


class Every(_Timed):
    """Flush when this long has passed since the last flush."""

    def __repr__(self) -> str:
        return f"Every({str(timedelta(seconds=self.every_s))!r})"


class LoadAware(_Timed):
    """Flush when the machine's load is below `load_max`, or when `every` has passed since the last flush."""

    def __init__(self, *, load_max: float = 0.7, every: Duration = "20s") -> None:
        super().__init__(every)
        if not load_max > 0:
            raise BadPolicy(policy=load_max, reason="load_max must be above 0")
        self.load_max = load_max

    def should_flush(self) -> bool:
        return (self._probe is not None and self._probe.load() < self.load_max) or super().should_flush()

    def __repr__(self) -> str:
        return f"LoadAware(load_max={self.load_max}, every={str(timedelta(seconds=self.every_s))!r})"


def start_policy(policy: Policy, probe: Probe) -> Policy:
    """Check that `policy` is one, bind a shipped one to the probe, and return it."""
    if isinstance(policy, type) or not isinstance(policy, Policy):
        raise BadPolicy(policy=policy, reason="it lacks should_flush() or flushed(), or is a class instead of an object")
    if isinstance(policy, _Timed):
        policy.started(probe)
    return policy
