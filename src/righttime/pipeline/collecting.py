"""Running the plan of a drain: all of its outputs in one Spark action.

In: frames with different columns.
Out: an Arrow table for each.
Promise: all of them come from one run over the inputs; a frame without rows is an empty table with its columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from righttime.pipeline.operators.query import Frame, Query, frame_of

_TAG = "tag"


def collect(frames: Sequence[Frame], columns: Sequence[str]) -> list[pa.Table]:
    """Return the rows of each frame, from one Spark action over all of them; frames whose columns are the same may share a name in `columns`."""
    if not frames:
        return []
    everything = run_union(tagged_union(frames, columns))
    return [untagged(everything, tag, column) for tag, column in enumerate(columns)]


def tagged_union(frames: Sequence[Frame], columns: Sequence[str]) -> DataFrame:
    """Return one frame with the rows of all: a tag, and a struct column for each of the names, which is null in the rows of others."""
    different = list(dict.fromkeys(columns))
    with Query(frames[0]) as sql:
        parts = []
        for tag, (frame, own) in enumerate(zip(frames, columns, strict=True)):
            rows = ", ".join(f"{'struct(*)' if name == own else 'NULL'} AS {name}" for name in different)
            parts.append(f"SELECT {tag} AS {_TAG}, {rows} FROM {sql.view(frame)}")
        return frame_of(sql.run(" UNION ALL ".join(parts)))


def run_union(union: DataFrame) -> pa.Table:
    """Run a tagged union and return all rows."""
    # Not toArrow(): that casts to a schema in which fields of a null struct may not be null, which Arrow refuses.
    return pa.Table.from_batches(union._collect_as_arrow(empty_list_if_zero_records=False))  # type: ignore[operator]


def untagged(everything: pa.Table, tag: int, column: str) -> pa.Table:
    """Return the rows of one of the frames."""
    rows = everything.column(column).filter(pc.equal(everything.column(_TAG), tag))
    whole = pa.concat_arrays(rows.chunks) if rows.num_chunks else pa.array([], rows.type)
    fields = [pa.field(field.name, field.type) for field in (rows.type.field(number) for number in range(rows.type.num_fields))]
    return pa.Table.from_arrays(whole.flatten(), schema=pa.schema(fields))
