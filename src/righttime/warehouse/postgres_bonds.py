"""What else the database does when rows of a table change: triggers that would change them, foreign keys that hold them.

In: the catalog of the database.
Out: the foreign keys of a table in both directions, for the step under way; which tables of the schema refer to which.
Promise: a trigger that could change or drop a row is refused before anything is written; whether a foreign key is kept is found out in the step of
the table that breaks it, also where the database would only look at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from righttime.changes.schema import TableSchema
from righttime.errors import SchemaChanged
from righttime.ledger.postgres_connect import Address, Connection, run
from righttime.ledger.postgres_writer import PostgresWriter

# Two queries: most tables have neither, and the second takes longer. The catalog has no index for who is referred to, but for triggers.
_TRIGGERS = """
SELECT tgname, tgtype::int & 12 = 0, tgisinternal, tgconstraint::bigint FROM pg_trigger
WHERE tgrelid = %s::regclass AND (tgisinternal OR tgenabled IN ('O', 'A') AND tgtype & 3 = 3 AND tgtype & 28 <> 0)
"""
_COLUMNS = """ARRAY(SELECT a.attname::text FROM unnest(c.{key}) WITH ORDINALITY k (number, place)
    JOIN pg_attribute a ON a.attrelid = c.{table} AND a.attnum = k.number ORDER BY k.place)"""
_KEYS = f"""
SELECT s.nspname, c.conname, n.nspname, o.relname, {_COLUMNS.format(key="conkey", table="conrelid")}, {_COLUMNS.format(key="confkey", table="confrelid")},
       c.confrelid = %s::regclass, c.conrelid = %s::regclass, c.condeferrable, c.confdeltype::text, c.confupdtype::text
FROM pg_constraint c JOIN pg_namespace s ON s.oid = c.connamespace JOIN pg_class o ON o.oid = c.conrelid JOIN pg_namespace n ON n.oid = o.relnamespace
WHERE c.oid = ANY(%s::bigint[]::oid[]) AND c.contype = 'f' ORDER BY c.conname
"""
_ACTING = frozenset("cnd")  # CASCADE, SET NULL, SET DEFAULT


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """One that concerns a table: its name, the table that has it with the columns there, and the columns that it refers to."""

    name: sql.Identifier
    holder: sql.Identifier
    columns: tuple[str, ...]
    referred: tuple[str, ...]
    incoming: bool
    outgoing: bool
    deferrable: bool
    acts_on_delete: bool
    acts_on_update: bool

    @property
    def spelled(self) -> str:
        return self.holder.as_string(None).replace('"', "")


@dataclass(frozen=True, slots=True)
class Bonds:
    """The foreign keys of one table, its own and those that refer to it."""

    keys: tuple[ForeignKey, ...]
    before_update: tuple[str, ...]

    @classmethod
    def of(cls, writer: PostgresWriter, address: Address, table: TableSchema) -> Bonds:
        """Look them up; raise `SchemaChanged` where a trigger of the database may change rows or drop them: an answer would differ before and after."""
        name = address.table(table.name).as_string(None)
        found = writer.execute(_TRIGGERS, (name,), step="write rows", table=table.name)
        for trigger, of_updates, internal, _ in found:
            if not internal and not of_updates:
                raise SchemaChanged(table=table.name, difference=f"its trigger {trigger} may change or drop rows that are stored")
        constraints = sorted({constraint for _, _, internal, constraint in found if internal and constraint})
        rows = writer.execute(_KEYS, (name, name, constraints), step="write rows", table=table.name) if constraints else []
        return cls(tuple(map(_foreign_key, rows)), tuple(trigger for trigger, _, internal, _ in found if not internal))

    @property
    def incoming(self) -> tuple[ForeignKey, ...]:
        """Those that refer to the table."""
        return tuple(key for key in self.keys if key.incoming)

    def due(self, later: Collection[sql.Identifier]) -> tuple[sql.Identifier, ...]:
        """Return those that have waited and are to be looked at with this table; where one of the tables `later` refers to it, that is done with that one."""
        return tuple(key.name for key in self.keys if key.deferrable and (key.outgoing or key.holder not in later))

    def refuse_before_update(self, table: TableSchema) -> None:
        """Raise `SchemaChanged` where a trigger may change what an update writes."""
        for trigger in self.before_update:
            raise SchemaChanged(table=table.name, difference=f"its trigger {trigger} may change or drop rows that are stored")

    def put_off(self, writer: PostgresWriter, table: TableSchema) -> None:
        """Let what the table's rows refer to come later in the step, where the database allows it: tables may refer to each other in a circle."""
        own = tuple(key.name for key in self.keys if key.outgoing and key.deferrable)
        set_constraints(writer, own, "DEFERRED", table=table.name)


def _foreign_key(row: Sequence[Any]) -> ForeignKey:
    schema, name, holder_schema, holder, columns, referred, incoming, outgoing, deferrable, on_delete, on_update = row
    return ForeignKey(
        name=sql.Identifier(schema, name),
        holder=sql.Identifier(holder_schema, holder),
        columns=tuple(columns),
        referred=tuple(referred),
        incoming=incoming,
        outgoing=outgoing,
        deferrable=deferrable,
        acts_on_delete=on_delete in _ACTING,
        acts_on_update=on_update in _ACTING,
    )


def set_constraints(writer: PostgresWriter, names: Collection[sql.Identifier], when: str, *, table: str) -> None:
    """Say when foreign keys are looked at, from now until the step ends; IMMEDIATE looks at what was put off."""
    if names:
        writer.execute(sql.SQL("SET CONSTRAINTS {} {}").format(sql.SQL(", ").join(names), sql.SQL(when)), step="commit tables", table=table)


def references(connection: Connection, address: Address, names: Iterable[str]) -> dict[str, set[str]]:
    """Return by table which others of these its rows refer to."""
    query = """SELECT DISTINCT o.relname, r.relname FROM pg_constraint c JOIN pg_class o ON o.oid = c.conrelid JOIN pg_class r ON r.oid = c.confrelid
        WHERE c.contype = 'f' AND c.conrelid <> c.confrelid AND o.relnamespace = to_regnamespace(quote_ident(%s)) AND r.relnamespace = o.relnamespace
          AND o.relname = ANY(%s) AND r.relname = ANY(%s)"""
    known = list(names)
    found: dict[str, set[str]] = {}
    for holder, referred in run(connection, query, (address.tables, known, known)):
        found.setdefault(holder, set()).add(referred)
    return found
