"""Small drains by plans that were made before: planning takes Spark longer than running them.

In: the changes of a drain as Arrow tables, and the state of its flow.
Out: what the drain gives.
Promise: a plan is run again only if a new one would be the same but for the changes themselves: changes in the same streams, and the same files of state or
some of them; and one that was made for few changes, where their number matters, only for few.
What follows from the changes or from other outputs is not computed by Spark; small dimensions stay in its memory as long as a plan.

A plan reads its changes from files whose names stay. Spark lists them when it plans, and opens them when it runs; so they are planned as large as they may
ever be, and hold the changes of one drain as long as it runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from righttime.pipeline.analysis import Analysed
from righttime.pipeline.collecting import bounded, run_union, tagged_union, untagged
from righttime.pipeline.guard import Trusting
from righttime.pipeline.jvm import java_class
from righttime.pipeline.kept import Read
from righttime.pipeline.nodes import AsOf
from righttime.pipeline.nullable import arrow_columns
from righttime.pipeline.operators.query import frame_of, writing
from righttime.pipeline.operators.signed import JOB
from righttime.pipeline.plan import Output, Plan
from righttime.pipeline.reach import MIB, TASK_BYTES, Watched, one_task
from righttime.pipeline.shared import rdd_of
from righttime.pipeline.spans import Spans
from righttime.pipeline.spark import SparkOwner, scan_files, set_up
from righttime.pipeline.states import Files, StateStore
from righttime.warehouse.durable import remove_quietly

_PLANS_MAX = 4
_FILE_BYTES = TASK_BYTES + 16 * MIB  # Parquet may take more than Arrow, by its pages and footers
_ONCE = ("Exchange", "Subquery", "InMemoryTableScan")  # how the names of such steps end
_MAYBE_ONCE = re.compile("|".join(_ONCE), re.IGNORECASE)
_FEW = 256  # rows of changes: with more of them, comparing all with all may take longer than planning what does not
_SPARE_ROWS = 1_000_000  # of state that a plan may read in vain until planning anew is cheaper
_numbers = count(1)


class DoesNotFit(Exception):
    """The changes of a drain need larger files than plans are made for."""


Found = list[tuple[Output, pa.Table]]
_Seen = tuple[bool | Files, ...]


class PlannedDrains:
    """The plans of one flow, the last used ones; one drain at a time. `folder` is for the changes."""

    def __init__(
        self, analysed: Analysed, spark: SparkOwner, states: StateStore, *, streams: Mapping[str, pa.Schema], folder: Path, rows_max: int | None = None
    ) -> None:
        self._analysed = analysed
        self._rows_max = rows_max  # of output
        self._spark = spark
        self._states = states
        self._streams = streams
        self._folder = folder
        self._session: SparkSession | None = None
        self._plans: list[PlannedDrain] = []  # last used last
        self._compares = any(isinstance(node, AsOf) for node in analysed.nodes.values())
        self.made = 0

    def run(self, changes: Mapping[str, pa.Table], jobs: range, *, spans: Mapping[str, Spans]) -> Found:
        """Run the jobs of one drain, by a plan that fits or by a new one; raises as Spark does, `TooMuchState` and `TooMuchOutput`."""
        session = self._ready_session()
        few = self._compares and sum(rows.num_rows for rows in changes.values()) <= _FEW
        plan = self._fitting([plan for plan in self._plans if few or not plan.few], changes, spans)
        if plan is None:
            last = next((plan for plan in reversed(self._plans) if plan.streams == changes.keys()), None)
            again = last is None or last.runs > 1  # as the last one of its kind did
            plan = PlannedDrain(
                self._analysed, session, self._states, self._folder, self._streams, set(changes), jobs, spans, self._rows_max, serves_again=again, few=few
            )
            self.made += 1
        self._plans = [other for other in self._plans if other is not plan]
        try:
            found = plan.run(changes, jobs)
        except BaseException:
            plan.close()  # a failure may leave half of what is shared behind: it is not used again
            raise
        self._plans.append(plan)
        if len(self._plans) > _PLANS_MAX:
            self._plans.pop(0).close()
        return found

    def _fitting(self, plans: Sequence[PlannedDrain], changes: Mapping[str, pa.Table], spans: Mapping[str, Spans]) -> PlannedDrain | None:
        """Return the plan that reads what is needed, or little more. What is read in vain adds up until a new plan pays."""
        nearest, least = None, _SPARE_ROWS + 1
        for plan in reversed(plans):
            spare = plan.spare_rows(self._states, changes, spans)
            if spare is not None and spare < least:
                nearest, least = plan, spare
            if spare == 0:
                break
        if nearest is None:
            return None
        nearest.spared += least
        if nearest.spared <= _SPARE_ROWS or not least:
            return nearest
        nearest.spared = 0
        return None

    def _ready_session(self) -> SparkSession:
        """Return a session that is set up for drains of one task."""
        if self._session is None or self._session.sparkContext is not self._spark.session().sparkContext:
            self._plans.clear()
            self._session = set_up(self._spark.child(), one_task(self._analysed.nodes.values()))
        return self._session


class PlannedDrain:
    """One plan."""

    def __init__(
        self,
        analysed: Analysed,
        session: SparkSession,
        states: StateStore,
        folder: Path,
        streams: Mapping[str, pa.Schema],
        changed: set[str],
        jobs: range,
        spans: Mapping[str, Spans],
        rows_max: int | None = None,
        *,
        serves_again: bool = True,
        few: bool = False,
    ) -> None:
        self.streams, self.few = changed, few
        self._rows_max = rows_max
        self.runs = 0
        self.spared = 0  # rows of state that were read in vain
        version = states.version
        number = next(_numbers)
        self._paths = {name: folder / f"flow.{analysed.flow.name}-plan-{number}-{name}.parquet" for name in changed}
        try:
            inputs: dict[str, DataFrame | None] = {name: self._input(session, name, streams[name]) if name in changed else None for name in streams}
            self._plan = Plan(analysed, session, inputs, Watched(states), jobs, Trusting(), reach="task", spans=spans, serves_again=serves_again, few=few)
            with writing(session):
                outputs = self._plan.build()
                self._outputs = [output for output in outputs if output.follows is None]
                self._following = [(output, arrow_columns(frame_of(output.frame).schema)) for output in outputs if output.follows is not None]
                self._columns = [output.column(place) for place, output in enumerate(self._outputs)]
                self._union = bounded(tagged_union([output.frame for output in self._outputs], self._columns), rows_max) if self._outputs else None
        finally:
            self._remove()
        context: Any = session.sparkContext._jsc
        self._context = context.sc()
        shared, resident = self._plan.shared.rdds, [rdd_of(frame) for frame in self._plan.kept.resident]
        self._shared, self._resident = [rdd.id() for rdd in shared], [rdd.id() for rdd in resident]
        nothing = java_class(session, "scala.Option").empty()
        for rdd in (*shared, *resident):
            # Put aside for one run and computed again in the next, or read again if it is lost: not checkpointed, which would be for good.
            getattr(rdd, "checkpointData_$eq")(nothing)
        self._seen = self._sees(states, spans)
        self._is_known = version == states.version  # state may be summed up meanwhile: then it is not known what was seen

    @cached_property
    def _computes_all(self) -> bool:
        """Whether each run computes everything anew. What Spark has shuffled or sent, or the answer to a query within a query, it would not."""
        frames = [*self._plan.shared.planned, *([self._union] if self._union is not None else [])]
        plans: list[Any] = [frame._jdf.queryExecution().executedPlan() for frame in frames]
        # A plan is walked, at some questions to Java for each step, only if its text has such a word: it may also be the name of a column.
        plans = [plan for plan in plans if _MAYBE_ONCE.search(plan.toString())]
        while plans:
            plan = plans.pop()
            if plan.nodeName().endswith(_ONCE) or not plan.subqueries().isEmpty():
                return False
            children = plan.children()
            plans += [children.apply(place) for place in range(children.size())]
        return True

    def _input(self, session: SparkSession, name: str, columns: pa.Schema) -> DataFrame:
        with self._paths[name].open("wb") as file:
            file.truncate(_FILE_BYTES)
        return scan_files(session, columns.append(pa.field(JOB, pa.int64())), [str(self._paths[name])])

    def spare_rows(self, states: StateStore, changes: Mapping[str, pa.Table], spans: Mapping[str, Spans]) -> int | None:
        """Return how many rows of state this plan would read beyond what a new plan for these changes would; None if it cannot be run for them.

        Files that cannot meet the changes give nothing, as other rows of the files that are needed do not.
        """
        if not self._is_known or self.streams != changes.keys():
            return None
        spare = _spare_files(self._seen, self._sees(states, spans))
        rows = None if spare is None else states.rows_in(spare)
        # Last what costs most: of many plans nobody ever asks.
        return rows if rows is not None and self._computes_all else None

    def _sees(self, states: StateStore, spans: Mapping[str, Spans]) -> _Seen:
        """Return what the plan would read of the state with changes between these values."""
        traced = self._plan.traced(spans)

        def seen(read: Read) -> bool | Files:
            if read.only_is_net:
                return states.is_net(read.step, str(read.part))
            return states.files(read.step, read.part, wanted=None if read.wanted is None else read.wanted(traced))

        return tuple(seen(read) for read in self._plan.kept.reads)

    def run(self, changes: Mapping[str, pa.Table], jobs: range) -> Found:
        """Run the plan over these changes."""
        self.runs += 1
        found = self._computed(self._union, changes) if self._union is not None else []
        lines = {output.step: rows for output, rows in found if output.kind == "target"}
        found += [(output, output.follows.rows(columns, changes, lines)) for output, columns in self._following if output.follows is not None]
        _check_jobs(found, jobs)
        return found

    def _computed(self, union: DataFrame, changes: Mapping[str, pa.Table]) -> Found:
        try:
            for name, rows in changes.items():
                self._write(self._paths[name], rows)
            everything = run_union(union, self._rows_max)
        finally:
            self._remove()
            self._forget()
        return [(output, untagged(everything, tag, column)) for tag, (output, column) in enumerate(zip(self._outputs, self._columns, strict=True))]

    def close(self) -> None:
        """Let go of what stays in Spark's memory."""
        for number in self._resident:
            self._context.unpersistRDD(number, False)

    def _write(self, path: Path, rows: pa.Table) -> None:
        beside = path.with_suffix(".new")
        pq.write_table(rows.combine_chunks(), beside, compression="none", use_dictionary=False, write_statistics=False)
        beside.replace(path)
        if path.stat().st_size > _FILE_BYTES:  # Spark would not read beyond what it planned
            raise DoesNotFit

    def _remove(self) -> None:
        for path in self._paths.values():
            remove_quietly(path)

    def _forget(self) -> None:
        """Let what was put aside be computed anew by the next run. Waits until it is gone: the next run must not find it."""
        for number in self._shared:
            # Not unpersist() of the RDD itself: each persist() that would have to follow leaves a note behind that is kept as long as the plan.
            self._context.unpersistRDD(number, True)


def _spare_files(seen: _Seen, needed: _Seen) -> set[str] | None:
    """Return the files that were seen and are not needed; None if something is needed that was not seen, or was different."""
    spare: set[str] = set()
    for of_plan, of_drain in zip(seen, needed, strict=True):
        if of_plan == of_drain:
            continue
        if isinstance(of_plan, bool) or isinstance(of_drain, bool):
            return None
        known, wanted = dict(of_plan), dict(of_drain)
        if any(not set(files) <= set(known.get(part, ())) for part, files in wanted.items()):
            return None
        spare.update(file for part, files in known.items() for file in set(files) - set(wanted.get(part, ())))
    return spare


def _check_jobs(found: Found, jobs: range) -> None:
    """See that nothing came from another drain."""
    for output, rows in found:
        if rows.num_rows:
            ends: Any = pc.min_max(rows.column(JOB)).as_py()
            if ends["min"] not in jobs or ends["max"] not in jobs:
                raise AssertionError(f"{output.step} has rows of jobs {ends}, not of {jobs}")
