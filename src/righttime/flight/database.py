"""Clients that ask the database of a service themselves: PostgreSQL runs their queries, on the client's own login, at moments that the service holds.

In: the address of the database, and the parts of a client.
Out: a session in which PostgreSQL answers in its own SQL, hot rows included, with receipts that the service seals.
Promise: as `query.postgres_queries.PostgresQueries`, of which only the snapshots come from elsewhere; another database than the service's is refused.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from righttime.catalyst.producer import OwnRows
from righttime.changes.schema import TableSchema
from righttime.errors import BadSetting
from righttime.flight.reading import RemoteConsumer, RemoteSnapshot, RemoteSnapshots, once_more
from righttime.flight.transport import Transport
from righttime.ledger.postgres_connect import Address
from righttime.query.answer import Answer
from righttime.query.contract import Contract
from righttime.query.postgres_cut import CutTable
from righttime.query.postgres_parts import is_postgres
from righttime.query.postgres_queries import PostgresQueries
from righttime.query.postgres_statement import PostgresStatement
from righttime.settings import Settings

Catalog = Callable[[], tuple[dict[str, TableSchema], dict[str, str]]]
"""Fetches the declared tables and views."""


class HeldElsewhere:
    """Snapshots that the service holds, of tables that the database has."""

    def __init__(self, snapshots: RemoteSnapshots, refuse_closed: Callable[[], None]) -> None:
        self._snapshots = snapshots
        self._refuse_closed = refuse_closed

    def take(self, tables: Sequence[str], contract: Contract, *, own: OwnRows | None = None) -> AbstractContextManager[RemoteSnapshot]:
        """Hold one state of `tables` at the service until the block ends."""
        self._refuse_closed()
        return self._snapshots.take(tables, contract, own=own, in_database=True)

    def in_database(self, table: CutTable) -> CutTable:
        """Return a table as it was sent."""
        return table


class DatabaseQueries(PostgresQueries):
    """The queries of one connection of a client; one at a time, as in the process that has the warehouse."""

    def __init__(self, address: Address, held: HeldElsewhere, consumer: RemoteConsumer, *, catalog: Catalog, settings: Settings) -> None:
        self._catalog = catalog
        super().__init__(address, held, consumer, schemas={}, views={}, settings=settings)

    def tables(self, statement: PostgresStatement) -> list[str]:
        """Return the tables that a statement reads. Declarations stay as they are, so they are fetched only where a name is not known yet."""
        if not {*statement.names, *(name for _, name in statement.qualified)} <= self._schemas.keys() | self._views.keys():
            self._schemas, self._views = self._catalog()
        return super().tables(statement)

    def _answer_sql(self, text: str, contract: Contract, parameters: Sequence[Any], own: OwnRows | None) -> Answer:
        if own is not None:  # whether the service still has all of them is not known here
            return super()._answer_sql(text, contract, parameters, own)
        return once_more(lambda: PostgresQueries._answer_sql(self, text, contract, parameters, None))


def open_database(
    database: str, transport: Transport, held: HeldElsewhere, consumer: RemoteConsumer, *, catalog: Catalog, settings: Settings
) -> DatabaseQueries:
    """Open a session in the database of a service; raise `BadSetting` if it has none, `OtherDatabase` if it has another one."""
    given: Any = database  # by programs without types, too
    if not isinstance(given, str) or not is_postgres(given):  # nothing of it is shown: there may be a password in it
        raise BadSetting(name="database", reason="it is the address of the service's database, postgresql://user@host/database")
    answer = transport.call("database")
    schemas = {"table_schema": answer.text("tables"), "ledger_schema": answer.text("ledger")}
    queries = DatabaseQueries(Address.of(database, settings.model_copy(update=schemas)), held, consumer, catalog=catalog, settings=settings)
    try:
        queries.begin(answer.text("server"))
    except BaseException:
        queries.close()
        raise
    return queries
