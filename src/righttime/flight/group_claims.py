"""Claims: in a group, one client at a time gives a name.

In: a name that is to be declared, at whichever catalyst.
Out: a block in which no other client of the group declares it.
Promise: the claim holds as long as its client is at work, however long a catalyst takes; who gets it next sees what was declared under it, also by a
client that has died meanwhile.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from righttime.errors import RightTimeError
from righttime.flight.frames import Message
from righttime.flight.group_members import Member, Members, together
from righttime.telemetry import get_log

log = get_log("flight")


@contextmanager
def claimed(members: Members, name: str) -> Iterator[None]:
    """Keep other clients from giving the name at another catalyst meanwhile; all of them ask the same one, the registrar."""
    members.need_all()
    registrar = min(members.all, key=lambda member: member.warehouse_id)
    claim = {"name": name, "claimer": uuid.uuid4().hex}
    held_s = registrar.call("group.claim", {**claim, "call": uuid.uuid4().hex}).seconds("held_s")
    done = threading.Event()
    renewing = threading.Thread(target=_renew, args=(registrar, claim, held_s / 3, done), name="righttime-claim", daemon=True)
    renewing.start()
    try:
        # Who had the claim before us may have died while a catalyst was declaring for it.
        together([_awaiting_declarations(member) for member in members.all])
        members.need_all()
        yield
    finally:
        done.set()
        registrar.call("group.disclaim", claim)
        members.refresh()


def _renew(registrar: Member, claim: Mapping[str, str], round_s: float, done: threading.Event) -> None:
    while not done.wait(timeout=round_s):
        try:
            registrar.call("group.claim", {**claim, "renew": True}, reconnect_s=0.0)
        except RightTimeError as error:  # the next round tries again
            log.info("claim.not_renewed", member=registrar.name, code=error.code)


def _awaiting_declarations(member: Member) -> Callable[[], Message]:
    return lambda: member.call("group.declared")
