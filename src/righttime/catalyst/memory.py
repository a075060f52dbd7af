"""What the catalyst holds, behind one lock: memory tables, the head, the leases, and the links of producers and flows.

In: rows that the sides of the catalyst take in.
Out: the same, counted and numbered.
Promise: one lock guards it all, and no call does file work under it, except the mover's ledger transaction, which is the commit point.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from threading import Condition, RLock

from righttime.catalyst.head import Head
from righttime.catalyst.indexes import RowIds
from righttime.catalyst.leases import LeaseTable
from righttime.catalyst.links import Link
from righttime.catalyst.maintainer import Admission, Maintainer
from righttime.catalyst.messages import Trace
from righttime.catalyst.table import Lane, MemoryTable, Rows
from righttime.catalyst.tapped import Tapped
from righttime.changes.clock import Clock, TimeAuthority
from righttime.changes.operations import Operations, rows_and_operations
from righttime.changes.position import Commit
from righttime.errors import LeaseExpired, RightTimeError, UnknownTable
from righttime.settings import Settings

GIVEN_UP = "the client that asked is gone, or has taken its question back"


class CatalystMemory:
    """The state that all sides of the catalyst share."""

    def __init__(self, *, settings: Settings, clock: Clock, authority: TimeAuthority, trace: Trace) -> None:
        self.lock = RLock()
        self.arrivals = Condition(self.lock)  # wakes queries: rows, assurances or jobs have come
        self.space = Condition(self.lock)  # wakes whoever waits for memory, or for a query to begin or end
        self.grown = Condition(self.lock)  # wakes the keeper
        self.hot_rows_max: int | None = None
        self.closing = False
        self.halted: RightTimeError | None = None  # why nothing may be committed or answered now
        self.leases = LeaseTable()
        self.head = Head(settings.commits_max)
        self.row_ids = RowIds()
        self.tables: dict[str, MemoryTable] = {}
        self.links: dict[str, Link] = {}
        self.gates: Counter[str] = Counter()  # tables to which nobody may commit lazily now
        self.maintained: dict[str, Maintainer] = {}  # by target table
        self.admissions: list[Admission] = []
        self.tapped: dict[str, Tapped] = {}  # tables that are streams, too
        self.authority = authority
        self.clock = clock
        self._settings = settings
        self._trace = trace
        self._slots: dict[str, int] = {}
        self._opened_us = authority.read_us()

    def table(self, name: str) -> MemoryTable:
        found = self.tables.get(name)
        if found is None:
            raise UnknownTable(table=name, known=", ".join(sorted(self.tables)) or "none")
        return found

    def free(self, table: MemoryTable) -> None:
        """Let rows go that are stored and that no query holds; the caller has the lock."""
        now_s = self.clock.monotonic_s()
        for lane in table.lanes.values():
            table.discount(lane.free(self.leases.freeable((table.name, lane.source), stored_id=lane.stored_id, now_s=now_s)))

    def bytes_leased(self, table: MemoryTable) -> int:
        """Return the bytes of stored rows that are here for queries only; the caller has the lock."""
        now_s = self.clock.monotonic_s()
        lanes = [(lane, self.leases.freeable((table.name, lane.source), stored_id=lane.stored_id, now_s=now_s)) for lane in table.lanes.values()]
        return sum(piece.content.nbytes for lane, spans in lanes for piece in lane.stored_outside(spans))

    def halt(self, reason: RightTimeError | None) -> None:
        """Commit and answer nothing from now on, for this reason; None ends it."""
        with self.lock:
            self.halted = reason
            self.arrivals.notify_all()
            self.space.notify_all()

    def refuse_halted(self) -> None:
        """Raise why nothing may be committed or answered now, if that is so."""
        with self.lock:
            if self.halted is not None:
                raise type(self.halted)(**self.halted.context)

    def _await_unhalted(self, deadline_s: float, admission: Admission) -> None:
        """Wait for the end of a halt that may end; raise why it did not. The caller has the lock."""
        while self.halted is not None and self.halted.retryable and (left_s := deadline_s - self.clock.monotonic_s()) > 0:
            self._await_arrivals(left_s, admission)
        self.refuse_halted()

    def _await_arrivals(self, timeout_s: float, admission: Admission) -> None:
        """Wait for something that a query lacks, unless nobody waits for the query. The caller has the lock."""
        if admission.given_up:
            raise LeaseExpired(reason=GIVEN_UP)
        self.arrivals.wait(timeout=timeout_s)

    def give_up(self, admission: Admission) -> None:
        """End the wait of a query whose client is gone, or does not want to know any more."""
        with self.lock:
            admission.given_up = True
            self.arrivals.notify_all()

    def _add(self, table: MemoryTable, lane: Lane, content: Sequence[Rows | Operations]) -> None:
        chunks, operations = rows_and_operations(content)
        lane.add(chunks, self.row_ids, operations)
        table.bytes_memory += sum(chunk.nbytes for chunk in chunks if chunk.in_memory)
        table.bytes_spilled += sum(chunk.nbytes for chunk in chunks if not chunk.in_memory)
        table.bytes_operations += sum(each.nbytes for each in operations)
        table.rows_unstored += sum(part.rows for part in content)
        table.changes += 1
        if self.hot_rows_max is not None and table.rows_unstored >= self.hot_rows_max:
            self.grown.notify_all()

    def _note_tapped(self, table: str, time_us: int, rows: int) -> None:
        if (tapped := self.tapped.get(table)) is not None:
            tapped.note(time_us, rows)

    def _number(self, link: Link, time_us: int, *, rows: int) -> Commit:
        commit = self.head.commit(link.source, time_us, rows=rows, held_us=min(link.archived_from.values(), default=None))
        self._trace.record(self._slots[link.source], commit.number, time_us, self.head.source(link.source).rows)
        return commit

    def forget_slots(self, positions: Mapping[str, Commit]) -> None:
        """Give the trace's slots of closed sources back once all their commits are durable; the caller has the lock."""
        for source in [known for known in self._slots if known not in self.links]:
            if positions.get(source) == self.head.source(source).last:
                self._trace.release(source)
                del self._slots[source]
