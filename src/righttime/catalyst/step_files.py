"""The files of a durable step: written before anything of it is visible, and taken back if it fails.

In: a step, with what it captured.
Out: data files and removals in the store, noted in the step.
Promise: a table in which a failed step may have left something is cleaned before the next step that stores into it.
"""

import uuid
from collections.abc import Collection, Mapping
from itertools import chain

from righttime.catalyst.bonds import in_order
from righttime.catalyst.durable import DurableStep
from righttime.catalyst.ends import NOTHING
from righttime.catalyst.messages import Adopted
from righttime.catalyst.segments import batches_of
from righttime.catalyst.shell import Catalyst
from righttime.changes.rows import table_of
from righttime.changes.schema import TableSchema
from righttime.errors import CommitsMixed, ForeignCommit
from righttime.telemetry import get_log
from righttime.warehouse.store import Store

log = get_log("mover")


class StepFiles:
    """Used by the mover only, under its lock, which guards the tables that are not clean."""

    def __init__(self, catalyst: Catalyst, store: Store, *, schemas: Mapping[str, TableSchema]) -> None:
        self._catalyst = catalyst
        self._store = store
        self._schemas = schemas
        self._unclean: set[str] = set()

    def write(self, step: DurableStep) -> None:
        """Write what is stored: what is left of touched files, rows that live at the cut, and rows that go past the catalyst."""
        # From before anything of the step is there until the ledger has it: wherever it stops, somebody knows what to look at.
        self._unclean.update(step.tables)
        # Rows come to the tables that others refer to first, and leave them last; so are tables committed, from the last one on.
        order = in_order(step.tables, self._store.references(step.tables) if len(step.tables) > 1 else {})
        for table in reversed(order):
            self._remove(step, table)
        for table in order:
            self._add(step, table)

    def _remove(self, step: DurableStep, table: str) -> None:
        hidden = step.hidden[table] = step.seen.ends[table].at(step.seen.cuts[table]) if table in step.seen.ends else NOTHING
        if hidden.stored:
            # Before the new versions: a database with a unique index takes those only once the old ones are gone.
            version = self._catalyst.tables[table].version
            removal = step.removals[table] = self._store.remove(
                self._schemas[table], version, hidden.stored, batch_id=uuid.uuid4().hex, changed=self._changed(step, table)
            )
            step.files[table] = list(removal.files)

    def _add(self, step: DurableStep, table: str) -> None:
        schema, extra = self._schemas[table], step.by_passing(table)
        lanes = [lane for lane in step.seen.of_table(table) if lane.store]
        # Noted before it is written: where that fails half way, what is there is taken back.
        files = step.files.pop(table, [])
        if lanes or extra.chunks or extra.files or table in step.removals:
            step.files[table] = files
        if lanes or extra.chunks:
            hot = (batch for lane in lanes for batch in batches_of(lane.store, schema.columns, step.hidden[table].hot))
            rows = chain(hot, table_of(extra.chunks, schema.columns).to_batches())
            files.extend(self._store.write_files(schema, rows, batch_id=uuid.uuid4().hex))
        if extra.files:
            files.extend(self._store.add_files(schema, extra.files))

    def _changed(self, step: DurableStep, table: str) -> set[str]:
        """Return the columns that the operations which are stored in this step write."""
        with self._catalyst.lock:
            lanes = self._catalyst.tables[table].lanes
            stored = [
                placed.operations
                for seen in step.seen.of_table(table)
                for placed in lanes[seen.source].operations_between(lanes[seen.source].stored_id + 1, seen.stored_id)
            ]
        return {column for operations in stored for column in operations.columns_set}

    def keep(self, step: DurableStep) -> None:
        """Note that the ledger has the step: what it left in tables belongs there."""
        self._unclean.difference_update(step.tables)

    def give_up(self, step: DurableStep) -> None:
        """Take Delta commits of a failed step back; where even that fails, the table is cleaned before the next step that stores into it."""
        try:
            for table, files in step.files.items():
                if table not in step.versions:
                    kept = step.by_passing(table).files  # they belong to the producer's transaction, which goes on
                    self._store.discard(self._schemas[table], [file for file in files if file not in kept])
        except Exception as error:
            log.warning("files.not_discarded", tables=sorted(step.files), error=str(error))
        self.clean(())

    def clean(self, tables: Collection[str]) -> None:
        """Undo what failed steps have left; that has to succeed in `tables`, which are about to be stored into, and stops nothing elsewhere."""
        for table in sorted(self._unclean):
            try:
                self._undo(table)
            except Exception as error:
                if table in tables:
                    raise
                log.warning("table.unclean", table=table, error=str(error))

    def _undo(self, table: str) -> None:
        memory = self._catalyst.tables[table]
        try:
            memory.version = self._store.undo(self._schemas[table], version=memory.version)
        except ForeignCommit as error:
            # What of ours could be told apart is out. What is not ours is adopted, or refuses whoever stores into the table.
            log.warning("table.foreign_commit", table=table, error=str(error))
        self._unclean.discard(table)

    def foreign(self, table: str) -> Adopted | None:
        """Return the newest version of a table if another writer had a part in it, free of unfinished commits of ours; None if there is none."""
        schema, memory = self._schemas[table], self._catalyst.tables[table]
        try:
            memory.version = self._store.undo(schema, version=memory.version)
            return None
        except CommitsMixed:
            raise
        except ForeignCommit:
            version = self._store.newest_version(schema)
        self._store.check_schema(schema, version)
        return Adopted(version, self._store.row_count(schema, version), self._store.same_rows(schema, memory.version, version))
