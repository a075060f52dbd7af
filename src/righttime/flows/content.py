"""From a drain's lines to what a commit holds: rows that came into being, and the keys of rows that ended.

In: a target's lines, one for each key that a job changes; of a target that is built anew, those of all its parts, one after the other.
Out: the content of the job's commit.
Promise: vectorised; rows end before others begin, so a changed row is one that ended and one that began. Rows that are too many for memory are in files,
which become part of the target as they are.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from righttime.catalyst.holder import OperationHolder
from righttime.catalyst.images import Images
from righttime.catalyst.table import Rows
from righttime.changes.encoder import RowEncoder
from righttime.changes.operations import Operations
from righttime.changes.schema import TableSchema
from righttime.errors import CatalystFull
from righttime.pipeline.operators.target import DELETE, INSERT, OPERATION
from righttime.settings import Settings


class TargetContent:
    """What one job does to one keyed target; with `anew`, in the place of everything in it."""

    def __init__(self, table: TableSchema, images: Images, settings: Settings, *, anew: bool = False) -> None:
        self._table = table
        self._images = images
        self._settings = settings
        self._encoder = RowEncoder(table)
        self._ended = OperationHolder(table)
        self._begun: list[Rows] = []
        self._rows = 0
        self.memory_bytes = 0
        self.file_bytes = 0
        if anew:
            self._ended.delete("TRUE", (), after=0)

    def add(self, lines: pa.Table) -> None:
        """Take the next lines; they come after all rows that were added before."""
        begun = lines.filter(pc.not_equal(lines[OPERATION], DELETE)).select(self._table.columns.names)
        ended = lines.filter(pc.not_equal(lines[OPERATION], INSERT)).select(list(self._table.keys))
        if ended.num_rows:
            self._ended.add_arrow("delete", ended, after=self._rows)
        if begun.num_rows:
            self._begin(begun)

    def _begin(self, rows: pa.Table) -> None:
        chunks = self._encoder.encode_arrow(rows)
        self._rows += rows.num_rows
        size = sum(chunk.nbytes for chunk in chunks)
        settings = self._settings
        in_files = self.memory_bytes + size > settings.bypass_bytes and self.file_bytes + size <= settings.spill_bytes_max
        if not in_files:
            self.memory_bytes += size
            if self.memory_bytes > settings.memory_bytes_max:
                used, bound = self.memory_bytes + self.file_bytes, settings.memory_bytes_max + settings.spill_bytes_max
                raise CatalystFull(table=self._table.name, used=used, bound=bound, setting="memory_bytes_max + spill_bytes_max", waited_s=0.0)
            self._begun += chunks
            return
        segment = self._images.image_of(self._table, chunks, in_memory=False)
        self.file_bytes += segment.nbytes
        self._begun.append(segment)

    def parts(self) -> Sequence[Rows | Operations]:
        """Return the content of the commit."""
        return [*self._begun, *self._ended.encoded()]
