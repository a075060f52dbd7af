"""SIGKILL while a flow reads what happens to a table: the stream never has what the table lost.

`RIGHTTIME_FLOW_SEEDS=10` runs ten seeds at each step; one by default.
"""

import os
import signal
from pathlib import Path

import pytest

from righttime.changes.faults import CrashPoint
from tests.support.tap_crash import KEYS, check, opened
from tests.support.warm_python import run_warm

SEEDS = int(os.environ.get("RIGHTTIME_FLOW_SEEDS", "1"))
POINTS = {
    CrashPoint.COMMIT_PUBLISHED: 9,
    CrashPoint.FEED_WRITTEN: 4,
    CrashPoint.FEED_SYNCED: 4,
    CrashPoint.JOB_PREPARED: 3,
    CrashPoint.JOB_PUBLISHED: 3,
    CrashPoint.TABLES_COMMITTED: 2,
    CrashPoint.LEDGER_BEGUN: 9,
    CrashPoint.LEDGER_COMMITTED: 9,
}


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize(("point", "arrival"), POINTS.items(), ids=[point.value for point in POINTS])
def test_a_stream_of_a_table_has_nothing_that_the_table_lost(tmp_path: Path, point: CrashPoint, arrival: int, seed: int) -> None:
    """The copy is the table after the kill, after every key is written again, and after the table is stored."""
    environment = {**os.environ, "RIGHTTIME_CRASH_AT": f"{point}:{arrival}"}
    done = run_warm("-m", "tests.support.tap_crash", tmp_path / "wh", str(seed), "12", environment=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:] or f"{point} was reached fewer than {arrival} times"
    with opened(tmp_path / "wh") as wh:
        check(wh)
        with wh.producer(name="shop") as load:
            load.upsert_many("orders", [{"k": k, "v": 100 + k} for k in range(KEYS)])
            load.commit()
        check(wh)
        wh.materialize("orders", wait="60s")
        check(wh)
        assert dict(wh.read("copy").rows()) == {k: 100 + k for k in range(KEYS)}
