"""X6: which operator gets the next quantum, on the reference engine's virtual clock.

In: the join flow with a slow look-up, 70 jobs cut at random, at 150 rows per second and at the rates up to saturation.
Out: the mean latency of a job from its cut to its commit for each scheduler, as figures and a plot.
Promise: deterministic: nothing is timed, so a loaded machine changes nothing.
"""

from pathlib import Path

from benchmarks import svg
from benchmarks.figure import Figure
from benchmarks.flows import RESULTS, command
from righttime.testing.reference.scheduling import SCHEDULERS, Load, mean_latency_s

RATES = (150.0, 300.0, 450.0, 600.0, 700.0)
SEEDS = tuple(range(1, 11))
_NAMES = {"mc": "MC", "mc_runnable": "MC on runnable rows", "zone_aware": "zone-aware MC", "versioned": "versioned staging tables"}


def run(size: str = "S", plots: Path = RESULTS) -> list[Figure]:
    """Simulate all schedulers at all rates; the size only says how many seeds."""
    seeds = SEEDS if size != "XS" else SEEDS[:1]
    rates = RATES if size != "XS" else (RATES[0], RATES[-1])
    found = {name: {rate: mean_latency_s(name, Load(rate), seeds) for rate in rates} for name in SCHEDULERS}
    curves = {_NAMES[name]: [(rate, seconds) for rate, seconds in of_one.items() if seconds < float("inf")] for name, of_one in found.items()}
    svg.lines(
        plots / f"x6_{size}.svg", "X6: mean latency of a job", ("rows per second", "s"), curves, command=command("flows_scheduling", size), logarithmic=True
    )
    figures = []
    for rate in (rates[0], rates[-1]):
        context: dict[str, float | str] = {_NAMES[name]: of_one[rate] for name, of_one in found.items()}
        ours, rival = found["zone_aware"][rate], found["mc"][rate]
        note = f"{len(seeds)} seeds, {Load(rate).jobs} jobs each"
        figures.append(
            Figure(f"X6: zone-aware MC against MC at {rate:g} rows/s", "s", ours=ours, rival=rival, goal=1.0, at_least=False, note=note, context=context)
        )
    return figures
