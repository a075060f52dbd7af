"""The group: several catalysts as one warehouse.

In: the same calls as an open warehouse takes.
Out: the same answers, from `righttime://host:port,host:port`; a query may join tables of all of them.
Promise: same methods and signatures as `righttime.Warehouse`; each answer is one consistent cut through all catalysts that it needs.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from righttime.catalyst.policies import Immediate, Policy
from righttime.catalyst.port import checked_source
from righttime.changes.clock import Clock, SystemClock
from righttime.changes.durations import Duration
from righttime.changes.schema import TableSchema, declare_table
from righttime.errors import BadSource, NotAWarehouse, ReceiptUnknown, ServiceUnreachable, StreamAlone, TableExists, WarehouseClosed
from righttime.flight.access import Bearer
from righttime.flight.group_claims import claimed
from righttime.flight.group_loading import GroupProducer
from righttime.flight.group_members import GroupClock, GroupTables, GroupViews, Member, Members, together
from righttime.flight.group_reading import GroupSnapshots
from righttime.flight.group_receipts import address_in, is_part
from righttime.flight.group_verify import verify_whole
from righttime.flight.handle import ServiceHandle, close_opened
from righttime.flight.reading import RemoteConsumer
from righttime.flight.transport import SCHEME, Target
from righttime.flight.warehouse import RemoteWarehouse, client_settings, open_remote
from righttime.ledger.receipts import Receipt, Verification
from righttime.ledger.sqlite import Loss
from righttime.pipeline.spark import SparkOwner
from righttime.query.statement import read_statement
from righttime.query.verify import refuse_no_receipt
from righttime.queues.port import StreamPort
from righttime.settings import Settings
from righttime.status import Status
from righttime.warehouse.store import Collected

_MEMBERS_MAX = 64
_RECEIPTS_MAX = 10_000


def open_service(
    target: str,
    *,
    token: str | None = None,
    token_file: str | PathLike[str] | None = None,
    tls_ca: str | PathLike[str] | None = None,
    tls: bool = False,
    clock: Clock | None = None,
    **settings: Any,
) -> "RemoteWarehouse | GroupWarehouse":
    """Open the warehouse that a service has, or with commas in the address, that several services have together; the options hold for all."""
    if "," not in target:
        return open_remote(target, token=token, token_file=token_file, tls_ca=tls_ca, tls=tls, clock=clock, **settings)
    texts = [text.strip() for text in target.removeprefix(f"{SCHEME}://").split(",")]
    targets = [Target.parse(f"{SCHEME}://{text.removeprefix(f'{SCHEME}://')}", tls_ca=None if tls_ca is None else Path(tls_ca), tls=tls) for text in texts]
    if len(set(targets)) < len(targets) or len(targets) > _MEMBERS_MAX:
        raise NotAWarehouse(path=target.rpartition("@")[2], reason=f"a group names 2 to {_MEMBERS_MAX} services, each once")
    return GroupWarehouse(targets, Bearer.given(token, token_file), settings=client_settings(**settings), clock=clock or SystemClock())


class GroupWarehouse(ServiceHandle):
    """A warehouse over several services. Safe to use from any thread; close it, or use it in a `with` block.

    A new table goes to the catalyst with the fewest tables; that one owns it from then on.
    """

    def __init__(self, targets: Sequence[Target], bearer: Bearer, *, settings: Settings, clock: Clock) -> None:
        self._path = f"{SCHEME}://{','.join(str(target).partition('://')[2] for target in targets)}"
        self._settings = settings
        self._open_members: Members | None = Members(targets, bearer, settings=settings, clock=clock)
        self._guard = threading.RLock()
        self._standing = []
        self._producers: list[GroupProducer] = []
        self._clock = GroupClock()
        self._schemas = GroupTables(self._members)
        self._views = GroupViews(self._members)
        self._spark = SparkOwner(settings)
        snapshots: Any = GroupSnapshots(self._members, self._clock)
        self._consumer = RemoteConsumer(snapshots, None, self._spark, schemas=self._schemas, views=self._views, settings=settings)  # type: ignore[arg-type]
        self._consumer.verifier = self.verify
        self._consumer.is_stream = self._members.is_stream

    # -- declarations ------------------------------------------------------------------------------------------------

    def _declare(self, schema: TableSchema, *, if_not_exists: bool) -> TableSchema:
        """Make a new table known at the catalyst with the fewest tables; that one owns it from then on."""
        with claimed(self._members, schema.name):
            return self._place_for(schema.name).warehouse._declare(schema, if_not_exists=if_not_exists)

    def _place_for(self, name: str) -> Member:
        """Return the catalyst that has a table, or that is to get it."""
        if name in self._views:
            raise TableExists(table=name)
        return self._members.find(name) or min(self._members.all, key=lambda member: len(member.tables))

    def create_view(self, name: str, query: str) -> None:
        """Declare a view over tables of any catalysts, and other views; the first catalyst keeps it."""
        checked = declare_table(name, "placeholder INT").name
        with claimed(self._members, checked):
            if checked in self._schemas or checked in self._views:
                raise TableExists(table=checked)
            self._consumer.plan(read_statement(query))
            self._members.all[0].warehouse._once("group.view", {"name": name, "query": query})

    def schema(self, table: str) -> TableSchema:
        """Return a table's declaration."""
        return self._members.owner(table).tables[table.lower()]

    def tables(self) -> list[str]:
        """Return the names of the tables."""
        self._members.need_all()
        return sorted(name for member in self._members.all for name in member.tables)

    def views(self) -> dict[str, str]:
        """Return the views and their queries."""
        self._members.need_all()
        return dict(self._views)

    def _streams(self, what: str) -> StreamPort:
        """Refuse it: a name would have to be claimed among the tables and streams of all, and an append be at one."""
        raise StreamAlone(what=what)

    def _tap(self, table: str, name: str) -> None:
        raise StreamAlone(what="tap a table")

    # -- loading -----------------------------------------------------------------------------------------------------

    def producer(self, *, name: str | None = None, policy: Policy | None = None) -> GroupProducer:
        """Open a producer for the tables of all catalysts. `name` is the source that receipts show; give one that stays the same from run to run."""
        source = "" if name is None else checked_source(name)
        if address_in(source) is not None:
            raise BadSource(source=source, reason="source@host:port is how receipts name the sources of other catalysts")
        with self._guard:
            producer = GroupProducer(
                source, policy=Immediate() if policy is None else policy, members=self._members, clock=self._clock, own_query=self._consumer.sql
            )
            self._producers = [*(known for known in self._producers if not known.closed), producer]
        return producer

    def materialize(self, *tables: str, wait: Duration | None = None) -> int:
        """Store the committed rows of the named tables, or of all, and return the state of the first catalyst that did. Lazy producers deliver first."""
        owners = self._members.by_owner([table.lower() for table in tables]) if tables else {member: [] for member in self._members.all}
        return together([_materializing(member, names, wait) for member, names in owners.items()])[0]

    def adopt(self, table: str) -> int:
        """Take over what another Delta writer did to a table, as one commit of the source `delta.<table>`; return the owner's state."""
        owner = self._members.owner(table)
        try:
            return owner.warehouse.adopt(table)
        finally:
            self._clock.doubt(owner)  # its commit has a time that nobody tells us; not before it is made, or somebody could ask for it too early

    # -- receipts ----------------------------------------------------------------------------------------------------

    def receipt(self, receipt_id: str) -> Receipt:
        """Return a stored receipt; the first characters of its id are enough if they are unambiguous."""
        found = together([_looking_up(member, receipt_id) for member in self._members.all])
        several = next((one for one in found if isinstance(one, ReceiptUnknown) and one.context.get("receipt") != receipt_id), None)
        if several is not None:
            raise several
        whole = {one.receipt_id: one for one in found if isinstance(one, Receipt) and not is_part(one)}
        unasked = next((one for one in found if isinstance(one, ServiceUnreachable)), None)
        if unasked is not None and receipt_id not in whole:
            raise unasked  # it may have it, or another that begins alike
        if len(whole) != 1:
            raise ReceiptUnknown(receipt=f"{receipt_id} (it fits {len(whole)} receipts)" if whole else receipt_id)
        return next(iter(whole.values())).bound(self.verify)

    def receipts(self, *, limit: int = 100) -> list[Receipt]:
        """Return the newest receipts of all catalysts, newest first; parts of receipts that another one issued are left out."""
        listed = together([_listing(member, limit) for member in self._members.all])
        newest = sorted((one for some in listed for one in some), key=lambda one: one.issued_us, reverse=True)
        return [one.bound(self.verify) for one in newest[:limit]]

    def verify(self, receipt: Receipt | str) -> Verification:
        """Verify a receipt that somebody handed over, as an object or as JSON; a changed one raises `ReceiptForged`. Every catalyst checks its part."""
        refuse_no_receipt(receipt)
        return verify_whole(self._members, Receipt.from_json(receipt) if isinstance(receipt, str) else receipt)

    # -- care --------------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Return what is where at all catalysts: the state is that of the first, sources are source@host:port, sizes are added up."""
        members = self._members.all
        found = together([_asking_status(member) for member in members])
        producers = [replace(one, source=f"{one.source}@{member.name}") for member, status in zip(members, found, strict=True) for one in status.producers]
        added = ("rows_unsafe", "log_bytes", "log_bytes_max", "queries", "commits_lost")
        per_table = ("memory_bytes_max", "spill_bytes_max")  # of each table; the smallest is the one to look at
        return replace(
            found[0],
            path=self._path,
            tables=tuple(sorted((table for status in found for table in status.tables), key=lambda table: table.name)),
            producers=tuple(producers),
            flows=tuple(sorted((flow for status in found for flow in status.flows), key=lambda flow: flow.name)),
            streams=tuple(sorted((stream for status in found for stream in status.streams), key=lambda stream: stream.name)),
            **{name: sum(getattr(status, name) for status in found) for name in added},
            **{name: min(getattr(status, name) for status in found) for name in per_table},
        )

    def losses(self) -> list[Loss]:
        """Return the commits that crashes have taken at any catalyst, oldest first; sources are source@host:port."""
        members = self._members.all
        found = together([_asking_losses(member) for member in members])
        named = [replace(loss, source=f"{loss.source}@{member.name}") for member, losses in zip(members, found, strict=True) for loss in losses]
        return sorted(named, key=lambda loss: loss.found_us)

    def gc(self) -> dict[str, Collected]:
        """Remove files that no version in use needs, and leftovers of crashes; return what went, by table."""
        return {name: one for collected in together([_collecting(member) for member in self._members.all]) for name, one in collected.items()}

    @property
    def path(self) -> str:
        """The addresses of the services."""
        return self._path

    @property
    def _is_closed(self) -> bool:
        return self._open_members is None

    @property
    def _members(self) -> Members:
        if self._open_members is None:
            raise WarehouseClosed(path=self._path)
        return self._open_members

    def close(self) -> None:
        """Close the snapshots and producers opened here and let go of the services; everything committed stays with them."""
        with self._guard:
            members = self._open_members
            if members is None:
                return
            try:
                close_opened([*self._standing, *self._producers])
            finally:
                self._open_members = None
                members.close()
                self._spark.stop()


def _materializing(member: Member, names: Sequence[str], wait: Duration | None) -> Callable[[], int]:
    return lambda: member.warehouse.materialize(*names, wait=wait)


def _asking_status(member: Member) -> Callable[[], Status]:
    return lambda: member.warehouse.status()


def _asking_losses(member: Member) -> Callable[[], list[Loss]]:
    return lambda: member.warehouse.losses()


def _collecting(member: Member) -> Callable[[], dict[str, Collected]]:
    return lambda: member.warehouse.gc()


def _listing(member: Member, limit: int) -> Callable[[], list[Receipt]]:
    def list_whole() -> list[Receipt]:
        """Return so many that are no parts, which take places in a catalyst's list, too."""
        asked = limit
        while True:
            found = member.warehouse.receipts(limit=asked)
            whole = [one for one in found if not is_part(one)]
            if len(whole) >= limit or len(found) < asked or asked > _RECEIPTS_MAX:
                return whole
            asked *= 2

    return list_whole


def _looking_up(member: Member, receipt_id: str) -> Callable[[], Receipt | ReceiptUnknown | ServiceUnreachable]:
    def look_up() -> Receipt | ReceiptUnknown | ServiceUnreachable:
        try:
            return member.warehouse.receipt(receipt_id)
        except (ReceiptUnknown, ServiceUnreachable) as error:
            return error

    return look_up
