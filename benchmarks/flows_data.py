"""The shop of the flow benchmarks: dimensions, purchases with twelve lines each, and what `store_sales` must be after each transaction.

In: a size, a seed, the share of updates and deletes.
Out: Arrow tables of changes, one transaction after the other, and the expected target after any of them.
Promise: the same seed gives the same changes on every machine. The expectation is made from the images of rows alone, without the flow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.figure import SEED

LINES_EACH = 12
ALIVE = 2**62
Numbers = npt.NDArray[np.int64]
Changes = dict[str, pa.Table]


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything: rows of the dimensions, purchases before and while the clock runs, jobs, streams of queries, rounds that do not count."""

    name: str
    dimensions: Mapping[str, int]
    history: int
    purchases: int
    jobs: int
    threads_many: int
    threads_few: int
    queries_each: int
    queued: tuple[int, ...]
    warm_rounds: int


_SMALL = {"item": 2_000, "customer": 5_000, "store": 1_000, "date": 1_000, "time": 1_440, "promotion": 1_000}
_LARGE = {"item": 18_000, "customer": 20_000, "store": 1_000, "date": 1_826, "time": 20_000, "promotion": 1_000}
_TINY = {"item": 40, "customer": 20, "store": 4, "date": 30, "time": 24, "promotion": 5}
SIZES = {
    "XS": Size("XS", _TINY, 40, 12, 6, 3, 2, 2, (1, 100), 0),
    "S": Size("S", _SMALL, 25_000, 1_000, 210, 21, 7, 10, (1, 100, 10_000, 1_000_000), 4),
    "M": Size("M", _LARGE, 242_000, 10_000, 210, 21, 7, 10, (1, 100, 10_000, 1_000_000), 1),
}
# Column of the business key, of the surrogate key, and an attribute that queries group by.
DIMENSIONS = {
    "item": ("item_id", "item_sk", "class"),
    "customer": ("cust_id", "cust_sk", "segment"),
    "store": ("store_id", "store_sk", "region"),
    "date": ("date_id", "date_sk", "month"),
    "time": ("time_id", "time_sk", "hour"),
    "promotion": ("promo_id", "promo_sk", "channel"),
}
CLASSES = 20
PURCHASE_KEYS = {"date_id": "date", "time_id": "time", "cust_id": "customer", "store_id": "store"}
LINE_KEYS = {"item_id": "item", "promo_id": "promotion"}


@dataclass
class Images:
    """All images that rows of one table ever had; an image lives from transaction `born` on until `died`."""

    columns: dict[str, Numbers]
    rows: int = 0
    born: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    died: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, *names: str) -> "Images":
        """Return no images, of these columns."""
        return cls({name: np.zeros(0, np.int64) for name in names})

    def append(self, number: int, columns: Mapping[str, Numbers]) -> Numbers:
        """Add images that live from a transaction on; return their places."""
        count = len(next(iter(columns.values())))
        places = np.arange(self.rows, self.rows + count)
        self._make_room(count)
        for name, values in columns.items():
            self.columns[name][places] = values
        self.born[places], self.died[places] = number, ALIVE
        self.rows += count
        return places

    def _make_room(self, count: int) -> None:
        short = self.rows + count - len(self.born)
        if short > 0:
            more = np.zeros(max(short, len(self.born)), np.int64)
            self.born, self.died = np.concatenate([self.born, more]), np.concatenate([self.died, more])
            self.columns = {name: np.concatenate([values, more]) for name, values in self.columns.items()}

    def take(self, places: Numbers) -> dict[str, Numbers]:
        """Return the columns of some images."""
        return {name: values[places] for name, values in self.columns.items()}

    def living(self, number: int) -> Numbers:
        """Return the places of the images that live after a transaction."""
        return np.flatnonzero((self.born[: self.rows] <= number) & (number < self.died[: self.rows]))

    def pick(self, dice: np.random.Generator, count: int) -> Numbers:
        """Return about `count` different living images by chance; never more."""
        places = np.unique(dice.integers(0, max(self.rows, 1), 2 * count + 8)) if self.rows and count else np.zeros(0, np.int64)
        return dice.permutation(places[self.died[places] == ALIVE])[:count]


class ShopData:
    """Makes transactions; number 0 is the history, and each further one gets the next number."""

    def __init__(self, size: Size, *, share: float = 0.0, seed: int = SEED) -> None:
        self.size = size
        self._share = share
        self._dice = np.random.default_rng(seed)
        self._purchases = Images.of("purc_id", *PURCHASE_KEYS)
        self._lines = Images.of("purc_id", *LINE_KEYS, "qty", "price", "cost")
        self._place_of: Numbers = np.zeros(0, np.int64)  # by purchase, its living image
        self.number = -1

    def dimensions(self) -> Changes:
        """Return the rows of the dimensions; surrogate keys count from 1 in the order of the business keys."""
        found = {}
        for name, columns in DIMENSIONS.items():
            keys = np.arange(self.size.dimensions[name])
            attribute = keys * 24 // len(keys) if name == "time" else keys % CLASSES
            found[name] = pa.table(dict(zip(columns, (_texts(columns[0], keys), pa.array(keys + 1, pa.int32()), pa.array(attribute, pa.int32())), strict=True)))
        return found

    def history(self) -> Changes:
        """Return what was sold before; it is to be the first transaction."""
        assert self.number == -1
        return self.transaction(self.size.history, share=0.0)

    def transactions(self, count: int, *, purchases: int) -> list[Changes]:
        """Return transactions with so many purchases all together."""
        cuts = np.linspace(0, purchases, count + 1).astype(int)
        return [self.transaction(int(number)) for number in np.diff(cuts)]

    def transaction(self, purchases: int, *, share: float | None = None, deletes: int | None = None) -> Changes:
        """Return one transaction: new purchases with their lines, and so many updates and deletes of older rows that they are the share of all."""
        self.number += 1
        share = self._share if share is None else share
        others = round(purchases * (LINES_EACH + 1) * share / (1 - share))
        moved = self._move(others // 10)
        ended, updated = self._change_lines(others * 45 // 100 if deletes is None else deletes, 0 if deletes is not None else others * 45 // 100)
        sold, lines = self._sell(purchases)
        made = {
            "purchase": [(sold, "insert"), (moved, "update_postimage")],
            "line": [(lines, "insert"), (updated, "update_postimage"), (ended, "delete")],
        }
        tables = {name: pa.concat_tables([_changes(columns, kind) for columns, kind in parts]) for name, parts in made.items()}
        return {name: table for name, table in tables.items() if table.num_rows}

    def _sell(self, count: int) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
        first, dice, rows = len(self._place_of), self._dice, self.size.dimensions
        sold = {"purc_id": np.arange(first, first + count)}
        sold |= {column: dice.integers(0, rows[name], count) for column, name in PURCHASE_KEYS.items()}
        # The lines of one purchase have different items: they are part of a line's key.
        items = (dice.integers(0, rows["item"], count)[:, None] + np.arange(LINES_EACH)[None, :] * 3) % rows["item"]
        total = count * LINES_EACH
        lines = {"purc_id": np.repeat(sold["purc_id"], LINES_EACH), "item_id": items.ravel(), "promo_id": dice.integers(0, rows["promotion"], total)}
        lines |= {"qty": dice.integers(1, 10, total), "price": dice.integers(100, 10_000, total), "cost": dice.integers(50, 8_000, total)}
        self._place_of = np.concatenate([self._place_of, self._purchases.append(self.number, sold)])
        self._lines.append(self.number, lines)
        return sold, lines

    def _move(self, count: int) -> dict[str, Numbers]:
        """Let some purchases turn out to have been made in another store."""
        places = self._purchases.pick(self._dice, count)
        moved = self._purchases.take(places)
        moved["store_id"] = (moved["store_id"] + 1) % self.size.dimensions["store"]
        self._purchases.died[places] = self.number
        self._place_of[moved["purc_id"]] = self._purchases.append(self.number, moved)
        return moved

    def _change_lines(self, deletes: int, updates: int) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
        places = self._lines.pick(self._dice, deletes + updates)
        self._lines.died[places] = self.number
        ended, updated = self._lines.take(places[:deletes]), self._lines.take(places[deletes:])
        updated["qty"] = updated["qty"] % 9 + 1
        self._lines.append(self.number, updated)
        return ended, updated

    def sales_at(self, number: int) -> pa.Table:
        """Return `store_sales` after a transaction."""
        purchase = np.zeros(len(self._place_of), np.int64)
        living = self._purchases.living(number)
        purchase[self._purchases.columns["purc_id"][living]] = living
        line = self._lines.take(self._lines.living(number))
        sold = self._purchases.take(purchase[line["purc_id"]])
        sales = {"ticket": line["purc_id"], "item_sk": line["item_id"] + 1, "promo_sk": line["promo_id"] + 1}
        sales |= {"date_sk": sold["date_id"] + 1, "time_sk": sold["time_id"] + 1, "cust_sk": sold["cust_id"] + 1, "store_sk": sold["store_id"] + 1}
        sales |= {"class": line["item_id"] % CLASSES, "hour": sold["time_id"] * 24 // self.size.dimensions["time"]}
        sales |= {"qty": line["qty"], "amount": line["qty"] * line["price"], "cost": line["qty"] * line["cost"]}
        return pa.table(sales)


def _texts(column: str, keys: Numbers) -> pa.Array:
    """Return business keys as texts, as sources have them."""
    return pc.binary_join_element_wise(column[:1].upper(), pc.utf8_lpad(pa.array(keys).cast(pa.string()), 9, "0"), "")


def _changes(columns: Mapping[str, Numbers], kind: str) -> pa.Table:
    business = PURCHASE_KEYS | LINE_KEYS
    made: dict[str, Any] = {name: _texts(name, values) if name in business else pa.array(values, pa.int32()) for name, values in columns.items()}
    count = len(next(iter(columns.values())))
    return pa.table(made | {"_change_type": pa.repeat(pa.scalar(kind), count)})
