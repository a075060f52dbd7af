"""What a stream makes of changes is the same if they come over the wire: the tests of one process again, and rows of every class on both sides."""

import inspect
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from righttime.errors import RightTimeError
from righttime.queues.stream import Stream
from righttime.queues.streams import Streams
from righttime.settings import load_settings
from tests.support.everywhere import examples_of
from tests.support.stream_wire import WiredStreams
from tests.unit import test_stream_changes

globals().update({name: test for name, test in examples_of(test_stream_changes).items() if "streams" in inspect.signature(test).parameters})

DDL = (
    "id INT, d DECIMAL(9,2), t TIMESTAMP, n TIMESTAMP_NTZ, y DATE, f DOUBLE, s STRING, b BINARY, o BOOLEAN, l ARRAY<INT>, m MAP<STRING, INT>, u STRUCT<x: INT>"
)


def opened(folder: Path) -> Streams:
    numbers = count(10, 10)

    def issue(names: Sequence[str], given: int | None) -> int:
        return next(numbers) if given is None else given

    return Streams(folder / "streams", settings=load_settings(), issue=issue, now_us=lambda: 2**50)


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[WiredStreams]:
    here = opened(tmp_path)
    yield WiredStreams(here)
    here.close()


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


def _database_row() -> Any:
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    return database.execute("SELECT 999" + ", NULL" * 11).fetchone()


NOW = datetime(2026, 3, 1, 12, 30, 15, 123456)
VALUES: dict[str, list[Any]] = {
    "id": [1, True, 1.0, 2**31, 2**80, "1", np.int64(5), np.int8(5), np.float32(1.5), Decimal("7"), None, b"1", [1], Odd()],
    "d": [1, Decimal("1.50"), Decimal("1.505"), Decimal("NaN"), "1.5", 1.5],
    "t": [NOW, NOW.replace(tzinfo=UTC), NOW.replace(tzinfo=timezone(timedelta(hours=2))), np.datetime64("2026-01-02T03:04:05"), date(2026, 1, 1), "2026", 5],
    "n": [NOW, NOW.replace(tzinfo=UTC), np.datetime64("2026-01-02T03:04:05.000000001", "ns")],
    "y": [date(2026, 1, 1), NOW, "2026-01-01"],
    "f": [1, 1.5, float("nan"), float("-inf"), -0.0, np.float32(0.1), np.float64(0.1), "x", True],
    "s": ["", "ä\0\n", "\udc80", "$bytes", np.str_("numpy"), b"bytes", 5, Odd()],
    "b": [b"", b"\x00\xff", bytearray(b"ab"), "text"],
    "o": [True, np.bool_(False), 1, "true"],
    "l": [[], [1, None], (1, 2), np.array([1, 2]), np.array([1.5]), [2**40], ["x"], {1, 2}, {"a": 1}],
    "m": [{"k": 1}, [("k", 1)], {}, {"$map": 1}, {1: 1}, {"k": "v"}],
    "u": [{"x": 1}, {"x": None}, {"x": "1"}, {"y": 1}, MappingProxyType({"x": 2}), [1]],
}
ROWS: list[Any] = [
    *({"id": 100 * place + number, column: value} for place, (column, values) in enumerate(VALUES.items(), 1) for number, value in enumerate(values)),
    {},
    {"ID": 9},
    {"id": 10, "colour": Odd()},
    {1: 2},
    {"$bytes": "x"},
    {"\udc80": 1},
    {"id": 11, "_change_type": None},
    {"id": 11, "_change_type": "replace"},
    {"id": 12, "_change_type": 3},
    {"_change_type": "delete", "id": 77},
    MappingProxyType({"id": 13}),
    (14, *[None] * 11),
    [15, *[None] * 11],
    (16,),
    _database_row(),
    "nonsense",
    b"nonsense",
    5,
    None,
    Odd(),
]


def outcome(streams: Any, changes: Any, **options: Any) -> Any:
    """Return what became of an append: an answer, or an error with everything that it says."""
    try:
        return Stream(streams, "all").append(changes, **options)
    except RightTimeError as error:
        return error.code, str(error), {name: str(value) for name, value in error.context.items()}


def both(tmp_path: Path, **options: Any) -> tuple[Streams, WiredStreams]:
    here, there = opened(tmp_path / "here"), WiredStreams(opened(tmp_path / "there"))
    for streams in (here, there):
        streams.create("all", DDL, keys=["id"], **options)
    return here, there


def same(here: Streams, there: WiredStreams) -> None:
    assert there.dead_letters("all").to_pylist() == here.dead_letters("all").to_pylist()
    # NaN is not equal to itself, and its text is.
    assert str(there.table("all", 0, 10**15).to_pylist()) == str(here.table("all", 0, 10**15).to_pylist())


def test_rows_of_every_class_give_the_same_alone(tmp_path: Path) -> None:
    """Each in an append of its own: taken alike, refused with the same words."""
    here, there = both(tmp_path)
    for row in ROWS:
        assert outcome(there, [row]) == outcome(here, [row]), row
    same(here, there)


def test_rows_of_every_class_give_the_same_together(tmp_path: Path) -> None:
    """All in one append: the others are taken, and each dead letter has the row as it was given; replayed, they do the same again."""
    here, there = both(tmp_path, on_bad="dead_letter")
    assert outcome(there, ROWS) == outcome(here, ROWS)
    assert here.dead_letters("all").num_rows > 20
    same(here, there)
    assert Stream(there, "all").replay() == Stream(here, "all").replay()
    same(here, there)


TABLES: list[pa.Table] = [
    pa.table({"id": pa.array([1, 2, None], pa.int8())}),
    pa.table({"id": pa.array([], pa.int32())}),
    pa.table({"id": [1, 2]}).slice(1),
    pa.table({"ID": [3], "s": pa.array(["x"], pa.large_string()), "_change_type": pa.array(["insert"]).dictionary_encode()}),
    pa.table({"id": [4, 5], "_change_type": ["insert", "nothing"]}),
    pa.table({"id": [6], "s": [5]}),
    pa.table({"id": ["x"]}),
    pa.table({"id": [7], "id2": [1]}),
    pa.table([pa.array([8]), pa.array([9])], names=["id", "id"]),
    pa.table({"id": pa.chunked_array([[20, 21], [], [22]])}),
    pa.table({"id": pa.nulls(3)}),
]


@pytest.mark.parametrize("on_bad", ["error", "dead_letter"])
def test_tables_of_every_kind_give_the_same(tmp_path: Path, on_bad: str) -> None:
    """Columns of other types, other names, none; slices and pieces; record batches."""
    here, there = both(tmp_path, on_bad=on_bad)
    for table in TABLES:
        for changes in (table, *table.to_batches()):
            assert outcome(there, changes) == outcome(here, changes), changes
    same(here, there)


@pytest.mark.parametrize("wrong", [{"transaction": 5}, {"transaction": "\udc80"}, {"time": 5}, {"time": 2**80}])
def test_what_is_wrong_with_an_append_is_said_in_the_same_words(tmp_path: Path, wrong: dict[str, Any]) -> None:
    here, there = both(tmp_path)
    found = outcome(here, [{"id": 1}], **wrong)
    assert isinstance(found, tuple) and outcome(there, [{"id": 1}], **wrong) == found


@pytest.mark.parametrize("call", ["replay", "discard"])
@pytest.mark.parametrize("numbers", [None, [], [1], [np.int64(2)], (1, 2), {2}, [3], ["x"], [1, 1.0]], ids=str)
def test_letters_are_chosen_by_the_same_numbers(tmp_path: Path, call: str, numbers: Any) -> None:
    """Of any class that equals a number; what is none is named."""
    here, there = both(tmp_path, on_bad="dead_letter")
    found = []
    for streams in (here, there):
        stream = Stream(streams, "all")
        stream.delete([{"id": 1}, {"id": 2}])
        stream.insert([{"id": 1}])
        try:
            found.append(getattr(stream, call)(numbers))
        except RightTimeError as error:
            found.append((error.code, str(error)))
    assert found[0] == found[1]
    same(here, there)
