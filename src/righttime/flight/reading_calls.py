"""Calls of queries: snapshots, receipts and the rows of tables.

In: messages of a client that runs its queries itself.
Out: what one snapshot of its tables is, the rows of its files, and the receipt for the answer.
Promise: the client says what it asked and what it got; what was read and how fresh it was comes from here, and the seal key never leaves.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa

from righttime.catalyst.maintainer import Admission
from righttime.catalyst.producer import OwnRows
from righttime.errors import BadMessage, BadSetting, LeaseExpired, UnknownTable, VersionGone, WarehouseDamaged
from righttime.flight.access import Grant
from righttime.flight.cuts import cut_record, hot_rows
from righttime.flight.frames import Message, typed
from righttime.flight.held import Held, HeldSnapshots
from righttime.flight.loading_calls import LoadingCalls
from righttime.flight.records import contract_of
from righttime.flight.turns import Asker
from righttime.query.issue import issue_receipt
from righttime.query.snapshot import Snapshot
from righttime.service import Engine

Answer = dict[str, Any]
_TABLES_MAX = 10_000
_NONCE_FILE = "nonce-{}"
_laid_out: set[Path] = set()  # by the services of this process; whoever has the warehouse open for writing is the only one that serves it


class ReadingCalls:
    """The side of the service that queries see."""

    def __init__(self, engine: Engine, loading: LoadingCalls) -> None:
        self._engine = engine
        self._loading = loading
        self.held = HeldSnapshots(engine.snapshots, settings=engine.settings, clock=engine.clock)
        self._nonces: dict[str, tuple[Path, str]] = {}

    # -- places ------------------------------------------------------------------------------------------------------

    def lay_out(self) -> None:
        """Write a file into each place where rows are: who can read it can read the rows there. Those of services that were killed are removed."""
        for place, folder in (("store", self._engine.folder), ("images", self._engine.images.folder)):
            for left in set(folder.glob(_NONCE_FILE.format("*"))) - _laid_out:
                left.unlink(missing_ok=True)
            path, content = folder / _NONCE_FILE.format(secrets.token_hex(4)), secrets.token_hex(16)
            _laid_out.add(path)
            path.write_text(content)
            self._nonces[place] = (path, content)

    def clear_away(self) -> None:
        """Remove them."""
        for path, _ in self._nonces.values():
            path.unlink(missing_ok=True)
            _laid_out.discard(path)
        self._nonces.clear()

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def take(self, message: Message, grant: Grant) -> tuple[Answer, list[bytes]]:
        """Take a snapshot of some tables under a contract, hold it, and describe it."""
        contract = contract_of(message.header.get("contract"))
        tables = [typed(name, str, what="a table") for name in message.listed("tables")]
        unknown = next((name for name in tables if name not in self._engine.schemas), None)
        if unknown is not None or len(tables) > _TABLES_MAX:
            raise UnknownTable(table=unknown, known=", ".join(sorted(self._engine.schemas)) or "none")
        snapshot_id = message.text("snapshot")
        if len(snapshot_id) < 32:
            raise BadMessage(reason="the id of a snapshot is a secret of at least 32 characters")
        own, in_database = message.header.get("own"), message.header.get("in_database") is True
        if in_database:
            self._server()
        admission = Admission(frozenset(tables))
        asker = Asker(message.gone, lambda: self._engine.catalyst.give_up(admission))

        def take() -> AbstractContextManager[Snapshot]:
            rows = None if own is None else self._own(own, grant)
            return self._engine.snapshots.take(sorted(set(tables)), contract, own=rows, admission=admission)

        held = self.held.take(snapshot_id, contract, take, grant=grant.name, in_database=in_database, asker=asker)
        return self._in_database(held) if in_database else self._described(held)

    def _own(self, record: object, grant: Grant) -> OwnRows:
        message = Message(typed(record, dict, what="the own rows"))
        session = self._loading.sessions.get(message.text("session"), grant=grant.name)
        with session.guard:
            return OwnRows(session.local.source, self._loading.bypass_of(session, message.header.get("bypass", {})))

    def _in_database(self, held: Held) -> tuple[Answer, list[bytes]]:
        parts: list[bytes] = []
        tables = {name: cut_record(cut, parts) | {"own": held.snapshot.tables[name].own.rows > 0} for name, cut in held.cuts.items()}
        return {"tables": tables}, parts

    def database(self, _message: Message, _grant: Grant) -> Answer:
        """Tell which database has the tables, and where in it they are, to a client that will ask it itself."""
        server = self._server()
        return {"server": server(), "tables": self._engine.foundation.table_schema, "ledger": self._engine.settings.ledger_schema}

    def _server(self) -> Callable[[], str]:
        server = self._engine.foundation.server
        if server is None:
            raise BadSetting(name="database", reason="the service has a folder of Delta tables and no database; connect without it, and ask in Spark SQL")
        return server

    def _described(self, held: Held) -> tuple[Answer, list[bytes]]:
        parts: list[bytes] = []
        tables = {}
        for name, table in held.tables.items():
            hidden = {}
            for path, positions in table.hidden.items():
                hidden[path] = len(parts)
                parts.append(positions.astype("<i8").tobytes())
            tables[name] = {"files": list(table.files), "hidden": hidden, "version": held.snapshot.tables[name].version}
        places = {place: {"path": str(path), "content": content} for place, (path, content) in self._nonces.items()}
        answer = {"tables": tables, "state": held.snapshot.look.state, "places": places}
        if held.contract.on_late == "answer":
            # What was taken may be less than what was asked for; others, which are to be cut alike, cannot know.
            accuracy, inside = held.snapshot.accuracy, {cut.source: cut.last_inside.time_us for cut in held.snapshot.look.cuts}
            answer |= {"cut": accuracy.cut_us, "late": dict(accuracy.late), "inside": inside}
        return answer, parts

    def renew(self, message: Message) -> list[str]:
        """Note that queries are alive; return the snapshots that are gone."""
        return self.held.renew([typed(one, str, what="a snapshot") for one in message.listed("snapshots")])

    def release(self, message: Message, _grant: Grant) -> Answer:
        """Let a snapshot go, also one that is being taken."""
        try:
            self.held.withdraw(message.text("snapshot"))
        except LeaseExpired:
            return {}  # the query failed for another reason, or it would have asked for a receipt
        return {}

    def rows(self, message: Message) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the rows of some files of a held snapshot, as a stream, without the first ones that are to be skipped: a reader has them already.
        Of a table in the database, hot rows.

        The snapshot's id is the right to read it.
        """
        held = self.held.get(message.text("snapshot"))
        cut = held.cuts.get(message.text("table"))
        if cut is not None:
            schema, batches = hot_rows(cut, message)
            return schema, self._streamed(held, batches)
        table = held.tables.get(message.text("table"))
        if table is None:
            raise BadMessage(reason="the snapshot has no such table")
        places = [typed(place, int, what="a place") for place in message.listed("places")]
        columns = message.header.get("columns")
        names = table.schema.columns.names if columns is None else [typed(name, str, what="a column") for name in message.listed("columns")]
        if any(not 0 <= place < len(table.files) for place in places) or any(name not in table.schema.columns.names for name in names):
            raise BadMessage(reason="the snapshot has no such file or column")
        schema = pa.schema([table.schema.columns.field(name) for name in names])
        return schema, _after(message.optional_number("skip") or 0, self._streamed(held, table.batches(places, names)))

    def _streamed(self, held: Held, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            with self.held.streaming():
                for batch in batches:
                    self.held.get(held.snapshot_id)
                    yield batch
        except (WarehouseDamaged, VersionGone):
            # Files and transactions go when a lease has lapsed, the client's or the query's own; then that is the reason.
            self.held.get(held.snapshot_id)
            held_s = self._engine.clock.monotonic_s() - held.granted_s
            if held_s > self._engine.settings.lease_ttl_s:
                raise LeaseExpired.after(held_s) from None
            raise

    # -- receipts ----------------------------------------------------------------------------------------------------

    def issue(self, message: Message, grant: Grant) -> Answer:
        """Let the snapshot of an answer go, and seal and save the receipt for it."""
        query, digest = message.text("query"), message.text("digest")
        parameters = tuple(typed(text, str, what="a parameter") for text in message.listed("parameters"))
        rows = message.number("rows")
        held = self.held.get(message.text("snapshot"))
        if held.grant != grant.name or rows < 0:
            raise BadMessage(reason="the snapshot belongs to somebody else")
        held = self.held.for_receipt(held, message)
        receipt = issue_receipt(self._engine.ledger, held.snapshot, held.contract, query=query, parameters=parameters, rows=rows, digest=digest)
        return {"receipt": receipt.to_json()}


def _after(rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave the first rows out."""
    for batch in batches:
        if rows < batch.num_rows:
            yield batch.slice(max(rows, 0))
        rows -= batch.num_rows
