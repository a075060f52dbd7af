"""Key codes: rows with the same key get the same small number, so that matching by key is array work.

In: the keys of some operations, of one or several columns of any type.
Out: a number for each key, and for any other rows the number of the equal key, -1 where there is none.
Promise: equality as in SQL: NaN equals NaN, 0.0 equals -0.0; no hashing.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from righttime.changes.operations import Numbers
from righttime.changes.operators import alike


class KeyCodes:
    """Numbers for the distinct keys of a table of key columns."""

    def __init__(self, keys: pa.Table) -> None:
        self._names = keys.schema.names
        self._values = [pc.unique(alike(column)) for column in keys.columns]
        # Column by column the prefixes that occur are numbered anew, so that no product of counts can overflow.
        self._prefixes: list[Numbers] = []
        codes = np.zeros(keys.num_rows, dtype=np.int64)
        for name, values in zip(self._names, self._values, strict=True):
            known, codes = np.unique(codes * max(len(values), 1) + _places(keys.column(name), values), return_inverse=True)
            self._prefixes.append(known)
        self.codes: Numbers = codes.astype(np.int64)

    def __len__(self) -> int:
        return len(self._prefixes[-1])

    def of(self, rows: pa.Table) -> Numbers:
        """Return each row's number, -1 if its key is none of ours."""
        codes = np.zeros(rows.num_rows, dtype=np.int64)
        for name, values, known in zip(self._names, self._values, self._prefixes, strict=True):
            places = _places(rows.column(name), values)
            wanted = codes * max(len(values), 1) + places
            found = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            codes = np.where((codes >= 0) & (places >= 0) & (known[found] == wanted), found, -1)
        return codes


def _places(column: pa.ChunkedArray, values: pa.Array) -> Numbers:
    """Return for each value its place among `values`, -1 if it is not there."""
    places = pc.fill_null(pc.index_in(alike(column), value_set=values), -1)
    return np.asarray(places.to_numpy(), dtype=np.int64)
