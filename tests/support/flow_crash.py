"""A process that feeds the shop and asks for what its flow keeps until it is killed; what it was told is on its output, line by line.

In: `python -m tests.support.flow_crash FOLDER SEED ROUNDS spark|plain [IMAGE POINT]...`, with a crash point armed in the environment. With an image the
process does not die there, but leaves a copy of the folder as a kill would, and goes on to the next point.
Out: `append TIME`, `answer CUT ROWS-AS-JSON`, `image`, `done`.
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
from tests.support.flow_shop import STREAMS, Customers, open_shop, sales_flow
from tests.support.plain_flow import run_plain
from tests.support.warm_python import arm_point

TARGETS = {"spark": "sales", "plain": "copy"}
# All threads stand still while the copy is made, so it is what the files hold at one moment.
_COPY = 'kill -STOP $PPID; until grep -q "^State:.T" /proc/$PPID/status; do :; done; cp -a "$1" "$2"; kill -CONT $PPID'


@contextmanager
def running(wh: Warehouse, engine: str) -> Iterator[None]:
    """Keep the target of one of the two flows."""
    if engine == "spark":
        with wh.run(sales_flow()):
            yield
        return
    columns, keys = STREAMS["line"]
    wh.create_table("copy", columns, keys=keys, if_not_exists=True)
    runner, _ = run_plain(wh, {"copy": "line"}, keys=keys)
    try:
        yield
    finally:
        runner.stop()


def main(folder: str, seed: int, rounds: int, engine: str) -> None:
    """Feed, ask, and store now and then."""
    with open_shop(folder, background_idle_s=0) as wh:
        customers = Customers(seed)
        customers.resume(wh)
        with running(wh, engine):
            for number in range(rounds):
                for _ in range(customers.dice.randint(1, 3)):
                    appended = wh.append(customers.transaction())
                    if appended.rows:  # an update to what was there already is no commit
                        _say("append", appended.time_us)
                answer = wh.read(TARGETS[engine], wait="120s")
                _say("answer", answer.receipt.cut_us, json.dumps(sorted(answer.rows())))
                if number % 3 == 1:
                    wh.materialize(TARGETS[engine], wait="120s")
    _say("done")


def leave_images(folder: str, images: list[str], points: list[str]) -> None:
    """Leave an image at each of the next deaths and go on to the next point; the last one is a death."""
    left = list(zip(images, points, strict=True))

    def kill(pid: int, number: int) -> None:
        if not left:
            os.kill(pid, number)
        image, point = left.pop(0)
        _say("image")
        subprocess.run(["sh", "-c", _COPY, "sh", folder, image], check=True)
        arm_point(point)

    faults.os = SimpleNamespace(getpid=os.getpid, kill=kill)  # type: ignore[assignment, attr-defined]


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    leave_images(sys.argv[1], sys.argv[5::2], sys.argv[6::2])
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
