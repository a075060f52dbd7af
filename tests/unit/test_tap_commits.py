"""Streams of tables have the table's commits: each with its own time and its producer's number, whenever they are pulled."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.testing import ManualClock


class Shop:
    """The tapped tables `item` and `plin`, and a producer of both; times are seconds after the taps."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(1000.0)
        self.wh = rt.open(folder, clock=self.clock)
        self.wh.create_table("item", "item_id STRING NOT NULL, price INT", keys=["item_id"], unique=True)
        self.wh.create_table("plin", "id INT NOT NULL, item_id STRING", keys=["id"], unique=True)
        for table in ("item", "plin"):
            self.wh.tap(table)
        self.load = self.wh.producer(name="shop")
        self.begun_us = self.clock.now_us()

    def at(self, second: float, change: Callable[[Any], None]) -> None:
        self.clock.advance(second - (self.clock.now_us() - self.begun_us) / 1e6)
        change(self.load)
        self.load.commit()

    def pull(self) -> None:
        """What a query does, or storing."""
        engine = self.wh._writer("test")
        for name in ("item", "plin"):
            engine.flows.taps.pull(name, engine.catalyst.authority.read_us())

    def seen(self, stream: str) -> list[tuple[Any, ...]]:
        """Return changes as (second, transaction, what happened, row)."""
        found = self.wh.stream(stream).changes().to_pylist()
        system = ("_commit_timestamp", "_transaction", "_change_type", "_commit_version")
        begun = self.begun_us / 1e6
        return [
            (
                round(change["_commit_timestamp"].timestamp() - begun),
                change["_transaction"],
                change["_change_type"],
                *(value for name, value in change.items() if name not in system),
            )
            for change in found
        ]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(tmp_path / "wh")
    yield found
    found.wh.close()


def price(value: int) -> Callable[[Any], None]:
    return lambda load: load.upsert("item", {"item_id": "abc", "price": value})


def line(number: int) -> Callable[[Any], None]:
    return lambda load: load.insert("plin", (number, "abc"))


@pytest.mark.parametrize("pulls", [(), (0, 2, 5, 6, 8), (5,)], ids=["once", "each", "in between"])
def test_at_14_the_commits_of_tapped_tables_keep_their_order(shop: Shop, pulls: tuple[int, ...]) -> None:
    """The prices of AT-14 and their lines: each line is committed between two prices, whenever queries come.

    | second | item | plin |
    |---|---|---|
    | 1 | 9 | |
    | 2 | 10 | |
    | 5 | | 1 |
    | 6 | 12 | |
    | 8 | | 2 |
    """
    for second, change in ((1, price(9)), (2, price(10)), (5, line(1)), (6, price(12)), (8, line(2))):
        shop.at(second, change)
        if second in pulls:
            shop.pull()
    assert shop.seen("item") == [
        (1, "shop#1", "insert", "abc", 9),
        (2, "shop#2", "update_preimage", "abc", 9),
        (2, "shop#2", "update_postimage", "abc", 10),
        (6, "shop#4", "update_preimage", "abc", 10),
        (6, "shop#4", "update_postimage", "abc", 12),
    ]
    assert shop.seen("plin") == [(5, "shop#3", "insert", 1, "abc"), (8, "shop#5", "insert", 2, "abc")]


def test_rows_of_one_commit_come_in_the_order_in_which_they_were_inserted(shop: Shop) -> None:
    """Numbers that a flow gives them follow it. A row that comes and goes in one commit was never there."""

    def load(load: Any) -> None:
        load.insert_many("plin", [(number, "abc") for number in (7, 3, 9, 1)])
        load.delete("plin", where={"id": 9})

    shop.at(1, load)
    assert [change[3] for change in shop.seen("plin")] == [7, 3, 1]


def test_commits_that_a_restart_finds_have_their_times(tmp_path: Path) -> None:
    """The log has times, though not the numbers of a producer's commits to other tables: of commits before the last only the producer is known."""
    shop = Shop(tmp_path / "wh")
    for second, change in ((1, price(9)), (2, price(10)), (3, price(11))):
        shop.at(second, change)
    shop.wh.close()
    shop.wh = rt.open(tmp_path / "wh", clock=shop.clock)
    try:
        assert [(change[0], change[1], change[-1]) for change in shop.seen("item") if change[2] != "update_preimage"] == [
            (1, "shop", 9),
            (2, "shop", 10),
            (3, "shop#3", 11),
        ]
    finally:
        shop.wh.close()
