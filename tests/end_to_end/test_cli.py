"""The command line on a small warehouse: what it prints where, and how it ends."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import righttime as rt
from righttime.pipeline.spark import SparkOwner
from tests.end_to_end.cli_support import Terminal, make_shop

PYTHON = [sys.executable, "-m", "righttime.cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(rt.__file__).parents[1])}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shop(tmp_path_factory.mktemp("cli") / "shop")


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def spark_terminal(spark_owner: SparkOwner, terminal: Terminal) -> Terminal:
    """A terminal whose queries find Spark running."""
    spark_owner.session()
    return terminal


def test_version_names_the_package(terminal: Terminal) -> None:
    """`--version` prints name and version, and ends well."""
    ended = terminal("--version")

    assert (ended.code, ended.out) == (0, f"righttime {rt.__version__}\n")


def test_module_runs_as_a_program() -> None:
    """`python -m righttime.cli` is the same command where no script is installed."""
    ended = subprocess.run([*PYTHON, "--version"], capture_output=True, text=True, env=ENVIRONMENT, check=True)

    assert ended.stdout == f"righttime {rt.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["sql", "--nonsense"], ["sql"], ["sql", "SELECT 1", "--format", "xml"], ["nonsense"], ["receipt", "list", "--limit", "0"]]
)
def test_wrong_usage_ends_with_2(terminal: Terminal, arguments: list[str]) -> None:
    """Usage errors are told apart from errors of the warehouse."""
    ended = terminal(*arguments)

    assert ended.code == 2
    assert ended.err


@pytest.mark.parametrize(
    "command", [["sql", "SELECT 1"], ["status"], ["receipt", "list"], ["receipt", "show", "x"], ["receipt", "verify", "x"], ["materialize"], ["gc"]]
)
def test_commands_never_create_a_warehouse(terminal: Terminal, tmp_path: Path, command: list[str]) -> None:
    """Only `demo` makes a warehouse; a mistyped or empty folder is an error, and stays as it was."""
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()

    ended = [terminal(*command, "-w", folder) for folder in (missing, empty)]

    assert [one.code for one in ended] == [1, 1]
    assert all(one.err.startswith("error [warehouse.not_one] ") for one in ended)
    assert not missing.exists()
    assert list(empty.iterdir()) == []


def test_answers_go_to_standard_output_and_receipts_to_standard_error(spark_terminal: Terminal, shop: Path) -> None:
    """A table shows every value as it is stored; the receipt says how fresh it was and where the rows came from."""
    ended = spark_terminal("sql", "SELECT * FROM sale ORDER BY sku", "-w", shop)

    assert ended.code == 0
    lines = [re.split(r"\s{2,}", line.strip()) for line in ended.out.splitlines()]
    assert lines == [
        ["sku", "amount", "note"],
        ["1", "10.00", "a"],
        ["2", "20.00", "[bold]b[/]"],
        ["3", "30.00", "null"],
        ["4", "40.00", 'd, "e"'],
        ["5", "50.00", "é"],
    ]
    assert "5 rows at state" in ended.err
    assert "read 2 rows from memory and 3 from the warehouse, receipt " in ended.err


def test_json_and_csv_hold_the_answer_and_nothing_else(spark_terminal: Terminal, shop: Path) -> None:
    """Machine formats parse; decimals keep their digits, a name that comes twice is kept twice."""
    query = "SELECT sku, amount, note, sku FROM sale WHERE sku > 2 ORDER BY sku CURRENCY BOUND 1 HOUR"
    as_json = spark_terminal("sql", query, "-w", shop, "--format", "json", "--no-receipt")
    as_csv = spark_terminal("sql", query, "-w", shop, "--format", "csv", "--no-receipt")

    assert json.loads(as_json.out)[:2] == [{"sku": 3, "amount": "30.00", "note": None, "sku_2": 3}, {"sku": 4, "amount": "40.00", "note": 'd, "e"', "sku_2": 4}]
    assert list(csv.reader(io.StringIO(as_csv.out)))[:2] == [["sku", "amount", "note", "sku"], ["3", "30.00", "", "3"]]
    assert (as_json.err, as_csv.err) == ("", "")


def test_query_comes_from_standard_input_and_folder_from_the_environment(spark_terminal: Terminal, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` reads the query; RIGHTTIME_WAREHOUSE names the folder, and without it the current folder is meant."""
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT count(*) AS n FROM sale"))
    monkeypatch.setenv("RIGHTTIME_WAREHOUSE", str(shop))
    assert json.loads(spark_terminal("sql", "-", "--format", "json").out) == [{"n": 5}]

    monkeypatch.delenv("RIGHTTIME_WAREHOUSE")
    monkeypatch.chdir(shop)
    assert json.loads(spark_terminal("status", "--json").out)["path"] == str(shop)


def test_as_of_answers_at_the_cut(spark_terminal: Terminal, shop: Path) -> None:
    """A time that the warehouse still knows gives the rows of then; one before the first stored row is refused."""
    with rt.open(shop, read_only=True) as wh:
        first_us = wh.sql("SELECT 1 FROM sale").receipt.cut_us

    ended = spark_terminal("sql", "SELECT count(*) FROM sale", "-w", shop, "--as-of", str(first_us), "--format", "csv")
    too_early = spark_terminal("sql", "SELECT count(*) FROM sale", "-w", shop, "--as-of", "2001-01-01")

    assert ended.out.splitlines()[1] == "5"
    assert too_early.code == 1
    assert too_early.err.startswith("error [as_of.unavailable] ")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["SELECT * FROM nothing"], "table.unknown"),
        (["SELECT nothing FROM sale"], "sql.failed"),
        (["DELETE FROM sale"], "sql.refused"),
        (["SELECT FROM WHERE"], "sql.refused"),
        (["SELECT * FROM sale", "--freshness", "soon"], "freshness.bad"),
        (["SELECT * FROM sale", "--wait", "-1s"], "freshness.bad"),
        (["SELECT * FROM sale", "--as-of", "yesterday"], "freshness.bad"),
        (["SELECT * FROM sale", "--as-of", "2030-01-01", "--freshness", "1s"], "freshness.bad"),
    ],
)
def test_errors_are_one_line_with_code_and_way_out(spark_terminal: Terminal, shop: Path, arguments: list[str], code: str) -> None:
    """Whatever the error, standard error has one line and no traceback, standard output nothing, and the exit code is 1."""
    ended = spark_terminal("sql", *arguments, "-w", shop)

    assert ended.code == 1
    assert ended.out == ""
    assert ended.err.startswith(f"error [{code}] ")
    assert len(ended.err.splitlines()) == 1


def test_debug_shows_the_traceback(terminal: Terminal, tmp_path: Path) -> None:
    """`--debug` is for those who look for a bug."""
    ended = terminal("--debug", "status", "-w", tmp_path / "nothing")

    assert ended.code == 1
    assert "Traceback" in ended.err
    assert "error [warehouse.not_one] " in ended.err


def test_status_shows_what_is_where(terminal: Terminal, shop: Path) -> None:
    """Tables with rows in memory and stored, and how full the bounds are; looking starts no Spark."""
    shown, as_json = terminal("status", "-w", shop), terminal("status", "-w", shop, "--json")

    assert re.search(r"^sale +2 +3 +\d+ ", shown.out, re.MULTILINE)
    assert re.search(r"^product +0 +0 +\d+ +-", shown.out, re.MULTILINE)
    assert re.search(r"^write-ahead log .* %", shown.out, re.MULTILINE)
    tables = {table["name"]: table for table in json.loads(as_json.out)["tables"]}
    assert (tables["sale"]["rows_hot"], tables["sale"]["rows_stored"]) == (2, 3)


def test_receipts_are_listed_shown_and_verified(spark_terminal: Terminal, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receipt is found by the beginning of its id, and verifies by id, from a file and from standard input."""
    spark_terminal("sql", "SELECT sum(amount) AS total FROM sale", "-w", shop, "--freshness", "5s")
    newest = json.loads(spark_terminal("receipt", "list", "-w", shop, "--json", "--limit", "1").out)[0]
    paper = tmp_path / "receipt.json"
    paper.write_text(spark_terminal("receipt", "show", newest["receipt_id"][:10], "-w", shop, "--json").out)

    listed = spark_terminal("receipt", "list", "-w", shop)
    shown = spark_terminal("receipt", "show", newest["receipt_id"], "-w", shop)
    monkeypatch.setattr("sys.stdin", io.StringIO(paper.read_text()))
    verified = [spark_terminal("receipt", "verify", name, "-w", shop) for name in (newest["receipt_id"], paper, "-")]

    assert newest["receipt_id"][:12] in listed.out
    assert "SELECT sum(amount) AS total FROM sale" in shown.out
    assert re.search(r"^till +2 at ", shown.out, re.MULTILINE)
    assert json.loads(paper.read_text()) == newest
    assert [one.code for one in verified] == [0, 0, 0]
    assert all(one.out.startswith("verified: the query was run again at the same state") for one in verified)


@pytest.mark.parametrize(("name", "value"), [("rows", 2), ("query", "SELECT 1"), ("late", True), ("extra", 1)])
def test_a_forged_receipt_ends_with_1(spark_terminal: Terminal, shop: Path, tmp_path: Path, name: str, value: object) -> None:
    """One changed or added value is enough."""
    spark_terminal("sql", "SELECT count(*) FROM sale", "-w", shop)
    receipt = json.loads(spark_terminal("receipt", "list", "-w", shop, "--json", "--limit", "1").out)[0]
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(receipt | {name: value}))

    ended = spark_terminal("receipt", "verify", forged, "-w", shop)

    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error [receipt.forged] ")


@pytest.mark.parametrize("content", [b"", b"not json", b"\xff\xfe\x00", b"[]"])
def test_a_file_that_is_no_receipt_is_refused(terminal: Terminal, shop: Path, tmp_path: Path, content: bytes) -> None:
    """Whatever lies in the file, the answer is a coded error."""
    paper = tmp_path / "paper"
    paper.write_bytes(content)

    ended = terminal("receipt", "verify", paper, "-w", shop)

    assert ended.code == 1
    assert ended.err.startswith("error [receipt.forged] ")


def test_an_unknown_receipt_ends_with_1(terminal: Terminal, shop: Path) -> None:
    """Neither a file nor an id: the error says how to list receipts."""
    ended = terminal("receipt", "verify", "0123", "-w", shop)

    assert ended.code == 1
    assert ended.err.startswith("error [receipt.unknown] ")
    assert "righttime receipt list" in ended.err


CRASH = """
import os, signal, sys
import righttime as rt
wh = rt.open(sys.argv[1])
wh.create_table("sale", "sku INT")
load = wh.producer(name="till")
load.insert("sale", (1,))
load.commit()
print(wh.read("sale").receipt.receipt_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_receipt_for_rows_that_a_crash_took_is_not_verified(terminal: Terminal, tmp_path: Path) -> None:
    """The receipt is genuine, but what it stands for is gone: exit code 1, and the status shows the loss."""
    crashed = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path / "shop")], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr
    assert terminal("materialize", "-w", tmp_path / "shop").code == 0

    ended = terminal("receipt", "verify", crashed.stdout.strip(), "-w", tmp_path / "shop")
    status = terminal("status", "-w", tmp_path / "shop")

    assert ended.code == 1
    assert ended.out.startswith("NOT verified: the cut was compared with the ledger: ")
    assert re.search(r"^till +1 to 1 +1 ", status.out, re.MULTILINE)


def test_a_receipt_that_only_the_writer_can_prove_is_neither_verified_nor_called_wrong(terminal: Terminal, tmp_path: Path) -> None:
    with rt.open(tmp_path) as wh:
        wh.create_table("sale", "sku INT")
        load = wh.producer(name="till")
        load.insert("sale", (1,))
        load.commit()

        ended = terminal("receipt", "verify", wh.read("sale").receipt.receipt_id, "-w", tmp_path)

        assert (ended.code, ended.out) == (1, "")
        assert "receipt.unproven" in ended.err


def test_materialize_and_gc_change_no_answer(spark_terminal: Terminal, tmp_path: Path) -> None:
    """Rows move to the Delta tables and nothing is lost; a second time there is nothing to move."""
    shop = make_shop(tmp_path / "shop")

    moved, again = spark_terminal("materialize", "sale", "-w", shop), spark_terminal("materialize", "-w", shop)
    collected = spark_terminal("gc", "-w", shop)
    counted = spark_terminal("sql", "SELECT count(*) AS n, sum(amount) AS total FROM sale", "-w", shop, "--format", "json")

    assert re.search(r"^sale +3 +5 ", moved.out, re.MULTILINE)
    assert ": 1 table stored." in moved.out
    assert ": nothing to store." in again.out
    assert "files removed" in collected.out
    assert (moved.code, again.code, collected.code) == (0, 0, 0)
    assert json.loads(counted.out) == [{"n": 5, "total": "150.00"}]
    assert spark_terminal("materialize", "nothing", "-w", shop).err.startswith("error [table.unknown] ")


WRITER = """
import sys
import righttime as rt
with rt.open(sys.argv[1]) as wh:
    print("open", flush=True)
    sys.stdin.read()
"""


def test_reading_works_while_another_process_writes(spark_terminal: Terminal, tmp_path: Path) -> None:
    """`status` shows the durable state and the writer; `sql` promises no freshness, but answers if late answers are welcome; chores are refused."""
    shop = make_shop(tmp_path / "shop")
    with subprocess.Popen([sys.executable, "-c", WRITER, str(shop)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "open\n"

        status = spark_terminal("status", "-w", shop)
        strict = spark_terminal("sql", "SELECT count(*) AS n FROM sale", "-w", shop)
        late = spark_terminal("sql", "SELECT count(*) AS n FROM sale", "-w", shop, "--on-late", "answer", "--format", "json")
        chore = spark_terminal("materialize", "-w", shop)
        writer.stdin.close()

    assert f"open for writing in process {writer.pid}" in status.out
    assert (strict.code, strict.err.split(" ")[1]) == (1, "[freshness.unknown]")
    assert json.loads(late.out) == [{"n": 5}]
    assert " LATE, " in late.err
    assert (chore.code, chore.err.split(" ")[1]) == (1, "[warehouse.locked]")


def test_log_json_prints_events_on_standard_error(shop: Path) -> None:
    """Every line of the log is one JSON object; the answer stays alone on standard output."""
    ended = subprocess.run([*PYTHON, "--log-json", "materialize", "-w", str(shop)], capture_output=True, text=True, env=ENVIRONMENT, check=True)

    events = [json.loads(line)["event"] for line in ended.stderr.splitlines()]
    assert "warehouse.opened" in events
    assert ended.stdout.startswith("State ") or " stored." in ended.stdout


def test_a_reader_that_has_seen_enough_is_no_error_message(shop: Path) -> None:
    """`righttime status | head -1` must not end in a traceback."""
    with subprocess.Popen([*PYTHON, "status", "-w", str(shop)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()

    assert errors == ""


def test_the_first_command_after_a_crash_names_what_was_lost(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Opening finds the loss, so whoever opens first is told; the next one is not told again, and `status` keeps the count."""
    program = f"""
import os, righttime as rt
wh = rt.open({str(tmp_path / "w")!r})
wh.create_table("sale", "sku INT")
load = wh.producer(name="till")
for number in range(3):
    load.insert("sale", (number,))
    load.commit(durability="log" if number == 0 else "memory")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    terminal = Terminal(capsys)

    first, second = terminal("gc", "-w", tmp_path / "w"), terminal("gc", "-w", tmp_path / "w")

    assert "commits 2 to 3 of source 'till', 2 rows" in first.err
    assert second.err == ""
    assert json.loads(terminal("status", "-w", tmp_path / "w", "--json").out)["commits_lost"] == 2
