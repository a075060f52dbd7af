"""Looking at streams without opening them: the same as their owner sees, while the owner goes on."""

import re
from itertools import count
from pathlib import Path

import pytest

import righttime as rt
from righttime.cli.status import status
from righttime.errors import AnswerTooLarge, UnknownStream, WarehouseReadOnly
from righttime.queues.peek import peek
from righttime.queues.streams import Streams
from righttime.settings import load_settings


@pytest.mark.parametrize("segment_rows", [1, 3, 1000], ids=["all sealed", "some sealed", "all in the log"])
def test_a_look_sees_what_was_appended(tmp_path: Path, segment_rows: int) -> None:
    """Rows, times and declarations, from segments and log together; the owner may have the streams open, and nothing is written."""
    times = count(1000, 10)
    settings = load_settings(stream_segment_rows=segment_rows, stream_log_bytes=2000)
    streams = Streams(tmp_path, settings=settings, issue=lambda names, given: next(times) if given is None else given, now_us=lambda: 2**60)
    streams.create("s", "id INT", keys=["id"])
    streams.create("late", "id INT", times="source")
    streams.create("empty", "id INT")
    for number in range(20):
        streams.append({"s": [{"id": 2 * number}, {"id": 2 * number + 1}]})
    streams.append({"late": [{"id": 1}]}, time_us=500)
    streams.heartbeat("late", 700)
    streams.append({"late": []}, time_us=750)

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    found = peek(tmp_path)

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert {name: stream.schema for name, stream in found.items()} == {name: streams.schema(name) for name in streams.names()}
    for name, stream in found.items():
        for time_us in (0, 499, 500, 999, 1000, 1005, 1190, 5000):
            assert stream.rows_after(time_us) == streams.rows_between(name, time_us, 2**62)
            assert stream.first_after(time_us) == streams.first_after(name, time_us)
        assert stream.complete_us == streams.watermark_us(name)
    assert [len(found[name].commits) for name in ("s", "late", "empty")] == [20, 1, 0], "rows that are in a segment and still in the log count once"
    assert (found["s"].rows, found["s"].last_us, found["late"].complete_us, found["empty"].rows) == (40, 1190, 750, 0)
    streams.close()


@pytest.mark.parametrize("segment_rows", [1, 3, 1000], ids=["all sealed", "some sealed", "all in the log"])
def test_a_handle_that_only_reads_has_the_changes_of_streams(tmp_path: Path, segment_rows: int) -> None:
    """While their owner goes on, and as the owner gives them: any stretch, the last commit, dead letters. What would change a stream is refused."""
    with rt.open(tmp_path / "wh", stream_segment_rows=segment_rows, stream_log_bytes=2000) as wh, rt.open(tmp_path / "wh", read_only=True) as reader:
        line = wh.create_stream("line", "id INT, tags ARRAY<STRING>", keys=["id"], on_bad="dead_letter")
        wh.create_stream("silent", "id INT")
        assert reader.stream("line").changes().num_rows == 0
        for number in range(7):
            line.insert([{"id": number, "tags": ["a", str(number)]}], transaction=f"t{number}")
            line.update([{"id": number, "tags": None}])
        line.delete([{"id": 77}])
        seen = reader.stream("Line")

        assert (reader.streams(), seen.schema, seen.last) == (["line", "silent"], line.schema, line.last)
        assert seen.changes().equals(line.changes()) and seen.changes().num_rows == 21
        times = line.changes()["_commit_timestamp"].to_pylist()
        for after, up_to in ((times[3], None), (None, times[10]), (times[3], times[10]), (times[-1], None), (times[10], times[3])):
            assert seen.changes(after=after, up_to=up_to).equals(line.changes(after=after, up_to=up_to))
        assert seen.dead_letters().equals(line.dead_letters()) and seen.dead_letters().num_rows == 1
        for refused in (lambda: seen.insert([{"id": 9, "tags": None}]), lambda: seen.replay(), seen.discard, lambda: reader.create_stream("x", "id INT")):
            with pytest.raises(WarehouseReadOnly):
                refused()
        with pytest.raises(UnknownStream, match="line, silent"):
            reader.stream("lines")
    with rt.open(tmp_path / "wh", read_only=True, answer_bytes_max=100) as small, pytest.raises(AnswerTooLarge):
        small.stream("line").changes()


def test_a_look_at_no_streams_sees_none(tmp_path: Path) -> None:
    """A warehouse without streams, or one that does not exist."""
    assert peek(tmp_path / "streams") == {}


def test_a_status_names_the_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their changes, their last commit, how far a source has delivered, and dead letters; a reader finds in files what the writer knows."""
    with rt.open(tmp_path) as wh:
        assert wh.status().streams == ()
        line = wh.create_stream("line", "id INT", keys=["id"], on_bad="dead_letter")
        line.insert([{"id": 1}, {"id": 2}])
        line.delete([{"id": 7}, {"id": 8}])
        line.discard([1])
        late = wh.create_stream("late", "id INT", times="source")
        wh.create_stream("silent", "id INT", times="source")
        late.heartbeat(1_700_000_000_000_000)
        last = line.last
        assert last is not None
        found = wh.status().streams
        assert [(one.name, one.changes, one.last_commit_us, one.watermark_us, one.dead_letters) for one in found] == [
            ("late", 0, None, 1_700_000_000_000_000, 0),
            ("line", 2, last.time_us, None, 1),
            ("silent", 0, None, 0, 0),
        ]
        with rt.open(tmp_path, read_only=True) as reader:
            assert reader.status().streams == found

    status(str(tmp_path))
    shown = capsys.readouterr().out
    assert re.search(r"^late +0 +- +2023-11-14 22:13:20.000 +0 *$", shown, re.MULTILINE), shown
    assert re.search(r"^line +2 +20\S+ \S+ +always complete +1 *$", shown, re.MULTILINE), shown
