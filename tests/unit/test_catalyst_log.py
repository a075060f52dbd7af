"""The write-ahead log: what is written comes back, what the ledger does not know is cut off, damage is seen."""

from pathlib import Path

import pyarrow as pa
import pytest

import righttime as rt
from righttime.catalyst.log import LogEntry, WriteAheadLog, encode
from righttime.errors import CommitFailed, LogFull, WarehouseDamaged
from righttime.ledger.sqlite import Ledger
from righttime.ledger.state import LogPosition
from righttime.settings import load_settings

START = LogPosition(0, 0)
FIRST = LogPosition(1, 0)
"""Where the first record of a new log lies: an append to an empty log begins a file."""


def open_log(folder: Path, **bounds: int) -> WriteAheadLog:
    return WriteAheadLog(folder / "log", settings=load_settings(**bounds))


def entry(first_id: int, rows: int = 3, *, table: str = "x", source: str = "p", times: list[tuple[int, int]] | None = None) -> LogEntry:
    content = pa.table({"a": pa.array(range(first_id, first_id + rows), pa.int32()), "b": pa.array([f"é{n}" for n in range(rows)])})
    return LogEntry(table, source, [(first_id, rows)], times or [], content)


def written(log: WriteAheadLog, at: LogPosition, *entries: LogEntry) -> LogPosition:
    """Append one record and accept it."""
    record = log.append(entries, at=at)
    log.keep(record)
    return record.end


def read(folder: Path, begin: LogPosition, end: LogPosition) -> list[LogEntry]:
    return list(open_log(folder).read(begin, end))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "log").iterdir())


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    """Rows, ids and times of every entry, record after record, in a new process."""
    log = open_log(tmp_path)
    entries = [entry(1, times=[(10, 3)]), entry(4, table="y", source="q"), entry(7, rows=1, times=[(10, 6), (20, 7)])]
    end = written(log, START, *entries[:2])
    end = written(log, end, entries[2])

    found = read(tmp_path, FIRST, end)

    assert [(one.table, one.source, one.runs, one.times) for one in found] == [(one.table, one.source, one.runs, one.times) for one in entries]
    assert all(one.rows.equals(known.rows) for one, known in zip(found, entries, strict=True))
    assert [one.last_id for one in found] == [3, 6, 7]


def test_a_torn_tail_is_cut_off_by_the_next_append(tmp_path: Path) -> None:
    """Whatever lies behind the ledger's position never happened, and does not disturb what comes after."""
    log = open_log(tmp_path)
    end = written(log, START, entry(1))
    torn = open_log(tmp_path)
    list(torn.read(FIRST, end))
    torn.append([entry(4)], at=end)  # the ledger never hears of it
    path = tmp_path / "log" / files(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:-5])

    again = open_log(tmp_path)
    assert [one.last_id for one in again.read(FIRST, end)] == [3]
    end = written(again, end, entry(7))

    assert [one.last_id for one in read(tmp_path, FIRST, end)] == [3, 9]


def test_a_record_that_the_ledger_never_took_takes_no_room(tmp_path: Path) -> None:
    """It does not exist: neither behind the ledger's position in its file, nor in a file that was begun for it."""
    size = len(encode([entry(1)], after=START))
    log = open_log(tmp_path, log_bytes_max=2 * size + size // 2)
    for _ in range(5):
        log.append([entry(1)], at=START)  # the ledger never hears of it
    end = written(log, START, entry(1))
    for _ in range(5):
        log.append([entry(4)], at=end)
    end = written(log, end, entry(4))
    with pytest.raises(LogFull):
        log.append([entry(7)], at=end)
    assert [one.last_id for one in read(tmp_path, FIRST, end)] == [3, 6]


def test_a_file_that_was_begun_for_a_record_that_the_ledger_never_took_goes_with_the_next_release(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_file_bytes=1)
    end = written(log, START, entry(1))
    log.append([entry(4)], at=end)
    assert len(files(tmp_path)) == 2

    log.release(FIRST, end=end)

    assert len(files(tmp_path)) == 1
    assert [one.last_id for one in read(tmp_path, FIRST, end)] == [3]


def test_a_step_that_failed_after_it_was_logged_leaves_the_log_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger fails for a moment: the commit can be made again, and after it the warehouse is as if nothing had been."""
    with rt.open(tmp_path / "shop", log_bytes_max=100_000) as wh:
        wh.create_table("sale", "n INT, t STRING")
        load = wh.producer(name="till")
        load.insert_many("sale", [(n, "x" * 50) for n in range(1000)])
        with monkeypatch.context() as failing:
            failing.setattr(Ledger, "write_state", _no_room)
            with pytest.raises(CommitFailed):
                load.commit(durability="log")
        load.commit(durability="log")
        assert len(wh.read("sale")) == 1000
        wh.materialize("sale")
        load.insert_many("sale", [(n, "x" * 50) for n in range(1000)])
        load.commit(durability="log")
        assert len(wh.read("sale")) == 2000


def _no_room(*_: object, **__: object) -> None:
    raise OSError("disk full for a moment")


def test_damage_is_found_by_the_checksum(tmp_path: Path) -> None:
    """A changed byte anywhere in a record that the ledger names, a missing tail or a missing file: an error, never rows."""
    end = written(open_log(tmp_path), START, entry(1))
    path = tmp_path / "log" / files(tmp_path)[0]
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with pytest.raises(WarehouseDamaged):
            read(tmp_path, FIRST, end)
    for length in (0, 10, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(WarehouseDamaged):
            read(tmp_path, FIRST, end)
    path.unlink()
    with pytest.raises(WarehouseDamaged):
        read(tmp_path, FIRST, end)


def test_files_rotate_at_their_size_and_go_when_they_are_superseded(tmp_path: Path) -> None:
    """Each full file is followed by the next; those before the oldest needed record are removed, the others stay readable."""
    log = open_log(tmp_path, log_file_bytes=1)
    end = START
    for first_id in (1, 4, 7):
        end = written(log, end, entry(first_id))
    assert len(files(tmp_path)) == 3

    begin = log.begin({("x", "p"): 6}, appended=None, end=end)
    log.release(begin, end=end)

    assert len(files(tmp_path)) == 1
    assert [one.last_id for one in read(tmp_path, begin, end)] == [9]
    begin = log.begin({("x", "p"): 9}, appended=None, end=end)
    assert begin == end
    log.release(begin, end=end)
    assert files(tmp_path) == []
    assert log.bytes_held() == 0
    record = log.append([entry(10)], at=end)
    begin = log.begin({("x", "p"): 9}, appended=record, end=record.end)
    assert begin == record.start
    assert [one.last_id for one in read(tmp_path, begin, record.end)] == [12]


def test_a_record_is_needed_while_one_of_its_lanes_is(tmp_path: Path) -> None:
    """One lane stored, the other not: the record stays."""
    log = open_log(tmp_path)
    record = log.append([entry(1), entry(4, table="y")], at=START)
    log.keep(record)

    assert log.begin({("x", "p"): 3}, appended=None, end=record.end) == record.start
    assert log.begin({("x", "p"): 3, ("y", "p"): 6}, appended=None, end=record.end) == record.end
    assert log.begin({}, appended=log.append([entry(7)], at=record.end), end=record.end) == record.start


def test_a_full_log_refuses_and_changes_nothing(tmp_path: Path) -> None:
    """The bound counts what is held; the log is as it was after the refusal."""
    log = open_log(tmp_path, log_bytes_max=1500)
    end = written(log, START, entry(1))
    held = log.bytes_held()
    with pytest.raises(LogFull):
        for first_id in range(4, 100, 3):
            end = written(log, end, entry(first_id))
    assert held <= log.bytes_held() <= 1500
    found = [one.last_id for one in read(tmp_path, FIRST, end)]
    assert found == list(range(3, 3 * len(found) + 1, 3))


def test_the_size_is_told_while_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A status may list a file that the mover removes before its size is read."""
    log = open_log(tmp_path)
    written(log, START, entry(1))
    held = log.bytes_held()
    there = log._files()
    monkeypatch.setattr(log, "_files", lambda: [*there, tmp_path / "log" / "000000000099.log"])

    assert log.bytes_held() == held


def test_what_the_ledger_never_got_does_not_come_back_behind_the_next_file(tmp_path: Path) -> None:
    """A record that was cut off stays so if the next one goes to a new file, because the files are smaller now."""
    end = written(open_log(tmp_path), START, entry(1))
    killed = open_log(tmp_path)
    list(killed.read(FIRST, end))
    killed.append([entry(4)], at=end)  # the ledger never hears of it

    smaller = open_log(tmp_path, log_file_bytes=1)
    list(smaller.read(FIRST, end))
    end = written(smaller, end, entry(4, source="q"))

    assert len(files(tmp_path)) == 2
    assert [one.source for one in read(tmp_path, FIRST, end)] == ["p", "q"]


@pytest.mark.parametrize("records_left", [0, 1])
def test_a_file_that_lost_whole_records_is_damage_also_if_others_follow(tmp_path: Path, records_left: int) -> None:
    """A partial restore, say: each file is read to where the next one says that it ended."""
    log = open_log(tmp_path)
    first = written(log, START, entry(1))
    end = written(log, first, entry(4))
    smaller = open_log(tmp_path, log_file_bytes=1)
    list(smaller.read(FIRST, end))
    end = written(smaller, end, entry(7))
    path = tmp_path / "log" / files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[: first.offset * records_left])

    with pytest.raises(WarehouseDamaged):
        read(tmp_path, FIRST, end)


def test_files_of_earlier_versions_that_do_not_say_where_the_last_one_ended_are_read_whole(tmp_path: Path) -> None:
    """What was written by the release before stays readable."""
    log = open_log(tmp_path)
    (tmp_path / "log" / "000000000001.log").write_bytes(encode([entry(1)]))
    (tmp_path / "log" / "000000000002.log").write_bytes(encode([entry(4)]))

    assert [one.last_id for one in log.read(FIRST, LogPosition(2, len(encode([entry(4)]))))] == [3, 6]


def test_the_name_of_a_file_is_synced_also_if_a_killed_process_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have died between the file and the sync of its folder; a loss of power later would take the file."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "000000000001.log").write_bytes(b"torn")
    synced: list[Path] = []
    monkeypatch.setattr("righttime.catalyst.log.sync_folder", synced.append)

    written(open_log(tmp_path), START, entry(1))

    assert synced == [tmp_path / "log"]
