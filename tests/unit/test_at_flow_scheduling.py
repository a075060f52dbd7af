"""Experiment X6 in small: which operator gets the next quantum, on a virtual clock."""

from righttime.testing.reference.scheduling import Load, Simulation, mean_latency_s

LOW, SATURATED = Load(150), Load(700)


def test_x6_zone_aware_scheduling_has_the_lower_latency_and_the_larger_gap_when_saturated() -> None:
    """Zone-aware MC against MC on input volume at 150 and 700 rows per second, 70 jobs."""
    seeds = (1, 2)
    low = [mean_latency_s(scheduler, LOW, seeds) for scheduler in ("mc", "zone_aware")]
    saturated = [mean_latency_s(scheduler, SATURATED, seeds) for scheduler in ("mc", "zone_aware")]

    assert low[1] < low[0]
    assert saturated[1] < saturated[0]
    assert saturated[0] - saturated[1] > low[0] - low[1]


def test_x6_counting_only_runnable_rows_is_most_of_the_gain_at_a_low_rate() -> None:
    """Far from saturation it hardly matters how operators are grouped, once blocked ones are left out."""
    runnable, zone_aware = (mean_latency_s(scheduler, LOW, (1,)) for scheduler in ("mc_runnable", "zone_aware"))

    assert abs(runnable - zone_aware) < 0.1 * runnable


def test_x6_the_same_seed_gives_the_same_latencies() -> None:
    """A simulation has no clock and no threads."""
    load = Load(300, jobs=10)
    assert Simulation("zone_aware", load, 5).run() == Simulation("zone_aware", load, 5).run()
    assert len(Simulation("versioned", load, 5).run()) == 10
