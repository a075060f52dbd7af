"""An independent checker of what was committed and begun, in which order.

In: a log of actions as they happened, or the entries of a schedule.
Out: the violations in words; none means that the order was right.
Promise: knows nothing of the scheduler that it checks.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Committed(NamedTuple):
    """Job `tid` has committed."""

    tid: int


class Begun(NamedTuple):
    """A query for the state of job `tid` has begun: on the newest state, or pinned to the state of `pinned`."""

    query: str
    tid: int
    pinned: int | None = None


Log = Sequence[Committed | Begun]


def violations(log: Log, *, first: int = 0) -> list[str]:
    """Return what is wrong: commits in the order of the jobs without gap, and c(i) < b(i) < c(i + 1) or pinned to i.

    `first` is the job whose state was there at the beginning.
    """
    newest, begun, wrong = first, set[str](), []
    for place, action in enumerate(log):
        if isinstance(action, Committed):
            if action.tid != newest + 1:
                wrong.append(f"{place}: job {action.tid} committed after job {newest}")
            newest = action.tid
            continue
        if action.query in begun:
            wrong.append(f"{place}: query {action.query} began twice")
        begun.add(action.query)
        seen = newest if action.pinned is None else action.pinned
        if seen != action.tid or newest < action.tid:
            wrong.append(f"{place}: query {action.query} belongs to job {action.tid} and began on {seen} when {newest} was the newest")
    return wrong


def misplaced(elements: Iterable[Any]) -> list[str]:
    """Return what is wrong with a schedule: one open element, at its end; jobs in order; each query right behind its job and its fellows."""
    wrong, newest, last = [], None, None
    for entry in elements:
        if last is not None and last.state == "open":
            wrong.append(f"job {last.tid} is open and not last")
        if entry.kind == "C" and newest is not None and entry.tid != newest + 1:
            wrong.append(f"job {entry.tid} stands behind job {newest}")
        if entry.kind == "B" and last is not None and last.tid != entry.tid:
            wrong.append(f"query {entry.query} of job {entry.tid} stands behind job {last.tid}")
        newest, last = (entry.tid if entry.kind == "C" else newest), entry
    if last is None or last.state != "open":
        wrong.append("the last element is not open")
    return wrong
