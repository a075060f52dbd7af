"""Group verification: a receipt over several catalysts, checked by each of them.

In: a whole receipt.
Out: one verification over all.
Promise: it holds only if the issuer knows its seal, every owner of a table stands for its part, and nothing of the receipt is left over.
"""

from collections.abc import Callable

from righttime.errors import ReceiptForged, ServiceUnreachable
from righttime.flight.frames import Message
from righttime.flight.group_members import Member, Members, together
from righttime.flight.group_receipts import addresses_in
from righttime.flight.records import verification_of
from righttime.ledger.receipts import Receipt, Verification


def verify_whole(members: Members, receipt: Receipt) -> Verification:
    """Have every catalyst that a receipt names check its part; one over a single catalyst is checked there as always."""
    owners = members.by_owner([table.name for table in receipt.tables])
    home = _issuer(members, receipt)
    if set(owners) <= {home}:
        return home.warehouse.verify(receipt)
    asked = [home, *(member for member in owners if member is not home)]
    answers = together([_asking(member, receipt) for member in asked])
    checks = [verification_of(answer.header.get("verification")) for answer in answers]
    left = _left_over(receipt, answers)
    details = [f"{member.name}: {check.detail}" for member, check in zip(asked, checks, strict=True)]
    ok = left is None and all(checks)
    summary = f"all {len(asked)} catalysts agree" if ok else left or "not all catalysts agree"
    return Verification(ok, "ledger", f"{summary} ({'; '.join(details)})")


def _issuer(members: Members, receipt: Receipt) -> Member:
    """Return the catalyst that issued a receipt; one that is down is missed only if no other did."""
    down: ServiceUnreachable | None = None
    for member in members.all:
        try:
            if member.warehouse_id == receipt.warehouse_id:
                return member
        except ServiceUnreachable as error:
            down = down or error
    raise down or ReceiptForged(receipt=receipt.receipt_id, reason="it names none of these catalysts")


def _asking(member: Member, receipt: Receipt) -> Callable[[], Message]:
    return lambda: member.warehouse._once("group.verify", {"receipt": receipt.to_json(), "address": member.name})


def _left_over(receipt: Receipt, answers: list[Message]) -> str | None:
    """Say what of a receipt nobody stands for."""
    tables = {table.name for table in receipt.tables} - {name for answer in answers for name in answer.listed("tables")}
    addresses = set(addresses_in(receipt)) - {answer.text("address") for answer in answers}
    if tables or addresses:
        return f"nobody stands for {', '.join(sorted(tables | addresses))}"
    return None
