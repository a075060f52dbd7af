"""SIGKILL in the middle of a flow's work: no job is lost, doubled or half visible (AT-24).

`RIGHTTIME_FLOW_SEEDS=10` runs ten seeds at each step without Spark, and every step on Spark; by default one seed, and two steps of a job on Spark.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from righttime.changes.faults import CrashPoint
from righttime.client import Warehouse
from righttime.pipeline.spark import SparkOwner
from tests.support.flow_crash import TARGETS, running
from tests.support.flow_shop import FOREVER, expected_sales, living, open_shop
from tests.support.warm_python import run_warm

SEEDS = int(os.environ.get("RIGHTTIME_FLOW_SEEDS", "1"))
# The step, and at which arrival there to die: late enough that earlier jobs are stored and later ones are only in memory.
ALWAYS = {
    CrashPoint.JOB_PREPARED: 3,
    CrashPoint.JOB_STAGED: 4,
    CrashPoint.JOB_PUBLISHED: 3,
    CrashPoint.FEED_WRITTEN: 6,
    CrashPoint.FEED_SYNCED: 5,
    CrashPoint.FILES_WRITTEN: 1,
    CrashPoint.TABLES_COMMITTED: 1,
    CrashPoint.LEDGER_BEGUN: 4,
    CrashPoint.LEDGER_COMMITTED: 4,
    CrashPoint.NOTICE_GIVEN: 4,
}
# A Spark takes long to start: by default one process shows both steps, an image of its folder at the first and its death at the second.
ON_SPARK = [[f"{point}:{arrival}"] for point, arrival in {**ALWAYS, CrashPoint.JOB_COMPUTED: 3}.items()]
ON_SPARK = ON_SPARK if SEEDS > 1 else [[f"{CrashPoint.JOB_COMPUTED}:3", f"{CrashPoint.JOB_PUBLISHED}:1"]]


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize(("point", "arrival"), ALWAYS.items(), ids=[point.value for point in ALWAYS])
def test_at_24_a_flow_goes_on_after_a_kill(tmp_path: Path, point: CrashPoint, arrival: int, seed: int) -> None:
    """What was appended is there; what was answered is still the answer at its cut; the next answer is the recomputation at its own."""
    _check(tmp_path / "wh", "plain", [f"{point}:{arrival}"], seed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("deaths", ON_SPARK, ids=" ".join)
def test_at_24_a_flow_on_spark_goes_on_after_a_kill(tmp_path: Path, spark_owner: SparkOwner, deaths: list[str]) -> None:
    """The same with a join and aggregates, whose state has to agree with what is published."""
    spark_owner.session()
    _check(tmp_path / "wh", "spark", deaths, 1)


def _check(folder: Path, engine: str, deaths: list[str], seed: int) -> None:
    images = [folder.with_name(f"image {death}") for death in deaths[:-1]]
    code, said = _work(folder, seed, 8, engine, deaths, images)
    assert code == -signal.SIGKILL, f"not all of {deaths} were reached"
    ends = [place for place, words in enumerate(said) if words == ["image"]]
    for left, end in zip([*images, folder], [*ends, len(said)], strict=True):
        _judge(left, engine, said[:end])


def _judge(folder: Path, engine: str, said: list[list[str]]) -> None:
    with open_shop(folder, background_idle_s=0) as wh:
        assert {int(words[1]) for words in said if words[0] == "append"} <= _commit_times(wh), "an acknowledged append is lost"
        for words in said:
            if words[0] == "answer":
                assert sorted(map(tuple, json.loads(words[2]))) == _expected(wh, engine, int(words[1]))
        with running(wh, engine):
            answer = wh.read(TARGETS[engine], wait="120s")
            assert sorted(answer.rows()) == _expected(wh, engine, answer.receipt.cut_us)
        assert wh.losses() == []


def _work(folder: Path, seed: int, rounds: int, engine: str, deaths: list[str], images: list[Path]) -> tuple[int, list[list[str]]]:
    goes_on = [word for image, death in zip(images, deaths[1:], strict=True) for word in (image, death)]
    environment = {**os.environ, "RIGHTTIME_CRASH_AT": deaths[0]}
    done = run_warm("-m", "tests.support.flow_crash", folder, str(seed), str(rounds), engine, *goes_on, environment=environment)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode, [line.split(" ", 2) for line in done.stdout.splitlines()]


def _commit_times(wh: Warehouse) -> set[int]:
    streams = wh._flows("test").feed.streams
    return {time for name in ("line", "purchase") for time in streams.table(name, 0, FOREVER)["_commit_timestamp"].cast("int64").to_pylist()}


def _expected(wh: Warehouse, engine: str, cut_us: int) -> list[tuple[Any, ...]]:
    if engine == "spark":
        return sorted((*key, *value) for key, value in expected_sales(wh, cut_us).items())
    return sorted((row["purc_id"], row["item"], row["qty"]) for row in living(wh, "line", cut_us))
