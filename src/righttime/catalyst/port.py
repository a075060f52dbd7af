"""The loading port: what a producer asks of the catalyst, in its own process or behind a wire.

In: nothing; these are the words of the seam.
Out: `Port` and `Session`, with one implementation beside the catalyst (`local.py`) and one over Arrow Flight.
Promise: a session belongs to one open producer; a call that raises has changed nothing that a second call could not repeat.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from righttime.catalyst.messages import Bypass, Content, Flush, Made, Published
from righttime.catalyst.table import VERSIONS
from righttime.changes.clock import Clock
from righttime.changes.schema import TableSchema
from righttime.errors import BadSource
from righttime.settings import Settings
from righttime.warehouse.store import DataFile


class Session(Protocol):
    """One open producer, as the catalyst sees it."""

    @property
    def source(self) -> str: ...

    @property
    def apart(self) -> bool:
        """Whether the producer can die without the catalyst; a commit must then be delivered whole, or half of it could stay."""
        ...

    @property
    def staged(self) -> bool:
        """Whether uncommitted rows or operations of this producer are with the catalyst."""
        ...

    def make_room(self, sizes: Mapping[str, int]) -> None:
        """Wait until so many more bytes fit into each table's memory, then raise `CatalystFull`; does nothing where `commit` itself waits."""
        ...

    def commit_lazily(self, rows: Mapping[str, int], *, batch_id: str | None, content: Mapping[str, Sequence[Content]] | None = None) -> Published:
        """Number a commit whose `content` stays with the producer; `rows` counts it by table."""
        ...

    def commit(self, flushes: Sequence[Flush], content: Mapping[str, Sequence[Content]], *, batch_id: str | None) -> Published:
        """Take archives and this transaction in; all of it becomes visible in one state."""
        ...

    def stage(self, flushes: Sequence[Flush], content: Mapping[str, Sequence[Content]]) -> None:
        """Take archives in, and the transaction so far as uncommitted."""
        ...

    def commit_durably(self, bypass: Mapping[str, Bypass], *, store: bool, batch_id: str | None) -> Published:
        """Commit what is staged and what goes past the catalyst; logged, or with `store` in the warehouse."""
        ...

    def flush(self, flushes: Sequence[Flush]) -> None:
        """Take archives in."""
        ...

    def roll_back(self) -> Made | None:
        """Drop what is staged, before anything else happens with the catalyst if it is out of reach now. Return as `made_in_doubt` does."""
        ...

    def made_in_doubt(self) -> Made | None:
        """Return a lazy commit whose answer had not come when it was rolled back, once, if it turns out to be made: the catalyst waits for its rows."""
        ...

    def known_batch(self, batch_id: str) -> Published | None:
        """Return what this source committed under that id."""
        ...

    def await_requests(self, timeout_s: float) -> Mapping[str, int] | None:
        """Wait for queries that need this producer's archives: table to time, empty after the time-out, None once closed. A sign of life."""
        ...

    def close(self) -> None:
        """End the session; what is committed stays."""
        ...


class OpenSession(Protocol):
    """Admits a producer."""

    def __call__(self, source: str, *, policy: str) -> Session: ...


CheckStorable = Callable[[TableSchema, pa.RecordBatch], None]


def anything_goes(table: TableSchema, rows: pa.RecordBatch) -> None:
    """Refuse nothing: a Delta table holds whatever its columns do."""


def known_at_commit(table: str) -> None:
    """Refuse nothing: what flows keep is known where the catalyst is, which refuses it when it is committed."""


def nothing_is(name: str) -> bool:
    """Know of no stream."""
    return False


@dataclass(frozen=True, slots=True)
class Port:
    """What a producer works with; put together by the service, or by the client of one.

    `check_storable` refuses values that fit the table and that its store could never hold, `check_writable` tables that a flow keeps. `is_stream`
    tells of a name that no table has whether a stream has it.
    """

    schemas: Mapping[str, TableSchema]
    settings: Settings
    clock: Clock
    open_session: OpenSession
    stage_df: Callable[[TableSchema, Any], list[DataFile]]
    read_files: Callable[[TableSchema, Sequence[DataFile]], pa.Table]
    drop_files: Callable[[TableSchema, Sequence[DataFile]], None]
    own_query: Callable[..., Any]
    producers_changed: Callable[[], None]
    check_storable: CheckStorable = anything_goes
    check_writable: Callable[[str], None] = known_at_commit
    is_stream: Callable[[str], bool] = nothing_is


def checked_source(name: object) -> str:
    """Return a producer's name, or raise `BadSource`."""
    if isinstance(name, str) and (name.startswith(("delta.", "flow.")) or name == VERSIONS):
        raise BadSource(
            source=name, reason="names that begin with delta. or flow. are for adopted versions and for flows, and * for versions that updates make"
        )
    if not isinstance(name, str) or not name.strip() or not _fits(name):
        raise BadSource(source=name, reason="a name is 1 to 190 bytes of text")
    return name


def _fits(name: str) -> bool:
    try:
        return len(name.encode()) <= 190
    except UnicodeEncodeError:  # half characters are no text: they could not be written down
        return False
