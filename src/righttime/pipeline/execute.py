"""One drain: many jobs of a flow in one Spark action.

In: an analysed flow, changes of its streams tagged with job numbers, state of earlier drains.
Out: for each target the lines of each job, rows to append to state, dead letters, counts of unmet expectations.
Promise: nothing is published or kept here; a drain that raises has changed nothing, and running it again gives the same. What is more than memory should hold
is in files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from righttime.errors.flows import DrainTooLarge, StepFailed
from righttime.pipeline.again import Again
from righttime.pipeline.analysis import Analysed
from righttime.pipeline.careful import Careful, SparkFailure, raise_if_given_up, reason_of
from righttime.pipeline.collecting import TooMuchOutput, collect
from righttime.pipeline.failed import FailedRows
from righttime.pipeline.filed import filed
from righttime.pipeline.guard import Guard, Trusting
from righttime.pipeline.limits import CheckStorable
from righttime.pipeline.operators.query import Reach, writing
from righttime.pipeline.plan import Output, Plan
from righttime.pipeline.planned import PlannedDrains
from righttime.pipeline.reach import States, TooMuchState, Watched, one_task, reach_of, set_up
from righttime.pipeline.results import DrainResult, Found, Results, Unmet
from righttime.pipeline.shared import Inputs
from righttime.pipeline.spans import Spans
from righttime.pipeline.translate import quiet
from righttime.telemetry import get_log

__all__ = ["DrainResult", "Room", "Unmet", "run_drain", "run_planned"]

log = get_log("drain")


@dataclass(frozen=True)
class Room:
    """How many rows of output the driver takes at once, and who makes a folder for more than that."""

    rows_max: int
    folder: Callable[[], Path]


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
    room: Room | None = None,
    is_large: bool = False,
    again: Again | None = None,
) -> DrainResult:
    """Run the jobs of one drain and return what they give; the frames of `inputs` have `_job`, `_w` and the system columns of streams.

    `spans` tells of streams between which values the columns of their changes lie; `reach` is chosen by their size if it is not given; `check` refuses what
    the store of the targets could never hold. `is_large` says that the output is known to be more than there is `room` for. `again` has rows that steps
    could not take before; nothing is known of their spans.

    Raises `ExpectationFailed`, `LookupFailed` and `KeyTwice` with the first job concerned, `TooManyDeadLetters`, `StepFailed`, `DrainTooLarge`.
    """
    flow, failed = analysed.flow, FailedRows(analysed.flow.name, jobs, letters_max=dead_letters_max)
    work = _Work(analysed, child, inputs, states, jobs, {} if again else spans or {}, room, again or {})
    try:
        with quiet():
            ran = work.run_anyhow(reach or reach_of(inputs.values()), is_large=is_large)
    except SparkFailure as error:
        raise_if_given_up(error)
        log.info("drain.careful", flow=flow.name, jobs=len(jobs), reason=reason_of(error))
        ran = _run_carefully(work, Careful(flow.name, child, failed, rows_max=None if room is None else room.rows_max))
    try:
        return Results(analysed, check, folder=ran.folder).of(ran.found, failed)
    except BaseException:
        ran.drop()
        raise


def _run_carefully(work: _Work, guard: Careful) -> _Ran:
    flow, jobs = work.analysed.flow, work.jobs
    try:
        with quiet():
            return work.run("sent", guard)
    except SparkFailure as error:
        raise StepFailed(flow=flow.name, origin=str(flow.origin), reason=reason_of(error)) from error
    except TooMuchOutput as error:
        bound = "without a bound" if work.room is None else work.room.rows_max
        raise DrainTooLarge(flow=flow.name, jobs=f"{jobs.start} to {jobs.stop - 1}", bound=bound) from error


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

    Raises `TooMuchState` and `DoesNotFit` if there is too much for a small drain, and `TooMuchOutput` if too much comes of it.
    """
    try:
        with quiet():
            found = plans.run(changes, jobs, spans=spans)
    except SparkFailure as error:
        raise_if_given_up(error)
        log.info("drain.failed", flow=analysed.flow.name, jobs=len(jobs), reason=reason_of(error))
        return None
    return Results(analysed, check).of(found, FailedRows(analysed.flow.name, jobs, letters_max=dead_letters_max))


@dataclass(frozen=True)
class _Ran:
    """What came of a run, and the folder that it is in, if it is in files."""

    found: Found
    folder: Path | None = None

    def drop(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class _Work:
    analysed: Analysed
    child: SparkSession
    inputs: Inputs
    states: States
    jobs: range
    spans: Mapping[str, Spans]
    room: Room | None
    again: Again

    def run_anyhow(self, reach: Reach, *, is_large: bool) -> _Ran:
        """Run the drain, into memory if its output has room there."""
        try:
            if not is_large:
                return self.run(reach)
        except TooMuchOutput:
            log.info("drain.large", flow=self.analysed.flow.name, jobs=len(self.jobs))
        # Nothing is sent whole to all executors: what comes of a few changes may be as large as any state.
        return self.run("shuffled", in_files=True)

    def run(self, reach: Reach, guard: Guard | None = None, *, in_files: bool = False) -> _Ran:
        """Plan the drain and run it; raises `TooMuchOutput`. Behind a guard, which has looked at all of it before, it goes into files then."""
        states = Watched(self.states) if reach == "task" else self.states
        plan = Plan(self.analysed, self.child, self.inputs, states, self.jobs, guard or Trusting(), reach=reach, spans=self.spans, again=self.again)
        try:
            with set_up(self.child, one_task(self.analysed.nodes.values()) if reach == "task" else {}), writing(self.child):
                outputs = plan.build()
                columns = [output.column(place) for place, output in enumerate(outputs)]
                try:
                    return self._file(outputs, columns) if in_files else self._collect(outputs, columns)
                except TooMuchOutput:
                    if guard is None:
                        raise
                    return self._file(outputs, columns)
        except TooMuchState:
            return self.run("sent")
        finally:
            plan.shared.close()

    def _collect(self, outputs: Sequence[Output], columns: Sequence[str]) -> _Ran:
        tables = collect([output.frame for output in outputs], columns, rows_max=None if self.room is None else self.room.rows_max)
        return _Ran(list(zip(outputs, tables, strict=True)))

    def _file(self, outputs: Sequence[Output], columns: Sequence[str]) -> _Ran:
        if self.room is None:
            raise TooMuchOutput
        folder = self.room.folder()
        try:
            return _Ran(list(zip(outputs, filed(outputs, columns, folder), strict=True)), folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
