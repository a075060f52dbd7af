"""Appends whose answers are lost: taken once, whatever is lost and whoever restarts, or said to be unknown."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from righttime.errors import AccessDenied, AppendForgotten, AppendUnknown, MessageTooLarge, RightTimeError, ServiceFailed, ServiceUnreachable
from righttime.errors.flows import RowExists
from righttime.flight import appends
from righttime.flight.frames import Message, read_frame
from righttime.flight.streams import RemoteStreams
from righttime.queues.stream import Stream
from righttime.queues.streams import Streams
from righttime.settings import load_settings
from tests.support.stream_wire import Wire

UNREACHABLE = ServiceUnreachable(target="-", waited_s=0.0, reason="the test says so")


class Place:
    """A folder of streams that can be closed and opened again, and a wire to it that loses what it is told to."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder = folder
        self._settings = settings
        self._times = count(10, 10)
        self.lost: BaseException | None = None
        self.when = ""  # "before": it does not arrive; "after": its answer does not
        self.sent: list[str] = []
        self.message_bytes_max = 1 << 20
        self.open()

    def open(self) -> None:
        def issue(names: Sequence[str], given: int | None) -> int:
            return next(self._times) if given is None else given

        self.streams = Streams(self._folder / "streams", settings=load_settings(**self._settings), issue=issue, now_us=lambda: 2**50)
        self._wire = Wire(self.streams)

    def restart(self) -> None:
        self.streams.close()
        self.open()

    def lose(self, when: str, error: BaseException = UNREACHABLE) -> None:
        self.when, self.lost = when, error

    def call(self, action: str, header: dict[str, Any] | None = None, parts: Any = (), **options: Any) -> Message:
        return self._passed(action, lambda: self._wire.call(action, header, parts))

    def send(self, action: str, frame: pa.Buffer, **options: Any) -> Message:
        self.sent.append(read_frame(frame, bytes_max=1 << 30).text("append"))
        return self._passed(action, lambda: self._wire.send(action, frame))

    def _passed(self, action: str, work: Callable[[], Message]) -> Message:
        if action == "stream.mark" or not self.when:
            return work()
        when, self.when, error = self.when, "", self.lost
        assert error is not None
        if when == "after":
            work()
        raise error

    def ids(self) -> list[int]:
        return list(self.streams.table("line", 0, 10**15).column("id").to_pylist())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    there = Place(tmp_path, stream_appends_max=5)
    there.streams.create("line", "id INT", keys=["id"], on_bad="dead_letter")
    there.streams.create("event", "id INT")
    yield there
    there.streams.close()


@pytest.fixture
def line(place: Place) -> Stream:
    return client(place)


def client(place: Place, name: str = "line") -> Stream:
    wire: Any = place
    return Stream(RemoteStreams(lambda: wire), name)


@pytest.mark.parametrize("restart", [False, True], ids=["same service", "restarted"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("lost", [UNREACHABLE, ServiceFailed(reason="MemoryError")], ids=["unreachable", "failed"])
def test_an_append_in_doubt_is_taken_once_when_it_is_made_again(place: Place, line: Stream, when: str, restart: bool, lost: RightTimeError) -> None:
    """Whether it had arrived or not; the answer is that of the commit it made. Others in between are appends of their own."""
    place.lose(when, lost)
    with pytest.raises(AppendUnknown, match="stream line") as caught:
        line.insert([{"id": 1}], transaction="T")
    assert (caught.value.code, caught.value.retryable) == ("append.unknown", True)
    if restart:
        place.restart()
    line.insert([{"id": 2}])
    made = line.insert([{"id": 1}], transaction="T")
    assert (made.rows, made.rejected) == (1, 0)
    assert sorted(place.ids()) == [1, 2]
    assert place.sent[0] == place.sent[2] != place.sent[1]
    assert line.insert([{"id": 1}], transaction="T").rejected == 1, "in doubt no more, it is another append"


def test_a_replay_and_a_discard_in_doubt_are_made_once(place: Place, line: Stream) -> None:
    line.delete([{"id": 1}, {"id": 2}])
    line.insert([{"id": 1}])
    place.lose("after")
    with pytest.raises(AppendUnknown):
        line.replay([1])
    place.restart()
    assert line.replay([1]).rows == 1
    place.lose("after")
    with pytest.raises(AppendUnknown):
        line.discard()
    place.restart()
    assert line.discard() == 1
    assert line.discard() == 0


def test_ctrl_c_leaves_an_append_in_doubt(place: Place) -> None:
    event = client(place, "event")
    place.lose("after", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        event.insert([{"id": 1}])
    assert event.insert([{"id": 1}]).numbers == {"event": 1}
    assert event.insert([{"id": 1}]).numbers == {"event": 2}


def test_what_the_service_has_forgotten_is_not_guessed(place: Place, line: Stream) -> None:
    """More appends came since than it knows: the error says so once; made again after that, it is a new one."""
    place.lose("after")
    with pytest.raises(AppendUnknown):
        line.insert([{"id": 1}])
    other = client(place)
    for number in range(2, 8):
        other.insert([{"id": number}])
    with pytest.raises(AppendForgotten):
        line.insert([{"id": 1}])
    assert place.ids() == [1, *range(2, 8)]
    assert line.insert([{"id": 1}]).rejected == 1


def test_a_refusal_ends_the_doubt(place: Place) -> None:
    """It was not taken, and is not now."""
    place.streams.create("strict", "id INT", keys=["id"])
    strict = client(place, "strict")
    place.lose("before")
    with pytest.raises(AppendUnknown):
        strict.insert([{"id": 1}])
    place.streams.append({"strict": [{"id": 1}]})
    with pytest.raises(RowExists):
        strict.insert([{"id": 1}])
    place.streams.append({"strict": [{"id": 1, "_change_type": "delete"}]})
    assert strict.insert([{"id": 1}]).rows == 1
    assert place.sent[0] == place.sent[1] != place.sent[2]


def test_what_is_denied_says_nothing_of_an_earlier_attempt(place: Place, line: Stream) -> None:
    place.lose("after")
    with pytest.raises(AppendUnknown):
        line.insert([{"id": 1}])
    place.lose("before", AccessDenied(action="take changes", reason="-"))
    with pytest.raises(AccessDenied):
        line.insert([{"id": 1}])
    assert line.insert([{"id": 1}]).rejected == 0
    assert len(set(place.sent)) == 1


def test_an_append_that_is_too_large_is_refused_before_it_is_sent(place: Place, line: Stream) -> None:
    with pytest.raises(MessageTooLarge):
        line.insert(pa.table({"id": pa.array(range(400_000), pa.int32())}))
    assert place.sent == [] and line.insert([{"id": 1}]).rows == 1


def test_doubts_are_bounded(place: Place, line: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is given up."""
    monkeypatch.setattr(appends, "_DOUBTS_MAX", 2)
    for number in range(3):
        place.lose("before")
        with pytest.raises(AppendUnknown):
            line.insert([{"id": number}])
    for number in range(3):
        line.insert([{"id": number}])
    assert [place.sent.count(name) for name in place.sent[:3]] == [1, 2, 2]


@pytest.mark.parametrize("seed", range(6))
def test_any_losses_and_restarts_leave_each_append_once(tmp_path: Path, seed: int) -> None:
    """Two clients append until they are answered, over a wire that loses what it likes: every append is there once, and each client's in its order."""
    dice = Random(seed)
    place = Place(tmp_path, stream_log_bytes=dice.choice([1, 4000]))
    place.streams.create("line", "id INT, part INT", keys=["id"])
    clients = [client(place), client(place)]
    todo = [list(range(12)), list(range(100, 112))]
    while any(todo):
        which = dice.choice([which for which in (0, 1) if todo[which]])
        number = todo[which][0]
        if dice.random() < 0.6:
            place.lose(dice.choice(["before", "after"]))
        try:
            assert clients[which].insert([{"id": number, "part": 1}, {"id": number + 1000}]).rows == 2
            todo[which].pop(0)
        except AppendUnknown:
            pass
        place.when = ""
        if dice.random() < 0.2:
            place.restart()
    ids = [one for one in place.ids() if one < 1000]
    assert [one for one in ids if one < 100] == list(range(12)) and [one for one in ids if one >= 100] == list(range(100, 112))
    place.streams.close()
