"""One stream's share of an append: from a plan to stored rows, to a body of the feed log and back.

In: a plan, the rows it refers to, and time and transaction of the commit, or of each of several that come together.
Out: stored rows with all system columns; the same rows from a record after a restart.
Promise: both ways build the stored rows with the same code, so that a restart changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from righttime.changes.hashing import EXACT, row_words
from righttime.queues.declared import CHANGE_TYPES, INSERT, POSTIMAGE, StreamSchema
from righttime.queues.events import by_key
from righttime.queues.history import History
from righttime.queues.index import KeyIndex, Numbers
from righttime.queues.intake import Codes, Flags, Given
from righttime.queues.judge import Plan
from righttime.queues.segments import Commits

_TYPES = pa.array(CHANGE_TYPES)


@dataclass(frozen=True, slots=True)
class CommitIn:
    """One commit of an append: how many of its rows, and what its source says of it."""

    rows: int
    time_us: int
    transaction: str | None


@dataclass(frozen=True, slots=True)
class Share:
    """The rows of commits in one stream; `since` and `ordinal` are of the images the rows begin or end."""

    schema: StreamSchema
    rows: pa.RecordBatch  # the user's columns
    ops: Codes
    since: Numbers
    ordinal: Numbers
    first_seq: int
    commits: Commits

    @property
    def begins(self) -> Flags:
        """Return which rows come into being."""
        begins: Flags = (self.ops == INSERT) | (self.ops == POSTIMAGE)
        return begins

    def stored(self) -> pa.Table:
        """Return the rows with all system columns."""
        count, rows = self.rows.num_rows, self._rows_of_commits()
        system = [
            _TYPES.take(pa.array(self.ops)),
            pa.array(np.repeat(self.commits.numbers, rows)),
            pa.array(np.repeat(self.commits.times, rows)).view(pa.timestamp("us", tz="UTC")),
            pa.array(self.commits.transactions, pa.string()).take(pa.array(np.repeat(np.arange(len(rows)), rows))),
            pa.array(np.arange(self.first_seq, self.first_seq + count)),
            pa.array(np.where(self.begins, 1, -1)),
            pa.array(self.since),
            pa.array(self.ordinal),
        ]
        return pa.Table.from_arrays([*self.rows.columns, *system], schema=self.schema.stored)

    def _rows_of_commits(self) -> Numbers:
        rows: Numbers = np.diff(self.commits.last_seqs, prepend=self.first_seq - 1)
        return rows

    def body(self) -> pa.Buffer:
        """Return what the feed log keeps of it beside numbers, times and transactions."""
        extra = [pa.array(self.ops), pa.array(self.since), pa.array(self.ordinal)]
        return pa.RecordBatch.from_arrays([*self.rows.columns, *extra], schema=self.schema.logged).serialize()

    def head(self, time_us: int, transaction: str | None) -> dict[str, Any]:
        """Return the other part; commits are told one by one, as (rows, time, transaction), unless there is one that has those of the whole record."""
        head = {"stream": self.schema.name, "number": int(self.commits.numbers[0]), "first_seq": self.first_seq, "rows": self.rows.num_rows}
        commits = list(zip(self._rows_of_commits().tolist(), self.commits.times.tolist(), self.commits.transactions, strict=True))
        return head if commits == [(self.rows.num_rows, time_us, transaction)] else {**head, "commits": commits}


def read_share(schema: StreamSchema, head: dict[str, Any], body: pa.Buffer, *, time_us: int, transaction: str | None) -> Share:
    """Return the share that `head` and `body` were made of."""
    batch = pa.ipc.read_record_batch(body, schema.logged)
    width = len(schema.columns)
    rows = pa.RecordBatch.from_arrays(batch.columns[:width], schema=schema.columns)
    ops, since, ordinal = (column.to_numpy() for column in batch.columns[width:])
    return Share(schema, rows, ops, since, ordinal, head["first_seq"], commits_in(head, time_us=time_us, transaction=transaction))


def commits_in(head: dict[str, Any], *, time_us: int, transaction: str | None) -> Commits:
    """Return the commits of a share as its head tells them, or the one that the record is."""
    rows, times, transactions = zip(*head.get("commits") or [(head["rows"], time_us, transaction)], strict=True)
    return Commits(head["number"] + np.arange(len(rows)), np.array(times), head["first_seq"] - 1 + np.cumsum(rows), list(transactions))


def share_of(given: Given, plan: Plan, history: History, commits: Sequence[CommitIn]) -> Share:
    """Return the share that a plan makes of the rows of one or several commits, behind everything that the history has.

    A commit of which nothing is left, because it changed nothing, is none.
    """
    ends = np.cumsum([commit.rows for commit in commits])
    made, of_step, rows = np.unique(np.searchsorted(ends, plan.row, side="right"), return_inverse=True, return_counts=True)
    all_times = np.array([commit.time_us for commit in commits], dtype=np.int64)
    times = all_times[made][of_step]
    begins = (plan.ops == INSERT) | (plan.ops == POSTIMAGE)
    ordinals = history.ordinals + np.cumsum(begins) - 1
    here = plan.ended_step >= 0
    ordinal = np.where(begins, ordinals, np.where(here, ordinals[plan.ended_step], plan.ordinal))
    since = np.where(begins, times, np.where(here, times[plan.ended_step], plan.since))
    numbers = len(history.commits) + 1 + np.arange(len(made))
    named = Commits(numbers, all_times[made], history.last_seq + np.cumsum(rows), [commits[place].transaction for place in made.tolist()])
    return Share(given.schema, _images(given, plan, history), plan.ops, since, ordinal, history.last_seq + 1, named)


def _images(given: Given, plan: Plan, history: History) -> pa.RecordBatch:
    columns = given.schema.columns
    fetched = np.flatnonzero(plan.given_row < 0)
    arrays = given.rows.columns
    if len(fetched):
        stored = history.fetch(plan.stored_seq[fetched])
        places = plan.given_row.copy()
        places[fetched] = given.rows.num_rows + np.arange(len(fetched))
        joint = (pa.chunked_array([array, *stored.column(name).chunks], array.type) for name, array in zip(columns.names, arrays, strict=True))
        taken = [_one(array.combine_chunks().take(pa.array(places))) for array in joint]
    elif len(plan.ops) == given.rows.num_rows and (plan.given_row == np.arange(len(plan.ops))).all():
        taken = list(arrays)
    else:
        taken = [array.take(pa.array(plan.given_row)) for array in arrays]
    return pa.RecordBatch.from_arrays(taken, schema=columns)


def _one(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)


def index_plan(index: KeyIndex, plan: Plan, share: Share) -> None:
    """Note in the index what is alive after a share whose plan is known."""
    if plan.ending is None or not len(plan.ending.places):
        return
    places = plan.ending.places
    seq = np.where(plan.ending.alive, share.first_seq + places, 0)
    index.put(plan.ending.keys, images=plan.ending.images, since=share.since[places], ordinal=share.ordinal[places], seq=seq)


def index_rows(index: KeyIndex, schema: StreamSchema, rows: pa.Table) -> None:
    """Note in the index what is alive after some stored rows, in their order."""
    for batch in rows.to_batches():
        keys = row_words(batch.select(list(schema.keys)), EXACT)
        order = by_key(keys)
        ordered = keys[order]
        lasts = order[np.append((ordered[1:] != ordered[:-1]).any(axis=1), True)]
        images = row_words(batch.select(schema.columns.names).take(pa.array(lasts)), EXACT)
        seq, weight, since, ordinal = (batch.column(name).to_numpy()[lasts] for name in ("_seq", "_w", "_since", "_ordinal"))
        index.put(keys[lasts], images=images, since=since, ordinal=ordinal, seq=np.where(weight > 0, seq, 0))


def next_ordinal(begins: Flags, ordinals: Numbers, before: int) -> int:
    """Return how many rows began up to the end of some changes."""
    begun = ordinals[begins]
    return int(begun.max()) + 1 if len(begun) else before
