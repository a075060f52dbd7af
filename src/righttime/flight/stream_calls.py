"""Calls of feeders and readers of streams: what the service does with the messages of a client's `RemoteStreams`.

In: changes as they were given, ids of appends, times.
Out: what the streams of this process return, as records; changes and dead letters as rows.
Promise: nothing is done here that the streams do not do; an append that comes again under its id is answered as it was, also by the next service of the folder.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any, cast

import pyarrow as pa

from righttime.changes.marks import unmarked
from righttime.errors import BadMessage
from righttime.flight.access import Grant
from righttime.flight.frames import Message, typed
from righttime.flight.given import read_given
from righttime.queues.declared import ChangesIn, OnBad, Times
from righttime.queues.known import AppendId
from righttime.queues.streams import Streams

Answer = dict[str, Any]
_ID_LENGTH = 32
_STREAMS_MAX = 10_000


class StreamCalls:
    """The streams of a service, over messages; `bring_up` lets a stream of a table have what happened to it, `tap` makes one."""

    def __init__(self, streams: Streams, *, bring_up: Callable[[str], None], tap: Callable[[str, str], None]) -> None:
        self._streams = streams
        self._bring_up = bring_up
        self._tap = tap

    # -- looking -----------------------------------------------------------------------------------------------------

    def names(self, _message: Message, _grant: Grant) -> Answer:
        """List the streams."""
        return {"streams": self._streams.names()}

    def schema(self, message: Message, _grant: Grant) -> Answer:
        """Return the declaration of a stream."""
        return {"schema": self._streams.schema(message.text("stream")).to_json()}

    def cut(self, message: Message, _grant: Grant) -> Answer:
        """Return where a time cuts a stream."""
        return {"cut": asdict(self._streams.cut(message.text("stream"), message.number("time")))}

    def mark(self, _message: Message, _grant: Grant) -> Answer:
        """Return how many appends with an id there were, which the next one says with its own."""
        return {"mark": self._streams.known_appends}

    def rows(self, message: Message) -> pa.Table:
        """Return the dead letters of a stream, or its changes between two times."""
        name = message.text("stream")
        if message.header.get("letters") is True:
            return self._streams.dead_letters(name)
        after_us, up_to_us = message.number("after"), message.number("up_to")
        self._bring_up(name)
        return self._streams.changes(name, after_us, up_to_us)

    # -- declaring ---------------------------------------------------------------------------------------------------

    def create(self, message: Message, _grant: Grant) -> Answer:
        """Declare a stream."""
        try:
            columns = pa.ipc.read_schema(message.parts[0])
        except (pa.ArrowException, OSError, ValueError, IndexError) as error:
            raise BadMessage(reason="the columns cannot be read") from error
        tolerance_us = message.optional_number("tolerance")
        schema = self._streams.create(
            message.text("name"),
            columns,
            keys=[typed(key, str, what="a key") for key in message.listed("keys")],
            times=cast(Times, message.text("times")),  # checked with the rest
            on_bad=cast(OnBad, message.text("on_bad")),
            tolerance=None if tolerance_us is None else _span(tolerance_us),
            comment=message.optional_text("comment"),
            if_not_exists=message.flag("if_not_exists"),
        )
        return {"schema": schema.to_json()}

    def tap(self, message: Message, _grant: Grant) -> Answer:
        """Make what happens to a table a stream."""
        self._tap(message.text("table"), message.text("stream"))
        return {}

    # -- feeding -----------------------------------------------------------------------------------------------------

    def append(self, message: Message, _grant: Grant) -> Answer:
        """Append a transaction."""
        append_id, transaction, time_us = _append_id(message), message.optional_text("transaction"), _time_us(message)
        appended = self._streams.append(_changes(message), transaction=transaction, time_us=time_us, append_id=append_id)
        return self._answered({"appended": asdict(appended)})

    def replay(self, message: Message, _grant: Grant) -> Answer:
        """Append dead letters again."""
        append_id, time_us = _append_id(message), _time_us(message)
        appended = self._streams.replay(message.text("stream"), _numbers(message), time_us=time_us, append_id=append_id)
        return self._answered({"appended": asdict(appended)})

    def discard(self, message: Message, _grant: Grant) -> Answer:
        """Forget dead letters."""
        append_id = _append_id(message)
        return self._answered({"discarded": self._streams.discard(message.text("stream"), _numbers(message), append_id=append_id)})

    def heartbeat(self, message: Message, _grant: Grant) -> Answer:
        """Note that nothing at or before a time will come; said twice, it is said once."""
        time_us = _time_us(message)
        if time_us is None:
            raise BadMessage(reason="a heartbeat has a time")
        self._streams.heartbeat(message.text("stream"), time_us)
        return {}

    def _answered(self, answer: Answer) -> Answer:
        return {**answer, "mark": self._streams.known_appends}


def _changes(message: Message) -> dict[str, ChangesIn]:
    """Return the changes of each stream; a stranger may name one twice, which is refused as two spellings of it are."""
    found: dict[str, ChangesIn] = {}
    parts = list(message.parts)
    for record in message.listed("changes")[:_STREAMS_MAX]:
        entry = Message(typed(record, dict, what="the changes of a stream"))
        name = entry.text("stream")
        if name in found:
            raise BadMessage(reason="it has a stream twice")
        found[name], taken = read_given(entry.header.get("given"), parts)
        del parts[:taken]
    if parts:
        raise BadMessage(reason="parts are left over")
    return found


def _append_id(message: Message) -> AppendId:
    name, mark = message.text("append"), message.number("mark")
    if len(name) != _ID_LENGTH or not set(name) <= set("0123456789abcdef"):
        raise BadMessage(reason=f"the id of an append has {_ID_LENGTH} hexadecimal digits")
    return AppendId(name, mark)


def _time_us(message: Message) -> int | None:
    """Return a commit time of a source, however wrong: the streams say what is wrong with it."""
    time_us = message.header.get("time")
    if time_us is not None and type(time_us) is not int:
        raise BadMessage(reason="a time is not a number")
    return time_us


def _numbers(message: Message) -> list[int] | None:
    """Return numbers of letters, or what else was given for them: the streams say that there is no such letter."""
    text = message.optional_text("numbers")
    try:
        numbers = None if text is None else typed(json.loads(text, object_hook=unmarked), list, what="the numbers of letters")
        return None if numbers is None else list(set(numbers))
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise BadMessage(reason="the numbers of letters cannot be read") from error


def _span(tolerance_us: int) -> timedelta:
    try:
        return timedelta(microseconds=tolerance_us)
    except OverflowError as error:
        raise BadMessage(reason="the tolerance is too long") from error
