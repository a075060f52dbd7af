"""How streams are kept: one feed log, segments, readers beside writers, and what is left after damage."""

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from righttime.changes.faults import CrashPoint
from righttime.changes.hashing import EXACT, row_words
from righttime.errors import CommitFailed, CommitUnknown, LogFull, WarehouseClosed, WarehouseDamaged
from righttime.errors.flows import BadStream, RowExists
from righttime.queues import feed, feed_log
from righttime.queues import segments as segments_module
from righttime.queues.feed_log import FeedLog
from righttime.queues.index import KeyIndex
from righttime.queues.streams import Streams
from righttime.queues.unpacked import UnpackedSegments
from righttime.settings import load_settings
from righttime.warehouse.durable import replace

ALWAYS = 10**15
Issue = Callable[[Sequence[str], int | None], int]


def opened(folder: Path, *, issue: Issue | None = None, first_us: int = 10, **settings: Any) -> Streams:
    numbers = count(first_us, 10)
    return Streams(
        folder / "streams",
        settings=load_settings(**settings),
        issue=issue or (lambda names, given: next(numbers) if given is None else given),
        now_us=lambda: 2**60,
    )


def ids(streams: Streams, name: str = "line") -> list[int]:
    return list(streams.table(name, 0, ALWAYS).column("id").to_pylist())


def segments(folder: Path, name: str = "line") -> list[str]:
    return sorted(path.name for path in (folder / "streams" / name).glob("*.parquet"))


def feed_files(folder: Path) -> list[Path]:
    return sorted((folder / "streams" / "_feed").glob("*.feed"))


def test_one_transaction_reaches_all_its_streams_at_one_time(tmp_path: Path) -> None:
    """One number per stream, one time; a callback hears of it after it is visible."""
    streams = opened(tmp_path)
    streams.create("line", "id INT", keys=["id"])
    streams.create("purchase", "id INT")
    heard: list[Any] = []
    streams.on_change.append(lambda names, time_us, rows: heard.append((tuple(names), time_us, rows, ids(streams))))
    streams.append({"purchase": [{"id": 1}]})
    appended = streams.append({"line": [{"id": 1}, {"id": 2}], "purchase": [{"id": 2}]}, transaction="T")
    assert (dict(appended.numbers), appended.time_us, appended.rows) == ({"line": 1, "purchase": 2}, 20, 3)
    assert heard == [(("purchase",), 10, 1, []), (("line", "purchase"), 20, 3, [1, 2])]
    streams.close()
    with pytest.raises(WarehouseClosed):
        streams.append({"line": [{"id": 9}]})


def test_an_empty_append_makes_no_commit(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    streams.create("line", "id INT", keys=["id"])
    ids_only = pa.table({"id": pa.array([], pa.int32())})
    empties: list[Any] = [[], ids_only, ids_only.append_column("_change_type", pa.array([], pa.string()))]
    for nothing in empties:
        appended = streams.append({"line": nothing})
        assert (appended.rows, appended.numbers, appended.time_us) == (0, {}, 0)
    streams.append({})
    assert streams.cut("line", ALWAYS).last is None
    assert streams.append({"line": [{"id": 1}]}).numbers == {"line": 1}
    streams.close()


def test_a_long_tail_is_sealed_into_segments_of_whole_commits(tmp_path: Path) -> None:
    """Segments are named after their changes; `files` gives whole ones as paths and the rest as rows."""
    streams = opened(tmp_path, stream_segment_rows=4)
    streams.create("line", "id INT", keys=["id"])
    for start in range(0, 12, 3):
        streams.append({"line": [{"id": start + place} for place in range(3)]})
    assert segments(tmp_path) == ["0000000000000001-0000000000000006.parquet", "0000000000000007-0000000000000012.parquet"]
    paths, rest = streams.files("line", 20, 40)
    assert ([path.name for path in paths], rest.num_rows) == (["0000000000000007-0000000000000012.parquet"], 0)
    paths, rest = streams.files("line", 10, 30)
    assert (paths, rest.column("id").to_pylist()) == ([], [3, 4, 5, 6, 7, 8])
    assert pq.read_table(tmp_path / "streams" / "line" / segments(tmp_path)[0]).column("_seq").to_pylist() == [1, 2, 3, 4, 5, 6]
    status = streams.status()[0]
    assert (status.rows, status.segments, status.tail_rows, status.last and status.last.time_us) == (12, 2, 0, 40)
    streams.close()


def test_rows_come_from_disk_when_nothing_is_kept_in_memory(tmp_path: Path) -> None:
    """Without room for segments every read and every preimage comes from the files."""
    streams = opened(tmp_path, stream_segment_rows=2, stream_cache_bytes=0)
    streams.create("line", "id INT, tags ARRAY<STRING>, place STRUCT<x: INT NOT NULL>", keys=["id"])
    streams.append({"line": [{"id": number, "tags": [str(number)], "place": {"x": number}} for number in range(5)]})
    streams.append({"line": [{"id": number, "_change_type": "delete"} for number in (3, 0)]})
    rows = streams.table("line", 10, ALWAYS).to_pylist()
    assert [(row["id"], row["tags"], row["place"], row["_ordinal"]) for row in rows] == [(3, ["3"], {"x": 3}, 3), (0, ["0"], {"x": 0}, 0)]
    streams.close()


def test_old_rows_are_fetched_without_reading_their_segments_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each change of an old row would cost as much as the stream is long. Nothing of it is left in the folder, and the images are exact."""
    streams = opened(tmp_path, stream_segment_rows=50, stream_cache_bytes=0)
    streams.create("line", "id INT, tags ARRAY<STRING>, place STRUCT<x: INT NOT NULL>", keys=["id"])
    for first in (0, 50):
        streams.append({"line": [{"id": first + number, "tags": [str(first + number)], "place": {"x": first + number}} for number in range(50)]})
    reads: list[Path] = []
    read = pq.read_table

    def counted(path: Path, **options: Any) -> pa.Table:
        reads.append(path)
        return read(path, **options)

    monkeypatch.setattr(pq, "read_table", counted)
    for number in (3, 70, 4, 71, 5):
        streams.append({"line": [{"id": number, "_change_type": "delete"}]})
    assert [path.name for path in reads] == segments(tmp_path)
    assert [path for path in (tmp_path / "streams" / "line").iterdir() if path.suffix == ".arrow"] == []
    rows = streams.table("line", 20, ALWAYS).to_pylist()
    assert [(row["id"], row["tags"], row["place"]) for row in rows] == [(number, [str(number)], {"x": number}) for number in (3, 70, 4, 71, 5)]
    streams.close()


@pytest.mark.parametrize("bound", [{"bytes_max": 20}, {"bytes_max": 1 << 20, "files_max": 2}])
def test_unpacked_segments_have_a_bound_and_changes_all_over_a_larger_stream_find_most_of_them(tmp_path: Path, bound: dict[str, int]) -> None:
    """If the last one asked for always came in, each of them would be unpacked each time. Those that nobody asks for any more make room."""
    unpacked = UnpackedSegments(**bound)
    rows = pa.table({"id": pa.array([7], pa.int64())})

    def fetched(names: str) -> str:
        """Ask for segments one after the other as a fetch does; return those that were here."""
        here = ""
        for name in names:
            if (found := unpacked.get(tmp_path / name)) is None:
                unpacked.keep(tmp_path / name, rows)
            elif found.equals(rows):
                here += name
        return here

    assert [fetched("abc") for _ in range(3)] == ["", "ab", "ab"]
    assert [fetched("cd") for _ in range(3)] == ["", "c", "cd"]
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_larger_than_all_that_may_be_there_drives_none_out(tmp_path: Path) -> None:
    """It is read again each time, and the others are there."""
    unpacked = UnpackedSegments(bytes_max=20)
    for name, size in (("a", 1), ("b", 100), ("b", 100), ("b", 100)):
        unpacked.keep(tmp_path / name, pa.table({"id": pa.array([7] * size, pa.int64())}))
    assert [unpacked.get(tmp_path / name) is not None for name in "ab"] == [True, False]


def test_what_is_for_speed_leaves_the_disk_to_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what was free stays free."""
    free = 39

    def usage(_: Path) -> Any:
        return SimpleNamespace(free=free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    unpacked = UnpackedSegments(bytes_max=1 << 20)
    for name in "abc":
        unpacked.keep(tmp_path / name, pa.table({"id": pa.array([7], pa.int64())}))
        free -= 8 * (unpacked.get(tmp_path / name) is not None)
    assert [unpacked.get(tmp_path / name) is not None for name in "abc"] == [True, True, False]


def test_a_full_disk_costs_time_only(tmp_path: Path) -> None:
    """What cannot be unpacked is read again when it is needed."""
    unpacked = UnpackedSegments(bytes_max=1 << 20)
    unpacked.keep(tmp_path / "absent" / "a.parquet", pa.table({"id": [1]}))
    assert unpacked.get(tmp_path / "absent" / "a.parquet") is None


def test_the_log_is_turned_and_what_it_knew_stays(tmp_path: Path) -> None:
    """Old files go once their rows are sealed; heartbeats and dead letters move to the new file."""
    streams = opened(tmp_path, stream_log_bytes=4000)
    streams.create("line", "id INT", keys=["id"], times="source", on_bad="dead_letter")
    streams.create("other", "id INT")
    streams.append({"line": [{"id": 1}, {"id": 7, "_change_type": "delete"}]}, time_us=10)
    streams.heartbeat("line", 500)
    for number in range(60):
        streams.append({"other": [{"id": number}]})
    assert len(feed_files(tmp_path)) == 1
    assert feed_files(tmp_path)[0].name != "000000000001.feed"
    assert len(segments(tmp_path)) == 1
    streams.close()
    again = opened(tmp_path, first_us=10_000, stream_log_bytes=4000)
    assert (again.watermark_us("line"), again.dead_letters("line").num_rows, ids(again)) == (500, 1, [1])
    assert ids(again, "other") == list(range(60))
    again.close()


@pytest.mark.parametrize("cut", [1, 5, 19, 60])
def test_what_a_crash_left_of_a_record_is_cut_off(tmp_path: Path, cut: int) -> None:
    """A record without its end does not exist; the next one takes its place and number."""
    streams = opened(tmp_path)
    streams.create("line", "id INT", keys=["id"])
    streams.append({"line": [{"id": 1}]})
    size = feed_files(tmp_path)[0].stat().st_size
    streams.append({"line": [{"id": 2}]})
    streams.close()
    os.truncate(feed_files(tmp_path)[0], size + cut)
    again = opened(tmp_path, first_us=100)
    assert ids(again) == [1]
    assert again.append({"line": [{"id": 2}]}).numbers == {"line": 2}
    again.close()
    assert ids(opened(tmp_path)) == [1, 2]


def test_damage_in_the_middle_is_reported_and_nothing_is_cut(tmp_path: Path) -> None:
    """A record that fails its checksum before others was acknowledged: to drop it silently would lose it."""
    streams = opened(tmp_path)
    streams.create("line", "id INT", keys=["id"])
    streams.append({"line": [{"id": 1}]})
    size = feed_files(tmp_path)[0].stat().st_size
    streams.append({"line": [{"id": 2}]})
    streams.close()
    content = bytearray(feed_files(tmp_path)[0].read_bytes())
    content[size - 70] ^= 1
    feed_files(tmp_path)[0].write_bytes(content)
    with pytest.raises(WarehouseDamaged, match="checksum"):
        opened(tmp_path)
    assert feed_files(tmp_path)[0].read_bytes() == content


def test_a_restart_knows_who_is_alive_and_how_many_came(tmp_path: Path) -> None:
    """Also if the last segment has deletes only: dead keys are free, living ones are not, and ordinals go on."""
    streams = opened(tmp_path, stream_segment_rows=1)
    streams.create("line", "id INT", keys=["id"])
    streams.append({"line": [{"id": 1}, {"id": 2}, {"id": 3}]})
    streams.append({"line": [{"id": 1, "_change_type": "delete"}]})
    streams.close()
    again = opened(tmp_path, first_us=100, stream_segment_rows=1)
    with pytest.raises(RowExists):
        again.append({"line": [{"id": 2}]})
    again.append({"line": [{"id": 1}, {"id": 3, "_change_type": "delete"}]})
    assert again.table("line", 20, ALWAYS).select(["id", "_ordinal", "_since"]).to_pylist() == [
        {"id": 1, "_ordinal": 3, "_since": 100},
        {"id": 3, "_ordinal": 2, "_since": 10},
    ]
    again.close()


def test_the_log_keeps_what_could_not_be_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file is begun, and the old ones stay until their rows are in segments."""
    streams = opened(tmp_path, stream_log_bytes=1)
    streams.create("line", "id INT")

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(feed, "write_segment", full)
        streams.append({"line": [{"id": 1}]})
        streams.append({"line": [{"id": 2}]})
    assert len(feed_files(tmp_path)) == 3
    streams.close()
    again = opened(tmp_path, first_us=100, stream_log_bytes=1)
    assert ids(again) == [1, 2]
    again.append({"line": [{"id": 3}]})
    assert (ids(again), len(feed_files(tmp_path)), len(segments(tmp_path))) == ([1, 2, 3], 1, 1)
    again.close()


def test_a_missing_segment_or_catalogue_is_reported(tmp_path: Path) -> None:
    streams = opened(tmp_path, stream_segment_rows=1)
    streams.create("line", "id INT")
    for number in range(3):
        streams.append({"line": [{"id": number}]})
    streams.close()
    first = tmp_path / "streams" / "line" / segments(tmp_path)[0]
    kept = first.read_bytes()
    first.unlink()
    with pytest.raises(WarehouseDamaged, match="missing"):
        opened(tmp_path)
    first.write_bytes(kept[:100])
    with pytest.raises(WarehouseDamaged, match="cannot be read"):
        opened(tmp_path)
    first.write_bytes(kept)
    (tmp_path / "streams" / "line" / "stream.json").unlink()
    with pytest.raises(WarehouseDamaged, match="catalogue"):
        opened(tmp_path)


def test_a_failed_write_changes_nothing_and_a_half_one_stops_the_feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error of the disk the append is not there, now and after a restart; if nobody can say so, everything is refused."""
    streams = opened(tmp_path)
    streams.create("line", "id INT", keys=["id"])
    streams.append({"line": [{"id": 1}]})

    def no_sync(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        calls = iter([no_sync, os.fsync])
        disk.setattr(os, "fdatasync", lambda descriptor: next(calls)(descriptor))
        with pytest.raises(CommitFailed, match="No space left"):
            streams.append({"line": [{"id": 2}]})
    assert ids(streams) == [1]
    streams.append({"line": [{"id": 2}]})
    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", no_sync)
        with pytest.raises(CommitUnknown):
            streams.append({"line": [{"id": 3}]})
    with pytest.raises(CommitFailed, match="open the warehouse again"):
        streams.append({"line": [{"id": 4}]})
    assert ids(streams) == [1, 2]
    streams.close()
    assert ids(opened(tmp_path)) == [1, 2]


def test_the_log_has_a_bound(tmp_path: Path) -> None:
    streams = opened(tmp_path, log_bytes_max=2000)
    streams.create("line", "id INT")
    streams.append({"line": [{"id": 1}]})
    with pytest.raises(LogFull):
        streams.append({"line": pa.table({"id": pa.array(range(1000), pa.int32())})})
    assert ids(streams) == [1]
    streams.close()


def test_a_log_that_is_full_is_turned(tmp_path: Path) -> None:
    """Also if the bound is below the size at which the next file is begun: appends, heartbeats and letters find room as long as they fit at all."""
    streams = opened(tmp_path, log_bytes_max=8000)
    streams.create("line", "id INT", keys=["id"])
    streams.create("beat", "id INT", times="source", on_bad="dead_letter")
    for number in range(60):
        streams.append({"line": [{"id": number}]})
    assert ids(streams) == list(range(60))
    for number in range(1, 60):
        streams.heartbeat("beat", number)
    for number in range(60, 90):
        streams.append({"beat": [{"id": "x"}]}, time_us=number)
        assert streams.discard("beat") == 1
    assert len(feed_files(tmp_path)) == 1 and len(segments(tmp_path)) < 15
    with pytest.raises(LogFull):
        streams.append({"line": pa.table({"id": pa.array(range(1000, 4000), pa.int32())})})
    sealed = segments(tmp_path)
    with pytest.raises(LogFull):
        streams.append({"line": pa.table({"id": pa.array(range(1000, 4000), pa.int32())})})
    assert segments(tmp_path) == sealed, "what never fits has nothing sealed for it"
    streams.close()
    again = opened(tmp_path, first_us=10**6, log_bytes_max=8000)
    assert (ids(again), again.watermark_us("beat")) == (list(range(60)), 89)
    again.close()


@pytest.mark.parametrize(("point", "there"), [(CrashPoint.SEGMENT_WRITTEN, False), (CrashPoint.SEGMENT_NAMED, True)])
def test_what_goes_past_the_log_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: CrashPoint, there: bool) -> None:
    """The changes of a table that are too many for a record become a segment, behind all that came before, and count from when it has its name."""
    streams = opened(tmp_path, stream_log_bytes=5000)
    streams.create("line", "id INT", keys=["id"], times="source", table="lines")
    streams.append({"line": [{"id": 0}]}, time_us=10, tapping=True)
    reached: list[CrashPoint] = []

    def killed(at: CrashPoint) -> None:
        reached.append(at)
        if at is point and reached.count(point) == 2:  # the first is that of the tail before it
            shutil.copytree(tmp_path / "streams", tmp_path / "left" / "streams")

    monkeypatch.setattr(segments_module, "reach", killed)
    appended = streams.append({"line": pa.table({"id": pa.array(range(1, 501), pa.int32())})}, time_us=20, tapping=True)
    assert (dict(appended.numbers), appended.rows, ids(streams)) == ({"line": 2}, 500, list(range(501)))
    streams.append({"line": [{"id": 0, "_change_type": "delete"}]}, time_us=30, tapping=True)
    with pytest.raises(RowExists):
        streams.append({"line": pa.table({"id": pa.array(range(1, 501), pa.int32())})}, time_us=40, tapping=True)
    streams.close()
    for folder, left in ((tmp_path, [*range(501), 0]), (tmp_path / "left", list(range(501)) if there else [0])):
        again = opened(folder, stream_log_bytes=5000)
        assert ids(again) == left
        again.append({"line": [{"id": 1000}]}, time_us=50, tapping=True)
        assert ids(again) == [*left, 1000]
        again.close()


def test_dead_letters_do_not_fill_the_log(tmp_path: Path) -> None:
    """Each file begins with them, however many there are: the next is begun when enough was appended, and they can be discarded whatever the bound."""
    streams = opened(tmp_path, stream_log_bytes=8000, log_bytes_max=12_000)
    streams.create("line", "id INT", keys=["id"])
    streams.create("bad", "id INT", on_bad="dead_letter")
    for _ in range(30):
        streams.append({"bad": [{"id": "x" * 500}]})
    size = feed_files(tmp_path)[0].stat().st_size
    assert size > 15_000, "letters alone are more than the log may hold"
    for number in range(12):
        streams.append({"line": [{"id": number}]})
    assert (len(segments(tmp_path)), len(feed_files(tmp_path))) in ((0, 1), (1, 1))
    streams.close()
    again = opened(tmp_path, first_us=10_000, stream_log_bytes=8000, log_bytes_max=12_000)
    for number in range(12, 24):
        again.append({"line": [{"id": number}]})
    assert len(segments(tmp_path)) <= 2 and ids(again) == list(range(24))
    assert again.discard("bad") == 30
    again.close()


def test_one_stream_under_two_spellings_is_refused(tmp_path: Path) -> None:
    """Both would take the same numbers, and of one nothing would be found again."""
    streams = opened(tmp_path)
    streams.create("line", "id INT", keys=["id"])
    with pytest.raises(BadStream, match="'Line' and 'line'") as caught:
        streams.append({"Line": [{"id": 1}], "line": [{"id": 2}]})
    assert caught.value.code == "stream.bad"
    assert streams.append({"LINE": [{"id": 1}]}).numbers == {"line": 1}
    assert ids(streams) == [1]
    streams.close()


def test_a_segment_that_cannot_be_written_costs_nothing_but_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are in the log: the append stands, readers see them, and the next sealing takes them along."""
    streams = opened(tmp_path, stream_segment_rows=2)
    streams.create("line", "id INT", keys=["id"])

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(feed, "write_segment", full)
        streams.append({"line": [{"id": 1}, {"id": 2}]})
        streams.append({"line": [{"id": 3}]})
    assert (ids(streams), segments(tmp_path)) == ([1, 2, 3], [])
    streams.append({"line": [{"id": 4}]})
    assert (ids(streams), segments(tmp_path)) == ([1, 2, 3, 4], ["0000000000000001-0000000000000004.parquet"])
    streams.close()


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()], ids=repr)
def test_a_segment_whose_name_could_not_be_synced_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Its rows are sealed again, with later ones: two segments with the same changes could not be opened. So it is if somebody presses Ctrl-C there."""
    streams = opened(tmp_path, stream_segment_rows=2)
    streams.create("line", "id INT", keys=["id"])

    def no_sync(folder: Path) -> None:
        raise error

    with monkeypatch.context() as disk:
        disk.setattr(segments_module, "sync_folder", no_sync)
        with nullcontext() if isinstance(error, OSError) else pytest.raises(KeyboardInterrupt):
            streams.append({"line": [{"id": 1}, {"id": 2}]})
    assert (ids(streams), segments(tmp_path)) == ([1, 2], [])
    streams.append({"line": [{"id": 3}]})
    assert segments(tmp_path) == ["0000000000000001-0000000000000003.parquet"]
    streams.close()
    assert ids(opened(tmp_path)) == [1, 2, 3]


@pytest.mark.parametrize("removable", [True, False])
def test_a_file_of_the_log_whose_name_could_not_be_synced_does_not_take_back_what_came_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removable: bool
) -> None:
    """It says which dead letters there were when it was begun; what is written behind the older file afterwards is later. If it may stay, nothing is."""
    streams = opened(tmp_path)
    streams.create("line", "id INT", keys=["id"], on_bad="dead_letter")
    streams.append({"line": [{"id": 1, "_change_type": "delete"}]})

    def not_synced(path: Path, content: bytes) -> None:
        replace(path, content)
        raise OSError(5, "Input/output error")

    def no_sync(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(feed_log, "replace", not_synced)
        disk.setattr(FeedLog, "full", property(lambda log: True))
        if not removable:
            disk.setattr(feed_log, "sync_folder", no_sync)
        streams.append({"line": [{"id": 2}]})
    if removable:
        assert streams.discard("line") == 1
    else:
        with pytest.raises(CommitFailed, match="open the warehouse again"):
            streams.discard("line")
    streams.close()
    again = opened(tmp_path)
    assert (again.dead_letters("line").num_rows, ids(again)) == (0 if removable else 1, [2])
    again.close()


def test_a_reader_of_an_issued_time_waits_for_that_commit_and_others_do_not(tmp_path: Path) -> None:
    """Between issuing a time and showing the commit, readers up to that time wait; readers of older times and other streams go on."""
    issued, go_on = threading.Event(), threading.Event()

    def issue(names: Sequence[str], given: int | None) -> int:
        if issued.is_set() or names == ["other"]:
            return 5
        issued.set()
        assert go_on.wait(10)
        return 20

    streams = opened(tmp_path, issue=issue)
    streams.create("line", "id INT")
    streams.create("other", "id INT")
    streams.append({"other": [{"id": 1}]})
    found: list[list[int]] = []
    writer = threading.Thread(target=lambda: streams.append({"line": [{"id": 1}]}))
    writer.start()
    assert issued.wait(10)
    reader = threading.Thread(target=lambda: found.append(streams.table("line", 0, 20).column("id").to_pylist()))
    reader.start()
    assert streams.table("line", 0, 0).num_rows == 0
    assert ids(streams, "other") == [1]
    reader.join(0.2)
    assert reader.is_alive()
    go_on.set()
    reader.join(10)
    writer.join(10)
    assert found == [[1]]
    assert streams.first_after("line", 0) == 20
    streams.close()


def test_writers_and_readers_in_many_threads_see_whole_transactions(tmp_path: Path) -> None:
    """Four writers feed two streams while readers cut them at one time: both cuts have the same transactions, and in the end all rows are there once."""
    lock, numbers = threading.Lock(), count(1)
    failures: list[BaseException] = []

    def issue(names: Sequence[str], given: int | None) -> int:
        with lock:
            return next(numbers)

    streams = opened(tmp_path, issue=issue, stream_segment_rows=40, stream_log_bytes=20_000)
    streams.create("line", "id INT, t STRING", keys=["id"])
    streams.create("purchase", "id INT, t STRING")
    done = threading.Event()

    def write(writer: int) -> None:
        for number in range(15):
            name = f"{writer}-{number}"
            lines = [{"id": writer * 1000 + number * 2 + place, "t": name} for place in range(2)]
            streams.append({"line": lines, "purchase": [{"id": number, "t": name}]}, transaction=name)

    def read() -> None:
        try:
            while not done.wait(0.002):
                with lock:
                    now = next(numbers)
                line, purchase = (streams.table(name, 0, now).column("_transaction").to_pylist() for name in ("line", "purchase"))
                assert line[::2] == line[1::2] == purchase
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join(60)
    done.set()
    for thread in readers:
        thread.join(60)
    assert not failures
    expected = sorted(writer * 1000 + number for writer in range(4) for number in range(30))
    assert sorted(ids(streams)) == expected
    streams.close()
    again = opened(tmp_path)
    assert sorted(ids(again)) == expected
    again.close()


class Interrupted(list[Any]):
    """A list of segments; the first look at it lets another thread seal, as far as that thread gets."""

    def __init__(self, found: Sequence[Any], meanwhile: Callable[[], None]) -> None:
        super().__init__(found)
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return found


@pytest.mark.parametrize("change_type", ["insert", "delete"])
def test_an_append_beside_sealing_misses_no_row(tmp_path: Path, change_type: str) -> None:
    """Rows that move from the tail into a segment are alive all the time: an insert of one is refused, and a delete finds its image.

    The insert needs the index, which is made from all rows; the delete needs the row itself, too.
    """
    streams = opened(tmp_path)
    streams.create("line", "id INT, qty INT", keys=["id"])
    streams.append({"line": [{"id": number, "qty": number} for number in range(10)]})
    streams.close()
    streams = opened(tmp_path, first_us=100)
    stream = streams._stream("line")
    sealers: list[threading.Thread] = []

    def seal() -> None:
        sealers.append(threading.Thread(target=lambda: streams._feed._seal(stream)))
        sealers[0].start()
        sealers[0].join(0.3)  # it waits for the reader; one that does not is through by now

    if change_type == "delete":
        stream.index()
    stream.history.segments = Interrupted(stream.history.segments, seal)
    if change_type == "insert":
        with pytest.raises(RowExists):
            streams.append({"line": [{"id": 3, "qty": 99}]})
    else:
        streams.append({"line": [{"id": 3, "_change_type": "delete"}]})
        assert streams.table("line", 99, ALWAYS).column("qty").to_pylist() == [3]
    sealers[0].join(10)
    assert not sealers[0].is_alive() and len(segments(tmp_path)) == 1
    streams.close()


def test_the_key_index_forgets_dead_keys_when_it_grows() -> None:
    """Many keys that come and go need room for those alive, not for all that ever were."""
    index = KeyIndex()
    for start in range(0, 20_000, 500):
        keys = row_words(pa.record_batch({"id": pa.array(range(start, start + 500))}), EXACT)
        numbers = pa.array(range(start, start + 500)).to_numpy()
        index.put(keys, images=keys, since=numbers, ordinal=numbers, seq=numbers + 1)
        index.put(keys[:450], images=keys[:450], since=numbers[:450], ordinal=numbers[:450], seq=numbers[:450] * 0)
    every = row_words(pa.record_batch({"id": pa.array(range(20_000))}), EXACT)
    found = index.find(every)
    assert [place for place in range(20_000) if found[place] >= 0] == [place for place in range(20_000) if place % 500 >= 450]
    assert (index.seq[found[found >= 0]] == [place + 1 for place in range(20_000) if place % 500 >= 450]).all()
    assert index.living() == 2000
    assert len(index.seq) < 10_000


def test_a_catalogue_keeps_the_whole_declaration(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    made = streams.create("line", "id INT COMMENT 'key', a ARRAY<INT>", keys=["id"], times="source", on_bad="dead_letter", tolerance="30s", comment="lines")
    streams.close()
    again = opened(tmp_path)
    assert again.schema("line") == made
    assert (made.tolerance_us, made.comment, again.names()) == (30_000_000, "lines", ["line"])
    again.close()
