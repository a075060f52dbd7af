"""Producers as loaders hold them: what is the same at one catalyst and at several.

In: queries of a loader on its own transaction, and the end of a `with` block.
Out: calls of the producer's hooks.
Promise: a block that ends well commits what is open, one that raises drops it; either way the producer ends.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from righttime.catalyst.messages import Published
from righttime.changes.durations import Duration

Ask = Callable[..., Any]


class ProducerFace:
    """What a producer does the same way, wherever its tables are."""

    _closed: bool

    def sql(
        self,
        query: str,
        *,
        freshness: Duration | None = None,
        wait: Duration | None = None,
        on_late: str = "error",
        parameters: Sequence[Any] | None = None,
        ask: Ask | None = None,
    ) -> Any:
        """Answer a query on what is committed, under the same contract as `Warehouse.sql`, and on the rows of this transaction.

        `ask` is who answers it: a connection to a PostgreSQL warehouse has the database answer; None is Spark.
        """
        return self._answer_own(query, ask, freshness=freshness, wait=wait, on_late=on_late, parameters=parameters or ())

    @abstractmethod
    def _answer_own(self, query: str, ask: Ask | None, **options: Any) -> Any:
        """Answer a query with the rows of the open transaction in it."""

    @property
    def closed(self) -> bool:
        """Whether the producer has ended."""
        return self._closed

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether there are rows or operations that are neither committed nor rolled back."""

    @abstractmethod
    def commit(self) -> Published:
        """Commit the transaction."""

    @abstractmethod
    def close(self) -> None:
        """Flush what is committed, drop what is not, and end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None and not self._closed and self.in_transaction:
                self.commit()
        finally:
            self.close()
