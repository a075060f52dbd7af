"""Programs that change their address and nothing else: open, PEP 249, a warehouse in PostgreSQL behind a service."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import righttime as rt
from righttime.errors import ServiceUnreachable
from righttime.pipeline.spark import SparkOwner
from tests.support.services import Service
from tests.support.warm_python import REPOSITORY

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


LOADER = """
import sys, righttime as rt
from righttime.telemetry import configure
configure("error")
wh = rt.open(sys.argv[1], reconnect_s=float(sys.argv[2]))
for table in sys.argv[3:]:
    load = wh.producer(name="till of " + table, policy=rt.OnDemand())
    load.insert(table, (1, 5))
    print(load.commit().commit.number, flush=True)
"""


def run_loader(address: str, *tables: str, reconnect_s: float = 20, then: str = "") -> "subprocess.Popen[str]":
    """Start a program of its own, as a user does: what happens at the end of a Python is not the same in a fork."""
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    arguments = [sys.executable, "-c", LOADER + then, address, str(reconnect_s), *tables]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_a_program_that_ends_without_closing_delivers_its_lazy_commits(tmp_path: Path) -> None:
    """As in a folder: what was acknowledged is there afterwards, at one service and at several, and the names are free for the next run."""
    with Service(tmp_path / "a") as first, Service(tmp_path / "b") as second:
        group = f"{first.address},{second.address.partition('://')[2]}"
        with rt.open(group) as wh:
            wh.create_table("sale", "sku INT, qty INT")
            wh.create_table("refund", "sku INT, qty INT")
        for address, tables in ((first.address, ["sale"]), (group, ["sale", "refund"]), (group, ["sale", "refund"])):
            with run_loader(address, *tables) as program:
                _, errors = program.communicate(timeout=60)
            assert (program.returncode, errors) == (0, "")
        with rt.open(group) as wh:
            assert (len(wh.read("sale")), len(wh.read("refund"))) == (3, 2)
            assert (wh.status().producers, wh.losses()) == ((), [])


def test_a_program_that_cannot_deliver_ends_all_the_same(tmp_path: Path) -> None:
    """One of two services is gone: what the other is owed is delivered, the rest is named, and the end waits no longer than reconnect_s."""
    with Service(tmp_path / "a") as first, Service(tmp_path / "b") as second:
        group = f"{first.address},{second.address.partition('://')[2]}"
        with rt.open(group) as wh:
            wh.create_table("sale", "sku INT, qty INT")
            wh.create_table("refund", "sku INT, qty INT")
        with run_loader(group, "sale", "refund", reconnect_s=2, then="input()") as program:
            assert program.stdout is not None and [program.stdout.readline() for _ in range(2)] == ["1\n", "1\n"]
            first.kill()
            begun_s = time.monotonic()
            _, errors = program.communicate("go on\n", timeout=60)
        assert time.monotonic() - begun_s < 15
        assert program.returncode == 0
        assert "till of sale" in errors and "till of refund" not in errors
        with second.connect() as wh:
            assert len(wh.read("refund")) == 1


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
