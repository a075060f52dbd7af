"""The law of the commit trace: a note that was cut short anywhere never hides the one before, and never shows half."""

import struct
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from righttime.ledger.trace import CommitTrace

NOTES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 3)), max_size=6)


@given(steps=NOTES, reopened=st.booleans(), stores=st.integers(0, 8), time_us=st.integers(0, 3), rows=st.integers(0, 3))
def test_a_note_cut_short_at_any_store_leaves_the_last_whole_one(
    steps: list[tuple[int, int, int]], reopened: bool, stores: int, time_us: int, rows: int
) -> None:
    """A record is written as: four words zeroed, then four words stored, in order. After any number of these stores the reader gets old or new."""
    with tempfile.TemporaryDirectory() as folder:
        trace = CommitTrace.open(Path(folder))
        slot, number, last = trace.slot("till"), 0, None
        for step, *note in steps:
            number += step
            trace.record(slot, number, *note)
            last = (number, *note)

        if reopened:
            trace = CommitTrace.open(Path(folder))
        words = [0, 0, 0, 0, number + 1, time_us, rows, number + 1][:stores]
        for place, word in enumerate(words):
            struct.pack_into("@q", trace._map, trace._next_at[slot] + 8 * (place % 4), word)

        expected = (number + 1, time_us, rows) if stores == 8 else last
        for reader in (trace, CommitTrace.open(Path(folder))):
            assert reader.read() == ({} if expected is None else {"till": expected})
