"""Flows that are stopped, refused, abandoned and built anew: what is published afterwards is what their declaration makes of the streams, and nothing else."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.changes.faults import CrashPoint
from righttime.client import Warehouse
from righttime.errors import FreshnessUnavailable
from righttime.errors.flows import BadDeclaration, FlowChanged, FlowFailed, StateMissing, StatesAhead, TableMaintained
from righttime.flows import engine, runner
from righttime.pipeline import fingerprint
from righttime.pipeline.spark import SparkOwner


@pytest.fixture
def wh(tmp_path: Path, spark_owner: SparkOwner) -> Iterator[Warehouse]:
    """A warehouse with a stream, on the Spark of this run."""
    spark_owner.session()
    with rt.open(tmp_path / "wh") as opened:
        opened.create_stream("s", "k INT, g STRING, v INT", keys=["k"])
        yield opened


def totals(condition: str = "v > 0") -> rt.Flow:
    flow = rt.Flow("f")
    flow.stream("s").where(condition).aggregate(by="g", total="sum(v)").into("agg", keys="g")
    return flow


def rows(wh: Warehouse, table: str) -> list[tuple[Any, ...]]:
    return sorted(wh.read(table, wait="120s").rows(), key=repr)


def test_a_refresh_that_was_abandoned_leaves_the_flow_as_it_was(wh: Warehouse) -> None:
    """Its state must not be taken for the flow's own once the old one has gone on."""
    with wh.run(totals()):
        wh.stream("s").insert([{"k": k, "g": "a", "v": 10} for k in range(3)])
        assert rows(wh, "agg") == [("a", 30)]
    wh.run(totals(), refresh=True).stop()
    for k, total in ((10, 40), (11, 50)):
        with wh.run(totals()):
            wh.stream("s").insert([{"k": k, "g": "a", "v": 10}])
            assert rows(wh, "agg") == [("a", total)]


def test_what_another_version_keeps_otherwise_is_built_anew(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of floating-point numbers have parts that were not kept before: state without them is refused, and is not read as if they were zero."""
    with monkeypatch.context() as before:
        before.setattr(fingerprint, "FORMAT", 2)
        with wh.run(totals()):
            wh.stream("s").insert([{"k": 1, "g": "a", "v": 10}])
            assert rows(wh, "agg") == [("a", 10)]
    with pytest.raises(FlowChanged):
        wh.run(totals())
    with wh.run(totals(), refresh=True):
        wh.stream("s").insert([{"k": 2, "g": "a", "v": 5}])
        assert rows(wh, "agg") == [("a", 15)]


def test_a_refresh_with_another_declaration_that_fails_leaves_streams_and_targets_as_they_were(wh: Warehouse, tmp_path: Path) -> None:
    """The flow that goes on reads all its streams and writes all its targets, in this process and in the next."""
    wh.create_stream("other", "k INT, v INT", keys=["k"])

    def first() -> rt.Flow:
        flow = rt.Flow("f")
        flow.stream("s").aggregate(by="g", total="sum(v)").into("agg", keys="g")
        flow.stream("other").into("copy", keys="k")
        return flow

    def failing() -> rt.Flow:
        flow = rt.Flow("f")
        flow.stream("s").expect("nothing", "v > 1000", otherwise="fail").aggregate(by="g", total="sum(v)").into("agg", keys="g")
        return flow

    with wh.run(first()):
        wh.stream("s").insert([{"k": 1, "g": "a", "v": 10}])
        wh.stream("other").insert([{"k": 1, "v": 1}])
        assert (rows(wh, "agg"), rows(wh, "copy")) == ([("a", 10)], [(1, 1)])
    with pytest.raises(FlowFailed), wh.run(failing(), refresh=True) as running:
        running.wait(timeout="2 min")
    wh.stream("other").insert([{"k": 2, "v": 2}])
    still_belongs(wh, "copy")
    with wh.run(first()):
        assert (rows(wh, "agg"), rows(wh, "copy")) == ([("a", 10)], [(1, 1), (2, 2)])
    with pytest.raises(FlowFailed), wh.run(failing(), refresh=True) as running:
        running.wait(timeout="2 min")
    wh.close()
    with rt.open(tmp_path / "wh") as again:
        again.stream("other").insert([{"k": 3, "v": 3}])
        with pytest.raises(FreshnessUnavailable):
            again.read("copy", wait="100ms")


def still_belongs(wh: Warehouse, table: str) -> None:
    """A target of a flow that has not kept up is not called fresh, and nobody else writes into it."""
    with pytest.raises((FreshnessUnavailable, FlowFailed)):  # because it does not run, or because it has failed
        wh.read(table, wait="100ms")
    with pytest.raises(TableMaintained), wh.producer(name="other") as load:
        load.insert(table, {"k": 99, "v": 99})
        load.commit()


def test_until_a_refresh_with_another_declaration_is_shown_the_old_targets_belong_to_the_flow(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what queries are answered on, with the streams of their own state in the receipt; once the new one is shown they are nobody's."""
    wh.create_stream("other", "k INT, v INT", keys=["k"])
    flow = totals()
    flow.stream("other").into("copy", keys="k")
    with wh.run(flow):
        wh.stream("s").insert([{"k": 1, "g": "a", "v": 10}])
        wh.stream("other").insert([{"k": 1, "v": 1}])
        assert (rows(wh, "agg"), rows(wh, "copy")) == ([("a", 10)], [(1, 1)])
    staged, go_on = threading.Event(), threading.Event()

    def held(point: CrashPoint) -> None:
        if point is CrashPoint.JOB_STAGED:
            staged.set()
            assert go_on.wait(60)

    def streams_of(table: str, **contract: Any) -> list[str]:
        return [each.stream for each in wh.read(table, **contract).receipt.streams]

    monkeypatch.setattr(runner, "reach", held)
    with wh.run(totals(), refresh=True) as running:
        try:
            assert staged.wait(60)
            wh.stream("other").insert([{"k": 2, "v": 2}])
            still_belongs(wh, "copy")
            old = wh.read("agg", freshness="1 day")
            assert [each.stream for each in old.receipt.streams] == ["other", "s"]
        finally:
            go_on.set()
        running.wait(timeout="2 min")
        assert streams_of("agg", wait="60s") == ["s"] and streams_of("agg", as_of=old.receipt.cut_us) == ["other", "s"]
        assert (streams_of("copy"), rows(wh, "copy")) == ([], [(1, 1)])
        with wh.producer(name="other") as load:
            load.insert("copy", {"k": 99, "v": 99})
            load.commit()


def test_a_refresh_that_leaves_nothing_empties_the_target(wh: Warehouse) -> None:
    """Nothing to publish is not the same as nothing to do."""
    with wh.run(totals()):
        wh.stream("s").insert([{"k": 1, "g": "a", "v": 10}])
        assert rows(wh, "agg") == [("a", 10)]
    with wh.run(totals("v > 1000"), refresh=True) as running:
        running.wait(timeout="2 min")
        assert rows(wh, "agg") == []
        wh.stream("s").insert([{"k": 2, "g": "b", "v": 2000}])
        assert rows(wh, "agg") == [("b", 2000)]


def test_dead_letters_go_with_their_cause(wh: Warehouse) -> None:
    """Of a target that takes no nulls, and of a look-up; mended, deleted, and by another declaration."""
    wh.create_table("nn", "k INT NOT NULL, v INT NOT NULL", keys=["k"])
    wh.create_stream("d", "g STRING, name STRING", keys=["g"])

    def declared(missing: Any) -> rt.Flow:
        flow = rt.Flow("f")
        flow.stream("s").select("k", "v").into("nn", keys="k")
        flow.stream("s").lookup(flow.stream("d"), on="g", take="name", missing=missing).select("k", "name").into("named", keys="k")
        return flow

    def letters() -> list[str]:
        return sorted(row[0] for row in wh.sql("SELECT step FROM f_dead_letters", wait="120s").rows())

    with wh.run(declared("dead_letter")):
        wh.stream("s").insert([{"k": 1, "g": "a", "v": None}, {"k": 2, "g": "a", "v": None}, {"k": 3, "g": "b", "v": 3}])
        wh.stream("d").insert([{"g": "a", "name": "A"}])
        assert [step.split("_", 1)[1] for step in letters()] == ["lookup", "nn", "nn"]
        assert (rows(wh, "nn"), rows(wh, "named")) == ([(3, 3)], [(1, "A"), (2, "A")])
        wh.append({"s": [{"k": 1, "g": "a", "v": 5, "_change_type": "update_postimage"}, {"k": 2, "_change_type": "delete"}]})
        assert [step.split("_", 1)[1] for step in letters()] == ["lookup"]
        assert rows(wh, "nn") == [(1, 5), (3, 3)]
    with wh.run(declared("null"), refresh=True) as running:
        running.wait(timeout="2 min")
        assert (letters(), rows(wh, "named")) == ([], [(1, "A"), (3, None)])


def test_a_refused_flow_does_not_keep_the_warehouse_from_being_opened(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """Nothing of it is written down."""
    spark_owner.session()
    with rt.open(tmp_path / "wh") as wh:
        wh.create_stream("s", "k INT, g STRING, v INT", keys=["k"])
        other = rt.Flow("other")
        other.stream("s").select("g", total="v").into("agg", keys="g")
        with wh.run(totals()):
            for refresh in (False, True):
                with pytest.raises(TableMaintained):
                    wh.run(other, refresh=refresh)
    with rt.open(tmp_path / "wh") as wh:
        assert [flow.name for flow in wh.flows()] == ["f"]


def test_a_dimension_that_changes_reaches_the_facts_of_earlier_drains_through_look_ups_in_a_row(wh: Warehouse) -> None:
    """Only the first look-up keeps the facts; the others find them through it, after a restart as well."""
    for name in ("d", "e"):
        wh.create_stream(name, f"{name} INT, {name}_name STRING", keys=[name])
    flow = rt.Flow("chain")
    facts = flow.stream("s").derive(d="v", e="v % 10").lookup(flow.stream("d"), on="d", take="d_name").lookup(flow.stream("e"), on="e", take="e_name")
    facts.select("k", "d_name", "e_name").into("named", keys="k")
    with wh.run(flow):
        wh.stream("s").insert([{"k": 1, "g": None, "v": 11}, {"k": 2, "g": None, "v": 21}, {"k": 3, "g": None, "v": 12}])
        wh.stream("d").insert([{"d": 11, "d_name": "eleven"}])
        assert rows(wh, "named") == [(1, "eleven", None), (2, None, None), (3, None, None)]
    with wh.run(flow):
        wh.stream("e").insert([{"e": 1, "e_name": "one"}])
        assert rows(wh, "named") == [(1, "eleven", "one"), (2, None, "one"), (3, None, None)]
        wh.append({"d": [{"d": 11, "d_name": "XI", "_change_type": "update_postimage"}, {"d": 12, "d_name": "XII"}], "e": [{"e": 1, "_change_type": "delete"}]})
        assert rows(wh, "named") == [(1, "XI", None), (2, None, None), (3, "XII", None)]


def test_a_refresh_in_parts_gives_what_one_part_gives(tmp_path: Path, spark_owner: SparkOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals, rows that failed and state to go on with, which is summed up in between; the letters name the job that is shown."""
    spark_owner.session()
    monkeypatch.setattr(engine, "_DRAINS_MAX", 2)
    monkeypatch.setattr(engine, "_FILES_MAX", 2)

    def ratios(of: int) -> rt.Flow:
        flow = rt.Flow("f")
        flow.stream("s").derive(ratio=f"{of} / v").aggregate(by="g", total="sum(ratio)").into("agg", keys="g")
        return flow

    with rt.open(tmp_path / "wh", drain_rows_max=4, bypass_bytes=1) as wh:
        wh.create_stream("s", "k INT, g STRING, v INT", keys=["k"])
        for k in range(10):
            wh.stream("s").insert([{"k": k, "g": "ab"[k % 2], "v": 0 if k == 6 else 10}])
        wh.append({"s": [{"k": 8, "g": "b", "v": 20, "_change_type": "update_postimage"}, {"k": 0, "_change_type": "delete"}]})
        with wh.run(ratios(1)) as running:
            running.wait(timeout="2 min")
        with wh.run(ratios(100), refresh=True) as running:
            running.wait(timeout="2 min")
            assert rows(wh, "agg") == [("a", 20.0), ("b", 55.0)]
            ((job, times),) = wh.sql("SELECT job, times FROM f_dead_letters", wait="120s").rows()
            assert (job, times) == (running.jobs()[0].number, 1) and running.jobs()[0].rows_in == 13
            wh.append({"s": [{"k": 6, "g": "a", "v": 1, "_change_type": "update_postimage"}, {"k": 1, "_change_type": "delete"}]})
            assert (rows(wh, "agg"), rows(wh, "f_dead_letters")) == ([("a", 120.0), ("b", 45.0)], [])


def test_what_a_crash_left_of_a_refresh_is_not_taken_for_the_next_one(wh: Warehouse) -> None:
    """An entry is written before the folder of state that it no longer names is removed; the number of that folder may be given out again."""
    with wh.run(totals()):
        wh.stream("s").insert([{"k": k, "g": "a", "v": 10} for k in range(3)])
        assert rows(wh, "agg") == [("a", 30)]
    folder = wh.path / "flows" / "f"
    shutil.copytree(folder / "state-1", folder / "state-2")
    with wh.run(totals(), refresh=True) as running:
        running.wait(timeout="2 min")
        wh.stream("s").insert([{"k": 10, "g": "a", "v": 10}])
        assert rows(wh, "agg") == [("a", 40)]


def test_what_was_mended_since_does_not_stop_a_refresh_in_parts(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """A part may have what the whole no longer has: a row that must not be, and two rows with one key."""
    spark_owner.session()

    def declared() -> rt.Flow:
        flow = rt.Flow("f")
        flow.stream("s").expect("positive", "v > 0", otherwise="fail").select("g", "v").into("by_g", keys="g")
        return flow

    with rt.open(tmp_path / "wh") as wh:
        wh.create_stream("s", "k INT, g STRING, v INT", keys=["k"])
        wh.stream("s").insert([{"k": 1, "g": "a", "v": -1}])
        wh.stream("s").insert([{"k": 2, "g": "a", "v": 2}])
        for k in range(3, 6):
            wh.stream("s").insert([{"k": k, "g": f"g{k}", "v": k}])
        wh.stream("s").update([{"k": 1, "g": "b", "v": 1}])
        with wh.run(declared()) as running:
            running.wait(timeout="2 min")
            expected = rows(wh, "by_g")
    with rt.open(tmp_path / "wh", drain_rows_max=2) as wh, wh.run(declared(), refresh=True) as running:
        running.wait(timeout="2 min")
        assert rows(wh, "by_g") == expected == [("a", 2), ("b", 1), ("g3", 3), ("g4", 4), ("g5", 5)]


def test_state_that_begins_after_the_last_job_is_not_gone_on_with(wh: Warehouse, tmp_path: Path) -> None:
    """So it is if the flows' folder is newer than the rest, from another backup: totals would lack what came before."""
    with wh.run(totals()):
        wh.stream("s").insert([{"k": 1, "g": "a", "v": 10}])
        assert rows(wh, "agg") == [("a", 10)]
    path = next((tmp_path / "wh").glob("**/flow.json"))
    entry = json.loads(path.read_bytes())
    entry["generations"][0]["first_job"] = wh._writer("test").catalyst.head.source("flow.f").last.number + 1
    path.write_text(json.dumps(entry), encoding="utf-8")
    with pytest.raises(StatesAhead):
        wh.run(totals())
    with wh.run(totals(), refresh=True) as running:
        running.wait(timeout="2 min")
        assert rows(wh, "agg") == [("a", 10)]


def test_a_flow_whose_folder_is_gone_is_not_taken_for_a_new_one(wh: Warehouse, tmp_path: Path) -> None:
    """So it is if a database is opened on another machine: what the flow remembers has stayed on the first."""
    with wh.run(totals()):
        wh.stream("s").insert([{"k": 1, "g": "a", "v": 10}])
        assert rows(wh, "agg") == [("a", 10)]
        wh.stream("s").delete([{"k": 1, "g": "a", "v": 10}])
        assert rows(wh, "agg") == []
    shutil.move(tmp_path / "wh" / "flows", tmp_path / "elsewhere")
    with pytest.raises(StateMissing) as raised:
        wh.run(totals())
    assert raised.value.context["folder"] == str(tmp_path / "wh" / "flows" / "f")
    shutil.move(tmp_path / "elsewhere", tmp_path / "wh" / "flows")
    with wh.run(totals()):
        wh.stream("s").insert([{"k": 2, "g": "a", "v": 7}])
        assert rows(wh, "agg") == [("a", 7)]


def fails_before_publishing(point: CrashPoint) -> None:
    """Stands in for `reach`: what was computed never comes to be shown."""
    if point is CrashPoint.JOB_STAGED:
        raise OSError("cut short")


def test_what_a_first_refresh_left_behind_is_not_gone_on_with(tmp_path: Path, spark_owner: SparkOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cut short when its parts were computed and none was shown: everything is taken again, from nothing."""
    spark_owner.session()
    with rt.open(tmp_path / "wh", drain_rows_max=2) as wh:
        wh.create_stream("s", "k INT, g STRING, v INT", keys=["k"])
        for k in range(7):
            wh.stream("s").insert([{"k": k, "g": "a", "v": 10}])
        with monkeypatch.context() as broken:
            broken.setattr(runner, "reach", fails_before_publishing)
            with pytest.raises(FlowFailed, match="cut short"), wh.run(totals(), refresh=True) as running:
                running.wait(timeout="2 min")
        with wh.run(totals()):
            assert rows(wh, "agg") == [("a", 70)]


def test_rows_of_others_are_not_kept_where_the_refresh_that_would_replace_them_was_cut_short(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target is what its flow makes of its streams and nothing else, whether the flow was begun before or not."""
    wh.create_table("agg", "g STRING NOT NULL, total BIGINT", keys=["g"])
    with wh.producer(name="other") as load:
        load.insert("agg", {"g": "z", "total": 1})
        load.commit()
    wh.stream("s").insert([{"k": 1, "g": "a", "v": 10}])
    with monkeypatch.context() as broken:
        broken.setattr(runner, "reach", fails_before_publishing)
        with pytest.raises(FlowFailed, match="cut short"), wh.run(totals(), refresh=True) as running:
            running.wait(timeout="2 min")
    with pytest.raises(BadDeclaration, match="has rows already"):
        wh.run(totals())
    with wh.run(totals(), refresh=True) as running:
        running.wait(timeout="2 min")
        assert rows(wh, "agg") == [("a", 10)]
