"""The time authority: strictly increasing commit times over the whole warehouse."""

import threading

from righttime.changes.clock import SystemClock, TimeAuthority
from righttime.testing import ManualClock


def test_times_grow_while_the_clock_stands_still_or_runs_back() -> None:
    """Each issued time is above every one before, whatever the clock says."""
    clock = ManualClock(1.0)
    authority = TimeAuthority(clock)
    first, second = authority.next_us(), authority.next_us()
    clock.advance(-0.5)
    third = authority.next_us()

    assert [first, second, third] == [1_000_000, 1_000_001, 1_000_002]


def test_a_time_that_was_read_is_not_given_to_a_later_commit() -> None:
    """What a reader was promised to be complete stays complete."""
    authority = TimeAuthority(ManualClock(1.0))
    promised = authority.read_us()

    assert authority.next_us() > promised
    assert authority.read_us() == promised + 1


def test_times_found_on_open_are_behind_us() -> None:
    """A warehouse that was written by a machine with a faster clock goes on above its times."""
    authority = TimeAuthority(ManualClock(1.0))
    authority.observe(9_000_000)
    authority.observe(5)

    assert authority.read_us() == 9_000_000
    assert authority.next_us() == 9_000_001


def test_threads_get_different_times() -> None:
    """No two commits share a time, from any number of threads."""
    authority, issued = TimeAuthority(ManualClock(1.0)), []
    threads = [threading.Thread(target=lambda: issued.extend([authority.next_us() for _ in range(500)])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(issued)) == 2000


def test_the_machine_has_a_clock() -> None:
    """Microseconds since 1970, and seconds that do not run back."""
    clock = SystemClock()

    assert clock.now_us() > 1_700_000_000_000_000
    assert clock.monotonic_s() <= clock.monotonic_s()
