"""SIGKILL in the middle of a flow's work, on real Spark: no job is lost, doubled or half visible (AT-24).

`RIGHTTIME_FLOW_SEEDS=10` runs ten seeds at each step; one by default.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from righttime.changes.faults import CrashPoint
from tests.support.flow_shop import FOREVER, expected_sales, living, open_shop, sales_flow, sales_of

SEEDS = range(1, 1 + int(os.environ.get("RIGHTTIME_FLOW_SEEDS", "1")))
# The step, and at which arrival there to die: late enough that earlier jobs are stored and later ones are only in memory.
STEPS = [
    (CrashPoint.JOB_PREPARED, 3),
    (CrashPoint.JOB_COMPUTED, 3),
    (CrashPoint.JOB_STAGED, 4),
    (CrashPoint.JOB_PUBLISHED, 3),
    (CrashPoint.TABLES_COMMITTED, 1),
    (CrashPoint.LEDGER_COMMITTED, 4),
]


def _work(folder: Path, seed: int, rounds: int, *, crash_at: str | None = None) -> tuple[int, list[list[str]]]:
    environment = {**os.environ, **({"RIGHTTIME_CRASH_AT": crash_at} if crash_at else {})}
    command = [sys.executable, "-m", "tests.support.flow_crash", str(folder), str(seed), str(rounds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode, [line.split(" ", 2) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("point", "arrival"), STEPS, ids=[point.value for point, _ in STEPS])
def test_at_24_a_flow_goes_on_after_a_kill(tmp_path: Path, point: CrashPoint, arrival: int, seed: int) -> None:
    """What was appended is there; what was answered is still the answer at its cut; the next answer is the recomputation at its own."""
    code, said = _work(tmp_path / "wh", seed, 8, crash_at=f"{point}:{arrival}")
    assert code == -signal.SIGKILL, f"{point} was reached fewer than {arrival} times"
    with open_shop(tmp_path / "wh", background_idle_s=0) as wh:
        times = set(wh._flows("test").feed.streams.table("line", 0, FOREVER)["_commit_timestamp"].cast("int64").to_pylist())
        times |= set(wh._flows("test").feed.streams.table("purchase", 0, FOREVER)["_commit_timestamp"].cast("int64").to_pylist())
        assert {int(words[1]) for words in said if words[0] == "append"} <= times, "an acknowledged append is lost"
        for words in said:
            if words[0] == "answer":
                assert {tuple(key): tuple(value) for key, value in json.loads(words[2])} == expected_sales(wh, int(words[1]))
        assert living(wh, "line", FOREVER) is not None
        with wh.run(sales_flow()):
            answer = wh.read("sales", wait="120s")
            assert sales_of(answer.rows()) == expected_sales(wh, answer.receipt.cut_us)
        assert wh.losses() == []
