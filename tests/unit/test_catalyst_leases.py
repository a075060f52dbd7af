"""Leases and retry tickets: examples; the random ones are in tests/properties."""

from righttime.catalyst.leases import LeaseTable

X, Y = ("x", "p"), ("y", "p")


def test_a_row_that_was_stored_since_the_look_is_refused() -> None:
    """AT-R15: the interval must begin above what is stored; an empty one always may."""
    leases = LeaseTable()

    assert leases.register({X: (3, 4)}, stored={X: 3}, now_s=0, ttl_s=1) is None
    assert leases.register({X: (4, 4)}, stored={X: 3}, now_s=0, ttl_s=1) is not None
    assert leases.register({X: (2, 1)}, stored={X: 9}, now_s=0, ttl_s=1) is not None
    assert len(leases) == 2


def test_a_lease_ends_by_release_or_by_its_time() -> None:
    """After either, its rows may go; a release after the time says that it came too late."""
    leases = LeaseTable()
    first, second = leases.hold({X: (3, 9)}, now_s=0, ttl_s=10), leases.hold({X: (5, 9)}, now_s=0, ttl_s=20)
    assert leases.freeable(X, stored_id=9, now_s=9) == [(0, 2)]
    assert leases.freeable(Y, stored_id=9, now_s=9) == [(0, 9)]
    assert leases.freeable(X, stored_id=9, now_s=10) == [(0, 4)]
    assert not leases.release(first, now_s=11)
    assert leases.release(second, now_s=11)
    assert leases.freeable(X, stored_id=9, now_s=11) == [(0, 9)]


def test_rows_between_and_after_leases_may_go() -> None:
    """As far as they are stored: a lease holds what it reads, and nothing that came later."""
    leases = LeaseTable()
    leases.hold({X: (8, 9)}, now_s=0, ttl_s=10)
    leases.hold({X: (3, 4)}, now_s=0, ttl_s=10)
    leases.hold({X: (4, 5)}, now_s=0, ttl_s=10)

    assert leases.freeable(X, stored_id=12, now_s=0) == [(0, 2), (6, 7), (10, 12)]
    assert leases.freeable(X, stored_id=6, now_s=0) == [(0, 2), (6, 6)]
    assert leases.freeable(X, stored_id=4, now_s=0) == [(0, 2)]


def test_a_ticket_holds_materializations_back_until_used_closed_or_lapsed() -> None:
    """P10.5: priority for who was refused, for a bounded time."""
    leases = LeaseTable()
    used, closed, lapsed = (leases.open_ticket(now_s=0, ttl_s=ttl_s) for ttl_s in (3, 2, 1))
    assert leases.retry_wait_s(now_s=0) == 3
    leases.hold({X: (1, 1)}, now_s=0, ttl_s=9, ticket=used)
    assert leases.retry_wait_s(now_s=0) == 2
    leases.close_ticket(closed)
    leases.close_ticket(None)
    assert leases.retry_wait_s(now_s=0.5) == 0.5
    assert leases.retry_wait_s(now_s=1) == 0
    leases.close_ticket(lapsed)
