"""The listener of a lazy producer: answers requests for data, asks the policy, and shows that the producer is alive.

In: requests that queries leave with the producer's session.
Out: calls of `serve` and `poll`, from one thread that begins with the first lazy commit.
Promise: an answer that fails is tried again at the next round, and the waiting query gets its own time-out, never a stale answer.
"""

import threading
from collections.abc import Callable

from righttime.catalyst.port import Session
from righttime.changes.interrupts import uninterrupted
from righttime.errors import RightTimeError
from righttime.telemetry import get_log

log = get_log("producer")


class Listener:
    """One background thread per producer, started on need."""

    def __init__(self, session: Session, *, serve: Callable[[str, int], None], poll: Callable[[], None], poll_s: float, lease_s: float) -> None:
        self._session = session
        self._serve = serve
        self._poll = poll
        self._round_s = min(poll_s, lease_s / 3)
        self._thread: threading.Thread | None = None
        self._joining = threading.Event()

    def start(self) -> None:
        """Begin to listen, once."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"righttime-producer-{self._session.source}", daemon=True)
            with uninterrupted():
                thread.start()
                self._thread = thread  # only now: if the machine has no thread left, the next call tries again

    def join(self) -> None:
        """Wait for the thread to end, after the session was closed."""
        self._joining.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=30)

    def _run(self) -> None:
        while True:
            try:
                requests = self._session.await_requests(self._round_s)
                if requests is None:
                    return
                for table, time_us in requests.items():
                    self._serve(table, time_us)
                self._poll()
            except RightTimeError as error:
                log.warning("flush.failed", source=self._session.source, code=error.code, error=str(error))
                self._joining.wait(timeout=self._round_s)
            except Exception as error:  # a user's policy may raise anything; the producer must go on answering
                log.error("policy.failed", source=self._session.source, error=repr(error))
