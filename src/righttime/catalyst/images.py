"""Images: hot rows as Parquet files, which is how Spark reads them and how memory is relieved.

In: slices of lanes.
Out: one file list per query (sealed segments as they are, the open tail written once per cut), and spilled segments.
Promise: a file lives as long as a lane or a query refers to it, and not longer; nothing here outlives the process.
"""

import fcntl
import os
import secrets
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from righttime.catalyst.ends import NONE
from righttime.catalyst.gathering import gathered
from righttime.catalyst.leases import LaneKey
from righttime.catalyst.segments import Segment, all_positions, grouped, joined, positions, rows_of, visible_rows
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import Slice
from righttime.changes.operations import Numbers
from righttime.changes.rows import Chunk, table_of
from righttime.changes.schema import TableSchema
from righttime.errors import FileNotWritten
from righttime.settings import Settings

_SHARED_MEMORY = Path("/dev/shm")
_SPILL_FOLDER = "spill"
_LOCK_FILE = "lock"
_UNLOCKED = ".righttime-"  # what no other process looks at
_SEGMENTS_AT_ONCE = 8  # as one, if so much has come
_QUARTERS = 4
_ROW_GROUP_ROWS = 1 << 17  # Spark shares a file among its cores by row groups
_PLAINLY: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
_STEP_BYTES = 1 << 20
_SMALL_ROWS = 4096
_TAIL_WAIT_S = 60.0  # for a tail that another query writes; one that is interrupted at a bad moment never says so
_TailKey = tuple[tuple[str, int, int, bytes], ...]


class Images:
    """Writes and keeps the images of one warehouse's hot rows."""

    def __init__(self, catalyst: Catalyst, *, settings: Settings, folder: Path) -> None:
        self._catalyst = catalyst
        self._settings = settings
        self._spill = folder / _SPILL_FOLDER
        self._memory, self._lock = _private_folder(settings.image_dir)
        self._locks: dict[str, threading.Lock] = {}
        self._tails: dict[str, tuple[_TailKey, Future[Segment]]] = {}
        self._guard = threading.Lock()

    @property
    def folder(self) -> Path:
        """Where images in memory are."""
        return self._memory

    def files(self, table: TableSchema, lanes: Mapping[LaneKey, Sequence[Slice]], hidden: Numbers = NONE) -> list[tuple[Segment, Numbers]]:
        """Return segments that together hold exactly these rows of one table, each with the positions in it that do not count.

        Keep them until the query has ended. `hidden` are the ids that do not count, ascending.
        """
        sealed: list[tuple[Segment, Numbers]] = []
        tail: list[tuple[str, Slice]] = []
        with self.lock_of(table.name):
            for (_, source), slices in lanes.items():
                for kind, group in groupby(slices, key=_kind):
                    parts = list(group)
                    if kind == "segment":
                        few = self._joinable(table.name, source, parts)
                        sealed += [(_segment_of(part), positions(part, hidden)) for part in parts[: len(parts) - len(few)]]
                        runs = [few] if few else []
                    elif kind == "chunk":
                        runs = list(self._sealable(table.name, source, parts))
                        tail += [(source, part) for part in gathered(self._catalyst, table, source, parts[sum(map(len, runs)) :])]
                    else:
                        runs = []
                        tail += [(source, part) for part in parts]
                    sealed += [(self.seal(table, source, run, in_memory=True), all_positions(run, hidden)) for run in runs]
        # Not under the lock: queries that begin together each have a tail of their own.
        return [*sealed, (self._tail_image(table, tail, hidden), NONE)] if tail else sealed

    def image_of(self, table: TableSchema, chunks: Sequence[Chunk], *, in_memory: bool = True) -> Segment:
        """Write rows that are in no lane into a file of their own."""
        return self._write_rows(table, table_of(chunks, table.columns), in_memory=in_memory)

    def _sealable(self, table: str, source: str, chunks: Sequence[Slice]) -> Iterator[list[Slice]]:
        """Yield runs of leading whole chunks that are enough for a segment: a quarter of a full one, for small tails are written anew per cut."""
        with self._catalyst.lock:
            lane = self._catalyst.tables[table].lane(source)
            # Uncommitted rows are never sealed together with committed ones: a rollback takes them out alone. Nor what another query has sealed already.
            committed = chunks[: bisect_right(chunks, lane.times.committed_id, key=lambda part: part.piece.last_id)]
            if not committed or not lane.has([part.piece for part in committed]):
                return
        for run in grouped(committed, _SEGMENTS_AT_ONCE * self._settings.segment_rows):
            if sum(stop - start for _, start, stop in run) < max(self._settings.segment_rows // _QUARTERS, 1):
                return
            yield run

    def _joinable(self, table: str, source: str, segments: Sequence[Slice]) -> Sequence[Slice]:
        """Return the last segments, if they are small and together enough for a full one, so that a query never reads many small files."""
        count = rows = 0
        for part in reversed(segments):
            if part.rows >= self._settings.segment_rows or not part.piece.content.in_memory:
                break
            count += 1
            rows += part.rows
        if rows < self._settings.segment_rows:
            return ()
        few = segments[len(segments) - count :]
        with self._catalyst.lock:  # as they are, they serve as well as what another query has made of them
            return few if self._catalyst.tables[table].lane(source).has([part.piece for part in few]) else ()

    def seal(self, table: TableSchema, source: str, run: Sequence[Slice], *, in_memory: bool) -> Segment:
        """Put neighbouring pieces of a lane into one file; the caller has the table's lock."""
        segment = self._write(table, run, in_memory=in_memory)
        pieces = [piece for piece, _, _ in run]
        with self._catalyst.lock:
            memory = self._catalyst.tables[table.name]
            if memory.lane(source).replace(pieces, segment) is not None:
                memory.discount(pieces)
                if segment.in_memory:
                    memory.bytes_memory += segment.nbytes
                else:
                    memory.bytes_spilled += segment.nbytes
        return segment

    def _tail_image(self, table: TableSchema, tail: Sequence[tuple[str, Slice]], hidden: Numbers) -> Segment:
        """Write the rows that fill no segment yet into one file; the newest such file is kept for the next query at the same cut, which waits for it."""
        # Row ids are never reused and a slice leaves no row of its lane out, so first id and count name the rows.
        key = tuple((source, part.piece.id_at(part.start), part.rows, positions(part, hidden).tobytes()) for source, part in tail)
        while True:
            with self._guard:
                known = self._tails.get(table.name)
                mine = known is None or known[0] != key
                known = (key, Future()) if known is None or mine else known
                self._tails[table.name] = known
            if mine:
                return self._written_tail(table, tail, hidden, known)
            try:
                if known[1].exception(timeout=_TAIL_WAIT_S) is None:  # else whoever wrote it could not, and this query tries by itself
                    return known[1].result()
            except TimeoutError:
                return self._write_tail(table, tail, hidden)

    def _written_tail(self, table: TableSchema, tail: Sequence[tuple[str, Slice]], hidden: Numbers, known: tuple[_TailKey, Future[Segment]]) -> Segment:
        try:
            known[1].set_result(self._write_tail(table, tail, hidden))
        except BaseException as error:
            with self._guard:
                if self._tails.get(table.name) is known:
                    del self._tails[table.name]
            known[1].set_exception(error)
            raise
        return known[1].result()

    def _write_tail(self, table: TableSchema, tail: Sequence[tuple[str, Slice]], hidden: Numbers) -> Segment:
        return self._write_rows(table, visible_rows([part for _, part in tail], table.columns, hidden), in_memory=True)

    def _write(self, table: TableSchema, slices: Sequence[Slice], *, in_memory: bool) -> Segment:
        return self._write_rows(table, rows_of(slices, table.columns), in_memory=in_memory)

    def _write_rows(self, table: TableSchema, rows: pa.Table, *, in_memory: bool) -> Segment:
        # No name is used twice: a segment of a warehouse that was closed may still be there, and takes its file along when it goes.
        path = (self._memory if in_memory else self._spill) / f"{table.name}-{secrets.token_hex(8)}.parquet"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = _tight(_joined(rows))
            # Written in steps of a megabyte: small ones cost time, and a page cannot end within one.
            step = min(max(_STEP_BYTES * rows.num_rows // max(rows.nbytes, 1), 1024), _ROW_GROUP_ROWS)
            pq.write_table(rows, path, row_group_size=_ROW_GROUP_ROWS, write_batch_size=step, **_PLAINLY)
        except BaseException as error:
            _unlink(str(path))
            if isinstance(error, OSError):
                raise FileNotWritten(path=str(path.parent), reason=str(error)) from error
            raise
        return Segment(path, rows=rows.num_rows, in_memory=in_memory)

    def close(self) -> None:
        """Forget the kept tail images and remove the private folder."""
        self._tails.clear()
        _remove_folder(self._memory)
        fd, self._lock = self._lock, -1
        if fd >= 0:
            os.close(fd)

    def lock_of(self, table: str) -> threading.Lock:
        """Return the lock under which rows of a table are sealed."""
        with self._guard:
            return self._locks.setdefault(table, threading.Lock())


def _kind(part: Slice) -> str:
    piece, start, stop = part  # not by the names of its properties: there are thousands of them for each query
    if start or stop != piece.rows:
        return "part"
    return "segment" if isinstance(piece.content, Segment) else "chunk"


def _segment_of(part: Slice) -> Segment:
    content = part.piece.content
    assert isinstance(content, Segment)
    return content


def _joined(rows: pa.Table) -> pa.Table:
    """Return the rows in one piece if they are in many small ones, each of which would be written by itself, in three times the time."""
    pieces = rows.column(0).num_chunks if rows.num_columns else 0
    return joined(rows) if pieces > 1 and rows.num_rows < pieces * _SMALL_ROWS else rows


def _tight(rows: pa.Table) -> pa.Table:
    """Return the rows with columns that hold no null declared so: a file has less to say of them, and is written in half the time."""
    fields = [field if column.null_count else field.with_nullable(False) for field, column in zip(rows.schema, rows.columns, strict=True)]
    return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))


def forget_spilled(folder: Path) -> None:
    """Remove what a killed writer spilled: those rows are in the log, or lost. Only the holder of the writer lock may do this."""
    _remove_folder(folder / _SPILL_FOLDER)


def _private_folder(wanted: Path | None) -> tuple[Path, int]:
    """Make a folder of this process's own, in memory-backed storage if there is any, with a lock that ends with the process; remove those of dead processes."""
    shared = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    base = wanted or shared
    base.mkdir(parents=True, exist_ok=True)
    for old in base.glob("righttime-*-*"):
        if _is_dead(old):
            _remove_folder(old)
    # Locked before anybody can find it: a lock that is not taken yet looks like that of a dead process.
    made = Path(tempfile.mkdtemp(prefix=_UNLOCKED, dir=base))
    lock = os.open(made / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    folder = made.rename(base / f"righttime-{os.getpid()}-{made.name.removeprefix(_UNLOCKED)}")
    return folder, lock


def _is_dead(folder: Path) -> bool:
    """Tell whether nobody has a folder any more. Its lock tells, not its process number, which a container that shares the memory cannot know."""
    try:
        lock = os.open(folder / _LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # somebody else's, or made at this moment
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def _remove_folder(folder: Path) -> None:
    for path in folder.glob("*"):
        _unlink(str(path))
    try:
        folder.rmdir()
    except OSError:
        return  # it never was there, another process cleans up too, or a query still reads; the next start removes it


def _unlink(path: str) -> None:
    Path(path).unlink(missing_ok=True)
