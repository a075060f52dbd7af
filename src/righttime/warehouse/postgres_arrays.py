"""Columns that hold arrays, between Arrow's lists and PostgreSQL's binary form.

In: list columns of plain values; what `array_send` gives.
Out: the same on the other side.
Promise: pure; empty arrays, null arrays and null elements stay what they are. Arrays are taken apart one by one, their elements together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kind

from righttime.changes.types import TIMESTAMP, TIMESTAMP_NTZ

_OIDS: dict[pa.DataType, int] = {
    pa.bool_(): 16,
    pa.int8(): 21,
    pa.int16(): 21,
    pa.int32(): 23,
    pa.int64(): 20,
    pa.float32(): 700,
    pa.float64(): 701,
    pa.string(): 25,
    pa.binary(): 17,
    pa.date32(): 1082,
    TIMESTAMP: 1184,
    TIMESTAMP_NTZ: 1114,
}
_NUMERIC = 1700
_HEADER = struct.Struct(">iiI")
_DIMENSION = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Fields = Callable[[pa.Array], tuple[Bytes, Numbers]]


def encode_arrays(column: pa.ListArray, fields: Fields) -> tuple[Numbers, Numbers, Bytes]:
    """Return where each array begins, how long it is (-1 for null), and the bytes; `fields` encodes elements and says where each begins."""
    offsets = column.offsets.to_numpy()
    content, places = fields(column.values.slice(offsets[0], offsets[-1] - offsets[0]))
    oid = _OIDS.get(column.type.value_type, _NUMERIC)
    empty, raw = _HEADER.pack(0, 0, oid), content.tobytes()
    starts, stops = places[offsets[:-1] - offsets[0]].tolist(), places[offsets[1:] - offsets[0]].tolist()
    parts = [
        empty if count == 0 else _HEADER.pack(1, 0, oid) + _DIMENSION.pack(count, 1) + raw[start:stop]
        for start, stop, count in zip(starts, stops, np.diff(offsets).tolist(), strict=True)
    ]
    if column.null_count:
        parts = [part if there else b"" for part, there in zip(parts, column.is_valid().to_pylist(), strict=True)]
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    lengths = np.where(sizes == 0, -1, sizes)
    return np.cumsum(sizes) - sizes, lengths, np.frombuffer(b"".join(parts), dtype=np.uint8)


def decode_arrays(content: bytes, lengths: Numbers) -> tuple[Numbers, list[bytes | None]]:
    """Return how many elements each array has (0 where it is null) and all elements; raise ValueError for arrays of arrays."""
    counts = np.zeros(len(lengths), dtype=np.int64)
    elements: list[bytes | None] = []
    place = 0
    for row, length in enumerate(lengths.tolist()):
        if length < 0:
            continue
        dimensions, _, _ = _HEADER.unpack_from(content, place)
        if dimensions > 1:
            raise ValueError("an array of arrays")
        if dimensions:
            counts[row] = _DIMENSION.unpack_from(content, place + _HEADER.size)[0]
            _split(content, place + _HEADER.size + _DIMENSION.size, int(counts[row]), elements)
        place += length
    return counts, elements


def _split(content: bytes, place: int, count: int, elements: list[bytes | None]) -> None:
    for _ in range(count):
        (size,) = _LENGTH.unpack_from(content, place)
        place += _LENGTH.size
        elements.append(None if size < 0 else content[place : place + size])
        place += max(size, 0)


def list_array(given: pa.DataType, counts: Numbers, valid: npt.NDArray[np.bool_], elements: pa.Array) -> pa.Array:
    """Put elements together to arrays."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    nulls = int(len(valid) - valid.sum())
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(given, len(counts), [bitmap, pa.py_buffer(offsets)], nulls, children=[elements])


def fixed_elements(elements: list[bytes | None], form: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return elements of one width as numbers, zero where null, and which are there."""
    nothing = bytes(np.dtype(form).itemsize)
    valid = np.array([element is not None for element in elements], dtype=np.bool_)
    return np.frombuffer(b"".join(nothing if element is None else element for element in elements), dtype=form), valid


def is_array_of_values(given: pa.DataType) -> bool:
    """Tell whether a type is a list of plain values."""
    return bool(kind.is_list(given)) and (given.value_type in _OIDS or bool(kind.is_decimal(given.value_type)))
