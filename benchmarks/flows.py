"""X1: the time to bring new purchases into the target, cut into 210 jobs.

In: 1,000 purchases with 12,000 lines (size S; ten times that for M) in 210 transactions, on top of a history that is stored.
Out: seconds from the first append until everything is in the target, for one job over all (near-real-time, one batch), windows of two seconds, one job after
the other, and ours: a job for each transaction, drained together.
Promise: all in one warehouse, in turns, each warmed up. After each way the whole target is compared with the expectation, ours also at the ends of jobs.
"""

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import svg
from benchmarks.figure import Figure
from benchmarks.flows_data import SIZES, Changes, ShopData
from benchmarks.flows_shop import NEVER, TABLE, Shop, open_shop
from righttime.flows.runner import Mode

RESULTS = Path(__file__).parent / "results"
WINDOW_S = 2.0
PACED_S = 10 * WINDOW_S
SHARES = (0.0, 0.1)
SEQUENTIAL_PART = {"M": 10}


@dataclass(frozen=True, slots=True)
class Way:
    """A way of loading: the mode of the flow, and when a job ends."""

    name: str
    mode: Mode
    cuts: str  # "each" transaction, "last", or by its "windows"


ONE = Way("near-real-time, one job", "on_demand", "last")
WINDOWS = Way("near-real-time, 2 s windows", "near_real_time", "windows")
SEQUENTIAL = Way("sequential", "sequential", "each")
OURS = Way("ours", "on_demand", "each")


def run(size: str = "S", rounds: int = 3, plots: Path = RESULTS, shares: tuple[float, ...] = SHARES) -> list[Figure]:
    """Measure without changes of older rows, and with ten percent of them."""
    return [figure for share in shares for figure in _with_share(size, share, rounds, plots)]


def _with_share(size: str, share: float, rounds: int, plots: Path) -> list[Figure]:
    shop = ShopData(SIZES[size], share=share)
    with open_shop(shop, **NEVER, window_s=WINDOW_S) as opened:
        times: dict[str, list[float]] = {}
        _warm(opened)
        for number in range(rounds):
            for way in (ONE, WINDOWS, OURS):
                times.setdefault(way.name, []).append(_load(opened, way))
            if number == 0:  # one job after the other is slow, and steady: once is enough, and at size M a part of the jobs
                times[SEQUENTIAL.name] = [_load(opened, SEQUENTIAL, part=SEQUENTIAL_PART.get(size, 1))]
        paced_s = PACED_S if size != "XS" else 1.0
        for way in (WINDOWS, OURS):
            times[f"{way.name}, paced"] = [_load(opened, way, over_s=paced_s)]
        version = str(opened.wh.spark.version)
    medians = {name: statistics.median(of_one) for name, of_one in times.items()}
    title = f"X1, size {size}, {share:.0%} updates and deletes"
    shown = {name: {"total time": seconds} for name, seconds in medians.items() if "paced" not in name}
    svg.bars(plots / f"x1_{size}_{share * 100:.0f}.svg", f"{title}: {shop.size.jobs} jobs", "s", shown, command=command("flows", size))
    context: dict[str, float | str] = {
        "spark": version,
        "load": os.getloadavg()[0],
        "part of the jobs that was run sequentially": 1 / SEQUENTIAL_PART.get(size, 1),
        **medians,
    }
    return _figures(title, shop, medians, context)


def _figures(title: str, shop: ShopData, medians: dict[str, float], context: dict[str, float | str]) -> list[Figure]:
    ours, jobs, rows = medians[OURS.name], shop.size.jobs, shop.size.purchases * 13
    overhead_ms = (ours - medians[ONE.name]) / jobs * 1000
    paced = {way.name: medians[f"{way.name}, paced"] for way in (OURS, WINDOWS)}
    return [
        Figure(
            f"{title}: ours against 2 s windows", "s", ours=ours, rival=medians[WINDOWS.name], goal=1.0, at_least=False, note=f"{rows:,} rows", context=context
        ),
        Figure(f"{title}: ours against one job", "s", ours=ours, rival=medians[ONE.name], note=f"{jobs} jobs: {overhead_ms:.1f} ms for each more"),
        Figure(f"{title}: sequential against ours", "s", ours=medians[SEQUENTIAL.name], rival=ours, goal=8.0, note=f"first column: sequential{_partly(shop)}"),
        Figure(
            f"{title}: paced, ours against 2 s windows",
            "s",
            ours=paced[OURS.name],
            rival=paced[WINDOWS.name],
            goal=1.0,
            at_least=False,
            note="rows come evenly",
        ),
    ]


def _partly(shop: ShopData) -> str:
    part = next((part for size, part in SEQUENTIAL_PART.items() if SIZES[size] == shop.size), 1)
    return f", {shop.size.jobs // part} of the jobs, times {part}" if part > 1 else ""


def command(module: str, size: str) -> str:
    """Return the command that measures this."""
    return f'make bench ARGS="{module} --size {size}"'


def _warm(opened: Shop) -> None:
    """Let drains of one job and of several run before any clock does."""
    for way in (SEQUENTIAL, OURS):
        for count in (1, 4):
            _feed(opened, way, opened.shop.transactions(count, purchases=2 * count))


def _load(opened: Shop, way: Way, *, over_s: float = 0.0, part: int = 1) -> float:
    """Return the seconds that a way takes for all transactions; spread evenly over some seconds, or back to back; from a part of them if so told."""
    size, jobs_before = opened.shop.size, opened.jobs()
    jobs = size.jobs // part
    taken_s = _feed(opened, way, opened.shop.transactions(jobs, purchases=size.purchases // part), over_s=over_s)
    made = opened.jobs() - jobs_before
    assert way.cuts != "each" or made >= jobs, f"{made} jobs instead of {jobs}"
    opened.wh.materialize(TABLE)  # so that each way begins alike
    return taken_s * size.jobs / jobs


def _feed(opened: Shop, way: Way, transactions: list[Changes], *, over_s: float = 0.0) -> float:
    cuts: list[tuple[int, int]] = []
    with opened.running(way.mode):
        begun_s = time.perf_counter()
        for place, changes in enumerate(transactions):
            time.sleep(max(begun_s + over_s * place / len(transactions) - time.perf_counter(), 0.0))
            number = opened.append(changes)
            if way.cuts == "each":
                cuts.append((opened.cut(), number))
        if way.cuts == "last":
            opened.cut()
        opened.wait()
        taken_s = time.perf_counter() - begun_s
        opened.check()
        opened.check_jobs(cuts[:: max(len(cuts) // 5, 1)])
    return taken_s
