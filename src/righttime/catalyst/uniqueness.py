"""Unique keys: an open transaction may not leave two rows with one key.

In: a table's rows and the outcome of the transaction's operations on them.
Out: nothing, or `KeyTaken` with the first such key.
Promise: only keys that the transaction itself inserted or changed are looked at, against every live row, hot and stored.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from righttime.catalyst.ends import NONE, Flags, among, by_unit
from righttime.catalyst.keycodes import KeyCodes
from righttime.catalyst.laneview import LaneView
from righttime.catalyst.settle import Settled, Settling, key_ranges
from righttime.changes.operations import Numbers
from righttime.errors import KeyTaken


def refuse_taken_keys(settling: Settling, outcome: Settled, *, source: str, first_id: int) -> None:
    """Raise `KeyTaken` if a key that `source` inserts from `first_id` on, or that an update makes, would be there twice."""
    names = list(settling.schema.keys)
    ended = np.sort(np.concatenate([settling.hidden.hot, outcome.hot_ids]))
    made = outcome.rows.filter(pa.array(outcome.end == 0)).select(names)
    mine = [lane for lane in settling.lanes if lane.source == source]
    own = [_live(ids, rows, ended, ids >= first_id) for lane in mine for ids, rows in _keys_of(settling, lane)]
    keys = pa.concat_tables([made, *own])
    if not keys.num_rows:
        return
    codes = KeyCodes(keys)
    counts = np.bincount(codes.codes, minlength=len(codes))
    for lane in settling.lanes:
        for ids, rows in _keys_of(settling, lane):
            before = ids < first_id if lane.source == source else np.ones(len(ids), dtype=bool)
            counts = counts + _counted(codes.of(_live(ids, rows, ended, before)), len(codes))
    counts = counts + _stored_counts(settling, outcome, keys, codes)
    if (counts > 1).any():
        place = int(np.flatnonzero(codes.codes == np.flatnonzero(counts > 1)[0])[0])
        raise KeyTaken(table=settling.schema.name, key=", ".join(f"{name}={keys.column(name)[place].as_py()!r}" for name in names))


def _keys_of(settling: Settling, lane: LaneView) -> Iterator[tuple[Numbers, pa.Table]]:
    for group in lane.groups():
        yield group.ids, group.rows(settling.schema.columns, settling.schema.keys)


def _live(ids: Numbers, rows: pa.Table, ended: Numbers, chosen: Flags) -> pa.Table:
    return rows.filter(pa.array(chosen & ~among(ids, ended)))


def _stored_counts(settling: Settling, outcome: Settled, keys: pa.Table, codes: KeyCodes) -> Numbers:
    gone = by_unit(outcome.stored.codes, outcome.stored.positions, outcome.stored.units)
    counts = np.zeros(len(codes), dtype=np.int64)
    for stored in settling.scan(list(settling.schema.keys), key_ranges(keys)):
        hidden = among(stored.positions, settling.hidden.stored.get(stored.unit, NONE)) | among(stored.positions, gone.get(stored.unit, NONE))
        counts += _counted(codes.of(pa.Table.from_batches([stored.rows]))[~hidden], len(codes))
    return counts


def _counted(codes: Numbers, size: int) -> Numbers:
    return np.bincount(codes[codes >= 0], minlength=size).astype(np.int64)
