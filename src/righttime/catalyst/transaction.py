"""The open transaction of a producer: the rows and operations that it has taken since its last commit.

In: rows one by one or in bulk, and operations; all checked as they come.
Out: at commit, what is for the catalyst and what goes past it.
Promise: a call that raises leaves the transaction as it was before the call.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from righttime.catalyst.archive import Buffer
from righttime.catalyst.holder import OperationHolder, Where
from righttime.catalyst.messages import Bypass, Content
from righttime.catalyst.port import Port
from righttime.changes.encoder import RowEncoder
from righttime.changes.operations import Kind
from righttime.changes.rows import Chunk, Row
from righttime.errors import BatchTooLarge, OperationRefused, ProducerClosed, UnknownTable, WrongType


class OpenTransaction:
    """A producer's side of its loader: a buffer for each table, guarded by `_calls`, which takes calls from several threads one after the other."""

    source: str

    def __init__(self, port: Port) -> None:
        self._with = port
        self._calls = threading.RLock()
        self._buffers: dict[str, Buffer] = {}
        self._closed = False

    # -- rows in -----------------------------------------------------------------------------------------------------

    def insert(self, table: str, row: Row) -> None:
        """Add one row: a mapping of column to value, or the values in column order."""
        with self._calls:
            buffer = self._buffers.get(table) or self._buffer(table)
            buffer.pending.append(buffer.encoder.checked(row))

    def insert_many(self, table: str, rows: Sequence[Row]) -> None:
        """Add many rows; all of them or, if one does not fit, none."""
        with self._calls:
            buffer = self._buffer(table)
            if not isinstance(rows, list | tuple):
                rows = self._listed(table, rows)
            if rows:
                self._add(table, buffer, [buffer.encoder.encode(rows)])

    def _listed(self, table: str, rows: Any) -> list[Row]:
        if isinstance(rows, str | bytes | Mapping) or not hasattr(rows, "__iter__"):
            raise WrongType(table=table, column="*", value=f"a {type(rows).__name__}", expected="rows (sequences or mappings)")
        return list(rows)

    def insert_arrow(self, table: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Add Arrow data; columns are matched by name and cast without loss."""
        with self._calls:
            buffer = self._buffer(table)
            if not isinstance(rows, pa.Table | pa.RecordBatch):
                raise WrongType(table=table, column="*", value=f"a {type(rows).__name__}", expected="an Arrow table or record batch")
            self._add(table, buffer, buffer.encoder.encode_arrow(rows))

    def insert_df(self, table: str, df: Any) -> None:
        """Add a Spark DataFrame. Its rows are computed and written by the executors now; large ones never pass the driver."""
        with self._calls:
            buffer = self._buffer(table)
            if not hasattr(df, "schema") or not hasattr(df, "write"):
                raise WrongType(table=table, column="*", value=f"a {type(df).__name__}", expected="a Spark DataFrame")
            schema = self._with.schemas[table.lower()]
            files = self._with.stage_df(schema, df)
            if schema.unique or (schema.in_memory and sum(file.size for file in files) <= self._with.settings.bypass_bytes):
                rows = self._with.read_files(schema, files)
                self._with.drop_files(schema, files)
                self._add(table, buffer, buffer.encoder.encode_arrow(rows))
            else:
                if buffer.operations.count:
                    self._with.drop_files(schema, files)
                    raise OperationRefused(
                        table=schema.name, reason="so many rows go straight to the warehouse, past the operations before them; commit those first"
                    )
                buffer.encode_pending()
                buffer.files.extend(files)

    def _add(self, table: str, buffer: Buffer, chunks: list[Chunk]) -> None:
        size = sum(chunk.nbytes for chunk in chunks)
        if size > self._with.settings.batch_bytes_max:
            raise BatchTooLarge(table=table, size=size, bound=self._with.settings.batch_bytes_max)
        buffer.add(chunks)

    def _buffer(self, table: str) -> Buffer:
        if self._closed:
            raise ProducerClosed(source=self.source)
        self._with.check_writable(str(table).lower())
        return self._buffers.get(table) or self._open_buffer(table)

    def _open_buffer(self, table: str) -> Buffer:
        schema = self._with.schemas.get(str(table).lower())
        if schema is None:
            raise UnknownTable.among(table, self._with.schemas, is_stream=self._with.is_stream(str(table).lower()))
        check = self._with.check_storable
        return self._buffers.setdefault(schema.name, Buffer(RowEncoder(schema, check), OperationHolder(schema, check)))

    # -- operations --------------------------------------------------------------------------------------------------

    def update(self, table: str, set: Mapping[str, Any], where: Where = None, *, parameters: Sequence[Any] = ()) -> None:
        """Change rows: `set` gives columns their new values (or `expr("qty + 1")`), `where` chooses the rows.

        A mapping chooses by equality, text is an SQL condition with `?` for `parameters`, None means every row. It takes effect at commit, on everything
        committed before and on the rows that this transaction inserted before.
        """
        with self._calls:
            buffer = self._changing(table)
            buffer.operations.update(set, where, parameters, after=buffer.rows_inserted)

    def delete(self, table: str, where: Where = None, *, parameters: Sequence[Any] = ()) -> None:
        """Delete rows, chosen as by `update`."""
        with self._calls:
            buffer = self._changing(table)
            buffer.operations.delete(where, parameters, after=buffer.rows_inserted)

    def upsert(self, table: str, row: Row) -> None:
        """Give the row with this key the given columns, or insert it if there is none."""
        with self._calls:
            buffer = self._changing(table)
            buffer.operations.upsert(row, after=buffer.rows_inserted)

    def update_many(self, table: str, rows: Sequence[Row] | pa.Table) -> None:
        """Update by key, many rows at once: mappings with the key columns and those to set, or all columns in order. All of them are taken or none."""
        self._change_many("update", table, rows)

    def upsert_many(self, table: str, rows: Sequence[Row] | pa.Table) -> None:
        """Upsert many rows at once, all of them or none."""
        self._change_many("upsert", table, rows)

    def delete_many(self, table: str, rows: Sequence[Row] | pa.Table) -> None:
        """Delete by key, many rows at once: mappings with the key columns, or the key's values in order. All of them are taken or none."""
        self._change_many("delete", table, rows)

    def _change_many(self, kind: Kind, table: str, rows: Any) -> None:
        with self._calls:
            buffer = self._changing(table)
            if isinstance(rows, pa.Table):
                buffer.operations.add_arrow(kind, rows, after=buffer.rows_inserted)
            else:
                buffer.operations.add_rows(kind, rows if type(rows) is list else self._listed(table, rows), after=buffer.rows_inserted)

    def _changing(self, table: str) -> Buffer:
        buffer = self._buffer(table)
        if buffer.files:
            raise OperationRefused(
                table=buffer.encoder.table.name, reason="rows of this transaction go straight to the warehouse (a large DataFrame); commit them first"
            )
        return buffer

    # -- commit and rollback -----------------------------------------------------------------------------------------

    def _transaction(self) -> tuple[dict[str, list[Content]], dict[str, Bypass]]:
        """Return the open transaction: what is for the catalyst, and rows that go past it."""
        content: dict[str, list[Content]] = {}
        bypass: dict[str, Bypass] = {}
        for name, buffer in self._buffers.items():
            schema = self._with.schemas[name]
            buffer.encode_pending()
            large = buffer.chunks and (not schema.in_memory or buffer.nbytes > self._with.settings.bypass_bytes)
            # Rows with operations after them need ids, which only the catalyst gives; unique keys are looked up there.
            if buffer.files or (large and not buffer.operations.count and not buffer.rows_staged and not schema.unique):
                bypass[name] = Bypass(tuple(buffer.chunks), tuple(buffer.files))
            elif buffer.in_use:
                content[name] = buffer.content()
        return content, bypass

    def _must_store(self, content: Mapping[str, Sequence[Content]]) -> bool:
        """A table without memory table keeps its rows in the warehouse, those that were changed as well."""
        held = (name for name, buffer in self._buffers.items() if name in content or buffer.rows_staged or buffer.operations.count)
        return any(not self._with.schemas[name].in_memory for name in held)

    def _end_transaction(self) -> None:
        for buffer in self._buffers.values():
            buffer.clear()

    def _drop_transaction(self) -> None:
        for name, buffer in self._buffers.items():
            if buffer.files:
                self._with.drop_files(self._with.schemas[name], buffer.files)
            buffer.clear()
