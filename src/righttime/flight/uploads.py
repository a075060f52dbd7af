"""Uploads: rows too many for one message, kept in a file until the commit that they belong to.

In: batches of a stream.
Out: the same rows, read from the file as they are needed.
Promise: memory for a few batches only; a file goes with its session, and after a crash with the next start.
"""

import threading
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa

from righttime.changes.encoder import RowEncoder
from righttime.changes.rows import Chunk
from righttime.changes.schema import TableSchema
from righttime.errors import BadMessage, FileNotWritten, ServiceBusy

_FOLDER = "spill"  # the engine empties it when it opens


class Upload:
    """Rows of one table in one file."""

    def __init__(self, path: Path, table: TableSchema, rows: int, nbytes: int) -> None:
        self.path = path
        self.table = table
        self.rows = rows
        self.nbytes = nbytes

    def chunks(self) -> list[Chunk]:
        """Return the rows; they stay in the file, which may be unlinked meanwhile."""
        if not self.rows:
            return []
        reader = pa.ipc.open_file(pa.memory_map(str(self.path)))
        return [Chunk(reader.get_batch(number)) for number in range(reader.num_record_batches)]


class Uploads:
    """All uploads of a service, within one bound."""

    def __init__(self, folder: Path, *, bytes_max: int, check: Callable[[TableSchema, pa.RecordBatch], None]) -> None:
        self._check = check
        self._folder = folder / _FOLDER
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()

    def take(self, table: TableSchema, batches: Iterable[pa.RecordBatch]) -> Upload:
        """Write a stream to a file, each batch checked as an insert would."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"upload-{uuid.uuid4().hex}.arrow"
        rows = nbytes = 0
        encoder = RowEncoder(table)
        try:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.columns) as writer:
                for batch in batches:
                    for chunk in encoder.encode_arrow(_valid(batch)):
                        self._check(table, chunk.content)
                        self._count(chunk.nbytes)
                        nbytes += chunk.nbytes
                        rows += chunk.rows
                        writer.write_batch(chunk.content)
        except BaseException as error:
            path.unlink(missing_ok=True)
            self._count(-nbytes)
            if isinstance(error, OSError):
                raise FileNotWritten(path=str(self._folder), reason=str(error)) from error
            raise
        return Upload(path, table, rows, nbytes)

    def drop(self, upload: Upload) -> None:
        """Let an upload go."""
        upload.path.unlink(missing_ok=True)
        self._count(-upload.nbytes)

    def _count(self, nbytes: int) -> None:
        with self._lock:
            if nbytes > 0 and self._bytes + nbytes > self._bytes_max:
                raise ServiceBusy(used=self._bytes, what="bytes of uploads", setting="uploads_bytes_max")
            self._bytes += nbytes


def _valid(batch: pa.RecordBatch) -> pa.RecordBatch:
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise BadMessage(reason="an upload cannot be read") from error
    return batch
