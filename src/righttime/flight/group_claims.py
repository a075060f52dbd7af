"""Claims: in a group, one client at a time gives a name.

In: a name that is to be declared, at whichever catalyst.
Out: a block in which no other client of the group declares it.
Promise: the claim holds as long as its client is at work, however long a catalyst takes; who gets it next sees what was declared under it, also by a
client that has died meanwhile. Claims are in the registrar's memory: one that it has forgotten is taken again, or its client declares nothing.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from righttime.errors import NameClaimed, RightTimeError
from righttime.flight.frames import Message
from righttime.flight.group_members import Member, Members, together
from righttime.telemetry import get_log

log = get_log("flight")

_LOOKS_MAX = 5


@contextmanager
def claimed(members: Members, name: str) -> Iterator[None]:
    """Keep other clients from giving the name at another catalyst meanwhile; all of them ask the same one, the registrar."""
    members.need_all()
    registrar = min(members.all, key=lambda member: member.warehouse_id)
    claim = _Claim(registrar, name)
    held_s = claim.take()
    done = threading.Event()
    renewing = threading.Thread(target=_renew, args=(claim, held_s / 3, done), name="righttime-claim", daemon=True)
    renewing.start()
    try:
        _look_under(claim, members)
        yield
    finally:
        done.set()
        renewing.join()  # a renewal after the end would take the claim again
        claim.give_back()
        members.refresh()


class _Claim:
    """One client's claim to a name at the registrar; `again` is set when it had been forgotten and was taken anew."""

    def __init__(self, registrar: Member, name: str) -> None:
        self.registrar = registrar
        self.name = name
        self.again = threading.Event()
        self._claim = {"name": name, "claimer": uuid.uuid4().hex}

    def take(self) -> float:
        return self.registrar.call("group.claim", {**self._claim, "call": uuid.uuid4().hex}).seconds("held_s")

    def renew(self, reconnect_s: float | None = None) -> None:
        """Hold it for longer; raise `NameClaimed` if somebody else has it by now."""
        answer = self.registrar.call("group.claim", {**self._claim, "renew": True}, reconnect_s=reconnect_s)
        if answer.header.get("again") is True:
            self.again.set()

    def give_back(self) -> None:
        self.registrar.call("group.disclaim", self._claim)


def _look_under(claim: _Claim, members: Members) -> None:
    """Fetch all declarations, and be sure that the claim was ours all the time: who had it meanwhile may have declared the name."""
    for _ in range(_LOOKS_MAX):
        claim.again.clear()
        # Who had the claim before us may have died while a catalyst was declaring for it.
        together([_awaiting_declarations(member) for member in members.all])
        members.need_all()
        claim.renew()
        if not claim.again.is_set():
            return
    raise NameClaimed(name=claim.name, reason=f"{claim.registrar.name}, which keeps the claims, has forgotten ours {_LOOKS_MAX} times")


def _renew(claim: _Claim, round_s: float, done: threading.Event) -> None:
    while not done.wait(timeout=round_s):
        try:
            claim.renew(reconnect_s=0.0)
        except RightTimeError as error:  # the next round tries again
            log.info("claim.not_renewed", member=claim.registrar.name, code=error.code)


def _awaiting_declarations(member: Member) -> Callable[[], Message]:
    return lambda: member.call("group.declared")
