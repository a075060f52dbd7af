"""SIGKILL in the middle of a flow's work: no job is lost, doubled or half visible (AT-24), nor are targets that are being built anew.

`RIGHTTIME_FLOW_SEEDS=10` runs ten seeds at each step without Spark, and every step on Spark; by default one seed, few steps on PostgreSQL, and two on Spark.
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
from righttime.testing.reference.recompute import recompute
from tests.support.flow_crash import IN_REFRESH, SOURCES, TARGETS, running, shop_flow
from tests.support.flow_shop import FOREVER, living, open_shop
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_schemas
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
REFRESH = [f"{IN_REFRESH}{point}:1" for point in (CrashPoint.JOB_PREPARED, CrashPoint.JOB_STAGED, CrashPoint.JOB_PUBLISHED)]
STORED = [f"{IN_REFRESH}{point}:1" for point in (CrashPoint.FILES_WRITTEN, CrashPoint.TABLES_COMMITTED, CrashPoint.LEDGER_COMMITTED)]  # what was built anew
PLAIN = [*(f"{point}:{arrival}" for point, arrival in ALWAYS.items()), *REFRESH, *STORED]
ON_POSTGRES = PLAIN if SEEDS > 1 else [f"{CrashPoint.JOB_PUBLISHED}:3", f"{CrashPoint.LEDGER_BEGUN}:4", f"{IN_REFRESH}{CrashPoint.JOB_STAGED}:1"]
# A Spark takes long to start: by default one process shows all steps, images of its folder at the first ones and its death at the last.
ON_SPARK = [[death] for death in [*PLAIN, f"{CrashPoint.JOB_COMPUTED}:3", f"{IN_REFRESH}{CrashPoint.JOB_COMPUTED}:1"]]
ON_SPARK = ON_SPARK if SEEDS > 1 else [[f"{CrashPoint.JOB_COMPUTED}:3", f"{IN_REFRESH}{CrashPoint.JOB_STAGED}:1"]]
BEFORE = {"FLOW_CRASH_BEFORE": "3"} if SEEDS == 1 else {}  # enough rounds for the first of them


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize("death", PLAIN)
def test_at_24_a_flow_goes_on_after_a_kill(tmp_path: Path, death: str, seed: int) -> None:
    """What was appended is there; what was answered is still the answer at its cut; the next answer is the recomputation at its own."""
    _check(tmp_path / "wh", "plain", [death], seed)


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize("death", ON_POSTGRES)
def test_at_24_a_flow_on_postgresql_goes_on_after_a_kill(tmp_path: Path, postgres: TempPostgres, death: str, seed: int) -> None:
    """The same where the targets are in a database, and streams in a folder beside it."""
    with fresh_schemas(postgres) as schemas:
        _check(postgres.url, "plain", [death], seed, state_dir=tmp_path, **schemas)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("deaths", ON_SPARK, ids=" then ".join)
def test_at_24_a_flow_on_spark_goes_on_after_a_kill(tmp_path: Path, spark_owner: SparkOwner, deaths: list[str]) -> None:
    """The same with a join, aggregates, a history and dead letters, whose state has to agree with what is published."""
    spark_owner.session()
    _check(tmp_path / "wh", "spark", deaths, 1)


def _check(place: Path | str, engine: str, deaths: list[str], seed: int, **settings: Any) -> None:
    images = [Path(place).with_name(f"image {death}") for death in deaths[:-1]]
    code, said = _work(place, seed, engine, deaths, images, settings)
    ends = [number for number, words in enumerate(said) if words == ["image"]]
    assert code == -signal.SIGKILL and len(ends) == len(images), f"not all of {deaths} were reached, after {said[-1:]}"
    for left, death, end in zip([*images, place], deaths, [*ends, len(said)], strict=True):
        assert (["refresh"] in said[:end]) or not death.startswith(IN_REFRESH)
        # Where building anew was cut short, the old state goes on, and it can be built anew. On Spark, by default, one image shows the one and one the other.
        both, is_last = engine == "plain" or SEEDS > 1, left == place
        _judge(left, engine, said[:end], settings, goes_on=both or not is_last, anew=both or is_last)


def _judge(place: Path | str, engine: str, said: list[list[str]], settings: dict[str, Any], *, goes_on: bool, anew: bool) -> None:
    with open_shop(place, background_idle_s=0, **settings) as wh:
        assert {int(words[1]) for words in said if words[0] == "append"} <= _commit_times(wh), "an acknowledged append is lost"
        for words in said:
            if words[0] == "answer":
                assert sorted(map(tuple, json.loads(words[3]))) == _expected(wh, engine, int(words[1]), int(words[2]))[TARGETS[engine]]
        factor = _factor_now(wh, engine)
        assert factor == 1 or ["refresh"] in said, "nobody has built anything anew"
        is_cut_short = ["refresh"] in said and factor == 1
        if not is_cut_short or goes_on:
            with running(wh, engine, factor=factor):
                _targets_are_right(wh, engine, factor)
        if is_cut_short and anew:
            with running(wh, engine, factor=2, refresh=True):
                _targets_are_right(wh, engine, 2)
        assert wh.losses() == []


def _factor_now(wh: Warehouse, engine: str) -> int:
    """Return of which declaration the target is as the crash left it: all of it of one, at the horizon of its last durable job."""
    horizon_us = wh._writer("test").catalyst.head.source(SOURCES[engine]).last.time_us
    if TARGETS[engine] not in wh.tables():
        return 1
    found = sorted(wh.read(TARGETS[engine], freshness="1 day", wait="0s").rows())
    fits = [factor for factor in (1, 2) if found == _expected(wh, engine, horizon_us, factor)[TARGETS[engine]]]
    assert fits, (horizon_us, found)
    return fits[0]


def _targets_are_right(wh: Warehouse, engine: str, factor: int) -> None:
    """See that every target is the recomputation at its answer's cut, dead letters among them."""
    for table in _expected(wh, engine, 0, factor):
        answer = wh.read(table, wait="120s")
        rows = [(row[4],) for row in answer.rows()] if table == "sales_dead_letters" else answer.rows()
        assert sorted(rows, key=repr) == sorted(_expected(wh, engine, answer.receipt.cut_us, factor)[table], key=repr), table


def _work(place: Path | str, seed: int, engine: str, deaths: list[str], images: list[Path], settings: dict[str, Any]) -> tuple[int, list[list[str]]]:
    goes_on = [word for image, death in zip(images, deaths[1:], strict=True) for word in (image, death)]
    armed = {"FLOW_CRASH_IN_REFRESH": deaths[0].removeprefix(IN_REFRESH)} if deaths[0].startswith(IN_REFRESH) else {"RIGHTTIME_CRASH_AT": deaths[0]}
    environment = {
        **os.environ,
        **armed,
        **(BEFORE if engine == "spark" else {}),
        **{f"RIGHTTIME_{name.upper()}": str(value) for name, value in settings.items()},
    }
    done = run_warm("-m", "tests.support.flow_crash", str(place), str(seed), "8", engine, *goes_on, environment=environment, timeout=480)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode, [line.split(" ", 3) for line in done.stdout.splitlines()]


def _commit_times(wh: Warehouse) -> set[int]:
    streams = wh._flows("test").feed.streams
    return {time for name in ("line", "purchase") for time in streams.table(name, 0, FOREVER)["_commit_timestamp"].cast("int64").to_pylist()}


def _expected(wh: Warehouse, engine: str, cut_us: int, factor: int) -> dict[str, list[tuple[Any, ...]]]:
    """Return what the targets hold at a time, computed from nothing."""
    if engine == "plain":
        return {"copy": sorted((row["purc_id"], row["item"], factor * row["qty"]) for row in living(wh, "line", cut_us))}
    streams = wh._flows("test").feed.streams
    changes = {name: streams.table(name, 0, cut_us) for name in ("line", "purchase")}
    made = recompute(shop_flow(factor), changes, columns={name: streams.schema(name).columns.names for name in changes}, up_to_us=cut_us)
    letters = [(json.dumps({name: value for name, value in row.items() if not name.startswith("_")}, separators=(",", ":")),) for _, row in made.dead_letters]
    tables = {name: sorted(tuple(row[column] for column in relation.columns) for row in relation.rows) for name, relation in made.tables.items()}
    return {**tables, "sales_dead_letters": sorted(letters)}
