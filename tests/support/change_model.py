"""Changes as a list model sees them: each step of a transaction is a call of the producer, and a plain function on a list of rows.

In: columns, keys, and drawn steps.
Out: what the real producer is told (`give`), and what becomes of a list of rows (`apply`).
Promise: too simple to be wrong; rows are tuples, steps run one after the other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from righttime.catalyst.producer import Producer
from righttime.changes.conditions import Expression

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Shape:
    """The columns of a table and which of them are keys."""

    columns: tuple[str, ...]
    keys: tuple[str, ...] = ()

    def named(self, row: Row) -> dict[str, Any]:
        return dict(zip(self.columns, row, strict=True))

    def key_of(self, row: Row) -> Row:
        return tuple(value for column, value in zip(self.columns, row, strict=True) if column in self.keys)


@dataclass(frozen=True)
class Where:
    """Which rows a step means: what the producer gets, and the same in Python."""

    given: Mapping[str, Any] | str | None
    meets: Callable[[Mapping[str, Any]], Any] = field(compare=False, repr=False)
    parameters: tuple[Any, ...] = ()


def equal_to(values: Mapping[str, Any]) -> Where:
    """The mapping form; None means null."""
    return Where(values, lambda row: all(row[column] == value for column, value in values.items()))


EVERYTHING = Where(None, lambda row: True)


@dataclass(frozen=True)
class Computed:
    """A value computed from the row as it was."""

    text: str
    value: Callable[[Mapping[str, Any]], Any] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Insert:
    """Rows that are added."""

    rows: tuple[Row, ...]

    @property
    def size(self) -> int:
        return len(self.rows)

    def give(self, producer: Producer, table: str) -> None:
        producer.insert_many(table, list(self.rows))

    def apply(self, rows: Sequence[Row], shape: Shape) -> list[Row]:
        return [*rows, *self.rows]


@dataclass(frozen=True)
class Update:
    """Columns that are set where a condition holds."""

    new: Mapping[str, Any]
    where: Where
    size: int = 1

    def give(self, producer: Producer, table: str) -> None:
        new = {column: Expression(value.text) if isinstance(value, Computed) else value for column, value in self.new.items()}
        producer.update(table, new, self.where.given, parameters=self.where.parameters)

    def apply(self, rows: Sequence[Row], shape: Shape) -> list[Row]:
        return [self._updated(row, shape) if self.where.meets(shape.named(row)) else row for row in rows]

    def _updated(self, row: Row, shape: Shape) -> Row:
        old = shape.named(row)
        new = {column: value.value(old) if isinstance(value, Computed) else value for column, value in self.new.items()}
        return tuple({**old, **new}.values())


@dataclass(frozen=True)
class Delete:
    """Rows that go."""

    where: Where
    size: int = 1

    def give(self, producer: Producer, table: str) -> None:
        producer.delete(table, self.where.given, parameters=self.where.parameters)

    def apply(self, rows: Sequence[Row], shape: Shape) -> list[Row]:
        return [row for row in rows if not self.where.meets(shape.named(row))]


@dataclass(frozen=True)
class Upsert:
    """Rows by key: those with the key get the columns, or one is made; several are given in one call."""

    rows: tuple[Mapping[str, Any], ...]

    @property
    def size(self) -> int:
        return len(self.rows)

    def give(self, producer: Producer, table: str) -> None:
        if len(self.rows) == 1:
            producer.upsert(table, self.rows[0])
        else:
            producer.upsert_many(table, list(self.rows))

    def apply(self, rows: Sequence[Row], shape: Shape) -> list[Row]:
        found = list(rows)
        for new in self.rows:
            where = equal_to({key: new[key] for key in shape.keys})
            if any(where.meets(shape.named(row)) for row in found):
                found = Update(new, where).apply(found, shape)
            else:
                found.append(tuple(new.get(column) for column in shape.columns))
        return found


@dataclass(frozen=True)
class KeyedChanges:
    """Many updates or deletes by key in one call."""

    kind: str
    rows: tuple[Mapping[str, Any], ...]

    @property
    def size(self) -> int:
        return len(self.rows)

    def give(self, producer: Producer, table: str) -> None:
        (producer.update_many if self.kind == "update" else producer.delete_many)(table, list(self.rows))

    def apply(self, rows: Sequence[Row], shape: Shape) -> list[Row]:
        found = list(rows)
        for new in self.rows:
            where = equal_to({key: new[key] for key in shape.keys})
            step = Update(new, where) if self.kind == "update" else Delete(where)
            found = step.apply(found, shape)
        return found


Step = Insert | Update | Delete | Upsert | KeyedChanges


def run(steps: Sequence[Step], rows: Sequence[Row], shape: Shape) -> list[Row]:
    """Run steps one after the other."""
    found = list(rows)
    for step in steps:
        found = step.apply(found, shape)
    return found


def taken_keys(rows: Sequence[Row], shape: Shape) -> set[Row]:
    """Return the keys that are there more than once."""
    keys = [shape.key_of(row) for row in rows]
    return {key for key in keys if keys.count(key) > 1}
