"""From the collected outputs of a drain to what its caller gets.

In: outputs with their rows, in memory or in files.
Out: lines of targets as their tables take them, rows of state, dead letters, counts of unmet expectations.
Promise: the same whether rows are in memory or in files; of those in files a piece at a time is looked at. What must stop the flow is raised here.
"""

from __future__ import annotations

import base64
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from righttime.changes.ddl import format_columns
from righttime.changes.schema import TableSchema
from righttime.changes.shown import shown_rows
from righttime.errors.flows import ExpectationFailed, KeyTwice, LookupFailed, TotalTooLarge
from righttime.pipeline.analysis import Analysed
from righttime.pipeline.failed import DeadLetter, FailedRows
from righttime.pipeline.filed import FiledLines, FiledRows, Held, Lines
from righttime.pipeline.limits import CheckStorable, TableLimits
from righttime.pipeline.nodes import Expect, Lookup, Target
from righttime.pipeline.operators.signed import JOB, WEIGHT
from righttime.pipeline.operators.target import CLASH, DELETE, OPERATION, UPDATE
from righttime.pipeline.plan import Output
from righttime.pipeline.stateless import ROW

Found = Sequence[tuple[Output, Held]]

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
    """What a drain gives. Targets: `_job`, `_op` (see `operators/target.py`), then the table's columns. States by step and part. `careful`: rows failed.

    What was too much for memory is in files in `folder`, until it is closed.
    """

    targets: Mapping[str, Lines]
    states: Mapping[tuple[str, str], Held]
    dead_letters: pa.Table
    expectations: tuple[Unmet, ...]
    careful: bool = False
    folder: Path | None = None

    def close(self) -> None:
        """Let go of the files."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class Results:
    """Turns outputs into what the caller gets."""

    def __init__(self, analysed: Analysed, check: CheckStorable | None, *, folder: Path | None = None) -> None:
        self._analysed = analysed
        self._check = check
        self._folder = folder

    def of(self, found: Found, failed: FailedRows) -> DrainResult:
        """Return it, with the rows that have failed so far and those that the outputs tell of."""
        careful = len(failed) > 0
        unmet = self._expectations(found)
        missing = [letter for output, rows in found if output.kind == "dead_letter" for letter in self._missing(output, rows, failed)]
        targets: dict[str, Lines] = {}
        for output, rows in found:
            if output.kind == "no_key":
                missing += self._without_key(output.step, rows, failed)
            elif output.kind == "target":
                targets[output.step], unstorable = self._lines(output.step, rows, failed)
                missing += unstorable
        failed.take(missing)
        return DrainResult(
            targets={table: lines for table, lines in targets.items() if (lines.jobs if isinstance(lines, FiledLines) else lines.num_rows)},
            states={(output.step, output.part): rows for output, rows in found if output.kind == "state" and _has_rows(rows)},
            dead_letters=failed.table(),
            expectations=tuple(unmet),
            careful=careful,
            folder=self._folder,
        )

    def _expectations(self, found: Found) -> list[Unmet]:
        unmet = []
        for output, rows in found:
            if output.kind != "expectation":
                continue
            node = self._analysed.nodes[output.step]
            assert isinstance(node, Expect)
            # What came and went within a job did not come.
            counts, examples = _counted(rows)
            unmet += [Unmet(output.step, node.name, job, count) for job, count in sorted(counts.items())]
            if node.otherwise == "fail" and counts:
                job = min(counts)
                raise ExpectationFailed(
                    flow=self._analysed.flow.name,
                    job=job,
                    rows=counts[job],
                    name=node.name,
                    condition=node.condition,
                    origin=node.origin,
                    example=examples[job],
                )
        return unmet

    def _missing(self, output: Output, rows: Held, failed: FailedRows) -> Iterable[DeadLetter]:
        node = self._analysed.nodes[output.step]
        assert isinstance(node, Lookup)
        if node.missing == "fail":
            counts, examples = _counted(rows)
            if counts:
                job = min(counts)
                raise LookupFailed(flow=self._analysed.flow.name, job=job, rows=counts[job], origin=node.origin, example=examples[job])
            return []
        noted = rows.pieces() if isinstance(rows, FiledRows) else [rows]
        letters = (DeadLetter(output.step, str(node.origin), NOT_FOUND, row[JOB], row[WEIGHT], row[ROW]) for piece in noted for row in piece.to_pylist())
        return _few(letters, failed) if isinstance(rows, FiledRows) else list(letters)

    def _lines(self, name: str, rows: Held, failed: FailedRows) -> tuple[Lines, list[DeadLetter]]:
        """Return the lines as the table takes them, and as dead letters those that it cannot hold."""
        if not isinstance(rows, FiledRows):
            return self._storable(name, rows, failed)
        jobs: set[int] = set()

        def letters() -> Iterator[DeadLetter]:
            for piece in rows.pieces():
                jobs.update(pc.unique(piece.column(JOB)).to_pylist())
                yield from self._storable(name, piece, failed)[1]

        found = _few(letters(), failed)
        return FiledLines(rows, lambda piece: self._storable(name, piece, failed)[0], jobs), found

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
        letters = [self._unstorable(target, line, reason) for line, reason in zip(shown_rows(_at(fitted, bad)), bad.values(), strict=True)]
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
            raise self._too_large(target, lines) from error
        fields = [lines.schema.field(JOB), lines.schema.field(OPERATION), *(field.with_nullable(True) for field in schema)]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    def _too_large(self, target: Target, lines: pa.Table) -> TotalTooLarge:
        """Return the error for lines of which a total does not fit into its column: it has been computed in the type of Spark's sum."""
        schema = self._analysed.tables[target.table]
        places = ((name, _misfit(lines.column(name), schema.field(name).type)) for name in target.additive)
        name, place = next((name, place) for name, place in places if place is not None)
        line = shown_rows(lines.slice(place, 1))[0]
        kind, key = format_columns(pa.schema([schema.field(name).with_nullable(True)])), {column: line[column] for column in target.keys}
        reason = f"column {kind} of table {target.table!r} would be {line[name]} for key {key}"
        return TotalTooLarge(flow=self._analysed.flow.name, origin=str(target.origin), reason=reason)

    def _without_key(self, name: str, rows: Held, failed: FailedRows) -> list[DeadLetter]:
        """Return the rows without a key as dead letters; not as those of the step itself, of which each key has one."""
        origin, reason = str(self._target(name).origin), _NULL.format(name)
        letters = (DeadLetter(f"into_{name}.keys", origin, reason, row[JOB], row[WEIGHT], row[ROW]) for piece in _nets(rows) for row in piece.to_pylist())
        return _few(letters, failed) if isinstance(rows, FiledRows) else list(letters)

    def _target(self, name: str) -> Target:
        return next(target for target in self._analysed.flow.targets if target.table == name)

    def _unstorable(self, target: Target, line: dict[str, Any], reason: str) -> DeadLetter:
        job, operation = line.pop(JOB), line.pop(OPERATION)
        weight = -1 if operation == DELETE else 1
        return DeadLetter(f"into_{target.table}", str(target.origin), reason, job, weight, row_text(line))

    def _check_clash(self, target: Target, lines: pa.Table) -> None:
        clashes = lines.filter(pc.equal(lines.column(OPERATION), CLASH))
        if not clashes.num_rows:
            return
        first = shown_rows(clashes.sort_by(JOB).slice(0, 1))[0]
        key = {name: first[name] for name in target.keys}
        raise KeyTwice(flow=self._analysed.flow.name, job=first[JOB], table=target.table, key=key, origin=target.origin)


def row_text(row: Mapping[str, Any]) -> str:
    """Return a row as JSON, with what JSON has no words for written as Spark does it in the rows of other steps."""
    return json.dumps(_plain(row), default=str, allow_nan=False)


def _plain(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {str(name): _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case _:
            return value


def _has_rows(rows: Held) -> bool:
    return not rows.is_empty if isinstance(rows, FiledRows) else rows.num_rows > 0


def _few(letters: Iterable[DeadLetter], failed: FailedRows) -> list[DeadLetter]:
    """Return the letters, unless they are more than can be left in the end; then raise `TooManyDeadLetters`, without looking at the others."""
    found: list[DeadLetter] = []
    for letter in letters:
        found.append(letter)
        if len(found) > failed.found_max:
            failed.take(found)
            raise failed.too_many()
    return found


def _counted(notes: Held) -> tuple[dict[int, int], dict[int, str]]:
    """Return by job how many rows are there after it, and one of them."""
    counts: Counter[int] = Counter()
    examples: dict[int, str] = {}
    for piece in _nets(notes):
        there = piece.filter(pc.greater(piece.column(WEIGHT), 0))
        for row in there.group_by(JOB).aggregate([(WEIGHT, "sum"), (ROW, "min")]).to_pylist():
            counts[row[JOB]] += row[f"{WEIGHT}_sum"]
            examples.setdefault(row[JOB], str(row[f"{ROW}_min"]))
    return dict(counts), examples


def _nets(notes: Held) -> Iterator[pa.Table]:
    """Yield the rows that a job brings or takes, with how often; those in files are summed up already."""
    if isinstance(notes, FiledRows):
        yield from notes.pieces()
    elif notes.num_rows:
        net = notes.group_by([JOB, ROW]).aggregate([(WEIGHT, "sum")]).rename_columns([JOB, ROW, WEIGHT])
        yield net.filter(pc.not_equal(net.column(WEIGHT), 0))


def _misfit(column: pa.ChunkedArray, kind: pa.DataType) -> int | None:
    """Return the place of the first value that has no counterpart in a type, None if all have."""
    first, rest = 0, column
    while not _fits(rest, kind):
        if len(rest) == 1:
            return first
        half = len(rest) // 2
        if _fits(rest.slice(0, half), kind):
            first, rest = first + half, rest.slice(half)
        else:
            rest = rest.slice(0, half)
    return None


def _fits(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _at(table: pa.Table, places: Iterable[int]) -> pa.Table:
    return table.take(pa.array(list(places), pa.int64()))
