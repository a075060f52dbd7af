"""The status of an open warehouse, as values.

In: an engine.
Out: per table what is hot and stored, per producer what is unflushed, and how full each bound is.
Promise: reads memory only; starts no Spark and waits for nobody.
"""

from dataclasses import dataclass
from pathlib import Path

from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import MemoryTable
from righttime.changes.position import START
from righttime.reading import Parts
from righttime.roster import read_roster
from righttime.service import Engine
from righttime.settings import Settings


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table; `lag_s` is the age of its oldest committed row that is not stored, 0 if all are."""

    name: str
    version: int
    rows_stored: int
    rows_hot: int
    bytes_memory: int
    bytes_spilled: int
    lag_s: float


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    """One open producer; `waiting_s` is the age of its oldest unflushed commit. Of one `elsewhere`, in another process, only the source,
    the policy and the last durable commit are known."""

    source: str
    policy: str
    last_commit: int
    rows_unflushed: int
    waiting_s: float
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """One moment of a warehouse; `writer` is another process that has it open for writing."""

    path: str
    state: int
    state_durable: int
    tables: tuple[TableStatus, ...]
    producers: tuple[ProducerStatus, ...]
    rows_unsafe: int
    log_bytes: int
    log_bytes_max: int
    memory_bytes_max: int
    spill_bytes_max: int
    queries: int
    commits_lost: int
    writer: int | None = None


def status_of(parts: Engine | Parts, *, name: str, folder: Path, settings: Settings) -> Status:
    """Read the status of a writer's engine or of a reader's parts."""
    catalyst = parts.catalyst
    losses = parts.ledger.losses()
    with catalyst.lock:
        now_us = catalyst.authority.read_us()
        return Status(
            path=name,
            state=catalyst.head.number,
            state_durable=parts.state.number,
            tables=tuple(_table(table, now_us) for _, table in sorted(catalyst.tables.items())),
            producers=_producers(catalyst, now_us) or _elsewhere(parts, folder),
            rows_unsafe=sum(history.rows - parts.state.rows.get(source, 0) for source, history in catalyst.head.sources.items()),
            log_bytes=parts.wal.bytes_held(),
            log_bytes_max=settings.log_bytes_max,
            memory_bytes_max=settings.memory_bytes_max,
            spill_bytes_max=settings.spill_bytes_max,
            queries=len(catalyst.leases),
            commits_lost=sum(loss.last - loss.first + 1 for loss in losses),
            writer=None if isinstance(parts, Engine) else parts.ledger.living_writer(),
        )


def _table(table: MemoryTable, now_us: int) -> TableStatus:
    rows_hot = table.rows_hot()
    oldest = [
        lane.times.time_of(part.piece.id_at(part.start))
        for lane in table.lanes.values()
        for part in list(lane.slices(lane.stored_id + 1, lane.times.committed_id))[:1]
    ]
    return TableStatus(
        table.name, table.version, table.rows_stored, rows_hot, table.bytes_memory, table.bytes_spilled, max(now_us - min(oldest), 0) / 1e6 if oldest else 0.0
    )


def _elsewhere(parts: Engine | Parts, folder: Path) -> tuple[ProducerStatus, ...]:
    if isinstance(parts, Engine):
        return ()
    positions = parts.state.positions
    return tuple(
        ProducerStatus(source, policy, positions.get(source, START).number, 0, 0.0, True)
        for source, policy in sorted(read_roster(folder, living=parts.ledger.living_writer()).items())
    )


def _producers(catalyst: Catalyst, now_us: int) -> tuple[ProducerStatus, ...]:
    return tuple(
        ProducerStatus(
            source,
            link.policy,
            catalyst.head.source(source).last.number,
            link.archived_rows,
            max(now_us - min(link.archived_from.values()), 0) / 1e6 if link.archived_from else 0.0,
        )
        for source, link in sorted(catalyst.links.items())
    )
