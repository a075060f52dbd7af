"""The ledger of a warehouse in PostgreSQL.

In: states with the batches, tables and views that came with them; pins, receipts and losses.
Out: the same, in this process, in others that only read, and after a crash.
Promise: `write_state` is the only commit point: it publishes the writer's open transaction, with the rows that store and log wrote in it.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg

from righttime.changes.faults import CrashPoint, reach
from righttime.changes.position import Commit
from righttime.changes.schema import TableSchema
from righttime.errors import AsOfUnavailable, CommitFailed, NotAWarehouse, WarehouseDamaged, WarehouseReadOnly
from righttime.ledger.book import Batch, Loss
from righttime.ledger.postgres_connect import Address, Connection, Pool, coded_errors, run
from righttime.ledger.postgres_schema import check_ledger
from righttime.ledger.postgres_writer import PostgresWriter, lock_holder
from righttime.ledger.receipts import Receipt
from righttime.ledger.state import State, TableState
from righttime.settings import Settings

_LOSSES_MAX = 10_000
_PRUNE_EVERY_MAX = 256
_LEDGER_CONNECTIONS = 4
_T = TypeVar("_T")


class PostgresLedger:
    """The book of one warehouse; safe to call from any thread. Without a writer it is read-only, and may still leave pins and receipts."""

    def __init__(self, address: Address, writer: PostgresWriter | None, *, settings: Settings) -> None:
        self.address = address
        self._writer = writer
        self._settings = settings
        # What is written beside the writer is small and may be lost in a power failure; a loss that is noted asks for more.
        self._pool = Pool(address, connections_max=_LEDGER_CONNECTIONS, wait_s=settings.lock_wait_s, setup="SET synchronous_commit = off")
        self._states_until_prune = 0
        self._receipts_until_prune = 0
        self._written: dict[str, TableState] = {}
        try:
            with self._pool.connection() as connection:
                if not check_ledger(connection, address):
                    raise NotAWarehouse(path=address.name, reason=f"it has no schema {address.ledger!r}", nothing_there=True)
            facts = {name: bytes(value) for name, value in self._rows("SELECT name, value FROM {0}.meta")}
            if not {"warehouse_id", "seal_key"} <= facts.keys():
                raise WarehouseDamaged(path=address.name, reason="its ledger has lost its identity")
        except BaseException:
            self._pool.close()
            raise
        self.warehouse_id: str = facts["warehouse_id"].decode()
        self.seal_key: bytes = facts["seal_key"]

    def tables(self) -> list[TableSchema]:
        """Return the declared tables, oldest first."""
        return [TableSchema.from_json(text) for (text,) in self._rows("SELECT json FROM {0}.declared_table ORDER BY entry")]

    def views(self) -> dict[str, str]:
        """Return the declared views and their queries, oldest first."""
        return dict(self._rows("SELECT name, query FROM {0}.declared_view ORDER BY entry"))

    def newest_state(self) -> State:
        """Return the newest durable state; in a new warehouse that is the empty state, number 0."""
        state = self._one_state("SELECT json FROM {0}.state ORDER BY number DESC LIMIT 1")
        if state is None:
            raise WarehouseDamaged(path=self.address.name, reason="its ledger has no state")
        return state

    def state(self, number: int) -> State | None:
        """Return the durable state of that number, None if it never was durable or is forgotten."""
        return self._one_state("SELECT json FROM {0}.state WHERE number = %s", number)

    def state_around(self, number: int) -> tuple[State | None, State | None]:
        """Return the newest durable state at or below `number` and the oldest at or above it."""
        below = self._one_state("SELECT json FROM {0}.state WHERE number <= %s ORDER BY number DESC LIMIT 1", number)
        above = self._one_state("SELECT json FROM {0}.state WHERE number >= %s ORDER BY number LIMIT 1", number)
        return below, above

    def write_state(
        self, state: State, *, kind: str, batches: Sequence[Batch] = (), table: TableSchema | None = None, view: tuple[str, str] | None = None
    ) -> None:
        """Make `state`, all that came with it and all rows of the writer's transaction durable together. This is the commit point.

        A number at or below the newest, or a batch id that its source has committed before, is refused with `CommitFailed`.
        """
        writer = self._for_writing("write a state")
        writer.refuse_leftovers({name: found.version for name, found in state.tables.items()})
        self._refuse_old_number(writer, state.number)
        self._write(writer, "INSERT INTO {0}.state VALUES (%s, %s, %s, %s)", (state.number, state.time_us, kind, state.to_json()))
        self._write_batches(writer, batches)
        if table is not None:
            self._declare(writer, "declared_table", "json", table.name, table.to_json())
        if view is not None:
            self._declare(writer, "declared_view", "query", *view)
        changed = {name: found for name, found in state.tables.items() if self._written.get(name) != found}
        self._write_minmax(writer, state, list(changed.values()))
        self._prune_states(writer, now_us=state.time_us)
        reach(CrashPoint.LEDGER_BEGUN)
        writer.publish(state.number, state.time_us)
        self._written.update(changed)
        reach(CrashPoint.LEDGER_COMMITTED)

    def found_out(self, state: State) -> bool:
        """Tell whether a state in doubt was made; raise `DatabaseUnreachable` as long as nobody can tell, `WriterLost` if somebody else has written."""
        return self._for_writing("look a state up").found_out()

    def last_number(self) -> int:
        """Return the greatest state number that a durable state or a receipt has; later states must be above it."""
        receipts = "SELECT state FROM {0}.receipt ORDER BY entry DESC LIMIT 1000"
        ((number,),) = self._rows(f"SELECT greatest((SELECT max(number) FROM {{0}}.state), (SELECT max(state) FROM ({receipts}) newest), 0)")
        return int(number)

    def batch(self, source: str, batch_id: str) -> Batch | None:
        """Return what a source committed under that id, None if nothing, or if it is older than `batches_max` others."""
        query = "SELECT number, time_us, state, rows FROM {0}.batch WHERE source = %s AND batch_id = %s"
        for number, time_us, state, rows in self._rows(query, source, batch_id):
            return Batch(source, batch_id, Commit(number, time_us), state, rows)
        return None

    def save_receipt(self, receipt: Receipt) -> None:
        """Keep a receipt, without waiting for the disk: after a power failure the newest may be missing here, the caller's copy still holds."""
        self._receipts_until_prune -= 1
        prune = self._receipts_until_prune < 0
        if prune:
            self._receipts_until_prune = _prune_every(self._settings.receipts_max)

        def save(connection: Connection) -> None:
            row = (receipt.receipt_id, receipt.state, receipt.to_json())
            connection.execute(self.address.ours("INSERT INTO {0}.receipt (receipt_id, state, json) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"), row)
            if prune:
                oldest = "DELETE FROM {0}.receipt WHERE entry <= (SELECT max(entry) FROM {0}.receipt) - %s"
                connection.execute(self.address.ours(oldest), (self._settings.receipts_max,))

        self._lightly("save a receipt", save, together=False)

    def receipt(self, receipt_id: str) -> Receipt | None:
        """Return the receipt of that id as it was saved, unbound."""
        for (text,) in self._rows("SELECT json FROM {0}.receipt WHERE receipt_id = %s", receipt_id):
            return Receipt.from_json(text)
        return None

    def receipts(self, *, limit: int) -> list[Receipt]:
        """Return the newest receipts, newest first."""
        return [Receipt.from_json(text) for (text,) in self._rows("SELECT json FROM {0}.receipt ORDER BY entry DESC LIMIT %s", limit)]

    def receipts_beginning(self, start: str, *, limit: int) -> list[Receipt]:
        """Return the newest receipts whose ids begin with `start`, newest first."""
        query = "SELECT json FROM {0}.receipt WHERE starts_with(receipt_id, %s) ORDER BY entry DESC LIMIT %s"
        return [Receipt.from_json(text) for (text,) in self._rows(query, start, limit)]

    def add_pin(self, owner: str, state: int, *, expires_us: int) -> int:
        """Hold a state for a reader in any process; `AsOfUnavailable` if it is forgotten already."""

        def pin(connection: Connection) -> int:
            ((oldest,),) = run(connection, self.address.ours("SELECT min(number) FROM {0}.state"))
            if state < oldest:
                raise AsOfUnavailable(asked=f"state {state}", table="*", reason="the ledger has forgotten it", earliest=f"state {oldest}")
            return self._insert_pin(connection, owner, state, expires_us)

        return self._lightly("pin a state", pin)

    def pin_newest(self, owner: str, *, expires_us: int) -> tuple[int, State]:
        """Find the newest durable state and hold it, in one step, so that it is not forgotten in between."""

        def pin(connection: Connection) -> tuple[int, str]:
            ((number, text),) = run(connection, self.address.ours("SELECT number, json FROM {0}.state ORDER BY number DESC LIMIT 1"))
            return self._insert_pin(connection, owner, number, expires_us), text

        pin_id, text = self._lightly("pin a state", pin)
        return pin_id, self._decoded(text)

    def renew_pin(self, pin_id: int, *, expires_us: int, now_us: int) -> bool:
        """Hold on until `expires_us`; return False if the pin has ended, because what it held may be gone."""
        query = self.address.ours("UPDATE {0}.pin SET expires_us = %s WHERE pin_id = %s AND expires_us > %s RETURNING pin_id")
        return bool(self._lightly("renew a pin", lambda connection: run(connection, query, (expires_us, pin_id, now_us)), together=False))

    def remove_pin(self, pin_id: int) -> None:
        """End a pin; one that has ended already is no error."""
        query = self.address.ours("DELETE FROM {0}.pin WHERE pin_id = %s")
        self._lightly("remove a pin", lambda connection: run(connection, query, (pin_id,)), together=False)

    def pinned_states(self, *, now_us: int) -> list[int]:
        """Return the numbers of the states that live pins of all processes hold, ascending."""
        return [number for (number,) in self._rows("SELECT DISTINCT state FROM {0}.pin WHERE expires_us > %s ORDER BY state", now_us)]

    def note_loss(self, losses: Sequence[Loss], *, trace_id: str = "") -> None:
        """Write down what a crash took. With the id of the trace that told it, a second call for that trace changes nothing."""
        self._for_writing("note a loss")

        def note(connection: Connection) -> None:
            known = run(connection, self.address.ours("SELECT value FROM {0}.meta WHERE name = 'trace_id'"))
            if trace_id and known and bytes(known[0][0]) == trace_id.encode():
                return
            last = self.address.ours(
                "INSERT INTO {0}.loss SELECT coalesce((SELECT max(entry) FROM {0}.loss), 0) + 1, %s::text, %s::bigint, %s::bigint, %s::bigint, %s::bigint"
            )
            for loss in losses:
                connection.execute(last, (loss.source, loss.first, loss.last, loss.rows, loss.found_us))
            fact = "INSERT INTO {0}.meta VALUES ('trace_id', %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
            connection.execute(self.address.ours(fact), (trace_id.encode(),))
            connection.execute(self.address.ours("DELETE FROM {0}.loss WHERE entry <= (SELECT max(entry) FROM {0}.loss) - %s"), (_LOSSES_MAX,))

        self._lightly("note a loss", note, durable=True)

    def losses(self) -> list[Loss]:
        """Return the known losses, oldest first; the last ten thousand are kept."""
        return [Loss(*row) for row in self._rows("SELECT source, first, last, rows, found_us FROM {0}.loss ORDER BY entry")]

    def living_writer(self) -> int | None:
        """Return the server's process that serves the writer of this warehouse, None if there is none."""
        with coded_errors(self.address, step="read"), self._pool.connection() as connection:
            holder = lock_holder(connection, self.address)
        return None if holder is None else holder[0]

    def close(self) -> None:
        """Close the connections and give the writer lock back; a second call does nothing."""
        self._pool.close()
        if self._writer is not None:
            self._writer.close()

    # -- writing -----------------------------------------------------------------------------------------------------

    def _for_writing(self, action: str) -> PostgresWriter:
        if self._writer is None:
            raise WarehouseReadOnly(path=self.address.name, action=action)
        return self._writer

    def _write(self, writer: PostgresWriter, query: Any, parameters: Sequence[Any]) -> int:
        return writer.change(self.address.ours(query), parameters, step="ledger")

    def _refuse_old_number(self, writer: PostgresWriter, number: int) -> None:
        ((newest,),) = writer.execute(self.address.ours("SELECT max(number) FROM {0}.state"), step="ledger")
        if newest is not None and number <= newest:
            writer.roll_back()
            raise CommitFailed(source="ledger", step="ledger", reason=f"state {number} is not newer than state {newest}")

    def _write_batches(self, writer: PostgresWriter, batches: Sequence[Batch]) -> None:
        if not batches:
            return
        columns = list(zip(*((b.source, b.batch_id, b.commit.number, b.commit.time_us, b.state, b.rows) for b in batches), strict=True))
        query = """INSERT INTO {0}.batch SELECT coalesce((SELECT max(entry) FROM {0}.batch), 0) + place, source, batch_id, number, time_us, state, rows
            FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
              WITH ORDINALITY AS new (source, batch_id, number, time_us, state, rows, place)"""
        try:
            self._write(writer, query, [list(column) for column in columns])
        except CommitFailed as error:
            if not isinstance(error.__cause__, psycopg.errors.UniqueViolation):
                raise
            sources = ", ".join(sorted({batch.source for batch in batches}))
            raise CommitFailed(source=sources, step="ledger", reason=f"a batch id was committed before ({error.context['reason']})") from error

    def _declare(self, writer: PostgresWriter, kind: str, column: str, name: str, text: str) -> None:
        query = f"INSERT INTO {{0}}.{kind} (name, {column}) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET {column} = excluded.{column}"
        self._write(writer, query, (name, text))

    def _write_minmax(self, writer: PostgresWriter, state: State, tables: Sequence[TableState]) -> None:
        """Say in each table's row what its stored version has; the store has raised the version already, if the step made a new one."""
        if not tables:
            return
        lanes = [json.dumps({lane.source: [lane.stored_id + 1, lane.visible_id] for lane in table.lanes}) for table in tables]
        query = """UPDATE {0}.minmax SET state = %s, commit_time = to_timestamp(%s / 1e6), rows_stored = new.rows_stored, lanes = new.lanes
            FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::text[]) AS new (tablename, version, rows_stored, lanes)
            WHERE minmax.tablename = new.tablename AND minmax.version = new.version"""
        parameters = (state.number, state.time_us, [t.name for t in tables], [t.version for t in tables], [t.rows_stored for t in tables], lanes)
        found = self._write(writer, query, parameters)
        if found != len(tables):
            writer.roll_back()
            names = ", ".join(sorted(table.name for table in tables))
            raise CommitFailed(source="ledger", step="ledger", reason=f"the database has another version of one of {names}")

    def _prune_states(self, writer: PostgresWriter, *, now_us: int) -> None:
        self._states_until_prune -= 1
        if self._states_until_prune >= 0:
            return
        self._states_until_prune = _prune_every(self._settings.states_max)
        self._write(writer, "DELETE FROM {0}.pin WHERE expires_us <= %s", (now_us,))
        # A pin may name a state that was never durable; then it needs the durable ones on both sides of it.
        self._write(
            writer,
            """DELETE FROM {0}.state
               WHERE number < (SELECT number FROM {0}.state ORDER BY number DESC LIMIT 1 OFFSET %s)
                 AND number NOT IN (SELECT coalesce((SELECT max(number) FROM {0}.state WHERE number <= pin.state), -1) FROM {0}.pin
                                    UNION ALL
                                    SELECT coalesce((SELECT min(number) FROM {0}.state WHERE number >= pin.state), -1) FROM {0}.pin)""",
            (self._settings.states_max - 1,),
        )
        # Entries are numbered without gaps, so the bound is one look at the newest.
        self._write(writer, "DELETE FROM {0}.batch WHERE entry <= (SELECT max(entry) FROM {0}.batch) - %s", (self._settings.batches_max,))
        forgotten = "DELETE FROM {0}.version v USING {0}.minmax m WHERE v.tablename = m.tablename AND v.version <= m.version - %s"
        self._write(writer, forgotten, (self._settings.states_max,))

    # -- reading, and small things beside the writer -----------------------------------------------------------------

    def _rows(self, query: Any, *parameters: Any) -> list[tuple[Any, ...]]:
        with coded_errors(self.address, step="read"), self._pool.connection() as connection:
            return run(connection, self.address.ours(query), parameters)

    def _lightly(self, step: str, work: Callable[[Connection], _T], *, together: bool = True, durable: bool = False) -> _T:
        """Run a small transaction beside the writer's; if its statements need not be done `together`, each by itself."""
        with coded_errors(self.address, step=step), self._pool.connection() as connection:
            if not together:
                return work(connection)
            with connection.transaction():
                if durable:
                    connection.execute("SET LOCAL synchronous_commit = on")
                return work(connection)

    def _insert_pin(self, connection: Connection, owner: str, state: int, expires_us: int) -> int:
        query = self.address.ours("INSERT INTO {0}.pin (owner, state, expires_us) VALUES (%s, %s, %s) RETURNING pin_id")
        return int(run(connection, query, (owner, state, expires_us))[0][0])

    def _one_state(self, query: str, *parameters: int) -> State | None:
        rows = self._rows(query, *parameters)
        return self._decoded(rows[0][0]) if rows else None

    def _decoded(self, text: str) -> State:
        try:
            return State.from_json(text)
        except (ValueError, TypeError, AttributeError) as error:
            raise WarehouseDamaged(path=self.address.name, reason=f"a state of its ledger is unreadable ({error})") from error


def _prune_every(bound: int) -> int:
    return min(_PRUNE_EVERY_MAX, bound // 4)
