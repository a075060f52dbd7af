"""What a handle of a stream is built on: the streams of a warehouse, in this process or behind a service.

In: calls of `Stream`, with times as numbers.
Out: commits, changes, dead letters.
Promise: both sides do the same and raise the same, so that a program changes its address and nothing else.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import pyarrow as pa

from righttime.changes.durations import Duration
from righttime.queues.declared import Appended, ChangesIn, OnBad, StreamCut, StreamSchema, Times


class StreamPort(Protocol):
    """All streams of a warehouse, for those who feed them and look at them."""

    def create(
        self,
        name: str,
        columns: str | pa.Schema,
        *,
        keys: Iterable[str] = (),
        times: Times = "warehouse",
        on_bad: OnBad = "error",
        tolerance: Duration | None = None,
        comment: str | None = None,
        if_not_exists: bool = False,
    ) -> StreamSchema: ...
    def names(self) -> list[str]: ...
    def schema(self, name: str) -> StreamSchema: ...
    def cut(self, name: str, time_us: int) -> StreamCut: ...
    def changes(self, name: str, after_us: int, up_to_us: int) -> pa.Table: ...
    def dead_letters(self, name: str) -> pa.Table: ...
    def append(self, changes: Mapping[str, ChangesIn], *, transaction: str | None = None, time_us: int | None = None) -> Appended: ...
    def heartbeat(self, name: str, time_us: int) -> None: ...
    def replay(self, name: str, numbers: Iterable[int] | None = None, *, time_us: int | None = None) -> Appended: ...
    def discard(self, name: str, numbers: Iterable[int] | None = None) -> int: ...
