"""Flows that are built anew or that change what they read: over streams with times of their own, which may lag or stand still.

The runner, the catalyst and the streams are the real ones; the drain itself is a dictionary. Times are a test's.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.client import Warehouse
from righttime.errors import FreshnessUnavailable
from righttime.errors.flows import FlowFailed, StreamTime
from righttime.flows.catalogue import Catalogue, Generation
from righttime.flows.running import RunningFlow
from righttime.testing import ManualClock
from tests.support.plain_flow import run_plain, until

SECOND = 1_000_000
COLUMNS = "k INT NOT NULL, v INT"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def wh(tmp_path: Path, clock: ManualClock) -> Iterator[Warehouse]:
    """A warehouse with tables `t` and `u`, for copies of streams `a` and `b` whose times are their sources'."""
    with rt.open(tmp_path / "wh", clock=clock) as opened:
        for table, stream in (("t", "a"), ("u", "b")):
            opened.create_table(table, COLUMNS, keys=["k"])
            opened.create_stream(stream, COLUMNS, keys=["k"], times="source")
        yield opened


def bring_up(wh: Warehouse, targets: dict[str, str], **options: Any) -> None:
    """Run a flow until its targets have what has arrived."""
    runner, _ = run_plain(wh, targets, **options)
    try:
        RunningFlow(wh._flows("test"), runner).wait(timeout="20s")
    finally:
        runner.stop()


def rows(wh: Warehouse, table: str) -> list[tuple[Any, ...]]:
    return sorted(wh.read(table, freshness="2h", wait="20s").rows())


def test_a_refresh_over_a_source_that_stands_still_says_what_it_waits_for(wh: Warehouse) -> None:
    """The new state can only be shown after the last one; a heartbeat tells that nothing has happened until then."""
    wh.stream("a").insert([{"k": 1, "v": 1}], time=100 * SECOND)
    bring_up(wh, {"t": "a"})
    assert rows(wh, "t") == [(1, 1)]
    runner, _ = run_plain(wh, {"t": "a"}, rebuild=True, factor=2)
    running = RunningFlow(wh._flows("test"), runner)
    try:
        with pytest.raises(FreshnessUnavailable, match=r"stream 'a' goes on.*heartbeat"):
            running.wait(timeout=0.2)
        assert runner.failure is None
        wh.stream("a").heartbeat(101 * SECOND)
        running.wait(timeout="20s")
        assert rows(wh, "t") == [(1, 2)]
    finally:
        runner.stop()


def test_targets_that_were_never_loaded_are_not_called_as_stale_as_1970_is_old(wh: Warehouse) -> None:
    """They are as stale as it has been possible to ask for them."""
    runner, _ = run_plain(wh, {"t": "a"}, rebuild=True)
    try:
        with pytest.raises(FreshnessUnavailable, match=r"it is 0\.000 s stale"):
            RunningFlow(wh._flows("test"), runner).wait(timeout=0.1)
    finally:
        runner.stop()


def test_what_other_streams_had_says_nothing_of_a_new_one(wh: Warehouse) -> None:
    """A flow that reads one more stream waits for that one, too: what comes late there is not left out for ever."""
    wh.stream("a").insert([{"k": 1, "v": 1}], time=100 * SECOND)
    wh.stream("b").insert([{"k": 1, "v": 1}], time=10 * SECOND)
    bring_up(wh, {"t": "a"})
    wh.stream("a").heartbeat(150 * SECOND)
    runner, _ = run_plain(wh, {"t": "a", "u": "b"}, rebuild=True)
    try:
        assert runner.link.arrived_us == 10 * SECOND
        wh.stream("b").insert([{"k": 2, "v": 2}], time=50 * SECOND)
        for name in "ab":
            wh.stream(name).heartbeat(200 * SECOND)
        RunningFlow(wh._flows("test"), runner).wait(timeout="20s")
        assert rows(wh, "u") == [(1, 1), (2, 2)]
    finally:
        runner.stop()


def test_a_flow_that_leaves_a_source_no_longer_waits_for_it(wh: Warehouse, clock: ManualClock) -> None:
    """Streams with the warehouse's own times always have everything."""
    wh.create_stream("own", COLUMNS, keys=["k"])
    wh.stream("a").insert([{"k": 1, "v": 1}], time=100 * SECOND)
    bring_up(wh, {"t": "a"})
    clock.advance(1)
    wh.stream("own").insert([{"k": 7, "v": 7}])
    runner, _ = run_plain(wh, {"t": "own"}, rebuild=True)
    try:
        RunningFlow(wh._flows("test"), runner).wait(timeout="20s")
        clock.advance(1)
        assert wh.read("t", wait="20s").rows() == [(7, 7)]
    finally:
        runner.stop()


def test_a_state_that_is_replaced_is_not_called_exact_beyond_the_streams_that_its_successor_leaves(wh: Warehouse, clock: ManualClock) -> None:
    """Nobody waits for them any more, and nobody knows what they would have brought; before that it is as good as it was."""
    wh.create_stream("own", COLUMNS, keys=["k"])
    wh.stream("a").insert([{"k": 1, "v": 1}], time=100 * SECOND)
    wh.stream("a").heartbeat(500 * SECOND)
    bring_up(wh, {"t": "a"})
    before, after = Generation(1, 1, "", ("a",), ("t",)), Generation(2, 2, "", ("own",), ("u",))
    link = wh._flows("test").attention.rebuild("flow.plain", after, before)
    assert set(link.tables) == {"t", "u"}
    assert [link.exact(second * SECOND) for second in (500, 501, 900)] == [True, False, False]
    with wh._writer("test").catalyst.lock:
        wh._flows("test").attention.rebuilt("flow.plain", after, clock.now_us())
    assert set(link.tables) == {"u"}


def test_a_state_that_is_built_anew_is_shown_later_than_the_old_one_was(wh: Warehouse) -> None:
    """A source has told of 500 s, and the old rows were read there: what replaces them waits for the source to go on. At 500 s both would be there for ever."""
    for number, second in enumerate((100, 200)):
        wh.stream("a").append([{"k": 1, "v": number, "_change_type": "update_postimage" if number else "insert"}], time=second * SECOND)
        bring_up(wh, {"t": "a"})
    wh.stream("a").heartbeat(500 * SECOND)
    assert rows(wh, "t") == [(1, 1)]
    flows, state = wh._flows("test"), Generation(1, 1, "", ("a",), ("t",))
    flows.attention.rebuild("flow.plain", state, state)
    runner, _ = run_plain(wh, {"t": "a"}, rebuild=True, factor=10)
    try:
        assert not runner.await_rebuilt(0.1) and rows(wh, "t") == [(1, 1)]
        wh.stream("a").heartbeat(600 * SECOND)
        RunningFlow(flows, runner).wait(timeout="20s")
        assert rows(wh, "t") == [(1, 10)]
        assert wh.read("t", as_of=500 * SECOND).rows() == [(1, 1)]
        wh.materialize("t")
        assert rows(wh, "t") == [(1, 10)]
    finally:
        runner.stop()


def test_a_table_that_was_emptied_is_kept_by_a_flow_whose_source_lags(wh: Warehouse, clock: ManualClock) -> None:
    """Its last rows were deleted at 1000 s, and that is stored. Jobs of 100 s and 200 s change a row twice; it is there once."""
    with wh.producer(name="shop") as load:
        load.insert("t", (9, 9))
        load.commit()
        load.delete("t", where={"k": 9})
        load.commit()
    wh.materialize("t")
    runner, _ = run_plain(wh, {"t": "a"}, refresh="immediate")
    try:
        for number, second in enumerate((100, 200)):
            wh.stream("a").append([{"k": 1, "v": number, "_change_type": "update_postimage" if number else "insert"}], time=second * SECOND)
            until(wh, lambda: len(runner.reports()) == number + 1)  # noqa: B023 - called at once
        clock.advance(1)
        wh.stream("a").heartbeat(1001 * SECOND)
        assert wh.read("t", freshness="0s", wait="20s").rows() == [(1, 1)]
    finally:
        runner.stop()


def test_the_tolerance_of_one_stream_is_not_that_of_another(wh: Warehouse, clock: ManualClock) -> None:
    """Of several streams that lag, the strictest counts: a query must not get less without being told."""
    wh.create_stream("tolerant", COLUMNS, keys=["k"], times="source", tolerance="30s")
    runner, _ = run_plain(wh, {"t": "tolerant", "u": "b"})
    catalyst = wh._writer("test").catalyst
    try:
        wh.stream("tolerant").heartbeat(clock.now_us() + 60 * SECOND)
        wh.stream("b").insert([{"k": 1, "v": 1}], time=clock.now_us() - 20 * SECOND)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: sorted(wh.read("u", wait="20s").rows()))
            with catalyst.lock:
                assert runner.link.asked.wait_for(lambda: bool(runner.link.cuts), timeout=10), "the query does not wait"
            wh.stream("b").insert([{"k": 2, "v": 2}], time=clock.now_us() - 10 * SECOND)
            wh.stream("b").heartbeat(clock.now_us() + 60 * SECOND)
            assert waiting.result(20) == [(1, 1), (2, 2)]
    finally:
        runner.stop()


def test_queries_on_a_flow_that_stopped_leave_no_cuts_behind(wh: Warehouse) -> None:
    """Nobody would ever make the jobs, and every later query would have to look through them."""
    bring_up(wh, {"t": "a"})
    link = wh._writer("test").catalyst.maintained["t"]
    for _ in range(5):
        with pytest.raises(FreshnessUnavailable):
            wh.read("t", wait="1s")
    assert link.cuts == []


def test_a_generation_keeps_what_it_reads_and_writes(tmp_path: Path) -> None:
    """A refresh with another declaration that never came to be used says nothing of the one that goes on."""
    catalogue = Catalogue(tmp_path)
    first = catalogue.begin("f", ["a", "b"], ["t", "u"], "v1", next_job=1)
    catalogue.renew(first, ["a"], ["t"], "v2", durable_job=5, next_job=6)
    entry = catalogue.entry("f")
    assert entry is not None
    old, new = entry.generation(5), entry.generation(6)
    assert (old.streams, old.targets, new.streams, new.targets) == (("a", "b"), ("t", "u"), ("a",), ("t",))
    catalogue.go_on(entry, old, durable_job=5)
    assert catalogue.entry("f") == first


def test_generations_stay_until_no_crash_can_bring_them_back(tmp_path: Path) -> None:
    """Jobs that are published and not durable may never have been; two refreshes in a row must not take the state of the durable one away."""
    catalogue = Catalogue(tmp_path)
    first = catalogue.begin("f", ["a"], ["t"], "v1", next_job=1)
    second = catalogue.renew(first, ["a"], ["t"], "v2", durable_job=1, next_job=2)
    entry = catalogue.entry("f")
    assert entry is not None
    third = catalogue.renew(entry, ["a"], ["t"], "v3", durable_job=1, next_job=3)
    entry = catalogue.entry("f")
    assert entry is not None and [entry.generation(job).number for job in (1, 2, 3)] == [1, 2, 3]
    catalogue.go_on(entry, second, durable_job=1)
    entry = catalogue.entry("f")
    assert entry is not None and [entry.generation(job).number for job in (1, 2, 3)] == [1, 2, 2]
    catalogue.renew(entry, ["a"], ["t"], "v4", durable_job=2, next_job=3)
    entry = catalogue.entry("f")
    assert entry is not None and [each.fingerprint for each in entry.generations] == ["v2", "v4"] and third not in entry.generations


def changes(wh: Warehouse, stream: str) -> dict[int, int]:
    """Insert, update and delete, each in a commit of its own; return what is left."""
    left: dict[int, int] = {}
    for number in range(30):
        wh.stream(stream).insert([{"k": number, "v": number}])
        left[number] = number
        if number % 3 == 2:
            wh.stream(stream).update([{"k": number - 1, "v": 100 + number}])
            left[number - 1] = 100 + number
        if number % 5 == 4:
            wh.stream(stream).delete([{"k": number - 4}])
            del left[number - 4]
    return left


def test_a_refresh_in_many_parts_is_one_job_and_its_rows_are_in_files(tmp_path: Path) -> None:
    """No part takes more changes than a drain may hold, and rows that are too many for memory become part of the target as files."""
    with rt.open(tmp_path / "wh", drain_rows_max=7, bypass_bytes=1) as wh:
        wh.create_table("t", COLUMNS, keys=["k"])
        wh.create_stream("s", COLUMNS, keys=["k"])
        left = changes(wh, "s")
        bring_up(wh, {"t": "s"})
        assert dict(rows(wh, "t")) == left
        before = wh.read("t", freshness="2h").receipt.cut_us
        runner, engine = run_plain(wh, {"t": "s"}, rebuild=True, factor=2)
        try:
            RunningFlow(wh._flows("test"), runner).wait(timeout="20s")
            wh.stream("s").update([{"k": 29, "v": 7}])
            assert dict(wh.read("t", wait="20s").rows()) == {key: 2 * value for key, value in (left | {29: 7}).items()}
        finally:
            runner.stop()
        assert len(engine.drains) > 5 and len(runner.reports()) == 2, "many parts, one job; and the update"
        assert wh._writer("test").catalyst.tables["t"].has_files
        assert dict(wh.read("t", as_of=before).rows()) == left, "whoever reads the old state sees nothing of the new one"
        wh.materialize("t")
        assert not wh._writer("test").catalyst.tables["t"].has_files
        assert dict(rows(wh, "t")) == {key: 2 * value for key, value in (left | {29: 7}).items()}
    with rt.open(tmp_path / "wh") as wh:
        assert dict(wh.read("t", freshness="2h").rows()) == {key: 2 * value for key, value in (left | {29: 7}).items()}


def test_more_rows_than_files_may_hold_stop_the_flow_and_say_which_setting(tmp_path: Path) -> None:
    """Neither files nor memory have room for them. What is published stays as it was."""
    with rt.open(tmp_path / "wh", bypass_bytes=1, spill_bytes_max=64, memory_bytes_max=1024) as wh:
        wh.create_table("t", COLUMNS, keys=["k"])
        wh.create_stream("s", COLUMNS, keys=["k"])
        runner, _ = run_plain(wh, {"t": "s"})
        wh.stream("s").insert([{"k": number, "v": number} for number in range(1000)])
        with pytest.raises(FlowFailed, match="spill_bytes_max"):
            RunningFlow(wh._flows("test"), runner).wait(timeout="20s")
        runner.stop()


def test_rows_that_files_may_not_hold_are_kept_in_memory(tmp_path: Path) -> None:
    """As long as there is room: who allows no files had large commits before, and has them still."""
    with rt.open(tmp_path / "wh", bypass_bytes=1, spill_bytes_max=0) as wh:
        wh.create_table("t", COLUMNS, keys=["k"])
        wh.create_stream("s", COLUMNS, keys=["k"])
        wh.stream("s").insert([{"k": number, "v": number} for number in range(1000)])
        bring_up(wh, {"t": "s"})
        assert len(rows(wh, "t")) == 1000


def test_an_entry_of_the_first_version_is_read(tmp_path: Path) -> None:
    """There, streams and targets were those of the flow, whatever its generation."""
    (tmp_path / "f").mkdir()
    generations = [{"number": 1, "first_job": 1, "fingerprint": "x"}, {"number": 2, "first_job": 7, "fingerprint": "y"}]
    (tmp_path / "f" / "flow.json").write_text(json.dumps({"name": "f", "streams": ["s"], "targets": ["t", "u"], "generations": generations}), encoding="utf-8")
    entry = Catalogue(tmp_path).entry("f")
    assert entry is not None
    assert [(each.number, each.fingerprint, each.streams, each.targets) for each in entry.generations] == [
        (1, "x", ("s",), ("t", "u")),
        (2, "y", ("s",), ("t", "u")),
    ]


def test_a_source_whose_clock_is_ahead_does_not_take_the_warehouse_along(tmp_path: Path) -> None:
    """Its rows are shown when their time has come; a time that can only be a mistake is refused, because nothing earlier could follow it."""
    with rt.open(tmp_path / "wh") as wh:
        wh.create_stream("s", COLUMNS, keys=["k"], times="source")
        wh.create_stream("own", COLUMNS, keys=["k"])
        now_us = wh.stream("own").insert([{"k": 1, "v": 1}]).time_us
        wh.stream("s").insert([{"k": 1, "v": 1}], time=now_us + 7200 * SECOND)
        with pytest.raises(StreamTime, match="more than a day ahead"):
            wh.stream("s").insert([{"k": 2, "v": 2}], time=now_us * 1000)
        with pytest.raises(StreamTime, match="more than a day ahead"):
            wh.stream("s").heartbeat(now_us * 1000)
        with pytest.raises(StreamTime, match=r"the time 2999-01-01T00:00:00\.000000\+00:00 is more than a day ahead"):
            wh.stream("s").heartbeat(datetime(2999, 1, 1, tzinfo=UTC))
        wh.stream("s").insert([{"k": 2, "v": 2}], time=now_us + 7201 * SECOND)
    with rt.open(tmp_path / "wh") as wh:
        assert wh.stream("own").insert([{"k": 2, "v": 2}]).time_us < now_us + 3600 * SECOND


def test_an_empty_append_with_a_time_is_a_heartbeat_for_flows(wh: Warehouse) -> None:
    """Whoever waits for what has arrived waits for nothing more, and a query up to there is answered."""
    runner, _ = run_plain(wh, {"t": "a"})
    try:
        wh.stream("a").insert([{"k": 1, "v": 1}], time=100 * SECOND)
        wh.stream("a").append([], time=200 * SECOND)
        assert runner.link.arrived_us == 200 * SECOND
        RunningFlow(wh._flows("test"), runner).wait(timeout="20s")
        assert rows(wh, "t") == [(1, 1)]
    finally:
        runner.stop()


def test_a_commit_is_a_heartbeat_for_all_its_streams(wh: Warehouse) -> None:
    """For one that has no changes beside another that has, and for one whose changes became dead letters; after the next start, too."""
    wh.create_stream("strict", COLUMNS, keys=["k"], times="source", on_bad="dead_letter")
    wh.create_table("w", COLUMNS, keys=["k"])
    runner, _ = run_plain(wh, {"t": "a", "u": "b", "w": "strict"})
    try:
        wh.append({"a": [{"k": 1, "v": 1}], "b": [], "strict": []}, time=100 * SECOND)
        assert runner.link.arrived_us == 100 * SECOND
        assert wh.append({"a": [], "b": [], "strict": [{"k": 7, "_change_type": "delete"}]}, time=200 * SECOND).rejected == 1
        assert runner.link.arrived_us == 200 * SECOND
        RunningFlow(wh._flows("test"), runner).wait(timeout="20s")
        assert rows(wh, "t") == [(1, 1)]
    finally:
        runner.stop()
    wh.close()
    with rt.open(wh.path, clock=ManualClock(1000.0)) as again:
        assert {name: again._flows("test").feed.streams.watermark_us(name) for name in ("a", "b", "strict")} == dict.fromkeys(
            ("a", "b", "strict"), 200 * SECOND
        )
