"""Calling a user's function on the rows of a step, in Spark's workers.

In: Arrow batches with the step's columns, job and weight.
Out: what the function returns, with job and weight.
Promise: what is returned is checked against what was declared. Workers get this module by value and need pyarrow, not righttime.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

_JOB, _WEIGHT = "_job", "_w"

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Caller:
    """Calls the function on each batch, in Spark's workers."""

    function: Callable[[pa.Table], Any]
    columns: pa.Schema
    rows: str
    given: tuple[str, ...]
    carried: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from (self._same if self.rows == "same" else self._any)(pa.Table.from_batches([batch]))

    def _same(self, table: pa.Table) -> list[pa.RecordBatch]:
        found = self._call(table.select(self.given))
        if found.num_rows != table.num_rows:
            raise ValueError(f"the function returned {found.num_rows} rows for {table.num_rows}; declare rows='any', or return one for each")
        for name in self.carried:
            found = found.append_column(table.schema.field(name), table.column(name))
        return _batches(found)

    def _any(self, table: pa.Table) -> list[pa.RecordBatch]:
        """Call once for each job and weight, so that whatever comes back belongs to them."""
        out: list[pa.RecordBatch] = []
        for pair in table.select([_JOB, _WEIGHT]).group_by([_JOB, _WEIGHT]).aggregate([]).to_pylist():
            inside = pc.and_(pc.equal(table.column(_JOB), pair[_JOB]), pc.equal(table.column(_WEIGHT), pair[_WEIGHT]))
            found = self._call(table.filter(inside).select(self.given))
            for name in (_JOB, _WEIGHT):
                found = found.append_column(pa.field(name, pa.int64()), pa.repeat(pa.scalar(pair[name], pa.int64()), found.num_rows))
            out += _batches(found)
        return out

    def _call(self, table: pa.Table) -> pa.Table:
        found: Any = self.function(table)
        if isinstance(found, pa.RecordBatch):
            found = pa.Table.from_batches([found])
        if not isinstance(found, pa.Table):
            raise TypeError(f"the function returned a {type(found).__name__}, not a pyarrow.Table")
        missing = [name for name in self.columns.names if name not in found.column_names]
        if missing:
            raise ValueError(f"the function returned no column {', '.join(missing)}")
        return found.select(self.columns.names).cast(self.columns)


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    return list(table.combine_chunks().to_batches())
