"""The streams of a service, as a client feeds and reads them.

In: calls of `Stream`, as the streams of one process take them.
Out: messages; answers and errors of the service.
Promise: as `queues.port.StreamPort`; an append is taken once, as `appends` says.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from righttime.changes.durations import Duration
from righttime.changes.marks import marked
from righttime.errors import BadMessage
from righttime.flight.appends import Appends
from righttime.flight.frames import Message, typed
from righttime.flight.given import write_given
from righttime.flight.transport import Transport
from righttime.queues.declared import (
    Appended,
    ChangesIn,
    OnBad,
    StreamCommit,
    StreamCut,
    StreamSchema,
    Times,
    check_transaction,
    declare_stream,
    rows_given,
)


class RemoteStreams:
    """All streams of a service; safe to use from any thread. `transport` returns the way there, or raises if it was closed."""

    def __init__(self, transport: Callable[[], Transport]) -> None:
        self._transport = transport
        self._appends = Appends(transport)

    # -- looking -----------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all streams."""
        return [typed(name, str, what="a stream") for name in self._transport().call("streams").listed("streams")]

    def schema(self, name: str) -> StreamSchema:
        """Return the declaration of a stream."""
        return _schema_of(self._transport().call("stream.schema", {"stream": str(name)}))

    def cut(self, name: str, time_us: int) -> StreamCut:
        """Return where a time cuts a stream."""
        cut = Message(self._transport().call("stream.cut", {"stream": name, "time": time_us}).mapping("cut"))
        return StreamCut(cut.text("stream"), _commit_of(cut.header.get("last")), _commit_of(cut.header.get("first_outside")))

    def changes(self, name: str, after_us: int, up_to_us: int) -> pa.Table:
        """Return the changes between two times; the service brings the stream of a table up first. Raises `AnswerTooLarge`."""
        return self._transport().rows({"stream": name, "after": after_us, "up_to": up_to_us})

    def dead_letters(self, name: str) -> pa.Table:
        """Return the changes of a stream that could not be taken, with the reasons."""
        return self._transport().rows({"stream": name, "letters": True})

    # -- declaring ---------------------------------------------------------------------------------------------------

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
        if_not_exists: bool = False,
    ) -> StreamSchema:
        """Create a stream; what is wrong with the declaration is found here, what is wrong with its name there."""
        schema = declare_stream(name, columns, keys=keys, times=times, on_bad=on_bad, tolerance=tolerance, comment=comment)
        header = {
            "name": schema.name,
            "keys": list(schema.keys),
            "times": schema.times,
            "on_bad": schema.on_bad,
            "tolerance": schema.tolerance_us,
            "comment": schema.comment,
            "if_not_exists": if_not_exists,
        }
        return _schema_of(self._once("stream.create", header, [schema.columns.serialize()]))

    def tap(self, table: str, name: str, *, wait_s: float) -> None:
        """Make what happens to a table a stream; the service may wait for producers first."""
        self._once("stream.tap", {"table": table, "stream": name}, timeout_s=wait_s)

    def _once(self, action: str, header: Mapping[str, Any], parts: Iterable[Any] = (), **options: Any) -> Message:
        return self._transport().call(action, {**header, "call": uuid.uuid4().hex}, list(parts), **options)

    # -- feeding -----------------------------------------------------------------------------------------------------

    def append(self, changes: Mapping[str, ChangesIn], *, transaction: str | None = None, time_us: int | None = None) -> Appended:
        """Append one source transaction, to all its streams at once, in one message. Raises `AppendUnknown`, `MessageTooLarge`."""
        check_transaction(transaction, changes)
        records: list[dict[str, Any]] = []
        parts: list[Any] = []
        for name, one in changes.items():
            given, more = write_given(rows_given(name, one))
            records.append({"stream": str(name), "given": given})
            parts += more
        header = {"changes": records, "transaction": transaction, "time": time_us}
        return _appended_of(self._appends.send("stream.append", ", ".join(map(str, changes)), header, parts))

    def replay(self, name: str, numbers: Iterable[int] | None = None, *, time_us: int | None = None) -> Appended:
        """Append dead letters again, all or some."""
        header = {"stream": name, "numbers": _numbers_text(numbers), "time": time_us}
        return _appended_of(self._appends.send("stream.replay", name, header))

    def discard(self, name: str, numbers: Iterable[int] | None = None) -> int:
        """Forget dead letters, all or some; return how many."""
        return self._appends.send("stream.discard", name, {"stream": name, "numbers": _numbers_text(numbers)}).number("discarded")

    def heartbeat(self, name: str, time_us: int) -> None:
        """Say that nothing at or before a time will come any more; sent twice, it is said once."""
        self._transport().call("stream.heartbeat", {"stream": name, "time": time_us})


def _numbers_text(numbers: Iterable[int] | None) -> str | None:
    return None if numbers is None else json.dumps([marked(number) for number in numbers])


def _schema_of(answer: Message) -> StreamSchema:
    try:
        return StreamSchema.from_json(answer.text("schema"))
    except (ValueError, KeyError, TypeError) as error:
        raise BadMessage(reason="the declaration of a stream cannot be read") from error


def _commit_of(record: object) -> StreamCommit | None:
    if record is None:
        return None
    commit = Message(typed(record, dict, what="a commit"))
    return StreamCommit(commit.number("number"), commit.number("time_us"), commit.optional_text("transaction"))


def _appended_of(answer: Message) -> Appended:
    appended = Message(answer.mapping("appended"))
    numbers = {name: typed(number, int, what="the number of a commit") for name, number in appended.mapping("numbers").items()}
    return Appended(numbers, appended.number("time_us"), appended.number("rows"), appended.number("rejected"))
