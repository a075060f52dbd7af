"""A stream as a plain list and a dictionary, too simple to be wrong.

In: changes as mappings, one append after the other, with the time of each.
Out: the rows that the stream must store, and the codes of changes that it must not take.
Promise: one change at a time, in order; keys and values are compared as Python compares them.
"""

from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]


class Refused(Exception):
    """An append that the model takes nothing of."""

    def __init__(self, row: int, code: str) -> None:
        super().__init__(f"row {row}: {code}")
        self.row = row
        self.code = code


@dataclass
class StreamModel:
    """What a stream with the columns `columns` and keys `keys` must contain."""

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    dead_letters: bool = False
    stored: list[Row] = field(default_factory=list)
    living: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    letters: list[str] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    ordinals: int = 0

    def append(self, changes: list[Row], time_us: int, transaction: str | None = None) -> int:
        """Take an append; return how many rows it stores. Raise `Refused` if one change is bad and there are no dead letters."""
        trial = StreamModel(self.columns, self.keys, living=dict(self.living), ordinals=self.ordinals)
        new: list[Row] = []
        letters: list[str] = []
        for place, unit in _units(changes):
            try:
                new += trial._steps(place, unit, time_us)
            except Refused as refused:
                if not self.dead_letters:
                    raise
                letters.append(refused.code)
        self.living, self.ordinals = trial.living, trial.ordinals
        self.letters += letters
        if new:
            self.commits.append(time_us)
        for row in new:
            row |= {"_commit_version": len(self.commits), "_commit_timestamp": time_us, "_transaction": transaction, "_seq": len(self.stored) + 1}
            self.stored.append(row)
        return len(new)

    def between(self, after_us: int, up_to_us: int) -> list[Row]:
        """Return the rows committed after one time, up to another."""
        return [row for row in self.stored if after_us < row["_commit_timestamp"] <= up_to_us]

    def _steps(self, place: int, unit: list[Row], time_us: int) -> list[Row]:
        """Return the rows that one change stores; the living rows are changed only if it is good."""
        self._check(place, unit)
        kinds = [change.get("_change_type", "insert") for change in unit]
        images = [{name: change.get(name) for name in self.columns} for change in unit]
        keys = [self._key(image) for image in images]
        if kinds == ["insert"]:
            self._free(place, keys[0])
            return [self._begin(keys[0], images[0], "insert", time_us)]
        before, after = (images[0], None) if kinds == ["delete"] else (None, images[0]) if len(unit) == 1 else (images[0], images[1])
        alive = self._alive(place, keys[0], before)
        if after is None:
            return [self._end(keys[0], "delete")]
        if keys[-1] != keys[0]:
            self._free(place + 1, keys[1])
            return [self._end(keys[0], "delete"), self._begin(keys[1], after, "insert", time_us)]
        if {name: alive[name] for name in self.columns} == after:
            return []
        return [self._end(keys[0], "update_preimage"), self._begin(keys[0], after, "update_postimage", time_us)]

    def _check(self, place: int, unit: list[Row]) -> None:
        for offset, change in enumerate(unit):
            kind = change.get("_change_type", "insert")
            if not self.keys and kind != "insert":
                raise Refused(place + offset, "change.refused")
            if kind == "update_preimage" and len(unit) == 1:
                raise Refused(place + offset, "change.refused")
            if any(change.get(name) is None for name in self.keys):
                raise Refused(place + offset, "change.key_missing")

    def _key(self, image: Row) -> tuple[Any, ...]:
        return tuple(image[name] for name in self.keys)

    def _free(self, place: int, key: tuple[Any, ...]) -> None:
        if self.keys and key in self.living:
            raise Refused(place, "change.row_exists")

    def _alive(self, place: int, key: tuple[Any, ...], given: Row | None) -> Row:
        if key not in self.living:
            raise Refused(place, "change.row_absent")
        alive = self.living[key]
        by_key_only = given is None or all(given[name] is None for name in self.columns if name not in self.keys)
        if not by_key_only and any(given is not None and given[name] != alive[name] for name in self.columns):
            raise Refused(place, "change.image_differs")
        return alive

    def _begin(self, key: tuple[Any, ...], image: Row, kind: str, time_us: int) -> Row:
        row = {**image, "_w": 1, "_since": time_us, "_ordinal": self.ordinals}
        self.ordinals += 1
        if self.keys:
            self.living[key] = row
        return {**row, "_change_type": kind}

    def _end(self, key: tuple[Any, ...], kind: str) -> Row:
        return {**self.living.pop(key), "_w": -1, "_change_type": kind}


def _units(changes: list[Row]) -> list[tuple[int, list[Row]]]:
    """Return the changes with the place of their first row: a postimage right behind a preimage belongs to it."""
    units: list[tuple[int, list[Row]]] = []
    for place, change in enumerate(changes):
        follows = change.get("_change_type") == "update_postimage" and place > 0 and changes[place - 1].get("_change_type") == "update_preimage"
        if follows:
            units[-1][1].append(change)
        else:
            units.append((place, [change]))
    return units


def rows_of(table: Any) -> list[Row]:
    """Return a table of stored changes as the model writes them: times as numbers."""
    place = table.schema.names.index("_commit_timestamp")
    numbers = table.column(place).cast("int64")
    return list(table.set_column(place, "_commit_timestamp", numbers).to_pylist())
