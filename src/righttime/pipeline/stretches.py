"""Stretches of values: where the values of a column lie, with the widest gaps between them.

In: a column of whole numbers or short texts, and how many stretches may be told apart.
Out: the stretches, each from its least to its greatest value, in their order and apart.
Promise: pure; every value is in a stretch, and both ends of each stretch are values. Texts are in the order of their bytes.

Changes of old rows lie far from new ones. From the least to the greatest is then everything that ever was, and the gap in between nearly all of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

End = int | str
Stretch = tuple[Any, Any]  # two numbers or two texts
Stretches = tuple[Stretch, ...]

APART_MAX = 64
TEXT_MAX = 64
_NUMBERS_MAX = 50_000  # of more values nobody looks for gaps: the changes of such a drain lie everywhere, and it takes longer than a new plan
_TEXTS_MAX = 1_000


def stretches_of(column: pa.ChunkedArray, *, most: int = APART_MAX) -> Stretches | None:
    """Return where the values of a column lie that are not null; None if its texts are too long to be told, or end at bytes that are no text."""
    try:
        ends = pc.min_max(column).as_py()
    except UnicodeDecodeError:  # Spark takes any bytes for a text
        return None
    least, greatest = ends["min"], ends["max"]
    if least is None:
        return ()
    if isinstance(least, str):
        return _of_texts(column, least, greatest, most)
    # As many numbers as values, or nearly: there is nothing to be found between them.
    if len(column) > _NUMBERS_MAX or most == 1 or greatest - least < 2:
        return ((least, greatest),)
    return _of_numbers(np.sort(column.drop_null().to_numpy()), most)


def _of_numbers(numbers: Any, most: int) -> Stretches:
    # The distance of two whole numbers is right without a sign, however far apart they are.
    gaps = np.diff(numbers.astype(np.uint64))
    places = np.flatnonzero(gaps > 1)
    if len(places) >= most:
        places = np.sort(places[np.argpartition(gaps[places], len(places) - most + 1)[len(places) - most + 1 :]])
    starts, ends = np.concatenate(([0], places + 1)), np.concatenate((places, [len(numbers) - 1]))
    return tuple(zip(numbers[starts].tolist(), numbers[ends].tolist(), strict=True))


def _of_texts(column: pa.ChunkedArray, least: str, greatest: str, most: int) -> Stretches | None:
    if max(len(least), len(greatest)) > TEXT_MAX:
        return None
    if most > 1 and len(column) <= _TEXTS_MAX:
        with suppress(UnicodeDecodeError):
            texts = sorted(value for value in pc.unique(column).to_pylist() if value is not None)
            if max(map(len, texts)) <= TEXT_MAX:
                return fewer([(text, text) for text in texts], most=most)
    return ((least, greatest),)


def merged(stretches: Iterable[Stretch], *, most: int = APART_MAX) -> Stretches:
    """Return stretches that hold all of these."""
    found: list[Stretch] = []
    for low, high in sorted(stretches):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return fewer(found, most=most)


def fewer(stretches: Sequence[Stretch], *, most: int) -> Stretches:
    """Return at most so many stretches that hold all of these, which are in order and apart: what is nearest goes together."""
    if len(stretches) <= most:
        return tuple(stretches)
    gaps = _gaps(stretches)
    places = sorted(sorted(range(len(gaps)), key=gaps.__getitem__)[len(gaps) - most + 1 :])
    firsts, lasts = [0, *(place + 1 for place in places)], [*places, len(stretches) - 1]
    return tuple((stretches[first][0], stretches[last][1]) for first, last in zip(firsts, lasts, strict=True))


def _gaps(stretches: Sequence[Stretch]) -> list[int]:
    if not isinstance(stretches[0][0], str):
        return [right[0] - left[1] for left, right in pairwise(stretches)]
    # Texts are as far apart as the numbers that follow what all begin with, as `order-0017` and `order-0042`.
    ends = [end.encode() for stretch in stretches for end in stretch]
    start = next(place for place, (one, other) in enumerate(zip_longest(ends[0], ends[-1])) if one != other)
    numbers = [int.from_bytes(end[start : start + 8].ljust(8, b"\0"), "big") for end in ends]
    return [right - left for left, right in zip(numbers[1:-1:2], numbers[2::2], strict=True)]


def meet(some: Stretches, others: Stretches) -> bool:
    """Return whether a value can be in both; all are numbers, or all are texts."""
    few, many = sorted((some, others), key=len)
    starts = [low for low, _ in many]
    # Of those that begin at or before the end of one, the last reaches farthest.
    return any((place := bisect_right(starts, high)) > 0 and many[place - 1][1] >= low for low, high in few)
