"""Inputs of a drain: the changes that a job takes from each stream, as files that Spark reads.

In: streams and a job's interval of time.
Out: whole segments of the streams as they are, and one Parquet file for each stream with what else there is.
Promise: written before the drain begins, in memory-backed storage; gone when the job is published. Segments are never copied.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from righttime.flows.jobs import FlowJob
from righttime.pipeline.spark import SparkOwner
from righttime.queues.streams import Streams

_JOB = pa.field("_job", pa.int64())


def prepare(job: FlowJob, streams: Streams, folder: Path, *, flow: str) -> None:
    """Write the inputs of a job and note them in it."""
    for name in job.rows:
        segments, rows = streams.files(name, job.after_us, job.horizon_us)
        if segments:
            job.segments[name] = segments
        if rows.num_rows:
            path = folder / f"{flow}-{job.number}-{name}.parquet"
            numbered = rows.append_column(_JOB, pa.repeat(pa.scalar(job.number, pa.int64()), rows.num_rows))
            pq.write_table(numbered, path, compression="none", use_dictionary=False, write_statistics=False)
            job.inputs[name] = path


def input_of(spark: SparkOwner, child: SparkSession, stream: str, columns: pa.Schema, jobs: Sequence[FlowJob]) -> DataFrame | None:
    """Return the changes that some jobs take from a stream, each with its job's number; None if there are none."""
    prepared = [str(job.inputs[stream]) for job in jobs if stream in job.inputs]
    frame = spark.relation(child, columns.append(_JOB), prepared) if prepared else None
    for job in jobs:
        if stream in job.segments:
            whole = spark.relation(child, columns, [str(path) for path in job.segments[stream]]).withColumn(_JOB.name, F.lit(job.number).cast("bigint"))
            frame = whole if frame is None else frame.unionByName(whole)
    return frame


def discard(job: FlowJob) -> None:
    """Remove the inputs of a job."""
    for path in job.inputs.values():
        path.unlink(missing_ok=True)
    job.inputs.clear()
