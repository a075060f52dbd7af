"""What a benchmark module returns, and the rows they all load.

In: a seed and a number of rows.
Out: `Figure` (one line of the table) and rows of six integer columns.
Promise: the same seed gives the same rows on every machine.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

COLUMNS = ("c0", "c1", "c2", "c3", "c4", "c5")
SEED = 20_260_101

Row = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured line: ours against a rival, or a plain number with unit when there is no rival."""

    name: str
    unit: str
    ours: float | None = None
    rival: float | None = None
    goal: float | None = None
    at_least: bool = True
    note: str = ""
    context: dict[str, float | str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Return ours divided by the rival's; without a rival, ours."""
        if self.ours is None:
            return None
        return self.ours if self.rival is None else self.ours / self.rival

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where there is no goal or nothing to compare."""
        if self.ratio is None or self.goal is None:
            return None
        return self.ratio >= self.goal if self.at_least else self.ratio <= self.goal


def arrow_rows(count: int, *, seed: int = SEED) -> pa.Table:
    """Return `count` rows of six int32 columns."""
    dice = np.random.default_rng(seed)
    return pa.table({name: dice.integers(0, 1_000_000, count, dtype=np.int32) for name in COLUMNS})


def tuple_rows(count: int, *, seed: int = SEED) -> list[Row]:
    """Return the same rows as tuples."""
    return list(zip(*(column.to_pylist() for column in arrow_rows(count, seed=seed).columns), strict=True))


def in_batches(rows: list[Row], size: int) -> Iterator[list[Row]]:
    """Cut the rows into batches."""
    return (rows[begin : begin + size] for begin in range(0, len(rows), size))


def rows_per_second(load: Callable[[], int]) -> float:
    """Return how many rows per second `load` moves; it returns how many it moved."""
    begun_s = time.perf_counter()
    count = load()
    return count / (time.perf_counter() - begun_s)
