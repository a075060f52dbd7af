"""What a Delta reader may know of a file without opening it.

In: Parquet footers.
Out: the `stats` text of a Delta add action.
Promise: every bound holds for every row; where a bound could mislead some reader it is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as kind

TEXT_MAX = 32  # characters of a text bound, as other Delta writers do it
_DIGITS_MAX = 15  # what survives a reader that takes JSON numbers for doubles
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class StatColumn:
    """A leaf that has statistics: its place among the Parquet columns and in the table."""

    index: int
    path: tuple[str, ...]
    type: pa.DataType


def stat_columns(columns: pa.Schema, *, partition_by: Collection[str]) -> tuple[StatColumn, ...]:
    """Return the leaves outside of arrays and maps; partition columns have their exact value in the log already."""
    leaves = enumerate(_leaves(columns, ()))
    return tuple(StatColumn(index, path, leaf) for index, (path, leaf) in leaves if path is not None and path[0] not in partition_by)


def _leaves(fields: Iterable[pa.Field], above: tuple[str, ...] | None) -> Iterator[tuple[tuple[str, ...] | None, pa.DataType]]:
    """Yield the Parquet columns in file order; those below an array or map have no path."""
    for field in fields:
        path = None if above is None else (*above, field.name)
        if kind.is_struct(field.type):
            yield from _leaves(field.type, path)
        elif kind.is_map(field.type):
            yield from _leaves((field.type.key_field, field.type.item_field), None)
        elif kind.is_list(field.type):
            yield from _leaves((field.type.value_field,), None)
        else:
            yield path, field.type


def footer_stats(footer: Any, columns: Iterable[StatColumn], *, unbounded: Collection[tuple[str, ...]] = ()) -> str:
    """Return the statistics text of a file; columns in `unbounded` get no bounds (the footer cannot be trusted on them)."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for column in columns:
        found = [group.column(column.index).statistics for group in groups]
        if any(one is None for one in found):
            continue
        if all(one.has_null_count for one in found):
            _put(nulls, column.path, str(sum(one.null_count for one in found)))
        bounds = None if column.path in unbounded else _bounds(found)
        texts = None if bounds is None else bound_texts(column.type, *bounds)
        if texts is not None:
            _put(least, column.path, texts[0])
            _put(most, column.path, texts[1])
    return f'{{"numRecords":{footer.num_rows},"minValues":{_object(least)},"maxValues":{_object(most)},"nullCount":{_object(nulls)}}}'


def _bounds(found: list[Any]) -> tuple[Any, Any] | None:
    # A row group of nulls only has no bounds and needs none; one that has values but no bounds spoils the column.
    if any(not one.has_min_max and one.num_values for one in found):
        return None
    bounded = [one for one in found if one.has_min_max]
    try:
        return min(one.min for one in bounded), max(one.max for one in bounded)
    except (ValueError, OverflowError):  # none bounded, or a date beyond what Python can name
        return None


def bound_texts(arrow: pa.DataType, least: Any, most: Any) -> tuple[str, str] | None:
    """Return both bounds as JSON, rounded outwards where the text is shorter than the value; None where bounds are not worth it."""
    if kind.is_integer(arrow):
        return str(least), str(most)
    if kind.is_string(arrow):
        longest = text_above(most)
        return None if longest is None else (json.dumps(least[:TEXT_MAX]), json.dumps(longest))
    if kind.is_timestamp(arrow):
        return _timestamp_texts(arrow, least, most)
    if isinstance(least, date):
        return f'"{least.isoformat()}"', f'"{most.isoformat()}"'
    if isinstance(least, Decimal):
        exact = all(len(value.as_tuple().digits) <= _DIGITS_MAX for value in (least, most))
        return (format(least, "f"), format(most, "f")) if exact else None
    if kind.is_floating(arrow):
        return (repr(least), repr(most)) if math.isfinite(least) and math.isfinite(most) else None
    return None


def text_above(text: str) -> str | None:
    """Return a short text that sorts at or above `text` by code point, or None if there is none."""
    if len(text) <= TEXT_MAX:
        return text
    for end in range(TEXT_MAX, 0, -1):
        code = ord(text[end - 1]) + 1
        if code == 0xD800:  # surrogates are no characters
            code = 0xE000
        if code <= 0x10FFFF:
            return text[: end - 1] + chr(code)
    return None


def _timestamp_texts(arrow: pa.DataType, least: datetime, most: datetime) -> tuple[str, str] | None:
    # Delta keeps milliseconds here; rounding outwards makes the bounds true without a reader's help.
    suffix = "Z" if arrow.tz else ""
    try:
        upper = most if most.microsecond % 1000 == 0 else most + _MILLISECOND
    except OverflowError:
        return None
    texts = (value.replace(tzinfo=None).isoformat(timespec="milliseconds") for value in (least, upper))
    first, second = (f'"{text}{suffix}"' for text in texts)
    return first, second


def _put(tree: dict[str, Any], path: tuple[str, ...], text: str) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = text


def _object(tree: dict[str, Any]) -> str:
    """Write nested objects whose values are JSON already, so that numbers keep all their digits."""
    parts = (f"{json.dumps(name)}:{_object(value) if isinstance(value, dict) else value}" for name, value in tree.items())
    return "{" + ",".join(parts) + "}"
