"""Rows out of PostgreSQL, a piece of a table at a time, each column as one value.

In: the names and types of columns, a condition that names some rows of the table.
Out: record batches with canonical columns, and which version of a row each is.
Promise: a piece is read in one statement, so its columns belong together; values never become Python objects.

`array_agg` over a piece sends a column as one array: it takes less than half of the time of a binary COPY (0.4 s against 1.0 s for a million rows
of six integers), and values of a fixed width lie at equal distances. Where a column has nulls in a piece, values and nulls are asked for apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kind
from psycopg import sql

from righttime.changes.types import stored_as
from righttime.errors import WarehouseDamaged
from righttime.ledger.postgres_connect import Connection
from righttime.warehouse.postgres_arrays import decode_arrays, fixed_elements, list_array
from righttime.warehouse.postgres_places import Places
from righttime.warehouse.postgres_types import DAY_ZERO, MICROSECOND_ZERO
from righttime.warehouse.store import Positions

_ARRAY_HEADER = 20
_UNFIT = "a number with more than 20 digits before its point or 18 behind it, or none at all (correct it there: nothing is rounded here)"
_FORMS: dict[pa.DataType, str] = {
    pa.bool_(): "u1",
    pa.int8(): ">i2",
    pa.int16(): ">i2",
    pa.int32(): ">i4",
    pa.int64(): ">i8",
    pa.float32(): ">f4",
    pa.float64(): ">f8",
    pa.date32(): ">i4",
}
# Counted from 2000. The first and the last number stand for 'infinity'; the last thirty years of PostgreSQL's timestamps are too late for ours.
_DAYS = (-(2**31) + 1, 2**31 - 2)
_MICROSECONDS = (-(2**63) + 1, 2**63 - 1 - MICROSECOND_ZERO)


@dataclass(slots=True)
class Decoder:
    """Reads pieces of one table. It learns which columns have nulls, and asks for those in the longer form from then on."""

    table: str
    columns: pa.Schema
    names: tuple[str, ...]  # as the database spells them
    places: bool = False
    _with_nulls: set[int] = field(default_factory=set)

    def piece(self, connection: Connection, origin: sql.Composed, parameters: tuple[Any, ...] = ()) -> tuple[pa.RecordBatch, Places | None]:
        """Return the rows of `origin` (FROM … WHERE …) and, if `places` is set, their places; the connection's transaction fixes what is there."""
        while True:
            values = self._ask(connection, origin, parameters)
            found = self._found_nulls(values)
            if not found:
                return self._batch(values)
            self._with_nulls |= found

    def _ask(self, connection: Connection, origin: sql.Composed, parameters: tuple[Any, ...]) -> list[bytes | None]:
        wanted: list[sql.Composable] = [sql.SQL("count(*)")]
        if self.places:
            wanted.append(sql.SQL("array_agg(ctid), array_agg(xmin)"))
        for number, column in enumerate(self.columns):
            wanted.extend(_wanted(sql.Identifier(self.names[number]), column, nulls=number in self._with_nulls))
        query = sql.SQL("SELECT {} {}").format(sql.SQL(", ").join(wanted), origin)
        with connection.cursor(binary=True) as cursor:
            result = cursor.execute(query, parameters or None).pgresult
        assert result is not None
        return [result.get_value(0, number) for number in range(result.nfields)]

    def _found_nulls(self, values: list[bytes | None]) -> set[int]:
        """Return the columns that have nulls here and were asked for as if they had none."""
        found = set()
        place = 1 + 2 * self.places
        for number, column in enumerate(self.columns):
            array = values[place + _is_text(column.type)]
            if number not in self._with_nulls and array is not None and array[7]:  # the array's own flag
                found.add(number)
            place += 1 + (_is_text(column.type) or number in self._with_nulls)
        return found

    def _batch(self, values: list[bytes | None]) -> tuple[pa.RecordBatch, Places | None]:
        rows = int.from_bytes(values[0] or b"", "big")
        places = Places(_ctids(values[1]), _elements(values[2], ">u4").astype(np.int64)) if self.places else None
        place = 1 + 2 * self.places
        arrays = []
        for number, column in enumerate(self.columns):
            if _is_text(column.type):
                array = self._text(column, values[place], values[place + 1], rows)
                place += 2
            else:
                nulls = number in self._with_nulls
                array = self._numbers(column, values[place], values[place + 1] if nulls else None, rows)
                place += 1 + nulls
            arrays.append(array)
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None])), places
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns), places

    def _numbers(self, column: pa.Field, content: bytes | None, present: bytes | None, rows: int) -> pa.Array:
        found = _elements(content, _FORMS.get(column.type, ">i8"))
        if present is None:
            return self._typed(column, found, None)
        valid = _elements(present, "u1").astype(bool)
        values = np.zeros(rows, dtype=found.dtype)
        values[valid] = found
        return self._typed(column, values, valid)

    def _typed(self, column: pa.Field, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None) -> pa.Array:
        mask = None if valid is None else ~valid
        if kind.is_boolean(column.type):
            return pa.array(values.astype(bool), mask=mask)
        if kind.is_temporal(column.type):
            self._refuse_odd_times(column, values)
            values = values.astype(values.dtype.newbyteorder("="))
            values = values + (DAY_ZERO if kind.is_date(column.type) else MICROSECOND_ZERO)
            return pa.array(values, mask=mask).view(column.type)
        if column.type == pa.int8() and len(values) and (values.min() < -128 or values.max() > 127):
            raise self._unreadable(column, "a number that does not fit into a byte")
        return pa.array(values.astype(column.type.to_pandas_dtype()), mask=mask)

    def _text(self, column: pa.Field, content: bytes | None, sizes: bytes | None, rows: int) -> pa.Array:
        lengths = _elements(sizes, ">i4").astype(np.int64)
        valid = lengths >= 0
        if kind.is_list(column.type):
            return self._lists(column, content or b"", lengths, valid)
        offsets = np.zeros(rows + 1, dtype=np.int32)
        np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
        nulls = int(rows - valid.sum())
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        form = pa.string() if kind.is_decimal(column.type) else column.type
        array = pa.Array.from_buffers(form, rows, [bitmap, pa.py_buffer(offsets), pa.py_buffer(content or b"")], nulls)
        try:
            return array.cast(column.type) if form != column.type else array
        except pa.ArrowInvalid:
            raise self._unreadable(column, _UNFIT if stored_as(column) is not None else "a decimal that is no number of the declared type") from None

    def _lists(self, column: pa.Field, content: bytes, lengths: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]) -> pa.Array:
        element = column.type.value_field
        try:
            counts, parts = decode_arrays(content, lengths)
            if _is_text(element.type):
                form = pa.string() if kind.is_decimal(element.type) else element.type
                elements = pa.array(parts, pa.binary()).cast(form).cast(element.type)
            else:
                elements = self._typed(element, *fixed_elements(parts, _FORMS.get(element.type, ">i8")))
        except (ValueError, pa.ArrowInvalid) as error:
            raise self._unreadable(column, str(error)) from None
        return list_array(column.type, counts, valid, elements)

    def _refuse_odd_times(self, column: pa.Field, values: npt.NDArray[Any]) -> None:
        lowest, highest = _DAYS if kind.is_date(column.type) else _MICROSECONDS
        if len(values) and (values.max() > highest or values.min() < lowest):
            raise self._unreadable(column, "'infinity', or a time that is too late")

    def _unreadable(self, column: pa.Field, what: str) -> WarehouseDamaged:
        return WarehouseDamaged(path=f"table {self.table}", reason=f"column {column.name!r} holds {what}; somebody else wrote it")


def _is_text(given: pa.DataType) -> bool:
    """Tell whether values are sent as bytes that follow each other, with their lengths."""
    return bool(kind.is_string(given) or kind.is_binary(given) or kind.is_decimal(given) or kind.is_list(given))


def _wanted(name: sql.Identifier, column: pa.Field, *, nulls: bool) -> list[sql.Composable]:
    """Return what to select for one column."""
    given = column.type
    if _is_text(given):
        text = sql.SQL("{}::text").format(name) if stored_as(column) is not None else _sent_as(name, given)
        length = sql.SQL("coalesce(octet_length({}), -1)" if nulls else "octet_length({})").format(text)
        between = "''::bytea" if kind.is_binary(given) or kind.is_list(given) else "''"
        return [sql.SQL(f"string_agg({{}}, {between})").format(text), sql.SQL("array_agg({})").format(length)]
    if nulls:
        return [sql.SQL("array_agg({0}) FILTER (WHERE {0} IS NOT NULL)").format(name), sql.SQL("array_agg({} IS NOT NULL)").format(name)]
    return [sql.SQL("array_agg({})").format(name)]


def _sent_as(name: sql.Identifier, given: pa.DataType) -> sql.Composable:
    if kind.is_decimal(given):
        return sql.SQL("{}::text").format(name)
    if kind.is_list(given):
        return sql.SQL("array_send({}::text[])" if kind.is_decimal(given.value_type) else "array_send({})").format(name)
    return name


def _elements(content: bytes | None, form: str) -> npt.NDArray[Any]:
    """Return the values of an array without nulls; there is no array where there is no row."""
    if content is None:
        return np.empty(0, dtype=form)
    width = np.dtype(form).itemsize
    return np.ndarray(shape=((len(content) - _ARRAY_HEADER) // (4 + width),), dtype=form, buffer=content, offset=_ARRAY_HEADER + 4, strides=(4 + width,))


def _ctids(content: bytes | None) -> Positions:
    """Return ctids as block << 16 | offset, which is how they lie in their six bytes."""
    if content is None:
        return np.empty(0, dtype=np.int64)
    rows = (len(content) - _ARRAY_HEADER) // 10
    blocks = np.ndarray(shape=(rows,), dtype=">u4", buffer=content, offset=_ARRAY_HEADER + 4, strides=(10,)).astype(np.int64)
    offsets = np.ndarray(shape=(rows,), dtype=">u2", buffer=content, offset=_ARRAY_HEADER + 8, strides=(10,)).astype(np.int64)
    return blocks << 16 | offsets
