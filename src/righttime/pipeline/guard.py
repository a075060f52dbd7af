"""What stands between the steps of a plan: nothing in ordinary drains, a look at each row in careful ones.

In: what a step is given, and what it makes of it.
Out: what goes on to the next step.
Promise: a guard changes nothing about rows that do not fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from righttime.pipeline.nodes import Node, Target
from righttime.pipeline.operators.query import Frame
from righttime.pipeline.operators.signed import Signed

RowStep = Callable[[Signed], Signed]


class Guard(Protocol):
    """Stands between the steps of a plan. The plain one lets everything pass; the careful one looks at each row."""

    def rows(self, step: str, node: Node | Target, given: Signed, make: RowStep) -> Signed | None:
        """Return what a step makes of rows, each for itself."""
        ...

    def settled(self, step: str, node: Node | Target, made: Signed | None) -> Signed | None:
        """Return what a step with state has made."""
        ...

    def lines(self, declared: Node | Target, made: Frame) -> None:
        """See the lines of a table; `declared` is what is to blame if they fail."""
        ...


class Trusting:
    """The guard of ordinary drains: no row is expected to fail."""

    def rows(self, step: str, node: Node | Target, given: Signed, make: RowStep) -> Signed | None:
        """Let the step do its work."""
        return make(given)

    def settled(self, step: str, node: Node | Target, made: Signed | None) -> Signed | None:
        """Hand on what was made."""
        return made

    def lines(self, declared: Node | Target, made: Frame) -> None:
        """Do not look."""
