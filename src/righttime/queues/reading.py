"""Streams that are open, as readers see them.

In: times that readers ask for.
Out: the changes of any stretch of commit times, and where a time cuts a stream.
Promise: a reader up to time t sees every commit up to t; one whose time is being issued is waited for.
"""

import threading
from pathlib import Path

import pyarrow as pa

from righttime.errors import AnswerTooLarge, WarehouseClosed
from righttime.errors.flows import UnknownStream
from righttime.queues.declared import SHOWN_COLUMNS, StreamCut, StreamSchema, StreamStatus
from righttime.queues.history import History, Part
from righttime.queues.open_stream import OpenStream
from righttime.queues.segments import Segment
from righttime.settings import Settings


class ReadableStreams:
    """The reading side of all streams in one folder."""

    def __init__(self, folder: Path, *, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self._streams: dict[str, OpenStream] = {}
        self._underway: dict[str, int] = {}  # stream to the least time that an append under way may have
        self._closed = False
        self._seen = threading.Condition()  # guards what readers see

    def watermark_us(self, name: str) -> int | None:
        """Return up to when a stream is complete; None: its times are the warehouse's, and it always is."""
        with self._seen:
            stream = self._stream(name)
            return (stream.watermark_us or 0) if stream.schema.times == "source" else None

    def first_after(self, name: str, time_us: int) -> int | None:
        """Return the time of the first commit after a time, None if there is none."""
        with self._seen:
            history = self._stream(name).history
            while True:
                commit = history.commits.commit(history.commits.up_to(time_us) + 1)
                if commit is not None:
                    return commit.time_us
                if history.schema.name not in self._underway:
                    return None
                self._seen.wait()

    def rows_between(self, name: str, after_us: int, up_to_us: int) -> int:
        """Return how many changes were committed after one time, up to another."""
        with self._seen:
            low, high = self._history(name, up_to_us).seqs(after_us, up_to_us)
            return high - low

    def table(self, name: str, after_us: int, up_to_us: int) -> pa.Table:
        """Return the changes committed after one time, up to another, in their order."""
        history, parts = self._parts(name, after_us, up_to_us)
        return history.read(parts)

    def changes(self, name: str, after_us: int, up_to_us: int) -> pa.Table:
        """Return the same as users see it; raises `AnswerTooLarge`."""
        self._check_open()
        history, parts = self._parts(name, after_us, up_to_us)
        columns, bound = [*history.schema.columns.names, *SHOWN_COLUMNS], self._settings.answer_bytes_max
        read, size = [history.read([]).select(columns)], 0
        for part in parts:
            read.append(history.read([part]).select(columns))
            size += read[-1].nbytes
            if size > bound:
                raise AnswerTooLarge(size=size, bound=bound)
        return pa.concat_tables(read)

    def files(self, name: str, after_us: int, up_to_us: int) -> tuple[list[Path], pa.Table]:
        """Return the same changes as whole segments, for Spark, and the rest as a table."""
        history, parts = self._parts(name, after_us, up_to_us)
        whole = [part.origin for part in parts if isinstance(part.origin, Segment) and part.rows == part.origin.last_seq - part.origin.first_seq + 1]
        rest = [part for part in parts if part.origin not in whole] if whole else parts
        return [segment.path for segment in whole], history.read(rest)

    def _parts(self, name: str, after_us: int, up_to_us: int) -> tuple[History, list[Part]]:
        with self._seen:
            history = self._history(name, up_to_us)
            return history, history.parts(*history.seqs(after_us, up_to_us))

    def _history(self, name: str, up_to_us: int) -> History:
        history = self._stream(name).history
        while self._underway.get(history.schema.name, up_to_us + 1) <= up_to_us:
            self._seen.wait()
        return history

    def cut(self, name: str, time_us: int) -> StreamCut:
        """Return where a time cuts a stream."""
        with self._seen:
            commits = self._history(name, time_us).commits
            number = commits.up_to(time_us)
            return StreamCut(self._stream(name).schema.name, commits.commit(number), commits.commit(number + 1))

    def dead_letters(self, name: str) -> pa.Table:
        """Return the changes of a stream that could not be taken, with the reasons."""
        with self._seen:
            return self._stream(name).letters.table()

    def names(self) -> list[str]:
        """Return the names of all streams."""
        with self._seen:
            return sorted(self._streams)

    def schema(self, name: str) -> StreamSchema:
        """Return the declaration of a stream."""
        return self._stream(name).schema

    def status(self) -> list[StreamStatus]:
        """Return how all streams are."""
        with self._seen:
            return [self._streams[name].status() for name in sorted(self._streams)]

    def _stream(self, name: str) -> OpenStream:
        stream = self._streams.get(str(name).lower())
        if stream is None:
            raise UnknownStream(stream=name, known=", ".join(sorted(self._streams)) or "none")
        return stream

    def _check_open(self) -> None:
        if self._closed:
            raise WarehouseClosed(path=self._folder.parent)
