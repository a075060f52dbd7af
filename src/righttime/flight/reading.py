"""Remote reading: queries that run here, on snapshots that the service holds.

In: queries of one client, under their contracts.
Out: answers, from files where this machine can read them, else from rows that the service sends; receipts that the service seals.
Promise: as `query.consumer.Consumer`; every relation is made for one query and bound to its snapshot.
"""

import base64
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from righttime.catalyst.producer import OwnRows
from righttime.changes.operations import Numbers
from righttime.changes.schema import TableSchema
from righttime.errors import LeaseExpired, RightTimeError, SqlFailed
from righttime.flight.cuts import cut_of
from righttime.flight.failures import failure_from_text
from righttime.flight.frames import Message, typed, write_frame
from righttime.flight.records import contract_record
from righttime.flight.renewals import Renewals
from righttime.flight.session import RemoteSession
from righttime.flight.source import MARK, NAME, register_source, source_options
from righttime.flight.transport import CHANNEL, Transport
from righttime.ledger.receipts import Receipt
from righttime.pipeline.spark import SparkOwner, _all_nullable
from righttime.query.answer import Answer
from righttime.query.consumer import Consumer, Plan
from righttime.query.contract import Contract
from righttime.query.postgres_cut import CutTable
from righttime.telemetry import get_log

log = get_log("flight")

_PARTITIONS_MAX = 64
_CARRIED = re.compile(rf"{MARK} ([A-Za-z0-9+/=]+)")


class Places:
    """Which of the places where rows are can be read from here: a file of the service tells. After a restart it has other ones."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self._readable = {place: _same(one) for place, one in given.items()}
        self._images = f"{Path(given['images']['path']).parent}/" if "images" in given else ""

    def readable(self, path: str) -> bool:
        """Tell whether a file of a snapshot can be read as a file; stored rows that are in no file have an empty path."""
        return bool(path) and self._readable.get("images" if self._images and path.startswith(self._images) else "store", False)


@dataclass(frozen=True, slots=True)
class RemoteTable:
    """One table of a held snapshot: its files, the positions in them that are hidden, and which of them can be read from here."""

    schema: TableSchema
    version: int
    files: Sequence[str]
    hidden: Mapping[str, Numbers]
    snapshot_id: str
    places: Places


@dataclass(slots=True)
class RemoteSnapshot:
    """What one query may read, of files or of tables in the service's database; `issued` once its receipt has let it go. Where a late answer is taken:
    its cut, late sources, the last commit of each."""

    snapshot_id: str
    tables: Mapping[str, Any]
    issued: bool = field(default=False)
    cut_us: int | None = None
    late: Mapping[str, int] = field(default_factory=dict)
    inside: Mapping[str, int] = field(default_factory=dict)
    standing: bool = False

    def only(self, tables: Sequence[str]) -> "RemoteSnapshot":
        """Return what one of several questions reads of it; the receipts leave it with the service."""
        return RemoteSnapshot(self.snapshot_id, {name: self.tables[name] for name in tables if name in self.tables}, standing=True)

    def live(self) -> bool:
        """Tell whether it is held; the service knows, and refuses the receipt if it is not."""
        return True

    def kept(self) -> dict[str, Any]:
        """Return what the service is told when a receipt is issued."""
        return {"keep": list(self.tables)} if self.standing else {}


class RemoteSnapshots:
    """Takes snapshots at the service and reads them."""

    def __init__(
        self,
        transport: Transport,
        renewals: Renewals,
        *,
        schemas: Mapping[str, TableSchema],
        session_of: Callable[[str], RemoteSession | None],
    ) -> None:
        self._transport = transport
        self._renewals = renewals
        self._schemas = schemas
        self._places = Places({})
        self._session_of = session_of

    @contextmanager
    def take(
        self,
        tables: Sequence[str],
        contract: Contract,
        *,
        own: OwnRows | None = None,
        together: Mapping[str, Any] | None = None,
        in_database: bool = False,
        snapshot_id: str | None = None,
    ) -> Iterator[RemoteSnapshot]:
        """Hold one state of `tables` at the service until the block ends; `together` with others, at a time that was chosen for all; or as tables
        `in_database`, for a session of this client there. Who chooses the id can `give_up` the wait."""
        snapshot_id = snapshot_id or new_id()
        own_record, session, uploads = self._own(own)
        header = {"snapshot": snapshot_id, "tables": list(tables), "contract": contract_record(contract), "own": own_record, **(together or {})}
        if in_database:
            header["in_database"] = True
        snapshot, release = RemoteSnapshot(snapshot_id, {}), self._release
        try:
            answer = self._transport.call("snapshot.take" if together is None else "group.take", header, timeout_s=contract.wait_s, abandon=True)
            self._renewals.add_snapshot(snapshot_id)
            snapshot.cut_us = answer.optional_number("cut")
            if snapshot.cut_us is not None:
                snapshot.late, snapshot.inside = answer.mapping("late"), answer.mapping("inside")
            snapshot.tables = self._cuts(answer, snapshot_id) if in_database else self._tables(answer, snapshot_id)
            yield snapshot
        except KeyboardInterrupt:
            release = self.give_up  # somebody waits for the end, and the service may be out of reach
            raise
        finally:
            self._renewals.remove(snapshot_id)
            if not snapshot.issued:
                release(snapshot_id)
            if session is not None:
                session.drop(uploads)

    def _own(self, own: OwnRows | None) -> tuple[dict[str, Any] | None, RemoteSession | None, dict[str, list[str]]]:
        session = self._session_of(own.source) if own is not None else None
        if own is None or session is None:
            return None, None, {}
        uploads = session.upload(own.bypass)
        return {"session": session.session_id, "bypass": uploads}, session, uploads

    def _release(self, snapshot_id: str) -> None:
        try:
            self._transport.call("snapshot.release", {"snapshot": snapshot_id}, reconnect_s=0.0)
        except RightTimeError as error:  # it lapses by itself
            log.info("release.failed", code=error.code)

    def give_up(self, snapshot_id: str) -> None:
        """Tell the service, without trying for long, that nobody wants a snapshot any more, whether it is there or still waited for."""
        self._transport.tell("snapshot.release", {"snapshot": snapshot_id})

    def _places_of(self, given: Mapping[str, Any]) -> Places:
        """Look at the places of a snapshot, unless they are those of the last one."""
        places = self._places
        if places.given != given:
            places = self._places = Places(given)
        return places

    def _cuts(self, answer: Message, snapshot_id: str) -> dict[str, CutTable]:
        def fetch(name: str, asked: Mapping[str, Any], parts: Sequence[bytes]) -> pa.Table:
            return self._transport.rows({"snapshot": snapshot_id, "table": name, **asked}, parts)

        tables = answer.mapping("tables").items()
        return {name: cut_of(self._schemas[name], Message(typed(record, dict, what="a table")), answer, partial(fetch, name)) for name, record in tables}

    def _tables(self, answer: Message, snapshot_id: str) -> dict[str, RemoteTable]:
        places = self._places_of(answer.mapping("places"))
        return {name: self._table(name, record, answer, snapshot_id, places) for name, record in answer.mapping("tables").items()}

    def _table(self, name: str, record: object, answer: Message, snapshot_id: str, places: Places) -> RemoteTable:
        table = Message(typed(record, dict, what="a table"))
        hidden = {path: np.frombuffer(answer.parts[place], dtype="<i8") for path, place in table.mapping("hidden").items()}
        return RemoteTable(self._schemas[name], table.number("version"), table.listed("files"), hidden, snapshot_id, places)

    def rows(self, table: RemoteTable, columns: Sequence[str] | None = None) -> pa.Table:
        """Return this table at the cut, or some of its columns, as Arrow, without Spark."""
        names = table.schema.columns.names if columns is None else list(columns)
        return self._transport.rows({"snapshot": table.snapshot_id, "table": table.schema.name, "places": list(range(len(table.files))), "columns": names})

    def relation(self, spark: SparkOwner, child: Any, table: RemoteTable) -> tuple[Any, object]:
        """Return a fresh relation: files where they can be read, else rows from the service; the service keeps what is needed."""
        here = [path for path in table.files if table.places.readable(path)]
        there = [place for place, path in enumerate(table.files) if not table.places.readable(path)]
        hidden = {path: positions for path, positions in table.hidden.items() if path in set(here) and len(positions)}
        relations = []
        if here or not there:
            relations.append(spark.relation(child, table.schema.columns, here, hidden=hidden))
        if there:
            relations.append(self._streamed(child, table, there))
        return relations[0] if len(relations) == 1 else relations[0].unionByName(relations[1]), None

    def _streamed(self, child: Any, table: RemoteTable, places: Sequence[int]) -> Any:
        register_source(child)
        parts = np.array_split(np.array(places), min(len(places), _PARTITIONS_MAX))
        header = {"snapshot": table.snapshot_id, "table": table.schema.name, "columns": table.schema.columns.names}
        tickets = [write_frame({**header, "places": [int(place) for place in part]}).to_pybytes() for part in parts]
        options = source_options(self._transport.target, tickets, channel=CHANNEL, reconnect_s=self._transport.reconnect_s)
        return child.read.format(NAME).schema(_all_nullable(table.schema.columns)).options(**options).load()

    def has_lapsed(self, table: RemoteTable) -> bool:
        """Tell whether the service says that it holds a table's snapshot no longer; not if it says nothing."""
        try:
            return bool(self._transport.call("renew", {"sessions": [], "snapshots": [table.snapshot_id]}, reconnect_s=0.0).listed("snapshots"))
        except RightTimeError:
            return False

    def issue(self, snapshot: RemoteSnapshot, *, query: str, parameters: Sequence[str], rows: int, digest: str) -> Receipt:
        """Let the snapshot go, unless it stands, and have the service seal the receipt."""
        header = {"snapshot": snapshot.snapshot_id, "query": query, "parameters": list(parameters), "rows": rows, "digest": digest, "call": uuid.uuid4().hex}
        receipt = Receipt.from_json(self._transport.call("snapshot.issue", header | snapshot.kept()).text("receipt"))
        snapshot.issued = True
        return receipt


def new_id() -> str:
    """Return an id for a snapshot, which nobody can guess."""
    return uuid.uuid4().hex


class RemoteConsumer(Consumer):
    """Runs queries here; safe to call from any thread."""

    _snapshots: Any

    def read(self, table: str, **asked: Any) -> Answer:
        """Answer with one table, without Spark."""
        return once_more(lambda: Consumer.read(self, table, **asked))

    def _answer_sql(self, text: str, contract: Contract, parameters: Sequence[Any], own: OwnRows | None) -> Answer:
        if own is not None:  # whether the service still has all of them is not known here
            return super()._answer_sql(text, contract, parameters, own)
        return once_more(lambda: Consumer._answer_sql(self, text, contract, parameters, None))

    def _rows(self, table: Any, columns: Sequence[str] | None) -> pa.Table:
        """Let the service send what is wanted, and nothing else."""
        rows: pa.Table = self._snapshots.rows(table, None if columns is None else list(dict.fromkeys(columns)))
        return rows if columns is None else rows.select(columns)

    def run(self, text: str, plan: Plan, tables: Mapping[str, Any], parameters: Sequence[Any]) -> pa.Table:
        """Run a query here. Where Spark fails because rows of the service did not come, or because files of a lapsed snapshot are gone, that is the error."""
        try:
            return super().run(text, plan, tables, parameters)
        except SqlFailed as error:
            found = _carried(error)
            if found is None and any(self._snapshots.has_lapsed(table) for table in tables.values()):
                reason = "the service let them go before Spark had read them, because it was restarted or heard nothing of the query"
                found = LeaseExpired(reason=reason, known=False)
            if found is None:
                raise
            raise found from error

    def issue(self, snapshot: Any, contract: Contract, *, query: str, parameters: tuple[str, ...], rows: int, digest: str) -> Receipt:
        """Have the service seal and keep the receipt: it knows what was read."""
        receipt: Receipt = self._snapshots.issue(snapshot, query=query, parameters=parameters, rows=rows, digest=digest)
        return receipt


def once_more(ask: Callable[[], Answer]) -> Answer:
    """Ask again if the service has forgotten the query, which a restart makes it do: nothing was answered yet, and a newer state is as fresh as asked."""
    try:
        return ask()
    except LeaseExpired as error:
        if error.context.get("known") is not False:
            raise  # it held the rows for as long as it may, and would again
        log.info("query.again", reason=error.context.get("reason"))
    return ask()


def _carried(error: SqlFailed) -> RightTimeError | None:
    """Return the failure that a task met while it read rows of the service; None if Spark has another reason."""
    found = _CARRIED.search(str(error.__cause__))
    return None if found is None else failure_from_text(base64.b64decode(found[1]))


def _same(place: Any) -> bool:
    """Tell whether a file of the service is here, with its content."""
    try:
        return Path(str(place["path"])).read_text() == str(place["content"])
    except (OSError, UnicodeError, KeyError, TypeError):
        return False
