"""What a producer holds itself: its open transaction, and lazily committed ones that nobody has asked for yet.

In: chunks, operations, and commit times.
Out: the same, per table in commit order.
Promise: plain values; the producer's locks guard them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from righttime.catalyst.holder import OperationHolder
from righttime.catalyst.messages import Content, Flush
from righttime.changes.encoder import RowEncoder
from righttime.changes.rows import Chunk
from righttime.warehouse.store import DataFile


@dataclass(slots=True)
class Buffer:
    """The uncommitted rows of one table: encoded chunks, checked single rows waiting to be encoded together, files written by Spark; and operations.

    `rows_staged` are rows of the same transaction that are with the catalyst already.
    """

    encoder: RowEncoder
    operations: OperationHolder
    chunks: list[Chunk] = field(default_factory=list)
    pending: list[tuple[Any, ...]] = field(default_factory=list)
    files: list[DataFile] = field(default_factory=list)
    nbytes: int = 0
    rows_chunked: int = 0
    rows_staged: int = 0

    def add(self, chunks: Sequence[Chunk]) -> None:
        self.encode_pending()
        for chunk in chunks:
            self._append(chunk)

    def encode_pending(self) -> None:
        """Turn single rows into one chunk; they were checked when they came."""
        if self.pending:
            self._append(self.encoder.encode(self.pending), pending=[])

    def _append(self, chunk: Chunk, *, pending: list[tuple[Any, ...]] | None = None) -> None:
        nbytes, rows = self.nbytes + chunk.nbytes, self.rows_chunked + chunk.rows
        left = self.pending if pending is None else pending
        # In one go, which no interrupt gets into: rows are in a chunk or they are pending, never both or neither.
        self.chunks[len(self.chunks) :], self.pending, self.nbytes, self.rows_chunked = [chunk], left, nbytes, rows

    @property
    def rows_inserted(self) -> int:
        """Rows that this transaction has inserted so far, without those in files."""
        return self.rows_staged + self.rows_chunked + len(self.pending)

    @property
    def in_use(self) -> bool:
        """Whether anything is held."""
        return bool(self.chunks or self.pending or self.files or self.operations)

    def content(self) -> list[Content]:
        """Return what goes to the catalyst: rows, then operations, which know how many of the rows came before them."""
        return [*self.chunks, *self.operations.encoded()]

    def stage(self) -> None:
        """Forget what is with the catalyst now; the transaction goes on."""
        staged = self.rows_inserted
        self._forget()
        self.rows_staged = staged

    def clear(self) -> None:
        """Forget everything; the transaction has ended."""
        self._forget()
        self.operations.count = 0
        self.rows_staged = 0

    def _forget(self) -> None:
        self.chunks, self.pending, self.files, self.nbytes, self.rows_chunked = [], [], [], 0, 0
        self.operations.forget()


class Archive:
    """Lazily committed rows per table, oldest first."""

    def __init__(self) -> None:
        self._tables: dict[str, deque[tuple[int, list[Content]]]] = {}
        self.nbytes = 0

    def add(self, table: str, time_us: int, chunks: list[Content]) -> None:
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

    def restore(self, flushes: Sequence[Flush]) -> None:
        """Put back what was taken and could not be delivered."""
        for flush in flushes:
            self._tables.setdefault(flush.table, deque()).extendleft((time_us, list(content)) for time_us, content in reversed(flush.commits))
            self.nbytes += sum(part.nbytes for _, content in flush.commits for part in content)
