"""Turns: the calls that wait for one snapshot, and whether anybody still waits behind them.

In: calls that ask for the same snapshot, because connections break; the time.
Out: how long all of their clients have been gone, and what ends their waits.
Promise: nothing ends as long as one of the calls has a client.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from righttime.flight.frames import still_there


def _goes_on() -> None:
    """Leave a wait alone that ends by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Asker:
    """A call that asks for a snapshot: whether its client is gone, and what ends its wait."""

    gone: Callable[[], bool] = still_there
    give_up: Callable[[], None] = _goes_on


@dataclass(slots=True)
class Turn:
    """The calls that ask for one snapshot, one after the other."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    askers: list[Asker] = field(default_factory=list)
    given_up: bool = False
    _alone_from_s: float | None = None

    @property
    def waiting(self) -> int:
        """How many calls there are."""
        return len(self.askers)

    def alone_s(self, now_s: float) -> float:
        """Return for how long nobody has been seen behind the calls; 0 as long as somebody is there."""
        if not all(asker.gone() for asker in self.askers):
            self._alone_from_s = None
            return 0.0
        if self._alone_from_s is None:
            self._alone_from_s = now_s
        return now_s - self._alone_from_s

    def end(self) -> list[Callable[[], None]]:
        """Keep nothing of what is being taken; return what ends the waits, to be called without a lock."""
        self.given_up = True
        return [asker.give_up for asker in self.askers]
