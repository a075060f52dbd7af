"""Flows of a warehouse that this process only reads: what their targets lack, as far as files tell.

In: the catalogue of flows, the files of streams, the commits of a durable state.
Out: maintainers that know what is missing; statuses and explanations of flows that do not run here.
Promise: writes and locks nothing. A target is called fresh only if its streams, and the tables that are streams, have nothing that it lacks.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from righttime.catalyst.maintainer import Maintainer
from righttime.catalyst.messages import Accuracy
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.tapped import commits_after
from righttime.flows.catalogue import FlowEntry
from righttime.flows.explain import Explanation, FlowNeed
from righttime.flows.jobs import FlowStatus
from righttime.flows.letters import letters_kept
from righttime.ledger.receipts import StreamCommit, StreamReceipt
from righttime.queues.declared import StreamCommit as QueueCommit
from righttime.queues.peek import Peeked, peek

_FOREVER_US = 2**62
_NOT_LOADED = "its streams have changes that the flow has not loaded, and no flow runs here: `righttime run` loads them"
_ONLY_READS = "this handle only reads"


class FlowsElsewhere:
    """The flows that files tell of; the catalyst's lock guards their maintainers."""

    def __init__(self, catalyst: Catalyst, entries: Iterable[FlowEntry], streams_in: Path) -> None:
        self._catalyst = catalyst
        self._streams_in = streams_in
        self._attended: list[tuple[Maintainer, FlowEntry]] = []
        self._seen: Mapping[str, Peeked] = {}
        for entry in entries:
            link = catalyst.maintain(entry.source, entry.generation(self._last_job(entry)).targets)
            link.backlog_us, link.trouble = _FOREVER_US, _NOT_LOADED  # nobody knows what they lack until somebody asks
            link.refresh()
            self._attended.append((link, entry))

    def look(self, tables: Sequence[str]) -> None:
        """Note what the streams behind these tables have, on disk and at this moment."""
        wanted = self._behind(tables)
        if not wanted:
            return
        self._seen = streams = peek(self._streams_in)
        with self._catalyst.lock:
            for link, entry in wanted:
                self._note(link, [streams[name] for name in self._streams_of(entry) if name in streams])

    def _note(self, link: Maintainer, read: Sequence[Peeked]) -> None:
        lacking = self._lacking_from(read, link.horizon_us)
        waiting = [time_us for stream in read for time_us, _ in self._unpulled(stream)]
        sources = [stream for stream in read if stream.complete_us is not None and stream.schema.table is None]
        link.backlog_from_us, link.backlog_us = lacking or 0, max([0, *(stream.last_us for stream in read), *waiting])
        link.tolerance_us = min((stream.schema.tolerance_us or 0 for stream in sources), default=0)
        link.arrived_us, link.late_stream = min(((stream.complete_us, stream.schema.name) for stream in sources), default=(None, ""))
        link.trouble = _NOT_LOADED if link.backlog_us > link.horizon_us else _ONLY_READS
        link.refresh()

    def _unpulled(self, stream: Peeked, after_us: int = 0) -> list[tuple[int, int]]:
        """Return the commits to the table of a stream that it does not have, as (time, rows)."""
        memory = self._catalyst.tables.get(stream.schema.table or "")
        return [] if memory is None else commits_after(memory, max(stream.complete_us or 0, after_us))

    def unpulled(self, streams: Mapping[str, Peeked]) -> dict[str, int]:
        """Return by stream the rows that came to its table, and that it does not have."""
        with self._catalyst.lock:
            return {name: sum(rows for _, rows in self._unpulled(stream)) for name, stream in streams.items()}

    def stream_cuts(self, tables: Sequence[str], accuracy: Accuracy) -> tuple[StreamReceipt, ...]:
        """Return where an answer over `tables` cuts the streams that flows made them of; nothing while a writer may have more than its files tell."""
        cuts = []
        for _, entry in () if accuracy.unknown else self._behind(tables):
            with self._catalyst.lock:
                # What no job has taken is outside, whatever time the answer has.
                job = self._catalyst.head.source(entry.source).cut(entry.source, accuracy.time_of(entry.source)).last_inside
            if job.number and job.number < entry.generations[0].first_job:
                continue  # of a state that was built anew since, and nobody knows what it was made of
            for name in (name for name in entry.generation(job.number).streams if name in self._seen):
                commits = self._seen[name].commits
                inside, outside = (commits.commit(commits.up_to(job.time_us) + further) for further in (0, 1))
                cuts.append(StreamReceipt(name, entry.name, _in_receipt(inside), _in_receipt(outside)))
        return tuple(cuts)

    def status(self, streams: Mapping[str, Peeked]) -> tuple[FlowStatus, ...]:
        """Return the flows: their last durable job, and what their streams have since. Its jobs are known to the one who runs it."""
        found = []
        with self._catalyst.lock:
            now_us = self._catalyst.authority.read_us()
            for link, entry in self._attended:
                names = self._streams_of(entry)
                read = [streams[name] for name in names if name in streams]
                rows = sum(self._lacking(read, link.horizon_us, _FOREVER_US).values())
                first_us = self._lacking_from(read, link.horizon_us)
                lag_s = 0.0 if first_us is None else max(now_us - first_us, 0) / 1e6
                letters = letters_kept(entry.name, self._catalyst.tables)
                found.append(FlowStatus(entry.name, False, "", names, link.tables, 0, rows, link.horizon_us, lag_s, (), dead_letters=letters))
        return tuple(found)

    def explain(self, tables: Sequence[str], *, freshness_us: int) -> Explanation:
        """Return what a query over `tables` would be answered on and lack, if it came now; `look` was called."""
        with self._catalyst.lock:
            asked_us = self._catalyst.authority.read_us()
            cut_us = self._catalyst.planned_cut(asked_us - freshness_us, tables, asked_us=asked_us)
            needs = [self._need(link, entry, tables, cut_us) for link, entry in self._behind(tables) if not link.exact(cut_us)]
        return Explanation(tuple(tables), freshness_us / 1e6, cut_us, not needs, tuple(needs), ())

    def _need(self, link: Maintainer, entry: FlowEntry, tables: Sequence[str], cut_us: int) -> FlowNeed:
        rows = self._lacking([self._seen[name] for name in self._streams_of(entry) if name in self._seen], link.horizon_us, cut_us)
        mine = tuple(name for name in tables if name in link.tables)
        return FlowNeed(entry.name, mine, rows, 0, sum(rows.values()), None, link.waits_for_source_s(cut_us), link.trouble)

    def _lacking(self, read: Iterable[Peeked], after_us: int, up_to_us: int) -> dict[str, int]:
        """Return the changes of each stream in an interval of time, with those that only its table has."""
        counted = {}
        for stream in read:
            unpulled = sum(rows for time_us, rows in self._unpulled(stream, after_us) if time_us <= up_to_us)
            counted[stream.schema.name] = stream.rows_after(after_us) - stream.rows_after(up_to_us) + unpulled
        return {name: rows for name, rows in counted.items() if rows}

    def _lacking_from(self, read: Iterable[Peeked], after_us: int) -> int | None:
        """Return the time of the first change after a time, in streams or in tables that are streams; None if there is none."""
        firsts = [(stream.first_after(after_us), *(time_us for time_us, _ in self._unpulled(stream, after_us)[:1])) for stream in read]
        return min((time_us for found in firsts for time_us in found if time_us is not None), default=None)

    def _behind(self, tables: Sequence[str]) -> list[tuple[Maintainer, FlowEntry]]:
        return [(link, entry) for link, entry in self._attended if set(link.tables) & set(tables)]

    def _streams_of(self, entry: FlowEntry) -> tuple[str, ...]:
        return entry.generation(self._last_job(entry)).streams

    def _last_job(self, entry: FlowEntry) -> int:
        return self._catalyst.head.source(entry.source).last.number


def _in_receipt(commit: QueueCommit | None) -> StreamCommit | None:
    return None if commit is None else StreamCommit(commit.number, commit.time_us, commit.transaction)
