"""The commit trace: notes per source that a later process reads."""

from pathlib import Path

import pytest

from righttime.errors import BadSource
from righttime.ledger.trace import CommitTrace


def test_the_newest_note_of_each_source_is_read_by_the_next_process(tmp_path: Path) -> None:
    """Sources without a note are not there; a source keeps its slot."""
    trace = CommitTrace.open(tmp_path)
    till, web = trace.slot("till"), trace.slot("wéb")
    trace.slot("silent")
    for number in range(1, 6):
        trace.record(till, number, number * 10, number * 100)
    trace.record(web, 1, 7, 70)
    trace.close()

    again = CommitTrace.open(tmp_path)

    assert again.read() == {"till": (5, 50, 500), "wéb": (1, 7, 70)}
    assert again.slot("till") == till


def test_reset_forgets_everything_under_a_new_id(tmp_path: Path) -> None:
    """After recovery the trace is empty, and known to be another one."""
    trace = CommitTrace.open(tmp_path)
    trace.record(trace.slot("till"), 1, 1, 1)
    old_id = trace.trace_id
    assert CommitTrace.open(tmp_path).trace_id == old_id

    trace.reset()

    assert trace.read() == {}
    assert trace.trace_id != old_id
    trace.record(trace.slot("web"), 2, 2, 2)
    assert CommitTrace.open(tmp_path).read() == {"web": (2, 2, 2)}


def test_the_trace_grows_with_its_sources_up_to_the_bound(tmp_path: Path) -> None:
    """Notes made before growing stay, slots given before growing stay valid; the source over the bound is refused."""
    trace = CommitTrace.open(tmp_path, sources_max=300)
    slots = {f"s{number}": trace.slot(f"s{number}") for number in range(300)}
    for number, slot in enumerate(slots.values(), start=1):
        trace.record(slot, number, number, number)

    with pytest.raises(BadSource):
        trace.slot("one more")
    assert CommitTrace.open(tmp_path).read() == {f"s{number}": (number + 1,) * 3 for number in range(300)}


def test_a_released_slot_goes_to_another_source_without_its_notes(tmp_path: Path) -> None:
    """Releasing makes room within the bound; the new owner starts empty."""
    trace = CommitTrace.open(tmp_path, sources_max=1)
    trace.record(trace.slot("old"), 5, 5, 5)
    trace.release("old")
    trace.release("old")
    assert trace.read() == {}

    slot = trace.slot("new")

    assert trace.read() == CommitTrace.open(tmp_path).read() == {}
    trace.record(slot, 1, 1, 1)
    assert CommitTrace.open(tmp_path).read() == {"new": (1, 1, 1)}


@pytest.mark.parametrize("name", ["", "x" * 191, "ü" * 96])
def test_a_name_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    """The name of a source has 1 to 190 bytes."""
    with pytest.raises(BadSource):
        CommitTrace.open(tmp_path).slot(name)


@pytest.mark.parametrize("content", [b"", b"RTTRACE1", bytes(4096), b"\xff" * 5000])
def test_a_trace_that_a_power_failure_spoiled_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    """What is not readable holds no notes, and does not keep the warehouse from opening."""
    (tmp_path / "trace.bin").write_bytes(content)

    trace = CommitTrace.open(tmp_path)

    assert trace.read() == {}
    trace.record(trace.slot("till"), 1, 1, 1)
    assert CommitTrace.open(tmp_path).read() == {"till": (1, 1, 1)}


def test_spoiled_slots_behind_a_good_header_are_survived(tmp_path: Path) -> None:
    """Bytes that are no name or no note do not keep the warehouse from opening."""
    (tmp_path / "trace.bin").write_bytes(b"RTTRACE1" + b"0" * 56 + b"\xff" * 600)

    trace = CommitTrace.open(tmp_path)

    trace.record(trace.slot("till"), 1, 1, 1)
    assert trace.read()["till"] == (1, 1, 1)
