"""Calls of groups: what a catalyst does for clients that use several at once.

In: messages of clients: the time, shares of receipts, views over tables of several catalysts.
Out: times that no later commit will be at or below, parts of receipts, verifications of a share.
Promise: a time that was promised to a client holds after a crash, too; the clock is never set ahead by more than `clock_skew_s`.
"""

import threading
from collections import deque
from dataclasses import asdict, replace
from typing import Any

from righttime.catalyst.durable import Declared
from righttime.catalyst.maintainer import newest_exact
from righttime.changes.schema import declare_table
from righttime.errors import BadMessage, ClocksApart, NameClaimed, ServiceBusy, TableExists
from righttime.flight.access import WRITE, Grant
from righttime.flight.frames import Message, typed
from righttime.flight.group_receipts import as_part, joined, same_share, share_of, stripped
from righttime.flight.held import Held, HeldSnapshots
from righttime.ledger.receipts import Receipt, Verification
from righttime.query.issue import receipt_of, seal_and_save
from righttime.query.statement import read_statement
from righttime.service import Engine
from righttime.warehouse import durable

Answer = dict[str, Any]
_TICKETS_MAX = 256
_PARTS_MAX = 64
_CLAIMS_MAX = 1024
_CLAIM_S = 10.0
"""How long a claim lasts if its client does not renew it."""
_CLAIM_ROUND_S = 1.0
_CLAIM_ROUNDS_MAX = 60
_AHEAD_FILE = "clock"
_STEP_US = 1_000_000
_READER_WAIT_S = 2.0


class GroupCalls:
    """The side of the service that groups see."""

    def __init__(self, engine: Engine, held: HeldSnapshots) -> None:
        self._engine = engine
        self._held = held
        self._authority = engine.catalyst.authority
        self._lock = threading.Lock()
        self._tickets: deque[int] = deque()
        self._claimed = threading.Condition()
        self._claims: dict[str, tuple[str, float]] = {}
        self._kept_us = self._read_kept()
        self._authority.observe(self._kept_us)

    # -- time --------------------------------------------------------------------------------------------------------

    def clock(self, message: Message, grant: Grant) -> Answer:
        """Move past a time that the client has seen elsewhere, and return one that no later commit here will be at or below.

        `floor` is the oldest time at which the named tables can be read, `ready` the newest for which neither lazy producers have to be asked nor flows
        have to make a job; `flows` says whether any of the tables are made by flows. With `ticket`, nothing is stored into them for a short time, and
        `floor` is above every job that is closed: whatever was chosen before may be inside one.
        """
        self.observe(message.optional_number("observe"), grant)
        catalyst = self._engine.catalyst
        names = [typed(name, str, what="a table") for name in typed(message.header.get("tables") or [], list, what="the tables")]
        with catalyst.lock:
            ticket = self._ticket() if message.header.get("ticket") is True else None
            flows = [catalyst.maintained[name] for name in names if name in catalyst.maintained]
            closed_us = 0 if ticket is None else max((flow.closed_us for flow in flows), default=0)
            floor_us = max(closed_us, catalyst.floor_us(names))
            read_us = self._authority.read_us()
            ready_us = min((catalyst.table(name).lane(link.source).times.newest_us for name, link in catalyst.lazy_lanes(names)), default=read_us)
            return {"read": read_us, "floor": floor_us, "ready": newest_exact(ready_us, flows), "flows": bool(flows), "ticket": ticket}

    def observe(self, time_us: int | None, grant: Grant) -> None:
        """Let no later commit be at or below a time of another catalyst. Who may only read cannot move our clock: we wait until it gets there."""
        if time_us is None:
            return
        if self._authority.read_us() < time_us:
            if WRITE in grant.scopes:
                self._refuse_beyond(time_us, self._engine.settings.clock_skew_s, bound="clock_skew_s", remedy="raise the bound")
            else:
                self._await_clock(time_us)
        if self._engine.clock.now_us() < time_us:
            self._keep(time_us)
        self._authority.observe(time_us)

    def _await_clock(self, time_us: int) -> None:
        bound_s = min(self._engine.settings.clock_skew_s, _READER_WAIT_S)
        told = {"bound": "for a token that may only read and sets no clock", "remedy": "ask with a freshness of more than they are apart"}
        self._refuse_beyond(time_us, bound_s, **told)
        threading.Event().wait(timeout=max(time_us - self._engine.clock.now_us(), 0) / 1e6)
        self._refuse_beyond(time_us, 0.0, **told)  # our clock was set back meanwhile

    def _refuse_beyond(self, time_us: int, bound_s: float, *, bound: str, remedy: str) -> None:
        ahead_us = time_us - self._engine.clock.now_us()
        if ahead_us > bound_s * 1e6:
            raise ClocksApart(target=self._engine.name, ahead_s=ahead_us / 1e6, bound_s=bound_s, bound=bound, remedy=remedy)

    def _keep(self, time_us: int) -> None:
        """Write a time down that our own clock has not reached: a crash must not take us back behind it. In steps, so that it is rare."""
        with self._lock:
            if time_us > self._kept_us:
                durable.replace(self._engine.folder / _AHEAD_FILE, str(time_us + _STEP_US).encode())
                self._kept_us = time_us + _STEP_US

    def _read_kept(self) -> int:
        try:
            return int((self._engine.folder / _AHEAD_FILE).read_text())
        except (OSError, ValueError):
            return 0  # it was never ahead

    def _ticket(self) -> int:
        """Give a client priority over storing. Those of clients that never came back are given up, oldest first."""
        with self._lock:
            self._tickets.append(self._engine.catalyst.give_priority(None))
            if len(self._tickets) > _TICKETS_MAX:
                self._engine.catalyst.abandon(self._tickets.popleft())
            return self._tickets[-1]

    def abandon(self, ticket: int | None) -> None:
        """Take a ticket back."""
        with self._lock:
            if ticket is None or ticket not in self._tickets:
                return
            self._tickets.remove(ticket)
        self._engine.catalyst.abandon(ticket)

    # -- declarations ------------------------------------------------------------------------------------------------

    def claim(self, message: Message, _grant: Grant) -> Answer:
        """Let one client at a time declare a name anywhere in the group: all ask the same catalyst, and the next waits until the first is done.

        One that is renewed may be forgotten, since claims are in memory. It is taken `again` if nobody else has it, who may have declared the name meanwhile.
        """
        name, claimer = message.text("name"), message.text("claimer")
        renewed = message.header.get("renew") is True
        with self._claimed:
            held = renewed and self._holds(name, claimer)
            if not held:
                self._await_free(name, rounds=1 if renewed else _CLAIM_ROUNDS_MAX, round_s=0.0 if renewed else _CLAIM_ROUND_S)
            self._claims[name] = (claimer, self._engine.clock.monotonic_s() + _CLAIM_S)
        return {"held_s": _CLAIM_S, "again": renewed and not held}

    def _await_free(self, name: str, *, rounds: int, round_s: float) -> None:
        """Wait until nobody has a name; in rounds, since a claim lapses without a word."""
        if not any(self._claimed.wait_for(lambda: self._is_free(name), timeout=round_s) for _ in range(rounds)):
            raise NameClaimed(name=name, reason=f"it was waited for {rounds * round_s:g} s" if round_s else "it came when ours was forgotten or had lapsed")
        if len(self._claims) >= _CLAIMS_MAX:
            raise ServiceBusy(used=len(self._claims), what="claims of names", setting="of a group")

    def _is_free(self, name: str) -> bool:
        now_s = self._engine.clock.monotonic_s()
        self._claims = {known: claim for known, claim in self._claims.items() if claim[1] > now_s}
        return name not in self._claims

    def _holds(self, name: str, claimer: str) -> bool:
        return name in self._claims and self._claims[name][0] == claimer

    def disclaim(self, message: Message, _grant: Grant) -> Answer:
        """Let the next client declare a name."""
        with self._claimed:
            if self._holds(message.text("name"), message.text("claimer")):
                del self._claims[message.text("name")]
            self._claimed.notify_all()
        return {}

    def declared(self, _message: Message, _grant: Grant) -> Answer:
        """Wait until what is being declared here is declared, and can be listed; storing may keep it waiting for long."""
        with self._engine.declarations:
            return {}

    def create_view(self, message: Message, _grant: Grant) -> Answer:
        """Keep a view whose tables may be elsewhere; the client has resolved it."""
        engine = self._engine
        name = declare_table(message.text("name"), "placeholder INT").name
        statement = read_statement(message.text("query"))
        with engine.declarations:
            if name in engine.schemas or name in engine.views:
                raise TableExists(table=name)
            engine.mover.declare(Declared(view=(name, statement.text)))
            engine.views[name] = statement.text
        return {}

    # -- receipts ----------------------------------------------------------------------------------------------------

    def part(self, message: Message, grant: Grant) -> Answer:
        """Let a snapshot go and keep this catalyst's part of the receipt."""
        held = self._let_go(message, grant)
        part = as_part(self._receipt(message, held), _receipt_id(message))
        return {"receipt": seal_and_save(self._engine.ledger, part).to_json()}

    def whole(self, message: Message, grant: Grant) -> Answer:
        """Let a snapshot go and issue the receipt of the whole answer, with the parts that other catalysts have kept."""
        parts = [_part(record) for record in message.listed("parts")[:_PARTS_MAX]]
        asked_us = message.number("asked")
        held = self._let_go(message, grant)
        # It was asked by the clock that is ahead of the others, which need not be ours.
        latest_us = held.snapshot.asked_us + self._engine.settings.clock_skew_s * 1e6
        if not held.snapshot.accuracy.cut_us <= asked_us <= latest_us:
            raise BadMessage(reason="the time of the question is not possible")
        receipt = joined(self._receipt(message, held), parts, receipt_id=_receipt_id(message), asked_us=asked_us)
        if message.header.get("late") is True:
            receipt = replace(receipt, late=True)  # a cut that was taken lower for all of them has no late sources any more
        return {"receipt": seal_and_save(self._engine.ledger, receipt).to_json()}

    def _let_go(self, message: Message, grant: Grant) -> Held:
        held = self._held.get(message.text("snapshot"))
        if held.grant != grant.name:
            raise BadMessage(reason="the snapshot belongs to somebody else")
        return self._held.for_receipt(held, message)

    def _receipt(self, message: Message, held: Held) -> Receipt:
        # The exact time was chosen by the client for all catalysts; only its user knows whether one was asked for.
        contract = held.contract if message.flag("as_of") else replace(held.contract, as_of_us=None)
        rows = message.number("rows")
        if rows < 0:
            raise BadMessage(reason="a count is negative")
        parameters = tuple(typed(text, str, what="a parameter") for text in message.listed("parameters"))
        return receipt_of(
            self._engine.ledger, held.snapshot, contract, query=message.text("query"), parameters=parameters, rows=rows, digest=message.text("digest")
        )

    def verify(self, message: Message, _grant: Grant) -> Answer:
        """Verify this catalyst's share of a whole receipt; say which tables and whose sources that is."""
        whole = Receipt.from_json(message.text("receipt"))
        if whole.warehouse_id == self._engine.ledger.warehouse_id:
            self._engine.verifier.refuse_forged(whole)
            share = share_of(whole, self._engine.schemas, None)
            return _verified(share, self._engine.verifier.by_ledger(share, "the seal is ours"), "")
        part = self._engine.ledger.receipt(whole.receipt_id)
        return self._verify_forgotten(whole, message.text("address")) if part is None else self._verify_part(whole, part)

    def _verify_part(self, whole: Receipt, part: Receipt) -> Answer:
        self._engine.verifier.refuse_forged(part)
        address = same_share(part, whole)
        if address is None:
            return _verified(part, Verification(False, "ledger", "the ledger holds another part of this answer"), "")
        return _verified(part, self._engine.verifier.by_ledger(part, "the ledger holds the same part"), address)

    def _verify_forgotten(self, whole: Receipt, address: str) -> Answer:
        """Check a part that the ledger has forgotten by what is known now."""
        share = stripped(whole, self._engine.schemas, address)
        open_rows = f"the answer contained uncommitted rows of {share.uncommitted}, which no ledger knows" if share.uncommitted else None
        problem = open_rows or self._engine.verifier.by_what_is_known(share)
        return _verified(share, Verification(problem is None, "ledger", problem or "the part is forgotten; its cut agrees with what is known"), address)


def _verified(share: Receipt, verification: Verification, address: str) -> Answer:
    return {"verification": asdict(verification), "tables": [table.name for table in share.tables], "address": address}


def _part(record: object) -> tuple[str, Receipt]:
    part = Message(typed(record, dict, what="a part"))
    return part.text("address"), Receipt.from_json(part.text("receipt"))


def _receipt_id(message: Message) -> str:
    receipt_id = message.text("receipt")
    if len(receipt_id) != 32 or not set(receipt_id) <= set("0123456789abcdef"):
        raise BadMessage(reason="the id of a receipt has 32 hexadecimal digits")
    return receipt_id
