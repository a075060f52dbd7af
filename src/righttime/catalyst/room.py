"""Room: the bound on what a table keeps in memory.

In: how much more has to fit.
Out: free memory: stored rows let go, the oldest others in files.
Promise: memory and files of a table stay within their bounds; who needs more waits, and is told after a while. Only what settling makes of stored
rows may exceed them, where files cannot take it: a query is not refused for it, and the next commit waits until it is stored.
"""

from itertools import groupby

from righttime.catalyst.images import Images
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import Lane, MemoryTable, Piece, Slice
from righttime.changes.schema import TableSchema
from righttime.errors import CatalystFull, CommitFailed, FileNotWritten
from righttime.settings import Settings
from righttime.telemetry import get_log

log = get_log("room")


class Room:
    """Makes room in the memory of one catalyst."""

    def __init__(self, catalyst: Catalyst, images: Images, *, settings: Settings) -> None:
        self._catalyst = catalyst
        self._images = images
        self._settings = settings

    def make(self, table: TableSchema, nbytes: int, *, wait_s: float | None = None) -> None:
        """Return when `nbytes` more fit into the table's memory, after freeing and spilling; wait, then raise CatalystFull."""
        bound, catalyst = self._settings.memory_bytes_max, self._catalyst
        deadline_s = catalyst.clock.monotonic_s() + (self._settings.full_wait_s if wait_s is None else wait_s)
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

    def relieve(self, table: TableSchema) -> None:
        """Bring a table back within its bound as far as files can take it, without waiting: what was settled is here and cannot be refused."""
        with self._catalyst.lock:
            if self._fits(self._catalyst.tables[table.name], 0):
                return  # without the lock of the images, under which another query may be writing
        try:
            while self._relieve(table, 0):
                pass
        except CommitFailed as error:
            log.warning("spill.failed", table=table.name, error=str(error))

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
        with self._images.lock_of(table.name):
            with self._catalyst.lock:
                if self._fits(self._catalyst.tables[table.name], nbytes):
                    return False
                spillable = self._spillable(table, nbytes)
            for source, run in spillable:
                try:
                    self._images.seal(table, source, run, in_memory=False)
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


def _in_memory_runs(lane: Lane) -> list[list[Piece]]:
    """Return neighbouring pieces in memory, oldest first, as far as they leave it together: a rollback takes out uncommitted rows alone, stored ones
    are here for a query only, and what was between two others and is gone divides what such a query needs from the rest.
    """
    committed_id, stored_id = lane.times.committed_id, lane.stored_id
    runs = groupby(
        lane.pieces, key=lambda piece: (piece.content.in_memory, piece.last_id <= committed_id, piece.last_id <= stored_id, lane.holes_before(piece))
    )
    return [list(pieces) for (in_memory, *_), pieces in runs if in_memory]
