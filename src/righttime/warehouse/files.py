"""Parquet files of one table: written here, or taken over from somebody who wrote them.

In: rows; folders of Parquet files.
Out: `DataFile`s, synced with their folder, that no version knows yet.
Promise: a file holds one combination of partition values, at most `FILE_ROWS_MAX` rows if written here, and is never written again under its name.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kind

from righttime.changes.schema import TableSchema
from righttime.changes.types import BadType, canonical_schema
from righttime.errors import BadTable, NullNotAllowed
from righttime.warehouse.durable import remove_quietly, sync_file, sync_folder, write_new
from righttime.warehouse.partitions import split
from righttime.warehouse.stats import StatColumn, footer_stats, stat_columns
from righttime.warehouse.store import DataFile

FILE_ROWS_MAX = 1_000_000
FILE_BYTES_MAX = 256 * 1024 * 1024  # of rows in memory, before compression
OWN_PREFIX = "rt-"


class TableFiles:
    """Makes the data files of one table in its folder. `reserve` is told each name before the file exists, `release` if it is gone again."""

    def __init__(self, table: TableSchema, folder: Path, *, reserve: Callable[[str], None], release: Callable[[str], None]) -> None:
        self._table = table
        self._folder = folder
        self._reserve = reserve
        self._release = release
        self._stat_columns = stat_columns(table.columns, partition_by=table.partition_by)
        self._floats = tuple(column for column in self._stat_columns if kind.is_floating(column.type))

    def write(self, rows: pa.Table | Iterable[pa.RecordBatch]) -> list[DataFile]:
        """Write rows to new files and sync them with the folder; after an error none of them is left."""
        written: list[DataFile] = []
        try:
            for part in _parts(rows):
                for partition, part_rows in split(self._conformed(part), self._table.partition_by):
                    written.append(self._write_one(part_rows, partition))
            if written:
                sync_folder(self._folder)
        except BaseException:
            self.remove(written)
            raise
        return written

    def remove(self, files: Iterable[DataFile]) -> None:
        """Remove files that no version will have."""
        for file in files:
            remove_quietly(self._folder / file.path)
            self._release(file.path)

    def _conformed(self, rows: pa.Table) -> pa.Table:
        columns = self._table.columns
        return rows if rows.schema.equals(columns) else rows.select(columns.names).cast(columns)

    def _write_one(self, rows: pa.Table, partition: Mapping[str, str | None]) -> DataFile:
        sink = pa.BufferOutputStream()
        # Measured fastest that still compresses: zstd without dictionaries; types need no Arrow schema in the footer.
        options = {
            "compression": "zstd",
            "use_dictionary": False,
            "store_schema": False,
            "write_page_checksum": True,
            "write_statistics": self._with_statistics(rows),
        }
        with pq.ParquetWriter(sink, rows.schema, **options) as writer:
            writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        content = sink.getvalue()
        stats = footer_stats(pq.read_metadata(pa.BufferReader(content)), self._stat_columns)
        file = DataFile(self._new_name(), content.size, rows.num_rows, partition, stats)
        try:
            write_new(self._folder / file.path, memoryview(content))
        except BaseException:
            self._release(file.path)
            raise
        return file

    def _with_statistics(self, rows: pa.Table) -> bool | list[str]:
        """Return which columns may have statistics: all, or those without NaN."""
        # Arrow leaves NaN out of a footer's bounds, but Spark and DuckDB sort it above all numbers and skip row groups
        # by those bounds: `x > 2` would lose the row when it moves from memory into a file.
        nan = {column.path for column in self._floats if pc.any(pc.is_nan(_leaf(rows, column))).as_py()}
        return not nan or [".".join(column.path) for column in stat_columns(rows.schema, partition_by=()) if column.path not in nan]

    def _new_name(self) -> str:
        name = f"{OWN_PREFIX}{secrets.token_hex(16)}.parquet"
        self._reserve(name)
        return name

    def take(self, folder: Path) -> list[DataFile]:
        """Move the Parquet files of `folder` here, all checked before the first one moves; the folder is removed."""
        footers = {path: pq.read_metadata(path) for path in sorted(folder.rglob("*.parquet")) if not path.name.startswith((".", "_"))}
        for path, footer in footers.items():
            self._check_columns(path, footer)
        taken: list[DataFile] = []
        try:
            for path, footer in footers.items():
                if footer.num_rows:
                    taken.extend(self._take_one(path, footer))
            sync_folder(self._folder)
        except BaseException:
            self.remove(taken)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        return taken

    def _check_columns(self, path: Path, footer: Any) -> None:
        try:
            found = canonical_schema(footer.schema.to_arrow_schema())
        except BadType as error:
            raise BadTable(table=self._table.name, reason=f"file {path.name}: {error}") from None
        expected = self._table.columns
        if found.names != expected.names or found.types not in (expected.types, [_nullable(one) for one in expected.types]):
            raise BadTable(table=self._table.name, reason=f"file {path.name} has other columns ({found.to_string(show_field_metadata=False)})")
        self._check_nulls(path, footer)

    def _check_nulls(self, path: Path, footer: Any) -> None:
        for column in stat_columns(self._table.columns, partition_by=()):
            if len(column.path) > 1 or self._table.columns.field(column.path[0]).nullable:
                continue
            found = [footer.row_group(number).column(column.index).statistics for number in range(footer.num_row_groups)]
            known = all(one is not None and one.has_null_count for one in found)
            nulls = sum(one.null_count for one in found) if known else pq.read_table(path, columns=[column.path[0]]).column(0).null_count
            if nulls:
                raise NullNotAllowed(table=self._table.name, column=column.path[0], why="declared NOT NULL")

    def _take_one(self, path: Path, footer: Any) -> list[DataFile]:
        partition: Mapping[str, str | None] = {}
        if self._table.partition_by:
            values = [part for part, _ in split(pq.read_table(path, columns=list(self._table.partition_by)), self._table.partition_by)]
            if len(values) > 1:
                return self.write(pq.ParquetFile(path).iter_batches())
            partition = values[0]
        # Whether a foreign writer counted NaN in its bounds cannot be told from a footer.
        stats = footer_stats(footer, self._stat_columns, unbounded={column.path for column in self._floats})
        sync_file(path)
        size = path.stat().st_size
        name = self._new_name()
        path.rename(self._folder / name)
        return [DataFile(name, size, footer.num_rows, partition, stats)]


def _parts(rows: pa.Table | Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in tables that fit one file each."""
    if isinstance(rows, pa.Table):
        yield from _slices(rows)
        return
    waiting: list[pa.RecordBatch] = []
    row_count = byte_count = 0
    for batch in rows:
        waiting.append(batch)
        row_count, byte_count = row_count + batch.num_rows, byte_count + batch.nbytes
        if row_count >= FILE_ROWS_MAX or byte_count >= FILE_BYTES_MAX:
            yield from _slices(pa.Table.from_batches(waiting))
            waiting, row_count, byte_count = [], 0, 0
    if waiting:
        yield from _slices(pa.Table.from_batches(waiting))


def _slices(rows: pa.Table) -> Iterator[pa.Table]:
    if rows.num_rows == 0:
        return
    row_bytes = max(1, rows.nbytes // rows.num_rows)
    step = max(1, min(FILE_ROWS_MAX, FILE_BYTES_MAX // row_bytes))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def _leaf(rows: pa.Table, column: StatColumn) -> pa.ChunkedArray:
    values = rows.column(column.path[0])
    for name in column.path[1:]:
        values = pc.struct_field(values, name)
    return values


def _nullable(given: pa.DataType) -> pa.DataType:
    """Return the type as Spark writes it: everything inside may be null."""
    if kind.is_struct(given):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in given])
    if kind.is_map(given):
        return pa.map_(pa.field("key", _nullable(given.key_type), nullable=False), pa.field("value", _nullable(given.item_type)))
    if kind.is_list(given):
        return pa.list_(pa.field("element", _nullable(given.value_type)))
    return given
