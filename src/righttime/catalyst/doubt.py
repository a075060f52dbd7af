"""Doubt: a durable step of which nobody knows whether it happened, because the ledger went out of reach at its commit point.

In: such a step, from the mover.
Out: what became of it, as soon as the ledger answers again.
Promise: until then nothing is committed, stored or answered, so that it can still be finished as if it had been answered at once; nothing is acknowledged
that could not be kept.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from righttime.catalyst.durable import DurableStep, Order
from righttime.catalyst.messages import Published
from righttime.catalyst.shell import Catalyst
from righttime.errors import RightTimeError, StateInDoubt, WriterLost
from righttime.ledger.book import Batch
from righttime.ledger.state import State
from righttime.telemetry import get_log

log = get_log("mover")

_RETRY_S = 1.0


@dataclass(slots=True, eq=False)
class Doubt:
    """One step; `known` once it was found out, with `published` if it did happen. `abandoned`: its producer has rolled back meanwhile."""

    step: DurableStep
    state: State
    batches: Sequence[Batch]
    known: bool = False
    published: Published | None = None
    abandoned: bool = False


class Doubts:
    """The step in doubt of one warehouse, if there is one; the catalyst's lock guards it."""

    def __init__(self, catalyst: Catalyst, *, settle: Callable[[], None]) -> None:
        self._catalyst = catalyst
        self._settle = settle
        self._closed = threading.Event()
        self._untold: dict[str, Doubt] = {}  # by source, until its session has been told
        self.open: Doubt | None = None

    def begin(self, step: DurableStep, state: State, batches: Sequence[Batch], reason: str) -> None:
        """Halt the catalyst for a step that may have happened, and find out in the background; the caller has the catalyst's lock."""
        self.open = Doubt(step, state, batches)
        if step.order.own is not None:
            self._untold[step.order.own.source] = self.open
        self._catalyst.head.advance()  # its number is taken, whatever became of it
        self._catalyst.halt(StateInDoubt(state=state.number, reason=reason.removesuffix(".")))
        log.error("state.in_doubt", state=state.number, kind=step.order.kind, reason=reason)
        threading.Thread(target=self._find_out, name="righttime-doubt", daemon=True).start()

    def take(self, source: str) -> Doubt | None:
        """Return the commit of a source whose outcome was not known when it failed; it may be by now."""
        with self._catalyst.lock:
            return self._untold.pop(source, None)

    def is_of(self, order: Order) -> bool:
        """Tell whether it is this order that is in doubt."""
        return self.open is not None and self.open.step.order is order

    def end(self, published: Published | None) -> None:
        """Go on, with the step if it was published; the caller has the catalyst's lock."""
        doubt, self.open = self.open, None
        assert doubt is not None
        doubt.known, doubt.published = True, published
        own = doubt.step.order.own
        if published is None and doubt.abandoned and own is not None:
            self._catalyst.roll_back(own)
        self._catalyst.halt(None)
        log.warning("state.known", state=doubt.state.number, made=published is not None)

    def abandon(self, doubt: Doubt) -> bool:
        """Roll back what is in doubt, once it is known not to have happened; False if it is known already, and the caller can do so itself."""
        with self._catalyst.lock:
            doubt.abandoned = True
            return not doubt.known

    def close(self) -> None:
        """Stop asking."""
        self._closed.set()

    def _find_out(self) -> None:
        while self.open is not None and not self._closed.wait(timeout=_RETRY_S):
            try:
                self._settle()
            except WriterLost:
                return
            except RightTimeError as error:
                log.info("state.still_in_doubt", code=error.code, error=str(error))
