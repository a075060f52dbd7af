"""A small shop whose sales a flow keeps, and what they must be at any time, computed from nothing.

In: a warehouse, and dice.
Out: streams, a flow with a join and aggregates, random transactions, and the expected target at a cut.
Promise: the expectation is made from the streams' changes alone, in plain Python.
"""

import random
from collections import defaultdict
from typing import Any

import righttime as rt
from righttime.client import Warehouse
from righttime.pipeline.flow import Flow

STREAMS = {
    "purchase": ("purc_id INT NOT NULL, store INT", ["purc_id"]),
    "line": ("purc_id INT NOT NULL, item INT NOT NULL, qty INT", ["purc_id", "item"]),
}
Sales = dict[tuple[int, int], tuple[int, int, int]]


def open_shop(folder: Any, **settings: Any) -> Warehouse:
    """Open a warehouse with the shop's streams."""
    wh = rt.open(folder, **settings)
    for name, (columns, keys) in STREAMS.items():
        wh.create_stream(name, columns, keys=keys, if_not_exists=True)
    return wh


def sales_flow() -> Flow:
    """Sum up what was sold by item and store; the largest quantity of one line goes with it."""
    flow = Flow("sales")
    lines = flow.stream("line").join(flow.stream("purchase"), on="purc_id")
    sold = lines.aggregate(by=["item", "store"], qty="sum(qty)", lines="count(*)", most="max(qty)")
    sold.into("sales", keys=["item", "store"])
    return flow


class Customers:
    """Random purchases, changes of mind and returns."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.purchases: dict[int, int] = {}
        self.lines: dict[tuple[int, int], int] = {}
        self.last = 0

    def transaction(self) -> dict[str, list[dict[str, Any]]]:
        """Return the changes of one transaction, over both streams."""
        changes: dict[str, list[dict[str, Any]]] = {"purchase": [], "line": []}
        for _ in range(self.dice.randint(1, 4)):
            kind = self.dice.random()
            if kind < 0.5 or not self.lines:
                self._buy(changes)
            elif kind < 0.75:
                key = self.dice.choice(list(self.lines))
                self.lines[key] = self.dice.randint(1, 9)
                changes["line"].append(self._line(key, "update_postimage"))
            elif kind < 0.9:
                key = self.dice.choice(list(self.lines))
                changes["line"].append(self._line(key, "delete"))
                del self.lines[key]
            else:
                purchase = self.dice.choice(list(self.purchases))
                self.purchases[purchase] = self.dice.randint(1, 3)
                changes["purchase"].append({"purc_id": purchase, "store": self.purchases[purchase], "_change_type": "update_postimage"})
        return {name: rows for name, rows in changes.items() if rows}

    def _buy(self, changes: dict[str, list[dict[str, Any]]]) -> None:
        self.last += 1
        self.purchases[self.last] = self.dice.randint(1, 3)
        changes["purchase"].append({"purc_id": self.last, "store": self.purchases[self.last], "_change_type": "insert"})
        for item in self.dice.sample(range(1, 8), self.dice.randint(0, 3)):
            self.lines[self.last, item] = self.dice.randint(1, 9)
            changes["line"].append(self._line((self.last, item), "insert"))

    def _line(self, key: tuple[int, int], change: str) -> dict[str, Any]:
        return {"purc_id": key[0], "item": key[1], "qty": self.lines[key], "_change_type": change}

    def resume(self, wh: Warehouse) -> None:
        """Go on from what the streams hold."""
        self.purchases = {row["purc_id"]: row["store"] for row in living(wh, "purchase", FOREVER)}
        self.lines = {(row["purc_id"], row["item"]): row["qty"] for row in living(wh, "line", FOREVER)}
        self.last = max(self.purchases, default=0)


FOREVER = 2**62


def living(wh: Warehouse, stream: str, cut_us: int) -> list[dict[str, Any]]:
    """Return the rows of a stream's source at a time."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    keys = STREAMS[stream][1]
    for change in wh._flows("test").feed.streams.table(stream, 0, cut_us).to_pylist():
        key = tuple(change[name] for name in keys)
        if change["_w"] > 0:
            assert key not in rows
            rows[key] = {name: value for name, value in change.items() if not name.startswith("_")}
        else:
            assert rows.pop(key) == {name: value for name, value in change.items() if not name.startswith("_")}
    return list(rows.values())


def expected_sales(wh: Warehouse, cut_us: int) -> Sales:
    """Return the target at a cut, computed from nothing."""
    stores = {row["purc_id"]: row["store"] for row in living(wh, "purchase", cut_us)}
    sold: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in living(wh, "line", cut_us):
        if row["purc_id"] in stores:
            sold[row["item"], stores[row["purc_id"]]].append(row["qty"])
    return {key: (sum(quantities), len(quantities), max(quantities)) for key, quantities in sold.items()}


def sales_of(rows: list[tuple[Any, ...]]) -> Sales:
    """Return an answer over all of `sales` in the same form."""
    found = {(item, store): (qty, lines, most) for item, store, qty, lines, most in rows}
    assert len(found) == len(rows), "a key came twice"
    return found
