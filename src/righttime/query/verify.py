"""Verification: is this receipt ours, and does the answer behind it still hold?

In: a receipt.
Out: a `Verification` that says which of two checks was made: the query run again at the same state, or the cut compared with the ledger.
Promise: a receipt that was changed in any way is refused (I8); a check that could not be made is never reported as made.
"""

from collections.abc import Callable, Mapping

import pyarrow as pa

from righttime.catalyst.shell import Catalyst
from righttime.changes.position import START, Commit
from righttime.errors import ReceiptForged, ReceiptUnproven, RightTimeError
from righttime.ledger.book import Book
from righttime.ledger.receipts import Receipt, Verification
from righttime.ledger.state import State
from righttime.query.consumer import Consumer
from righttime.query.digest import holds_floats, is_digest_of
from righttime.query.parameters import parameters_read
from righttime.query.postgres_statement import MARK
from righttime.query.repeats import float_sums, volatile_in_postgres
from righttime.query.snapshot import Snapshots, TableSnapshot
from righttime.query.statement import read_statement


class Verifier:
    """Checks receipts of one warehouse. `writer_elsewhere` names the process that may have commits in memory which cannot be seen from here."""

    def __init__(
        self, consumer: Consumer, snapshots: Snapshots, ledger: Book, catalyst: Catalyst, *, writer_elsewhere: Callable[[], int | None] = lambda: None
    ) -> None:
        self._consumer = consumer
        self._snapshots = snapshots
        self._ledger = ledger
        self._catalyst = catalyst
        self._writer_elsewhere = writer_elsewhere

    def verify(self, receipt: Receipt) -> Verification:
        """Run the query again if its state is still held, else check the cut against the ledger."""
        self.refuse_forged(receipt)
        lost = self._lost(receipt)
        if lost:  # whatever is there now was not there then
            return Verification(False, "ledger", lost)
        with self._snapshots.again(receipt.tables, cut_us=receipt.cut_us) as tables:
            if tables is None:
                return self.by_ledger(receipt, "its state is no longer held")
            try:
                rows = self._consumer.rerun(receipt.query, tables, parameters_read(receipt.parameters))
            except RightTimeError as error:
                return self.by_ledger(receipt, f"it could not be run again ({error.code})")
        if rows.num_rows == receipt.rows and is_digest_of(receipt.digest, rows):
            return Verification(True, "rerun", f"the query gives the same {receipt.rows} rows at state {receipt.state}")
        other = f"the query gives other rows at state {receipt.state}: {rows.num_rows} now, {receipt.rows} then"
        excuse = self._excuse(receipt, tables, rows)
        return self.by_ledger(receipt, f"{other}; {excuse}") if excuse else Verification(False, "rerun", other)

    def _excuse(self, receipt: Receipt, tables: Mapping[str, TableSnapshot], rows: pa.Table) -> str | None:
        """Return why a query may rightly give other rows each time, None if it may not."""
        texts, in_postgres = self._consumer.texts(receipt.query), receipt.query.startswith(MARK)
        if in_postgres:
            volatile = {word for text in texts for word in volatile_in_postgres(text, receipt.parameters)} | self._consumer.others(texts)
        else:
            volatile = {word for text in texts for word in read_statement(text).volatile}
        if volatile:
            return f"its answer may differ from run to run ({', '.join(sorted(volatile))})"
        columns = {field.name.lower() for table in tables.values() for field in table.schema.columns if holds_floats(pa.schema([field]))}
        sums = float_sums(
            texts,
            dialect="postgres" if in_postgres else "spark",
            float_columns=columns,
            in_answer=holds_floats(rows.schema),
            in_parameters=any(text.startswith("float:") for text in receipt.parameters),
        )
        return f"sums of floats depend on the order of rows ({', '.join(sorted(sums))})" if sums else None

    def refuse_forged(self, receipt: Receipt) -> None:
        """Raise `ReceiptForged` unless the receipt was issued by this warehouse, as it is."""
        if receipt.warehouse_id != self._ledger.warehouse_id:
            raise ReceiptForged(receipt=receipt.receipt_id, reason="it names another warehouse")
        if not receipt.is_sealed_by(self._ledger.seal_key):
            raise ReceiptForged(receipt=receipt.receipt_id, reason="its seal does not fit its content")
        saved = self._ledger.receipt(receipt.receipt_id)
        if saved is not None and saved != receipt:
            raise ReceiptForged(receipt=receipt.receipt_id, reason="the ledger holds it with other content")

    def by_ledger(self, receipt: Receipt, why: str) -> Verification:
        """Compare the cut with the durable states around it, or with the head if nothing durable follows."""
        if receipt.uncommitted:
            return Verification(False, "ledger", f"the answer contained uncommitted rows of {receipt.uncommitted}, which no ledger knows; {why}")
        below, above = self._ledger.state_around(receipt.state)
        problem = self._lost(receipt) or self._beyond(receipt, above) or self._before(receipt, below)
        if problem:
            return Verification(False, "ledger", f"{problem}; {why}")
        return Verification(True, "ledger", f"the cut agrees with the ledger; {why}")

    def by_what_is_known(self, receipt: Receipt) -> str | None:
        """Return why a cut cannot have been, None if nothing that is known now speaks against it."""
        return self._lost(receipt) or self._beyond(receipt, None)

    def _lost(self, receipt: Receipt) -> str | None:
        for cut in receipt.cut:
            for loss in self._ledger.losses():
                if loss.source == cut.source and not loss.made_again and loss.first <= cut.last_inside.number <= loss.last:
                    return f"the answer contained commit {cut.last_inside.number} of {cut.source}, which a crash lost"
        return None

    def _beyond(self, receipt: Receipt, above: State | None) -> str | None:
        """A cut cannot be ahead of what came after it; `ReceiptUnproven` if what came after it cannot be seen from here."""
        writer = self._writer_elsewhere()  # asked before the newest state is read: a writer that is gone has made everything durable
        positions: Mapping[str, Commit] = above.positions if above is not None else {}
        durable = self._ledger.newest_state().positions
        for cut in receipt.cut:
            with self._catalyst.lock:
                history = self._catalyst.head.sources.get(cut.source)
                newest = history.last if history is not None else START
            limit = max(positions.get(cut.source, START), durable.get(cut.source, START), newest)
            if (cut.last_inside.number, cut.last_inside.time_us) > (limit.number, limit.time_us):
                if writer is not None:
                    why = f"its writer is at work, and whether it has commit {cut.last_inside.number} of {cut.source} in memory cannot be seen"
                    raise ReceiptUnproven(receipt=receipt.receipt_id, why=why, writer=writer)
                return f"the cut names commit {cut.last_inside.number} of {cut.source}, and the newest known is {limit.number}"
        for table in receipt.tables:
            if above is not None and table.name in above.tables and table.version > above.tables[table.name].version:
                return f"it read version {table.version} of {table.name}, which came later"
        return None

    def _before(self, receipt: Receipt, below: State | None) -> str | None:
        """A later state cannot have read an earlier version."""
        for table in receipt.tables:
            if below is not None and table.name in below.tables and table.version < below.tables[table.name].version:
                return f"it read version {table.version} of {table.name}, older than state {below.number} had"
        for cut in receipt.cut:
            known = below.positions.get(cut.source) if below is not None else None
            if known is not None and known.number == cut.last_inside.number and known.time_us != cut.last_inside.time_us:
                return f"commit {known.number} of {cut.source} was made at another time"
        return None


def refuse_no_receipt(receipt: object) -> None:
    """Raise `ReceiptForged` for what is neither a receipt nor the text of one."""
    if not isinstance(receipt, Receipt | str):
        raise ReceiptForged(receipt=repr(receipt)[:80], reason="it is no receipt")
