"""Bad changes under a running total: refused or kept apart, the total is at every time that of the changes that can be.

The runner, the catalyst and the streams are the real ones; the drain adds up in plain Python.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any, Literal

import pyarrow as pa
import pytest

import righttime as rt
from righttime.client import Warehouse
from righttime.errors.flows import ChangeRefused, ImageDiffers
from righttime.testing import ManualClock
from tests.support.plain_flow import TotalEngine, run_plain
from tests.unit.test_stream_changes import BAD, DDL

Row = dict[str, Any]
NUMBERS = count(1)


@pytest.fixture(scope="module")
def wh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """One warehouse for all; each test has a stream, a table and a flow of its own."""
    with rt.open(tmp_path_factory.mktemp("bad") / "wh", clock=ManualClock(1.0)) as opened:
        yield opened


def applied(living: dict[int, Row], changes: list[Row]) -> None:
    """Do good changes to the rows of a source, in their order."""
    for change in changes:
        kind = change.get("_change_type", "insert")
        if kind in ("insert", "update_postimage"):
            assert (change["id"] in living) == (kind == "update_postimage")
            living[change["id"]] = change
        elif kind == "delete":
            del living[change["id"]]


@pytest.mark.parametrize("on_bad", ["error", "dead_letter"])
@pytest.mark.parametrize(("changes", "row", "kind"), BAD)
def test_a_bad_change_never_makes_a_wrong_total(
    wh: Warehouse, changes: Any, row: int, kind: type[ChangeRefused], on_bad: Literal["error", "dead_letter"]
) -> None:
    """Before it, right after it, and when the flow has gone on; with the good changes of its append if it is kept apart, without them if it is refused."""
    number = next(NUMBERS)
    stream = wh.create_stream(f"line{number}", DDL, keys=["id"], on_bad=on_bad)
    wh.create_table(f"total{number}", "one INT NOT NULL, qty BIGINT, n BIGINT", keys=["one"])
    runner, _ = run_plain(wh, {f"total{number}": f"line{number}"}, keys=["one"], name=f"totals{number}", kind=TotalEngine)
    living: dict[int, Row] = {}

    def total_is_right() -> None:
        expected = [(1, sum(each.get("qty") or 0 for each in living.values()), len(living))] if living else []
        assert wh.read(f"total{number}", wait="20s").rows() == expected

    try:
        applied(living, [{"id": 1, "qty": 2}, {"id": 2, "qty": 30}])
        stream.insert([{"id": 1, "qty": 2}, {"id": 2, "qty": 30}])
        total_is_right()
        if on_bad == "error":
            with pytest.raises(kind):
                stream.append(changes)
        else:
            assert stream.append(changes).rejected == 1
            given = changes.to_pylist() if isinstance(changes, pa.Table) else changes
            applied(living, given[:row] + given[row + (2 if kind is ImageDiffers else 1) :])
        total_is_right()
        stream.update([{"id": 2, "qty": 400, "name": None}])
        applied(living, [{"id": 2, "qty": 400, "_change_type": "update_postimage"}])
        total_is_right()
        assert stream.dead_letters().num_rows == (on_bad == "dead_letter")
    finally:
        runner.stop()


def test_a_replayed_letter_counts_once(wh: Warehouse) -> None:
    """What was kept apart because its row was missing is in the total when the row has come and the letter was replayed; a second replay adds nothing."""
    stream = wh.create_stream("mended", DDL, keys=["id"], on_bad="dead_letter")
    wh.create_table("mended_total", "one INT NOT NULL, qty BIGINT, n BIGINT", keys=["one"])
    runner, _ = run_plain(wh, {"mended_total": "mended"}, keys=["one"], name="mended", kind=TotalEngine)

    def total() -> list[tuple[Any, ...]]:
        return wh.read("mended_total", wait="20s").rows()

    try:
        stream.append([{"id": 1, "qty": 5, "_change_type": "update_postimage"}, {"id": 2, "qty": 30}])
        assert total() == [(1, 30, 1)]
        stream.insert([{"id": 1, "qty": 4}])
        assert total() == [(1, 34, 2)]
        assert stream.replay().rows == 2
        assert total() == [(1, 35, 2)]
        stream.replay()
        assert total() == [(1, 35, 2)]
    finally:
        runner.stop()
