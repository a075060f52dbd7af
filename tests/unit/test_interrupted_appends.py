"""Ctrl-C in an append to streams: wherever it comes, the append is made or not begun, and no later one is lost for it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import righttime as rt
from tests.support.ctrl_c import pressed_at


@pytest.fixture(autouse=True)
def plain_handler() -> Iterator[None]:
    """Interrupts as a program has them; where a Spark runs in this process, it has put a handler of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


_FIRST, _STEP = 1_000, 9  # before that an append is only read and judged


def ids(wh: rt.Warehouse, stream: str) -> list[int]:
    found: list[int] = wh.stream(stream).changes()["id"].to_pylist()
    return found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt may come while a generator is closed
def test_an_append_after_an_interrupted_one_is_there_after_a_restart(tmp_path: Path) -> None:
    """One that is in the log and not shown would give its place to the next, and a restart would keep the first of the two."""
    made: dict[str, list[int]] = {"one": [], "other": []}
    with rt.open(tmp_path / "wh", stream_segment_rows=40, stream_log_bytes=20_000) as wh:
        for stream in made:
            wh.create_stream(stream, "id INT", keys=["id"], on_bad="dead_letter")
        place = _FIRST

        def append() -> None:
            """Two rows with one key, of which the second becomes a dead letter."""
            wh.append({stream: [{"id": 2 * place}, {"id": 2 * place}] for stream in made})

        while pressed_at(place, append):
            wh.append({stream: [{"id": 2 * place + 1}] for stream in made})
            place += _STEP
        for stream in made:
            made[stream] = ids(wh, stream)
            assert [number for number in made[stream] if number % 2] == list(range(2 * _FIRST + 1, 2 * place, 2 * _STEP))
            assert wh.stream(stream).dead_letters().num_rows == sum(number % 2 == 0 for number in made[stream])
        assert place > _FIRST + 20 * _STEP, "it was pressed all over the writing"
        shown = sum(number % 2 == 0 for number in made["one"])
        assert 0 < shown < (place - _FIRST) // _STEP, "before it was made, and after"
        assert made["one"] == made["other"]
    with rt.open(tmp_path / "wh") as wh:
        assert {stream: ids(wh, stream) for stream in made} == made
        for stream in made:
            assert wh.stream(stream).dead_letters().num_rows == sum(number % 2 == 0 for number in made[stream])
