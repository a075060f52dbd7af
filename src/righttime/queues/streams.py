"""All streams of a warehouse: created, fed and read.

In: declarations of streams, source transactions over one or several of them, times that readers ask for.
Out: commits, and the changes of any stretch of commit times.
Promise: a stream is there whole or not at all, and its name is nobody else's in the warehouse; the rest is as `appending`, `replaying` and `reading` promise.
"""

import shutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pyarrow as pa

from righttime.changes.durations import Duration
from righttime.errors import NameTaken
from righttime.errors.flows import StreamExists
from righttime.queues.appending import CATALOGUE, Issue
from righttime.queues.declared import OnBad, StreamSchema, Times, declare_stream, differences
from righttime.queues.open_stream import OpenStream, is_new
from righttime.queues.tapping import FollowingStreams
from righttime.settings import Settings
from righttime.warehouse.durable import replace, sync_folder


class Streams(FollowingStreams):
    """The streams in one folder, safe to use from any thread.

    `kind_of` says what else of the warehouse has a name, if anything has, and whoever gives names holds `declarations`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Settings,
        issue: Issue,
        now_us: Callable[[], int],
        kind_of: Callable[[str], str | None] = lambda name: None,
        declarations: AbstractContextManager[object] | None = None,
    ) -> None:
        super().__init__(folder, settings=settings, issue=issue, now_us=now_us)
        self._kind_of = kind_of
        self._declarations = declarations or nullcontext()

    def create(
        self,
        name: str,
        columns: str | pa.Schema,
        *,
        keys: Iterable[str] = (),
        times: Times = "warehouse",
        on_bad: OnBad = "error",
        tolerance: Duration | None = None,
        comment: str | None = None,
        table: str | None = None,
        if_not_exists: bool = False,
    ) -> StreamSchema:
        """Create a stream; with `if_not_exists` one with the same declaration is returned instead. Only the stream of a table may have its name."""
        schema = declare_stream(name, columns, keys=keys, times=times, on_bad=on_bad, tolerance=tolerance, comment=comment, table=table)
        with self._declarations, self._feed.lock:
            self._check_open()
            known = self._streams.get(schema.name)
            if known is not None:
                if if_not_exists and known.schema == schema:
                    return known.schema
                raise StreamExists(stream=schema.name, declared=differences(schema, known.schema) or "its declaration is the same")
            if schema.table != schema.name and (kind := self._kind_of(schema.name)) is not None:
                raise NameTaken(kind=kind, name=schema.name)
            folder = self._folder / schema.name
            folder.mkdir(exist_ok=True)
            sync_folder(self._folder)
            replace(folder / CATALOGUE, schema.to_json().encode())
            with self._seen:
                self._streams[schema.name] = OpenStream(schema, folder, self._cache, self._seen)
        return schema

    def drop(self, name: str) -> bool:
        """Take back a stream that was just created; False if something was appended to it, and it stays."""
        with self._declarations, self._feed.sealer, self._feed.lock:
            stream = self._stream(name)
            if stream.history.last_seq or not is_new(stream.state()):
                return False
            (stream.history.folder / CATALOGUE).unlink()
            sync_folder(stream.history.folder)
            with self._seen:
                del self._streams[stream.schema.name]
            shutil.rmtree(stream.history.folder, ignore_errors=True)
            return True

    def close(self) -> None:
        """Stop taking changes; what was appended is on disk."""
        if not self._closed:
            self._closed = True
            self._feed.close()
