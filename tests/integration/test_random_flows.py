"""The law of flows: any flow of up to five operators, any history, any jobs in any drains, gives at every job what recomputing from nothing gives."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from righttime.pipeline import execute
from righttime.pipeline.flow import Flow, Step
from righttime.pipeline.nodes import Missing
from righttime.pipeline.operators.query import Reach
from righttime.pipeline.spark import SparkOwner
from righttime.testing.reference.recompute import recompute
from tests.support.flows import Bench, dead_letters

pytestmark = pytest.mark.usefixtures("compiled_plans")

EXAMPLES = int(os.environ.get("RIGHTTIME_FLOW_EXAMPLES", "1"))
SEED = os.environ.get("RIGHTTIME_FLOW_SEED", "0")
STREAMS = {"r": ("id BIGINT, k BIGINT, v BIGINT", ["id"]), "s": ("id BIGINT, k BIGINT, v BIGINT", ["id"]), "d": ("k BIGINT, w BIGINT", ["k"])}
TIMES = 8


# Every operator takes a step with the columns k and v, and gives one.
def _other(flow: Flow, name: str = "v") -> Step:
    return flow.stream("s").select("k", **{name: "v"})


def _in_a_row(flow: Flow, step: Step, first: Missing, second: Missing, third: Missing) -> Step:
    """Look up three times, the last time with what the first look-up gave."""
    first_step = step.lookup(flow.stream("d"), on="k", take={"a": "w"}, missing=first)
    both = first_step.lookup(flow.stream("d"), on={"v": "k"}, take={"b": "w"}, missing=second)
    every = both.lookup(flow.stream("d"), on={"a": "k"}, take={"c": "w"}, missing=third)
    return every.select("k", v="coalesce(c, 7) * 100 + coalesce(b, 8) * 10 + coalesce(a, 9)")


ROW = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def shifted(table: pa.Table) -> pa.Table:
    """Return one row for each."""
    return pa.Table.from_pylist([{"k": row["k"], "v": None if row["v"] is None else row["v"] + (row["k"] or 0)} for row in table.to_pylist()], ROW)


def repeated(table: pa.Table) -> pa.Table:
    """Return none, one or two rows for each."""
    return pa.Table.from_pylist([row for row in table.to_pylist() for _ in range((row["v"] or 0) % 3)], ROW)


OPERATORS: dict[str, Callable[[Flow, Step], Step]] = {
    "where": lambda flow, step: step.where("v > 1 OR k = 2"),
    "swap": lambda flow, step: step.select(k="v", v="k"),
    "derive": lambda flow, step: step.derive(v="v * 2 - k", unused="k + 1").select("k", "v"),
    "expect or drop": lambda flow, step: step.expect("most", "v % 4 < 3", otherwise="drop"),
    "expect and keep": lambda flow, step: step.expect("few", "v < 2"),
    "apply": lambda flow, step: step.apply(shifted, "k BIGINT, v BIGINT"),
    "apply to any": lambda flow, step: step.apply(repeated, "k BIGINT, v BIGINT", rows="any"),
    "join": lambda flow, step: step.join(_other(flow, "u"), on="k").select("k", v="v + u"),
    "left join": lambda flow, step: step.join(_other(flow, "u"), on="k", how="left").select("k", v="coalesce(u, v)"),
    "lookup or null": lambda flow, step: step.lookup(flow.stream("d"), on="k", take=["w"]).select("k", v="coalesce(w, v)"),
    "lookup or drop": lambda flow, step: step.lookup(flow.stream("d"), on="k", take=["w"], missing="drop").select("k", v="v + w"),
    "lookup or letter": lambda flow, step: step.lookup(flow.stream("d"), on="k", take={"x": "w"}, missing="dead_letter").select("k", v="x"),
    "lookups in a row or null": lambda flow, step: _in_a_row(flow, step, "null", "null", "null"),
    "lookups in a row or drop": lambda flow, step: _in_a_row(flow, step, "drop", "drop", "drop"),
    "lookups in a row or either": lambda flow, step: _in_a_row(flow, step, "null", "dead_letter", "drop"),
    "lookups in a row or letter": lambda flow, step: _in_a_row(flow, step, "dead_letter", "drop", "null"),
    "union": lambda flow, step: step.union(_other(flow)),
    "union with itself": lambda flow, step: step.union(step.where("k > 1")),
    "distinct": lambda flow, step: step.distinct(),
    "sum": lambda flow, step: step.aggregate(by="k", v="sum(v)"),
    "least": lambda flow, step: step.aggregate(by="v", k="min(k)"),
    "most": lambda flow, step: step.aggregate(by="k", v="max(v)"),
    "mean": lambda flow, step: step.aggregate(by="k", mean="avg(v)").select("k", v="floor(mean * 10)"),
    "kinds": lambda flow, step: step.aggregate(by="k", v="count(distinct v)"),
    "total": lambda flow, step: step.aggregate(k="count(*)", v="sum(v)"),
}

# Where there is time for few flows only, they have five operators each, and every operator is in one of them.
LENGTH = 5
SHUFFLED = Random(SEED).sample(sorted(OPERATORS), len(OPERATORS))
FIRST = SHUFFLED[::LENGTH]


def as_of(flow: Flow) -> Step:
    """Begin with facts that take the version of their own time; the versions are kept, too."""
    versions = flow.stream("d").history(keys=["k"], key="sk", start="since", end="until")
    versions.into("versions", keys=["sk"])
    return flow.stream("r").as_of(versions, on="k", take=["w", "sk"]).select("k", v="coalesce(w, -1) * 10 + coalesce(sk, 0)")


@dataclass(frozen=True)
class Example:
    """One flow, one history, and how it is cut."""

    begin: str
    operators: list[str]
    keeps_nulls: bool
    happened: list[tuple[int, str, int, int | None, int | None, int]]
    drains: list[list[int]]
    reach: Reach
    is_planned: bool


def example(dice: Random, operator: str) -> Example:
    """Return one around an operator. Hypothesis would begin with the simplest one, and on Spark there is no time for many."""
    names = sorted(OPERATORS)
    if EXAMPLES > 1:
        before, after = dice.choices(names, k=dice.randint(0, 2)), dice.choices(names, k=dice.randint(0, 2))
    else:
        before, after = [], [name for name in SHUFFLED if name not in FIRST and SHUFFLED.index(name) // LENGTH == SHUFFLED.index(operator) // LENGTH]
    operators = [*before, operator, *after]
    moving = dice.random() < 0.5  # keys that grow with time, so that much of the state cannot meet what is new
    happened = []
    for _ in range(dice.randint(120, 160)):
        time, name, chance = dice.randint(1, TIMES), dice.choice("rrssd"), dice.randint(0, 3)
        # Few keys and many rows: with fewer rows most joins find nothing, and nothing of them is tested.
        number = dice.randint(0, 4 if name == "d" else 9)
        key = dice.choice([time, time + 1, time, time + 1, None]) if moving else dice.choice([1, 2, 3, 3, None])
        happened.append((time, name, number + (time if moving else 0), key, dice.choice([0, 1, 2, 5, None]), chance))
    drains: list[list[int]] = []
    few = EXAMPLES == 1  # then two drains, of which one has two jobs
    cuts = dice.sample(range(2, TIMES), 2 if few else dice.randint(2, 4))
    alone = dice.randint(0, 1)
    for number, horizon in enumerate([*sorted(cuts), TIMES]):
        if drains and (number == 2 - alone if few else dice.random() < 0.4):
            drains[-1].append(horizon)
        else:
            drains.append([horizon])
    reach: Reach = dice.choice(("task", "task", "sent"))
    return Example(dice.choice(["rows", "rows", "as_of"]), operators, dice.random() < 0.5, happened, drains, reach, dice.random() < 0.7)


@pytest.fixture(scope="module")
def child(spark_owner: SparkOwner) -> Iterator[SparkSession]:
    """One child session for the module."""
    yield spark_owner.child()


def declared(chosen: Example) -> Flow:
    """Return a flow of the operators, kept with how often each row occurs, and its sums by key in an additive target."""
    flow = Flow("random")
    step = as_of(flow) if chosen.begin == "as_of" else flow.stream("r").select("k", "v")
    for name in chosen.operators:
        step = OPERATORS[name](flow, step)
    rows = step.select(k="coalesce(k, -99)", v="coalesce(v, -99)") if chosen.keeps_nulls else step.where("k IS NOT NULL AND v IS NOT NULL")
    rows.aggregate(by=["k", "v"], n="count(*)").into("rows", keys=["k", "v"])
    rows.into("sums", keys=["k"], additive=["v"])
    return flow


def feed(bench: Bench, happened: list[tuple[int, str, int, int | None, int | None, int]]) -> None:
    """Put and take rows in the order of time."""
    for time, name, number, key, value, chance in sorted(happened, key=lambda change: change[0]):
        row = {"k": number, "w": value} if name == "d" else {"id": number, "k": key, "v": value}
        stream = bench.streams[name]
        if chance > 0:
            bench.put(name, time, row)
        elif stream.key(row) in stream.living:
            bench.take(name, time, row)


def oracle_changes(bench: Bench) -> dict[str, list[dict[str, Any]]]:
    """Return the changes as the oracle reads them."""
    return {
        name: [
            {
                **{column: change[column] for column in stream.schema.columns.names},
                "_change_type": "insert" if change["_w"] > 0 else "delete",
                "_commit_us": change["_commit_timestamp"],
            }
            for change in stream.changes
        ]
        for name, stream in bench.streams.items()
    }


@pytest.mark.parametrize("number", range(EXAMPLES))
@pytest.mark.parametrize("operator", sorted(OPERATORS) if EXAMPLES > 1 else FIRST)
def test_any_flow_equals_its_recomputation_at_every_job(child: SparkSession, spark_owner: SparkOwner, tmp_path: Path, operator: str, number: int) -> None:
    """Small drains run as one task, by themselves or by plans that ran before, others with exchanges: the outcome is the same."""
    chosen = example(Random(f"{SEED} {operator} {number}"), operator)
    flow = declared(chosen)
    tables = {"rows": ("k BIGINT, v BIGINT, n BIGINT", ["k", "v"]), "sums": ("k BIGINT, v BIGINT", ["k"])}
    if chosen.begin == "as_of":
        tables["versions"] = ("k BIGINT, w BIGINT, sk BIGINT, since TIMESTAMP, until TIMESTAMP", ["sk"])
    bench = Bench(flow, child, streams=STREAMS, tables=tables, planned=(spark_owner, tmp_path) if chosen.is_planned else None)
    feed(bench, chosen.happened)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "reach_of", lambda inputs: chosen.reach)
        for drain in chosen.drains:
            for horizon, found in zip(drain, bench.drain(*drain), strict=True):
                _compare(flow, bench, horizon, found)


def _compare(flow: Flow, bench: Bench, horizon: int, found: dict[str, Any]) -> None:
    columns = {name: stream.schema.columns.names for name, stream in bench.streams.items()}
    expected = recompute(flow, oracle_changes(bench), columns=columns, up_to_us=horizon)
    for table, relation in expected.tables.items():
        assert Counter(tuple(row[name] for name in relation.columns) for row in found[table]) == relation.bag(), (table, horizon)
    job = bench.horizons.index(horizon) + 1
    letters: Counter[str] = Counter()
    for letter in dead_letters(bench.results):
        if letter["job"] <= job:
            letters[json.dumps(json.loads(letter["row"]), sort_keys=True)] += letter["weight"]
    left_out = Counter(json.dumps({name: value for name, value in row.items() if not name.startswith("_")}, sort_keys=True) for _, row in expected.dead_letters)
    assert +letters == left_out and not -letters, horizon
