"""The seam between the system and whatever keeps its ledger.

In: states with the batches, tables and views that came with them; pins, receipts and losses.
Out: the same, after a crash too.
Promise: `sqlite.Ledger` and `postgres.PostgresLedger` are both a `Book`; nothing above the ledger knows which one it has.
"""

from collections.abc import Sequence
from typing import Protocol

from righttime.changes.schema import TableSchema
from righttime.ledger.receipts import Receipt
from righttime.ledger.sqlite import NO_PIN, Batch, Loss
from righttime.ledger.state import State

__all__ = ["NO_PIN", "Batch", "Book", "Loss"]


class Book(Protocol):
    """The book of one warehouse; safe to call from any thread. A read-only one may still leave pins and receipts."""

    warehouse_id: str
    seal_key: bytes

    def tables(self) -> list[TableSchema]:
        """Return the declared tables, oldest first."""
        ...

    def views(self) -> dict[str, str]:
        """Return the declared views and their queries, oldest first."""
        ...

    def newest_state(self) -> State:
        """Return the newest durable state; in a new warehouse that is the empty state, number 0."""
        ...

    def state(self, number: int) -> State | None:
        """Return the durable state of that number, None if it never was durable or is forgotten."""
        ...

    def state_around(self, number: int) -> tuple[State | None, State | None]:
        """Return the newest durable state at or below `number` and the oldest at or above it."""
        ...

    def write_state(
        self, state: State, *, kind: str, batches: Sequence[Batch] = (), table: TableSchema | None = None, view: tuple[str, str] | None = None
    ) -> None:
        """Make `state` and all that came with it durable, together or not at all. This is the commit point. `CommitUnknown` leaves it in doubt."""
        ...

    def found_out(self, state: State) -> bool:
        """Tell whether a state that is in doubt was made; raise `DatabaseUnreachable` as long as nobody can tell, `WriterLost` if nobody ever will."""
        ...

    def last_number(self) -> int:
        """Return the greatest state number that a durable state or a receipt has; later states must be above it."""
        ...

    def batch(self, source: str, batch_id: str) -> Batch | None:
        """Return what a source committed under that id, None if nothing, or if it is forgotten."""
        ...

    def save_receipt(self, receipt: Receipt) -> None:
        """Keep a receipt; after a power failure the newest may be missing."""
        ...

    def receipt(self, receipt_id: str) -> Receipt | None:
        """Return the receipt of that id as it was saved, unbound."""
        ...

    def receipts(self, *, limit: int) -> list[Receipt]:
        """Return the newest receipts, newest first."""
        ...

    def receipts_beginning(self, start: str, *, limit: int) -> list[Receipt]:
        """Return the newest receipts whose ids begin with `start`, newest first."""
        ...

    def add_pin(self, owner: str, state: int, *, expires_us: int) -> int:
        """Hold a state for a reader in any process; `AsOfUnavailable` if it is forgotten already."""
        ...

    def pin_newest(self, owner: str, *, expires_us: int) -> tuple[int, State]:
        """Find the newest durable state and hold it, in one step; with `NO_PIN` it is not held, for want of the right to write."""
        ...

    def renew_pin(self, pin_id: int, *, expires_us: int, now_us: int) -> bool:
        """Hold on until `expires_us`; return False if the pin has ended."""
        ...

    def remove_pin(self, pin_id: int) -> None:
        """End a pin; one that has ended already is no error."""
        ...

    def pinned_states(self, *, now_us: int) -> list[int]:
        """Return the numbers of the states that live pins of all processes hold, ascending."""
        ...

    def note_loss(self, losses: Sequence[Loss], *, trace_id: str = "") -> None:
        """Write down what a crash took; a second call for the same trace changes nothing."""
        ...

    def losses(self) -> list[Loss]:
        """Return the known losses, oldest first."""
        ...

    def living_writer(self) -> int | None:
        """Return the process that has this warehouse open for writing, None if there is none."""
        ...

    def close(self) -> None:
        """Let go of everything, the right to write too; a second call does nothing."""
        ...
