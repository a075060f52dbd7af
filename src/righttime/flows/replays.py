"""Dead letters that are tried again: who asks, and what came of it.

In: the ids of letters, from the thread of a user.
Out: the same to the thread that drains; from there, how many passed.
Promise: each request is taken by one drain, and answered when the job that it came with is published, or when the flow stops.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Replay:
    """One request; without `ids` all letters are tried. `passed` rows came through, `unknown` ids are of no letter."""

    ids: frozenset[str] | None
    passed: int = 0
    unknown: tuple[str, ...] = ()
    done: threading.Event = field(default_factory=threading.Event)


class Replays:
    """The requests of one flow; safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Replay] = []

    def ask(self, ids: Iterable[str] | None) -> Replay:
        """Have letters tried again by the next drain; what is no text is the id of none, as it looks."""
        made = Replay(None if ids is None else frozenset(map(str, [ids] if isinstance(ids, str) or not isinstance(ids, Iterable) else ids)))
        with self._lock:
            self._waiting.append(made)
        return made

    def is_waiting(self) -> bool:
        """Return whether a drain is wanted."""
        with self._lock:
            return bool(self._waiting)

    def take(self) -> Replay | None:
        """Return the oldest request, which is the caller's from now on."""
        with self._lock:
            return self._waiting.pop(0) if self._waiting else None

    def drop(self, one: Replay) -> None:
        """Forget a request that nobody waits for any more."""
        with self._lock:
            self._waiting = [other for other in self._waiting if other is not one]
