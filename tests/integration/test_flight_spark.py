"""Queries of a client's own Spark on a service's snapshots: files where they can be read, rows over Flight where they cannot."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.errors import LeaseExpired, ServiceUnreachable, SqlFailed
from righttime.flight import reading
from righttime.flight.warehouse import RemoteWarehouse, open_remote
from righttime.pipeline.spark import SparkOwner
from righttime.query.contract import Contract
from tests.support.proxy import Proxy
from tests.support.services import Service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("flight") / "wh", bypass_bytes=50_000, segment_rows=100, snapshot_ttl_s=3) as running:
        yield running


all_ways = pytest.mark.parametrize("wh", ["files", "streams", "both"], indirect=True)
either_way = pytest.mark.parametrize("wh", ["files", "streams"], indirect=True)


@pytest.fixture
def wh(service: Service, spark_owner: SparkOwner, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteWarehouse]:
    spark_owner.session()
    with service.connect() as warehouse:
        if request.param == "streams":
            monkeypatch.setattr(reading, "_same", lambda place: False)
        elif request.param == "both":
            monkeypatch.setattr(reading, "_same", lambda place: str(service.folder) in place["path"])
        for table in ("sale", "product"):
            warehouse.create_table(table, "sku INT, qty INT, name STRING", keys=["sku"], if_not_exists=True)
        yield warehouse
        with warehouse.producer(name="cleaner") as load:
            load.delete("sale")
            load.delete("product")
            load.commit(materialize=True)


def load(wh: RemoteWarehouse, table: str, rows: list[tuple[int, int, str]], *, materialize: bool = False) -> None:
    with wh.producer(name="loader") as producer:
        producer.insert_many(table, rows)
        producer.commit(materialize=materialize)


@all_ways
def test_stored_and_hot_rows_are_read_once_each_and_joined(wh: RemoteWarehouse) -> None:
    """Files of the warehouse, images of hot rows, a self-join, a view, parameters: as if everything were here."""
    load(wh, "sale", [(number, number % 7, f"n{number}") for number in range(500)], materialize=True)
    load(wh, "sale", [(number, number % 7, f"n{number}") for number in range(500, 800)])
    load(wh, "product", [(number, 0, f"p{number}") for number in range(10)])
    assert wh.sql("SELECT count(*), sum(sku), count(DISTINCT name) FROM sale").rows() == [(800, sum(range(800)), 800)]
    assert wh.sql("SELECT count(*) FROM sale a JOIN sale b USING (sku)").rows() == [(800,)]
    assert wh.sql("SELECT p.name FROM sale s JOIN product p USING (sku) WHERE s.sku = ?", parameters=[3]).rows() == [("p3",)]
    if "seven" not in wh.views():
        wh.create_view("seven", "SELECT qty, count(*) AS n FROM sale GROUP BY qty")
    assert sum(row[1] for row in wh.sql("SELECT * FROM seven").rows()) == 800
    assert wh.sql("SELECT count(*) FROM sale WHERE sku < 0").rows() == [(0,)]


@all_ways
def test_changed_rows_are_read_as_they_are_now(wh: RemoteWarehouse) -> None:
    """Ended versions are left out, in stored files as in images, by Spark and by read()."""
    load(wh, "sale", [(number, 0, "old") for number in range(300)], materialize=True)
    load(wh, "sale", [(number, 0, "hot") for number in range(300, 600)])
    with wh.producer(name="changer") as producer:
        producer.update_many("sale", [{"sku": number, "qty": 1} for number in range(0, 600, 2)])
        producer.delete("sale", "sku % 3 = 0")
        producer.commit()
    expected = [(number, 1 - number % 2, "old" if number < 300 else "hot") for number in range(600) if number % 3]
    assert sorted(wh.read("sale").rows()) == expected
    assert wh.sql("SELECT * FROM sale ORDER BY sku").rows() == expected
    receipt = wh.sql("SELECT count(*) FROM sale").receipt
    assert receipt.verify()
    wh.materialize()
    assert wh.sql("SELECT * FROM sale ORDER BY sku").rows() == expected


@either_way
def test_a_producer_reads_its_own_rows(wh: RemoteWarehouse) -> None:
    """Uncommitted rows, small ones in the catalyst and large ones past it, are seen by their producer and by nobody else."""
    load(wh, "sale", [(1, 1, "a")])
    with wh.producer(name="own") as producer:
        producer.insert("sale", (2, 2, "b"))
        assert producer.sql("SELECT sum(sku) FROM sale").rows() == [(3,)]
        producer.insert_many("product", [(number, 0, "many") for number in range(5000)])
        assert producer.sql("SELECT (SELECT count(*) FROM product) + (SELECT count(*) FROM sale)").rows() == [(5002,)]
        assert wh.sql("SELECT count(*) FROM product").rows() == [(0,)]
        producer.commit()
    assert wh.sql("SELECT (SELECT count(*) FROM product) + (SELECT count(*) FROM sale)").rows() == [(5002,)]


@pytest.mark.parametrize("wh", ["files"], indirect=True)
def test_dataframes_are_loaded_small_and_large(wh: RemoteWarehouse) -> None:
    """insert_df computes here and sends rows; a rollback leaves no file behind."""
    spark = wh.spark
    with wh.producer(name="frames") as producer:
        producer.insert_df("sale", spark.range(10).selectExpr("cast(id AS INT) sku", "1 AS qty", "'few' AS name"))
        producer.commit()
        producer.insert_df("product", spark.range(100_000).selectExpr("cast(id AS INT) sku", "2 AS qty", "uuid() AS name"))
        producer.rollback()
        assert not list(Path(str(wh._staging._folder)).rglob("*.parquet"))
        producer.insert_df("product", spark.range(100_000).selectExpr("cast(id AS INT) sku", "2 AS qty", "uuid() AS name"))
        producer.commit()
        assert not list(Path(str(wh._staging._folder)).rglob("*.parquet"))
    assert wh.sql("SELECT (SELECT count(*) FROM sale), (SELECT sum(qty) FROM product)").rows() == [(10, 200_000)]


@either_way
def test_errors_of_queries_are_the_same(wh: RemoteWarehouse) -> None:
    """What Spark refuses is refused in our words, and the snapshot is let go."""
    with pytest.raises(SqlFailed):
        wh.sql("SELECT sku / 0 FROM (SELECT 1 AS sku FROM sale UNION ALL SELECT 1)").rows()
    with pytest.raises(rt.UnknownTable):
        wh.sql("SELECT * FROM nowhere")
    assert wh.status().queries == 0


def test_a_relation_fails_loudly_once_its_snapshot_is_gone(service: Service, spark_owner: SparkOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that outlives its query gives an error, never other rows."""
    monkeypatch.setattr(reading, "_same", lambda place: False)
    with service.connect() as wh:
        wh.create_table("late", "a INT", if_not_exists=True)
        with wh.producer(name="late") as producer:
            producer.insert("late", (1,))
            producer.commit()
        snapshots = wh._consumer._snapshots
        with pytest.raises(LeaseExpired), snapshots.take(["late"], Contract(0, 1.0, "error", None)) as snapshot:
            frame, _ = snapshots.relation(spark_owner, spark_owner.child(), snapshot.tables["late"])
            assert frame.toArrow().to_pydict() == {"a": [1]}
            snapshots._release(snapshot.snapshot_id)
            with pytest.raises(Exception, match=r"lease\.expired"):
                frame.toArrow()
            snapshots.rows(snapshot.tables["late"])


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], object]], None]:
    """Have something happen once a query has its relations, before Spark reads from them."""

    def between(happens: Callable[[Any], object]) -> None:
        relation = reading.RemoteSnapshots.relation

        def then(self: Any, spark: SparkOwner, child: Any, table: Any) -> Any:
            made = relation(self, spark, child, table)
            happens(table)
            return made

        monkeypatch.setattr(reading.RemoteSnapshots, "relation", then)

    return between


@either_way
def test_a_query_whose_snapshot_goes_while_spark_reads_has_lapsed_and_is_no_bad_sql(
    wh: RemoteWarehouse, service: Service, interrupted: Callable[[Callable[[Any], object]], None]
) -> None:
    """Files that are gone by then, or a service that does not know the snapshot: LeaseExpired, which is worth another try, and not SqlFailed."""
    load(wh, "sale", [(1, 1, "stored")], materialize=True)
    with service.connect() as other:

        def lapse(table: Any) -> None:
            other._transport.call("snapshot.release", {"snapshot": table.snapshot_id})
            with other.producer(name="changer") as producer:
                producer.delete("sale")
                producer.commit(materialize=True)
            other.gc()

        interrupted(lapse)
        with pytest.raises(LeaseExpired) as caught:
            wh.sql("SELECT sum(qty) FROM sale")
    assert caught.value.retryable


@pytest.fixture
def far(service: Service, spark_owner: SparkOwner, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A way to the service that can be cut, for a client that sees none of its files; the table has a part in each of eight files."""
    spark_owner.session()
    monkeypatch.setattr(reading, "_same", lambda place: False)
    monkeypatch.setattr(reading, "_PARTITIONS_MAX", 2)
    with Proxy(service.port, seed=5) as proxy:
        with service.connect() as direct:
            direct.create_table("much", "sku INT, name STRING", if_not_exists=True)
            with direct.producer(name="much") as producer:
                producer.delete("much")
                for part in range(8):
                    producer.insert_many("much", [(number, f"name {number}") for number in range(part * 5000, part * 5000 + 5000)])
                    producer.commit(materialize=True)
        yield proxy


def test_connections_that_break_while_spark_reads_cost_time_and_no_row(far: Proxy) -> None:
    """A stream goes on where it was: each row once, though no connection lives long enough for a whole one."""
    with open_remote(far.address) as wh:
        wh.tables()
        far.misbehave((150_000, 300_000))
        assert wh.sql("SELECT count(*), sum(sku), count(DISTINCT name) FROM much").rows() == [(40_000, sum(range(40_000)), 40_000)]
    assert far.cuts >= 2


def test_a_service_that_spark_does_not_reach_is_said_to_be_out_of_reach(far: Proxy, interrupted: Callable[[Callable[[Any], object]], None]) -> None:
    """It is waited for as long as any other call waits; then it is ServiceUnreachable, and not SqlFailed."""
    with open_remote(far.address, reconnect_s=0.5) as wh:
        interrupted(lambda table: far.cut(refuse=True))
        with pytest.raises(ServiceUnreachable) as caught:
            wh.sql("SELECT count(*) FROM much")
        assert caught.value.context["target"] == far.address
        far.heal()


def test_every_type_streams(service: Service, spark_owner: SparkOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark gets over Flight is what it would read from files."""
    spark_owner.session()
    with service.connect() as wh:
        wh.create_table("kinds", "b BOOLEAN, i BIGINT, f DOUBLE, t STRING, d DATE, ts TIMESTAMP, n TIMESTAMP_NTZ, m DECIMAL(20,4), x BINARY, l ARRAY<INT>")
        moment = datetime(2026, 1, 2, 3, 4, 5, 6)
        row = (True, -(2**63), 0.5, "é", date(2026, 1, 1), moment.replace(tzinfo=UTC), moment, Decimal("1.2345"), b"\0", [1, None])
        with wh.producer(name="kinds") as producer:
            producer.insert_many("kinds", [row, (None,) * len(row)])
            producer.commit(materialize=True)
            producer.insert_many("kinds", [row])
            producer.commit()
        by_files = wh.sql("SELECT * FROM kinds").arrow()
        monkeypatch.setattr(reading, "_same", lambda place: False)
        with service.connect() as far:
            streamed = far.sql("SELECT * FROM kinds").arrow()
        assert streamed.schema == by_files.schema
        assert sorted(map(str, streamed.to_pylist())) == sorted(map(str, by_files.to_pylist()))
