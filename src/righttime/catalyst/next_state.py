"""The state that a durable step makes: as the ledger keeps it, and as the memory tables are told.

In: a step whose files, log record and table versions are written.
Out: the state and the batches for the ledger; stored and logged positions in the lanes.
Promise: both say the same; the caller has the catalyst's lock from the first call here to the last.
"""

from righttime.catalyst.capture import LaneCapture, Overtaken
from righttime.catalyst.durable import DurableStep
from righttime.catalyst.log import Log
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import VERSIONS
from righttime.changes.position import Commit
from righttime.ledger.book import Batch
from righttime.ledger.state import LaneState, LogPosition, State, TableState


def refuse_overtaken(catalyst: Catalyst, step: DurableStep) -> None:
    """Rows must not be stored before operations that were committed before them, nor those of a table that is tapped since before its streams have them."""
    for table in step.tables:
        if table in step.seen.cuts or step.adopted(table) is not None:
            continue
        if catalyst.tables[table].must_settle(step.order.source) or _lacking(catalyst, step, table):
            raise Overtaken


def _lacking(catalyst: Catalyst, step: DurableStep, table: str) -> bool:
    """Tell whether a tapped table would get rows that its streams could not tell apart any more; those of the commit under way are the newest of all."""
    tapped = catalyst.tapped.get(table)
    return tapped is not None and any(lane.stores and (lane.time_us is None or lane.time_us > tapped.stream_us) for lane in step.seen.of_table(table))


def next_state(catalyst: Catalyst, step: DurableStep, *, commit: Commit | None, time_us: int, wal: Log, log_end: LogPosition) -> State:
    """Build the durable content of the state that this step makes; `log_end` is where the log ended before."""
    tables = {name: _table_state(catalyst, step, name, time_us) for name in catalyst.tables}
    positions, rows = dict(step.seen.positions), dict(step.seen.rows)
    own = step.order.own
    if own is not None and commit is not None:
        positions[own.source] = commit
        rows[own.source] = catalyst.head.source(own.source).rows + step.rows_own
    end = step.record.end if step.record else log_end
    stored = {(name, lane.source): lane.stored_id for name, table in tables.items() for lane in table.lanes}
    begin = wal.begin(stored, appended=step.record, end=end)
    return State(catalyst.head.number + 1, time_us, step.seen.row_id, tables, positions, begin, end, rows)


def refuse_steps_back(before: State, state: State) -> None:
    """A commit that was durable stays so: rows that are stored would be called lost after a crash, and a flow would make them again."""
    for source, commit in before.positions.items():
        assert state.positions[source].number >= commit.number, f"a state would take back commit {commit.number} of {source!r}, which is durable"


def _table_state(catalyst: Catalyst, step: DurableStep, name: str, time_us: int) -> TableState:
    memory = catalyst.tables[name]
    lanes = []
    for seen in step.seen.of_table(name):
        if seen.source != VERSIONS:
            stored_us = _stored_us(step, seen, memory.lanes[seen.source].stored_us, time_us)
            lanes.append(LaneState(seen.source, seen.stored_id, max(seen.last_id, seen.stored_id), stored_us))
    version, rows_stored = step.versions.get(name, memory.version), _rows_stored(catalyst, step, name)
    return TableState(name, version, rows_stored, max((lane.stored_us for lane in lanes), default=0), tuple(lanes))


def _rows_stored(catalyst: Catalyst, step: DurableStep, table: str) -> int:
    adopted = step.adopted(table)
    before = catalyst.tables[table].rows_stored if adopted is None else adopted.rows
    removal = step.removals.get(table)
    gone = removal.rows + removal.rows_kept if removal is not None else 0
    return before - gone + sum(file.rows for file in step.files.get(table, ()))


def _stored_us(step: DurableStep, seen: LaneCapture, before_us: int, time_us: int) -> int:
    adopted = step.adopted(seen.table)
    bypassed = seen.table in step.order.bypass and not (adopted is not None and adopted.same)  # the same rows are as old as they were
    if seen.source == step.order.source and (bypassed or (seen.stores and seen.time_us is None)):
        return time_us
    return max(before_us, seen.time_us or 0) if seen.stores else before_us


def finished_batches(catalyst: Catalyst, step: DurableStep, *, commit: Commit | None, state: int) -> list[Batch]:
    """Return the batches that are durable with this state: those of commits in memory that it reaches, and the step's own."""
    done = [
        Batch(source, known_id, known, state, 0)
        for (source, known_id), known in catalyst.head.batches.items()
        if known.number <= step.seen.positions.get(source, Commit(0, 0)).number
    ]
    own, batch_id = step.order.own, step.order.batch_id
    if own is not None and commit is not None and batch_id is not None:
        done.append(Batch(own.source, batch_id, commit, state, step.rows_own))
    return done


def tell_tables(catalyst: Catalyst, step: DurableStep, time_us: int) -> None:
    """Tell the memory tables what is logged and stored now; the ledger has it."""
    for seen in step.seen.lanes:
        memory = catalyst.tables[seen.table]
        lane = memory.lanes[seen.source]
        lane.stored_us = _stored_us(step, seen, lane.stored_us, time_us)
        if seen.stores and seen.source != VERSIONS:
            held = lane.operations_nbytes
            memory.rows_unstored -= lane.stored_up_to(seen.stored_id)
            memory.bytes_operations -= held - lane.operations_nbytes
        lane.logged_id = max(lane.logged_id, seen.last_id)
        lane.logged_us = max(lane.logged_us, seen.times[-1][0] if seen.times else 0)
    for table, version in step.versions.items():
        memory = catalyst.tables[table]
        memory.rows_stored = _rows_stored(catalyst, step, table)
        memory.version = version
        memory.changes += 1
    for table in step.seen.cuts:
        memory = catalyst.tables[table]
        memory.reset_versions(catalyst.row_ids.last)
        memory.settled_us = step.seen.cuts[table]
    for table, extra in step.order.bypass.items():
        if extra.adopted is not None:
            catalyst.tables[table].reset_versions(catalyst.row_ids.last)
            catalyst.tables[table].settled_us = 0
