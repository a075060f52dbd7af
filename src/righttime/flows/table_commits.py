"""The commits to a table between two times, read from its memory.

In: a table from which nothing was stored that was committed after the earlier time.
Out: what each commit changed, with its time and its producer.
Promise: nothing is stored or settled in between; what was is looked at again.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from righttime.catalyst.ends import Ends
from righttime.catalyst.leases import LaneKey
from righttime.catalyst.messages import Accuracy, Look
from righttime.catalyst.shell import Catalyst
from righttime.catalyst.table import VERSIONS
from righttime.flows.tap_changes import Span, Versions, hot_versions, in_commits, stored_versions, typed
from righttime.query.contract import Contract
from righttime.query.snapshot import Snapshot, Snapshots, TableSnapshot
from righttime.queues.commits import CommitIn
from righttime.warehouse.store import Store


class TableCommits:
    """Reads tables for their taps; everything up to the later time has to be here."""

    def __init__(self, catalyst: Catalyst, snapshots: Snapshots, store: Store) -> None:
        self._catalyst = catalyst
        self._snapshots = snapshots
        self._store = store

    def changes(self, table: str, after_us: int, up_to_us: int) -> tuple[pa.Table, list[CommitIn]]:
        """Return what happened after one time up to another, in the order of commits, and how it is parted; at first everything that is there."""
        if after_us == 0:
            # What was committed one by one before may be stored, and nobody can tell it apart: what is here is one commit.
            rows = typed(self.rows(table, up_to_us), "insert")
            return rows, [CommitIn(rows.num_rows, up_to_us, None)]
        while True:
            with self._snapshots.take([table], _at(up_to_us)) as snapshot:
                with self._catalyst.lock:
                    before = self._catalyst.look([table], Accuracy(after_us, {}))
                    lanes, seen = self._catalyst.table(table).lanes, snapshot.look.intervals
                    commits = {lane: lanes[lane[1]].times.entries_after(after_us, up_to_id=last_id) for lane, (_, last_id) in seen.items()}
                # Rows up to the watermark may have been stored in between, or a step that could store nothing has forgotten what was settled: look again.
                if (before.versions, before.resets) == (snapshot.look.versions, snapshot.look.resets):
                    span = Span.of(commits, snapshot.look.ends.get(table, Ends()), after_us, up_to_us)
                    changes, counts = self._in_commits(snapshot, table, before, span, after_us, up_to_us)
                    names = self._transactions(commits, before)
                    return changes, [CommitIn(rows, time_us, names.get(time_us)) for time_us, rows in counts]

    def rows(self, table: str, up_to_us: int) -> pa.Table:
        """Return the table as it was at a time."""
        with self._snapshots.take([table], _at(up_to_us)) as snapshot:
            return self._snapshots.rows(snapshot.tables[table])

    def _in_commits(self, snapshot: Snapshot, table: str, before: Look, span: Span, after_us: int, up_to_us: int) -> tuple[pa.Table, list[tuple[int, int]]]:
        found = snapshot.tables[table]
        came, went = hot_versions(found, before, span)
        went += self._stored_that_went(found, snapshot.look.ends.get(table, Ends()), after_us, up_to_us)
        columns = found.schema.columns
        return in_commits(Versions.together(came, columns), Versions.together(went, columns), found.schema.keys)

    def _stored_that_went(self, found: TableSnapshot, ends: Ends, after_us: int, up_to_us: int) -> Iterator[Versions]:
        first, last = np.searchsorted(ends.stored_times, (after_us, up_to_us), side="right")
        times, units, positions = (column[first:last] for column in (ends.stored_times, ends.stored_units, ends.stored_positions))
        for code in np.unique(units).tolist():
            mine = np.flatnonzero(units == code)
            mine = mine[np.argsort(positions[mine])]
            rows = self._store.fetch(found.schema, found.version, ends.units[code], positions[mine]).select(found.schema.columns.names)
            yield stored_versions(rows, times[mine])

    def _transactions(self, commits: Mapping[LaneKey, Sequence[tuple[int, int]]], before: Look) -> dict[int, str]:
        """Return the producer and number of each commit; of one that is older than this process only the producer is known."""
        names = {}
        with self._catalyst.lock:
            for lane, entries in commits.items():
                known_id = before.intervals[lane][1]
                for time_us, last_id in entries if lane[1] != VERSIONS else ():
                    if last_id > known_id:  # else it is an assurance that there was nothing
                        commit = self._catalyst.head.source(lane[1]).cut(lane[1], time_us).last_inside
                        names[time_us] = f"{lane[1]}#{commit.number}" if commit.time_us == time_us else lane[1]
                    known_id = last_id
        return names


def _at(time_us: int) -> Contract:
    """Everything up to there is here, so there is nothing to wait for."""
    return Contract(0, 0.0, "error", time_us)
