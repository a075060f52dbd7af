"""States: what every table and every source had reached at one numbered moment.

In: versions, row ids and commits that the writer has made safe, or only published in memory.
Out: immutable values that snapshots, the ledger and recovery agree on.
Promise: pure; `from_json(to_json())` gives an equal state.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from righttime.changes.position import Commit


@dataclass(frozen=True, slots=True)
class LaneState:
    """One source's rows in one table: ids up to `stored_id` are stored, ids above it up to `visible_id` are hot.

    `stored_us` is the commit time of the newest stored row.
    """

    source: str
    stored_id: int
    visible_id: int
    stored_us: int


@dataclass(frozen=True, slots=True)
class TableState:
    """One table: its Delta version, the rows in it, the newest commit time among them, and its lanes."""

    name: str
    version: int
    rows_stored: int
    stored_us: int
    lanes: tuple[LaneState, ...]


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place in the write-ahead log: number of the file, bytes into it."""

    file: int
    offset: int


@dataclass(frozen=True, slots=True)
class State:
    """Everything a snapshot needs to know. `row_id` is the last row id given out, over all tables; `rows` counts what each source
    has committed up to its position, in its whole life.

    The log between `log_begin` and `log_end` holds the durable rows that are not stored in a table yet.
    """

    number: int
    time_us: int
    row_id: int
    tables: Mapping[str, TableState]
    positions: Mapping[str, Commit]
    log_begin: LogPosition
    log_end: LogPosition
    rows: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the state as compact JSON, fields by place."""
        tables = {
            name: (table.version, table.rows_stored, table.stored_us, [(lane.source, lane.stored_id, lane.visible_id, lane.stored_us) for lane in table.lanes])
            for name, table in self.tables.items()
        }
        positions = {source: (commit.number, commit.time_us) for source, commit in self.positions.items()}
        begin, end = self.log_begin, self.log_end
        return _encode((self.number, self.time_us, self.row_id, tables, positions, begin.file, begin.offset, end.file, end.offset, dict(self.rows)))

    @classmethod
    def from_json(cls, text: str) -> "State":
        """Read what `to_json` wrote; a text of another shape raises ValueError, TypeError or AttributeError."""
        number, time_us, row_id, tables, positions, begin_file, begin_offset, end_file, end_offset, rows = json.loads(text)
        return cls(
            number=number,
            time_us=time_us,
            row_id=row_id,
            tables={
                name: TableState(name, version, rows_stored, stored_us, tuple(LaneState(*lane) for lane in lanes))
                for name, (version, rows_stored, stored_us, lanes) in tables.items()
            },
            positions={source: Commit(*commit) for source, commit in positions.items()},
            log_begin=LogPosition(begin_file, begin_offset),
            log_end=LogPosition(end_file, end_offset),
            rows=dict(rows.items()),
        )


# One encoder for all calls: json.dumps with separators would build one each time.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

EMPTY = State(number=0, time_us=0, row_id=0, tables={}, positions={}, log_begin=LogPosition(0, 0), log_end=LogPosition(0, 0))
