"""Rows as PostgreSQL's binary COPY format, whole columns at a time.

In: record batches with canonical columns.
Out: blocks of bytes for COPY … FROM STDIN (FORMAT binary).
Promise: pure; a block holds at most `BLOCK_ROWS` rows. Numbers, dates, times, decimals and text never become Python objects
(decimals of more than 18 digits do).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from righttime.changes.types import stored_as
from righttime.warehouse.postgres_arrays import encode_arrays
from righttime.warehouse.postgres_types import DAY_ZERO, MICROSECOND_ZERO

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
BLOCK_ROWS = 1 << 15  # about what the processor's cache holds
BLOCK_BYTES = 1 << 24

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_WIDE = {pa.int8(): ">i2", pa.int16(): ">i2", pa.int32(): ">i4", pa.int64(): ">i8", pa.float32(): ">f4", pa.float64(): ">f8"}
_GROUP = 10_000  # PostgreSQL keeps decimals in groups of four digits
_INT64_DIGITS = 18
_NO_UUID = "00000000-0000-0000-0000-000000000000"
_UUID_DIGITS = [place for place, character in enumerate(_NO_UUID) if character == "0"]
_LONG_BYTES = 64  # values longer than this are copied one by one, shorter ones all at once


def stored_forms(columns: pa.Schema) -> dict[str, str]:
    """Return by name the columns that are of another type in the database than theirs."""
    return {field.name: other for field in columns if (other := stored_as(field)) is not None}


def copy_blocks(batches: Iterable[pa.RecordBatch], forms: Mapping[str, str] = MappingProxyType({})) -> Iterator[bytes | memoryview]:
    """Yield the whole stream of a COPY: header, rows, trailer; `forms` as `stored_forms` has them."""
    yield HEADER
    for batch in batches:
        step = _rows_per_block(batch)
        for start in range(0, batch.num_rows, step):
            yield encode(batch.slice(start, step), forms).data
    yield TRAILER


def _rows_per_block(batch: pa.RecordBatch) -> int:
    row_bytes: int = max(1, batch.nbytes // max(batch.num_rows, 1))
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES // row_bytes))


def encode(batch: pa.RecordBatch, forms: Mapping[str, str] = MappingProxyType({})) -> Bytes:
    """Return the rows of a batch in COPY's binary form."""
    columns = [_column(column, forms.get(name)) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    fixed = [column for column in columns if isinstance(column, _Fixed)]
    return _regular(fixed, batch.num_rows) if len(fixed) == len(columns) else _irregular(columns, batch.num_rows)


class _Fixed:
    """Values of one width, as bytes by row; `valid` is None where no value is null."""

    def __init__(self, values: Bytes, valid: npt.NDArray[np.bool_] | None) -> None:
        self.values = values
        self.valid = valid
        self.width = values.shape[1]

    def lengths(self, rows: int) -> Numbers:
        return np.full(rows, self.width) if self.valid is None else np.where(self.valid, self.width, -1)

    def put(self, out: Bytes, places: Numbers) -> None:
        if self.valid is None:
            out[places[:, None] + np.arange(self.width)] = self.values
        else:
            out[places[self.valid][:, None] + np.arange(self.width)] = self.values[self.valid]


class _Varying:
    """Values of any length: where each begins in `content`, and how long it is, -1 for null."""

    def __init__(self, starts: Numbers, lengths: Numbers, content: Bytes) -> None:
        self._starts = starts
        self._lengths = lengths
        self._content = content

    def lengths(self, rows: int) -> Numbers:
        return self._lengths

    def put(self, out: Bytes, places: Numbers) -> None:
        sizes = np.maximum(self._lengths, 0)
        if sizes.sum() > _LONG_BYTES * len(sizes):
            self._put_long(out, places, sizes)
            return
        before = np.cumsum(sizes) - sizes
        steps = np.arange(int(sizes.sum()))
        out[np.repeat(places - before, sizes) + steps] = self._content[np.repeat(self._starts - before, sizes) + steps]

    def _put_long(self, out: Bytes, places: Numbers, sizes: Numbers) -> None:
        for place, start, size in zip(places.tolist(), self._starts.tolist(), sizes.tolist(), strict=True):
            out[place : place + size] = self._content[start : start + size]


def _regular(columns: list[_Fixed], rows: int) -> Bytes:
    """Lay out rows as if they were all of one length, one strided copy per column, then leave out the places of null values."""
    stride = 2 + sum(4 + column.width for column in columns)
    out = np.empty((rows, stride), dtype=np.uint8)
    kept = None if all(column.valid is None for column in columns) else np.ones((rows, stride), dtype=np.bool_)
    out[:, :2] = _big_endian(np.array([len(columns)]), ">i2")
    place = 2
    for column in columns:
        out[:, place + 4 : place + 4 + column.width] = column.values
        if column.valid is None or kept is None:
            out[:, place : place + 4] = _big_endian(np.array([column.width]), ">i4")
        else:
            out[:, place : place + 4] = _big_endian(column.lengths(rows), ">i4")
            kept[:, place + 4 : place + 4 + column.width] = column.valid[:, None]
        place += 4 + column.width
    return out.reshape(-1) if kept is None else out[kept]


def _irregular(columns: list[_Fixed | _Varying], rows: int) -> Bytes:
    """Lay out rows of different lengths: first where each field begins, then the fields, column by column."""
    lengths = [column.lengths(rows) for column in columns]
    sizes = np.full(rows, 2) + sum(4 + np.maximum(one, 0) for one in lengths)
    places = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), dtype=np.uint8)
    out[places[:, None] + np.arange(2)] = _big_endian(np.array([len(columns)]), ">i2")
    places = places + 2
    for column, length in zip(columns, lengths, strict=True):
        out[places[:, None] + np.arange(4)] = _big_endian(length, ">i4")
        column.put(out, places + 4)
        places = places + 4 + np.maximum(length, 0)
    return out


def _column(column: pa.Array, form: str | None = None) -> _Fixed | _Varying:
    if form == "uuid":
        return _uuids(column)
    if form == "jsonb":
        column = pc.binary_join_element_wise("\x01", column, "")  # the version of the format
    if kind.is_string(column.type) or kind.is_binary(column.type):
        return _text(column)
    if kind.is_list(column.type):
        return _Varying(*encode_arrays(column, _fields))
    valid = None if column.null_count == 0 else column.is_valid().to_numpy(zero_copy_only=False)
    if kind.is_decimal(column.type):
        return _Fixed(_decimal_bytes(column, plain=form == "numeric"), valid)
    return _Fixed(_number_bytes(column), valid)


def _fields(column: pa.Array) -> tuple[Bytes, Numbers]:
    """Return values as they stand in a row, each after its length, and where each begins and the last one ends."""
    content, rows = _column(column), len(column)
    lengths = content.lengths(rows)
    places = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(4 + np.maximum(lengths, 0), out=places[1:])
    out = np.empty(int(places[-1]), dtype=np.uint8)
    out[places[:-1, None] + np.arange(4)] = _big_endian(lengths, ">i4")
    content.put(out, places[:-1] + 4)
    return out, places


def _number_bytes(column: pa.Array) -> Bytes:
    if kind.is_boolean(column.type):
        return _filled(column.cast(pa.uint8())).reshape(-1, 1)
    if kind.is_date(column.type):
        return _big_endian(_filled(column.view(pa.int32())) - DAY_ZERO, ">i4")
    if kind.is_timestamp(column.type):
        return _big_endian(_filled(column.view(pa.int64())) - MICROSECOND_ZERO, ">i8")
    return _big_endian(_filled(column), _WIDE[column.type])


def _filled(column: pa.Array) -> npt.NDArray[Any]:
    """Return values as numpy, zero where null."""
    filled = column if column.null_count == 0 else pc.fill_null(column, pa.scalar(0, column.type))
    values: npt.NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return values


def _big_endian(values: npt.NDArray[Any], form: str) -> Bytes:
    wide = np.ascontiguousarray(values, dtype=form)
    return wide.view(np.uint8).reshape(len(values), wide.dtype.itemsize)


def _text(column: pa.Array) -> _Varying:
    _, offsets, content = column.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    lengths = np.diff(places)
    if column.null_count:
        lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, -1)
    return _Varying(places[:-1], lengths, np.frombuffer(content or b"", dtype=np.uint8))


def _uuids(column: pa.Array) -> _Fixed:
    """Return the sixteen bytes that each text names."""
    valid = None if column.null_count == 0 else column.is_valid().to_numpy(zero_copy_only=False)
    whole = pa.concat_arrays([pc.fill_null(column, _NO_UUID)])  # one text after the other
    _, offsets, content = whole.buffers()
    start = int(np.frombuffer(offsets, dtype=np.int32)[whole.offset]) if len(whole) else 0
    digits = np.frombuffer(content or b"", dtype=np.uint8)[start : start + 36 * len(whole)].reshape(-1, 36)[:, _UUID_DIGITS]
    nibbles = np.where(digits > ord("9"), digits - ord("a") + 10, digits - ord("0"))
    return _Fixed((nibbles[:, ::2] << 4 | nibbles[:, 1::2]).astype(np.uint8), valid)


def _decimal_bytes(column: pa.Array, *, plain: bool = False) -> Bytes:
    """Return decimals in PostgreSQL's form with all groups that the type can have; the server drops zero groups at both ends.

    With `plain`, the type in the database has no scale: zeros at the end are not written, as nobody has written them.
    """
    precision, scale = column.type.precision, column.type.scale
    whole_groups, part_groups = -(-(precision - scale) // 4), -(-scale // 4)
    negative, digits = _unscaled(column)
    whole, part = digits // 10**scale, digits % 10**scale * 10 ** (part_groups * 4 - scale)
    groups = [*_groups(whole, whole_groups), *_groups(part, part_groups)]
    shown = _scales(digits, scale) if plain else np.full(len(column), scale)
    fields = [np.full(len(column), len(groups)), np.full(len(column), whole_groups - 1), np.where(negative, 0x4000, 0), shown, *groups]
    return _big_endian(np.stack(fields, axis=1).reshape(-1), ">i2").reshape(len(column), 2 * len(fields))


def _scales(digits: npt.NDArray[Any], scale: int) -> npt.NDArray[np.int64]:
    """Return how many digits behind the point each number has without the zeros at its end."""
    shown = np.full(len(digits), scale)
    rest = (digits % 10**scale).astype(np.int64)
    for _ in range(scale):
        ends = (rest % 10 == 0) & (shown > 0)
        rest, shown = np.where(ends, rest // 10, rest), shown - ends
    return shown


def _unscaled(column: pa.Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Return signs and absolute values without the point, as int64 where they fit, else as Python's integers."""
    words = np.frombuffer(column.buffers()[1], dtype=np.int64)[2 * column.offset : 2 * (column.offset + len(column))].reshape(-1, 2)
    if column.null_count:
        words = np.where(column.is_valid().to_numpy(zero_copy_only=False)[:, None], words, 0)
    negative = words[:, 1] < 0
    # Digits behind the point are filled up to whole groups, which must fit too.
    if column.type.precision <= _INT64_DIGITS and column.type.scale <= _INT64_DIGITS - 2:
        return negative, np.abs(words[:, 0])
    values = (words[:, 1].astype(object) << 64) | words[:, 0].astype(np.uint64).astype(object)
    return negative, np.abs(values)


def _groups(values: npt.NDArray[Any], count: int) -> list[npt.NDArray[np.int64]]:
    """Return the `count` lowest groups of four digits, highest first."""
    groups = []
    for _ in range(count):
        groups.append((values % _GROUP).astype(np.int64))
        values = values // _GROUP
    return groups[::-1]
