"""What the tests of the command line share: running it in this process, and a small warehouse."""

from dataclasses import dataclass
from pathlib import Path

import pytest

import righttime as rt
from righttime.cli import run


@dataclass(frozen=True)
class Ended:
    """How one command ended."""

    code: int
    out: str
    err: str


class Terminal:
    """Runs commands in this process, so that they share the Spark of the run."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str | Path) -> Ended:
        self._capture.readouterr()
        code = run([str(argument) for argument in arguments])
        seen = self._capture.readouterr()
        return Ended(code, seen.out, seen.err)


def make_shop(folder: Path) -> Path:
    """Make a warehouse with three stored sales, two that are only in the log, and no products."""
    with rt.open(folder) as wh:
        wh.create_table("sale", "sku INT, amount DECIMAL(10,2), note STRING")
        wh.create_table("product", "sku INT, title STRING")
        with wh.producer(name="till") as load:
            load.insert_many("sale", [(1, 10, "a"), (2, 20, "[bold]b[/]"), (3, 30, None)])
            load.commit(materialize=True)
            load.insert_many("sale", [(4, 40, 'd, "e"'), (5, 50, "é")])
            load.commit()
    return folder
