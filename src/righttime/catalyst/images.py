"""Images: hot rows as Parquet files, which is how Spark reads them and how memory is relieved.

In: slices of lanes.
Out: one file list per query (sealed segments as they are, the open tail written once per cut), and spilled segments.
Promise: a file lives as long as a lane or a query refers to it, and not longer; nothing here outlives the process.
"""

import os
import tempfile
import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from righttime.catalyst.ends import NONE
from righttime.catalyst.leases import LaneKey
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import Lane, MemoryTable, Piece, Slice
from righttime.changes.operations import Numbers
from righttime.changes.rows import Chunk, table_of
from righttime.changes.schema import TableSchema
from righttime.errors import CatalystFull, CommitFailed, FileNotWritten
from righttime.settings import Settings
from righttime.telemetry import get_log

_SHARED_MEMORY = Path("/dev/shm")
_SPILL_FOLDER = "spill"
_BATCH_ROWS = 1 << 20
_SEGMENTS_AT_ONCE = 8  # as one, if so much has come
_ROW_GROUP_ROWS = 1 << 17  # Spark shares a file among its cores by row groups
_PLAINLY: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
_STEP_BYTES = 1 << 20

log = get_log("images")


class Segment:
    """Sealed rows in one uncompressed Parquet file; the file goes when the last reference to the segment goes."""

    __slots__ = ("__weakref__", "in_memory", "nbytes", "path", "rows")

    def __init__(self, path: Path, *, rows: int, in_memory: bool) -> None:
        self.path = str(path)
        self.rows = rows
        self.nbytes = path.stat().st_size
        self.in_memory = in_memory
        # Not at exit: then the whole folder goes, and a forked child that ends must not take its parent's files along.
        weakref.finalize(self, _unlink_own, self.path, os.getpid()).atexit = False

    def read(self, columns: pa.Schema) -> pa.Table:
        """Return the rows as Arrow."""
        return pq.read_table(self.path, schema=columns, memory_map=True)


def rows_of(slices: Sequence[Slice], columns: pa.Schema, names: Sequence[str] | None = None) -> pa.Table:
    """Return slices as one Arrow table, in order: all columns, or only the named ones."""
    chosen = columns if names is None else pa.schema([columns.field(name) for name in names])
    tables: list[pa.Table] = []
    chunks: list[Chunk] = []
    for part in slices:
        content = part.piece.content
        if isinstance(content, Chunk):
            chunks.append(content if part.stop - part.start == content.rows else content.slice(part.start, part.stop))
        else:
            assert isinstance(content, Segment)
            if chunks:
                tables.append(table_of(chunks, columns).select(chosen.names))
                chunks = []
            tables.append(content.read(chosen).slice(part.start, part.stop - part.start))
    if chunks or not tables:
        tables.append(table_of(chunks, columns).select(chosen.names))
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def visible_rows(slices: Sequence[Slice], columns: pa.Schema, hidden: Numbers) -> pa.Table:
    """Return slices as one Arrow table, without the rows whose ids are in the ascending array `hidden`."""
    rows = rows_of(slices, columns)
    if not len(hidden):
        return rows
    gone = _all_positions(slices, hidden)
    if not len(gone):
        return rows
    kept = np.ones(rows.num_rows, dtype=bool)
    kept[gone] = False
    return rows.filter(pa.array(kept))


def _all_positions(slices: Sequence[Slice], ids: Numbers) -> Numbers:
    """Return the places, in the rows of all these slices, of those that the ascending array `ids` names."""
    if not len(ids):
        return NONE
    before = [0, *np.cumsum([part.rows for part in slices]).tolist()][: len(slices)]
    return np.concatenate([NONE, *(_positions(part, ids) + rows for part, rows in zip(slices, before, strict=True))])


def _positions(part: Slice, ids: Numbers) -> Numbers:
    """Return the places within a slice of those rows that the ascending array `ids` names."""
    if not len(ids):
        return NONE
    found = [NONE]
    place = 0
    for first_id, rows in part.piece.runs(part.start, part.stop):
        low, high = np.searchsorted(ids, (first_id, first_id + rows))
        if low < high:
            found.append(ids[low:high] - first_id + place)
        place += rows
    return np.concatenate(found)


def batches_of(slices: Sequence[Slice], columns: pa.Schema, hidden: Numbers = NONE) -> Iterator[pa.RecordBatch]:
    """Yield visible rows batch by batch, so that storing more rows than fit into memory needs memory for a few only."""
    waiting: list[Slice] = []
    rows = 0
    for part in slices:
        waiting.append(part)
        rows += part.rows
        if rows >= _BATCH_ROWS:
            yield from visible_rows(waiting, columns, hidden).to_batches()
            waiting, rows = [], 0
    yield from visible_rows(waiting, columns, hidden).to_batches()


class Images:
    """Writes and keeps the images of one warehouse's hot rows."""

    def __init__(self, catalyst: Catalyst, *, settings: Settings, folder: Path) -> None:
        self._catalyst = catalyst
        self._settings = settings
        self._spill = folder / _SPILL_FOLDER
        self._memory = _private_folder(settings.image_dir)
        self._locks: dict[str, threading.Lock] = {}
        self._tails: dict[str, tuple[tuple[tuple[str, int, int, bytes], ...], Segment]] = {}
        self._count = 0
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
        with self._lock_of(table.name):
            tail: list[tuple[str, Slice]] = []
            for (_, source), slices in lanes.items():
                loose: list[Slice] = []
                for part in slices:
                    content = part.piece.content
                    if isinstance(content, Segment) and part.whole:
                        sealed.append((content, _positions(part, hidden)))
                    else:
                        loose.append(part)
                while loose and (run := self._sealable(loose, committed_id=self._committed_id(table.name, source))):
                    sealed.append((self._seal(table, source, run, in_memory=True), _all_positions(run, hidden)))
                    del loose[: len(run)]
                tail.extend((source, part) for part in loose)
            return [*sealed, (self._tail_image(table, tail, hidden), NONE)] if tail else sealed

    def image_of(self, table: TableSchema, chunks: Sequence[Chunk], *, in_memory: bool = True) -> Segment:
        """Write rows that are in no lane into a file of their own."""
        return self._write_rows(table, table_of(chunks, table.columns), in_memory=in_memory)

    def _committed_id(self, table: str, source: str) -> int:
        with self._catalyst.lock:
            return self._catalyst.tables[table].lane(source).times.committed_id

    def _sealable(self, loose: Sequence[Slice], *, committed_id: int) -> list[Slice]:
        """Return leading whole chunks that are enough for a segment, else nothing: small tails are re-written per cut instead."""
        # Uncommitted rows are never sealed together with committed ones: a rollback takes them out alone.
        committed = bisect_right(loose, committed_id, key=lambda part: part.piece.last_id)
        count = rows = 0
        for piece, start, stop in loose[:committed]:
            if stop - start != piece.rows or not isinstance(piece.content, Chunk) or rows >= _SEGMENTS_AT_ONCE * self._settings.segment_rows:
                break
            count += 1
            rows += piece.rows
        return list(loose[:count]) if rows >= self._settings.segment_rows else []

    def _seal(self, table: TableSchema, source: str, run: Sequence[Slice], *, in_memory: bool) -> Segment:
        segment = self._write(table, run, in_memory=in_memory)
        with self._catalyst.lock:
            memory = self._catalyst.tables[table.name]
            if memory.lane(source).replace([part.piece for part in run], segment):
                memory.discount([part.piece for part in run])
                if segment.in_memory:
                    memory.bytes_memory += segment.nbytes
                else:
                    memory.bytes_spilled += segment.nbytes
        return segment

    def _tail_image(self, table: TableSchema, tail: Sequence[tuple[str, Slice]], hidden: Numbers) -> Segment:
        """Write the rows that fill no segment yet into one file; the newest such file is kept for the next query at the same cut."""
        # Row ids are never reused and a slice leaves no row of its lane out, so first id and count name the rows.
        key = tuple((source, part.piece.id_at(part.start), part.rows, _positions(part, hidden).tobytes()) for source, part in tail)
        known = self._tails.get(table.name)
        if known is not None and known[0] == key:
            return known[1]
        segment = self._write_rows(table, visible_rows([part for _, part in tail], table.columns, hidden), in_memory=True)
        self._tails[table.name] = (key, segment)
        return segment

    def _write(self, table: TableSchema, slices: Sequence[Slice], *, in_memory: bool) -> Segment:
        return self._write_rows(table, rows_of(slices, table.columns), in_memory=in_memory)

    def _write_rows(self, table: TableSchema, rows: pa.Table, *, in_memory: bool) -> Segment:
        with self._guard:
            self._count += 1
            name = f"{table.name}-{self._count}.parquet"
        path = (self._memory if in_memory else self._spill) / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Written in steps of a megabyte: small ones cost time, and a page cannot end within one.
            step = min(max(_STEP_BYTES * rows.num_rows // max(rows.nbytes, 1), 1024), _ROW_GROUP_ROWS)
            pq.write_table(_tight(rows), path, row_group_size=_ROW_GROUP_ROWS, write_batch_size=step, **_PLAINLY)
        except BaseException as error:
            _unlink(str(path))
            if isinstance(error, OSError):
                raise FileNotWritten(path=str(path.parent), reason=str(error)) from error
            raise
        return Segment(path, rows=rows.num_rows, in_memory=in_memory)

    # -- the bound ---------------------------------------------------------------------------------------------------

    def make_room(self, table: TableSchema, nbytes: int) -> None:
        """Return when `nbytes` more fit into the table's memory, after freeing and spilling; wait, then raise CatalystFull."""
        bound, catalyst = self._settings.memory_bytes_max, self._catalyst
        deadline_s = catalyst.clock.monotonic_s() + self._settings.full_wait_s
        with catalyst.lock:
            memory = catalyst.table(table.name)
            self._await_operations(memory, deadline_s)
            if memory.bytes_memory + nbytes <= bound:
                return
            catalyst.free(memory)
        while True:
            if self._relieve(table, nbytes):
                continue
            with catalyst.lock:
                if self._fits(memory, nbytes):
                    return
                if self._spillable(table, nbytes):
                    continue  # another producer has committed meanwhile
                left_s = deadline_s - catalyst.clock.monotonic_s()
                if left_s <= 0:
                    raise CatalystFull(
                        table=table.name,
                        used=memory.bytes_memory + memory.bytes_spilled,
                        bound=bound + self._settings.spill_bytes_max,
                        setting="memory_bytes_max + spill_bytes_max",
                        waited_s=self._settings.full_wait_s,
                    )
                catalyst.space.wait(timeout=left_s)
                catalyst.free(memory)

    def _await_operations(self, memory: MemoryTable, deadline_s: float) -> None:
        """Wait while more operations are held than may be; they cannot be spilled, only stored. The caller has the lock."""
        catalyst, bound = self._catalyst, self._settings.operations_bytes_max
        while memory.bytes_operations > bound:
            left_s = deadline_s - catalyst.clock.monotonic_s()
            if left_s <= 0:
                raise CatalystFull(
                    table=memory.name, used=memory.bytes_operations, bound=bound, setting="operations_bytes_max", waited_s=self._settings.full_wait_s
                )
            catalyst.space.wait(timeout=left_s)

    def _fits(self, memory: MemoryTable, nbytes: int) -> bool:
        """Tell whether `nbytes` more are within the bound, or are all that is in memory; the caller has the lock."""
        alone = memory.bytes_memory == 0 and memory.bytes_spilled + nbytes <= self._settings.spill_bytes_max
        return alone or memory.bytes_memory + nbytes <= self._settings.memory_bytes_max

    def is_full(self) -> bool:
        """Tell whether some table has reached its memory bound."""
        with self._catalyst.lock:
            return any(table.bytes_memory + table.bytes_spilled >= self._settings.memory_bytes_max for table in self._catalyst.tables.values())

    def _relieve(self, table: TableSchema, nbytes: int) -> bool:
        """Spill some of the oldest pieces if `nbytes` more do not fit; tell whether any were spilled, so that it is worth looking again."""
        with self._lock_of(table.name):
            with self._catalyst.lock:
                if self._fits(self._catalyst.tables[table.name], nbytes):
                    return False
                spillable = self._spillable(table, nbytes)
            for source, run in spillable:
                try:
                    self._seal(table, source, run, in_memory=False)
                except FileNotWritten as error:
                    raise CommitFailed(source=source, step="spill", reason=f"table {table.name!r}: {error.context['reason']}") from error
            return bool(spillable)

    def _spillable(self, table: TableSchema, nbytes: int) -> list[tuple[str, list[Slice]]]:
        """Return the victims that the spill bound has room for; the caller has the lock."""
        memory = self._catalyst.tables[table.name]
        room = self._settings.spill_bytes_max - memory.bytes_spilled
        chosen = []
        for source, run in self._victims(table, memory.bytes_memory + nbytes - self._settings.memory_bytes_max):
            room -= sum(part.piece.content.nbytes for part in run)
            if room < 0:
                break
            chosen.append((source, run))
        return chosen

    def _victims(self, table: TableSchema, nbytes: int) -> list[tuple[str, list[Slice]]]:
        """Choose the oldest in-memory pieces of each lane, a quarter more than needed so that not every commit spills."""
        wanted = nbytes + self._settings.memory_bytes_max // 4
        chosen: list[tuple[str, list[Slice]]] = []
        with self._catalyst.lock:
            for lane in self._catalyst.tables[table.name].lanes.values():
                for pieces in _in_memory_runs(lane):
                    run: list[Slice] = []
                    while pieces and wanted > 0:
                        run.append(Slice(pieces[0], 0, pieces[0].rows))
                        wanted -= pieces.pop(0).content.nbytes
                    if run:
                        chosen.append((lane.source, run))
        return chosen

    def close(self) -> None:
        """Forget the kept tail images and remove the private folder."""
        self._tails.clear()
        _remove_folder(self._memory)

    def _lock_of(self, table: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(table, threading.Lock())


def _tight(rows: pa.Table) -> pa.Table:
    """Return the rows with columns that hold no null declared so: a file has less to say of them, and is written in half the time."""
    fields = [field if column.null_count else field.with_nullable(False) for field, column in zip(rows.schema, rows.columns, strict=True)]
    return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))


def _in_memory_runs(lane: Lane) -> list[list[Piece]]:
    """Return neighbouring pieces in memory, oldest first; no run joins committed rows and uncommitted ones, which a rollback takes out alone."""
    committed_id = lane.times.committed_id
    runs = groupby(lane.pieces, key=lambda piece: (piece.content.in_memory, piece.last_id <= committed_id))
    return [list(pieces) for (in_memory, _), pieces in runs if in_memory]


def forget_spilled(folder: Path) -> None:
    """Remove what a killed writer spilled: those rows are in the log, or lost. Only the holder of the writer lock may do this."""
    _remove_folder(folder / _SPILL_FOLDER)


def _private_folder(wanted: Path | None) -> Path:
    """Make a folder of this process's own, in memory-backed storage if there is any, and remove those of dead processes."""
    shared = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    base = wanted or shared
    base.mkdir(parents=True, exist_ok=True)
    for old in base.glob("righttime-*-*"):
        owner = old.name.split("-")[1]
        if owner.isdigit() and not _is_alive(int(owner)):
            _remove_folder(old)
    return Path(tempfile.mkdtemp(prefix=f"righttime-{os.getpid()}-", dir=base))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True


def _remove_folder(folder: Path) -> None:
    for path in folder.glob("*"):
        _unlink(str(path))
    try:
        folder.rmdir()
    except OSError:
        return  # it never was there, another process cleans up too, or a query still reads; the next start removes it


def _unlink_own(path: str, owner: int) -> None:
    if os.getpid() == owner:
        _unlink(path)


def _unlink(path: str) -> None:
    Path(path).unlink(missing_ok=True)
