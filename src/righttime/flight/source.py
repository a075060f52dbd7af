"""A Spark data source: the rows of a held snapshot, read by executors over Flight.

In: options only (Spark plans in a process of its own): where the service is, and a ticket for each partition.
Out: Arrow batches.
Promise: a partition reads exactly its files of the held snapshot; a snapshot that has lapsed fails the query, it never gives other rows.
Executors get this module by value and need pyarrow, not righttime.
"""

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

NAME = "righttime_snapshot"

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class SnapshotSource(DataSource):
    """Registered in the session of each query; made anew for each relation."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> "SnapshotReader":
        return SnapshotReader(dict(self.options), schema)


class SnapshotReader(DataSourceReader):
    """Reads one table of one snapshot."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(base64.b64decode(ticket)) for ticket in json.loads(self._options["tickets_token"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        roots = self._options["roots"].encode() or None
        # Spark knows every column as nullable, on every level.
        columns = to_arrow_schema(self._schema, timezone="UTC")
        with flight.FlightClient(self._options["location"], tls_root_certs=roots) as client:
            for chunk in client.do_get(flight.Ticket(partition.value)):
                yield pa.RecordBatch.from_arrays([column.cast(field.type) for column, field in zip(chunk.data.columns, columns, strict=True)], schema=columns)


def register_source(child: Any) -> None:
    """Make the source known to a session; workers on this machine are started with this Python, which has pyarrow."""
    context = child.sparkContext
    before = context.pythonExec
    if context.master.startswith("local"):
        context.pythonExec = sys.executable
    try:
        child.dataSource.register(SnapshotSource)
    finally:
        context.pythonExec = before


def source_options(location: str, roots: bytes | None, tickets: Sequence[bytes]) -> dict[str, Any]:
    """Return the options that say everything. Spark hides those that are named a token where it shows plans."""
    return {"location": location, "roots": (roots or b"").decode(), "tickets_token": json.dumps([base64.b64encode(ticket).decode() for ticket in tickets])}
