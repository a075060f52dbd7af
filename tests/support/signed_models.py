"""The operators of a flow in plain Python, on whole multisets: too simple to be wrong.

In: multisets as counters of rows.
Out: what the operator gives on them.
Promise: nothing here knows of changes, jobs or state.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

Row = tuple[Any, ...]
Set = Counter[Row]


def joined(left: Set, right: Set, *, on: Sequence[tuple[int, int]], take: Sequence[int]) -> Set:
    """Return all pairs with equal keys; null equals nothing."""
    out: Set = Counter()
    for one, n in left.items():
        for other, m in right.items():
            if all(one[a] is not None and one[a] == other[b] for a, b in on):
                out[(*one, *(other[place] for place in take))] += n * m
    return out


def left_joined(left: Set, right: Set, *, on: Sequence[tuple[int, int]], take: Sequence[int]) -> Set:
    """Return all pairs, and left rows without counterpart with nulls."""
    out: Set = Counter()
    for one, n in left.items():
        pairs = joined(Counter({one: n}), right, on=on, take=take)
        out += pairs or Counter({(*one, *(None for _ in take)): n})
    return out


def distinct(rows: Set) -> Set:
    """Return each row once."""
    return Counter({row: 1 for row, n in rows.items() if n > 0})


def grouped(rows: Set, *, by: Sequence[int], measures: Sequence[Callable[[list[Row]], Any]]) -> Set:
    """Return one row for each group: its key and the measures over its rows, each as often as it is there."""
    groups: dict[Row, list[Row]] = {}
    for row, n in rows.items():
        groups.setdefault(tuple(row[place] for place in by), []).extend([row] * n)
    return Counter({(*key, *(measure(members) for measure in measures)): 1 for key, members in groups.items() if members})


def count_all(rows: list[Row]) -> int:
    """Return `count(*)`."""
    return len(rows)


def count(place: int) -> Callable[[list[Row]], int]:
    """Return `count(column)`."""
    return lambda rows: len(_values(rows, place))


def count_distinct(place: int) -> Callable[[list[Row]], int]:
    """Return `count(distinct column)`."""
    return lambda rows: len(set(_values(rows, place)))


def total(place: int) -> Callable[[list[Row]], Any]:
    """Return `sum(column)`; NaN is written as text in rows."""
    return lambda rows: _sum(_values(rows, place)) if _values(rows, place) else None


def least(place: int) -> Callable[[list[Row]], Any]:
    """Return `min(column)`: NaN is the greatest value."""
    return lambda rows: min(_values(rows, place), key=_order, default=None)


def greatest(place: int) -> Callable[[list[Row]], Any]:
    """Return `max(column)`."""
    return lambda rows: max(_values(rows, place), key=_order, default=None)


def mean(place: int) -> Callable[[list[Row]], Any]:
    """Return `avg(column)` of integers and floats, as float."""
    return lambda rows: _divided(_sum(_values(rows, place)), len(_values(rows, place))) if _values(rows, place) else None


def decimal_mean(place: int, scale: int) -> Callable[[list[Row]], Any]:
    """Return `avg(column)` of decimals, rounded half up."""

    def of(rows: list[Row]) -> Any:
        values = _values(rows, place)
        return (sum(values) / Decimal(len(values))).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP) if values else None

    return of


def _values(rows: list[Row], place: int) -> list[Any]:
    return [row[place] for row in rows if row[place] is not None]


def _sum(values: list[Any]) -> Any:
    if not any(isinstance(value, float | str) for value in values):
        return sum(values)
    if "NaN" in values or (math.inf in values and -math.inf in values):
        return "NaN"
    infinite = [value for value in values if math.isinf(value)]
    return infinite[0] if infinite else float(f"{math.fsum(values):.12g}") + 0.0


def _divided(value: Any, by: int) -> Any:
    return value if isinstance(value, str) else float(f"{value / by:.12g}") + 0.0


def _order(value: Any) -> tuple[bool, Any]:
    return (True, 0) if value == "NaN" else (False, value)
