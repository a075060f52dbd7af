"""Appends to streams: source transactions and heartbeats.

In: changes of a transaction over one or several streams.
Out: one commit in all of them.
Promise: an append is durable and visible in all its streams when it returns, or changed nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from righttime.changes.interrupts import uninterrupted
from righttime.errors import LogFull
from righttime.errors.flows import BadStream, StreamTime
from righttime.queues.commits import CommitIn, share_of
from righttime.queues.declared import Appended, ChangesIn, StreamSchema, check_transaction, rows_given
from righttime.queues.feed import Answer, Feed, Work
from righttime.queues.index import Numbers
from righttime.queues.intake import Given, take_in
from righttime.queues.known import AppendId, Outcome
from righttime.queues.letters import letters_of
from righttime.queues.open_stream import OpenStream
from righttime.queues.reading import ReadableStreams
from righttime.queues.segments import SegmentCache
from righttime.queues.times import check_same_times, check_time
from righttime.settings import Settings
from righttime.telemetry import get_log

log = get_log("queues")

Issue = Callable[[Sequence[str], int | None], int]
OnChange = Callable[[Sequence[str], int, int], None]
Result = TypeVar("Result")
CATALOGUE = "stream.json"
_BESIDE_BYTES = 32


@dataclass(frozen=True, slots=True)
class Terms:
    """How an append is made: the source's name and time for it, the id under which it may come again, and whether it goes straight into a segment."""

    transaction: str | None = None
    time_us: int | None = None
    append_id: AppendId | None = None
    straight: bool = False

    def answer(self, appended: Appended) -> Answer | None:
        """Return what is kept for when it comes again."""
        return None if self.append_id is None else (self.append_id, Outcome(appended))


class FedStreams(ReadableStreams):
    """The same with the side that sources feed.

    `issue(streams, given)` returns the time of a commit. It is called under the feed lock, before the commit is written: a reader that asks for a time
    that may have been issued waits until that commit is visible. So whoever holds a lock that `issue` takes must not read streams.
    `now_us` is the clock by which times of sources are told from mistakes.
    """

    def __init__(self, folder: Path, *, settings: Settings, issue: Issue, now_us: Callable[[], int]) -> None:
        super().__init__(folder, settings=settings)
        self.on_change: list[OnChange] = []
        self._issue = issue
        self._now_us = now_us
        self._cache = SegmentCache(bytes_max=settings.stream_cache_bytes, unpacked_bytes_max=settings.stream_unpacked_bytes)
        folder.mkdir(parents=True, exist_ok=True)
        self._open_known()
        self._feed = Feed(folder / "_feed", settings=settings, streams=self._streams, cache=self._cache, seen=self._seen)

    def _open_known(self) -> None:
        """Open the streams that are there."""
        for path in sorted(self._folder.glob(f"*/{CATALOGUE}")):
            schema = StreamSchema.from_json(path.read_text(encoding="utf-8"))
            self._streams[schema.name] = OpenStream(schema, path.parent, self._cache, self._seen)

    def append(
        self,
        changes: Mapping[str, ChangesIn],
        *,
        transaction: str | None = None,
        time_us: int | None = None,
        tapping: bool = False,
        append_id: AppendId | None = None,
    ) -> Appended:
        """Append one source transaction, to all its streams at once; raise the first fault of a stream that takes no bad changes.

        Streams of tables are fed by their taps only; as a table may be larger than the feed log, much of it goes straight into a segment.
        One that was taken under the same id is answered as it was then. Raises `AppendForgotten`.
        """
        self._refuse_spelt_twice(changes)
        for name in changes:
            if not tapping and (table := self.schema(name).table) is not None:
                raise BadStream(stream=name, reason=f"it has the changes of table {table!r}; change the table")
        check_same_times(self.schema(name) for name in changes)
        check_transaction(transaction, changes)
        givens = [self._given(name, rows_given(name, one)) for name, one in changes.items()]
        terms = Terms(transaction, time_us, append_id, straight=tapping and any(self._is_large(given) for given in givens))
        return self._take(lambda: [self._work(given, transaction, time_us) for given in givens], ", ".join(changes), terms)

    def _is_large(self, given: Given) -> bool:
        """Tell whether changes are too many for a record of the log; what it has of each beside its columns counts as well."""
        size: int = given.rows.nbytes + _BESIDE_BYTES * given.rows.num_rows
        return size > min(self._settings.stream_log_bytes, self._settings.log_bytes_max // 2)

    @property
    def known_appends(self) -> int:
        """How many appends with an id there were: what a client remembers with the next one."""
        return self._feed.known.mark

    def _refuse_spelt_twice(self, names: Iterable[str]) -> None:
        """Refuse one stream under two spellings: both parts would be judged, and numbered, as if the other were not there."""
        spelt: dict[str, str] = {}
        for name in names:
            first = spelt.setdefault(self.schema(name).name, name)
            if first is not name:
                raise BadStream(stream=self.schema(name).name, reason=f"{first!r} and {name!r} are the same stream; give all its changes under one of them")

    def _given(self, name: str, changes: ChangesIn, units: Numbers | None = None) -> Given:
        stream = self._stream(name)
        schema = stream.schema
        faults_max = self._settings.stream_dead_letters_max if schema.on_bad == "dead_letter" else 1
        return take_in(schema, stream.encoder, changes, faults_max=faults_max, units=units)

    def _take(self, works: Callable[[], list[Work]], streams: str, terms: Terms) -> Appended:
        """Append what `works` returns, which is called under the feed lock."""
        if terms.straight:
            with self._feed.sealer:
                appended, quiet = self._take_once(works, streams, terms)
        else:
            appended, quiet = self._with_room(lambda: self._take_once(works, streams, terms))
        if quiet is None:
            return appended
        if appended.rows:
            self._tell(tuple(appended.numbers), appended.time_us, appended.rows)
        if quiet and terms.time_us is not None:
            self._tell(quiet, terms.time_us, 0)
        self._feed.keep_up()
        return appended

    def _with_room(self, write: Callable[[], Result]) -> Result:
        """Call what writes into the log, and where that is full once more: what is sealed makes room."""
        try:
            return write()
        except LogFull as error:
            if error.context["size"] > error.context["bound"]:
                raise
            self._feed.make_room(error.context["size"])
        return write()

    def _take_once(self, works: Callable[[], list[Work]], streams: str, terms: Terms) -> tuple[Appended, Sequence[str] | None]:
        """Return what was appended, and the streams that it was only a heartbeat for; None for those if it had been appended before."""
        with self._feed.lock:
            self._check_open()
            if (known := self._known(terms.append_id, streams)) is not None:
                return known.appended, None
            judged = works()
            quiet = tuple(work.given.schema.name for work in judged if work.quiet)
            with uninterrupted():  # what is in the log and not shown would give its place there to the next append
                return self._write(judged, terms), quiet

    def _known(self, append_id: AppendId | None, streams: str) -> Outcome | None:
        """Return what became of an append that comes again; the caller has the feed lock."""
        return None if append_id is None else self._feed.known.find(append_id, streams)

    def _work(self, given: Given, transaction: str | None, time_us: int | None) -> Work:
        work = self._judged(given, time_us)
        came_us = self._now_us() if time_us is None else time_us
        work.letters = letters_of(given, first_number=work.stream.letters.last_number + 1, time_us=came_us, transaction=transaction)
        return work

    def _judged(self, given: Given, time_us: int | None, *, letters_more: int = 0) -> Work:
        stream = self._stream(given.schema.name)
        check_time(given.schema, time_us, now_us=self._now_us())
        plan = stream.plan(given, time_us=time_us, letters_max=self._settings.stream_dead_letters_max + letters_more)
        # A source that has nothing for a stream, or nothing that can be taken, still says that nothing before its commit will come.
        return Work(stream, given, plan, quiet=not len(plan.ops) and time_us is not None and (stream.watermark_us or 0) < time_us)

    def _write(self, works: list[Work], terms: Terms) -> Appended:
        changed = [work for work in works if len(work.plan.ops)]
        rejected = sum(len(work.letters) + work.unresolved for work in works)
        if not changed:
            nothing = Appended({}, 0, 0, rejected)
            if any(work.letters or work.resolved or work.quiet for work in works):
                self._feed.write(works, [], time_us=terms.time_us or 0, transaction=terms.transaction, answer=terms.answer(nothing))
            return nothing
        names = [work.given.schema.name for work in changed]
        with self._marked(changed):
            issued_us = max(self._issue(names, given_us) for given_us in _times(changed, terms))
            shares = [share_of(work.given, work.plan, work.stream.history, work.commits or _one(work, issued_us, terms)) for work in changed]
            assert all(share.commits.times[0] > (work.stream.watermark_us or 0) for share, work in zip(shares, changed, strict=True)), "commit times increase"
            numbers = {share.schema.name: int(share.commits.numbers[-1]) for share in shares}
            appended = Appended(numbers, issued_us, sum(share.rows.num_rows for share in shares), rejected)
            answer = terms.answer(appended)
            time_us = issued_us if terms.time_us is None else terms.time_us
            self._feed.write(works, shares, time_us=time_us, transaction=terms.transaction, straight=terms.straight, answer=answer)
        return appended

    @contextmanager
    def _marked(self, works: list[Work]) -> Iterator[None]:
        """Let readers of times that are about to be issued wait."""
        with self._seen:
            for work in works:
                self._underway[work.given.schema.name] = (work.stream.watermark_us or 0) + 1
        try:
            yield
        finally:
            with self._seen:
                self._underway.clear()
                self._seen.notify_all()

    def heartbeat(self, name: str, time_us: int) -> None:
        """Say for a stream with times of its source that nothing at or before a time will come any more."""
        beaten = self._with_room(lambda: self._beat(name, time_us))
        if beaten is not None:
            self._feed.keep_up()
            self._tell((beaten,), time_us, 0)

    def _beat(self, name: str, time_us: int) -> str | None:
        """Return the stream's name if that was not known."""
        with self._feed.lock:
            self._check_open()
            stream = self._stream(name)
            if stream.schema.times != "source":
                raise StreamTime(stream=stream.schema.name, reason="the warehouse issues its commit times, so it needs no heartbeat")
            check_time(stream.schema, time_us, now_us=self._now_us())
            if stream.watermark_us is not None and time_us <= stream.watermark_us:
                return None
            with uninterrupted():
                self._feed.beat(stream, time_us)
            return stream.schema.name

    def _tell(self, names: Sequence[str], time_us: int, rows: int) -> None:
        for callback in list(self.on_change):
            try:
                callback(names, time_us, rows)
            except Exception:
                # The append is durable and visible; whoever fed it must not take it for failed.
                log.exception("stream.listener_failed", streams=names)


def _times(works: Sequence[Work], terms: Terms) -> list[int | None]:
    """Return the times that are given for the commits of an append; None is for one whose time is issued."""
    return [*sorted({commit.time_us for work in works for commit in work.commits})] or [terms.time_us]


def _one(work: Work, time_us: int, terms: Terms) -> list[CommitIn]:
    return [CommitIn(len(work.given.ops), time_us, terms.transaction)]
