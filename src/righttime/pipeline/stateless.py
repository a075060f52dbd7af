"""Steps that need nothing but the row: where, select, derive, expectations, user functions.

In: signed sets.
Out: signed sets; job, weight and system columns stay with their row.
Promise: linear, that is, what a row gives when it comes is taken back when it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from righttime.pipeline.applying import Caller
from righttime.pipeline.nodes import ArrowFunction, Derived, Otherwise, Rows
from righttime.pipeline.operators.query import Frame, Query, frame_of, names, quoted
from righttime.pipeline.operators.signed import JOB, WEIGHT, Signed

MET, ROW = "__met", "_row"


def where(given: Signed, condition: str) -> Signed:
    """Keep the rows for which the condition is true."""
    return replace(_met(judge(given, condition)), columns=given.columns)


def project(given: Signed, columns: Sequence[Derived], *, keep: Sequence[str]) -> Signed:
    """Return the columns `keep` as they are, except that those derived take their place, then further derived ones."""
    derived = {column.name: column for column in columns}
    # Spark tells names apart without regard to case: a derived column takes the place of one that differs only in that.
    replaced = {name.lower(): name for name in derived}
    kept = [replaced.pop(name.lower(), name) for name in keep]
    kept += replaced.values()
    chosen = [f"{_computed(derived[name], given.columns)} AS {quoted(name)}" if name in derived else quoted(name) for name in kept]
    return replace(given, frame=_select(given, ", ".join([*chosen, JOB, WEIGHT])), columns=tuple(kept))


def judge(given: Signed, condition: str) -> Signed:
    """Add a column that says whether the row meets the condition; null is not met."""
    met = _always(f"coalesce(({condition}\n), false)")
    return replace(given, frame=_select(given, names([*given.columns, JOB, WEIGHT], f"{met} AS {MET}")), columns=(*given.columns, MET))


def expect(judged: Signed, otherwise: Otherwise) -> tuple[Signed, Signed]:
    """Return the rows that go on, and those that came in and do not meet the condition."""
    columns = tuple(name for name in judged.columns if name != MET)
    met = judged if otherwise == "keep" else _met(judged)
    # Where one unmet row is too many, it must be known that it went again within the job.
    unmet = f"NOT {MET}" if otherwise == "fail" else f"NOT {MET} AND {WEIGHT} > 0"
    return replace(met, columns=columns), replace(judged, frame=_select(judged, "*", f" WHERE {unmet}"), columns=columns)


def part_by_null(given: Signed, names: Sequence[str]) -> tuple[Signed, Signed]:
    """Return the rows that have a value in each of these columns, and the others."""
    without = " OR ".join(f"{quoted(name)} IS NULL" for name in names) or "false"
    on, others = (replace(given, frame=_select(given, "*", f" WHERE {condition}")) for condition in (f"NOT ({without})", f"({without})"))
    return on, others


def _met(judged: Signed) -> Signed:
    return replace(judged, frame=_select(judged, "*", f" WHERE {MET}"))


def _computed(derived: Derived, columns: Sequence[str]) -> str:
    return quoted(derived.column) if derived.column is not None and derived.column in columns else _always(derived.expression)


def _always(expression: str) -> str:
    """Return the expression so that Spark evaluates it for every row that comes to its step, whatever later steps make of it.

    Left to itself, Spark evaluates it where it is used: not for rows that a later condition drops, and not in a branch that is not taken. Whether a row
    fails would depend on how a drain is planned, and it might come in one drain and fail in the one in which it goes.
    """
    # What depends on more than the row stays where it is. The line end keeps a comment at the end of an expression from hiding the rest.
    return f"if(spark_partition_id() < 0, NULL, ({expression}\n))"


def noted(rows: Signed, *, with_row: bool) -> Frame:
    """Return job, weight and the user's columns as JSON, nulls included; without the row null."""
    text = f"to_json(struct({names(name for name in rows.columns if not name.startswith('_'))}), map('ignoreNullFields', 'false'))"
    return _select(rows, f"{JOB}, {WEIGHT}, {text if with_row else 'CAST(NULL AS STRING)'} AS {ROW}")


def _select(given: Signed, columns: str, where: str = "") -> Frame:
    with Query(given.frame) as sql:
        # Without an alias, Spark takes WHERE (x) for an alias with the column x. Nobody has a column of this name: its fields would be taken for columns.
        return sql.run(f"SELECT {columns} FROM {sql.view(given.frame)} AS __given{where}")


def apply(given: Signed, function: ArrowFunction, columns: StructType, arrow: pa.Schema, *, rows: Rows, system: Sequence[str]) -> Signed:
    """Return what a user's function gives for the rows; `system` names carried system columns, which only `rows="same"` can keep."""
    frame = frame_of(given.rows())
    carried = [*system, JOB, WEIGHT]
    types = {field.name: field.dataType for field in frame.schema}
    out = StructType([*columns, *(StructField(name, types[name]) for name in system), StructField(JOB, LongType()), StructField(WEIGHT, LongType())])
    caller = Caller(function, arrow, rows, tuple(name for name in given.columns if name not in system), tuple(carried))
    return replace(given, frame=frame.mapInArrow(caller, out), columns=(*columns.names, *system))
