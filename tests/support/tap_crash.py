"""A process that changes a tapped table and asks for the copy that a flow keeps of it, until it is killed.

In: `python -m tests.support.tap_crash FOLDER SEED ROUNDS`, with a crash point armed in the environment.
Out: `answer` for each time that the copy was right, `done`.
Promise: most commits are only in memory, so that a kill takes some; the flow is plain, and everything below it is the real thing.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import righttime as rt
from righttime.client import Warehouse
from tests.support.plain_flow import run_plain

COLUMNS = "k INT NOT NULL, v INT"
KEYS = 12


@contextmanager
def opened(folder: Path | str) -> Iterator[Warehouse]:
    """Open the warehouse with its flow running."""
    with rt.open(folder) as wh:
        wh.create_table("orders", COLUMNS, keys=["k"], unique=True, if_not_exists=True)
        wh.create_table("copy", COLUMNS, keys=["k"], if_not_exists=True)
        if "orders" not in wh.streams():
            wh.tap("orders")
        runner, _ = run_plain(wh, {"copy": "orders"})
        try:
            yield wh
        finally:
            runner.stop()


def check(wh: Warehouse) -> None:
    """See that the copy is the table."""
    copied = wh.read("copy", wait="60s")
    assert sorted(copied.rows()) == sorted(wh.read("orders", as_of=copied.receipt.cut_us).rows())


def main(folder: str, seed: int, rounds: int) -> None:
    """Change, ask, and store now and then."""
    dice = Random(seed)
    with opened(folder) as wh, wh.producer(name="shop") as load:
        for number in range(rounds):
            for _ in range(dice.randint(1, 3)):
                for k in dice.sample(range(KEYS), 3):
                    load.delete("orders", where={"k": k}) if dice.random() < 0.3 else load.upsert("orders", {"k": k, "v": dice.randrange(10)})
                load.commit(durability="log" if dice.random() < 0.2 else "memory")
            if dice.random() < 0.7:
                check(wh)
                sys.stdout.write("answer\n")
            if number % 3 == 1:
                wh.materialize("orders", wait="60s")
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
