"""What flows through the reference engine: plain tuples with a sign and the number of their job.

In: changes of a source transaction.
Out: signed rows, bags of them, and the net effect of several changes.
Promise: pure, and simple enough to be seen to be right.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Literal, NamedTuple

Row = tuple[Any, ...]
Bag = Counter[Row]
Op = Literal["I", "D"]
Signed = tuple[Op, Row]


class Change(NamedTuple):
    """One change of a source row: an insert has no before, a delete no after."""

    before: Row | None
    after: Row | None


class Delta(NamedTuple):
    """A signed row on its way, with its job, and its task inside the job."""

    op: Op
    row: Row
    tid: int
    task: int = 1
    commit_us: int = 0


class EndOfTask(NamedTuple):
    """All rows of a task have passed."""

    tid: int
    task: int


def insert(*row: Any) -> Change:
    """Return the insert of a row."""
    return Change(None, row)


def delete(*row: Any) -> Change:
    """Return the delete of a row."""
    return Change(row, None)


def update(before: Row, after: Row) -> Change:
    """Return the update of a row."""
    return Change(before, after)


def signed(change: Change) -> list[Signed]:
    """Take a change apart: an update is a delete and an insert."""
    parts: list[Signed] = []
    if change.before is not None:
        parts.append(("D", change.before))
    if change.after is not None:
        parts.append(("I", change.after))
    return parts


def net_effect(changes: Iterable[Change], key: Callable[[Row], Hashable]) -> list[Change]:
    """Return for each key what its changes, in their order, amount to; keys that end as they began are left out (A15)."""
    net: dict[Hashable, Change] = {}
    for change in changes:
        row = change.before if change.before is not None else change.after
        assert row is not None
        first = net.get(key(row), change)
        net[key(row)] = Change(first.before, change.after)
    return [change for change in net.values() if change.before != change.after]


def weight(op: Op) -> int:
    """Return +1 for an insert and -1 for a delete."""
    return 1 if op == "I" else -1


def weights(rows: Iterable[Signed]) -> Bag:
    """Return the sum of the signs of each row, without zeros."""
    total: Bag = Counter()
    for op, row in rows:
        total[row] += weight(op)
    return without_zeros(total)


def without_zeros(bag: Bag) -> Bag:
    """Return the rows whose weight is not zero."""
    return Counter({row: count for row, count in bag.items() if count})


def applied(bag: Bag, rows: Iterable[Signed]) -> Bag:
    """Return a new bag with the signed rows applied."""
    new = Counter(bag)
    for op, row in rows:
        new[row] += weight(op)
    return without_zeros(new)


def listed(bag: Bag) -> list[Signed]:
    """Return a bag of weights as signed rows, deletes first."""
    removed: list[Signed] = [("D", row) for row, count in bag.items() for _ in range(-count)]
    added: list[Signed] = [("I", row) for row, count in bag.items() for _ in range(count)]
    return removed + added
