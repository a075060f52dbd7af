"""A fresh database for one test, on the server of the run, and the parts of a warehouse in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa

from righttime.changes.clock import SystemClock
from righttime.changes.schema import TableSchema
from righttime.ledger.state import LaneState, State, TableState
from righttime.query.postgres_parts import PostgresParts, postgres_parts
from righttime.settings import load_settings
from righttime.warehouse.store import DataFile
from tests.support.postgres import TempPostgres
from tests.support.waits import until


@contextmanager
def fresh_database(server: TempPostgres) -> Iterator[str]:
    """Give the address of an empty database that is gone afterwards."""
    name = f"rt_{uuid4().hex[:12]}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    try:
        yield server.url.rpartition("/")[0] + f"/{name}"
    finally:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def fresh_schemas(server: TempPostgres) -> Iterator[dict[str, Any]]:
    """Give settings for a warehouse in schemas of its own, which are gone afterwards; much faster than a database."""
    name = f"rt_{uuid4().hex[:12]}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    try:
        yield {"table_schema": name, "ledger_schema": f"{name}_ledger"}
    finally:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {name}, {name}_ledger CASCADE".encode())


def reader_of(url: str) -> str:
    """Return the address of a database for somebody who may read all of it and write nothing."""
    with psycopg.connect(url, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = 'rt_reader'").fetchall():
            connection.execute("CREATE ROLE rt_reader LOGIN IN ROLE pg_read_all_data")
    return url.replace("postgres@", "rt_reader@")


def named(server: TempPostgres, name: str) -> str:
    """Return the address of the server for somebody whose connections shall be known by a name, and need not wait for the disk."""
    return f"{server.url}?application_name={name}&options=-csynchronous_commit%3Doff"


def end_sessions(address: str, name: str) -> None:
    """End all connections to a server that go by a name, from the server's side; return when they are gone."""
    with psycopg.connect(address, autocommit=True, application_name="end of others") as connection:
        # The server's own wait for the end looks every 100 ms, at one after the other.
        ended = connection.execute("SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", (name,)).fetchall()
        theirs = [pid for pid, _ in ended]
        until(lambda: connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", (theirs,)).fetchone() is None)


def open_parts(url: str, folder: Path, **settings: Any) -> PostgresParts:
    """Open the parts of a warehouse with its local folder below `folder`."""
    options = {key: settings.pop(key) for key in ("create", "read_only") if key in settings}
    return postgres_parts(url, settings=load_settings(state_dir=folder, **{"lock_wait_s": 5.0, **settings}), clock=SystemClock(), **options)


def next_state(parts: PostgresParts, tables: dict[str, tuple[int, int]] | None = None, **changes: Any) -> State:
    """Return a state after the newest, with tables at (version, rows)."""
    newest = parts.ledger.newest_state()
    states = {**newest.tables}
    for name, (version, rows) in (tables or {}).items():
        states[name] = TableState(name, version, rows, newest.time_us + 1, (LaneState("s", rows, rows, newest.time_us + 1),))
    values = {field: getattr(newest, field) for field in ("row_id", "positions", "log_begin", "log_end", "rows")}
    return State(number=newest.number + 1, time_us=newest.time_us + 1, tables=states, **{**values, **changes})


def create(parts: PostgresParts, table: TableSchema) -> int:
    """Make a table known, as the mover does."""
    version = parts.store.create(table)
    parts.ledger.write_state(next_state(parts, {table.name: (version, 0)}), kind="declare", table=table)
    return version


def add(parts: PostgresParts, table: TableSchema, rows: pa.Table, *, batch_id: str = "b") -> int:
    """Store rows as one state, as the mover does, and return the version."""
    before = parts.ledger.newest_state().tables[table.name]
    files: list[DataFile] = parts.store.write_files(table, rows, batch_id=batch_id)
    version = parts.store.commit(table, files, version=before.version, batch_id=batch_id, batch_number=1)
    parts.ledger.write_state(next_state(parts, {table.name: (version, before.rows_stored + rows.num_rows)}), kind="materialize")
    return version


def everything(parts: PostgresParts, table: TableSchema) -> pa.Table:
    """Return all stored rows of the newest version."""
    held = parts.store.hold([table], {table.name: parts.store.newest_version(table)})
    assert held is not None
    with held:
        return held.rows(table.name)
