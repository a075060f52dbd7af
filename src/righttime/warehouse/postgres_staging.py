"""Parquet files that Spark wrote for a table in PostgreSQL, kept on this machine until they are committed.

In: folders of Parquet files.
Out: checked files of ours, as record batches when they are committed.
Promise: a file is here until it is committed or discarded; what a dead process left is removed by `collect`.
"""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from righttime.changes.schema import TableSchema
from righttime.warehouse.durable import coded_errors, remove_quietly
from righttime.warehouse.files import TableFiles
from righttime.warehouse.postgres_types import check_storable
from righttime.warehouse.store import Collected, DataFile

_BATCH_ROWS = 1 << 16


class Staging:
    """The folder of staged files of one warehouse; safe to call from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._guard = threading.Lock()
        self._reserved: set[Path] = set()

    def folder(self, table: TableSchema) -> Path:
        """Return a new folder for somebody else's files."""
        folder = self._root / table.name / f"staging-{secrets.token_hex(16)}"
        with coded_errors(folder, step="stage files", batch_id=table.name):
            folder.parent.mkdir(parents=True, exist_ok=True)
        self._reserve(folder)
        return folder

    def take(self, table: TableSchema, folder: Path) -> list[DataFile]:
        """Check the files of a folder and keep them; the folder is gone afterwards."""
        own = self._root / table.name
        files = TableFiles(
            # Parts of a partitioned table would be files of their own; here all rows go into one table.
            replace(table, partition_by=()),
            own,
            reserve=lambda name: self._reserve(own / name),
            release=lambda name: self._release(own / name),
        )
        with coded_errors(folder, step="take files", batch_id=folder.name):
            taken = files.take(folder)
            try:
                for batch in self.batches(table, taken):
                    check_storable(table, batch)
            except BaseException:
                files.remove(taken)
                raise
        self._release(folder)
        return taken

    def path(self, table: TableSchema, file: DataFile) -> Path:
        """Return where a file is."""
        return self._root / table.name / file.path

    def batches(self, table: TableSchema, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files."""
        for file in files:
            with pq.ParquetFile(self.path(table, file)) as parquet:
                for batch in parquet.iter_batches(_BATCH_ROWS):
                    yield from pa.Table.from_batches([batch]).cast(table.columns).to_batches()

    def remove(self, table: TableSchema, files: Sequence[DataFile]) -> None:
        """Remove files that are committed, or never will be."""
        for file in files:
            path = self.path(table, file)
            remove_quietly(path)
            self._release(path)

    def collect(self, table: TableSchema) -> Collected:
        """Remove what nobody in this process knows."""
        files = size = folders = 0
        for path in (self._root / table.name).glob("*"):
            with self._guard:
                if path in self._reserved:
                    continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
                folders += 1
            else:
                files, size = files + 1, size + path.stat().st_size
                remove_quietly(path)
        return Collected(files=files, bytes=size, folders=folders, log_entries=0)

    def _reserve(self, path: Path) -> None:
        with self._guard:
            self._reserved.add(path)

    def _release(self, path: Path) -> None:
        with self._guard:
            self._reserved.discard(path)
