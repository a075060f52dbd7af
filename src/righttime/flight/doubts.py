"""Doubts and debts: whether a commit whose answer never came is the one that is asked for now, and what a producer owes its session.

In: what a commit meant when it was sent, and what the producer means now.
Out: what one has and the other has not; what a new session must be given, and what it can no longer get.
Promise: within a transaction rows are only added, so as many rows are the same rows; whoever asks for more than has happened is told.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from righttime.catalyst.messages import Content
from righttime.errors import NotStored
from righttime.flight.letters import Letter

MEMORY, LOGGED, STORED = range(3)
"""How safe a commit is to be, least first."""

COMMITS = ("session.lazy", "session.commit", "session.durable")


@dataclass(frozen=True, slots=True)
class Meant:
    """All rows and operations of the transaction by table, staged or not, and how they are to be committed; `content` is what stays with the producer."""

    rows: Mapping[str, int]
    batch_id: str | None
    safety: int
    content: Mapping[str, Sequence[Content]] | None = field(default=None, repr=False)

    def lacks(self, asked: "Meant") -> str | None:
        """Say what a commit that meant this has not of what is asked for; None if it has all."""
        if self.rows != asked.rows:
            return "without what came into the transaction after it"
        if self.batch_id != asked.batch_id:
            return "under another batch id"
        if self.safety < asked.safety:
            return "and is less durable than what is asked for now"
        return None


def total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of rows by table, without tables that have none."""
    rows: Counter[str] = Counter()
    for part in parts:
        rows.update(part)
    return {table: count for table, count in rows.items() if count}


def counts(content: Mapping[str, Sequence[Content]]) -> dict[str, int]:
    """Return the rows and operations of a content by table."""
    return {table: sum(part.rows for part in parts) for table, parts in content.items()}


def commit_made(letter: Letter) -> int | None:
    """Return the number of the commit that a letter turned out to have made; None if it is no commit, or made none."""
    if letter.action not in COMMITS:
        return None
    if isinstance(letter.outcome, NotStored):
        return int(letter.outcome.context["number"])
    return None if letter.published is None else letter.published.commit.number


class Debts:
    """What is only between this producer and its session: commits that are archived here, and the open transaction as it was staged."""

    def __init__(self) -> None:
        self.archived: set[str] = set()
        self.stages: list[tuple[Callable[[], Any], Mapping[str, int]]] = []

    def at_stake(self) -> str | None:
        """Say what a forgotten session takes along; what is staged is kept here until its commit, to be staged again."""
        if not self.archived:
            return None
        return f"commits that were acknowledged and not flushed are lost (tables {', '.join(sorted(self.archived))})"

    def staged(self) -> list[Letter]:
        return [Letter("session.stage", write) for write, _ in self.stages]
