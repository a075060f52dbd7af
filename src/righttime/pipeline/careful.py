"""Careful drains: when a drain failed, its rows are tried step by step, and those that fail are put aside.

In: the changes that reach each step, collected.
Out: the same without the rows that fail, and these as dead letters.
Promise: a row that fails does so in every drain, when it comes and when it goes, so it is never half in a target; the search is bounded, and what it looks at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import dropwhile

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from righttime.errors.flows import StepFailed, TotalTooLarge
from righttime.errors.spark_words import in_short, told_by_java, without_task
from righttime.pipeline.again import image_of
from righttime.pipeline.collecting import TooMuchOutput, bounded, collect, rows_in
from righttime.pipeline.failed import DeadLetter, FailedRows
from righttime.pipeline.guard import RowStep
from righttime.pipeline.nodes import Aggregate, Node, Target
from righttime.pipeline.nullable import with_nulls
from righttime.pipeline.operators.query import Frame, frame_of
from righttime.pipeline.operators.signed import JOB, WEIGHT, Signed
from righttime.pipeline.stateless import ROW, noted
from righttime.pipeline.translate import quiet

SparkFailure = (PySparkException, Py4JError)
GROUP = "righttime-drains-"  # how the names of our groups of Spark jobs begin
_GIVEN_UP = f"part of cancelled job group {GROUP}"
_REASON_MAX = 500
_OVERFLOW = re.compile(r"\[(?:CAST_OVERFLOW|ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE)\b")


class DrainGivenUp(Exception):
    """A drain was cancelled by the one who began it: no row is to blame, and it is not tried again."""


class Careful:
    """A guard that runs each step by itself."""

    def __init__(self, flow: str, child: SparkSession, failed: FailedRows, *, rows_max: int | None = None) -> None:
        """`rows_max` bounds what may be between two steps; what is looked at row by row is in memory."""
        self._flow = flow
        self._child = child
        self._failed = failed
        self._rows_max = rows_max

    def rows(self, step: str, node: Node | Target, given: Signed, make: RowStep) -> Signed | None:
        """Return what the step makes of the rows that it can take."""
        frame = frame_of(given.rows())
        # First what goes: whoever is counted afterwards is left.
        table = self._run(node, lambda: self._taken(frame)).sort_by(WEIGHT)
        made = self._sift(_Trial(step, str(node.origin), given, frame.schema, make), table)
        return self._local(made)

    def settled(self, step: str, node: Node | Target, made: Signed | None) -> Signed | None:
        """Run a step with state; no single row can be blamed if it fails."""
        if made is None:
            return None
        frame = frame_of(made.rows())
        table = self._run(node, lambda: self._taken(frame))
        return replace(made, frame=self._child.createDataFrame(table, frame.schema.toNullable())) if table.num_rows else None

    def lines(self, declared: Node | Target, made: Frame) -> None:
        """Run what gives the lines of a table: a total may fail only there."""
        self._run(declared, lambda: collect([made], ["lines"], rows_max=self._rows_max)[0])

    def _taken(self, frame: DataFrame) -> pa.Table:
        """Return all rows; raises `TooMuchOutput`."""
        found = with_nulls(rows_in(bounded(frame, self._rows_max)))
        if self._rows_max is not None and found.num_rows > self._rows_max:
            raise TooMuchOutput
        return found

    def _run(self, node: Node | Target, action: Callable[[], pa.Table]) -> pa.Table:
        try:
            with quiet():
                return action()
        except SparkFailure as error:
            raise _failed(self._flow, node, reason_of(error)) from error

    def _sift(self, trial: _Trial, table: pa.Table) -> list[_Made]:
        """Return what was made of the rows that pass, halving until the rows that fail stand alone."""
        if not table.num_rows:
            return []
        given = replace(trial.given, frame=self._child.createDataFrame(table, trial.schema.toNullable()))
        try:
            with quiet():
                made = trial.make(given)
                frame = frame_of(made.rows())
                return [_Made(made, frame.schema, self._taken(frame))]
        except SparkFailure as error:
            raise_if_given_up(error)
            if table.num_rows == 1:
                self._bury(trial, given, reason_of(error), image_of(table))
                return []
        middle = table.num_rows // 2
        return self._sift(trial, _part(table, 0, middle)) + self._sift(trial, _part(table, middle, table.num_rows))

    def _bury(self, trial: _Trial, given: Signed, reason: str, image: bytes) -> None:
        (row,) = frame_of(noted(given, with_row=True)).toArrow().to_pylist()
        self._failed.take([DeadLetter(trial.step, trial.origin, reason, row[JOB], row[WEIGHT], row[ROW], image)])
        if len(self._failed) > self._failed.found_max:
            raise self._failed.too_many()

    def _local(self, made: list[_Made]) -> Signed | None:
        rows = [part for part in made if part.table.num_rows]
        if not rows:
            return None
        table = pa.concat_tables([part.table for part in rows])
        return replace(rows[0].signed, frame=self._child.createDataFrame(table, rows[0].schema.toNullable()))


def _part(table: pa.Table, begin: int, end: int) -> pa.Table:
    """Return some of the rows, copied: PySpark cannot take a slice whose lists or maps are nested and have nulls."""
    return table.take(pa.array(range(begin, end), pa.int64()))


@dataclass(frozen=True)
class _Trial:
    step: str
    origin: str
    given: Signed
    schema: StructType
    make: RowStep


@dataclass(frozen=True)
class _Made:
    signed: Signed
    schema: StructType
    table: pa.Table


def _failed(flow: str, node: Node | Target, reason: str) -> StepFailed:
    """Return the error for a step of which no single row can be blamed; arguments of measures are computed before, so what overflows in one is a total."""
    match node:
        case Aggregate(measures=measures):
            # An average is never cast to another type than that of decimals, which fails in other words.
            functions = ("sum",) if "[CAST_OVERFLOW" in reason else ("sum", "avg")
            totals = [f"{one.name} = {one.function}({one.expression})" for one in measures if one.function in functions]
        case Target(additive=additive):
            totals = [f"{name} of table {node.table!r}" for name in additive]
        case _:
            totals = []
    if not totals or not _OVERFLOW.search(reason):
        return StepFailed(flow=flow, origin=str(node.origin), reason=reason)
    # Spark's way out, a function that gives null, cannot be put into a sum.
    said = f"{' or '.join(totals)}: {in_short(reason).split('; try_', 1)[0]}"
    return TotalTooLarge(flow=flow, origin=str(node.origin), reason=said)


def raise_if_given_up(error: Exception) -> None:
    """Raise `DrainGivenUp` if that is why Spark failed; a group that is not ours may be cancelled by anybody, and its drain is tried again."""
    if _GIVEN_UP in str(error):
        raise DrainGivenUp from error


def reason_of(error: Exception) -> str:
    """Return what went wrong in one line: of a user's function what stands below its trace, else what Spark says."""
    text = str(error)
    if "Traceback (most recent call last)" in text:
        inner = text.split("Traceback (most recent call last)")[-1].split("\n\tat ")[0].split("JVM stacktrace")[0]
        # Frames are indented; what is raised begins behind the last of them, and may go on for several lines.
        below = inner.rpartition('\n  File "')[2].splitlines()[1:]
        text = "\n".join(dropwhile(lambda line: line.startswith(" ") or not line.strip(), below)) or text
    else:
        text = told_by_java(text).split("\nJVM stacktrace", 1)[0].split("== SQL", 1)[0].split("== DataFrame", 1)[0]
    # What differs from task to task goes before anything is cut off: the row comes in one and goes in another, for the same reason.
    text = without_task(" ".join(text.split())).replace("\0", "\\u0000")  # a value is quoted as it is, and not every store holds that
    return text if len(text) <= _REASON_MAX else f"{text[: _REASON_MAX - 3]}..."
