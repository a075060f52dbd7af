"""Changes as they were given: what a feeder hands over, as parts of a message, and the same again on the other side.

In: an Arrow table, or rows of any classes, good and bad.
Out: a record for the header and parts; equal rows at the service, which judges them as if they had been given there.
Promise: a row comes back with its columns in their order and its values as they were, so that faults and dead letters are the same. Of a value that cannot
be sent its `repr` is. Bytes of strangers are read without harm.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from righttime.changes.marks import Mark, marked, unmarked
from righttime.errors import BadMessage
from righttime.flight.frames import Message, typed

_SHAPES_MAX = 200
_BITS = 8  # no row is smaller than a bit
_UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, IndexError, KeyError, ArithmeticError, RecursionError, StopIteration)


@dataclass(slots=True)
class _Shape:
    """Rows with the same columns in the same order; without names, rows of which each is one marked value."""

    names: tuple[str, ...] | None
    rows: list[Any] = field(default_factory=list)

    def columns(self) -> list[list[Any]]:
        if self.names is None:
            return [self.rows]
        return [list(values) for values in zip(*(row.values() for row in self.rows), strict=True)] if self.rows else [[] for _ in self.names]


def write_given(changes: "pa.Table | pa.RecordBatch | Sequence[Any]") -> tuple[dict[str, Any], list[Any]]:
    """Return changes of one stream as a record and parts."""
    if isinstance(changes, pa.Table | pa.RecordBatch):
        return {"arrow": True}, [_stream(changes.schema, changes.to_batches() if isinstance(changes, pa.Table) else [changes])]
    shapes: dict[tuple[str, ...] | None, _Shape] = {None: _Shape(None)}
    order = bytearray()
    numbers: dict[tuple[str, ...] | None, int] = {None: 0}
    for row in changes:
        names = tuple(row) if isinstance(row, Mapping) and all(isinstance(name, str) for name in row) else None
        if names not in shapes and len(shapes) < _SHAPES_MAX:
            shapes[names], numbers[names] = _Shape(names), len(shapes)
        if names not in shapes:
            names = None
        shapes[names].rows.append(row if names is not None or isinstance(row, Mapping | list | str | bytes) else _sequence(row))
        order.append(numbers[names])
    written = [_write_columns(shape.columns()) for shape in shapes.values()]
    record = {"shapes": [{"names": names, "kinds": kinds} for names, (kinds, _) in zip(shapes, written, strict=True)]}
    return record, [bytes(order), *(part for _, part in written)]


def _sequence(row: Any) -> Any:
    """Return a row of another class, such as a database's, as the tuple that it stands for."""
    try:
        return tuple(row) if hasattr(row, "__len__") and hasattr(row, "__getitem__") else row
    except Exception:  # whatever a stranger's class raises: such a row goes as it looks, and is refused there like any that is none
        return row


def _write_columns(columns: list[list[Any]]) -> tuple[list[str], pa.Buffer]:
    kinds, arrays = [], []
    for values in columns:
        kind, array = _write_column(values)
        kinds.append(kind)
        arrays.append(array)
    batch = pa.RecordBatch.from_arrays(arrays, names=[str(place) for place in range(len(arrays))])
    return kinds, _stream(batch.schema, [batch])


def _write_column(values: list[Any]) -> tuple[str, pa.Array]:
    """Return a column in the form that keeps all its values as they are."""
    for kind in _kinds_of(values):
        write = _KINDS[kind].write
        try:
            return kind, pa.array([None if value is None else write(value) for value in values] if write else values, _KINDS[kind].arrow)
        except (pa.ArrowException, OverflowError, UnicodeError):
            continue
    return "marked", pa.array([json.dumps(marked(value, _special)) for value in values], pa.large_string())


def _kinds_of(values: list[Any]) -> list[str]:
    classes = set(map(type, values)) - {type(None)}
    if len(classes) > 1:
        return []
    if classes == {datetime}:
        zones = {value.tzinfo for value in values if value is not None}
        plain = not any(value.fold for value in values if value is not None)
        return [{None: "moment", UTC: "utc"}[zone] for zone in zones if zone in (None, UTC)] if plain and len(zones) == 1 else []
    return [kind for kind, known in _KINDS.items() if classes <= {known.kind}]


def _stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


@dataclass(frozen=True, slots=True)
class _Kind:
    """One class of values that Arrow keeps without loss, in a form of which `read` makes the value again."""

    kind: type
    arrow: pa.DataType
    write: Any = None
    read: Any = None


_KINDS = {
    "int": _Kind(int, pa.int64()),
    "text": _Kind(str, pa.large_string()),
    "float": _Kind(float, pa.float64()),
    "bool": _Kind(bool, pa.bool_()),
    "date": _Kind(date, pa.date32()),
    "bytes": _Kind(bytes, pa.large_binary()),
    "decimal": _Kind(Decimal, pa.large_string(), str, Decimal),
    "moment": _Kind(datetime, pa.timestamp("us")),
    "utc": _Kind(datetime, pa.timestamp("us"), lambda value: value.replace(tzinfo=None), lambda value: value.replace(tzinfo=UTC)),
}


def read_given(record: object, parts: Sequence[pa.Buffer]) -> tuple["pa.Table | list[Any]", int]:
    """Return what `write_given` was given, and how many parts it took."""
    message = Message(typed(record, dict, what="the changes of a stream"))
    try:
        if message.header.get("arrow") is True:
            return _read_table(parts[0]), 1
        shapes = message.listed("shapes")
        return _read_rows(shapes, parts), 1 + len(shapes)
    except _UNREADABLE as error:
        raise BadMessage(reason="changes of a stream cannot be read") from error


def _read_table(part: pa.Buffer) -> pa.Table:
    with pa.ipc.open_stream(part) as stream:
        table = stream.read_all()
    # Offsets, lengths and texts of a stranger are not to be trusted, nor is a number of rows that takes no room.
    table.validate(full=True)
    if table.num_rows > _BITS * part.size:
        raise BadMessage(reason="it has more rows than its bytes can hold")
    return table


def _read_rows(shapes: list[Any], parts: Sequence[pa.Buffer]) -> list[Any]:
    order = np.frombuffer(parts[0], dtype=np.uint8)
    counts = np.bincount(order, minlength=len(shapes)).tolist()
    if len(counts) > len(shapes):
        raise BadMessage(reason="rows are of a shape that is not there")
    read = [iter(_read_shape(Message(typed(shape, dict, what="a shape")), part, rows)) for shape, part, rows in zip(shapes, parts[1:], counts, strict=False)]
    return [next(read[number]) for number in order.tolist()]


def _read_shape(shape: Message, part: pa.Buffer, rows: int) -> list[Any]:
    table, kinds = _read_table(part) if rows else None, shape.listed("kinds")
    if table is None:
        return []
    names = None if shape.header.get("names") is None else [typed(name, str, what="a column") for name in shape.listed("names")]
    columns = [_read_column(typed(kind, str, what="a kind"), column) for kind, column in zip(kinds, table.columns, strict=True)]
    if len(columns) != (1 if names is None else len(names)) or any(len(column) != rows for column in columns):
        raise BadMessage(reason="rows of a shape are missing")
    if names is None:
        return columns[0]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)] if columns else [{} for _ in range(rows)]


def _read_column(kind: str, column: pa.ChunkedArray) -> list[Any]:
    known = _KINDS.get(kind)
    if column.type != (pa.large_string() if known is None else known.arrow) or (known is None and kind != "marked"):
        raise BadMessage(reason="a column is not of its kind")
    values: list[Any] = column.to_pylist()
    if known is None:
        return [json.loads(value, object_hook=_unmarked) for value in values]
    return [None if value is None else known.read(value) for value in values] if known.read else values


# -- what has a mark only on the wire --------------------------------------------------------------------------------


class Described:
    """Stands for a value that could not be sent; it looks as that did, and fits nowhere."""

    __slots__ = ("_text",)

    def __init__(self, text: object) -> None:
        self._text = str(text)

    def __repr__(self) -> str:
        return self._text


def _special(value: Any) -> Any:
    """Mark what letters keep in a simpler form, and what Arrow tells from it: the numbers of NumPy, mappings that are no dictionaries, other buffers."""
    if isinstance(value, np.generic) and value.dtype.kind in "biufMm":
        return {"$number": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biufMm":
        return {"$numbers": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
    if isinstance(value, Mapping) and not isinstance(value, dict):
        return {"$mapping": marked(dict(value), _special)}
    if isinstance(value, bytearray):
        return {"$bytearray": base64.b64encode(value).decode()}
    return None


def _numbers(record: Any) -> Any:
    kind, content = record
    if np.dtype(kind).kind not in "biufMm":
        raise BadMessage(reason="an array is not of numbers")
    return np.frombuffer(base64.b64decode(content), dtype=kind)


_READERS: dict[str, Mark] = {
    "$number": lambda record: _numbers(record)[0],
    "$numbers": _numbers,
    "$bytearray": lambda text: bytearray(base64.b64decode(text)),
    "$mapping": lambda value: MappingProxyType(dict(value)),
    "$other": Described,
}


def _unmarked(value: dict[str, Any]) -> Any:
    return unmarked(value, _READERS)
