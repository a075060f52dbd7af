"""Contents: rows and operations of producers as parts of a message.

In: flushes and transactions of a producer; the same from the wire.
Out: header records and parts; checked chunks and operations.
Promise: what is read here fits its table as if it had been inserted on this side, or the message is refused as a whole.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from righttime.catalyst.messages import Content, Flush
from righttime.changes.encoder import RowEncoder
from righttime.changes.operations import Operations
from righttime.changes.rows import Chunk, table_of
from righttime.changes.schema import TableSchema
from righttime.errors import BadMessage, UnknownTable
from righttime.flight.frames import typed
from righttime.flight.operations import checked_operations

_ROWS, _OPERATIONS = "r", "o"
_TABLES_MAX = 4096
_tables: dict[str, tuple[TableSchema, str, RowEncoder]] = {}

Schemas = Mapping[str, TableSchema]
Check = Callable[[TableSchema, pa.RecordBatch], None]
"""Refuses values that the store could never hold."""


class ContentWriter:
    """Writes the contents of one message."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self.parts: list[pa.Buffer] = []
        self.tables: dict[str, str] = {}

    def contents(self, content: Mapping[str, Sequence[Content]]) -> dict[str, str]:
        """Return the record of one transaction: a letter for each part, by table."""
        return {table: self._parts(table, parts) for table, parts in content.items()}

    def flushes(self, flushes: Sequence[Flush]) -> list[Any]:
        """Return the records of flushes."""
        return [
            [flush.table, flush.next_us, flush.watermark_us, [[time_us, self._parts(flush.table, content)] for time_us, content in flush.commits]]
            for flush in flushes
        ]

    def _parts(self, table: str, content: Sequence[Content]) -> str:
        schema = self._schemas[table]
        self.tables[table] = fingerprint(schema)
        letters = ""
        chunks: list[Chunk] = []
        for part in [*content, None]:
            if isinstance(part, Chunk):
                chunks.append(part)
                continue
            if chunks:
                batches = table_of(chunks, schema.columns).combine_chunks().to_batches()
                self.parts += [batch.serialize() for batch in batches]
                letters += _ROWS * len(batches)
                chunks = []
            if part is not None:
                self.parts.append(_stream(part.to_arrow()))
                letters += _OPERATIONS
        return letters


class ContentReader:
    """Reads the contents of one message; `parts` are taken in the order they were written."""

    def __init__(self, schemas: Schemas, parts: Sequence[pa.Buffer], tables: Mapping[str, Any], *, check: Check) -> None:
        self._schemas = schemas
        self._check = check
        self._parts: Iterator[pa.Buffer] = iter(parts)
        for table, mark in tables.items():
            refuse_other(self._schema(table), mark)
        self._tables = tables

    def contents(self, record: object) -> dict[str, list[Content]]:
        """Return one transaction."""
        return {table: self._read(table, letters) for table, letters in typed(record, dict, what="the content").items()}

    def flushes(self, records: object) -> list[Flush]:
        """Return flushes."""
        return [self._flush(typed(record, list, what="a flush")) for record in typed(records, list, what="the flushes")]

    def _flush(self, record: list[Any]) -> Flush:
        if len(record) != 4:
            raise BadMessage(reason="a flush has four parts")
        table, next_us, watermark_us, commits = record
        self._schema(table)
        return Flush(table, [self._commit(table, commit) for commit in typed(commits, list, what="commits")], _time(next_us), _time(watermark_us))

    def _commit(self, table: str, record: object) -> tuple[int, list[Content]]:
        if not isinstance(record, list) or len(record) != 2:
            raise BadMessage(reason="an archived commit has two parts")
        return typed(record[0], int, what="a commit's time"), self._read(table, record[1])

    def _read(self, table: str, letters: object) -> list[Content]:
        schema = self._schema(table)
        if table not in self._tables:
            raise BadMessage(reason=f"it does not say how it knows table {table!r}")
        content: list[Content] = []
        for letter in typed(letters, str, what="the kinds of parts"):
            part = next(self._parts, None)
            if part is None or letter not in (_ROWS, _OPERATIONS):
                raise BadMessage(reason="parts are missing or of an unknown kind")
            if letter == _ROWS:
                chunks = _rows(part, schema)
                for chunk in chunks:
                    self._check(schema, chunk.content)
                content += chunks
            else:
                content.append(_operations(part, schema))
        return content

    def _schema(self, table: object) -> TableSchema:
        schema = self._schemas.get(typed(table, str, what="a table"))
        if schema is None:
            raise UnknownTable(table=table, known=", ".join(sorted(self._schemas)) or "none")
        return schema


def fingerprint(schema: TableSchema) -> str:
    """Return a mark that two sides share if they know a table with the same columns and keys."""
    return _known(schema)[1]


def refuse_other(schema: TableSchema, mark: object) -> None:
    """Refuse what comes from somebody who knows a table otherwise: columns that are missing there would be null here."""
    if fingerprint(schema) != mark:
        raise BadMessage(reason=f"the sender knows table {schema.name!r} with other columns")


def _known(schema: TableSchema) -> tuple[TableSchema, str, RowEncoder]:
    """Return a table's mark and encoder, made once: a commit of a few rows must not pay for them."""
    found = _tables.get(schema.name)
    if found is None or found[0] is not schema:
        if len(_tables) >= _TABLES_MAX:
            _tables.clear()
        mark = hashlib.sha256(schema.to_json().encode()).hexdigest()[:16]
        found = _tables[schema.name] = (schema, mark, RowEncoder(schema))
    return found


def _time(value: object) -> int | None:
    return None if value is None else typed(value, int, what="a time")


def _rows(part: pa.Buffer, schema: TableSchema) -> list[Chunk]:
    try:
        batch = pa.ipc.read_record_batch(part, schema.columns)
        # Offsets, lengths and texts of a stranger are not to be trusted.
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, IndexError, TypeError) as error:
        raise BadMessage(reason=f"rows of table {schema.name!r} cannot be read") from error
    return _known(schema)[2].encode_arrow(batch)


def _operations(part: pa.Buffer, schema: TableSchema) -> Operations:
    try:
        with pa.ipc.open_stream(part) as stream:
            batch = stream.read_next_batch()
        batch.validate(full=True)
        operations = Operations.from_arrow(batch)
    except (pa.ArrowException, OSError, ValueError, IndexError, TypeError, KeyError, StopIteration, AssertionError, AttributeError) as error:
        raise BadMessage(reason=f"operations on table {schema.name!r} cannot be read") from error
    return checked_operations(operations, schema)


def _stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
