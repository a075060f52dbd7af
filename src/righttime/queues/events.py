"""The steps of an append: each living row that ends and each row that begins, in order, with what is alive before each step.

In: the sound changes of one append, and the key index.
Out: `Steps`, and what was alive under its key before each of them: a row of this append, a stored one, or nothing.
Promise: pure; array work only. Every step is judged as if all steps before it were taken.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from righttime.changes.hashing import Words
from righttime.queues.declared import DELETE, INSERT, POSTIMAGE, PREIMAGE
from righttime.queues.index import KeyIndex, Numbers
from righttime.queues.intake import Codes, Flags, Given

NOBODY = -1
_Values = TypeVar("_Values", Numbers, Words)


@dataclass(frozen=True, slots=True)
class Steps:
    """One array place per step. A lone postimage is two steps: the living row ends, the new one begins."""

    rows: Numbers  # the row of the append that the step comes from
    units: Numbers
    ops: Codes  # as stored: an update that changes the key is a delete and an insert
    begins: Flags
    known: Flags  # the image is given; else it is the living row's
    keys: Words
    images: Words

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, kept: Flags) -> "Steps":
        """Return some of the steps."""
        return Steps(*(getattr(self, name)[kept] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Before:
    """What is alive before each step: `step` is the step of this append that began it, `entry` its entry in the index; both -1: nothing."""

    step: Numbers
    entry: Numbers
    images: Words
    order: Numbers  # steps sorted by key, in their order
    lasts: Flags  # in that order, the last step of each key

    @property
    def alive(self) -> Flags:
        return (self.step >= 0) | (self.entry >= 0)


def steps_of(given: Given, sound: Flags) -> Steps:
    """Return the steps of all changes without fault."""
    assert given.key_words is not None and given.image_words is not None and given.by_key_only is not None
    rows = np.flatnonzero(sound)
    ops, units = given.ops[rows], given.units[rows]
    paired = np.zeros(len(rows), dtype=np.bool_)
    paired[1:] = (ops[1:] == POSTIMAGE) & (units[1:] == units[:-1])
    moved = np.zeros(len(rows), dtype=np.bool_)
    keys = given.key_words[rows]
    moved[1:] = paired[1:] & (keys[1:] != keys[:-1]).any(axis=1)
    ops = np.where(moved, INSERT, np.where(np.append(moved[1:], False), DELETE, ops)).astype(np.int8)
    lone = (ops == POSTIMAGE) & ~paired
    times = 1 + lone.astype(np.int64)
    derived = np.zeros(int(times.sum()), dtype=np.bool_)
    derived[(np.cumsum(times) - times)[lone]] = True
    ops = np.repeat(ops, times)
    ops[derived] = PREIMAGE
    return Steps(
        rows=np.repeat(rows, times),
        units=np.repeat(units, times),
        ops=ops,
        begins=(ops == INSERT) | (ops == POSTIMAGE),
        known=~(derived | np.repeat(given.by_key_only[rows], times)),
        keys=np.repeat(keys, times, axis=0),
        images=np.repeat(given.image_words[rows], times, axis=0),
    )


def before(steps: Steps, index: KeyIndex) -> Before:
    """Return what is alive before each step: found in the steps before it, for the first step of a key in the index."""
    order = by_key(steps.keys)
    keys = steps.keys[order]
    firsts = np.ones(len(order), dtype=np.bool_)
    firsts[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    entry, step = np.full(len(order), NOBODY, dtype=np.int64), np.full(len(order), NOBODY, dtype=np.int64)
    images = np.zeros((len(order), 2), dtype=np.uint64)
    entry[firsts] = index.find(keys[firsts])
    stored = entry >= 0
    images[stored] = index.images[entry[stored]]
    follows = np.flatnonzero(~firsts)
    previous = order[follows - 1]
    begun = steps.begins[previous]
    step[follows[begun]] = previous[begun]
    images[follows[begun]] = steps.images[previous[begun]]
    lasts = np.append(firsts[1:], True) if len(order) else firsts
    return Before(_unsorted(step, order), _unsorted(entry, order), _unsorted(images, order), order, lasts)


def _unsorted(values: _Values, order: Numbers) -> _Values:
    result = np.empty_like(values)
    result[order] = values
    return result


def by_key(keys: Words) -> Numbers:
    """Return the places sorted so that equal keys are neighbours in their order."""
    order = np.argsort(keys[:, 0], kind="stable")
    first, second = keys[order, 0], keys[order, 1]
    # The first word nearly always tells keys apart; only where it does not, the second one has to sort.
    if ((first[1:] == first[:-1]) & (second[1:] != second[:-1])).any():
        return np.lexsort((keys[:, 1], keys[:, 0]))
    return order


def wrong(steps: Steps, found: Before) -> Flags:
    """Return which steps cannot be taken: a row that begins where one lives, one that ends where none does or another one."""
    alive = found.alive
    same = ~steps.known | (steps.images == found.images).all(axis=1)
    return np.where(steps.begins, alive, ~(alive & same))


def idle(steps: Steps, found: Before) -> Flags:
    """Return the steps of updates that change nothing."""
    ends = np.flatnonzero(steps.ops == PREIMAGE)
    nothing = ends[(steps.images[ends + 1] == found.images[ends]).all(axis=1)]
    flags = np.zeros(len(steps), dtype=np.bool_)
    flags[nothing] = flags[nothing + 1] = True
    return flags
