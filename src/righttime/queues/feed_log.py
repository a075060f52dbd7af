"""The feed log: every accepted append as one record, synced before it is acknowledged.

In: records (a JSON head and bodies of bytes).
Out: the records again, after a restart.
Promise: a record is there whole or not at all. What a crash left of a last record is cut off; damage anywhere else is reported, never skipped.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from righttime.changes.faults import CrashPoint, reach
from righttime.errors import CommitFailed, CommitUnknown, LogFull, WarehouseDamaged
from righttime.settings import Settings
from righttime.warehouse.durable import TEMPORARY_PREFIX, replace, sync_folder

_FRAME = struct.Struct("<4sIQI")
_MAGIC = b"RTF1"
_ALIGNED = 64  # bodies hold Arrow buffers
_PARTS_AT_ONCE = 512  # of one writev


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of the log: what it says, and the bodies it carries."""

    head: dict[str, Any]
    bodies: Sequence[pa.Buffer] = ()

    def parts(self) -> list[Any]:
        """Return the record as buffers to be written one after the other."""
        sizes = [body.size for body in self.bodies]
        head = json.dumps({"bodies": sizes, **self.head}, separators=(",", ":"), ensure_ascii=False).encode()
        head += b" " * (-(_FRAME.size + len(head)) % _ALIGNED)
        bodies: list[Any] = []
        for body in self.bodies:
            bodies += [body, b"\0" * (-body.size % _ALIGNED)]
        checksum = zlib.crc32(head)
        for part in bodies:
            checksum = zlib.crc32(part, checksum)
        size = sum(size + -size % _ALIGNED for size in sizes)
        return [_FRAME.pack(_MAGIC, len(head), size, checksum), head, *(part for part in bodies if len(part))]


class FeedLog:
    """Numbered files in a folder, of which the last is written; the feed lock guards it. Each file begins with a record that makes earlier heads needless."""

    def __init__(self, folder: Path, *, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self._file = -1
        self._offset = 0
        self._first = 0  # bytes of the first record of the file that is written
        self._older_bytes = 0
        self._broken = False
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{TEMPORARY_PREFIX}*"):
            left.unlink()

    @property
    def number(self) -> int:
        """Return the number of the file that is written."""
        return self._numbers()[-1]

    @property
    def full(self) -> bool:
        """Tell whether it is time for the next file; it would begin as long as this one did, however much that is."""
        return self._offset - self._first >= self._settings.stream_log_bytes

    def recover(self) -> Iterator[Record]:
        """Yield all records, and get ready to write behind the last one."""
        numbers = self._numbers()
        for number in numbers:
            content = pa.py_buffer(self._path(number).read_bytes())
            offset = first = 0
            while offset < content.size:
                found = _decoded(content, offset)
                if found is None:
                    self._check_torn(number, content, offset, last=number == numbers[-1])
                    break
                record, offset = found
                first = first or offset
                yield record
            self._older_bytes += self._offset
            self._offset, self._first = offset, first
        if numbers:
            self._open(numbers[-1])

    def begin_file(self, first: Record) -> None:
        """Begin the next file with a record that says what earlier files said beside rows; after an error, as after one of `append`."""
        number = self._numbers()[-1] + 1 if self._numbers() else 1
        content = b"".join(bytes(part) for part in first.parts())
        try:
            replace(self._path(number), content)
        except BaseException:
            self._take_back(self._path(number))
            raise
        reach(CrashPoint.FEED_BEGUN)
        self._older_bytes += self._offset
        self._offset = self._first = len(content)
        self._open(number)

    def _take_back(self, path: Path) -> None:
        """Remove a file that may have its name already: what is written into the one before it from now on would be older than its first record."""
        try:
            if path.exists():
                path.unlink()
                sync_folder(self._folder)
        except OSError:
            self._broken = True

    def append(self, record: Record) -> None:
        """Write a record and sync it; after an error the log is as it was, or refuses everything until it is opened again."""
        if self._broken:
            raise CommitFailed(source="streams", step="feed log", reason="an earlier write failed half way; open the warehouse again")
        parts = record.parts()
        size = sum(len(part) for part in parts)
        if not self.fits(size):
            raise LogFull(used=self._appended + size, bound=self._settings.log_bytes_max, size=size)
        try:
            self._write(parts)
            reach(CrashPoint.FEED_WRITTEN)
            os.fdatasync(self._file)
        except OSError as error:
            self._undo(error)
            raise CommitFailed(source="streams", step="feed log", reason=f"{error.strerror or type(error).__name__} ({self._folder})") from error
        reach(CrashPoint.FEED_SYNCED)
        self._offset += size

    def _write(self, parts: list[Any]) -> None:
        offset = self._offset
        for start in range(0, len(parts), _PARTS_AT_ONCE):
            waiting = [memoryview(part) for part in parts[start : start + _PARTS_AT_ONCE]]
            while waiting:
                written = os.pwritev(self._file, waiting, offset)
                offset += written
                while waiting and written >= len(waiting[0]):
                    written -= len(waiting.pop(0))
                if waiting:
                    waiting[0] = waiting[0][written:]

    def _undo(self, cause: OSError) -> None:
        try:
            os.ftruncate(self._file, self._offset)
            os.fdatasync(self._file)
        except OSError as error:
            self._broken = True
            raise CommitUnknown(source="streams", reason=f"the feed log could be neither written nor cut off ({error.strerror})") from cause

    def release(self, *, before: int) -> None:
        """Remove the files below a number; all their rows are in segments."""
        removed = [number for number in self._numbers() if number < before]
        for number in removed:
            self._older_bytes -= self._path(number).stat().st_size
            self._path(number).unlink()
            reach(CrashPoint.FEED_REMOVED)
        if removed:
            sync_folder(self._folder)

    def bytes_held(self) -> int:
        """Return the size of all files."""
        return self._older_bytes + self._offset

    @property
    def _appended(self) -> int:
        """What is bounded: the size of all files, without what a new one would begin with as well."""
        return self.bytes_held() - self._first

    def fits(self, size: int) -> bool:
        """Tell whether there is room for so many bytes."""
        return self._appended + size <= self._settings.log_bytes_max

    def close(self) -> None:
        """Close the file that is written."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self, number: int) -> None:
        self.close()
        self._file = os.open(self._path(number), os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(self._file).st_size > self._offset:
            os.ftruncate(self._file, self._offset)
            os.fsync(self._file)

    def _check_torn(self, number: int, content: pa.Buffer, offset: int, *, last: bool) -> None:
        """Raise unless what is left is the rest of a record that was never acknowledged: the last one, with nothing whole behind it."""
        rest = bytes(content.slice(offset))
        place = rest.find(_MAGIC, 1)
        while last and place >= 0:
            if _decoded(content, offset + place) is not None:
                last = False
            place = rest.find(_MAGIC, place + 1)
        if not last:
            raise WarehouseDamaged(path=self._path(number), reason=f"the record at byte {offset} fails its checksum")

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.feed"))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.feed"


def read_records(folder: Path) -> Iterator[Record]:
    """Yield the whole records of a log that another process may be writing; changes nothing. What a removed file had is in segments."""
    for path in sorted(folder.glob("*.feed")):
        try:
            content = pa.py_buffer(path.read_bytes())
        except FileNotFoundError:
            continue
        offset = 0
        while (found := _decoded(content, offset)) is not None:
            record, offset = found
            yield record


def _decoded(content: pa.Buffer, offset: int) -> tuple[Record, int] | None:
    """Return the record at a place and where it ends; None if there is no whole one."""
    if content.size < offset + _FRAME.size:
        return None
    magic, head_size, size, checksum = _FRAME.unpack_from(content, offset)
    start = offset + _FRAME.size
    end = start + head_size + size
    if magic != _MAGIC or end > content.size or zlib.crc32(content.slice(start, head_size + size)) != checksum:
        return None
    head = json.loads(bytes(content.slice(start, head_size)))
    bodies, at = [], start + head_size
    for body in head.pop("bodies"):
        bodies.append(content.slice(at, body))
        at += body + -body % _ALIGNED
    return Record(head, bodies), end
