"""A table held in PostgreSQL, as a Spark relation whose partitions all see the moment that is held.

In: a hold, the rows of it that do not count.
Out: a DataFrame; each of its tasks reads a range of blocks through a connection of its own, in the exported snapshot.
Promise: fresh for one query. Everything travels in options, because Spark plans in another process; once the hold is closed, a task fails
("invalid snapshot identifier") instead of reading another moment.
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from pydantic import SecretStr
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from righttime.changes.schema import TableSchema
from righttime.changes.types import to_spark_json
from righttime.ledger.postgres_connect import Address, connect
from righttime.warehouse.postgres_catalog import Found
from righttime.warehouse.postgres_hold import Held
from righttime.warehouse.postgres_places import places_of
from righttime.warehouse.postgres_scan import TableScan, selected
from righttime.warehouse.store import Positions

_NAME = "righttime_postgres"
_PARTS_PER_CORE = 2


def postgres_frame(child: SparkSession, held: Held, table: TableSchema, *, hidden: Mapping[str, Positions], columns: Sequence[str] | None = None) -> DataFrame:
    """Return a relation of a held table, without the rows at the `hidden` positions; all columns, or some."""
    found, address, chosen = held.found(table.name), held.address, list(table.columns.names if columns is None else columns)
    options = {
        # Spark hides options of this name where it shows plans.
        "url": address.secret.get_secret_value(),
        "address": json.dumps([address.name, address.tables, address.ledger, address.lock_wait_s]),
        "table": table.to_json(),
        "found": found.to_json(),
        "columns": json.dumps(chosen),
        "snapshot": held.moment().snapshot,
        "parts": json.dumps(held.parts(table.name, parts_max=_PARTS_PER_CORE * child.sparkContext.defaultParallelism)),
        "hidden": _packed(places_of(found, hidden).ctids),
    }
    _register(child)
    return child.read.format(_NAME).options(**options).load()


def _register(child: SparkSession) -> None:
    """Make the source known to a session; workers on this machine are started with this Python, which has righttime."""
    context: Any = child.sparkContext
    before = context.pythonExec
    if context.master.startswith("local"):
        context.pythonExec = sys.executable
    try:
        child.dataSource.register(PostgresSource)
    finally:
        context.pythonExec = before


class PostgresSource(DataSource):
    """The relation, as Spark's planner sees it."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `read.format` takes."""
        return _NAME

    def schema(self) -> StructType:
        """Return the columns, all of them nullable for Spark."""
        table = TableSchema.from_json(self.options["table"])
        return StructType.fromJson(to_spark_json(selected(table, json.loads(self.options["columns"])))).toNullable()

    def reader(self, schema: StructType) -> PostgresReader:
        """Return the reader of one scan."""
        return PostgresReader(dict(self.options))


class _Part(InputPartition):
    """Positions from `low` to before `high`."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__((low, high))
        self.low = low
        self.high = high


class PostgresReader(DataSourceReader):
    """Reads partitions on Spark's workers."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges that were cut when the relation was made; a table without blocks still needs one."""
        return [_Part(low, high) for low, high in json.loads(self._options["parts"]) or [(0, 0)]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a range as record batches."""
        assert isinstance(partition, _Part)
        options = self._options
        name, tables, ledger, wait_s = json.loads(options["address"])
        address = Address(name, SecretStr(options["url"]), tables, ledger, wait_s)
        table, found = TableSchema.from_json(options["table"]), Found.of(json.loads(options["found"]))
        columns, gone = json.loads(options["columns"]), _unpacked(options["hidden"])
        form = pa.schema([pa.field(field.name, field.type) for field in selected(table, columns)])
        with connect(address) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(psycopg.sql.SQL("SET TRANSACTION SNAPSHOT {}").format(options["snapshot"]))
            scan = TableScan(connection, address, table, found)
            for rows in scan.without(columns, gone, low=partition.low, high=partition.high):
                if rows.num_rows:
                    yield pa.RecordBatch.from_arrays(rows.columns, schema=form) if columns else rows


def _packed(ctids: Positions) -> str:
    """Return ascending ctids as text; their differences are small, so a million take a few hundred kilobytes."""
    return base64.b64encode(zlib.compress(np.diff(ctids, prepend=0).astype("<i8").tobytes(), 1)).decode()


def _unpacked(text: str) -> Positions:
    return np.cumsum(np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<i8")).astype(np.int64)
