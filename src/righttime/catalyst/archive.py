"""What a producer holds itself: the rows of its open transaction, and lazily committed rows that nobody has asked for yet.

In: chunks, and commit times.
Out: the same chunks, per table in commit order.
Promise: plain values; the producer's locks guard them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from righttime.catalyst.messages import Flush
from righttime.changes.encoder import RowEncoder
from righttime.changes.rows import Chunk
from righttime.warehouse.store import DataFile


@dataclass(slots=True)
class Buffer:
    """The uncommitted rows of one table: encoded chunks, checked single rows waiting to be encoded together, files written by Spark."""

    encoder: RowEncoder
    chunks: list[Chunk] = field(default_factory=list)
    pending: list[tuple[Any, ...]] = field(default_factory=list)
    files: list[DataFile] = field(default_factory=list)
    nbytes: int = 0

    def add(self, chunks: Sequence[Chunk]) -> None:
        self.encode_pending()
        self.chunks.extend(chunks)
        self.nbytes += sum(chunk.nbytes for chunk in chunks)

    def encode_pending(self) -> None:
        """Turn single rows into one chunk; they were checked when they came."""
        if self.pending:
            chunk = self.encoder.encode(self.pending)
            self.pending = []
            self.chunks.append(chunk)
            self.nbytes += chunk.nbytes

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks) + len(self.pending) + sum(file.rows for file in self.files)

    def clear(self) -> None:
        self.chunks, self.pending, self.files, self.nbytes = [], [], [], 0


class Archive:
    """Lazily committed rows per table, oldest first."""

    def __init__(self) -> None:
        self._tables: dict[str, deque[tuple[int, list[Chunk]]]] = {}
        self.nbytes = 0

    def add(self, table: str, time_us: int, chunks: list[Chunk]) -> None:
        self._tables.setdefault(table, deque()).append((time_us, chunks))
        self.nbytes += sum(chunk.nbytes for chunk in chunks)

    def __bool__(self) -> bool:
        return any(self._tables.values())

    def commits(self, table: str) -> list[tuple[int, int]]:
        """Return (commit time, rows) of what is archived for `table`."""
        return [(time_us, sum(chunk.rows for chunk in chunks)) for time_us, chunks in self._tables.get(table, ())]

    def bytes_of(self, table: str, *, up_to_us: int | None = None) -> int:
        return sum(chunk.nbytes for time_us, chunks in self._tables.get(table, ()) if up_to_us is None or time_us <= up_to_us for chunk in chunks)

    def tables(self) -> list[str]:
        return [table for table, commits in self._tables.items() if commits]

    def take(self, table: str, *, up_to_us: int | None = None, watermark_us: int | None = None) -> Flush:
        """Remove and return the commits of `table` up to a time (all of them if None)."""
        waiting = self._tables.get(table, deque())
        taken = []
        while waiting and (up_to_us is None or waiting[0][0] <= up_to_us):
            taken.append(waiting.popleft())
        self.nbytes -= sum(chunk.nbytes for _, chunks in taken for chunk in chunks)
        return Flush(table, taken, next_us=waiting[0][0] if waiting else None, watermark_us=watermark_us)

    def take_all(self) -> list[Flush]:
        return [self.take(table) for table in self.tables()]
