"""What a table cannot hold though its columns have the right types: nulls where it has none, texts that are too long, values that its store refuses.

In: lines for a table, as they would be published.
Out: the places of those that it would refuse, and why.
Promise: the rules are those of the encoder that publishing uses, so that nothing is refused later; the reason of a line depends on that line only.
"""

from collections.abc import Callable, Iterable
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from righttime.changes.encoder import RowEncoder
from righttime.changes.schema import TableSchema
from righttime.errors import NullNotAllowed, WrongType

CheckStorable = Callable[[TableSchema, pa.RecordBatch], None]
"""Raises `WrongType` for values that fit a table and that its store could never hold."""

Places = npt.NDArray[np.int64]


class TableLimits:
    """The limits of one table."""

    def __init__(self, table: TableSchema, check: CheckStorable | None, *, found_max: int) -> None:
        """`found_max` bounds the search: each line that is found costs several trials."""
        keys = pa.schema([table.columns.field(name) for name in table.keys])
        self._table = table
        self._rows = RowEncoder(table, check)
        self._keys = RowEncoder(TableSchema(table.name, keys, table.keys, tuple(name for name in table.partition_by if name in table.keys)), check)
        self._found_max = found_max

    def refused_keys(self, lines: pa.Table) -> dict[int, str]:
        """Return the lines whose key the table cannot hold, by place, with the reason."""
        return self._refused(self._keys, lines.select(self._keys.table.columns.names), np.arange(lines.num_rows))

    def refused_rows(self, lines: pa.Table, chosen: pa.ChunkedArray) -> dict[int, str]:
        """Return those of the chosen lines that the table cannot hold, by place, with the reason."""
        return self._refused(self._rows, lines.select(self._rows.table.columns.names).filter(chosen), _places(chosen))

    def _refused(self, encoder: RowEncoder, rows: pa.Table, places: Places) -> dict[int, str]:
        nulls = _any_null(rows, (field.name for field in encoder.table.columns if not field.nullable))
        found = {int(places[place]): f"a null in a NOT NULL column of table {self._table.name!r}" for place in _places(nulls)}
        if found:
            rows, places = rows.filter(pc.invert(nulls)), places[_places(pc.invert(nulls))]
        self._sift(encoder, rows, places, found)
        return found

    def _sift(self, encoder: RowEncoder, rows: pa.Table, places: Places, found: dict[int, str]) -> None:
        """Note the rows that are refused, halving until they stand alone; once there are too many of them, the search ends."""
        if not rows.num_rows or len(found) > self._found_max:
            return
        try:
            encoder.encode_arrow(rows)
        except (WrongType, NullNotAllowed) as error:
            if rows.num_rows == 1:
                found[int(places[0])] = _reason(error)
                return
            middle = rows.num_rows // 2
            self._sift(encoder, rows.slice(0, middle), places[:middle], found)
            self._sift(encoder, rows.slice(middle), places[middle:], found)


def _reason(error: WrongType | NullNotAllowed) -> str:
    where = f"table {error.context['table']!r}, column {error.context['column']!r}"
    return f"{where}: {error.context['value']} does not fit {error.context['expected']}" if isinstance(error, WrongType) else f"{where}: a null inside"


def _places(chosen: pa.ChunkedArray) -> Places:
    return np.flatnonzero(chosen.to_numpy())


def _any_null(table: pa.Table, names: Iterable[str]) -> pa.ChunkedArray:
    nothing = pa.chunked_array([pa.repeat(False, table.num_rows)])
    return reduce(pc.or_, [pc.is_null(table.column(name)) for name in names], nothing)
