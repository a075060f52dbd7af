"""The dead letters of a flow, as a book."""

from typing import Any

import pyarrow as pa

from righttime.flows.letters import LetterBook

SAID = "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. SQLSTATE: 22012"
SHORT = "division by zero; try_divide gives null instead"
COLUMNS = ["step", "origin", "reason", "job", "weight", "row"]


def failed(*rows: tuple[Any, ...]) -> pa.Table:
    """Return rows that failed in a drain: job, weight, row."""
    return pa.Table.from_pylist([dict(zip(COLUMNS, ("02_derive", "sales.py:3", SAID, *row), strict=True)) for row in rows])


def test_a_letter_has_the_reason_in_short() -> None:
    """In the table that users read, and in the state from which the flow goes on."""
    lines, kept = LetterBook("sales", {}, letters_max=5).take(failed((1, 1, "{}")), {}, {})

    assert [line["reason"] for line in lines[1].to_pylist()] == [SHORT]
    assert kept["reason"].to_pylist() == [SHORT]


def test_a_letter_that_was_kept_with_a_long_reason_goes_with_its_row() -> None:
    """What a release before this one wrote has the id of its long reason, in the table too: the letter is the same, and ends once."""
    before = pa.Table.from_pylist([{"step": "02_derive", "line": "sales.py:3", "reason": SAID, "row": "{}", "_job": 1, "_w": 1}])
    book = LetterBook("sales", {}, letters_max=5)
    book.load(before)
    (shown,) = book._letters

    lines, kept = book.take(failed((2, 1, "{}"), (3, -1, "{}"), (3, -1, "{}"), (4, 1, "{}")), {}, {})

    assert [(line["_op"], line["id"], line["times"]) for job in (2, 3) for line in lines[job].to_pylist()] == [("update", shown, 2), ("delete", shown, 2)]
    (again,) = lines[4].to_pylist()
    assert again["_op"] == "insert" and again["id"] != shown and again["reason"] == SHORT
    reopened = LetterBook("sales", {}, letters_max=5)
    reopened.load(pa.concat_tables([before, kept.select(before.column_names)], promote_options="permissive"))
    assert list(reopened._letters) == [again["id"]]
