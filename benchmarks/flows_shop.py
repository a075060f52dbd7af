"""The flow of the benchmarks in a warehouse, loaded with its history and started in one of the modes.

In: a `ShopData`.
Out: `store_sales`, kept by a flow with six look-ups, a join and an aggregate; transactions to append, cuts to ask for.
Promise: a way of loading is measured in the same warehouse, on the same history, by the same operators as the others.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import righttime as rt
from benchmarks.flows_data import DIMENSIONS, LINE_KEYS, PURCHASE_KEYS, Changes, ShopData
from benchmarks.ours import ROOM
from righttime.flows.runner import FlowRunner, Mode

TABLE = "store_sales"
MEASURES = ("qty", "amount", "cost")
ANSWER_S = "1800s"
NEVER = {"background_rows": 1 << 40, "background_idle_s": 0.0}  # only queries cut jobs
_CHUNK_ROWS = 50_000


def sales_flow() -> rt.Flow:
    """Declare the flow: four look-ups for purchases, two for lines, an incremental join, and sums."""
    flow = rt.Flow("sales")
    purchases, lines = flow.stream("purchase"), flow.stream("line")
    dimensions = {name: flow.stream(name) for name in DIMENSIONS}
    for key, name in PURCHASE_KEYS.items():
        purchases = purchases.lookup(dimensions[name], on=key, take=_taken(name), missing="drop")
    for key, name in LINE_KEYS.items():
        lines = lines.lookup(dimensions[name], on=key, take=_taken(name), missing="drop")
    sold = (
        lines.derive(amount="qty * price", total_cost="qty * cost")
        .join(purchases, on="purc_id")
        .select("item_sk", "promo_sk", "date_sk", "time_sk", "cust_sk", "store_sk", "class", "hour", "qty", "amount", "total_cost", ticket="purc_id")
    )
    keys = ["ticket", "item_sk", "promo_sk"]
    by = [*keys, "date_sk", "time_sk", "cust_sk", "store_sk", "class", "hour"]
    sold.aggregate(by=by, qty="sum(qty)", amount="sum(amount)", cost="sum(total_cost)").into(TABLE, keys=keys)
    return flow


def _taken(name: str) -> list[str]:
    """Return what a look-up takes: the surrogate key, and of items and times what queries group by."""
    return list(DIMENSIONS[name][1:]) if name in ("item", "time") else [DIMENSIONS[name][1]]


class Shop:
    """A warehouse with the flow; one flow at a time, in one mode at a time."""

    def __init__(self, folder: Path, shop: ShopData, **settings: Any) -> None:
        self.shop = shop
        self._folder = folder
        self._runner: FlowRunner | None = None
        self._times_us: list[int] = []  # of the transactions, by number
        self.wh = self._open(settings)
        self._create()

    def _open(self, settings: dict[str, Any]) -> rt.Warehouse:
        return rt.open(self._folder, **(ROOM | {"queries_max": 64, "commits_max": 1_000_000} | settings))

    def reopen(self, **settings: Any) -> None:
        """Go on with other settings."""
        self.stop()
        self.wh.close()
        self.wh = self._open(settings)

    def _create(self) -> None:
        for name, rows in self.shop.dimensions().items():
            key, surrogate, attribute = DIMENSIONS[name]
            self.wh.create_stream(name, f"{key} STRING NOT NULL, {surrogate} INT, {attribute} INT", keys=[key]).insert(rows)
        keys = "".join(f", {name} STRING" for name in PURCHASE_KEYS)
        self.wh.create_stream("purchase", f"purc_id INT NOT NULL{keys}", keys=["purc_id"])
        self.wh.create_stream(
            "line", "purc_id INT NOT NULL, item_id STRING NOT NULL, promo_id STRING, qty INT, price INT, cost INT", keys=["purc_id", "item_id"]
        )

    def load_history(self) -> float:
        """Bring the history into the target and store it; return the seconds that the flow took."""
        history = self.shop.history()
        for name, rows in history.items():
            for begin in range(0, rows.num_rows, _CHUNK_ROWS):
                self._times_us[:] = [self.wh.append({name: rows.slice(begin, _CHUNK_ROWS)}, transaction="0").time_us]
        begun_s = time.perf_counter()
        with self.running("on_demand"):
            self.cut()
            self.wait()
        taken_s = time.perf_counter() - begun_s
        self.wh.materialize(TABLE)
        return taken_s

    @contextmanager
    def running(self, mode: Mode) -> Iterator[None]:
        """Run the flow in a mode as long as the block lasts."""
        self._runner = self.wh._flows("bench").run(sales_flow(), mode=mode)
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the flow."""
        if self._runner is not None:
            self.wh._flows("bench").stop("sales")
            self._runner = None

    @property
    def _running(self) -> FlowRunner:
        assert self._runner is not None
        return self._runner

    @property
    def _catalyst(self) -> Any:
        return self.wh._writer("bench").catalyst

    def append(self, changes: Changes) -> int:
        """Append the next transaction; return its number."""
        number = len(self._times_us)
        self._times_us.append(self.wh.append(changes, transaction=str(number)).time_us)
        return number

    @property
    def appended(self) -> int:
        """The number of the last transaction that is appended."""
        return len(self._times_us) - 1

    def cut(self) -> int:
        """Ask for a job that ends now, as a query that arrives does, and go on; return when."""
        with self._catalyst.lock:
            now_us: int = self._catalyst.authority.read_us()
            self._running.link.want(now_us)
            return now_us

    def wait(self) -> None:
        """Wait until everything that was appended is in the target."""
        link, catalyst = self._running.link, self._catalyst
        with catalyst.lock:
            while link.horizon_us < self._times_us[-1]:
                if self._running.failure is not None:
                    raise self._running.failure
                catalyst.arrivals.wait(timeout=0.5)

    def jobs(self) -> int:
        """Return how many jobs were ever published."""
        return int(self._catalyst.head.source("flow.sales").last.number)

    # -- checking ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the whole target, as it is now, with what it must be."""
        found = self.wh.read(TABLE, wait=ANSWER_S).arrow()
        expected = self.shop.sales_at(self.appended)
        assert sorted_rows(found, expected.column_names).equals(sorted_rows(expected, expected.column_names)), "the target is not what the transactions make it"

    def check_jobs(self, cuts: Sequence[tuple[int, int]]) -> None:
        """Compare sums of the target at the ends of jobs, given as time and number of the last transaction, with what they must be then."""
        for cut_us, number in cuts:
            expected = self.shop.sales_at(number)
            found = self.wh.read(TABLE, as_of=cut_us, columns=list(MEASURES), wait=ANSWER_S).arrow()
            assert sums(found) == sums(expected), f"after transaction {number}: {sums(found)} instead of {sums(expected)}"


def sums(sales: pa.Table) -> list[int]:
    """Return the number of rows and the sums of the measures."""
    return [sales.num_rows, *(sales.column(name).cast(pa.int64()).to_numpy().sum().item() for name in MEASURES)]


def sorted_rows(sales: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows in one order, as int64."""
    plain = pa.table({name: sales.column(name).cast(pa.int64()).combine_chunks() for name in names})
    return plain.sort_by([(name, "ascending") for name in names])


@contextmanager
def open_shop(shop: ShopData, **settings: Any) -> Iterator[Shop]:
    """Give a warehouse with the history loaded, in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="rt_bench_") as folder, rt.open(Path(folder) / "keeper") as keeper:
        keeper.spark  # noqa: B018  # held by somebody else too, Spark stays as warm as it is when the shop is opened anew
        opened = Shop(Path(folder) / "wh", shop, **settings)
        try:
            opened.load_history()
            yield opened
        finally:
            opened.stop()
            opened.wh.close()
