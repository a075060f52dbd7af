"""Operations: updates, deletes and upserts as values that are kept, logged and sent like rows.

In: kinds, key values, new values and conditions, checked when the loader gave them.
Out: the same as Arrow batches.
Promise: immutable; an operation knows its place in its transaction, so that it reaches the rows inserted before it and no others.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from righttime.changes.rows import Chunk, table_of

Kind = Literal["update", "delete", "upsert"]
Numbers = npt.NDArray[np.int64]

_ABOUT = b"righttime.operations"
_ORDER, _AFTER, _KEY, _VALUE = "order", "after", "key:", "value:"


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Some columns of some rows, as they were encoded; turning many into Arrow together costs less than one by one."""

    chunk: Chunk
    columns: pa.Schema

    @property
    def batch(self) -> pa.RecordBatch:
        """The same as a record batch."""
        content = self.chunk.content
        return content if isinstance(content, pa.RecordBatch) else table_of([self.chunk], self.columns).to_batches()[0]


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """Operations of one shape on one table: many by key, or one by a condition.

    `order` is the place of each among all operations of its transaction on the table, `after` the rows which that transaction had inserted into
    the table before. By key: `keys` and `values` have one row for each. By condition: `condition` is SQL text. `expressions` are
    (column, SQL text) pairs that are computed from the row as it was.
    """

    kind: Kind
    order: Numbers
    after: Numbers
    key_rows: Encoded | None = None
    value_rows: Encoded | None = None
    condition: str | None = None
    expressions: tuple[tuple[str, str], ...] = ()
    can_fail: bool = False
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        assert (self.key_rows is None) != (self.condition is None)
        encoded = sum(part.chunk.nbytes for part in (self.key_rows, self.value_rows) if part is not None)
        object.__setattr__(self, "nbytes", max(self.order.nbytes + self.after.nbytes + encoded + len(self.condition or ""), 1))

    @property
    def keys(self) -> pa.RecordBatch | None:
        """The key of each operation by key."""
        return None if self.key_rows is None else self.key_rows.batch

    @property
    def values(self) -> pa.RecordBatch | None:
        """The new values of each operation by key, None if it sets none."""
        return None if self.value_rows is None else self.value_rows.batch

    @property
    def rows(self) -> int:
        """How many operations these are; each takes one id."""
        return len(self.order)

    @property
    def lazy(self) -> bool:
        """Whether they may wait unseen at their producer: nothing about them can fail later."""
        return self.condition is None and not self.can_fail

    @property
    def columns_set(self) -> tuple[str, ...]:
        """The columns that these operations write, without the keys of an upsert."""
        return (*(self.value_rows.columns.names if self.value_rows is not None else ()), *(column for column, _ in self.expressions))

    def to_arrow(self) -> pa.RecordBatch:
        """Return one batch that holds everything."""
        about = {
            "kind": self.kind,
            "condition": self.condition,
            "expressions": self.expressions,
            "can_fail": self.can_fail,
            "by_key": self.key_rows is not None,
        }
        names, arrays = [_ORDER, _AFTER], [pa.array(self.order), pa.array(self.after)]
        for prefix, batch in ((_KEY, self.keys), (_VALUE, self.values)):
            if batch is not None:
                names += [prefix + name for name in batch.schema.names]
                arrays += batch.columns
        schema = pa.schema([pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)], metadata={_ABOUT: json.dumps(about)})
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    @classmethod
    def from_arrow(cls, batch: pa.RecordBatch) -> "Operations":
        """Read what `to_arrow` wrote; another batch raises ValueError, KeyError or TypeError."""
        about: dict[str, Any] = json.loads((batch.schema.metadata or {}).get(_ABOUT, b"null"))
        return cls(
            kind=about["kind"],
            order=_numbers(batch.column(_ORDER)),
            after=_numbers(batch.column(_AFTER)),
            key_rows=_part(batch, _KEY) if about["by_key"] else None,
            value_rows=_part(batch, _VALUE),
            condition=about["condition"],
            expressions=tuple((column, text) for column, text in about["expressions"]),
            can_fail=about["can_fail"],
        )


def is_operations(batch: pa.RecordBatch) -> bool:
    """Tell whether a batch is what `Operations.to_arrow` makes."""
    return _ABOUT in (batch.schema.metadata or {})


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Operations in their lane: their ids, and for each the newest row of their own source that it reaches."""

    first_id: int
    operations: Operations
    bounds: Numbers

    @property
    def last_id(self) -> int:
        return self.first_id + self.operations.rows - 1


def rows_and_operations(content: Sequence[Any]) -> tuple[list[Any], list[Operations]]:
    """Part a transaction's content for one table."""
    return [part for part in content if not isinstance(part, Operations)], [part for part in content if isinstance(part, Operations)]


def _numbers(column: pa.Array) -> Numbers:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _part(batch: pa.RecordBatch, prefix: str) -> Encoded | None:
    names = [name for name in batch.schema.names if name.startswith(prefix)]
    if not names:
        return None
    part = pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=[name.removeprefix(prefix) for name in names])
    return Encoded(Chunk(part), part.schema)
