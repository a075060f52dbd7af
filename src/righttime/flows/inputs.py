"""Inputs of a drain: the changes that its jobs take from each stream, as files that Spark reads.

In: streams and the jobs' intervals of time.
Out: whole segments of the streams as they are, and one Parquet file for each stream with what else there is.
Promise: a job's changes are read before the drain begins. Files are in memory-backed storage, one for all jobs of a drain, and gone when it has ended.
Segments are never copied.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from righttime.flows.jobs import FlowJob
from righttime.pipeline.spans import Spans, SpansAsked
from righttime.pipeline.spark import SparkOwner
from righttime.queues.streams import Streams

_JOB = pa.field("_job", pa.int64())


def prepare(job: FlowJob, streams: Streams) -> None:
    """Read the changes of a job and note them in it."""
    for name in job.rows:
        segments, rows = streams.files(name, job.after_us, job.horizon_us)
        if segments:
            job.segments[name] = segments
        if rows.num_rows:
            job.inputs[name] = rows.append_column(_JOB, pa.repeat(pa.scalar(job.number, pa.int64()), rows.num_rows))


def tables_in(jobs: Sequence[FlowJob]) -> dict[str, pa.Table] | None:
    """Return the changes of each stream that has any; None if whole segments are among them."""
    if any(job.segments for job in jobs):
        return None
    names = dict.fromkeys(name for job in jobs for name in job.inputs)
    return {name: pa.concat_tables(job.inputs[name] for job in jobs if name in job.inputs) for name in names}


def spans_in(jobs: Sequence[FlowJob]) -> dict[str, Spans]:
    """Return between which values the changes of each stream lie; of one that has whole segments among them it is not known."""
    unknown = {name for job in jobs for name in job.segments}
    tables: dict[str, list[pa.Table]] = {}
    for job in jobs:
        for name, rows in job.inputs.items():
            if name not in unknown:
                tables.setdefault(name, []).append(rows)
    return {name: SpansAsked(pa.concat_tables(some)) for name, some in tables.items()}


@contextmanager
def inputs_of(
    spark: SparkOwner, child: SparkSession, streams: Mapping[str, pa.Schema], jobs: Sequence[FlowJob], *, folder: Path, flow: str
) -> Iterator[dict[str, DataFrame | None]]:
    """Give for each stream the changes that some jobs take from it, each with its job's number; None if there are none."""
    paths = {name: folder / f"flow.{flow}-{jobs[0].number}-{name}.parquet" for name in streams}
    try:
        yield {name: _input(spark, child, name, columns, jobs, path=paths[name]) for name, columns in streams.items()}
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)


def _input(spark: SparkOwner, child: SparkSession, stream: str, columns: pa.Schema, jobs: Sequence[FlowJob], *, path: Path) -> DataFrame | None:
    tables = [job.inputs[stream] for job in jobs if stream in job.inputs]
    frame = None
    if tables:
        pq.write_table(pa.concat_tables(tables).combine_chunks(), path, compression="none", use_dictionary=False, write_statistics=False)
        frame = spark.relation(child, columns.append(_JOB), [str(path)])
    for job in jobs:
        if stream in job.segments:
            whole = spark.relation(child, columns, [str(segment) for segment in job.segments[stream]]).withColumn(_JOB.name, F.lit(job.number).cast("bigint"))
            frame = whole if frame is None else frame.unionByName(whole)
    return frame
