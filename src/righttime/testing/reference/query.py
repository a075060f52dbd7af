"""A query at the reference engine: suspended until its job has committed, then free.

In: the job it was bound to.
Out: one snapshot, the same for as long as the query lives.
Promise: what it reads never changes.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from righttime.pipeline.chain import Job

if TYPE_CHECKING:
    from righttime.testing.reference.engine import Engine


class Query:
    """Bound to a job by its arrival. `begin` waits and takes the snapshot; as a context it begins and ends."""

    def __init__(self, engine: "Engine", name: str, job: Job, *, waits: bool = True) -> None:
        self._engine = engine
        self.name, self.job, self.waits = name, job, waits
        self.cancelled = False
        self.snapshot: Mapping[str, Any] | None = None

    def begin(self) -> Mapping[str, Any]:
        """Wait for the permission to begin, take the snapshot and return it."""
        self.snapshot = self._engine.begin(self.name, self.job, waits=self.waits, cancelled=lambda: self.cancelled)
        return self.snapshot

    def cancel(self) -> None:
        """Give up waiting."""
        with self._engine.changed:
            self.cancelled = self._engine.chain.cancel(self.name) or self.cancelled
            self._engine.changed.notify_all()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._engine.end_query()
