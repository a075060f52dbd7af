"""Segments of a stream: stretches of stored changes as Parquet files, which Spark reads as they are.

In: the tail of a stream, whole commits only.
Out: files named after the changes they hold, and their rows again, from memory where they are kept.
Promise: a segment has its name only when it is whole and synced, and never changes. Two segments never hold the same change.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from righttime.changes.faults import CrashPoint, reach
from righttime.errors import WarehouseDamaged
from righttime.queues.declared import StreamSchema
from righttime.queues.index import Numbers
from righttime.queues.unpacked import UnpackedSegments
from righttime.warehouse.durable import TEMPORARY_PREFIX, remove_quietly, sync_file, sync_folder

_ROW_GROUP = 131_072
_REPEATING = ("_change_type", "_commit_version", "_commit_timestamp", "_transaction", "_w")
COMMIT_COLUMNS = ("_commit_version", "_commit_timestamp", "_transaction")


@dataclass(frozen=True, slots=True)
class Segment:
    """One file: changes `first_seq` to `last_seq`, committed from `first_us` to `last_us`."""

    path: Path
    first_seq: int
    last_seq: int
    first_us: int
    last_us: int
    bytes: int


def write_segment(folder: Path, schema: StreamSchema, rows: pa.Table) -> Segment:
    """Write whole commits as the next segment of a stream; it counts from the moment it has its name, and has none if this fails."""
    seq, times = rows.column("_seq"), rows.column("_commit_timestamp").cast(pa.int64())
    first_seq, last_seq = seq[0].as_py(), seq[-1].as_py()
    path = folder / f"{first_seq:016d}-{last_seq:016d}.parquet"
    temporary = folder / f"{TEMPORARY_PREFIX}{path.name}.tmp"
    texts = [one.name for one in schema.columns if pa.types.is_string(one.type)]
    try:
        pq.write_table(rows, temporary, compression="snappy", use_dictionary=[*texts, *_REPEATING], row_group_size=_ROW_GROUP)
        sync_file(temporary)
        reach(CrashPoint.SEGMENT_WRITTEN)
        temporary.rename(path)
        sync_folder(folder)
        reach(CrashPoint.SEGMENT_NAMED)
        return Segment(path, first_seq, last_seq, times[0].as_py(), times[-1].as_py(), path.stat().st_size)
    except BaseException:
        remove_quietly(temporary)
        remove_quietly(path)  # its rows are sealed again, with later ones
        raise


@dataclass(frozen=True, slots=True)
class Commits:
    """The commits in some stored rows: numbers, times, last change, transactions."""

    numbers: Numbers
    times: Numbers
    last_seqs: Numbers
    transactions: Sequence[str | None]


def commits_of(rows: pa.Table, first_seq: int) -> Commits:
    """Return the commits in stored rows, which are in their order; the rows have the commit columns."""
    numbers = rows.column("_commit_version").to_numpy()
    lasts = np.flatnonzero(np.append(numbers[1:] != numbers[:-1], True))
    times = rows.column("_commit_timestamp").cast(pa.int64()).to_numpy()
    return Commits(numbers[lasts], times[lasts], first_seq + lasts, rows.column("_transaction").take(pa.array(lasts)).to_pylist())


def find_segments(folder: Path) -> list[tuple[Segment, Commits]]:
    """Return the segments of a folder in order, with their commits; what a crash left without a name is removed."""
    for left in folder.glob(f"{TEMPORARY_PREFIX}*"):
        left.unlink()
    found: list[tuple[Segment, Commits]] = []
    for path in sorted(folder.glob("*.parquet")):
        first_seq, last_seq = (int(part) for part in path.stem.split("-"))
        if first_seq != (found[-1][0].last_seq + 1 if found else 1):
            raise WarehouseDamaged(path=path, reason=f"the segment before change {first_seq} is missing")
        try:
            commits = commits_of(pq.read_table(path, columns=list(COMMIT_COLUMNS)), first_seq)
        except (OSError, pa.ArrowException) as error:
            raise WarehouseDamaged(path=path, reason=f"the segment cannot be read ({error})") from error
        times = commits.times
        found.append((Segment(path, first_seq, last_seq, int(times[0]), int(times[-1]), path.stat().st_size), commits))
    if found:
        sync_folder(folder)  # whoever sealed the last one may have died before, and its rows are about to leave the log
    return found


class SegmentCache:
    """Rows of segments that were written or read last, up to a number of bytes; safe to use from any thread."""

    def __init__(self, *, bytes_max: int, unpacked_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._unpacked = UnpackedSegments(bytes_max=unpacked_bytes_max)
        self._lock = threading.Lock()
        self._tables: OrderedDict[Path, pa.Table] = OrderedDict()
        self._bytes = 0

    def keep(self, path: Path, rows: pa.Table) -> None:
        """Keep the rows of a segment; those not used for longest make room."""
        with self._lock:
            if path in self._tables or rows.nbytes > self._bytes_max:
                return
            self._tables[path] = rows
            self._bytes += rows.nbytes
            while self._bytes > self._bytes_max:
                _, gone = self._tables.popitem(last=False)
                self._bytes -= gone.nbytes

    def read(self, segment: Segment, schema: pa.Schema) -> pa.Table:
        """Return all rows of a segment, as one chunk."""
        rows = self._kept(segment.path)
        if rows is None:
            rows = _read(segment.path, schema)
            self.keep(segment.path, rows)
        return rows

    def fetch(self, segment: Segment, schema: pa.Schema, places: Numbers) -> pa.Table:
        """Return the columns of a schema of a few rows of a segment, by their places.

        Changes of old rows ask for single ones all over a stream. So what they need is unpacked once, and does not drive out of memory what drains read.
        """
        rows = self._kept(segment.path)
        if rows is None:
            rows = self._unpacked.get(segment.path)
        if rows is None:
            rows = _read(segment.path, schema)
            self._unpacked.keep(segment.path, rows)
        return rows.select(schema.names).take(pa.array(places))

    def _kept(self, path: Path) -> pa.Table | None:
        with self._lock:
            rows = self._tables.get(path)
            if rows is not None:
                self._tables.move_to_end(path)
            return rows


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        # Parquet knows nothing of fields inside arrays that may not be null; the stream's declaration does.
        return pq.read_table(path, columns=schema.names).cast(schema).combine_chunks()
    except (OSError, pa.ArrowException) as error:
        raise WarehouseDamaged(path=path, reason=f"the segment cannot be read ({error})") from error


def joined(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return some stored rows as one table of one chunk."""
    if not tables:
        return schema.empty_table()
    return (tables[0] if len(tables) == 1 else pa.concat_tables(tables)).combine_chunks()


def taken(rows: pa.Table, places: Numbers) -> pa.Table:
    """Return some rows of a table by their places."""
    return rows.take(pa.array(places)) if len(places) else rows.slice(0, 0)


def last_of(rows: pa.Table, name: str) -> int:
    """Return the greatest value of a column of numbers."""
    return int(pc.max(rows.column(name)).as_py() or 0)
