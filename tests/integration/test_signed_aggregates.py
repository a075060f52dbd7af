"""The law of aggregates and targets, and what their sums do with nulls, overflow and odd floats."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from righttime.pipeline.nodes import Measure, MeasureFunction
from righttime.pipeline.operators.aggregate import aggregate
from righttime.pipeline.operators.query import Reach
from righttime.pipeline.operators.signed import Signed
from righttime.pipeline.operators.target import additive_target, aggregated_target, keyed_target
from righttime.pipeline.spark import SparkOwner
from tests.integration.test_signed_operators import JOBS, LAW, SHORT_LAW, frame_of
from tests.support import signed_models as model
from tests.support.signed_histories import REACHES, Changes, Drains, Row, Runner, compare_every_job, drainings, histories, in_several_jobs, session, total

ITEMS = pa.schema([("g", pa.string()), ("h", pa.int32()), ("i", pa.int32()), ("d", pa.decimal128(10, 2)), ("f", pa.float64()), ("s", pa.string())])
FLOATS = st.sampled_from([None, 0.1, -0.0, 1e-3, 3.0, 1e15, -7.25, 6.62607015e-34, -2e20, 3.4028234663852886e38, math.nan, math.inf, -math.inf])
ITEM_ROWS = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.sampled_from([1, None]),
    st.sampled_from([None, -5, 1, 2, 2**31 - 1]),
    st.sampled_from([None, Decimal("0.01"), Decimal("-3.35"), Decimal("99999999.99")]),
    FLOATS,
    st.sampled_from([None, "", "x", "y"]),
)
MEASURES = [
    Measure("n", "count", "*"),
    Measure("n_i", "count", "i"),
    Measure("i", "sum", "i"),
    Measure("mean_i", "avg", "i"),
    Measure("d", "sum", "d"),
    Measure("mean_d", "avg", "d"),
    Measure("f", "sum", "f"),
    Measure("least_f", "min", "f"),
    Measure("greatest_f", "max", "f"),
    Measure("least_s", "min", "s"),
    Measure("many_s", "count_distinct", "s"),
    Measure("many_f", "count_distinct", "f"),
]
PLAIN = [
    model.count_all,
    model.count(2),
    model.total(2),
    model.mean(2),
    model.total(3),
    model.decimal_mean(3, 6),
    model.total(4),
    model.least(4),
    model.greatest(4),
    model.least(5),
    model.count_distinct(5),
    model.count_distinct(4),
]


@pytest.fixture(scope="module")
def runner(spark_owner: SparkOwner) -> Runner:
    """One session for the whole file."""
    return Runner(session(spark_owner.child()))


@pytest.mark.parametrize("by", [["g", "h"], []], ids=["two columns", "all rows"])
@SHORT_LAW
@given(changes=histories(ITEMS, ITEM_ROWS, jobs_max=JOBS), drains=drainings(JOBS))
def test_all_measures_are_exact_at_every_job(runner: Runner, by: list[str], changes: Changes, drains: Drains) -> None:
    """Twelve measures over integers, decimals, floats with NaN and infinities, and text, with nulls, under deletes."""

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        made, parts = aggregate(deltas[0], state, by=by, measures=MEASURES)
        return {"out": frame_of(made)}, parts

    found = runner.run([changes], drains, operate).get("out", [])
    places = list(range(len(by)))
    compare_every_job(found, lambda job: model.grouped(changes.at(job), by=places, measures=PLAIN), jobs_max=JOBS, width=len(by) + len(MEASURES))
    assert all(row[-1] in (1, -1) for row in found)


@pytest.mark.parametrize("reach", REACHES)
def test_a_row_without_a_value_leaves_the_least_and_the_greatest_of_its_group_as_they_were(runner: Runner, reach: Reach) -> None:
    """Nothing of such a row is among the pairs of group and value, and yet its group has to be looked up."""
    rows = [
        ("a", 1, None, None, 3.0, "x", 1, 1),
        ("b", 1, None, None, 5.0, "z", 1, 1),
        ("a", 1, None, None, None, None, 2, 1),
        ("a", 1, None, None, None, "y", 3, 1),
        ("b", 1, None, None, None, None, 3, 1),
    ]
    measures = [Measure("low", "min", "f"), Measure("high", "max", "s"), Measure("n", "count", "*")]

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        made, parts = aggregate(deltas[0], state, by=["g"], measures=measures)
        return {"out": frame_of(made)}, parts

    found = runner.run([Changes(ITEMS, rows)], Drains([range(1, 2), range(2, 4)], reach), operate)["out"]
    after = [[("a", 3.0, "x", 1), ("b", 5.0, "z", 1)], [("a", 3.0, "x", 2), ("b", 5.0, "z", 1)], [("a", 3.0, "y", 3), ("b", 5.0, "z", 2)]]
    for job, rows_then in enumerate(after, start=1):
        assert total((each for each in found if each[-2] <= job), width=4) == Counter(rows_then)


def test_compiled_code_and_adaptive_plans_give_the_same(spark_owner: SparkOwner) -> None:
    """The other tests interpret their plans because that is quicker; a session as drains have it computes no branch that it should not."""
    dice = random.Random(7)
    floats = [None, 0.1, -0.0, 1e300, math.nan, math.inf, -math.inf]
    rows = [
        (dice.choice("ab"), None, dice.choice([None, 1, -2]), None, dice.choice(floats), dice.choice(["x", None]), dice.randint(1, JOBS), 1) for _ in range(60)
    ]
    rows += [(*row[:6], JOBS, -1) for row in rows[::3]]
    changes = Changes(ITEMS, rows)

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        made, parts = aggregate(deltas[0], state, by=["g"], measures=MEASURES[2:8])
        return {"out": frame_of(made)}, parts

    found = Runner(spark_owner.child()).run([changes], Drains([range(1, JOBS + 1)]), operate)["out"]
    compare_every_job(found, lambda job: model.grouped(changes.at(job), by=[0], measures=PLAIN[2:8]), jobs_max=JOBS, width=7)


def one_group(runner: Runner, kind: pa.DataType, values: list[tuple[Any, int, int]], *measures: Measure, groups: list[range] | None = None) -> dict[int, Row]:
    """Return the measures of (value, job, weight) changes after each job that changes them."""
    changes = Changes(pa.schema([("v", kind)]), values)
    jobs = max(job for _, job, _ in values)

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        made, parts = aggregate(deltas[0], state, by=[], measures=measures)
        return {"out": frame_of(made)}, parts

    found = runner.run([changes], Drains(groups or [range(job, job + 1) for job in range(1, jobs + 1)]), operate)["out"]
    return {row[-2]: row[:-2] for row in found if row[-1] > 0}


def test_the_next_best_value_takes_over(runner: Runner) -> None:
    """Least and greatest go, and values that no job of the drain touches take their place; one that is there twice stays when it goes once."""
    values = [(1, 1, 1), (5, 1, 2), (8, 1, 1), (9, 1, 1), (1, 2, -1), (5, 3, -1), (9, 3, -1), (7, 4, 1), (5, 4, -1), (8, 5, -1), (7, 6, -1)]
    expected = {1: (1, 9), 2: (5, 9), 3: (5, 8), 4: (7, 8), 5: (7, 7)}
    measures = [Measure("low", "min", "v"), Measure("high", "max", "v")]
    for groups in ([range(1, 7)], [range(1, 2), range(2, 4), range(4, 7)]):
        assert one_group(runner, pa.int32(), values, *measures, groups=groups) == expected


def test_a_float_that_is_taken_back_leaves_no_trace(runner: Runner) -> None:
    """A wrong 1e18 and a value beyond all sums, corrected later, do not wipe out the small values; an overflow on the way comes back."""
    values = [(0.1, 1, 1), (0.2, 1, 1), (1e18, 1, 1), (1e18, 2, -1), (1e308, 3, 2), (1e308, 4, -2), (math.nan, 5, 1), (math.nan, 6, -1), (0.2, 6, -1)]
    groups = [range(1, 2), range(2, 4), range(4, 7)]
    sums = {job: row[0] for job, row in one_group(runner, pa.float64(), values, Measure("v", "sum", "v"), groups=groups).items()}
    assert math.isnan(sums.pop(5))
    assert sums == {1: 1e18, 2: 0.30000000000000004, 3: math.inf, 4: 0.30000000000000004, 6: 0.1}


Histories = dict[str, list[tuple[float, float, int, int]]]
DRAINS = Drains([range(1, 3), range(3, 4)])
ANY_SCALE = pa.schema([("g", pa.string()), ("v", pa.float64()), ("f", pa.float32())])


def float_sums(runner: Runner, groups: Histories) -> dict[int, dict[str, Row]]:
    """Return after each job, by group, sum and average of DOUBLEs and the sum of FLOATs, for changes of (DOUBLE, FLOAT, job, weight); no group goes."""
    rows: list[Row] = [(name, *change) for name, changes in groups.items() for change in changes]
    measures = [Measure("s", "sum", "v"), Measure("m", "avg", "v"), Measure("f", "sum", "f")]

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        made, parts = aggregate(deltas[0], state, by=["g"], measures=measures)
        return {"out": frame_of(made)}, parts

    found = runner.run([Changes(ANY_SCALE, rows)], DRAINS, operate)["out"]
    after: dict[int, dict[str, Row]] = {0: {}}
    for job in (1, 2, 3):
        after[job] = after[job - 1] | {row[0]: row[1:-2] for row in found if row[-2] == job and row[-1] > 0}
    return after


def test_a_float_that_is_taken_back_leaves_no_trace_at_any_scale(runner: Runner) -> None:
    """Nor do the parts show in which a sum is kept: it is the double nearest to the total, be it nearly a half between two, or all but cancelled out."""
    most, fine = math.nextafter(2.0**136, 0), 2.0**-62
    histories: dict[str, tuple[list[tuple[float, int, int]], float]] = {
        "Planck's constant": ([(6.62607015e-34, 1, 1)], 6.62607015e-34),
        "below all parts, twice": ([(1e-60, 1, 2)], 2e-60),
        "the least": ([(5e-324, 1, 3), (5e-324, 2, -1)], 1e-323),
        "wrong and beyond all parts": ([(2e20, 1, 1), (1e300, 2, 1), (1e300, 3, -1)], 2e20),
        "wrong and large": ([(1e19, 1, 1), (3.4028234663852886e38, 2, 1), (3.4028234663852886e38, 3, -1)], 1e19),
        "small beside large": ([(1e-30, 1, 1), (-2e40, 1, 1), (-2e40, 3, -1)], 1e-30),
        "many of the greatest": ([(most, 1, 5000), (most, 3, -4999)], most),
        "many that are negative": ([(-most, 1, 5000)], -5000 * most),
        "parts cancel": ([(fine, 1, 1), (2.0**-115 - fine, 1, 1), (2.0**-124 - 2.0**-115, 1, 1)], 2.0**-124),
        "large parts cancel": ([(2.0**100, 1, 1), (1.5, 1, 1), (-(2.0**100 - 2.0**47), 1, 1), (-(2.0**47), 2, 1)], 1.5),
        "just more than a half": ([(1.0, 1, 1), (2.0**-53, 1, 1), (2.0**-124, 1, 1)], 1 + 2.0**-52),
        "just less than a half": ([(2.0**130 + 2.0**78, 1, 1), (2.0**77, 1, 1), (-(2.0**-124), 1, 1)], 2.0**130 + 2.0**78),
    }

    found = float_sums(runner, {name: [(value, 0.0, job, weight) for value, job, weight in changes] for name, (changes, _) in histories.items()})[3]

    assert {name: row[0] for name, row in found.items()} == {name: expected for name, (_, expected) in histories.items()}


def exact_double(dice: random.Random) -> float:
    """Return a double below 2^136 without digits below 2^-124."""
    return math.ldexp(dice.getrandbits(53), dice.randint(-124, 83)) * dice.choice([1, -1])


def any_double(dice: random.Random) -> float:
    return math.ldexp(dice.uniform(-1, 1), dice.randint(-1074, 1000))


def any_float(dice: random.Random) -> float:
    """Return a FLOAT of any size, as a double."""
    return math.ldexp(dice.randint(-(2**24) + 1, 2**24 - 1), dice.randint(-149, 104))


def float_history(dice: random.Random, double: Callable[[random.Random], float]) -> list[tuple[float, float, int, int]]:
    """Return changes of (DOUBLE, FLOAT) in three jobs: some values are opposites of others but for the last digit, some go again, and one stays."""
    changes, living = [(1.0, 1.0, 1, 1)], list[tuple[float, float, int]]()
    for job in (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3):
        if living and dice.random() < 0.45:
            value, number, weight = living.pop(dice.randrange(len(living)))
            changes.append((value, number, job, -weight))
            continue
        near = living and dice.random() < 0.3
        value = -math.nextafter(living[-1][0], 0) if near else double(dice)
        living.append((value, any_float(dice), dice.choice([1, 1, 2, 4000])))
        changes.append((*living[-1][:2], job, living[-1][2]))
    return changes


def may_be_off(changes: Sequence[tuple[float, float, int, int]], living: Counter[float]) -> float:
    """Return by how much a sum of DOUBLEs may be off: by what doubles lose, of what is above the parts or below, and only as long as any of it is left."""
    above = [value for value in living if abs(value) >= 2.0**136]
    below = [value for value in living if value not in above and math.fmod(value, 2.0**-124)]
    ever = [(value, abs(weight)) for value, _, _, weight in changes]
    highest = sum(abs(value) * weight for value, weight in ever if abs(value) >= 2.0**136) if above else 0.0
    return 2.0**-45 * (highest + sum(abs(math.fmod(value, 2.0**-124)) * weight for value, weight in ever if abs(value) < 2.0**136 and below))


def test_sums_of_floats_of_all_scales_are_what_is_left_in_their_group(runner: Runner) -> None:
    """FLOATs to the last digit, DOUBLEs of the parts the nearest double, others as far as they are promised; whatever came and went, in any part."""
    dice = random.Random(11)
    groups = {f"exact {number}": float_history(dice, exact_double) for number in range(60)}
    groups |= {f"any {number}": float_history(dice, any_double) for number in range(60)}

    found = float_sums(runner, groups)

    for job, name in ((job, name) for job in (1, 2, 3) for name in groups):
        changes = [change for change in groups[name] if change[2] <= job]
        values, numbers = living_of(changes, 0), living_of(changes, 1)
        sums, mean, floats = found[job][name]
        wanted, wanted_floats = math.fsum(values.elements()), math.fsum(numbers.elements())
        off = may_be_off(changes, values)
        assert sums == wanted if name.startswith("exact") else abs(sums - wanted) <= off + math.ulp(wanted), (job, name, sums, wanted)
        assert abs(floats - wanted_floats) <= math.ulp(wanted_floats), (job, name, floats, wanted_floats)
        assert mean == sums / values.total()


def living_of(changes: Sequence[tuple[float, float, int, int]], place: int) -> Counter[float]:
    """Return how many times each value is left."""
    living: Counter[float] = Counter()
    for change in changes:
        living[change[place]] += change[3]
    return +living


def test_big_integers_may_overflow_on_the_way_but_not_in_the_result(runner: Runner) -> None:
    """Sums are wider than BIGINT inside; a total that does not fit is an error, as in Spark."""
    most = 2**63 - 1
    assert one_group(runner, pa.int64(), [(most, 1, 2), (most, 1, -1)], Measure("v", "sum", "v")) == {1: (most,)}
    with pytest.raises(PySparkException, match="OVERFLOW"):
        one_group(runner, pa.int64(), [(most, 1, 1), (1, 1, 1)], Measure("v", "sum", "v"))


NUMBERS = ["DECIMAL(10, 2)", "DECIMAL(4, 0)", "DECIMAL(27, 5)", "DECIMAL(30, 12)", "DECIMAL(38, 0)", "TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE"]
Case = tuple[str, Sequence[tuple[str | None, int]]]
WIDEST: list[Case] = [
    ("DECIMAL(38, 0)", [("9" * 34, 2), ("-1", 1)]),
    ("DECIMAL(38, 0)", [("9" * 34, 9_999), ("7", 1)]),
    ("DECIMAL(38, 0)", [("-" + "9" * 33 + "7", 3), ("-" + "9" * 33 + "8", 3), ("-1", 1)]),
    ("DECIMAL(37, 1)", [("9" * 33 + ".5", 1), ("9" * 33 + ".4", 2)]),
    ("DECIMAL(36, 2)", [("9" * 32 + ".99", 1), ("9" * 32 + ".98", 6)]),
    ("DECIMAL(38, 3)", [("8" + "9" * 30 + ".999", 2), ("8" + "9" * 30 + ".998", 1)]),
    ("DECIMAL(38, 10)", [("9" * 24 + ".1234567891", 1), ("9" * 24 + ".9999999999", 2)]),
    ("DECIMAL(38, 10)", [("-" + "8" * 24 + ".9999999999", 3)]),
    ("DECIMAL(30, 12)", [("9" * 18 + "." + "9" * 12, 3), ("0." + "0" * 11 + "1", 4)]),
    ("DECIMAL(28, 0)", [("9" * 28, 7), ("5", 2)]),
    ("DECIMAL(28, 27)", [("1." + "1" * 27, 4), ("-2", 3)]),
    ("DECIMAL(27, 25)", [("0." + "3" * 25, 5), ("-7.5", 2)]),
    ("DECIMAL(38, 36)", [("0." + "6" * 36, 2), ("-0.5", 1)]),
    ("DECIMAL(38, 38)", [("-0." + "1" * 38, 2), ("-0.5", 1)]),
]


def ours_and_sparks(runner: Runner, cases: Sequence[Case], functions: Sequence[MeasureFunction]) -> tuple[DataFrame, DataFrame]:
    """Return the same measures from the aggregate and from a query: a column for each case, in which the rows of the other cases have nothing."""
    lines = []
    for place, (kind, rows) in enumerate(cases):
        for text, weight in rows:
            values = ["NULL"] * len(cases)
            values[place] = "NULL" if text is None else f"CAST('{text}' AS {kind})"
            lines.append(f"({', '.join(values)}, {weight}L)")
    names = [f"v{place}" for place in range(len(cases))]
    source = f"VALUES {', '.join(lines)} AS t({', '.join(names)}, _w)"
    measures = [Measure(f"{function}_{name}", function, name) for name in names for function in functions]
    changes = runner.child.sql(f"SELECT {', '.join(names)}, 1L AS _job, _w FROM {source}")
    ours, _ = aggregate(Signed(changes, tuple(names)), {}, by=[], measures=measures)
    wanted = ", ".join(f"{measure.function}({measure.expression}) AS {measure.name}" for measure in measures)
    theirs = runner.child.sql(f"SELECT {wanted} FROM (SELECT *, explode(array_repeat(1, CAST(_w AS INT))) FROM {source})")
    assert ours is not None and isinstance(ours.frame, DataFrame)
    return ours.frame.select(*theirs.columns), theirs


def test_sums_and_averages_have_the_value_and_the_type_of_sparks_own(runner: Runner) -> None:
    """Precision, scale and rounding are what the user would get from a query; weights are as many equal rows."""
    cases: list[Case] = []
    for kind in NUMBERS:
        rows: list[tuple[str | None, int]] = [("1", 1), ("2", 3), ("-7", 2), ("5", 1), ("3", 7), (None, 1)]
        rows += [("0.01", 5), ("2.5", 3)] if kind[0] in "DF" else []
        # As many digits as the widest types have: a product with the weight would lose some.
        rows += {"DECIMAL(30, 12)": [("123456789012345678.123456789012", 3)], "DECIMAL(38, 0)": [("9" * 32, 3)]}.get(kind, [])
        cases.append((kind, rows))

    ours, theirs = ours_and_sparks(runner, cases, ["sum", "avg"])

    one, other = ours.collect()[0], theirs.collect()[0]
    for place, kind in enumerate(NUMBERS):
        for name in (f"sum_v{place}", f"avg_v{place}"):
            expected = pytest.approx(other[name], rel=1e-14) if kind in ("FLOAT", "DOUBLE") else other[name]
            assert (ours.schema[name].dataType, one[name]) == (theirs.schema[name].dataType, expected), (kind, name)


def test_averages_of_the_widest_decimals_are_sparks_own(runner: Runner) -> None:
    """Up to the last digit of the total and of the mean: a flow does not stop where a query would still answer."""
    ours, theirs = ours_and_sparks(runner, WIDEST, ["avg"])

    for case, one, other in zip(WIDEST, ours.collect()[0], theirs.collect()[0], strict=True):
        assert one == other, case


KEYED = pa.schema([("k", pa.int32()), ("v", pa.string()), ("j", pa.int32())])
STEPS = st.lists(
    st.tuples(st.integers(1, JOBS), st.integers(1, 4), st.sampled_from(["x", "y", None, "gone"]), st.sampled_from([1, 2])), min_size=10, max_size=24
).filter(in_several_jobs)


def keyed_changes(steps: list[tuple[int, int, str | None, int]]) -> Changes:
    living: dict[tuple[int, int], Row] = {}
    rows: list[Row] = []
    for job, k, text, j in sorted(steps, key=lambda one: one[0]):
        if (k, j) in living:
            rows.append((*living.pop((k, j)), job, -1))
        if text != "gone":
            living[k, j] = (k, text, j)
            rows.append((*living[k, j], job, 1))
    return Changes(KEYED, rows)


def table_after(lines: Sequence[Row], job: int, keys: Sequence[int]) -> dict[Row, Row]:
    """Apply the lines of a target up to a job; lines of one job are about different keys."""
    table: dict[Row, Row] = {}
    for number in range(1, job + 1):
        touched = [tuple(row[2 + place] for place in keys) for row in lines if row[0] == number]
        assert len(touched) == len(set(touched))
        for row, key in zip([row for row in lines if row[0] == number], touched, strict=True):
            if row[1] in ("insert", "update"):
                assert (key in table) == (row[1] == "update")
                table[key] = row[2:]
            else:
                assert row[1] == "delete" and key in table
                del table[key]
    return table


@LAW
@given(steps=STEPS, drains=drainings(JOBS))
def test_a_keyed_target_holds_the_net_effect_of_every_job(runner: Runner, steps: list[tuple[int, int, str | None, int]], drains: Drains) -> None:
    """Whatever happens to a key within a job is one line, or none."""
    changes = keyed_changes(steps)

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        lines, parts = keyed_target(deltas[0], state, keys=["j", "k"])
        return {"out": lines}, parts

    lines = runner.run([changes], drains, operate).get("out", [])
    for job in range(JOBS + 1):
        assert Counter(table_after(lines, job, [2, 0]).values()) == changes.at(job)


def test_two_rows_of_one_key_at_the_end_of_a_job_clash(runner: Runner) -> None:
    """Within a job the order does not matter; two rows alive after it are reported, in the same drain or a later one, and equal rows too."""
    rows = [(1, "x", 1, 1, 1), (1, "x", 1, 2, -1), (1, "y", 1, 2, 1), (1, "z", 1, 4, 1), (1, "y", 1, 4, -1), (1, "late", 1, 5, 1)]
    rows += [(2, "same", 1, 3, 1), (2, "same", 1, 4, 1), (3, "one", 1, 1, 1), (3, "other", 1, 1, 1), (3, "never", 1, 1, -1)]

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        lines, parts = keyed_target(deltas[0], state, keys=["k"])
        return {"out": lines}, parts

    lines = runner.run([Changes(KEYED, rows)], Drains([range(1, 4), range(4, 6)]), operate)["out"]
    assert sorted((row[2], row[0], row[1]) for row in lines) == [
        (1, 1, "insert"),
        (1, 2, "update"),
        (1, 4, "update"),
        (1, 5, "clash"),
        (2, 3, "insert"),
        (2, 4, "clash"),
        (3, 1, "clash"),
    ]


SUMS = pa.schema([("k", pa.string()), ("q", pa.int32())])


def test_at_6_an_additive_target_starts_anew_with_every_job(runner: Runner) -> None:
    """Job 1 adds (a, 3), (b, 1); job 2 adds (a, 2), (c, 5): each emits its own sums only, and the target holds a 5, b 1, c 5."""
    changes = Changes(SUMS, [("a", 3, 1, 1), ("b", 1, 1, 1), ("a", 2, 2, 1), ("c", 5, 2, 1)])

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        lines, parts = additive_target(deltas[0], state, keys=["k"], additive=["q"])
        return {"out": lines, "emitted": parts["groups"]}, parts

    for groups in ([range(1, 3)], [range(1, 2), range(2, 3)]):
        made = runner.run([changes], Drains(groups), operate)
        emitted = {job: {row[0]: row[-1] for row in made["emitted"] if row[1] == job} for job in (1, 2)}
        assert emitted == {1: {"a": 3, "b": 1}, 2: {"a": 2, "c": 5}}
        assert table_after(made["out"], 2, [0]) == {("a",): ("a", 5), ("b",): ("b", 1), ("c",): ("c", 5)}


@LAW
@given(changes=histories(SUMS, st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([None, 0, 1, -4])), jobs_max=JOBS), drains=drainings(JOBS))
def test_additive_targets_and_targets_of_an_aggregate_are_exact_at_every_job(runner: Runner, changes: Changes, drains: Drains) -> None:
    """A key whose rows have all gone has no row, even if its sum was zero before."""

    def operate(deltas: Sequence[Signed | None], state: Any) -> Any:
        lines, parts = additive_target(deltas[0], {"groups": state["sums"]} if state else {}, keys=["k"], additive=["q"])
        own = {name: frame for name, frame in state.items() if name != "sums"}
        others, more = aggregated_target(deltas[0], own, by=["k"], measures=[Measure("q", "max", "q"), Measure("n", "count_distinct", "q")])
        return {"sums": lines, "groups": others}, {"sums": parts["groups"], **more} if parts else {}

    made = runner.run([changes], drains, operate)
    for job in range(JOBS + 1):
        sums = model.grouped(changes.at(job), by=[0], measures=[model.total(1)])
        assert Counter(table_after(made.get("sums", []), job, [0]).values()) == sums
        most = model.grouped(changes.at(job), by=[0], measures=[model.greatest(1), model.count_distinct(1)])
        assert Counter(table_after(made.get("groups", []), job, [0]).values()) == most
