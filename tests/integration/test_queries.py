"""Queries on Spark over pinned files and hot rows: the user's SQL unchanged, each row exactly once, every answer with a receipt."""

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import righttime as rt
from righttime.errors import SqlFailed, SqlRefused, UnknownTable
from righttime.pipeline.spark import SparkOwner
from tests.support.crash import engine_of

pytestmark = pytest.mark.usefixtures("compiled_plans")


@pytest.fixture
def wh(tmp_path: Path, spark_owner: SparkOwner) -> Iterator[rt.Warehouse]:
    spark_owner.session()
    with rt.open(tmp_path / "shop", segment_rows=50) as warehouse:
        warehouse.create_table("sale", "sku INT, qty INT", keys=["sku"])
        warehouse.create_table("product", "sku INT, name STRING")
        yield warehouse


def _load(wh: rt.Warehouse, table: str, rows: Sequence[tuple[object, ...]], *, materialize: bool = False) -> None:
    with wh.producer(name="loader") as load:
        load.insert_many(table, rows)
        load.commit(materialize=materialize)


def test_at_x10_a_query_repeated_around_commits_and_materialization_is_right_each_time(wh: rt.Warehouse) -> None:
    """The same text, queried, after more commits, after materialization, self-joined: the model's answer each time."""
    model: list[tuple[int, int]] = []
    query = "SELECT count(*), sum(qty) FROM sale"
    joined = "SELECT count(*) FROM sale a JOIN sale b ON a.sku = b.sku"
    for round_number in range(6):
        rows = [(round_number * 100 + number, number) for number in range(30)]
        _load(wh, "sale", rows, materialize=round_number % 2 == 1)
        model.extend(rows)
        assert wh.sql(query).rows() == [(len(model), sum(qty for _, qty in model))]
        assert wh.sql(joined).rows() == [(len(model),)]
        if round_number == 3:
            wh.materialize()
            assert wh.sql(query).rows() == [(len(model), sum(qty for _, qty in model))]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT sku FROM sale WHERE qty = (SELECT max(qty) FROM sale)", [(3,)]),
        ("WITH big AS (SELECT * FROM sale WHERE qty > 1) SELECT count(*) FROM big JOIN sale USING (sku)", [(2,)]),
        ("SELECT p.name, s.qty FROM sale s JOIN product p ON p.sku = s.sku ORDER BY s.qty", [("pen", 1), ("ink", 2), ("cap", 3)]),
        ("SELECT sku FROM sale EXCEPT SELECT sku FROM product WHERE name = 'pen' ORDER BY sku", [(2,), (3,)]),
        ("SELECT count(*) FROM sale a, sale b", [(9,)]),
        ("SELECT Sku FROM SALE ORDER BY `sku` LIMIT 1", [(1,)]),
        ("SELECT name FROM product WHERE EXISTS (SELECT 1 FROM sale WHERE sale.sku = product.sku AND qty = 2)", [("ink",)]),
        ("SELECT * FROM (SELECT sku, row_number() OVER (ORDER BY qty DESC) n FROM sale) WHERE n = 1", [(3, 1)]),
        ("SELECT 1 + 1", [(2,)]),
    ],
)
def test_sql_is_the_users_own(wh: rt.Warehouse, query: str, expected: list[tuple[object, ...]]) -> None:
    """Sub-queries, CTEs, joins, set operations and self-joins see one state, half of it stored and half hot."""
    _load(wh, "sale", [(1, 1)], materialize=True)
    _load(wh, "sale", [(2, 2), (3, 3)])
    _load(wh, "product", [(1, "pen"), (2, "ink")], materialize=True)
    _load(wh, "product", [(3, "cap")])

    answer = wh.sql(query)

    assert answer.rows() == expected
    verification = answer.receipt.verify()
    assert verification.ok
    assert verification.method == "rerun"


@pytest.mark.parametrize(
    ("query", "method"),
    [
        ("SELECT sku FROM sale ORDER BY qty LIMIT 1", "ledger"),
        ("SELECT sku FROM sale ORDER BY qty OFFSET 1", "ledger"),
        ("SELECT max_by(sku, qty) AS sku FROM sale", "ledger"),
        ("SELECT sku FROM first_sale", "ledger"),
        ("SELECT min(sku) AS sku FROM sale", "rerun"),
    ],
)
def test_an_answer_that_ties_may_change_is_not_called_wrong(wh: rt.Warehouse, query: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run that gives the same rows proves the answer; if it takes another of two equal rows, the ledger decides. Without ties the answer is wrong."""
    _load(wh, "sale", [(1, 5), (2, 5)])
    wh.create_view("first_sale", "SELECT sku FROM sale ORDER BY qty LIMIT 1")
    answer = wh.sql(query)
    assert answer.receipt.verify().method == "rerun"
    other = pa.table({"sku": pa.array([3 - answer.rows()[0][0]], pa.int32())})
    monkeypatch.setattr(engine_of(wh).consumer, "rerun", lambda *_: other)

    found = answer.receipt.verify()

    assert (found.ok, found.method) == (method == "ledger", method)


def test_views_stand_for_queries_over_tables_and_views(wh: rt.Warehouse) -> None:
    _load(wh, "sale", [(1, 1), (2, 5)])
    wh.create_view("big", "SELECT * FROM sale WHERE qty > 2")
    wh.create_view("big_count", "SELECT count(*) AS n FROM big")

    answer = wh.sql("SELECT n FROM big_count")

    assert answer.rows() == [(1,)]
    assert [table.name for table in answer.receipt.tables] == ["sale"]


def test_views_survive_reopening(tmp_path: Path, spark_owner: SparkOwner) -> None:
    spark_owner.session()
    with rt.open(tmp_path / "w") as wh:
        wh.create_table("sale", "sku INT, qty INT")
        wh.create_view("v", "SELECT sum(qty) AS total FROM sale")
        _load(wh, "sale", [(1, 4)])
    with rt.open(tmp_path / "w") as wh:
        assert wh.sql("SELECT total FROM v").rows() == [(4,)]


def test_parameters_are_bound_and_kept_in_the_receipt(wh: rt.Warehouse) -> None:
    _load(wh, "sale", [(1, 1), (2, 2)])
    answer = wh.sql("SELECT qty FROM sale WHERE sku = ?", parameters=[2])
    assert answer.rows() == [(2,)]
    assert answer.receipt.verify().method == "rerun"


def test_currency_bound_in_the_text_is_the_freshness(wh: rt.Warehouse) -> None:
    _load(wh, "sale", [(1, 1)])
    answer = wh.sql("SELECT count(*) FROM sale CURRENCY BOUND 10 MIN")
    assert answer.receipt.asked_s == 600
    assert answer.receipt.query == "SELECT count(*) FROM sale"


def test_lazy_rows_answer_at_once_when_asked_for(wh: rt.Warehouse) -> None:
    """OnDemand rows stay with the producer until a query needs them; a relaxed query does not move them."""
    with wh.producer(name="web", policy=rt.OnDemand()) as load:
        load.insert("sale", (7, 7))
        load.commit()
        relaxed = wh.sql("SELECT count(*) FROM sale", freshness="1h")
        assert relaxed.rows() == [(0,)]
        assert relaxed.receipt.cut[0].first_outside is not None
        assert wh.status().producers[0].rows_unflushed == 1
        assert wh.sql("SELECT count(*) FROM sale").rows() == [(1,)]
        assert wh.status().producers[0].rows_unflushed == 0


def test_a_producer_reads_its_own_uncommitted_rows_and_nobody_else_does(wh: rt.Warehouse) -> None:
    with wh.producer(name="a") as load:
        load.insert("sale", (1, 1))
        load.commit()
        load.insert("sale", (2, 2))
        assert load.sql("SELECT count(*) FROM sale").rows() == [(2,)]
        assert wh.sql("SELECT count(*) FROM sale").rows() == [(1,)]
        load.insert("sale", (3, 3))
        assert load.sql("SELECT count(*) FROM sale").rows() == [(3,)]
        load.rollback()
        assert load.sql("SELECT count(*) FROM sale").rows() == [(1,)]
        load.insert("sale", (4, 4))
        load.commit()
    assert wh.sql("SELECT sku FROM sale ORDER BY sku").rows() == [(1,), (4,)]


def test_a_rollback_after_an_own_read_takes_out_exactly_the_uncommitted_rows(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """Committed rows are sealed for Spark, uncommitted ones are not sealed with them."""
    spark_owner.session()
    with rt.open(tmp_path / "w", segment_rows=4) as wh:
        wh.create_table("sale", "sku INT")
        load = wh.producer(name="a")
        load.insert_many("sale", [(number,) for number in range(3)])
        load.commit()
        load.insert_many("sale", [(number,) for number in range(100, 103)])
        assert len(load.sql("SELECT sku FROM sale")) == 6
        load.rollback()
        load.insert("sale", (7,))
        load.commit()
        assert sorted(wh.read("sale").rows()) == [(0,), (1,), (2,), (7,)]


def test_a_table_without_memory_table_is_stored_at_commit(wh: rt.Warehouse) -> None:
    wh.create_table("audit", "line STRING", in_memory=False)
    with wh.producer(name="a") as load:
        load.insert("audit", ("x",))
        load.insert("sale", (1, 1))
        assert load.sql("SELECT count(*) FROM audit").rows() == [(1,)]
        assert wh.sql("SELECT count(*) FROM audit").rows() == [(0,)]
        load.commit()
    answer = wh.sql("SELECT (SELECT count(*) FROM audit), (SELECT count(*) FROM sale)")
    assert answer.rows() == [(1, 1)]
    assert {table.name: table.rows_hot for table in answer.receipt.tables} == {"audit": 0, "sale": 1}


def test_dataframes_small_and_large_are_loaded_by_the_executors(tmp_path: Path, spark_owner: SparkOwner) -> None:
    spark = spark_owner.session()
    with rt.open(tmp_path / "w", bypass_bytes=200_000) as wh:
        wh.create_table("sale", "sku INT, qty BIGINT")
        with wh.producer(name="spark") as load:
            load.insert_df("sale", spark.range(10).selectExpr("cast(id AS int) AS sku", "id AS qty"))
            load.commit()
            assert wh.status().tables[0].rows_hot == 10
            load.insert_df("sale", spark.range(200_000).selectExpr("id * 7919 AS qty", "cast(id AS int) AS sku"))
            assert load.sql("SELECT count(*) FROM sale").rows() == [(200_010,)]
            assert wh.read("sale").arrow().num_rows == 10
            load.commit()
            load.insert_df("sale", spark.range(300_000).selectExpr("id * 7919 AS qty", "cast(id AS int) AS sku"))
            load.rollback()
        assert wh.sql("SELECT count(*), sum(qty) FROM sale").rows() == [(200_010, 45 + 7919 * 199_999 * 100_000)]
        assert wh.status().tables[0].rows_stored == 200_010
        assert not list((tmp_path / "w" / "tables" / "sale").glob("*staging*/*"))


def test_all_types_come_back_the_same_hot_and_stored(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """Whatever Spark and `read` return for a type, they return it for hot rows as for stored ones, and they agree with each other."""
    spark_owner.session()
    ddl = (
        "b BOOLEAN, t TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, dec DECIMAL(12,2), str STRING, bin BINARY, day DATE, "
        "ts TIMESTAMP, ntz TIMESTAMP_NTZ, arr ARRAY<INT>, m MAP<STRING, INT>, st STRUCT<x: INT, y: STRING>"
    )
    moment = datetime(2024, 2, 29, 12, 30, 15, 123456)
    full = (
        True,
        -1,
        300,
        70000,
        1 << 40,
        1.5,
        2.25,
        Decimal("12.34"),
        "käse\u2003",
        b"\x00\xff",
        date(1899, 1, 2),
        moment.replace(tzinfo=UTC),
        moment,
        [1, None],
        [("a", 1)],
        {"x": 1, "y": "z"},
    )
    nulls = (None,) * len(full)
    with rt.open(tmp_path / "w") as wh:
        wh.create_table("everything", ddl)
        answers = []
        for materialize in (False, True):
            with wh.producer(name="a") as load:
                load.insert("everything", full)
                load.insert("everything", nulls)
                load.commit()
            if materialize:
                wh.materialize()
            answers.append((wh.sql("TABLE everything"), wh.read("everything")))
        for by_spark, plain in answers:
            assert by_spark.arrow().schema.types == plain.arrow().schema.types
            assert by_spark.receipt.digest == plain.receipt.digest
            assert by_spark.receipt.verify().method == "rerun"
        assert answers[1][0].rows()[:2] == answers[0][0].rows()
        assert answers[0][1].rows()[0][8:11] == full[8:11]


def test_a_receipt_of_sql_that_looks_like_a_read_holds_whatever_is_declared_not_null_within_a_value(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """Spark's answer declares nothing so, and the same text is run again without Spark."""
    spark_owner.session()
    place = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    with rt.open(tmp_path / "w") as wh:
        wh.create_table("shop", pa.schema([pa.field("place", place), pa.field("floors", pa.list_(pa.field("element", pa.int32(), nullable=False)))]))
        _load(wh, "shop", [({"x": 1}, [1, 2]), ({"x": 2}, [])])
        answers = [wh.sql("TABLE shop"), wh.read("shop"), wh.sql("SELECT `place` FROM shop"), wh.read("shop", columns=["place"])]
        found = [answer.receipt.verify() for answer in answers]
        assert [(one.ok, one.method) for one in found] == [(True, "rerun")] * 4
        assert answers[0].receipt.digest == answers[1].receipt.digest


def test_a_sum_of_floats_holds_whatever_order_sources_have(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """Sources read in another order than the answer read them gave another sum, and a right answer was called wrong."""
    spark_owner.session()
    with rt.open(tmp_path / "w") as wh:
        wh.create_table("sale", "price DOUBLE")
        for source, rows in (("b", [(1e16,), (-1e16,)]), ("a", [(1.0,)])):
            with wh.producer(name=source) as load:
                load.insert_many("sale", rows)
                load.commit()
        answer = wh.sql("SELECT sum(price) FROM sale")
        assert answer.rows() == [(1.0,)]
        found = answer.receipt.verify()
        assert (found.ok, found.method) == (True, "rerun")


def test_partitioned_tables_and_spilled_rows_are_read_like_any_other(tmp_path: Path, spark_owner: SparkOwner) -> None:
    spark_owner.session()
    with rt.open(tmp_path / "w", memory_bytes_max=4000, segment_rows=20, bypass_bytes=1_000_000) as wh:
        wh.create_table("sale", "region STRING, qty INT", partition_by=["region"])
        for number in range(40):
            _load(wh, "sale", [("EU" if row % 2 else "us west", number) for row in range(20)])
            if number == 20:
                wh.materialize()
        assert wh.status().tables[0].bytes_spilled > 0
        answer = wh.sql("SELECT region, count(*), sum(qty) FROM sale GROUP BY region ORDER BY region")
        assert answer.rows() == [("EU", 400, 7800), ("us west", 400, 7800)]
        assert answer.receipt.verify().ok


def test_concurrent_queries_and_commits_give_consistent_answers(wh: rt.Warehouse) -> None:
    """Two tables are always committed together, so no answer may ever see them differ."""
    stop = threading.Event()
    failures: list[object] = []

    def load() -> None:
        with wh.producer(name="pairs") as producer:
            for number in range(100_000):
                if stop.wait(timeout=0.05 if number % 20 == 19 else 0):  # or readers hardly get their turn
                    return
                producer.insert("sale", (number, 1))
                producer.insert("product", (number, "x"))
                producer.commit(materialize=number % 40 == 39)

    def ask() -> None:
        try:
            for _ in range(4):
                answer = wh.sql("SELECT (SELECT count(*) FROM sale), (SELECT count(*) FROM product)")
                ((sales, products),) = answer.rows()
                committed = sum(cut.last_inside.number for cut in answer.receipt.cut)  # no source before the first commit
                if sales != products or sales != committed or not answer.receipt.verify():
                    failures.append((sales, products, answer.receipt))
        except Exception as error:
            failures.append(error)

    loader = threading.Thread(target=load)
    readers = [threading.Thread(target=ask) for _ in range(3)]
    loader.start()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    stop.set()
    loader.join()
    assert failures == []


def test_answers_as_dataframe_arrow_and_rows(wh: rt.Warehouse) -> None:
    _load(wh, "sale", [(1, 1), (2, 2)])
    answer = wh.sql("SELECT sku, qty FROM sale ORDER BY sku")
    assert [tuple(row) for row in answer.df.collect()] == answer.rows() == list(answer) == [(1, 1), (2, 2)]
    assert answer.arrow().column_names == ["sku", "qty"]
    assert len(answer) == 2


@pytest.mark.parametrize("query", ["INSERT INTO sale VALUES (1, 1)", "DROP TABLE sale", "SELECT 1; SELECT 2", "SELECT * FROM parquet.`/tmp/x`", ""])
def test_sql_that_writes_is_refused(wh: rt.Warehouse, query: str) -> None:
    with pytest.raises(SqlRefused) as caught:
        wh.sql(query)
    assert caught.value.code == "sql.refused"


def test_an_unknown_table_and_an_unknown_column_are_named(wh: rt.Warehouse) -> None:
    with pytest.raises(UnknownTable, match="product, sale"):
        wh.sql("SELECT * FROM sales")
    with pytest.raises(SqlFailed, match="prize"):
        wh.sql("SELECT prize FROM sale")
    _load(wh, "sale", [(1, 1)])
    with pytest.raises(SqlFailed, match="zero"):
        wh.sql("SELECT 1 / (qty - 1) FROM sale")


def test_a_wrong_number_of_parameters_is_refused(wh: rt.Warehouse) -> None:
    with pytest.raises(SqlRefused, match="placeholders"):
        wh.sql("SELECT * FROM sale WHERE sku = ?")


def test_pep_249_loads_and_reports(wh: rt.Warehouse) -> None:
    """An existing loader changes the line that connects."""
    with rt.connect(wh, policy=rt.OnDemand()) as connection:
        cursor = connection.cursor()
        cursor.executemany("INSERT INTO sale (qty, sku) VALUES (?, ?)", [(1, 10), (2, 20)])
        cursor.execute("INSERT INTO product VALUES (10, 'pen')")
        connection.commit()
        connection.ensure_accuracy("5s", "sale")
        cursor.execute("SELECT s.sku, p.name FROM sale s JOIN product p ON p.sku = s.sku WHERE s.qty < ?", (5,))
        assert cursor.fetchall() == [(10, "pen")]
        assert [column[0] for column in cursor.description or ()] == ["sku", "name"]
        assert cursor.receipt is not None
        assert cursor.receipt.verify()
