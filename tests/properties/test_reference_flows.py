"""The law on the reference engine: a declared flow run job by job on threads is the recomputation at every cut."""

from random import Random
from typing import Any

import pytest

from righttime.pipeline.flow import Flow
from righttime.testing.reference.checker import violations
from righttime.testing.reference.declared import build_flow
from righttime.testing.reference.engine import Engine
from righttime.testing.reference.options import Options
from righttime.testing.reference.recompute import recompute
from righttime.testing.reference.rows import Change

COLUMNS = {"line": ("k", "item", "qty"), "item": ("item", "price")}


def sales() -> Flow:
    """Return a flow with most kinds of steps."""
    flow = Flow("sales")
    lines, items = flow.stream("line").where("qty > 0"), flow.stream("item")
    priced = lines.join(items, "item", how="left").derive(amount="qty * coalesce(price, 0)")
    priced.into("priced", keys=["k"])
    priced.aggregate("item", n="count(*)", amount="sum(amount)", most="max(qty)", kinds="count(distinct qty)").into("by_item", keys=["item"])
    lines.select("item").union(items.select("item")).distinct().into("known", keys=["item"])
    history = items.history("item", key="sk", key_from=100)
    history.into("versions", keys=["sk"])
    lines.as_of(history, "item", take=["sk"]).into("facts", keys=["k"])
    lines.select("item", "qty").into("totals", keys=["item"], additive=["qty"])
    return flow


def changes_of(dice: Random, living: dict[Any, tuple[Any, ...]], key: Any, row: tuple[Any, ...]) -> Change:
    """Return an insert, update or delete of a key, and remember what lives."""
    before = living.pop(key, None)
    after = None if before is not None and dice.random() < 0.4 else row
    if after is not None:
        living[key] = after
    return Change(before, after)


def recorded(time_us: int, names: tuple[str, ...], change: Change) -> list[dict[str, Any]]:
    """Return a change as the oracle takes it."""
    kinds = [("update_preimage" if change.after else "delete", change.before), ("update_postimage" if change.before else "insert", change.after)]
    return [{**dict(zip(names, row, strict=True)), "_change_type": kind, "_commit_us": time_us} for kind, row in kinds if row is not None]


@pytest.mark.parametrize("mode", ["pipelined", "seq"])
def test_a_declared_flow_is_its_recomputation_at_every_cut(mode: Any) -> None:
    """Random changes, random cuts by queries and in the background; each state and each answer is compared."""
    for seed in range(6):
        dice, flow = Random(seed), sales()
        living: dict[str, dict[Any, tuple[Any, ...]]] = {"line": {}, "item": {}}
        given: dict[str, list[dict[str, Any]]] = {"line": [], "item": []}
        with Engine(lambda engine, flow=flow: build_flow(engine, flow, COLUMNS), ["line", "item"], options=Options(mode=mode, pipe_rows_max=3)) as engine:  # type: ignore[misc]
            queries = []
            for time_us in range(1, 25):
                stream, item = dice.choice(["line", "item"]), dice.choice("abc")
                key: Any = dice.randrange(6) if stream == "line" else item
                row = (key, item, dice.randrange(-1, 4)) if stream == "line" else (item, dice.randrange(1, 9))
                change = changes_of(dice, living[stream], key, row)
                engine.feed(time_us, {stream: [change]})
                given[stream] += recorded(time_us, COLUMNS[stream], change)
                if dice.random() < 0.3:
                    queries.append(engine.query(f"q{time_us}", time_us))
                elif dice.random() < 0.2:
                    engine.cut(time_us)
            answers = [(query.job, query.begin()) for query in queries]
            engine.settle()

        assert violations(engine.log) == []
        for job, answer in answers:
            expected = recompute(flow, given, columns=COLUMNS, up_to_us=job.horizon_us).tables
            assert {table: relation.bag() for table, relation in expected.items()} == answer, (seed, job)
