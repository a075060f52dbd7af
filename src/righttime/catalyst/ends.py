"""Ends: which row versions were ended by an update or a delete, and when.

In: results of settled operations, in the order of their commit times.
Out: what a reader at a given time must leave out.
Promise: immutable; whoever holds one keeps its view, whatever is settled or stored meanwhile.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from righttime.changes.operations import Numbers

Flags = npt.NDArray[np.bool_]
NONE: Numbers = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """Rows that a reader leaves out: ids of hot rows, and per unit of the store the positions of stored ones, each ascending."""

    hot: Numbers = field(default_factory=lambda: NONE)
    stored: Mapping[str, Numbers] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(len(self.hot) or self.stored)

    @property
    def rows_stored(self) -> int:
        """How many stored rows are hidden."""
        return sum(len(positions) for positions in self.stored.values())

    def with_more(self, hot: Numbers, stored: Mapping[str, Numbers]) -> "Hidden":
        """Return this and more, which it does not hold yet."""
        merged = dict(self.stored)
        for unit, positions in stored.items():
            merged[unit] = np.sort(np.concatenate([merged.get(unit, NONE), positions]))
        return Hidden(np.sort(np.concatenate([self.hot, hot])), merged)


NOTHING = Hidden()


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """Ended versions, by ascending time. A stored one is (number of its unit, position)."""

    hot_times: Numbers = field(default_factory=lambda: NONE)
    hot_ids: Numbers = field(default_factory=lambda: NONE)
    stored_times: Numbers = field(default_factory=lambda: NONE)
    stored_units: Numbers = field(default_factory=lambda: NONE)
    stored_positions: Numbers = field(default_factory=lambda: NONE)
    units: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.hot_times) + len(self.stored_times)

    def with_more(self, hot_times: Numbers, hot_ids: Numbers, stored: "StoredEnds") -> "Ends":
        """Return these ends and later ones."""
        units = list(self.units)
        known = {unit: number for number, unit in enumerate(units)}
        for unit in stored.units:
            if unit not in known:
                known[unit] = len(units)
                units.append(unit)
        codes = np.array([known[unit] for unit in stored.units], dtype=np.int64)
        return Ends(
            np.concatenate([self.hot_times, hot_times]),
            np.concatenate([self.hot_ids, hot_ids]),
            np.concatenate([self.stored_times, stored.times]),
            np.concatenate([self.stored_units, codes[stored.codes] if len(stored.codes) else NONE]),
            np.concatenate([self.stored_positions, stored.positions]),
            tuple(units),
        )

    def at(self, time_us: int) -> Hidden:
        """Return what a reader at `time_us` leaves out."""
        hot = np.sort(self.hot_ids[: np.searchsorted(self.hot_times, time_us, side="right")])
        last = np.searchsorted(self.stored_times, time_us, side="right")
        return Hidden(hot, by_unit(self.stored_units[:last], self.stored_positions[:last], self.units))


@dataclass(frozen=True, slots=True, eq=False)
class StoredEnds:
    """Ends of stored rows, by ascending time."""

    times: Numbers = field(default_factory=lambda: NONE)
    codes: Numbers = field(default_factory=lambda: NONE)
    positions: Numbers = field(default_factory=lambda: NONE)
    units: tuple[str, ...] = ()


def by_unit(codes: Numbers, positions: Numbers, units: tuple[str, ...]) -> dict[str, Numbers]:
    """Return ascending positions per unit."""
    if not len(codes):
        return {}
    order = np.lexsort((positions, codes))
    codes, positions = codes[order], positions[order]
    starts = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
    return {units[codes[start]]: part for start, part in zip(starts, np.split(positions, starts[1:]), strict=True)}


def among(values: Numbers, ascending: Numbers) -> Flags:
    """Tell for each value whether it is in an ascending array."""
    if not len(ascending):
        return np.zeros(len(values), dtype=bool)
    places = np.searchsorted(ascending, values)
    places[places == len(ascending)] = 0
    return np.equal(ascending[places], values)
