"""Standing snapshots: one state, asked as often as a user likes.

In: questions over the tables of a snapshot that was taken before.
Out: answers, each with a receipt of its own; all of them at one cut.
Promise: whatever is committed, stored or collected meanwhile, every answer is of the same state; after the lease has lapsed there is none at all.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from righttime.errors import BadFreshness, LeaseExpired, NotInSnapshot, RightTimeError
from righttime.query.answer import Answer
from righttime.query.contract import Contract
from righttime.query.statement import split_currency

if TYPE_CHECKING:
    from righttime.query.consumer import Consumer


class StandingSnapshot:
    """One state of some tables. Safe to use from any thread; close it, or use it in a `with` block: until then its rows and files are kept."""

    def __init__(self, consumer: "Consumer", contract: Contract, snapshot: Any, held: ExitStack) -> None:
        self._consumer = consumer
        self._contract = contract
        self._snapshot = snapshot
        self._held = held
        self._taken_s = time.monotonic()
        self._idle = threading.Condition()
        self._asking = 0
        self._closed = False

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that it has."""
        return tuple(sorted(self._snapshot.tables))

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def sql(self, query: str, *, parameters: Sequence[Any] | None = None) -> Answer:
        """Answer a SELECT over tables of the snapshot, and views over them."""
        text, bound_us = split_currency(query)
        if bound_us is not None:
            raise BadFreshness(value="CURRENCY BOUND", what="freshness", reason="the snapshot is taken; say how fresh it must be when you take it")
        return self._consumer.sql_on(text, self._contract, parameters or (), self._asked)

    def read(self, table: str, *, columns: Sequence[str] | None = None) -> Answer:
        """Answer with a whole table, or some of its columns, without Spark."""
        return self._consumer.read_on(table, columns, self._contract, self._asked)

    def close(self) -> None:
        """Let the state go, once the questions under way are answered."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            try:
                self._idle.wait_for(lambda: self._asking == 0)
            except BaseException:  # Ctrl-C: nothing is let go yet, and it can be closed again
                self._closed = False
                raise
        try:
            self._held.close()
        except LeaseExpired:
            return  # every answer was of rows that were held; what lapsed since is nobody's loss

    def _keep(self, more: ExitStack) -> None:
        """Hold something more, until the state was let go."""
        more.push(self._held)
        self._held = more

    @contextmanager
    def _asked(self, tables: Sequence[str]) -> Iterator[Any]:
        """Give one question the tables it asks for."""
        with self._idle:
            if self._closed:
                raise LeaseExpired(reason="the snapshot was closed")
            self._asking += 1
        try:
            for name in tables:
                if name not in self._snapshot.tables:
                    raise NotInSnapshot(table=name, known=", ".join(self.tables) or "no table")
            yield self._snapshot.only(tables)
        except RightTimeError:
            self._refuse_lapsed()  # files and rows are gone then, which is no damage
            raise
        else:
            self._refuse_lapsed()
        finally:
            with self._idle:
                self._asking -= 1
                self._idle.notify_all()

    def _refuse_lapsed(self) -> None:
        if not self._snapshot.live():
            raise LeaseExpired.after(time.monotonic() - self._taken_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<StandingSnapshot of {', '.join(self.tables)}{' (closed)' if self._closed else ''}>"
