"""Processes that feed streams, killed with SIGKILL: acknowledged appends are there, none is there half, and feeding goes on.

`RIGHTTIME_STREAM_SEEDS=10` runs ten seeds of each; by default two, with one life and with two that end at a step.
"""

import os
from pathlib import Path
from random import Random

import pytest

from righttime.changes.faults import CrashPoint
from tests.support.crash_zygote import Victim, Zygote
from tests.support.stream_work import TRANSACTIONS, judge_streams

POINTS = [point for point in CrashPoint if point.startswith(("feed.", "segment."))]
LIVES_MAX = 40
SEEDS = int(os.environ.get("RIGHTTIME_STREAM_SEEDS", "2"))


def live_and_die(place: Path, zygote: Zygote, seed: int, victims: list[dict[str, object]]) -> int:
    """Feed until all is done, each life with the next way to die (the last ones live on); judge after each; return how many were killed."""
    (place / "seed").write_text(str(seed))
    there = killed = 0
    for life in range(LIVES_MAX):
        way = victims[life] if life < len(victims) else {}
        death = zygote.run(Victim(str(place), work="feed streams", **way))  # type: ignore[arg-type]
        assert death.killed or death.exit_code == 0, death.error
        killed += death.killed
        there = judge_streams(place, acknowledged_before=there)
        if not death.killed:
            break
    assert there == TRANSACTIONS
    return killed


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_a_named_step_loses_doubles_and_halves_nothing(crash_place: Path, zygote: Zygote, point: CrashPoint, seed: int) -> None:
    """One or two lives end at the step, each after some arrivals; every row, number and dead letter is that of the acknowledged transactions, or one more."""
    dice = Random(f"{point}/{seed}")
    often = point in (CrashPoint.FEED_WRITTEN, CrashPoint.FEED_SYNCED)
    ways: list[dict[str, object]] = [{"crash_at": f"{point}:{dice.randint(1, 12 if often else 2)}"} for _ in range(1 + seed % 2)]
    assert live_and_die(crash_place, zygote, seed, ways) == len(ways)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_kill_at_any_file_operation_loses_doubles_and_halves_nothing(crash_place: Path, zygote: Zygote, seed: int) -> None:
    """The same at whatever the process was about to do to a file, also while it was recovering from the kill before."""
    dice = Random(seed)
    ways: list[dict[str, object]] = [{"file_event": dice.randint(1, 25)} for _ in range(5)]
    assert live_and_die(crash_place, zygote, seed, ways) >= 1


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_kill_at_any_time_loses_doubles_and_halves_nothing(crash_place: Path, zygote: Zygote, seed: int) -> None:
    """The same at any moment."""
    dice = Random(seed)
    ways: list[dict[str, object]] = [{"life_s": dice.uniform(0.01, 0.15)} for _ in range(3)]
    live_and_die(crash_place, zygote, seed, ways)


def test_a_full_disk_refuses_appends_and_loses_none(crash_place: Path, zygote: Zygote) -> None:
    """The system lets no file grow: appends fail whole, with a code, and go on when there is space again."""
    death = zygote.run(Victim(str(crash_place), work="feed on full disk"))
    assert death.exit_code == 0, death.error
