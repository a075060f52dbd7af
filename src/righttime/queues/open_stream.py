"""One stream as this process has it open: its changes, its living rows, its dead letters, and how far it is complete.

In: the stream's folder; shares of records of the feed log.
Out: plans of appends; everything that readers ask of one stream.
Promise: what is planned changes nothing until the record is in the feed log and `publish` is called.
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from righttime.errors import WarehouseDamaged
from righttime.errors.flows import CommitLate, DeadLettersFull
from righttime.queues.commits import Share, index_plan, index_rows, next_ordinal
from righttime.queues.declared import StreamSchema, StreamStatus
from righttime.queues.history import History
from righttime.queues.index import KeyIndex
from righttime.queues.intake import Given, encoder_of
from righttime.queues.judge import Plan, judge, plan_inserts
from righttime.queues.letters import DeadLetters
from righttime.queues.segments import Segment, SegmentCache
from righttime.queues.times import shown


class OpenStream:
    """State of one stream; the feed lock guards planning, the readers' lock everything that they see."""

    def __init__(self, schema: StreamSchema, folder: Path, cache: SegmentCache, seen: threading.Condition) -> None:
        self.schema = schema
        self.history = History(schema, folder, cache, seen)
        self.encoder = encoder_of(schema)
        self.letters = DeadLetters()
        self.heartbeat_us: int | None = None
        self._index: KeyIndex | None = None
        for segment in reversed(self.history.segments):
            weights, ordinals = (column.to_numpy() for column in pq.read_table(segment.path, columns=["_w", "_ordinal"]).columns)
            self.history.ordinals = next_ordinal(weights > 0, ordinals, 0)
            if self.history.ordinals:
                break

    @property
    def watermark_us(self) -> int | None:
        """Return up to when the stream is complete, None if nothing says so yet."""
        last = self.history.commits.commit(len(self.history.commits))
        times = [time for time in (last.time_us if last else None, self.heartbeat_us) if time is not None]
        return max(times, default=None)

    def plan(self, given: Given, *, time_us: int | None, letters_max: int) -> Plan:
        """Judge an append; raise the first fault, or leave the faults to become dead letters, as the stream was declared."""
        sift = self.schema.on_bad == "dead_letter"
        watermark_us = self.watermark_us
        if time_us is not None and watermark_us is not None and time_us <= watermark_us and len(given.ops):
            reason = f"its time {shown(time_us)} is not after {shown(watermark_us)}, up to which the stream is complete"
            given.blame(np.ones(len(given.ops), dtype=np.bool_), CommitLate, reason)
        self._check_letters(given, letters_max)
        plan = judge(given, self.index(), sift=sift) if self.schema.keys else plan_inserts(given)
        if given.faults and not sift:
            row = min(given.faults)
            raise given.faults[row].kind(stream=self.schema.name, row=row, reason=given.faults[row].reason)
        self._check_letters(given, letters_max)
        return plan

    def _check_letters(self, given: Given, letters_max: int) -> None:
        letters = len(given.faults) + len(self.letters)
        if given.faults and letters > letters_max and self.schema.on_bad == "dead_letter":
            raise DeadLettersFull(stream=self.schema.name, letters=letters, bound=letters_max)

    def index(self) -> KeyIndex:
        """Return the key index, made from all stored changes when it is first needed."""
        if self._index is None:
            index = KeyIndex()
            for part in self.history.parts(0, self.history.last_seq):
                index_rows(index, self.schema, self.history.read([part]))
            self._index = index
        return self._index

    def publish(self, share: Share, stored: pa.Table | Segment, plan: Plan | None) -> None:
        """Show the rows of a commit that is in the feed log, or in a segment."""
        self.history.add(stored, share.commits)
        self.history.ordinals = next_ordinal(share.begins, share.ordinal, self.history.ordinals)
        if plan is not None and self._index is not None:
            index_plan(self._index, plan, share)

    def recover(self, share: Share) -> None:
        """Show the rows of a commit that a record of the feed log has, unless a segment has them already."""
        last_seq = self.history.last_seq
        if share.first_seq + share.rows.num_rows - 1 <= last_seq:
            return
        if share.first_seq != last_seq + 1:
            raise WarehouseDamaged(
                path=self.history.folder, reason=f"changes {last_seq + 1} to {share.first_seq - 1} are in no segment and not in the feed log"
            )
        self.publish(share, share.stored(), None)

    def beat(self, time_us: int) -> None:
        """Note that nothing at or before a time will come any more."""
        self.heartbeat_us = max(time_us, self.heartbeat_us or time_us)

    def state(self) -> dict[str, Any]:
        """Return what is in no segment beside rows, for the first record of a log file."""
        return {"heartbeat_us": self.heartbeat_us, "letters": self.letters.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        self.heartbeat_us = state["heartbeat_us"]
        self.letters.restore(state["letters"])

    def status(self) -> StreamStatus:
        """Return how the stream is."""
        history = self.history
        return StreamStatus(
            name=self.schema.name,
            rows=history.last_seq,
            bytes=history.bytes_held(),
            segments=len(history.segments),
            tail_rows=history.last_seq - history.sealed_seq,
            last=history.commits.commit(len(history.commits)),
            watermark_us=self.watermark_us if self.schema.times == "source" else None,
            dead_letters=len(self.letters),
        )


def is_new(state: dict[str, Any]) -> bool:
    """Tell whether a state is that of a stream that nothing was told to."""
    return state["heartbeat_us"] is None and not state["letters"]["last_number"]
