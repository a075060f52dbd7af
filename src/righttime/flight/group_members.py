"""Members: the catalysts of a group, and which of them has which table.

In: addresses; the declarations of each catalyst.
Out: the owner of a table; all tables and views as one catalog; the newest time that this client has seen anywhere.
Promise: a table has one owner; a catalyst that is down keeps nobody from what the others have, and is named where it is needed.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from righttime.changes.clock import Clock
from righttime.changes.schema import TableSchema
from righttime.errors import NotAWarehouse, RightTimeError, ServiceUnreachable, TableAmbiguous, UnknownTable
from righttime.flight.access import Bearer
from righttime.flight.frames import Message
from righttime.flight.reading import RemoteSnapshots
from righttime.flight.transport import Target, Transport
from righttime.flight.warehouse import RemoteWarehouse
from righttime.settings import Settings
from righttime.telemetry import get_log

log = get_log("flight")

_T = TypeVar("_T")
_LOOK_S = 2.0
"""How long to try for declarations; where a table is known already, nobody needs them."""
_PAUSE_TIMES = 10.0
"""How many times as long as it took in vain nobody asks a catalyst again: commits elsewhere spend a tenth of their time on it at most."""


class Member:
    """One catalyst of a group; connected when it is first needed."""

    def __init__(self, target: Target, connect: Callable[[], RemoteWarehouse]) -> None:
        self.target = target
        self.name = str(target).partition("://")[2]
        self.tables: dict[str, TableSchema] = {}
        self.views: dict[str, str] = {}
        self._connect = connect
        self._lock = threading.Lock()
        self._warehouse: RemoteWarehouse | None = None

    @property
    def warehouse(self) -> RemoteWarehouse:
        """The catalyst as a warehouse of its own; raises `ServiceUnreachable` while it is down."""
        with self._lock:
            if self._warehouse is None:
                self._warehouse = self._connect()
            return self._warehouse

    @property
    def transport(self) -> Transport:
        return self.warehouse._transport

    @property
    def snapshots(self) -> RemoteSnapshots:
        snapshots: RemoteSnapshots = self.warehouse._reading._snapshots
        return snapshots

    @property
    def warehouse_id(self) -> str:
        return self.warehouse._warehouse_id

    def call(self, action: str, header: Mapping[str, Any] | None = None, **options: Any) -> Message:
        """Send one message."""
        return self.transport.call(action, header, **options)

    def look(self) -> None:
        """Fetch the declarations; without long tries, since others may do without."""
        answer = self.call("catalog", reconnect_s=min(_LOOK_S, self.warehouse._settings.reconnect_s))
        tables = [TableSchema.from_json(text) for text in answer.listed("tables")]
        # What is known stays the same object: others tell by it that a table is unchanged.
        self.tables = {table.name: self.tables[table.name] if self.tables.get(table.name) == table else table for table in tables}
        self.views = answer.mapping("views")

    def close(self) -> None:
        with self._lock:
            if self._warehouse is not None:
                self._warehouse.close()

    def __repr__(self) -> str:
        return f"<Member {self.name}>"


class Members:
    """The catalysts of one group in the order of their addresses; safe to call from any thread."""

    def __init__(self, targets: Sequence[Target], bearer: Bearer, *, settings: Settings, clock: Clock) -> None:
        def connector(target: Target) -> Callable[[], RemoteWarehouse]:
            return lambda: RemoteWarehouse(target, bearer, settings=settings, clock=clock)

        self.all = [Member(target, connector(target)) for target in targets]
        self._lock = threading.Lock()
        try:
            down = self.refresh()
            if len(down) == len(self.all):
                raise next(iter(down.values()))
            self._refuse_twins([member for member in self.all if member not in down])
        except BaseException:
            self.close()
            raise

    def _refuse_twins(self, members: Sequence[Member]) -> None:
        known: dict[str, Member] = {}
        for member in members:
            twin = known.setdefault(member.warehouse_id, member)
            if twin is not member:
                raise NotAWarehouse(path=member.name, reason=f"it is the same catalyst as {twin.name}; name each of a group once")

    # -- declarations ------------------------------------------------------------------------------------------------

    def refresh(self) -> dict[Member, RightTimeError]:
        """Fetch all declarations anew; return the catalysts that are down. What they had is kept."""
        down = {}
        with self._lock:
            for member, found in zip(self.all, together([_caught(member.look) for member in self.all]), strict=True):
                if found is not None:
                    down[member] = found
                    log.info("member.down", member=member.name, code=found.code)
            self._refuse_ambiguous()
        return down

    def need_all(self) -> None:
        """Fetch all declarations anew; whoever is down may have the name that matters."""
        for error in self.refresh().values():
            raise error

    def _refuse_ambiguous(self) -> None:
        known: dict[str, Member] = {}
        for member in self.all:
            for name in [*member.tables, *member.views]:
                other = known.setdefault(name, member)
                if other is not member:
                    raise TableAmbiguous(table=name, first=other.name, second=member.name)

    def find(self, table: str) -> Member | None:
        """Return the owner of a table; None if there is none, the catalyst's error if one that is down may have it."""
        known = self._known(table)
        if known is None and not any(table in member.views for member in self.all):
            down = self.refresh()
            known = self._known(table)
            if known is None and down and not any(table in member.views for member in self.all):
                raise next(iter(down.values()))
        return known

    def _known(self, table: str) -> Member | None:
        return next((member for member in self.all if table in member.tables), None)

    def owner(self, table: str) -> Member:
        """Return the owner of a table, or raise `UnknownTable`."""
        found = self.find(str(table).lower())
        if found is None:
            raise UnknownTable.among(table, [name for member in self.all for name in member.tables], is_stream=self.is_stream(str(table).lower()))
        return found

    def is_stream(self, name: str) -> bool:
        """Tell whether one of the catalysts has a stream of this name."""
        return any(name in member.warehouse.streams() for member in self.all)

    def by_owner(self, tables: Sequence[str]) -> dict[Member, list[str]]:
        """Return tables by their owners, these in the order of the group."""
        owners = {table: self.owner(table) for table in tables}
        return {member: [table for table in tables if owners[table] is member] for member in self.all if member in owners.values()}

    def close(self) -> None:
        """Let go of all, even if one of them fails; then say so."""
        raise_first(together([_caught(member.close) for member in self.all]))


class GroupTables(Mapping[str, TableSchema]):
    """The tables of a group as one catalog."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def __getitem__(self, name: str) -> TableSchema:
        owner = self._members.find(name)
        if owner is None:
            raise KeyError(name)
        return owner.tables[name]

    def __iter__(self) -> Iterator[str]:
        self._members.refresh()
        return iter([name for member in self._members.all for name in member.tables])

    def __len__(self) -> int:
        return sum(len(member.tables) for member in self._members.all)


class GroupViews(Mapping[str, str]):
    """The views of a group as one catalog."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def __getitem__(self, name: str) -> str:
        if name not in self._known():
            self._members.refresh()
        return self._known()[name]

    def __iter__(self) -> Iterator[str]:
        self._members.refresh()
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def _known(self) -> dict[str, str]:
        return {name: query for member in self._members.all for name, query in member.views.items()}


class GroupClock:
    """The newest time that this client has seen at any catalyst, and what it has told whom."""

    def __init__(self) -> None:
        self.seen_us = 0
        self._told: dict[Member, int] = {}
        self._unsure: dict[Member, int] = {}
        self._pause_until_s: dict[Member, float] = {}
        self._lock = threading.Lock()

    def note(self, member: Member, time_us: int) -> None:
        """Remember a time that a catalyst gave or knows."""
        with self._lock:
            self.seen_us = max(self.seen_us, time_us)
            self._told[member] = max(self._told.get(member, 0), time_us)

    def doubt(self, member: Member) -> None:
        """Remember that a commit may have happened whose time never came back."""
        with self._lock:
            self._unsure[member] = self._unsure.get(member, 0) + 1

    def bring(self, member: Member) -> None:
        """Tell a catalyst the newest time seen, so that its next commit is later; costs a call only where it cannot know."""
        self._ask(member)
        if self.seen_us > self._told.get(member, 0):
            seen_us = self.seen_us
            member.call("group.clock", {"observe": seen_us})
            self.note(member, seen_us)

    def _ask(self, member: Member) -> None:
        """Ask others for the time of commits in doubt. One that cannot be reached keeps nobody waiting, and stays in doubt until it answers."""
        with self._lock:
            unsure = [(one, doubts) for one, doubts in self._unsure.items() if one is not member]
        for one, doubts in unsure:
            begun_s = time.monotonic()
            if begun_s < self._pause_until_s.get(one, 0.0):
                continue
            try:
                self.note(one, one.call("group.clock", reconnect_s=0.0).number("read"))
            except ServiceUnreachable as error:
                log.info("clock.unknown", member=one.name, code=error.code)
                now_s = time.monotonic()
                self._pause_until_s[one] = now_s + _PAUSE_TIMES * (now_s - begun_s)
                continue
            with self._lock:
                if self._unsure.get(one) == doubts:  # nor has another been added meanwhile
                    del self._unsure[one]


def together(calls: Sequence[Callable[[], _T]], *, give_up: Callable[[], None] = lambda: None) -> list[_T]:
    """Make calls of several catalysts at once; all end before the first error is raised. On Ctrl-C, `give_up` ends those that wait."""
    if len(calls) == 1:
        return [calls[0]()]
    if not calls:
        return []
    with ThreadPoolExecutor(max_workers=len(calls), thread_name_prefix="righttime-group") as pool:
        try:
            return [future.result() for future in [pool.submit(call) for call in calls]]
        except KeyboardInterrupt:
            give_up()
            raise


def _caught(call: Callable[[], object]) -> Callable[[], RightTimeError | None]:
    def caught() -> RightTimeError | None:
        try:
            call()
        except ServiceUnreachable as error:
            return error
        return None

    return caught


def raise_first(errors: Sequence[RightTimeError | None]) -> None:
    """Raise the first error that there is."""
    for error in errors:
        if error is not None:
            raise error
