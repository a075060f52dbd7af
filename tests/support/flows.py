"""Flows without a warehouse: a feed that gives changes their system columns, states in memory, and targets as dictionaries.

What is here is meant to be too simple to be wrong; streams, states and publishing as users have them are tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from righttime.changes.schema import TableSchema, declare_table
from righttime.errors.flows import KeyTwice
from righttime.pipeline.analysis import Analysed, analyse
from righttime.pipeline.execute import DrainResult, run_drain, run_planned
from righttime.pipeline.filed import FiledRows, Held, lines_of
from righttime.pipeline.flow import Flow
from righttime.pipeline.operators.signed import WEIGHT
from righttime.pipeline.planned import DoesNotFit, PlannedDrains
from righttime.pipeline.sought import sought_columns
from righttime.pipeline.spans import Spans, can_meet, spans_of
from righttime.pipeline.spark import SparkOwner
from righttime.pipeline.states import StateStore

Row = dict[str, Any]
Key = tuple[Any, ...]
SYSTEM = [("_commit_timestamp", pa.timestamp("us", tz="UTC")), ("_w", pa.int64()), ("_since", pa.int64()), ("_ordinal", pa.int64()), ("_job", pa.int64())]


@dataclass
class Stream:
    """One stream: its columns and keys, the living rows, and all changes with their commit times."""

    schema: TableSchema
    living: dict[Key, Row] = field(default_factory=dict)
    changes: list[Row] = field(default_factory=list)
    ordinals: int = 0

    def put(self, time: int, row: Row) -> None:
        """Insert a row, or update the one with its key; with system columns as a stream stores them."""
        key = self.key(row)
        if key in self.living:
            self.take(time, row)
        image = row | {"_since": time, "_ordinal": self.ordinals}
        self.ordinals += 1
        self.living[key] = image
        self.changes.append(image | {"_commit_timestamp": time, "_w": 1})

    def take(self, time: int, row: Row) -> None:
        """Delete the row with this key."""
        image = self.living.pop(self.key(row))
        self.changes.append(image | {"_commit_timestamp": time, "_w": -1})

    def key(self, row: Row) -> Key:
        """Return the key of a row; all of it if the stream has none."""
        return tuple(row[name] for name in self.schema.keys) if self.schema.keys else (self.ordinals, *row.values())

    def rows_at(self, time: int) -> list[Row]:
        """Return the rows as of a time, as they were inserted."""
        rows: dict[int, Row] = {}
        for change in self.changes:
            if change["_commit_timestamp"] <= time:
                rows = {number: row for number, row in rows.items() if number != change["_ordinal"]}
                if change["_w"] > 0:
                    rows[change["_ordinal"]] = {name: change[name] for name in self.schema.columns.names}
        return list(rows.values())

    def table(self, horizons: Mapping[int, tuple[int, int]]) -> pa.Table | None:
        """Return the changes of some jobs, by number (after, up to), tagged with these numbers; None if there are none."""
        tagged = [change | {"_job": job} for job, (after, up_to) in horizons.items() for change in self.changes if after < change["_commit_timestamp"] <= up_to]
        return pa.Table.from_pylist(tagged, pa.schema([*self.schema.columns, *SYSTEM])) if tagged else None


class MemoryStates:
    """State parts as Arrow tables."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, str], list[pa.Table]] = {}

    def append(self, states: Mapping[tuple[str, str], Held]) -> None:
        """Keep what a drain added."""
        for name, rows in states.items():
            self.parts.setdefault(name, []).extend(rows.pieces() if isinstance(rows, FiledRows) else [rows])

    def frame(self, child: SparkSession, node: str, part: str, *, up_to_job: int | None = None, wanted: Spans | None = None) -> DataFrame | None:
        """Return one part, without what earlier drains added if it cannot have the wanted values."""
        tables = [table for table in self.parts.get((node, part), ()) if wanted is None or can_meet(spans_of(table), wanted)]
        return child.createDataFrame(pa.concat_tables(tables)) if tables else None

    def frames(self, child: SparkSession, node: str, *, up_to_job: int | None = None, wanted: Spans | None = None) -> dict[str, DataFrame]:
        """Return all parts of a step."""
        found = {part: self.frame(child, node, part, wanted=wanted) for step, part in self.parts if step == node}
        return {part: frame for part, frame in found.items() if frame is not None}

    def is_net(self, node: str, part: str) -> bool:
        """Return whether no row of a part was ever taken back."""
        return all(pc.min(table[WEIGHT]).as_py() > 0 for table in self.parts.get((node, part), ()))


class Bench:
    """A flow on a bench: commit changes at given times, run drains, look at targets after every job."""

    def __init__(
        self,
        flow: Flow,
        child: SparkSession,
        *,
        streams: Mapping[str, tuple[str, Sequence[str]]],
        tables: Mapping[str, tuple[str, Sequence[str]]],
        planned: tuple[SparkOwner, Path] | None = None,
    ) -> None:
        """Drains run by themselves; with `planned`, an owner of Spark and a folder, by plans that have run over other changes before."""
        self.child = child
        self.streams = {name: Stream(declare_table(name, columns, keys=keys)) for name, (columns, keys) in streams.items()}
        self.tables = {name: declare_table(name, columns, keys=keys) for name, (columns, keys) in tables.items()}
        self.analysed: Analysed = analyse(flow, {name: stream.schema for name, stream in self.streams.items()}, self.tables, child)
        self.states: MemoryStates | StateStore = MemoryStates()
        self.plans: PlannedDrains | None = None
        if planned is not None:
            owner, folder = planned
            self.states = StateStore(folder / "state", self.analysed.fingerprint, sought=sought_columns(self.analysed))
            columns = {name: pa.schema([*stream.schema.columns, *SYSTEM[:-1]]) for name, stream in self.streams.items()}
            self.plans = PlannedDrains(self.analysed, owner, self.states, streams=columns, folder=folder)
        self.contents: dict[str, dict[Key, Row]] = {name: {} for name in self.tables}
        self.horizons: list[int] = []
        self.results: list[DrainResult] = []

    def put(self, stream: str, time: int, *rows: Row) -> None:
        """Insert or update rows at a time."""
        for row in rows:
            self.streams[stream].put(time, row)

    def take(self, stream: str, time: int, *rows: Row) -> None:
        """Delete the rows with these keys at a time."""
        for row in rows:
            self.streams[stream].take(time, row)

    def drain(self, *horizons: int, **options: Any) -> list[dict[str, list[Row]]]:
        """Run one drain of jobs with these horizons; returns the contents of all targets after each job."""
        result = self.run(*horizons, **options)
        snapshots = []
        for job in range(len(self.horizons) - len(horizons) + 1, len(self.horizons) + 1):
            self._publish(job, result)
            snapshots.append({name: self.rows(name) for name in self.tables})
        return snapshots

    def run(self, *horizons: int, **options: Any) -> DrainResult:
        """Run one drain and keep its state; publish nothing."""
        first = len(self.horizons) + 1
        edges = [self.horizons[-1] if self.horizons else -1, *horizons]
        jobs = {first + place: (after, up_to) for place, (after, up_to) in enumerate(pairwise(edges))}
        inputs = {name: stream.table(jobs) for name, stream in self.streams.items()}
        spans = {name: spans_of(table) for name, table in inputs.items() if table is not None}
        numbers = range(first, first + len(horizons))
        changes = {name: table for name, table in inputs.items() if table is not None}
        planned = self._run_planned(changes, numbers, spans) if self.plans is not None and changes else None
        result = planned or run_drain(self.analysed, self.child, self._frames(inputs), self.states, numbers, spans=spans, **options)
        if isinstance(self.states, StateStore):
            self.states.append(numbers[0], numbers[-1], result.states)
        else:
            self.states.append(result.states)
        self.horizons += horizons
        self.results.append(result)
        return result

    def _frames(self, inputs: Mapping[str, pa.Table | None]) -> dict[str, DataFrame | None]:
        return {name: None if table is None else self.child.createDataFrame(table) for name, table in inputs.items()}

    def _run_planned(self, changes: Mapping[str, pa.Table], numbers: range, spans: Mapping[str, Spans]) -> DrainResult | None:
        """Run over some of the changes first: what is left of that must not be seen in the drain itself. The first drain of all has no plan to take over."""
        assert self.plans is not None
        some = {name: table.filter(pc.equal(pc.bit_wise_and(table["_ordinal"], 1), 0)) for name, table in changes.items()}
        try:
            if self.horizons:
                with suppress(KeyTwice):  # what it gives is not looked at, and half of an update may be one row too many
                    run_planned(self.analysed, self.plans, some, numbers, spans=spans)
            return run_planned(self.analysed, self.plans, changes, numbers, spans=spans)
        except DoesNotFit:
            return None

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a target, sorted."""
        return sorted(self.contents[table].values(), key=lambda row: repr(tuple(row.values())))

    def _publish(self, job: int, result: DrainResult) -> None:
        for name, lines in result.targets.items():
            keys = self.tables[name].keys
            for line in (line for some in lines_of(lines, job) for line in some.to_pylist()):
                line.pop("_job")
                operation = line.pop("_op")
                key = tuple(line[column] for column in keys)
                if operation == "delete":
                    del self.contents[name][key]
                else:
                    self.contents[name][key] = line


def dead_letters(results: Iterable[DrainResult]) -> list[Row]:
    """Return all dead letters of some drains."""
    return [letter for result in results for letter in result.dead_letters.to_pylist()]
