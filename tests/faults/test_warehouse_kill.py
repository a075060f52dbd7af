"""A process killed while it writes or collects files: the kept versions read as before, and the next collection cleans up."""

import time
from pathlib import Path

import pytest

from tests.contracts.store_behaviour import SALE, add, rows_of, skus_at, take_out
from tests.contracts.test_store_on_delta import open_lakehouse
from tests.support.warm_python import run_warm

WORK = """
import sys, time
from pathlib import Path
from tests.contracts.store_behaviour import SALE, add, rows_of
from tests.contracts.test_store_on_delta import open_lakehouse
store = open_lakehouse(Path(sys.argv[1]))
version = store.newest_version(SALE)
files = store.write_files(SALE, rows_of(7), batch_id="dies")
store.discard(SALE, files)
store.collect(SALE, versions=lambda: [version], grace_s=0, now_s=time.time())
"""


@pytest.mark.parametrize("point", ["materialize.files_written", "gc.planned", "gc.removed_one", "gc.removed_one:2"])
def test_a_kill_leaves_the_versions_whole_and_nothing_for_ever(tmp_path: Path, point: str) -> None:
    """I6 for the table folder: SIGKILL at each of our points loses no committed row and no waste survives the next collection."""
    store = open_lakehouse(tmp_path)
    version = add(store, store.create(SALE), 1, 2)
    for sku in (3, 4, 5):
        store.write_files(SALE, rows_of(sku), batch_id="left over")

    done = run_warm("-c", WORK, tmp_path, environment={"RIGHTTIME_CRASH_AT": point})

    assert done.returncode == -9, done.stderr
    after = open_lakehouse(tmp_path)
    assert skus_at(after, version) == [1, 2]
    after.collect(SALE, versions=lambda: [version], grace_s=0, now_s=time.time())
    assert len(list((tmp_path / "tables" / "sale").glob("*.parquet"))) == 1
    assert skus_at(after, add(after, version, 6)) == [1, 2, 6]


CHANGE = """
import os, signal, sys
from pathlib import Path
from tests.contracts.store_behaviour import SALE, finish, prepare, rows_of
from tests.contracts.test_store_on_delta import open_lakehouse
store = open_lakehouse(Path(sys.argv[1]))
version = store.newest_version(SALE)
removal = prepare(store, version, 1, 4)
new = store.write_files(SALE, rows_of(7), batch_id="dies")
finish(store, version, removal, more=new)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("point", ["materialize.files_written", "materialize.files_written:2", ""], ids=["removal written", "rows written", "committed"])
def test_a_kill_during_a_change_leaves_the_rows_that_the_ledger_knows(tmp_path: Path, point: str) -> None:
    """I6 for removals: wherever the process dies before the ledger is written, the removed rows are back and the new ones are not there."""
    store = open_lakehouse(tmp_path)
    version = add(store, add(store, store.create(SALE), 1, 2), 3, 4)

    done = run_warm("-c", CHANGE, tmp_path, environment={"RIGHTTIME_CRASH_AT": point})

    assert done.returncode == -9, done.stderr
    after = open_lakehouse(tmp_path)
    assert skus_at(after, version) == [1, 2, 3, 4]
    assert after.newest_version(SALE) == (version if point else version + 1)
    now = after.undo(SALE, version=version)
    after.collect(SALE, versions=lambda: [now], grace_s=0, now_s=time.time())
    assert len(list((tmp_path / "tables" / "sale").glob("*.parquet"))) == 2
    assert skus_at(after, take_out(after, now, 1)) == [2, 3, 4]
