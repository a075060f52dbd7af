"""The command line without Spark: what it refuses, with a code and the reason, and what it says where something goes wrong on the way."""

import errno
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import typer
from rich.console import Console

import righttime as rt
from righttime.cli import console, run_flows
from righttime.cli.console import error_line
from righttime.cli.dry_run import look
from righttime.cli.init import init
from righttime.cli.options import project_at
from righttime.cli.run_flows import Load
from righttime.cli.serve import door_of, listen
from righttime.cli.sql import _print_csv, _print_json, _print_table
from righttime.errors import AnswerUnreadable, BadProject, BadSetting, NoProject, NotAWarehouse, RightTimeError
from righttime.errors.flows import ProjectNotWritten
from righttime.flight.access import Tokens
from righttime.flight.health import HealthServer
from righttime.flows.catalogue import Catalogue, FlowEntry, Generation
from righttime.project import Project, load_project, warehouse_of
from righttime.query.answer import Answer
from tests.end_to_end.cli_support import Terminal, make_shop
from tests.unit.test_project import copy, write


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "240")
    return Terminal(capsys)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse that has one receipt."""
    folder = make_shop(tmp_path_factory.mktemp("refusals") / "shop")
    with rt.open(folder) as wh:
        wh.read("sale")
    return folder


@pytest.mark.parametrize("columns", [None, "80"], ids=["in a pipe", "in little room"])
def test_a_receipt_is_never_cut_off(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str | None) -> None:
    """Whoever reads a pipe gets each row in one line, whole; in little room what is long runs over several lines."""
    monkeypatch.delenv("COLUMNS") if columns is None else monkeypatch.setenv("COLUMNS", columns)
    source = "the-till-of-" + "-and-of-".join(f"house-{number}" for number in range(9))
    with rt.open(tmp_path / "wh") as wh:
        wh.create_table("sale", "sku INT")
        with wh.producer(name=source) as load:
            load.insert("sale", (1,))
            load.commit(durability="log")
        receipt = wh.read("sale").receipt

    shown = terminal("receipt", "show", receipt.receipt_id, "-w", tmp_path / "wh").out

    assert "…" not in shown
    if columns is None:
        assert re.search(rf"^{source} +1 at \S+ \S+ UTC +none known *$", shown, re.MULTILINE), shown
    else:
        assert max(map(len, shown.splitlines())) <= 80


# -- what happens on the way --------------------------------------------------------------------------------------------


class Failing:
    """A flow that fails in a way that nobody has a name for."""

    failure = None
    _rebuilding = False

    def wait(self) -> None:
        raise ValueError("the well is dry")


def failed_load() -> Load:
    load = Load(SimpleNamespace(_writer=lambda what: None), SimpleNamespace(name="sales", targets=()), Failing())  # type: ignore[arg-type]
    load.run()
    return load


def test_a_flow_that_fails_unexpectedly_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    """Type and text of the cause are in the line; the traceback is shown on request only."""
    assert run_flows._say_failures([failed_load()], debug=False)
    shown = capsys.readouterr().err
    assert "error [bug] ValueError: the well is dry" in shown
    assert "Traceback" not in shown

    assert run_flows._say_failures([failed_load()], debug=True)
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "in wait" in shown


def test_flows_that_are_stopped_before_they_are_done_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A stop is no failure, so the exit code is 0; what the next run has to do is told."""
    done = failed_load()
    done.error = None
    under_way = failed_load()
    under_way.flow = SimpleNamespace(name="returns", targets=())  # type: ignore[assignment]
    under_way.ended = False
    wh: Any = SimpleNamespace(flows=lambda: [SimpleNamespace(name="returns", rows_waiting=1234), SimpleNamespace(name="sales", rows_waiting=0)])

    run_flows._say_unfinished(wh, [done, under_way])

    assert capsys.readouterr().err == "Stopped before returns was up to date: 1,234 changes wait for the next run.\n"


def test_a_stop_before_targets_are_built_anew_says_how_that_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    """A plain run may be refused, for the declaration has changed, and takes other changes."""
    load = failed_load()
    load.ended = False
    load.running._rebuilding = True  # type: ignore[misc]
    run_flows._say_unfinished(SimpleNamespace(flows=lambda: [SimpleNamespace(name="sales", rows_waiting=7)]), [load])  # type: ignore[arg-type]
    assert capsys.readouterr().err == ("Stopped before sales was built anew: its tables stay as they were; `righttime run --refresh sales` begins again.\n")


def test_one_change_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """And does not "wait"."""
    load = failed_load()
    load.ended = False
    wh: Any = SimpleNamespace(flows=lambda: [SimpleNamespace(name="sales", rows_waiting=1)])
    run_flows._say_unfinished(wh, [load])
    assert capsys.readouterr().err == "Stopped before sales was up to date: 1 change waits for the next run.\n"


def test_ctrl_c_names_what_is_left_at_once_and_gives_up_the_drains(capsys: pytest.CaptureFixture[str]) -> None:
    """A drain may take minutes, and nothing of it counts before it is published."""
    done: list[str] = []
    under_way = failed_load()
    under_way.ended = False
    flows = SimpleNamespace(give_up=lambda: done.append(capsys.readouterr().err))
    wh: Any = SimpleNamespace(flows=lambda: [SimpleNamespace(name="sales", rows_waiting=7)], _flows=lambda what: flows)

    with pytest.raises(KeyboardInterrupt), run_flows._giving_up(wh), run_flows._naming_unfinished(wh, [under_way]):
        raise KeyboardInterrupt

    assert done == ["Stopped before sales was up to date: 7 changes wait for the next run.\n"]


def test_materialize_lists_the_tables_that_were_stored(terminal: Terminal, tmp_path: Path) -> None:
    """Also where updates leave as many rows as before, and deletes fewer.

    | table   | before | now | why |
    |---------|--------|-----|-----|
    | sale    | 3      | 3   | an update |
    | product | 2      | 1   | a delete |
    | store   | 1      | 1   | nothing happened |
    """
    with rt.open(tmp_path / "shop") as wh:
        for name in ("sale", "product", "store"):
            wh.create_table(name, "sku INT, title STRING", keys=["sku"])
        with wh.producer(name="till") as load:
            load.insert_many("sale", [(1, "a"), (2, "b"), (3, "c")])
            load.insert_many("product", [(1, "a"), (2, "b")])
            load.insert("store", (1, "a"))
            load.commit(materialize=True)
            load.update("sale", {"title": "z"}, {"sku": 1})
            load.delete("product", {"sku": 2})
            load.commit(durability="log")

    stored, again = terminal("materialize", "-w", tmp_path / "shop"), terminal("materialize", "-w", tmp_path / "shop")

    assert (stored.code, again.code) == (0, 0)
    assert re.search(r"^sale +3 +3 +\d+", stored.out, re.MULTILINE)
    assert re.search(r"^product +2 +1 +\d+", stored.out, re.MULTILINE)
    assert "store " not in stored.out
    assert re.search(r"State \d+: 2 tables stored\.", stored.out)
    assert re.search(r"State \d+: nothing to store\.", again.out)


def test_a_table_that_is_created_meanwhile_is_no_error(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may declare tables at a service between two looks at it."""
    shop = make_shop(tmp_path / "shop")
    materialize = rt.Warehouse.materialize

    def busy(self: rt.Warehouse, *tables: str, **options: Any) -> int:
        self.create_table("late", "sku INT")
        with self.producer(name="other") as load:
            load.insert("late", (1,))
            load.commit()
        return materialize(self, *tables, **options)

    monkeypatch.setattr(rt.Warehouse, "materialize", busy)
    ended = terminal("materialize", "-w", shop)

    assert ended.code == 0, ended.err
    assert re.search(r"^late +0 +1 +\d+", ended.out, re.MULTILINE)


def test_csv_into_a_closed_pipe_fails_while_the_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As JSON and tables do; Python would find out at its end only, where nobody gives the exit code of a command."""
    reading, writing = os.pipe()
    os.close(reading)
    receipt: Any = None
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(BrokenPipeError):
            _print_csv(Answer(pa.table({"sku": [1]}), receipt, to_df=lambda table: None))
        os.dup2(os.open(os.devnull, os.O_WRONLY), pipe.fileno())


@pytest.mark.parametrize("show", [_print_csv, _print_json, _print_table])
def test_an_answer_that_python_cannot_read_prints_nothing(capsys: pytest.CaptureFixture[str], show: Callable[[Answer], None]) -> None:
    """A time after the year 9999 is named by its column, with what a query can do about it, and no half of an answer is printed."""
    receipt: Any = None
    times = pa.array([2**60], pa.timestamp("us"))
    with pytest.raises(AnswerUnreadable) as caught:
        show(Answer(pa.table({"sku": [1], "sold": times}), receipt, to_df=lambda table: None))
    assert capsys.readouterr().out == ""
    assert error_line(caught.value).plain.endswith("Cast the column to STRING in the query.")


# -- folders that cannot be used ----------------------------------------------------------------------------------------

_GUEST = """
import os, sys
from righttime.cli import run
os.setgid(65534)
os.setuid(65534)
for words in ({commands}):
    print(run([word.replace("HERE", sys.argv[1]) for word in words.split()]), flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_folders_without_rights_are_refused_with_the_reason() -> None:
    """Neither a lock nor a ledger, a project or a parent folder that somebody else has closed is a bug of ours."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        make_shop(Path(place) / "shop")
        (Path(place) / "closed" / "shop").mkdir(parents=True)
        (Path(place) / "closed").chmod(0o700)
        make_shop(Path(place) / "unread")
        (Path(place) / "unread" / "ledger.db").chmod(0o600)
        (Path(place) / "paper").write_text("{}")
        (Path(place) / "paper").chmod(0o600)
        commands = [
            "materialize -w HERE/shop",
            "status -w HERE/unread",
            "status -w HERE/closed/shop",
            "init HERE/new",
            "init HERE/closed/shop",
            "run -p HERE/closed/shop",
            "receipt verify HERE/paper -w HERE/shop",
            "receipt verify HERE/closed/paper -w HERE/shop",
        ]
        program = _GUEST.format(commands=", ".join(map(repr, commands)))
        ended = subprocess.run([sys.executable, "-c", program, place], capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "240"})

    assert ended.stdout.split() == ["1"] * 8, ended.stderr
    codes = re.findall(r"error \[([\w.]+)\]", ended.stderr)
    assert codes == [
        "warehouse.not_one",
        "warehouse.not_one",
        "project.bad",
        "project.not_written",
        "project.not_written",
        "project.none",
        *["receipt.forged"] * 2,
    ], ended.stderr
    assert ended.stderr.count("Permission denied") == 8


def test_an_init_that_fails_half_way_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next one would be refused because of files that the first one wrote; what was there before stays."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "notes.txt").write_text("mine")
    write_text = Path.write_text
    written: list[Path] = []

    def full(path: Path, text: str, **options: Any) -> int:
        if len(written) == 3:
            write_text(path, text[:5], **options)
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        written.append(path)
        return write_text(path, text, **options)

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        with pytest.raises(ProjectNotWritten, match="No space left"):
            init(tmp_path / "shop")
        with pytest.raises(ProjectNotWritten, match="No space left"):
            init(tmp_path / "new" / "shop")

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["notes.txt", "shop"]
    init(tmp_path / "shop")
    assert (tmp_path / "shop" / "righttime.toml").exists()


def test_a_project_below_a_file_is_none(tmp_path: Path) -> None:
    """Whatever is in the way, the refusal has a code."""
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "missing"):
        with pytest.raises(NoProject, match="no such folder"), project_at(folder):
            raise AssertionError("never entered")
    with pytest.raises(ProjectNotWritten, match="Not a directory"):
        init(tmp_path / "file" / "below")


@pytest.mark.parametrize("words", [["status", "-w"], ["materialize", "-w"], ["serve"], ["dry-run", "-p"], ["init"]])
def test_a_home_of_nobody_is_no_bug(terminal: Terminal, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~nobody_of_this_name/x` stands for the home of a user that there is not; where ~ is not read, it is a name like any other."""
    monkeypatch.chdir(tmp_path)
    ended = terminal(*words, "~nobody_of_this_name/x")
    assert "[bug]" not in ended.err
    assert ended.code == (0 if words == ["init"] else 1)


@pytest.mark.parametrize("path", ["~nobody_of_this_name/x", "a\0b", 123, b"shop", None])
def test_what_is_no_path_is_no_warehouse(path: Any) -> None:
    """Also for programs."""
    with pytest.raises(NotAWarehouse):
        rt.open(path)


def test_a_certificate_in_a_home_of_nobody_is_refused() -> None:
    with pytest.raises(BadSetting, match="nobody_of_this_name"):
        rt.open("righttime://127.0.0.1:1", tls_ca="~nobody_of_this_name/ca.pem")


# -- addresses that do not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warehouse", ["mysql://db/shop", "postgresql://%zz/shop", "postgresql://h:port/shop"])
def test_a_dry_run_takes_only_an_empty_database_for_a_new_warehouse(warehouse: str, tmp_path: Path) -> None:
    """An address that can never be one is refused by the dry run, not first by the run."""
    with pytest.raises(NotAWarehouse):
        look(Project(tmp_path, warehouse, (), ()))


def test_a_dry_run_compares_a_flow_with_the_state_that_it_goes_on_with(tmp_path: Path) -> None:
    """A refresh with another declaration that never came to its end says nothing about the flow: a run goes on with what there was before."""
    rt.open(tmp_path / "warehouse").close()
    begun = Generation(2, 7, "new", ("s",), ("t",))
    Catalogue(tmp_path / "warehouse" / "flows").write(FlowEntry("f", (Generation(1, 1, "old", ("s",), ("t",)), begun)))
    assert look(Project(tmp_path, str(tmp_path / "warehouse"), (), ())).fingerprints == {"f": "old"}


@pytest.mark.parametrize(("command", "option"), [("run", "--flow"), ("run", "--refresh"), ("dry-run", "--flow")])
def test_a_flow_that_there_is_not_is_wrong_usage(terminal: Terminal, tmp_path: Path, command: str, option: str) -> None:
    """The project is right, the option is not: the flows that there are are listed. Where a file cannot be read, that is what is wrong."""
    write(tmp_path, a=copy("first"), b=copy("second"))
    ended = terminal(command, "-p", tmp_path, option, "nonsense")
    assert (ended.code, "righttime.toml" in ended.err) == (2, False)
    assert f"Invalid value for {option}: there is no flow 'nonsense' in the project; there are: first, second" in " ".join(ended.err.split()), ended.err

    write(tmp_path, c="nonsense = ")
    broken = terminal(command, "-p", tmp_path, option, "nonsense")
    assert (broken.code, "error [project.bad]" in broken.err) == (1, True)


def test_an_init_into_a_folder_that_has_some_of_it_names_the_folder(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a dot."""
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("mine")
    ended = terminal("init", ".")
    assert f"Nothing was written to {tmp_path}, because of what is there already: README.md. Choose another folder" in ended.err


def test_a_project_that_was_never_run_says_what_makes_its_warehouse(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is there, and when its streams are fed and no table is made yet; who names the warehouse itself learns that there is none."""
    write(tmp_path, a=copy("first"))
    for words in (["status"], ["sql", "SELECT * FROM first_copy"], ["explain", "SELECT 1 FROM t"], ["receipt", "list"], ["materialize"]):
        new = terminal(*words, "-w", tmp_path)
        assert new.err.startswith(f"error [warehouse.not_yet] The project in {tmp_path} has no warehouse yet: {tmp_path}/warehouse is made"), new.err
        assert "`righttime run`" in new.err and new.code == 1
    monkeypatch.chdir(tmp_path)
    assert terminal("status").err.startswith(f"error [warehouse.not_yet] The project in {tmp_path} has")
    assert terminal("status", "-w", tmp_path / "warehouse").err.startswith("error [warehouse.not_one]")

    with rt.open(tmp_path / "warehouse") as wh:
        wh.create_stream("s", "id INT")
    assert "No tables yet: `righttime run` makes those" in terminal("status").out
    asked = terminal("sql", "SELECT * FROM first_copy")
    assert "error [table.unknown]" in asked.err and "tables of flows are made by `righttime run`" in asked.err and "create_table" not in asked.err


def test_flows_in_a_cycle_are_not_blamed_for_what_they_read(terminal: Terminal, tmp_path: Path) -> None:
    """That there is no stream of the name follows from the cycle; without a flow to look at, no Spark is started."""
    reader = "import righttime as rt\n{0} = rt.Flow('{0}')\n{0}.stream('{1}').into('{2}', keys=['id'])\n"
    write(tmp_path, a=reader.format("one", "x", "y"), b=reader.format("two", "y", "x"))
    ended = terminal("dry-run", "-p", tmp_path)
    assert (ended.code, re.findall(r"error \[(.*?)\]", ended.err)) == (1, ["flow.cycle"]), ended.err


@pytest.mark.parametrize("command", ["dry-run", "run"])
def test_a_project_is_not_run_through_a_service(terminal: Terminal, tmp_path: Path, command: str) -> None:
    """Streams and flows are with the process that has the warehouse open."""
    write(tmp_path, '[project]\nwarehouse = "righttime://127.0.0.1:8815"\n', a=copy("first"))
    ended = terminal(command, "-p", tmp_path)
    assert (ended.code, ended.err.startswith("error [project.bad]")) == (1, True), ended.err
    assert "righttime.toml" in ended.err and "run --keep --listen" in ended.err


def test_a_service_is_not_served(terminal: Terminal) -> None:
    """There is nothing to open at the address of a service but the service."""
    ended = terminal("serve", "righttime://127.0.0.1:8815")
    assert (ended.code, ended.err.startswith("error [warehouse.not_one]")) == (1, True), ended.err


def test_patterns_and_homes_of_a_project_are_checked(tmp_path: Path) -> None:
    """What Python cannot read as a pattern is named, with the file that has it; so is a home of nobody."""
    if sys.version_info < (3, 13):  # later ones take it for flows/*.py
        with pytest.raises(BadProject, match=r"righttime\.toml") as caught:
            load_project(write(tmp_path, '[project]\nflows = ["flows/**.py"]\n'))
        assert "flows/**.py" in str(caught.value)
    with pytest.raises(BadProject, match="nobody_of_this_name"):
        warehouse_of(write(tmp_path, '[project]\nwarehouse = "~nobody_of_this_name/x"\n'))


# -- ports --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_an_address_that_cannot_be_listened_on_says_why(terminal: Terminal, tmp_path: Path, taken: int) -> None:
    """In the words of the system: in use, unknown, not of this machine."""
    tokens = tmp_path / "tokens"
    tokens.write_text("somebody read,write 0123456789abcdef\n")
    tokens.chmod(0o600)
    in_use = terminal("serve", tmp_path / "shop", "--port", str(taken))
    unknown = terminal("serve", tmp_path / "shop", "--port", "0", "--host", "no.such.host.invalid", "--token-file", tokens)
    elsewhere = terminal("serve", tmp_path / "shop", "--port", "0", "--host", "192.0.2.1", "--token-file", tokens)

    assert [one.code for one in (in_use, unknown, elsewhere)] == [1, 1, 1]
    assert f"127.0.0.1:{taken}" in in_use.err and "Address already in use" in in_use.err
    assert "no.such.host.invalid" in unknown.err and "ArrowException" not in unknown.err
    assert "Cannot assign requested address" in elsewhere.err
    assert not (tmp_path / "shop").exists(), "nothing is made for a service that cannot listen"


def test_a_door_is_tried_before_any_flow_begins(terminal: Terminal, tmp_path: Path, taken: int) -> None:
    """A first load may take hours; a port that is taken, or an address for everybody without a token, is told before."""
    write(tmp_path, "[project]\n", a=copy("first"))
    for address, why in ((f"127.0.0.1:{taken}", "Address already in use"), ("0.0.0.0:0", "token-file"), ("[::]:0", "token-file")):
        ended = terminal("run", "-p", tmp_path, "--keep", "--listen", address)
        assert (ended.code, why in ended.err) == (1, True), ended.err
    assert not (tmp_path / "warehouse").exists()


def speaks_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not speaks_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    ("words", "host"),
    [pytest.param("[::1]:0", "::1", marks=needs_ipv6), pytest.param("::1:0", "::1", marks=needs_ipv6), ("127.0.0.1:0", "127.0.0.1")],
)
def test_hosts_are_read_in_both_spellings(words: str, host: str) -> None:
    """IPv6 addresses come with brackets or without."""
    door = run_flows._door(words, True, None, None, None)
    assert door is not None
    assert (door.host, door.port, door.tokens) == (host, 0, Tokens())


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_service_listens_on_ipv6(tmp_path: Path, host: str) -> None:
    """And prints the address that clients can open."""
    with rt.open(tmp_path / "shop") as wh:
        wh.create_table("sale", "sku INT")
        service = listen(wh, door_of(host, 0, None, None, None))
        try:
            assert service.address == f"righttime://[::1]:{service.port}"
            with rt.open(service.address) as there:
                assert there.tables() == ["sale"]
        finally:
            service.stop()


@pytest.mark.parametrize("words", ["nonsense", "[::1]", "host:99999", ":8815"])
def test_what_is_no_host_and_port_is_wrong_usage(words: str) -> None:
    with pytest.raises(typer.BadParameter, match="HOST:PORT"):
        run_flows._door(words, True, None, None, None)


@pytest.mark.parametrize("options", [["--port", "99999"], ["--port", "-1"], ["--metrics-port", "99999"]])
def test_ports_that_there_are_not_are_wrong_usage(terminal: Terminal, tmp_path: Path, options: list[str]) -> None:
    assert terminal("serve", tmp_path / "shop", *options).code == 2


def test_a_port_for_metrics_that_there_is_not_is_refused() -> None:
    """Also for programs."""
    nothing: Any = None
    with pytest.raises(RightTimeError, match="metrics-port"):
        HealthServer(host="127.0.0.1", port=99999, unready=nothing, status=nothing)


# -- receipts and queries that come as text -----------------------------------------------------------------------------


def receipt_text(shop: Path) -> str:
    with rt.open(shop, read_only=True) as wh:
        return wh.receipts(limit=1)[0].to_json()


def test_a_receipt_may_be_the_argument_itself(terminal: Terminal, shop: Path) -> None:
    """`receipt verify "$(cat receipt.json)"` is what people try first; spread over lines, too."""
    text = receipt_text(shop)
    assert terminal("receipt", "verify", text, "-w", shop).code == 0
    assert terminal("receipt", "verify", "\n" + json.dumps(json.loads(text), indent=4), "-w", shop).code == 0


@pytest.mark.parametrize(
    ("receipt", "code", "words"),
    [
        ("x" * 5000, "receipt.unknown", ""),
        ("a\0b", "receipt.unknown", ""),
        ("./recipt.json", "receipt.unknown", "no file"),
        ("{not json", "receipt.forged", ""),
    ],
)
def test_what_is_no_receipt_is_refused_with_a_code(terminal: Terminal, shop: Path, receipt: str, code: str, words: str) -> None:
    """A name that is too long for a file, and one that was mistyped."""
    ended = terminal("receipt", "verify", receipt, "-w", shop)
    assert (ended.code, ended.err.startswith(f"error [{code}] "), words in ended.err) == (1, True, True), ended.err


def test_a_query_that_is_no_text_is_refused(terminal: Terminal, shop: Path) -> None:
    """Bytes that are no UTF-8 come from a shell as half characters."""
    ended = terminal("sql", "SELECT '\udcff'", "-w", shop)
    assert (ended.code, ended.err.startswith("error [sql.refused] ")) == (1, True), ended.err


def test_debug_reaches_a_flow_that_fails(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option stands before the command, and counts for what fails in its threads."""
    write(tmp_path, "[project]\n", a=copy("first"))
    monkeypatch.setattr(run_flows, "_start", lambda wh, flows, anew: [failed_load()])
    monkeypatch.setattr(run_flows, "_watch", lambda wh, loads, stop: None)
    plain, debug = terminal("run", "-p", tmp_path), terminal("--debug", "run", "-p", tmp_path)
    assert (plain.code, debug.code) == (1, 1)
    assert ("Traceback" in plain.err, "Traceback" in debug.err) == (False, True)
    assert "ValueError: the well is dry" in plain.err


@pytest.mark.parametrize(("command", "code"), [(["receipt", "verify"], "receipt.forged"), (["sql"], "sql.refused")])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_standard_input_that_is_no_text_is_refused(
    terminal: Terminal, shop: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], code: str, errors: str
) -> None:
    """In the C locale Python lets such bytes through, as half characters that no one can write."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"SELECT '\xff\xfe'"), encoding="utf-8", errors=errors))
    ended = terminal(*command, "-", "-w", shop)
    assert (ended.code, ended.err.startswith(f"error [{code}] ")) == (1, True), ended.err


def test_only_a_terminal_is_told_what_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error of a pipe has results and errors, and nothing else."""
    for interactive in (True, False):
        seen = io.StringIO()
        made = Console(file=seen, force_terminal=interactive, force_interactive=interactive)
        monkeypatch.setattr(console, "err", lambda made=made: made)
        with console.busy("Starting Spark …"):
            pass
        assert ("Starting Spark" in seen.getvalue()) == interactive
