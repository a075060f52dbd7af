"""What may be removed, while others read and store; and who is dead."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.query.contract import Contract

_OWNER = """
import sys, righttime as rt
wh = rt.open(sys.argv[1], image_dir=sys.argv[2])
print(wh._writer("test").images.folder, flush=True)
sys.stdin.read()
"""
_LOSER = """
import os, signal, sys, righttime as rt
wh = rt.open(sys.argv[1])
wh.create_table("sale", "sku INT, qty INT")
load = wh.producer(name="till")
load.insert("sale", (1, 1))
load.commit(durability="log")
load.insert("sale", (2, 1))
load.commit()
print(wh.read("sale", columns=["qty"]).receipt.to_json(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_version_that_is_held_while_another_table_is_collected_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads what is asked for each table anew: it may have been stored and read since the first."""
    with rt.open(tmp_path / "wh") as wh:
        load, engine = wh.producer(name="load"), wh._writer("test")
        for table in ("a", "b"):
            wh.create_table(table, "k INT, v INT", keys=["k"])
            load.insert_many(table, [(number, 0) for number in range(5)])
        load.commit(materialize=True)
        collect, query = engine.store.collect, engine.snapshots.take(["b"], Contract(0, 5.0, "error", None))
        held: list[Any] = []

        def change(value: int) -> None:
            load.update("b", {"v": value}, {"k": value})
            load.commit()
            wh.materialize("b")

        def busy(schema: Any, **options: Any) -> Any:
            if schema.name == "a":
                change(1)
                held.append(query.__enter__())
                change(2)
            return collect(schema, **options)

        monkeypatch.setattr(engine.store, "collect", busy)
        wh.gc()
        assert sorted(engine.snapshots.rows(held[0].tables["b"]).column("v").to_pylist()) == [0, 0, 0, 0, 1]
        query.__exit__(None, None, None)
        monkeypatch.undo()
        assert wh.gc()["b"].files == 1


def test_images_of_a_process_that_lives_stay_though_its_number_is_unknown(tmp_path: Path) -> None:
    """A container that shares the memory and not the process numbers takes everybody else for dead; the lock knows better."""
    images = tmp_path / "images"
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path / "one"), str(images)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        stranger = folder.rename(folder.with_name(f"righttime-{2**22 + 1}-stranger"))
        with rt.open(tmp_path / "two", image_dir=images):
            assert stranger.is_dir()
        owner.kill()
        owner.wait()
    with rt.open(tmp_path / "two", image_dir=images):
        assert not stranger.exists()
        assert [path.name.split("-")[1] for path in images.iterdir()] == [str(os.getpid())]


def test_a_receipt_of_rows_that_a_crash_took_does_not_verify_by_others(tmp_path: Path) -> None:
    """Their ids are not given to rows that come later, nor is the query run again over these."""
    receipt = subprocess.run([sys.executable, "-c", _LOSER, str(tmp_path / "wh")], capture_output=True, text=True).stdout
    with rt.open(tmp_path / "wh") as wh:
        before = wh.verify(receipt)
        with wh.producer(name="till") as load:
            load.insert("sale", (99, 1))
            load.commit()
        after, hot = wh.verify(receipt), wh.read("sale").receipt.tables[0].hot
        assert (before.ok, after.ok, "a crash lost" in after.detail) == (False, False, True)
        assert max(interval.last_id for interval in hot) > 1 << 32


def test_a_file_that_another_writer_marks_rows_in_stays(tmp_path: Path) -> None:
    """Its entry adds the file with a deletion vector and then removes it without one; the version that the ledger knows needs it as it was."""
    with rt.open(tmp_path / "wh") as wh:
        wh.create_table("sale", "sku INT, qty INT")
        with wh.producer(name="till") as load:
            load.insert("sale", (1, 1))
            load.commit(materialize=True)
        engine = wh._writer("test")
        log, version = wh.path / "tables" / "sale" / "_delta_log", engine.catalyst.table("sale").version
        actions = [json.loads(line) for line in (log / f"{version:020d}.json").read_text().splitlines()]
        add = next(action["add"] for action in actions if "add" in action)
        vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40, "cardinality": 1}
        remove = {"path": add["path"], "deletionTimestamp": 0, "dataChange": True, "size": add["size"], "partitionValues": {}}
        entry = [{"commitInfo": {"operation": "DELETE"}}, {"add": add | {"deletionVector": vector}}, {"remove": remove}]
        (log / f"{version + 1:020d}.json").write_text("\n".join(map(json.dumps, entry)))

        assert wh.gc()["sale"].files == 0

        assert (log.parent / add["path"]).exists()
        assert wh.read("sale").rows() == [(1, 1)]
