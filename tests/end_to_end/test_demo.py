"""The demo, for real: it ends well, it cleans up behind itself, and its checks can fail."""

import dataclasses
import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from righttime.changes.position import Commit, SourceCut
from righttime.cli.demo.checks import checks_of
from righttime.cli.demo.orders import Stored
from righttime.cli.demo.readers import QUESTIONS, Seen
from righttime.cli.demo.shop import Book
from righttime.errors import ReceiptForged
from righttime.ledger.receipts import Receipt, Verification
from righttime.pipeline.spark import SparkOwner
from tests.end_to_end.cli_support import Terminal
from tests.end_to_end.test_cli import ENVIRONMENT, PYTHON


@pytest.mark.slow
def test_demo_ends_well_and_leaves_a_warehouse(spark_owner: SparkOwner, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every check is kept, all readers are in the table, and the folder answers the queries that are recommended at the end."""
    spark_owner.session()
    terminal, folder = Terminal(capsys), tmp_path / "shop"

    ended = terminal("demo", "--seconds", "3", "--folder", folder)

    assert ended.code == 0, ended.out + ended.err
    assert ended.out.startswith(f"Writing to {folder}\n")
    assert "✗" not in ended.out
    assert ended.out.count("✓") >= 6 + 5
    for reader in ("cashier", "buyer", "dispatch", "head office", "closing"):
        assert re.search(rf"^{reader} +≤ ", ended.out, re.MULTILINE)
    said = " ".join(ended.out.split())  # a narrow terminal breaks lines anywhere
    committed = int(re.search(r"([\d,]+) were committed", said)[1].replace(",", ""))  # type: ignore[index]
    assert re.search(r"[1-9][\d,]* updates of ([\d,]+) orders before any was stored: one version with \1 rows, one an order", said)
    assert f"righttime status -w {folder}" in ended.out
    assert json.loads(terminal("sql", "SELECT count(*) AS n FROM sale", "-w", folder, "--format", "json").out) == [{"n": committed}]


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_cleanly(tmp_path: Path) -> None:
    """Exit code 130, no traceback, and the temporary folder is gone."""
    environment = {**ENVIRONMENT, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([*PYTHON, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while "selling" not in lines[-1]:
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)

    assert process.returncode == 130, out + err
    assert "Stopped" in err
    assert "Traceback" not in err
    assert list(tmp_path.glob("righttime-demo-*")) == []


def test_demo_refuses_a_folder_that_is_in_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nobody's files are mixed with the demo's."""
    (tmp_path / "precious").write_text("mine")

    ended = Terminal(capsys)("demo", "--folder", tmp_path)

    assert ended.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


RECEIPT = Receipt(
    receipt_id="r1",
    warehouse_id="w",
    state=3,
    query="SELECT 1",
    parameters=(),
    tables=(),
    cut=(SourceCut("office", Commit(1, 5), None), SourceCut("till", Commit(2, 20), Commit(3, 30)), SourceCut("web", Commit(1, 15), None)),
    cut_us=25,
    asked_s=0.0,
    given_s=0.0,
    late=False,
    waited_s=0.005,
    rows=1,
    digest="d",
    issued_us=26,
)
SEEN = Seen(QUESTIONS[0], RECEIPT, Verification(True, "rerun", "same"), sales=60, cents=700, took_s=0.1, top="")
AT_THE_DESK = dataclasses.replace(
    SEEN, receipt=dataclasses.replace(RECEIPT, cut=(SourceCut("desk", Commit(1, 12), Commit(2, 30)),)), sales=2, cents=0, steps=(0, 0, 0, 0)
)
STORED = Stored(versions=1, rows=4, orders=4)


def books() -> dict[str, Book]:
    """Two sellers and the order desk: the till has made a third commit after the cut, the desk a second."""
    till, web, desk = Book(), Book(), Book()
    for number, cents in enumerate((100, 200, 300), 1):
        till.note(number, rows=5, cents=cents)
    web.note(1, rows=50, cents=400)
    desk.note(1, rows=2, cents=0, steps=(0, 0, 0, 0))
    desk.note(2, rows=2, cents=0, steps=(2, 1, 0, 0))
    return {"till": till, "web": web, "desk": desk}


def refuse(_paper: str) -> object:
    raise ReceiptForged(receipt="r1", reason="changed")


def outcome(seen: Seen, *, closing_sales: int = 65, orders: Stored = STORED) -> list[bool]:
    closing = dataclasses.replace(SEEN, sales=closing_sales)
    return [check.ok for check in checks_of([seen], books(), closing=closing, orders=orders, verify=refuse)]


@pytest.mark.parametrize(
    ("seen", "broken"),
    [
        (SEEN, None),
        (dataclasses.replace(SEEN, verification=Verification(False, "rerun", "other rows")), 0),
        (dataclasses.replace(SEEN, sales=61), 1),
        (dataclasses.replace(SEEN, cents=701), 1),
        (dataclasses.replace(SEEN, receipt=dataclasses.replace(RECEIPT, cut=RECEIPT.cut[:2])), 1),
        (AT_THE_DESK, None),
        (dataclasses.replace(AT_THE_DESK, steps=(1, 0, 0, 0)), 1),
        (dataclasses.replace(AT_THE_DESK, steps=()), 1),
        (dataclasses.replace(SEEN, receipt=dataclasses.replace(RECEIPT, given_s=1.0)), 2),
        (dataclasses.replace(SEEN, receipt=dataclasses.replace(RECEIPT, late=True)), 2),
    ],
)
def test_each_check_sees_its_broken_promise(seen: Seen, broken: int | None) -> None:
    """A receipt that fails, a row, cent or step too many, an answer that is too old: exactly the check for it fails."""
    assert outcome(seen) == [number != broken for number in range(6)]


def test_missing_rows_and_forgeries_are_seen() -> None:
    """The closing answer must hold every committed sale, and a warehouse that takes a changed receipt fails the demo."""
    assert outcome(SEEN, closing_sales=64) == [True, True, True, False, True, True]
    assert not checks_of([SEEN], books(), closing=SEEN, orders=STORED, verify=lambda paper: paper)[5].ok


@pytest.mark.parametrize("orders", [Stored(2, 4, 4), Stored(0, 4, 4), Stored(1, 5, 4), Stored(1, 3, 3), Stored(1, 5, 5)])
def test_orders_are_stored_once_or_the_demo_fails(orders: Stored) -> None:
    """One version with one row for each order is the net effect; more or fewer of either is not."""
    assert outcome(SEEN, orders=orders) == [True, True, True, True, False, True]


def test_no_answer_is_no_success() -> None:
    """A demo in which nobody got an answer has shown nothing."""
    assert not any(check.ok for check in checks_of([], books(), closing=SEEN, orders=STORED, verify=refuse)[:3])
