"""Tables at a cut on their way to a client that asks the database itself.

In: tables of a held snapshot, as a session of PostgreSQL takes them; at the client, what was said of them.
Out: the same again on the other side, and by tickets the hot rows that a session does not have yet.
Promise: ids and places travel as runs of neighbours, so a million of them are mostly a few bytes; a ticket gets rows of its own snapshot and no others.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from typing import Any

import numpy as np
import pyarrow as pa

from righttime.catalyst.ends import NONE, Flags
from righttime.catalyst.segments import joined
from righttime.changes.operations import Numbers
from righttime.changes.schema import TableSchema
from righttime.errors import BadMessage
from righttime.flight.frames import Message
from righttime.query.postgres_cut import BATCH_ROWS, ID, CutTable
from righttime.warehouse.postgres_catalog import Found
from righttime.warehouse.postgres_hold import Moment

_ROWS_AT_ONCE = 1 << 18
Fetch = Callable[[Mapping[str, Any], list[bytes]], pa.Table]
"""Gets the rows that a ticket stands for."""


# -- at the service ----------------------------------------------------------------------------------------------------


def cut_record(cut: CutTable, parts: list[bytes]) -> dict[str, Any]:
    """Return what a client is told of a table; its numbers are added to the parts of the message."""
    parts += [runs_of(cut.gone), runs_of(cut.ids)]
    return {"found": cut.found.to_json(), "gone": len(parts) - 2, "ids": len(parts) - 1, "life": cut.life, "moment": astuple(cut.moment)}


def hot_rows(cut: CutTable, message: Message) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the rows of a ticket: those of the ids that it names, or the own ones of an open transaction."""
    if message.text("hot") == "own":
        return cut.schema.columns, iter(cut.own().to_batches(max_chunksize=BATCH_ROWS))
    if len(message.parts) != 1:
        raise BadMessage(reason="a ticket for hot rows names their ids")
    wanted = cut.ids[_within(cut.ids, message.parts[0])]
    schema = pa.schema([pa.field(ID, pa.int64()), *cut.schema.columns])

    def batches() -> Iterator[pa.RecordBatch]:
        # Who commits row by row has a batch for each; on the way one large one costs less.
        yield from joined(pa.Table.from_batches(list(cut.rows(wanted)), schema=schema)).to_batches(max_chunksize=BATCH_ROWS)

    return schema, batches()


# -- at the client -----------------------------------------------------------------------------------------------------


def cut_of(schema: TableSchema, record: Message, answer: Message, fetch: Fetch) -> CutTable:
    """Return a table as the service described it."""
    try:
        found = Found.of(json.loads(record.text("found")))
        gone, ids = (numbers_of(answer.parts[record.number(name)]) for name in ("gone", "ids"))
        moment = Moment(*map(str, record.listed("moment")))
    except (ValueError, TypeError, IndexError) as error:
        raise BadMessage(reason="a table of a snapshot cannot be read") from error

    def rows(wanted: Numbers) -> Iterator[pa.RecordBatch]:
        for begin in range(0, len(wanted), _ROWS_AT_ONCE):
            part = wanted[begin : begin + _ROWS_AT_ONCE]
            sent = fetch({"hot": "ids"}, [runs_of(part)])
            if sent.num_rows != len(part):
                raise BadMessage(reason=f"{len(part)} hot rows were asked for, and {sent.num_rows} came")
            yield from sent.to_batches()

    def own() -> pa.Table:
        return fetch({"hot": "own"}, []) if record.flag("own") else schema.columns.empty_table()

    return CutTable(schema, found, moment, gone, ids, record.text("life"), rows, own)


# -- numbers -----------------------------------------------------------------------------------------------------------


def runs_of(numbers: Numbers) -> bytes:
    """Return ascending numbers as runs of neighbours: all firsts, then all lengths."""
    begins = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 2) != 1)
    return np.concatenate([numbers[begins], np.diff(begins, append=len(numbers))]).astype("<i8").tobytes()


def numbers_of(runs: pa.Buffer | bytes) -> Numbers:
    """Return the numbers again."""
    firsts, lengths = _runs(runs)
    if not len(firsts):
        return NONE
    before = np.cumsum(lengths) - lengths
    return np.repeat(firsts - before, lengths) + np.arange(lengths.sum(), dtype=np.int64)


def _within(numbers: Numbers, runs: pa.Buffer | bytes) -> Flags:
    """Tell for each number whether it is in one of the runs; they are not written out, for they may say anything."""
    firsts, lengths = _runs(runs)
    if not len(firsts):
        return np.zeros(len(numbers), dtype=bool)
    places = np.searchsorted(firsts, numbers, side="right") - 1
    return (places >= 0) & (numbers - firsts[places] < lengths[places])


def _runs(runs: pa.Buffer | bytes) -> tuple[Numbers, Numbers]:
    content = memoryview(runs)
    if len(content) % 16:
        raise BadMessage(reason="numbers are written as firsts and lengths")
    firsts, lengths = np.frombuffer(content, dtype="<i8").astype(np.int64).reshape(2, -1)
    return firsts, lengths
