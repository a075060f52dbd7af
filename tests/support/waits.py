"""Waiting for what other threads and processes do.

In: a question.
Out: its first answer that is something.
Promise: the wait has an end, far beyond what a busy machine takes; it is no sleep that a test relies on.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(ask: Callable[[], T], *, seconds: float = 30.0, pause_s: float = 0.01) -> T:
    """Ask again until there is something."""
    turn = threading.Event()
    for _ in range(int(seconds / pause_s)):
        found = ask()
        if found:
            return found
        turn.wait(timeout=pause_s)
    raise AssertionError(f"it did not come true in {seconds:g} s")
