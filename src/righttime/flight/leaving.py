"""Leaving: what a client still owes to a service when its program ends without closing.

In: the producers that a client opens at one service; the end of the program.
Out: their lazy commits, delivered; their names, free for the next run; what could not be delivered, in the log.
Promise: the program ends, at the latest about `reconnect_s` later, whatever the service does.
"""

import atexit
import os
import threading
import time
import weakref
from functools import cache

from righttime.catalyst.producer import Producer
from righttime.telemetry import get_log

log = get_log("flight")

_GOODBYE_S = 1.0
"""How long to wait for producers that owe nothing; the service ends their sessions by itself."""


class Leaver:
    """The producers of one client at one service, and the thread that closes them at the end: later, Python starts no thread any more."""

    def __init__(self, target: str, *, patience_s: float) -> None:
        self.target = target
        self.patience_s = patience_s
        self.delivered = threading.Event()
        self.ended = threading.Event()
        self._wanted = threading.Event()
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, producer: Producer) -> None:
        """Close a producer at the end of the program, unless it is closed by then."""
        self._producers.add(producer)
        if self._thread is None and not self.ended.is_set():
            self._thread = threading.Thread(target=self._run, name="righttime-leaving", daemon=True)
            self._thread.start()
            _call_at_exit()
            _leavers.add(self)

    def open_producers(self) -> list[Producer]:
        """Return those that are not closed."""
        return [producer for producer in list(self._producers) if not producer.closed]

    def leave(self) -> None:
        """Begin to close what is open."""
        self._wanted.set()

    def close(self) -> None:
        """Forget the producers: the client has closed them itself."""
        _leavers.discard(self)
        self.ended.set()
        self._wanted.set()

    def _run(self) -> None:
        self._wanted.wait()
        if self.ended.is_set():
            return
        producers = self.open_producers()
        owing = [producer for producer in producers if producer._archived()]
        for producer in owing:
            self._deliver(producer)
        self.delivered.set()
        for producer in producers:
            if producer not in owing:
                self._deliver(producer)
        self.ended.set()

    def _deliver(self, producer: Producer) -> None:
        try:
            producer.close()
        except Exception as error:  # the interpreter is going down; the service reports what it never got
            log.error("producer.left", target=self.target, source=producer.source, error=str(error))


_leavers: set[Leaver] = set()

# The sessions of a forked child's copies are the parent's.
os.register_at_fork(after_in_child=_leavers.clear)


@cache
def _call_at_exit() -> None:
    # Only now: what is registered last is called first, and a warehouse that this very process serves must still be open then.
    atexit.register(_leave_all)


def _leave_all() -> None:
    """Deliver what was committed lazily when a program ends without closing its connections."""
    leaving = list(_leavers)
    for leaver in leaving:
        leaver.leave()
    begun_s = time.monotonic()
    for leaver in leaving:
        # A little more than a service that is gone is tried for, so that each failure is told with its reason.
        if not leaver.delivered.wait(timeout=max(begun_s + leaver.patience_s + _GOODBYE_S - time.monotonic(), 0.0)):
            for producer in leaver.open_producers():
                log.error("producer.left", target=leaver.target, source=producer.source, error="the service did not answer in time")
    deadline_s = time.monotonic() + _GOODBYE_S
    for leaver in leaving:
        leaver.ended.wait(timeout=max(deadline_s - time.monotonic(), 0.0))
