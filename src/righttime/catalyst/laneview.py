"""Lane views: the hot rows of a lane as they are at one moment, for settling.

In: slices of a lane and its time index.
Out: groups of rows with their ids and commit times, only the columns that are asked for.
Promise: rows that fit into one group are read once, however often they are looked at; more are read group by group.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from righttime.catalyst.segments import grouped, rows_of
from righttime.catalyst.table import Lane, Slice
from righttime.changes.operations import Numbers

OPEN_US = 2**62
"""The time of rows and operations that are not committed yet: after everything."""

_GROUP_ROWS = 1 << 20


class Group:
    """Some neighbouring rows of a lane."""

    __slots__ = ("_read", "_slices", "begin", "ids")

    def __init__(self, slices: Sequence[Slice], times: Numbers, time_ids: Numbers) -> None:
        self._slices = slices
        self.ids: Numbers = np.concatenate([part.piece.ids(part.start, part.stop) for part in slices])
        self.begin: Numbers = np.append(times, OPEN_US)[np.searchsorted(time_ids, self.ids, side="left")]
        self._read: dict[tuple[str, ...], pa.Table] = {}

    def rows(self, columns: pa.Schema, names: Sequence[str] | None = None) -> pa.Table:
        """Return the rows: all columns, or the named ones."""
        wanted = tuple(columns.names if names is None else names)
        if wanted not in self._read:
            self._read[wanted] = rows_of(self._slices, columns, names)
        return self._read[wanted]


class LaneView:
    """One lane up to a row id."""

    def __init__(self, lane: Lane, last_id: int) -> None:
        self.source = lane.source
        self._slices = lane.slices(lane.stored_id + 1, last_id)
        self._times: Numbers = np.array(lane.times.times, dtype=np.int64)
        self._time_ids: Numbers = np.array(lane.times.ids, dtype=np.int64)
        self._only: Group | None = None

    def groups(self) -> Iterator[Group]:
        """Yield all rows, some at a time."""
        if self._only is not None:
            yield self._only
            return
        parts = list(grouped(self._slices, _GROUP_ROWS))
        for part in parts:
            group = Group(part, self._times, self._time_ids)
            if len(parts) == 1:
                self._only = group
            yield group
