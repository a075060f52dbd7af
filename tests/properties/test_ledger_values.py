"""Laws of the ledger's values: texts come back as the values they were, seals hold, pins hold."""

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from righttime.changes.position import Commit, SourceCut
from righttime.ledger.pins import PinTable
from righttime.ledger.receipts import HotInterval, Receipt, StreamCommit, StreamReceipt, TableReceipt
from righttime.ledger.state import LaneState, LogPosition, State, TableState

NAMES = st.text(max_size=8)
NUMBERS = st.integers(0, 2**63 - 1)
SECONDS = st.floats(min_value=0, max_value=1e9, allow_nan=False)

COMMITS = st.builds(Commit, NUMBERS, NUMBERS)
LANES = st.builds(LaneState, NAMES, NUMBERS, NUMBERS, NUMBERS)
TABLES = st.builds(TableState, NAMES, NUMBERS, NUMBERS, NUMBERS, st.lists(LANES, max_size=3).map(tuple))
LOG_POSITIONS = st.builds(LogPosition, NUMBERS, NUMBERS)
STATES = st.builds(
    State,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.lists(TABLES, max_size=4).map(lambda tables: {table.name: table for table in tables}),
    st.dictionaries(NAMES, COMMITS, max_size=4),
    LOG_POSITIONS,
    LOG_POSITIONS,
)
HOT = st.builds(HotInterval, NAMES, NUMBERS, NUMBERS, NUMBERS)
STREAM_COMMITS = st.builds(StreamCommit, NUMBERS, NUMBERS, st.none() | NAMES)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "receipt_id": NAMES,
    "warehouse_id": NAMES,
    "state": NUMBERS,
    "query": st.text(max_size=20),
    "parameters": st.lists(NAMES, max_size=3).map(tuple),
    "tables": st.lists(st.builds(TableReceipt, NAMES, NUMBERS, NUMBERS, st.lists(HOT, max_size=2).map(tuple), NUMBERS), max_size=3).map(tuple),
    "cut": st.lists(st.builds(SourceCut, NAMES, COMMITS, st.none() | COMMITS), max_size=3).map(tuple),
    "cut_us": NUMBERS,
    "asked_s": st.none() | SECONDS,
    "given_s": SECONDS,
    "late": st.booleans(),
    "waited_s": SECONDS,
    "rows": NUMBERS,
    "digest": NAMES,
    "issued_us": NUMBERS,
    "uncommitted": NAMES,
    "streams": st.lists(st.builds(StreamReceipt, NAMES, NAMES, st.none() | STREAM_COMMITS, st.none() | STREAM_COMMITS), max_size=2).map(tuple),
}
RECEIPTS = st.builds(Receipt, **FIELDS)


@given(state=STATES)
def test_a_state_comes_back_from_json_equal(state: State) -> None:
    """from_json is the inverse of to_json."""
    assert State.from_json(state.to_json()) == state


@given(receipt=RECEIPTS, key=st.binary(min_size=1, max_size=40))
def test_a_receipt_comes_back_from_json_equal_and_sealed(receipt: Receipt, key: bytes) -> None:
    """The road through JSON changes neither the receipt nor the validity of its seal."""
    again = Receipt.from_json(receipt.sealed(key).to_json())

    assert again == receipt.sealed(key)
    assert again.is_sealed_by(key)


def test_the_strategy_covers_every_field_under_the_seal() -> None:
    """A field added to Receipt must be added here, or the next law would not cover it."""
    assert FIELDS.keys() == {field.name for field in dataclasses.fields(Receipt)} - {"seal", "_verifier"}


@given(receipt=RECEIPTS, name=st.sampled_from(sorted(FIELDS)), draw=st.data())
def test_a_receipt_with_any_one_field_changed_is_refused(receipt: Receipt, name: str, draw: st.DataObject) -> None:
    """I8: no field can be changed under the seal."""
    sealed = receipt.sealed(b"key")
    other = draw.draw(FIELDS[name].filter(lambda value: value != getattr(receipt, name)))

    assert not dataclasses.replace(sealed, **{name: other}).is_sealed_by(b"key")


@given(receipt=RECEIPTS, at=st.integers(0, 63))
def test_a_changed_seal_is_refused(receipt: Receipt, at: int) -> None:
    """Every character of the seal counts."""
    seal = receipt.sealed(b"key").seal
    other = seal[:at] + ("0" if seal[at] != "0" else "1") + seal[at + 1 :]

    assert not dataclasses.replace(receipt, seal=other).is_sealed_by(b"key")


VERSIONS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 5), max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("pin"), VERSIONS, st.integers(1, 10)),
    st.tuples(st.just("release"), st.integers(1, 12)),
    st.tuples(st.just("renew"), st.integers(1, 12), st.integers(1, 10)),
    st.tuples(st.just("wait"), st.integers(1, 5)),
)


@given(steps=st.lists(STEPS, max_size=12))
def test_pinned_versions_are_exactly_those_of_the_live_pins(steps: list[Any]) -> None:
    """I5: whatever was pinned, released, renewed and waited for, no version of a live pin is left out, and none of an ended one is kept."""
    pins = PinTable(pins_max=20)
    model: dict[int, tuple[dict[str, int], float]] = {}
    now_s = 0.0
    for step, *rest in steps:
        if step == "pin":
            model[pins.pin(1, versions=rest[0], expires_s=now_s + rest[1], now_s=now_s)] = (rest[0], now_s + rest[1])
        elif step == "release":
            pins.release(rest[0])
            model.pop(rest[0], None)
        elif step == "renew":
            assert pins.renew(rest[0], expires_s=now_s + rest[1], now_s=now_s) == (rest[0] in model)
            if rest[0] in model:
                model[rest[0]] = (model[rest[0]][0], now_s + rest[1])
        else:
            now_s += rest[0]
            model = {pin: (versions, expires_s) for pin, (versions, expires_s) in model.items() if expires_s > now_s}

        pinned = {(table, version) for table, versions in pins.versions_pinned(now_s=now_s).items() for version in versions}
        assert pinned == {item for versions, _ in model.values() for item in versions.items()}
