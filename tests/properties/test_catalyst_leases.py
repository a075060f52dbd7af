"""Leases: no row inside a live one may go."""

from hypothesis import given
from hypothesis import strategies as st

from righttime.catalyst.leases import LeaseTable

LANE = ("x", "p")


@given(
    held=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10), st.integers(1, 20), st.booleans()), max_size=8),
    stored_id=st.integers(0, 60),
    now_s=st.integers(0, 20),
)
def test_no_row_of_a_live_lease_is_freeable(held: list[tuple[int, int, int, bool]], stored_id: int, now_s: int) -> None:
    """Whatever was granted and released, freeing stops below the lowest live interval and at what is stored, and not earlier."""
    leases = LeaseTable()
    live = []
    for first_id, rows, ttl_s, released in held:
        lease = leases.hold({LANE: (first_id, first_id + rows)}, now_s=0, ttl_s=ttl_s)
        if released:
            leases.release(lease, now_s=0)
        elif ttl_s > now_s:
            live.append(first_id)

    assert leases.row_freeable_max(LANE, stored_id=stored_id, now_s=now_s) == min([stored_id, *(first_id - 1 for first_id in live)])
