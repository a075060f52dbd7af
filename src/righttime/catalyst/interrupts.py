"""Interrupts: Ctrl-C waits where half of what is done would be wrong.

In: a block that has to be done whole.
Out: the interrupt, right after the block, if one came meanwhile.
Promise: whatever the program does on Ctrl-C, it does it once for each, and never inside of the block; blocks may be nested.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptedAfterCommit(KeyboardInterrupt):
    """Ctrl-C came when a commit was made already: its transaction is over."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep Ctrl-C out of the block; keep the block short, for nothing else ends it."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # interrupts come to the main thread only, and only by a handler in Python
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        for frame in came:
            handler(signal.SIGINT, frame)
