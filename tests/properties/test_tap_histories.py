"""The law of streams of tables: any history, pulled and stored at any times, is the same stream."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import righttime as rt
from righttime.queues.peek import peek
from righttime.testing import ManualClock

Model = dict[int, int]
Change = tuple[float, str, str, int, int]

_WHAT = st.sampled_from(["insert", "update", "delete", "upsert", "add"])
_COMMITS = st.lists(st.lists(st.tuples(_WHAT, st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=4), min_size=1, max_size=6)


def _change(load: Any, rows: Model, what: str, k: int, v: int) -> None:
    """Make one change, of the table and of the model."""
    if what == "insert" and k not in rows:
        load.insert("orders", (k, v))
        rows[k] = v
    elif what == "update":
        load.update("orders", set={"v": v}, where={"k": k})
        rows.update({k: v} if k in rows else {})
    elif what == "delete":
        load.delete("orders", where={"k": k})
        rows.pop(k, None)
    elif what == "upsert":
        load.upsert("orders", {"k": k, "v": v})
        rows[k] = v
    elif what == "add":
        load.update("orders", set={"v": rt.expr("v + 1")}, where="v < 3")
        rows.update({key: value + 1 for key, value in rows.items() if value < 3})


def _expected(second: int, source: str, before: Model, after: Model) -> set[Change]:
    changes: set[Change] = set()
    for k in before.keys() | after.keys():
        if before.get(k) != after.get(k):
            ends, begins = ("update_preimage", "update_postimage") if k in before and k in after else ("delete", "insert")
            changes |= {(second, source, ends, k, before[k])} if k in before else set()
            changes |= {(second, source, begins, k, after[k])} if k in after else set()
    return changes


@contextmanager
def _tapped(folder: Path, clock: ManualClock) -> Iterator[rt.Warehouse]:
    with rt.open(folder, clock=clock) as wh:
        wh.create_table("orders", "k INT NOT NULL, v INT", keys=["k"], unique=True, if_not_exists=True)
        if "orders" not in wh.streams():
            wh.tap("orders")
        yield wh


@settings(max_examples=12)
@given(_COMMITS, st.integers(0, 2**16))
def test_a_stream_of_a_table_has_its_commits_however_they_are_pulled(commits: list[list[tuple[str, int, int]]], seed: int) -> None:
    """Two producers by turns; in between the stream is pulled, the table stored, or the warehouse opened again."""
    dice, clock, expected, rows = Random(seed), ManualClock(1000.0), set[Change](), Model()
    with TemporaryDirectory() as folder:
        coming = list(enumerate(commits, 1))
        while coming:
            with _tapped(Path(folder), clock) as wh:
                again = False
                while coming and not again:
                    clock.advance(1)
                    (second, changes), before = coming.pop(0), dict(rows)
                    source = f"till{second % 2}"
                    with wh.producer(name=source) as load:
                        for what, k, v in changes:
                            _change(load, rows, what, k, v)
                        load.commit()
                    expected |= _expected(second, source, before, rows)
                    step = dice.choice(["pull", "store", "open again", "", ""])
                    again = step == "open again"
                    if step == "pull":
                        wh.stream("orders").changes()
                    elif step == "store":
                        wh.materialize("orders")
        with _tapped(Path(folder), clock) as wh:
            found = wh.stream("orders").changes().to_pylist()
            seen = [
                (change["_commit_timestamp"].timestamp() - 1000, change["_transaction"].split("#")[0], change["_change_type"], change["k"], change["v"])
                for change in found
            ]
            assert {(round(second), *change) for second, *change in seen} == expected and len(seen) == len(expected)
            numbers = [change["_commit_version"] for change in found]
            assert numbers == sorted(numbers) and len(set(numbers)) == len({change[0] for change in expected})
            assert len(peek(Path(folder) / "streams")["orders"].commits) == len(set(numbers)), "others read the same in the files"
