"""The feed: where streams and the catalyst meet.

In: appends and heartbeats of streams.
Out: commit times for them; for the flows that read them, the oldest change that is not published, and up to when everything has arrived.
Promise: a change is known to every flow that reads its stream before any query can choose a cut at or after its commit time.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from righttime.catalyst.maintainer import Maintainer
from righttime.catalyst.shell import Catalyst
from righttime.queues.streams import Streams
from righttime.settings import Settings

FOREVER_US = 2**62
_Marks = tuple[tuple[int, str] | None, int | None]
"""Up to when the source that is farthest behind has delivered, with its stream, and up to when streams of tables have what happened to them."""


class Feed:
    """The streams of one warehouse, and who reads them."""

    def __init__(
        self, catalyst: Catalyst, folder: Path, *, settings: Settings, kind_of: Callable[[str], str | None], declarations: AbstractContextManager[object]
    ) -> None:
        self._catalyst = catalyst
        self._arriving = threading.RLock()  # before the locks of streams and of the catalyst: what was read of streams first is noted first
        self._readers: dict[str, dict[str, Maintainer]] = {}
        self._told: dict[str, Callable[[int], None]] = {}
        self.streams = Streams(folder, settings=settings, issue=self._issue, now_us=catalyst.clock.now_us, kind_of=kind_of, declarations=declarations)
        for name in self.streams.names():
            last = self.streams.cut(name, FOREVER_US).last
            # Only times that we issued: a source whose clock is ahead must not take ours along.
            if last is not None and self.streams.schema(name).times == "warehouse":
                catalyst.authority.observe(last.time_us)
        self.streams.on_change.append(self._changed)

    def read_by(self, link: Maintainer, streams: Sequence[str], *, after_us: int) -> None:
        """Let a flow know of everything in these streams that came after `after_us`, from now on."""
        with self._arriving:
            with self._catalyst.lock:
                for readers in self._readers.values():
                    readers.pop(link.source, None)
                for name in streams:
                    self._readers.setdefault(name, {})[link.source] = link
            # Registered first: what is appended meanwhile is noted twice, never not at all.
            backlog_us = max((last.time_us for name in streams if (last := self.streams.cut(name, FOREVER_US).last) is not None), default=0)
            firsts = [self.first_after(streams, max(link.horizon_us, after_us))]
            tolerances = [self.streams.schema(name).tolerance_us or 0 for name in streams if self._has_source(name)]
            tables, marks = {self.streams.schema(name).table for name in streams}, self._marks(streams)
            with self._catalyst.lock:
                for table, tapped in self._catalyst.tapped.items():
                    tapped.followers.pop(link.source, None)
                    if table in tables:
                        tapped.followers[link.source] = link.change
                        backlog_us = max(backlog_us, tapped.newest_us)
                        firsts.append(tapped.first_after(max(link.horizon_us, after_us)))
                link.horizon_us = max(link.horizon_us, after_us)
                # What the streams that it read before had, and was not published, is lacking all the same.
                link.backlog_from_us = min((time_us for time_us in (link.pending_us, *firsts) if time_us is not None), default=0)
                link.backlog_us = max(link.backlog_us, backlog_us)
                link.tolerance_us = min(tolerances, default=0)
                link.arrived_us = None  # of other streams, which says nothing of these; but never is it as if they had everything
                self._note(link, marks)
                link.refresh()

    def tell(self, source: str, told: Callable[[int], None]) -> None:
        """Have a runner told of rows that come to its streams, after they can be read."""
        self._told[source] = told

    def forget(self, source: str) -> None:
        """Tell a runner no more; its flow goes on to know what it misses."""
        self._told.pop(source, None)

    def first_after(self, streams: Iterable[str], time_us: int) -> int | None:
        """Return the commit time of the first change after `time_us` in any of the streams."""
        firsts = [first for name in streams if (first := self.streams.first_after(name, time_us)) is not None]
        return min(firsts, default=None)

    def rows(self, streams: Iterable[str], after_us: int, up_to_us: int = FOREVER_US) -> dict[str, int]:
        """Return how many changes each stream has in an interval of time, those that have any."""
        counted = {name: self.streams.rows_between(name, after_us, up_to_us) for name in streams}
        return {name: rows for name, rows in counted.items() if rows}

    def horizon(self, streams: Iterable[str], after_us: int, cut_us: int, *, rows_max: int) -> int:
        """Return `cut_us`, or an earlier time if there are too many rows until then; a single commit is never parted."""
        low_us = self.first_after(streams, after_us)
        if low_us is None or low_us >= cut_us or sum(self.rows(streams, after_us, cut_us).values()) <= rows_max:
            return cut_us
        high_us = cut_us
        while low_us < high_us - 1:
            middle_us = (low_us + high_us) // 2
            if sum(self.rows(streams, after_us, middle_us).values()) <= rows_max:
                low_us = middle_us
            else:
                high_us = middle_us
        return low_us

    def _issue(self, streams: Sequence[str], given_us: int | None) -> int:
        """Give a commit its time, and note it with the flows that will have to show it."""
        with self._catalyst.lock:
            time_us = self._catalyst.authority.next_us() if given_us is None else given_us
            for name in streams:
                for link in self._readers.get(name, {}).values():
                    link.change(time_us)
            return time_us

    def _changed(self, streams: Sequence[str], time_us: int, rows: int) -> None:
        with self._catalyst.lock:
            links = {link.source: link for name in streams for link in self._readers.get(name, {}).values()}
        self._arrive(list(links.values()))
        for source in links:
            if (told := self._told.get(source)) is not None:
                told(rows)

    def _arrive(self, links: Sequence[Maintainer]) -> None:
        """Bring flows up to date on what has arrived. Streams have their own lock, which comes before the catalyst's."""
        for link in links:
            with self._arriving:
                with self._catalyst.lock:
                    mine = [name for name, readers in self._readers.items() if link.source in readers]
                marks = self._marks(mine)
                with self._catalyst.lock:
                    self._note(link, marks)

    def _marks(self, streams: Iterable[str]) -> _Marks:
        sources = [(self.streams.watermark_us(name) or 0, name) for name in streams if self._has_source(name)]
        tapped = [self.streams.watermark_us(name) or 0 for name in streams if self.streams.schema(name).table is not None]
        return min(sources, default=None), min(tapped, default=None)

    def _note(self, link: Maintainer, marks: _Marks) -> None:
        """Note up to when the streams of a flow are here; the caller has the catalyst's lock."""
        arrived, link.pulled_us = marks
        if arrived is not None:
            link.arrive(*arrived)
        if marks != (None, None):
            self._catalyst.arrivals.notify_all()

    def _has_source(self, stream: str) -> bool:
        """Tell whether a stream is complete only when its source says so; what happens to tables is known here at once."""
        schema = self.streams.schema(stream)
        return schema.times == "source" and schema.table is None

    def close(self) -> None:
        self.streams.close()
