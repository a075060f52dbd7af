"""Ten queries over `store_sales`, each with the same thing computed on Arrow.

In: the expected rows of `store_sales`.
Out: SQL for the warehouse, and the answer that it must give.
Promise: all values are whole numbers, so answers are compared exactly; ties are broken by key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

Rows = list[tuple[int, ...]]
_FEW = 3  # classes whose items are looked at in pairs


@dataclass(frozen=True, slots=True)
class Template:
    """A query and its answer."""

    name: str
    sql: str
    answer: Callable[[pa.Table], Rows]

    def agrees(self, found: pa.Table, sales: pa.Table) -> bool:
        """Tell whether an answer is what the expected rows make it."""
        return sorted(_tuples(found)) == sorted(self.answer(sales))


def _tuples(table: pa.Table) -> Rows:
    return list(zip(*(column.cast(pa.int64()).to_pylist() for column in table.columns), strict=True))


def _grouped(sales: pa.Table, by: Sequence[str], *measures: tuple[str, str]) -> Rows:
    """Return sums and counts by group, in the order in which they are asked for."""
    made = sales.group_by(list(by)).aggregate(list(measures))
    return _tuples(made.select([*by, *(f"{column}_{function}" for column, function in measures)]))


def _top(rows: Rows, count: int) -> Rows:
    return sorted(rows, key=lambda row: (-row[1], row[0]))[:count]


def _hours(sales: pa.Table) -> Rows:
    chosen = sales.filter(pc.and_(pc.greater_equal(sales["hour"], 8), pc.less_equal(sales["hour"], 11)))
    return _grouped(chosen, ["store_sk", "hour"], ("ticket", "count"))


def _baskets(sales: pa.Table) -> Rows:
    sizes = sales.group_by("ticket").aggregate([("item_sk", "count")])
    return _grouped(sizes, ["item_sk_count"], ("ticket", "count"))


def _bands(sales: pa.Table) -> Rows:
    band = pc.divide(pc.divide(sales["amount"], sales["qty"]), 1000)
    return _grouped(sales.append_column("band", band), ["band"], ("ticket", "count"), ("qty", "sum"))


def _pairs(sales: pa.Table) -> Rows:
    few = sales.filter(pc.less(sales["class"], _FEW)).select(["ticket", "item_sk", "class"])
    pairs = few.join(few, keys="ticket", join_type="inner", left_suffix="_a", right_suffix="_b")
    return _grouped(pairs.filter(pc.less(pairs["item_sk_a"], pairs["item_sk_b"])), ["class_a", "class_b"], ("ticket", "count"))


def _profit(sales: pa.Table) -> Rows:
    gained = sales.filter(pc.greater(sales["amount"], sales["cost"]))
    gained = gained.append_column("span", pc.divide(gained["date_sk"], 30)).append_column("profit", pc.subtract(gained["amount"], gained["cost"]))
    return _grouped(gained, ["span"], ("profit", "sum"), ("ticket", "count"))


TEMPLATES = (
    Template("hours", "SELECT store_sk, hour, count(*) FROM store_sales WHERE hour BETWEEN 8 AND 11 GROUP BY store_sk, hour", _hours),
    Template("classes", "SELECT class, sum(amount) FROM store_sales GROUP BY class", lambda sales: _grouped(sales, ["class"], ("amount", "sum"))),
    Template(
        "customers",
        "SELECT cust_sk, sum(amount) AS revenue FROM store_sales GROUP BY cust_sk ORDER BY revenue DESC, cust_sk LIMIT 20",
        lambda sales: _top(_grouped(sales, ["cust_sk"], ("amount", "sum")), 20),
    ),
    Template("baskets", "SELECT items, count(*) FROM (SELECT ticket, count(*) AS items FROM store_sales GROUP BY ticket) AS baskets GROUP BY items", _baskets),
    Template(
        "promotions",
        "SELECT promo_sk, count(*), sum(amount) FROM store_sales GROUP BY promo_sk",
        lambda sales: _grouped(sales, ["promo_sk"], ("ticket", "count"), ("amount", "sum")),
    ),
    Template("days", "SELECT date_sk, sum(amount) FROM store_sales GROUP BY date_sk", lambda sales: _grouped(sales, ["date_sk"], ("amount", "sum"))),
    Template(
        "stores",
        "SELECT store_sk, sum(amount) AS revenue FROM store_sales GROUP BY store_sk ORDER BY revenue DESC, store_sk LIMIT 50",
        lambda sales: _top(_grouped(sales, ["store_sk"], ("amount", "sum")), 50),
    ),
    Template("prices", "SELECT amount DIV qty DIV 1000 AS band, count(*), sum(qty) FROM store_sales GROUP BY amount DIV qty DIV 1000", _bands),
    Template(
        "pairs",
        "SELECT a.class, b.class, count(*) FROM store_sales AS a JOIN store_sales AS b ON a.ticket = b.ticket AND a.item_sk < b.item_sk"
        f" WHERE a.class < {_FEW} AND b.class < {_FEW} GROUP BY a.class, b.class",
        _pairs,
    ),
    Template(
        "profit",
        "SELECT date_sk DIV 30, sum(amount - cost), count(*) FROM store_sales WHERE amount > cost GROUP BY date_sk DIV 30",
        _profit,
    ),
)
