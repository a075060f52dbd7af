"""Settling: operations become ended versions and new ones, in the order of their commits, many at a time.

In: the rows of a table, hot and stored, as they were before the operations; the operations.
Out: which versions end when, and the new versions with the time they begin at.
Promise: the same as running the operations one by one in commit order; nothing is changed here, and the same input gives the same result.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from righttime.catalyst.candidates import Candidates
from righttime.catalyst.ends import NONE, Flags, Hidden, StoredEnds, among
from righttime.catalyst.keycodes import KeyCodes
from righttime.catalyst.laneview import LaneView
from righttime.catalyst.steps import Entry, Shape, Step, steps_of
from righttime.changes.conditions import Assignment, Condition, Expression, parse_assignment, parse_condition
from righttime.changes.operations import Numbers
from righttime.changes.schema import TableSchema
from righttime.warehouse.store import StoredRows

_ROUNDS_SHARED_MAX = 16
_PARSED_MAX = 1024  # texts that are parsed once; a loader sends the same ones again and again

Scan = Callable[[Sequence[str], Mapping[str, tuple[object, object]]], Iterable[StoredRows]]
Fetch = Callable[[str, Numbers], pa.Table]


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """The outcome: ends by ascending time, and new versions by ascending begin. `end` is 0 for versions that live on."""

    hot_times: Numbers
    hot_ids: Numbers
    stored: StoredEnds
    rows: pa.Table
    begin: Numbers
    end: Numbers


@dataclass(slots=True, eq=False)
class Settling:
    """One run of settling over one table."""

    schema: TableSchema
    lanes: Sequence[LaneView]
    hidden: Hidden
    scan: Scan
    fetch: Fetch
    _dead_hot: Numbers = field(init=False)
    _dead_stored: dict[str, Numbers] = field(init=False)
    _ended_hot: list[tuple[Numbers, Numbers]] = field(default_factory=list)
    _ended_stored: list[tuple[str, Numbers, Numbers]] = field(default_factory=list)
    _rows: list[pa.Table] = field(default_factory=list)
    _begin: Numbers = field(default_factory=lambda: NONE)
    _end: Numbers = field(default_factory=lambda: NONE)

    def __post_init__(self) -> None:
        self._dead_hot = self.hidden.hot
        self._dead_stored = dict(self.hidden.stored)

    def run(self, entries: Sequence[Entry]) -> Settled:
        """Settle all entries and return the outcome."""
        for step in steps_of(entries, self.schema):
            if step.shapes[step.shape_of[0]].condition is not None:
                self._by_condition(step)
            else:
                self._by_key(step)
        return self._outcome()

    # -- by condition ------------------------------------------------------------------------------------------------

    def _by_condition(self, step: Step) -> None:
        shape, time_us = step.shapes[step.shape_of[0]], int(step.times[0])
        condition = _condition(shape.condition or "TRUE", self.schema)
        names = condition.columns or self.schema.columns.names[:1]
        replace = shape.kind == "update"
        changed: list[pa.Table] = []
        for lane in self.lanes:
            for group in lane.groups():
                reached = step.reached(0, lane.source, group.ids, group.begin) & ~among(group.ids, self._dead_hot)
                met = _met(condition, group.rows(self.schema.columns, names), reached)
                if len(met):
                    self._end_hot(group.ids[met], time_us)
                    if replace:
                        changed.append(group.rows(self.schema.columns).take(pa.array(met)))
        if (self._end == 0).any():
            rows = pa.concat_tables(self._rows)
            met = _met(condition, rows, self._end == 0)
            self._end = self._end.copy()
            self._end[met] = time_us
            changed.append(rows.take(pa.array(met)))
        for stored in self.scan(names, condition.ranges()):
            live = ~among(stored.positions, self._dead_stored.get(stored.unit, NONE))
            positions = stored.positions[_met(condition, pa.Table.from_batches([stored.rows]), live)]
            if len(positions):
                self._end_stored(stored.unit, positions, np.full(len(positions), time_us))
                if replace:
                    changed.append(self.fetch(stored.unit, positions))
        if replace and (base := pa.concat_tables([self.schema.columns.empty_table(), *changed])).num_rows:
            self._add_versions(self._assigned(base, shape, NONE), np.full(base.num_rows, time_us))

    def _assigned(self, base: pa.Table, shape: Shape, rows: Numbers) -> pa.Table:
        """Return rows as an update leaves them: literal values by place, expressions computed from the row as it was."""
        result = base
        for column, text in shape.expressions:
            values = _assignment(column, text, self.schema).values(base)
            result = result.set_column(result.schema.get_field_index(column), self.schema.columns.field(column), values)
        if shape.values is not None:
            for column in shape.values.schema.names:
                values = shape.values.column(column).take(pa.array(rows))
                result = result.set_column(result.schema.get_field_index(column), self.schema.columns.field(column), values)
        return result

    # -- by key ------------------------------------------------------------------------------------------------------

    def _by_key(self, step: Step) -> None:
        """Run the operations in rounds: each key's first, then each key's second, and so on.

        Keys that are changed again and again take rounds of their own, in which the many others have no part.
        """
        codes = KeyCodes(step.keys()).codes
        busy = np.bincount(codes)[codes] > _ROUNDS_SHARED_MAX
        for chosen in (~busy, busy):
            if chosen.any():
                self._rounds(step.only(chosen))

    def _rounds(self, step: Step) -> None:
        keys = step.keys()
        codes = KeyCodes(keys)
        candidates = self._candidates(step, keys, codes)
        idle = np.array([shape.kind == "upsert" and shape.values is None and not shape.expressions for shape in step.shapes])
        for chosen in _by_rank(codes.codes):
            operation_of = np.full(len(codes), -1, dtype=np.int64)
            operation_of[codes.codes[chosen]] = chosen
            matched, operation = candidates.matched(operation_of, step.times, step.bounds, step.source_of)
            # An upsert that gives nothing but a key which is there leaves the row as it is.
            changed = ~idle[step.shape_of[operation]]
            candidates.end(matched[changed], step.times[operation[changed]])
            self._replace(step, codes, candidates, matched[changed], operation[changed], chosen)
            self._insert(step, codes, keys, candidates, chosen[~np.isin(chosen, operation)])
        self._take_over(candidates)

    def _candidates(self, step: Step, keys: pa.Table, codes: KeyCodes) -> Candidates:
        """Find every live row with one of these keys."""
        found = Candidates(self.schema.columns, with_rows=step.needs_rows)
        names = list(self.schema.keys)
        for lane in self.lanes:
            for group in lane.groups():
                code = codes.of(group.rows(self.schema.columns, names))
                places = np.flatnonzero((code >= 0) & ~among(group.ids, self._dead_hot))
                if len(places):
                    rows = group.rows(self.schema.columns).take(pa.array(places)) if step.needs_rows else None
                    found.add_hot(code[places], group.begin[places], step.source_code(lane.source), group.ids[places], rows)
        if len(self._end):
            rows = pa.concat_tables(self._rows)
            code = codes.of(rows)
            places = np.flatnonzero((code >= 0) & (self._end == 0))
            found.add_new(code[places], places, rows.take(pa.array(places)))
        for stored in self.scan(names, key_ranges(keys)):
            code = codes.of(pa.Table.from_batches([stored.rows]))
            places = np.flatnonzero((code >= 0) & ~among(stored.positions, self._dead_stored.get(stored.unit, NONE)))
            if len(places):
                positions = stored.positions[places]
                found.add_stored(code[places], stored.unit, positions, self.fetch(stored.unit, positions) if step.needs_rows else None)
        return found

    def _replace(self, step: Step, codes: KeyCodes, candidates: Candidates, matched: Numbers, operation: Numbers, chosen: Numbers) -> None:
        """Give each ended row its new version."""
        for number in np.unique(step.shape_of[chosen]):
            mine = step.shape_of[operation] == number
            if step.shapes[number].kind != "delete" and mine.any():
                rows = self._assigned(candidates.rows_at(matched[mine]), step.shapes[number], step.row_of[operation[mine]])
                candidates.add_made(codes.codes[operation[mine]], step.times[operation[mine]], rows)

    def _insert(self, step: Step, codes: KeyCodes, keys: pa.Table, candidates: Candidates, unmatched: Numbers) -> None:
        """Make a row of each upsert that found none."""
        for number in np.unique(step.shape_of[unmatched]):
            if step.shapes[number].kind == "upsert":
                fresh = unmatched[step.shape_of[unmatched] == number]
                rows = self._assigned(self._new_rows(keys.take(pa.array(fresh))), step.shapes[number], step.row_of[fresh])
                candidates.add_made(codes.codes[fresh], step.times[fresh], rows)

    def _new_rows(self, keys: pa.Table) -> pa.Table:
        """Return rows with these keys and nothing else."""
        columns = self.schema.columns
        arrays = [keys.column(field.name) if field.name in keys.schema.names else pa.nulls(keys.num_rows, field.type) for field in columns]
        return pa.Table.from_arrays(arrays, names=columns.names)

    def _take_over(self, candidates: Candidates) -> None:
        for ids, times in candidates.ended_hot():
            self._end_hot(ids, times)
        for unit, positions, times in candidates.ended_stored():
            self._end_stored(unit, positions, times)
        places, times = candidates.ended_new()
        self._end = self._end.copy()
        self._end[places] = times
        rows, begin, end = candidates.made()
        if len(begin):
            self._add_versions(rows, begin, end)

    # -- keeping account ---------------------------------------------------------------------------------------------

    def _end_hot(self, ids: Numbers, times: "Numbers | int") -> None:
        if len(ids):
            self._ended_hot.append((ids, np.broadcast_to(np.asarray(times, dtype=np.int64), ids.shape)))
            self._dead_hot = np.sort(np.concatenate([self._dead_hot, ids]))

    def _end_stored(self, unit: str, positions: Numbers, times: Numbers) -> None:
        self._ended_stored.append((unit, positions, times))
        self._dead_stored[unit] = np.sort(np.concatenate([self._dead_stored.get(unit, NONE), positions]))

    def _add_versions(self, rows: pa.Table, begin: Numbers, end: Numbers | None = None) -> None:
        self._rows.append(rows.cast(self.schema.columns) if rows.schema != self.schema.columns else rows)
        self._begin = np.concatenate([self._begin, begin])
        self._end = np.concatenate([self._end, np.zeros(len(begin), dtype=np.int64) if end is None else end])

    def _outcome(self) -> Settled:
        ids = np.concatenate([NONE, *(ids for ids, _ in self._ended_hot)])
        times = np.concatenate([NONE, *(times for _, times in self._ended_hot)])
        order = np.argsort(times, kind="stable")
        # A version that ends in the commit that made it is never seen by anybody.
        kept = np.flatnonzero(self._begin != self._end)
        kept = kept[np.argsort(self._begin[kept], kind="stable")]
        rows = pa.concat_tables([self.schema.columns.empty_table(), *self._rows]).take(pa.array(kept))
        return Settled(times[order], ids[order], self._stored_ends(), rows, self._begin[kept], self._end[kept])

    def _stored_ends(self) -> StoredEnds:
        units = tuple(dict.fromkeys(unit for unit, _, _ in self._ended_stored))
        codes = np.concatenate([NONE, *(np.full(len(positions), units.index(unit)) for unit, positions, _ in self._ended_stored)])
        positions = np.concatenate([NONE, *(positions for _, positions, _ in self._ended_stored)])
        times = np.concatenate([NONE, *(times for _, _, times in self._ended_stored)])
        order = np.argsort(times, kind="stable")
        return StoredEnds(times[order], codes[order], positions[order], units)


@lru_cache(maxsize=_PARSED_MAX)
def _condition(text: str, schema: TableSchema) -> Condition:
    return parse_condition(text, schema)


@lru_cache(maxsize=_PARSED_MAX)
def _assignment(column: str, text: str, schema: TableSchema) -> Assignment:
    return parse_assignment(column, Expression(text), schema)


def _met(condition: Condition, rows: pa.Table, reached: Flags) -> Numbers:
    """Return the places of the rows that a condition means. It is computed for no other rows than those it can reach: on them it might fail."""
    places = np.flatnonzero(reached)
    if not len(places):
        return places
    asked = rows if len(places) == rows.num_rows else rows.take(pa.array(places))
    met = np.asarray(condition.mask(asked).combine_chunks().to_numpy(zero_copy_only=False), dtype=bool)
    return np.asarray(places[met])


def _by_rank(codes: Numbers) -> list[Numbers]:
    """Return the places of the first operation of each key, of the second, and so on."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    within = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.append(starts, len(ordered))))
    by_rank = np.argsort(within, kind="stable")
    ends = np.cumsum(np.bincount(within))
    return [np.sort(places) for places in np.split(order[by_rank], ends[:-1])]


def key_ranges(keys: pa.Table) -> dict[str, tuple[object, object]]:
    """Return the smallest and the greatest value of each key column, for pruning; none where there is NaN, which has no place in that order."""
    whole = [name for name in keys.schema.names if not (pa.types.is_floating(keys.schema.field(name).type) and pc.any(pc.is_nan(keys.column(name))).as_py())]
    limits = {name: pc.min_max(keys.column(name)) for name in whole}
    return {name: (found["min"].as_py(), found["max"].as_py()) for name, found in limits.items()}
