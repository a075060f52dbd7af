"""Which files make up a version, remembered so that a query after a commit replays no log.

In: the files that our own commits add; delta-rs for everything else.
Out: exact file lists and row counts.
Promise: a remembered snapshot equals what a replay of the log would give; memory is bounded per table.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from righttime.errors import WarehouseDamaged
from righttime.warehouse.delta_log import local_path

SNAPSHOTS_MAX = 32  # remembered versions per table
LOADS_MAX = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The absolute paths of one version's files, and their rows."""

    files: tuple[str, ...]
    rows: int


class Snapshots:
    """The remembered snapshots of one table; safe to call from any thread."""

    def __init__(self, table_folder: Path) -> None:
        self._folder = table_folder
        self._known: OrderedDict[int, Snapshot] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, version: int) -> Snapshot:
        """Return a version's snapshot, from memory or by a replay of the log."""
        with self._lock:
            known = self._known.get(version)
            if known is not None:
                self._known.move_to_end(version)
                return known
        loaded = _load(self._folder, version)
        self.remember(version, loaded)
        return loaded

    def peek(self, version: int) -> Snapshot | None:
        """Return the snapshot if it is remembered."""
        with self._lock:
            return self._known.get(version)

    def remember(self, version: int, snapshot: Snapshot) -> None:
        """Keep a snapshot; the one that was not used for the longest time makes room."""
        with self._lock:
            self._known[version] = snapshot
            self._known.move_to_end(version)
            while len(self._known) > SNAPSHOTS_MAX:
                self._known.popitem(last=False)


def _load(folder: Path, version: int) -> Snapshot:
    adds = _adds(folder, version, tries=LOADS_MAX)
    files = tuple(local_path(folder, path) for path in adds.column("path").to_pylist())
    counts = adds.column("num_records").to_pylist() if "num_records" in adds.schema.names else [None] * len(files)
    # Another writer may leave out statistics; its footers still know.
    rows = sum(pq.read_metadata(file).num_rows if count is None else count for file, count in zip(files, counts, strict=True))
    return Snapshot(files, rows)


def _adds(folder: Path, version: int, *, tries: int) -> pa.Table:
    try:
        return pa.table(DeltaTable(str(folder), version=version).get_add_actions())
    except (DeltaError, OSError) as error:
        if tries > 1:
            # A collection may have shortened the log between its listing and its reading; the next listing begins at the checkpoint.
            return _adds(folder, version, tries=tries - 1)
        raise WarehouseDamaged(path=str(folder), reason=f"version {version} cannot be read ({str(error).partition(chr(10))[0]})") from error
