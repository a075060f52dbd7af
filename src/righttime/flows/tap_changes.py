"""The changes of a table between two times, as its stream takes them.

In: a snapshot of the table at the later time, a look at the earlier one, and the commits between them.
Out: rows with their change types, commit by commit; where a stream has come to differ, what sets it right.
Promise: pure; what comes out, added to the table at the earlier time, is the table at the time of each commit, whatever the two times are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from righttime.catalyst.ends import NONE as _NONE
from righttime.catalyst.ends import Ends, among
from righttime.catalyst.laneview import OPEN_US
from righttime.catalyst.leases import LaneKey
from righttime.catalyst.messages import Look
from righttime.catalyst.segments import all_positions, rows_of
from righttime.catalyst.table import VERSIONS, Slice
from righttime.changes.hashing import EXACT, row_words
from righttime.changes.operations import Numbers
from righttime.query.snapshot import TableSnapshot
from righttime.queues.declared import CHANGE_TYPES, DELETE, INSERT, POSTIMAGE, PREIMAGE, StreamSchema
from righttime.queues.events import by_key

_TYPES = pa.array(CHANGE_TYPES)
_LAST = 2**62  # behind the rows that were inserted in the same commit


@dataclass(frozen=True, slots=True, eq=False)
class Versions:
    """Rows, each with the time of the commit in which it came, or went, and its place among those that came then; deletes have none."""

    rows: pa.Table
    times: Numbers
    places: Numbers

    @classmethod
    def together(cls, parts: Sequence["Versions"], columns: pa.Schema) -> "Versions":
        """Return all parts as one."""
        times, places = (np.concatenate([_NONE, *(getattr(part, name) for part in parts)]) for name in ("times", "places"))
        return cls(pa.concat_tables([columns.empty_table(), *(part.rows for part in parts)]), times, places)


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """What happened to the rows in memory between two times: when each lane's rows were committed, and the ends among all rows by ascending id."""

    commits: Mapping[LaneKey, Sequence[tuple[int, int]]]  # (time, last row) after the earlier time
    ended_ids: Numbers
    ended_times: Numbers

    @classmethod
    def of(cls, commits: Mapping[LaneKey, Sequence[tuple[int, int]]], ends: Ends, after_us: int, up_to_us: int) -> "Span":
        """Take the ends that fall between the two times."""
        first, last = np.searchsorted(ends.hot_times, (after_us, up_to_us), side="right")
        order = np.argsort(ends.hot_ids[first:last], kind="stable")
        return cls(commits, ends.hot_ids[first:last][order], ends.hot_times[first:last][order])

    def began(self, lane: LaneKey, ids: Numbers) -> Numbers:
        """Return when these rows of a lane were committed, all of them after the earlier time."""
        times, last_ids = (np.array(column, dtype=np.int64) for column in zip(*self.commits[lane], strict=True))
        began: Numbers = times[np.searchsorted(last_ids, ids, side="left")]
        return began

    def ended(self, ids: Numbers) -> Numbers:
        """Return when these rows ended, OPEN_US for those that did not."""
        known = among(ids, self.ended_ids)
        ended = np.full(len(ids), OPEN_US, dtype=np.int64)
        ended[known] = self.ended_times[np.searchsorted(self.ended_ids, ids[known])]
        return ended


def hot_versions(found: TableSnapshot, before: Look, span: Span) -> tuple[list[Versions], list[Versions]]:
    """Return the rows in memory that came between the two times, and those that went; one that came and went in one commit was never there."""
    columns, came, went = found.schema.columns, [], []
    for lane, slices in found.lanes.items():
        last_id = before.intervals.get(lane, (1, 0))[1]
        old, new = _up_to(slices, last_id), _after(slices, last_id)
        gone = all_positions(old, span.ended_ids)
        if len(gone):
            went.append(_went(rows_of(old, columns), span.ended(_ids(old)), gone))
        if new:
            rows, ids = rows_of(new, columns), _ids(new)
            began, ended = span.began(lane, ids), span.ended(ids)
            there = np.flatnonzero(began != ended)
            # Versions that settling made have ids that depend on when it was done; rows that were inserted keep the order in which they were.
            places = np.full(len(there), _LAST) if lane[1] == VERSIONS else ids[there]
            came.append(Versions(rows.take(pa.array(there)), began[there], places))
            went.append(_went(rows, ended, there[ended[there] < OPEN_US]))
    return came, went


def _went(rows: pa.Table, ended: Numbers, places: Numbers) -> Versions:
    return Versions(rows.take(pa.array(places)), ended[places], np.full(len(places), _LAST))


def stored_versions(rows: pa.Table, times: Numbers) -> Versions:
    """Return stored rows that went at these times."""
    return Versions(rows, times, np.full(len(times), _LAST))


def in_commits(came: Versions, went: Versions, keys: Sequence[str]) -> tuple[pa.Table, list[tuple[int, int]]]:
    """Return changes in the order of their commits, and each commit's time and number of changes.

    A row that goes and one that comes under the same key in one commit are the two images of an update.
    """
    rows = pa.concat_tables([went.rows, came.rows])
    times, comes = np.concatenate([went.times, came.times]), np.arange(rows.num_rows) >= len(went.times)
    places, words = np.concatenate([went.places, came.places]), _words(rows.select(list(keys)))
    neighbours = np.lexsort((comes, words[:, 1], words[:, 0], times))
    same = (times[neighbours][1:] == times[neighbours][:-1]) & (words[neighbours][1:] == words[neighbours][:-1]).all(axis=1)
    before, after = neighbours[:-1][same], neighbours[1:][same]
    kinds = np.where(comes, INSERT, DELETE)
    kinds[before], kinds[after], places[before] = PREIMAGE, POSTIMAGE, places[after]
    order = np.lexsort((comes, words[:, 1], words[:, 0], places, times))
    changes = rows.take(pa.array(order)).append_column("_change_type", _TYPES.take(pa.array(kinds[order])))
    moments, counts = np.unique(times, return_counts=True)
    return changes, list(zip(moments.tolist(), counts.tolist(), strict=True))


def _up_to(slices: Sequence[Slice], row_id: int) -> list[Slice]:
    cut = [Slice(part.piece, part.start, min(part.stop, max(part.piece.rows_up_to(row_id), part.start))) for part in slices]
    return [part for part in cut if part.rows]


def _after(slices: Sequence[Slice], row_id: int) -> list[Slice]:
    cut = [Slice(part.piece, max(part.start, min(part.piece.rows_up_to(row_id), part.stop)), part.stop) for part in slices]
    return [part for part in cut if part.rows]


def _ids(slices: Sequence[Slice]) -> Numbers:
    runs = (run for part in slices for run in part.piece.runs(part.start, part.stop))
    return np.concatenate([_NONE, *(np.arange(first_id, first_id + rows, dtype=np.int64) for first_id, rows in runs)])


def typed(rows: pa.Table, change_type: str) -> pa.Table:
    """Return rows as changes of one type."""
    return rows.append_column("_change_type", pa.repeat(pa.scalar(change_type), rows.num_rows))


def difference(rows: pa.Table, changes: pa.Table, schema: StreamSchema) -> pa.Table:
    """Return what makes a stream with these changes have exactly `rows`."""
    names = schema.columns.names
    keys = _words(changes.select(list(schema.keys)))
    order = by_key(keys)
    lasts = order[np.append((keys[order][1:] != keys[order][:-1]).any(axis=1), True)] if len(order) else order
    last = changes.take(pa.array(lasts))
    living = last.filter(pa.array(last.column("_w").to_numpy() > 0)).select(names).cast(rows.schema)
    there, wanted = _values(living), _values(rows)
    too_much, lacking = living.filter(pa.array(~np.isin(there, wanted))), rows.filter(pa.array(~np.isin(wanted, there)))
    return pa.concat_tables([typed(too_much, "delete"), typed(lacking, "insert")])


def _words(rows: pa.Table) -> npt.NDArray[np.uint64]:
    return np.concatenate([np.empty((0, 2), np.uint64), *(row_words(batch, EXACT) for batch in rows.to_batches())])


def _values(rows: pa.Table) -> npt.NDArray[np.void]:
    """Return one value per row that can be looked up among others: both words, bit by bit."""
    words = np.ascontiguousarray(_words(rows))
    return words.view([("one", np.uint64), ("other", np.uint64)]).reshape(-1)
