"""The remote warehouse: what users hold when the warehouse is a service.

In: the same calls as an open warehouse takes.
Out: the same answers, from `righttime://host:port`.
Promise: same methods, same signatures, same errors as `righttime.Warehouse`; queries run in this process's Spark.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from righttime.catalyst.policies import Immediate, Policy
from righttime.catalyst.port import Port, anything_goes, checked_source
from righttime.catalyst.producer import Producer
from righttime.changes.clock import Clock, SystemClock
from righttime.changes.durations import Duration, duration_us
from righttime.changes.schema import TableSchema
from righttime.errors import BadMessage, BadSetting, NotAWarehouse, RightTimeError, UnknownTable, WarehouseClosed
from righttime.flight.access import Bearer
from righttime.flight.database import DatabaseQueries, HeldElsewhere, open_database
from righttime.flight.frames import Message
from righttime.flight.handle import ServiceHandle, close_opened
from righttime.flight.leaving import Leaver
from righttime.flight.reading import RemoteConsumer, RemoteSnapshots
from righttime.flight.records import collected_of, explanation_of, losses_of, status_of_record, verification_of
from righttime.flight.renewals import Renewals
from righttime.flight.session import RemoteSession
from righttime.flight.staging import Staging
from righttime.flight.streams import RemoteStreams
from righttime.flight.transport import SCHEME, Target, Transport
from righttime.flows.explain import Explanation
from righttime.flows.jobs import FlowStatus
from righttime.ledger.receipts import Receipt, Verification
from righttime.ledger.sqlite import Loss
from righttime.pipeline.spark import SparkOwner
from righttime.query.verify import refuse_no_receipt
from righttime.queues.port import StreamPort
from righttime.settings import Settings, load_settings
from righttime.status import Status
from righttime.warehouse.postgres_types import check_storable
from righttime.warehouse.store import Collected

_HELLO_S = 5.0

CLIENT_SETTINGS = frozenset(
    {"answer_bytes_max", "batch_bytes_max", "call_timeout_s", "policy_poll_s", "queries_max", "reconnect_s", "spark_conf", "spark_master", "wait_s"}
)
"""What a client decides for itself; everything else is decided where the warehouse is open."""


def is_service(target: object) -> bool:
    """Tell whether a target is the address of a service."""
    return isinstance(target, str) and target.startswith(f"{SCHEME}://")


def open_remote(
    target: str,
    *,
    token: str | None = None,
    token_file: str | PathLike[str] | None = None,
    tls_ca: str | PathLike[str] | None = None,
    tls: bool = False,
    clock: Clock | None = None,
    **settings: Any,
) -> "RemoteWarehouse":
    """Open the warehouse that a service has. The token may also come from `RIGHTTIME_TOKEN`; `tls_ca` names the certificates to trust,
    `tls=True` those of the system."""
    address = Target.parse(target, tls_ca=None if tls_ca is None else Path(tls_ca), tls=tls)
    return RemoteWarehouse(address, Bearer.given(token, token_file), settings=client_settings(**settings), clock=clock or SystemClock())


def client_settings(**given: Any) -> Settings:
    """Read the settings of a client; raise `BadSetting` for one that is given by name and that only the service can honour. What the environment or a
    file says may be meant for both, on the machine where both run."""
    for name in given:
        if name in Settings.model_fields and name not in CLIENT_SETTINGS:
            reason = f"it has no effect at a client; set it for the service: RIGHTTIME_{name.upper()} in its environment, or {name} in its righttime.toml"
            raise BadSetting(name=name, reason=reason)
    return load_settings(**given)


class Catalog(Mapping[str, Any]):
    """The declarations of one kind, fetched again where a name is not known yet."""

    def __init__(self, fetch: Callable[[], Mapping[str, Any]]) -> None:
        self._fetch = fetch
        self._known: dict[str, Any] = {}

    def refresh(self) -> Mapping[str, Any]:
        # What is known stays the same object: others tell by it that a table is unchanged.
        fetched = self._fetch()
        self._known = {name: self._known[name] if self._known.get(name) == value else value for name, value in fetched.items()}
        return self._known

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self.refresh()
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self.refresh()

    def __iter__(self) -> Iterator[str]:
        return iter(self.refresh())

    def __len__(self) -> int:
        return len(self.refresh())


class RemoteWarehouse(ServiceHandle):
    """A warehouse behind a service. Safe to use from any thread; close it, or use it in a `with` block."""

    def __init__(self, target: Target, bearer: Bearer, *, settings: Settings, clock: Clock) -> None:
        self._target = target
        self._clock = clock
        self._open_transport: Transport | None = Transport(target, bearer, settings=settings)
        try:
            hello = self._open_transport.call("hello", reconnect_s=min(_HELLO_S, settings.reconnect_s))
        except BaseException:
            self._open_transport.close()
            raise
        self._settings = _agreed(settings, hello)
        self._open_transport.message_bytes_max = self._settings.message_bytes_max
        self._producers: list[Producer] = []
        self._sessions: dict[str, RemoteSession] = {}
        self._leaver = Leaver(str(target), patience_s=self._settings.reconnect_s)
        self._guard = threading.RLock()
        self._standing = []
        self._wire(self._open_transport, hello)

    def _wire(self, transport: Transport, hello: Message) -> None:
        settings = self._settings
        self._warehouse_id = hello.text("warehouse_id")
        self._remote_streams = RemoteStreams(lambda: self._transport)
        self._schemas = Catalog(lambda: self._catalog()[0])
        self._views = Catalog(lambda: self._catalog()[1])
        self._spark = SparkOwner(settings)
        self._staging = Staging(self._spark, settings)
        self._renewals = Renewals(transport, round_s=min(settings.session_ttl_s, settings.snapshot_ttl_s) / 3)
        self._snapshots = RemoteSnapshots(transport, self._renewals, schemas=self._schemas, session_of=lambda source: self._sessions.get(source))
        self._consumer = RemoteConsumer(self._snapshots, None, self._spark, schemas=self._schemas, views=self._views, settings=settings)  # type: ignore[arg-type]
        self._consumer.verifier = self.verify
        self._consumer.is_stream = lambda name: name in self._remote_streams.names()
        self._port = Port(
            schemas=self._schemas,
            settings=settings,
            clock=self._clock,
            open_session=self._open_session,
            stage_df=self._staging.stage_df,
            read_files=self._staging.read_files,
            drop_files=self._staging.drop_files,
            own_query=self._consumer.sql,
            producers_changed=lambda: None,
            check_storable=check_storable if hello.text("values") == "postgresql" else anything_goes,
            is_stream=self._consumer.is_stream,
        )

    def _open_database(self, database: str) -> DatabaseQueries:
        """Open a session for a connection whose queries the service's database answers itself, on a login of this client."""
        held = HeldElsewhere(self._snapshots, self._refuse_closed)
        return open_database(database, self._transport, held, self._reading, catalog=self._catalog, settings=self._settings)

    def _catalog(self) -> tuple[dict[str, TableSchema], dict[str, str]]:
        answer = self._transport.call("catalog")
        tables = [TableSchema.from_json(text) for text in answer.listed("tables")]
        return {table.name: table for table in tables}, answer.mapping("views")

    def _open_session(self, source: str, *, policy: str) -> RemoteSession:
        session = RemoteSession(self._transport, self._renewals, schemas=self._schemas, source=source or None, policy=policy)
        self._sessions[session.source] = session
        return session

    # -- declarations ------------------------------------------------------------------------------------------------

    def _declare(self, schema: TableSchema, *, if_not_exists: bool) -> TableSchema:
        header = {
            "name": schema.name,
            "columns": "",
            "keys": list(schema.keys),
            "partition_by": list(schema.partition_by),
            "comment": schema.comment,
            "in_memory": schema.in_memory,
            "unique": schema.unique,
            "if_not_exists": if_not_exists,
        }
        answer = self._once("create_table", header, [schema.columns.serialize()])
        return TableSchema.from_json(answer.text("table"))

    def create_view(self, name: str, query: str) -> None:
        """Declare a view: a name that stands for a query over tables and other views."""
        self._once("create_view", {"name": name, "query": query})

    def _streams(self, what: str) -> StreamPort:
        self._refuse_closed()
        return self._remote_streams

    def _tap(self, table: str, name: str) -> None:
        self._remote_streams.tap(self.schema(table).name, name, wait_s=self._settings.wait_s)

    def _bringing_up(self) -> Callable[[str], None]:
        return lambda name: None  # the service does it

    def schema(self, table: str) -> TableSchema:
        """Return a table's declaration."""
        name = table.lower()
        if name not in self._schemas:
            raise UnknownTable.among(table, self._schemas, is_stream=self._consumer.is_stream(name))
        schema: TableSchema = self._schemas[name]
        return schema

    def tables(self) -> list[str]:
        """Return the names of the tables."""
        return sorted(self._schemas.refresh())

    def views(self) -> dict[str, str]:
        """Return the views and their queries."""
        return dict(self._views.refresh())

    # -- loading -----------------------------------------------------------------------------------------------------

    def producer(self, *, name: str | None = None, policy: Policy | None = None) -> Producer:
        """Open a producer. `name` is the source that receipts show; give one that stays the same from run to run."""
        source = "" if name is None else checked_source(name)
        with self._guard:
            producer = Producer(source, policy=Immediate() if policy is None else policy, port=self._port)
            self._producers = [*(known for known in self._producers if not known.closed), producer]
            self._sessions = {known.source: self._sessions[known.source] for known in self._producers}
            self._leaver.add(producer)
        return producer

    def materialize(self, *tables: str, wait: Duration | None = None) -> int:
        """Store the committed rows of the named tables, or of all, and return the state. Lazy producers deliver first."""
        wait_s = self._settings.wait_s if wait is None else duration_us(wait, what="wait") / 1e6
        return self._once("materialize", {"tables": [self.schema(table).name for table in tables], "wait_s": wait_s}, timeout_s=wait_s).number("state")

    def adopt(self, table: str) -> int:
        """Take over what another Delta writer did to a table, or a table that the service's database has already; return the state."""
        return self._once("adopt", {"table": str(table)}).number("state")

    # -- receipts ----------------------------------------------------------------------------------------------------

    def receipt(self, receipt_id: str) -> Receipt:
        """Return a stored receipt; the first characters of its id are enough if they are unambiguous."""
        return Receipt.from_json(self._transport.call("receipt", {"receipt": receipt_id}).text("receipt")).bound(self.verify)

    def receipts(self, *, limit: int = 100) -> list[Receipt]:
        """Return the newest receipts, newest first."""
        texts = self._transport.call("receipts", {"limit": limit}).listed("receipts")
        return [Receipt.from_json(text).bound(self.verify) for text in texts]

    def verify(self, receipt: Receipt | str) -> Verification:
        """Verify a receipt that somebody handed over, as an object or as JSON; a changed one raises `ReceiptForged`. The service does it."""
        refuse_no_receipt(receipt)
        text = receipt if isinstance(receipt, str) else receipt.to_json()
        return verification_of(self._once("verify", {"receipt": text}).header.get("verification"))

    # -- care --------------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Return what is where: rows hot and stored, lag, bounds used, producers, log."""
        return status_of_record(self._transport.call("status").header.get("status"))

    def flows(self) -> list[FlowStatus]:
        """Return how each flow of the service is: what waits, how far it is, its last jobs."""
        return list(self.status().flows)

    def explain(self, query: str, *, freshness: Duration | None = None) -> Explanation:
        """Say what a query would wait for if it came now: flows, streams, jobs, rows, and an estimate of the time."""
        freshness_s = 0.0 if freshness is None else duration_us(freshness) / 1e6
        return explanation_of(self._transport.call("explain", {"query": query, "freshness_s": freshness_s}).header.get("explanation"))

    def losses(self) -> list[Loss]:
        """Return the commits that crashes have taken, oldest first."""
        return losses_of(self._transport.call("losses").header.get("losses"))

    def gc(self) -> dict[str, Collected]:
        """Remove files that no version in use needs, and leftovers of crashes; return what went, by table."""
        return collected_of(self._once("gc", {}).header.get("collected"))

    @property
    def path(self) -> str:
        """The service's address."""
        return str(self._target)

    @property
    def _is_closed(self) -> bool:
        return self._open_transport is None

    @property
    def _transport(self) -> Transport:
        if self._open_transport is None:
            raise WarehouseClosed(path=str(self._target))
        return self._open_transport

    def _once(self, action: str, header: Mapping[str, Any], parts: Sequence[Any] = (), **options: Any) -> Message:
        """Call what changes something or takes long: under an id, so that a call sent twice is carried out once."""
        return self._transport.call(action, {**header, "call": uuid.uuid4().hex}, parts, **options)

    def close(self) -> None:
        """Close the snapshots and producers opened here and let go of the service; everything committed stays with it."""
        with self._guard:
            transport = self._open_transport
            if transport is None:
                return
            try:
                close_opened([*self._standing, *self._producers])
            finally:
                self._leaver.close()
                self._renewals.close()
                transport.close()
                self._open_transport = None
                self._staging.close()
                self._spark.stop()


def _agreed(settings: Settings, hello: Message) -> Settings:
    """Return the client's settings with what the service decides."""
    if hello.number("protocol") != 1:
        raise NotAWarehouse(path="the service", reason=f"it speaks protocol {hello.number('protocol')}, this version speaks 1")
    decided = {name: value for name, value in hello.mapping("settings").items() if name in Settings.model_fields and isinstance(value, int | float)}
    try:
        return settings.model_copy(update=decided)
    except (TypeError, ValueError, RightTimeError) as error:
        raise BadMessage(reason="the service's settings cannot be read") from error
