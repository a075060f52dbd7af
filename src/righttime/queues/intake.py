"""Changes on their way in: read into columns, paired, and checked row by row before any lock is taken.

In: a table or a list of mappings, as the feeder gives it.
Out: a `Given`: encoded rows, their change types, which rows form one change, and what is wrong with which.
Promise: a row that fails does not hide another; a change whose preimage or postimage fails, fails whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from righttime.changes.encoder import RowEncoder
from righttime.changes.hashing import EXACT, Words, combined, value_words
from righttime.changes.rows import table_of
from righttime.changes.schema import TableSchema
from righttime.changes.shown import shown_rows
from righttime.errors import BatchTooLarge, InputError, UnknownColumn, WrongType
from righttime.errors.flows import ChangeRefused, ColumnsChanged, KeyMissing
from righttime.queues.declared import CHANGE_TYPES, DELETE, INSERT, POSTIMAGE, PREIMAGE, ChangesIn, StreamSchema
from righttime.queues.index import Numbers

Codes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]
_UNKNOWN_TYPE = len(CHANGE_TYPES)
_TYPE = "_change_type"
_TYPE_NAMES = pa.array(CHANGE_TYPES, pa.string())


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a change cannot be taken: the class of its error, and the reason in words."""

    kind: type[ChangeRefused]
    reason: str


@dataclass(slots=True)
class Given:
    """The changes of one stream in one append. `units` numbers the changes: both images of an update have one number."""

    schema: StreamSchema
    source: "Source"
    rows: pa.RecordBatch
    ops: Codes
    units: Numbers
    faults_max: int
    faults: dict[int, Fault] = field(default_factory=dict)  # by row
    key_words: Words | None = None
    image_words: Words | None = None
    by_key_only: Flags | None = None

    def blame(self, flags: Flags, kind: type[ChangeRefused], reason: str | Callable[[int], str]) -> None:
        """Note what is wrong with the flagged rows; the first fault of a row counts. With more than `faults_max`, the append is refused anyway."""
        for row in np.flatnonzero(flags)[: self.faults_max + 1].tolist():
            self.faults.setdefault(row, Fault(kind, reason if isinstance(reason, str) else reason(row)))

    def sound(self) -> Flags:
        """Return which rows belong to changes without fault."""
        if not self.faults:
            return np.ones(len(self.ops), dtype=np.bool_)
        bad_units = np.unique(self.units[np.fromiter(self.faults, dtype=np.int64, count=len(self.faults))])
        return ~np.isin(self.units, bad_units)

    def before_faults(self) -> Flags:
        """Return which rows belong to changes before the first one at fault."""
        return self.units < (self.units[min(self.faults)] if self.faults else len(self.units))


class Source:
    """What the feeder gave: rows can be had back as mappings, for messages and dead letters."""

    def __init__(self, changes: ChangesIn) -> None:
        if isinstance(changes, pa.RecordBatch):
            changes = pa.Table.from_batches([changes])
        self.content: pa.Table | Sequence[Mapping[str, Any]] = changes

    def __len__(self) -> int:
        return self.content.num_rows if isinstance(self.content, pa.Table) else len(self.content)

    def mapping(self, row: int) -> dict[str, Any]:
        """Return one row as it was given."""
        if isinstance(self.content, pa.Table):
            return shown_rows(self.content.slice(row, 1))[0]
        given = self.content[row]
        return dict(given) if isinstance(given, Mapping) else {"_given": repr(given)}

    def types(self) -> Codes:
        """Return the change types as numbers; one more than there are for a type that is none."""
        if isinstance(self.content, pa.Table):
            return _table_types(self.content)
        codes = {name: code for code, name in enumerate(CHANGE_TYPES)} | {None: INSERT}
        given = (codes.get(row.get(_TYPE), _UNKNOWN_TYPE) if isinstance(row, Mapping) else INSERT for row in self.content)
        return np.fromiter(given, dtype=np.int8, count=len(self.content))

    def without_types(self) -> "pa.Table | list[Any]":
        """Return the rows with the user's columns only."""
        if isinstance(self.content, pa.Table):
            return self.content.drop_columns([_TYPE]) if _TYPE in self.content.schema.names else self.content
        return [{name: value for name, value in row.items() if name != _TYPE} if isinstance(row, Mapping) and _TYPE in row else row for row in self.content]


def _table_types(table: pa.Table) -> Codes:
    if _TYPE not in table.schema.names:
        return np.zeros(table.num_rows, dtype=np.int8)
    column = table.column(_TYPE)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        try:
            column = column.cast(pa.string())
        except pa.ArrowException:
            return np.full(table.num_rows, _UNKNOWN_TYPE, dtype=np.int8)
    places = pc.index_in(column, value_set=_TYPE_NAMES if pa.types.is_string(column.type) else _TYPE_NAMES.cast(column.type))
    if places.null_count:
        places = pc.if_else(column.is_null(), INSERT, pc.fill_null(places, _UNKNOWN_TYPE))
    return np.asarray(places.to_numpy(), dtype=np.int8)


def relaxed(schema: StreamSchema) -> pa.Schema:
    """Return the user's columns as they come in: a delete may give its key only, and a missing key is a fault of its row."""
    return pa.schema([one.with_nullable(True) for one in schema.columns])


def encoder_of(schema: StreamSchema) -> RowEncoder:
    """Return what reads the rows of a stream."""
    return RowEncoder(TableSchema(schema.name, relaxed(schema)))


def take_in(schema: StreamSchema, encoder: RowEncoder, changes: ChangesIn, *, faults_max: int, units: Numbers | None = None) -> Given:
    """Read the changes of one stream; `Given.faults` says which cannot be taken. Stops looking after `faults_max` rows that cannot be read.

    `units` says which rows form one change where that is known; otherwise a postimage belongs to the preimage directly before it.
    """
    source = Source(changes)
    ops = source.types()
    faults: dict[int, Fault] = {}
    rows = _encoded(source, encoder, faults, faults_max)
    given = Given(schema, source, rows, ops, _units(ops) if units is None else units, faults_max, faults)
    _check_types(given)
    if schema.keys:
        _check_keys(given)
    _check_nulls(given)
    return given


def _units(ops: Codes) -> Numbers:
    """Number the changes: a postimage directly behind a preimage belongs to it."""
    begins = np.ones(len(ops), dtype=np.bool_)
    begins[1:] = ~((ops[1:] == POSTIMAGE) & (ops[:-1] == PREIMAGE))
    return np.cumsum(begins, dtype=np.int64) - 1


def _encoded(source: Source, encoder: RowEncoder, faults: dict[int, Fault], faults_max: int) -> pa.RecordBatch:
    columns, rows = encoder.table.columns, source.without_types()
    batches: list[pa.RecordBatch] = []
    waiting = [(0, len(source))]
    # A stretch that cannot be read is halved until the rows at fault are alone; they become rows of nulls.
    while waiting:
        start, stop = waiting.pop()
        part = rows[start:stop] if isinstance(rows, list) else rows.slice(start, stop - start)
        try:
            batches.append(_batch(encoder, part))
        except InputError as error:
            if stop - start > 1 and len(faults) < faults_max:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
                continue
            faults.update(dict.fromkeys(range(start, stop), Fault(ColumnsChanged, _reason(error))))
            batches.append(pa.RecordBatch.from_arrays([pa.nulls(stop - start, one.type) for one in columns], schema=columns))
    return _joined(batches, columns)


def _reason(error: InputError) -> str:
    facts = error.context
    if isinstance(error, UnknownColumn):
        return f"there is no column {facts['column']!r}; the columns are {facts['known']}"
    if isinstance(error, WrongType):
        value = facts["value"].removesuffix(" in row 0")
        if facts["column"] == "*":
            return f"{value} was given instead of {facts['expected']}"
        return f"column {facts['column']!r}: {value} does not fit {facts['expected']}"
    return f"column {facts.get('column')!r} may not be null inside"


def _batch(encoder: RowEncoder, rows: "pa.Table | list[Any]") -> pa.RecordBatch:
    columns = encoder.table.columns
    if isinstance(rows, pa.Table):
        return _joined([batch for chunk in encoder.encode_arrow(rows) for batch in table_of([chunk], columns).to_batches()], columns)
    return _joined(table_of([encoder.encode(rows)], columns).to_batches(), columns)


def _joined(batches: Sequence[pa.RecordBatch], columns: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_pylist([], columns)
    joined = pa.Table.from_batches(batches, schema=columns).combine_chunks().to_batches()
    if len(joined) > 1:  # Arrow keeps more than 2 GiB of text in several arrays
        raise BatchTooLarge(table="of a stream", size=sum(batch.nbytes for batch in joined), bound=2**31)
    return joined[0]


def _check_types(given: Given) -> None:
    ops = given.ops
    unknown = ops == _UNKNOWN_TYPE
    given.blame(unknown, ChangeRefused, lambda row: f"{given.source.mapping(row)[_TYPE]!r} is no change type; there are {', '.join(CHANGE_TYPES)}")
    if not given.schema.keys:
        given.blame(ops != INSERT, ChangeRefused, "the stream has no keys and takes inserts only")
        return
    alone = ops == PREIMAGE
    alone[:-1] &= (ops[1:] != POSTIMAGE) | (given.units[1:] != given.units[:-1])
    given.blame(alone, ChangeRefused, "the preimage of an update is not directly followed by its postimage")


def _check_keys(given: Given) -> None:
    keys = given.rows.select(list(given.schema.keys))
    missing = np.zeros(len(given.ops), dtype=np.bool_)
    for column in keys.columns:
        if column.null_count:
            missing |= column.is_null().to_numpy(zero_copy_only=False)
    given.blame(missing, KeyMissing, f"the change has no key ({', '.join(given.schema.keys)} may not be null)")
    words = {name: value_words(column, EXACT) for name, column in zip(given.rows.schema.names, given.rows.columns, strict=True)}
    given.key_words = combined([words[name] for name in given.schema.keys], given.rows.num_rows)
    given.image_words = combined(list(words.values()), given.rows.num_rows)
    given.by_key_only = (given.ops == DELETE) | (given.ops == PREIMAGE)
    if given.by_key_only.any():
        for name, column in zip(given.rows.schema.names, given.rows.columns, strict=True):
            if name not in given.schema.keys:
                given.by_key_only &= column.is_null().to_numpy(zero_copy_only=False)


def _check_nulls(given: Given) -> None:
    whole = np.ones(len(given.ops), dtype=np.bool_) if given.by_key_only is None else ~given.by_key_only
    for one in given.schema.columns:
        column = given.rows.column(one.name)
        if not one.nullable and column.null_count:
            given.blame(column.is_null().to_numpy(zero_copy_only=False) & whole, ColumnsChanged, f"column {one.name!r} may not be null")
