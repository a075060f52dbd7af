"""What PostgreSQL's catalog says about a table, compared with its declaration.

In: a connection; declarations.
Out: the table as it is (`Found`): the names of its columns, where its rows lie; differences as `SchemaChanged`; declarations of tables to adopt.
Promise: nothing is written into or read from a table whose columns are not those that were declared.

Columns that somebody added are left alone: they are not read, get their default in new rows and keep what they hold in updated ones. One that
is NOT NULL without a default makes storing rows impossible, and is reported before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import pyarrow as pa
from psycopg import sql

from righttime.changes.schema import TableSchema, declare_table
from righttime.changes.types import BadType
from righttime.errors import BadTable, SchemaChanged, UnknownTable
from righttime.ledger.postgres_connect import Address, Connection, run
from righttime.warehouse.postgres_types import arrow_field, same_type, sql_type

# One row per table: its kind, the file that its rows are in, and its columns by number.
CATALOG = """
SELECT c.relname, c.oid::bigint, c.relkind::text || c.relpersistence::text, coalesce(pg_relation_filenode(c.oid), 0)::text,
       c.relhassubclass OR c.relispartition OR c.relrowsecurity,
       (SELECT json_agg(json_build_array(a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef OR a.attidentity <> '',
                                         a.attgenerated <> '' OR a.attidentity = 'a', a.attgenerated <> '') ORDER BY a.attnum)::text
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_class c WHERE c.relnamespace = to_regnamespace(quote_ident(%s)) AND c.relname = ANY(%s) AND c.relkind NOT IN ('i', 'S', 'c', 't', 'I')
"""
_NAMED_MAX = 20
_KEYS = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = %s::bigint::oid AND i.indisprimary ORDER BY array_position(i.indkey::int2[], a.attnum)
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the catalog has it. A `computed` one cannot be given a value; a `generated` one follows from the other columns of its row."""

    name: str
    type: str
    not_null: bool
    has_default: bool
    computed: bool
    generated: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A table as the catalog has it. `file` names the file with its rows: in another one they have other places."""

    name: str
    oid: int
    kind: str
    file: str
    shared: bool
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, row: Sequence[Any]) -> Found:
        """Read a row of the catalog query."""
        name, oid, kind, file, shared, columns = row
        return cls(name, oid, kind, file, shared, tuple(Column(*column) for column in json.loads(columns or "[]")))

    def to_json(self) -> str:
        """Return the row of the catalog query, for another process."""
        columns = json.dumps([astuple(column) for column in self.columns])
        return json.dumps((self.name, self.oid, self.kind, self.file, self.shared, columns))

    def names(self, table: TableSchema, *, writing: bool) -> tuple[str, ...]:
        """Return the database's spelling of the declared columns; raise `SchemaChanged` if they are not there as declared."""
        by_name = {column.name.lower(): column for column in self.columns}
        problems = []
        for field in table.columns:
            column = by_name.pop(field.name.lower(), None)
            problems.append(f"column {field.name!r} is missing" if column is None else _difference(field, column))
        if writing:
            problems.extend(f"column {column.name!r} was added, is NOT NULL and has no default" for column in by_name.values() if _must_be_given(column))
        told = [problem for problem in problems if problem]
        if told:
            raise SchemaChanged(table=table.name, difference="; ".join(told))
        spelled = {column.name.lower(): column.name for column in self.columns}
        return tuple(spelled[field.name.lower()] for field in table.columns)


def look_up(connection: Connection, address: Address, names: Iterable[str]) -> dict[str, Found]:
    """Return the tables of these names that exist."""
    return {found.name: found for found in map(Found.of, run(connection, CATALOG, (address.tables, list(names))))}


def require(found: Found | None, table: TableSchema) -> Found:
    """Return the table, or raise `SchemaChanged` because it is gone."""
    if found is None or found.kind[:1] != "r":
        raise SchemaChanged(table=table.name, difference="the table is missing" if found is None else "it is no ordinary table")
    return found


def declaration(connection: Connection, address: Address, name: str) -> TableSchema:
    """Return the declaration that an existing table stands for; keys are those of its primary key. Raise `BadTable` naming what cannot be taken over."""
    found = look_up(connection, address, [name]).get(name)
    if found is None:
        raise UnknownTable(table=name, known=f"{_known(connection, address)} in schema {address.tables!r} of the database")
    _check_kind(found)
    keys = [key for (key,) in run(connection, _KEYS, (found.oid,))]
    _refuse_not_kept(found, address, keys)
    try:
        fields = [arrow_field(column.name, column.type, nullable=not column.not_null) for column in found.columns if not column.computed]
    except BadType as error:
        raise BadTable(table=name, reason=str(error)) from None
    return declare_table(name, pa.schema(fields), keys=keys, unique=bool(keys))


def _known(connection: Connection, address: Address) -> str:
    """Name tables of the database, for a message."""
    query = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY tablename LIMIT %s"
    names = [name for (name,) in run(connection, query, (address.tables, _NAMED_MAX + 1))]
    return ", ".join([*names[:_NAMED_MAX], *(["…"] if len(names) > _NAMED_MAX else [])]) or "none"


def _check_kind(found: Found) -> None:
    if found.kind != "rp":
        raise BadTable(table=found.name, reason="only ordinary tables that survive a crash can be taken over, no views, partitioned, foreign or unlogged ones")
    if found.shared:
        raise BadTable(table=found.name, reason="it has inheritance, partitions or row-level security")


def _refuse_not_kept(found: Found, address: Address, keys: Sequence[str]) -> None:
    """Refuse a table in which no update could be stored: keys that only the database gives, or its numbers in rows that no key finds again."""
    for column in found.columns:
        if column.computed and (column.name in keys or not (keys or column.generated)):
            change = sql.SQL("ALTER TABLE {} ALTER COLUMN {} {}").format(
                address.table(found.name), sql.Identifier(column.name), sql.SQL("DROP EXPRESSION" if column.generated else "SET GENERATED BY DEFAULT")
            )
            why = "is part of the key" if keys else "is in a table without primary key"
            reason = f"column {column.name!r} is GENERATED ALWAYS and {why}, so a row that is updated here could not keep it. First {change.as_string(None)}"
            raise BadTable(table=found.name, reason=reason)


def _difference(field: pa.Field, column: Column) -> str:
    wanted = sql_type(field)
    if not same_type(column.type, wanted):
        return f"column {field.name!r} is {column.type}, declared was {wanted}"
    if column.not_null == field.nullable:
        return f"column {field.name!r} is {'NOT NULL' if column.not_null else 'nullable'}, declared was the opposite"
    return f"column {field.name!r} is computed by the database" if column.computed else ""


def _must_be_given(column: Column) -> bool:
    return column.not_null and not column.has_default and not column.computed
