"""The ledger of an embedded warehouse, on SQLite.

In: states with the batches, tables and views that came with them; pins, receipts and losses.
Out: the same, in this process, in others that only read, and after a crash.
Promise: `write_state` is the only commit point: all it was given becomes durable and visible together, or nothing does.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from righttime.changes.faults import CrashPoint, reach
from righttime.changes.position import Commit
from righttime.changes.schema import TableSchema
from righttime.errors import AsOfUnavailable, CommitFailed, WarehouseDamaged, WarehouseReadOnly
from righttime.ledger.database import LEDGER_FILE, Database, open_database
from righttime.ledger.lock import living_writer
from righttime.ledger.receipts import Receipt
from righttime.ledger.state import State
from righttime.settings import Settings

NO_PIN = 0
"""The pin of who may not write here; SQLite's begin at 1."""

_LOSSES_MAX = 10_000
_PRUNE_EVERY_MAX = 256


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch id that a source has committed: the commit, the state it became durable in, its rows over all tables."""

    source: str
    batch_id: str
    commit: Commit
    state: int
    rows: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Commits `first` to `last` of a source that a crash took with it before they were durable."""

    source: str
    first: int
    last: int
    rows: int
    found_us: int

    @property
    def made_again(self) -> bool:
        """Whether nothing is missing: a flow makes lost jobs again from its streams. Their numbers are not used again all the same."""
        return self.source.startswith("flow.")


class Ledger:
    """The book of one warehouse; safe to call from any thread. A read-only one leaves pins and receipts where its process may write."""

    def __init__(self, database: Database, *, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        facts = dict(database.rows("SELECT name, value FROM meta"))
        if not {"warehouse_id", "seal_key"} <= facts.keys():
            raise WarehouseDamaged(path=str(database.folder / LEDGER_FILE), reason="it has lost its identity")
        self.warehouse_id: str = facts["warehouse_id"]
        self.seal_key: bytes = facts["seal_key"]
        self._states_until_prune = 0
        self._receipts_until_prune = 0

    @classmethod
    def open(cls, folder: Path, *, settings: Settings, read_only: bool = False, create: bool = True) -> "Ledger":
        """Open or create the ledger of the warehouse in `folder`; a writer holds the folder's lock until `close`."""
        database = open_database(folder, read_only=read_only, create=create)
        try:
            return cls(database, settings=settings)
        except BaseException:
            database.close()
            raise

    def tables(self) -> list[TableSchema]:
        """Return the declared tables, oldest first."""
        return [TableSchema.from_json(text) for (text,) in self._database.rows("SELECT json FROM declared_table ORDER BY entry")]

    def views(self) -> dict[str, str]:
        """Return the declared views and their queries, oldest first."""
        return dict(self._database.rows("SELECT name, query FROM declared_view ORDER BY entry"))

    def newest_state(self) -> State:
        """Return the newest durable state; in a new warehouse that is the empty state, number 0."""
        state = self._one_state("SELECT json FROM state ORDER BY number DESC LIMIT 1")
        if state is None:
            raise WarehouseDamaged(path=str(self._database.folder / LEDGER_FILE), reason="it has no state")
        return state

    def state(self, number: int) -> State | None:
        """Return the durable state of that number, None if it never was durable or is forgotten."""
        return self._one_state("SELECT json FROM state WHERE number = ?", number)

    def state_around(self, number: int) -> tuple[State | None, State | None]:
        """Return the newest durable state at or below `number` and the oldest at or above it."""
        below = self._one_state("SELECT json FROM state WHERE number <= ? ORDER BY number DESC LIMIT 1", number)
        above = self._one_state("SELECT json FROM state WHERE number >= ? ORDER BY number LIMIT 1", number)
        return below, above

    def write_state(
        self,
        state: State,
        *,
        kind: str,
        batches: Sequence[Batch] = (),
        table: TableSchema | None = None,
        view: tuple[str, str] | None = None,
    ) -> None:
        """Make `state` and all that came with it durable, in one transaction with one fsync. This is the commit point.

        A number at or below the newest, or a batch id that its source has committed before, is refused with `CommitFailed`.
        """
        self._refuse_read_only("write a state")
        with self._database.transaction("ledger", durable=True) as connection:
            _refuse_old_number(connection, state.number)
            connection.execute("INSERT INTO state VALUES (?, ?, ?, ?)", (state.number, state.time_us, kind, state.to_json()))
            if batches:
                _write_batches(connection, batches)
            if table is not None:
                _declare(connection, "declared_table", "json", table.name, table.to_json())
            if view is not None:
                _declare(connection, "declared_view", "query", *view)
            self._prune_states(connection, now_us=state.time_us)
            reach(CrashPoint.LEDGER_BEGUN)
        reach(CrashPoint.LEDGER_COMMITTED)

    def found_out(self, state: State) -> bool:
        """Tell whether a state was made; this ledger is never in doubt."""
        newest = self.newest_state()
        return (newest.number, newest.time_us) == (state.number, state.time_us)

    def last_number(self) -> int:
        """Return the greatest state number that a durable state or a receipt has; later states must be above it."""
        receipts = "SELECT json_extract(json, '$.state') AS state FROM receipt ORDER BY entry DESC LIMIT 1000"
        ((number,),) = self._database.rows(f"SELECT max((SELECT coalesce(max(number), 0) FROM state), (SELECT coalesce(max(state), 0) FROM ({receipts})))")
        return int(number)

    def batch(self, source: str, batch_id: str) -> Batch | None:
        """Return what a source committed under that id, None if nothing, or if it is older than `batches_max` others."""
        query = "SELECT number, time_us, state, rows FROM batch WHERE source = ? AND batch_id = ?"
        for number, time_us, state, rows in self._database.rows(query, (source, batch_id)):
            return Batch(source, batch_id, Commit(number, time_us), state, rows)
        return None

    def save_receipt(self, receipt: Receipt) -> None:
        """Keep a receipt, without an fsync of its own: after a power failure the newest may be missing here, the caller's copy still holds."""
        if not self._database.writable:
            return
        with self._database.transaction("save a receipt", durable=False) as connection:
            connection.execute("INSERT OR IGNORE INTO receipt (receipt_id, json) VALUES (?, ?)", (receipt.receipt_id, receipt.to_json()))
            self._receipts_until_prune -= 1
            if self._receipts_until_prune < 0:
                self._receipts_until_prune = _prune_every(self._settings.receipts_max)
                _prune_entries(connection, "receipt", keep=self._settings.receipts_max)

    def receipt(self, receipt_id: str) -> Receipt | None:
        """Return the receipt of that id as it was saved, unbound."""
        for (text,) in self._database.rows("SELECT json FROM receipt WHERE receipt_id = ?", (receipt_id,)):
            return Receipt.from_json(text)
        return None

    def receipts(self, *, limit: int) -> list[Receipt]:
        """Return the newest receipts, newest first."""
        return [Receipt.from_json(text) for (text,) in self._database.rows("SELECT json FROM receipt ORDER BY entry DESC LIMIT ?", (limit,))]

    def receipts_beginning(self, start: str, *, limit: int) -> list[Receipt]:
        """Return the newest receipts whose ids begin with `start`, newest first."""
        # A range of ids, which the index has; no character comes after the one at its end.
        query = "SELECT json FROM receipt WHERE receipt_id >= ? AND receipt_id < ? ORDER BY entry DESC LIMIT ?"
        return [Receipt.from_json(text) for (text,) in self._database.rows(query, (start, f"{start}\U0010ffff", limit))]

    def add_pin(self, owner: str, state: int, *, expires_us: int) -> int:
        """Hold a state for a reader in any process; `AsOfUnavailable` if it is forgotten already."""
        with self._database.transaction("pin a state", durable=False) as connection:
            (oldest,) = connection.execute("SELECT min(number) FROM state").fetchone()
            if state < oldest:
                raise AsOfUnavailable(asked=f"state {state}", table="*", reason="the ledger has forgotten it", earliest=f"state {oldest}")
            return _insert_pin(connection, owner, state, expires_us)

    def pin_newest(self, owner: str, *, expires_us: int) -> tuple[int, State]:
        """Find the newest durable state and hold it, in one step, so that nothing is collected in between; who may not write here holds nothing."""
        if not self._database.writable:
            return NO_PIN, self.newest_state()
        with self._database.transaction("pin a state", durable=False) as connection:
            number, text = connection.execute("SELECT number, json FROM state ORDER BY number DESC LIMIT 1").fetchone()
            return _insert_pin(connection, owner, number, expires_us), self._decoded(text)

    def renew_pin(self, pin_id: int, *, expires_us: int, now_us: int) -> bool:
        """Hold on until `expires_us`; return False if the pin has ended, because what it held may be gone."""
        if pin_id == NO_PIN:
            return True
        with self._database.transaction("renew a pin", durable=False) as connection:
            cursor = connection.execute("UPDATE pin SET expires_us = ? WHERE pin_id = ? AND expires_us > ?", (expires_us, pin_id, now_us))
            return cursor.rowcount > 0

    def remove_pin(self, pin_id: int) -> None:
        """End a pin; one that has ended already is no error."""
        if pin_id == NO_PIN:
            return
        with self._database.transaction("remove a pin", durable=False) as connection:
            connection.execute("DELETE FROM pin WHERE pin_id = ?", (pin_id,))

    def pinned_states(self, *, now_us: int) -> list[int]:
        """Return the numbers of the states that live pins of all processes hold, ascending."""
        return [number for (number,) in self._database.rows("SELECT DISTINCT state FROM pin WHERE expires_us > ? ORDER BY state", (now_us,))]

    def note_loss(self, losses: Sequence[Loss], *, trace_id: str = "") -> None:
        """Write down what a crash took. With the id of the trace that told it, a second call for that trace changes nothing."""
        self._refuse_read_only("note a loss")
        with self._database.transaction("note a loss", durable=True) as connection:
            if trace_id and connection.execute("SELECT 1 FROM meta WHERE name = 'trace_id' AND value = ?", (trace_id,)).fetchone():
                return
            rows = [(loss.source, loss.first, loss.last, loss.rows, loss.found_us) for loss in losses]
            connection.executemany("INSERT INTO loss (source, first, last, rows, found_us) VALUES (?, ?, ?, ?, ?)", rows)
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('trace_id', ?)", (trace_id,))
            _prune_entries(connection, "loss", keep=_LOSSES_MAX)

    def losses(self) -> list[Loss]:
        """Return the known losses, oldest first; the last ten thousand are kept."""
        return [Loss(*row) for row in self._database.rows("SELECT source, first, last, rows, found_us FROM loss ORDER BY entry")]

    def living_writer(self) -> int | None:
        """Return the process that has this warehouse open for writing, None if there is none."""
        return living_writer(self._database.folder)

    def close(self) -> None:
        """Close the file and give the writer lock back; a second call does nothing."""
        self._database.close()

    def _one_state(self, query: str, *parameters: int) -> State | None:
        rows = self._database.rows(query, parameters)
        return self._decoded(rows[0][0]) if rows else None

    def _decoded(self, text: str) -> State:
        try:
            return State.from_json(text)
        except (ValueError, TypeError, AttributeError) as error:
            raise WarehouseDamaged(path=str(self._database.folder / LEDGER_FILE), reason=f"a state is unreadable ({error})") from error

    def _refuse_read_only(self, action: str) -> None:
        if self._database.read_only:
            raise WarehouseReadOnly(path=str(self._database.folder), action=action)

    def _prune_states(self, connection: sqlite3.Connection, *, now_us: int) -> None:
        self._states_until_prune -= 1
        if self._states_until_prune >= 0:
            return
        self._states_until_prune = _prune_every(self._settings.states_max)
        connection.execute("DELETE FROM pin WHERE expires_us <= ?", (now_us,))
        # A pin may name a state that was never durable; then it needs the durable ones on both sides of it.
        connection.execute(
            """DELETE FROM state
               WHERE number < (SELECT number FROM state ORDER BY number DESC LIMIT 1 OFFSET ?)
                 AND number NOT IN (SELECT coalesce((SELECT max(number) FROM state WHERE number <= pin.state), -1) FROM pin
                                    UNION ALL
                                    SELECT coalesce((SELECT min(number) FROM state WHERE number >= pin.state), -1) FROM pin)""",
            (self._settings.states_max - 1,),
        )
        _prune_entries(connection, "batch", keep=self._settings.batches_max)


def _refuse_old_number(connection: sqlite3.Connection, number: int) -> None:
    (newest,) = connection.execute("SELECT max(number) FROM state").fetchone()
    if newest is not None and number <= newest:
        raise CommitFailed(source="ledger", step="ledger", reason=f"state {number} is not newer than state {newest}")


def _write_batches(connection: sqlite3.Connection, batches: Sequence[Batch]) -> None:
    rows = [(batch.source, batch.batch_id, batch.commit.number, batch.commit.time_us, batch.state, batch.rows) for batch in batches]
    try:
        connection.executemany("INSERT INTO batch (source, batch_id, number, time_us, state, rows) VALUES (?, ?, ?, ?, ?, ?)", rows)
    except sqlite3.IntegrityError as error:
        sources = ", ".join(sorted({batch.source for batch in batches}))
        raise CommitFailed(source=sources, step="ledger", reason=f"a batch id was committed before ({error})") from error


def _declare(connection: sqlite3.Connection, kind: str, column: str, name: str, text: str) -> None:
    connection.execute(f"INSERT INTO {kind} (name, {column}) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET {column} = excluded.{column}", (name, text))


def _insert_pin(connection: sqlite3.Connection, owner: str, state: int, expires_us: int) -> int:
    cursor = connection.execute("INSERT INTO pin (owner, state, expires_us) VALUES (?, ?, ?)", (owner, state, expires_us))
    pin_id: Any = cursor.lastrowid
    return int(pin_id)


def _prune_entries(connection: sqlite3.Connection, table: str, *, keep: int) -> None:
    # Entries are numbered without gaps at the end, so the bound is one look at the newest.
    connection.execute(f"DELETE FROM {table} WHERE entry <= (SELECT max(entry) FROM {table}) - ?", (keep,))


def _prune_every(bound: int) -> int:
    return min(_PRUNE_EVERY_MAX, bound // 4)
