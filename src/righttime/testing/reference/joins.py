"""The incremental join: the papers' rule, and three exact ones.

In: the changes of one job (or of many) on both sides, and the states before.
Out: the changes of the joined rows.
Promise: the exact forms agree with the join of the states after every job; the papers' rule does so only if all changes of a job have the same sign.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from righttime.testing.reference.rows import Bag, Op, Row, Signed, applied, weights, without_zeros


@dataclass(frozen=True)
class On:
    """The keys of both sides, and the row that a pair becomes."""

    left: Callable[[Row], Hashable]
    right: Callable[[Row], Hashable]
    pair: Callable[[Row, Row], Row]

    def pairs(self, left: Iterable[Row], right: Iterable[Row]) -> list[tuple[Row, Row]]:
        """Return all pairs with equal keys; a key of None has no partner."""
        by_key: dict[Hashable, list[Row]] = defaultdict(list)
        for row in right:
            by_key[self.right(row)].append(row)
        return [(row, other) for row in left if self.left(row) is not None for other in by_key.get(self.left(row), ())]


def join(left: Bag, right: Bag, on: On) -> Bag:
    """Return the join of two bags."""
    total: Bag = Counter()
    for row, other in on.pairs(left, right):
        total[on.pair(row, other)] += left[row] * right[other]
    return without_zeros(total)


def papers_rule(d_left: Sequence[Signed], d_right: Sequence[Signed], left: Bag, right: Bag, on: On) -> set[Signed]:
    """Return dR⋈S ∪ R⋈dS ∪ dR⋈dS on equal signs, without duplicates (A12). Wrong for jobs with both signs."""
    found: set[Signed] = set()
    for op in ("I", "D"):
        rows, others = [row for sign, row in d_left if sign == op], [row for sign, row in d_right if sign == op]
        for one, other in ((rows, right), (left, others), (rows, others)):
            found |= {(op, on.pair(*pair)) for pair in on.pairs(one, other)}
    return found


def by_sign(d_left: Iterable[Signed], d_right: Iterable[Signed], left: Bag, right: Bag, on: On) -> Bag:
    """Return the changes of the join as weights: dR⋈S + R⋈dS + dR⋈dS, weights multiplied (A13.1). Right for bags."""
    more_left, more_right = weights(d_left), weights(d_right)
    total: Bag = Counter()
    for one, other in ((more_left, right), (left, more_right), (more_left, more_right)):
        for row, count in join(one, other, on).items():
            total[row] += count
    return without_zeros(total)


def by_new_and_old(d_left: Sequence[Signed], d_right: Sequence[Signed], left: Bag, right: Bag, on: On) -> Bag:
    """Return the same for sets: inserts meet the new states, deletes the old ones (A13.2)."""
    new_left, new_right = applied(left, d_left), applied(right, d_right)
    inserted = _meeting("I", d_left, d_right, new_left, new_right, on)
    deleted = _meeting("D", d_left, d_right, left, right, on)
    return weights([("D", row) for row in deleted] + [("I", row) for row in inserted])


def _meeting(op: Op, d_left: Iterable[Signed], d_right: Iterable[Signed], left: Bag, right: Bag, on: On) -> set[Row]:
    rows, others = [row for sign, row in d_left if sign == op], [row for sign, row in d_right if sign == op]
    return {on.pair(*pair) for pair in (*on.pairs(rows, right), *on.pairs(left, others))}


def by_lifetimes(d_left: Sequence[Sequence[Signed]], d_right: Sequence[Sequence[Signed]], left: Bag, right: Bag, on: On) -> list[Bag]:
    """Return the changes of many jobs at once: a pair lives while both its rows do (A13.3). For sets; element i is job i + 1."""
    jobs: list[Bag] = [Counter() for _ in d_left]
    rows, others = _lifetimes(left, d_left), _lifetimes(right, d_right)
    for row, other in on.pairs(rows, others):
        for since, until in rows[row]:
            for other_since, other_until in others[other]:
                begin, end = max(since, other_since), min(until, other_until)
                if begin < end:
                    _mark(jobs, begin, on.pair(row, other), 1)
                    _mark(jobs, end, on.pair(row, other), -1)
    return [without_zeros(job) for job in jobs]


def _lifetimes(initial: Bag, jobs: Sequence[Sequence[Signed]]) -> dict[Row, list[tuple[int, float]]]:
    """Return for each row the intervals [from, to) of jobs in which it lives; 0 is the state before the first job."""
    lives: dict[Row, list[tuple[int, float]]] = {row: [(0, float("inf"))] for row in initial}
    for number, job in enumerate(jobs, start=1):
        for row, count in weights(job).items():
            if count > 0:
                lives.setdefault(row, []).append((number, float("inf")))
            else:
                since, _ = lives[row].pop()
                lives[row].append((since, number))
    return lives


def _mark(jobs: list[Bag], number: float, row: Any, count: int) -> None:
    if 1 <= number <= len(jobs):
        jobs[int(number) - 1][row] += count
