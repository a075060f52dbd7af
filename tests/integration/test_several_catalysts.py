"""Several catalysts as one warehouse: who owns what, one cut through all of them, one receipt, and what happens when one of them is gone."""

import hashlib
import inspect
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import righttime as rt
from righttime.catalyst.maintainer import Maintainer
from righttime.catalyst.producer import OwnRows
from righttime.errors import (
    AsOfUnavailable,
    BadMessage,
    BadSource,
    ClocksApart,
    FlowFailed,
    FreshnessUnavailable,
    NameClaimed,
    NotATable,
    NotAWarehouse,
    OperationRefused,
    ReceiptForged,
    ReceiptUnknown,
    RightTimeError,
    ServiceUnreachable,
    TableAmbiguous,
    TableExists,
    UnknownTable,
)
from righttime.flight import group_calls, group_claims, group_members
from righttime.flight import transport as transport_module
from righttime.flight.access import Grant, Tokens
from righttime.flight.group import GroupWarehouse, open_service
from righttime.flight.group_loading import GroupProducer
from righttime.flight.server import FlightService
from righttime.pipeline.spark import SparkOwner
from righttime.query import issue
from righttime.query.contract import Contract
from tests.support.clocks import SteppedClock
from tests.support.crash import engine_of
from tests.support.services import Service
from tests.support.waits import until

NOW = Contract(0, 10.0, "error", None)


def address_of(*services: Any) -> str:
    return "righttime://" + ",".join(f"127.0.0.1:{service.port}" for service in services)


def opened(*services: Any, **options: Any) -> GroupWarehouse:
    warehouse = open_service(address_of(*services), **options)
    assert isinstance(warehouse, GroupWarehouse)
    return warehouse


def shop(wh: GroupWarehouse) -> GroupWarehouse:
    wh.create_table("sale", "sku INT, qty INT", keys=["sku"])
    wh.create_table("product", "sku INT, name STRING", keys=["sku"])
    return wh


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[FlightService, FlightService]]:
    """Two services in this process, which start faster than two of their own."""
    with served(tmp_path / "a", producer_lease_s=1) as first, served(tmp_path / "b", producer_lease_s=1) as second:
        yield first, second


@pytest.fixture
def wh(pair: tuple[FlightService, FlightService]) -> Iterator[GroupWarehouse]:
    with opened(*pair) as warehouse:
        yield shop(warehouse)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[tuple[Service, Service]]:
    with Service(tmp_path / "a", producer_lease_s=1) as first, Service(tmp_path / "b", producer_lease_s=1) as second:
        yield first, second


@pytest.fixture
def far(processes: tuple[Service, Service]) -> Iterator[GroupWarehouse]:
    with opened(*processes, reconnect_s=1) as warehouse:
        yield shop(warehouse)


@contextmanager
def served(folder: Path, *, clock: Any = None, tokens: Tokens | None = None, **options: Any) -> Iterator[FlightService]:
    """A service inside this process."""
    with ExitStack() as ends:
        warehouse = ends.enter_context(rt.open(folder, clock=clock, **options))
        service = FlightService(warehouse, engine_of(warehouse), tokens=tokens)
        ends.callback(service.stop)
        yield service


def counts(wh: GroupWarehouse, *tables: str, contract: Contract = NOW) -> list[int]:
    """Count the rows of tables at one cut, without Spark."""
    snapshots: Any = wh._consumer._snapshots
    with snapshots.take(list(tables), contract) as snapshot:
        return [snapshots.rows(snapshot.tables[table]).num_rows for table in tables]


def owner(wh: GroupWarehouse, table: str) -> str:
    return wh._members.owner(table).name


# -- declarations ----------------------------------------------------------------------------------------------------------


def test_a_group_has_the_methods_of_a_warehouse_and_its_producers_those_of_a_producer() -> None:
    """Same public names, same parameters and defaults: a program changes its address and nothing else."""
    assert _face(GroupWarehouse) == _face(rt.Warehouse)
    assert _face(GroupProducer) == _face(rt.Producer)


def test_tables_go_where_the_fewest_are(wh: GroupWarehouse, pair: tuple[FlightService, FlightService]) -> None:
    """A new table is the business of the catalyst with the fewest; of equals, the first. Each knows only its own."""
    wh.create_table("third", "n INT")
    wh.create_table("fourth", "n INT")
    first, second = (f"127.0.0.1:{service.port}" for service in pair)
    assert {table: owner(wh, table) for table in wh.tables()} == {"sale": first, "product": second, "third": first, "fourth": second}
    with alone_at(pair[0]) as alone:
        assert alone.tables() == ["sale", "third"]
    assert wh.schema("FOURTH").columns.names == ["n"]


def test_a_name_is_given_once_in_the_whole_group(wh: GroupWarehouse) -> None:
    """Tables and views share one space of names, whichever catalyst has them."""
    wh.create_view("both", "SELECT name, qty FROM sale JOIN product USING (sku)")
    for name in ("sale", "product", "both"):
        with pytest.raises(TableExists):
            wh.create_table(name, "n INT")
        with pytest.raises(TableExists):
            wh.create_view(name, "SELECT 1")
    assert wh.create_table("product", "sku INT, name STRING", keys=["sku"], if_not_exists=True) == wh.schema("product")
    assert list(wh.views()) == ["both"]
    with pytest.raises(UnknownTable):
        wh.create_view("lost", "SELECT * FROM nowhere")
    with pytest.raises(UnknownTable):
        wh.schema("nowhere")


def test_clients_that_declare_the_same_name_at_once_get_one_table(pair: tuple[FlightService, FlightService]) -> None:
    """Whatever the order of the addresses in each client, a name never comes into being twice."""
    with opened(*pair) as one, opened(*reversed(pair)) as two:
        for number in range(5):
            name = f"table{number}"
            threads = [threading.Thread(target=client.create_table, args=(name, "n INT"), kwargs={"if_not_exists": True}) for client in (one, two, one, two)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert owner(one, name) == owner(two, name)
        assert one.tables() == two.tables() == [f"table{number}" for number in range(5)]


@pytest.mark.parametrize("alive", [True, False], ids=["its client waits", "its client has died"])
def test_a_name_is_given_once_though_its_catalyst_takes_longer_than_a_claim_lasts(
    pair: tuple[FlightService, FlightService], alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalyst that stores for long declares later: whoever wants the name meanwhile waits, and finds the table."""
    monkeypatch.setattr(group_calls, "_CLAIM_S", 0.5)
    if not alive:
        monkeypatch.setattr(group_claims, "_renew", lambda *_: None)
    with opened(*pair) as one, opened(*reversed(pair)) as two:
        first = threading.Thread(target=one.create_table, args=("sale", "n INT"))
        second = threading.Thread(target=two.create_table, args=("sale", "n INT"), kwargs={"if_not_exists": True})
        with pair[0]._engine.mover._lock:  # as long as something is stored
            first.start()
            first.join(timeout=0.5)
            assert first.is_alive()
            second.start()
            second.join(timeout=2.5)
        first.join(timeout=30)
        second.join(timeout=30)
        assert owner(one, "sale") == owner(two, "sale") == f"127.0.0.1:{pair[0].port}"
        assert one.tables() == two.tables() == ["sale"]


def test_a_name_is_given_once_though_the_claims_are_forgotten(pair: tuple[FlightService, FlightService], monkeypatch: pytest.MonkeyPatch) -> None:
    """A registrar that is started anew knows no claims, and gives a name to the next who asks: whoever had it before declares nothing."""
    monkeypatch.setattr(group_claims, "_renew", lambda *_: None)  # it has no time to renew the claim
    with opened(*pair) as one, opened(*reversed(pair)) as two:
        registrar = min(one._members.all, key=lambda member: member.warehouse_id).name
        group = next(service for service in pair if registrar == f"127.0.0.1:{service.port}").desk.group
        refused: list[RightTimeError] = []

        def declare(client: GroupWarehouse) -> None:
            try:
                client.create_table("sale", "n INT")
            except RightTimeError as error:
                refused.append(error)

        threads = [threading.Thread(target=declare, args=(client,)) for client in (one, two)]
        with pair[0]._engine.declarations:  # both wait until this catalyst has declared what it is at
            for thread in threads:
                group._claims.clear()
                thread.start()
                until(lambda: group._claims)
        for thread in threads:
            thread.join(timeout=30)
        assert [error.code for error in refused] == ["name.claimed"]
        assert one.tables() == two.tables() == ["sale"]


def test_what_was_declared_while_a_claim_was_forgotten_is_seen(wh: GroupWarehouse, pair: tuple[FlightService, FlightService]) -> None:
    """A claim is taken again if nobody else has it; somebody may have had it, and have given the name elsewhere, after we looked."""
    registrar = min(wh._members.all, key=lambda member: member.warehouse_id).name
    group = next(service for service in pair if registrar == f"127.0.0.1:{service.port}").desk.group
    look, looks = wh._members.need_all, []

    def need_all() -> None:
        look()
        looks.append(list(group._claims))
        if looks == [[], ["basket"]]:
            group._claims.clear()
            with alone_at(pair[1]) as alone:
                alone.create_table("basket", "n INT")

    wh._members.need_all = need_all  # type: ignore[method-assign]
    with pytest.raises(TableExists):
        wh.create_table("basket", "n INT")
    assert looks == [[], ["basket"], ["basket"]]
    wh._members.need_all = look  # type: ignore[method-assign]
    assert wh.tables() == ["basket", "product", "sale"]


def test_a_name_that_another_client_is_declaring_is_no_table_yet(wh: GroupWarehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has waited long enough is told why; the name may be free in a moment, whether or not the table may exist."""
    monkeypatch.setattr(group_calls, "_CLAIM_ROUNDS_MAX", 1)
    monkeypatch.setattr(group_calls, "_CLAIM_ROUND_S", 0.05)
    with group_claims.claimed(wh._members, "basket"):
        for if_not_exists in (False, True):
            with pytest.raises(NameClaimed, match="basket") as raised:
                wh.create_table("basket", "n INT", if_not_exists=if_not_exists)
            assert raised.value.retryable
    wh.create_table("basket", "n INT")


def test_a_name_at_two_catalysts_is_an_error_that_names_both(pair: tuple[FlightService, FlightService]) -> None:
    """A table that two catalysts have would have two contents."""
    for service in pair:
        with alone_at(service) as alone:
            alone.create_table("twice", "n INT")
    with pytest.raises(TableAmbiguous) as raised:
        opened(*pair)
    assert (raised.value.context["first"], raised.value.context["second"]) == tuple(f"127.0.0.1:{service.port}" for service in pair)


@pytest.mark.parametrize("text", ["{a},{a}", "127.0.0.1:{port},localhost:{port}", "{a},", ",{a}", "{a},other/path", "{a},x@y:1"])
def test_an_address_names_each_catalyst_once(pair: tuple[FlightService, FlightService], text: str) -> None:
    """Twice the same, an empty one, a path or a secret in the address are refused before anything else."""
    one = f"127.0.0.1:{pair[0].port}"
    with pytest.raises(NotAWarehouse):
        open_service("righttime://" + text.format(a=one, port=pair[0].port))


# -- loading ---------------------------------------------------------------------------------------------------------------


def test_a_transaction_is_at_one_catalyst(wh: GroupWarehouse) -> None:
    """The second catalyst is refused at the insert; what was inserted before is still there and can be committed."""
    with wh.producer(name="till") as load:
        load.insert("sale", (1, 2))
        refused: list[Callable[[], None]] = [
            lambda: load.insert("product", (1, "tea")),
            lambda: load.insert_many("product", [(1, "tea")]),
            lambda: load.delete("product", {"sku": 1}),
            lambda: load.upsert("product", {"sku": 1, "name": "tea"}),
        ]
        for attempt in refused:
            with pytest.raises(OperationRefused, match="commit it or roll it back first"):
                attempt()
        load.insert("sale", (2, 2))
        load.commit()
        load.insert("product", (1, "tea"))
        with pytest.raises(OperationRefused):
            load.insert("sale", (3, 3))
        load.rollback()
        load.insert("sale", (3, 3))
    assert sorted(wh.read("sale").rows()) == [(1, 2), (2, 2), (3, 3)]
    assert wh.read("product").rows() == []


def test_changes_go_to_the_owner(wh: GroupWarehouse) -> None:
    """Updates, deletes and upserts, one by one and in bulk, at both catalysts."""
    with wh.producer(name="till") as load:
        load.insert_many("sale", [(number, 0) for number in range(10)])
        load.update("sale", {"qty": 1}, "sku < ?", parameters=[5])
        load.delete_many("sale", [{"sku": 9}])
        load.commit()
        load.upsert_many("product", [{"sku": 1, "name": "tea"}, {"sku": 2, "name": "milk"}])
        load.commit(materialize=True)
        load.update_many("product", [{"sku": 1, "name": "green tea"}])
        load.delete("product", {"sku": 2})
    assert sum(qty for _, qty in wh.read("sale").rows()) == 5 and len(wh.read("sale")) == 9
    assert wh.read("product").rows() == [(1, "green tea")]


def test_a_batch_is_committed_once(wh: GroupWarehouse) -> None:
    """A batch id counts at the owner of the transaction's tables."""
    with wh.producer(name="till") as load:
        for _ in range(2):
            load.insert("sale", (1, 1))
            sale = load.commit(batch_id="one")
            load.insert("product", (1, "tea"))
            product = load.commit(batch_id="one")
    assert (sale.replayed, product.replayed, len(wh.read("sale")), len(wh.read("product"))) == (True, True, 1, 1)


def test_a_source_has_one_producer_in_the_whole_group(wh: GroupWarehouse) -> None:
    """A name is taken everywhere while it is open; names that look like source@host:port are kept for receipts."""
    with wh.producer(name="till"), pytest.raises(BadSource):
        wh.producer(name="till")
    with wh.producer() as one, wh.producer() as two:
        for load in (one, two):
            load.insert("sale", (1, 1))
            load.commit()
            load.insert("product", (1, "tea"))
            load.commit()
    assert len(wh.read("product")) == 2
    with pytest.raises(BadSource):
        wh.producer(name="till@elsewhere:8815")


# -- the clock -------------------------------------------------------------------------------------------------------------


def test_what_one_loader_commits_one_after_the_other_has_times_in_that_order(tmp_path: Path) -> None:
    """Though the clocks of two machines are twenty seconds apart: a catalyst is told what was seen elsewhere."""
    clocks = [SteppedClock(now_s=1e9 + 20), SteppedClock(now_s=1e9)]
    with served(tmp_path / "a", clock=clocks[0]) as first, served(tmp_path / "b", clock=clocks[1]) as second, opened(first, second) as wh:
        wh.create_table("ahead", "n INT")
        wh.create_table("behind", "n INT")
        times = []
        with wh.producer(name="loader") as load, wh.producer(name="other", policy=rt.OnDemand()) as lazy:
            for number in range(10):
                for producer, table in ((load, "ahead"), (lazy, "behind"), (load, "behind"), (lazy, "ahead")):
                    producer.insert(table, (number,))
                    times.append(producer.commit().commit.time_us)
            assert times == sorted(set(times))
            for place, time_us in enumerate(times):
                assert sum(counts(wh, "ahead", "behind", contract=Contract(0, 5.0, "error", time_us))) == place + 1


def test_an_answer_holds_what_was_committed_where_the_clock_is_ahead(tmp_path: Path) -> None:
    """Now is the newest time of all catalysts: whatever was acknowledged anywhere is inside, also for a client that has seen nothing yet."""
    clocks = [SteppedClock(now_s=1e9), SteppedClock(now_s=1e9 + 20)]
    with served(tmp_path / "a", clock=clocks[0]) as first, served(tmp_path / "b", clock=clocks[1]) as second, opened(first, second) as wh:
        wh.create_table("behind", "n INT")
        wh.create_table("ahead", "n INT")
        with alone_at(second) as alone, alone.producer(name="loader") as load:
            load.insert("ahead", (1,))
            load.commit()
        assert counts(wh, "behind", "ahead") == [0, 1]


def test_clocks_that_are_too_far_apart_are_named(tmp_path: Path) -> None:
    """One wrong clock must not set all others to another century; what was inserted stays."""
    clocks = [SteppedClock(now_s=2e9), SteppedClock(now_s=1e9)]
    with served(tmp_path / "a", clock=clocks[0]) as first, served(tmp_path / "b", clock=clocks[1]) as second, opened(first, second) as wh:
        wh.create_table("ahead", "n INT")
        wh.create_table("behind", "n INT")
        with wh.producer(name="loader") as load:
            load.insert("ahead", (1,))
            load.commit()
            load.insert("behind", (1,))
            with pytest.raises(ClocksApart):
                load.commit()
            assert load.in_transaction
            load.rollback()
        with pytest.raises(ClocksApart):
            counts(wh, "ahead", "behind")
        assert counts(wh, "ahead") == [1]


def test_a_commit_in_doubt_is_before_what_follows_once_its_catalyst_answers_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is not known while its catalyst cannot be reached; that it is in doubt is not forgotten for that, and nobody has to wait for it."""
    monkeypatch.setattr(group_members, "_PAUSE_TIMES", 0.0)
    clocks = [SteppedClock(now_s=1e9 + 5), SteppedClock(now_s=1e9)]
    with served(tmp_path / "a", clock=clocks[0]) as first, served(tmp_path / "b", clock=clocks[1]) as second, opened(first, second, reconnect_s=0.1) as wh:
        wh.create_table("ahead", "n INT")
        wh.create_table("behind", "n INT")
        transport = wh._members.all[0].transport
        attempt = transport._attempt

        def lost(action: str, frame: Any, timeout_s: float) -> Any:
            if action == "session.commit":
                attempt(action, frame, timeout_s)
            raise transport_module._Cut("the test says so")

        with wh.producer(name="loader") as load:
            load.insert("ahead", (1,))
            transport._attempt = lost  # type: ignore[method-assign]
            with pytest.raises(RightTimeError):
                load.commit()
            load.rollback()
            load.insert("behind", (1,))
            load.commit()
            transport._attempt = attempt  # type: ignore[method-assign]
            load.insert("behind", (2,))
            behind = load.commit().commit.time_us
            assert behind > first._engine.catalyst.head.source("loader").last.time_us


@pytest.mark.parametrize("answered", [False, True])
def test_a_commit_that_ctrl_c_left_in_doubt_is_before_what_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: bool) -> None:
    """It came before the answer, or after it and before anybody had looked at it: the commit is made, and what is loaded elsewhere then is later."""
    with (
        served(tmp_path / "a", clock=SteppedClock(now_s=1e9 + 1)) as first,
        served(tmp_path / "b", clock=SteppedClock(now_s=1e9)) as second,
        opened(first, second) as wh,
    ):
        wh.create_table("ahead", "n INT")
        wh.create_table("behind", "n INT")
        transport = next(member for member in wh._members.all if "ahead" in member.tables).transport
        attempt = transport._attempt

        def interrupted(action: str, frame: Any, timeout_s: float) -> Any:
            answer = attempt(action, frame, timeout_s)
            if action == "session.commit":
                raise KeyboardInterrupt
            return answer

        def interrupted_after(*_: Any) -> None:
            raise KeyboardInterrupt

        with wh.producer(name="loader") as load:
            assert isinstance(load, GroupProducer)
            load.insert("ahead", (1,))
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(*((load._clock, "note", interrupted_after) if answered else (transport, "_attempt", interrupted)))
                load.commit()
            load.rollback()
            load.insert("behind", (1,))
            behind = load.commit().commit.time_us
        ahead = first._engine.catalyst.head.source("loader").last
        assert ahead.number == 1 and behind > ahead.time_us


def test_who_may_only_read_asks_a_group_whose_clocks_differ(tmp_path: Path) -> None:
    """A reader sets no clock ahead. It need not, where its question may be as old as the clocks are apart; else it is told what keeps it."""
    clocks = [SteppedClock(now_s=1e9), SteppedClock(now_s=1e9 + 3)]
    secrets = {scope: scope[0] * 40 for scope in ("read", "write")}
    tokens = Tokens([(hashlib.sha256(secret.encode()).digest(), Grant(scope, frozenset({"read", scope}))) for scope, secret in secrets.items()])
    with (
        served(tmp_path / "a", clock=clocks[0], tokens=tokens) as first,
        served(tmp_path / "b", clock=clocks[1], tokens=tokens) as second,
        opened(first, second, token=secrets["write"]) as wh,
        opened(first, second, token=secrets["read"]) as reader,
    ):
        wh.create_table("behind", "n INT")
        wh.create_table("ahead", "n INT")
        minute = Contract(60_000_000, 1.0, "error", None)
        snapshots: Any = reader._consumer._snapshots
        with snapshots.take(["behind", "ahead"], minute) as snapshot:
            receipt = snapshots.issue(snapshot, query="SELECT 1", parameters=(), rows=1, digest="d")
        assert receipt.given_s is not None and 3 <= receipt.given_s < 60
        with pytest.raises(ClocksApart, match=r"3\.0 s behind .* may only read.* freshness"):
            counts(reader, "behind", "ahead")
        assert counts(wh, "behind", "ahead") == [0, 0]
        assert counts(reader, "behind", "ahead") == [0, 0]  # the clock is there by now, and stays


def test_a_time_that_was_promised_holds_after_a_crash(tmp_path: Path) -> None:
    """A catalyst whose clock is behind was told a later time and dies: its next commit is above that time all the same."""
    clocks = [SteppedClock(now_s=1e9 + 20), SteppedClock(now_s=1e9)]
    with served(tmp_path / "a", clock=clocks[0]) as first, served(tmp_path / "b", clock=clocks[1]) as second, opened(first, second) as wh:
        wh.create_table("ahead", "n INT")
        wh.create_table("behind", "n INT")
        snapshots: Any = wh._consumer._snapshots
        with snapshots.take(["ahead", "behind"], NOW) as snapshot:
            promised_us = snapshot.cut.time_us
        shutil.copytree(tmp_path / "b", tmp_path / "crashed")
    with served(tmp_path / "crashed", clock=SteppedClock(now_s=1e9)) as again, alone_at(again) as alone, alone.producer(name="later") as load:
        load.insert("behind", (1,))
        assert load.commit().commit.time_us > promised_us


# -- queries ---------------------------------------------------------------------------------------------------------------


def test_a_query_joins_tables_of_all_catalysts(wh: GroupWarehouse, spark_owner: SparkOwner) -> None:
    """In the client's Spark, through a view, with hot and stored rows, changed ones too; a producer sees its own rows."""
    spark_owner.session()
    wh.create_view("both", "SELECT name, qty FROM sale JOIN product USING (sku)")
    with wh.producer(name="till") as load:
        load.insert_many("sale", [(number, number) for number in range(100)])
        load.commit(materialize=True)
        load.insert_many("product", [(number, f"p{number}") for number in range(100)])
        load.commit()
        load.update("sale", {"qty": 0}, "sku >= 50")
        load.commit()
        answer = wh.sql("SELECT count(*), sum(qty) FROM both WHERE name <> ?", parameters=["p1"])
        assert answer.rows() == [(99, sum(range(50)) - 1)]
        load.insert("sale", (7, 1000))
        assert load.sql("SELECT sum(qty) FROM both WHERE name = 'p7'").rows() == [(1007,)]
        assert wh.sql("SELECT sum(qty) FROM both WHERE name = 'p7'").rows() == [(7,)]
        load.rollback()
        load.insert_df("product", wh.spark.range(3).selectExpr("cast(1000 + id AS INT) sku", "'frame' AS name"))
        load.commit()
    assert wh.sql("SELECT count(*) FROM product LEFT ANTI JOIN sale USING (sku)").rows() == [(3,)]
    assert wh.sql("SELECT 1").rows() == [(1,)]
    assert wh.sql("SELECT count(*) FROM sale").receipt.verify().method == "rerun"
    with pytest.raises(UnknownTable):
        wh.sql("SELECT * FROM sale JOIN nowhere USING (sku)")
    assert wh.status().queries == 0


def test_pep_249_works_over_a_group(pair: tuple[FlightService, FlightService], spark_owner: SparkOwner) -> None:
    """An existing program changes the address it connects to."""
    spark_owner.session()
    with opened(*pair) as wh:
        wh.create_table("sale", "sku INT, qty INT", keys=["sku"])
        wh.create_table("product", "sku INT, name STRING", keys=["sku"])
        with rt.connect(cast(rt.Warehouse, wh)) as connection:
            connection.cursor().execute("INSERT INTO sale VALUES (?, ?)", (1, 5))
    with rt.connect(address_of(*pair)) as connection:
        cursor = connection.cursor()
        cursor.execute("INSERT INTO product VALUES (1, 'tea')")
        connection.commit()
        cursor.execute("SELECT name, qty FROM sale JOIN product USING (sku)")
        assert cursor.fetchall() == [("tea", 5)]


@pytest.mark.parametrize("late", [0, 1], ids=["the first is late", "the second is late"])
@pytest.mark.parametrize("action", ["group.clock", "group.take"])
@pytest.mark.parametrize("policy", [rt.Immediate(), rt.OnDemand()], ids=repr)
def test_commits_while_a_cut_is_taken_are_all_outside_or_all_before_the_next(wh: GroupWarehouse, action: str, late: int, policy: rt.Policy) -> None:
    """Whichever catalyst is slow, and whichever question it is slow to answer: here, then there, again and again, is never seen there and not here."""
    with wh.producer(name="loader", policy=policy) as load:

        def alternate(rounds: int) -> None:
            for _ in range(rounds):
                load.insert("sale", (1, 1))
                load.commit()
                load.insert("product", (1, "x"))
                load.commit()

        alternate(2)
        with before_each(wh, action, at=late, work=lambda: alternate(3)) as interrupted:
            sales, products = counts(wh, "sale", "product")
        assert interrupted and sales - products in (0, 1) and products >= 2
        assert counts(wh, "sale", "product") == [5, 5]


@pytest.mark.parametrize("times", [1, 5])
def test_rows_that_are_stored_while_a_cut_is_taken_make_it_be_taken_again(wh: GroupWarehouse, times: int) -> None:
    """A catalyst that stored rows from beyond the cut cannot show it any more; the next cut has priority over storing, and nobody tries for ever."""
    with wh.producer(name="loader") as load:
        left = [times]

        def store() -> None:
            if left[0]:
                left[0] -= 1
                load.insert("product", (1, "x"))
                load.commit(materialize=True)

        with before_each(wh, "group.take", at=1, work=store) as interrupted:
            if times < 5:
                assert counts(wh, "sale", "product") == [0, times]
            else:
                with pytest.raises(FreshnessUnavailable, match="stored 5 times"):
                    counts(wh, "sale", "product")
        assert len(interrupted) == min(times + 1, 5)
    assert wh.status().queries == 0


@contextmanager
def before_each(wh: GroupWarehouse, action: str, *, at: int, work: Callable[[], None]) -> Iterator[list[str]]:
    """Do some work each time before a catalyst is asked something, while all others have answered already or are being asked."""
    transport, working = wh._members.all[at].transport, threading.Lock()
    seen: list[str] = []
    sent = transport.call

    def call(asked: str, *arguments: Any, **options: Any) -> Any:
        if asked == action and working.acquire(blocking=False):  # not for the questions that the work itself asks
            seen.append(asked)
            try:
                work()
            finally:
                working.release()
        return sent(asked, *arguments, **options)

    transport.call = call  # type: ignore[method-assign, assignment]
    try:
        yield seen
    finally:
        transport.call = sent  # type: ignore[method-assign]


@pytest.mark.parametrize("policy", [rt.Immediate(), rt.OnDemand()], ids=repr)
def test_every_answer_is_one_cut(far: GroupWarehouse, processes: tuple[Service, Service], policy: rt.Policy) -> None:
    """A loader commits n here, then n there, while both catalysts store: no answer has the second without the first, and none misses what was
    acknowledged before it was asked."""
    done, begun, acknowledged = threading.Event(), threading.Event(), [0]
    failures: list[BaseException] = []

    def load() -> None:
        try:
            with opened(*processes) as mine, mine.producer(name="loader", policy=policy) as producer:
                number = 0
                while not done.is_set():
                    number += 1
                    for table in ("sale", "product"):
                        producer.insert(table, (number, number) if table == "sale" else (number, "x"))
                        producer.commit(durability="log" if number % 5 == 0 else None)
                    acknowledged[0] = number
                    begun.set()
        except BaseException as error:
            failures.append(error)

    def store() -> None:
        try:
            with opened(*processes) as mine:
                while not done.wait(timeout=0.05):
                    mine.materialize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=load), threading.Thread(target=store)]
    for thread in threads:
        thread.start()
    seen = 0
    try:
        assert begun.wait(timeout=60)
        for _ in range(25):
            before = acknowledged[0]
            sales, products = counts(far, "sale", "product")
            assert sales - products in (0, 1), (sales, products)
            assert products >= max(before, seen)
            seen = products
    finally:
        done.set()
        for thread in threads:
            thread.join(timeout=60)
    assert not failures
    assert seen > 0
    assert counts(far, "sale", "product") == [acknowledged[0]] * 2


@given(order=st.lists(st.tuples(st.sampled_from(["sale", "product"]), st.booleans(), st.integers(0, 3)), min_size=1, max_size=12), data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_cut_at_any_time_holds_what_was_committed_until_then(far: GroupWarehouse, order: list[tuple[str, bool, int]], data: st.DataObject) -> None:
    """Random commits at two catalysts, eager and lazy ones: the cut at each commit's time is exactly the list up to it."""
    start = counts(far, "sale", "product")
    made: list[tuple[int, str, int]] = []
    with far.producer(name="eager") as eager, far.producer(name="lazy", policy=rt.OnDemand()) as lazy:
        for table, late, rows in order:
            producer = lazy if late else eager
            producer.insert_many(table, [(0, 0) if table == "sale" else (0, "x")] * rows)
            made.append((producer.commit().commit.time_us, table, rows))
        assert [time_us for time_us, _, _ in made] == sorted({time_us for time_us, _, _ in made})
        for _ in range(3):
            time_us = data.draw(st.sampled_from(made))[0] - data.draw(st.integers(0, 1))
            expected = [
                begun + sum(rows for at_us, table, rows in made if table == name and at_us <= time_us)
                for name, begun in zip(("sale", "product"), start, strict=True)
            ]
            assert counts(far, "sale", "product", contract=Contract(0, 5.0, "error", time_us)) == expected
        assert counts(far, "sale", "product") == [start[0] + _made(made, "sale"), start[1] + _made(made, "product")]


def _made(made: list[tuple[int, str, int]], name: str) -> int:
    return sum(rows for _, table, rows in made if table == name)


def test_an_answer_may_be_as_old_as_allowed_and_is_fresher_where_that_is_free(wh: GroupWarehouse) -> None:
    """A lazy producer is asked only for what the contract needs; eager commits are there at once."""
    with wh.producer(name="lazy", policy=rt.OnDemand()) as lazy, wh.producer(name="eager") as eager:
        lazy.insert("sale", (1, 1))
        lazy.commit()
        hour = Contract(3_600_000_000, 5.0, "error", None)
        assert counts(wh, "sale", "product", contract=hour) == [0, 0]
        assert counts(wh, "sale", "product") == [1, 0]
        eager.insert("product", (1, "tea"))
        eager.commit()
        lazy.flush()
        assert counts(wh, "sale", "product", contract=hour) == [1, 1]


def maintained(service: FlightService, table: str, monkeypatch: pytest.MonkeyPatch) -> Maintainer:
    """A flow that has a table, as the catalyst knows it; nobody runs it."""
    engine = service._engine
    monkeypatch.setattr(engine.snapshots, "stream_cuts", lambda tables, accuracy: ())
    with engine.catalyst.lock:
        flow = engine.catalyst.maintain("flow.sales", (table,))
        flow.advance(engine.catalyst.authority.read_us())
    return flow


def test_a_stream_of_a_member_is_no_table_of_the_group(wh: GroupWarehouse, pair: tuple[FlightService, FlightService]) -> None:
    """Whichever catalyst has it."""
    pair[1]._engine.flows.feed.streams.create("visit", "id INT")
    for use in (lambda: wh.sql("SELECT * FROM sale, visit"), lambda: wh.read("visit"), lambda: wh.schema("visit")):
        with pytest.raises(NotATable, match="'visit' is a stream"):
            use()


@pytest.mark.parametrize("tables", [["sale"], ["sale", "product"]], ids=["at one catalyst", "at two"])
def test_a_table_of_a_flow_is_read_as_it_is_if_that_is_fresh_enough(
    wh: GroupWarehouse, pair: tuple[FlightService, FlightService], tables: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at one catalyst: a state that is there is shared, no job is waited for; who wants what is newer is told that the flow stands still."""
    catalyst, flow = pair[0]._engine.catalyst, maintained(pair[0], "sale", monkeypatch)
    with catalyst.lock:
        flow.trouble = "the flow is stopped"
        flow.change(catalyst.authority.next_us())
    assert counts(wh, *tables, contract=Contract(3_600_000_000, 1.0, "error", None)) == [0] * len(tables)
    with pytest.raises(FreshnessUnavailable, match="the flow is stopped"):
        counts(wh, *tables, contract=Contract(0, 1.0, "error", None))
    with catalyst.lock:
        flow.failure = FlowFailed(flow="sales", reason="the well is dry")
    with pytest.raises(FlowFailed, match="'sales' has stopped: the well is dry") as failed:
        counts(wh, *tables, contract=Contract(0, 1.0, "error", None))
    assert (failed.value.code, failed.value.retryable) == ("flow.failed", False)


def test_a_late_answer_over_a_flow_is_one_cut_through_all(
    wh: GroupWarehouse, pair: tuple[FlightService, FlightService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flow that stands still shows its target as it was before the change that it has not taken; so do the tables of the other catalyst."""
    catalyst, flow = pair[0]._engine.catalyst, maintained(pair[0], "sale", monkeypatch)
    with wh.producer(name="loader") as load:
        load.insert("product", (1, "before"))
        with catalyst.lock:
            catalyst.authority.observe(load.commit().commit.time_us)
            flow.trouble = "the flow is stopped"
            change_us = catalyst.authority.next_us()
            flow.change(change_us)
        with pair[1]._engine.catalyst.lock:
            pair[1]._engine.catalyst.authority.observe(change_us)
        load.insert("product", (2, "after"))
        load.commit()
    assert counts(wh, "sale", "product", contract=Contract(0, 1.0, "answer", None)) == [0, 1]
    with pytest.raises(FreshnessUnavailable, match="the flow is stopped"):
        counts(wh, "sale", "product", contract=Contract(0, 1.0, "error", None))


@pytest.mark.parametrize("freshness_us", [0, 3_600_000_000])
def test_a_cut_inside_a_job_of_a_flow_is_chosen_again_after_it(
    wh: GroupWarehouse, pair: tuple[FlightService, FlightService], freshness_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What costs the lazy producer of one catalyst nothing is inside the last job of another's flow, where no cut can be."""
    catalyst, flow = pair[0]._engine.catalyst, maintained(pair[0], "sale", monkeypatch)
    with wh.producer(name="lazy", policy=rt.OnDemand()) as lazy:
        times = []
        for number in range(2):
            lazy.insert("product", (number, "tea"))
            times.append(lazy.commit().commit.time_us)
            if number == 0:
                lazy.flush()
        with catalyst.lock:
            catalyst.authority.observe(times[1])
            flow.publish(times[0] - 1, catalyst.authority.next_us())
        assert counts(wh, "sale", "product", contract=Contract(freshness_us, 2.0, "error", None)) == [0, 2]


def test_a_cut_that_nobody_can_make_any_more_is_refused(wh: GroupWarehouse) -> None:
    """Stored rows carry no time: an older cut that a user names is unavailable, at whichever catalyst it fails; nothing stays held."""
    with wh.producer(name="till") as load:
        load.insert("sale", (1, 1))
        early_us = load.commit().commit.time_us
        load.insert("product", (1, "tea"))
        load.commit(materialize=True)
    assert counts(wh, "sale", "product") == [1, 1]
    with pytest.raises(AsOfUnavailable):
        counts(wh, "sale", "product", contract=Contract(0, 5.0, "error", early_us))
    assert wh.status().queries == 0


def test_a_silent_lazy_producer_is_waited_for_and_then_named(wh: GroupWarehouse, spark_owner: SparkOwner) -> None:
    """At either catalyst, the query gets the time-out of its contract; or the late answer, and the receipt says so."""
    spark_owner.session()
    with wh.producer(name="lazy", policy=rt.OnDemand()) as lazy:
        lazy.insert("product", (1, "tea"))
        lazy.commit()
        with lazy._producers[wh._members.owner("product")]._archive_lock:  # it answers nobody now
            with pytest.raises(FreshnessUnavailable, match="lazy"):
                wh.sql("SELECT * FROM sale JOIN product USING (sku)", wait="300ms")
            late = wh.sql("SELECT (SELECT count(*) FROM sale) + (SELECT count(*) FROM product)", wait="300ms", on_late="answer")
        assert late.rows() == [(0,)]
        assert late.receipt.late and late.receipt.given_s is not None and late.receipt.given_s > 0
        assert late.receipt.verify()
    assert wh.status().queries == 0


@pytest.mark.parametrize("held_at", [0, 1], ids=["at the first", "at the second"])
def test_a_late_answer_is_one_cut_through_all(pair: tuple[FlightService, FlightService], held_at: int) -> None:
    """Where operations keep one catalyst from showing more than the silent producer has delivered, the others show no more either, as in one warehouse."""
    with opened(*pair) as wh, wh.producer(name="live") as live, wh.producer(name="lazy", policy=rt.OnDemand()) as lazy:
        for name in ("sale", "product"):
            wh.create_table(name, "sku INT, qty INT", keys=["sku"])
        here, there = ("sale", "product") if held_at == 0 else ("product", "sale")
        live.insert(here, (1, 0))
        live.commit()
        lazy.insert(here, (100, 0))
        held_us = lazy.commit().commit.time_us
        with lazy._producers[wh._members.owner(here)]._archive_lock:  # it answers nobody now
            live.insert(here, (2, 0))
            live.commit()
            live.update(here, {"qty": 1}, {"sku": 1})
            live.commit()
            live.insert(there, (2, 0))
            live.commit()
            late = Contract(0, 0.3, "answer", None)
            snapshots: Any = wh._consumer._snapshots
            with snapshots.take(["sale", "product"], late) as snapshot:
                assert [snapshots.rows(snapshot.tables[name]).to_pylist() for name in (here, there)] == [[{"sku": 1, "qty": 0}], []]
                receipt = snapshots.issue(snapshot, query="SELECT 1", parameters=(), rows=1, digest="d")
            assert receipt.late and receipt.cut_us == held_us - 1 and receipt.given_s > 0
            assert wh.verify(receipt)
            with pytest.raises(FreshnessUnavailable):  # a producer reads on from its newest commit, which is later
                own_rows(wh, live, ["sale", "product"], late)
            wh.materialize(there)
            with pytest.raises(FreshnessUnavailable, match="lazy"):  # what is stored there cannot be cut any more
                counts(wh, "sale", "product", contract=late)
        assert counts(wh, here, there) == [3, 1]
        assert wh.status().queries == 0


def test_a_late_source_is_cut_at_one_time_wherever_it_loads(wh: GroupWarehouse) -> None:
    """Its second commit, at another catalyst, is there; the first is not: a late answer has neither."""
    with wh.producer(name="lazy", policy=rt.OnDemand()) as lazy, wh.producer(name="live") as live:
        lazy.insert("product", (1, "tea"))
        lazy.commit()
        with lazy._producers[wh._members.owner("product")]._archive_lock:
            lazy.insert("sale", (1, 1))
            lazy.commit()
            lazy.flush("sale")
            live.insert("sale", (2, 2))
            live.commit()
            assert counts(wh, "sale", "product", contract=Contract(0, 0.3, "answer", None)) == [0, 0]
        assert counts(wh, "sale", "product") == [2, 1]


def own_rows(wh: GroupWarehouse, load: GroupProducer, tables: list[str], contract: Contract) -> Any:
    """Count the rows of tables in a producer's own query, without Spark."""
    snapshots: Any = wh._consumer._snapshots

    def rows(_query: str, *, own: OwnRows, **_options: Any) -> list[int]:
        with snapshots.take(tables, contract, own=own) as snapshot:
            return [snapshots.rows(snapshot.tables[table]).num_rows for table in tables]

    load._own_query = rows
    return load.sql("SELECT 1")


@pytest.mark.parametrize("name", ["till", None], ids=["named", "named by each catalyst"])
def test_a_loader_sees_what_it_has_committed_wherever_it_loads_now(wh: GroupWarehouse, name: str | None) -> None:
    """However stale its query may be: its commit at one catalyst, and another after it elsewhere, which is where the producer is."""
    with wh.producer(name="lazy", policy=rt.OnDemand()) as lazy, wh.producer(name=name) as load:
        lazy.insert("product", (100, "milk"))
        lazy.commit()
        load.insert("product", (1, "tea"))
        load.commit()
        load.insert("sale", (1, 1))
        load.commit()
        hour = Contract(3_600_000_000, 5.0, "error", None)
        assert own_rows(wh, load, ["product"], hour) == [2]


# -- receipts --------------------------------------------------------------------------------------------------------------


def test_a_receipt_names_the_tables_and_sources_of_all(wh: GroupWarehouse, pair: tuple[FlightService, FlightService], spark_owner: SparkOwner) -> None:
    """One receipt, sealed by the first catalyst; sources of the others are source@host:port; each catalyst checks its part."""
    spark_owner.session()
    with wh.producer(name="till") as load:
        load.insert("sale", (1, 2))
        load.commit()
        load.insert("product", (1, "tea"))
        load.commit()
    answer = wh.sql("SELECT name, qty FROM sale JOIN product USING (sku)", freshness="5s")
    receipt = answer.receipt
    assert [table.name for table in receipt.tables] == ["sale", "product"]
    assert [cut.source for cut in receipt.cut] == ["till", f"till@127.0.0.1:{pair[1].port}"]
    assert receipt.asked_s == 5.0 and receipt.given_s is not None and receipt.given_s < 5.0
    assert receipt.verify() and "all 2 catalysts agree" in receipt.verify().detail
    wh.materialize()
    assert wh.verify(receipt.to_json())
    assert wh.receipt(receipt.receipt_id[:10]) == receipt
    assert [one.receipt_id for one in wh.receipts()] == [receipt.receipt_id]
    older = wh.read("product").receipt
    newer = [wh.sql("SELECT count(*) FROM sale, product").receipt for _ in range(2)]
    assert wh.receipts(limit=4) == [*reversed(newer), older, receipt]
    assert wh.receipts(limit=1) == [newer[-1]]
    with pytest.raises(ReceiptUnknown):
        wh.receipt("0" * 32)
    with opened(*reversed(pair)) as other:
        assert other.verify(receipt)
        assert other.receipt(receipt.receipt_id) == receipt


def test_an_ambiguous_beginning_of_a_receipt_is_refused(wh: GroupWarehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one catalyst has one that fits and another has two, or cannot be asked: the first that is found may not be the one that was meant."""
    ids = {"product": ["abc2", "abc3"], "sale": ["abc1", "abd1"]}
    made = issue.receipt_of

    def beginning(start: str) -> Callable[..., rt.Receipt]:
        return lambda *facts, **more: replace(made(*facts, **more), receipt_id=start.ljust(32, "0"))

    for table, starts in ids.items():
        for start in starts:
            with monkeypatch.context() as patched:
                patched.setattr(issue, "receipt_of", beginning(start))
                wh._members.owner(table).warehouse.read(table)
    with pytest.raises(ReceiptUnknown, match="fits"):
        wh.receipt("abc")
    for start in ("abc1", "abc2", "abc3", "abd"):
        assert wh.receipt(start).receipt_id.startswith(start)

    def gone(*_arguments: Any, **_options: Any) -> Any:
        raise ServiceUnreachable(target="the second", waited_s=0.0, reason="the test says so")

    monkeypatch.setattr(wh._members.all[1].transport, "send", gone)
    with pytest.raises(ServiceUnreachable):
        wh.receipt("abd")
    assert wh.receipt("abd1".ljust(32, "0")).receipt_id.startswith("abd1")


def test_a_changed_receipt_is_refused(wh: GroupWarehouse, spark_owner: SparkOwner) -> None:
    """Any word of it, in the issuer's part or in another's."""
    spark_owner.session()
    receipt = wh.sql("SELECT count(*) FROM sale, product").receipt
    text = receipt.to_json()
    for forged in (text.replace('"rows":1', '"rows":2'), text.replace('"name":"product"', '"name":"sale"'), text.replace(receipt.warehouse_id, "0" * 32)):
        assert forged != text
        with pytest.raises(ReceiptForged):
            wh.verify(forged)


def test_a_part_that_its_catalyst_never_gave_does_not_verify(wh: GroupWarehouse, spark_owner: SparkOwner) -> None:
    """The issuer seals what the client hands over of the others; they do not stand for it if it was changed."""
    spark_owner.session()
    with wh.producer(name="till") as load:
        load.insert("product", (1, "tea"))
        load.commit()
    home = wh._members.all[0]
    sent = home.call

    def lying(action: str, header: Any = None, **options: Any) -> Any:
        if action == "group.whole":
            header["parts"] = [{**part, "receipt": part["receipt"].replace('"number":1', '"number":7')} for part in header["parts"]]
        return sent(action, header, **options)

    home.call = lying  # type: ignore[method-assign]
    receipt = wh.sql("SELECT count(*) FROM sale, product").receipt
    home.call = sent  # type: ignore[method-assign]
    verification = wh.verify(receipt)
    assert not verification and "another part" in verification.detail


def test_a_source_that_looks_like_another_catalysts_is_refused_in_a_receipt(wh: GroupWarehouse, pair: tuple[FlightService, FlightService]) -> None:
    """At the issuer nobody could tell it from a source of another catalyst; at another one the last @ tells."""
    snapshots: Any = wh._consumer._snapshots

    def receipt() -> rt.Receipt:
        with snapshots.take(["sale", "product"], NOW) as snapshot:
            found: rt.Receipt = snapshots.issue(snapshot, query="SELECT 1", parameters=(), rows=1, digest="d")
            return found

    with alone_at(pair[1]) as alone, alone.producer(name="till@east:1") as load:
        load.insert("product", (1, "tea"))
        load.commit()
    assert [cut.source for cut in receipt().cut] == [f"till@east:1@127.0.0.1:{pair[1].port}"]
    assert wh.verify(receipt())
    with alone_at(pair[0]) as alone, alone.producer(name="till@east:1") as load:
        load.insert("sale", (1, 1))
        load.commit()
    with pytest.raises(BadSource, match="till@east:1"):
        receipt()


@pytest.mark.parametrize("table", ["sale", "product"])
def test_a_receipt_names_the_open_transaction_wherever_it_is(wh: GroupWarehouse, pair: tuple[FlightService, FlightService], table: str) -> None:
    """An answer with uncommitted rows of its own producer says so, at the issuer and at any other catalyst, and no ledger stands for it."""
    snapshots: Any = wh._consumer._snapshots

    def own_query(_query: str, *, own: OwnRows, **_options: Any) -> rt.Receipt:
        with snapshots.take(["sale", "product"], NOW, own=own) as snapshot:
            assert snapshots.rows(snapshot.tables[table]).num_rows == 1
            found: rt.Receipt = snapshots.issue(snapshot, query="SELECT 1", parameters=(), rows=1, digest="d")
            return found

    with wh.producer(name="till") as load:
        load._own_query = own_query
        load.insert(table, (1, 1) if table == "sale" else (1, "tea"))
        receipt = load.sql("SELECT 1")
        load.rollback()
    assert receipt.uncommitted == ("till" if table == "sale" else f"till@127.0.0.1:{pair[1].port}")
    verification = wh.verify(receipt)
    assert not verification and "uncommitted rows of till" in verification.detail


def test_a_forgotten_part_is_checked_by_what_is_known(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """A ledger keeps so many receipts; after that a part is compared with the catalyst's sources."""
    spark_owner.session()
    with Service(tmp_path / "a") as first, Service(tmp_path / "b", receipts_max=1) as second, opened(first, second) as wh:
        wh.create_table("sale", "sku INT")
        wh.create_table("product", "sku INT")
        with wh.producer(name="till") as load:
            load.insert("product", (1,))
            load.commit()
        receipt = wh.sql("SELECT count(*) FROM sale, product").receipt
        for _ in range(5):
            wh.read("product")
        verification = wh.verify(receipt)
        assert verification and "forgotten" in verification.detail


# -- catalysts that go -----------------------------------------------------------------------------------------------------


def test_a_catalyst_that_is_killed_is_named_and_the_others_go_on(far: GroupWarehouse, processes: tuple[Service, Service], spark_owner: SparkOwner) -> None:
    """Queries that need it fail with its address, those that do not are answered; after its restart everything acknowledged as durable is there."""
    spark_owner.session()
    load = far.producer(name="till")
    for number in range(3):
        load.insert("sale", (number, 1))
        load.commit(durability="log")
        load.insert("product", (number, "tea"))
        load.commit(durability="log")
    receipt = far.sql("SELECT count(*) FROM sale, product").receipt
    processes[1].kill()
    both = "SELECT count(*) FROM sale JOIN product USING (sku)"
    with pytest.raises(ServiceUnreachable, match=str(processes[1].port)):
        far.sql(both)
    assert far.sql("SELECT count(*) FROM sale").rows() == [(3,)]
    for needs_all in (far.status, far.tables, far.losses, far.materialize, receipt.verify, lambda: far.create_table("more", "n INT")):
        with pytest.raises(ServiceUnreachable, match=str(processes[1].port)):
            needs_all()
    load.insert("sale", (3, 1))
    load.commit(durability="log")
    processes[1].start()
    assert far.sql(both).rows() == [(3,)]
    load.insert("product", (3, "tea"))
    load.commit()
    load.close()
    assert counts(far, "sale", "product") == [4, 4]
    assert receipt.verify()
    assert far.status().queries == 0


def test_answers_stay_one_cut_while_catalysts_are_killed_and_come_back(far: GroupWarehouse, processes: tuple[Service, Service]) -> None:
    """Commits are logged, here and then there; whichever catalyst dies in between, no answer has the second without the first, and none loses one."""
    done, progress, acknowledged = threading.Event(), threading.Condition(), [0]
    failures: list[BaseException] = []

    def await_commits(count: int) -> None:
        wanted = acknowledged[0] + count
        with progress:
            assert progress.wait_for(lambda: acknowledged[0] >= wanted or failures, timeout=60)

    def load() -> None:
        try:
            with opened(*processes) as mine, mine.producer(name="loader") as producer:
                while not done.is_set():
                    for table, row in (("sale", (1, 1)), ("product", (1, "x"))):
                        producer.insert(table, row)
                        producer.commit(durability="log")
                    with progress:
                        acknowledged[0] += 1
                        progress.notify_all()
        except BaseException as error:
            with progress:
                failures.append(error)
                progress.notify_all()

    thread = threading.Thread(target=load)
    thread.start()
    seen = [0, 0]
    try:
        for victim in (1, 0):
            await_commits(2)
            processes[victim].kill()
            with pytest.raises(ServiceUnreachable, match=str(processes[victim].port)):
                counts(far, "sale", "product")
            processes[victim].start()
            for answer in range(10):
                before = acknowledged[0]
                now = counts(far, "sale", "product")
                assert now[0] - now[1] in (0, 1) and now[1] >= before and now >= seen, (now, before, seen)
                seen = now
                if answer == 4:
                    await_commits(2)
    finally:
        done.set()
        thread.join(timeout=60)
    assert not failures
    assert counts(far, "sale", "product") == [acknowledged[0]] * 2
    assert far.losses() == []


def test_a_group_opens_without_those_that_are_down(processes: tuple[Service, Service]) -> None:
    """What is there can be used at once, the rest when it is back; a group of which nobody answers does not open."""
    with opened(*processes) as wh:
        wh.create_table("sale", "sku INT")
        wh.create_table("product", "sku INT")
    processes[0].kill()
    with opened(*processes, reconnect_s=0.2) as wh:
        with wh.producer(name="till") as load:
            load.insert("product", (1,))
            load.commit()
            with pytest.raises(ServiceUnreachable, match=str(processes[0].port)):
                load.insert("sale", (1,))
        assert wh.read("product").rows() == [(1,)]
        with pytest.raises(ServiceUnreachable, match=str(processes[0].port)):
            wh.read("sale")
        processes[0].start()
        assert counts(wh, "sale", "product") == [0, 1]
    for service in processes:
        service.kill()
    with pytest.raises(ServiceUnreachable):
        opened(*processes, reconnect_s=0.2)


def test_what_a_crash_took_at_one_catalyst_is_told_and_its_receipts_fail(
    far: GroupWarehouse, processes: tuple[Service, Service], spark_owner: SparkOwner
) -> None:
    """A commit in memory is lost with its catalyst: losses() names the source and where, and no receipt stands for it any more."""
    spark_owner.session()
    with far.producer(name="till") as load:
        load.insert("product", (1, "tea"))
        load.commit()
        receipt = far.sql("SELECT count(*) FROM sale, product").receipt
        processes[1].kill()
        processes[1].start()
    (loss,) = far.losses()
    assert (loss.source, loss.first, loss.last) == (f"till@127.0.0.1:{processes[1].port}", 1, 1)
    verification = far.verify(receipt)
    assert not verification and "lost" in verification.detail


def test_closing_delivers_what_can_be_delivered_though_one_producer_cannot(
    wh: GroupWarehouse, pair: tuple[FlightService, FlightService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer whose catalyst is gone keeps no other from delivering its lazy commits; what failed is said afterwards."""
    lazy = {table: wh.producer(name=table, policy=rt.OnDemand()) for table in ("product", "sale")}
    for table, row in (("product", (1, "tea")), ("sale", (1, 2))):
        lazy[table].insert(table, row)
        lazy[table].commit()

    def gone(*_arguments: Any, **_options: Any) -> Any:
        raise ServiceUnreachable(target=f"127.0.0.1:{pair[1].port}", waited_s=0.0, reason="the test says so")

    monkeypatch.setattr(wh._members.all[1].transport, "send", gone)
    with pytest.raises(ServiceUnreachable, match=str(pair[1].port)):
        wh.close()
    assert lazy["sale"].closed
    with alone_at(pair[0]) as alone:
        assert alone.read("sale").rows() == [(1, 2)]
        assert [one.source for one in alone.status().producers] == []


def test_a_flush_delivers_what_can_be_delivered_though_one_catalyst_is_gone(wh: GroupWarehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is; what failed is said afterwards, and delivered by the next flush."""
    lazy = wh.producer(name="till", policy=rt.OnDemand())

    def gone(*_arguments: Any, **_options: Any) -> Any:
        raise ServiceUnreachable(target="127.0.0.1", waited_s=0.0, reason="the test says so")

    for number, member in enumerate(wh._members.all):
        for table, row in (("product", (number, "tea")), ("sale", (number, 2))):
            lazy.insert(table, row)
            lazy.commit()
        with monkeypatch.context() as patch:
            patch.setattr(member.transport, "send", gone)
            with pytest.raises(ServiceUnreachable):
                lazy.flush()
        (other,) = [one for one in wh._members.all if one is not member]
        assert [table.rows_hot for table in other.warehouse.status().tables] == [number + 1]
        lazy.flush("product", "sale")
    assert wh.read("product").rows() == [(0, "tea"), (1, "tea")]
    assert wh.read("sale").rows() == [(0, 2), (1, 2)]


# -- messages --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "header"),
    [
        ("group.clock", {"observe": "soon"}),
        ("group.clock", {"observe": 2**80}),
        ("group.clock", {"tables": [1]}),
        ("group.take", {"snapshot": "x" * 32, "tables": [], "observe": None}),
        ("group.part", {"snapshot": 1}),
        ("group.whole", {"parts": [{}]}),
        ("group.whole", {"parts": [{"address": "b:1", "receipt": "{}"}]}),
        ("group.verify", {"receipt": "no"}),
        ("group.view", {"name": "v"}),
        ("group.claim", {"name": 3}),
        ("group.disclaim", {}),
    ],
)
def test_what_is_no_message_of_a_group_is_refused(wh: GroupWarehouse, action: str, header: dict[str, Any]) -> None:
    """A coded error, and the service goes on."""
    with pytest.raises((BadMessage, ReceiptForged)):
        wh._members.all[0].call(action, header)
    assert counts(wh, "sale", "product") == [0, 0]


@contextmanager
def alone_at(service: Any) -> Iterator[Any]:
    with open_service(f"righttime://127.0.0.1:{service.port}") as alone:
        yield alone


def _face(kind: type) -> dict[str, Any]:
    return {name: _signature(inspect.getattr_static(kind, name)) for name in dir(kind) if not name.startswith("_")}


def _signature(member: Any) -> Any:
    if not callable(member):
        return type(member)
    return [(one.name, one.kind, one.default) for one in inspect.signature(member).parameters.values()]
