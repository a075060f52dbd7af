"""Histories of changing sets, cut into jobs and drains, and how to run an operator over them.

In: changes as tuples, an operator, a grouping of jobs into drains.
Out: everything that the operator gave, over all drains, with `_job`.
Promise: what one drain left as state is all that the next one knows.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from righttime.pipeline.operators.query import Reach
from righttime.pipeline.operators.signed import Signed
from righttime.pipeline.spark import set_up
from tests.support.quick_java import INTERPRETED

Row = tuple[Any, ...]
Operate = Callable[[Sequence[Signed | None], Mapping[str, DataFrame]], tuple[dict[str, DataFrame | None], dict[str, DataFrame]]]
NOTHING = pa.schema([])
REACHES: tuple[Reach, ...] = ("sent", "task", "shuffled")
SYSTEM = [("_job", pa.int64()), ("_w", pa.int64())]


@dataclass(frozen=True)
class Changes:
    """The changes of one set: (values…, job, weight); `hidden` columns are in the frame, but not part of the rows."""

    schema: pa.Schema
    rows: list[Row]
    hidden: pa.Schema = NOTHING

    def of(self, jobs: range) -> pa.Table:
        """Return the changes of these jobs."""
        schema = pa.schema([*self.schema, *self.hidden, *(pa.field(*one) for one in SYSTEM)])
        some = [row for row in self.rows if row[-2] in jobs]
        return pa.table([pa.array([row[place] for row in some], field.type) for place, field in enumerate(schema)], schema=schema)

    def at(self, job: int) -> Counter[Row]:
        """Return the set after this job."""
        return total((row for row in self.rows if row[-2] <= job), width=len(self.schema))


@dataclass(frozen=True)
class Drains:
    """How jobs are grouped into drains, and how far rows travel in them."""

    groups: list[range]
    reach: Reach = "sent"


def total(rows: Iterable[Row], *, width: int) -> Counter[Row]:
    """Sum up weights by row; rows that come to nothing are not there."""
    sums: Counter[Row] = Counter()
    for row in rows:
        sums[comparable(row[:width])] += row[-1]
    return Counter({row: count for row, count in sums.items() if count})


def comparable(row: Row) -> Row:
    """Return the row with values that Python compares as Spark does: NaN equals NaN, and sums of floats to twelve digits."""
    return tuple(_comparable(value) for value in row)


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value if math.isinf(value) else float(f"{value + 0.0:.12g}") + 0.0
    return value.normalize() + 0 if isinstance(value, Decimal) and value.is_zero() else value


class Runner:
    """Runs operators drain after drain."""

    def __init__(self, child: SparkSession) -> None:
        self.child = child

    def run(self, inputs: Sequence[Changes], drains: Drains, operate: Operate) -> dict[str, list[Row]]:
        """Return the rows of each output over all drains."""
        kept: dict[str, list[pa.Table]] = {}
        given: dict[str, list[Row]] = {}
        for jobs in drains.groups:
            deltas = [self.signed(changes, jobs, drains.reach) for changes in inputs]
            state = {part: self.frame(pa.concat_tables(tables), drains.reach) for part, tables in kept.items()}
            outputs, parts = operate(deltas, state)
            there = {name: frame for name, frame in outputs.items() if frame is not None}
            tables = self._collect([*there.values(), *parts.values()])
            for name, table in zip(there, tables, strict=False):
                given.setdefault(name, []).extend(rows_of(table))
            for part, table in zip(parts, tables[len(there) :], strict=True):
                kept.setdefault(part, []).append(table)
        return given

    def _collect(self, frames: Sequence[DataFrame]) -> list[pa.Table]:
        """Return the rows of all frames, from one Spark action."""
        if not frames:
            return []
        tagged = []
        for tag, frame in enumerate(frames):
            # Together with no rows of nullable columns, all columns may be null, as they are in lines of other tags.
            nullable = frame.unionAll(self.child.createDataFrame([], frame.schema.toNullable()))
            tagged.append(nullable.select(F.lit(tag).alias("tag"), F.struct("*").alias(f"row_{tag}")))
        every = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), tagged).toArrow()
        return [pa.Table.from_struct_array(every.filter(pc.equal(every["tag"], tag))[f"row_{tag}"]) for tag in range(len(frames))]

    def signed(self, changes: Changes, jobs: range, reach: Reach) -> Signed | None:
        """Return the changes of these jobs as an operator takes them."""
        table = changes.of(jobs)
        return Signed(self.frame(table, reach), tuple(changes.schema.names), reach) if table.num_rows else None

    def frame(self, table: pa.Table, reach: Reach) -> DataFrame:
        """Return a frame over the rows of a table."""
        frame = self.child.createDataFrame(table)
        return frame.coalesce(1) if reach == "task" else frame


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of a table as tuples."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True)) if table.num_rows else []


def drainings(jobs_max: int) -> st.SearchStrategy[Drains]:
    """Return ways to run the jobs 1 to `jobs_max` in two or three drains; what one alone gives is seen in the first of them."""
    cuts = st.lists(st.integers(2, jobs_max), min_size=1, max_size=2, unique=True).map(sorted)
    groups = cuts.map(lambda at: [range(begin, end) for begin, end in zip([1, *at], [*at, jobs_max + 1], strict=True)])
    return st.builds(Drains, groups, st.sampled_from(REACHES))


def histories(schema: pa.Schema, values: st.SearchStrategy[Row], *, jobs_max: int, size: int = 24) -> st.SearchStrategy[Changes]:
    """Return changes of a multiset: rows come, some of them several times, and living ones go, in random jobs."""
    step = st.tuples(st.integers(0, jobs_max - 1), values, st.sampled_from([1, 1, 1, 2, -1, -1, -1, -3]))
    # Few examples are tried, since each takes a second: none of them is small.
    steps = st.lists(step, min_size=size // 2, max_size=size).filter(in_several_jobs)
    return steps.map(lambda chosen: Changes(schema, _possible(sorted(chosen, key=lambda one: one[0]))))


def in_several_jobs(steps: Sequence[tuple[Any, ...]]) -> bool:
    """Say whether steps, each with its job in front, are a history. Hypothesis begins with the simplest, all in one job: it would be half of the examples."""
    return len({step[0] for step in steps}) > 1


def _possible(steps: list[tuple[int, Row, int]]) -> list[Row]:
    """Turn steps into changes: what goes is a row that is there."""
    living: Counter[Row] = Counter()
    rows: list[Row] = []
    for job, row, weight in steps:
        if weight < 0:
            there = [one for one in living if living[one] > 0]
            if not there:
                continue
            row = row if living[row] > 0 else there[len(rows) % len(there)]
            weight = -min(-weight, living[row])
        living[row] += weight
        rows.append((*row, job + 1, weight))
    return rows


def session(child: SparkSession) -> SparkSession:
    """Return the session, set up for many short plans."""
    return set_up(child, {**INTERPRETED, "spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "2"})


def compare_every_job(found: Iterable[Row], expected: Callable[[int], Counter[Row]], *, jobs_max: int, width: int) -> None:
    """The changes up to each job add up to what the model says for it."""
    rows = list(found)
    for job in range(jobs_max + 1):
        assert total((row for row in rows if row[-2] <= job), width=width) == expected(job), f"at job {job}"
