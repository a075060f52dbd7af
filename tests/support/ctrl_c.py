"""Ctrl-C at a chosen place of a call: at each where Python looks for it, one after the other, a test sees what an interrupt leaves behind."""

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def pressed_at(place: int, call: Callable[[], object]) -> bool:
    """Call, and press Ctrl-C at one of the places where Python looks for it, counted from 1; tell whether it came so far."""
    left = place

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event in ("call", "c_return"):  # when a function begins and when a built-in one has returned
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    except KeyboardInterrupt:
        assert left <= 0
    finally:
        sys.setprofile(before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return left <= 0
