"""I6 at any moment: processes killed at random times, several in a row on one warehouse, and again while they recover."""

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from tests.support.crash_judge import Judge, Run
from tests.support.crash_plan import Plan
from tests.support.crash_zygote import Victim, Zygote

SEEDS = int(os.environ.get("RIGHTTIME_CRASH_SEEDS", "2"))
STRIDE = 3 if SEEDS <= 2 else 1
FILE_EVENTS_MAX = 200


@pytest.mark.parametrize("seed", range(3 * SEEDS))
def test_kills_at_random_times_lose_double_and_halve_nothing(crash_place: Path, zygote: Zygote, seed: int) -> None:
    """Three processes in a row die at moments that nobody chose; after each the warehouse is whole, and at the end it is as good as new."""
    dice = Random(f"anywhere/{seed}")
    judge = Judge(crash_place / "shop")
    for number in range(3):
        journal = crash_place / f"journal-{number}"
        life_s = dice.uniform(0.0, 0.35)

        death = zygote.run(Victim(str(judge.folder), str(journal), seed=seed, run=number, threads=dice.random() < 0.5, life_s=life_s))

        assert death.killed, death.error
        run = Run.read(journal, Plan(seed, run=number))
        judge.after_kill(run)
    judge.use_again(run)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_kills_at_random_times_of_recovery_change_nothing(crash_place: Path, zygote: Zygote, seed: int) -> None:
    """A process that dies while it recovers leaves the same work to the next one, however often that happens."""
    dice = Random(f"recovery/{seed}")
    folder, journal = crash_place / "shop", crash_place / "journal"
    death = zygote.run(Victim(str(folder), str(journal), seed=seed, crash_at=f"{dice.choice(UNFINISHED)}:{dice.randint(5, 15)}"))
    assert death.killed, death.error

    for _ in range(4):
        death = zygote.run(Victim(str(folder), work="open", life_s=dice.uniform(0.0, 0.04)))
        assert death.killed, death.error

    run, judge = Run.read(journal, Plan(seed)), Judge(folder)
    judge.after_kill(run)
    judge.use_again(run)


# Deaths after which recovery has the most to do: Delta commits to undo, log records to cut off, rows to replay, losses to report.
UNFINISHED = ("materialize.tables_committed", "log.synced", "ledger.committed", "log.removed")


@pytest.mark.parametrize("point", UNFINISHED)
def test_recovery_may_die_at_any_file_operation(crash_place: Path, zygote: Zygote, point: str) -> None:
    """Whichever file operation of recovery is the last one, the next recovery ends in the same warehouse."""
    folder, journal = crash_place / "shop", crash_place / "journal"
    death = zygote.run(Victim(str(folder), str(journal), seed=6, crash_at=f"{point}:9"))
    assert death.killed, death.error
    run = Run.read(journal, Plan(6))

    # By default every third operation, another third for each point; with more seeds every single one.
    for event in range(1 + UNFINISHED.index(point) % STRIDE, FILE_EVENTS_MAX, STRIDE):
        copy = crash_place / f"copy-{event}"
        shutil.copytree(folder, copy)
        death = zygote.run(Victim(str(copy), work="open", file_event=event))
        if death.signal == 0:
            break
        assert death.killed, death.error
        Judge(copy).after_kill(run)
        shutil.rmtree(copy)

    assert death.exit_code == 0, death.error
    assert event > 5, "recovery touched no file"
