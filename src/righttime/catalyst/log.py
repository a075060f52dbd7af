"""The write-ahead log: hot rows on disk, for commits that must survive a crash before they are stored.

In: entries (rows and operations of a lane with their ids and commit times).
Out: positions for the ledger; on open, the entries between two positions.
Promise: `append` returns after fsync; what lies behind the ledger's position does not exist and takes no room: the next append cuts it off,
or begins a file that says where the one before ended.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from righttime.changes.faults import CrashPoint, reach
from righttime.changes.operations import Operations, Placed
from righttime.errors import LogFull, WarehouseDamaged
from righttime.ledger.state import LogPosition
from righttime.settings import Settings
from righttime.warehouse.durable import sync_folder

_FRAME = struct.Struct("<4sIQI")
_MAGIC = b"RTL1"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What one lane got: runs of row ids (first, rows), (time, row id) pairs, the rows themselves, and the operations."""

    table: str
    source: str
    runs: Sequence[tuple[int, int]]
    times: Sequence[tuple[int, int]]
    rows: pa.Table
    operations: Sequence[Placed] = ()

    @property
    def last_id(self) -> int:
        rows = self.runs[-1][0] + self.runs[-1][1] - 1 if self.runs else 0
        return max(rows, self.operations[-1].last_id if self.operations else 0)


class Log(Protocol):
    """What the mover and recovery need of a write-ahead log; files here, rows in a PostgreSQL warehouse."""

    def append(self, entries: Sequence[LogEntry], *, at: LogPosition, bounded: bool = True) -> "Record": ...
    def keep(self, record: "Record") -> None: ...
    def begin(self, stored: Mapping[tuple[str, str], int], *, appended: "Record | None", end: LogPosition) -> LogPosition: ...
    def release(self, begin: LogPosition, *, end: LogPosition) -> None: ...
    def read(self, begin: LogPosition, end: LogPosition) -> Iterator[LogEntry]: ...
    def bytes_held(self) -> int: ...


class WriteAheadLog:
    """A folder of numbered files; the mover's lock guards it."""

    def __init__(self, folder: Path, *, settings: Settings, read_only: bool = False) -> None:
        self._folder = folder
        self._settings = settings
        if not read_only:
            self._folder.mkdir(exist_ok=True)
        self._kept: list[Record] = []

    def append(self, entries: Sequence[LogEntry], *, at: LogPosition, bounded: bool = True) -> "Record":
        """Write one record at the ledger's position `at`, cutting off anything behind it; the caller hands it to `keep` once the ledger has it."""
        record = encode(entries, after=at)
        held = self._bytes_up_to(at)
        if bounded and held + len(record) > self._settings.log_bytes_max:
            raise LogFull(used=held + len(record), bound=self._settings.log_bytes_max)
        if not self._kept or at.offset >= self._settings.log_file_bytes:
            at = LogPosition(at.file + 1, 0)
        path = self._path(at.file)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.truncate(at.offset)
            file.seek(at.offset)
            file.write(record)
            file.flush()
            reach(CrashPoint.LOG_WRITTEN)
            os.fsync(file.fileno())
        if at.offset == 0:
            sync_folder(self._folder)  # a file that is there already may be one whose name a killed process has not synced
        reach(CrashPoint.LOG_SYNCED)
        return Record.of(at, LogPosition(at.file, at.offset + len(record)), entries)

    def keep(self, record: "Record") -> None:
        """Remember a record that the ledger has accepted."""
        self._kept.append(record)

    def begin(self, stored: Mapping[tuple[str, str], int], *, appended: "Record | None", end: LogPosition) -> LogPosition:
        """Return where the log has to begin once rows up to `stored` are in the warehouse."""
        records = self._kept if appended is None else [*self._kept, appended]
        return next((record.start for record in records if record.needed(stored)), end)

    def release(self, begin: LogPosition, *, end: LogPosition) -> None:
        """Remove files that hold nothing between `begin` and `end`; the ledger has them already."""
        self._kept = [record for record in self._kept if (record.end.file, record.end.offset) > (begin.file, begin.offset)]
        for path in self._files():
            number = int(path.stem)
            if not begin.file <= number <= end.file or (begin == end and number == begin.file):
                path.unlink()
                reach(CrashPoint.LOG_REMOVED)

    def read(self, begin: LogPosition, end: LogPosition) -> Iterator[LogEntry]:
        """Yield the entries between two positions of the ledger, remembering the records."""
        if begin == end:
            return
        following = self._content(begin.file)
        for number in range(begin.file, end.file + 1):
            content, limit = following, end.offset
            if number < end.file:
                following = self._content(number + 1)
                limit = _ended(following, self._path(number + 1), otherwise=len(content))
            offset = begin.offset if number == begin.file else 0
            while offset < limit:
                entries, stop = decode(content, offset, self._path(number))
                self.keep(Record.of(LogPosition(number, offset), LogPosition(number, stop), entries))
                offset = stop
                yield from entries

    def _content(self, number: int) -> bytes:
        path = self._path(number)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise WarehouseDamaged(path=path, reason="a log file that the ledger names is missing") from None

    def bytes_held(self) -> int:
        """Return the size of all log files."""
        return sum(_size(path) for path in self._files())

    def _bytes_up_to(self, at: LogPosition) -> int:
        """Return the size of the log before a position: a step that failed may have written behind it."""
        sizes = {int(path.stem): _size(path) for path in self._files()}
        return sum(min(size, at.offset) if number == at.file else size for number, size in sizes.items() if number <= at.file)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.log"))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.log"


@dataclass(frozen=True, slots=True)
class Record:
    """Where a record lies, and the newest row of each lane in it."""

    start: LogPosition
    end: LogPosition
    lanes: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, start: LogPosition, end: LogPosition, entries: Sequence[LogEntry]) -> "Record":
        return cls(start, end, {(entry.table, entry.source): entry.last_id for entry in entries})

    def needed(self, stored: Mapping[tuple[str, str], int]) -> bool:
        return any(stored.get(lane, 0) < last_id for lane, last_id in self.lanes.items())


def encode(entries: Sequence[LogEntry], *, after: LogPosition | None = None) -> bytes:
    """Return a record; `after` is where the log ended before it, which is how a reader knows the end of a file that others follow."""
    header: list[dict[str, Any]] = []
    bodies = []
    for entry in entries:
        rows = _stream(entry.rows)
        operations = [_stream(pa.Table.from_batches([placed.operations.to_arrow()])) for placed in entry.operations]
        header.append(
            {
                "table": entry.table,
                "source": entry.source,
                "runs": entry.runs,
                "times": entry.times,
                "bytes": len(rows),
                "operations": [
                    {"first_id": placed.first_id, "bounds": placed.bounds.tolist(), "bytes": len(body)}
                    for placed, body in zip(entry.operations, operations, strict=True)
                ],
            }
        )
        bodies += [rows, *operations]
    if after is not None:
        header[0]["after"] = (after.file, after.offset)
    head, body = json.dumps(header, separators=(",", ":")).encode(), b"".join(bodies)
    return _FRAME.pack(_MAGIC, len(head), len(body), zlib.crc32(body, zlib.crc32(head))) + head + body


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def decode(content: bytes, offset: int, path: Path) -> tuple[list[LogEntry], int]:
    header, body, stop = _checked(content, offset, path)
    return _entries(header, body), stop


def _ended(following: bytes, path: Path, *, otherwise: int) -> int:
    """Return where the file before `path` ended when this one was begun; earlier versions did not write that down."""
    header, _, _ = _checked(following, 0, path)
    return int(header[0]["after"][1]) if "after" in header[0] else otherwise


def _checked(content: bytes, offset: int, path: Path) -> tuple[list[dict[str, Any]], bytes, int]:
    """Return the header and the body of the record at `offset`, and where it ends."""
    if len(content) < offset + _FRAME.size:
        raise WarehouseDamaged(path=path, reason=f"the log record at byte {offset} is cut short")
    magic, head_size, body_size, checksum = _FRAME.unpack_from(content, offset)
    head_start = offset + _FRAME.size
    head, body = content[head_start : head_start + head_size], content[head_start + head_size : head_start + head_size + body_size]
    if magic != _MAGIC or len(body) != body_size or zlib.crc32(body, zlib.crc32(head)) != checksum:
        raise WarehouseDamaged(path=path, reason=f"the log record at byte {offset} fails its checksum")
    return json.loads(head), body, head_start + head_size + body_size


def _entries(header: list[dict[str, Any]], body: bytes) -> list[LogEntry]:
    entries, start = [], 0
    for item in header:
        rows = _table(body[start : start + item["bytes"]])
        start += item["bytes"]
        operations = []
        for part in item.get("operations", ()):
            batch = _table(body[start : start + part["bytes"]]).combine_chunks().to_batches()[0]
            operations.append(Placed(part["first_id"], Operations.from_arrow(batch), np.array(part["bounds"], dtype=np.int64)))
            start += part["bytes"]
        runs, times = [tuple(run) for run in item["runs"]], [tuple(pair) for pair in item["times"]]
        entries.append(LogEntry(item["table"], item["source"], runs, times, rows, operations))
    return entries


def _table(body: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return reader.read_all()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # a status asks while the mover removes files
