"""Making tables in PostgreSQL, and taking over those that exist.

In: declarations, or the name of an existing table.
Out: a table with a row in minmax, at version 0, that no state names yet.
Promise: a table that holds rows, or that somebody else made, is never replaced.
"""

from __future__ import annotations

import pyarrow as pa
from psycopg import sql

from righttime.changes.schema import TableSchema
from righttime.changes.types import stored_as
from righttime.errors import BadTable, TableExists
from righttime.ledger.postgres_connect import Address, Connection, run
from righttime.warehouse.postgres_catalog import declaration
from righttime.warehouse.postgres_types import check_table, sql_type


def create_table(connection: Connection, address: Address, table: TableSchema, *, now_us: int) -> None:
    """Make an empty table; one that a crash left before the ledger knew it is replaced."""
    check_table(table)
    name = address.table(table.name)
    if _is_leftover(connection, address, table):
        connection.execute(sql.SQL("DROP TABLE {}").format(name))
    if not run(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", (address.tables,)):
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(address.tables)))
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(map(_column, table.columns))))
    if table.keys:
        keys = sql.SQL(", ").join(sql.Identifier(key.lower()) for key in table.keys)
        query = "ALTER TABLE {} ADD PRIMARY KEY ({})" if table.unique else "CREATE INDEX ON {} ({})"
        connection.execute(sql.SQL(query).format(name, keys))
    if table.comment is not None:
        connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(name, sql.Literal(table.comment)))
    _note_version(connection, address, table.name, rows=0, operation="CREATE TABLE", now_us=now_us)


def adopt_table(connection: Connection, address: Address, name: str, *, now_us: int) -> tuple[TableSchema, int]:
    """Take over an existing table as it is; return its declaration and its rows."""
    table = declaration(connection, address, name.lower())
    if run(connection, address.ours("SELECT 1 FROM {0}.declared_table WHERE name = %s"), (table.name,)):
        raise TableExists(table=table.name)
    _refuse_unfit(connection, address, table)
    ((rows,),) = run(connection, sql.SQL("SELECT count(*) FROM {}").format(address.table(table.name)))
    _note_version(connection, address, table.name, rows=rows, operation="ADOPT TABLE", now_us=now_us)
    return table, int(rows)


def _refuse_unfit(connection: Connection, address: Address, table: TableSchema) -> None:
    """Refuse values that we cannot hold."""
    for field in table.columns:
        _refuse_unfit_others(connection, address, table, field)
        odd = _odd_values(field.type)
        if odd:
            column = sql.Identifier(field.name)
            found = sql.SQL("SELECT 1 FROM {} WHERE {} IN ({}) LIMIT 1").format(address.table(table.name), column, sql.SQL(", ").join(map(sql.Literal, odd)))
            if run(connection, found):
                raise BadTable(table=table.name, reason=f"column {field.name} holds {' or '.join(odd)}, which has no place outside of PostgreSQL")


def _refuse_unfit_others(connection: Connection, address: Address, table: TableSchema, field: pa.Field) -> None:
    other, column = stored_as(field), sql.Identifier(field.name)
    if other in ("json", "jsonb") and field.name in table.keys:
        raise BadTable(table=table.name, reason=f"column {field.name} is of type {other} and part of the key, and equal values may be different texts")
    if other == "numeric":
        unfit = sql.SQL("SELECT 1 FROM {0} WHERE {1} IN ('NaN', 'Infinity', '-Infinity') OR abs({1}) >= 1e20 OR {1} <> round({1}, 18) LIMIT 1")
        if run(connection, unfit.format(address.table(table.name), column)):
            change = sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE numeric(38, …)").format(address.table(table.name), column).as_string(None)
            reason = (
                f"column {field.name} is numeric and holds a value with more than 20 digits before its point or 18 behind it, or none at all. First {change}"
            )
            raise BadTable(table=table.name, reason=reason)


def _odd_values(kind: pa.DataType) -> tuple[str, ...]:
    if pa.types.is_decimal(kind):
        return ("NaN",)
    return ("infinity", "-infinity") if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else ()


def _is_leftover(connection: Connection, address: Address, table: TableSchema) -> bool:
    """Tell whether the table is what an interrupted creation left; raise if the name is taken otherwise."""
    query = """SELECT to_regclass(quote_ident(%s) || '.' || quote_ident(%s)) IS NOT NULL,
        EXISTS (SELECT 1 FROM {0}.version WHERE tablename = %s AND operation = 'CREATE TABLE'),
        EXISTS (SELECT 1 FROM {0}.declared_table WHERE name = %s)"""
    ((there, ours, declared),) = run(connection, address.ours(query), (address.tables, table.name, table.name, table.name))
    if declared:
        raise TableExists(table=table.name)
    if not there:
        return False
    if not ours:
        raise BadTable(table=table.name, reason=f"it exists in schema {address.tables!r} of the database; take it over with adopt()")
    if run(connection, sql.SQL("SELECT 1 FROM {} LIMIT 1").format(address.table(table.name))):
        raise BadTable(table=table.name, reason="it exists already, with rows")
    return True


def _note_version(connection: Connection, address: Address, name: str, *, rows: int, operation: str, now_us: int) -> None:
    connection.execute(address.ours("DELETE FROM {0}.minmax WHERE tablename = %s"), (name,))
    connection.execute(address.ours("DELETE FROM {0}.version WHERE tablename = %s"), (name,))
    connection.execute(address.ours("INSERT INTO {0}.minmax VALUES (%s, 0, 0, to_timestamp(0), %s, '{{}}')"), (name, rows))
    connection.execute(address.ours("INSERT INTO {0}.version VALUES (%s, 0, %s, %s, NULL)"), (name, now_us, operation))


def _column(field: pa.Field) -> sql.Composed:
    # Lower case, so that statements need no quotes; columns are found again without regard to case.
    return sql.SQL("{} {} {}").format(sql.Identifier(field.name.lower()), sql.SQL(sql_type(field)), sql.SQL("NULL" if field.nullable else "NOT NULL"))
