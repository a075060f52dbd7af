"""Targets: the net effect of each job on a table with keys.

In: changes of the step that a table keeps, and how many rows each key has (part `keys`), or its sums (part `groups`).
Out: one line for each job and key that the job changes: `_job`, `_op` (insert, update, delete, clash), then the columns; deletes have nulls outside the keys.
Promise: lines of one job are about different keys, so they may be applied in any order; `clash` says that a key would have several rows after that job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from righttime.pipeline.operators.aggregate import MeasureLike, group_changes
from righttime.pipeline.operators.query import Frame, Query, names, quoted, spread
from righttime.pipeline.operators.signed import JOB, RUNNING, WEIGHT, Parts, Signed, State, before, touched, window

OPERATION = "_op"
INSERT, UPDATE, DELETE, CLASH = "insert", "update", "delete", "clash"
KEYS = "keys"


def keyed_target(delta: Signed | None, state: State, *, keys: Sequence[str]) -> tuple[Frame | None, Parts]:
    """Return the lines of a table that has one row for each key, and the part `keys`. One shuffle."""
    if delta is None:
        return None, {}
    with Query(delta.frame) as sql:
        old = sql.view(state[KEYS]) if KEYS in state else None
        net = sql.view(sql.run(_net_by_key(delta, sql.view(delta.frame), old, keys)))
        counted = f"SELECT *, sum({WEIGHT}) OVER {window(keys, RUNNING)} AS __after FROM {net}"
        there, delete = "__after = 1 AND __came = 1", "__after = 0 AND __came = 0"
        kinds = f"WHEN {there} AND {WEIGHT} = 1 THEN '{INSERT}' WHEN {there} THEN '{UPDATE}' WHEN {delete} THEN '{DELETE}'"
        operation = f"CASE {kinds} ELSE '{CLASH}' END AS {OPERATION}"
        columns = [quoted(name) if name in keys else f"__row.{quoted(name)}" for name in delta.columns]
        lines = sql.run(f"SELECT {', '.join([JOB, operation, *columns])} FROM ({counted}) WHERE {JOB} IS NOT NULL")
        return lines, {KEYS: sql.run(f"SELECT {names([*keys, JOB, WEIGHT])} FROM {net} WHERE {JOB} IS NOT NULL AND {WEIGHT} <> 0")}


def _net_by_key(delta: Signed, new: str, state: str | None, keys: Sequence[str]) -> str:
    """Return the query for each key and job: by how much its number of rows changes, how many rows come, and one of those."""
    rest = [name for name in delta.columns if name not in keys]
    # A struct needs a field, even if all columns are keys.
    row = f"struct({names(rest) if rest else 'true AS __none'})"
    every = f"SELECT {names(keys, f'{row} AS __row', JOB, WEIGHT)} FROM {new}"
    if state is not None:
        old = touched(state, new, [(name, name) for name in keys], reach=delta.reach)
        every += f" UNION ALL SELECT {names(keys, 'NULL', JOB, WEIGHT)} FROM ({before(f'({old})', keys)})"
    whole, key = names([*keys, "__row", JOB]), names([*keys, JOB])
    net = f"SELECT {whole}, sum({WEIGHT}) AS {WEIGHT} FROM (SELECT * FROM ({every}){spread(keys, delta.reach)}) GROUP BY {whole} HAVING sum({WEIGHT}) <> 0"
    came = f"sum(if({WEIGHT} > 0, {WEIGHT}, 0L)) AS __came, first(if({WEIGHT} > 0, __row, NULL), true) AS __row"
    return f"SELECT {key}, {came}, sum({WEIGHT}) AS {WEIGHT} FROM ({net}) GROUP BY {key}"


def additive_target(delta: Signed | None, state: State, *, keys: Sequence[str], additive: Sequence[str]) -> tuple[Frame | None, Parts]:
    """Return the lines of a table that holds, by key, the sums of the additive columns over all rows; a key without rows has no row.

    The step has no other columns. The part `groups` has, by job and key, what the job adds. One shuffle.
    """
    return aggregated_target(delta, state, by=keys, measures=[_Sum(name, quoted(name)) for name in additive])


def aggregated_target(delta: Signed | None, state: State, *, by: Sequence[str], measures: Sequence[MeasureLike]) -> tuple[Frame | None, Parts]:
    """Return what an aggregate changes in a table with the keys `by`, in one step: nothing can clash, and no number of rows is kept."""
    if delta is None:
        return None, {}
    with Query(delta.frame) as sql:
        changed, parts = group_changes(sql, delta, state, by=by, measures=measures)
        operation = f"if(__is_there, if(__was_there, '{UPDATE}', '{INSERT}'), '{DELETE}') AS {OPERATION}"
        values = [f"if(__is_there, __new.{quoted(measure.name)}, NULL) AS {quoted(measure.name)}" for measure in measures]
        return sql.run(f"SELECT {', '.join([JOB, operation, names(by, *values)])} FROM ({changed})"), parts


@dataclass(frozen=True)
class _Sum:
    name: str
    expression: str
    function: str = "sum"
