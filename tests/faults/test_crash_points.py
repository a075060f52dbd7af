"""I6 at every named point: a real process dies by SIGKILL in the middle of its work, and the warehouse it leaves is whole.

`RIGHTTIME_CRASH_SEEDS=10` runs ten seeds at each point, and as many more of those in `test_crash_anywhere.py`; by default two, without threads and with.
"""

import os
from pathlib import Path
from random import Random

import pytest

from righttime.changes.faults import CrashPoint
from tests.support.crash_judge import Judge, Run
from tests.support.crash_plan import Plan
from tests.support.crash_zygote import Victim, Zygote

SEEDS = range(int(os.environ.get("RIGHTTIME_CRASH_SEEDS", "2")))
OTHERS = ("feed.", "segment.", "job.")  # steps of streams and flows, which have tests of their own
# Before the ledger's transaction a commit does not exist; after it, nothing can take it away again.
BEFORE = {
    CrashPoint.COMMIT_STAGED,
    CrashPoint.LOG_WRITTEN,
    CrashPoint.LOG_SYNCED,
    CrashPoint.FILES_WRITTEN,
    CrashPoint.TABLE_COMMITTED,
    CrashPoint.TABLES_COMMITTED,
    CrashPoint.LEDGER_BEGUN,
}
AFTER = {CrashPoint.LEDGER_COMMITTED, CrashPoint.NOTICE_GIVEN, CrashPoint.LOG_REMOVED}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("point", [point for point in CrashPoint if not point.startswith(OTHERS)])
def test_a_kill_at_a_named_point_loses_doubles_and_halves_nothing(crash_place: Path, zygote: Zygote, point: CrashPoint, seed: int) -> None:
    """Whatever was acknowledged as durable is there once and whole; what was only in memory is there whole or reported; the warehouse goes on."""
    folder, journal = crash_place / "shop", crash_place / "journal"
    arrival = Random(f"{point}/{seed}").randint(1, 25)
    threads = seed % 2 == 1

    death = zygote.run(Victim(str(folder), str(journal), seed=seed, threads=threads, crash_at=f"{point}:{arrival}"))

    assert death.killed, death.error or f"{point}:{arrival} was never reached"
    run, judge = Run.read(journal, Plan(seed)), Judge(folder)
    judge.after_kill(run, expected_there=None if threads else False if point in BEFORE else True if point in AFTER else None)
    if seed == 0:
        judge.check_in_duckdb()
    judge.use_again(run)
