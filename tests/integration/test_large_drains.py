"""Drains that give more than memory should hold: Spark's tasks write it, and it is taken from there piece by piece, with the same outcome."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import righttime as rt
from righttime.errors.flows import DrainTooLarge, FlowFailed, LookupFailed, TooManyDeadLetters
from righttime.flows.engine import DrainEngine
from righttime.pipeline import collecting, filed, shared
from righttime.pipeline.execute import Room
from righttime.pipeline.flow import Flow
from righttime.pipeline.results import DrainResult
from righttime.pipeline.spark import SparkOwner
from tests.support.flows import Bench, dead_letters
from tests.support.signed_histories import session

STREAMS = {"sale": ("id INT, k STRING, v DECIMAL(9,2), at TIMESTAMP", ["id"]), "item": ("k STRING, name STRING", ["k"])}
TABLES = {
    "named": ("id INT, v DECIMAL(9,2), at TIMESTAMP, name STRING, tags ARRAY<STRING>", ["id"]),
    "by_name": ("name STRING, sold BIGINT, first TIMESTAMP", ["name"]),
}


@pytest.fixture(scope="module")
def child(spark_owner: SparkOwner) -> Iterator[SparkSession]:
    """One session for the module."""
    yield session(spark_owner.child())


def flow_of(missing: Any = "dead_letter", *, sums: bool = True) -> Flow:
    """Sales with the names of their items, one by one and in sum."""
    flow = Flow("names")
    named = flow.stream("sale").expect("sold", "v > 0", otherwise="drop").lookup(flow.stream("item"), on="k", take=["name"], missing=missing)
    named.select("id", "v", "at", "name", tags="array(name, k)").into("named", keys="id")
    if sums:
        named.aggregate(by="name", sold="count(*)", first="min(at)").into("by_name", keys="name")
    return flow


def filled(child: SparkSession, *, missing: Any = "dead_letter") -> Bench:
    """Three jobs: 15 sales of three items, of which one is unknown, then both known ones are renamed, then one is gone."""
    bench = Bench(flow_of(missing), child, streams=STREAMS, tables=TABLES)
    bench.put("item", 1, {"k": "a", "name": "ale"}, {"k": "b", "name": "bun"})
    for number in range(15):
        bench.put("sale", 2, {"id": number, "k": "abc"[number % 3], "v": number % 5, "at": 10**15 + number})
    bench.put("item", 3, {"k": "a", "name": "alt"}, {"k": "b", "name": "bap"})
    bench.take("item", 4, {"k": "a"})
    return bench


def outcome(bench: Bench, drains: list[tuple[int, ...]], **options: Any) -> tuple[list[Any], list[str], list[Any]]:
    """Return all targets after each job, the dead letters that are left, and the unmet expectations."""
    after = [snapshot for horizons in drains for snapshot in bench.drain(*horizons, **options)]
    left: dict[tuple[str, str], int] = {}
    for letter in dead_letters(bench.results):
        left[letter["step"], letter["row"]] = left.get((letter["step"], letter["row"]), 0) + letter["weight"]
    return after, sorted(row for (_, row), times in left.items() if times), [each for result in bench.results for each in result.expectations]


def test_what_is_in_files_is_what_would_be_in_memory(child: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of each job, state, dead letters and counts are the same, however small the pieces are; nothing stays behind."""
    drains: list[tuple[int, ...]] = [(2,), (3, 4)]
    expected = outcome(filled(child), drains)
    places = (tmp_path / str(number) for number in range(9))

    def made() -> Path:
        place = next(places)
        place.mkdir()
        return place

    monkeypatch.setattr(filed, "PIECE_BYTES", 64)
    bench = filled(child)
    assert outcome(bench, drains, room=Room(5, made)) == expected
    assert all(result.folder is not None for result in bench.results)
    for result in bench.results:
        result.close()
    assert not list(tmp_path.iterdir())


def test_what_stops_a_flow_stops_it_from_files_too(child: SparkSession, tmp_path: Path) -> None:
    """A look-up that must find its row, too many dead letters: the same errors, and no files are left."""

    def run(flow: Flow, **options: Any) -> DrainResult:
        bench = Bench(flow, child, streams=STREAMS, tables={target.table: TABLES[target.table] for target in flow.targets})
        bench.streams.update(filled(child).streams)
        return bench.run(2, room=Room(5, lambda: Path(str(tmp_path / "files"))), **options)

    with pytest.raises(LookupFailed) as refused:
        run(flow_of("fail", sums=False))
    assert (refused.value.context["job"], refused.value.context["rows"]) == (1, 4)
    with pytest.raises(TooManyDeadLetters):
        run(flow_of(sums=False), dead_letters_max=2)
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize(
    "words",
    [
        "Total size of serialized results of 2 tasks (2.1 GiB) is bigger than spark.driver.maxResultSize (2.0 GiB)",
        "org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 134217728 bytes of memory, got 108968252.",
        "Not enough memory to build and broadcast the table to all worker nodes.",
    ],
)
def test_a_result_that_spark_gives_up_for_its_size_is_too_much(words: str) -> None:
    """Rows may be few and wide; Spark bounds their bytes, and what a task keeps of them. A drain that meets such a bound goes into files."""

    class Wide:
        def _collect_as_arrow(self, **options: Any) -> Any:
            raise RuntimeError(words)

    with pytest.raises(collecting.TooMuchOutput):
        collecting.run_union(Wide())  # type: ignore[arg-type]


def rows(wh: rt.Warehouse, query: str) -> list[tuple[Any, ...]]:
    return list(wh.sql(query, wait="120s").rows())


def test_one_changed_row_that_concerns_many_is_published_from_files(tmp_path: Path, spark_owner: SparkOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dimension row with many facts behind it: the flow goes on, in this process and the next, and keeps nothing that it wrote on the way."""
    spark_owner.session()
    results: list[DrainResult] = []
    drain = DrainEngine._result

    def note(self: DrainEngine, *given: Any) -> DrainResult:
        results.append(drain(self, *given))
        return results[-1]

    monkeypatch.setattr(DrainEngine, "_result", note)
    path = tmp_path / "wh"
    with rt.open(path, drain_output_rows_max=1_500, bypass_bytes=4_000, background_idle_s=0) as wh:
        wh.create_stream("sale", "id INT, k STRING", keys=["id"])
        wh.create_stream("item", "k STRING, name STRING", keys=["k"])
        wh.stream("item").insert([{"k": "a", "name": "ale"}])
        wh.stream("sale").insert([{"id": number, "k": "a"} for number in range(400)])
        with wh.run(named()) as running:
            running.wait(timeout="120s")
            assert results[-1].folder is None
            for batch in range(1, 6):
                wh.stream("sale").insert([{"id": 400 * batch + number, "k": "a"} for number in range(400)])
                running.wait(timeout="120s")
            assert all(result.folder is None for result in results)
            wh.stream("item").update([{"k": "a", "name": "alt"}])
            assert rows(wh, "SELECT name, count(*), count(DISTINCT id) FROM named GROUP BY name") == [("alt", 2_400, 2_400)]
            assert results[-1].folder is not None
    with rt.open(path, drain_output_rows_max=1_500) as wh, wh.run(named()):
        wh.stream("item").update([{"k": "a", "name": "ape"}])
        wh.stream("sale").delete([{"id": 7}])
        assert rows(wh, "SELECT name, count(*) FROM named GROUP BY name") == [("ape", 2_399)]
        wh.stream("sale").insert([{"id": 7, "k": "a"}])
        assert rows(wh, "SELECT id, name FROM named WHERE id = 7") == [(7, "ape")]
    assert not [file for staged in path.rglob("_staging") for file in staged.rglob("*")]


def named(condition: str = "id >= 0") -> Flow:
    flow = Flow("names")
    flow.stream("sale").where(condition).lookup(flow.stream("item"), on="k", take=["name"], missing="drop").into("named", keys="id")
    return flow


def test_a_row_that_fails_among_too_many_stops_the_flow_with_its_own_code(child: SparkSession, tmp_path: Path) -> None:
    """What is searched for it is in memory, and that is bounded; the error names the bound."""
    tables = {"named": ("id INT, k STRING, v DECIMAL(9,2), at TIMESTAMP, name STRING", ["id"])}
    bench = Bench(named("100 DIV id >= 0"), child, streams=STREAMS, tables=tables)
    bench.put("item", 1, {"k": "a", "name": "ale"})
    for number in range(20):
        bench.put("sale", 1, {"id": number, "k": "a", "v": 1, "at": 0})
    with pytest.raises(DrainTooLarge) as refused:
        bench.run(1, room=Room(5, lambda: tmp_path / "files"))
    assert refused.value.code == "flow.drain_too_large"
    assert refused.value.context["bound"] == 5
    assert not isinstance(refused.value, FlowFailed)


def test_steps_that_read_a_step_twice_do_not_double_its_partitions(child: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a drain of ten such steps has thousands of tasks, of which each has a row or none."""
    flow = Flow("often")
    rows = flow.stream("sale").select("id", v="CAST(v AS INT)")
    for _ in range(4):
        rows = rows.union(rows.derive(v="v + 1"))
    rows.aggregate(by="id", n="count(*)", v="sum(v)").into("often", keys="id")
    bench = Bench(flow, child, streams=STREAMS, tables={"often": ("id INT, n BIGINT NOT NULL, v BIGINT", ["id"])})
    bench.put("sale", 1, *({"id": number, "k": "a", "v": number, "at": None} for number in range(3)))
    monkeypatch.setattr(shared, "_TASKS_MAX", 2)
    partitions: list[int] = []
    close = shared.Shared.close

    def counted(self: shared.Shared) -> None:
        partitions.extend(rdd.getNumPartitions() for rdd in self.rdds)
        close(self)

    monkeypatch.setattr(shared.Shared, "close", counted)
    assert bench.drain(1, reach="sent")[0]["often"] == [{"id": number, "n": 16, "v": 16 * number + 32} for number in range(3)]
    assert max(partitions) == 2 * child.sparkContext.defaultParallelism
