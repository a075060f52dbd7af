"""State of flows under SIGKILL: killed before any call that changes the disk, a drain is there whole or not at all."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from righttime.pipeline.states import StateStore

STEPS_MAX = 400

# The victim is forked again and again, each time to die one call later, until it comes to its end.
SCRIPT = """
import itertools, json, os, signal, sys
from pathlib import Path
import pyarrow as pa
from righttime.pipeline.states import StateStore

def rows(*given):
    schema = pa.schema([("k", pa.int32()), ("_job", pa.int64()), ("_w", pa.int64())])
    return pa.table([pa.array(column) for column in zip(*given)], names=schema.names).cast(schema)

def die_at(count):
    left = itertools.count(1)
    def dying(call):
        def called(*arguments, **named):
            if next(left) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)
        return called
    for name in ("fsync", "link", "replace", "rename", "unlink", "mkdir", "write"):
        setattr(os, name, dying(getattr(os, name)))

def work(folder, done):
    store = StateStore(folder, "f1")
    done("opened")
    store.append(1, 2, {("n", "p"): rows((1, 1, 1), (2, 2, 1)), ("n", "q"): rows((1, 1, 1))})
    done("first")
    store.append(3, 3, {("n", "p"): rows((2, 3, 1))})
    done("second")
    store.compact(3, files_max=1)
    done("compacted")
    store.append(4, 6, {("n", "p"): rows((3, 4, 1), (4, 5, 1), (5, 6, 1)), ("n", "q"): rows((9, 6, 1))})
    done("third")
    store.append(7, 7, {("n", "p"): rows((6, 7, 1))})
    done("fourth")
    store.forget_after(5)
    done("forgotten")

root = Path(sys.argv[1])
for count in itertools.count(1):
    folder = root / str(count)
    folder.mkdir()
    child = os.fork()
    if child == 0:
        journal = (folder / "journal").open("w", buffering=1)
        die_at(count)
        work(folder / "flow", lambda step: journal.write(step + "\\n"))
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(count)
"""

# What the part p holds after each step.
AFTER = {
    "": {},
    "opened": {},
    "first": {1: 1, 2: 1},
    "second": {1: 1, 2: 2},
    "compacted": {1: 1, 2: 2},
    "third": {1: 1, 2: 2, 3: 1, 4: 1, 5: 1},
    "fourth": {1: 1, 2: 2, 3: 1, 4: 1, 5: 1, 6: 1},
    "forgotten": {1: 1, 2: 2, 3: 1, 4: 1},
}
ORDER = list(AFTER)


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders as the kills left them, one for each call that changes the disk; the last came to its end."""
    root = tmp_path_factory.mktemp("killed")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(root)], capture_output=True, text=True, env=environment, timeout=240, check=True)
    count = int(run.stdout)
    assert 40 < count < STEPS_MAX
    return [root / str(number) for number in range(1, count + 1)]


def test_after_a_kill_at_any_call_every_drain_is_there_whole_or_not_at_all(died: list[Path]) -> None:
    """What was acknowledged is there; the step under way happened or did not; no file is left that nobody knows; and work goes on."""
    reached = set()
    for folder in died:
        acknowledged = (["", *(folder / "journal").read_text().split()])[-1]
        reached.add(acknowledged)
        upcoming = ORDER[min(ORDER.index(acknowledged) + 1, len(ORDER) - 1)]
        store = StateStore(folder / "flow", "f1")
        # Taking back several drains goes one by one, from the last; a kill in between leaves the others.
        allowed = [AFTER[acknowledged], AFTER[upcoming]] + ([AFTER["third"]] if upcoming == "forgotten" else [])
        assert sums(store) in allowed, folder
        assert_no_orphans(folder / "flow")
        job = (store.last_job or 0) + 1
        before = sums(store)
        store.append(job, job, {("n", "p"): pa.table({"k": pa.array([77], pa.int32()), "_job": [job], "_w": [1]})})
        assert sums(StateStore(folder / "flow", "f1")) == {**before, 77: 1}
    assert reached == set(ORDER)


def sums(store: StateStore) -> dict[int, int]:
    table = store.table("n", "p")
    found: Counter[int] = Counter()
    for row in table.to_pylist() if table is not None else []:
        found[row["k"]] += row["_w"]
    return dict(found)


def assert_no_orphans(folder: Path) -> None:
    manifests = [json.loads(path.read_bytes())["manifest"] for path in folder.glob("*-*.json")]
    known = {name for manifest in manifests for _, _, files in manifest["parts"] for name, *_ in files}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")} == known
    assert not list(folder.rglob("_righttime_*"))
