"""Places of rows in PostgreSQL, and conditions on columns, as parts of statements.

In: positions (block << 16 | offset, the two numbers of a ctid); ranges of values.
Out: SQL and parameters.
Promise: pure; a condition lets through every row that is within the ranges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pyarrow.types as kind
from psycopg import sql
from psycopg.adapt import Dumper
from psycopg.pq import Format

from righttime.changes.schema import TableSchema
from righttime.warehouse.store import Positions, Ranges

_TID = 27
_TID_ARRAY = 1010


class Tids:
    """Positions on their way into a statement, as an array of ctids."""

    def __init__(self, positions: Positions) -> None:
        self.positions = positions


class _TidsDumper(Dumper):
    format = Format.BINARY
    oid = _TID_ARRAY

    def dump(self, obj: Tids) -> bytes:
        count = len(obj.positions)
        header = [1, 0, _TID, count, 1] if count else [0, 0, _TID]
        elements = np.empty((count, 10), dtype=np.uint8)
        elements[:, :4] = np.array([6], dtype=">i4").view(np.uint8)
        # The six lower bytes are block and offset as PostgreSQL sends them.
        elements[:, 4:] = obj.positions.astype(">i8").view(np.uint8).reshape(count, 8)[:, 2:]
        return np.array(header, dtype=">i4").tobytes() + elements.tobytes()


psycopg.adapters.register_dumper(Tids, _TidsDumper)


def between(low: int, high: int) -> sql.Composed:
    """Return the condition that a row lies at or after `low` and before `high`."""
    return sql.SQL("ctid >= {}::tid AND ctid < {}::tid").format(*(sql.Literal(f"({position >> 16},{position & 0xFFFF})") for position in (low, high)))


def within(table: TableSchema, names: tuple[str, ...], ranges: Ranges) -> tuple[sql.Composed, tuple[Any, ...]] | None:
    """Return the condition that values are within `ranges`, None if that says nothing."""
    conditions: list[sql.Composable] = []
    values: list[Any] = []
    for field, name in zip(table.columns, names, strict=True):
        low, high = (_sendable(bound) for bound in ranges.get(field.name, (None, None)))
        column: sql.Composable = sql.Identifier(name)
        if low is not None and low == high:
            conditions.append(sql.SQL("{} = %s").format(column))
            values.append(low)
            continue
        if kind.is_string(field.type):
            # The order of the database's language is not the order of characters, which is ours.
            column = sql.SQL('{} COLLATE "C"').format(column)
        for comparison, value in ((">=", low), ("<=", high)):
            if value is not None:
                conditions.append(sql.SQL(f"{{}} {comparison} %s").format(column))
                values.append(value)
    return (sql.SQL(" AND ").join(conditions), tuple(values)) if conditions else None


def _sendable(bound: Any) -> Any:
    """Return a bound, None for a text that PostgreSQL has no form for: then more rows come than are wanted."""
    return None if isinstance(bound, str) and "\0" in bound else bound
