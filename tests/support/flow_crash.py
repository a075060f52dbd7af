"""A process that feeds the shop and asks for what its flow keeps until it is killed; what it was told is on its output, line by line.

In: `python -m tests.support.flow_crash PLACE SEED ROUNDS spark|plain [IMAGE POINT]...`, with a crash point armed in the environment. With an image the
process does not die there, but leaves a copy of the folder as a kill would, and goes on to the next point. A point that begins with `refresh ` is armed when
the targets are built anew, which is after the fifth round, or as many as `FLOW_CRASH_BEFORE` says: from then on all quantities count twice.
Out: `append TIME`, `answer CUT FACTOR ROWS-AS-JSON`, `refresh`, `image`, `done`.
Promise: a line is written only after the call it tells of has returned. `plain` has a flow that copies the lines, without Spark; the rest is the same.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from righttime.changes import faults
from righttime.client import Warehouse
from righttime.pipeline.flow import Flow
from tests.support.flow_shop import STREAMS, Customers, open_shop
from tests.support.plain_flow import run_plain
from tests.support.warm_python import arm_point

TARGETS = {"spark": "sales", "plain": "copy"}
SOURCES = {"spark": "flow.sales", "plain": "flow.plain"}
IN_REFRESH = "refresh "
_ROUNDS_BEFORE = int(os.environ.get("FLOW_CRASH_BEFORE", "5"))
_armed_in_refresh = [os.environ.get("FLOW_CRASH_IN_REFRESH", "")]
# All threads stand still while the copy is made, so it is what the files hold at one moment.
_COPY = 'kill -STOP $PPID; until grep -q "^State:.T" /proc/$PPID/status; do :; done; cp -a "$1" "$2"; kill -CONT $PPID'


def shop_flow(factor: int) -> Flow:
    """Sum up what was sold, keep all versions of purchases, and pair lines with purchases of which many never come: those wait as dead letters."""
    flow = Flow("sales")
    lines, purchases = flow.stream("line"), flow.stream("purchase")
    sold = lines.join(purchases, on="purc_id").aggregate(by=["item", "store"], qty=f"sum(qty * {factor})", lines="count(*)", most="max(qty)")
    sold.into("sales", keys=["item", "store"])
    purchases.history(keys=["purc_id"], key="sk").into("stores", keys=["sk"])
    paired = lines.derive(other="item * 3").lookup(purchases, on={"other": "purc_id"}, take={"found": "store"}, missing="dead_letter")
    paired.select("purc_id", "item", "found").into("paired", keys=["purc_id", "item"])
    return flow


@contextmanager
def running(wh: Warehouse, engine: str, *, factor: int = 1, refresh: bool = False) -> Iterator[None]:
    """Keep the targets of one of the two flows."""
    if engine == "spark":
        with wh.run(shop_flow(factor), refresh=refresh):
            yield
        return
    columns, keys = STREAMS["line"]
    wh.create_table("copy", columns, keys=keys, if_not_exists=True)
    runner, _ = run_plain(wh, {"copy": "line"}, keys=keys, factor=factor, rebuild=refresh)
    try:
        assert runner.await_rebuilt(60)  # until then, whoever asks may be given the old state
        yield
    finally:
        runner.stop()


def main(folder: str, seed: int, rounds: int, engine: str) -> None:
    """Feed, ask, store now and then, and build everything anew in between."""
    with open_shop(folder, background_idle_s=0) as wh:
        customers = Customers(seed)
        customers.resume(wh)
        with running(wh, engine):
            _work(wh, customers, engine, range(_ROUNDS_BEFORE), factor=1)
        _say("refresh")
        if (point := _armed_in_refresh[0]) != "":
            arm_point(point)
        with running(wh, engine, factor=2, refresh=True):
            _work(wh, customers, engine, range(_ROUNDS_BEFORE, rounds), factor=2)
    _say("done")


def _work(wh: Warehouse, customers: Customers, engine: str, rounds: range, *, factor: int) -> None:
    for number in rounds:
        for _ in range(customers.dice.randint(1, 3)):
            appended = wh.append(customers.transaction())
            if appended.rows:  # an update to what was there already is no commit
                _say("append", appended.time_us)
        answer = wh.read(TARGETS[engine], wait="120s")
        _say("answer", answer.receipt.cut_us, factor, json.dumps(sorted(answer.rows())))
        if number % 3 == 1:
            wh.materialize(TARGETS[engine], wait="120s")


def leave_images(folder: str, images: list[str], points: list[str]) -> None:
    """Leave an image at each of the next deaths and go on to the next point; the last one is a death."""
    left = list(zip(images, points, strict=True))

    def kill(pid: int, number: int) -> None:
        if not left:
            os.kill(pid, number)
        image, point = left.pop(0)
        _say("image")
        subprocess.run(["sh", "-c", _COPY, "sh", folder, image], check=True)
        if point.startswith(IN_REFRESH):
            _armed_in_refresh[0] = point.removeprefix(IN_REFRESH)
            arm_point(f"{faults.CrashPoint.GC_PLANNED}:1000000")  # nowhere until then
        else:
            arm_point(point)

    faults.os = SimpleNamespace(getpid=os.getpid, kill=kill)  # type: ignore[assignment, attr-defined]


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    leave_images(sys.argv[1], sys.argv[5::2], sys.argv[6::2])
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
