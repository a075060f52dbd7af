"""AT-1, AT-15, AT-16 and AT-26 as a user has them: flows that run on Spark, queries in SQL, and a reader that never stops."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.pipeline.spark import SparkOwner
from righttime.testing import ManualClock
from tests.support.plain_flow import run_plain, until

pytestmark = pytest.mark.usefixtures("compiled_plans")

SECOND = 1_000_000
T0 = 1000  # seconds: the sheet's zero
Rows = list[tuple[Any, ...]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def wh(tmp_path: Path, spark_owner: SparkOwner, clock: ManualClock) -> Iterator[rt.Warehouse]:
    """A warehouse on the Spark of this run; its time is the test's."""
    spark_owner.session()
    with rt.open(tmp_path / "wh", clock=clock, background_idle_s=0) as opened:
        yield opened


def us(seconds: float) -> int:
    """Return a time of the sheet in microseconds."""
    return round((T0 + seconds) * SECOND)


def passes(wh: rt.Warehouse, clock: ManualClock, *streams: str) -> Callable[..., None]:
    """Return what lets time pass; with `arrived`, all streams have delivered everything up to then."""

    def now(seconds: float, *, arrived: float | None = None) -> None:
        clock.set(T0 + seconds)
        for name in streams if arrived is not None else ():
            wh.stream(name).heartbeat(us(arrived or 0))

    return now


def test_at_1_cuts_of_a_flow_that_runs(wh: rt.Warehouse, clock: ManualClock) -> None:
    """The whole example: two transactions, a query, an update, two queries that share a snapshot, and a source that is late."""
    stream = wh.create_stream("s", "k INT, v INT", keys=["k"], times="source")
    flow = rt.Flow("copy")
    flow.stream("s").into("t", keys="k")
    now = passes(wh, clock, "s")

    def query() -> Rows:
        return wh.sql("SELECT k, v FROM t ORDER BY k", wait="120s").rows()

    def read(**contract: Any) -> Rows:
        return sorted(wh.read("t", **{"wait": "120s", **contract}).rows())

    with wh.run(flow) as running, ThreadPoolExecutor(2) as pool:
        now(1.0)
        stream.insert([{"k": 1, "v": 10}], time=us(1.0))
        now(1.8)
        stream.insert([{"k": 2, "v": 20}], time=us(1.8))
        now(2.0, arrived=2.0)
        first = query()
        now(2.6)
        stream.update([{"k": 1, "v": 11}], time=us(2.6))
        now(3.0, arrived=3.0)
        second = query()
        again = read(as_of=us(2.0))
        now(3.5, arrived=3.5)
        third = read()
        assert (first, second, again, third) == ([(1, 10), (2, 20)], [(1, 11), (2, 20)], [(1, 10), (2, 20)], [(1, 11), (2, 20)])
        now(4.0, arrived=3.6)
        assert read(freshness="1s") == second, "a tolerance of 1 s: it starts at once"
        tolerant, strict, link = pool.submit(read, freshness="200ms"), pool.submit(query), running._runner.link
        until(wh, lambda: len(link.cuts) == 2)
        now(4.4, arrived=3.8)
        assert tolerant.result(120) == second
        assert not strict.done()
        now(4.5)
        stream.insert([{"k": 3, "v": 30}], time=us(3.9))
        now(4.6, arrived=4.0)
        assert strict.result(120) == [(1, 11), (2, 20), (3, 30)]
        until(wh, lambda: running.jobs()[-1].horizon_us == us(4.0))
        moved = [(job.kind, job.rows_in, job.horizon_us) for job in running.jobs() if job.rows_in]
        assert moved == [("query", 2, us(2.0)), ("query", 2, us(3.0)), ("query", 1, us(4.0))], "what nobody needed anew was not moved"


def test_at_16_a_query_between_sees_the_first_sale_only(wh: rt.Warehouse, clock: ManualClock) -> None:
    """Two sources with times of their own; the query at 5.5 parts what AT-14 has in one job, and each sale has the version of its own time."""
    item = wh.create_stream("item", "item_id STRING, price INT", keys=["item_id"], times="source")
    line = wh.create_stream("plin", "id INT, item_id STRING", keys=["id"], times="source")
    flow = rt.Flow("scd")
    versions = flow.stream("item").history(keys=["item_id"], key="item_sk", key_from=100)
    versions.into("item_i", keys=["item_sk"])
    flow.stream("plin").as_of(versions, on="item_id", take=["item_sk"]).into("sales", keys=["id"])
    now = passes(wh, clock, "item", "plin")
    tables = "SELECT i.item_sk, price, unix_micros(valid_from), unix_micros(valid_to), s.id FROM item_i i LEFT JOIN sales s USING (item_sk) ORDER BY i.item_sk"
    item.insert([{"item_id": "abc", "price": 9}], time=us(0))
    with wh.run(flow) as running:
        now(2)
        item.update([{"item_id": "abc", "price": 10}], time=us(2))
        now(5)
        line.insert([{"id": 1, "item_id": "abc"}], time=us(5))
        now(5.5, arrived=5.5)
        assert wh.sql(tables, wait="120s").rows() == [(100, 9, us(0), us(2), None), (101, 10, us(2), None, 1)]
        now(6)
        item.update([{"item_id": "abc", "price": 12}], time=us(6))
        now(8)
        line.insert([{"id": 2, "item_id": "abc"}], time=us(8))
        now(9, arrived=9)
        assert wh.sql(tables, wait="120s").rows() == [(100, 9, us(0), us(2), None), (101, 10, us(2), us(6), 1), (102, 12, us(6), None, 2)]
        until(wh, lambda: len(running.jobs()) == 2)
        assert [job.horizon_us for job in running.jobs()] == [us(5.5), us(9)]


def test_at_26_a_currency_bound_in_the_text_of_a_query_over_a_flow(wh: rt.Warehouse, clock: ManualClock) -> None:
    """A change of 10:01 waits at 10:04: a query that accepts ten minutes does without it and no job is cut, one that accepts two has it."""
    wh.create_stream("s", "k INT NOT NULL, v INT", keys=["k"])
    wh.create_table("t", "k INT NOT NULL, v INT", keys=["k"])
    runner, engine = run_plain(wh, {"t": "s"})

    def query(bound: str) -> tuple[Rows, int]:
        return wh.sql(f"SELECT k FROM t ORDER BY k CURRENCY BOUND {bound}", wait="120s").rows(), len(engine.drains)

    try:
        wh.stream("s").insert([{"k": 1, "v": 10}])
        assert query("0 SEC") == ([(1,)], 1)
        clock.advance(60)
        wh.stream("s").insert([{"k": 2, "v": 20}])
        clock.advance(180)
        assert query("10 MIN") == ([(1,)], 1)
        assert query("2 MIN") == ([(1,), (2,)], 2)
        clock.advance(60)
        assert query("0 SEC") == ([(1,), (2,)], 2), "nothing waits: the snapshot is shared"
    finally:
        runner.stop()


def test_at_15_a_reader_that_never_stops_sees_one_current_version(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """The price changes all the time; whoever counts the versions without an end, as fresh as possible or as they are, counts one. The flow asks nobody."""
    spark_owner.session()
    flow = rt.Flow("dimension", refresh="every 200ms")
    flow.stream("item", "bk STRING, price INT", keys=["bk"]).history(keys=["bk"], key="sk").into("versions", keys=["sk"])
    counted: Counter[tuple[str, int]] = Counter()
    stop = threading.Event()
    fed = 1

    def feed() -> None:
        nonlocal fed
        while not stop.wait(0.05):
            shop.stream("item").update([{"bk": "abc", "price": fed}])
            fed += 1

    def read() -> None:
        while not stop.wait(0.02):
            rows = shop.read("versions", columns=["bk", "valid_to"], freshness="1 day").rows()
            counted["as it is", sum(bk == "abc" and end is None for bk, end in rows)] += 1

    with rt.open(tmp_path / "wh", background_idle_s=0) as shop, shop.run(flow) as running, ThreadPoolExecutor(2) as pool:
        shop.stream("item").insert([{"bk": "abc", "price": 0}])
        running.wait(timeout="2 min")
        others = [pool.submit(feed), pool.submit(read)]
        for turn in range(5):
            found = shop.sql("SELECT count(*) FROM versions WHERE valid_to IS NULL AND bk = 'abc'", freshness=["0s", "1 min"][turn % 2], wait="120s").rows()
            counted["asked", found[0][0]] += 1
            if turn == 2:
                shop.materialize("versions")
        stop.set()
        for other in others:
            other.result(120)
        assert counted.keys() == {("asked", 1), ("as it is", 1)}
        assert any(job.kind == "background" for job in running.jobs()), "there were jobs that no query asked for"
        assert shop.sql("SELECT count(*), count(valid_to), max(sk) FROM versions", wait="120s").rows() == [(fed, fed - 1, fed)]
