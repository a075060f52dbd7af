"""What the state tables of the sheet show: where rows are, and what the indexes say, read from the real parts."""

from typing import Any

from righttime import Producer, Warehouse
from righttime.catalyst.segments import rows_of
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import Lane
from righttime.changes.operations import rows_and_operations
from righttime.changes.rows import table_of
from righttime.flight.warehouse import RemoteWarehouse
from righttime.query.contract import Contract
from tests.support.crash import engine_of

Row = tuple[Any, ...]
INFINITY = "∞"
SECOND = 1_000_000
MINUTE = 60 * SECOND


def tuples(table: Any) -> list[Row]:
    """Return an Arrow table as tuples."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def catalyst_of(wh: Warehouse) -> Catalyst:
    return engine_of(wh).catalyst


def buffered(producer: Producer, table: str) -> list[Row]:
    """The producer's local buffer."""
    buffer = producer._buffers.get(table)
    if buffer is None:
        return []
    return [*tuples(table_of(buffer.chunks, producer._with.schemas[table].columns)), *buffer.pending]


def archived(producer: Producer, table: str) -> dict[int, list[Row]]:
    """The producer's archives: commit time in seconds to rows."""
    columns = producer._with.schemas[table].columns
    return {time_us // SECOND: tuples(table_of(rows_and_operations(parts)[0], columns)) for time_us, parts in producer._archive._tables.get(table, ())}


def lane(wh: Warehouse, table: str, source: str = "p") -> Lane:
    return catalyst_of(wh).tables[table].lane(source)


def hot(wh: Warehouse, table: str, source: str = "p", *, first_id: int = 1, last_id: int | None = None) -> dict[int, Row]:
    """The row index of the memory table: row id to row, committed or not."""
    mine = lane(wh, table, source)
    rows: dict[int, Row] = {}
    for part in mine.slices(first_id, mine.last_id if last_id is None else last_id):
        ids = [part.piece.id_at(position) for position in range(part.start, part.stop)]
        rows.update(zip(ids, tuples(rows_of([part], wh.schema(table).columns)), strict=True))
    return rows


def minmax(wh: Warehouse, table: str, source: str = "p") -> tuple[int, int]:
    """The row ids that a new query takes from the catalyst."""
    mine = lane(wh, table, source)
    return mine.stored_id + 1, mine.times.committed_id


def time_index(wh: Warehouse, table: str, source: str = "p", *, unit_us: int = SECOND) -> dict[int | str, int]:
    """τ of the table: time to the id of the last row committed then; ∞ for uncommitted rows."""
    times = lane(wh, table, source).times
    index: dict[int | str, int] = {time_us // unit_us: row_id for time_us, row_id in zip(times.times, times.ids, strict=True)}
    if times.uncommitted_id is not None:
        index[INFINITY] = times.uncommitted_id
    return index


def versions(wh: Warehouse, table: str) -> list[tuple[Row, int, int | None]]:
    """Every row version in memory: the row, when it began and when it ended (None: it lives), in seconds."""
    memory = catalyst_of(wh).tables[table]
    ended = dict(zip(memory.ends.hot_ids.tolist(), (memory.ends.hot_times // SECOND).tolist(), strict=True))
    found = []
    for source, mine in memory.lanes.items():
        found += [(row, mine.times.time_of(row_id) // SECOND, ended.get(row_id)) for row_id, row in hot(wh, table, source).items()]
    return sorted(found, key=lambda version: (version[0], version[1]))


def stored(wh: Warehouse, table: str) -> list[Row]:
    """The rows in the warehouse table's current version."""
    engine = engine_of(wh)
    schema = engine.schemas[table]
    parts = engine.store.scan(schema, engine.catalyst.tables[table].version, schema.columns.names)
    return sorted(row for part in parts for row in tuples(part.rows))


def seen(wh: Warehouse, table: str, **contract: Any) -> list[Row]:
    """The transparency view: what a query sees."""
    return sorted(wh.read(table, **contract).rows())


def snapshots_of(wh: Any) -> Any:
    """What takes snapshots for the queries of this handle: where it is one of a service, its own client, and not the engine behind the service."""
    return wh._consumer._snapshots if isinstance(wh, RemoteWarehouse) else engine_of(wh).snapshots


def asking(freshness_us: int = 0, *, wait_s: float = 30.0, as_of_us: int | None = None) -> Contract:
    """A contract for a query over several tables."""
    return Contract(freshness_us, wait_s, "error", as_of_us)
