"""A process that feeds the shop and asks for what its flow keeps until it is killed; what it was told is on its output, line by line.

In: `python -m tests.support.flow_crash FOLDER SEED ROUNDS spark|plain`, with a crash point armed in the environment.
Out: `append TIME`, `answer CUT ROWS-AS-JSON`, `done`.
Promise: a line is written only after the call it tells of has returned. `plain` has a flow that copies the lines, without Spark; the rest is the same.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from righttime.client import Warehouse
from tests.support.flow_shop import STREAMS, Customers, open_shop, sales_flow
from tests.support.plain_flow import run_plain

TARGETS = {"spark": "sales", "plain": "copy"}


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


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
