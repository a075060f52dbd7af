"""Dead letters that are tried again: who asks, and what came of it.

In: the ids of letters, from the thread of a user.
Out: the same to the thread that drains; from there, how many passed.
Promise: each request is taken by one drain, and answered when the job that it came with is published, or when the flow stops.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from righttime.pipeline.again import Again
from righttime.pipeline.failed import DEAD_LETTERS, DeadLetter


@dataclass(slots=True, eq=False)
class Replay:
    """One request; without `ids` all letters are tried. `passed` rows came through, `unknown` ids are of no letter."""

    ids: frozenset[str] | None
    passed: int = 0
    unknown: tuple[str, ...] = ()
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Retried:
    """Letters that are tried again: their rows by step, the letters as rows that go, and ids that no letter has."""

    rows: Again
    letters: Sequence[DeadLetter]
    unknown: tuple[str, ...]

    def with_them(self, failed: pa.Table) -> pa.Table:
        """Return the failed rows of their drain, and then these as rows that go: what fails again for the same reason has never gone."""
        return pa.concat_tables([failed, pa.Table.from_pylist([asdict(letter) for letter in self.letters], DEAD_LETTERS)])

    def passed(self, failed: pa.Table) -> int:
        """Return how many of them did not fail again."""
        tried: Counter[tuple[str, bytes | None]] = Counter()
        for letter in self.letters:
            tried[letter.step, letter.image] -= letter.weight
        for row in failed.to_pylist():
            if row["weight"] > 0 and (row["step"], row["image"]) in tried:
                tried[row["step"], row["image"]] = 0
        return sum(tried.values())


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
