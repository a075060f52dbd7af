"""Rows that failed in one drain, and how many of them are left when it ends.

In: rows that a step could not take, as they are found.
Out: all of them as a table.
Promise: the bound is on what is left: rows that were dead letters and go make room, and so does what came and went within the drain. How many are kept
over all drains is counted in `flows/letters.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import pyarrow as pa

from righttime.errors.flows import TooManyDeadLetters

DEAD_LETTERS = pa.schema(
    [
        ("step", pa.string()),
        ("origin", pa.string()),
        ("reason", pa.string()),
        ("job", pa.int64()),
        ("weight", pa.int64()),
        ("row", pa.string()),
        ("image", pa.binary()),
    ]
)


@dataclass(frozen=True)
class DeadLetter:
    """A row that a step could not take; weight -1 says that it went again. With an `image` (see `again.py`) the step can be tried on it again."""

    step: str
    origin: str
    reason: str
    job: int
    weight: int
    row: str
    image: bytes | None = None


class FailedRows:
    """The dead letters of one drain."""

    def __init__(self, flow: str, jobs: range, *, letters_max: int) -> None:
        self._flow = flow
        self._jobs = jobs
        self._letters_max = letters_max
        self._letters: list[DeadLetter] = []
        self._times: Counter[tuple[str, str, str]] = Counter()
        self._left = 0
        # As many as may be left, as many as may have been there before and go, and as many that come and go.
        self.found_max = 4 * letters_max

    def __len__(self) -> int:
        return len(self._letters)

    def take(self, letters: Iterable[DeadLetter]) -> None:
        """Take some that were found together; raises `TooManyDeadLetters` if more than the bound are left."""
        for letter in letters:
            row = (letter.step, letter.reason, letter.row)
            before = self._times[row]
            self._times[row] = after = before + letter.weight
            self._left += (after > 0) - (before > 0)
            self._letters.append(letter)
        if self._left > self._letters_max:
            raise self.too_many()

    def too_many(self) -> TooManyDeadLetters:
        """Return the error that says so, with the last row."""
        last = self._letters[-1]
        jobs = f"{self._jobs.start} to {self._jobs.stop - 1}"
        return TooManyDeadLetters(flow=self._flow, bound=self._letters_max, jobs=jobs, origin=last.origin, reason=last.reason)

    def table(self) -> pa.Table:
        """Return all of them, also those that went."""
        return pa.Table.from_pylist([asdict(letter) for letter in self._letters], DEAD_LETTERS)
