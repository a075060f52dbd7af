"""What a service keeps on disk: uploads within a bound of their own, and no files of services that were killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

import righttime as rt
from righttime.errors import ServiceBusy
from righttime.flight.access import Tokens
from righttime.flight.server import FlightService
from righttime.flight.warehouse import RemoteWarehouse, open_remote
from tests.support.crash import engine_of

WRITER = "writer-secret-0123456789"


@contextmanager
def served(folder: Path, *, tokens: Tokens | None = None, **settings: Any) -> Iterator[FlightService]:
    with rt.open(folder, stop_wait_s=1, **settings) as warehouse:
        service = FlightService(warehouse, engine_of(warehouse), tokens=tokens)
        try:
            yield service
        finally:
            service.stop()


@contextmanager
def shop(folder: Path, **settings: Any) -> Iterator[RemoteWarehouse]:
    with served(folder, **settings) as service, open_remote(service.address) as wh:
        wh.create_table("sale", "sku INT, qty INT", if_not_exists=True)
        yield wh


def test_a_large_commit_needs_no_room_for_spilled_rows(tmp_path: Path) -> None:
    """With `spill_bytes_max=0` a table spills nothing; a commit that goes past the catalyst still does, as in one process."""
    with shop(tmp_path / "wh", spill_bytes_max=0, bypass_bytes=1000) as wh, wh.producer(name="bulk") as load:
        load.insert_many("sale", [(number, 1) for number in range(5000)])
        load.commit()
        assert len(wh.read("sale")) == 5000


def test_uploads_have_a_bound_of_their_own(tmp_path: Path) -> None:
    """More than `uploads_bytes_max` is refused by that name, and the next commit that fits is taken."""
    with shop(tmp_path / "wh", uploads_bytes_max=20_000, bypass_bytes=1000) as wh, wh.producer(name="bulk") as load:
        load.insert_many("sale", [(number, 1) for number in range(5000)])
        with pytest.raises(ServiceBusy, match="uploads_bytes_max"):
            load.commit()
        load.rollback()
        for _ in range(3):
            load.insert_many("sale", [(number, 1) for number in range(1000)])
            load.commit()
        assert len(wh.read("sale")) == 3000


def test_files_of_a_killed_service_go_with_the_next_start(tmp_path: Path) -> None:
    """Each service writes a file by which clients find out whether they see its folder; a killed one cannot take it away."""
    with shop(tmp_path / "wh"):
        (mine,) = (tmp_path / "wh").glob("nonce-*")
    assert not mine.exists()
    mine.write_text("of a service that was killed")
    with rt.open(tmp_path / "wh") as warehouse:
        services = [FlightService(warehouse, engine_of(warehouse)) for _ in range(2)]
        assert mine not in (left := set((tmp_path / "wh").glob("nonce-*")))
        assert len(left) == 2  # those that are served now need theirs
        for service in services:
            service.stop()
    assert not list((tmp_path / "wh").glob("nonce-*"))


def test_a_token_that_may_not_read_is_told_so_when_it_lists_actions(tmp_path: Path) -> None:
    """As any other refusal it has a code; it is no failure of the service."""
    file = tmp_path / "tokens"
    file.write_text(f"loader write {WRITER}\n")
    file.chmod(0o600)
    with served(tmp_path / "wh", tokens=Tokens.from_file(file)) as service, flight.FlightClient(f"grpc+tcp://127.0.0.1:{service.port}") as client:
        options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {WRITER}".encode())])
        with pytest.raises(flight.FlightUnauthenticatedError, match=r"access\.denied"):
            list(client.list_actions(options))
