"""The status of an open warehouse, as values.

In: an engine.
Out: per table what is hot and stored, per producer what is unflushed, per flow what waits, per stream what came, and how full each bound is.
Promise: reads memory, and for a reader the files of streams; starts no Spark and waits for nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from righttime.catalyst.maintainer import Maintainer
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import MemoryTable
from righttime.changes.position import START
from righttime.flows.jobs import FlowStatus
from righttime.queues.peek import Peeked, peek
from righttime.reading import Parts
from righttime.roster import read_roster
from righttime.service import Engine
from righttime.settings import Settings


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table; `rows_hot` counts living versions that are not stored, `lag_s` is the age of the oldest committed row among them, 0 if all are stored.
    `bytes_leased`, of memory and spill files, are of rows that are stored and still here because queries read them."""

    name: str
    version: int
    rows_stored: int
    rows_hot: int
    bytes_memory: int
    bytes_spilled: int
    lag_s: float
    bytes_leased: int = 0


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
class StreamSummary:
    """One stream; `watermark_us` is up to when its source has delivered, 0 if it has nothing, None if the warehouse gives the times: it is always complete.

    `unpulled` are rows and operations that only its table has, if it is the stream of one.
    """

    name: str
    changes: int
    last_commit_us: int | None
    watermark_us: int | None
    dead_letters: int
    unpulled: int = 0


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
    flows: tuple[FlowStatus, ...] = ()
    streams: tuple[StreamSummary, ...] = ()


def status_of(parts: Engine | Parts, *, name: str, folder: Path, settings: Settings) -> Status:
    """Read the status of a writer's engine or of a reader's parts."""
    catalyst = parts.catalyst
    if isinstance(parts, Engine):
        flows, streams = tuple(parts.flows.status()), _streams(parts)
    else:
        peeked = peek(folder / "streams")
        flows, streams = parts.catalyst.flows.status(peeked), _streams_elsewhere(peeked, parts.catalyst.flows.unpulled(peeked))
    losses = [loss for loss in parts.ledger.losses() if not loss.made_again]
    with catalyst.lock:
        now_us = catalyst.authority.read_us()
        return Status(
            path=name,
            state=catalyst.head.number,
            state_durable=parts.state.number,
            tables=tuple(_table(catalyst, table, now_us) for _, table in sorted(catalyst.tables.items())),
            producers=_producers(catalyst, now_us) or _elsewhere(parts, folder),
            rows_unsafe=sum(history.rows - parts.state.rows.get(source, 0) for source, history in catalyst.head.sources.items()),
            log_bytes=parts.wal.bytes_held(),
            log_bytes_max=settings.log_bytes_max,
            memory_bytes_max=settings.memory_bytes_max,
            spill_bytes_max=settings.spill_bytes_max,
            queries=len(catalyst.leases),
            commits_lost=sum(loss.last - loss.first + 1 for loss in losses),
            writer=None if isinstance(parts, Engine) else parts.ledger.living_writer(),
            flows=flows,
            streams=streams,
        )


def _table(catalyst: Catalyst, table: MemoryTable, now_us: int) -> TableStatus:
    rows_hot = table.rows_hot()
    oldest = [
        lane.times.time_of(part.piece.id_at(part.start))
        for lane in table.lanes.values()
        for part in lane.slices(lane.stored_id + 1, lane.times.committed_id)[:1]
    ]
    return TableStatus(
        name=table.name,
        version=table.version,
        rows_stored=table.rows_stored,
        rows_hot=rows_hot,
        bytes_memory=table.bytes_memory,
        bytes_spilled=table.bytes_spilled,
        lag_s=max(now_us - min(oldest), 0) / 1e6 if oldest else 0.0,
        bytes_leased=catalyst.bytes_leased(table),
    )


def _elsewhere(parts: Engine | Parts, folder: Path) -> tuple[ProducerStatus, ...]:
    if isinstance(parts, Engine):
        return ()
    positions = parts.state.positions
    return tuple(
        ProducerStatus(source, policy, positions.get(source, START).number, 0, 0.0, True)
        for source, policy in sorted(read_roster(folder, living=parts.ledger.living_writer()).items())
    )


def _streams(engine: Engine) -> tuple[StreamSummary, ...]:
    streams = engine.flows.feed.streams
    unpulled = engine.flows.taps.unpulled(streams.names(), 0)
    return tuple(
        StreamSummary(
            one.name, one.rows, None if one.last is None else one.last.time_us, streams.watermark_us(one.name), one.dead_letters, unpulled.get(one.name, 0)
        )
        for one in streams.status()
    )


def _streams_elsewhere(peeked: Mapping[str, Peeked], unpulled: Mapping[str, int]) -> tuple[StreamSummary, ...]:
    return tuple(StreamSummary(name, one.rows, one.last_us or None, one.complete_us, len(one.letters), unpulled[name]) for name, one in sorted(peeked.items()))


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
        if not isinstance(link, Maintainer)
    )
