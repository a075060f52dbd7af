"""Appends that come again under the same id: known after a restart, after a kill, and after the log was turned; or said to be forgotten."""

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from righttime.changes.faults import CrashPoint
from righttime.errors import AppendForgotten
from righttime.errors.flows import RowExists
from righttime.queues import feed_log
from righttime.queues.declared import Appended
from righttime.queues.feed_log import Record, read_records
from righttime.queues.known import AppendId, KnownAppends, Outcome
from righttime.queues.streams import Streams
from righttime.settings import load_settings

ALWAYS = 10**15


def opened(folder: Path, *, first_us: int = 10, **settings: Any) -> Streams:
    numbers = count(first_us, 10)

    def issue(names: Sequence[str], given: int | None) -> int:
        return next(numbers) if given is None else given

    return Streams(folder / "streams", settings=load_settings(**settings), issue=issue, now_us=lambda: 2**50)


def line(folder: Path, **settings: Any) -> Streams:
    streams = opened(folder, **settings)
    streams.create("line", "id INT", keys=["id"], on_bad="dead_letter")
    return streams


def name(number: int) -> str:
    return f"{number:032x}"


def ids(streams: Streams) -> list[int]:
    return list(streams.table("line", 0, ALWAYS).column("id").to_pylist())


def test_an_append_that_comes_again_is_answered_and_not_taken(tmp_path: Path) -> None:
    """The answer is that of the first time, dead letters counted; nobody is told of rows twice; another id is another append."""
    streams, told = line(tmp_path), []
    streams.on_change.append(lambda names, time_us, rows: told.append(rows))
    changes = {"line": [{"id": 1}, {"id": 9, "_change_type": "delete"}]}
    first = streams.append(changes, transaction="T", append_id=AppendId(name(1), 0))
    assert (dict(first.numbers), first.rows, first.rejected) == ({"line": 1}, 1, 1)
    assert streams.append(changes, transaction="T", append_id=AppendId(name(1), 0)) == first
    assert (ids(streams), streams.dead_letters("line").num_rows, told) == ([1], 1, [1])
    assert streams.append({"line": [{"id": 2}]}, append_id=AppendId(name(2), 1)).numbers == {"line": 2}
    assert streams.known_appends == 2
    streams.close()


@pytest.mark.parametrize("log_bytes", [1, 10**6], ids=["log turned", "log as it was"])
def test_it_is_known_after_a_restart(tmp_path: Path, log_bytes: int) -> None:
    """Appends, replays and discards, from the records of the log or from what its next file begins with."""
    streams = line(tmp_path, stream_log_bytes=log_bytes)
    appended = streams.append({"line": [{"id": 5, "_change_type": "delete"}, {"id": 6, "_change_type": "delete"}]}, append_id=AppendId(name(1), 0))
    streams.append({"line": [{"id": 5}]})
    replayed = streams.replay("line", [1], append_id=AppendId(name(2), 1))
    assert (appended.rejected, replayed.rows) == (2, 1)
    assert streams.discard("line", append_id=AppendId(name(3), 2)) == 1
    streams.append({"line": [{"id": 7}]})
    streams.close()
    again = opened(tmp_path, first_us=1000, stream_log_bytes=log_bytes)
    assert again.known_appends == 3
    assert again.append({"line": [{"id": 5, "_change_type": "delete"}]}, append_id=AppendId(name(1), 0)) == appended
    assert again.replay("line", [1], append_id=AppendId(name(2), 1)) == replayed
    assert again.discard("line", append_id=AppendId(name(3), 2)) == 1
    assert (ids(again), again.dead_letters("line").num_rows) == ([5, 5, 7], 0)
    again.close()


@pytest.mark.parametrize("point", [CrashPoint.FEED_WRITTEN, CrashPoint.FEED_SYNCED, CrashPoint.FEED_BEGUN, CrashPoint.FEED_REMOVED])
def test_a_kill_leaves_the_append_and_its_id_or_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: CrashPoint) -> None:
    """Whatever the kill left, sent again under its id it is there once, with the same answer."""
    streams = line(tmp_path, stream_log_bytes=1)

    def killed(at: CrashPoint) -> None:
        if at is point and not (tmp_path / "left").exists():
            shutil.copytree(tmp_path / "streams", tmp_path / "left" / "streams")

    monkeypatch.setattr(feed_log, "reach", killed)
    made = streams.append({"line": [{"id": 1}]}, append_id=AppendId(name(1), 0))
    streams.close()
    again = opened(tmp_path / "left", stream_log_bytes=1)
    assert again.append({"line": [{"id": 1}]}, append_id=AppendId(name(1), 0)) == made
    assert ids(again) == [1]
    again.close()


def test_what_is_forgotten_is_said_to_be(tmp_path: Path) -> None:
    """Of an append from before the oldest that is known nobody can say whether it was taken; one from after it was not, if it is not known."""
    streams = line(tmp_path, stream_appends_max=2)
    for number in range(4):
        streams.append({"line": [{"id": number}]}, append_id=AppendId(name(number), number))
    for old in (0, 1):
        with pytest.raises(AppendForgotten, match="line") as caught:
            streams.append({"line": [{"id": old}]}, append_id=AppendId(name(old), old))
        assert (caught.value.code, caught.value.retryable) == ("append.forgotten", False)
    assert streams.append({"line": [{"id": 3}]}, append_id=AppendId(name(3), 3)).numbers == {"line": 4}
    assert streams.append({"line": [{"id": 8}]}, append_id=AppendId(name(8), 2)).numbers == {"line": 5}
    streams.close()
    with pytest.raises(AppendForgotten):
        opened(tmp_path, stream_appends_max=2).append({"line": [{"id": 1}]}, append_id=AppendId(name(1), 1))


def test_streams_from_before_the_append_are_not_taken_for_those_it_was_sent_to(tmp_path: Path) -> None:
    """A folder that was put back to an earlier state knows fewer appends than the client has seen: it cannot say what became of one."""
    streams = line(tmp_path)
    with pytest.raises(AppendForgotten, match="earlier"):
        streams.append({"line": [{"id": 1}]}, append_id=AppendId(name(1), 1))
    assert ids(streams) == []
    streams.close()


def test_what_was_refused_or_changed_nothing_is_judged_anew(tmp_path: Path) -> None:
    """It left no trace, so that nothing can be doubled."""
    streams = opened(tmp_path)
    streams.create("line", "id INT", keys=["id"])
    streams.append({"line": [{"id": 1}]})
    with pytest.raises(RowExists):
        streams.append({"line": [{"id": 1}]}, append_id=AppendId(name(1), 0))
    assert streams.append({"line": []}, append_id=AppendId(name(2), 0)) == Appended({}, 0, 0)
    streams.append({"line": [{"id": 1, "_change_type": "delete"}]})
    assert streams.append({"line": [{"id": 1}]}, append_id=AppendId(name(1), 0)).numbers == {"line": 3}
    assert streams.known_appends == 1
    streams.close()


def test_a_folder_of_an_older_version_opens(tmp_path: Path) -> None:
    """Its log says nothing of ids; from now on they are kept."""
    streams = line(tmp_path)
    streams.append({"line": [{"id": 1}]})
    streams.close()
    heads = [record.head for record in read_records(tmp_path / "streams" / "_feed")]
    assert [sorted(head) for head in heads] == [["kind", "streams"], ["kind", "letters", "quiet", "resolved", "shares", "time_us", "transaction"]]
    again = opened(tmp_path, first_us=100)
    again.append({"line": [{"id": 2}]}, append_id=AppendId(name(1), 0))
    again.close()
    assert opened(tmp_path).append({"line": [{"id": 2}]}, append_id=AppendId(name(1), 0)).numbers == {"line": 2}


def test_the_state_is_what_the_log_can_hold() -> None:
    """As JSON and back, nothing is lost."""
    known = KnownAppends(appends_max=3)
    made: Callable[[int], Outcome] = lambda number: Outcome(Appended({"line": number}, number, number, number), number)  # noqa: E731
    for number in range(5):
        known.add(AppendId(name(number), number), made(number))
    again = KnownAppends(appends_max=3)
    again.restore(json.loads(json.dumps(known.state())))
    assert (again.mark, again.state()) == (5, known.state())
    assert again.find(AppendId(name(4), 4), "line") == made(4)
    assert Record({"kind": "begin", "appends": known.state()}).parts()
