"""A producer over a wire that loses messages, answers and sessions: what is acknowledged is there once, what is rolled back is not, and nothing twice."""

import itertools
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import righttime as rt
from righttime.catalyst.producer import Producer
from righttime.errors import CommitUnknown, NotStored, ServiceUnreachable
from righttime.flight.access import READ, WRITE, Grant
from righttime.flight.desk import Desk
from righttime.flight.failures import failure_of
from righttime.flight.frames import Message, read_frame, write_frame
from righttime.flight.session import RemoteSession

BYTES_MAX = 1 << 24
GRANT = Grant("tester", frozenset({READ, WRITE}))
# Never arrived; arrived, but the answer did not; the service had forgotten the session; it forgot it after carrying the message out.
FAULTS = ("never", "unheard", "forgotten", "forgotten then unheard", "unheard then forgotten")
INTERRUPTS = ("ctrl-c", "ctrl-c meanwhile")


class Wire:
    """Brings messages to a desk of this process; faults are for the thread that made it, one for each message."""

    message_bytes_max = BYTES_MAX
    target = "the wire"

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._thread = threading.get_ident()
        self.faults: list[str | None] = []

    def call(self, action: str, header: Mapping[str, Any] | None = None, parts: Sequence[Any] = (), **options: Any) -> Message:
        return self.send(action, write_frame(header or {}, parts, bytes_max=BYTES_MAX), **options)

    def send(self, action: str, frame: pa.Buffer, **_: Any) -> Message:
        return self._carried(lambda: self._desk.answer(action, frame, GRANT))

    def upload(self, header: Mapping[str, Any], schema: pa.Schema, batches: Callable[[], Iterable[pa.RecordBatch]]) -> Message:
        return self._carried(lambda: self._desk.upload(write_frame(header), GRANT, batches()))

    def _carried(self, carry: Callable[[], pa.Buffer]) -> Message:
        fault = self.faults.pop(0) if self.faults and threading.get_ident() == self._thread else None
        if fault is None:
            return _read(carry())
        if fault == "never":
            raise self._away()
        if fault == "ctrl-c":
            raise KeyboardInterrupt
        if fault.startswith("forgotten"):
            self._forget()
        answer = carry()
        if fault == "not stored" and "published" in read_frame(answer, bytes_max=BYTES_MAX).header:
            raise NotStored(number=1, source="till", reason="cut by the test")
        if fault.endswith("then forgotten"):
            self._forget()
        if fault == "ctrl-c meanwhile":
            raise KeyboardInterrupt
        if "unheard" in fault:
            raise self._away()
        return _read(answer)

    def _away(self) -> ServiceUnreachable:
        return ServiceUnreachable(target=self.target, waited_s=0.0, reason="cut by the test")

    def _forget(self) -> None:
        for session in self._desk.loading.sessions.all():
            self._desk.loading.sessions.end(session, why="forgotten by the test")


def _read(answer: pa.Buffer) -> Message:
    message = read_frame(answer, bytes_max=BYTES_MAX)
    if "error" in message.header:
        raise failure_of(message.header["error"])
    return message


class NoRenewals:
    def add_session(self, _: str) -> None: ...
    def remove(self, _: str) -> None: ...


@dataclass
class Loader:
    """A program that loads, and what it may expect."""

    load: Producer
    wire: Wire
    table: str
    durability: Any
    open: list[int] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)  # what a commit whose outcome is not known had
    there: set[int] = field(default_factory=set)
    perhaps: list[frozenset[int]] = field(default_factory=list)  # rolled back in doubt: all or nothing
    next_id: int = 1

    def insert(self) -> None:
        self.load.insert(self.table, (self.next_id, 1))
        self.open.append(self.next_id)
        self.next_id += 1

    def look(self) -> None:
        with suppress(CommitUnknown, ServiceUnreachable, KeyboardInterrupt):
            self.load.sql("SELECT 1")

    def commit(self, batch_id: str | None = None) -> None:
        try:
            self.load.commit(durability=self.durability, batch_id=batch_id)
        except (CommitUnknown, KeyboardInterrupt):
            self.tried = self.tried or list(self.open)  # the first that nobody answered is settled before another is sent
        except ServiceUnreachable:
            return
        else:
            self.there |= set(self.open)
            self.open, self.tried = [], []

    def roll_back(self) -> None:
        try:
            self.load.rollback()
        except KeyboardInterrupt:
            self.wire.faults = []
            self.load.rollback()
        if self.tried:
            self.perhaps.append(frozenset(self.tried))
        self.open, self.tried = [], []

    def judge(self, found: list[int]) -> None:
        assert len(found) == len(set(found)), "twice"
        assert self.there <= set(found), "lost"
        rest = set(found) - self.there
        for attempt in self.perhaps:
            assert attempt <= rest or not attempt & rest, "half"
            rest -= attempt
        assert not rest, "never committed"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "look", "commit", "commit", "roll back"]),
        st.lists(st.sampled_from([None, *FAULTS[:2], *INTERRUPTS]), max_size=3),
        st.lists(st.sampled_from([None, *FAULTS, *INTERRUPTS]), max_size=4).filter(lambda faults: sum("forgotten" in (fault or "") for fault in faults) < 3),
    ),
    min_size=3,
    max_size=14,
)


@pytest.fixture(scope="module")
def shop() -> Iterable[tuple[rt.Warehouse, Desk]]:
    with tempfile.TemporaryDirectory() as folder, rt.open(Path(folder) / "wh") as wh:
        wh.create_table("plain", "id INT, n INT")
        wh.create_table("tried", "id INT, n INT", keys=["id"], unique=True)
        yield wh, Desk(wh, wh._writer("test"))


NAMES = itertools.count(1)


def loader(shop: tuple[rt.Warehouse, Desk], *, lazy: bool = False, table: str = "plain", durability: str | None = None, past: bool = False) -> Loader:
    """Give a producer of its own source; `past` sends all rows past the catalyst's memory."""
    wh, desk = shop
    wire = Wire(desk)
    name = next(NAMES)
    engine = wh._writer("test")

    def open_session(source: str, *, policy: str) -> RemoteSession:
        return RemoteSession(wire, NoRenewals(), schemas=engine.schemas, source=source, policy=policy)  # type: ignore[arg-type]

    bounds = engine.port.settings.model_copy(update={"bypass_bytes": 1}) if past else engine.port.settings
    port = replace(engine.port, settings=bounds, open_session=open_session, own_query=lambda query, **_: None, producers_changed=lambda: None)
    load = Producer(f"till_{name}", policy=rt.OnDemand() if lazy else rt.Immediate(), port=port)
    return Loader(load, wire, table, durability, next_id=1 + 1000 * name)


def ids(shop: tuple[rt.Warehouse, Desk], one: Loader) -> list[int]:
    """Return what is in the table of this loader's rows."""
    first = one.next_id - one.next_id % 1000
    return sorted(row[0] for row in shop[0].read(one.table).rows() if first <= row[0] < first + 1000)


@given(
    steps=STEPS,
    lazy=st.booleans(),
    table=st.sampled_from(["plain", "tried"]),
    durability=st.sampled_from([None, None, "log"]),
    batches=st.booleans(),
    past=st.sampled_from([False, False, False, True]),
)
@settings(max_examples=150)
def test_whatever_the_wire_does_rows_are_there_once_or_not_at_all(
    shop: tuple[rt.Warehouse, Desk], steps: list[Any], lazy: bool, table: str, durability: str | None, batches: bool, past: bool
) -> None:
    one = loader(shop, lazy=lazy, table=table, durability=durability, past=past)
    batch = 0
    for action, few, many in steps:
        one.wire.faults = list(few if lazy else many)  # what a lazy producer owes to a session that is forgotten is lost, and said to be
        match action:
            case "insert":
                one.insert()
            case "look":
                one.look()
            case "roll back":
                one.roll_back()
            case _:
                one.commit(f"{one.load.source}-{batch}" if batches else None)
                batch += not one.open
        one.wire.faults = []
    for _ in range(3):  # a loader that does as the error says
        one.commit()
        if not one.open:
            break
    else:
        one.roll_back()
    one.load.close()
    one.judge(ids(shop, one))
    assert shop[0].losses() == []


def test_a_batch_after_a_restart_brings_what_was_read_back_before(shop: tuple[rt.Warehouse, Desk]) -> None:
    """The rows were staged for a look, and the session is gone: they are staged again, not rolled back."""
    one = loader(shop)
    one.insert()
    one.look()
    one.wire.faults = ["forgotten"]
    one.commit("b")
    assert (ids(shop, one), one.open) == ([one.next_id - 1], [])
    one.load.close()


def test_what_is_rolled_back_while_nobody_answers_is_not_taken_for_what_comes_after(shop: tuple[rt.Warehouse, Desk]) -> None:
    one = loader(shop)
    one.insert()
    one.wire.faults = ["never", "never"]
    one.commit()
    one.roll_back()
    one.wire.faults = []
    one.insert()
    one.commit()
    assert ids(shop, one) == [one.next_id - 1]
    one.load.close()


def test_a_transaction_that_grew_after_an_unknown_durable_commit_is_refused(shop: tuple[rt.Warehouse, Desk]) -> None:
    """The rows were staged before, so counting what the commit brings along would not show that there are more."""
    one = loader(shop, durability="log")
    one.insert()
    one.wire.faults = [None, "unheard"]
    one.commit()
    one.insert()
    with pytest.raises(CommitUnknown, match="did happen"):
        one.load.commit(durability="log")
    one.roll_back()
    assert ids(shop, one) == [one.next_id - 2]
    one.load.close()


@pytest.mark.parametrize(("table", "durability", "fault"), [("tried", None, "unheard"), ("plain", "log", "not stored")])
def test_what_is_committed_is_not_staged_again_for_a_new_session(shop: tuple[rt.Warehouse, Desk], table: str, durability: str | None, fault: str) -> None:
    one = loader(shop, table=table, durability=durability)
    one.insert()
    one.wire.faults = [None, fault]
    if fault == "not stored":
        with pytest.raises(NotStored):
            one.commit()
    else:
        one.commit()
        one.commit()
    assert not one.load.in_transaction
    one.wire.faults = ["forgotten"]
    one.insert()
    one.commit()
    assert ids(shop, one) == [one.next_id - 2, one.next_id - 1]
    one.load.close()


def test_a_commit_in_memory_is_not_passed_off_as_a_durable_one(shop: tuple[rt.Warehouse, Desk]) -> None:
    one = loader(shop)
    one.insert()
    one.wire.faults = ["unheard"]
    one.commit()
    with pytest.raises(CommitUnknown, match="less durable"):
        one.load.commit(durability="log")
    one.commit()
    assert ids(shop, one) == [one.next_id - 1]
    one.load.close()


def test_a_lazy_commit_that_grew_in_doubt_is_delivered_as_it_was_made(shop: tuple[rt.Warehouse, Desk]) -> None:
    one = loader(shop, lazy=True)
    one.insert()
    one.wire.faults = ["unheard"]
    one.commit()
    one.insert()
    one.commit()  # refused: the first did happen
    one.roll_back()
    one.insert()
    one.commit()
    assert ids(shop, one) == [one.next_id - 3, one.next_id - 1]
    one.load.close()
