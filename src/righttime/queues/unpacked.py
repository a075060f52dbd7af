"""Unpacked segments: the columns of segments that rows are fetched from one by one, in files mapped into memory.

In: rows of a segment, read once.
Out: the same rows, of which a few can be taken without reading the others.
Promise: a file has no name as soon as it is mapped, so that it is gone with the process however that ends. Bytes and files have a bound; a segment for
which there is no room, or no disk, is simply not here.
"""

import threading
from collections import OrderedDict
from pathlib import Path

import pyarrow as pa

from righttime.telemetry import get_log
from righttime.warehouse.durable import TEMPORARY_PREFIX, remove_quietly

log = get_log("streams")

_FILES_MAX = 256  # each keeps a descriptor of the process


class UnpackedSegments:
    """The segments used last, up to a number of bytes; safe to use from any thread."""

    def __init__(self, *, bytes_max: int, files_max: int = _FILES_MAX) -> None:
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._lock = threading.Lock()
        self._tables: OrderedDict[Path, pa.Table] = OrderedDict()
        self._bytes = 0

    def get(self, path: Path) -> pa.Table | None:
        """Return the rows of a segment, if they are here."""
        with self._lock:
            found = self._tables.get(path)
            if found is not None:
                self._tables.move_to_end(path)
            return found

    def keep(self, path: Path, rows: pa.Table) -> None:
        """Unpack a segment; those not used for longest make room."""
        if rows.nbytes > self._bytes_max:
            return
        try:
            mapped = _mapped(path.with_name(f"{TEMPORARY_PREFIX}{path.stem}.{threading.get_ident()}.arrow"), rows)
        except OSError as error:  # it is for speed only
            log.warning("segment.not_unpacked", segment=path.name, error=str(error))
            return
        with self._lock:
            if path not in self._tables:
                self._tables[path] = mapped
                self._bytes += mapped.nbytes
            while self._bytes > self._bytes_max or len(self._tables) > self._files_max:
                _, gone = self._tables.popitem(last=False)
                self._bytes -= gone.nbytes


def _mapped(temporary: Path, rows: pa.Table) -> pa.Table:
    try:
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        return pa.ipc.open_file(pa.memory_map(str(temporary))).read_all()
    finally:
        remove_quietly(temporary)
