"""Group reading: one cut through several catalysts.

In: the tables of a query, each with one owner, and its contract.
Out: held snapshots of all owners at exactly the same time, as one; one receipt for all.
Promise: whatever was committed up to the time of the cut is in the answer, at every catalyst, and nothing else; a query at one catalyst costs
what it costs there.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from righttime.catalyst.producer import OwnRows
from righttime.errors import AsOfUnavailable, FreshnessUnavailable, RightTimeError, SessionLost
from righttime.flight.group_members import GroupClock, Member, Members, together
from righttime.flight.reading import RemoteSnapshot, RemoteTable, new_id
from righttime.ledger.receipts import Receipt
from righttime.pipeline.spark import SparkOwner
from righttime.query.contract import Contract

_CUTS_MAX = 5


@dataclass(frozen=True, slots=True)
class MemberRows(OwnRows):
    """Uncommitted rows of a producer, the catalyst that its transaction is at, and what the producer is called at others."""

    member: Member
    elsewhere: Mapping[Member, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cut:
    """The time chosen for all catalysts of a query, and the priority that some gave it. `late`: lowered to what some could show."""

    asked_us: int
    time_us: int
    tickets: Mapping[Member, int | None]
    late: bool = False


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """What one query may read, at one or several catalysts; the first of them issues the receipt. `as_of`: the user chose the time."""

    parts: Sequence[tuple[Member, RemoteSnapshot]]
    cut: Cut | None
    as_of: bool

    def only(self, tables: Sequence[str]) -> "GroupSnapshot":
        """Return what one of several questions reads of it."""
        parts = [(member, part.only(tables)) for member, part in self.parts]
        return replace(self, parts=[(member, part) for member, part in parts if part.tables] or parts[:1])

    def live(self) -> bool:
        """Tell whether it is held; the services know."""
        return True

    @property
    def tables(self) -> dict[str, RemoteTable]:
        return {name: table for _, part in self.parts for name, table in part.tables.items()}


class GroupSnapshots:
    """Takes snapshots at the owners of tables and reads them."""

    def __init__(self, members: Members, clock: GroupClock) -> None:
        self._members = members
        self._clock = clock

    @contextmanager
    def take(self, tables: Sequence[str], contract: Contract, *, own: OwnRows | None = None) -> Iterator[GroupSnapshot]:
        """Hold one state of `tables` at all their owners until the block ends."""
        owners = self._members.by_owner(tables) or {self._members.all[0]: []}
        with ExitStack() as held:
            if len(owners) == 1:
                (member,) = owners
                part = _take_alone(held, member, tables, contract, own)
                snapshot = GroupSnapshot([(member, part)], None, contract.as_of_us is not None)
            else:
                snapshot = self._take_together(held, owners, contract, own)
            yield snapshot

    # -- the cut -----------------------------------------------------------------------------------------------------

    def _take_together(self, held: ExitStack, owners: Mapping[Member, list[str]], contract: Contract, own: OwnRows | None) -> GroupSnapshot:
        started_s = time.monotonic()
        lowered: _Lowered | None = None
        for attempt in range(_CUTS_MAX):
            left_s = max(contract.wait_s - (time.monotonic() - started_s), 0.0)
            cut = self._choose(owners, contract, own, again=attempt > 0) if lowered is None else lowered.cut
            with ExitStack() as taken:
                try:
                    parts = self._take_all(taken, owners, replace(contract, as_of_us=cut.time_us, wait_s=left_s), cut, own)
                except AsOfUnavailable:
                    if lowered is not None:
                        break
                    if contract.as_of_us is not None:
                        raise
                    continue  # a catalyst stored rows from beyond the cut before it took the snapshot
                below = _below(cut, [part for _, part in parts])
                if below is None:
                    held.enter_context(taken.pop_all())
                    return GroupSnapshot(parts, cut, contract.as_of_us is not None)
            lowered = below
            if own is not None and lowered.cut.time_us < self._clock.seen_us:
                break  # a producer reads on from its newest commit
        places = ", ".join(member.name for member in owners)
        raise FreshnessUnavailable(
            table=", ".join(name for names in owners.values() for name in names),
            source="*" if lowered is None else lowered.source,
            waited_s=time.monotonic() - started_s,
            stale_s=0.0 if lowered is None else max(lowered.cut.asked_us - lowered.cut.time_us, 0) / 1e6,
            why=f"rows were stored {_CUTS_MAX} times while one cut was taken at {places}"
            if lowered is None
            else f"it is late, and {places} have no common cut before",
        )

    def _choose(self, owners: Mapping[Member, list[str]], contract: Contract, own: OwnRows | None, *, again: bool) -> Cut:
        """Choose the newest time that costs nobody anything, if that is fresh enough, and none older than what is stored.

        Otherwise lazy producers are asked for no more than is needed; a flow makes its job up to now, since an older time may be inside one that it has
        made. The second time, storing waits for us.
        """
        answers = together([_asking(member, names, ticket=again) for member, names in owners.items()])
        asked_us = max(answer.number("read") for answer in answers)
        if contract.as_of_us is not None:
            time_us = min(contract.as_of_us, asked_us)
        else:
            ready_us = min(answer.number("ready") for answer in answers)
            oldest_us = max(asked_us - contract.freshness_us, *(answer.number("floor") for answer in answers))
            needed_us = max(asked_us, oldest_us) if any(answer.flag("flows") for answer in answers) else oldest_us
            time_us = ready_us if ready_us >= oldest_us else needed_us
        if own is not None:
            # A producer reads on from its newest commit, wherever that was.
            time_us = max(time_us, self._clock.seen_us)
        tickets = {member: answer.optional_number("ticket") for member, answer in zip(owners, answers, strict=True)}
        return Cut(max(asked_us, time_us), max(time_us, 0), tickets)

    def _take_all(
        self, held: ExitStack, owners: Mapping[Member, list[str]], contract: Contract, cut: Cut, own: OwnRows | None
    ) -> list[tuple[Member, RemoteSnapshot]]:
        """Take all snapshots at once, or none."""
        ids = {member: new_id() for member in owners}
        taking = [
            (member, member.snapshots.take(names, contract, own=_own_at(member, own), together=_at(cut, member), snapshot_id=ids[member]))
            for member, names in owners.items()
        ]

        def give_up() -> None:
            for member, snapshot_id in ids.items():
                member.snapshots.give_up(snapshot_id)

        with ExitStack() as taken:
            outcomes = together([_entering(one) for _, one in taking], give_up=give_up)
            for (_, one), outcome in zip(taking, outcomes, strict=True):
                if not isinstance(outcome, RightTimeError):
                    taken.push(one)
            failures = [outcome for outcome in outcomes if isinstance(outcome, RightTimeError)]
            if failures:
                # What another cut would not cure comes first.
                raise min(failures, key=lambda failure: isinstance(failure, AsOfUnavailable))
            held.enter_context(taken.pop_all())
        for member in owners:
            self._clock.note(member, cut.time_us)
        return [(member, outcome) for (member, _), outcome in zip(taking, outcomes, strict=True) if isinstance(outcome, RemoteSnapshot)]

    # -- rows --------------------------------------------------------------------------------------------------------

    def rows(self, table: RemoteTable, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a table at the cut, or some of its columns, as Arrow, without Spark."""
        return self._members.owner(table.schema.name).snapshots.rows(table, columns)

    def relation(self, spark: SparkOwner, child: Any, table: RemoteTable) -> tuple[Any, object]:
        """Return a fresh relation of a table at the cut."""
        return self._members.owner(table.schema.name).snapshots.relation(spark, child, table)

    def has_lapsed(self, table: RemoteTable) -> bool:
        """Tell whether the owner of a table says that it holds its snapshot no longer."""
        return self._members.owner(table.schema.name).snapshots.has_lapsed(table)

    # -- receipts ----------------------------------------------------------------------------------------------------

    def issue(self, snapshot: GroupSnapshot, *, query: str, parameters: Sequence[str], rows: int, digest: str) -> Receipt:
        """Have the receipt sealed, by the owner of all tables, or by the first owner with the parts of the others; snapshots that do not stand are let go."""
        home, mine = snapshot.parts[0]
        if snapshot.cut is None:
            receipt = home.snapshots.issue(mine, query=query, parameters=parameters, rows=rows, digest=digest)
            self._clock.note(home, receipt.cut_us)
            return receipt
        header = {"receipt": uuid.uuid4().hex, "query": query, "parameters": list(parameters), "rows": rows, "digest": digest, "as_of": snapshot.as_of}
        cut = {"asked": snapshot.cut.asked_us, "late": snapshot.cut.late}
        others = snapshot.parts[1:]
        texts = together([_issuing(member, part, header) for member, part in others])
        parts = [{"address": member.name, "receipt": text} for (member, _), text in zip(others, texts, strict=True)]
        answer = home.call("group.whole", {**header, **mine.kept(), "snapshot": mine.snapshot_id, "parts": parts, **cut, "call": uuid.uuid4().hex})
        mine.issued = True
        return Receipt.from_json(answer.text("receipt"))


@dataclass(frozen=True, slots=True)
class _Lowered:
    """A cut that all catalysts have to take anew, because one of them cannot show as much as it was asked for; and the source that is late."""

    cut: Cut
    source: str


def _below(cut: Cut, parts: Sequence[RemoteSnapshot]) -> _Lowered | None:
    """Return the cut that late parts make one cut again; None if they are one.

    A catalyst that answers late shows less of all sources where operations or flows need that; else of a source that others may have later commits of.
    """
    least = [(part.cut_us, next(iter(part.late), "*")) for part in parts if part.cut_us is not None and part.cut_us < cut.time_us]
    for part in parts:
        least += [(late_us, source) for source, late_us in part.late.items() if any(one is not part and one.inside.get(source, 0) > late_us for one in parts)]
    if not least:
        return None
    time_us, source = min(least)
    return _Lowered(replace(cut, time_us=time_us, tickets=dict.fromkeys(cut.tickets), late=True), source)


def _take_alone(held: ExitStack, member: Member, tables: Sequence[str], contract: Contract, own: OwnRows | None) -> RemoteSnapshot:
    """Take the snapshot of the only catalyst that a query needs; who asks sees what it committed there, wherever it is by now."""
    elsewhere = own.elsewhere.get(member) if isinstance(own, MemberRows) else None
    if elsewhere is None:
        return held.enter_context(member.snapshots.take(tables, contract, own=_own_at(member, own)))
    try:
        return held.enter_context(member.snapshots.take(tables, contract, own=OwnRows(elsewhere, {})))
    except SessionLost:
        # It was started anew and does not know who asks. What is left of the commits is there now.
        return held.enter_context(member.snapshots.take(tables, replace(contract, freshness_us=0)))


def _at(cut: Cut, member: Member) -> dict[str, Any]:
    """Return what a catalyst is told of the cut that was chosen for all."""
    return {"observe": cut.time_us, "ticket": cut.tickets[member]}


def _own_at(member: Member, own: OwnRows | None) -> OwnRows | None:
    """Return the uncommitted rows that a catalyst has of the one who asks."""
    return own if isinstance(own, MemberRows) and own.member is member else None


def _asking(member: Member, names: Sequence[str], *, ticket: bool) -> Callable[[], Any]:
    return lambda: member.call("group.clock", {"tables": list(names), "ticket": ticket})


def _entering(taking: AbstractContextManager[RemoteSnapshot]) -> Callable[[], RemoteSnapshot | RightTimeError]:
    def entered() -> RemoteSnapshot | RightTimeError:
        try:
            return taking.__enter__()
        except RightTimeError as error:
            return error

    return entered


def _issuing(member: Member, part: RemoteSnapshot, header: Mapping[str, Any]) -> Callable[[], str]:
    def issued() -> str:
        text = member.call("group.part", {**header, **part.kept(), "snapshot": part.snapshot_id, "call": uuid.uuid4().hex}).text("receipt")
        part.issued = True
        return text

    return issued
