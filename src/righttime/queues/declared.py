"""What a stream is: its declaration, its stored columns, and the values that its users get back.

In: a name, columns, keys and options of a stream.
Out: a frozen `StreamSchema`; what an append, a cut and a status say.
Promise: pure; a `StreamSchema` from here can be stored by Arrow, Parquet and Spark alike.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from righttime.changes.ddl import format_columns
from righttime.changes.durations import Duration, duration_us
from righttime.changes.schema import TableSchema, declare_table
from righttime.changes.types import TIMESTAMP
from righttime.errors import BadArgument, BadTable
from righttime.errors.flows import BadStream

ChangesIn = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]
Times = Literal["warehouse", "source"]
OnBad = Literal["error", "dead_letter"]

INSERT, PREIMAGE, POSTIMAGE, DELETE = range(4)
CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete")
SYSTEM_COLUMNS = (
    pa.field("_change_type", pa.string(), nullable=False),
    pa.field("_commit_version", pa.int64(), nullable=False),
    pa.field("_commit_timestamp", TIMESTAMP, nullable=False),
    pa.field("_transaction", pa.string()),
    pa.field("_seq", pa.int64(), nullable=False),
    pa.field("_w", pa.int64(), nullable=False),
    pa.field("_since", pa.int64(), nullable=False),
    pa.field("_ordinal", pa.int64(), nullable=False),
)
SHOWN_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp", "_transaction")  # the others are ours


@dataclass(frozen=True)
class StreamSchema:
    """One stream: the user's columns, what identifies a row, where commit times come from and what happens to bad changes."""

    name: str
    columns: pa.Schema
    keys: tuple[str, ...] = ()
    times: Times = "warehouse"
    on_bad: OnBad = "error"
    tolerance_us: int | None = None
    comment: str | None = None
    table: str | None = None  # the table of the warehouse whose changes the stream has; None: code feeds it

    @cached_property
    def stored(self) -> pa.Schema:
        """Return the columns of stored changes: the user's, then the system's."""
        return pa.schema([*self.columns, *SYSTEM_COLUMNS])

    @cached_property
    def logged(self) -> pa.Schema:
        """Return the columns of changes in the feed log: the user's, and what cannot be told from the rest of a record."""
        return pa.schema([*self.columns, ("_op", pa.int8()), ("_since", pa.int64()), ("_ordinal", pa.int64())])

    def to_json(self) -> str:
        """Return one line of JSON for the catalogue."""
        table = TableSchema(self.name, self.columns, self.keys, comment=self.comment)
        content = {"table": json.loads(table.to_json()), "times": self.times, "on_bad": self.on_bad, "tolerance_us": self.tolerance_us, "of": self.table}
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "StreamSchema":
        """Return what `to_json` wrote."""
        content = json.loads(text)
        table = TableSchema.from_json(json.dumps(content["table"]))
        # Earlier versions took a tolerance for any stream; it had no effect on those that are always complete.
        tolerance_us = content["tolerance_us"] if content["times"] == "source" else None
        return cls(table.name, table.columns, table.keys, content["times"], content["on_bad"], tolerance_us, table.comment, content["of"])


def declare_stream(
    name: str,
    columns: str | pa.Schema,
    *,
    keys: Iterable[str] = (),
    times: Times = "warehouse",
    on_bad: OnBad = "error",
    tolerance: Duration | None = None,
    comment: str | None = None,
    table: str | None = None,
) -> StreamSchema:
    """Check a declaration and return it frozen; raise `BadStream` with the reason. Names fold to lower case, as table names do."""
    if times not in ("warehouse", "source"):
        raise BadStream(stream=name, reason=f'times={times!r} is neither "warehouse" nor "source"')
    if on_bad not in ("error", "dead_letter"):
        raise BadStream(stream=name, reason=f'on_bad={on_bad!r} is neither "error" nor "dead_letter"')
    try:
        checked = declare_table(name, columns, keys=keys, comment=comment)
    except BadTable as error:
        raise BadStream(stream=name, reason=error.context["reason"]) from error
    tolerance_us = None if tolerance is None else duration_us(tolerance, what="tolerance")
    if tolerance_us is not None and times != "source":
        reason = 'tolerance= is for a stream with times="source", whose source may lag; one with times of the warehouse is always complete'
        raise BadStream(stream=name, reason=reason)
    return StreamSchema(checked.name, checked.columns, checked.keys, times, on_bad, tolerance_us, comment, table)


def differences(given: StreamSchema, known: StreamSchema) -> str:
    """Return in what the declaration of a stream differs from that of the one that is there; nothing if it does not."""
    pairs = ((what, one, other) for (what, one), (_, other) in zip(_parts(given), _parts(known), strict=True))
    return "; ".join(f"its {what} {other}, given {one}" for what, one, other in pairs if one != other)


def _parts(schema: StreamSchema) -> list[tuple[str, str]]:
    # That keys are never null goes without saying, or other keys would be other columns, too.
    columns = pa.schema([field.with_nullable(field.nullable or field.name in schema.keys) for field in schema.columns])
    tolerance = "none" if schema.tolerance_us is None else f"{schema.tolerance_us / 1e6:g} s"
    return [
        ("columns are", format_columns(columns)),
        ("keys are", ", ".join(schema.keys) or "none"),
        ("times are", repr(schema.times)),
        ("on_bad is", repr(schema.on_bad)),
        ("tolerance is", tolerance),
        ("comment is", repr(schema.comment)),
        ("table is", schema.table or "none"),
    ]


def rows_given(stream: str, given: Any) -> Any:
    """Return an Arrow table as it is, and other rows as a list; raise `BadStream` for what are no rows.

    A mapping, a text or a data frame would be taken apart into its keys, and each of them into a dead letter.
    """
    if isinstance(given, pa.Table | pa.RecordBatch):
        return given
    if not isinstance(given, Sequence | Iterator | ValuesView) or isinstance(given, str | bytes | bytearray):
        raise BadStream(stream=stream, reason=f"a {type(given).__name__} was given, which is not rows; give a list of rows, or an Arrow table")
    return list(given)


def letters_given(numbers: Any) -> list[Any] | None:
    """Return numbers of dead letters, each once; None stays None and means all. Raises `BadArgument` for what is no list of them."""
    if numbers is None:
        return None
    try:
        if not isinstance(numbers, str | bytes | bytearray):  # they would be taken apart into characters
            return list(dict.fromkeys(numbers))
    except TypeError:
        pass
    raise BadArgument(name="numbers", reason=f"{numbers!r} is no list of numbers of dead letters; give one, such as [1], or none for all")


def check_transaction(transaction: object, streams: Iterable[str]) -> None:
    """Raise `BadStream` for a name of a transaction that cannot be written down; bytes that were decoded with `surrogateescape` may not be."""
    try:
        if transaction is None or (isinstance(transaction, str) and transaction.encode() is not None):
            return
    except UnicodeEncodeError:
        pass
    raise BadStream(stream=", ".join(map(str, streams)), reason=f"{transaction!r} as the name of a transaction is no text")


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append did: the commit's number in each stream it changed, its time, rows stored, and changes that became dead letters, or stay some.

    An append that changes nothing makes no commit: it has no numbers, and its time is 0.
    """

    numbers: Mapping[str, int]
    time_us: int
    rows: int
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """One commit of a stream."""

    number: int
    time_us: int
    transaction: str | None


@dataclass(frozen=True, slots=True)
class StreamCut:
    """Where a time cuts a stream: the last commit inside and the first one outside, None where there is none."""

    stream: str
    last: StreamCommit | None
    first_outside: StreamCommit | None


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """How a stream is: rows and bytes kept, segments, the last commit, how far it is complete, and what waits as dead letters."""

    name: str
    rows: int
    bytes: int
    segments: int
    tail_rows: int
    last: StreamCommit | None
    watermark_us: int | None
    dead_letters: int
