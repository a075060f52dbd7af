"""Answers of PostgreSQL as Arrow tables, from a cursor that a test fills."""

from types import SimpleNamespace
from typing import Any

import pytest

from righttime.errors import SqlRefused
from righttime.query.postgres_answers import collect

_INT, _INTS = 23, 1007


class _Cursor:
    """A cursor that has run a query."""

    def __init__(self, columns: dict[str, int], rows: list[tuple[Any, ...]]) -> None:
        self.description = [SimpleNamespace(name=name, type_code=code, precision=None, scale=None) for name, code in columns.items()]
        self._rows = rows

    def fetchmany(self, size: int) -> list[tuple[Any, ...]]:
        taken, self._rows = self._rows[:size], self._rows[size:]
        return taken


def _collected(columns: dict[str, int], rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = collect(_Cursor(columns, rows), bytes_max=1_000_000).to_pylist()  # type: ignore[arg-type]  # what of a cursor it uses
    return answer


def test_rows_and_arrays_come_as_they_are() -> None:
    """Nulls, empty arrays and answers without rows are answers, too."""
    columns, rows = {"n": _INT, "a": _INTS}, [(1, [1, None]), (None, []), (3, None)]
    assert _collected(columns, rows) == [{"n": 1, "a": [1, None]}, {"n": None, "a": []}, {"n": 3, "a": None}]
    assert _collected(columns, []) == []


def test_an_answer_without_columns_is_refused() -> None:
    """`SELECT FROM sale` has rows in PostgreSQL, and an Arrow table of no columns has none."""
    with pytest.raises(SqlRefused, match=r"count\(\*\)") as caught:
        _collected({}, [(), (), ()])
    assert caught.value.code == "sql.refused"


@pytest.mark.parametrize("rows", [[([[1, 2], [3, 4]],)], [([1],), ([[1]],)]])
def test_an_array_of_several_dimensions_is_refused_with_a_way_out(rows: list[tuple[Any, ...]]) -> None:
    """Its type does not say so before it comes."""
    with pytest.raises(SqlRefused, match="Cast the column to text") as caught:
        _collected({"a": _INTS}, rows)
    assert "a has an array of several dimensions" in str(caught.value)
