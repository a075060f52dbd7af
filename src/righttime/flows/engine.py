"""The engine of a flow: prepared jobs in, lines of its targets out, and the operators' state kept.

In: jobs with their inputs.
Out: what each job does to each target.
Promise: state is on disk before a job of the drain can be published; state of jobs that were never published for good is dropped on start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import SparkSession

from righttime.changes.faults import CrashPoint, reach
from righttime.flows.inputs import inputs_of, spans_in, tables_in
from righttime.flows.jobs import FlowJob
from righttime.flows.letters import FIRSTS, IMAGES, PART, STEP, LetterBook
from righttime.pipeline.again import Again
from righttime.pipeline.analysis import Analysed
from righttime.pipeline.careful import GROUP, SparkFailure
from righttime.pipeline.collecting import TooMuchOutput
from righttime.pipeline.execute import DrainResult, Room, run_drain, run_planned
from righttime.pipeline.filed import lines_of
from righttime.pipeline.limits import CheckStorable
from righttime.pipeline.operators.query import Reach
from righttime.pipeline.planned import DoesNotFit, PlannedDrains
from righttime.pipeline.reach import TASK_BYTES, TooMuchState
from righttime.pipeline.sought import sought_columns
from righttime.pipeline.spans import Spans
from righttime.pipeline.spark import SparkOwner
from righttime.pipeline.states import StateStore
from righttime.telemetry import get_log

log = get_log("drain")

_FILES_MAX = 16  # of a part
_DRAINS_MAX = 128  # that a flow may open a manifest for when it starts
_POOL = "righttime-drains"
_PLAN_FAILURES_MAX = 3


class DrainEngine:
    """Drains of one flow on Spark, one at a time."""

    def __init__(
        self,
        analysed: Analysed,
        spark: SparkOwner,
        *,
        streams: Mapping[str, pa.Schema],
        folder: Path,
        scratch: Path,
        last_job: int,
        letters_max: int,
        anew: bool = False,
        plans_serve_again: bool = True,
        check: CheckStorable | None = None,
        output_rows_max: int = 1_000_000,
    ) -> None:
        """Go on with the state in a folder as it was after the last job; with `anew`, with none, whatever a crash has left there.

        `check` refuses what the store of the targets could never hold: such rows are dead letters. More output than `output_rows_max` rows is in files.
        """
        self._analysed = analysed
        self._spark = spark
        self._child: SparkSession | None = None
        self._group = f"{GROUP}{uuid4().hex}"  # of Spark jobs
        self._streams = streams  # columns of the stored changes
        self._scratch = scratch
        self._states = StateStore(folder, analysed.fingerprint, flow=analysed.flow.name, anew=anew, sought=sought_columns(analysed))
        self._states.forget_after(last_job)
        self._room = Room(output_rows_max, self._states.staging)
        self._plans = PlannedDrains(analysed, spark, self._states, streams=streams, folder=scratch, rows_max=output_rows_max)
        self._plan_failures = 0 if plans_serve_again else _PLAN_FAILURES_MAX  # in a row, of drains that went well by themselves
        # Counted by whoever drains; who sums up notes how far they were.
        self._drains = _DRAINS_MAX  # files of earlier runs are summed up after the first drain
        self._readers = 0  # plans that were made, each for whatever is there by then
        self._summed = (0, 0)
        self._letters_max = letters_max
        self._check = check
        self._letters = self._no_letters()
        kept = self._states.frame(spark.child(), STEP, PART)
        if kept is not None:
            self._letters.load(kept.toArrow())
        for part, load in ((FIRSTS, self._letters.load_firsts), (IMAGES, self._letters.load_images)):
            rows = self._states.table(STEP, part)
            if rows is not None:
                load(rows)

    def drain(self, jobs: Sequence[FlowJob]) -> Drained:
        """Compute what these jobs do, in one Spark job, and keep the state they leave. Only the first may have dead letters to try again."""
        child = self._session()
        child.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)  # of this thread; without fair scheduling it says nothing
        child.sparkContext.setLocalProperty("spark.jobGroup.id", self._group)
        numbers = range(jobs[0].number, jobs[-1].number + 1)
        plans = self._plans.made
        replay = jobs[0].replay
        retried = self._letters.again(replay.ids, job=numbers[0]) if replay is not None else None
        again = retried is not None and retried.rows
        result = self._by_itself(child, jobs, numbers, {}, again=again) if again else self._result(child, jobs, numbers)
        reach(CrashPoint.JOB_COMPUTED)
        failed = result.dead_letters
        if replay is not None and retried is not None:
            replay.passed, replay.unknown = retried.passed(failed), retried.unknown
            failed = retried.with_them(failed)
        try:
            letters, kept = self._letters.take(failed, result.targets, {job.number: job.part_of for job in jobs if job.part_of is not None})
            noted = {(STEP, PART): kept, (STEP, IMAGES): self._letters.kept_images(), (STEP, FIRSTS): self._letters.kept_firsts()}
            self._states.append(numbers[0], numbers[-1], {**result.states, **{name: rows for name, rows in noted.items() if rows.num_rows}})
        except BaseException:
            result.close()
            raise
        self._drains += 1
        self._readers += self._plans.made - plans
        return Drained(result, self._letters.table.name, letters)

    def _result(self, child: SparkSession, jobs: Sequence[FlowJob], numbers: range) -> DrainResult:
        """Run a small drain by a plan, any other by itself; one whose plan fails, too."""
        changes, spans = tables_in(jobs), spans_in(jobs)
        if changes is None or sum(rows.nbytes for rows in changes.values()) > TASK_BYTES or self._plan_failures == _PLAN_FAILURES_MAX:
            return self._by_itself(child, jobs, numbers, spans)
        try:
            planned = run_planned(self._analysed, self._plans, changes, numbers, spans=spans, dead_letters_max=self._letters_max, check=self._check)
        except DoesNotFit:
            return self._by_itself(child, jobs, numbers, spans)
        except TooMuchState:
            return self._by_itself(child, jobs, numbers, spans, reach="sent")
        except TooMuchOutput:
            return self._by_itself(child, jobs, numbers, spans, is_large=True)
        if planned is not None:
            self._plan_failures = 0
            return planned
        result = self._by_itself(child, jobs, numbers, spans)
        if not result.careful:  # so it was not for a row
            self._plan_failures += 1
            log.warning("drain.plan_failed", flow=self._analysed.flow.name, times=self._plan_failures, given_up=self._plan_failures == _PLAN_FAILURES_MAX)
        return result

    def _by_itself(
        self,
        child: SparkSession,
        jobs: Sequence[FlowJob],
        numbers: range,
        spans: Mapping[str, Spans],
        *,
        reach: Reach | None = None,
        is_large: bool = False,
        again: Again | None = None,
    ) -> DrainResult:
        self._readers += 1
        with inputs_of(self._spark, child, self._streams, jobs, folder=self._scratch, flow=self._analysed.flow.name) as inputs:
            return run_drain(
                self._analysed,
                child,
                inputs,
                self._states,
                numbers,
                spans=spans,
                dead_letters_max=self._letters_max,
                reach=reach,
                check=self._check,
                room=self._room,
                is_large=is_large,
                again=again,
            )

    def give_up(self) -> None:
        """Cancel the drain under way, and every later one: it raises `DrainGivenUp`, and has changed nothing."""
        try:
            if self._child is not None and (context := self._child.sparkContext._jsc) is not None:
                java: Any = context
                java.sc().cancelJobGroupAndFutureJobs(self._group)  # planning goes on until it asks for the next job
        except SparkFailure as error:  # then it comes to its end by itself
            log.warning("drain.not_given_up", flow=self._analysed.flow.name, error=repr(error))

    def forget(self) -> None:
        """Begin again from nothing."""
        self._states.clear()
        self._letters = self._no_letters()

    def _no_letters(self) -> LetterBook:
        flow = self._analysed.flow
        return LetterBook(flow.name, {f"into_{target.table}": target.keys for target in flow.targets}, letters_max=self._letters_max)

    def _session(self) -> SparkSession:
        """Return the session of all drains: what it knows of state that does not change need not be found out again."""
        if self._child is None or self._child.sparkContext is not self._spark.session().sparkContext:
            self._child = self._spark.child()
        return self._child

    @property
    def is_scattered(self) -> bool:
        """Whether state has come to so many files that reading them costs more than summing them up. A plan that serves again reads no new ones."""
        drains, readers = self._summed
        return self._readers - readers >= _FILES_MAX or self._drains - drains >= _DRAINS_MAX

    def compact(self, up_to_job: int) -> None:
        """Sum up state that has come to many files, of jobs that are durable."""
        counted = (self._drains, self._readers)
        self._states.compact(up_to_job, files_max=_FILES_MAX // 2)
        self._summed = counted


class Drained:
    """What a drain made, job by job."""

    def __init__(self, result: DrainResult, letters_table: str, letters: Mapping[int, pa.Table]) -> None:
        self.result = result
        self._letters_table = letters_table
        self._letters = letters

    def unmet(self, number: int) -> dict[str, int]:
        """Return how many rows of a job did not meet each expectation; those of one name are counted together."""
        counts: Counter[str] = Counter()
        for each in self.result.expectations:
            if each.job == number:
                counts[each.name] += each.rows
        return dict(counts)

    def of_job(self, number: int) -> Iterator[tuple[str, pa.Table]]:
        """Yield the lines of each target that the job changes, in one table or in several."""
        for table, lines in self.result.targets.items():
            yield from ((table, some) for some in lines_of(lines, number))
        if number in self._letters:
            yield self._letters_table, self._letters[number]

    def close(self) -> None:
        """Let go of what is in files."""
        self.result.close()
