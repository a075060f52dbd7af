"""Crashes and full disks with a story: what was lost is said exactly, what was refused can be done again."""

import os
from pathlib import Path

import pytest

import righttime as rt
from tests.support.crash_judge import newest_state
from tests.support.crash_scripts import loads_of
from tests.support.crash_zygote import Victim, Zygote
from tests.support.warm_python import run_warm

AT_X8 = """
import sys
from pathlib import Path
from tests.support.crash_scripts import materialize_beside_a_lazy_source
materialize_beside_a_lazy_source(Path(sys.argv[1]), lazy_durability=sys.argv[2])
"""


@pytest.mark.parametrize("point", ["ledger.committed", "materialize.notice_given"])
@pytest.mark.parametrize("durability", ["memory", "log"])
def test_at_x8_a_kill_between_the_warehouse_commit_and_its_notice(crash_place: Path, point: str, durability: str) -> None:
    """AT-X8: what was materialized stays in the view, once; the loss of the rest is reported, or there is none with logging on."""
    folder = crash_place / "shop"
    # Two tables are declared before; with logging, two commits are logged before.
    environment = {**os.environ, "RIGHTTIME_CRASH_AT": f"{point}:{3 if durability == 'memory' else 5}"}

    done = run_warm("-c", AT_X8, folder, durability, environment=environment)

    assert done.returncode == -9, done.stderr
    assert (crash_place / "ready").exists()
    with rt.open(folder) as warehouse:
        assert [loss.rows for loss in warehouse.losses()] == ([4] if durability == "memory" else [])
        assert loads_of(warehouse, "sale") == ([1, 2] if durability == "memory" else [1, 2, 11, 12])
        assert loads_of(warehouse, "stock") == ([] if durability == "memory" else [11, 12])
        assert newest_state(folder).tables["sale"].rows_stored >= 2


def play(zygote: Zygote, story: str, folder: Path, *, killed: bool) -> None:
    death = zygote.run(Victim(str(folder), work=story))
    assert death.killed if killed else death.exit_code == 0, death.error


def losses_of(warehouse: rt.Warehouse) -> list[tuple[str, int, int, int]]:
    return [(loss.source, loss.first, loss.last, loss.rows) for loss in warehouse.losses()]


def test_each_crash_reports_its_own_losses_and_numbers_are_not_given_again(crash_place: Path, zygote: Zygote) -> None:
    """Commits 1 and 2 go with the first process, 3 and 4 with the second; no number is lost twice."""
    folder = crash_place / "shop"
    for _ in range(2):
        play(zygote, "two commits in memory", folder, killed=True)

    with rt.open(folder) as warehouse:
        assert losses_of(warehouse) == [("till", 1, 2, 2), ("till", 3, 4, 2)]
        with warehouse.producer(name="till") as till:
            till.insert("sale", (5, ""))
            assert till.commit().commit.number == 5


def test_rows_that_became_durable_with_another_source_are_not_counted_as_lost(crash_place: Path, zygote: Zygote) -> None:
    """Of three lazy commits two were delivered and made durable by somebody else's commit: one commit, one row is lost."""
    folder = crash_place / "shop"
    play(zygote, "lazy source partly delivered", folder, killed=True)

    with rt.open(folder) as warehouse:
        assert loads_of(warehouse, "sale") == [0, 1, 9]
        assert losses_of(warehouse) == [("web", 3, 3, 1)]


def test_what_a_killed_process_had_spilled_is_removed(crash_place: Path, zygote: Zygote) -> None:
    """Spilled rows were in memory only; their files go with the next open, and their loss is reported."""
    folder = crash_place / "shop"
    play(zygote, "spilled", folder, killed=True)

    with rt.open(folder) as warehouse:
        assert losses_of(warehouse) == [("till", 1, 100, 100)]
        assert not [*folder.glob("spill/*")]


def test_a_close_that_finds_the_disk_full_says_so_and_the_loss_is_known(crash_place: Path, zygote: Zygote) -> None:
    """The caller gets the error, and whoever opens the warehouse next can see what went."""
    folder = crash_place / "shop"
    play(zygote, "close on full disk", folder, killed=False)

    with rt.open(folder) as warehouse:
        assert losses_of(warehouse) == [("till", 1, 1, 1)]
        assert loads_of(warehouse, "sale") == []


@pytest.mark.parametrize("story", ["log on full disk", "store on full disk", "materialize on full disk", "spill on full disk", "declare on full disk"])
def test_a_full_disk_refuses_with_a_code_and_loses_nothing(crash_place: Path, zygote: Zygote, story: str) -> None:
    """The transaction stays as it was, nothing half is visible, and the same call goes through when there is space again."""
    folder = crash_place / "shop"
    play(zygote, story, folder, killed=False)

    with rt.open(folder) as warehouse:
        assert losses_of(warehouse) == []
        for table in warehouse.tables():
            loads = loads_of(warehouse, table)
            assert loads == sorted(set(loads))
