"""Images of hot rows: few files whatever the size of commits, tails of a quarter of a segment at most, each written once for queries at one cut."""

import fcntl
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import righttime as rt
from righttime.catalyst.images import Images, _private_folder
from righttime.catalyst.segments import Segment
from righttime.changes.schema import TableSchema
from righttime.errors import FileNotWritten
from tests.support.crash import engine_of
from tests.support.state_tables import asking

ROW = "k INT NOT NULL, v INT"


def images(wh: rt.Warehouse) -> list[list[int]]:
    """Return the keys in each file of hot rows that a query would read now."""
    snapshots = engine_of(wh).snapshots
    with snapshots.take(["x"], asking()) as snapshot:
        files = snapshots.files(snapshot.tables["x"])
        assert files is not None and len(files.paths) == len(files.images)
        return [pq.read_table(path)["k"].to_pylist() for path in files.paths]


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count from now on how often the row of each key is written into a file."""
    written: Counter[int] = Counter()
    write = Images._write_rows

    def count(self: Images, table: TableSchema, rows: pa.Table, *, in_memory: bool) -> Segment:
        written.update(rows["k"].to_pylist())
        return write(self, table, rows, in_memory=in_memory)

    monkeypatch.setattr(Images, "_write_rows", count)
    return written


def test_a_trickle_of_commits_is_read_from_few_files_and_no_row_is_written_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query after each commit: segments of a quarter, joined to a full one, and a tail."""
    written = counted(monkeypatch)
    with rt.open(tmp_path / "wh", segment_rows=40) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        most = 0
        for key in range(400):
            producer.insert("x", (key, key))
            producer.commit()
            files = images(wh)
            assert [key for keys in files for key in keys] == list(range(key + 1))
            full = sum(len(keys) >= 40 for keys in files)
            assert full >= (key + 1) // 40 - 1
            most = max(most, len(files) - full)
        assert 2 <= most <= 5
        # Ten times in a tail, which is sealed with ten rows, then in a quarter and in a full segment.
        assert max(written.values()) <= 12


def test_what_one_commit_brings_is_one_segment(tmp_path: Path) -> None:
    with rt.open(tmp_path / "wh", segment_rows=40) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        producer.insert_many("x", [(key, key) for key in range(200)])
        producer.commit()
        assert [len(keys) for keys in images(wh)] == [200]


def files_of(wh: rt.Warehouse, snapshot: Any) -> list[list[int]]:
    """Return the keys in each file of a snapshot that is held."""
    files = engine_of(wh).snapshots.files(snapshot.tables["x"])
    assert files is not None
    return [pq.read_table(path)["k"].to_pylist() for path in files.paths]


def test_queries_that_were_there_before_do_not_join_segments_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was joined for another query serves them as it was: nothing is written."""
    with rt.open(tmp_path / "wh", segment_rows=40) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        snapshots = engine_of(wh).snapshots
        for begin in range(0, 40, 10):
            producer.insert_many("x", [(key, key) for key in range(begin, begin + 10)])
            producer.commit()
            assert sum(map(len, images(wh))) == begin + 10
        with snapshots.take(["x"], asking()) as first, snapshots.take(["x"], asking()) as second:
            assert [len(keys) for keys in files_of(wh, first)] == [40]
            written = counted(monkeypatch)
            assert [len(keys) for keys in files_of(wh, second)] == [10] * 4
            assert sorted(key for keys in files_of(wh, second) for key in keys) == list(range(40))
            assert not written
        assert [len(keys) for keys in images(wh)] == [40]


def test_rows_behind_a_part_of_a_segment_are_sealed(tmp_path: Path) -> None:
    """Storing may end within a segment that was sealed meanwhile; the rest of it is written per cut, and what comes after it is not."""
    with rt.open(tmp_path / "wh", segment_rows=40) as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        producer.insert_many("x", [(key, key) for key in range(20)])
        producer.commit()
        assert [len(keys) for keys in images(wh)] == [20]
        catalyst = engine_of(wh).catalyst
        with catalyst.lock:
            lane = catalyst.tables["x"].lane("p")
            lane.stored_id = lane.pieces[0].id_at(4)  # as if five rows were stored
        for key in range(20, 35):
            producer.insert("x", (key, key))
            producer.commit()
            files = images(wh)
            assert sorted(key for keys in files for key in keys) == list(range(5, key + 1))
        assert list(range(20, 30)) in files and [*range(5, 20), *range(30, 35)] in files
        with catalyst.lock:
            lane.stored_id = 0


@pytest.mark.parametrize("fails", [False, True])
def test_queries_at_one_cut_share_a_tail_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """The second waits for the first to write it; if that fails, it writes by itself."""
    write = Images._write_rows
    begun, go_on = threading.Event(), threading.Event()
    written: list[str] = []

    def gated(self: Images, *arguments: Any, **options: Any) -> Segment:
        written.append(threading.current_thread().name)
        if len(written) == 1:
            begun.set()
            assert go_on.wait(30)
            if fails:
                raise FileNotWritten(path="/nowhere", reason="the disk is full")
        return write(self, *arguments, **options)

    with rt.open(tmp_path / "wh") as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        producer.insert("x", (1, 1))
        producer.commit()
        monkeypatch.setattr(Images, "_write_rows", gated)
        found: dict[str, object] = {}

        def query() -> None:
            name = threading.current_thread().name
            try:
                found[name] = images(wh)
            except FileNotWritten as error:
                found[name] = error.code

        threads = [threading.Thread(target=query, name=name) for name in ("first", "second")]
        threads[0].start()
        assert begun.wait(30)
        threads[1].start()
        threads[1].join(0.2)
        assert threads[1].is_alive() and written == ["first"]
        go_on.set()
        for thread in threads:
            thread.join(30)
        assert found == ({"first": FileNotWritten.code, "second": [[1]]} if fails else {"first": [[1]], "second": [[1]]})
        assert written == (["first", "second"] if fails else ["first"])


def test_a_tail_does_not_wait_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that begin together at different cuts write their tails at the same time."""
    write = Images._write_rows
    both = threading.Barrier(2, timeout=30)

    def together(self: Images, *arguments: Any, **options: Any) -> Segment:
        both.wait()
        return write(self, *arguments, **options)

    with rt.open(tmp_path / "wh") as wh:
        wh.create_table("x", ROW)
        producer = wh.producer(name="p")
        snapshots = engine_of(wh).snapshots
        producer.insert("x", (1, 1))
        producer.commit()
        with snapshots.take(["x"], asking()) as older:
            producer.insert("x", (2, 2))
            producer.commit()
            with snapshots.take(["x"], asking()) as newer:
                monkeypatch.setattr(Images, "_write_rows", together)
                found: list[list[int]] = []

                def read(snapshot: Any) -> None:
                    files = snapshots.files(snapshot.tables["x"])
                    assert files is not None
                    found.append([key for path in files.paths for key in pq.read_table(path)["k"].to_pylist()])

                threads = [threading.Thread(target=read, args=(snapshot,)) for snapshot in (older, newer)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(40)
        assert sorted(found) == [[1], [1, 2]]


def test_a_folder_that_is_being_made_is_nobody_elses_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that begin together: a folder is seen only when it is locked, so that neither takes the other's for that of a dead one."""
    lock_file = fcntl.flock

    def beside_another(fd: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock_file)
        _, other_lock = _private_folder(tmp_path)  # between the making of the file and its lock
        os.close(other_lock)
        lock_file(fd, how)

    monkeypatch.setattr(fcntl, "flock", beside_another)
    folder, lock = _private_folder(tmp_path)
    assert (folder / "lock").exists()
    third, third_lock = _private_folder(tmp_path)
    assert (folder / "lock").exists()
    assert sorted(tmp_path.iterdir()) == sorted([folder, third])  # the other one's owner is dead by now
    os.close(lock)
    os.close(third_lock)
