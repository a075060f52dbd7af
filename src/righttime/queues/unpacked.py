"""Unpacked segments: the columns of segments that rows are fetched from one by one, in files mapped into memory.

In: rows of a segment, read once.
Out: the same rows, of which a few can be taken without reading the others.
Promise: a file has no name as soon as it is mapped, so that it is gone with the process however that ends. Bytes and files have a bound, and take no more
than half of what the disk had free; a segment for which there is no room is simply not here.
"""

import shutil
import threading
from collections import OrderedDict
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa

from righttime.telemetry import get_log
from righttime.warehouse.durable import TEMPORARY_PREFIX, remove_quietly

log = get_log("streams")

_FILES_MAX = 16_384  # a mapped file needs no descriptor, and a process may have some 65,000 mappings


@dataclass(slots=True)
class _Unpacked:
    rows: pa.Table
    bytes: int
    asked: int


class UnpackedSegments:
    """Segments up to a number of bytes; safe to use from any thread.

    Where there is no room for another, it comes in the place of those that nobody has asked for since it was asked for itself. If the last one asked for
    always came in, changes all over a stream that is a little too large would unpack every segment each time, and find none.
    """

    def __init__(self, *, bytes_max: int, files_max: int = _FILES_MAX) -> None:
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._lock = threading.Lock()
        self._turns = count(1)
        self._segments: OrderedDict[Path, _Unpacked] = OrderedDict()  # the one not asked for longest is the first
        self._missed: dict[Path, int] = {}  # when those that are not here were asked for
        self._bytes = 0

    def get(self, path: Path) -> pa.Table | None:
        """Return the rows of a segment, if they are here."""
        with self._lock:
            found = self._segments.get(path)
            if found is None:
                return None
            found.asked = next(self._turns)
            self._segments.move_to_end(path)
            return found.rows

    def keep(self, path: Path, rows: pa.Table) -> None:
        """Unpack a segment that was asked for and is not here, if there is room or others make it."""
        if not self._has_room(path, rows.nbytes):
            return
        try:
            if shutil.disk_usage(path.parent).free - rows.nbytes < self._bytes + rows.nbytes:
                return  # appends need the disk, this is for speed only
            mapped = _mapped(path.with_name(f"{TEMPORARY_PREFIX}{path.stem}.{threading.get_ident()}.arrow"), rows)
        except OSError as error:
            log.warning("segment.not_unpacked", segment=path.name, error=str(error))
            return
        with self._lock:
            if path not in self._segments:
                self._segments[path] = _Unpacked(mapped, rows.nbytes, next(self._turns))
                self._bytes += rows.nbytes
                self._missed.pop(path, None)
            while self._is_over(0, 0):
                self._bytes -= self._segments.popitem(last=False)[1].bytes

    def _has_room(self, path: Path, size: int) -> bool:
        """Tell whether a segment fits in with those that were asked for after it was."""
        with self._lock:
            before, self._missed[path] = self._missed.get(path, 0), next(self._turns)
            freed, files = 0, 0
            for other in self._segments.values():
                if not self._is_over(size - freed, 1 - files) or other.asked > before:
                    break
                freed, files = freed + other.bytes, files + 1
            return not self._is_over(size - freed, 1 - files)

    def _is_over(self, size: int, files: int) -> bool:
        """Tell whether so many more bytes and files are more than there may be."""
        return self._bytes + size > self._bytes_max or len(self._segments) + files > self._files_max


def _mapped(temporary: Path, rows: pa.Table) -> pa.Table:
    try:
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        return pa.ipc.open_file(pa.memory_map(str(temporary))).read_all()
    finally:
        remove_quietly(temporary)
