"""What settling makes of stored rows counts as hot rows do: within the bound it is in memory, beyond it in files."""

import errno
import gc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import righttime as rt

_ROWS = 5000
_BOUND = 10_000


def _changed(wh: rt.Warehouse) -> rt.Producer:
    """Store rows and change every one of them; nobody has needed the outcome yet."""
    wh.create_table("sale", "n INT, name STRING", keys=["n"])
    load = wh.producer(name="till")
    load.insert_many("sale", [(number, "x" * 50) for number in range(_ROWS)])
    load.commit(materialize=True)
    load.update("sale", {"name": rt.expr("name || 'y'")})
    load.commit()
    return load


def _rows_are_right(wh: rt.Warehouse) -> bool:
    return sorted(wh.read("sale").rows()) == [(number, "x" * 50 + "y") for number in range(_ROWS)]


def test_settled_rows_beyond_the_memory_bound_are_spilled(tmp_path: Path) -> None:
    """Also if no commit follows that would make room; they are read, changed and stored from their files."""
    with rt.open(tmp_path / "shop", memory_bytes_max=_BOUND, full_wait_s=0.1) as wh:
        load = _changed(wh)
        assert _rows_are_right(wh)
        memory = wh._writer("test").catalyst.table("sale")
        assert memory.bytes_memory <= _BOUND
        assert memory.bytes_spilled > _BOUND

        load.delete("sale", "n >= 10")
        load.commit()
        assert len(wh.read("sale")) == 10
        assert memory.bytes_memory <= _BOUND
        wh.materialize()
        assert len(wh.read("sale")) == 10
        assert memory.bytes_spilled == 0


def _fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    write_table = pq.write_table

    def full(rows: pa.Table, path: Path, **options: Any) -> None:
        if path.parent.name == "spill":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_table(rows, path, **options)

    monkeypatch.setattr(pq, "write_table", full)


@pytest.mark.parametrize("spill_bytes_max", [0, 1 << 30], ids=["bound", "disk"])
def test_a_query_is_answered_also_if_nothing_can_be_spilled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spill_bytes_max: int) -> None:
    """Settling never fails; the rows stay in memory until they are stored, and commits wait for that."""
    with rt.open(tmp_path / "shop", memory_bytes_max=_BOUND, full_wait_s=0.1, spill_bytes_max=spill_bytes_max) as wh:
        load = _changed(wh)
        if spill_bytes_max:
            _fill_disk(monkeypatch)
        assert _rows_are_right(wh)
        load.insert("sale", (_ROWS, "z"))
        with pytest.raises(rt.RightTimeError) as caught:
            load.commit()
        assert caught.value.retryable
        wh.materialize()
        load.commit()
        assert len(wh.read("sale")) == _ROWS + 1


def test_what_a_closed_warehouse_had_spilled_takes_no_file_of_the_next_one_along(tmp_path: Path) -> None:
    """Python may keep segments for a while after the close, and a segment that goes takes its file along: names are never used twice."""
    with rt.open(tmp_path / "shop", memory_bytes_max=_BOUND) as wh:
        _changed(wh)
        assert _rows_are_right(wh)
        kept = [piece for lane in wh._writer("test").catalyst.table("sale").lanes.values() for piece in lane.pieces]
    with rt.open(tmp_path / "shop", memory_bytes_max=_BOUND) as wh:
        assert _rows_are_right(wh)
        kept.clear()
        gc.collect()
        assert _rows_are_right(wh)
