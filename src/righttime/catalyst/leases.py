"""Leases: a query's claim that the hot rows it is reading stay in memory until it has finished.

In: registrations and releases, with the time passed in.
Out: the rows of a lane that may be freed; whether a materialization has to wait for a query that was refused once.
Promise: a row inside a live lease is never freed, and a query is refused at most once in a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass

LaneKey = tuple[str, str]
"""A table and a source."""

Span = tuple[int, int]
"""Row ids from the first to the last."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Row-id intervals that one query holds."""

    lease_id: int
    intervals: Mapping[LaneKey, Span]
    granted_s: float
    expires_s: float


class LeaseTable:
    """Live leases and open retry tickets; the caller's lock guards it."""

    def __init__(self) -> None:
        self._live: dict[int, Lease] = {}
        self._standing: set[int] = set()
        self._tickets: dict[int, float] = {}
        self._next_id = 1

    def register(
        self, intervals: Mapping[LaneKey, Span], *, stored: Mapping[LaneKey, int], now_s: float, ttl_s: float, ticket: int | None = None
    ) -> Lease | None:
        """Hold the intervals, or return None if a row in them was materialized since the query looked (it must look again)."""
        wanted = {lane: span for lane, span in intervals.items() if span[0] <= span[1]}
        if any(span[0] <= stored.get(lane, 0) for lane, span in wanted.items()):
            return None
        return self.hold(wanted, now_s=now_s, ttl_s=ttl_s, ticket=ticket)

    def hold(self, intervals: Mapping[LaneKey, Span], *, now_s: float, ttl_s: float, ticket: int | None = None) -> Lease:
        """Hold the intervals whether materialized or not; the caller knows that the rows are here."""
        lease = Lease(self._take_id(), dict(intervals), now_s, now_s + ttl_s)
        self._live[lease.lease_id] = lease
        if ticket is not None:
            self._tickets.pop(ticket, None)
        return lease

    def stand(self, lease: Lease) -> None:
        """Note that a lease is held for questions to come, and no query runs on it."""
        self._standing.add(lease.lease_id)

    def running(self, *, now_s: float) -> int:
        """Return how many queries run; of one whose lease has lapsed nobody knows, and it may read no more."""
        return sum(lease.expires_s > now_s for lease_id, lease in self._live.items() if lease_id not in self._standing)

    def open_ticket(self, *, now_s: float, ttl_s: float) -> int:
        """Give a refused query priority: materializations wait until it has registered or `ttl_s` has passed."""
        ticket = self._take_id()
        self._tickets[ticket] = now_s + ttl_s
        return ticket

    def close_ticket(self, ticket: int | None) -> None:
        """Give the priority back."""
        if ticket is not None:
            self._tickets.pop(ticket, None)

    def retry_wait_s(self, *, now_s: float) -> float:
        """Return how long a materialization has to wait for refused queries, 0 if for none."""
        self._tickets = {ticket: expires_s for ticket, expires_s in self._tickets.items() if expires_s > now_s}
        return max((expires_s - now_s for expires_s in self._tickets.values()), default=0.0)

    def release(self, lease: Lease, *, now_s: float) -> bool:
        """End a lease; False if it had expired before."""
        self._live.pop(lease.lease_id, None)
        self._standing.discard(lease.lease_id)
        return now_s <= lease.expires_s

    def freeable(self, lane: LaneKey, *, stored_id: int, now_s: float) -> list[Span]:
        """Return the rows of the lane that may leave memory, stored and in no live lease, as ascending intervals from 0 on."""
        self._live = {lease_id: lease for lease_id, lease in self._live.items() if lease.expires_s > now_s}
        self._standing &= self._live.keys()
        found: list[Span] = []
        low = 0
        for first_id, last_id in sorted(lease.intervals[lane] for lease in self._live.values() if lane in lease.intervals):
            if low < min(first_id, stored_id + 1):
                found.append((low, min(first_id - 1, stored_id)))
            low = max(low, last_id + 1)
        return [*found, (low, stored_id)] if low <= stored_id else found

    def __len__(self) -> int:
        return len(self._live)

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1
