"""Durable steps as values: what the mover was told to do, and how far it has come.

In: orders of producers, of the keeper and of declarations.
Out: one step, which its phases fill in: files, log record, versions.
Promise: plain values; the mover's lock guards the step that is under way.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from righttime.catalyst.capture import Capture
from righttime.catalyst.ends import Hidden
from righttime.catalyst.links import Link
from righttime.catalyst.log import LogEntry, Record
from righttime.catalyst.messages import Adopted, Bypass
from righttime.changes.schema import TableSchema
from righttime.warehouse.store import DataFile, Removal


@dataclass(frozen=True, slots=True)
class Declared:
    """A new table (at `version`, with `rows` if it was there before) or view that becomes known with a state."""

    table: TableSchema | None = None
    version: int = 0
    rows: int = 0
    view: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What a durable step is to do: commit for `own`, if any, store `tables`, log the rest, over the bound of the log if not `bounded`.
    `confirm` may refuse at the commit point."""

    kind: str
    own: Link | None = None
    tables: Collection[str] = ()
    bypass: Mapping[str, Bypass] = field(default_factory=dict)
    batch_id: str | None = None
    declared: Declared = field(default_factory=Declared)
    confirm: Callable[[], None] | None = None
    bounded: bool = True

    @property
    def source(self) -> str | None:
        return self.own.source if self.own is not None else None


@dataclass(slots=True)
class DurableStep:
    """One durable step under way; `tables` are those of its order that it stores."""

    order: Order
    seen: Capture
    tables: Collection[str]
    phase: str = "write files"
    hidden: dict[str, Hidden] = field(default_factory=dict)
    files: dict[str, list[DataFile]] = field(default_factory=dict)
    removals: dict[str, Removal] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    record: Record | None = None
    entries: list[LogEntry] = field(default_factory=list)

    def by_passing(self, table: str) -> Bypass:
        """Return what goes past the catalyst into a table."""
        return self.order.bypass.get(table, Bypass())

    def adopted(self, table: str) -> Adopted | None:
        """Return the version of another writer that a table gets."""
        return self.by_passing(table).adopted

    @property
    def rows_bypassed(self) -> int:
        """Rows that go past the catalyst, in all tables."""
        return sum(extra.rows for extra in self.order.bypass.values())

    @property
    def rows_own(self) -> int:
        """Rows of the commit under way."""
        return (self.order.own.staged_rows if self.order.own else 0) + self.rows_bypassed
