"""The key index: for each key of a stream the row that is alive under it, looked up and changed many at a time.

In: 128-bit words of keys; what is known of their living rows.
Out: entries of keys, and the columns of entries.
Promise: no Python per row. A key that died keeps its entry, until most are dead and entries are packed.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from righttime.changes.hashing import Words

Numbers = npt.NDArray[np.int64]
_EMPTY = -1
_Column = TypeVar("_Column", Numbers, Words)


class KeyIndex:
    """A hash table with open addressing over arrays; `seq` 0 says that no row is alive."""

    def __init__(self) -> None:
        self._slots = np.full(1024, _EMPTY, dtype=np.int64)
        self._used = 0
        self._keys: Words = np.empty((512, 2), dtype=np.uint64)
        self.images: Words = np.empty((512, 2), dtype=np.uint64)
        self.since: Numbers = np.empty(512, dtype=np.int64)
        self.ordinal: Numbers = np.empty(512, dtype=np.int64)
        self.seq: Numbers = np.empty(512, dtype=np.int64)

    def living(self) -> int:
        """Return how many keys have a living row."""
        return int(np.count_nonzero(self.seq[: self._used]))

    def find(self, keys: Words) -> Numbers:
        """Return the entry of each key's living row, -1 if there is none."""
        entries = self._entries(keys)
        entries[(entries >= 0) & (self.seq[entries] == 0)] = _EMPTY
        return entries

    def put(self, keys: Words, *, images: Words, since: Numbers, ordinal: Numbers, seq: Numbers) -> None:
        """Set what is alive under some keys, all different; seq 0: nothing."""
        self._reserve(len(keys))
        entries = self._entries(keys)
        new = np.flatnonzero(entries < 0)
        if len(new):
            entries[new] = np.arange(self._used, self._used + len(new))
            self._keys[entries[new]] = keys[new]
            self._used += len(new)
            self._place(entries[new])
        self.images[entries] = images
        self.since[entries] = since
        self.ordinal[entries] = ordinal
        self.seq[entries] = seq

    def _entries(self, keys: Words) -> Numbers:
        mask = np.uint64(len(self._slots) - 1)
        found = np.full(len(keys), _EMPTY, dtype=np.int64)
        searching = np.arange(len(keys))
        slots = (keys[:, 0] & mask).astype(np.int64)
        while len(searching):
            entries = self._slots[slots]
            taken = entries >= 0
            same = taken & (self._keys[entries] == keys[searching]).all(axis=1)
            found[searching[same]] = entries[same]
            further = taken & ~same
            searching, slots = searching[further], (slots[further] + 1) & int(mask)
        return found

    def _place(self, entries: Numbers) -> None:
        mask = len(self._slots) - 1
        slots = (self._keys[entries, 0] & np.uint64(mask)).astype(np.int64)
        while len(entries):
            free = self._slots[slots] < 0
            # Of several entries that want one free slot, the last one written has it; the others go on.
            self._slots[slots[free]] = entries[free]
            left = self._slots[slots] != entries
            entries, slots = entries[left], (slots[left] + 1) & mask

    def _reserve(self, more: int) -> None:
        if self._used + more > len(self.seq):
            if self.living() < self._used // 2:
                self._forget_dead()
            if self._used + more > len(self.seq):
                self._widen(max(2 * len(self.seq), self._used + more))
        if 2 * (self._used + more) > len(self._slots):
            self._slots = np.full(1 << int(4 * (self._used + more) - 1).bit_length(), _EMPTY, dtype=np.int64)
            self._place(np.arange(self._used))

    def _forget_dead(self) -> None:
        alive = np.flatnonzero(self.seq[: self._used])
        for column in (self._keys, self.images, self.since, self.ordinal, self.seq):
            column[: len(alive)] = column[alive]
        self._used = len(alive)
        self._slots.fill(_EMPTY)
        self._place(np.arange(self._used))

    def _widen(self, capacity: int) -> None:
        self._keys, self.images = self._widened(self._keys, capacity), self._widened(self.images, capacity)
        self.since, self.ordinal, self.seq = (self._widened(numbers, capacity) for numbers in (self.since, self.ordinal, self.seq))

    def _widened(self, column: _Column, capacity: int) -> _Column:
        wide = np.empty((capacity, *column.shape[1:]), dtype=column.dtype)
        wide[: self._used] = column[: self._used]
        return wide
