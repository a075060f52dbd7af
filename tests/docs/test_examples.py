"""The examples run, and print what their readers are told to expect."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import righttime
from righttime import service
from righttime.pipeline.spark import SparkOwner
from tests.support.warm_python import run_warm

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "quickstart.py": "[(5, 30)]\n5 rows from memory, 0 from the warehouse\nverified by rerun: True\n",
    "lazy_loader.py": (
        "held back by the loader: 1000\nrows, at most an hour old: 0\nrows, everything until now: 1000\nheld back by the loader: 0\nlast commit inside: 10\n"
    ),
    "dbapi_loader.py": "['name', 'city']\n('Ada', 'London')\n('Grace', 'New York')\n('Edsger', 'Nuenen')\n",
    "spark_dataframe.py": "click 3335\nview 6666\nstored in Delta version 1\n",
    "own_policy.py": "commits: 24\nrows in memory: 20\nrows held back: 4\nrows in an answer: 24\n",
    "accumulating_fact.py": (
        "accepted: 1000 orders, last commit inside: 2\npacked: 1000 orders, last commit inside: 3\nsent: 1000 orders, last commit inside: 4\n"
        "paid: 1000 orders, last commit inside: 5\n4000 updates; stored: version 1, 1000 rows in 1 file\n"
    ),
    "early_arriving_fact.py": (
        "[('not known yet', 3, 2850), ('books', 1, 4900)]\n[('not known yet', 1, 1200), ('books', 1, 4900), ('music', 1, 1500), ('tea', 2, 1650)]\n"
        "still waiting for: [(3,)]\n"
    ),
    "durability.py": "the loader ended with -9\n(1, 'stored in the Delta table')\n(2, 'written to the log')\nlost: 1 row, commit 3 of bank\n",
    "receipts.py": "rows then: 2 rows now: 3\nverified: True\nrefused: receipt.forged\nreceipts kept: 2\n",
}
FIRST = "quickstart.py"
ON_SPARK = {"dbapi_loader.py", "early_arriving_fact.py", "spark_dataframe.py"}


def test_every_example_is_run_here() -> None:
    """An example that nobody runs is an example that breaks."""
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(EXPECTED)


@pytest.mark.slow
def test_the_first_example_prints_what_it_promises(tmp_path: Path) -> None:
    """It is started as its reader starts it, in a Python of its own with a Spark of its own."""
    command = [sys.executable, str(EXAMPLES / FIRST), str(tmp_path / "warehouse")]
    environment = {**os.environ, "PYTHONPATH": str(Path(righttime.__file__).parents[1])}

    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=240, check=False)

    assert (ended.returncode, ended.stdout) == (0, EXPECTED[FIRST]), ended.stderr


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - ON_SPARK - {FIRST}))
def test_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    """Each example works in the folder it is given, and its output is exact."""
    ended = run_warm(EXAMPLES / name, tmp_path / "warehouse", cwd=tmp_path)

    assert (ended.returncode, ended.stdout) == (0, EXPECTED[name]), ended.stderr


@pytest.mark.parametrize("name", sorted(ON_SPARK))
def test_example_on_spark_prints_what_it_promises(
    name: str, tmp_path: Path, spark_owner: SparkOwner, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for those that query with Spark; the run's session serves them all."""
    spark_owner.session()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "warehouse")])
    opened = set(service._engines)
    capsys.readouterr()

    runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    assert capsys.readouterr().out == EXPECTED[name]
    assert set(service._engines) == opened, f"{name} leaves a warehouse open"
