"""Producers that change the same rows at once, beside readers, materializations and collections: every commit is done once, in the order of commits."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import righttime as rt
from righttime.catalyst.producer import OwnRows, Producer
from righttime.changes.conditions import Expression
from righttime.errors import RightTimeError
from tests.support.crash import engine_of
from tests.support.state_tables import asking, seen, stored, tuples

ACCOUNTS = 6
SECONDS = float(os.environ.get("RIGHTTIME_STRESS_S", "1.5"))


@pytest.mark.parametrize("by", ["key", "condition"])
def test_transfers_between_accounts_never_make_or_lose_anything(tmp_path: Path, by: str) -> None:
    """Three producers move amounts between six accounts, in two tables; whoever reads finds the same sum, and at last each transfer counts once."""
    with rt.open(tmp_path / "w", file_grace_s=5, memory_bytes_max=200_000) as wh:
        for name in ("left", "right"):
            wh.create_table(name, "a INT, b INT", keys=["a"])
        with wh.producer(name="setup") as setup:
            setup.insert_many("left", [(number, 0) for number in range(ACCOUNTS)])
            setup.insert_many("right", [(number, 0) for number in range(ACCOUNTS)])
        done: dict[str, int] = {}
        failures: list[BaseException] = []
        until_s = time.monotonic() + SECONDS

        def transfers(name: str, policy: rt.Policy) -> None:
            with wh.producer(name=name, policy=policy) as load:
                count = 0
                while time.monotonic() < until_s:
                    _transfer(load, count, by)
                    try:
                        if count % 7 == 6:
                            load._stage(load._transaction()[0])
                            left, right = _together(wh, own=OwnRows(name, {}))
                            assert -left == right
                        load.commit(materialize=count % 20 == 19)
                        count += 1
                    except RightTimeError as error:
                        assert error.retryable, error
                        if error.code == "commit.not_stored":
                            count += 1
                        else:
                            load.rollback()
                done[name] = count

        def reads() -> None:
            while time.monotonic() < until_s:
                left, right = _together(wh)
                assert -left == right
                assert len(wh.read("left").rows()) == ACCOUNTS

        def care() -> None:
            while time.monotonic() < until_s:
                wh.materialize()
                wh.gc()

        jobs: list[Callable[[], None]] = [lambda: transfers("p", rt.Immediate()), lambda: transfers("q", rt.OnDemand()), lambda: transfers("r", rt.Immediate())]
        _run([*jobs, reads, reads, care], failures)

        assert failures == []
        assert sum(done.values()) > 0  # a busy machine makes few
        for _ in range(2):
            assert (-sum(b for _, b in seen(wh, "left")), sum(b for _, b in seen(wh, "right"))) == (sum(done.values()),) * 2
            wh.materialize()
        assert sum(b for _, b in stored(wh, "right")) == sum(done.values())


def test_of_producers_that_insert_the_same_unique_key_one_wins(tmp_path: Path) -> None:
    """Four producers race for the same hundred keys: each key is there once, and every loser was told."""
    with rt.open(tmp_path / "w") as wh:
        wh.create_table("u", "a INT, b INT", keys=["a"], unique=True)
        won: list[int] = []
        failures: list[BaseException] = []

        def race(place: int) -> None:
            with wh.producer(name=f"p{place}") as load:
                for number in range(100):
                    load.insert("u", (number, place))
                    try:
                        load.commit()
                        won.append(number)
                    except RightTimeError as error:
                        assert error.code == "key.taken", error
                        load.rollback()

        _run([lambda place=place: race(place) for place in range(4)], failures)  # type: ignore[misc]

        assert failures == []
        assert sorted(won) == [a for a, _ in seen(wh, "u")] == list(range(100))


def _transfer(load: Producer, count: int, by: str) -> None:
    for table, account, change in (("left", count % ACCOUNTS, "b - 1"), ("right", (count * 5 + 1) % ACCOUNTS, "b + 1")):
        load.update(table, {"b": Expression(change)}, {"a": account} if by == "key" else f"a >= {account} AND a <= {account}")


def _together(wh: rt.Warehouse, own: OwnRows | None = None) -> tuple[int, int]:
    """Read both tables in one query, without Spark."""
    snapshots = engine_of(wh).snapshots
    with snapshots.take(["left", "right"], asking(), own=own) as snapshot:
        left, right = (tuples(snapshots.rows(snapshot.tables[name])) for name in ("left", "right"))
    return sum(b for _, b in left), sum(b for _, b in right)


def _run(jobs: list[Callable[[], None]], failures: list[BaseException]) -> None:
    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)


def test_what_another_has_not_committed_does_not_keep_a_table_from_being_stored(tmp_path: Path) -> None:
    """An open transaction of one loader has changed a row that another stores directly; the change comes after it, and meets it."""
    with rt.open(tmp_path / "wh") as wh:
        wh.create_table("z", "k INT, v INT", keys=["k"], in_memory=False)
        stored, changing = wh.producer(name="stored"), wh.producer(name="changing")
        stored.insert_many("z", [(1, 1), (2, 2)])
        changing.update("z", set={"v": 5}, where={"k": 1})
        changing._stage(changing._transaction()[0])  # as its own query does
        stored.commit()
        assert sorted(wh.read("z").rows()) == [(1, 1), (2, 2)]
        changing.commit()
        assert sorted(wh.read("z").rows()) == [(1, 5), (2, 2)]
