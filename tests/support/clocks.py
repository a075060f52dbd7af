"""A clock whose wall time stands still until told, and whose waits are real."""

import time

from righttime.testing import ManualClock


class SteppedClock(ManualClock):
    """Commit times are the test's, time-outs are the machine's: a query that waits in vain ends."""

    def monotonic_s(self) -> float:
        return time.monotonic()
