"""The catalyst's side of producers: their links, and what they flush, stage, commit and roll back.

In: commits, flushes and rollbacks of producers; requests of queries, which producers wait for.
Out: rows and operations in the lanes of their sources, commits in the head.
Promise: whatever one call makes visible becomes visible at once, in one state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition

from righttime.catalyst.links import Link
from righttime.catalyst.memory import CatalystMemory
from righttime.catalyst.messages import Content, Flush, Published
from righttime.changes.position import Commit
from righttime.errors import BadSource, NotLazy, ProducerClosed
from righttime.errors.flows import TableMaintained, TableTapped


class ProducerSide(CatalystMemory):
    """What producers, through their sessions, ask of the catalyst."""

    def open_link(self, source: str, *, policy: str) -> Link:
        """Admit a producer; a source has one producer at a time."""
        with self.lock:
            self._refuse_closing(source)
            if source in self.links:
                raise BadSource(source=source, reason="it has an open producer")
            if source not in self.head.sources and len(self.head.sources) >= self._settings.sources_max:
                raise BadSource(
                    source=source, reason=f"the warehouse knows {len(self.head.sources)} sources, which is the bound (sources_max); use their names again"
                )
            link = self.links[source] = Link(source, Condition(self.lock), policy, alive_s=self.clock.monotonic_s())
            self._slots.setdefault(source, self._trace.slot(source))
            return link

    def close_link(self, link: Link) -> None:
        """Let a producer go; its history stays."""
        with self.lock:
            link.closed = True
            self.links.pop(link.source, None)
            link.asked.notify_all()
            self.arrivals.notify_all()

    def await_requests(self, link: Link, timeout_s: float) -> dict[str, int] | None:
        """Wait for what queries ask of a producer and note that it is alive; None once it is closed."""
        with self.lock:
            if not link.requests and not link.closed:
                link.asked.wait(timeout=timeout_s)
            if link.closed:
                return None
            link.alive_s = self.clock.monotonic_s()
            requests = dict(link.requests)
            link.requests.clear()
            return requests

    @contextmanager
    def gated(self, tables: Sequence[str]) -> Iterator[None]:
        """Let nobody commit lazily to these tables as long as the block lasts; such commits come at once instead."""
        with self.lock:
            self.gates.update(tables)
        try:
            yield
        finally:
            with self.lock:
                self.gates.subtract(tables)

    def commit_lazily(self, link: Link, rows: Mapping[str, int], *, batch_id: str | None = None) -> Commit:
        """Number a commit whose rows stay with the producer; from here on queries know that they have to ask for them."""
        with self.lock:
            self._refuse_closing(link.source)
            self.refuse_maintained(link, rows)
            gated = next((table for table in rows if self.gates[table] > 0), None)
            if gated is not None:
                raise NotLazy(table=gated)
            commit = self._number(link, self.authority.next_us(), rows=sum(rows.values()))
            link.alive_s = self.clock.monotonic_s()
            link.archive([table for table, count in rows.items() if count], commit.time_us, rows=sum(rows.values()))
            for table, count in rows.items():
                self._note_tapped(table, commit.time_us, count)
            if batch_id is not None:
                self.head.note_batch(link.source, batch_id, commit, batches_max=self._settings.batches_max)
            return commit

    def flush(self, link: Link, flushes: Iterable[Flush]) -> int:
        """Take archived commits in; they become visible together. Return the state."""
        with self.lock:
            self._take(link, flushes)
            self.arrivals.notify_all()
            return self.head.advance()

    def commit(self, link: Link, flushes: Iterable[Flush], rows: Mapping[str, Sequence[Content]], *, batch_id: str | None = None) -> Published:
        """Take archives and the rows of this commit in, all visible together in one new state."""
        with self.lock:
            self._refuse_closing(link.source)
            self.refuse_maintained(link, rows)
            self._take(link, flushes)
            count = self._stage(link, rows)
            published = self.finish(link, self.authority.next_us(), rows=count, batch_id=batch_id)
            self.arrivals.notify_all()
            return published

    def stage(self, link: Link, flushes: Iterable[Flush], rows: Mapping[str, Sequence[Content]]) -> None:
        """Take archives in, and the rows of an open transaction as uncommitted: only their own producer can read those."""
        with self.lock:
            self.refuse_halted()  # what is staged may be part of a commit in doubt, and stays as it is
            self.refuse_maintained(link, rows)
            self._take(link, flushes)
            link.staged_rows += self._stage(link, rows)
            self.head.advance()
            self.arrivals.notify_all()

    def finish(self, link: Link, time_us: int, *, rows: int, batch_id: str | None) -> Published:
        """Commit everything staged for this producer at `time_us`; the lock is held by the caller or taken here."""
        with self.lock:
            for name, staged in link.staged.items():
                table = self.tables[name]
                table.lane(link.source).commit(time_us)
                self._note_tapped(name, time_us, staged)
                table.changes += 1  # others see these rows only now, so whoever was tried before has to be tried again
            if link.staged:
                self.space.notify_all()  # committed rows can be spilled
            link.staged.clear()
            commit = self._number(link, time_us, rows=rows + link.staged_rows)
            link.staged_rows = 0
            if batch_id is not None:
                self.head.note_batch(link.source, batch_id, commit, batches_max=self._settings.batches_max)
            return Published(commit, self.head.advance())

    def roll_back(self, link: Link) -> None:
        """Drop the uncommitted rows of this producer."""
        with self.lock:
            for name in link.staged:
                table = self.tables[name]
                lane = table.lane(link.source)
                held = lane.operations_nbytes
                table.discount(lane.roll_back())
                table.bytes_operations -= held - lane.operations_nbytes
                table.rows_unstored -= link.staged[name]
                table.changes += 1
            link.staged.clear()
            link.staged_rows = 0
            self.head.advance()
            self.space.notify_all()

    def _take(self, link: Link, flushes: Iterable[Flush]) -> None:
        for flush in flushes:
            table = self.table(flush.table)
            lane = table.lane(link.source)
            assert not lane.uncommitted or not flush.commits, "archived rows must come before uncommitted ones (O3)"
            for time_us, chunks in flush.commits:
                self._add(table, lane, chunks)
                lane.commit(time_us)
                link.archived_rows -= sum(chunk.rows for chunk in chunks)
            if flush.watermark_us is not None:
                lane.watermark(flush.watermark_us)
            if flush.next_us is None:
                link.archived_from.pop(flush.table, None)
            else:
                link.archived_from[flush.table] = flush.next_us
            if flush.table in self.tapped:
                self.tapped[flush.table].arrived()

    def _stage(self, link: Link, rows: Mapping[str, Sequence[Content]]) -> int:
        count = 0
        for name, parts in rows.items():
            if parts:
                table = self.table(name)
                lane = table.lane(link.source)
                self._add(table, lane, parts)
                lane.times.uncommitted_id = lane.last_id
                staged = sum(part.rows for part in parts)
                link.staged[name] = link.staged.get(name, 0) + staged
                count += staged
        return count

    def refuse_maintained(self, link: Link | None, tables: Iterable[str]) -> None:
        """Refuse rows for a table that a flow maintains: it is what the flow makes of its streams, and nothing else."""
        for table in tables:
            flow = self.maintained.get(table)
            if flow is not None and flow is not link:
                raise TableMaintained(table=table, flow=flow.source.removeprefix("flow."))

    def refuse_tapped(self, table: str) -> None:
        """Refuse what would get into a table without its stream."""
        with self.lock:
            if table in self.tapped:
                raise TableTapped(table=table, version=self.table(table).version)

    def _refuse_closing(self, source: str) -> None:
        """Refuse what would be acknowledged and then lost: the last look at what has to be safe is under way, or nothing can be made safe any more."""
        if self.closing:
            raise ProducerClosed(source=source)
        if self.halted is not None:
            self.refuse_halted()
