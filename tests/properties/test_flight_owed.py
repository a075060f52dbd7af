"""What a lazy producer owes: any history of commits, flushes and repeated flushes leaves exactly what was not delivered."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from righttime.catalyst.messages import Flush
from righttime.changes.position import Commit
from righttime.changes.rows import Chunk
from righttime.errors import BadMessage
from righttime.flight.owed import Owed

TABLES = ("x", "y")


def content(rows: int) -> list[Chunk]:
    return [Chunk(np.zeros((rows, 1), dtype=np.int64))]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12), st.data())
def test_debts_are_what_was_announced_and_not_delivered(commits: list[tuple[int, int]], data: st.DataObject) -> None:
    """The model is a dictionary; flushes go from the oldest on, and any of them may come again."""
    owed = Owed()
    model: dict[str, dict[int, tuple[int, int]]] = {table: {} for table in TABLES}
    sent: list[Flush] = []
    for number, counts in enumerate(commits, 1):
        rows = dict(zip(TABLES, counts, strict=True))
        owed.note(Commit(number, number * 10), rows)
        for table, count in rows.items():
            if count:
                model[table][number * 10] = (number, count)
        if data.draw(st.booleans()):
            table = data.draw(st.sampled_from(TABLES))
            times = sorted(model[table])[: data.draw(st.integers(0, 3))]
            sent.append(Flush(table, [(time, content(model[table][time][1])) for time in times], None))
            _deliver(owed, sent[-1])
            for time in times:
                del model[table][time]
        if data.draw(st.booleans()) and sent:
            _deliver(owed, data.draw(st.sampled_from(sent)))
    left: dict[int, int] = {}
    for entries in model.values():
        for number, count in entries.values():
            left[number] = left.get(number, 0) + count
    losses = owed.losses("s", found_us=1)
    assert {number for loss in losses for number in range(loss.first, loss.last + 1)} == set(left)
    assert (sum(loss.rows for loss in losses), bool(owed), owed.rows) == (sum(left.values()), bool(left), sum(left.values()))


def _deliver(owed: Owed, flush: Flush) -> None:
    fresh = owed.outstanding([flush], now_us=10**6)
    owed.delivered(fresh)


@pytest.mark.parametrize(
    ("flush", "why"),
    [
        (Flush("x", [(20, content(2))], None), "leaves commits out"),
        (Flush("x", [(15, content(1))], None), "leaves commits out"),
        (Flush("x", [(10, content(2))], None), "another number of rows"),
        (Flush("x", [(10, content(1))], None, watermark_us=20), "promises more"),
        (Flush("x", [], None, watermark_us=10**9), "promises more"),
    ],
)
def test_a_flush_that_was_not_announced_so_is_refused(flush: Flush, why: str) -> None:
    """Commits in between, other rows, promises beyond what is known: all refused."""
    owed = Owed()
    owed.note(Commit(1, 10), {"x": 1})
    owed.note(Commit(2, 20), {"x": 2})
    with pytest.raises(BadMessage, match=why):
        owed.outstanding([flush], now_us=10**6)


def test_what_is_left_is_told_by_the_service_itself() -> None:
    """A flush's own word about what is left does not count."""
    owed = Owed()
    owed.note(Commit(1, 10), {"x": 1})
    owed.note(Commit(2, 20), {"x": 2})
    assert owed.outstanding([Flush("x", [(10, content(1))], None)], now_us=10**6)[0].next_us == 20
