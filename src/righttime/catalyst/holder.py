"""The operation holder: updates, deletes and upserts of a producer's open transaction on one table, until its commit.

In: calls of the loader, checked one by one.
Out: `Operations`, few and large: calls of the same shape become one.
Promise: what was refused leaves nothing behind; each operation knows how many rows the transaction had inserted before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from righttime.catalyst.port import CheckStorable, anything_goes
from righttime.catalyst.segments import joined
from righttime.changes.conditions import Condition, Expression, condition_of, everything, parse_assignment, parse_condition
from righttime.changes.encoder import RowEncoder
from righttime.changes.expressions import Assignment
from righttime.changes.operations import Encoded, Kind, Operations
from righttime.changes.rows import Chunk, table_of
from righttime.changes.schema import TableSchema
from righttime.changes.sql_text import refuse_long
from righttime.changes.types import stored_as
from righttime.errors import KeyRequired, NullNotAllowed, OperationRefused, UnknownColumn, WrongType

_SHAPES_MAX = 64  # kept for the next transaction, with their encoders

Where = Mapping[str, Any] | str | None


class OperationHolder:
    """The operations of one table in one open transaction; `check` refuses values that the table's store could never hold."""

    def __init__(self, table: TableSchema, check: CheckStorable = anything_goes) -> None:
        self._table = table
        self._check = check
        self._spelled: dict[str, str] = {name.lower(): name for name in table.columns.names}
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        self._by_condition: list[Operations] = []
        self.count = 0  # of the transaction, staged ones included

    def update(self, new: Mapping[str, Any], where: Where, parameters: Sequence[Any], *, after: int) -> None:
        """Hold an update; a `where` that gives every key column makes it one by key."""
        if not new or not hasattr(new, "items"):
            raise OperationRefused(table=self._table.name, reason="an update sets at least one column: set={'column': value}")
        expressions = {column: value for column, value in new.items() if isinstance(value, Expression)}
        plain = isinstance(where, Mapping) and not parameters and not expressions and None not in where.values()
        shape = self._shapes.get(("update", *new, None, *(where or ()))) if plain else None
        if shape is None:
            keys = self._meant(where, parameters)
            if isinstance(keys, Condition):
                self._hold_condition("update", keys, new, after=after)
                return
            shape = self._shape("update", [column for column in new if column not in expressions], list(keys), expressions)
            if plain:
                self._shapes["update", *new, None, *(where or ())] = shape
            new, where = {column: value for column, value in new.items() if column not in expressions}, keys
        assert isinstance(where, Mapping)
        self._hold(shape, tuple(new.values()), tuple(where.values()), after=after)

    def delete(self, where: Where, parameters: Sequence[Any], *, after: int) -> None:
        """Hold a delete."""
        keys = self._meant(where, parameters)
        if isinstance(keys, Condition):
            self._hold_condition("delete", keys, {}, after=after)
        else:
            self._hold(self._shape("delete", [], list(keys), {}), (), tuple(keys.values()), after=after)

    def upsert(self, row: Mapping[str, Any] | Sequence[Any], *, after: int) -> None:
        """Hold an upsert: rows with this key get the given columns; if there is none, this becomes one."""
        if not isinstance(row, Mapping):
            row = dict(zip(self._table.columns.names, RowEncoder(self._table).ordered(row), strict=True))
        values, keys = self._parted(row)
        self._hold(self._shape("upsert", list(values), list(keys), {}), tuple(values.values()), tuple(keys.values()), after=after)

    def add_rows(self, kind: Kind, rows: list[Any], *, after: int) -> None:
        """Hold one operation by key for each row; mappings have the same columns, sequences all columns in order, to delete the key's."""
        if not rows:
            return
        in_order = self._table.keys if kind == "delete" else self._table.columns.names
        names = tuple(rows[0]) if isinstance(rows[0], Mapping) else tuple(in_order)
        shape = self._shapes.get((kind, "rows", *names))
        if shape is None:
            values, keys = self._parted(dict.fromkeys(names))
            shape = self._shapes[kind, "rows", *names] = self._shape(kind, list(values), list(keys), {})
        shape.add_rows(rows, names, first=self.count, after=after)
        self.count += len(rows)

    def add_arrow(self, kind: Kind, rows: pa.Table, *, after: int) -> None:
        """Hold one operation by key for each row of a table that has the key columns and those to set."""
        values, keys = self._parted(dict.fromkeys(rows.schema.names))
        shape = self._shape(kind, list(values), list(keys), {})
        shape.add_arrow(rows, first=self.count, after=after)
        self.count += rows.num_rows

    def encoded(self) -> list[Operations]:
        """Return everything held, as values."""
        shapes = {id(shape): shape for shape in self._shapes.values()}
        return [*(operations for shape in shapes.values() for operations in shape.encoded()), *self._by_condition]

    def __bool__(self) -> bool:
        return bool(self._by_condition) or any(self._shapes.values())

    def forget(self) -> None:
        """Forget what is held; the numbers go on until the transaction ends, so that staged operations stay in front."""
        self._by_condition = []
        if len(self._shapes) > _SHAPES_MAX:
            self._shapes = {}
        for shape in self._shapes.values():
            shape.forget()

    # -- by key ------------------------------------------------------------------------------------------------------

    def _hold(self, shape: "_Shape", values: tuple[Any, ...], keys: tuple[Any, ...], *, after: int) -> None:
        shape.add(values, keys, order=self.count, after=after)
        self.count += 1

    def _shape(self, kind: Kind, columns: Sequence[str], keys: Sequence[str], expressions: Mapping[str, Expression]) -> "_Shape":
        texts = tuple((self._column(column), value.text) for column, value in expressions.items())
        known = self._shapes.get((kind, *columns, None, *keys, None, *texts))
        if known is None:
            names = [self._column(column) for column in columns]
            if len({*names, *(column for column, _ in texts)}) != len(names) + len(texts):
                raise OperationRefused(table=self._table.name, reason="a column is set twice")
            self._check_columns(kind, [*names, *(column for column, _ in texts)])
            assignments = [parse_assignment(column, value, self._table) for column, value in expressions.items()]
            refuse_long(*(each.text for each in assignments))
            self._refuse_unstorable(assignments)
            known = _Shape(self._table, kind, names, [self._column(key) for key in keys], [(each.column, each.text) for each in assignments], self._check)
            known.can_fail = any(each.can_fail for each in assignments)
            self._shapes[kind, *columns, None, *keys, None, *texts] = known
        return known

    def _check_columns(self, kind: Kind, names: Sequence[str]) -> None:
        if kind == "update" and not names:
            raise OperationRefused(table=self._table.name, reason="an update sets at least one column beside the key")
        if kind == "delete" and names:
            raise OperationRefused(table=self._table.name, reason=f"a delete by key gives key columns only, and {names[0]!r} is none")
        if kind == "upsert":
            for column in self._table.columns:
                if not column.nullable and column.name not in names and column.name not in self._table.keys:
                    raise NullNotAllowed(table=self._table.name, column=column.name, why="missing in an upsert, NOT NULL")

    def _meant(self, where: Where, parameters: Sequence[Any]) -> dict[str, Any] | Condition:
        """Return the key columns and their values if `where` says exactly those, else the condition that it is."""
        if isinstance(where, Mapping) and not parameters:
            given = {self._column(column): value for column, value in where.items()}
            complete = bool(self._table.keys) and set(given) == set(self._table.keys) and len(given) == len(where)
            return given if complete and None not in given.values() else self._condition(where, parameters)
        condition = self._condition(where, parameters)
        found = condition.key_values()
        return condition if found is None else dict(zip(self._table.keys, found, strict=True))

    def _parted(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self._table.keys:
            raise KeyRequired(table=self._table.name)
        given = {self._column(column): value for column, value in row.items()}
        missing = [key for key in self._table.keys if key not in given]
        if missing or len(given) != len(row):
            raise NullNotAllowed(table=self._table.name, column=(missing or ["a column given twice"])[0], why="part of the key")
        return {name: value for name, value in given.items() if name not in self._table.keys}, {key: given[key] for key in self._table.keys}

    # -- by condition ------------------------------------------------------------------------------------------------

    def _condition(self, where: Where, parameters: Sequence[Any]) -> Condition:
        if where is None:
            return everything(self._table)
        if isinstance(where, str):
            return parse_condition(where, self._table, parameters)
        if hasattr(where, "items") and parameters:
            raise OperationRefused(table=self._table.name, reason="parameters belong to the ? of SQL text, and where is a mapping; give the values in it")
        if hasattr(where, "items"):
            return condition_of(where, self._table)
        raise OperationRefused(table=self._table.name, reason=f"where is a mapping of columns to values, SQL text, or None for every row, not {where!r}")

    def _hold_condition(self, kind: Kind, condition: Condition, new: Mapping[str, Any], *, after: int) -> None:
        assignments = [parse_assignment(column, value, self._table) for column, value in new.items()]
        if len({each.column for each in assignments}) != len(assignments):
            raise OperationRefused(table=self._table.name, reason="a column is set twice")
        refuse_long(condition.text, *(each.text for each in assignments))
        self._refuse_unstorable(assignments)
        self._by_condition.append(
            Operations(
                kind,
                np.array([self.count]),
                np.array([after]),
                condition=condition.text,
                expressions=tuple((each.column, each.text) for each in assignments),
                can_fail=condition.can_fail or any(each.can_fail for each in assignments),
            )
        )
        self.count += 1

    def _refuse_unstorable(self, assignments: Sequence[Assignment]) -> None:
        """Check expressions as if they were values: such a text holds every character that it can bring into a row.

        Where characters do not tell, what is computed is looked at before the commit.
        """
        for each in assignments:
            target = self._table.columns.field(each.column)
            if stored_as(target) is None:
                self._check(self._table, pa.record_batch({each.column: [each.text]}))
            elif each.literal:
                self._check(self._table, pa.record_batch({each.column: pa.array([each.value], target.type)}))

    def _column(self, name: object) -> str:
        found = self._spelled.get(str(name).lower())
        if found is None:
            raise UnknownColumn(table=self._table.name, column=name, known=", ".join(self._table.columns.names))
        return found


class _Shape:
    """Operations by key that set the same columns."""

    def __init__(
        self,
        table: TableSchema,
        kind: Kind,
        columns: Sequence[str],
        keys: Sequence[str],
        expressions: Iterable[tuple[str, str]],
        check: CheckStorable,
    ) -> None:
        self._table = table
        self._kind = kind
        self._values = _encoder(table, columns, check)
        self._keys = _encoder(table, table.keys, check)
        self._key_order = [list(keys).index(name) for name in table.keys] if list(keys) != list(table.keys) else None
        self._expressions = tuple(expressions)
        self._rows: list[tuple[Any, ...]] = []
        self._key_rows: list[tuple[Any, ...]] = []
        self._order: list[int] = []
        self._after: list[int] = []
        self._done: list[Operations] = []
        self.can_fail = False

    def add(self, values: tuple[Any, ...], keys: tuple[Any, ...], *, order: int, after: int) -> None:
        checked = self._values.checked(values) if values else values
        if self._key_order is not None:
            keys = tuple(keys[place] for place in self._key_order)
        self._key_rows.append(self._keys.checked(keys))
        self._rows.append(checked)
        self._order.append(order)
        self._after.append(after)

    def add_rows(self, rows: list[Any], names: tuple[str, ...], *, first: int, after: int) -> None:
        """Encode many at once; all of them or, if one does not fit, none."""
        self._close()
        chosen = [self._picked(encoder, names, rows) for encoder in (self._values, self._keys)]
        values = [self._values.encode(chosen[0])] if chosen[0] else []
        keys = [self._keys.encode(chosen[1])]
        order = np.arange(first, first + len(rows), dtype=np.int64)
        self._done.append(self._operations(order, np.full(len(rows), after, dtype=np.int64), values, keys))

    def _picked(self, encoder: RowEncoder, names: tuple[str, ...], rows: list[Any]) -> list[tuple[Any, ...]]:
        """Return the values of this encoder's columns, row by row."""
        spelled = {name.lower(): (name, place) for place, name in enumerate(map(str, names))}
        found = [spelled[name.lower()] for name in encoder.table.columns.names]
        if not found:
            return []
        mapped = isinstance(rows[0], Mapping)
        getter = itemgetter(*((name if mapped else place) for name, place in found))
        try:
            if set(map(len, rows)) != {len(names)} or any(issubclass(kind, Mapping) != mapped for kind in set(map(type, rows))):
                raise KeyError
            picked = list(map(getter, rows))
        except (KeyError, IndexError, TypeError):
            raise WrongType(
                table=self._table.name, column="*", value="rows with different columns", expected="the same columns in every row of one call"
            ) from None
        return [(value,) for value in picked] if len(found) == 1 else picked

    def add_arrow(self, rows: pa.Table, *, first: int, after: int) -> None:
        if not rows.num_rows:
            return
        values = self._values.encode_arrow(rows.select([name for name in rows.schema.names if name.lower() in self._names(self._values)]))
        keys = self._keys.encode_arrow(rows.select([name for name in rows.schema.names if name.lower() in self._names(self._keys)]))
        order = np.arange(first, first + rows.num_rows, dtype=np.int64)
        self._done.append(self._operations(order, np.full(rows.num_rows, after, dtype=np.int64), values, keys))

    def _names(self, encoder: RowEncoder) -> set[str]:
        return {name.lower() for name in encoder.table.columns.names}

    def encoded(self) -> list[Operations]:
        self._close()
        return self._done

    def _close(self) -> None:
        """Encode what was added one by one, before something else is added: within a shape, operations stay in order."""
        if self._order:
            values = [self._values.encode(self._rows)] if len(self._values.table.columns) else []
            operations = self._operations(np.array(self._order), np.array(self._after), values, [self._keys.encode(self._key_rows)])
            # In one go, which no interrupt gets into: they are encoded or not, never both.
            self._rows, self._key_rows, self._order, self._after, self._done = [], [], [], [], [*self._done, operations]

    def __bool__(self) -> bool:
        return bool(self._order or self._done)

    def forget(self) -> None:
        self._rows, self._key_rows, self._order, self._after, self._done = [], [], [], [], []

    def _operations(self, order: Any, after: Any, values: list[Chunk], keys: list[Chunk]) -> Operations:
        return Operations(
            self._kind,
            order,
            after,
            key_rows=_encoded(keys, self._keys.table.columns),
            value_rows=_encoded(values, self._values.table.columns) if values else None,
            expressions=self._expressions,
            can_fail=self.can_fail,
        )


def _encoder(table: TableSchema, columns: Sequence[str], check: CheckStorable) -> RowEncoder:
    chosen = pa.schema([table.columns.field(name) for name in columns])
    return RowEncoder(TableSchema(table.name, chosen, table.keys, tuple(name for name in table.partition_by if name in columns)), check)


def _encoded(chunks: Sequence[Chunk], columns: pa.Schema) -> Encoded:
    if len(chunks) == 1:
        return Encoded(chunks[0], columns)
    batches = joined(table_of(chunks, columns)).to_batches()
    if len(batches) != 1:
        raise WrongType(table="*", column="*", value=f"operations in {len(batches)} batches", expected="values of less than 2 GiB in one call")
    return Encoded(Chunk(batches[0]), columns)
