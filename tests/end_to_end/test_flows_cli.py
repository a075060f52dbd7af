"""A project from `righttime init` on: checked, fed, run, asked, kept running; and what is said when it is wrong."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime import cli
from righttime.pipeline.spark import SparkOwner
from tests.end_to_end.cli_support import Ended, Terminal
from tests.support.warm_python import run_warm

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(rt.__file__).parents[1])}
TOTALS = "SELECT sum(qty) AS qty, sum(amount) AS amount, sum(lines) AS lines FROM store_sales"


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], spark_owner: SparkOwner, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A wide terminal whose commands find Spark running."""
    monkeypatch.setenv("COLUMNS", "240")
    spark_owner.session()
    return Terminal(capsys)


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated project, fed and never run; copy it before you change it."""
    folder = tmp_path_factory.mktemp("projects") / "shop"
    assert run_warm("-m", "righttime.cli", "init", folder).returncode == 0
    feed(folder, 30)
    return folder


@pytest.fixture
def shop(fed: Path, tmp_path: Path) -> Path:
    """A project of the test's own."""
    return Path(shutil.copytree(fed, tmp_path / "shop"))


@pytest.fixture(scope="module")
def run_once(fed: Path, tmp_path_factory: pytest.TempPathFactory, spark_owner: SparkOwner) -> Path:
    """The same project after `righttime run`; copy it before you change it."""
    spark_owner.session()
    folder = Path(shutil.copytree(fed, tmp_path_factory.mktemp("projects") / "shop"))
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.run(["run", "-p", str(folder)]) == 0
    return folder


@pytest.fixture
def loaded(run_once: Path, tmp_path: Path) -> Path:
    """A project of the test's own whose tables are there."""
    return Path(shutil.copytree(run_once, tmp_path / "shop"))


def python(*arguments: object, cwd: Path | None = None) -> str:
    """Run Python as a user would, and return what it prints."""
    command = [sys.executable, *(str(argument) for argument in arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd, timeout=120).stdout


def feed(folder: Path, purchases: int) -> None:
    fed = run_warm("feed.py", str(purchases), cwd=folder)
    assert f"appended {purchases} purchases" in fed.stdout, fed.stderr


def living(folder: Path) -> list[dict[str, Any]]:
    """Return the lines that are in the source at this moment, by taking its changes one after the other."""
    with rt.open(folder / "warehouse", create=False) as wh:
        changes = wh._flows("look").feed.streams.table("line", 0, 2**62).to_pylist()
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for change in changes:
        key = (change["purc_id"], change["item_id"])
        if change["_w"] > 0:
            rows[key] = change
        else:
            del rows[key]
    return list(rows.values())


def totals(folder: Path) -> dict[str, Any]:
    """Return what `TOTALS` must say."""
    rows = living(folder)
    amount = sum((row["qty"] * row["price"] for row in rows), Decimal(0))
    return {"qty": sum(row["qty"] for row in rows), "amount": str(amount), "lines": len(rows)}


def answered(terminal: Terminal, shop: Path) -> dict[str, Any]:
    ended = terminal("sql", TOTALS, "-w", shop, "--format", "json", "--no-receipt")
    assert ended.code == 0, ended.err
    return dict(json.loads(ended.out)[0])


def change(shop: Path, old: str, new: str) -> int:
    """Change the flow's file; return the line where the change is."""
    path = shop / "flows" / "sales.py"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    return text[: text.index(old)].count("\n") + 1


def test_a_generated_project_works_as_printed(terminal: Terminal, tmp_path: Path) -> None:
    """`init` says what to do next; doing just that ends in an answer. A second `init` writes over nothing."""
    folder = tmp_path / "shop"
    made = terminal("init", folder)
    assert made.code == 0
    steps = made.out.partition("Next\n")[2].splitlines()
    assert [shlex.split(step)[:2] for step in steps] == [
        ["cd", str(folder)],
        ["righttime", "dry-run"],
        ["python", "feed.py"],
        ["righttime", "run"],
        ["righttime", "sql"],
    ]

    with_folder: dict[str, list[object]] = {"dry-run": ["-p", folder], "run": ["-p", folder], "sql": ["-w", folder, "--format", "json"]}
    ended: Ended | None = None
    for step in steps[1:]:
        program, *words = shlex.split(step)
        if program == "python":
            python(*words, cwd=folder)
        else:
            ended = terminal(*words, *(str(word) for word in with_folder[words[0]]))
            assert ended.code == 0, ended.err
    assert ended is not None
    assert sum(row["qty"] for row in json.loads(ended.out)) == totals(folder)["qty"]

    before = {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    again = terminal("init", folder)
    assert (again.code, "error [project.taken]" in again.err) == (1, True)
    assert {path: path.read_bytes() for path in before} == before


def test_the_feed_goes_where_the_project_says(shop: Path, tmp_path: Path) -> None:
    """Into the warehouse of `righttime.toml`, with the settings that stand there, wherever it is started."""
    file = shop / "righttime.toml"
    file.write_text(file.read_text().replace('"./warehouse"', '"./elsewhere"'))
    fed = run_warm(str(shop / "feed.py"), "2", cwd=tmp_path)
    assert "appended 2 purchases" in fed.stdout, fed.stderr
    assert (shop / "elsewhere" / "ledger.db").exists()

    with rt.open(shop / "elsewhere"):  # as `righttime run --keep` has it
        locked = run_warm(str(shop / "feed.py"), "2", cwd=tmp_path)
    assert locked.returncode == 1 and locked.stderr.startswith("error [warehouse.locked]") and "feed.py 20 righttime://" in locked.stderr, locked.stderr
    file.write_text("wait_s = -1\n" + file.read_text())
    assert run_warm(str(shop / "feed.py"), "2", cwd=tmp_path).stderr.startswith("error [setting.bad] Setting 'wait_s'")


def test_a_dry_run_shows_everything_and_makes_nothing(terminal: Terminal, shop: Path, tmp_path: Path) -> None:
    """Steps with columns and types, targets, refresh, zones and rows to load; a project whose warehouse is not there yet has none afterwards either."""
    before = sorted(path for path in shop.rglob("*"))
    ended = terminal("dry-run", "-p", shop)

    assert ended.code == 0, ended.err
    assert sorted(path for path in shop.rglob("*") if "__pycache__" not in str(path)) == [path for path in before if "__pycache__" not in str(path)]
    shown = " ".join(ended.out.split())
    for part in (
        "Flow sales refreshed on demand",
        "01_stream item item_id INT, title STRING, category STRING",
        "08_join inner, on purc_id",
        "Into store_sales (`day` DATE NOT NULL, `store` STRING NOT NULL, `item_sk` BIGINT NOT NULL, `qty` BIGINT, `amount` DECIMAL(30,2), `lines` BIGINT)",
        "one row for each day, store, item_sk, will be made",
        "08_join reads item, line in step with purchase",
        "3 consistency zones",
        "02_history [ordered task]",
        "purchase 30",
    ):
        assert part in shown, part
    assert re.search(r"A first run would load \d+ changes: item 5, line \d+, purchase 30", shown)

    terminal("init", tmp_path / "new")
    ended = terminal("dry-run", "-p", tmp_path / "new")
    assert (ended.code, "line 0 (will be made)" in ended.out) == (0, True)
    assert ended.out.endswith(f"Next: righttime run -p {tmp_path / 'new'}\n"), "what it advises must work from here, too"
    assert not (tmp_path / "new" / "warehouse").exists()


def test_run_brings_tables_up_to_now_each_time(terminal: Terminal, shop: Path) -> None:
    """The answer is what the sources hold; changes that came since are named by explain and status, and the next run loads just them."""
    first = terminal("run", "-p", shop)
    assert first.code == 0, first.err
    assert "could not be worked on" not in first.err
    assert re.search(r"sales +\d+ +\d+ +\d+ +[\d.]+ +item_dim, store_sales", first.out)
    assert answered(terminal, shop) == totals(shop)
    shared = terminal("explain", TOTALS, "-w", shop)
    assert (shared.code, "No flow has anything to do" in shared.out) == (0, True)

    reader = rt.open(shop / "warehouse", read_only=True)
    rows = len(reader.read("store_sales"))
    feed(shop, 10)
    with reader, pytest.raises(rt.FreshnessUnavailable, match="has not loaded"):
        assert len(reader.read("store_sales", freshness="1h")) == rows
        reader.read("store_sales")  # though the ledger has no newer state: the streams do
    assert terminal("sql", TOTALS, "-w", shop).err.startswith("error [freshness.flow_asleep]"), "an answer without them would be stale"
    need = json.loads(terminal("explain", TOTALS, "--freshness", "1ms", "-w", shop, "--json").out)["flows"][0]
    waiting = need["rows"]
    assert (need["flow"], need["tables"], need["streams"]["purchase"], sum(need["streams"].values())) == ("sales", ["store_sales"], 10, waiting)
    (status,) = json.loads(terminal("status", "-w", shop, "--json").out)["flows"]
    assert (status["name"], status["running"], status["rows_waiting"]) == ("sales", False, waiting)
    assert status["lag_s"] > 0
    assert re.search(rf"sales +does not run .* {waiting} ", terminal("status", "-w", shop).out)
    assert f"The next run would load {waiting} changes" in terminal("dry-run", "-p", shop).out

    second = terminal("run", "-p", shop, "--flow", "sales")
    assert re.search(rf"sales +\d+ +{waiting} +", second.out), second.out
    assert answered(terminal, shop) == totals(shop)
    third = terminal("run", "-p", shop)
    assert re.search(r"sales +\d+ +0 +0 +", third.out), third.out


def test_rows_that_no_step_could_work_on_are_told_and_stored(terminal: Terminal, shop: Path) -> None:
    """A run succeeds without them, so it says how many they are and where; their table is stored like the others, and its lag ends."""
    change(shop, 'amount="qty * price"', "amount=\"IF(qty < 3, raise_error('too few'), qty * price)\"")

    ended = terminal("run", "-p", shop)

    assert ended.code == 0, ended.err
    (asked,) = json.loads(terminal("sql", "SELECT count(*) AS n FROM sales_dead_letters", "-w", shop, "--format", "json").out)
    told = f"sales: {asked['n']} rows could not be worked on, see sales_dead_letters\n"
    assert asked["n"] > 1 and ended.err.endswith(told), ended.err
    found = json.loads(terminal("status", "-w", shop, "--json").out)
    assert {table["name"]: (table["rows_hot"], table["rows_stored"]) for table in found["tables"]}["sales_dead_letters"] == (0, asked["n"])
    assert [flow["dead_letters"] for flow in found["flows"]] == [asked["n"]]
    assert told in terminal("status", "-w", shop).out


def test_a_receipt_is_shown_with_the_transactions_of_its_sources(terminal: Terminal, loaded: Path) -> None:
    """What the JSON says of the streams of a flow stands in the text, too."""
    with rt.open(loaded / "warehouse", create=False) as wh:
        wh.stream("item").insert([{"item_id": 77, "title": "pot", "category": "kitchen"}])
        receipt = wh.sql(TOTALS, freshness="1h").receipt

    shown = terminal("receipt", "show", receipt.receipt_id, "-w", loaded).out

    cuts = {cut.stream: cut for cut in receipt.streams}
    inside = cuts["purchase"].last_inside
    assert inside is not None and inside.transaction is not None
    assert re.search(rf"^purchase +sales +{inside.number:,} \({inside.transaction}\) at .* UTC +none known *$", shown, re.MULTILINE), shown
    assert re.search(r"^item +sales +\d+ at .* UTC +\d+ at .* UTC *$", shown, re.MULTILINE), shown


def test_a_flow_that_is_declared_differently_is_built_anew_on_request(terminal: Terminal, loaded: Path) -> None:
    """Without `--refresh` it is refused, and the dry run says so before."""
    change(loaded, 'amount="qty * price"', 'amount="2 * qty * price"')

    checked = terminal("dry-run", "-p", loaded).out
    assert "righttime run --refresh sales would build its targets anew" in checked
    assert checked.endswith(f"Next: righttime run -p {loaded} --refresh sales\n"), "what it advises must work"
    refused = terminal("run", "-p", loaded)
    assert (refused.code, refused.err.startswith("error [flow.changed]")) == (1, True), refused.err
    assert terminal("run", "-p", loaded, "--refresh", "sales").code == 0
    assert Decimal(answered(terminal, loaded)["amount"]) == 2 * Decimal(totals(loaded)["amount"])


def test_a_table_that_exists_keeps_its_columns(terminal: Terminal, shop: Path) -> None:
    """A measure that is renamed needs another table; that a refresh does not rename it is said at the first command."""
    with rt.open(shop / "warehouse", create=False) as wh:
        columns = "day DATE, store STRING, item_sk BIGINT, qty BIGINT, amount DECIMAL(30,2), lines BIGINT"
        wh.create_table("store_sales", columns, keys=["day", "store", "item_sk"])
    change(shop, 'lines="count(*)"', 'sold="count(*)"')

    for command in (["dry-run"], ["run"], ["run", "--refresh", "sales"]):
        refused = terminal(*command, "-p", shop)

        assert refused.code == 1, command
        assert refused.err.startswith("error [flow.columns_fixed]"), (command, refused.err)
        assert "has no column 'sold'. Its columns are fixed, and a refresh does not change them" in refused.err, command
        assert "name another table in into() in flow 'sales'" in refused.err, command


def test_no_flow_begins_if_one_of_them_would_be_refused(terminal: Terminal, loaded: Path) -> None:
    """One that must be built anew, and one whose target has rows of somebody else; all of them are named."""
    change(loaded, 'amount="qty * price"', 'amount="2 * qty * price"')
    (loaded / "flows" / "before.py").write_text(
        'import righttime as rt\nbefore = rt.Flow("before")\nbefore.stream("item").into("item_copy", keys=["item_id"])\n'
    )
    (loaded / "flows" / "filled.py").write_text(
        'import righttime as rt\nfilled = rt.Flow("filled")\nfilled.stream("item").select("item_id").into("ids", keys="item_id")\n'
    )
    with rt.open(loaded / "warehouse", create=False) as wh:
        wh.create_table("ids", "item_id INT NOT NULL", keys=["item_id"])
        with wh.producer(name="somebody") as load:
            load.insert("ids", (1,))

    refused = terminal("run", "-p", loaded)

    assert refused.code == 1
    assert re.findall(r"error \[(.*?)\]", refused.err) == ["flow.declaration", "flow.changed"], refused.err
    with rt.open(loaded / "warehouse", create=False) as wh:
        assert "item_copy" not in wh.tables() and [flow.name for flow in wh.flows()] == ["sales"]


def test_an_error_of_a_declaration_points_at_the_users_line(terminal: Terminal, shop: Path) -> None:
    """One line for each, exit code 1, no traceback, and no table is made, though another flow of the project is right."""
    line = change(shop, 'amount="qty * price"', 'amount="qty * prise"')
    (shop / "flows" / "other.py").write_text('import righttime as rt\nother = rt.Flow("other")\nother.stream("item").into("item_copy", keys=["item_id"])\n')

    for command in ("dry-run", "run"):
        ended = terminal(command, "-p", shop)

        assert ended.code == 1, command
        assert ended.err.startswith(f"error [flow.unknown] {shop}/flows/sales.py:{line}: "), (command, ended.err)
        assert "prise" in ended.err and "Traceback" not in ended.err, command
        with rt.open(shop / "warehouse", create=False) as wh:
            assert wh.tables() == [], command

    (shop / "flows" / "other.py").write_text("import righttime as rt\nother = rt.Flow(\n")
    for command in ("dry-run", "run"):
        ended = terminal(command, "-p", shop)
        assert (ended.code, f"error [project.bad] {shop}/flows/other.py:2: SyntaxError" in ended.err) == (1, True), (command, ended.err)


def test_a_cycle_of_flows_hides_no_other_error(terminal: Terminal, tmp_path: Path) -> None:
    """Steps are checked as far as their columns are known: those of what is outside the cycle, and of streams in it that are declared with columns.

    | flow | reads                | writes  | wrong         |
    |------|----------------------|---------|---------------|
    | one  | x, without columns   | y       | cannot be told |
    | one  | s                    | sold    | a column of s |
    | two  | y, which it declares | x       | a column of y |
    """
    (tmp_path / "flows").mkdir()
    (tmp_path / "righttime.toml").write_text("[project]\n")
    (tmp_path / "flows" / "one.py").write_text(
        'import righttime as rt\none = rt.Flow("one")\none.stream("x").where("nobody > 0").into("y", keys=["id"])\n'
        'one.stream("s", "id INT, qty INT", keys=["id"]).where("qtty > 0").into("sold", keys=["id"])\n'
    )
    (tmp_path / "flows" / "two.py").write_text(
        'import righttime as rt\ntwo = rt.Flow("two")\ntwo.stream("y", "id INT, v INT", keys=["id"]).derive(w="vv + 1").into("x", keys=["id"])\n'
    )

    ended = terminal("dry-run", "-p", tmp_path)

    assert (ended.code, re.findall(r"error \[(.*?)\]", ended.err)) == (1, ["flow.cycle", "flow.unknown", "flow.unknown"]), ended.err
    assert f"{tmp_path}/flows/one.py:4: there is no column 'qtty'" in ended.err, ended.err
    assert f"{tmp_path}/flows/two.py:3: there is no column 'vv'" in ended.err, ended.err


def test_a_flow_that_fails_ends_the_command_with_its_reason(terminal: Terminal, shop: Path) -> None:
    """Another flow of the project gets through."""
    change(shop, 'lines.expect("positive", "qty > 0", otherwise="drop")', 'lines.expect("many", "qty > 100", otherwise="fail")')
    (shop / "flows" / "other.py").write_text('import righttime as rt\nother = rt.Flow("other")\nother.stream("item").into("item_copy", keys=["item_id"])\n')

    ended = terminal("run", "-p", shop)

    assert ended.code == 1
    assert ended.err.count("error [") == 1 and "error [flow." in ended.err and "many" in ended.err, ended.err
    assert re.search(r"other +\d+ +5 +\d+ +", ended.out), ended.out
    assert json.loads(terminal("sql", "SELECT count(*) AS n FROM item_copy", "-w", shop, "--format", "json").out) == [{"n": 5}]


def test_wrong_usage_is_told_apart(terminal: Terminal, shop: Path, tmp_path: Path) -> None:
    """Exit code 2 for options that do not fit, 1 for a folder that is no project."""
    assert terminal("run", "-p", shop, "--listen", "127.0.0.1:0").code == 2
    assert terminal("run", "-p", shop, "--keep", "--listen", "nonsense").code == 2
    assert terminal("run", "-p", shop, "--flow", "sales", "--token-file", "x").code == 2
    assert terminal("run", "-p", tmp_path).err.startswith("error [project.none]")
    assert terminal("dry-run", "-p", tmp_path / "missing").err.startswith("error [project.none]")


@contextlib.contextmanager
def kept(shop: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`righttime run --keep --listen` as a process of its own, which writes to `errors.txt`, and the address it serves."""
    command = [sys.executable, "-m", "righttime.cli", "run", "--keep", "--listen", "127.0.0.1:0"]
    with (shop / "errors.txt").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=ENVIRONMENT, cwd=shop)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        yield process, next(line for line in lines if line.startswith("Serving ")).split()[-1]
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.slow
def test_flows_that_are_kept_serve_others(terminal: Terminal, shop: Path) -> None:
    """Other processes feed, ask, explain and look at jobs over Flight; SIGTERM to all its processes ends it with 0, and everything is there afterwards."""
    with kept(shop) as (process, address):
        fed = subprocess.run([sys.executable, "feed.py", "2", address], env=ENVIRONMENT, cwd=shop, capture_output=True, text=True, check=False)
        assert fed.stdout.startswith("appended 2 purchases") and "nothing is loaded" not in fed.stdout, (fed.stdout, fed.stderr)

        ended = terminal("sql", TOTALS, "-w", address, "--format", "json", "--no-receipt")
        assert ended.code == 0, ended.err
        told = json.loads(terminal("explain", TOTALS, "-w", address, "--json").out)
        assert (told["tables"], told["shared"], told["flows"]) == (["store_sales"], True, [])
        (status,) = json.loads(terminal("status", "-w", address, "--json").out)["flows"]
        assert (status["running"], status["trouble"], status["rows_waiting"]) == (True, "", 0)
        assert list(status["jobs"][0]["seconds"]) == ["prepare_s", "wait_s", "compute_s", "publish_s"]
        shown = terminal("status", "-w", address).out
        assert re.search(r"sales +runs ", shown) and "Last jobs of sales: ░ prepare, · wait, █ compute, ▓ publish" in shown

        _ends_well(process, signal.SIGTERM, shop)
    assert json.loads(ended.out)[0] == totals(shop)


@pytest.mark.slow
def test_ctrl_c_ends_flows_that_are_kept(loaded: Path) -> None:
    """Also before anybody has asked, and if there was nothing to load."""
    with kept(loaded) as (process, _):
        _ends_well(process, signal.SIGINT, loaded)


def _ends_well(process: subprocess.Popen[str], number: signal.Signals, shop: Path) -> None:
    """A shell signals the whole process group, systemd all processes of a service: Spark's are still there when the flows stop, so it ends with 0."""
    for pid in [*reversed(descendants(process.pid)), process.pid]:
        os.kill(pid, number)
    assert process.wait(timeout=60) == 0, (shop / "errors.txt").read_text()
    assert "error [" not in (shop / "errors.txt").read_text()
    with rt.open(shop / "warehouse", read_only=True) as wh:
        assert (wh.losses(), [flow.rows_waiting for flow in wh.status().flows]) == ([], [0])


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have, parents first."""
    mine = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return [each for child in mine for each in (child, *descendants(child))]
