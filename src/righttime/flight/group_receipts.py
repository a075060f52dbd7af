"""Receipts over several catalysts: one for the whole answer, sealed by the first of them, and a part of it with each of the others.

In: the receipts that each catalyst makes of what it gave.
Out: the whole receipt, in which sources and streams of the others are called source@host:port; and the way back to a part.
Promise: pure; taking a part out of a whole and putting it in again gives the same.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from righttime.errors import BadMessage, BadSource
from righttime.ledger.receipts import Receipt, TableReceipt

_FOREIGN = re.compile(r"@(?P<address>[^@\s]+:\d+)$")
_PART = "part:"


def address_in(source: str) -> str | None:
    """Return the catalyst that a source of a whole receipt belongs to; None for one of the catalyst that issued it."""
    found = _FOREIGN.search(source)
    return found["address"] if found else None


def as_part(receipt: Receipt, receipt_id: str) -> Receipt:
    """Return a catalyst's receipt of its share as a part of a whole; its digest says that it is one."""
    return replace(receipt, receipt_id=receipt_id, digest=_PART + receipt.digest)


def is_part(receipt: Receipt) -> bool:
    """Tell whether a receipt is only a part of another."""
    return receipt.digest.startswith(_PART)


def joined(mine: Receipt, parts: Sequence[tuple[str, Receipt]], *, receipt_id: str, asked_us: int) -> Receipt:
    """Return the whole receipt, not sealed yet: what the issuing catalyst gave, then the parts of the others by their addresses."""
    named = [renamed(part, address) for address, part in parts]
    tables = [*mine.tables, *(table for part in named for table in part.tables)]
    if len({table.name for table in tables}) < len(tables) or any(part.receipt_id != receipt_id or not is_part(part) for part in named):
        raise BadMessage(reason="the parts of a receipt do not belong together")
    for source in (*(cut.source for cut in mine.cut), mine.uncommitted):
        if address_in(source) is not None:
            raise BadSource(source=source, reason="it looks like a source of another catalyst, source@host:port")
    uncommitted = [one.uncommitted for one in (mine, *named) if one.uncommitted]
    if len(uncommitted) > 1:
        raise BadMessage(reason="an open transaction is at one catalyst")
    cut_us = min([mine.cut_us, *(part.cut_us for part in named)])
    return replace(
        mine,
        receipt_id=receipt_id,
        tables=tuple(tables),
        cut=(*mine.cut, *(cut for part in named for cut in part.cut)),
        cut_us=cut_us,
        given_s=None if any(one.given_s is None for one in (mine, *named)) else max(asked_us - cut_us, 0) / 1e6,
        late=any(one.late for one in (mine, *named)),
        waited_s=max(one.waited_s for one in (mine, *named)),
        uncommitted="".join(uncommitted),
        streams=(*mine.streams, *(stream for part in named for stream in part.streams)),
    )


def renamed(part: Receipt, address: str) -> Receipt:
    """Return a part as it stands in the whole."""
    if address_in(f"@{address}") != address:
        raise BadMessage(reason="the address of a catalyst is host:port")
    return replace(
        part,
        tables=tuple(replace(table, hot=tuple(replace(hot, source=f"{hot.source}@{address}") for hot in table.hot)) for table in part.tables),
        cut=tuple(replace(cut, source=f"{cut.source}@{address}") for cut in part.cut),
        uncommitted=part.uncommitted and f"{part.uncommitted}@{address}",
        streams=tuple(replace(one, stream=f"{one.stream}@{address}") for one in part.streams),
    )


def share_of(whole: Receipt, names: Iterable[str], address: str | None) -> Receipt:
    """Return what a whole receipt says of some tables, and of the sources and streams of one catalyst: those of an address, or of the issuer."""
    wanted = set(names)
    return replace(
        whole,
        tables=tuple(table for table in whole.tables if table.name in wanted),
        cut=tuple(one for one in whole.cut if address_in(one.source) == address),
        uncommitted=whole.uncommitted if address_in(whole.uncommitted) == address else "",
        streams=tuple(one for one in whole.streams if address_in(one.stream) == address),
    )


def addresses_in(whole: Receipt) -> list[str]:
    """Return the other catalysts that a whole receipt names."""
    return sorted({address for source in _sources(whole) if (address := address_in(source)) is not None})


def _sources(receipt: Receipt) -> list[str]:
    named = [*(cut.source for cut in receipt.cut), *(hot.source for table in receipt.tables for hot in table.hot), *(one.stream for one in receipt.streams)]
    return [*named, receipt.uncommitted] if receipt.uncommitted else named


def same_share(part: Receipt, whole: Receipt) -> str | None:
    """Return the address under which a part stands in the whole, "" if it names no source at all; None if it is not what the whole says."""
    names = [table.name for table in part.tables]
    if not _sources(part):
        return "" if share_of(whole, names, None).tables == part.tables else None
    for address in addresses_in(whole):
        share, expected = share_of(whole, names, address), renamed(part, address)
        if _content(share) == _content(expected):
            return address
    return None


def _content(receipt: Receipt) -> tuple[object, ...]:
    return receipt.tables, receipt.cut, receipt.uncommitted, receipt.streams


def stripped(whole: Receipt, names: Iterable[str], address: str) -> Receipt:
    """Return the share of a catalyst with its own names for its sources."""
    share, ending = share_of(whole, names, address), f"@{address}"
    return replace(
        share,
        tables=tuple(_stripped(table, ending) for table in share.tables),
        cut=tuple(replace(cut, source=cut.source.removesuffix(ending)) for cut in share.cut),
        uncommitted=share.uncommitted.removesuffix(ending),
        streams=tuple(replace(one, stream=one.stream.removesuffix(ending)) for one in share.streams),
    )


def _stripped(table: TableReceipt, ending: str) -> TableReceipt:
    return replace(table, hot=tuple(replace(hot, source=hot.source.removesuffix(ending)) for hot in table.hot))
