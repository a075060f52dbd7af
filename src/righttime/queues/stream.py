"""A stream as users hold it: one name, and the calls to feed it and to read what it has.

In: rows of one source table and what happened to them.
Out: commits of the stream; its changes.
Promise: each call is one source transaction, wherever the stream is. Use `Warehouse.append` for one over several streams.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from righttime.errors.flows import ColumnsChanged, StreamTime
from righttime.queues.declared import Appended, ChangesIn, StreamCommit, StreamSchema, letters_given, rows_given
from righttime.queues.port import StreamPort
from righttime.queues.times import check_unit

Moment = datetime | int
"""A commit time: an aware datetime, or microseconds since 1970."""

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
_EVER_US = 2**62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Stream:
    """The handle of one stream."""

    def __init__(self, streams: StreamPort, name: str, *, bring_up: Callable[[str], None] = lambda name: None) -> None:
        """`bring_up` lets a stream of a table have what happened to it until now."""
        self._streams = streams
        self._bring_up = bring_up
        self.schema: StreamSchema = streams.schema(name)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.schema.name

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row; none: the stream takes inserts only."""
        return self.schema.keys

    @property
    def last(self) -> StreamCommit | None:
        """The last commit: where a feeder that lost its place goes on."""
        return self._streams.cut(self.name, _EVER_US).last

    def changes(self, *, after: Moment | None = None, up_to: Moment | None = None) -> pa.Table:
        """Return the changes that were committed after one time, up to another, in their order: the rows, what happened to them, and in which commit.

        A reader goes on after the `_commit_timestamp` of the last change that it has seen. Raises `AnswerTooLarge`.
        """
        after_us, up_to_us = self._bound_us(after, 0), self._bound_us(up_to, _EVER_US)
        self._bring_up(self.name)
        return self._streams.changes(self.name, after_us, up_to_us)

    def _bound_us(self, time: Moment | None, none_us: int) -> int:
        time_us = moment_us(time, stream=self.name)
        if time_us is None:
            return none_us
        check_unit(self.name, time_us)
        return min(max(time_us, 0), _EVER_US)

    def append(self, changes: ChangesIn, *, transaction: str | None = None, time: Moment | None = None) -> Appended:
        """Append changes as one commit: rows with their `_change_type` (insert, update_preimage, update_postimage, delete), insert where it is missing."""
        return self._streams.append({self.name: changes}, transaction=transaction, time_us=moment_us(time, stream=self.name))

    def insert(self, rows: ChangesIn, *, transaction: str | None = None, time: Moment | None = None) -> Appended:
        """Append new rows."""
        return self.append(_typed(rows_given(self.name, rows), "insert"), transaction=transaction, time=time)

    def update(self, rows: ChangesIn | Sequence[Pair], *, transaction: str | None = None, time: Moment | None = None) -> Appended:
        """Append updates: the rows as they are afterwards, found by their keys, or pairs of a row before and after."""
        rows = rows_given(self.name, rows)
        self._refuse_partial(rows)
        return self.append(_updates(rows), transaction=transaction, time=time)

    def _refuse_partial(self, rows: "ChangesIn | Sequence[Pair]") -> None:
        """A row as it is after an update is given whole: a column that is left out would silently become null."""
        given = [rows.schema.names] if isinstance(rows, pa.Table | pa.RecordBatch) else [row for row in rows if isinstance(row, Mapping)]
        keys = [name.lower() for name in self.keys]
        for row, names in enumerate(given):
            left_out = {name.lower() for name in self.schema.columns.names} - {str(name).lower() for name in names}
            # A row without its key is no part of a row, and is told of with all others.
            if left_out and left_out.isdisjoint(keys):
                raise ColumnsChanged(
                    stream=self.name, row=row, reason=f"column {min(left_out)!r} is left out; an update gives the whole row as it is afterwards"
                )

    def delete(self, rows: ChangesIn, *, transaction: str | None = None, time: Moment | None = None) -> Appended:
        """Append deletes: whole rows, or their keys only."""
        return self.append(_typed(rows_given(self.name, rows), "delete"), transaction=transaction, time=time)

    def heartbeat(self, time: Moment) -> None:
        """Say that nothing at or before a time will come any more; for a stream with times="source"."""
        time_us = moment_us(time, stream=self.name)
        if time_us is None:
            raise StreamTime(stream=self.name, reason="a heartbeat has a time, as a datetime or in microseconds since 1970, and none was given")
        self._streams.heartbeat(self.name, time_us)

    def dead_letters(self) -> pa.Table:
        """Return the changes that could not be taken, with number, code and reason, and the source's commit time, or when they came if it gave none."""
        return self._streams.dead_letters(self.name)

    def replay(self, numbers: Iterable[int] | None = None, *, time: Moment | None = None) -> Appended:
        """Append dead letters again, all or some, as one commit; what fails again stays a dead letter, and is counted as `rejected`. Raises `UnknownLetter`."""
        return self._streams.replay(self.name, letters_given(numbers), time_us=moment_us(time, stream=self.name))

    def discard(self, numbers: Iterable[int] | None = None) -> int:
        """Forget dead letters, all or some; return how many. Raises `UnknownLetter`."""
        return self._streams.discard(self.name, letters_given(numbers))


def moment_us(time: Moment | None, *, stream: str = "*") -> int | None:
    """Return a commit time in microseconds since 1970."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise StreamTime(stream=stream, reason=f"{time!r} has no time zone")
        return (time - _EPOCH) // timedelta(microseconds=1)
    if time is not None and type(time) is not int:
        raise StreamTime(stream=stream, reason=f"{time!r} is neither a datetime nor microseconds since 1970")
    return time


def _typed(rows: ChangesIn, change_type: str) -> ChangesIn:
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows.append_column("_change_type", pa.repeat(pa.scalar(change_type), rows.num_rows))
    # What is no row at all is found out, and named, with the others.
    return [{**row, "_change_type": change_type} if isinstance(row, Mapping) else row for row in rows]


def _updates(rows: "ChangesIn | Sequence[Pair]") -> ChangesIn:
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return _typed(rows, "update_postimage")
    changes: list[Mapping[str, Any]] = []
    for row in rows:
        if isinstance(row, tuple) and len(row) == 2 and all(isinstance(image, Mapping) for image in row):
            changes += [{**row[0], "_change_type": "update_preimage"}, {**row[1], "_change_type": "update_postimage"}]
        else:
            changes += _typed([row], "update_postimage")
    return changes
