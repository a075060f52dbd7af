"""Operator scheduling on a virtual clock and one core: MC, MC on runnable rows, zone-aware MC, and versioned staging tables (experiment X6).

In: a scheduler, a rate of rows, a seed.
Out: the latency of each job from its cut to its commit.
Promise: deterministic; nothing but numbers moves. The flow is the join flow with a slow look-up: the filter feeds update R and dR with S, the look-up feeds
R with dS and update S, both feed dR with dS, and all joins feed the merger. Rows and cuts go on arriving until the last job that counts has committed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

SchedulerName = Literal["mc", "mc_runnable", "zone_aware", "versioned"]
SCHEDULERS: tuple[SchedulerName, ...] = ("mc", "mc_runnable", "zone_aware", "versioned")

JOIN_ZONES = (("update R", "R with dS"), ("dR with S", "update S"))
MC_GROUPS = (("filter", "update R", "dR with S"), ("look-up", "R with dS", "update S"), ("dR with dS",), ("merger",))
ZONE_GROUPS = (*JOIN_ZONES, ("filter",), ("look-up",), ("dR with dS",), ("merger",))
LEAST = 1e-6  # fewer rows than this are rounding
WRITER_OF = {"R with dS": "update R", "dR with S": "update S"}  # whose table a reader reads


@dataclass(frozen=True)
class Load:
    """What arrives: rows per second, the share of R rows among them, and cuts at random intervals."""

    rate: float
    share_left: float = 1 / 13
    jobs: int = 70
    cut_every_s: float = 1.0
    give_up_s: float = 700.0


@dataclass(frozen=True)
class Costs:
    """Seconds per row, and the quantum. The look-up is six times as slow as the filter; the flow is saturated at about 700 rows per second."""

    filter_s: float = 0.00012
    lookup_s: float = 0.00075
    update_s: float = 0.00024
    probe_s: float = 0.00024
    match_s: float = 0.00010
    merge_s: float = 0.00018
    quantum_s: float = 0.010
    blocked_s: float = 0.0  # what it costs to give a quantum to an operator that cannot use it


@dataclass
class Operator:
    """An operator as numbers: rows that wait in each job, and the job that it is on."""

    name: str
    cost_s: float
    providers: tuple[str, ...]
    gives: float = 1.0  # rows out for each row in
    waiting: dict[int, float] = field(default_factory=dict)
    job: int = 1
    in_zone: bool = False  # has finished its job and waits for the other members

    def volume(self) -> float:
        """Return all rows that wait, of whatever job."""
        return sum(self.waiting.values())


def operators(costs: Costs) -> dict[str, Operator]:
    """Return the join flow."""
    made = [
        Operator("filter", costs.filter_s, ("R",)),
        Operator("look-up", costs.lookup_s, ("S",)),
        Operator("update R", costs.update_s, ("filter",), gives=0.0),
        Operator("dR with S", costs.probe_s, ("filter",), gives=0.0),  # a new purchase finds no old line
        Operator("R with dS", costs.probe_s, ("look-up",), gives=0.1),  # some lines belong to old purchases
        Operator("update S", costs.update_s, ("look-up",), gives=0.0),
        Operator("dR with dS", costs.match_s, ("filter", "look-up"), gives=0.9),
        Operator("merger", costs.merge_s, ("dR with S", "R with dS", "dR with dS")),
    ]
    return {operator.name: operator for operator in made}


class Simulation:
    """One run."""

    def __init__(self, scheduler: SchedulerName, load: Load, seed: int, costs: Costs | None = None) -> None:
        self._scheduler, self._load, self._costs = scheduler, load, costs or Costs()
        self._operators = operators(self._costs)
        self._consumers = {name: [one for one in self._operators.values() if name in one.providers] for name in ("R", "S", *self._operators)}
        self._zones = () if scheduler == "versioned" else JOIN_ZONES
        self._groups = ZONE_GROUPS if scheduler == "zone_aware" else MC_GROUPS
        self._events = self._arrivals(Random(seed))
        self._next = next(self._events)
        self._now_s = 0.0
        self._open = 1
        self._cuts: dict[int, float] = {}
        self.latencies: dict[int, float] = {}

    def run(self) -> list[float]:
        """Return the latency of each job, in order; jobs that take absurdly long are missing."""
        groups = [[self._operators[name] for name in group] for group in self._groups]
        while len(self.latencies) < self._load.jobs and self._now_s < self._load.give_up_s:
            begun_s = self._now_s
            for group in groups:
                self._give_quantum(group)
                self._take_events()
            if self._now_s == begun_s:
                self._now_s = self._next[0]
                self._take_events()
        return [self.latencies[job] for job in sorted(self.latencies)]

    # arrivals

    def _arrivals(self, dice: Random) -> Iterator[tuple[float, str]]:
        """Return rows of R and S, and cuts, in the order of their times, without end."""
        row_s, cut_s = dice.expovariate(self._load.rate), dice.expovariate(1 / self._load.cut_every_s)
        while True:
            if row_s < cut_s:
                yield row_s, "R" if dice.random() < self._load.share_left else "S"
                row_s += dice.expovariate(self._load.rate)
            else:
                yield cut_s, "cut"
                cut_s += dice.expovariate(1 / self._load.cut_every_s)

    def _take_events(self) -> None:
        while self._next[0] <= self._now_s:
            time_s, what = self._next
            if what == "cut":
                self._cuts[self._open] = time_s
                self._open += 1
                self._finish_jobs()
            else:
                self._hand_on(what, self._open, 1.0)
            self._next = next(self._events)

    # scheduling

    def _give_quantum(self, group: Sequence[Operator]) -> None:
        """Give one quantum to a group: to the operator with the most rows, or in turn to the members of a zone."""
        if self._scheduler == "zone_aware":
            for member in group:
                self._work(member, self._costs.quantum_s / len(group))
            return
        volume = Operator.volume if self._scheduler == "mc" else self._runnable
        chosen = max(group, key=volume)
        if volume(chosen) and not self._work(chosen, self._costs.quantum_s):
            self._now_s += self._costs.blocked_s

    def _runnable(self, operator: Operator) -> float:
        rows = operator.waiting.get(operator.job, 0.0)
        return rows if rows > LEAST and self._may_run(operator) else 0.0

    def _may_run(self, operator: Operator) -> bool:
        if operator.job >= self._open or operator.in_zone:
            return False
        writer = WRITER_OF.get(operator.name) if self._scheduler == "versioned" else None
        return writer is None or self._operators[writer].job >= operator.job

    def _work(self, operator: Operator, quantum_s: float) -> bool:
        """Let an operator work for a quantum, over the ends of jobs; return whether it did anything."""
        left_s, worked = quantum_s, False
        while left_s >= operator.cost_s and self._runnable(operator):
            rows = min(operator.waiting[operator.job], left_s / operator.cost_s)
            operator.waiting[operator.job] -= rows
            self._now_s += rows * operator.cost_s
            left_s -= rows * operator.cost_s
            self._hand_on(operator.name, operator.job, rows * operator.gives)
            worked = True
            if operator.waiting[operator.job] <= LEAST:
                self._finish_jobs()
        return worked

    def _hand_on(self, provider: str, job: int, rows: float) -> None:
        if rows:
            for operator in self._consumers[provider]:
                operator.waiting[job] = operator.waiting.get(job, 0.0) + rows

    # ends of jobs, which cost nothing

    def _finish_jobs(self) -> None:
        finished = True
        while finished:
            finished = any(self._finish_job(operator) for operator in self._operators.values())

    def _finish_job(self, operator: Operator) -> bool:
        if not self._may_run(operator) or operator.waiting.get(operator.job, 0.0) > LEAST or not self._has_all(operator):
            return False
        operator.waiting.pop(operator.job, None)
        zone = next((zone for zone in self._zones if operator.name in zone), (operator.name,))
        operator.in_zone = True
        members = [self._operators[name] for name in zone]
        if all(member.in_zone for member in members):
            for member in members:
                member.in_zone = False
                member.job += 1
        if operator.name == "merger" and len(self.latencies) < self._load.jobs:
            self.latencies[operator.job - 1] = self._now_s - self._cuts[operator.job - 1]
        return True

    def _has_all(self, operator: Operator) -> bool:
        """Return whether every provider has finished the operator's job; in a zone it may have finished without going on."""
        providers = [self._operators[name] for name in operator.providers if name in self._operators]
        return all(provider.job > operator.job or (provider.job == operator.job and provider.in_zone) for provider in providers)


def mean_latency_s(scheduler: SchedulerName, load: Load, seeds: Sequence[int] = (1, 2, 3), costs: Costs | None = None) -> float:
    """Return the mean latency of all jobs over some seeds; infinite if a run was given up."""
    total = 0.0
    for seed in seeds:
        latencies = Simulation(scheduler, load, seed, costs).run()
        if len(latencies) < load.jobs:
            return float("inf")
        total += sum(latencies) / len(latencies)
    return total / len(seeds)
