"""Streams that this process only reads: what their files hold, each time somebody asks.

In: the folder of the streams, which another process may have open.
Out: declarations, changes, cuts and dead letters, as from streams that are open.
Promise: writes and locks nothing. Every append that was acknowledged before the call is seen; whatever would change a stream is refused.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from righttime.errors import AnswerTooLarge, RightTimeError, WarehouseDamaged
from righttime.errors.flows import UnknownStream
from righttime.queues.appending import CATALOGUE
from righttime.queues.commits import read_share
from righttime.queues.declared import SHOWN_COLUMNS, StreamCut, StreamSchema
from righttime.queues.feed_log import Record, read_records
from righttime.queues.peek import peek, stream_names

_TIME = "_commit_timestamp"


class LookedAtStreams:
    """All streams of a folder; safe to use from any thread. `refuse` gives the error for what only a writer may do."""

    def __init__(self, folder: Path, *, answer_bytes_max: int, refuse: Callable[[str], RightTimeError]) -> None:
        self._folder = folder
        self._answer_bytes_max = answer_bytes_max
        self._refuse = refuse

    def names(self) -> list[str]:
        """Return the names of all streams."""
        return stream_names(self._folder)

    def schema(self, name: str) -> StreamSchema:
        """Return the declaration of a stream."""
        known = self.names()
        if str(name).lower() not in known:
            raise UnknownStream(stream=name, known=", ".join(known) or "none")
        return StreamSchema.from_json((self._folder / name.lower() / CATALOGUE).read_text(encoding="utf-8"))

    def cut(self, name: str, time_us: int) -> StreamCut:
        """Return where a time cuts a stream."""
        commits = peek(self._folder)[self.schema(name).name].commits
        number = commits.up_to(time_us)
        return StreamCut(name.lower(), commits.commit(number), commits.commit(number + 1))

    def dead_letters(self, name: str) -> pa.Table:
        """Return the changes of a stream that could not be taken, with the reasons."""
        return peek(self._folder)[self.schema(name).name].letters.table()

    def changes(self, name: str, after_us: int, up_to_us: int) -> pa.Table:
        """Return the changes committed after one time, up to another, in their order; raises `AnswerTooLarge`."""
        schema = self.schema(name)
        columns = [*schema.columns.names, *SHOWN_COLUMNS]
        kind = schema.stored.field(_TIME).type
        wanted = (pc.field(_TIME) > pa.scalar(after_us, kind)) & (pc.field(_TIME) <= pa.scalar(up_to_us, kind))
        read, size = [schema.stored.empty_table().select(columns)], 0
        for rows in self._stored(schema, wanted):
            read.append(rows.select(columns))
            size += read[-1].nbytes
            if size > self._answer_bytes_max:
                raise AnswerTooLarge(size=size, bound=self._answer_bytes_max)
        return pa.concat_tables(read)

    def _stored(self, schema: StreamSchema, wanted: pc.Expression) -> Iterator[pa.Table]:
        """Yield the wanted changes of a stream, in their order; of segments that have none, only what Parquet says of them is read."""
        # The log first: rows that leave it meanwhile are in segments by then.
        records = list(read_records(self._folder / "_feed"))
        last_seq = 0
        for path in sorted((self._folder / schema.name).glob("*.parquet")):
            last_seq = int(path.stem.split("-")[1])
            try:
                yield pq.read_table(path, filters=wanted).cast(schema.stored)
            except (OSError, pa.ArrowException) as error:
                raise WarehouseDamaged(path=path, reason=f"the segment cannot be read ({error})") from error
        for record in records:
            for rows in _in_log(record, schema):
                if rows.column("_seq")[0].as_py() > last_seq:
                    yield rows.filter(wanted)

    # -- what only a writer may do -----------------------------------------------------------------------------------

    # Whatever they are given is not looked at.

    def create(self, *given: Any, **options: Any) -> NoReturn:
        raise self._refuse("create a stream")

    def append(self, *given: Any, **options: Any) -> NoReturn:
        raise self._refuse("append changes")

    def heartbeat(self, *given: Any, **options: Any) -> NoReturn:
        raise self._refuse("append a heartbeat")

    def replay(self, *given: Any, **options: Any) -> NoReturn:
        raise self._refuse("replay dead letters")

    def discard(self, *given: Any, **options: Any) -> NoReturn:
        raise self._refuse("discard dead letters")


def _in_log(record: Record, schema: StreamSchema) -> Iterator[pa.Table]:
    head = record.head
    for part, body in zip(head["shares"], record.bodies, strict=True) if "shares" in head else ():
        if part["stream"] == schema.name and part["rows"]:
            yield read_share(schema, part, body, time_us=head["time_us"], transaction=head["transaction"]).stored()
