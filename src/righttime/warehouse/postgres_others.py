"""Columns that others keep in a table of the warehouse: what they hold survives an update of the row.

In: a table as declared and as found, the rows that leave, the columns that updates set.
Out: what the further columns of these rows hold, put aside in the writer's transaction and given back to the rows with the same keys.
Promise: nothing that others keep in a row that lives on is lost; where that cannot be promised the step is refused.

Storing an update deletes the row and copies its new version, and a copied row has defaults in all columns that are not declared. Values that the
database computes need no help.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from psycopg import sql

from righttime.changes.schema import TableSchema
from righttime.errors import ColumnNotKept
from righttime.ledger.postgres_connect import Address
from righttime.ledger.postgres_writer import PostgresWriter
from righttime.warehouse.postgres_catalog import Found


@dataclass(frozen=True, slots=True)
class Others:
    """The further columns of one table, for one step; `keys` and `declared` are the database's spelling."""

    address: Address
    table: TableSchema
    found: Found
    declared: tuple[str, ...]
    keys: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, address: Address, table: TableSchema, found: Found) -> Others:
        """Look which columns are there beside the declared ones; those that the database computes from others do not count."""
        declared = found.names(table, writing=True)
        spelled = dict(zip(table.columns.names, declared, strict=True))
        further = tuple(column.name for column in found.columns if column.name not in declared and not column.generated)
        return cls(address, table, found, declared, tuple(spelled[key] for key in table.keys), further)

    def are_kept(self, changed: Collection[str]) -> bool:
        """Tell whether there is something to keep if these columns of stored rows change; raise `ColumnNotKept` if it cannot be."""
        if not self.columns or not changed:
            return False
        if not self.keys:
            raise self._refusal("it is declared without keys, by which a row could be found again")
        moved = [key for key in self.table.keys if key in changed]
        if moved:
            raise self._refusal(f"the key column {moved[0]!r} is updated, and by its key a row would be found again")
        return True

    def put_aside(self, writer: PostgresWriter, deleting: sql.Composed) -> sql.Composed:
        """Make the place where values are kept until the step ends, whichever way it ends; return `deleting` (… RETURNING …), as the part `gone` of a
        statement that also keeps what the further columns of the deleted rows hold."""
        query = sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA")
        writer.execute(query.format(self._place, _listed(self._put), self._name), step="remove rows", table=self.table.name)
        put = _listed(self._put)
        return sql.SQL("gone AS ({}, {}), kept AS (INSERT INTO {} SELECT {} FROM gone)").format(deleting, put, self._place, put)

    def refuse_mixed(self, writer: PostgresWriter) -> None:
        """Raise `ColumnNotKept` if several rows of one key hold different values: nobody can tell whose are whose."""
        if self.table.unique:
            return
        for column in self.columns:
            # As texts, because not every type can be compared.
            differ = sql.SQL("SELECT 1 FROM {0} GROUP BY {1} HAVING count(DISTINCT coalesce('=' || {2}::text, '')) > 1 LIMIT 1")
            query = differ.format(self._place, _listed(self.keys), sql.Identifier(column))
            if writer.execute(query, step="remove rows", table=self.table.name):
                raise self._refusal("several rows with one key hold different values, and their keys do not tell them apart", column)

    def give_back(self, writer: PostgresWriter) -> None:
        """Give the rows that this step has copied what the rows with the same keys held before it."""
        writer.execute(sql.SQL("ANALYZE {}").format(self._place), step="commit tables", table=self.table.name)
        same = sql.SQL(" AND ").join(sql.SQL("fresh.{0} = kept.{0}").format(sql.Identifier(key)) for key in self.keys)
        # Written anew rather than updated: a number that the database always gives itself cannot be updated, but it can be inserted.
        query = sql.SQL(
            "WITH taken AS (DELETE FROM {table} fresh USING {place} kept WHERE fresh.xmin = pg_current_xact_id()::xid AND {same} RETURNING {all}) "
            "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT * FROM taken"
        ).format(
            table=self._name,
            place=self._place,
            same=same,
            all=sql.SQL(", ").join([*_prefixed("fresh", self.declared), *_prefixed("kept", self.columns)]),
            columns=_listed((*self.declared, *self.columns)),
        )
        writer.change(query, step="commit tables", table=self.table.name)

    @property
    def _name(self) -> sql.Identifier:
        return self.address.table(self.table.name)

    @property
    def _place(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"rt_kept_{self.found.oid}")

    @property
    def _put(self) -> tuple[str, ...]:
        return (*self.keys, *self.columns)

    def _refusal(self, reason: str, column: str | None = None) -> ColumnNotKept:
        return ColumnNotKept(table=self.table.name, column=column or self.columns[0], reason=reason)


def _listed(names: tuple[str, ...]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _prefixed(alias: str, names: tuple[str, ...]) -> list[sql.Identifier]:
    return [sql.Identifier(alias, name) for name in names]
