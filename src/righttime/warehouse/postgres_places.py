"""Places of rows in PostgreSQL, and conditions on columns, as parts of statements.

In: ctids (block << 16 | offset) and the transactions that made the rows there (xmin); ranges of values.
Out: units and positions for the catalyst, and these back; SQL and parameters.
Promise: pure; a unit and a position name one version of a row and never another one that came to lie there; a condition lets through every
row that is within the ranges.

VACUUM gives the place of a deleted row to the next that is inserted, so a ctid alone says where, and not which. A ctid and its xmin do: a
transaction that is over makes no more rows. Together they have too many bits for one number: the upper bits of xmin are in the unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pyarrow.types as kind
from psycopg import sql
from psycopg.adapt import Dumper
from psycopg.pq import Format

from righttime.changes.schema import TableSchema
from righttime.changes.types import stored_as
from righttime.errors import RowsMoved, WarehouseDamaged
from righttime.warehouse.postgres_catalog import Found
from righttime.warehouse.postgres_json import UUID
from righttime.warehouse.store import Positions, Ranges

_TID, _TID_ARRAY = 27, 1010
_XID, _XID_ARRAY = 28, 1011
# A block of 32 kB, the largest that PostgreSQL can be built with, has 1,169 rows at most.
_OFFSET_BITS = 11
_MADE_BITS = 20


@dataclass(frozen=True, slots=True)
class Places:
    """Row versions: where each lies, and the transaction that made it."""

    ctids: Positions
    made: Positions

    def __len__(self) -> int:
        return len(self.ctids)

    def __getitem__(self, chosen: Any) -> Places:
        return Places(self.ctids[chosen], self.made[chosen])

    def by_unit(self, found: Found) -> Iterator[tuple[str, Any, Positions]]:
        """Yield units, which of these rows are in each, and their positions, which ascend where ctids do."""
        if len(self) and int((self.ctids & 0xFFFF).max()) >> _OFFSET_BITS:
            raise WarehouseDamaged(path=f"table {found.name}", reason="its rows do not lie as those of ordinary tables do")
        positions = (self.ctids >> 16 << _OFFSET_BITS | self.ctids & 0xFFFF) << _MADE_BITS | self.made & ((1 << _MADE_BITS) - 1)
        eras = self.made >> _MADE_BITS
        if not len(eras) or (eras == eras[0]).all():
            yield f"{found.file}:{eras[0] if len(eras) else 0}", slice(None), positions
            return
        for era in np.unique(eras):
            chosen = np.flatnonzero(eras == era)
            yield f"{found.file}:{era}", chosen, positions[chosen]


NOWHERE = Places(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def places_of(found: Found, named: Mapping[str, Positions]) -> Places:
    """Return row versions, by ascending ctid and each once; raise `RowsMoved` if they belong to a file that the table has left."""
    parts = [_named(found, unit, positions) for unit, positions in named.items() if len(positions)]
    if len(parts) < 2:
        return parts[0] if parts else NOWHERE
    together = Places(np.concatenate([part.ctids for part in parts]), np.concatenate([part.made for part in parts]))
    return together[np.argsort(together.ctids, kind="stable")]


def _named(found: Found, unit: str, positions: Positions) -> Places:
    file, _, era = unit.partition(":")
    if file != found.file:
        raise RowsMoved(table=found.name, reason="VACUUM FULL, CLUSTER, TRUNCATE or ALTER TABLE")
    each = np.unique(positions)
    lying = each >> _MADE_BITS
    ctids = lying >> _OFFSET_BITS << 16 | lying & ((1 << _OFFSET_BITS) - 1)
    return Places(ctids, int(era) << _MADE_BITS | each & ((1 << _MADE_BITS) - 1))


class Tids:
    """Ctids on their way into a statement, as an array."""

    def __init__(self, ctids: Positions) -> None:
        # The six lower bytes are block and offset as PostgreSQL sends them.
        self.content = _array(_TID, ctids, width=6)


class Xids:
    """Numbers of transactions on their way into a statement, as an array."""

    def __init__(self, made: Positions) -> None:
        self.content = _array(_XID, made, width=4)


def _array(element: int, values: Positions, *, width: int) -> bytes:
    count = len(values)
    header = [1, 0, element, count, 1] if count else [0, 0, element]
    elements = np.empty((count, 4 + width), dtype=np.uint8)
    elements[:, :4] = np.array([width], dtype=">i4").view(np.uint8)
    elements[:, 4:] = values.astype(">i8").view(np.uint8).reshape(count, 8)[:, 8 - width :]
    return np.array(header, dtype=">i4").tobytes() + elements.tobytes()


class _TidsDumper(Dumper):
    format = Format.BINARY
    oid = _TID_ARRAY

    def dump(self, obj: Tids) -> bytes:
        return obj.content


class _XidsDumper(Dumper):
    format = Format.BINARY
    oid = _XID_ARRAY

    def dump(self, obj: Xids) -> bytes:
        return obj.content


psycopg.adapters.register_dumper(Tids, _TidsDumper)
psycopg.adapters.register_dumper(Xids, _XidsDumper)


def counted(versions: sql.Composable) -> sql.Composed:
    """Return the query that counts how many of the versions (place, made) of a relation are those of two parameters, `Tids` and `Xids`."""
    return sql.SQL("SELECT count(*) FROM {} JOIN unnest(%s, %s) AS wanted (place, made) USING (place, made)").format(versions)


def between(low: int, high: int) -> sql.Composed:
    """Return the condition that a row lies at or after `low` and before `high`."""
    return sql.SQL("ctid >= {}::tid AND ctid < {}::tid").format(*(sql.Literal(f"({position >> 16},{position & 0xFFFF})") for position in (low, high)))


def within(table: TableSchema, names: tuple[str, ...], ranges: Ranges) -> tuple[sql.Composed, tuple[Any, ...]] | None:
    """Return the condition that values are within `ranges`, None if that says nothing."""
    conditions: list[sql.Composable] = []
    values: list[Any] = []
    for field, name in zip(table.columns, names, strict=True):
        other = stored_as(field)
        if other in ("json", "jsonb"):
            continue  # they have no order, or another one
        low, high = (_sendable(bound, other) for bound in ranges.get(field.name, (None, None)))
        column: sql.Composable = sql.Identifier(name)
        if low is not None and low == high:
            conditions.append(sql.SQL("{} = %s").format(column))
            values.append(low)
            continue
        if kind.is_string(field.type) and other is None:
            # The order of the database's language is not the order of characters, which is ours.
            column = sql.SQL('{} COLLATE "C"').format(column)
        for comparison, value in ((">=", low), ("<=", high)):
            if value is not None:
                conditions.append(sql.SQL(f"{{}} {comparison} %s").format(column))
                values.append(value)
    return (sql.SQL(" AND ").join(conditions), tuple(values)) if conditions else None


def _sendable(bound: Any, other: str | None) -> Any:
    """Return a bound, None for a text that PostgreSQL has no form for: then more rows come than are wanted."""
    if isinstance(bound, str) and ("\0" in bound or (other == "uuid" and not re.fullmatch(UUID, bound))):
        return None
    return bound
