"""Renewals: a client's sign of life for its sessions and snapshots.

In: the ids that are in use.
Out: one small call every now and then, from one thread, while there are any.
Promise: what is in use stays as long as this process lives and reaches the service.
"""

import threading

from righttime.errors import RightTimeError
from righttime.flight.transport import Transport
from righttime.telemetry import get_log

log = get_log("flight")


class Renewals:
    """The ids in use by one client; safe to call from any thread."""

    def __init__(self, transport: Transport, *, round_s: float) -> None:
        self._transport = transport
        self._round_s = round_s
        self._changed = threading.Condition()
        self._sessions: set[str] = set()
        self._snapshots: set[str] = set()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add_session(self, session_id: str) -> None:
        self._add(self._sessions, session_id)

    def add_snapshot(self, snapshot_id: str) -> None:
        self._add(self._snapshots, snapshot_id)

    def _add(self, ids: set[str], one: str) -> None:
        with self._changed:
            ids.add(one)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="righttime-renewals", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, one: str) -> None:
        """Let an id lapse."""
        with self._changed:
            self._sessions.discard(one)
            self._snapshots.discard(one)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or bool(self._sessions or self._snapshots))
                self._changed.wait_for(lambda: self._closed, timeout=self._round_s)
                if self._closed:
                    return
                sessions, snapshots = sorted(self._sessions), sorted(self._snapshots)
            try:
                if sessions or snapshots:
                    self._transport.call("renew", {"sessions": sessions, "snapshots": snapshots}, reconnect_s=self._round_s)
            except RightTimeError as error:  # whoever uses what has lapsed is told so
                log.info("renewal.failed", code=error.code)

    def close(self) -> None:
        """Stop renewing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=10)
