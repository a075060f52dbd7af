"""Relations as lists of dictionaries, and the living and ended images of a stream's rows.

In: the changes of a stream, in their order.
Out: every image that a row ever had, with the times from and to which it lived.
Promise: pure. Names that begin with `_` are not columns: `_since` and `_end` (microseconds), `_ordinal` (counts the images of a stream).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

Fields = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Relation:
    """Rows with named columns, in no order, equal ones as often as they occur."""

    columns: tuple[str, ...]
    rows: list[Fields] = field(default_factory=list)

    def living(self) -> "Relation":
        """Return the rows that have no end."""
        return Relation(self.columns, [row for row in self.rows if row.get("_end") is None])

    def bag(self) -> Counter[tuple[Any, ...]]:
        """Return the rows as tuples of their columns, counted."""
        return Counter(frozen(row, self.columns) for row in self.rows)


def frozen(row: Mapping[str, Any], columns: Iterable[str]) -> tuple[Any, ...]:
    """Return the columns of a row as something that can be compared and counted; NaN equals NaN, and -0.0 equals 0.0."""
    return tuple(_plain(row[name]) for name in columns)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, list):
        return tuple(_plain(part) for part in value)
    if isinstance(value, dict):
        return tuple((name, _plain(part)) for name, part in value.items())
    return value


def hidden(row: Mapping[str, Any]) -> Fields:
    """Return what a row carries besides its columns."""
    return {name: row[name] for name in ("_since", "_ordinal", "_end") if name in row}


def images(columns: Sequence[str], changes: Iterable[Mapping[str, Any]], up_to_us: int | None = None) -> Relation:
    """Return every image of a stream's rows, from changes with `_change_type` (missing: insert) and `_commit_us` or `_commit_timestamp`, in their order."""
    found = Relation(tuple(columns))
    living: dict[Any, list[Fields]] = {}
    for change in changes:
        time_us = commit_us(change)
        if up_to_us is not None and time_us > up_to_us:
            continue
        if change.get("_change_type", "insert") in ("insert", "update_postimage"):
            row = {**{name: change[name] for name in found.columns}, "_since": time_us, "_ordinal": len(found.rows), "_end": None}
            found.rows.append(row)
            living.setdefault(frozen(row, found.columns), []).append(row)
        else:
            living[frozen(change, found.columns)].pop()["_end"] = time_us
    return found


def commit_us(change: Mapping[str, Any]) -> int:
    """Return the commit time of a change in microseconds."""
    if "_commit_us" in change:
        return int(change["_commit_us"])
    since_epoch: timedelta = change["_commit_timestamp"] - _EPOCH
    return since_epoch // timedelta(microseconds=1)


def moment(time_us: int | None) -> datetime | None:
    """Return microseconds as a time of day and date."""
    return None if time_us is None else _EPOCH + timedelta(microseconds=time_us)


def stream(changes: pa.Table | Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> tuple[tuple[str, ...], list[Mapping[str, Any]]]:
    """Return the columns and the changes of a stream, given as a table with its system columns or as dictionaries."""
    rows = changes.to_pylist() if isinstance(changes, pa.Table) else list(changes)
    names = columns or (changes.column_names if isinstance(changes, pa.Table) else rows[0] if rows else ())
    return tuple(name for name in names if not name.startswith("_")), rows
