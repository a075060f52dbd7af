"""Statements that change rows, on their way to a producer.

In: a statement cut into its parts, its table, and the parameters of each execution.
Out: calls of `update`, `delete` and `upsert_many`.
Promise: every execution is checked before the first of them is handed over, so that a refused one leaves nothing behind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from righttime.changes.conditions import Assignment, Condition, Expression, everything
from righttime.changes.schema import TableSchema
from righttime.changes.sql_text import refuse_long
from righttime.changes.store_rules import fitted_value
from righttime.errors import UnknownColumn, WrongType
from righttime.query.change_plan import DeleteStatement, UpdateStatement, UpsertPlan, UpsertStatement, plan_change, plan_upsert
from righttime.query.insert_plan import wrong_count

Call = Callable[[], object]


class Changing(Protocol):
    """What a statement that changes rows needs of a producer."""

    def update(self, table: str, /, set: Mapping[str, Any], where: Mapping[str, Any] | str | None = ...) -> object: ...
    def delete(self, table: str, /, where: Mapping[str, Any] | str | None = ...) -> object: ...
    def update_many(self, table: str, rows: Sequence[Mapping[str, Any]], /) -> object: ...
    def delete_many(self, table: str, rows: Sequence[Mapping[str, Any]], /) -> object: ...
    def upsert_many(self, table: str, rows: Sequence[Mapping[str, Any]], /) -> object: ...


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """One statement, bound to its table; `upsert` if it is one."""

    statement: UpdateStatement | DeleteStatement | UpsertStatement
    schema: TableSchema
    upsert: UpsertPlan | None

    def run(self, producer: Changing, executions: Sequence[Sequence[Any]]) -> None:
        """Hand one change for each row of parameters to the producer."""
        if self.upsert is not None:
            self._run_upsert(producer, self.upsert, executions)
        elif not (self._by_key() and self._ran_by_key(producer, executions)):
            for call in [self._call(producer, parameters) for parameters in executions]:
                call()

    def _run_upsert(self, producer: Changing, plan: UpsertPlan, executions: Sequence[Sequence[Any]]) -> None:
        # One call for all of them: the producer checks the rows, and takes those of a call or none.
        rows = [dict(zip(plan.columns, row, strict=True)) for parameters in executions for row in plan.insert.rows(parameters)]
        if rows:
            producer.upsert_many(self.schema.name, rows)

    def _by_key(self) -> bool:
        """Tell whether this is `SET column = ?, … WHERE key = ? AND …`, which needs no parser: what a loader sends a million times."""
        statement, keys = self.statement, {key.lower() for key in self.schema.keys}
        if isinstance(statement, UpsertStatement) or statement.keyed is None or {name.lower() for name in statement.keyed} != keys:
            return False
        if any(self._field(name).type == pa.float32() for name in statement.keyed):
            return False  # compared as DOUBLE, and encoding them would round
        columns = statement.assignments if isinstance(statement, UpdateStatement) else ()
        return all(part.text == "?" and column.lower() not in keys for column, part in columns)

    def _ran_by_key(self, producer: Changing, executions: Sequence[Sequence[Any]]) -> bool:
        """Hand the changes over as rows; False, and nothing was, if a key is no value of its column: it may be equal to one all the same, as 1.0 is to 1."""
        statement = self.statement
        assert not isinstance(statement, UpsertStatement) and statement.keyed is not None
        columns = [column for column, _ in statement.assignments] if isinstance(statement, UpdateStatement) else []
        fields = [self._field(name) for name in columns]
        keys = [self._field(name).name for name in statement.keyed]
        rows = []
        for parameters in executions:
            if len(parameters) != statement.placeholders:
                raise wrong_count(statement.placeholders, len(parameters))
            values, meant = parameters[: len(columns)], parameters[len(columns) :]
            if None in meant:
                continue  # no key is NULL, so nothing is equal to it
            new = {field.name: fitted_value(value, field.type) for field, value in zip(fields, values, strict=True)}
            rows.append(new | dict(zip(keys, meant, strict=True)))
        try:
            if rows:
                (producer.update_many if columns else producer.delete_many)(self.schema.name, rows)
        except WrongType as error:
            if error.context["column"] not in keys:
                raise
            return False
        return True

    def _field(self, name: str) -> pa.Field:
        found = next((field for field in self.schema.columns if field.name.lower() == name.lower()), None)
        if found is None:
            raise UnknownColumn(table=self.schema.name, column=name, known=", ".join(self.schema.columns.names))
        return found

    def _call(self, producer: Changing, parameters: Sequence[Any]) -> Call:
        table = self.schema.name
        assert not isinstance(self.statement, UpsertStatement)
        kind, assignments, condition = plan_change(self.statement, self.schema, parameters)
        where = self._where(condition)
        # By key, values travel as they are; by condition they are part of its text.
        by_key = isinstance(where, Mapping)
        refuse_long("" if by_key else condition.text, *(one.text for one in assignments if not (by_key and one.literal)))
        if kind == "delete":
            return lambda: producer.delete(table, where)
        new = {assignment.column: _value(assignment) for assignment in assignments}
        return lambda: producer.update(table, new, where)

    def _where(self, condition: Condition) -> Mapping[str, Any] | str | None:
        keys = condition.key_values()
        if keys is not None:
            return dict(zip(self.schema.keys, keys, strict=True))
        return None if condition == everything(self.schema) else condition.text


def change_plan(statement: UpdateStatement | DeleteStatement | UpsertStatement, schema: TableSchema) -> ChangePlan:
    """Bind a statement to its table."""
    return ChangePlan(statement, schema, plan_upsert(statement, schema) if isinstance(statement, UpsertStatement) else None)


def _value(assignment: Assignment) -> Any:
    return assignment.value if assignment.literal else Expression(assignment.text)
