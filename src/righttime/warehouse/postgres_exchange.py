"""Changes of a table that foreign keys refer to: a row that lives on is updated where it is, so that nobody ever misses it.

In: the places of rows that leave and the rows that come, as the mover has them; the foreign keys of the table.
Out: one UPDATE … FROM for the rows that are among both, by a unique key of the database; DELETE and INSERT for the others.
Promise: what refers to a row that lives on is never asked to let it go, and columns of others keep what they hold. A foreign key never changes rows
of other tables by itself: where it would, the step is refused.

Other tables need none of this: to delete ended rows and copy new ones is quicker, fires no triggers for updates, and lets two rows swap a unique value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from righttime.changes.schema import TableSchema
from righttime.errors import ColumnNotKept, CommitFailed, ReferenceBroken, RowsMoved
from righttime.ledger.postgres_connect import Address, Connection, run
from righttime.ledger.postgres_writer import PostgresWriter
from righttime.warehouse.postgres_bonds import Bonds, ForeignKey
from righttime.warehouse.postgres_catalog import Found
from righttime.warehouse.postgres_places import Places, Tids, Xids

_PUT_ROWS = 1 << 16
# Unique keys that the database looks at with each row; those that hold no null first, among them those of the declaration, then the primary key.
_UNIQUE = """
SELECT ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (number, place) JOIN pg_attribute a ON a.attrelid = i.indrelid
             AND a.attnum = k.number WHERE k.place <= i.indnkeyatts ORDER BY k.place)
FROM pg_index i WHERE i.indrelid = %s::bigint::oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY i.indisprimary DESC, i.indexrelid
"""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Rows of one table that leave and come in one step. `names` and `same` are the database's spelling; rows with equal `same` are one row."""

    address: Address
    table: TableSchema
    found: Found
    bonds: Bonds
    names: tuple[str, ...]
    same: tuple[str, ...]

    @classmethod
    def of(cls, writer: PostgresWriter, address: Address, table: TableSchema, found: Found, bonds: Bonds) -> Exchange:
        """Look by which columns a row is known again."""
        names = found.names(table, writing=True)
        spelled = dict(zip(table.columns.names, names, strict=True))
        declared = sorted(spelled[key] for key in table.keys)
        unique = [tuple(columns) for (columns,) in writer.execute(_UNIQUE, (found.oid,), step="write rows", table=table.name)]
        nullable = {column.name for column in found.columns if not column.not_null}
        fit = [columns for columns in unique if set(columns) <= set(names)]
        fit.sort(key=lambda columns: (bool(nullable & {*columns}), sorted(columns) != declared))  # a null is not found again
        return cls(address, table, found, bonds, names, fit[0] if fit else ())

    def refuse_not_kept(self, changed: Collection[str]) -> None:
        """Raise `ColumnNotKept` if rows that live on would lose what others keep in them, because they cannot be known again."""
        further = [column.name for column in self.found.columns if column.name not in self.names and not column.generated]
        if not further or not changed:
            return
        if not self.same:
            raise ColumnNotKept(table=self.table.name, column=further[0], reason="no unique key is declared, by which a row could be found again")
        spelled = dict(zip(self.table.columns.names, self.names, strict=True))
        moved = sorted(column for column in changed if spelled[column] in self.same)
        if moved:
            reason = f"the key column {moved[0]!r} is updated, and by its key a row would be found again"
            raise ColumnNotKept(table=self.table.name, column=further[0], reason=reason)

    def put_aside(self, writer: PostgresWriter, places: Places) -> None:
        """Note which rows leave, until it is known which of them come again; raise `RowsMoved` if one is not where it was."""
        gone = sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT ctid AS place, xmin AS made{} FROM {} WITH NO DATA")
        self._run(writer, gone.format(self._gone, self._keys_as_numbered, self._name))
        new = sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA")
        self._run(writer, new.format(self._new, _listed(self.names), self._name))
        put = sql.SQL(
            "WITH put AS (INSERT INTO {} SELECT found.* FROM (SELECT ctid AS place, xmin AS made{} FROM {} WHERE ctid = ANY(%s)) found"
            " JOIN unnest(%s, %s) AS wanted (place, made) USING (place, made) RETURNING 1) SELECT count(*) FROM put"
        ).format(self._gone, self._keys_as_numbered, self._name)
        for start in range(0, len(places), _PUT_ROWS):
            part = places[start : start + _PUT_ROWS]
            parameters = (Tids(part.ctids), Tids(part.ctids), Xids(part.made))
            ((there,),) = writer.execute(put, parameters, step="remove rows", table=self.table.name)
            self._refuse_moved(len(part), there)

    def is_under_way(self, writer: PostgresWriter) -> bool:
        """Tell whether rows were put aside in this step, and none have come yet."""
        name = self._new.as_string(None)
        return bool(writer.execute("SELECT to_regclass(%s) IS NOT NULL", (name,), step="write rows", table=self.table.name)[0][0])

    @property
    def entry(self) -> sql.Identifier:
        """The table that new rows are copied into, for `bring`."""
        return self._new

    def bring(self, writer: PostgresWriter, copied: int) -> None:
        """Store the rows that were copied: those that live on are updated, the rest is inserted. Rows that leave do so before that if nobody refers to them
        now, since they may have a unique value that is given away; otherwise once all tables have their rows, with `end`."""
        for place in (self._gone, self._new):
            self._run(writer, sql.SQL("ANALYZE {}").format(place))
        self._refuse_acting_updates(writer)
        with writer.lend(step="write rows", table=self.table.name) as connection:
            done = None
            if not any(key.acts_on_delete for key in self.bonds.incoming):
                done = self._tried(connection)
            leaving, dead, staying, kept, fresh = done or run(connection, self._statement(leave=False))[0]
        self._refuse_moved(leaving + staying, dead + kept)
        if kept + fresh != copied:
            reason = f"table {self.table.name!r}: {copied - kept - fresh} new rows have the key ({', '.join(self.same)}) of others, and it is unique there"
            raise CommitFailed(source="store", step="write rows", reason=reason, table=self.table.name)
        self._run(writer, sql.SQL("DROP TABLE {}").format(self._new))

    def _tried(self, connection: Connection) -> tuple[int, ...] | None:
        """Do all of it in one statement, after which the foreign keys are looked at; None if one of them would be broken."""
        incoming = [key.name for key in self.bonds.incoming if key.deferrable]
        try:
            with connection.transaction():
                if incoming:
                    connection.execute(sql.SQL("SET CONSTRAINTS {} IMMEDIATE").format(sql.SQL(", ").join(incoming)))
                counts: tuple[int, ...] = run(connection, self._statement(leave=True))[0]
                return counts
        except (psycopg.errors.ForeignKeyViolation, psycopg.errors.RestrictViolation):
            return None

    def end(self, writer: PostgresWriter) -> None:
        """Delete the rows that left and have not come again; `ReferenceBroken` if others refer to them still. All tables have their rows by now."""
        self._refuse_acting_deletes(writer)
        query = sql.SQL(
            "WITH leaving AS (DELETE FROM {} RETURNING place, made), dead AS ({}) SELECT (SELECT count(*) FROM leaving), (SELECT count(*) FROM dead)"
        ).format(self._gone, self._deleting)
        ((leaving, dead),) = writer.execute(query, step="remove rows", table=self.table.name)
        self._refuse_moved(leaving, dead)

    # -- statements --------------------------------------------------------------------------------------------------

    def _statement(self, *, leave: bool) -> sql.Composed:
        """Return the statement that updates and inserts what was copied, after it has deleted what leaves, and counts each."""
        parts: list[sql.Composable] = []
        if leave:
            leaving = sql.SQL("leaving AS (DELETE FROM {} g WHERE NOT EXISTS (SELECT FROM {} n WHERE {}) RETURNING g.place, g.made), dead AS ({})")
            parts.append(leaving.format(self._gone, self._new, self._alike, self._deleting))
        staying = sql.SQL("staying AS (DELETE FROM {} g USING {} n WHERE {} RETURNING g.place, g.made, {})")
        values = sql.SQL(", ").join(sql.SQL("n.{} AS {}").format(sql.Identifier(name), _numbered("c", place)) for place, name in enumerate(self.names))
        parts.append(staying.format(self._gone, self._new, self._alike, values))
        # One after the other, as a unique value may pass on: each part reads how many rows the one before has changed.
        kept = sql.SQL(
            "kept AS (UPDATE {} t SET {} FROM staying s, (SELECT count(*) AS before FROM {}) b"
            " WHERE t.ctid = s.place AND t.xmin = s.made AND b.before >= 0 RETURNING 1)"
        )
        settings = sql.SQL(", ").join(sql.SQL("{} = s.{}").format(sql.Identifier(name), _numbered("c", place)) for place, name in enumerate(self.names))
        parts.append(kept.format(self._name, settings, sql.SQL("dead" if leave else "staying")))
        fresh = sql.SQL(
            "fresh AS (INSERT INTO {} ({}) SELECT {} FROM {} n, (SELECT count(*) AS before FROM kept) b"
            " WHERE b.before >= 0 AND NOT EXISTS (SELECT FROM {} g WHERE {}) RETURNING 1)"
        )
        columns = sql.SQL(", ").join(sql.Identifier("n", name) for name in self.names)
        parts.append(fresh.format(self._name, _listed(self.names), columns, self._new, self._gone, self._alike))
        counted = ("leaving", "dead", "staying", "kept", "fresh")
        counts = sql.SQL(", ").join(
            sql.SQL("(SELECT count(*) FROM {})" if leave or number > 1 else "0").format(sql.SQL(part)) for number, part in enumerate(counted)
        )
        return sql.SQL("WITH {} SELECT {}").format(sql.SQL(", ").join(parts), counts)

    @property
    def _deleting(self) -> sql.Composed:
        return sql.SQL("DELETE FROM {} t USING leaving l WHERE t.ctid = l.place AND t.xmin = l.made RETURNING 1").format(self._name)

    @property
    def _alike(self) -> sql.Composable:
        """The condition that a row `n` that comes is the row `g` that leaves."""
        if not self.same:
            return sql.SQL("false")
        return sql.SQL(" AND ").join(sql.SQL("n.{} = g.{}").format(sql.Identifier(name), _numbered("k", place)) for place, name in enumerate(self.same))

    @property
    def _keys_as_numbered(self) -> sql.Composed:
        parts = [sql.SQL(", {} AS {}").format(sql.Identifier(name), _numbered("k", place)) for place, name in enumerate(self.same)]
        return sql.SQL("").join(parts)

    # -- foreign keys that act ---------------------------------------------------------------------------------------

    def _refuse_acting_deletes(self, writer: PostgresWriter) -> None:
        """Raise `ReferenceBroken` where ON DELETE would change rows that refer to those that leave: whoever asks would see them change by being stored."""
        acting = [key for key in self.bonds.incoming if key.acts_on_delete]
        if acting:
            # Nobody can begin to refer to them from here on.
            locked = sql.SQL("SELECT count(*) FROM (SELECT FROM {} t JOIN {} g ON t.ctid = g.place AND t.xmin = g.made FOR UPDATE OF t) locked")
            self._run(writer, locked.format(self._name, self._gone))
        for key in acting:
            # In the table itself those that leave may refer to each other.
            themselves = sql.SQL("o.ctid IN (SELECT place FROM {})").format(self._gone) if key.outgoing else sql.SQL("false")
            self._refuse_referred(writer, key, sql.SQL(""), sql.SQL("NOT ({})").format(themselves), "delete")

    def _refuse_acting_updates(self, writer: PostgresWriter) -> None:
        for key in self.bonds.incoming:
            # Columns of others, which may be referred to as well, keep what they hold.
            written = [name for name in key.referred if name in self.names and name not in self.same]
            if key.acts_on_update and written:
                old, new = (sql.SQL(", ").join(sql.Identifier(row, name) for name in written) for row in ("t", "n"))
                changed = sql.SQL("ROW({}) IS DISTINCT FROM ROW({})").format(old, new)
                self._refuse_referred(writer, key, sql.SQL("JOIN {} n ON {}").format(self._new, self._alike), changed, "update")

    def _refuse_referred(self, writer: PostgresWriter, key: ForeignKey, further: sql.Composable, condition: sql.Composable, what: str) -> None:
        pairs = zip(key.columns, key.referred, strict=True)
        refers = sql.SQL(" AND ").join(sql.SQL("o.{} = t.{}").format(sql.Identifier(own), sql.Identifier(referred)) for own, referred in pairs)
        query = sql.SQL("SELECT 1 FROM {} g JOIN {} t ON t.ctid = g.place AND t.xmin = g.made {} JOIN {} o ON {} WHERE {} LIMIT 1")
        if self._run(writer, query.format(self._gone, self._name, further, key.holder, refers, condition)):
            reason = f"rows of {key.spelled} refer to rows that are {what}d, and would be changed with them (ON {what.upper()})"
            raise ReferenceBroken(table=self.table.name, reason=reason)

    # -- names -------------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> sql.Identifier:
        return self.address.table(self.table.name)

    @property
    def _gone(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"rt_gone_{self.found.oid}")

    @property
    def _new(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"rt_new_{self.found.oid}")

    def _refuse_moved(self, expected: int, there: int) -> None:
        if there != expected:
            raise RowsMoved(table=self.table.name, reason=f"{expected - there} rows are not where they were")

    def _run(self, writer: PostgresWriter, query: sql.Composed) -> Sequence[tuple[object, ...]]:
        return writer.execute(query, step="write rows", table=self.table.name)


def _listed(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _numbered(letter: str, place: int) -> sql.Identifier:
    return sql.Identifier(f"{letter}{place}")
