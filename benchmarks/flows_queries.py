"""X2 to X5: how many queries per second a target answers while its flow runs, and what each query waits for.

In: 21 streams of ten queries with a transaction for each query (read-heavy), and 7 streams with twice the rows (update-heavy), each after rounds that do
not count: Java compiles for minutes what both need, and what it needs for loading most of all where that is done often.
Out: queries per second, until the last answer and until everything is loaded, under near-real-time windows, one job after the other, and ours, in the
update-heavy case with and without background jobs; per template the latency, the wait for its state and the time it ran, as table and plot; how many
answers of near-real-time loading are wrong.
One job after the other is what the sheet calls it (A27): a run of the flow for each job, planned by Spark as a run is, and published before the next begins.
Promise: every answer is compared with the expectation at the cut that its receipt names; one wrong answer of ours voids the figure.
"""

import os
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import svg
from benchmarks.figure import Figure
from benchmarks.flows import RESULTS, WINDOW_S, command
from benchmarks.flows_data import SIZES, ShopData, Size
from benchmarks.flows_shop import NEVER, Shop, open_shop
from benchmarks.flows_streams import Asked, Streams, serve
from benchmarks.flows_templates import TEMPLATES
from righttime.flows.runner import Mode

WINDOWS, OURS, ALONE, SEQUENTIAL = "near-real-time", "ours", "ours, no background jobs", "sequential"
MODES: dict[str, Mode] = {WINDOWS: "near_real_time", OURS: "on_demand", ALONE: "on_demand", SEQUENTIAL: "sequential"}
_UPDATE_HEAVY = 6  # transactions for each query


def run(size: str = "S", rounds: int = 3, plots: Path = RESULTS) -> list[Figure]:
    """Measure both loads in one warehouse."""
    chosen = SIZES[size]
    with open_shop(ShopData(chosen), **NEVER) as opened:
        rows_each = max(chosen.purchases * 13 // chosen.jobs, 1)
        settings = {WINDOWS: NEVER | {"window_s": WINDOW_S}, SEQUENTIAL: NEVER, ALONE: NEVER, OURS: NEVER}
        context: dict[str, float | str] = {"spark": str(opened.wh.spark.version), "rounds before": float(chosen.warm_rounds)}
        _warm(opened, settings, heavy=False)
        reading = _measure(opened, settings, (WINDOWS, OURS, SEQUENTIAL), rounds, heavy=False)
        settings[OURS] = {"background_rows": rows_each, "background_idle_s": 1.0}
        _warm(opened, settings, heavy=True)
        updating = _measure(opened, settings, (WINDOWS, OURS, ALONE, SEQUENTIAL), rounds, heavy=True)
        context["load"] = os.getloadavg()[0]
    figures = _figures("X2, read-heavy", chosen, reading, context, goal=1.0) + _figures("X3, update-heavy", chosen, updating, context, goal=0.95)
    figures += [_latency("X4, read-heavy", chosen, reading, plots), _latency("X5, update-heavy", chosen, updating, plots)]
    ours, alone = (_mean([one.latency_s for one in _all(updating[name])]) for name in (OURS, ALONE))
    return [*figures, Figure(f"X5, size {size}: latency without background jobs against with", "s", ours=alone, rival=ours, note="first column: without")]


def _warm(opened: Shop, settings: Mapping[str, Mapping[str, float]], *, heavy: bool) -> None:
    """Run rounds that do not count. One job after the other takes so long that it is warm soon after its beginning."""
    rounds = opened.shop.size.warm_rounds
    for number in range(1, rounds + 1):
        took = {way: runs[0].loaded_s for way, runs in _measure(opened, settings, (WINDOWS, OURS), 1, heavy=heavy).items()}
        sys.stderr.write(f"  round {number} of {rounds} that do not count: {', '.join(f'{way} {seconds:.1f} s' for way, seconds in took.items())}\n")


def _measure(opened: Shop, settings: Mapping[str, Mapping[str, float]], ways: tuple[str, ...], rounds: int, *, heavy: bool) -> dict[str, list[Streams]]:
    """Run the ways in turns, in every second round the other way round; one job after the other only once."""
    size = opened.shop.size
    threads, purchases, each = (size.threads_few, 2 * size.purchases, _UPDATE_HEAVY) if heavy else (size.threads_many, size.purchases, 1)
    seen: dict[str, list[Streams]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 == 0 else ways[::-1]:
            if way == SEQUENTIAL and number:
                continue
            opened.reopen(**settings[way])
            seen[way].append(serve(opened, MODES[way], threads=threads, queries_each=size.queries_each, purchases=purchases, each=each))
    return seen


def _figures(title: str, size: Size, seen: Mapping[str, list[Streams]], context: dict[str, float | str], *, goal: float) -> list[Figure]:
    """Return the ratios, of queries over the time of all rounds: rounds move by a tenth and more, all ways alike for a while, so that a median takes one
    way's good moment with another's bad one. The goals are for the time until everything is answered and loaded: until the last answer the ways have not
    done the same work."""
    loaded = {way: len(_all(runs)) / sum(one.loaded_s for one in runs) for way, runs in seen.items()}
    answered = {way: len(_all(runs)) / sum(one.wall_s for one in runs) for way, runs in seen.items()}
    asked = {way: len(_all(runs)) for way, runs in seen.items()}
    wrong = {way: sum(one.wrong for one in runs) for way, runs in seen.items()}
    stale = {way: sum(one.stale for one in runs) for way, runs in seen.items() if way != WINDOWS}
    void = [way for way in stale if wrong[way] or stale[way]]
    jobs = ", ".join(f"{way} {statistics.median(one.jobs for one in runs):.0f}" for way, runs in seen.items())
    note = f"VOID, wrong or stale answers: {', '.join(void)}" if void else f"all {asked[OURS]} answers right; jobs: {jobs}"
    more = context | {f"seconds, {way}": " ".join(f"{one.loaded_s:.1f}" for one in runs) for way, runs in seen.items()}
    more |= {f"queries/s, {way}": rate for way, rate in loaded.items()} | {f"wrong, {way}": float(count) for way, count in wrong.items()}
    name = f"{title}, size {size.name}"

    def against(rival: str, rates: Mapping[str, float], **options: Any) -> Figure:
        when = "" if rates is loaded else ", until the last answer"
        return Figure(f"{name}: ours against {rival}{when}", "queries/s", ours=None if OURS in void else rates[OURS], rival=rates[rival], **options)

    figures = [against(WINDOWS, loaded, goal=goal, note=note, context=more), against(SEQUENTIAL, loaded, goal=1.6)]
    figures += [against(WINDOWS, answered), against(SEQUENTIAL, answered)]
    figures.append(Figure(f"{name}: wrong answers of near-real-time", "answers", ours=float(wrong[WINDOWS]), note=f"of {asked[WINDOWS]}; ours {wrong[OURS]}"))
    if ALONE in loaded:
        figures.append(Figure(f"{name}: background jobs on against off", "queries/s", ours=figures[0].ours, rival=loaded[ALONE]))
    return figures


def _latency(title: str, size: Size, seen: Mapping[str, list[Streams]], plots: Path) -> Figure:
    """Write the table and the plot of mean latencies by template; the figure is the mean of all."""
    number = title.split(",", 1)[0].lower()
    lines = [f"# {title}, size {size.name}: seconds by template", "", f"Made by: `{command('flows_queries', size.name)}`", ""]
    lines += ["| template | way | latency | p95 | waited for its state | run |", "|---|---|---|---|---|---|"]
    shown: dict[str, dict[str, float]] = {}
    for template in TEMPLATES:
        for way, runs in seen.items():
            chosen = [one for one in _all(runs) if one.template is template]
            if chosen:
                shown.setdefault(template.name, {})[way] = _mean([one.latency_s for one in chosen])
                lines.append(f"| {template.name} | {way} | {' | '.join(f'{value:.3f}' for value in _spans(chosen))} |")
    svg.bars(plots / f"{number}_{size.name}.svg", f"{title}, size {size.name}: mean latency", "s", shown, command=command("flows_queries", size.name))
    (plots / f"{number}_{size.name}.md").write_text("\n".join(lines) + "\n")
    ours, rival = (_mean([one.latency_s for one in _all(seen[way])]) for way in (OURS, WINDOWS))
    waits: dict[str, float | str] = {f"waited, {way}": _mean([one.waited_s for one in _all(runs)]) for way, runs in seen.items()}
    return Figure(f"{title}, size {size.name}: mean latency, ours against near-real-time", "s", ours=ours, rival=rival, context=waits)


def _spans(asked: list[Asked]) -> tuple[float, float, float, float]:
    latencies = sorted(one.latency_s for one in asked)
    late = latencies[min(int(len(latencies) * 0.95), len(latencies) - 1)]
    return _mean(latencies), late, _mean([one.waited_s for one in asked]), _mean([one.run_s for one in asked])


def _all(runs: list[Streams]) -> list[Asked]:
    return [one for run in runs for one in run.asked]


def _mean(values: list[float]) -> float:
    return statistics.fmean(values)
