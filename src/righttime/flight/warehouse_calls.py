"""Calls about the warehouse as a whole: declarations, materialization, receipts, status, care.

In: messages of a client's `RemoteWarehouse`.
Out: what the same method of an open warehouse returns, as records.
Promise: nothing is done here that a `Warehouse` does not do; this only reads messages and writes answers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import pyarrow as pa

from righttime.changes.schema import TableSchema
from righttime.errors import BadMessage
from righttime.flight.frames import Message, typed
from righttime.flight.records import loss_record, status_record
from righttime.flows.explain import Explanation
from righttime.ledger.receipts import Receipt, Verification
from righttime.ledger.sqlite import Loss
from righttime.status import Status
from righttime.warehouse.store import Collected

Answer = dict[str, Any]
_RECEIPTS_MAX = 10_000


class Served(Protocol):
    """An open warehouse, as the service uses it."""

    def create_table(
        self,
        name: str,
        columns: str | pa.Schema,
        *,
        keys: Iterable[str] = (),
        partition_by: Iterable[str] = (),
        comment: str | None = None,
        in_memory: bool = True,
        unique: bool = False,
        if_not_exists: bool = False,
    ) -> TableSchema: ...
    def create_view(self, name: str, query: str) -> None: ...
    def schema(self, table: str) -> TableSchema: ...
    def tables(self) -> list[str]: ...
    def views(self) -> Mapping[str, str]: ...
    def materialize(self, *tables: str, wait: Any = None) -> int: ...
    def adopt(self, table: str) -> int: ...
    def receipt(self, receipt_id: str) -> Receipt: ...
    def receipts(self, *, limit: int = 100) -> Sequence[Receipt]: ...
    def verify(self, receipt: Receipt | str) -> Verification: ...
    def status(self) -> Status: ...
    def explain(self, query: str, *, freshness: Any = None) -> Explanation: ...
    def losses(self) -> Sequence[Loss]: ...
    def gc(self) -> Mapping[str, Collected]: ...
    def close(self) -> None: ...


class WarehouseCalls:
    """The warehouse's own methods, over messages."""

    def __init__(self, warehouse: Served) -> None:
        self._warehouse = warehouse

    def catalog(self, _message: Message) -> Answer:
        """List the declarations."""
        return {"tables": [self._warehouse.schema(name).to_json() for name in self._warehouse.tables()], "views": dict(self._warehouse.views())}

    def create_table(self, message: Message) -> Answer:
        """Declare a table."""
        schema = self._warehouse.create_table(
            message.text("name"),
            _columns(message),
            keys=_texts(message, "keys"),
            partition_by=_texts(message, "partition_by"),
            comment=message.optional_text("comment"),
            in_memory=message.flag("in_memory"),
            unique=message.flag("unique"),
            if_not_exists=message.flag("if_not_exists"),
        )
        return {"table": schema.to_json()}

    def create_view(self, message: Message) -> Answer:
        """Declare a view."""
        self._warehouse.create_view(message.text("name"), message.text("query"))
        return {}

    def materialize(self, message: Message) -> Answer:
        """Store committed rows."""
        wait = None if message.header.get("wait_s") is None else message.seconds("wait_s")
        return {"state": self._warehouse.materialize(*_texts(message, "tables"), wait=wait)}

    def adopt(self, message: Message) -> Answer:
        """Take over another writer's version."""
        return {"state": self._warehouse.adopt(message.text("table"))}

    def receipt(self, message: Message) -> Answer:
        """Return one receipt."""
        return {"receipt": self._warehouse.receipt(message.text("receipt")).to_json()}

    def receipts(self, message: Message) -> Answer:
        """Return the newest receipts."""
        limit = message.number("limit")
        return {"receipts": [receipt.to_json() for receipt in self._warehouse.receipts(limit=max(0, min(limit, _RECEIPTS_MAX)))]}

    def verify(self, message: Message) -> Answer:
        """Verify a receipt."""
        return {"verification": asdict(self._warehouse.verify(message.text("receipt")))}

    def status(self, _message: Message) -> Answer:
        """Return the status."""
        return {"status": status_record(self._warehouse.status())}

    def explain(self, message: Message) -> Answer:
        """Say what a query would wait for."""
        return {"explanation": asdict(self._warehouse.explain(message.text("query"), freshness=message.seconds("freshness_s")))}

    def losses(self, _message: Message) -> Answer:
        """Return what crashes have taken."""
        return {"losses": [loss_record(loss) for loss in self._warehouse.losses()]}

    def gc(self, _message: Message) -> Answer:
        """Remove files that nobody needs."""
        return {"collected": {name: asdict(collected) for name, collected in self._warehouse.gc().items()}}


def _texts(message: Message, name: str) -> list[str]:
    return [typed(value, str, what=f"one of {name!r}") for value in message.listed(name)]


def _columns(message: Message) -> str | pa.Schema:
    if not message.parts:
        return message.text("columns")
    try:
        return pa.ipc.read_schema(message.parts[0])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadMessage(reason="the columns cannot be read") from error
