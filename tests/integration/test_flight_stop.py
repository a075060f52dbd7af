"""A polite stop beside readers: a query that has begun gets its rows and its receipt, and rows that are being sent count as work."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import righttime as rt
from righttime.errors import LeaseExpired, ServiceUnreachable
from righttime.flight.frames import write_frame
from righttime.flight.held import HeldTable
from righttime.flight.server import FlightService
from righttime.flight.warehouse import RemoteWarehouse, open_remote
from righttime.query.contract import Contract
from tests.support.crash import engine_of
from tests.support.waits import until

CONTRACT = Contract(0, 10.0, "error", None)


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[FlightService]:
    with rt.open(folder, **settings) as warehouse:
        warehouse.create_table("sale", "sku BIGINT, qty BIGINT", if_not_exists=True)
        service = FlightService(warehouse, engine_of(warehouse))
        try:
            yield service
        finally:
            service.stop()


def load(wh: RemoteWarehouse, rows: int) -> None:
    with wh.producer(name="till") as producer:
        producer.insert_arrow("sale", pa.table({"sku": pa.array(range(rows), pa.int64()), "qty": pa.array([1] * rows, pa.int64())}))
        producer.commit()


def test_a_query_that_has_begun_is_finished_before_the_service_ends(tmp_path: Path) -> None:
    """Between taking a snapshot and the receipt a client may compute for long without a call; the stop waits for it, and not longer than it takes."""
    with serving(tmp_path / "wh", stop_wait_s=60) as service, open_remote(service.address, reconnect_s=0.2) as wh:
        load(wh, 3)
        snapshots = wh._consumer._snapshots
        with snapshots.take(["sale"], CONTRACT) as snapshot:
            stopping = threading.Thread(target=service.stop)
            stopping.start()
            until(lambda: service.desk.stopping)
            with pytest.raises(ServiceUnreachable, match="stopping"):
                wh.read("sale")
            assert snapshots.rows(snapshot.tables["sale"]).num_rows == 3
            assert stopping.is_alive()
            assert snapshots.issue(snapshot, query="TABLE sale", parameters=(), rows=3, digest="0" * 64).rows == 3
        stopping.join(timeout=30)
        assert not stopping.is_alive()


def test_a_query_that_does_not_end_is_let_go_after_stop_wait_s(tmp_path: Path) -> None:
    """Its client is told that its rows are not held any more."""
    with serving(tmp_path / "wh", stop_wait_s=0.3) as service, open_remote(service.address, reconnect_s=0.2) as wh:
        snapshots = wh._consumer._snapshots
        with pytest.raises((LeaseExpired, ServiceUnreachable)), snapshots.take(["sale"], CONTRACT) as snapshot:
            service.stop()
            snapshots.rows(snapshot.tables["sale"])


def test_rows_that_are_being_sent_are_work_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream at a time: a second one is put off until the first has ended or its reader has gone, and other calls go on."""
    with serving(tmp_path / "wh", calls_max=1, stop_wait_s=1) as service, open_remote(service.address, reconnect_s=0.3) as wh:
        load(wh, 100_000)
        held, snapshots = service.desk.reading.held, wh._consumer._snapshots
        with snapshots.take(["sale"], CONTRACT) as snapshot, monkeypatch.context() as patched:
            batches = HeldTable.batches
            # More than what a connection takes before its reader reads.
            patched.setattr(HeldTable, "batches", lambda *arguments: (batch for _ in range(1000) for batch in batches(*arguments)))
            ticket = flight.Ticket(write_frame({"snapshot": snapshot.snapshot_id, "table": "sale", "places": [0]}).to_pybytes())
            with flight.FlightClient(f"grpc+tcp://127.0.0.1:{service.port}") as other:
                stream = other.do_get(ticket)
                stream.read_chunk()
                with pytest.raises(ServiceUnreachable, match="calls_max"):
                    snapshots.rows(snapshot.tables["sale"])
                assert wh.tables() == ["sale"]
                assert held._streams == 1
                stream.cancel()
            until(lambda: held._streams == 0)
            patched.undo()
            assert snapshots.rows(snapshot.tables["sale"]).num_rows == 100_000
            assert not held.await_finished(0.0)
        assert held.await_finished(5.0)
