"""Running the plan of a drain: all of its outputs in one Spark action.

In: frames with different columns.
Out: an Arrow table for each.
Promise: all of them come from one run over the inputs; a frame without rows is an empty table with its columns. What is more than the driver should hold
is not brought there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from righttime.pipeline.jvm import java_class
from righttime.pipeline.operators.query import Frame, Query, frame_of, names

TAG = "tag"
# As Spark says that it gave up for it: of what it brought to the driver, or of what a task had to keep of it on the way. No row is to blame for that.
_TOO_LARGE = ("spark.driver.maxResultSize", "SparkOutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY", "Not enough memory to build and broadcast")


class TooMuchOutput(Exception):
    """A drain gives more rows than the driver takes at once."""


def collect(frames: Sequence[Frame], columns: Sequence[str], *, rows_max: int | None = None) -> list[pa.Table]:
    """Return the rows of each frame, from one Spark action over all of them; frames whose columns are the same may share a name in `columns`.

    Raises `TooMuchOutput` if there are more than `rows_max`.
    """
    if not frames:
        return []
    everything = run_union(bounded(tagged_union(frames, columns), rows_max), rows_max)
    return [untagged(everything, tag, column) for tag, column in enumerate(columns)]


def tagged_union(frames: Sequence[Frame], columns: Sequence[str], *, also: Sequence[str] = ()) -> DataFrame:
    """Return one frame with the rows of all: a tag, and a struct column for each of the names, which is null in the rows of others.

    `also` names columns of all frames that are wanted beside them, too.
    """
    different = list(dict.fromkeys(columns))
    with Query(frames[0]) as sql:
        parts = []
        for tag, (frame, own) in enumerate(zip(frames, columns, strict=True)):
            rows = ", ".join(f"{'struct(*)' if name == own else 'NULL'} AS {name}" for name in different)
            parts.append(f"SELECT {names([], f'{tag} AS {TAG}', *also, rows)} FROM {sql.view(frame)}")
        return frame_of(sql.run(" UNION ALL ".join(parts)))


def bounded(frame: DataFrame, rows_max: int | None) -> DataFrame:
    """Return the frame with few more than so many rows of each partition: a task ends there, before it has more than it could hand over."""
    if rows_max is None:
        return frame
    session = frame.sparkSession
    inner: Any = session._jsparkSession
    # SQL has only the limit of a whole, which would bring everything into one partition.
    limit = java_class(session, "org.apache.spark.sql.catalyst.plans.logical.LocalLimit")(
        inner.sessionState().sqlParser().parseExpression(str(rows_max + 1)), frame._jdf.queryExecution().analyzed()
    )
    return DataFrame(java_class(session, "org.apache.spark.sql.classic.Dataset").ofRows(inner, limit), session)


def run_union(union: DataFrame, rows_max: int | None = None) -> pa.Table:
    """Run a tagged union and return all rows; raises `TooMuchOutput` if they are more than `rows_max`, as they are if it was cut short."""
    try:
        everything = rows_in(union)
    except Exception as error:
        if any(words in str(error) for words in _TOO_LARGE):
            raise TooMuchOutput from error
        raise
    if rows_max is not None and everything.num_rows > rows_max:
        raise TooMuchOutput
    return everything


def rows_in(frame: DataFrame) -> pa.Table:
    """Run a frame and return all rows."""
    # Not toArrow(): that casts to a schema in which fields of a null struct may not be null, which Arrow refuses.
    return pa.Table.from_batches(frame._collect_as_arrow(empty_list_if_zero_records=False))  # type: ignore[operator]


def untagged(everything: pa.Table, tag: int, column: str) -> pa.Table:
    """Return the rows of one of the frames."""
    rows = everything.column(column).filter(pc.equal(everything.column(TAG), tag))
    whole = pa.concat_arrays(rows.chunks) if rows.num_chunks else pa.array([], rows.type)
    fields = [pa.field(field.name, field.type) for field in (rows.type.field(number) for number in range(rows.type.num_fields))]
    return pa.Table.from_arrays(whole.flatten(), schema=pa.schema(fields))
