"""Bad input: each a coded error that names the table and the way out, and the transaction is as it was."""

import sqlite3
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import righttime as rt
from righttime.errors import BadSetting, CatalystFull, NotAWarehouse, RightTimeError, WarehouseNewer
from righttime.ledger.database import LEDGER_FILE

NO_TEXT = pa.array([b"\xff\xfe"]).view(pa.string())


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(tmp_path / "w", batch_bytes_max=1000, full_wait_s=0.05, memory_bytes_max=4000, spill_bytes_max=0, bypass_bytes=100_000) as warehouse:
        warehouse.create_table("sale", "sku INT, qty INT NOT NULL, note VARCHAR(5), price DECIMAL(5,2)", keys=["sku"])
        yield warehouse


@pytest.mark.parametrize(
    ("row", "code", "named"),
    [
        ({"sku": 1, "qty": 1, "colour": "red"}, "column.unknown", "colour"),
        ((1, 2), "value.type", "2 values"),
        ("text", "value.type", "a row"),
        (("x", 1, None, None), "value.type", "does not fit INT."),
        ((2**40, 1, None, None), "value.type", "sku"),
        ((1.5, 1, None, None), "value.type", "sku"),
        ((None, 1, None, None), "value.null", "part of the key"),
        ((1, None, None, None), "value.null", "NOT NULL"),
        ((1, 1, "longer than five", None), "value.type", "note"),
        ((1, 1, "\ud800", None), "value.type", "fit VARCHAR(5)."),
        ((1, 1, None, 12345678), "value.type", "fit DECIMAL(5,2)."),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_leaves_nothing_behind(wh: rt.Warehouse, row: Any, code: str, named: str) -> None:
    """By `insert` and by `insert_many`; the rows before it stay in the transaction."""
    with wh.producer() as load:
        load.insert("sale", (7, 7, "ok", None))
        for call, argument in ((load.insert, row), (load.insert_many, [(8, 8, None, None), row])):
            with pytest.raises(RightTimeError) as caught:
                call("sale", argument)
            assert caught.value.code == code
            assert named in str(caught.value)
            assert "sale" in str(caught.value)
        load.commit()
    assert wh.read("sale", columns=["sku"]).rows() == [(7,)]


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("INT", 1.5),
        ("INT", Decimal("1")),
        ("INT", True),
        ("BIGINT", 2**63),
        ("DOUBLE", True),
        ("DOUBLE", "1"),
        ("FLOAT", 1e300),
        ("BOOLEAN", 1),
        ("STRING", b"x"),
        ("BINARY", "x"),
        ("DATE", datetime(2024, 1, 1, 5)),
        ("DATE", 5),
        ("TIMESTAMP", 5),
        ("TIMESTAMP", date(2024, 1, 1)),
        ("DECIMAL(5,2)", 1.5),
        ("DECIMAL(5,2)", Decimal("1.234")),
        ("ARRAY<INT>", [1.5]),
        ("ARRAY<INT>", "ab"),
        ("MAP<STRING, INT>", {"a": 1.5}),
        ("MAP<STRING, INT>", {None: 1}),
        ("STRUCT<x: INT>", {"x": 1.5}),
        ("STRUCT<x: INT>", {"y": 1}),
    ],
)
def test_no_value_is_cut_to_fit(wh: rt.Warehouse, ddl: str, value: object) -> None:
    """What a type cannot hold exactly is refused, also where Arrow by itself would cut it off."""
    wh.create_table("one", f"v {ddl}")
    with wh.producer() as load:
        for call, argument in ((load.insert, (value,)), (load.insert_many, [(None,), (value,)])):
            with pytest.raises(RightTimeError) as caught:
                call("one", argument)  # type: ignore[arg-type]
            assert caught.value.code == "value.type"


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (pa.table({"sku": [1], "qty": [1], "other": [1]}), "column.unknown"),
        (pa.table({"sku": ["a"], "qty": [1]}), "value.type"),
        (pa.table({"sku": [2**40], "qty": [1]}), "value.type"),
        (pa.table({"sku": [1]}), "value.null"),
        (pa.table({"sku": pa.array([None], pa.int32()), "qty": [1]}), "value.null"),
        (pa.table({"sku": list(range(1000)), "qty": list(range(1000))}), "batch.too_large"),
    ],
)
def test_an_arrow_batch_that_does_not_fit_is_refused(wh: rt.Warehouse, batch: pa.Table, code: str) -> None:
    with wh.producer() as load:
        load.insert_arrow("sale", pa.table({"qty": [1], "SKU": [7]}))
        with pytest.raises(RightTimeError) as caught:
            load.insert_arrow("sale", batch)
        assert caught.value.code == code
        load.commit()
    assert wh.read("sale", columns=["sku"]).rows() == [(7,)]


def test_an_unknown_table_is_named_with_those_there_are(wh: rt.Warehouse) -> None:
    with wh.producer() as load, pytest.raises(rt.UnknownTable, match=r"sales.*sale"):
        load.insert("sales", (1, 1))
    with pytest.raises(rt.UnknownTable):
        wh.read("sales")


def test_a_full_catalyst_refuses_the_commit_and_keeps_the_transaction(wh: rt.Warehouse) -> None:
    """Nothing is stored and nothing may be spilled, so the commit fails; after materializing the same commit succeeds."""
    load = wh.producer()
    refused = 0
    for number in range(400):
        load.insert("sale", (number, 1, None, None))
        try:
            load.commit()
        except CatalystFull as error:
            assert error.retryable
            refused += 1
            wh.materialize()
            load.commit()
    assert refused > 0
    assert sorted(wh.read("sale", columns=["sku"]).rows()) == [(number,) for number in range(400)]


@pytest.mark.parametrize("freshness", ["soon", "", -1, "5 parsecs", float("nan"), True])
def test_an_unparsable_freshness_is_refused(wh: rt.Warehouse, freshness: Any) -> None:
    with pytest.raises(RightTimeError) as caught:
        wh.read("sale", freshness=freshness)
    assert caught.value.code == "freshness.bad"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"durability": "disk"}, "argument.bad"),
        ({"durability": "log", "materialize": True}, "argument.bad"),
    ],
)
def test_an_unknown_durability_is_refused_and_the_rows_stay(wh: rt.Warehouse, options: dict[str, Any], code: str) -> None:
    with wh.producer() as load:
        load.insert("sale", (1, 1, None, None))
        with pytest.raises(RightTimeError) as caught:
            load.commit(**options)
        assert caught.value.code == code
        load.commit()
    assert len(wh.read("sale")) == 1


def test_two_producers_of_one_source_and_odd_names_are_refused(wh: rt.Warehouse) -> None:
    wh.producer(name="till")
    for name in ("till", "", "x" * 500, "till \ud83d"):
        with pytest.raises(RightTimeError) as caught:
            wh.producer(name=name)
        assert caught.value.code == "source.bad"


def test_what_is_no_policy_is_refused(wh: rt.Warehouse) -> None:
    for policy in (rt.OnDemand, object(), "OnDemand"):
        with pytest.raises(RightTimeError) as caught:
            wh.producer(policy=policy)  # type: ignore[arg-type]
        assert caught.value.code == "policy.bad"
    assert wh.status().producers == ()


def test_a_closed_producer_says_so(wh: rt.Warehouse) -> None:
    load = wh.producer()
    load.close()
    for call in (lambda: load.insert("sale", (1, 1, None, None)), load.commit):
        with pytest.raises(RightTimeError) as caught:
            call()
        assert caught.value.code == "producer.closed"


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ("sku INT, SKU INT", {}),
        ("sku NONSENSE", {}),
        ("", {}),
        ("sku INT", {"keys": ["other"]}),
        ("sku INT", {"partition_by": ["sku"]}),
        ("sku INT, tags ARRAY<INT>", {"partition_by": ["tags"]}),
    ],
)
def test_a_table_that_cannot_be_is_refused(wh: rt.Warehouse, columns: str, options: dict[str, Any]) -> None:
    with pytest.raises(RightTimeError) as caught:
        wh.create_table("odd", columns, **options)
    assert caught.value.code == "table.bad"
    assert wh.tables() == ["sale"]


def test_a_name_is_taken_once(wh: rt.Warehouse) -> None:
    wh.create_view("v", "SELECT * FROM sale")
    for name in ("sale", "SALE", "v"):
        with pytest.raises(RightTimeError) as caught:
            wh.create_table(name, "a INT")
        assert caught.value.code == "table.exists"
    with pytest.raises(rt.UnknownTable):
        wh.create_view("w", "SELECT * FROM nowhere")


def test_a_folder_that_is_no_warehouse_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    odd = [tmp_path / name for name in ("a[1]", "a*", "a?", "a%20b", "a{b}", "a\nb")]
    paths: list[str | Path] = [tmp_path, tmp_path / "letter.txt", "https://host/db", "", *odd]
    for path in paths:
        with pytest.raises(NotAWarehouse):
            rt.open(path)
    with pytest.raises(NotAWarehouse):
        rt.open(tmp_path / "new", create=False)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_warehouse_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    rt.open(tmp_path / "w").close()
    with sqlite3.connect(tmp_path / "w" / LEDGER_FILE) as database:
        database.execute("PRAGMA user_version = 999")
    with pytest.raises(WarehouseNewer, match="newer righttime"):
        rt.open(tmp_path / "w")


def test_a_bad_setting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[dict[str, Any]] = [{"segment_rows": 0}, {"no_such": 1}]
    for settings in wrong:
        with pytest.raises(RightTimeError, match=next(iter(settings))) as caught:
            rt.open(tmp_path / "w", **settings)
        assert caught.value.code == "setting.bad"
    monkeypatch.setenv("RIGHTTIME_WAIT_S", "soon")
    with pytest.raises(RightTimeError, match="wait_s"):
        rt.open(tmp_path / "w")


def test_settings_come_from_arguments_then_environment_then_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "righttime.toml").write_text("wait_s = 1.5\nsegment_rows = 11\nqueries_max = 3\n")
    monkeypatch.setenv("RIGHTTIME_SEGMENT_ROWS", "22")
    with rt.open(tmp_path / "w", queries_max=4) as wh:
        settings = wh._engine.settings
        assert (settings.wait_s, settings.segment_rows, settings.queries_max) == (1.5, 22, 4)


@pytest.mark.parametrize("text", ["spark.ui.enabled=true", "", "[1"])
def test_a_setting_of_the_environment_that_is_no_json_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RIGHTTIME_SPARK_CONF", text)
    with pytest.raises(BadSetting, match="JSON") as raised:
        rt.open(tmp_path / "w")
    assert raised.value.context["name"] == "spark_conf"


def test_a_settings_file_that_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "righttime.toml").write_bytes(b"# \xff\nwait_s = 1\n")
    with pytest.raises(BadSetting, match=r"righttime\.toml"):
        rt.open(tmp_path / "w")


def test_an_exact_cut_below_what_is_stored_is_refused(wh: rt.Warehouse) -> None:
    with wh.producer() as load:
        load.insert("sale", (1, 1, None, None))
        before = load.commit().commit.time_us
        load.insert("sale", (2, 2, None, None))
        after = load.commit(materialize=True).commit.time_us
    with pytest.raises(rt.AsOfUnavailable, match="sale"):
        wh.read("sale", as_of=before)
    assert len(wh.read("sale", as_of=after)) == 2


def test_a_full_catalyst_never_costs_an_acknowledged_row(tmp_path: Path) -> None:
    """Closing flushes lazily committed rows over the bound, and storing needs no room: both are the way out."""
    with rt.open(tmp_path / "w", memory_bytes_max=1, spill_bytes_max=0, full_wait_s=0.05) as wh:
        wh.create_table("sale", "sku INT")
        lazy = wh.producer(name="lazy", policy=rt.OnDemand())
        lazy.insert("sale", (1,))
        lazy.commit()
        eager = wh.producer(name="eager")
        eager.insert("sale", (2,))
        with pytest.raises(CatalystFull):
            eager.commit()
        eager.commit(materialize=True)
    with rt.open(tmp_path / "w") as wh:
        assert sorted(wh.read("sale").rows()) == [(1,), (2,)]


def test_wrong_kinds_of_arguments_are_coded_errors_too(wh: rt.Warehouse) -> None:
    producer = wh.producer()
    odd: list[tuple[str, Any]] = [
        ("table.unknown", lambda: producer.flush("nope")),
        ("table.unknown", lambda: producer.insert(5, (1,))),  # type: ignore[arg-type]
        ("value.type", lambda: producer.insert_many("sale", 5)),  # type: ignore[arg-type]
        ("value.type", lambda: producer.insert_arrow("sale", [1])),
        ("value.type", lambda: producer.insert_df("sale", [1])),
        ("argument.bad", lambda: producer.commit(batch_id=5)),  # type: ignore[arg-type]
        ("argument.bad", lambda: wh.append([])),  # type: ignore[arg-type]
        ("argument.bad", lambda: wh.append(None)),  # type: ignore[arg-type]
        ("argument.bad", lambda: wh.append("sale")),  # type: ignore[arg-type]
        ("column.unknown", lambda: wh.read("sale", columns="sku")),
        ("source.bad", lambda: wh.producer(name="delta.sale")),
    ]
    for code, call in odd:
        with pytest.raises(RightTimeError) as caught:
            call()
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("ddl", "column"),
    [
        ("BOOLEAN", pa.array([5])),
        ("FLOAT", pa.array([1e300])),
        ("DECIMAL(10,2)", pa.array([1.239])),
        ("DATE", pa.array([datetime(2024, 1, 1, 5)])),
        ("INT", pa.array(["1"])),
        ("INT", pa.array([1.0])),
        ("STRING", pa.array([1])),
        ("TIMESTAMP", pa.array([5])),
        ("ARRAY<INT>", pa.array([[1.5]])),
        ("STRUCT<x: INT>", pa.array([{"x": 1, "y": 2}])),
        ("STRING", NO_TEXT),
        ("STRING", NO_TEXT.cast(pa.dictionary(pa.int8(), pa.string()))),
        ("ARRAY<STRUCT<x: STRING>>", pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([NO_TEXT], ["x"]))),
    ],
)
def test_no_arrow_column_is_cut_to_fit(wh: rt.Warehouse, ddl: str, column: pa.Array) -> None:
    wh.create_table("one", f"v {ddl}")
    with wh.producer() as load, pytest.raises(RightTimeError) as caught:
        load.insert_arrow("one", pa.table({"v": column}))
    assert caught.value.code == "value.type"


def test_a_change_with_bytes_that_are_no_text_is_at_fault(wh: rt.Warehouse) -> None:
    """Nobody could show them later, nor find a row by them; the letter has them escaped, and rows beside are taken."""
    stream = wh.create_stream("line", "id INT, name STRING", keys=["id"], on_bad="dead_letter")
    appended = stream.insert(pa.table({"id": [1, 2], "name": pa.array([b"ok", b"\xff\xfe"]).view(pa.string())}))
    letter = stream.dead_letters().to_pylist()[0]
    assert (appended.rows, letter["code"]) == (1, "change.columns")
    assert r'"name": "\\xff\\xfe"' in letter["change"]


@pytest.mark.parametrize(
    ("ddl", "column"),
    [
        ("BIGINT", pa.array([1], pa.int8())),
        ("INT", pa.array([1], pa.uint64())),
        ("DOUBLE", pa.array([1.5], pa.float32())),
        ("DOUBLE", pa.array([1])),
        ("DECIMAL(10,2)", pa.array([Decimal("1.2")])),
        ("STRING", pa.array(["x"], pa.large_string())),
        ("STRING", pa.array(["x"]).dictionary_encode()),
        ("BINARY", pa.array([b"x"], pa.large_binary())),
        ("TIMESTAMP", pa.array([datetime(2024, 1, 1)], pa.timestamp("ms"))),
        ("ARRAY<BIGINT>", pa.array([[1]], pa.large_list(pa.int32()))),
        ("STRING", pa.nulls(1)),
    ],
)
def test_arrow_columns_are_cast_where_nothing_is_lost(wh: rt.Warehouse, ddl: str, column: pa.Array) -> None:
    wh.create_table("one", f"v {ddl}")
    with wh.producer() as load:
        load.insert_arrow("one", pa.table({"v": column}))
    assert wh.read("one").arrow()["v"].null_count == column.null_count


def test_a_damaged_table_is_an_error_and_never_an_answer(tmp_path: Path) -> None:
    """A data file that is gone or flipped, a log entry that lost its line: coded, and a receipt falls back to the ledger."""
    with rt.open(tmp_path / "w") as wh:
        wh.create_table("sale", "sku INT, note STRING")
        with wh.producer() as load:
            load.insert_many("sale", [(number, f"note {number}") for number in range(5000)])
            load.commit(materialize=True)
        receipt = wh.read("sale").receipt
        (file,) = (tmp_path / "w" / "tables" / "sale").glob("*.parquet")
        content = file.read_bytes()
        file.write_bytes(content[:2000] + bytes([content[2000] ^ 1]) + content[2001:])
        with pytest.raises(RightTimeError) as flipped:
            wh.read("sale")
        file.unlink()
        with pytest.raises(RightTimeError) as gone:
            wh.read("sale")
        assert (flipped.value.code, gone.value.code) == ("warehouse.damaged", "warehouse.damaged")
        assert receipt.verify().method == "ledger"
        file.write_bytes(content)
        assert receipt.verify().method == "rerun"
        with pytest.raises(RightTimeError):
            wh.verify(None)  # type: ignore[arg-type]
    entry = tmp_path / "w" / "tables" / "sale" / "_delta_log" / f"{1:020d}.json"
    entry.write_text("\n".join(line for line in entry.read_text().splitlines() if '"add"' not in line) + "\n")
    with rt.open(tmp_path / "w") as wh, pytest.raises(RightTimeError) as caught:
        wh.read("sale")
    assert caught.value.code == "warehouse.damaged"
