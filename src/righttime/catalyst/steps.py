"""Steps: a long list of operations, parted into a few that can each be settled at once.

In: operations with their commit times and sources.
Out: steps in commit order; operations of one shape are one table of values, whatever number of commits they came with.
Promise: an operation whose outcome another one could depend on otherwise than by key stands in a step of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from righttime.catalyst.ends import Flags
from righttime.changes.operations import Encoded, Kind, Numbers, Operations, Placed
from righttime.changes.rows import Chunk, table_of
from righttime.changes.schema import TableSchema


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """Operations of one commit: its time and source, and their place in the lane."""

    time_us: int
    source: str
    placed: Placed


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What operations have in common: kind, columns, expressions; and the keys and values of all of them, or the one condition."""

    kind: Kind
    expressions: tuple[tuple[str, str], ...]
    keys: pa.Table | None
    values: pa.Table | None
    condition: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Operations that are settled together: one by condition, or many by key, none of which changes a key that another one reads.

    The arrays have one place for each operation, in commit order: its shape and its row there, its commit time, the newest row of its own
    source that it reaches, and the number of that source.
    """

    shapes: Sequence[Shape]
    sources: Sequence[str]
    shape_of: Numbers
    row_of: Numbers
    times: Numbers
    bounds: Numbers
    source_of: Numbers

    @property
    def needs_rows(self) -> bool:
        """Whether the content of rows matters, not only their keys."""
        return any(self.shapes[number].kind != "delete" for number in np.unique(self.shape_of))

    def only(self, chosen: Flags) -> "Step":
        """Return a part of the step."""
        return Step(self.shapes, self.sources, self.shape_of[chosen], self.row_of[chosen], self.times[chosen], self.bounds[chosen], self.source_of[chosen])

    def source_code(self, source: str) -> int:
        """Return the number that stands for a source here, -2 if no operation comes from it."""
        return self.sources.index(source) if source in self.sources else -2

    def keys(self) -> pa.Table:
        """Return the operations' keys, in commit order."""
        numbers = np.unique(self.shape_of)
        tables = [self.shapes[number].keys for number in numbers]
        starts = np.cumsum([0, *(table.num_rows for table in tables if table is not None)])[:-1]
        places = starts[np.searchsorted(numbers, self.shape_of)] + self.row_of
        return pa.concat_tables([table for table in tables if table is not None]).take(pa.array(places))

    def reached(self, operation: int, source: str, ids: Numbers, begin: Numbers) -> Flags:
        """Rows of the same source count by id, within its transaction too; those of others by commit time."""
        if self.source_code(source) == self.source_of[operation]:
            return np.asarray(ids <= self.bounds[operation])
        return np.asarray(begin < self.times[operation])


def steps_of(entries: Sequence[Entry], schema: TableSchema) -> Iterator[Step]:
    """Part the operations, in commit order, where one has to wait for the outcome of those before."""
    if not entries:
        return
    groups: dict[object, list[int]] = {}
    for number, entry in enumerate(entries):
        groups.setdefault(_likeness(number, entry.placed.operations), []).append(number)
    shapes = [_shape([entries[number].placed.operations for number in members], schema) for members in groups.values()]
    members = [number for group in groups.values() for number in group]
    sizes = [entries[number].placed.operations.rows for number in members]
    group_sizes = [sum(entries[number].placed.operations.rows for number in group) for group in groups.values()]
    sources = list(dict.fromkeys(entry.source for entry in entries))
    alone = [_stands_alone(entries[group[0]].placed.operations, schema.keys) for group in groups.values()]
    shape_of = np.repeat(np.arange(len(groups)), group_sizes)
    row_of = np.concatenate([np.arange(size) for size in group_sizes])
    times = np.repeat([entries[number].time_us for number in members], sizes)
    source_of = np.repeat([sources.index(entries[number].source) for number in members], sizes)
    bounds = np.concatenate([entries[number].placed.bounds for number in members])
    order = np.concatenate([entries[number].placed.operations.order for number in members])
    places = np.lexsort((order, times))
    cuts = np.flatnonzero(np.array(alone)[shape_of[places]])
    starts = sorted({0, *cuts.tolist(), *(cuts + 1).tolist()} - {len(places)})
    for start, stop in zip(starts, [*starts[1:], len(places)], strict=True):
        chosen = places[start:stop]
        yield Step(shapes, sources, shape_of[chosen], row_of[chosen], times[chosen], bounds[chosen], source_of[chosen])


def _likeness(number: int, operations: Operations) -> object:
    """Return what operations that can share a table have in common; one by condition is like no other."""
    if operations.condition is not None:
        return number
    return operations.kind, operations.columns_set, operations.expressions


def _shape(members: Sequence[Operations], schema: TableSchema) -> Shape:
    first = members[0]
    return Shape(
        first.kind,
        first.expressions,
        None if first.key_rows is None else _joined([each.key_rows for each in members], schema),
        None if first.value_rows is None else _joined([each.value_rows for each in members], schema),
        first.condition,
    )


def _joined(parts: Sequence[Encoded | None], schema: TableSchema) -> pa.Table:
    found = [part for part in parts if part is not None]
    columns = pa.schema([schema.columns.field(name) for name in found[0].columns.names])
    # What was read from the log or the wire has no declared schema any more; its types are the same.
    same = [Chunk(part.chunk.content.cast(columns)) if isinstance(part.chunk.content, pa.RecordBatch) else part.chunk for part in found]
    return table_of(same, columns).combine_chunks()


def _stands_alone(operations: Operations, keys: Sequence[str]) -> bool:
    return operations.condition is not None or bool(set(operations.columns_set) & set(keys))
