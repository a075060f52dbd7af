"""Recovery: build the catalyst from what the ledger says is true, and say what a crash took.

In: the newest durable state, the log between its positions, the tables, the trace of the last process.
Out: memory tables, sources and the sequence of row ids as they were at that state; the losses.
Promise: what the ledger does not know is gone afterwards, on disk as in memory; running it twice changes nothing more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from righttime.catalyst.head import SourceHistory
from righttime.catalyst.log import Log, LogEntry
from righttime.catalyst.segments import joined
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import Lane, MemoryTable, Piece
from righttime.changes.position import START, Commit
from righttime.changes.rows import Chunk
from righttime.changes.schema import TableSchema
from righttime.errors import ForeignCommit
from righttime.ledger.book import Book, Loss
from righttime.ledger.state import State, TableState
from righttime.ledger.trace import CommitTrace
from righttime.telemetry import get_log
from righttime.warehouse.store import Store

log = get_log("recovery")

_IDS_LOST = 1 << 32  # more than any process has given out since its last durable state
_RECEIPTS = 1000  # the last ones, of which one has the latest cut that was promised


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery found."""

    state: State
    losses: tuple[Loss, ...]
    rows_replayed: int


def recover(
    catalyst: Catalyst,
    *,
    ledger: Book,
    store: Store,
    wal: Log,
    trace: CommitTrace | None,
    schemas: Mapping[str, TableSchema],
    state: State,
) -> Recovered:
    """Fill an empty catalyst with what was true at `state`; with `trace` None (read-only) nothing on disk is touched."""
    losses = _losses(state, trace, known=ledger.losses(), found_us=catalyst.authority.read_us()) if trace is not None else ()
    crashed = trace is not None and bool(trace.read())  # whoever closes the warehouse leaves none
    for name, schema in schemas.items():
        found = state.tables.get(name, TableState(name, 0, 0, 0, ()))
        version = _undone(store, schema, found.version) if trace is not None else found.version
        catalyst.tables[name] = _memory_table(found, version)
    rows = sum(_replay(catalyst, entry) for entry in wal.read(state.log_begin, state.log_end))
    for table in state.tables.values():
        _seal_times(catalyst.tables[table.name], table, state.positions)
    # Also above what was promised to readers: the clock may have been set back since.
    catalyst.authority.observe(max((receipt.cut_us for receipt in ledger.receipts(limit=_RECEIPTS)), default=0))
    _restore_head(catalyst, state, [*ledger.losses(), *losses], number=max(state.number, ledger.last_number()))
    # Receipts may name rows that the last process had in memory only: their ids are not given to others.
    catalyst.row_ids.last = state.row_id + (_IDS_LOST if crashed else 0)
    if trace is not None:
        ledger.note_loss(losses, trace_id=trace.trace_id)
        trace.reset()
    for loss in losses:
        if loss.made_again:
            continue
        log.warning("commits.lost", source=loss.source, first=loss.first, last=loss.last, rows=loss.rows)
    return Recovered(state, losses, rows)


def _losses(state: State, trace: CommitTrace, *, known: Sequence[Loss], found_us: int) -> tuple[Loss, ...]:
    """Compare what the last process noted with what is durable, and with what earlier crashes took."""
    losses = []
    for source, (number, time_us, rows) in trace.read().items():
        durable = state.positions.get(source, START)
        first = max([durable.number, *(loss.last for loss in known if loss.source == source)]) + 1
        if number >= first and time_us > durable.time_us:
            losses.append(Loss(source, first, number, rows - state.rows.get(source, 0), found_us))
    return tuple(losses)


def _undone(store: Store, schema: TableSchema, version: int) -> int:
    try:
        return store.undo(schema, version=version)
    except ForeignCommit as error:
        # Somebody else's rows are not ours to remove. Readers stay at our version, and the next store into the table says so.
        log.warning("table.foreign_commit", table=schema.name, error=str(error))
        return version


def _memory_table(found: TableState, version: int) -> MemoryTable:
    memory = MemoryTable(found.name, version, found.rows_stored)
    for seen in found.lanes:
        lane = memory.lanes[seen.source] = Lane(seen.source, stored_id=seen.stored_id, stored_us=seen.stored_us)
        if seen.stored_us:
            lane.times.add(seen.stored_us, seen.stored_id)
    return memory


def _replay(catalyst: Catalyst, entry: LogEntry) -> int:
    memory = catalyst.tables[entry.table]
    lane = memory.lane(entry.source)
    if entry.runs and entry.last_id > lane.stored_id:
        start = 0
        # Usually one batch, of what were thousands of commits; text of more than 2 GiB does not fit into one.
        for batch in joined(entry.rows).to_batches():
            runs = list(_cut(entry.runs, start, start + batch.num_rows))
            lane.pieces.append(Piece(Chunk(batch), [first for first, _, _ in runs], [offset for _, _, offset in runs]))
            memory.bytes_memory += lane.pieces[-1].content.nbytes
            start += batch.num_rows
    operations = [placed for placed in entry.operations if placed.first_id > lane.stored_id]
    lane.operations.extend(operations)
    memory.bytes_operations += sum(placed.operations.nbytes for placed in operations)
    for time_us, row_id in entry.times:
        if time_us > lane.times.newest_us and row_id >= lane.times.committed_id:
            lane.times.add(time_us, row_id)
    return sum(rows for _, rows in entry.runs) + sum(placed.operations.rows for placed in entry.operations)


def _cut(runs: Sequence[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first id, rows, offset from start) of the runs that rows start..stop-1 cover."""
    before = 0
    for first_id, rows in runs:
        low, high = max(before, start), min(before + rows, stop)
        if low < high:
            yield first_id + low - before, high - low, low - start
        before += rows


def _seal_times(memory: MemoryTable, found: TableState, positions: Mapping[str, Commit]) -> None:
    """Give the last logged commit of each lane its time: the ledger learned it after the log record was written."""
    for seen in found.lanes:
        lane = memory.lanes[seen.source]
        # The log still has to get a time that is only in the ledger: the next state will tell that of a later commit.
        lane.logged_id, lane.logged_us = seen.visible_id, lane.times.newest_us
        if lane.times.committed_id < seen.visible_id:
            lane.times.add(max(positions[seen.source].time_us, lane.times.newest_us + 1), seen.visible_id)
    memory.rows_unstored = memory.rows_hot() + sum(placed.operations.rows for lane in memory.lanes.values() for placed in lane.operations)


def _restore_head(catalyst: Catalyst, state: State, losses: list[Loss], *, number: int) -> None:
    catalyst.head.number = number
    catalyst.authority.observe(state.time_us)
    lost = {loss.source: max(loss.last, *(other.last for other in losses if other.source == loss.source), 0) for loss in losses}
    for source in state.positions.keys() | lost.keys():
        last = state.positions.get(source, START)
        first_number = max(last.number, lost.get(source, 0)) + 1
        catalyst.head.sources[source] = SourceHistory(last, commits_max=catalyst.head.commits_max, first_number=first_number, rows=state.rows.get(source, 0))
