"""How the ledger's file is addressed."""

from pathlib import Path

import pytest

from righttime.ledger.database import _address


@pytest.mark.parametrize(
    ("writable", "has_log", "mode"),
    [(True, True, "mode=rw"), (True, False, "mode=rw"), (False, True, "mode=ro"), (False, False, "immutable=1")],
)
def test_a_read_only_disk_is_read_as_it_is(writable: bool, has_log: bool, mode: str) -> None:
    """Without a log beside it the file is complete and needs no lock; with one, it is read together with the log."""
    assert _address(Path("/a b/ledger.db"), writable=writable, has_log=has_log) == f"file:///a%20b/ledger.db?{mode}"
