"""Interrupts: Ctrl-C waits where half of what is done would be wrong.

In: a block that has to be done whole.
Out: the interrupt, right after the block, if one came meanwhile.
Promise: whatever the program does on Ctrl-C, it does it once for each, and never inside of the block; blocks may be nested.
"""

# The functions below those of `signal`, which take ten times as long to say in an enumeration what they return: every commit needs them.
import _signal  # type: ignore[import-not-found]
import threading
from collections.abc import Callable
from concurrent.futures import Future
from signal import SIGINT
from types import FrameType
from typing import TypeVar

_T = TypeVar("_T")
_SIGINT = int(SIGINT)


class InterruptedAfterCommit(KeyboardInterrupt):
    """Ctrl-C came when a commit was made already: its transaction is over."""


def left_alone(work: Callable[[], _T]) -> _T:
    """Do what blocks outside of Python, where Ctrl-C would have to wait for its end. Ctrl-C ends the call at once and leaves the work alone, in a thread of
    its own: it must come to an end by itself, and harm nobody meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        return work()  # Ctrl-C comes to the main thread only
    outcome: Future[_T] = Future()

    def carried_out() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    try:
        threading.Thread(target=carried_out, name="righttime-left-alone", daemon=True).start()
    except RuntimeError:  # the machine has no thread left, or Python ends
        return work()
    return outcome.result()


class Uninterrupted:
    """Keeps Ctrl-C out of a block, as the handler that notes it; keep the block short, for nothing else ends it."""

    __slots__ = ("before", "came")

    def __init__(self) -> None:
        self.before: Callable[[int, FrameType | None], object] | None = None
        self.came: list[FrameType | None] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came.append(frame)

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread() and callable(handler := _signal.getsignal(_SIGINT)):
            self.before = handler
            _signal.signal(_SIGINT, self)
        # else there is nothing to do: interrupts come to the main thread only, and only by a handler in Python

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            _signal.signal(_SIGINT, self.before)
            while self.came:
                self.before(_SIGINT, self.came.pop(0))


uninterrupted = Uninterrupted


class Interruptible:
    """Lets Ctrl-C into a part of an uninterrupted block where nothing is half done: waiting for others may take long.

    No generator: one that an interrupt keeps from its end would come to it later, and take Ctrl-C away for good.
    """

    __slots__ = ("_inside",)

    def __enter__(self) -> None:
        inside = _signal.getsignal(_SIGINT) if threading.current_thread() is threading.main_thread() else None
        self._inside = inside if isinstance(inside, Uninterrupted) else None
        if self._inside is not None:
            outside = self._inside.before
            while isinstance(outside, Uninterrupted):
                outside = outside.before
            assert outside is not None
            _signal.signal(_SIGINT, outside)
            while self._inside.came:
                outside(_SIGINT, self._inside.came.pop(0))

    def __exit__(self, *_: object) -> None:
        if self._inside is not None:
            _signal.signal(_SIGINT, self._inside)


interruptible = Interruptible
