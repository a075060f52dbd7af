"""The checks at the end of the demo.

In: the answers, the books of sellers and order desk, and what was stored of the orders.
Out: one line per promise, kept or broken.
Promise: pure; every answer is checked, not only those shown.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from righttime.cli.demo.orders import DESK, Stored
from righttime.cli.demo.readers import Seen
from righttime.cli.demo.shop import Book
from righttime.errors import ReceiptForged


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and whether it was kept."""

    ok: bool
    text: str


def checks_of(answers: Sequence[Seen], books: Mapping[str, Book], *, closing: Seen, orders: Stored, verify: Callable[[str], object]) -> list[Check]:
    """Check all answers; `verify` takes a receipt's JSON and raises if it was changed."""
    return [
        _verified(answers),
        _exact(answers, books),
        _fresh(answers),
        _complete(closing, books),
        _stored_once(orders, books[DESK]),
        _forgery_refused(closing, verify),
    ]


def _verified(answers: Sequence[Seen]) -> Check:
    good = [seen for seen in answers if seen.verification.ok]
    rerun = sum(seen.verification.method == "rerun" for seen in good)
    how = f"{rerun} by running the query again at the same state, {len(good) - rerun} against the ledger"
    return Check(bool(answers) and len(good) == len(answers), f"{len(good)} of {len(answers)} receipts verified: {how}")


def _exact(answers: Sequence[Seen], books: Mapping[str, Book]) -> Check:
    right = sum(expected(seen, books) == (seen.sales, seen.cents, seen.steps) for seen in answers)
    return Check(
        bool(answers) and right == len(answers), f"{right} of {len(answers)} answers count exactly the rows, cents and order steps committed at the cut"
    )


def expected(seen: Seen, books: Mapping[str, Book]) -> tuple[int, int, tuple[int, ...]]:
    """Return the rows, cents and order steps that the books show at an answer's cut."""
    inside = [(books[cut.source], cut.last_inside.number) for cut in seen.receipt.cut if cut.source in books]
    totals = [book.totals[number] for book, number in inside]
    steps = tuple(count for book, number in inside for count in book.steps[number])
    return sum(rows for rows, _ in totals), sum(cents for _, cents in totals), steps


def _fresh(answers: Sequence[Seen]) -> Check:
    kept = sum(seen.given_s <= seen.question.freshness_s and not seen.receipt.late for seen in answers)
    return Check(bool(answers) and kept == len(answers), f"{kept} of {len(answers)} answers were as fresh as asked")


def _complete(closing: Seen, books: Mapping[str, Book]) -> Check:
    total = sum(book.rows for source, book in books.items() if source != DESK)
    return Check(closing.sales == total, f"the closing answer joins {closing.sales:,} sales to their products and stores; {total:,} were committed")


def _stored_once(orders: Stored, book: Book) -> Check:
    kept = orders.versions == 1 and orders.rows == orders.orders == book.rows > 0
    return Check(kept, f"{book.updates:,} updates of {book.rows:,} orders before any was stored: one version with {orders.rows:,} rows, one an order")


def _forgery_refused(seen: Seen, verify: Callable[[str], object]) -> Check:
    """Change one number in a receipt; the warehouse must see it."""
    forged = json.loads(seen.receipt.to_json()) | {"rows": seen.receipt.rows + 1}
    try:
        verify(json.dumps(forged))
    except ReceiptForged:
        return Check(True, "a receipt in which one number was changed is refused")
    return Check(False, "a receipt in which one number was changed was taken for a real one")
