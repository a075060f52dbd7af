"""Commits, positions and cuts: the one idea that joins all parts.

In: nothing; these are values.
Out: `Commit` (an atomic unit of a source) and `SourceCut` (what of a source an answer contains).
Promise: immutable, ordered, and the same in memory, in the ledger and in a receipt.
"""

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True, order=True)
class Commit:
    """One commit of a source: its number in that source (from 1) and its time, issued by the warehouse."""

    number: int
    time_us: int


START = Commit(0, 0)


@dataclass(frozen=True, slots=True)
class SourceCut:
    """Where an answer cuts one source: the last commit inside and the first outside, if one was known."""

    source: str
    last_inside: Commit
    first_outside: Commit | None


def time_text(time_us: int) -> str:
    """Return a commit time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, tz=UTC).isoformat(timespec="microseconds")
