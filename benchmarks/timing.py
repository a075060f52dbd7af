"""Interleaved timing, so that what else the machine does falls on both sides alike.

In: two ways to do the same thing.
Out: the median seconds of each.
Promise: both are warmed up, then take turns.
"""

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(ways: Mapping[str, Callable[[], object]], *, rounds: int, warm: int = 1) -> dict[str, float]:
    """Return the median time of each way, run in turns."""
    for _ in range(warm):
        for way in ways.values():
            way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begun_s = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - begun_s)
    return {name: statistics.median(of_one) for name, of_one in times.items()}
