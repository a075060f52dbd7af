"""Rows on their way in: checked at once, encoded in bulk.

In: Python rows (sequences or mappings) and Arrow data for one table.
Out: `Chunk`s.
Promise: a chunk holds only rows that fit the table; a refused row leaves nothing behind and the error names row and column.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from righttime.changes.ddl import format_type
from righttime.changes.fits import castable, fits, inner_nulls, plain_classes
from righttime.changes.rows import Chunk, Row
from righttime.changes.schema import TableSchema
from righttime.changes.types import stored_as, text_length_max
from righttime.errors import NullNotAllowed, UnknownColumn, WrongType

_INTEGERS: dict[pa.DataType, Any] = {pa.int8(): np.int8, pa.int16(): np.int16, pa.int32(): np.int32, pa.int64(): np.int64}


class RowEncoder:
    """Checks and encodes the rows of one table; `check` refuses values that fit its columns and that its store could never hold."""

    def __init__(self, table: TableSchema, check: Callable[[TableSchema, pa.RecordBatch], None] | None = None) -> None:
        self.table = table
        self._check = check
        self._columns = table.columns
        self._names = tuple(table.columns.names)
        self._width = len(self._names)
        self._position = {name.lower(): position for position, name in enumerate(self._names)}
        kinds = set(table.columns.types)
        self._block_type: Any = _INTEGERS.get(kinds.pop()) if len(kinds) == 1 else None
        self._plain = tuple(_PLAIN.get(kind, int if kind in _INTEGERS else None) for kind in table.columns.types)
        checks = ((position, _value_check(field, partition=field.name in table.partition_by)) for position, field in enumerate(table.columns))
        self._checks = tuple((position, check) for position, check in checks if check is not None)
        # A list or a bytearray may change before the row is encoded for good, so such rows are kept as they were encoded first.
        self._keeps_references = any(pa.types.is_nested(kind) or pa.types.is_binary(kind) for kind in table.columns.types)
        limits = np.iinfo(self._block_type) if self._block_type is not None else None
        self._limits = (int(limits.min), int(limits.max)) if limits is not None else None

    def ordered(self, row: Row) -> tuple[Any, ...]:
        """Return the row's values in column order; columns a mapping leaves out become null."""
        if isinstance(row, Mapping):
            values: list[Any] = [None] * self._width
            for name, value in row.items():
                position = self._position.get(str(name).lower())
                if position is None:
                    raise UnknownColumn(table=self.table.name, column=name, known=", ".join(self._names))
                values[position] = value
            return tuple(values)
        if isinstance(row, str | bytes) or not (hasattr(row, "__len__") and hasattr(row, "__getitem__")):
            raise WrongType(table=self.table.name, column="*", value=_shown(row), expected="a row (a sequence or a mapping)")
        if len(row) != self._width:
            raise WrongType(
                table=self.table.name, column="*", value=f"a row of {len(row)} values", expected=f"the {self._width} columns {', '.join(self._names)}"
            )
        return tuple(row)

    def checked(self, row: Row) -> tuple[Any, ...]:
        """Return one row, ready to be encoded later together with others; raise now if it does not fit."""
        values = row if type(row) is tuple else self.ordered(row)
        # The cheap look tells that a row fits; where it does not, it takes an encoding to be sure. Wrong widths have other classes too.
        if tuple(map(type, values)) != self._plain or not self._in_range(values):
            values = self.ordered(values)
            encoded = self._encode_columns([values])
            if self._keeps_references:
                return tuple(column[0].as_py() for column in encoded.columns)
        return values

    def _in_range(self, values: tuple[Any, ...]) -> bool:
        if self._limits is not None:
            return bool(self._limits[0] <= min(values) and max(values) <= self._limits[1])
        return all(check(values[position]) for position, check in self._checks)

    def encode(self, rows: Sequence[Row]) -> Chunk:
        """Check and encode many rows; nothing is kept if one of them does not fit."""
        if self._block_type is not None and rows:
            block = self._encode_block(rows)
            if block is not None:
                return Chunk(block)
        return Chunk(self._encode_columns([self.ordered(row) for row in rows]))

    def encode_arrow(self, rows: pa.Table | pa.RecordBatch) -> list[Chunk]:
        """Check Arrow data and cast it to the table's types, without loss; columns may come in any order."""
        given = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        found = {name.lower(): position for position, name in enumerate(given.schema.names)}
        for name in given.schema.names:
            if name.lower() not in self._position:
                raise UnknownColumn(table=self.table.name, column=name, known=", ".join(self._names))
        if len(found) != given.num_columns:
            raise WrongType(table=self.table.name, column="*", value="a batch with a column twice", expected=", ".join(self._names))
        columns = [
            self._cast(field, given.column(found[field.name.lower()]) if field.name.lower() in found else None, given.num_rows) for field in self._columns
        ]
        return [Chunk(self._storable(batch)) for batch in pa.Table.from_arrays(columns, schema=self._columns).to_batches() if batch.num_rows]

    def _cast(self, field: pa.Field, column: pa.ChunkedArray | None, rows: int) -> pa.ChunkedArray:
        if column is None:
            column = pa.chunked_array([pa.nulls(rows, field.type)])
        elif column.type != field.type:
            given = column
            try:
                column = given.cast(field.type, safe=True) if castable(given.type, field.type) else None
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise WrongType(table=self.table.name, column=field.name, value=f"a column of {given.type} ({error})", expected=format_type(field)) from error
            if column is None or (field.type == pa.float32() and _infinities(column) != _infinities(given)):
                raise WrongType(table=self.table.name, column=field.name, value=f"a column of {given.type}", expected=f"{format_type(field)} without loss")
        self._refuse_nulls(field, column.null_count)
        self._refuse_bytes(field, column)
        self._refuse_texts(field, column)
        if any(inner_nulls(chunk) for chunk in column.chunks):
            raise NullNotAllowed(table=self.table.name, column=field.name, why="declared NOT NULL inside")
        return column

    def _encode_block(self, rows: Sequence[Row]) -> "npt.NDArray[Any] | None":
        """Encode plain integer tuples in three passes at C speed; None sends anything else the careful way."""
        width = self._width
        try:
            if not set(map(type, rows)) <= {tuple, list} or set(map(len, rows)) != {width} or set(map(type, chain.from_iterable(rows))) != {int}:
                return None
            wide = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=len(rows) * width)
        except (TypeError, OverflowError):
            return None
        narrow = wide.astype(self._block_type, copy=False)
        if narrow is not wide and not np.array_equal(narrow, wide):
            return None
        return narrow.reshape(len(rows), width)

    def _encode_columns(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        by_column: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * self._width
        arrays = [self._encode_column(field, values) for field, values in zip(self._columns, by_column, strict=True)]
        return self._storable(pa.RecordBatch.from_arrays(arrays, schema=self._columns))

    def _storable(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self._check is not None:
            self._check(self.table, rows)
        return rows

    def _encode_column(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        try:
            array = _fast_array(field.type, values)
            if array is None:
                self._refuse_misfits(field, values)
                array = pa.array(values, field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError, UnicodeError) as error:
            raise self._blamed(field, values, error) from error
        self._refuse_nulls(field, array.null_count)
        self._refuse_texts(field, array)
        return array

    def _refuse_misfits(self, field: pa.Field, values: Sequence[Any]) -> None:
        if set(map(type, values)) <= plain_classes(field.type):
            return
        for number, value in enumerate(values):
            if not fits(field.type, value):
                raise WrongType(table=self.table.name, column=field.name, value=f"{_shown(value)} in row {number}", expected=_wanted(field, value))

    def _blamed(self, field: pa.Field, values: Sequence[Any], error: Exception) -> WrongType:
        for number, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, OverflowError, TypeError, ValueError, UnicodeError):
                return WrongType(table=self.table.name, column=field.name, value=f"{_shown(value)} in row {number}", expected=format_type(field))
        return WrongType(table=self.table.name, column=field.name, value=str(error), expected=format_type(field))

    def _refuse_bytes(self, field: pa.Field, given: pa.ChunkedArray) -> None:
        """Refuse bytes that only their type calls a text: they could be neither compared nor shown. Python's own texts are always texts."""
        if pa.types.is_string(field.type) or pa.types.is_nested(field.type):
            try:
                given.validate(full=True)
            except pa.ArrowInvalid as error:
                raise WrongType(table=self.table.name, column=field.name, value="a text that is not in UTF-8", expected=format_type(field)) from error

    def _refuse_texts(self, field: pa.Field, texts: pa.Array | pa.ChunkedArray) -> None:
        """Refuse text that is longer than declared, and the empty partition value, which every Delta reader takes for null."""
        longest = text_length_max(field)
        if longest is not None and (pc.max(pc.utf8_length(texts)).as_py() or 0) > longest:
            raise WrongType(
                table=self.table.name, column=field.name, value=f"a text of {pc.max(pc.utf8_length(texts))} characters", expected=f"at most {longest}"
            )
        if field.name in self.table.partition_by and field.type == pa.string() and pc.any(pc.equal(texts, "")).as_py():
            raise WrongType(table=self.table.name, column=field.name, value="an empty text", expected="a partition value: Delta reads the empty one as null")

    def _refuse_nulls(self, field: pa.Field, nulls: int) -> None:
        if nulls and not field.nullable:
            why = "part of the key" if field.name in self.table.keys else "declared NOT NULL"
            raise NullNotAllowed(table=self.table.name, column=field.name, why=why)


def _fast_array(kind: pa.DataType, values: Sequence[Any]) -> pa.Array | None:
    """Encode a column of plain numbers without Arrow's per-value inference; None if there is anything else in it."""
    if not values:
        return None
    integer = _INTEGERS.get(kind)
    if integer is not None and set(map(type, values)) == {int}:
        wide = np.fromiter(values, dtype=np.int64, count=len(values))
        narrow = wide.astype(integer, copy=False)
        return pa.array(narrow) if np.array_equal(narrow, wide) else None
    if kind == pa.float64() and set(map(type, values)) == {float}:
        return pa.array(np.fromiter(values, dtype=np.float64, count=len(values)))
    return None


_PLAIN: dict[pa.DataType, type] = {
    pa.float64(): float,
    pa.bool_(): bool,
    pa.binary(): bytes,
    pa.string(): str,
    pa.date32(): date,
    pa.timestamp("us"): datetime,
    pa.timestamp("us", tz="UTC"): datetime,
}
"""Types whose values need no more than a look at their class, or the check below."""


def _value_check(field: pa.Field, *, partition: bool) -> Callable[[Any], bool] | None:
    kind = field.type
    if kind in _INTEGERS:
        low, high = int(np.iinfo(_INTEGERS[kind]).min), int(np.iinfo(_INTEGERS[kind]).max)
        return lambda value: low <= value <= high
    if stored_as(field) is not None:
        return lambda value: False  # each is looked at more closely
    if kind == pa.string():
        shortest, longest = int(partition), text_length_max(field)
        if shortest or longest is not None:
            return lambda value: _is_plain(value) and shortest <= len(value) <= (len(value) if longest is None else longest)
        return _is_plain
    if pa.types.is_timestamp(kind):
        return lambda value: value.tzinfo is None
    return None


def _is_plain(text: str) -> bool:
    """Tell text that fits everywhere: other may hold lone surrogates, which are no UTF-8, and U+0000 is not for every store."""
    return text.isascii() and "\0" not in text


def _infinities(column: pa.ChunkedArray) -> int:
    return int(pc.sum(pc.is_inf(column)).as_py() or 0) if pa.types.is_floating(column.type) else 0


def _wanted(field: pa.Field, value: Any) -> str:
    """Return the type of a column that does not take a value; of a float for a decimal the value looks right, and the class is what is wrong."""
    is_float = pa.types.is_decimal(field.type) and isinstance(value, float | np.floating)
    return format_type(field) + (": it is a float, and a Decimal is needed" if is_float else "")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
