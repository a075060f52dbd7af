"""Receipts are issued here, and nowhere else: the facts of an answer, sealed and kept in the ledger.

In: a snapshot, the contract it was taken under, and what the answer was.
Out: the sealed receipt.
Promise: what the receipt says of tables, cut and waiting comes from the snapshot itself, not from whoever ran the query.
"""

import uuid

from righttime.ledger.book import Book
from righttime.ledger.receipts import Receipt
from righttime.query.contract import Contract
from righttime.query.snapshot import Snapshot
from righttime.telemetry import METRICS

_AGES = ("0.1", "1", "10", "60", "600")


def issue_receipt(book: Book, snapshot: Snapshot, contract: Contract, *, query: str, parameters: tuple[str, ...], rows: int, digest: str) -> Receipt:
    """Seal and save the receipt of an answer of `rows` rows."""
    return seal_and_save(book, receipt_of(book, snapshot, contract, query=query, parameters=parameters, rows=rows, digest=digest))


def receipt_of(book: Book, snapshot: Snapshot, contract: Contract, *, query: str, parameters: tuple[str, ...], rows: int, digest: str) -> Receipt:
    """Return the receipt of an answer, not sealed yet."""
    cut_us = min([snapshot.accuracy.cut_us, *snapshot.accuracy.late.values()])
    return Receipt(
        receipt_id=uuid.uuid4().hex,
        warehouse_id=book.warehouse_id,
        state=snapshot.look.state,
        query=query,
        parameters=parameters,
        tables=tuple(table.receipt() for table in snapshot.tables.values()),
        cut=snapshot.look.cuts,
        cut_us=cut_us,
        asked_s=None if contract.as_of_us is not None else contract.freshness_us / 1e6,
        given_s=None if snapshot.accuracy.unknown else max(snapshot.asked_us - cut_us, 0) / 1e6,
        late=bool(snapshot.accuracy.late),
        waited_s=snapshot.waited_s,
        rows=rows,
        digest=digest,
        issued_us=snapshot.look.seen_us,
        uncommitted=snapshot.uncommitted,
        streams=snapshot.streams,
    )


def seal_and_save(book: Book, receipt: Receipt) -> Receipt:
    """Seal a receipt, keep it, and count the query."""
    sealed = receipt.sealed(book.seal_key)
    book.save_receipt(sealed)
    METRICS.counter("righttime_queries_total").inc()
    METRICS.counter("righttime_query_waited_seconds_total").inc(receipt.waited_s)
    METRICS.counter("righttime_query_staleness_total", description="Answers by the age of their cut.").inc(within=_within(receipt.given_s))
    METRICS.counter("righttime_query_staleness_seconds_total").inc(receipt.given_s or 0.0)
    return sealed


def _within(given_s: float | None) -> str:
    """Return the least of a few ages, in seconds, that an answer is within."""
    return "unknown" if given_s is None else next((bound for bound in _AGES if given_s <= float(bound)), "+Inf")
