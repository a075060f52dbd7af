"""Random schedules of the chain: who finishes when, and how long after its permission an owner acts.

In: a seed and the number of queries.
Out: the log of what happened, and what was wrong with the schedule on the way.
Promise: the same seed gives the same log; no thread and no clock takes part.
"""

from random import Random

from righttime.pipeline.chain import Begin, Chain, Commit
from righttime.testing.reference.checker import Begun, Committed, misplaced


class RandomRun:
    """Queries and background jobs arrive, sinks complete and owners act, in an order that the seed chooses."""

    def __init__(self, seed: int, *, acknowledge: bool = True) -> None:
        """Without `acknowledge` whoever may act is taken to have acted."""
        self._dice, self._acknowledge = Random(seed), acknowledge
        self.chain = Chain(strict=True)
        self.log: list[Committed | Begun] = []
        self.wrong: list[str] = []
        self._closed: list[int] = []  # jobs whose sink has not completed
        self._permitted: list[Commit | Begin] = []  # owners that have not acted
        self._now = 0

    def run(self, queries: int) -> list[Committed | Begun]:
        """Let all queries arrive and begin; return the log."""
        left = queries
        while left or self._closed or self._permitted or self.chain.waiting():
            chosen = self._dice.choice(self._possible(left))
            if chosen == "arrive":
                left -= self._arrive(f"q{left}")
                self.wrong += misplaced(self.chain.elements())
            elif chosen == "complete":
                self.chain.complete(self._closed.pop(self._dice.randrange(len(self._closed))))
            elif chosen == "act":
                self._act(self._permitted.pop(self._dice.randrange(len(self._permitted))))
            self._dispatch()
        return self.log

    def _possible(self, left: int) -> list[str]:
        possible = {"arrive": left, "complete": self._closed, "act": self._permitted}
        return [what for what, there in possible.items() if there]

    def _arrive(self, query: str) -> int:
        """Let a query arrive, or cut a job in the background; return the number of queries that arrived."""
        self._now += 10
        opened = self.chain.open_tid
        changed_us = self._now - 5 if self._dice.random() < 0.8 else None
        background = self._dice.random() < 0.2
        if background:
            self.chain.cut(self._now, "background")
        else:
            self.chain.admit(query, arrived_us=self._now, bound_us=self._dice.choice([0, 0, 15]), watermark_us=self._now, first_open_us=changed_us)
        if self.chain.open_tid != opened:
            self._closed.append(opened)
        return 0 if background else 1

    def _dispatch(self) -> None:
        while (action := self.chain.next_action()) is not None:
            self._permitted.append(action)
            if not self._acknowledge:
                self._note_done(action)

    def _act(self, action: Commit | Begin) -> None:
        self.log.append(Committed(action.tid) if isinstance(action, Commit) else Begun(action.query, action.tid))
        if self._acknowledge:
            self._note_done(action)

    def _note_done(self, action: Commit | Begin) -> None:
        if isinstance(action, Commit):
            self.chain.committed(action.tid)
        else:
            self.chain.begun(action.query)
