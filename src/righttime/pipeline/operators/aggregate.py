"""Aggregates of changing groups: sum, count, avg, min, max, count_distinct, correct under deletes.

In: changes; additive accumulators of earlier drains by group (part `groups`), and values by group where a measure needs them (parts `values_…`).
Out: for each job that changes a group's row, the old row taken out and the new one put in.
Promise: nulls and empty groups as in SQL; a group without rows has no row; totals do not depend on the order or the grouping of the changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql.types import DataType

from righttime.pipeline.operators.accumulators import ROWS, Accumulated, Term, average_of, count_of, needs_unit_weights, row_count, sum_of
from righttime.pipeline.operators.distinct import net_rows, transitions
from righttime.pipeline.operators.extremes import VALUE, extremes
from righttime.pipeline.operators.query import Query, names, quoted, spread, type_text
from righttime.pipeline.operators.signed import ACCUMULATOR_PREFIX, JOB, RUNNING, WEIGHT, Parts, Signed, State, before, touched, window

GROUPS = "groups"


class MeasureLike(Protocol):
    """What is computed for a group: the column's name, one of the functions above, and an expression over the columns (`*` for count)."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> str: ...
    @property
    def expression(self) -> str: ...


def aggregate(delta: Signed | None, state: State, *, by: Sequence[str], measures: Sequence[MeasureLike]) -> tuple[Signed | None, Parts]:
    """Return the changes of the groups' rows (by, then measures), and the parts. Only groups that occur in the changes are looked up.

    One shuffle; two or three more for min and max, one more for count_distinct.
    """
    if delta is None:
        return None, {}
    with Query(delta.frame) as sql:
        changed, parts = group_changes(sql, delta, state, by=by, measures=measures)
        old, new = ("named_struct('sign', -1L, 'there', __was_there, 'row', __old)", "named_struct('sign', 1L, 'there', __is_there, 'row', __new)")
        sides = f"inline(array({old}, {new})) AS (__sign, __there, __row)"
        values = [f"__row.{quoted(measure.name)} AS {quoted(measure.name)}" for measure in measures]
        each = f"SELECT {names([*by, JOB], sides)} FROM ({changed})"
        rows = sql.run(f"SELECT {names(by, *values, JOB, f'__sign AS {WEIGHT}')} FROM ({each}) WHERE __there")
    return Signed(rows, (*by, *(measure.name for measure in measures)), delta.reach), parts


def group_changes(sql: Query, delta: Signed, state: State, *, by: Sequence[str], measures: Sequence[MeasureLike]) -> tuple[str, Parts]:
    """Return the query for the changes of rows by group and job: `__is_there`, `__was_there`, the rows `__new` and `__old` as structs; and the parts."""
    work = _Work(sql, delta, state, by, measures)
    merged = sql.view(sql.run(work.merged()))
    sums = [f"sum({name}) OVER running AS {name}" for name in work.terms]
    kept = [f"last({name}, true) OVER running AS {name}" for name in work.extremes]
    running = f"SELECT {names([*by, JOB], *sums, *kept)} FROM {merged} WINDOW running AS {window(by, RUNNING)}"
    valued = f"SELECT {names([*by, JOB], f'{ROWS} > 0 AS __is_there', f'struct({work.values()}) AS __new')} FROM ({running})"
    old = "coalesce(lag(__is_there) OVER jobs, false) AS __was_there, lag(__new) OVER jobs AS __old"
    both = f"SELECT *, {old} FROM ({valued}) WINDOW jobs AS {window(by)}"
    differs = "__is_there <> __was_there OR (__is_there AND NOT __new <=> __old)"
    added = sql.run(f"SELECT {names([*by, JOB, *work.terms])} FROM {merged} WHERE {JOB} IS NOT NULL")
    return f"SELECT * FROM ({both}) WHERE {JOB} IS NOT NULL AND ({differs})", {GROUPS: added, **work.parts}


@dataclass(frozen=True)
class _Expression:
    place: int
    kind: DataType

    @property
    def column(self) -> str:
        return f"__value_{self.place}"

    @property
    def extremes(self) -> str:
        return f"__extremes_{self.place}"

    @property
    def distinct(self) -> str:
        return f"{ACCUMULATOR_PREFIX}{self.place}_distinct"

    @property
    def part(self) -> str:
        return f"values_{self.place}"


class _Work:
    """One aggregate over one drain: which sums and values it needs, and where they come from."""

    def __init__(self, sql: Query, delta: Signed, state: State, by: Sequence[str], measures: Sequence[MeasureLike]) -> None:
        self._by, self._measures, self._reach = tuple(by), measures, delta.reach
        texts = list(dict.fromkeys(measure.expression for measure in measures if measure.expression != "*"))
        # The line end keeps a comment at the end of an expression from hiding the rest.
        values = [f"({text}\n) AS __value_{place}" for place, text in enumerate(texts)]
        rows = sql.run(f"SELECT {names([*by, JOB, WEIGHT], *values)} FROM {sql.view(delta.frame)}")
        kinds = {field.name: field.dataType for field in rows.schema.fields}
        self._rows = sql.view(rows)
        self._expressions = {text: _Expression(place, kinds[f"__value_{place}"]) for place, text in enumerate(texts)}
        self._state = {name: sql.view(frame) for name, frame in state.items()}
        self._values = {measure.name: self._accumulate(measure) for measure in measures}
        sums = [row_count(), *(one for one in self._values.values() if one is not None)]
        self.terms = {name: term for one in sums for name, term in one.terms.items()}
        self.extremes = [one.extremes for one in self._using("min", "max")]
        self.parts: Parts = {one.part: sql.run(self._pairs(one)) for one in self._using("min", "max", "count_distinct")}

    def merged(self) -> str:
        """Return one line for each group and job, and for each touched group one of before (job null): what is added, and extremes where they may change."""
        lines = [self._line(self._own_rows(), {name: term.sql for name, term in self.terms.items() if not name.endswith("_distinct")})]
        lines += [self._line(self._distinct_changes(one), {one.distinct: WEIGHT}) for one in self._using("count_distinct")]
        lines += [self._line(self._extremes(one), {one.extremes: "struct(__low, __high)"}) for one in self._using("min", "max")]
        if GROUPS in self._state:
            old = touched(self._state[GROUPS], self._rows, [(name, name) for name in self._by], reach=self._reach)
            lines.append(self._line(before(f"({old})", self._by, list(self.terms)), {name: name for name in self.terms}))
        summed = [f"coalesce(sum({name}), CAST(0 AS {term.kind})) AS {name}" for name, term in self.terms.items()]
        found = [f"first({name}, true) AS {name}" for name in self.extremes]
        # Large changes are better summed up before they are shuffled than shuffled only once.
        together = "" if self._reach == "shuffled" else spread(self._by, self._reach)
        key = names([*self._by, JOB])
        return f"SELECT {key}, {', '.join([*summed, *found])} FROM (SELECT * FROM ({' UNION ALL '.join(lines)}){together}) GROUP BY {key}"

    def _line(self, relation: str, given: Mapping[str, str]) -> str:
        """Return the query for lines with all accumulators and extremes, null where nothing is given."""
        kinds = {name: term.kind for name, term in self.terms.items()}
        kinds |= {one.extremes: f"STRUCT<low: {type_text(one.kind)}, high: {type_text(one.kind)}>" for one in self._using("min", "max")}
        values = [f"CAST({given.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in kinds.items()]
        return f"SELECT {names([*self._by, JOB], *values)} FROM ({relation})"

    def values(self) -> str:
        """Return the measures over the sums and extremes of a group."""
        return ", ".join(f"{self._value(measure)} AS {quoted(measure.name)}" for measure in self._measures)

    def _accumulate(self, measure: MeasureLike) -> Accumulated | None:
        if measure.expression == "*":
            return row_count()
        one = self._expressions[measure.expression]
        match measure.function:
            case "count":
                return count_of(one.place, one.column)
            case "sum":
                return sum_of(one.place, one.column, one.kind)
            case "avg":
                return average_of(one.place, one.column, one.kind)
            case "count_distinct":
                return Accumulated({one.distinct: Term(WEIGHT, "BIGINT")}, one.distinct)
        return None

    def _value(self, measure: MeasureLike) -> str:
        accumulated = self._values[measure.name]
        if accumulated is not None:
            return accumulated.value
        return f"{self._expressions[measure.expression].extremes}.{'low' if measure.function == 'min' else 'high'}"

    def _using(self, *functions: str) -> list[_Expression]:
        """Return the expressions that one of these functions is taken of."""
        wanted = {measure.expression for measure in self._measures if measure.function in functions}
        return [one for text, one in self._expressions.items() if text in wanted]

    def _pairs(self, one: _Expression) -> str:
        """Return the changes of (group, value) pairs, without nulls: they count nowhere."""
        return f"SELECT {names(self._by, f'{one.column} AS {VALUE}', JOB, WEIGHT)} FROM {self._rows} WHERE {one.column} IS NOT NULL"

    def _distinct_changes(self, one: _Expression) -> str:
        columns = (*self._by, VALUE)
        return transitions(f"({net_rows(f'({self._pairs(one)})', columns, self._state.get(one.part), reach=self._reach)})", columns)

    def _extremes(self, one: _Expression) -> str:
        return extremes(f"({self._pairs(one)})", self._rows, self._state.get(one.part), by=self._by, kind=type_text(one.kind), reach=self._reach)

    def _own_rows(self) -> str:
        if not any(needs_unit_weights(one.kind) for one in self._using("sum", "avg")):
            return f"SELECT * FROM {self._rows}"
        columns = names([*self._by, JOB], *(one.column for one in self._expressions.values()))
        return f"SELECT {columns}, explode(array_repeat(CAST(sign({WEIGHT}) AS BIGINT), CAST(abs({WEIGHT}) AS INT))) AS {WEIGHT} FROM {self._rows}"
