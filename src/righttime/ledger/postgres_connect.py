"""Connections to the PostgreSQL database of a warehouse.

In: a `postgresql://` address and settings.
Out: connections that all behave alike, whatever the server's and the role's defaults are; psycopg's errors as ours.
Promise: a password is in no name, error or log; every wait for a lock or a connection has a bound.
"""

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import conninfo, sql
from psycopg.pq import TransactionStatus
from pydantic import SecretStr

from righttime.errors import (
    CommitFailed,
    DatabaseUnreachable,
    NotAWarehouse,
    ReferenceBroken,
    RightsMissing,
    RightTimeError,
    SchemaChanged,
    TooManySnapshots,
    WarehouseClosed,
)
from righttime.settings import Settings

Connection = psycopg.Connection[tuple[Any, ...]]
Query = str | sql.SQL | sql.Composed

SERVER_MIN = 140000  # scans of ctid ranges, hashes of ctid
# Which database of which server, as everybody may ask it: two servers, a copy among them, were not started at the same microsecond.
SERVER = "(SELECT extract(epoch FROM pg_postmaster_start_time())::text || '/' || oid::text FROM pg_database WHERE datname = current_database())"
_CONNECT_S = 10
_TABLE_SCHEMA = "public"
_PORTS = frozenset("0123456789,")
_NO_ADDRESS = (
    "this is no address of a PostgreSQL database. Write postgresql://user@host:port/database, with % as %25, / as %2F and @ as %40 where they are"
    " part of a name or a password"
)
# How soon a server that has vanished is given up: while it owes an answer, and while it has not confirmed what was sent, where keepalives do not run.
_GIVE_UP = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 30_000}
# What our reading and writing depends on, against any default of server, database or role.
_SESSION = (
    "SET TimeZone = 'UTC'; SET client_encoding = 'UTF8'; SET DateStyle = 'ISO'; SET extra_float_digits = 1; SET bytea_output = 'hex';"
    "SET standard_conforming_strings = on; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET row_security = off;"
    # The columns of a piece are aggregated side by side: one scan, in the order of the rows.
    "SET synchronize_seqscans = off; SET max_parallel_workers_per_gather = 0; SET default_transaction_read_only = off; SET jit = off"
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the database of a warehouse is. `secret` has everything that is needed to connect and is never shown."""

    name: str
    secret: SecretStr
    tables: str
    ledger: str
    lock_wait_s: float

    @classmethod
    def of(cls, url: str, settings: Settings) -> "Address":
        """Read a `postgresql://` address or a connection string of libpq."""
        parts = _parts(url)
        if parts is None:
            raise NotAWarehouse(path="postgresql://…", reason=_NO_ADDRESS)
        tables = settings.table_schema or _TABLE_SCHEMA
        if tables == settings.ledger_schema:
            raise NotAWarehouse(path=_shown(parts), reason="table_schema and ledger_schema are the same")
        defaults: dict[str, Any] = {"connect_timeout": _CONNECT_S, "application_name": f"righttime {os.getpid()}@{socket.gethostname()}", **_GIVE_UP}
        secret = SecretStr(conninfo.make_conninfo(**{**defaults, **parts}))
        return cls(_shown(parts), secret, tables, settings.ledger_schema, settings.lock_wait_s)

    def ours(self, text: str) -> sql.Composed:
        """Put the ledger's schema into a statement where it says {0}."""
        return sql.SQL(text).format(sql.Identifier(self.ledger))

    def table(self, name: str) -> sql.Identifier:
        """Return the full name of one of the user's tables."""
        return sql.Identifier(self.tables, name)


def connect(address: Address) -> Connection:
    """Open a connection in autocommit mode with the settings that ours rely on; raise `DatabaseUnreachable`."""
    try:
        connection = psycopg.connect(address.secret.get_secret_value(), autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise DatabaseUnreachable(path=address.name, reason=first_line(error)) from None
    try:
        if connection.info.server_version < SERVER_MIN:
            raise NotAWarehouse(path=address.name, reason=f"PostgreSQL {connection.info.server_version // 10000} is too old, 14 is the oldest that fits")
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise NotAWarehouse(path=address.name, reason=f"its encoding is {encoding}, and lengths of texts are those of UTF8 here")
        set_up(connection, lock_wait_s=address.lock_wait_s)
        return connection
    except psycopg.Error as error:
        connection.close()
        raise DatabaseUnreachable(path=address.name, reason=first_line(error)) from None
    except BaseException:
        connection.close()
        raise


def set_up(connection: Connection, *, lock_wait_s: float) -> None:
    """Give a session the settings that our reading and writing depends on."""
    connection.execute(f"{_SESSION}; SET lock_timeout = {round(lock_wait_s * 1000)}".encode())


def run(connection: Connection, query: Query, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows, if it has any."""
    cursor = connection.execute(query, parameters or None)
    return cursor.fetchall() if cursor.description is not None else []


@contextmanager
def coded_errors(address: Address, *, step: str, table: str = "", source: str = "ledger") -> Iterator[None]:
    """Turn psycopg's errors into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise translated(error, address, step=step, table=table, source=source) from error


def translated(error: psycopg.Error, address: Address, *, step: str, table: str = "", source: str = "ledger") -> RightTimeError:
    """Return the error that says in our terms what PostgreSQL refused."""
    if is_lost(error):
        return DatabaseUnreachable(path=address.name, reason=f"the connection broke ({first_line(error)})")
    if error.sqlstate == "42501":
        return RightsMissing(path=address.name, step=step, reason=first_line(error))
    # Undefined table, undefined column, wrong type of column: somebody changed the table under us.
    if error.sqlstate in ("42P01", "42703", "42804") and table:
        return SchemaChanged(table=table, difference=first_line(error))
    if error.sqlstate in ("23503", "23001") and table:
        return ReferenceBroken(table=table, reason=": ".join(filter(None, (first_line(error), error.diag.message_detail))).removesuffix("."))
    if table:
        return CommitFailed(source=source, step=step, reason=f"table {table!r}: {first_line(error)}", table=table)
    return CommitFailed(source=source, step=step, reason=first_line(error))


def is_lost(error: psycopg.Error) -> bool:
    """Tell whether the connection is gone: by libpq, or ended by the server."""
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate is None or (error.sqlstate[:2] in ("08", "57") and error.sqlstate != "57014"))


def first_line(error: BaseException) -> str:
    """Return what an error says, without its details."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _parts(url: str) -> dict[str, Any] | None:
    """Read an address. None if it is none, or if what should be its host, port or database may be the rest of a password that is not escaped.

    Outside of the error that libpq raises, which shows such rests.
    """
    try:
        parts = conninfo.conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        return None
    path = url.partition("://")[2].partition("?")[0].partition("/")[2]
    rest_of_password = "@" in path or "@" in str(parts.get("host") or "")[1:] or not set(str(parts.get("port") or "")) <= _PORTS
    return None if rest_of_password else parts


def _shown(parts: dict[str, Any]) -> str:
    user = f"{quote(str(parts['user']))}@" if parts.get("user") else ""
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{user}{quote(str(parts.get('host') or 'localhost'), safe='')}{port}/{quote(str(parts.get('dbname') or ''))}"


class Pool:
    """At most `connections_max` connections, each for one user at a time; idle ones are used again.

    Who `reserves` some gets one though `connections_max` are taken, as long as no more than so many are taken beyond: those who would otherwise wait
    for others that wait for them.
    """

    def __init__(self, address: Address, *, connections_max: int, wait_s: float, setup: str = "") -> None:
        self.address = address
        self._setup = setup
        self._wait_s = wait_s
        self._max = connections_max
        self._taken = 0
        self._idle: list[Connection] = []
        self._guard = threading.Lock()
        self._freed = threading.Condition(self._guard)
        self._closed = False

    def take(self, *, reserves: int = 0) -> Connection:
        """Return a connection that answers; raise `TooManySnapshots` if none becomes free in time."""
        with self._freed:
            if not self._freed.wait_for(lambda: self._taken < self._max + reserves, timeout=self._wait_s):
                raise TooManySnapshots(held=self._max)
            self._taken += 1
        try:
            return self._working() or self._new()
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        with self._freed:
            self._taken -= 1
            # Those who wait have different bounds.
            self._freed.notify_all()

    def _new(self) -> Connection:
        connection = connect(self.address)
        if self._setup:
            connection.execute(self._setup)
        return connection

    def _working(self) -> Connection | None:
        while True:
            with self._guard:
                if self._closed:
                    raise WarehouseClosed(path=self.address.name)
                if not self._idle:
                    return None
                found = self._idle.pop()
            try:
                # A round trip of some 30 µs; the server may have been restarted since.
                found.execute("")
                return found
            except psycopg.Error:
                found.close()

    def give_back(self, connection: Connection) -> None:
        """Take a connection back; what is open on it ends."""
        try:
            if connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
                connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()
        with self._guard:
            keep = not self._closed and not connection.closed
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        self._release()

    @contextmanager
    def connection(self, *, reserves: int = 0) -> Iterator[Connection]:
        """Lend a connection for a block."""
        connection = self.take(reserves=reserves)
        try:
            yield connection
        finally:
            self.give_back(connection)

    def close(self) -> None:
        """Close what is idle, and the rest as it comes back."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
