"""Short stories that end badly, each played by a process of its own.

In: a warehouse folder.
Out: a warehouse as a kill or a full disk left it; an assertion that fails ends the process, and its text reaches the test.
Promise: a full disk is real to every library in the process: the system refuses to let any file grow beyond a limit.
"""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.changes import faults
from righttime.errors import CommitError, RightTimeError
from tests.support.stream_work import feed_streams, streams_of

# Limits that stop, one after the other, every kind of file that a commit writes: log, data, table log, ledger.
LIMITS = (0, 100, 1_000, 4_200, 8_300, 12_500, 16_000, 20_000, 30_000, 50_000)
COLUMNS = "load INT, pad STRING"


def die() -> None:
    """End as if the power of this process had been cut."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Let no file of this process grow beyond `limit` bytes; the last write stops in the middle, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def open_shop(folder: Path, **settings: Any) -> rt.Warehouse:
    warehouse = rt.open(folder, **settings)
    for table in ("sale", "stock"):
        warehouse.create_table(table, COLUMNS, if_not_exists=True)
    return warehouse


def noise(load: int, size: int = 12_000) -> tuple[int, str]:
    """Return a row that no codec makes small."""
    return (load, os.urandom(size).hex())


def loads_of(warehouse: rt.Warehouse, table: str) -> list[int]:
    return sorted(warehouse.read(table).arrow().column("load").to_pylist())


def two_commits_in_memory(folder: Path) -> None:
    till = open_shop(folder).producer(name="till")
    for load in range(2):
        till.insert("sale", (load, ""))
        till.commit()
    die()


def lazy_source_partly_delivered(folder: Path) -> None:
    """Two commits of a lazy source are delivered and become durable with another source's commit; a third is still held back."""
    warehouse = open_shop(folder)
    web, till = warehouse.producer(name="web", policy=rt.OnDemand()), warehouse.producer(name="till")
    for load in range(3):
        web.insert("sale", (load, ""))
        web.commit()
        if load == 1:
            web.flush()
    till.insert("sale", (9, ""))
    faults._armed, faults._arrivals_left = faults.CrashPoint.LEDGER_COMMITTED, 1
    till.commit(durability="log")


def spilled(folder: Path) -> None:
    till = open_shop(folder, memory_bytes_max=500).producer(name="till")
    for load in range(100):
        till.insert("sale", (load, "spilled"))
        till.commit()
    assert [*folder.glob("spill/*")]
    die()


def close_on_full_disk(folder: Path) -> None:
    warehouse = open_shop(folder)
    till = warehouse.producer(name="till")
    till.insert("sale", noise(1))
    till.commit()
    with full_disk(10_000), pytest.raises(RightTimeError):
        warehouse.close()


def materialize_beside_a_lazy_source(folder: Path, *, lazy_durability: str = "memory") -> None:
    """AT-X8: till stores its rows; web has committed two loads that nobody has asked for. Dies where RIGHTTIME_CRASH_AT says."""
    warehouse = open_shop(folder)
    till, web = warehouse.producer(name="till"), warehouse.producer(name="web", policy=rt.OnDemand())
    for load in (1, 2):
        till.insert("sale", (load, ""))
        till.commit()
    for load in (11, 12):
        web.insert("sale", (load, ""))
        web.insert("stock", (load, ""))
        web.commit(durability=lazy_durability)  # type: ignore[arg-type]
    (folder.parent / "ready").touch()
    till.commit(materialize=True)


def commit_on_full_disk(folder: Path, *, durability: str) -> None:
    """For each limit: a commit over two tables fails with a code and leaves nothing, or succeeds; with space again it succeeds."""
    failed = set()
    warehouse = open_shop(folder, file_grace_s=0)
    # Small rows get as far as the ledger before the space ends, large ones not beyond their own file.
    trials = [(limit, size) for limit in LIMITS for size in (20, 12_000)]
    for load, (limit, size) in enumerate(trials):
        with warehouse.producer(name="till") as till:
            for table in ("sale", "stock"):
                till.insert(table, noise(load, size))
            try:
                with full_disk(limit):
                    till.commit(durability=durability, batch_id=f"load-{load}")  # type: ignore[arg-type]
            except CommitError as error:
                failed.add(str(error.context["step"]))
                assert error.code == "commit.failed" and error.retryable, error
                assert loads_of(warehouse, "sale") == loads_of(warehouse, "stock") == [*range(load)]
                assert till.commit(durability=durability, batch_id=f"load-{load}").replayed is False  # type: ignore[arg-type]
        assert loads_of(warehouse, "sale") == loads_of(warehouse, "stock") == [*range(load + 1)]
        warehouse.materialize()  # the log begins anew, so that small rows make a small log
    assert "ledger" in failed and len(failed) > 1, f"only {failed} failed"
    warehouse.gc()
    assert [sum(1 for _ in folder.glob(f"tables/{table}/*.parquet")) for table in ("sale", "stock")] == [len(trials)] * 2
    warehouse.close()


def materialize_on_full_disk(folder: Path) -> None:
    """Rows that could not be stored are served from memory, and stored when there is space again."""
    warehouse = open_shop(folder)
    till = warehouse.producer(name="till")
    for load, limit in enumerate(LIMITS):
        for table in ("sale", "stock"):
            till.insert(table, noise(load))
        till.commit()
        try:
            with full_disk(limit):
                warehouse.materialize()
        except CommitError as error:
            assert error.code == "storing.failed", error
        assert loads_of(warehouse, "sale") == loads_of(warehouse, "stock") == [*range(load + 1)]
    warehouse.materialize()
    assert [table.rows_hot for table in warehouse.status().tables] == [0, 0]
    warehouse.close()


def spill_on_full_disk(folder: Path) -> None:
    """A commit that finds neither memory nor disk fails with a code, and goes through when there is space again."""
    warehouse = open_shop(folder, memory_bytes_max=30_000, full_wait_s=0.05)
    till = warehouse.producer(name="till")
    till.insert("sale", noise(0))
    till.commit()
    till.insert("sale", noise(1))
    with full_disk(5_000), pytest.raises(CommitError):
        till.commit()
    assert loads_of(warehouse, "sale") == [0]
    till.commit()
    assert loads_of(warehouse, "sale") == [0, 1]
    warehouse.close()


def declare_on_full_disk(folder: Path) -> None:
    """A table that could not be declared is not there, and can be declared when there is space again."""
    warehouse = rt.open(folder)
    for number, limit in enumerate(LIMITS):
        try:
            with full_disk(limit):
                warehouse.create_table(f"t{number}", COLUMNS)
        except RightTimeError as error:
            assert error.code == "commit.failed", error
            assert f"t{number}" not in warehouse.tables()
            warehouse.create_table(f"t{number}", COLUMNS)
    warehouse.close()
    with rt.open(folder) as again:
        assert len(again.tables()) == len(LIMITS)


def feed_on_full_disk(folder: Path) -> None:
    """An append over two streams that finds no space fails with a code and leaves nothing; segments that find none cost nothing."""
    failed, expected = 0, list[int]()
    streams = streams_of(folder)
    for number, limit in enumerate([*LIMITS, 200_000] * 2):
        changes = {"line": [{"id": number, "a": number, "b": noise(0, 5_000)[1]}], "purchase": [{"id": number}]}
        try:
            with full_disk(limit):
                streams.append(changes, time_us=number + 1)
            expected.append(number)
        except CommitError as error:
            failed += 1
            assert error.code == "commit.failed", error
        assert [streams.table(name, 0, 10**15).column("id").to_pylist() for name in ("line", "purchase")] == [expected] * 2
    assert 0 < failed < 2 * len(LIMITS) + 2
    streams.close()
    again = streams_of(folder)
    assert [again.table(name, 0, 10**15).column("id").to_pylist() for name in ("line", "purchase")] == [expected] * 2
    again.close()


SCRIPTS: dict[str, Callable[[Path], None]] = {
    "two commits in memory": two_commits_in_memory,
    "lazy source partly delivered": lazy_source_partly_delivered,
    "spilled": spilled,
    "close on full disk": close_on_full_disk,
    "log on full disk": lambda folder: commit_on_full_disk(folder, durability="log"),
    "store on full disk": lambda folder: commit_on_full_disk(folder, durability="warehouse"),
    "materialize on full disk": materialize_on_full_disk,
    "spill on full disk": spill_on_full_disk,
    "declare on full disk": declare_on_full_disk,
    "feed streams": feed_streams,
    "feed on full disk": feed_on_full_disk,
}
