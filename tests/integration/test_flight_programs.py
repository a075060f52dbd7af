"""Programs that change their address and nothing else: open, PEP 249, a warehouse in PostgreSQL behind a service."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import righttime as rt
from righttime.errors import ServiceUnreachable
from righttime.pipeline.spark import SparkOwner
from tests.support.services import Service

if TYPE_CHECKING:
    from tests.support.postgres import TempPostgres


def test_open_and_connect_take_the_address_of_a_service(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """A loader and a report of PEP 249 over the network, with update and delete, each seeing its own rows before commit."""
    spark_owner.session()
    with Service(tmp_path / "wh") as service:
        with rt.open(service.address) as wh:
            wh.create_table("sale", "sku INT, qty INT", keys=["sku"])
        with rt.connect(service.address, name="till") as loader:
            cursor = loader.cursor()
            cursor.executemany("INSERT INTO sale VALUES (?, ?)", [(number, 1) for number in range(10)])
            assert cursor.execute("SELECT count(*) FROM sale").fetchall() == [(10,)]
            loader.commit()
            cursor.execute("UPDATE sale SET qty = qty + 1 WHERE sku < ?", [5])
            cursor.execute("DELETE FROM sale WHERE sku = 9")
            loader.commit()
        with rt.connect(service.address) as report:
            cursor = report.cursor().execute("SELECT count(*), sum(qty) FROM sale")
            assert cursor.fetchall() == [(9, 14)]
            assert cursor.receipt is not None and cursor.receipt.verify()


def test_an_address_where_nobody_listens_is_said_to_be_out_of_reach() -> None:
    """Within reconnect_s, and with the way out."""
    with pytest.raises(ServiceUnreachable, match="Start it or correct the address"):
        rt.open("righttime://127.0.0.1:1", reconnect_s=0.3)


def test_a_warehouse_in_postgresql_is_served_like_any_other(tmp_path: Path, postgres: "TempPostgres", spark_owner: SparkOwner) -> None:
    """Stored rows come from the database through the service, hot ones from memory, changes over both."""
    spark_owner.session()
    with Service(tmp_path / "local", target=postgres.url, state_dir=tmp_path / "state", ledger_schema="served") as service:
        with service.connect() as wh:
            wh.create_table("served_sale", "sku INT, qty INT", keys=["sku"])
            with wh.producer(name="till") as load:
                load.insert_many("served_sale", [(number, 0) for number in range(1000)])
                load.commit(materialize=True)
                load.insert_many("served_sale", [(number, 0) for number in range(1000, 1500)])
                load.commit()
                load.delete("served_sale", "sku % 2 = 0")
                load.commit()
            assert sorted(row[0] for row in wh.read("served_sale").rows()) == list(range(1, 1500, 2))
            answer = wh.sql("SELECT count(*), sum(sku) FROM served_sale")
            assert answer.rows() == [(750, sum(range(1, 1500, 2)))]
        assert service.terminate() == 0
        service.start()
        with service.connect() as wh:
            assert len(wh.read("served_sale")) == 750
