"""What a stream makes of changes: good ones, bad ones, and those that give only half of what happened."""

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from righttime.errors import AnswerTooLarge, BadArgument, WarehouseClosed
from righttime.errors.flows import (
    BadStream,
    ChangeRefused,
    ColumnsChanged,
    CommitLate,
    DeadLettersFull,
    ImageDiffers,
    KeyMissing,
    RowAbsent,
    RowExists,
    StreamExists,
    StreamTime,
    UnknownLetter,
    UnknownStream,
)
from righttime.queues import appending
from righttime.queues.declared import Appended, StreamSchema, declare_stream
from righttime.queues.intake import take_in
from righttime.queues.letters import from_text, to_text
from righttime.queues.stream import Stream
from righttime.queues.streams import Streams
from righttime.settings import load_settings
from tests.support.stream_model import rows_of

ALWAYS = 10**15
DDL = "id INT, qty INT, name STRING"


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    numbers = count(10, 10)
    opened = Streams(tmp_path / "streams", settings=load_settings(), issue=lambda names, given: next(numbers) if given is None else given, now_us=lambda: 2**50)
    yield opened
    opened.close()


def stream(streams: Streams, **options: Any) -> Stream:
    streams.create("line", DDL, **{"keys": ["id"], **options})
    return Stream(streams, "line")


def brief(streams: Streams, name: str = "line") -> list[tuple[Any, ...]]:
    """Return change type, the user's columns, weight, since and ordinal of all changes."""
    rows = rows_of(streams.table(name, 0, ALWAYS))
    return [(row["_change_type"], row["id"], row["qty"], row["name"], row["_w"], row["_since"], row["_ordinal"]) for row in rows]


def test_the_changes_of_a_stream_are_read_from_its_handle(streams: Streams) -> None:
    """In their order, with type, commit and transaction, and without columns that are ours; between two times, the first not included."""
    line = stream(streams)
    assert line.changes().num_rows == 0
    line.insert([{"id": 1, "qty": 2, "name": "a"}], transaction="T1")
    line.update([{"id": 1, "qty": 3, "name": "a"}], transaction="T2")
    line.delete([{"id": 1}])
    found = line.changes()
    assert found.schema.names == ["id", "qty", "name", "_change_type", "_commit_version", "_commit_timestamp", "_transaction"]
    rows = [(row["_change_type"], row["qty"], row["_commit_version"], row["_transaction"]) for row in found.to_pylist()]
    assert rows == [("insert", 2, 1, "T1"), ("update_preimage", 2, 2, "T2"), ("update_postimage", 3, 2, "T2"), ("delete", 3, 3, None)]
    assert line.changes(after=10, up_to=20)["_commit_version"].to_pylist() == [2, 2]
    last = found["_commit_timestamp"][-1].as_py()
    assert line.changes(after=last).num_rows == 0 and line.changes(up_to=last).num_rows == 4
    assert line.changes(after=30, up_to=10).num_rows == 0
    with pytest.raises(StreamTime, match="has no time zone"):
        line.changes(after=datetime(2026, 1, 1))
    streams.close()
    with pytest.raises(WarehouseClosed):
        line.changes()


def test_more_changes_than_an_answer_may_have_are_refused(tmp_path: Path) -> None:
    """A shorter span can be read."""
    numbers = count(10, 10)
    settings = load_settings(answer_bytes_max=1000, stream_segment_rows=10)
    streams = Streams(tmp_path / "streams", settings=settings, issue=lambda names, given: next(numbers), now_us=lambda: 2**60)
    line = stream(streams)
    for k in range(30):
        line.insert([{"id": k, "qty": k, "name": "x"}])
    with pytest.raises(AnswerTooLarge, match="shorter span"):
        line.changes()
    assert line.changes(after=50, up_to=70)["id"].to_pylist() == [5, 6]
    streams.close()


def test_an_update_and_a_delete_end_the_images_they_meet(streams: Streams) -> None:
    """A removed row is the negative of the row that began: same columns, same since, same ordinal, weight -1."""
    line = stream(streams)
    line.insert([{"id": 1, "qty": 2, "name": "a"}, {"id": 2, "qty": 5, "name": None}], transaction="T1")
    line.update([({"id": 1, "qty": 2, "name": "a"}, {"id": 1, "qty": 3, "name": "a"})])
    line.delete([{"id": 1, "qty": 3, "name": "a"}])
    assert brief(streams) == [
        ("insert", 1, 2, "a", 1, 10, 0),
        ("insert", 2, 5, None, 1, 10, 1),
        ("update_preimage", 1, 2, "a", -1, 10, 0),
        ("update_postimage", 1, 3, "a", 1, 20, 2),
        ("delete", 1, 3, "a", -1, 20, 2),
    ]
    table = streams.table("line", 0, ALWAYS)
    assert table.schema.equals(line.schema.stored)
    assert table.column("_transaction").to_pylist() == ["T1", "T1", None, None, None]
    assert table.column("_commit_version").to_pylist() == [1, 1, 2, 2, 3]
    assert table.column("_seq").to_pylist() == [1, 2, 3, 4, 5]


def test_postimages_and_keys_alone_are_enough(streams: Streams) -> None:
    """The row before an update, and the row that a delete ends, are taken from the stream."""
    line = stream(streams)
    line.insert([{"id": 1, "qty": 2, "name": "a"}, {"id": 2, "qty": 5, "name": "b"}])
    line.update([{"id": 1, "qty": 3, "name": "c"}])
    line.delete([{"id": 2}])
    assert brief(streams)[2:] == [("update_preimage", 1, 2, "a", -1, 10, 0), ("update_postimage", 1, 3, "c", 1, 20, 2), ("delete", 2, 5, "b", -1, 10, 1)]


def test_many_changes_to_one_key_in_one_append(streams: Streams) -> None:
    """They follow each other in the order given; a row may come, change, go and come again within one commit."""
    line = stream(streams)
    kinds = ["insert", "update_postimage", "update_postimage", "delete", "insert"]
    line.append([{"id": 1, "qty": qty if kind != "delete" else None, "_change_type": kind} for qty, kind in enumerate(kinds)])
    assert brief(streams) == [
        ("insert", 1, 0, None, 1, 10, 0),
        ("update_preimage", 1, 0, None, -1, 10, 0),
        ("update_postimage", 1, 1, None, 1, 10, 1),
        ("update_preimage", 1, 1, None, -1, 10, 1),
        ("update_postimage", 1, 2, None, 1, 10, 2),
        ("delete", 1, 2, None, -1, 10, 2),
        ("insert", 1, 4, None, 1, 10, 3),
    ]


def test_a_delete_that_gives_other_values_is_refused(streams: Streams) -> None:
    """Values beside the key are compared with the living row; none at all, or nulls only, mean the key alone."""
    line = stream(streams)
    line.insert([{"id": 1, "qty": 2}])
    with pytest.raises(ImageDiffers, match="row 0"):
        line.delete([{"id": 1, "qty": 3}])
    line.delete(pa.table({"id": [1], "qty": pa.nulls(1, pa.int32())}))
    assert len(brief(streams)) == 2


def test_an_update_that_changes_the_key_is_a_delete_and_an_insert(streams: Streams) -> None:
    line = stream(streams)
    line.insert([{"id": 1, "qty": 2}])
    line.update([({"id": 1, "qty": 2}, {"id": 7, "qty": 2})])
    assert brief(streams)[1:] == [("delete", 1, 2, None, -1, 10, 0), ("insert", 7, 2, None, 1, 20, 1)]
    line.insert([{"id": 1, "qty": 9}])
    with pytest.raises(RowExists, match="row 1"):
        line.update([({"id": 1, "qty": 9}, {"id": 7, "qty": 9})])


def test_an_update_of_equal_images_is_dropped(streams: Streams) -> None:
    """It makes no row and, alone, no commit; a later change still ends the row that began first."""
    line = stream(streams)
    line.insert([{"id": 1, "qty": 2}])
    assert line.update([{"id": 1, "qty": 2, "name": None}]) == Appended({}, 0, 0)
    appended = line.append([{"id": 1, "qty": 2, "_change_type": "update_postimage"}, {"id": 1, "_change_type": "delete"}])
    assert (appended.rows, appended.numbers) == (1, {"line": 2})
    assert brief(streams)[1:] == [("delete", 1, 2, None, -1, 10, 0)]


BAD = [
    pytest.param([{"id": None, "qty": 1}], 0, KeyMissing, id="change without key"),
    pytest.param([{"qty": 1}], 0, KeyMissing, id="key left out"),
    pytest.param([{"id": 5, "qty": 1}, {"id": 1, "qty": 1}], 1, RowExists, id="insert of a living row"),
    pytest.param([{"id": 5}, {"id": 5}], 1, RowExists, id="one key inserted twice"),
    pytest.param([{"id": 9, "qty": 1, "_change_type": "update_postimage"}], 0, RowAbsent, id="update of an unknown row"),
    pytest.param([{"id": 9, "_change_type": "delete"}], 0, RowAbsent, id="delete of an absent row"),
    pytest.param([{"id": 1, "_change_type": "delete"}] * 2, 1, RowAbsent, id="delete twice"),
    pytest.param(
        [{"id": 1, "qty": 7, "_change_type": "update_preimage"}, {"id": 1, "qty": 8, "_change_type": "update_postimage"}], 0, ImageDiffers, id="image"
    ),
    pytest.param([{"id": 1, "qty": 2, "_change_type": "update_preimage"}], 0, ChangeRefused, id="preimage alone"),
    pytest.param([{"id": 1, "_change_type": "replace"}], 0, ChangeRefused, id="unknown change type"),
    pytest.param([{"id": 6}, {"id": 7, "colour": "red"}], 1, ColumnsChanged, id="another column"),
    pytest.param([{"id": 6}, {"id": "seven"}], 1, ColumnsChanged, id="another type"),
    pytest.param([{"id": 6}, {"id": 2**40}], 1, ColumnsChanged, id="a number too large"),
    pytest.param(["nonsense"], 0, ColumnsChanged, id="no row at all"),
    pytest.param(pa.table({"id": ["a"]}), 0, ColumnsChanged, id="an Arrow column of another type"),
    pytest.param(pa.table({"id": [6], "size": [1]}), 0, ColumnsChanged, id="another Arrow column"),
]


@pytest.mark.parametrize(("changes", "row", "kind"), BAD)
def test_a_bad_change_refuses_the_whole_append(streams: Streams, changes: Any, row: int, kind: type[ChangeRefused]) -> None:
    """The error names stream, row and reason; nothing is written, also not in other streams of the transaction."""
    line = stream(streams)
    streams.create("other", "x INT")
    line.insert([{"id": 1, "qty": 2}])
    with pytest.raises(kind) as caught:
        streams.append({"other": [{"x": 1}], "line": changes})
    assert (caught.value.context["stream"], caught.value.context["row"], type(caught.value)) == ("line", row, kind)
    assert len(brief(streams)) == 1
    assert streams.table("other", 0, ALWAYS).num_rows == 0


@pytest.mark.parametrize(("changes", "row", "kind"), BAD)
def test_a_bad_change_becomes_a_dead_letter_and_the_rest_is_taken(tmp_path: Path, streams: Streams, changes: Any, row: int, kind: type[ChangeRefused]) -> None:
    """The letter has the code, the reason and the change as it was given; it is there after a restart."""
    line = stream(streams, on_bad="dead_letter")
    line.insert([{"id": 1, "qty": 2}])
    appended = line.append(changes)
    letters = line.dead_letters()
    assert appended.rejected == letters.num_rows == 1
    assert letters.column("code").to_pylist() == [kind.code]
    count_of_rows = changes.num_rows if isinstance(changes, pa.Table) else len(changes)
    assert appended.rows == (0 if kind is ImageDiffers else count_of_rows - 1)
    streams.close()
    again = Streams(tmp_path / "streams", settings=load_settings(), issue=lambda names, given: 1000, now_us=lambda: 2**60)
    assert again.dead_letters("line").equals(letters)
    again.close()


def test_dead_letters_are_replayed_when_they_fit(streams: Streams) -> None:
    """What fits now becomes one commit and is no letter any more; what does not stays."""
    line = stream(streams, on_bad="dead_letter")
    line.append([{"id": 1, "qty": 3, "_change_type": "update_postimage"}, {"id": 2, "_change_type": "delete"}], transaction="early")
    assert line.dead_letters().column("transaction").to_pylist() == ["early", "early"]
    line.insert([{"id": 1, "qty": 2}])
    replayed = line.replay()
    assert (replayed.rows, replayed.rejected) == (2, 1), "what fails again is told"
    assert line.dead_letters().column("number").to_pylist() == [2]
    assert brief(streams)[1:] == [("update_preimage", 1, 2, None, -1, 10, 0), ("update_postimage", 1, 3, None, 1, 20, 1)]
    again = line.replay([2])
    assert (again.rows, again.rejected, dict(again.numbers)) == (0, 1, {})
    assert (line.discard(), line.dead_letters().num_rows) == (1, 0)
    line.append([{"id": 3, "_change_type": "delete"}])
    assert line.dead_letters().column("number").to_pylist() == [3]


@pytest.mark.parametrize("call", ["replay", "discard"])
def test_a_letter_that_is_not_there_is_refused(streams: Streams, call: str) -> None:
    """Nothing is done to the others: a number that was mistyped meant another letter."""
    line = stream(streams, on_bad="dead_letter")
    line.delete([{"id": 1}, {"id": 2}])
    with pytest.raises(UnknownLetter, match=r"no dead letter 98, 99\.") as caught:
        getattr(line, call)([1, 99, 98])
    assert caught.value.code == "stream.letter_unknown"
    assert line.dead_letters().column("number").to_pylist() == [1, 2]
    assert line.discard([2, 2]) == 1


@pytest.mark.parametrize("call", ["replay", "discard"])
@pytest.mark.parametrize("wrong", [1, "12", b"12", [[1]], 1.5])
def test_numbers_of_letters_are_a_list(streams: Streams, call: str, wrong: Any) -> None:
    """One number alone is easily written; a text would be taken apart into its characters."""
    line = stream(streams, on_bad="dead_letter")
    line.delete([{"id": 1}])
    with pytest.raises(BadArgument, match=r"'numbers': .* give one, such as \[1\]") as caught:
        getattr(line, call)(wrong)
    assert caught.value.code == "argument.bad"
    assert line.dead_letters().num_rows == 1 and line.discard(number for number in [1]) == 1


def test_a_letter_says_when_it_came(tmp_path: Path) -> None:
    """It is the commit time of the source, where that gives one."""
    streams = Streams(tmp_path, settings=load_settings(), issue=lambda names, given: given or 10, now_us=lambda: 77)
    for times in ("warehouse", "source"):
        streams.create(times, DDL, keys=["id"], times=times, on_bad="dead_letter")
    Stream(streams, "warehouse").delete([{"id": 1}])
    Stream(streams, "source").delete([{"id": 1}], time=50)
    assert [streams.dead_letters(name).column("time").cast(pa.int64()).to_pylist() for name in ("warehouse", "source")] == [[77], [50]]
    streams.close()


def test_a_change_at_fault_does_not_carry_others_with_it(streams: Streams) -> None:
    """Which changes fail is found as if those at fault had never come, also where an update ties two keys together.

    | change | outcome |
    |---|---|
    | 1 → 2 | fails: 2 is alive |
    | insert 1 | fails: 1 is alive still |
    | delete 2 | taken |
    | 1 → 2 | taken |
    | 3 → 1 | taken: 1 is free now |
    | insert 3 | taken |
    """
    line = stream(streams, on_bad="dead_letter")
    line.insert([{"id": number, "qty": number} for number in (1, 2, 3)])

    def moved(old: int, new: int, qty: int) -> list[dict[str, Any]]:
        return [{"id": old, "qty": qty, "_change_type": "update_preimage"}, {"id": new, "qty": qty, "_change_type": "update_postimage"}]

    appended = line.append([*moved(1, 2, 1), {"id": 1}, {"id": 2, "_change_type": "delete"}, *moved(1, 2, 1), *moved(3, 1, 3), {"id": 3}])
    assert (appended.rejected, appended.rows) == (2, 6)
    assert line.dead_letters().column("code").to_pylist() == ["change.row_exists", "change.row_exists"]
    assert [(kind, key) for kind, key, *_ in brief(streams)[3:]] == [("delete", 2), ("delete", 1), ("insert", 2), ("delete", 3), ("insert", 1), ("insert", 3)]


def test_a_pair_at_fault_is_one_letter_and_comes_back_as_a_pair(streams: Streams) -> None:
    line = stream(streams, on_bad="dead_letter")
    assert line.update([({"id": 1, "qty": 1}, {"id": 1, "qty": 2})]).rejected == 1
    line.insert([{"id": 1, "qty": 1}])
    assert line.replay().rows == 2


def test_letters_that_lie_beside_each_other_stay_changes_of_their_own(streams: Streams) -> None:
    """A lone preimage and a lone postimage of another key are two letters, and no update from one key to the other."""
    line = stream(streams, on_bad="dead_letter")
    line.insert([{"id": 1, "qty": 10}])
    line.append([{"id": 1, "qty": 10, "_change_type": "update_preimage"}])
    line.append([{"id": 2, "qty": 99, "_change_type": "update_postimage"}])
    assert line.replay().rows == 0
    assert line.dead_letters().column("code").to_pylist() == ["change.refused", "change.row_absent"]
    line.insert([{"id": 2, "qty": 1}])
    assert line.replay().rows == 2, "the postimage fits now, and the preimage stays alone"
    assert line.dead_letters().column("number").to_pylist() == [1]
    assert [(kind, key, qty) for kind, key, qty, *_ in brief(streams)] == [
        ("insert", 1, 10),
        ("insert", 2, 1),
        ("update_preimage", 2, 1),
        ("update_postimage", 2, 99),
    ]


def test_values_of_every_type_come_back_from_a_letter(streams: Streams) -> None:
    """Bytes, decimals, times, arrays, structs and maps survive the way through JSON."""
    ddl = "id INT, b BINARY, d DECIMAL(9,2), t TIMESTAMP, n TIMESTAMP_NTZ, y DATE, f DOUBLE, l ARRAY<INT>, s STRUCT<x: INT, y: STRING>, m MAP<STRING, INT>"
    streams.create("all", ddl, keys=["id"], on_bad="dead_letter")
    one = Stream(streams, "all")
    row = {
        "id": 1,
        "b": b"\x00\xff",
        "d": Decimal("1.50"),
        "t": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "n": datetime(2026, 1, 2),
        "y": date(2026, 1, 2),
        "f": float("inf"),
        "l": [1, None],
        "s": {"x": 1, "y": "z"},
        "m": [("k", 1)],
    }
    assert from_text(to_text([{"map": {"$bytes": "x", 1: (2, b"")}}])) == [{"map": {"$bytes": "x", 1: (2, b"")}}]
    one.update([row])
    one.insert([{"id": 1}])
    assert one.replay().rows == 2
    after = streams.table("all", 0, ALWAYS).select(list(row)).to_pylist()[-1]
    assert after == row


def test_more_dead_letters_than_the_bound_refuse_the_append(tmp_path: Path) -> None:
    """A source that changed its columns is not poured into dead letters row by row."""
    streams = Streams(tmp_path, settings=load_settings(stream_dead_letters_max=3), issue=lambda names, given: 10, now_us=lambda: 2**60)
    line = stream(streams, on_bad="dead_letter")
    with pytest.raises(DeadLettersFull):
        line.insert(pa.table({"id": list(range(1000)), "colour": ["red"] * 1000}))
    with pytest.raises(DeadLettersFull):
        line.delete([{"id": number} for number in range(4)])
    assert line.delete([{"id": number} for number in range(3)]).rejected == 3
    with pytest.raises(DeadLettersFull):
        line.append([{"id": 1}, {"id": 9, "_change_type": "delete"}])
    assert line.insert([{"id": 1}]).rows == 1
    streams.close()


def test_a_stream_without_keys_takes_inserts_only(streams: Streams) -> None:
    line = stream(streams, keys=[])
    line.insert([{"id": 1}, {"id": 1}, {"id": None}])
    with pytest.raises(ChangeRefused, match="inserts only"):
        line.delete([{"id": 1}])
    assert [row[-1] for row in brief(streams)] == [0, 1, 2]


def test_commits_of_a_source_come_in_the_order_of_their_times(streams: Streams) -> None:
    """A time at or below the watermark is late, whether a commit or a heartbeat set it; an empty commit is a heartbeat."""
    line = stream(streams, times="source")
    assert streams.watermark_us("line") == 0
    line.insert([{"id": 1}], time=100)
    for late in (99, 100):
        with pytest.raises(CommitLate, match=r"its time 1970-01-01T00:00:00\.000\d{3}\+00:00 is not after 1970-01-01T00:00:00\.000100\+00:00, up to"):
            line.insert([{"id": 2}], time=late)
    line.heartbeat(datetime.fromtimestamp(0.0002, tz=UTC))
    assert streams.watermark_us("line") == 200
    with pytest.raises(CommitLate):
        line.insert([{"id": 2}], time=150)
    line.heartbeat(150)
    line.append([], time=300)
    assert streams.watermark_us("line") == 300
    assert line.insert([{"id": 2}], time=301).time_us == 301
    with pytest.raises(StreamTime):
        line.insert([{"id": 3}])
    streams.create("own", "id INT", keys=["id"])
    for time_us in (None, 400):
        with pytest.raises(StreamTime, match=r"Stream 'line': .*the warehouse issues those of stream 'own'.* append to them one after the other"):
            streams.append({"own": [{"id": 1}], "line": [{"id": 3}]}, time_us=time_us)
    for wrong in (1.5, True, "now"):
        with pytest.raises(StreamTime, match="microseconds"):
            line.insert([{"id": 3}], time=wrong)  # type: ignore[arg-type]
    with pytest.raises(StreamTime, match="microseconds"):
        line.heartbeat(None)  # type: ignore[arg-type]
    assert line.last is not None and line.last.time_us == 301
    with pytest.raises(StreamTime, match="time zone"):
        line.insert([{"id": 3}], time=datetime(2026, 1, 1))


def test_times_of_a_source_begin_after_1970(streams: Streams) -> None:
    """An earlier one can only be a mistake, and is told of as one; nobody has been told of the change."""
    told: list[int] = []

    def issue(names: Sequence[str], given: int | None) -> int:
        assert given is not None
        told.append(given)
        return given

    streams._issue = issue
    line = stream(streams, times="source")
    for wrong in (0, -1, datetime(1969, 12, 31, tzinfo=UTC)):
        with pytest.raises(StreamTime, match="1970"):
            line.insert([{"id": 1}], time=wrong)
        with pytest.raises(StreamTime, match="1970"):
            line.heartbeat(wrong)
    assert told == []
    assert line.insert([{"id": 1}], time=1).rows == 1


@pytest.mark.parametrize(("wrong", "unit"), [(1_100_000_000, "seconds"), (1_100_000_000_123, "milliseconds"), (700_000_000, "seconds")])
def test_a_time_in_another_unit_is_refused(streams: Streams, wrong: int, unit: str) -> None:
    """`int(time.time())` is in January 1970 as microseconds: the commit would be there for ever, and no query would wait for the source."""
    line = stream(streams, times="source", on_bad="dead_letter")
    calls: list[Callable[[], Any]] = [
        lambda: line.insert([{"id": 1}], time=wrong),
        lambda: line.append([], time=wrong),
        lambda: line.heartbeat(wrong),
        lambda: line.replay(time=wrong),
    ]
    for call in calls:
        with pytest.raises(StreamTime, match=rf"{wrong} .*looks like {unit} since 1970, .* microseconds"):
            call()
    assert (streams.watermark_us("line"), line.dead_letters().num_rows) == (0, 0)


@pytest.mark.parametrize(("wrong", "unit"), [(1_100_000_000, "seconds"), (1_100_000_000_123, "milliseconds")])
def test_bounds_of_changes_in_another_unit_are_refused(streams: Streams, wrong: int, unit: str) -> None:
    """A reader that goes on after `int(time.time())` would have everything again, and one up to it nothing, without a word."""
    line = stream(streams, times="source")
    line.insert([{"id": 1}], time=1000)
    for bounds in ({"after": wrong}, {"up_to": wrong}):
        with pytest.raises(StreamTime, match=rf"{wrong} .*looks like {unit} since 1970"):
            line.changes(**bounds)
    with pytest.raises(StreamTime, match="neither a datetime nor"):
        line.changes(after="yesterday")  # type: ignore[arg-type]


def test_bounds_of_changes_beyond_all_commits_are_taken(streams: Streams) -> None:
    """Whoever asks from before the first to after the last commit gets them all, however far he goes."""
    line = stream(streams, times="source")
    line.insert([{"id": 1}], time=1000)
    line.insert([{"id": 2}], time=2000)
    assert line.changes(after=-5, up_to=2**80).num_rows == 2
    assert line.changes(after=2**80).num_rows == 0
    assert line.changes(after=1000).column("id").to_pylist() == [2]
    assert line.changes(up_to=1000).column("id").to_pylist() == [1]


def test_small_times_are_no_mistakes_of_unit(streams: Streams) -> None:
    """Tests count from 1; a number is only refused if it says a time of this age in another unit, up to now."""
    line = stream(streams, times="source")
    for number, time in enumerate((1, 1000, 500_000_000, 1_200_000_000, 500_000_000_000, 1_200_000_000_000)):
        assert line.insert([{"id": number}], time=time).time_us == time


def test_a_late_commit_becomes_dead_letters_and_can_be_replayed_with_a_new_time(streams: Streams) -> None:
    line = stream(streams, times="source", on_bad="dead_letter")
    line.insert([{"id": 1}], time=100)
    assert line.insert([{"id": 2}, {"id": 3}], time=90).rejected == 2
    assert set(line.dead_letters().column("code").to_pylist()) == {"change.late"}
    assert line.replay(time=120).rows == 2
    assert streams.watermark_us("line") == 120


@pytest.mark.parametrize("rival", ["replay", "discard"])
def test_a_letter_is_replayed_or_discarded_once(streams: Streams, monkeypatch: pytest.MonkeyPatch, rival: str) -> None:
    """Also if somebody else wants the same letter meanwhile: whoever comes second finds nothing."""
    line = stream(streams, keys=[], times="source", on_bad="dead_letter")
    line.insert([{"id": 1}], time=100)
    assert line.insert([{"id": 2}], time=90).rejected == 1
    calls: dict[str, Callable[[], Any]] = {"replay": lambda: line.replay(time=200).rows, "discard": line.discard}
    answers: list[int] = []
    other = threading.Thread(target=lambda: answers.append(calls[rival]()), daemon=True)

    def read(*given: Any, **options: Any) -> Any:
        if not other.ident:
            other.start()
            other.join(timeout=0.3)
        return take_in(*given, **options)

    monkeypatch.setattr(appending, "take_in", read)
    answers.append(line.replay(time=201).rows)
    other.join(timeout=10)
    assert sorted(answers) == [0, 1] and line.dead_letters().num_rows == 0
    assert [row[1] for row in brief(streams)] == [1, 2]


def test_a_text_that_is_none_becomes_a_dead_letter_and_the_others_are_taken(streams: Streams, tmp_path: Path) -> None:
    """So bytes look that were no UTF-8 and were decoded with `surrogateescape`; the letter has them as they were given, after a restart as well."""
    line = stream(streams, on_bad="dead_letter")
    bad = {"id": 2, "qty": 1, "name": "caf\udce9 ☕", "_change_type": "insert"}
    done = line.insert([{"id": 1, "name": "tea"}, bad], transaction="T1")
    assert (done.rows, done.rejected) == (1, 1)
    streams.close()
    again = Streams(tmp_path / "streams", settings=load_settings(), issue=lambda names, given: 1000, now_us=lambda: 2**60)
    (letter,) = again.dead_letters("line").to_pylist()
    assert from_text(letter["change"]) == [bad] and "☕" in letter["change"]
    assert again.replay("line").rows == 0 and again.discard("line") == 1
    again.close()


@pytest.mark.parametrize("wrong", ["caf\udce9", 7])
def test_the_name_of_a_transaction_is_a_text(streams: Streams, wrong: Any) -> None:
    """One that cannot be written down is told of before anything is taken."""
    line = stream(streams)
    with pytest.raises(BadStream, match="transaction"):
        line.insert([{"id": 1}], transaction=wrong)
    assert line.insert([{"id": 1}], transaction="café").rows == 1


def test_the_warehouse_gives_the_times_of_its_own_streams(streams: Streams) -> None:
    line = stream(streams)
    with pytest.raises(StreamTime):
        line.insert([{"id": 1}], time=5)
    with pytest.raises(StreamTime):
        line.heartbeat(5)
    assert streams.watermark_us("line") is None


def test_not_null_columns_hold_for_rows_and_not_for_keys_alone(streams: Streams) -> None:
    streams.create("strict", "id INT, qty INT NOT NULL, name STRING", keys=["id"])
    strict = Stream(streams, "strict")
    with pytest.raises(ColumnsChanged, match="'qty' may not be null"):
        strict.insert([{"id": 1}])
    strict.insert([{"id": 1, "qty": 2}])
    assert strict.delete([{"id": 1}]).rows == 1
    assert not streams.table("strict", 0, ALWAYS).schema.field("qty").nullable


def test_declarations_are_checked(streams: Streams) -> None:
    line = stream(streams)
    for reason, name, columns in [
        ("begins with _", "bad", "_since INT"),
        ("not a column", "bad", "other INT"),
        ("column list", "bad", "this is nothing at all ("),
        ("its name", "9bad", "id INT"),
    ]:
        with pytest.raises(BadStream, match=reason):
            streams.create(name, columns, keys=["id"])
    with pytest.raises(BadStream, match="times"):
        streams.create("bad", "id INT", times="other")  # type: ignore[arg-type]
    with pytest.raises(BadStream, match="on_bad"):
        streams.create("bad", "id INT", on_bad="other")  # type: ignore[arg-type]
    for lag in ("30s", 0):
        with pytest.raises(BadStream, match='tolerance= is for a stream with times="source"'):
            streams.create("bad", "id INT", tolerance=lag)
    with pytest.raises(StreamExists, match="Stream 'line' exists already; its declaration is the same"):
        streams.create("LINE", DDL, keys=["id"])
    with pytest.raises(StreamExists, match=r"Stream 'line' exists already; its keys are id, given none. Use"):
        streams.create("line", DDL, if_not_exists=True)
    with pytest.raises(StreamExists, match=r"its columns are `id` INT, .*, given `id` BIGINT; its times are 'warehouse', given 'source'. Use"):
        streams.create("line", "id BIGINT", keys=["id"], times="source")
    assert streams.create("line", DDL, keys=["id"], if_not_exists=True) == line.schema
    with pytest.raises(UnknownStream, match="known streams: line"):
        streams.append({"lines": []})
    assert streams.names() == ["line"]


def test_a_tolerance_without_effect_is_not_part_of_a_stream_that_was_made_with_one() -> None:
    """Earlier versions took it; such a stream is what the same declaration without it makes."""
    made = declare_stream("line", DDL)
    assert StreamSchema.from_json(made.to_json().replace('"tolerance_us":null', '"tolerance_us":5')) == made


@pytest.mark.parametrize("on_bad", ["error", "dead_letter"])
@pytest.mark.parametrize("given", [{"id": 1, "qty": 2}, "rows", b"rows", 7, None, {1, 2}])
def test_what_are_no_rows_is_refused_by_every_call(streams: Streams, on_bad: str, given: Any) -> None:
    """A call that is written wrongly is no bad change of a source: it leaves no dead letters."""
    line = stream(streams, on_bad=on_bad)
    calls: list[Callable[[Any], Appended]] = [line.append, line.insert, line.update, line.delete, lambda rows: streams.append({"line": rows})]
    for call in calls:
        with pytest.raises(BadStream, match="not rows; give a list of rows, or an Arrow table"):
            call(given)
    assert line.dead_letters().num_rows == 0


def test_rows_may_come_one_by_one(streams: Streams) -> None:
    """Each call takes a generator as it takes a list."""
    line = stream(streams)
    line.insert({"id": number, "qty": 1, "name": "x"} for number in (1, 2))
    assert line.update({"id": number, "qty": 2, "name": "x"} for number in (1, 2)).rows == 4
    assert line.delete({"id": number} for number in (1, 2)).rows == 2


def test_what_is_no_row_is_named_by_every_call(streams: Streams) -> None:
    line = stream(streams)
    rows: list[Any] = [("no", "row")]
    for call in (line.append, line.insert, line.update, line.delete):
        with pytest.raises(ColumnsChanged, match="row 0"):
            call(rows)
    table = pa.table({"id": [1], "_change_type": pa.array([{"x": 1}])})
    with pytest.raises(ChangeRefused, match="no change type"):
        line.append(table)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"id": 1, "p": 1.5}, "column 'p': 1.5 does not fit DECIMAL(8,2): it is a float, and a Decimal is needed."),
        ({"id": 1, "p": "x"}, "column 'p': 'x' does not fit DECIMAL(8,2)."),
        (5, "5 was given instead of a row (a sequence or a mapping)."),
        ((1,), "a row of 1 values was given instead of the 2 columns id, p."),
    ],
)
def test_one_bad_value_is_told_as_one(streams: Streams, given: Any, words: str) -> None:
    """What is wrong with it, and to correct it; another stream is for a source that has other columns."""
    streams.create("price", "id INT, p DECIMAL(8,2)")
    rows: list[Any] = [{"id": 0}, given]
    with pytest.raises(ColumnsChanged) as caught:
        Stream(streams, "price").append(rows)
    assert f"row 1: {words} Correct the row; only if the source has other columns now, create another stream;" in str(caught.value)


@pytest.mark.parametrize("on_bad", ["error", "dead_letter"])
@pytest.mark.parametrize("rows", [[{"qty": 2, "name": "x"}], [{"qty": 2}], pa.table({"qty": [2], "name": ["x"]})], ids=["key", "more", "Arrow"])
def test_an_update_without_its_key_is_a_change_without_key(streams: Streams, rows: Any, on_bad: str) -> None:
    """As of every other call; only a row that can be found and is not whole is a mistake of the caller."""
    line = stream(streams, on_bad=on_bad)
    line.insert([{"id": 1, "qty": 1}])
    if on_bad == "error":
        with pytest.raises(KeyMissing, match=r"the change has no key \(id may not be null\)"):
            line.update(rows)
    else:
        assert line.update(rows).rejected == 1
        assert line.dead_letters().column("code").to_pylist() == ["change.key_missing"]
    with pytest.raises(ColumnsChanged, match="'name' is left out"):
        line.update([{"id": 1, "qty": 2}])


def test_a_listener_that_fails_does_not_make_an_append_fail(streams: Streams) -> None:
    """The rows are durable and visible by then."""
    line = stream(streams)

    def fail(names: Any, time_us: int, rows: int) -> None:
        raise RuntimeError("not my day")

    streams.on_change.append(fail)
    assert line.insert([{"id": 1}]).rows == 1


def test_floats_are_compared_as_spark_compares_them(streams: Streams) -> None:
    """There is one zero and one NaN: a preimage with the other one is the same row."""
    streams.create("price", "id INT, p DOUBLE", keys=["id"])
    price = Stream(streams, "price")
    price.insert([{"id": 1, "p": 0.0}, {"id": 2, "p": float("nan")}])
    price.delete([{"id": 1, "p": -0.0}, {"id": 2, "p": float("nan")}])
    with pytest.raises(ImageDiffers):
        price.insert([{"id": 1, "p": 1.0}])
        price.delete([{"id": 1, "p": 1.0 + 1e-12}])
