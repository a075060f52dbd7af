"""Staging: DataFrames of a client, written by its Spark and kept here until their commit sends them.

In: Spark DataFrames.
Out: Parquet files in a folder of this client.
Promise: the folder goes with the client; rows that executors elsewhere would write where nobody finds them are refused.
"""

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from righttime.catalyst.messages import Bypass
from righttime.changes.rows import table_of
from righttime.changes.schema import TableSchema
from righttime.errors import SqlRefused
from righttime.pipeline.spark import SparkOwner
from righttime.pipeline.translate import quiet
from righttime.settings import Settings
from righttime.telemetry import get_log
from righttime.warehouse.store import DataFile

log = get_log("flight")

_UPLOAD_ROWS = 1 << 16


class Staging:
    """The staged files of one client."""

    def __init__(self, spark: SparkOwner, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._folder: Path | None = None

    def stage_df(self, table: TableSchema, df: Any) -> list[DataFile]:
        """Compute a DataFrame and keep its rows."""
        master = str(df.sparkSession.sparkContext.master)
        if not master.startswith("local"):
            raise SqlRefused(
                reason=f"the executors of {master} would write the rows on their own machines",
                way_out="Use a local Spark for insert_df over the network, or insert_arrow in a loop over df.toLocalIterator().",
            )
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="righttime-staging-"))
        folder = self._folder / uuid.uuid4().hex
        with quiet():
            self._spark.write_parquet(df, table.columns, folder, table=table.name)
        paths = sorted(folder.glob("*.parquet"))
        return [DataFile(str(path), path.stat().st_size, pq.read_metadata(path).num_rows, {}, "") for path in paths]

    def read_files(self, table: TableSchema, files: Sequence[DataFile]) -> pa.Table:
        """Return the rows of staged files."""
        paths = [file.path for file in files]
        return ds.dataset(paths, schema=table.columns, format="parquet").to_table() if paths else table.columns.empty_table()

    def drop_files(self, _table: TableSchema, files: Sequence[DataFile]) -> None:
        """Remove files that will not be committed."""
        for file in files:
            Path(file.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove everything."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def bypass_batches(part: Bypass, schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one table that go past the catalyst."""
    yield from table_of(part.chunks, schema.columns).to_batches(max_chunksize=_UPLOAD_ROWS)
    for file in part.files:
        with pq.ParquetFile(file.path) as source:
            for batch in source.iter_batches(batch_size=_UPLOAD_ROWS):
                yield pa.RecordBatch.from_arrays(
                    [batch.column(name).cast(schema.columns.field(name).type) for name in schema.columns.names], schema=schema.columns
                )


def remove_files(paths: Iterator[str]) -> None:
    """Remove files of this client."""
    for path in paths:
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            log.info("file.left", path=path, error=repr(error))
