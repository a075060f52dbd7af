"""Summing up state: rows that say the same become one, rows that cancel out go.

In: Parquet files of one state part.
Out: one table that means the same.
Promise: weights and accumulators are added by all other columns; a sum never differs from what the operators would have added.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from righttime.changes.hashing import EXACT, value_words
from righttime.pipeline.manifests import StateFile
from righttime.pipeline.nullable import nullable
from righttime.pipeline.operators.signed import ACCUMULATOR_PREFIX, JOB, WEIGHT

_PLACE = "__place"


def files_to_sum(files: Sequence[StateFile], *, rows_max: int) -> list[StateFile]:
    """Return the files to put together: the small ones, and a larger one only when they have grown to half of it.

    So a row is rewritten a number of times that grows with the logarithm of the state, not with the number of drains.
    """
    chosen: list[StateFile] = []
    rows = 0
    for file in sorted(files, key=lambda one: one.rows):
        if rows + file.rows > rows_max or (len(chosen) > 1 and file.rows > 2 * rows):
            break
        chosen.append(file)
        rows += file.rows
    return chosen if len(chosen) > 1 else []


def summed(paths: Sequence[Path], *, job: int) -> pa.Table:
    """Return the sum of the files, all of it as of this job."""
    table = read(paths)
    added = [name for name in table.column_names if name == WEIGHT or name.startswith(ACCUMULATOR_PREFIX)]
    keys = [name for name in table.column_names if name != JOB and name not in added]
    table = _grouped(table, keys, added)
    jobs = pa.array([job], pa.int64()).take(pa.nulls(table.num_rows, pa.int64()).fill_null(0))
    return table.set_column(table.column_names.index(JOB), JOB, jobs)


def read(paths: Sequence[Path], *, where: pc.Expression | None = None) -> pa.Table:
    """Return the rows of all files. Whether a column may be null is up to the plan that wrote it, and may differ from drain to drain."""
    tables = [pq.read_table(path, filters=where) for path in paths]
    return pa.concat_tables([table.cast(nullable(table.schema)) for table in tables])


def _grouped(table: pa.Table, keys: list[str], added: list[str]) -> pa.Table:
    told, plain = _told_apart(table, keys), [name for name in keys if not pa.types.is_nested(table.schema.field(name).type)]
    by = [name for name in told.column_names if name not in added and name not in (JOB, _PLACE)]
    sums = told.group_by(by, use_threads=False).aggregate([(_PLACE, "min"), *((name, "sum") for name in added)]) if keys else _one_row(table, added)
    columns = {name: sums[name] for name in plain} | {name: sums[f"{name}_sum"].cast(table.schema.field(name).type) for name in added}
    columns |= {name: table[name].take(sums[f"{_PLACE}_min"]) for name in keys if name not in plain}
    nothing = reduce(
        pc.and_, [pc.equal(pc.cast(columns[name], pa.float64()) if pa.types.is_decimal(columns[name].type) else columns[name], 0) for name in added]
    )
    columns[JOB] = pa.nulls(sums.num_rows, pa.int64())
    return pa.table([columns[name] for name in table.column_names], schema=nullable(table.schema)).filter(pc.invert(nothing))


def _told_apart(table: pa.Table, keys: list[str]) -> pa.Table:
    """Return the rows with their places, and words in the place of lists, maps and structs: Arrow groups by plain values only."""
    nested = [name for name in keys if pa.types.is_nested(table.schema.field(name).type)]
    told = table.drop_columns(nested)
    for number, name in enumerate(nested):
        words = np.concatenate([np.empty((0, 2), np.uint64), *(value_words(chunk, EXACT) for chunk in table[name].chunks)])
        for half in (0, 1):
            told = told.append_column(f"__words_{number}_{half}", pa.array(np.ascontiguousarray(words[:, half])))
    return told.append_column(_PLACE, pa.array(np.arange(table.num_rows)))


def _one_row(table: pa.Table, added: list[str]) -> pa.Table:
    return pa.table({f"{name}_sum": [pc.sum(table[name])] for name in added})
