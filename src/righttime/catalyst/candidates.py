"""Candidates: the live rows that a set of operations by key can reach, and what becomes of them.

In: rows with the number of their key, from memory, from the warehouse, or made by earlier operations.
Out: which of them an operation matches; in the end, which ended when and which versions were made.
Promise: array work only; a row that has ended is matched by nothing.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from righttime.catalyst.ends import NONE
from righttime.changes.operations import Numbers

_HOT, _STORED, _NEW, _MADE = 0, 1, 2, 3
_ANY_SOURCE = -1  # a version or a stored row: older than every operation that is settled now


class Candidates:
    """Grows while operations are settled, round by round. With `with_rows` False only keys matter and no row content is kept."""

    def __init__(self, columns: pa.Schema, *, with_rows: bool) -> None:
        self._columns = columns
        self._with_rows = with_rows
        self._tables: list[pa.Table] = []
        self._count = 0
        self._code, self._begin, self._source, self._kind, self._place, self._end = NONE, NONE, NONE, NONE, NONE, NONE
        self._units: list[str] = []
        self._unit = NONE

    def add_hot(self, code: Numbers, begin: Numbers, source: int, ids: Numbers, rows: pa.Table | None) -> None:
        self._add(code, begin, source, _HOT, ids, rows)

    def add_new(self, code: Numbers, places: Numbers, rows: pa.Table) -> None:
        """Add versions that earlier steps made."""
        self._add(code, np.zeros(len(code), dtype=np.int64), _ANY_SOURCE, _NEW, places, rows)

    def add_stored(self, code: Numbers, unit: str, positions: Numbers, rows: pa.Table | None) -> None:
        if unit not in self._units:
            self._units.append(unit)
        self._add(code, np.zeros(len(code), dtype=np.int64), _ANY_SOURCE, _STORED, positions, rows, unit=self._units.index(unit))

    def add_made(self, code: Numbers, begin: Numbers, rows: pa.Table) -> None:
        """Add versions that this step makes."""
        self._add(code, begin, _ANY_SOURCE, _MADE, np.zeros(len(code), dtype=np.int64), rows)

    def _add(self, code: Numbers, begin: Numbers, source: int, kind: int, place: Numbers, rows: Any, *, unit: int = -1) -> None:
        count = len(code)
        self._code = np.concatenate([self._code, code])
        self._begin = np.concatenate([self._begin, begin])
        self._source = np.concatenate([self._source, np.full(count, source)])
        self._kind = np.concatenate([self._kind, np.full(count, kind)])
        self._place = np.concatenate([self._place, place])
        self._unit = np.concatenate([self._unit, np.full(count, unit)])
        self._end = np.concatenate([self._end, np.zeros(count, dtype=np.int64)])
        if self._with_rows:
            self._tables.append(rows if rows.schema == self._columns else rows.cast(self._columns))
            self._count += count

    def matched(self, operation_of: Numbers, times: Numbers, bounds: Numbers, sources: Numbers) -> tuple[Numbers, Numbers]:
        """Return places of candidates that an operation reaches, and which one; `operation_of` names at most one for each key."""
        if not len(self._code):
            return NONE, NONE
        operation = operation_of[self._code]
        same = self._source == sources[operation]
        older = np.where(same, (self._kind == _HOT) & (self._place <= bounds[operation]), self._begin < times[operation])
        reached = (operation >= 0) & (self._end == 0) & (older | (self._source == _ANY_SOURCE))
        places = np.flatnonzero(reached)
        return places, operation[places]

    def end(self, places: Numbers, times: Numbers) -> None:
        self._end[places] = times

    def rows_at(self, places: Numbers) -> pa.Table:
        # Where a key is changed again and again, all rows that are asked for are in the table that was added last.
        last = self._count - self._tables[-1].num_rows
        if len(places) and places.min() >= last:
            return self._tables[-1].take(pa.array(places - last))
        return pa.concat_tables(self._tables).take(pa.array(places))

    def ended_hot(self) -> Iterator[tuple[Numbers, Numbers]]:
        chosen = (self._kind == _HOT) & (self._end != 0)
        yield self._place[chosen], self._end[chosen]

    def ended_stored(self) -> Iterator[tuple[str, Numbers, Numbers]]:
        for number, unit in enumerate(self._units):
            chosen = (self._kind == _STORED) & (self._unit == number) & (self._end != 0)
            if chosen.any():
                yield unit, self._place[chosen], self._end[chosen]

    def ended_new(self) -> tuple[Numbers, Numbers]:
        chosen = (self._kind == _NEW) & (self._end != 0)
        return self._place[chosen], self._end[chosen]

    def made(self) -> tuple[pa.Table, Numbers, Numbers]:
        """Return the versions this step made, with begin and end (0 = lives on)."""
        places = np.flatnonzero(self._kind == _MADE)
        rows = self.rows_at(places) if len(places) else self._columns.empty_table()
        return rows, self._begin[places], self._end[places]
