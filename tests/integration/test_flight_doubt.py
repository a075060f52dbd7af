"""A lazy commit whose answer never came, and what a rollback makes of it."""

from pathlib import Path

import pytest

import righttime as rt
from righttime.errors import CommitUnknown
from righttime.flight.warehouse import open_remote
from tests.support.proxy import Proxy
from tests.support.services import Service


def test_a_lazy_commit_that_was_made_is_delivered_though_it_was_rolled_back_in_doubt(tmp_path: Path) -> None:
    """The service has announced the commit, so queries wait for its rows: dropping them would hold up every later commit of the producer."""
    with Service(tmp_path / "wh", session_ttl_s=5, snapshot_ttl_s=3, producer_lease_s=1) as service, service.connect() as direct:
        direct.create_table("sale", "sku INT, qty INT", keys=["sku"])
        with Proxy(service.port) as proxy, open_remote(proxy.address, reconnect_s=0.5, call_timeout_s=0.5) as wh:
            load = wh.producer(name="till", policy=rt.OnDemand())
            load.insert("sale", (1, 1))
            load.commit()
            load.insert("sale", (2, 2))
            proxy.swallow_answers()
            with pytest.raises(CommitUnknown):
                load.commit()
            proxy.heal()

            load.rollback()

            load.insert("sale", (3, 3))
            assert load.commit().commit.number == 3
            assert sorted(direct.read("sale", wait="30s").rows()) == [(1, 1), (2, 2), (3, 3)]
            load.close()
        assert direct.losses() == []
