"""The ledger's tables in PostgreSQL: made whole, checked before they are touched.

In: a connection, held by the one who may write, or by a reader.
Out: a schema that exists with all its tables or not at all.
Promise: a schema that is not ours, or newer than us, is left as it was.
"""

import secrets
import uuid

import psycopg

from righttime.errors import NotAWarehouse, WarehouseNewer
from righttime.ledger.postgres_connect import Address, Connection, run
from righttime.ledger.state import EMPTY

FORMAT = 1

# As PostgreSQL 14 takes it: a column's storage is no part of CREATE TABLE before 16.
# minmax is one small row per table, changed by every commit: room on its page lets such changes stay there, without new index entries.
_TABLES = """
CREATE TABLE {0}.meta (name text PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE {0}.state (number bigint PRIMARY KEY, time_us bigint NOT NULL, kind text NOT NULL, json text NOT NULL);
CREATE TABLE {0}.batch (
  entry bigint PRIMARY KEY, source text NOT NULL, batch_id text NOT NULL,
  number bigint NOT NULL, time_us bigint NOT NULL, state bigint NOT NULL, rows bigint NOT NULL, UNIQUE (source, batch_id));
CREATE TABLE {0}.declared_table (entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE, json text NOT NULL);
CREATE TABLE {0}.declared_view (entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE, query text NOT NULL);
CREATE TABLE {0}.receipt (
  entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, receipt_id text NOT NULL UNIQUE, state bigint NOT NULL, json text NOT NULL);
CREATE TABLE {0}.pin (
  pin_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner text NOT NULL, state bigint NOT NULL, expires_us bigint NOT NULL);
CREATE TABLE {0}.loss (
  entry bigint PRIMARY KEY, source text NOT NULL, first bigint NOT NULL, last bigint NOT NULL, rows bigint NOT NULL, found_us bigint NOT NULL);
CREATE TABLE {0}.minmax (
  tablename text PRIMARY KEY, version bigint NOT NULL, state bigint NOT NULL, commit_time timestamptz NOT NULL,
  rows_stored bigint NOT NULL, lanes text NOT NULL) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0);
CREATE TABLE {0}.version (
  tablename text NOT NULL, version bigint NOT NULL, time_us bigint NOT NULL, operation text NOT NULL, batch_id text, PRIMARY KEY (tablename, version));
CREATE TABLE {0}.log (number bigint, part integer, bytes bigint NOT NULL, record bytea NOT NULL, PRIMARY KEY (number, part));
ALTER TABLE {0}.log ALTER COLUMN record SET STORAGE EXTERNAL
"""


def check_ledger(connection: Connection, address: Address) -> bool:
    """Tell whether there is a ledger; raise `NotAWarehouse` or `WarehouseNewer` if it is not one that we know."""
    ((schema, meta),) = run(
        connection,
        "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL, to_regclass(quote_ident(%s) || '.meta') IS NOT NULL",
        (address.ledger, address.ledger),
    )
    if not meta:
        if schema and run(connection, "SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident(%s)) LIMIT 1", (address.ledger,)):
            raise NotAWarehouse(path=address.name, reason=f"its schema {address.ledger!r} holds something else; choose another with ledger_schema")
        return False
    try:
        facts = run(connection, address.ours("SELECT value FROM {0}.meta WHERE name = 'format'"))
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotAWarehouse(path=address.name, reason=f"the role may not read it ({str(error).splitlines()[0]})") from None
    except psycopg.errors.UndefinedColumn:
        facts = []
    if not facts:
        raise NotAWarehouse(path=address.name, reason=f"its schema {address.ledger!r} holds something else; choose another with ledger_schema")
    found = int(bytes(facts[0][0]))
    if found > FORMAT:
        raise WarehouseNewer(path=address.name, found=found, known=FORMAT)
    return True


def known_schema(connection: Connection, address: Address) -> str | None:
    """Return the schema that the warehouse has its tables in, None if there is no warehouse yet."""
    if not check_ledger(connection, address):
        return None
    facts = run(connection, address.ours("SELECT value FROM {0}.meta WHERE name = 'table_schema'"))
    return bytes(facts[0][0]).decode() if facts else None


def has_tables(connection: Connection, address: Address) -> bool:
    """Tell whether a warehouse that is there has declared a table yet."""
    return bool(run(connection, address.ours("SELECT 1 FROM {0}.declared_table LIMIT 1")))


def place_tables(connection: Connection, address: Address) -> None:
    """Have the tables of a warehouse in the schema of the address, as long as it has none; the caller holds the writer lock."""
    query = "UPDATE {0}.meta SET value = %s WHERE name = 'table_schema' AND value <> %s AND NOT EXISTS (SELECT 1 FROM {0}.declared_table)"
    connection.execute(address.ours(query), (address.tables.encode(),) * 2)
    known = known_schema(connection, address)
    if known != address.tables:
        raise NotAWarehouse(path=address.name, reason=f"somebody has begun to have its tables in the schema {known!r}, not in {address.tables!r}")


def create_ledger(connection: Connection, address: Address) -> None:
    """Make the ledger, in one transaction; the caller holds the writer lock."""
    try:
        with connection.transaction():
            # Asked first: CREATE SCHEMA IF NOT EXISTS needs the right to create even where there is nothing to create.
            if not run(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", (address.ledger,)):
                connection.execute(address.ours("CREATE SCHEMA {0}"))
            connection.execute(address.ours(_TABLES))
            facts = [
                ("format", str(FORMAT).encode()),
                ("warehouse_id", uuid.uuid4().hex.encode()),
                ("seal_key", secrets.token_bytes(32)),
                ("table_schema", address.tables.encode()),
            ]
            for fact in facts:
                connection.execute(address.ours("INSERT INTO {0}.meta VALUES (%s, %s)"), fact)
            empty = (EMPTY.number, EMPTY.time_us, EMPTY.to_json())
            connection.execute(address.ours("INSERT INTO {0}.state VALUES (%s, %s, 'created', %s)"), empty)
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotAWarehouse(path=address.name, reason=f"there is none, and the role may not create one ({str(error).splitlines()[0]})") from None
