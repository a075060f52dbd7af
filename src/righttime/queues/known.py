"""Known appends: what became of those that clients gave an id, so that one that comes again is answered and not taken again.

In: ids of appends and their outcomes, from the records of the feed log.
Out: the outcome of an append that comes again.
Promise: pure. An append that was taken is known, or it is said that nobody knows any more; it is never taken for one that was not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from righttime.errors import AppendForgotten
from righttime.queues.declared import Appended


@dataclass(frozen=True, slots=True)
class AppendId:
    """A client's name for one append; `mark` is how many appends with a name had been taken when it was first sent, or some time before."""

    name: str
    mark: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an append, or a replay of dead letters, has done; or how many letters were discarded."""

    appended: Appended = field(default_factory=lambda: Appended({}, 0, 0))
    discarded: int = 0

    def record(self) -> list[Any]:
        """Return it as JSON can hold it."""
        return [dict(self.appended.numbers), self.appended.time_us, self.appended.rows, self.appended.rejected, self.discarded]

    @classmethod
    def from_record(cls, record: list[Any]) -> "Outcome":
        """Return what `record` returned."""
        return cls(Appended(*record[:4]), record[4])


class KnownAppends:
    """The last appends with a name, oldest first; the feed lock guards it."""

    def __init__(self, *, appends_max: int) -> None:
        self._appends_max = appends_max
        self._outcomes: dict[str, Outcome] = {}
        self.mark = 0  # how many there ever were

    def find(self, append_id: AppendId, streams: str) -> Outcome | None:
        """Return what became of an append, None if it was never taken; raise `AppendForgotten` where nobody can tell."""
        known = self._outcomes.get(append_id.name)
        if known is None and append_id.mark < self.mark - len(self._outcomes):
            raise AppendForgotten(stream=streams, reason=f"only the last {self._appends_max} appends are known (stream_appends_max), and more came since")
        if known is None and append_id.mark > self.mark:
            raise AppendForgotten(stream=streams, reason="the streams are in an earlier state than when it was first sent, such as that of a backup")
        return known

    def add(self, append_id: AppendId, outcome: Outcome) -> None:
        """Remember an append that is in the feed log, and forget the oldest where there are too many."""
        self._remember(append_id.name, outcome)
        self.mark += 1

    def _remember(self, name: str, outcome: Outcome) -> None:
        self._outcomes[name] = outcome
        while len(self._outcomes) > self._appends_max:
            del self._outcomes[next(iter(self._outcomes))]

    def state(self) -> dict[str, Any]:
        """Return everything, for the first record of a log file; nothing if there never was one."""
        return {"mark": self.mark, "outcomes": [[name, *outcome.record()] for name, outcome in self._outcomes.items()]} if self.mark else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._outcomes = {}
        for name, *record in state.get("outcomes", ()):
            self._remember(name, Outcome.from_record(record))
        self.mark = state.get("mark", 0)
