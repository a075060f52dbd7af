"""Attention: which flow answers for which tables, and which streams the state that they show was made of.

In: generations of a flow's state: gone on with, being built anew, shown.
Out: a maintainer for every target, and for an answer where it cuts the streams behind its tables.
Promise: as long as a state can be seen, its targets belong to its flow, running or not, and are not called fresh if its streams have more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from righttime.catalyst.maintainer import Maintainer
from righttime.catalyst.messages import Accuracy
from righttime.catalyst.shell import Catalyst
from righttime.flows.catalogue import Generation
from righttime.flows.feed import Feed
from righttime.ledger.receipts import StreamCommit, StreamReceipt
from righttime.queues.declared import StreamCommit as QueueCommit


@dataclass(frozen=True, slots=True)
class _Shown:
    """The streams of the state that can be seen, from a time on, and of the one before."""

    streams: tuple[str, ...]
    since_us: int = 0
    before: tuple[str, ...] = ()

    def at(self, time_us: int) -> tuple[str, ...]:
        return self.streams if time_us >= self.since_us else self.before


class Attention:
    """Who answers for targets; safe to call from any thread. The catalyst's lock guards it, and is not held while streams are read."""

    def __init__(self, catalyst: Catalyst, feed: Feed) -> None:
        self._catalyst = catalyst
        self._feed = feed
        self._read: dict[str, tuple[str, ...]] = {}
        self._shown: dict[str, _Shown] = {}

    def attend(self, source: str, generation: Generation) -> Maintainer:
        """Answer for the targets of a state that is shown, or will be the first."""
        link = self._catalyst.maintain(source, generation.targets)
        with self._catalyst.lock:
            self._show(source, generation)
        self._follow(link, generation)
        return link

    def rebuild(self, source: str, generation: Generation, before: Generation) -> Maintainer:
        """Answer for the targets of a state that is being built, and as long as that is not shown for those of the one before."""
        with self._catalyst.lock:
            # Whoever wants it fresh waits for the new state. The old one is shown no further than it may have been by now, for the new one begins later.
            now_us = self._catalyst.authority.next_us()
            is_new, shown_us = source not in self._catalyst.links, self._shown_us(source, generation, now_us - 1)
            link = self._catalyst.maintain(source, tuple(dict.fromkeys((*generation.targets, *before.targets))))
            link.shown_us = max(shown_us, link.horizon_us)
            self._show(source, before)
            link.change(now_us if is_new else link.shown_us + 1)
        self._follow(link, generation)
        return link

    def _shown_us(self, source: str, generation: Generation, now_us: int) -> int:
        """Return up to when targets may have been read, and what was done to them settled; the caller has the catalyst's lock."""
        link = self._catalyst.links.get(source)
        mine = link.tables if isinstance(link, Maintainer) else ()
        others = (table for name in generation.targets if name not in mine and (table := self._catalyst.tables.get(name)) is not None)
        if any(table.rows_stored or table.rows_unstored for table in others):
            return now_us  # of a table that others have loaded
        return 0 if link is None else link.complete_us(otherwise_us=now_us)

    def rebuilt(self, source: str, generation: Generation, horizon_us: int) -> None:
        """Let go of targets that the state which is shown from now on does not have; the caller has the catalyst's lock."""
        self._catalyst.maintain(source, generation.targets)
        self._shown[source] = _Shown(generation.streams, horizon_us, self._shown[source].streams)

    def _show(self, source: str, generation: Generation) -> None:
        if source not in self._shown or self._shown[source].streams != generation.streams:
            self._shown[source] = _Shown(generation.streams)

    def _follow(self, link: Maintainer, generation: Generation) -> None:
        self._read[link.source] = generation.streams
        self._feed.read_by(link, generation.streams, after_us=self._catalyst.head.source(link.source).last.time_us)

    def streams(self, source: str) -> tuple[str, ...]:
        """Return the streams that a flow reads."""
        return self._read.get(source, ())

    def stream_cuts(self, tables: Sequence[str], accuracy: Accuracy) -> tuple[StreamReceipt, ...]:
        """Return where an answer over `tables` cuts the streams that flows made them of."""
        with self._catalyst.lock:
            sources = sorted({link.source for name in tables if (link := self._catalyst.maintained.get(name)) is not None})
            behind = [(source, stream) for source in sources for stream in self._shown[source].at(accuracy.time_of(source))]
        cuts = []
        for source, stream in behind:
            cut = self._feed.streams.cut(stream, accuracy.time_of(source))
            cuts.append(StreamReceipt(stream, source.removeprefix("flow."), _commit(cut.last), _commit(cut.first_outside)))
        return tuple(cuts)


def _commit(commit: QueueCommit | None) -> StreamCommit | None:
    return None if commit is None else StreamCommit(commit.number, commit.time_us, commit.transaction)
