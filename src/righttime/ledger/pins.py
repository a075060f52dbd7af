"""Pins: what the queries of this process are reading, so that nobody collects it under them.

In: pins and releases from queries, with the time passed in.
Out: the versions of each table that must stay, to the collector.
Promise: a version that a live pin holds is never left out; a pin ends by release or by its time, never by another pin.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from righttime.errors import TooManySnapshots


@dataclass(frozen=True, slots=True)
class Pin:
    """One query's claim on a state and on the table versions in it, until `expires_s`."""

    state_number: int
    versions: Mapping[str, int]
    expires_s: float


class PinTable:
    """The live pins of one process; pure, so its owner guards it when several threads call."""

    def __init__(self, *, pins_max: int) -> None:
        self._pins_max = pins_max
        self._pins: dict[int, Pin] = {}
        self._last_id = 0

    def pin(self, state_number: int, *, versions: Mapping[str, int], expires_s: float, now_s: float) -> int:
        """Hold `versions` (table -> version) until release or `expires_s`; return the id of the pin."""
        self._expire(now_s=now_s)
        if len(self._pins) >= self._pins_max:
            raise TooManySnapshots(held=self._pins_max)
        self._last_id += 1
        self._pins[self._last_id] = Pin(state_number, dict(versions), expires_s)
        return self._last_id

    def renew(self, pin_id: int, *, expires_s: float, now_s: float) -> bool:
        """Hold on until `expires_s`; return False if the pin has ended, because what it held may be gone."""
        if not self.is_live(pin_id, now_s=now_s):
            return False
        self._pins[pin_id] = replace(self._pins[pin_id], expires_s=expires_s)
        return True

    def release(self, pin_id: int) -> None:
        """End a pin; one that has ended already is no error."""
        self._pins.pop(pin_id, None)

    def is_live(self, pin_id: int, *, now_s: float) -> bool:
        """Say whether what the pin holds is certainly still there."""
        self._expire(now_s=now_s)
        return pin_id in self._pins

    def versions_pinned(self, *, now_s: float) -> dict[str, set[int]]:
        """Return, for each table, the versions that live pins hold."""
        self._expire(now_s=now_s)
        pinned: dict[str, set[int]] = {}
        for pin in self._pins.values():
            for table, version in pin.versions.items():
                pinned.setdefault(table, set()).add(version)
        return pinned

    def states_pinned(self, *, now_s: float) -> set[int]:
        """Return the numbers of the states that live pins hold."""
        self._expire(now_s=now_s)
        return {pin.state_number for pin in self._pins.values()}

    def _expire(self, *, now_s: float) -> None:
        # Removed for good, not only skipped: an ended pin must stay ended even if a caller's clock reads earlier next time.
        for pin_id in [pin_id for pin_id, pin in self._pins.items() if pin.expires_s <= now_s]:
            del self._pins[pin_id]
