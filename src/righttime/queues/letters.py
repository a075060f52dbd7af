"""Dead letters of a stream: changes that could not be taken, as they were given, with the reason.

In: changes at fault, from an append.
Out: a table of them, and the changes again, to be replayed.
Promise: a letter survives a crash with the append it came from, and stays until it is replayed or discarded. Values come back as they were given.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from righttime.changes.marks import marked, unmarked
from righttime.changes.types import TIMESTAMP
from righttime.queues.intake import Given

COLUMNS = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("time", TIMESTAMP),  # null in letters of older versions whose source gave none
        pa.field("transaction", pa.string()),
        pa.field("code", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("change", pa.string(), nullable=False),
    ]
)
Letter = dict[str, Any]


class DeadLetters:
    """The letters of one stream, by number."""

    def __init__(self) -> None:
        self._letters: dict[int, Letter] = {}
        self.last_number = 0

    def __len__(self) -> int:
        return len(self._letters)

    def add(self, letters: Iterable[Letter]) -> None:
        """Add letters that a record of the feed log has."""
        for letter in letters:
            self._letters[letter["number"]] = letter
            self.last_number = max(self.last_number, letter["number"])

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget letters that were replayed or discarded."""
        for number in numbers:
            self._letters.pop(number, None)

    def chosen(self, numbers: Iterable[int] | None) -> list[Letter]:
        """Return some letters, or all, in the order of their numbers; numbers that are none are left out."""
        wanted = sorted(self._letters if numbers is None else set(numbers) & set(self._letters))
        return [self._letters[number] for number in wanted]

    def table(self) -> pa.Table:
        """Return all letters; `time` is the source's commit time, or when the letter came if it gave none; `change` is JSON: the row or both images of it,
        with the change type."""
        return pa.Table.from_pylist(self.chosen(None), COLUMNS)

    def state(self) -> dict[str, Any]:
        """Return everything, for the first record of a log file."""
        return {"letters": self.chosen(None), "last_number": self.last_number}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._letters = {}
        self.add(state["letters"])
        self.last_number = state["last_number"]


def letters_of(given: Given, *, first_number: int, time_us: int, transaction: str | None) -> list[Letter]:
    """Return a letter for each change at fault."""
    by_unit: dict[int, int] = {}
    for row in sorted(given.faults):
        by_unit.setdefault(int(given.units[row]), row)
    letters = []
    for number, (unit, row) in enumerate(by_unit.items(), start=first_number):
        start = int(np.searchsorted(given.units, unit))
        images = [given.source.mapping(place) for place in range(start, int(np.searchsorted(given.units, unit, side="right")))]
        fault = given.faults[row]
        letters.append(
            {"number": number, "time": time_us, "transaction": transaction, "code": fault.kind.code, "reason": fault.reason, "change": to_text(images)}
        )
    return letters


def to_text(images: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as JSON; values that JSON has no form for are marked with their type, and halves of characters, which no file can hold, are escaped."""
    return json.dumps([marked(image) for image in images], ensure_ascii=False).encode(errors="backslashreplace").decode()


def from_text(text: str) -> list[dict[str, Any]]:
    """Return what `to_text` wrote."""
    return list(json.loads(text, object_hook=unmarked))
