"""Handles of one folder: shared in a process, refused or read-only across processes, closed without loss."""

import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

import righttime as rt
from righttime.errors import (
    AsOfUnavailable,
    BadSetting,
    FreshnessUnavailable,
    FreshnessUnknown,
    ReceiptUnknown,
    ReceiptUnproven,
    WarehouseClosed,
    WarehouseDamaged,
    WarehouseReadOnly,
)
from righttime.ledger.database import LEDGER_FILE
from tests.support.warm_python import WarmPython

_WRITER = textwrap.dedent(
    """
    import sys, righttime as rt
    wh = rt.open(sys.argv[1])
    wh.create_table("sale", "sku INT, qty INT", if_not_exists=True)
    load = wh.producer(name="other")
    load.insert("sale", (1, 1))
    load.commit(durability="log")
    load.insert("sale", (2, 2))
    load.commit()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "store":
            wh.materialize()
            print("stored", flush=True)
    """
)


class _Writer:
    """A process that writes a warehouse until it is told to end."""

    def __init__(self, folder: Path) -> None:
        self._process = WarmPython("-c", _WRITER, folder, listen=True)
        self.expect("ready")

    def expect(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_a_second_writing_process_is_refused_and_a_reader_sees_the_newest_durable_state(tmp_path: Path) -> None:
    """The logged row is durable, the one in memory is not; a reader promises no freshness while the writer lives."""
    writer = _Writer(tmp_path)
    try:
        with pytest.raises(rt.WarehouseLocked, match="read_only=True"):
            rt.open(tmp_path)
        with rt.open(tmp_path, read_only=True) as reader:
            with pytest.raises(FreshnessUnavailable):
                reader.read("sale")
            answer = reader.read("sale", on_late="answer")
            assert answer.rows() == [(1, 1)]
            assert answer.receipt.late
            assert answer.receipt.given_s is None
            assert reader.verify(answer.receipt)
            writer.tell("store")
            writer.expect("stored")
            assert sorted(reader.read("sale", on_late="answer").rows()) == [(1, 1), (2, 2)]
            assert reader.status().tables[0].rows_stored == 2
            assert [(found.source, found.policy, found.elsewhere) for found in reader.status().producers] == [("other", "Immediate()", True)]
            for refused in (reader.producer, reader.materialize, reader.gc, lambda: reader.create_table("x", "a INT")):
                with pytest.raises(WarehouseReadOnly):
                    refused()
    finally:
        writer.kill()
    with rt.open(tmp_path, read_only=True) as reader:
        assert len(reader.read("sale")) == 2
        assert reader.status().producers == ()
    with rt.open(tmp_path) as wh:
        assert len(wh.read("sale")) == 2


def test_a_reader_beside_a_writer_calls_no_cut_exact(tmp_path: Path) -> None:
    """A durable state leaves out what lazy producers had committed before it, so an exact time is as unknown as now."""
    with rt.open(tmp_path) as wh, rt.open(tmp_path, read_only=True) as reader:
        wh.create_table("sale", "sku INT, qty INT")
        lazy, till = wh.producer(name="lazy", policy=rt.OnDemand()), wh.producer(name="till")
        lazy.insert("sale", (1, 1))
        held_back = lazy.commit()
        till.insert("sale", (2, 2))
        logged = till.commit(durability="log")

        with pytest.raises(FreshnessUnknown):
            reader.read("sale", as_of=logged.commit.time_us)
        answer = reader.read("sale", as_of=logged.commit.time_us, on_late="answer")
        assert (answer.rows(), answer.receipt.late, answer.receipt.given_s) == ([(2, 2)], True, None)
        with pytest.raises(AsOfUnavailable):
            reader.read("sale", as_of=held_back.commit.time_us, on_late="answer")
        assert len(wh.read("sale", as_of=logged.commit.time_us)) == 2


def test_a_reader_beside_a_writer_does_not_call_a_receipt_wrong_whose_commits_it_cannot_see(tmp_path: Path) -> None:
    """A check that could not be made is an error of its own; once the writer has made its commits durable, it is made."""
    with rt.open(tmp_path) as wh, rt.open(tmp_path, read_only=True) as reader:
        wh.create_table("sale", "sku INT, qty INT")
        load = wh.producer(name="till")
        load.insert("sale", (1, 1))
        load.commit()
        receipt = wh.read("sale").receipt
        assert wh.verify(receipt).method == "rerun"

        with pytest.raises(ReceiptUnproven, match="till") as raised:
            reader.verify(receipt)
        assert raised.value.retryable

        wh.materialize()
        assert reader.verify(receipt)


_GUEST = """
import os, sys, deltalake, pyarrow.dataset, righttime as rt
os.setgid(65534)
os.setuid(65534)
with rt.open(sys.argv[1], read_only=True) as reader:
    for _ in sys.stdin:
        answer = reader.read("sale", on_late="answer")
        print(sorted(answer.rows()), answer.receipt.late, bool(answer.receipt.verify()), len(reader.receipts()), flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_reader_without_the_right_to_write_reads_every_newer_state() -> None:
    """Somebody else's warehouse is read as it is: without a pin, without a trace of the query, and with what its owner stores later."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)  # other than the folders of the test run
        folder = Path(place) / "shop"
        with rt.open(folder) as wh:
            wh.create_table("sale", "sku INT")
            with wh.producer(name="till") as load:
                load.insert("sale", (1,))
                load.commit(materialize=True)
        with subprocess.Popen([sys.executable, "-c", _GUEST, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as guest:
            assert guest.stdin is not None
            assert guest.stdout is not None

            def said(asks: IO[str] = guest.stdin, answers: IO[str] = guest.stdout) -> str:
                asks.write("read\n")
                asks.flush()
                return answers.readline().strip()

            assert said() == "[(1,)] False True 0"
            with rt.open(folder) as wh, wh.producer(name="till") as load:
                load.insert("sale", (2,))
                load.commit(durability="log")
                assert said() == "[(1,), (2,)] True True 0"
                load.insert("sale", (3,))
                load.commit(materialize=True)
                assert said() == "[(1,), (2,), (3,)] True True 0"
            assert said() == "[(1,), (2,), (3,)] False True 0"


def test_files_that_go_under_a_reader_without_the_right_to_write_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can pin nothing, so its owner's gc may take what it reads. Then it asks again; nothing has to be restored."""
    with rt.open(tmp_path, file_grace_s=0) as wh:
        wh.create_table("sale", "sku INT, qty INT", keys=["sku"])
        load = wh.producer(name="till")
        load.insert("sale", (1, 1))
        load.commit(materialize=True)
        with monkeypatch.context() as guest:
            guest.setattr(os, "access", lambda path, mode: mode != os.W_OK)
            reader = rt.open(tmp_path, read_only=True)
        with reader, pytest.raises(FreshnessUnavailable, match="right to write"), reader._engine.reading() as parts:
            load.update("sale", {"qty": 2}, {"sku": 1})
            load.commit(materialize=True)
            assert wh.gc()["sale"].files == 1
            parts.consumer.read("sale", on_late="answer")


def test_rows_of_a_killed_writer_that_were_only_in_memory_are_reported_lost(tmp_path: Path) -> None:
    _Writer(tmp_path).kill()
    with rt.open(tmp_path) as wh:
        assert wh.read("sale").rows() == [(1, 1)]
        assert [(loss.source, loss.first, loss.last, loss.rows) for loss in wh.losses()] == [("other", 2, 2, 1)]
        with wh.producer(name="other") as load:
            load.insert("sale", (3, 3))
            assert load.commit().commit.number == 3


def test_handles_of_one_process_share_the_warehouse(tmp_path: Path) -> None:
    first = rt.open(tmp_path)
    first.create_table("sale", "sku INT")
    second = rt.open(tmp_path)
    with pytest.raises(BadSetting, match="other settings"):
        rt.open(tmp_path, segment_rows=7)
    with first.producer() as load:
        load.insert("sale", (1,))
        load.commit()
    first.close()
    first.close()
    assert second.read("sale").rows() == [(1,)]
    with pytest.raises(WarehouseClosed):
        first.read("sale")
    second.close()
    with rt.open(tmp_path) as third:
        assert third.read("sale").rows() == [(1,)]


def test_closing_without_materializing_keeps_lazy_and_memory_rows(tmp_path: Path) -> None:
    with rt.open(tmp_path) as wh:
        wh.create_table("sale", "sku INT")
        load = wh.producer(name="lazy", policy=rt.OnDemand())
        load.insert("sale", (1,))
        load.commit()
        load.insert("sale", (2,))
    with rt.open(tmp_path) as wh:
        assert wh.read("sale").rows() == [(1,)]
        assert wh.losses() == []


def test_a_program_that_ends_without_closing_keeps_what_it_committed(tmp_path: Path) -> None:
    program = _WRITER.replace('print("ready", flush=True)', "sys.exit(0)")
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    with rt.open(tmp_path) as wh:
        assert len(wh.read("sale")) == 2
        assert wh.losses() == []


@pytest.mark.parametrize("ending", ["sys.exit(0)", "raise ValueError", "pass"])
def test_the_end_of_a_program_keeps_what_lazy_producers_have_committed(tmp_path: Path, ending: str) -> None:
    """Neither close nor flush was called; the end of the program does both."""
    program = f"""
import sys, righttime as rt
wh = rt.open(sys.argv[1])
wh.create_table("sale", "sku INT")
load = wh.producer(name="lazy", policy=rt.OnDemand())
load.insert("sale", (1,))
load.commit()
{ending}
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, stderr=subprocess.DEVNULL)
    with rt.open(tmp_path) as wh:
        assert wh.read("sale").rows() == [(1,)]
        assert wh.losses() == []


def test_a_forked_child_that_ends_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    """The child has copies of everything; files, trace and ledger stay the parent's."""
    program = """
import os, sys, righttime as rt
wh = rt.open(sys.argv[1])
wh.create_table("sale", "sku INT")
load = wh.producer(name="till")
load.insert("sale", (1,))
load.commit(durability="log")
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
load.insert("sale", (2,))
load.commit()
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=120)
    with rt.open(tmp_path) as wh:
        assert wh.read("sale").rows() == [(1,)]
        assert [(loss.source, loss.first, loss.last, loss.rows) for loss in wh.losses()] == [("till", 2, 2, 1)]


def test_commits_that_race_with_close_are_kept_or_refused(tmp_path: Path) -> None:
    """An acknowledged commit is there after reopening, whenever the other thread closed."""
    for round_number in range(10):
        folder = tmp_path / str(round_number)
        wh = rt.open(folder)
        wh.create_table("sale", "sku INT")
        acknowledged: list[int] = []

        def work(wh: rt.Warehouse = wh, acknowledged: list[int] = acknowledged) -> None:
            try:
                while True:
                    load = wh.producer()
                    for _ in range(3):
                        load.insert("sale", (len(acknowledged),))
                        load.commit()
                        acknowledged.append(1)
            except rt.RightTimeError:
                return

        worker = threading.Thread(target=work)
        worker.start()
        while not acknowledged:
            worker.join(timeout=0.001)
        wh.close()
        worker.join()
        with rt.open(folder) as again:
            assert len(again.read("sale")) == len(acknowledged)


def test_a_policy_that_raises_after_a_flush_changes_nothing(tmp_path: Path) -> None:
    class Broken:
        def should_flush(self) -> bool:
            return True

        def flushed(self) -> None:
            raise ValueError("always")

    with rt.open(tmp_path) as wh:
        wh.create_table("sale", "sku INT")
        with wh.producer(policy=Broken()) as load:
            load.insert("sale", (1,))
            load.commit()
            load.commit()
        assert wh.read("sale").rows() == [(1,)]


def test_rows_are_taken_as_they_were_when_they_were_inserted(tmp_path: Path) -> None:
    """A list that the caller uses again does not change rows that wait for their commit."""
    with rt.open(tmp_path) as wh:
        wh.create_table("sale", "sku INT, tags ARRAY<STRING>, raw BINARY")
        with wh.producer() as load:
            tags, raw = ["a"], bytearray(b"x")
            load.insert("sale", (1, tags, raw))
            tags[0], raw[0] = "b", 0
            load.insert("sale", (2, tags, raw))
        assert wh.read("sale").rows() == [(1, ["a"], b"x"), (2, ["b"], b"\x00")]


def test_background_materialization_stores_rows_without_being_told(tmp_path: Path) -> None:
    with rt.open(tmp_path, materialize_rows=10) as wh:
        wh.create_table("sale", "sku INT")
        with wh.producer() as load:
            for number in range(100):
                load.insert("sale", (number,))
                load.commit()
        engine = wh._writer("wait")
        with engine.catalyst.lock:
            assert engine.catalyst.space.wait_for(lambda: engine.catalyst.tables["sale"].rows_unstored < 10, timeout=60)
        assert sorted(wh.read("sale").rows()) == [(number,) for number in range(100)]
        assert wh.status().tables[0].rows_stored > 90


def test_timed_materialization_stores_everything_now_and_then(tmp_path: Path) -> None:
    with rt.open(tmp_path, materialize_every_s=0.05) as wh:
        wh.create_table("sale", "sku INT")
        with wh.producer() as load:
            load.insert("sale", (1,))
            load.commit()
        engine = wh._writer("wait")
        with engine.catalyst.lock:
            assert engine.catalyst.space.wait_for(lambda: engine.catalyst.tables["sale"].rows_unstored == 0, timeout=60)
        assert wh.status().tables[0].rows_stored == 1


def test_receipts_are_found_by_the_beginning_of_their_id(tmp_path: Path) -> None:
    with rt.open(tmp_path) as wh:
        wh.create_table("sale", "sku INT")
        receipt = wh.read("sale").receipt
        assert wh.receipt(receipt.receipt_id[:8]) == receipt
        assert wh.receipt(receipt.receipt_id).verify()
        assert wh.receipts()[0] == receipt
        with pytest.raises(ReceiptUnknown):
            wh.receipt("nope")


def test_an_old_receipt_is_found_by_the_beginning_of_its_id_as_it_is_listed(tmp_path: Path) -> None:
    """However many came after it: lists show the beginnings of ids, of all receipts that are kept."""
    with rt.open(tmp_path) as wh:
        wh.create_table("sale", "sku INT")
        first = wh.read("sale").receipt
        ledger = wh._writer("test").ledger
        for number in range(1001):
            ledger.save_receipt(replace(first, receipt_id=uuid.uuid5(uuid.NAMESPACE_OID, str(number)).hex))

        assert wh.receipt(first.receipt_id[:12]) == first


def _pins(folder: Path) -> int:
    with closing(sqlite3.connect(folder / LEDGER_FILE)) as ledger:
        (count,) = ledger.execute("SELECT count(*) FROM pin").fetchone()
    return int(count)


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "raise ValueError"])
def test_a_reader_that_is_not_closed_leaves_neither_a_pin_nor_a_folder_behind(tmp_path: Path, ending: str) -> None:
    """The end of the program closes it. A forked child that ends first takes nothing from it."""
    with rt.open(tmp_path / "shop") as wh:
        wh.create_table("sale", "sku INT")
    program = f"""
import os, sys, righttime as rt
reader = rt.open(sys.argv[1], read_only=True, image_dir=sys.argv[2])
reader.read("sale")
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(len(os.listdir(sys.argv[2])), reader._engine.ledger.pinned_states(now_us=0), flush=True)
{ending}
"""
    run = [sys.executable, "-c", program, str(tmp_path / "shop"), str(tmp_path / "images")]
    ended = subprocess.run(run, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    assert ended.stdout.startswith("1 [")
    assert not ended.stdout.endswith("[]\n")
    assert (_pins(tmp_path / "shop"), list((tmp_path / "images").iterdir())) == (0, [])


def test_a_reader_that_cannot_read_the_newest_state_leaves_no_pin_behind(tmp_path: Path) -> None:
    with rt.open(tmp_path) as wh:
        wh.create_table("sale", "sku INT")
        with wh.producer(name="till") as load:
            load.insert("sale", (1,))
            load.commit(durability="log")
    for path in (tmp_path / "log").iterdir():
        path.unlink()
    with rt.open(tmp_path, read_only=True) as reader:
        with pytest.raises(WarehouseDamaged):
            reader.read("sale")
        assert _pins(tmp_path) == 0
