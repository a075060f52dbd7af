"""One drain: many jobs of a flow in one Spark action.

In: an analysed flow, changes of its streams tagged with job numbers, state of earlier drains.
Out: for each target the lines of each job, rows to append to state, dead letters, counts of unmet expectations.
Promise: nothing is published or kept here; a drain that raises has changed nothing, and running it again gives the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from righttime.changes.schema import TableSchema
from righttime.errors.flows import ExpectationFailed, KeyTwice, LookupFailed, StepFailed
from righttime.pipeline.analysis import Analysed
from righttime.pipeline.careful import Careful, SparkFailure, reason_of
from righttime.pipeline.collecting import collect
from righttime.pipeline.failed import DeadLetter, FailedRows
from righttime.pipeline.guard import Guard, Trusting
from righttime.pipeline.limits import CheckStorable, TableLimits
from righttime.pipeline.nodes import Expect, Lookup, Target
from righttime.pipeline.operators.query import Reach, writing
from righttime.pipeline.operators.signed import JOB, WEIGHT
from righttime.pipeline.operators.target import CLASH, DELETE, OPERATION, UPDATE
from righttime.pipeline.plan import Output, Plan
from righttime.pipeline.planned import Found, PlannedDrains
from righttime.pipeline.reach import States, TooMuchState, Watched, reach_of, set_up
from righttime.pipeline.shared import Inputs
from righttime.pipeline.spans import Spans
from righttime.pipeline.stateless import ROW
from righttime.pipeline.translate import quiet
from righttime.telemetry import get_log

log = get_log("drain")

NOT_FOUND = "the look-up has no row with this key"
_NULL = "a null in a NOT NULL column of table {!r}"


@dataclass(frozen=True)
class Unmet:
    """How many rows that a job brought did not meet an expectation."""

    step: str
    name: str
    job: int
    rows: int


@dataclass(frozen=True)
class DrainResult:
    """What a drain gives. Targets: `_job`, `_op` (see `operators/target.py`), then the table's columns. States by step and part. `careful`: rows failed."""

    targets: Mapping[str, pa.Table]
    states: Mapping[tuple[str, str], pa.Table]
    dead_letters: pa.Table
    expectations: tuple[Unmet, ...]
    careful: bool = False


def run_drain(
    analysed: Analysed,
    child: SparkSession,
    inputs: Inputs,
    states: States,
    jobs: range,
    *,
    spans: Mapping[str, Spans] | None = None,
    dead_letters_max: int = 10_000,
    reach: Reach | None = None,
    check: CheckStorable | None = None,
) -> DrainResult:
    """Run the jobs of one drain and return what they give; the frames of `inputs` have `_job`, `_w` and the system columns of streams.

    `spans` tells of streams between which values the columns of their changes lie; `reach` is chosen by their size if it is not given; `check` refuses what
    the store of the targets could never hold.

    Raises `ExpectationFailed`, `LookupFailed` and `KeyTwice` with the first job concerned, `TooManyDeadLetters`, `StepFailed`.
    """
    flow = analysed.flow
    results, failed = _Results(analysed, check), FailedRows(flow.name, jobs, letters_max=dead_letters_max)
    work = _Work(analysed, child, inputs, states, jobs, spans or {})
    try:
        with quiet():
            return results.of(work.run(reach or reach_of(inputs.values())), failed)
    except SparkFailure as error:
        log.info("drain.careful", flow=flow.name, jobs=len(jobs), reason=reason_of(error))
    guard = Careful(flow.name, child, failed)
    try:
        with quiet():
            found = work.run("sent", guard)
    except SparkFailure as error:
        raise StepFailed(flow=flow.name, origin=str(flow.origin), reason=reason_of(error)) from error
    return results.of(found, failed)


def run_planned(
    analysed: Analysed,
    plans: PlannedDrains,
    changes: Mapping[str, pa.Table],
    jobs: range,
    *,
    spans: Mapping[str, Spans],
    dead_letters_max: int = 10_000,
    check: CheckStorable | None = None,
) -> DrainResult | None:
    """Run a small drain by a plan that is there, or is there from now on; None if it has to be run by itself because it fails.

    Raises `TooMuchState` and `DoesNotFit` if there is too much for a small drain.
    """
    try:
        with quiet():
            found = plans.run(changes, jobs, spans=spans)
    except SparkFailure as error:
        log.info("drain.failed", flow=analysed.flow.name, jobs=len(jobs), reason=reason_of(error))
        return None
    return _Results(analysed, check).of(found, FailedRows(analysed.flow.name, jobs, letters_max=dead_letters_max))


@dataclass(frozen=True)
class _Work:
    analysed: Analysed
    child: SparkSession
    inputs: Inputs
    states: States
    jobs: range
    spans: Mapping[str, Spans]

    def run(self, reach: Reach, guard: Guard | None = None) -> Found:
        """Plan the drain and run it."""
        states = Watched(self.states) if reach == "task" else self.states
        plan = Plan(self.analysed, self.child, self.inputs, states, self.jobs, guard or Trusting(), reach=reach, spans=self.spans)
        try:
            with set_up(self.child, reach), writing(self.child):
                outputs = plan.build()
                columns = [output.column(place) for place, output in enumerate(outputs)]
                return list(zip(outputs, collect([output.frame for output in outputs], columns), strict=True))
        except TooMuchState:
            return self.run("sent")
        finally:
            plan.shared.close()


class _Results:
    """Turns collected outputs into what the caller gets."""

    def __init__(self, analysed: Analysed, check: CheckStorable | None) -> None:
        self._analysed = analysed
        self._check = check

    def of(self, found: Found, failed: FailedRows) -> DrainResult:
        """Return it, with the rows that have failed so far and those that the outputs tell of."""
        careful = len(failed) > 0
        unmet = self._expectations(found)
        missing = [letter for output, table in found if output.kind == "dead_letter" for letter in self._missing(output, table)]
        targets = {}
        for output, table in found:
            if output.kind == "no_key":
                missing += self._without_key(output.step, table)
            elif output.kind == "target":
                targets[output.step], unstorable = self._storable(output.step, table, failed)
                missing += unstorable
        failed.take(missing)
        return DrainResult(
            targets={table: lines for table, lines in targets.items() if lines.num_rows},
            states={(output.step, output.part): table for output, table in found if output.kind == "state" and table.num_rows},
            dead_letters=failed.table(),
            expectations=tuple(unmet),
            careful=careful,
        )

    def _expectations(self, found: Found) -> list[Unmet]:
        unmet = []
        for output, table in found:
            if output.kind != "expectation" or not table.num_rows:
                continue
            node = self._analysed.nodes[output.step]
            assert isinstance(node, Expect)
            # What came and went within a job did not come.
            table = _net(table)
            counts = table.group_by(JOB).aggregate([(WEIGHT, "sum")]).sort_by(JOB).to_pylist()
            unmet += [Unmet(output.step, node.name, count[JOB], count[f"{WEIGHT}_sum"]) for count in counts]
            if node.otherwise == "fail" and counts:
                job, rows = counts[0][JOB], counts[0][f"{WEIGHT}_sum"]
                raise ExpectationFailed(
                    flow=self._analysed.flow.name,
                    job=job,
                    rows=rows,
                    name=node.name,
                    condition=node.condition,
                    origin=node.origin,
                    example=_example(table, job),
                )
        return unmet

    def _missing(self, output: Output, table: pa.Table) -> Iterable[DeadLetter]:
        node = self._analysed.nodes[output.step]
        assert isinstance(node, Lookup)
        came = _net(table)
        if node.missing == "fail" and came.num_rows:
            job = pc.min(came.column(JOB)).as_py()
            rows = pc.sum(came.filter(pc.equal(came.column(JOB), job)).column(WEIGHT)).as_py()
            raise LookupFailed(flow=self._analysed.flow.name, job=job, rows=rows, origin=node.origin, example=_example(came, job))
        if node.missing == "fail":
            return []
        return [DeadLetter(output.step, str(node.origin), NOT_FOUND, row[JOB], row[WEIGHT], row[ROW]) for row in table.to_pylist()]

    def _storable(self, name: str, lines: pa.Table, failed: FailedRows) -> tuple[pa.Table, list[DeadLetter]]:
        """Return the lines as the table takes them, and as dead letters those that it cannot hold; a bad row still ends the one before it."""
        target = self._target(name)
        self._check_clash(target, lines)
        fitted = self._fitted(target, lines)
        table = TableSchema(name, self._analysed.tables[name], target.keys, self._analysed.partitions[name])
        limits = TableLimits(table, self._check, found_max=failed.found_max)
        operations = fitted.column(OPERATION)
        no_key, no_row = limits.refused_keys(fitted), limits.refused_rows(fitted, pc.not_equal(operations, DELETE))
        bad = no_row | no_key
        if not bad:
            return fitted, []
        letters = [self._unstorable(target, line, reason) for line, reason in zip(_at(fitted, bad).to_pylist(), bad.values(), strict=True)]
        if len(bad) > failed.found_max:
            failed.take(letters)
            raise failed.too_many()
        ended = _at(fitted, [place for place in no_row if place not in no_key and operations[place].as_py() == UPDATE])
        ended = ended.set_column(1, fitted.schema.field(1), pa.repeat(pa.scalar(DELETE, fitted.schema.field(1).type), ended.num_rows))
        good = fitted.filter(pa.array([place not in bad for place in range(fitted.num_rows)]))
        return pa.concat_tables([good, ended]), letters

    def _fitted(self, target: Target, lines: pa.Table) -> pa.Table:
        schema = self._analysed.tables[target.table]
        columns = [lines.column(name) for name in (JOB, OPERATION)]
        try:
            columns += [
                lines.column(field.name).cast(field.type) if field.name in lines.column_names else pa.nulls(lines.num_rows, field.type) for field in schema
            ]
        except pa.ArrowInvalid as error:
            raise StepFailed(flow=self._analysed.flow.name, origin=str(target.origin), reason=f"a total does not fit into its column: {error}") from error
        fields = [lines.schema.field(JOB), lines.schema.field(OPERATION), *(field.with_nullable(True) for field in schema)]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    def _without_key(self, name: str, table: pa.Table) -> list[DeadLetter]:
        """Return the rows without a key as dead letters; not as those of the step itself, of which each key has one."""
        origin, reason = str(self._target(name).origin), _NULL.format(name)
        return [DeadLetter(f"into_{name}.keys", origin, reason, row[JOB], row[WEIGHT], row[ROW]) for row in _summed(table).to_pylist()]

    def _target(self, name: str) -> Target:
        return next(target for target in self._analysed.flow.targets if target.table == name)

    def _unstorable(self, target: Target, line: dict[str, Any], reason: str) -> DeadLetter:
        job, operation = line.pop(JOB), line.pop(OPERATION)
        weight = -1 if operation == DELETE else 1
        return DeadLetter(f"into_{target.table}", str(target.origin), reason, job, weight, json.dumps(line, default=str))

    def _check_clash(self, target: Target, lines: pa.Table) -> None:
        clashes = lines.filter(pc.equal(lines.column(OPERATION), CLASH))
        if not clashes.num_rows:
            return
        first = clashes.sort_by(JOB).slice(0, 1).to_pylist()[0]
        key = {name: first[name] for name in target.keys}
        raise KeyTwice(flow=self._analysed.flow.name, job=first[JOB], table=target.table, key=key, origin=target.origin)


def _net(table: pa.Table) -> pa.Table:
    """Return the rows that are there after their job, with how often."""
    net = _summed(table)
    return net.filter(pc.greater(net.column(WEIGHT), 0))


def _summed(table: pa.Table) -> pa.Table:
    """Return the rows that a job brings or takes, with how often."""
    net = table.group_by([JOB, ROW]).aggregate([(WEIGHT, "sum")]).rename_columns([JOB, ROW, WEIGHT])
    return net.filter(pc.not_equal(net.column(WEIGHT), 0))


def _at(table: pa.Table, places: Iterable[int]) -> pa.Table:
    return table.take(pa.array(list(places), pa.int64()))


def _example(table: pa.Table, job: int) -> str:
    return str(table.filter(pc.equal(table.column(JOB), job)).column(ROW)[0].as_py())
