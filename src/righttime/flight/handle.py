"""Handles of warehouses that services have: what they do the same way for one service and for several.

In: queries of users.
Out: answers, made in this process's Spark.
Promise: a handle that is closed says so, whatever is asked of it.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from righttime.catalyst.face import ProducerFace
from righttime.errors import RightTimeError, WarehouseClosed
from righttime.flight.reading import RemoteConsumer
from righttime.flows.face import NoFlows
from righttime.pipeline.spark import SparkOwner
from righttime.query.consumer import Consumer
from righttime.query.face import Found, Handle
from righttime.query.standing import StandingSnapshot


class ServiceHandle(Handle, NoFlows):
    """A warehouse that is open elsewhere; those that make one give it a consumer and a Spark of its own."""

    _consumer: RemoteConsumer
    _spark: SparkOwner
    _guard: threading.RLock
    _standing: list[StandingSnapshot]

    @property
    @abstractmethod
    def path(self) -> str:
        """Where the warehouse is."""

    @property
    def spark(self) -> Any:
        """The Spark session that queries run in, started now if need be."""
        self._refuse_closed()
        return self._spark.session()

    @property
    def read_only(self) -> bool:
        """Whether this handle only reads; what a token allows is the service's to say."""
        return False

    @property
    @abstractmethod
    def _is_closed(self) -> bool: ...

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise WarehouseClosed(path=self.path)

    @property
    def _reading(self) -> RemoteConsumer:
        self._refuse_closed()
        return self._consumer

    def _ask(self, question: Callable[[Consumer], Found]) -> Found:
        return question(self._reading)

    def _hold(self, take: Callable[[Consumer], StandingSnapshot]) -> StandingSnapshot:
        standing = take(self._reading)
        with self._guard:
            self._standing = [*(known for known in self._standing if not known.closed), standing]
            if not self._is_closed:
                return standing
        standing.close()
        raise WarehouseClosed(path=self.path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}{' (closed)' if self._is_closed else ''}>"


def close_opened(opened: Iterable[ProducerFace | StandingSnapshot]) -> None:
    """Close all of them, even where one cannot deliver what it has; then say so."""
    failed: RightTimeError | None = None
    for one in opened:
        try:
            one.close()
        except RightTimeError as error:
            failed = failed or error
    if failed is not None:
        raise failed
