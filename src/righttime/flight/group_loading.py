"""Group loading: one producer over several catalysts.

In: rows, operations, commits and rollbacks of one loader.
Out: the same to the owner of each table, through a producer there.
Promise: a transaction is at one catalyst; commits that follow each other have times that follow each other, whichever catalysts they are at.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from righttime.catalyst.face import Ask, ProducerFace
from righttime.catalyst.holder import Where
from righttime.catalyst.messages import Published
from righttime.catalyst.policies import Every, LoadAware, Policy
from righttime.catalyst.producer import Durability, OwnRows, Producer
from righttime.changes.rows import Row
from righttime.errors import OperationRefused, ProducerClosed, RightTimeError, ServiceUnreachable
from righttime.flight.group_members import GroupClock, Member, Members
from righttime.flight.group_reading import MemberRows


class GroupProducer(ProducerFace):
    """One source's loader over several catalysts. Calls from several threads are taken one after the other."""

    def __init__(self, source: str, *, policy: Policy, members: Members, clock: GroupClock, own_query: Ask) -> None:
        self.policy = policy
        self._members = members
        self._clock = clock
        self._own_query = own_query
        self._calls = threading.RLock()
        self._producers: dict[Member, Producer] = {}
        self._entered: dict[str, Producer] = {}
        self._closed = False
        self._wanted = source  # empty where each catalyst is to find a free name
        self.source = source
        self._current = self._open_first()

    def _open_first(self) -> Member:
        """Open at the first catalyst that is there: so a name that somebody uses already is refused at once."""
        down: ServiceUnreachable | None = None
        for member in self._members.all:
            try:
                self.source = self._producer(member).source
                return member
            except ServiceUnreachable as error:
                down = down or error
        assert down is not None, "a group has members"
        raise down

    # -- rows in -----------------------------------------------------------------------------------------------------

    def insert(self, table: str, row: Row) -> None:
        """Add one row: a mapping of column to value, or the values in column order."""
        with self._calls:
            (self._entered.get(table) or self._enter(table)).insert(table, row)

    def insert_many(self, table: str, rows: Sequence[Row]) -> None:
        """Add many rows; all of them or, if one does not fit, none."""
        with self._calls:
            self._enter(table).insert_many(table, rows)

    def insert_arrow(self, table: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Add Arrow data; columns are matched by name and cast without loss."""
        with self._calls:
            self._enter(table).insert_arrow(table, rows)

    def insert_df(self, table: str, df: Any) -> None:
        """Add a Spark DataFrame. Its rows are computed and written by the executors now; large ones never pass the driver."""
        with self._calls:
            self._enter(table).insert_df(table, df)

    # -- operations --------------------------------------------------------------------------------------------------

    def update(self, table: str, set: Mapping[str, Any], where: Where = None, *, parameters: Sequence[Any] = ()) -> None:
        """Change rows, as `Producer.update` does."""
        with self._calls:
            self._enter(table).update(table, set, where, parameters=parameters)

    def delete(self, table: str, where: Where = None, *, parameters: Sequence[Any] = ()) -> None:
        """Delete rows, chosen as by `update`."""
        with self._calls:
            self._enter(table).delete(table, where, parameters=parameters)

    def upsert(self, table: str, row: Row) -> None:
        """Give the row with this key the given columns, or insert it if there is none."""
        with self._calls:
            self._enter(table).upsert(table, row)

    def update_many(self, table: str, rows: Sequence[Row] | pa.Table) -> None:
        """Update by key, many rows at once: each gives the key columns and the columns to set. All of them are taken or none."""
        with self._calls:
            self._enter(table).update_many(table, rows)

    def upsert_many(self, table: str, rows: Sequence[Row] | pa.Table) -> None:
        """Upsert many rows at once, all of them or none."""
        with self._calls:
            self._enter(table).upsert_many(table, rows)

    def delete_many(self, table: str, rows: Sequence[Row] | pa.Table) -> None:
        """Delete by key, many rows at once: each gives the key columns. All of them are taken or none."""
        with self._calls:
            self._enter(table).delete_many(table, rows)

    # -- transactions ------------------------------------------------------------------------------------------------

    def commit(self, *, materialize: bool = False, durability: Durability | None = None, batch_id: str | None = None) -> Published:
        """Commit the transaction at its catalyst, as `Producer.commit` does; its time is above that of everything this client has seen."""
        with self._calls:
            member = self._at() or self._current
            producer = self._producer(member)
            self._clock.bring(member)
            try:
                published = producer.commit(materialize=materialize, durability=durability, batch_id=batch_id)
                self._clock.note(member, published.commit.time_us)
            except BaseException:  # Ctrl-C, too, leaves a commit whose time nobody has noted
                self._clock.doubt(member)
                raise
            self._entered = {}
            return published

    def rollback(self) -> None:
        """Drop the open transaction: its rows and its operations."""
        with self._calls:
            self._entered = {}
            for producer in self._producers.values():
                producer.rollback()

    def _enter(self, table: str) -> Producer:
        """Return the producer at a table's owner, unless a transaction is open elsewhere."""
        if self._closed:
            raise ProducerClosed(source=self.source)
        owner, member = self._members.owner(table), self._at()
        if member is not None and member is not owner:
            reason = f"it is at {owner.name}, the open transaction is at {member.name}, and a transaction is at one catalyst; commit it or roll it back first"
            raise OperationRefused(table=table, reason=reason)
        producer = self._producer(owner)
        if owner is not self._current:
            self._entered, self._current = {}, owner
        self._entered[table] = producer
        return producer

    def _at(self) -> Member | None:
        """Return the catalyst that the open transaction is at."""
        return next((member for member, producer in self._producers.items() if producer.in_transaction), None)

    def _producer(self, member: Member) -> Producer:
        """Return the producer at a catalyst, opened when it is first needed."""
        if self._closed:
            raise ProducerClosed(source=self.source)
        known = self._producers.get(member)
        if known is None:
            port = replace(member.warehouse._port, own_query=self._own_query_at(member))
            known = self._producers[member] = Producer(self._wanted, policy=_policy_of_its_own(self.policy), port=port)
            member.warehouse._leaver.add(known)
        return known

    # -- own reads and flushes ---------------------------------------------------------------------------------------

    def _answer_own(self, query: str, ask: Ask | None, **options: Any) -> Any:
        with self._calls:
            return self._producer(self._at() or self._current)._answer_own(query, ask, **options)

    def _own_query_at(self, member: Member) -> Ask:
        def own_query(query: str, *, own: OwnRows, **options: Any) -> Any:
            elsewhere = {other: producer.source for other, producer in self._producers.items() if other is not member}
            return self._own_query(query, own=MemberRows(own.source, own.bypass, member, elsewhere), **options)

        return own_query

    def flush(self, *tables: str) -> None:
        """Move lazily committed rows to the catalysts now: those of the named tables, or all; what fails at one is raised after the others have theirs."""
        with self._calls:
            if not tables:
                _at_each(producer.flush for producer in self._producers.values())
            owners = self._members.by_owner([str(table).lower() for table in tables])
            _at_each(partial(self._producer(member).flush, *names) for member, names in owners.items())

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush what is committed, drop what is not, and end, everywhere; what fails at one catalyst is raised after the others have ended."""
        with self._calls:
            try:
                _at_each(producer.close for producer in self._producers.values())
            finally:
                self._closed = all(producer.closed for producer in self._producers.values())

    @property
    def in_transaction(self) -> bool:
        """Whether there are rows or operations that are neither committed nor rolled back."""
        with self._calls:
            return self._at() is not None


def _at_each(calls: Iterable[Callable[[], None]]) -> None:
    """Make all calls, and then raise the first error, if there was one."""
    failed: RightTimeError | None = None
    for call in calls:
        try:
            call()
        except RightTimeError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _policy_of_its_own(policy: Policy) -> Policy:
    """Return a policy for one catalyst: those that measure time measure it for each; one that a user wrote is asked for all."""
    return copy.copy(policy) if isinstance(policy, Every | LoadAware) else policy
