"""AT-12: any batches of changes, joined incrementally, are the join of the states after every job."""

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from righttime.testing.reference.engine import Engine
from righttime.testing.reference.join_flow import ExactJoin
from righttime.testing.reference.joins import On, by_lifetimes, by_new_and_old, by_sign, join
from righttime.testing.reference.rows import Bag, Change, Signed, applied, signed, weights
from righttime.testing.reference.sinks import BagSink

JOBS = 5
ON = On(lambda row: row[0], lambda row: row[0], lambda left, right: (*left, *right))


def history(dice: Random, jobs: int) -> list[list[Change]]:
    """Return random inserts, deletes and updates of one table of rows (key, value), at most one row with the same content, in batches."""
    alive: list[tuple[int, int]] = []
    fresh = iter(range(1_000_000))
    batches = []
    for _ in range(jobs):
        batch = []
        for _ in range(dice.randrange(5)):
            before = alive.pop(dice.randrange(len(alive))) if alive and dice.random() < 0.6 else None
            after = (dice.randrange(3), next(fresh)) if before is None or dice.random() < 0.5 else None
            if after is not None:
                alive.append(after)
            batch.append(Change(before, after))
        batches.append(batch)
    return batches


def apart(batch: list[Change]) -> list[Signed]:
    """Return the changes of a batch as signed rows."""
    return [part for change in batch for part in signed(change)]


@given(st.integers(0, 10**9))
@settings(max_examples=200, deadline=None)
def test_at_12_three_exact_joins_agree_with_the_join_of_the_states(seed: int) -> None:
    """After every job, and with each other."""
    dice = Random(seed)
    d_left, d_right = [apart(batch) for batch in history(dice, JOBS)], [apart(batch) for batch in history(dice, JOBS)]
    left: Bag = Counter()
    right: Bag = Counter()
    total: Bag = Counter()
    for number, (more_left, more_right) in enumerate(zip(d_left, d_right, strict=True)):
        joined = by_sign(more_left, more_right, left, right, ON)
        assert by_lifetimes(d_left, d_right, Counter(), Counter(), ON)[number] == joined
        # Rows that came and went inside the job have no state to meet.
        net_left, net_right = _net(more_left), _net(more_right)
        assert by_new_and_old(net_left, net_right, left, right, ON) == joined
        left, right = applied(left, more_left), applied(right, more_right)
        total.update(joined)
        assert Counter({row: count for row, count in total.items() if count}) == join(left, right, ON)


def _net(rows: list[Signed]) -> list[Signed]:
    return [("I" if count > 0 else "D", row) for row, count in weights(rows).items()]


@given(st.integers(0, 10**9))
@settings(max_examples=15, deadline=None)
def test_at_12_on_threads(seed: int) -> None:
    """The operator threads give the join of the states at every job, whatever their timing."""
    dice = Random(seed)
    left, right = history(dice, JOBS), history(dice, JOBS)
    with Engine(lambda engine: BagSink(engine, "t", ExactJoin(engine, "join", "r", "s", ON)), ["r", "s"]) as engine:
        for number in range(JOBS):
            engine.feed(number + 1, {"r": left[number], "s": right[number]})
            engine.cut(number + 1)
        engine.settle()
        for number in range(1, JOBS + 1):
            states = [weights(part for batch in side[:number] for part in apart(batch)) for side in (left, right)]
            assert engine.warehouse.states[number]["t"] == join(states[0], states[1], ON)
