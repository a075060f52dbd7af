"""Commit times over several crashes: a row keeps the time at which it was committed, so that operations reach what was there before them."""

from pathlib import Path

import righttime as rt
from tests.support.crash import crash


def test_a_commit_keeps_its_time_over_a_second_crash(tmp_path: Path) -> None:
    """Its log record is written before its time is known; the state tells it after a crash, and the log after the next step.

    | time | commit                  | after a crash at 1, and one at 3 |
    |------|-------------------------|----------------------------------|
    | 1    | p inserts (1, 0)        | (1, 9)                           |
    | 2    | q sets v = 9 where k = 1|                                  |
    | 3    | p inserts (2, 0)        | (2, 0)                           |
    """
    wh = rt.open(tmp_path / "life-0")
    wh.create_table("t", "k INT, v INT", keys=["k"])
    first = wh.producer(name="p")
    first.insert("t", (1, 0))
    first.commit(durability="log")

    wh = rt.open(crash(wh, tmp_path / "life-1"))
    first, other = wh.producer(name="p"), wh.producer(name="q")
    other.update("t", {"v": 9}, {"k": 1})
    other.commit(durability="log")
    first.insert("t", (2, 0))
    first.commit(durability="log")
    assert sorted(wh.read("t").rows()) == [(1, 9), (2, 0)]

    with rt.open(crash(wh, tmp_path / "life-2")) as again:
        assert sorted(again.read("t").rows()) == [(1, 9), (2, 0)]
