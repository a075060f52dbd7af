"""The one connection that writes a PostgreSQL warehouse: it holds the writer lock, and one transaction at a time.

In: statements of one durable step, from store, log and ledger in turn.
Out: all of them committed by `publish`, or none.
Promise: whoever has the lock is the only writer; a connection that broke is replaced only if nobody else has written meanwhile, and a
commit that was under way is then looked up, later if need be: nothing is written before it is known. What an interrupted step left open never
becomes part of the next one.
"""

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg

from righttime.errors import CommitFailed, CommitUnknown, DatabaseUnreachable, NotAWarehouse, RightTimeError, WarehouseClosed, WarehouseLocked, WriterLost
from righttime.ledger.postgres_connect import Address, Connection, Query, connect, first_line, is_lost, run, set_up, translated
from righttime.ledger.postgres_schema import check_ledger, create_ledger, place_tables
from righttime.telemetry import get_log

log = get_log("writer")

_State = tuple[int, int]
"""A state's number and time: another process may make one of the same number, but not at the same time."""

_MOMENT_S = 0.5
_LOCK_SPACE = 0x52544C31  # "RTL1": the first half of the advisory lock's key, the second stands for the ledger's schema


class PostgresWriter:
    """Shared by the store, the log and the ledger of one warehouse; the mover's lock orders their steps."""

    def __init__(self, address: Address, connection: Connection) -> None:
        self.address = address
        self._connection: Connection | None = connection
        self._guard = threading.RLock()
        self._session = _session_of(connection)
        self._known = _newest_state(connection, address)
        self._in_doubt: _State | None = None
        self._after_doubt: list[Callable[[], None]] = []
        self._open = False
        self._lost: str | None = None
        self._versions: dict[str, int] = {}
        self._unfinished: set[str] = set()
        self._afterwards: list[Callable[[], None]] = []

    @classmethod
    def open(cls, address: Address, *, create: bool) -> "PostgresWriter":
        """Take the writer lock, making the ledger first where `create` allows; raise `WarehouseLocked` naming the holder."""
        connection = connect(address)
        try:
            # The server ends the session of a process that was killed a moment later; whoever is started in its place need not fail for that.
            set_up(connection, lock_wait_s=min(_MOMENT_S, address.lock_wait_s))
            _lock(connection, address)
            set_up(connection, lock_wait_s=address.lock_wait_s)
            if not check_ledger(connection, address):
                if not create:
                    raise NotAWarehouse(path=address.name, reason=f"it has no schema {address.ledger!r}")
                create_ledger(connection, address)
            place_tables(connection, address)
            return cls(address, connection)
        except BaseException:
            connection.close()
            raise

    # -- a step ------------------------------------------------------------------------------------------------------

    def execute(self, query: Query, parameters: Sequence[Any] = (), *, step: str, table: str = "") -> list[tuple[Any, ...]]:
        """Run a statement in the step's transaction and return its rows."""
        with self._statement(step=step, table=table) as connection:
            return run(connection, query, parameters)

    def change(self, query: Query, parameters: Sequence[Any] = (), *, step: str, table: str = "") -> int:
        """Run a statement in the step's transaction and return how many rows it changed."""
        with self._statement(step=step, table=table) as connection:
            return connection.execute(query, parameters or None).rowcount

    def copy(self, query: Query, blocks: Iterable[bytes | memoryview], *, step: str, table: str = "") -> int:
        """Run a COPY FROM STDIN in the step's transaction and return how many rows the table took; an error of `blocks` ends the step too."""
        with self._statement(step=step, table=table) as connection, connection.cursor() as cursor:
            with cursor.copy(query) as copying:
                for block in blocks:
                    copying.write(block)
            return cursor.rowcount

    def wrote(self, token: str) -> None:
        """Note that rows were written which `made` has to name before the step may be published."""
        with self._guard:
            self._unfinished.add(token)

    def made(self, table: str, version: int, tokens: Iterable[str]) -> None:
        """Note that the step makes `version` of a table, of the rows that `tokens` name."""
        with self._guard:
            self._versions[table] = version
            self._unfinished.difference_update(tokens)

    def holds(self, token: str) -> bool:
        """Tell whether rows of that token are in the open transaction."""
        with self._guard:
            return self._open and token in self._unfinished

    def pending(self, table: str) -> int | None:
        """Return the version of a table that the open step has made, None if it has made none."""
        with self._guard:
            return self._versions.get(table)

    @contextmanager
    def lend(self, *, step: str = "read", table: str = "") -> Iterator[Connection]:
        """Let somebody use the step's transaction: to read what it has written, or to try something."""
        with self._statement(step=step, table=table) as connection:
            yield connection

    def afterwards(self, work: Callable[[], None]) -> None:
        """Let `work` be done once the step is published; never if it is rolled back."""
        with self._guard:
            self._afterwards.append(work)

    def refuse_leftovers(self, versions: Mapping[str, int]) -> None:
        """Raise `CommitFailed`, ending the transaction, if it holds rows or versions that the step to be published does not know."""
        with self._guard:
            odd = {table: version for table, version in self._versions.items() if versions.get(table) != version}
            if odd or self._unfinished:
                self.roll_back()
                raise CommitFailed(source="ledger", step="ledger", reason="an interrupted step had left rows in the transaction; they are gone now")

    def publish(self, number: int, time_us: int) -> None:
        """Commit the step as state `number` of that time: the commit point. If the connection breaks meanwhile, find out on another one; `CommitUnknown`
        if that fails, too, and `found_out` has to be asked before anything else is written."""
        with self._guard:
            connection = self._begun()
            try:
                connection.execute("COMMIT")
            except psycopg.Error as error:
                if not is_lost(error):
                    self.roll_back()
                    raise translated(error, self.address, step="commit") from error
                connection.close()
                self._in_doubt, self._after_doubt = (number, time_us), [*self._afterwards]
                self._forget_step()
                self._find_out(number, error)
                return
            self._known = (number, time_us)
            afterwards, self._afterwards = self._afterwards, []
            self._forget_step()
        for work in afterwards:
            work()

    def found_out(self) -> bool:
        """Tell whether the commit in doubt did happen; raise `DatabaseUnreachable` as long as nobody can tell, `WriterLost` if somebody else has written."""
        with self._guard:
            state = self._in_doubt
            assert state is not None, "nothing is in doubt"
            self._connection, newest = self._looked_up(self._known, state)
            self._in_doubt = None
            afterwards, self._after_doubt = self._after_doubt, []
            if newest != state:
                return False
            self._known = state
        for work in afterwards:
            work()
        return True

    def _find_out(self, number: int, error: psycopg.Error) -> None:
        """Return if the state in doubt was committed before the connection broke; otherwise raise what is true."""
        try:
            happened = self.found_out()
        except WriterLost as cause:
            raise CommitUnknown(source="ledger", reason=f"state {number}: {cause.context['reason']}") from error
        except RightTimeError as cause:
            reason = f"the connection to {self.address.name} broke while state {number} was committed, and it could not be looked up ({cause.code})"
            raise CommitUnknown(source="ledger", reason=reason) from error
        if not happened:
            raise CommitFailed(source="ledger", step="commit", reason="the connection broke; looked up: it was not committed") from error

    def roll_back(self) -> None:
        """End the step's transaction, if there is one, without a trace."""
        with self._guard:
            connection = self._connection
            if self._open and connection is not None and not connection.closed:
                try:
                    connection.execute("ROLLBACK")
                except psycopg.Error:
                    connection.close()
            self._forget_step()

    def alone(self, query: Query, parameters: Sequence[Any] = (), *, step: str) -> None:
        """Run one statement as a transaction of its own, whose loss in a crash would do no harm; only between steps."""
        with self._guard:
            if self._open:
                self.execute(query, parameters, step=step)
                return
            connection = self._working()
            try:
                with connection.transaction():
                    connection.execute("SET LOCAL synchronous_commit = off")
                    run(connection, query, parameters)
            except psycopg.Error as error:
                raise translated(error, self.address, step=step) from error

    def close(self) -> None:
        """Give the lock back; a second call does nothing."""
        with self._guard:
            connection, self._connection = self._connection, None
            self._forget_step()
            if connection is not None:
                _unlock(connection, self.address)
                connection.close()

    @contextmanager
    def _statement(self, *, step: str, table: str) -> Iterator[Connection]:
        with self._guard:
            connection = self._begun()
            try:
                yield connection
            except psycopg.Error as error:
                self.roll_back()
                raise translated(error, self.address, step=step, table=table) from error
            except BaseException:
                self.roll_back()
                raise

    def _forget_step(self) -> None:
        self._open = False
        self._versions.clear()
        self._unfinished.clear()
        self._afterwards.clear()

    def _begun(self) -> Connection:
        connection = self._working()
        if self._open:
            return connection
        for again in (True, False):
            try:
                connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
                break
            except psycopg.Error as error:
                if not is_lost(error) or not again:
                    raise translated(error, self.address, step="begin") from error
                # It broke while nothing was under way, so the step has lost nothing.
                connection.close()
                connection = self._working()
        self._open = True
        return connection

    # -- a broken connection -----------------------------------------------------------------------------------------

    def _working(self) -> Connection:
        if self._lost is not None:
            raise WriterLost(path=self.address.name, reason=self._lost)
        if self._connection is None:
            raise WarehouseClosed(path=self.address.name)
        if self._in_doubt is not None:
            raise DatabaseUnreachable(path=self.address.name, reason=f"whether state {self._in_doubt[0]} was committed is not known yet")
        if self._connection.closed:
            was_open = self._open
            self._forget_step()
            if was_open:
                raise DatabaseUnreachable(path=self.address.name, reason="the connection broke during a step")
            self._connection, _ = self._looked_up(self._known)
        return self._connection

    def _looked_up(self, *possible: _State) -> tuple[Connection, _State]:
        """Return a new connection with the lock, and the newest state; `WriterLost`, for ever, if that is none of ours or somebody else has the lock."""
        if self._lost is not None:
            raise WriterLost(path=self.address.name, reason=self._lost)
        try:
            connection, newest = self._locked()
        except WarehouseLocked as error:
            self._lost = f"its connection broke, and another process has the lock now ({error.context['pid']})"
            raise WriterLost(path=self.address.name, reason=self._lost) from None
        if newest not in possible:
            connection.close()
            self._lost = f"its connection broke, and another process wrote state {newest[0]}"
            raise WriterLost(path=self.address.name, reason=self._lost)
        return connection, newest

    def _locked(self) -> tuple[Connection, _State]:
        """Return a new connection with the lock, and the newest state; raise `WarehouseLocked`, or `DatabaseUnreachable` whatever the server says."""
        connection = connect(self.address)
        try:
            self._lock_again(connection)
            newest, self._session = _newest_state(connection, self.address), _session_of(connection)
            return connection, newest
        except psycopg.Error as error:
            connection.close()
            raise DatabaseUnreachable(path=self.address.name, reason=first_line(error)) from error
        except BaseException:
            connection.close()
            raise

    def _lock_again(self, connection: Connection) -> None:
        # A network that drops a connection tells the server nothing: our old session would keep the lock for hours.
        _end_session(connection, self._session)
        try:
            _lock(connection, self.address)
        except WarehouseLocked:
            if _end_session(connection, self._session):
                raise DatabaseUnreachable(path=self.address.name, reason="the session whose connection broke has not ended yet") from None
            raise


def lock_holder(connection: Connection, address: Address) -> tuple[int, str] | None:
    """Return process and name of the backend that has the writer lock, None if nobody has it."""
    found = run(
        connection,
        """SELECT l.pid, coalesce(a.application_name, ''), coalesce(host(a.client_addr), 'local')
           FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
           WHERE l.locktype = 'advisory' AND l.granted AND l.classid = %s::bigint::oid AND l.objid = %s::bigint::oid AND l.objsubid = 2
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())""",
        (_LOCK_SPACE, _lock_key(address) & 0xFFFFFFFF),
    )
    return (int(found[0][0]), f"{found[0][1]} from {found[0][2]}".strip()) if found else None


def _lock(connection: Connection, address: Address) -> None:
    try:
        run(connection, "SELECT pg_advisory_lock(%s::int, %s::int)", (_LOCK_SPACE, _lock_key(address)))
        return
    except psycopg.errors.LockNotAvailable:
        pass
    pid, name = lock_holder(connection, address) or (0, "unknown")
    raise WarehouseLocked(path=address.name, pid=f"{pid} of the database server ({name})", host=address.name)


def _session_of(connection: Connection) -> tuple[int, datetime]:
    """Return what names this session and never another one: numbers of processes are used again."""
    ((pid, start),) = run(connection, "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()")
    return int(pid), start


def _end_session(connection: Connection, session: tuple[int, datetime]) -> bool:
    """End a session, whoever may; return whether it was there."""
    try:
        return bool(run(connection, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s", session))
    except psycopg.errors.InsufficientPrivilege:
        return True


def _unlock(connection: Connection, address: Address) -> None:
    """Give the lock back at once: the server ends a session some time after its connection is closed, and whoever opens next would find it locked."""
    try:
        connection.rollback()
        run(connection, "SELECT pg_advisory_unlock(%s::int, %s::int)", (_LOCK_SPACE, _lock_key(address)))
    except psycopg.Error as error:
        log.info("writer.unlock_failed", reason=str(error))  # the connection is broken: then the lock is gone, or goes with the session


def _lock_key(address: Address) -> int:
    number = zlib.crc32(address.ledger.encode())
    return number - (1 << 32) if number >= 1 << 31 else number


def _newest_state(connection: Connection, address: Address) -> _State:
    newest = run(connection, address.ours("SELECT number, time_us FROM {0}.state ORDER BY number DESC LIMIT 1"))
    return (int(newest[0][0]), int(newest[0][1])) if newest else (-1, 0)
