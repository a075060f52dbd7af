"""Output of a drain that is too much for the driver: Spark's tasks write it into files, and it is taken from there piece by piece.

In: the outputs of a plan, and an empty folder.
Out: for each output its rows, in pieces of bounded size, all of them or those of one job.
Promise: all outputs come from one run over the inputs. No more than a piece of them is ever in the driver's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from righttime.pipeline.collecting import TAG, tagged_union
from righttime.pipeline.nullable import arrow_columns
from righttime.pipeline.operators.query import Frame, Query
from righttime.pipeline.operators.signed import JOB, WEIGHT
from righttime.pipeline.plan import Output
from righttime.pipeline.stateless import ROW

PIECE_BYTES = 32 * 1024 * 1024
_PIECES_MAX = 4
# Plain values: so that a group of rows takes as much memory as its size says, whatever is in it.
_PARQUET = {
    "compression": "zstd",
    "parquet.enable.dictionary": "false",
    "parquet.block.size": str(PIECE_BYTES),
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


def filed(outputs: Sequence[Output], columns: Sequence[str], folder: Path) -> list[FiledRows]:
    """Have the rows of all outputs written below the folder, and return where those of each are."""
    if not outputs:
        return []
    union = tagged_union([_ordered(output) for output in outputs], columns, also=[JOB])
    place = folder / "output"
    union.write.options(**_PARQUET).parquet(f"file://{place.absolute()}")
    groups = [group for path in sorted(place.glob("*.parquet")) for group in _groups(path)]
    kinds: dict[str, Any] = {field.name: field.dataType for field in union.schema}
    return [FiledRows(column, tag, arrow_columns(kinds[column]), [group for group in groups if group.tags.holds(tag)]) for tag, column in enumerate(columns)]


def _ordered(output: Output) -> Frame:
    """Return what is written of an output: lines of a table in the order of jobs, notes summed up, for nobody could do that with pieces of them."""
    with Query(output.frame) as sql:
        given = sql.view(output.frame)
        match output.kind:
            case "target":
                return sql.run(f"SELECT * FROM {given} SORT BY {JOB}")
            case "state":
                return output.frame
            case _:
                return sql.run(f"SELECT {JOB}, sum({WEIGHT}) AS {WEIGHT}, {ROW} FROM {given} GROUP BY {JOB}, {ROW} HAVING sum({WEIGHT}) <> 0")


@dataclass(frozen=True)
class _Range:
    least: int
    greatest: int

    def holds(self, number: int) -> bool:
        return self.least <= number <= self.greatest


@dataclass(frozen=True)
class _Group:
    """A row group of a file: how many rows and bytes it has, and which outputs and jobs they may be of."""

    path: Path
    number: int
    rows: int
    size: int
    tags: _Range
    jobs: _Range


def _groups(path: Path) -> Iterator[_Group]:
    metadata = pq.read_metadata(path)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        tags, jobs = (_Range(column.min, column.max) for column in (group.column(place).statistics for place in (0, 1)))
        yield _Group(path, number, group.num_rows, group.total_byte_size, tags, jobs)


class FiledRows:
    """The rows of one output, in files."""

    def __init__(self, column: str, tag: int, schema: pa.Schema, groups: Sequence[_Group]) -> None:
        self._column = column
        self._tag = tag
        self._groups = groups
        self.schema = schema

    @property
    def is_empty(self) -> bool:
        """Whether there are none for sure."""
        return not self._groups

    def pieces(self, *, job: int | None = None) -> Iterator[pa.Table]:
        """Yield the rows, all or those of one job, in tables of bounded size; none of them is empty."""
        for group in self._groups:
            if job is None or group.jobs.holds(job):
                yield from self._of_group(group, job)

    def _of_group(self, group: _Group, job: int | None) -> Iterator[pa.Table]:
        rows_max = max(PIECE_BYTES * group.rows // max(group.size, 1), 1)
        with pq.ParquetFile(group.path) as file:
            for batch in file.iter_batches(rows_max, row_groups=[group.number], columns=[TAG, JOB, self._column]):
                mine = pc.equal(batch.column(TAG), self._tag)
                if job is not None:
                    mine = pc.and_(mine, pc.equal(batch.column(JOB), job))
                rows = batch.column(self._column).filter(mine)
                if len(rows):
                    # A file tells times of day and the like less exactly than Spark does.
                    yield pa.Table.from_arrays(rows.flatten(), names=self.schema.names).cast(self.schema)


class FiledLines:
    """The lines of a target, in files, as its table takes them; `jobs` are those that have any."""

    def __init__(self, rows: FiledRows, fit: Callable[[pa.Table], pa.Table], jobs: Iterable[int]) -> None:
        self._rows = rows
        self._fit = fit
        self.jobs = frozenset(jobs)

    def of_job(self, number: int) -> Iterator[pa.Table]:
        """Yield the lines of one job, in tables of bounded size."""
        if number in self.jobs:
            yield from (fitted for piece in self._rows.pieces(job=number) if (fitted := self._fit(piece)).num_rows)


Lines: TypeAlias = pa.Table | FiledLines
Held: TypeAlias = pa.Table | FiledRows


def gathered(pieces: Iterable[pa.Table], *, rows_min: int) -> Iterator[pa.Table]:
    """Yield the rows of all pieces in tables that have so many, or what is left; and not more bytes than a few pieces."""
    some: list[pa.Table] = []
    for piece in pieces:
        some.append(piece)
        if sum(one.num_rows for one in some) >= rows_min or len(some) == _PIECES_MAX:
            yield pa.concat_tables(some)
            some = []
    if some:
        yield pa.concat_tables(some)


def lines_of(lines: Lines, job: int) -> Iterator[pa.Table]:
    """Yield the lines of one job, in one table or in several."""
    if isinstance(lines, FiledLines):
        yield from lines.of_job(job)
    elif (found := lines.filter(pc.equal(lines.column(JOB), job))).num_rows:
        yield found


def jobs_of(lines: Lines) -> Iterable[int]:
    """Return the jobs that have lines."""
    if isinstance(lines, FiledLines):
        return lines.jobs
    found: list[int] = pc.unique(lines.column(JOB)).to_pylist()
    return found
