"""AT-3: whatever the timing, commits and begins keep their order."""

from righttime.testing.reference.checker import Begun, violations
from righttime.testing.reference.schedules import RandomRun


def test_at_03_a_thousand_random_schedules_keep_the_order() -> None:
    """c(i) < b(i) < c(i + 1) for 100 queries each; exactly one element is open, the last."""
    for seed in range(1000):
        run = RandomRun(seed)
        log = run.run(100)
        assert sum(isinstance(action, Begun) for action in log) == 100, seed
        assert violations(log) == [], seed
        assert run.wrong == [], seed


def test_at_03_without_acknowledgements_the_order_breaks() -> None:
    """If permission counts as the action, commits and begins race: most schedules are wrong."""
    broken = sum(violations(RandomRun(seed, acknowledge=False).run(20)) != [] for seed in range(100))

    assert broken > 50
