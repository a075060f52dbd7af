"""The stored side of a query: files of a Delta version, or a transaction held in PostgreSQL.

In: the versions that the catalyst's look named.
Out: file lists where there are files, else rows and Spark relations.
Promise: what is returned for a version is exactly its content, without the hidden rows, until `close`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from righttime.changes.operations import Numbers
from righttime.changes.schema import TableSchema
from righttime.errors import WarehouseDamaged
from righttime.query.postgres_source import postgres_frame
from righttime.warehouse.postgres_hold import Held
from righttime.warehouse.store import FileStore

_CHECKED_PARQUET = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True))


class StoredTables(Protocol):
    """The stored rows of a query's tables, held until it has ended."""

    def files(self, table: TableSchema, version: int, *, rows: int) -> Sequence[str] | None:
        """Return the files of a version that has `rows` rows; None if rows are not in files."""
        ...

    def rows(self, table: TableSchema, version: int, *, rows: int, hidden: Mapping[str, Numbers]) -> pa.Table:
        """Return the rows of a version without the hidden ones."""
        ...

    def pieces(self, table: TableSchema, columns: Sequence[str], *, hidden: Mapping[str, Numbers]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the rows as they are read, where they are not in files; the same ones in the same order each time."""
        ...

    def frame(self, child: Any, table: TableSchema, *, hidden: Mapping[str, Numbers]) -> Any:
        """Return a fresh Spark relation of the rows, where they are not in files."""
        ...

    def check(self, table: TableSchema, *, hidden: Mapping[str, Numbers]) -> None:
        """Raise `RowsMoved` if hidden rows are not where they were when they were named."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


HoldTables = Callable[[Sequence[TableSchema], Mapping[str, int]], StoredTables | None]
"""Holds tables at versions; None if the store has gone on to others: look again."""


class FileTables:
    """Versions of Delta tables: a version's files stay while it is pinned, so there is nothing to hold."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    def files(self, table: TableSchema, version: int, *, rows: int) -> Sequence[str]:
        """Return the files, after a look whether the table's log still says what the ledger knows."""
        found = self._store.row_count(table, version)
        if found != rows:
            raise WarehouseDamaged(path=table.name, reason=f"version {version} has {found} rows, and the ledger knows {rows}")
        return self._store.files(table, version)

    def rows(self, table: TableSchema, version: int, *, rows: int, hidden: Mapping[str, Numbers]) -> pa.Table:
        return read_files(table, self.files(table, version, rows=rows), hidden)

    def pieces(self, table: TableSchema, columns: Sequence[str], *, hidden: Mapping[str, Numbers]) -> Iterator[pa.RecordBatch]:
        raise AssertionError("a Delta table is read by its files")

    def frame(self, child: Any, table: TableSchema, *, hidden: Mapping[str, Numbers]) -> Any:
        raise AssertionError("a Delta table is read by its files")

    def check(self, table: TableSchema, *, hidden: Mapping[str, Numbers]) -> None:
        """Do nothing: rows do not move within a file."""

    def close(self) -> None:
        """Do nothing: the pin holds the files."""


class HeldTables:
    """A transaction in PostgreSQL that sees the tables at one moment."""

    def __init__(self, held: Held) -> None:
        self.held = held

    def files(self, table: TableSchema, version: int, *, rows: int) -> None:
        return None

    def rows(self, table: TableSchema, version: int, *, rows: int, hidden: Mapping[str, Numbers]) -> pa.Table:
        return self.held.rows(table.name, hidden=hidden)

    def pieces(self, table: TableSchema, columns: Sequence[str], *, hidden: Mapping[str, Numbers]) -> Iterator[pa.RecordBatch]:
        return self.held.pieces(table.name, columns, hidden=hidden)

    def frame(self, child: Any, table: TableSchema, *, hidden: Mapping[str, Numbers]) -> Any:
        return postgres_frame(child, self.held, table, hidden=hidden)

    def check(self, table: TableSchema, *, hidden: Mapping[str, Numbers]) -> None:
        self.held.check(table.name, hidden=hidden)

    def close(self) -> None:
        self.held.close()


def read_files(table: TableSchema, paths: Sequence[str], hidden: Mapping[str, Numbers]) -> pa.Table:
    """Read Parquet files, without the rows at the hidden positions; raise `WarehouseDamaged` if one cannot be read."""
    try:
        whole = [path for path in paths if path not in hidden]
        parts = [ds.dataset(whole, schema=table.columns, format=_CHECKED_PARQUET).to_table()] if whole else []
        parts.extend(_without(path, table.columns, hidden[path]) for path in paths if path in hidden)
    except (OSError, pa.ArrowException, UnicodeError) as error:
        raise WarehouseDamaged(path=table.name, reason=f"a data file cannot be read ({error})") from error
    return pa.concat_tables([*parts, table.columns.empty_table()])


def _without(path: str, columns: pa.Schema, positions: Numbers) -> pa.Table:
    rows = ds.dataset([path], schema=columns, format=_CHECKED_PARQUET).to_table()
    kept = np.ones(rows.num_rows, dtype=bool)
    kept[positions] = False
    return rows.filter(pa.array(kept))
