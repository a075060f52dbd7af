"""What an append does to a stream with keys: which changes are taken, what they end, and what is stored.

In: a `Given` and the key index.
Out: a `Plan`: steps to store with what each ends, and the faults of changes that are not taken.
Promise: nothing is changed here; a plan that is not carried out leaves no trace.
"""

from dataclasses import dataclass

import numpy as np

from righttime.changes.hashing import Words
from righttime.errors.flows import ImageDiffers, RowAbsent, RowExists
from righttime.queues.declared import DELETE, INSERT
from righttime.queues.events import NOBODY, Before, Steps, before, idle, steps_of, wrong
from righttime.queues.index import KeyIndex, Numbers
from righttime.queues.intake import Codes, Fault, Flags, Given


@dataclass(frozen=True, slots=True)
class Plan:
    """Stored rows in order: for each its row of the append, and the row or stored change that its image is taken from."""

    ops: Codes
    row: Numbers  # of the append, that asked for it
    given_row: Numbers  # that has its image; -1: the image is that of stored change `stored_seq`
    stored_seq: Numbers
    ended_step: Numbers  # which stored row of this plan a row ends; -1: none of them
    since: Numbers  # of the row that is ended, if it is a stored one; else 0
    ordinal: Numbers
    ending: "Ending | None" = None  # None: the stream has no keys


@dataclass(frozen=True, slots=True)
class Ending:
    """What is alive under each touched key after the append: place of its last row in the plan, and whether that row lives."""

    keys: Words
    images: Words
    places: Numbers
    alive: Flags


def judge(given: Given, index: KeyIndex, *, sift: bool) -> Plan:
    """Judge all changes against the index; with `sift` changes at fault are left out, without it all behind the first; faults are noted."""
    if not given.faults and (new := _plan_new(given, index)) is not None:
        return new
    steps = steps_of(given, given.sound() if sift else given.before_faults())
    found = before(steps, index)
    bad = wrong(steps, found)
    if bad.any():
        if sift:
            _sift(given, steps, found, bad, index)
        else:
            first = int(np.argmax(bad))
            given.faults.setdefault(int(steps.rows[first]), _first_fault(steps, found, first))
        steps = steps_of(given, given.sound() if sift else given.before_faults())
        found = before(steps, index)
    nothing = idle(steps, found)
    if nothing.any():
        steps = steps.only(~nothing)
        found = before(steps, index)
    return _plan(steps, found, index)


def _plan_new(given: Given, index: KeyIndex) -> Plan | None:
    """Return the plan of rows that are all new, each under a key of its own: most appends are that, and need no more looking at. None if they are not."""
    assert given.key_words is not None and given.image_words is not None
    keys, count = given.key_words, len(given.ops)
    firsts = np.sort(keys[:, 0])
    if (given.ops != INSERT).any() or (firsts[1:] == firsts[:-1]).any() or (index.find(keys) >= 0).any():
        return None
    rows, nothing = np.arange(count), np.zeros(count, dtype=np.int64)
    ending = Ending(keys, given.image_words, rows, np.ones(count, dtype=np.bool_))
    return Plan(given.ops, rows, rows, nothing, np.full(count, NOBODY, dtype=np.int64), nothing, nothing, ending)


def plan_inserts(given: Given) -> Plan:
    """Return the plan of a stream without keys: every sound row is stored as it is."""
    rows = np.flatnonzero(given.sound())
    nothing = np.zeros(len(rows), dtype=np.int64)
    return Plan(given.ops[rows], rows, rows, nothing, np.full(len(rows), NOBODY, dtype=np.int64), nothing, nothing)


def _sift(given: Given, steps: Steps, found: Before, bad: Flags, index: KeyIndex) -> None:
    """Find out which changes are at fault once those before them are left out; one by one, but only under keys that have a fault."""
    places = np.flatnonzero(_concerned(steps, found, bad))
    alive: dict[bytes, bytes | None] = {}
    for unit in np.split(places, np.flatnonzero(np.diff(steps.units[places])) + 1):
        tried: dict[bytes, bytes | None] = {}
        for place in unit.tolist():
            key = steps.keys[place].tobytes()
            if key not in alive:
                entry = int(index.find(steps.keys[place : place + 1])[0])
                alive[key] = None if entry < 0 else index.images[entry].tobytes()
            now = tried.get(key, alive[key])
            fault = _fault(steps, place, now)
            if fault is not None:
                given.faults[int(steps.rows[place])] = fault
                break
            tried[key] = steps.images[place].tobytes() if steps.begins[place] else None
        else:
            alive.update(tried)


def _first_fault(steps: Steps, found: Before, place: int) -> Fault:
    fault = _fault(steps, place, found.images[place].tobytes() if found.alive[place] else None)
    assert fault is not None
    return fault


def _fault(steps: Steps, place: int, now: bytes | None) -> Fault | None:
    """Return what is wrong with a step if the row `now` is alive under its key."""
    if steps.begins[place]:
        return None if now is None else Fault(RowExists, "a row with this key is alive already")
    if now is None:
        what = "delete" if steps.ops[place] == DELETE else "update"
        return Fault(RowAbsent, f"the {what} is of a row that is not there")
    if steps.known[place] and steps.images[place].tobytes() != now:
        return Fault(ImageDiffers, "the row before the change is not the one that is alive")
    return None


def _concerned(steps: Steps, found: Before, bad: Flags) -> Flags:
    """Return the steps under keys with a fault, and under keys that changes have in common with those."""
    groups = np.empty(len(steps), dtype=np.int64)
    groups[found.order] = np.cumsum(np.append(False, found.lasts[:-1]))
    concerned = np.isin(groups, groups[bad])
    while True:
        wider = np.isin(groups, groups[np.isin(steps.units, steps.units[concerned])])
        if (wider == concerned).all():
            return concerned
        concerned = wider


def _plan(steps: Steps, found: Before, index: KeyIndex) -> Plan:
    stored = np.where(steps.begins, NOBODY, found.entry)
    from_store = stored >= 0
    seq, since, ordinal = (np.where(from_store, column[stored], 0) for column in (index.seq, index.since, index.ordinal))
    ended = np.where(steps.begins, NOBODY, found.step)
    # An image that was not given is that of the row it ends, here or in the store. A chain of such images cannot be: a row that begins is always given.
    rows = np.where(steps.known, steps.rows, np.where(ended >= 0, steps.rows[ended], NOBODY))
    last = found.order[found.lasts]
    ending = Ending(steps.keys[last], steps.images[last], last, steps.begins[last])
    return Plan(steps.ops, steps.rows, rows, np.where(rows < 0, seq, 0), ended, since, ordinal, ending)
