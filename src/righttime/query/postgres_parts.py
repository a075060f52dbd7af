"""The parts of a warehouse that are different in PostgreSQL, made together.

In: a `postgresql://` address and settings.
Out: ledger, store and log that share one writer, and the local folder that goes with the warehouse.
Promise: either all parts are open, or none is and nothing is left open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from righttime.catalyst.postgres_log import PostgresLog
from righttime.changes.clock import Clock
from righttime.errors import BadSetting, NotAWarehouse
from righttime.ledger.postgres import PostgresLedger
from righttime.ledger.postgres_connect import Address, connect
from righttime.ledger.postgres_schema import has_tables, known_schema
from righttime.ledger.postgres_writer import PostgresWriter
from righttime.ledger.trace import CommitTrace
from righttime.settings import Settings
from righttime.warehouse.postgres import PostgresStore

_SCHEMES = ("postgresql://", "postgres://")


def is_postgres(target: str) -> bool:
    """Tell whether a target names a PostgreSQL database."""
    return target.startswith(_SCHEMES)


@dataclass(frozen=True, slots=True)
class PostgresParts:
    """`folder` keeps what is local: the commit trace, spilled rows, staged files, the roster. `trace` is None for a reader."""

    address: Address
    folder: Path
    ledger: PostgresLedger
    store: PostgresStore
    wal: PostgresLog
    trace: CommitTrace | None

    def close(self) -> None:
        """Close what is open to the database; the writer lock goes last."""
        self.store.close()
        self.ledger.close()


def postgres_parts(url: str, *, settings: Settings, clock: Clock, create: bool = True, read_only: bool = False) -> PostgresParts:
    """Open a warehouse in PostgreSQL; a writer holds its lock until `ledger.close()`."""
    address = _where_its_tables_are(Address.of(url, settings), settings)
    writer = None if read_only else PostgresWriter.open(address, create=create)
    opened: list[PostgresLedger | PostgresStore] = []
    try:
        ledger = PostgresLedger(address, writer, settings=settings)
        opened.append(ledger)
        folder = _local_folder(settings, ledger.warehouse_id)
        store = PostgresStore(address, writer, folder=folder, settings=settings, clock=clock)
        opened.append(store)
        wal = PostgresLog(store.pool, writer, settings=settings)
        return PostgresParts(address, folder, ledger, store, wal, None if read_only else CommitTrace.open(folder))
    except BaseException:
        for part in opened:
            part.close()
        if writer is not None:
            writer.close()
        raise


def _where_its_tables_are(address: Address, settings: Settings) -> Address:
    """Return the address with the schema that the warehouse was made with: in another one, tables of the same names would be somebody else's."""
    with connect(address) as connection:
        known = known_schema(connection, address)
        # Without tables it is somebody who began before they had said where: nothing is lost if they say it now.
        is_open = known is not None and settings.table_schema is not None and not has_tables(connection, address)
    if known in (None, address.tables) or is_open:
        return address
    if settings.table_schema is not None:
        raise BadSetting(name="table_schema", reason=f"the tables of {address.name} are in the schema {known!r}, not in {settings.table_schema!r}")
    return replace(address, tables=known)


def _local_folder(settings: Settings, warehouse_id: str) -> Path:
    root = settings.state_dir or Path.home() / ".local" / "state" / "righttime"
    try:
        (root / warehouse_id).mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise NotAWarehouse(
            path=str(root), reason=f"the local folder of a warehouse in PostgreSQL cannot be made there ({error}); choose one with state_dir"
        ) from None
    return root / warehouse_id
