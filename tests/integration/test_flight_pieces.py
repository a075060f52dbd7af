"""Stored rows of PostgreSQL over Flight: a piece at a time, and only the columns that are asked for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import righttime as rt
from righttime.errors import LeaseExpired
from righttime.flight.frames import Message
from righttime.flight.held import STORED
from righttime.flight.server import FlightService
from righttime.flight.warehouse import RemoteWarehouse, open_remote
from righttime.query.contract import Contract
from righttime.warehouse import postgres_scan
from righttime.warehouse.postgres_decode import Decoder
from tests.support.crash import engine_of
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_schemas

ROWS = 3000
CONTRACT = Contract(0, 10.0, "error", None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The columns of each piece that PostgreSQL was asked for; a piece is one block."""
    monkeypatch.setattr(postgres_scan, "PIECE_BYTES", 1)
    pieces: list[tuple[str, ...]] = []
    piece = Decoder.piece

    def noted(self: Decoder, *arguments: Any) -> Any:
        pieces.append(self.names)
        return piece(self, *arguments)

    monkeypatch.setattr(Decoder, "piece", noted)
    return pieces


@pytest.fixture
def service(tmp_path: Path, postgres: TempPostgres) -> Iterator[FlightService]:
    with fresh_schemas(postgres) as schemas, rt.open(postgres.url, state_dir=tmp_path / "state", **schemas) as warehouse:
        warehouse.create_table("sale", "sku INT, qty INT, note STRING", keys=["sku"])
        with warehouse.producer(name="till") as load:
            load.insert_many("sale", [(number, number % 7, f"note {number}") for number in range(ROWS)])
            load.commit(materialize=True)
            load.delete("sale", "sku % 10 = 3")
            load.insert("sale", (ROWS, 0, "hot"))
            load.commit()
        serving = FlightService(warehouse, engine_of(warehouse))
        yield serving
        serving.stop()


@pytest.fixture
def wh(service: FlightService) -> Iterator[RemoteWarehouse]:
    with open_remote(service.address) as opened:
        yield opened


EXPECTED = [number for number in range(ROWS) if number % 10 != 3]


def stream_of(service: FlightService, snapshot_id: str, *columns: str) -> Iterator[pa.RecordBatch]:
    """The stored rows of the table as the service sends them."""
    held = service.desk.reading.held.get(snapshot_id)
    assert list(held.tables["sale"].files).index(STORED) == 0
    return held.tables["sale"].batches([0], columns)


def test_the_first_rows_come_before_the_table_is_read(service: FlightService, wh: RemoteWarehouse, asked: list[tuple[str, ...]]) -> None:
    """The service holds a piece, whatever the table's size, and leaves columns that nobody wants where they are; two readers take turns."""
    with wh._consumer._snapshots.take(["sale"], CONTRACT) as snapshot:
        asked.clear()
        skus, notes = stream_of(service, snapshot.snapshot_id, "sku"), stream_of(service, snapshot.snapshot_id, "note", "sku")
        found = next(skus)["sku"].to_pylist()
        assert asked == [("sku",)]
        assert 0 < len(found) < ROWS / 4
        texts = next(notes)
        assert asked == [("sku",), ("note", "sku")]
        assert texts.schema.names == ["note", "sku"]
        for batch in skus:
            found += batch["sku"].to_pylist()
        rows = pa.Table.from_batches([texts, *notes])
    assert found == rows["sku"].to_pylist() == EXPECTED
    assert rows["note"].to_pylist() == [f"note {number}" for number in EXPECTED]
    assert len(asked) > 10


def test_a_client_that_reads_some_columns_gets_no_others(wh: RemoteWarehouse, asked: list[tuple[str, ...]]) -> None:
    """`read(columns=…)` asks the service, and the service PostgreSQL, for these."""
    answer = wh.read("sale", columns=["sku"])
    assert sorted(row[0] for row in answer.rows()) == [*EXPECTED, ROWS]
    assert {names for names in asked if names} == {("sku",)}
    assert answer.receipt.verify()
    assert wh.read("sale", columns=["sku", "qty", "sku"]).arrow().column_names == ["sku", "qty", "sku"]
    assert len(wh.read("sale")) == len(EXPECTED) + 1


def test_a_stream_whose_snapshot_goes_ends_in_an_error(service: FlightService, wh: RemoteWarehouse, asked: list[tuple[str, ...]]) -> None:
    """The transaction is given back in the middle of a stream: whoever gets its connection next must not be read."""
    snapshots = wh._consumer._snapshots
    with snapshots.take(["sale"], CONTRACT) as snapshot:
        header = {"snapshot": snapshot.snapshot_id, "table": "sale", "places": [0], "columns": ["sku"]}
        _, batches = service.desk.reading.rows(Message(header))
        next(batches)
        service.desk.reading.held.release(snapshot.snapshot_id)
        asked.clear()
        with pytest.raises(LeaseExpired):
            list(batches)
        assert asked == []
