"""The feed: writes appends into the log, shows them to readers, and keeps log and tails short.

In: planned shares of streams, heartbeats, dead letters.
Out: the same after a restart; segments instead of tails.
Promise: a record is in the log before anybody sees it, and a file of the log goes only when all its rows are in segments.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from righttime.changes.interrupts import uninterrupted
from righttime.errors import CommitFailed, WarehouseDamaged
from righttime.queues.commits import CommitIn, Share, read_share
from righttime.queues.feed_log import FeedLog, Record
from righttime.queues.intake import Given
from righttime.queues.judge import Plan
from righttime.queues.known import AppendId, KnownAppends, Outcome
from righttime.queues.letters import Letter
from righttime.queues.open_stream import OpenStream, is_new
from righttime.queues.segments import SegmentCache, joined, write_segment
from righttime.settings import Settings
from righttime.telemetry import get_log

_TAILS_MAX = 4  # tails as long as this many segments wait until they are sealed

log = get_log("queues")


@dataclass(slots=True)
class Work:
    """What an append does to one stream: its changes, what they do, and which dead letters come, go or stay. For one that is `quiet` it is a heartbeat.

    `commits` says how its rows are parted where they are not one commit.
    """

    stream: OpenStream
    given: Given
    plan: Plan
    letters: list[Letter] = field(default_factory=list)
    resolved: list[int] = field(default_factory=list)
    unresolved: int = 0
    quiet: bool = False
    commits: Sequence[CommitIn] = ()


Answer = tuple[AppendId, Outcome]
"""What an append that comes again under its id is told."""


class Feed:
    """The log of all streams of a folder and what keeps it short. `lock` orders appends, `seen` guards what readers see; who has `sealer`, which comes
    before both, makes segments."""

    def __init__(self, folder: Path, *, settings: Settings, streams: Mapping[str, OpenStream], cache: SegmentCache, seen: threading.Condition) -> None:
        self.lock = threading.Lock()
        self.sealer = threading.Lock()
        self.seen = seen
        self._settings = settings
        self._streams = streams
        self._cache = cache
        self._closed = False
        self.known = KnownAppends(appends_max=settings.stream_appends_max)
        self._log = FeedLog(folder, settings=settings)
        self._recover()

    def _recover(self) -> None:
        found = False
        for record in self._log.recover():
            found = True
            self._replay(record)
        if not found:
            self._log.begin_file(self._first_record())

    def _replay(self, record: Record) -> None:
        head = record.head
        if head["kind"] == "begin":
            for name, state in head["streams"].items():
                if name in self._streams or not is_new(state):  # one that was taken back has nothing that could be missing
                    self._stream(name).restore(state)
            self.known.restore(head.get("appends", {}))
        elif head["kind"] == "heartbeat":
            for name in head["streams"]:
                self._stream(name).beat(head["time_us"])
        else:
            for part, body in zip(head["shares"], record.bodies, strict=True):
                stream = self._stream(part["stream"])
                stream.recover(read_share(stream.schema, part, body, time_us=head["time_us"], transaction=head["transaction"]))
            for name, letters in head["letters"].items():
                self._stream(name).letters.add(letters)
            for name, numbers in head["resolved"].items():
                self._stream(name).letters.drop(numbers)
            for name in head.get("quiet", ()):
                self._stream(name).beat(head["time_us"])
            if "append" in head:
                name, *outcome = head["append"]
                self.known.add(AppendId(name, self.known.mark), Outcome.from_record(outcome))

    def _stream(self, name: str) -> OpenStream:
        if name not in self._streams:
            raise WarehouseDamaged(path=name, reason="the feed log has changes of a stream whose catalogue is missing")
        return self._streams[name]

    def write(
        self, works: Iterable[Work], shares: list[Share], *, time_us: int, transaction: str | None, straight: bool = False, answer: Answer | None = None
    ) -> None:
        """Make an append durable with what it is answered, then show it; the caller has `lock`, and `sealer` if it goes straight into a segment."""
        works = list(works)
        if straight:
            assert answer is None, "it would be in the log or nowhere"
            self._write_straight(works, shares)
            return
        head = {
            "kind": "append",
            "time_us": time_us,
            "transaction": transaction,
            "shares": [share.head(time_us, transaction) for share in shares],
            "letters": {work.given.schema.name: work.letters for work in works if work.letters},
            "resolved": {work.given.schema.name: work.resolved for work in works if work.resolved},
            "quiet": [work.given.schema.name for work in works if work.quiet],
        }
        if answer is not None:
            head["append"] = [answer[0].name, *answer[1].record()]
        stored = [share.stored() for share in shares]
        self._log.append(Record(head, [share.body() for share in shares]))
        if answer is not None:
            self.known.add(*answer)
        plans = {work.given.schema.name: work.plan for work in works}
        with self.seen:
            for share, rows in zip(shares, stored, strict=True):
                self._streams[share.schema.name].publish(share, rows, plans[share.schema.name])
            for work in works:
                work.stream.letters.add(work.letters)
                work.stream.letters.drop(work.resolved)
                if work.quiet:
                    work.stream.beat(time_us)

    def _write_straight(self, works: list[Work], shares: list[Share]) -> None:
        """Make the rows of a commit to one stream the next segment: they are durable, all of them, when it has its name."""
        (work,), (share,) = works, shares
        assert not work.letters and not work.resolved, "these are in the log or nowhere"
        stream, history = work.stream, work.stream.history
        if history.tail_rows:
            self._seal(stream)  # segments follow on each other
        try:
            if history.tail_rows:
                raise OSError("the changes before them could not be sealed")
            rows = share.stored()
            segment = write_segment(history.folder, stream.schema, rows)
        except (OSError, pa.ArrowException) as error:
            reason = f"{getattr(error, 'strerror', None) or error} ({history.folder})"
            raise CommitFailed(source="streams", step="segment", reason=reason) from error
        self._cache.keep(segment.path, rows)
        with self.seen:
            stream.publish(share, segment, work.plan)

    def beat(self, stream: OpenStream, time_us: int) -> None:
        """Make a heartbeat durable, then show it; the caller has `lock`."""
        self._log.append(Record({"kind": "heartbeat", "streams": [stream.schema.name], "time_us": time_us}))
        with self.seen:
            stream.beat(time_us)

    def keep_up(self) -> None:
        """Seal long tails and begin a new file of the log if it is time; the caller has no lock."""
        rows_max = self._settings.stream_segment_rows
        longest = max((stream.history.tail_rows for stream in list(self._streams.values())), default=0)
        if longest < rows_max and not self._log.full:
            return
        # Another thread is at it already: an appender waits for it only when tails grow faster than they are sealed.
        if not self.sealer.acquire(blocking=longest >= _TAILS_MAX * rows_max):
            return
        try:
            self._keep_short(lambda: self._log.full)
        finally:
            self.sealer.release()

    def make_room(self, size: int) -> None:
        """Begin a new file of the log if this one has no room for so many bytes, and have what is in older ones sealed; the caller has no lock."""
        with self.sealer:
            self._keep_short(lambda: not self._log.fits(size))

    def _keep_short(self, must_turn: Callable[[], bool]) -> None:
        """Seal long tails, and begin a new file of the log if need be; the caller has `sealer`."""
        try:
            with uninterrupted():  # segments and files of the log are known from when they have their names
                if not self._closed:
                    self._seal_all(rows_min=self._settings.stream_segment_rows)
                    if must_turn():
                        self._turn()
        except OSError as error:
            # The appends are durable whatever happens here; the next one tries again.
            log.warning("feed.not_kept_up", reason=str(error))

    def _turn(self) -> None:
        """Begin a new file of the log, seal what only older ones have, and remove those."""
        with self.lock:
            self._log.begin_file(self._first_record())
            newest = self._log.number
            needed = {name: stream.history.last_seq for name, stream in self._streams.items()}
        self._seal_all(rows_min=1)
        if all(self._streams[name].history.sealed_seq >= seq for name, seq in needed.items()):
            self._log.release(before=newest)

    def _first_record(self) -> Record:
        head = {"kind": "begin", "streams": {name: stream.state() for name, stream in self._streams.items()}}
        known = self.known.state()
        return Record({**head, "appends": known} if known else head)

    def _seal_all(self, *, rows_min: int) -> None:
        for stream in list(self._streams.values()):
            if stream.history.tail_rows >= rows_min:
                self._seal(stream)

    def _seal(self, stream: OpenStream) -> None:
        with self.seen:
            tables = stream.history.begin_sealing()
        try:
            rows = joined(tables, stream.schema.stored)
            segment = write_segment(stream.history.folder, stream.schema, rows)
        except BaseException as error:
            # The rows are in the log; they are sealed with the next ones.
            with self.seen:
                stream.history.not_sealed()
            if not isinstance(error, OSError | pa.ArrowException):
                raise
            log.warning("segment.not_sealed", stream=stream.schema.name, reason=str(error))
            return
        self._cache.keep(segment.path, rows)
        with self.seen:
            stream.history.sealed(segment)
        log.info("segment.sealed", stream=stream.schema.name, rows=rows.num_rows, bytes=segment.bytes)

    def bytes_held(self) -> int:
        """Return the size of the log."""
        return self._log.bytes_held()

    def close(self) -> None:
        """Stop writing; nothing is lost, since everything is in the log."""
        with self.sealer, self.lock:
            self._closed = True
            self._log.close()
