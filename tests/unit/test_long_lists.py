"""Long IN lists mean what short ones do, and are read in a small part of the time."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from righttime.changes import binder
from righttime.changes.conditions import Condition, parse_condition
from righttime.changes.long_lists import VALUES_MIN, without_long_lists
from righttime.changes.schema import declare_table
from righttime.errors import SqlRefused

SALE = declare_table("sale", "id BIGINT, qty TINYINT, note STRING", keys=["id"])
ROWS = pa.table({"id": [1, 2, None, 10**17], "qty": [1, 2, 3, None], "note": ["a", "b,c", "--", None]}, SALE.columns)
FILL = ", ".join(str(1000 + place) for place in range(VALUES_MIN))
TEXTS = ", ".join(f"'t{place}'" for place in range(VALUES_MIN))
MARKS = ", ".join("?" * VALUES_MIN)


def parsed_in_full(text: str, parameters: list[Any], monkeypatch: pytest.MonkeyPatch) -> Condition:
    """Return the condition as the parser alone reads it."""
    with monkeypatch.context() as patched:
        patched.setattr(binder, "without_long_lists", lambda text: (text, {}))
        return parse_condition(text, SALE, parameters)


@pytest.mark.parametrize(
    ("text", "parameters", "taken_out"),
    [
        (f"id IN ({FILL}, 2)", [], 1),
        (f"id in(\n-1 ,1,{FILL}\t)", [], 1),
        (f"id NOT IN ({FILL}, 1) AND qty < 2", [], 1),
        (f"note IN ({TEXTS}, 'b,c', '--')", [], 1),
        (f"qty > ? AND id IN ({MARKS}) OR id = ?", [0, *range(VALUES_MIN), 7], 1),
        (f"id IN ({MARKS}) OR note IN ({TEXTS}) OR id IN ({MARKS})", [*range(VALUES_MIN), *range(5, VALUES_MIN + 5)], 3),
        (f"note IN ({MARKS})", [f"t{place}" for place in range(VALUES_MIN - 1)] + [None], 1),
        (f"qty IN ({FILL}, 2)", [], 1),
        (f"id IN ({FILL}, 99999999999999999999)", [], 0),
        (f"note = 'id IN ({FILL})' OR id = 1", [], 0),
        (f"id = 1 -- id IN ({FILL})", [], 0),
        (f"id = 1 /* id IN ({FILL}) */", [], 0),
        (f"note IN ({TEXTS}, 'it''s')", [], 0),
        (f"note IN ({TEXTS}, 'a\\\\b')", [], 0),
        (f"id IN ({FILL}, 5L)", [], 0),
        (f"`id` = 2 OR note = 'IN (' OR id IN ({FILL})", [], 1),
    ],
)
def test_a_long_list_means_what_the_parser_reads(text: str, parameters: list[Any], taken_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the short cut the condition is the same, and so are its rows; texts, comments and odd literals are left to the parser."""
    assert len(without_long_lists(text)[1]) == taken_out

    found, expected = parse_condition(text, SALE, parameters), parsed_in_full(text, parameters, monkeypatch)

    assert found == expected
    assert found.mask(ROWS).to_pylist() == expected.mask(ROWS).to_pylist()
    assert found.ranges() == expected.ranges()
    assert parse_condition(found.text, SALE) == found


@pytest.mark.parametrize(
    ("text", "parameters", "reason"),
    [
        (f"coalesce(id IN ({FILL}), 1", [], "cannot be read"),
        (f"id IN ({MARKS})", [1], f"{VALUES_MIN} \\?, and 1 values"),
        (f"price IN ({FILL}) AND IN ({FILL})", [], "cannot be read"),
        (f"id IN ({MARKS})", [*range(VALUES_MIN - 1), object()], "has no literal"),
    ],
)
def test_what_is_wrong_is_said_of_the_whole_text(text: str, parameters: list[Any], reason: str) -> None:
    """A refusal never speaks of the names that stood for the lists."""
    with pytest.raises(SqlRefused, match=reason) as caught:
        parse_condition(text, SALE, parameters)
    assert "righttime_list" not in str(caught.value)


@given(
    pieces=st.lists(
        st.sampled_from(["id", "IN", "(", ")", FILL, TEXTS, MARKS, ",", "'", "''", "--", "/*", "*/", "\n", "AND", "\\", "`", '"', "1", "NOT"]), max_size=12
    )
)
def test_no_text_is_read_otherwise(pieces: list[str]) -> None:
    """Whatever surrounds a list, the answer is that of the parser alone, refusals included."""
    text = " ".join(pieces)
    parameters = [7] * text.count("?")
    with pytest.MonkeyPatch.context() as patched:
        assert _outcome(lambda: parse_condition(text, SALE, parameters)) == _outcome(lambda: parsed_in_full(text, parameters, patched))


def _outcome(read: Any) -> Any:
    try:
        return read().text
    except Exception as error:
        return type(error), str(error)


def test_the_parser_sees_a_short_text_however_long_the_list_is() -> None:
    """A hundred thousand values cost what reading them costs, not what a tree of them does."""
    text = f"id IN ({', '.join(map(str, range(100_000)))})"
    assert len(without_long_lists(text)[0]) < 50
    assert parse_condition(text, SALE).ranges() == {"id": (0, 99_999)}


def test_many_values_that_the_column_cannot_hold_are_no_deep_tree() -> None:
    """Each of them is compared on its own, and a thousand of them are still no tree that is too deep."""
    condition = parse_condition(f"qty IN ({', '.join(str(1000 + place) for place in range(1000))}, 2)", SALE)
    assert condition.mask(ROWS).to_pylist() == [False, True, False, False]
    assert parse_condition(condition.text, SALE) == condition
