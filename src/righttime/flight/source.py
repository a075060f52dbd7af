"""A Spark data source: the rows of a held snapshot, read by executors over Flight.

In: options only (Spark plans in a process of its own): where the service is, and a ticket for each partition.
Out: Arrow batches.
Promise: a partition reads exactly its files of the held snapshot, each row once though connections break; a snapshot that has lapsed, or a service
that is out of reach for `reconnect_s`, fails the query, which never gets other rows. Executors get this module by value and need pyarrow, not righttime.
"""

import base64
import json
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

NAME = "righttime_snapshot"
MARK = "righttime-failure"
"""Stands before a failure in the text of an error, which is all that comes from an executor."""
_BACK_OFF_S = (0.05, 2.0)
_MAGIC_BYTES, _HEAD_BYTES = 4, 8  # of a frame

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
        # Spark knows every column as nullable, on every level.
        columns = to_arrow_schema(self._schema, timezone="UTC")
        for batch in self._batches(partition.value):
            yield pa.RecordBatch.from_arrays([column.cast(field.type) for column, field in zip(batch.columns, columns, strict=True)], schema=columns)

    def _batches(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """Yield what a ticket stands for; after a broken connection the rest of it, for the rows of a ticket are always the same in the same order."""
        given, failing_s, delay_s = 0, None, _BACK_OFF_S[0]
        while True:
            try:
                for chunk in self._stream(_ticket_after(ticket, given)):
                    given, failing_s, delay_s = given + chunk.data.num_rows, None, _BACK_OFF_S[0]
                    yield chunk.data
                return
            except (pa.ArrowException, OSError) as error:
                now_s = time.monotonic()
                failing_s = now_s if failing_s is None else failing_s
                reason = _break_of(error)
                if now_s - failing_s + delay_s > float(self._options["reconnect_s"]):
                    context = {"target": self._options["target"], "waited_s": now_s - failing_s, "reason": reason}
                    raise _failure({"code": "service.unreachable", "context": context}) from None
            time.sleep(delay_s)  # between attempts; nobody in this process could wake it, and Spark ends the process of a task that it gives up
            delay_s = min(2 * delay_s, _BACK_OFF_S[1])

    def _stream(self, ticket: bytes) -> Iterator[Any]:
        channel = [(name, value) for name, value in json.loads(self._options["channel"])]
        with flight.FlightClient(self._options["location"], tls_root_certs=self._options["roots"].encode() or None, generic_options=channel) as client:
            yield from client.do_get(flight.Ticket(ticket))


def _ticket_after(ticket: bytes, given: int) -> bytes:
    """Return the ticket for what comes after some of its rows: the same frame, with one word more in its header."""
    text = json.dumps({**json.loads(ticket[_HEAD_BYTES:]), "skip": given}).encode()
    return ticket[:_MAGIC_BYTES] + struct.pack("<I", len(text)) + text


def _break_of(error: Exception) -> str:
    """Return why a connection broke; raise what trying again would not cure."""
    try:
        record = json.loads(getattr(error, "extra_info", b"") or b"null")
    except ValueError:
        record = None
    if isinstance(record, dict) and "code" in record:
        if record["code"] == "service.stopping" or (record["code"], record["context"].get("setting")) == ("service.busy", "calls_max"):
            return str(record["code"])
        raise _failure(record) from None
    text = str(error).split(". Detail:")[0][:200]
    if isinstance(error, flight.FlightServerError):
        raise _failure({"code": "service.failed", "context": {"reason": text}}) from None
    return text


def _failure(record: dict[str, Any]) -> Exception:
    return RuntimeError(f"{record['code']}, {MARK} {base64.b64encode(json.dumps(record).encode()).decode()}")


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


def source_options(target: Any, tickets: Sequence[bytes], *, channel: Sequence[tuple[str, Any]], reconnect_s: float) -> dict[str, Any]:
    """Return the options that say everything. Spark hides those that are named a token where it shows plans."""
    return {
        "target": str(target),
        "location": target.location,
        "roots": (target.roots or b"").decode(),
        "channel": json.dumps(channel),
        "reconnect_s": reconnect_s,
        "tickets_token": json.dumps([base64.b64encode(ticket).decode() for ticket in tickets]),
    }
