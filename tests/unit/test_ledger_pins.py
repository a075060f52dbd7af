"""Pins of one process: bounded, ended by release or time."""

import pytest

from righttime.errors import ContractError
from righttime.ledger.pins import PinTable


def test_a_pin_holds_its_versions_until_release() -> None:
    """Two pins on one table hold both versions; releasing one leaves the other, releasing twice is fine."""
    pins = PinTable(pins_max=4)
    first = pins.pin(1, versions={"sale": 3, "item": 1}, expires_s=10.0, now_s=0.0)
    pins.pin(2, versions={"sale": 4}, expires_s=10.0, now_s=0.0)
    assert pins.versions_pinned(now_s=1.0) == {"sale": {3, 4}, "item": {1}}
    assert pins.states_pinned(now_s=1.0) == {1, 2}

    pins.release(first)
    pins.release(first)

    assert pins.versions_pinned(now_s=1.0) == {"sale": {4}}


def test_an_ended_pin_stays_ended() -> None:
    """After its time a pin holds nothing and cannot be renewed, even by a caller whose time reads earlier."""
    pins = PinTable(pins_max=4)
    pin = pins.pin(1, versions={"sale": 3}, expires_s=10.0, now_s=0.0)
    assert pins.renew(pin, expires_s=20.0, now_s=9.0)
    assert pins.is_live(pin, now_s=19.0)

    assert pins.versions_pinned(now_s=20.0) == {}
    assert not pins.renew(pin, expires_s=30.0, now_s=5.0)


def test_pins_are_bounded_and_a_live_one_is_never_pushed_out() -> None:
    """The pin over the bound is refused; an expired one makes room."""
    pins = PinTable(pins_max=1)
    pins.pin(1, versions={"sale": 3}, expires_s=10.0, now_s=0.0)

    with pytest.raises(ContractError):
        pins.pin(2, versions={"sale": 4}, expires_s=10.0, now_s=1.0)
    assert pins.versions_pinned(now_s=1.0) == {"sale": {3}}

    pins.pin(2, versions={"sale": 4}, expires_s=20.0, now_s=10.0)
    assert pins.versions_pinned(now_s=10.0) == {"sale": {4}}
