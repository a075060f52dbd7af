"""How the ledger's file is addressed, and who is writing it."""

import os
import socket
from pathlib import Path

import pytest

from righttime.ledger.database import _address
from righttime.ledger.lock import _started, living_writer


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
