"""How the ledger's file is addressed, and who is writing it."""

import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from righttime.errors import NotAWarehouse
from righttime.ledger.database import _address, open_database
from righttime.ledger.lock import WriterLock, _started, living_writer


@pytest.mark.parametrize(
    ("writable", "has_log", "mode"),
    [(True, True, "mode=rw"), (True, False, "mode=rw"), (False, True, "mode=ro"), (False, False, "immutable=1")],
)
def test_a_read_only_disk_is_read_as_it_is(writable: bool, has_log: bool, mode: str) -> None:
    """Without a log beside it the file is complete and needs no lock; with one, it is read together with the log."""
    assert _address(Path("/a b/ledger.db"), writable=writable, has_log=has_log) == f"file:///a%20b/ledger.db?{mode}"


def test_a_killed_writer_whose_number_another_process_got_is_not_taken_for_alive(tmp_path: Path) -> None:
    """Process numbers are used again, in containers at once; the start of the process tells the two apart."""
    (tmp_path / "writer.lock").write_text(f"1 {socket.gethostname()} 1\n")
    assert living_writer(tmp_path) is None
    (tmp_path / "writer.lock").write_text(f"{os.getpid()} {socket.gethostname()} {_started(os.getpid())}\n")
    assert living_writer(tmp_path) == os.getpid()
    (tmp_path / "writer.lock").write_text("77 elsewhere 1\n")
    assert living_writer(tmp_path) == 77
    (tmp_path / "writer.lock").write_text("")
    assert living_writer(tmp_path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="processes have namespaces on Linux only")
def test_a_writer_whose_process_cannot_be_seen_from_here_is_alive_as_long_as_it_holds_the_lock(tmp_path: Path) -> None:
    """In another container the same process has another number, or none: not the number decides, but the lock."""
    nobody = 2**22 + 1  # above every number that Linux gives out
    lock = WriterLock.acquire(tmp_path)
    (tmp_path / "writer.lock").write_text(f"{nobody} {socket.gethostname()} 1\n")

    assert living_writer(tmp_path) == nobody

    lock.abandon()  # as its end leaves it, however it came: the name stays, the lock does not
    assert living_writer(tmp_path) is None


def test_asking_for_the_writer_never_keeps_one_from_starting(tmp_path: Path) -> None:
    """Readers ask before every query; they look at the lock and never take it."""
    (tmp_path / "writer.lock").write_text(f"{2**22 + 1} {socket.gethostname()} 1\n")
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            living_writer(tmp_path)

    readers = [threading.Thread(target=ask) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(300):
            WriterLock.acquire(tmp_path).abandon()  # raises if anybody else holds it
    finally:
        done.set()
        for reader in readers:
            reader.join()


def test_a_folder_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Whatever the system says to the folder, the ledger or the lock, it is an error with a code, and no lock stays behind."""
    open_database(tmp_path / "shop", read_only=False, create=True).close()
    (tmp_path / "shop" / "writer.lock").unlink()
    (tmp_path / "shop" / "writer.lock").mkdir()
    with pytest.raises(NotAWarehouse, match="Is a directory"):
        open_database(tmp_path / "shop", read_only=False, create=False)

    (tmp_path / "odd" / "ledger.db").mkdir(parents=True)
    with pytest.raises(NotAWarehouse, match="Is a directory"):
        open_database(tmp_path / "odd", read_only=True, create=False)

    (tmp_path / "half" / "ledger.db.new").mkdir(parents=True)
    with pytest.raises(NotAWarehouse, match="cannot be created"):
        open_database(tmp_path / "half", read_only=False, create=True)
    with pytest.raises(NotAWarehouse, match="cannot be created"):
        open_database(tmp_path / "half", read_only=False, create=True)

    with pytest.raises(NotAWarehouse, match="File name too long"):
        open_database(tmp_path / ("x" * 300), read_only=True, create=False)
