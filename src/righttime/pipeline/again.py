"""Rows that failed, kept so that their step can be tried on them again.

In: a row as its step was given it.
Out: bytes, and from these the row again, with every value as it was.
Promise: a row that comes and the same row when it goes have the same image, whatever drain they are in.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from righttime.pipeline.nodes import COMMITTED, SINCE
from righttime.pipeline.operators.query import Query, names, quoted, type_text
from righttime.pipeline.operators.signed import JOB, WEIGHT, Signed

Again = Mapping[str, pa.Table]
"""By step, rows that it is given once more, with `_job` and `_w`."""


def image_of(row: pa.Table) -> bytes:
    """Return one row of a signed set, without job and weight, and without the time of its change: that is another one when it goes."""
    kept = [name for name in row.column_names if name not in (JOB, WEIGHT, COMMITTED)]
    plain = pa.table([row.column(name).take(pa.array([0])) for name in kept], schema=pa.schema([pa.field(name, row.schema.field(name).type) for name in kept]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as stream:
        stream.write_table(plain.combine_chunks())
    return bytes(sink.getvalue())


def rows_again(images: Mapping[bytes, int], *, job: int) -> pa.Table:
    """Return the rows of some images, each so many times, as changes of a job."""
    rows = [pa.ipc.open_stream(image).read_all() for image in images]
    table = pa.concat_tables(rows, promote_options="default")
    weights = pa.array(list(images.values()), pa.int64())
    return table.append_column(JOB, pa.array([job] * len(rows), pa.int64())).append_column(WEIGHT, weights)


def signed_again(child: SparkSession, rows: pa.Table, schema: StructType, carried: tuple[str, ...], like: Signed | None) -> Signed:
    """Return such rows as the step is given them: with the columns that the changes of its input have, if there are any."""
    frame = child.createDataFrame(rows)
    types = {field.name: type_text(field.dataType) for field in schema}
    # A row came when it began. What a drain does not read may not have been kept.
    made = {COMMITTED: f"timestamp_micros({SINCE}) AS {COMMITTED}"} | {name: f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in types.items()}
    columns = like.columns if like is not None else tuple(name for name in (*schema.names, *carried) if name in rows.column_names or name == COMMITTED)
    chosen = [quoted(name) if name in rows.column_names else made[name] for name in columns]
    with Query(frame) as sql:
        return Signed(sql.run(f"SELECT {names([], *chosen, JOB, WEIGHT)} FROM {sql.view(frame)}"), columns, like.reach if like is not None else "shuffled")
