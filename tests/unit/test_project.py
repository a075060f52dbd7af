"""Projects: what a folder with `righttime.toml` declares, and what is said when something in it is wrong."""

import ast
import pickle
import re
import sys
from pathlib import Path

import pytest
from pyspark.serializers import CloudPickleSerializer

import righttime as rt
import righttime.cli
from righttime.cli.dry_run import declared_for
from righttime.cli.flows import progress_line, timeline
from righttime.errors import BadSetting
from righttime.errors.flows import BadDeclaration, BadProject, NoProject
from righttime.flows.jobs import FlowStatus, JobReport, UnderWay
from righttime.pipeline.flow import declared_at
from righttime.pipeline.nodes import Apply
from righttime.project import Project, load_project, warehouse_of
from righttime.queues.declared import declare_stream
from righttime.settings import load_settings

COPY = """
import righttime as rt
{name} = rt.Flow("{name}")
{name}.stream("{stream}", "id INT, v STRING", keys=["id"]).into("{table}", keys=["id"])
"""


def write(folder: Path, toml: str = "[project]\n", **files: str) -> Path:
    """Write a project; files by the name of their module in `flows`."""
    (folder / "flows").mkdir(exist_ok=True)
    (folder / "righttime.toml").write_text(toml)
    for name, text in files.items():
        (folder / "flows" / f"{name}.py").write_text(text)
    return folder


def copy(name: str, *, stream: str = "s", table: str | None = None) -> str:
    """Return a file that declares a flow from a stream to a table."""
    return COPY.format(name=name, stream=stream, table=table or f"{name}_copy")


def problems(project: Project) -> list[tuple[str, str]]:
    """Return the problems as pairs of a code and a message."""
    return [(problem.code, str(problem)) for problem in project.problems]


def test_a_project_names_its_warehouse_and_its_flows(tmp_path: Path) -> None:
    """Files come in the order of their names; the warehouse is a folder below the project unless an address is given."""
    project = load_project(write(tmp_path, '[project]\nwarehouse = "./wh"\nflows = ["flows/*.py"]\n', b=copy("second"), a=copy("first")))

    assert project.problems == ()
    assert [flow.name for flow in project.flows] == ["first", "second"]
    assert project.warehouse == str(tmp_path / "wh")
    assert list(project.streams) == ["s"]
    assert [flow.name for flow in project.chosen(["Second"])] == ["second"]
    write(tmp_path, '[project]\nwarehouse = "postgresql://loader@db/shop"\n')
    assert warehouse_of(tmp_path) == "postgresql://loader@db/shop"


def test_a_folder_without_the_table_is_no_project(tmp_path: Path) -> None:
    """Neither without the file nor with settings only; the warehouse is then whatever the user says."""
    with pytest.raises(NoProject, match="has no righttime"):
        load_project(tmp_path)
    (tmp_path / "righttime.toml").write_text("wait_s = 3\n")
    with pytest.raises(NoProject, match=r"no table \[project\]"):
        load_project(tmp_path)
    assert warehouse_of(tmp_path) is None


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ("[project]\nwarehose = 'x'\n", "knows no 'warehose'"),
        ("[project]\nwarehouse = 3\n", "must be a text"),
        ("[project]\nflows = 'flows/*.py'\n", "must be a list of patterns"),
        ("[project]\nflows = ['/etc/*.py']\n", "below the folder"),
        ("[project\n", "cannot be read"),
    ],
)
def test_a_bad_table_is_named(tmp_path: Path, toml: str, reason: str) -> None:
    """A mistyped name is an error, not a default."""
    with pytest.raises(BadProject, match=reason) as caught:
        load_project(write(tmp_path, toml))
    assert str(caught.value).startswith(str(tmp_path / "righttime.toml"))


def test_a_bad_file_hides_nothing_that_is_wrong_in_the_others(tmp_path: Path) -> None:
    """Each problem names the newest line of the project on the way to it, also for what righttime refused, and good flows are there."""
    write(
        tmp_path,
        broken="x = 1\ndef f(:\n",
        failing="import righttime as rt\n\ndef deeper():\n    return {}['price']\n\ndeeper()\n",
        importing="import nothing_of_this_name\n",
        leaving="import sys\nsys.exit('no')\n",
        refused='import righttime as rt\nflow = rt.Flow("refused")\nflow.stream("s").aggregate(by=["id"], n="median(v)")\n',
        sound=copy("sound"),
    )

    project = load_project(tmp_path)

    assert [flow.name for flow in project.flows] == ["sound"]
    found = problems(project)
    assert [code for code, _ in found] == ["project.bad", "project.bad", "project.bad", "project.bad", "flow.declaration"]
    places = ["broken.py:2", "failing.py:4", "importing.py:1", "leaving.py:2", "refused.py:3"]
    assert [text.startswith(f"{tmp_path / 'flows' / place}: ") for (_, text), place in zip(found, places, strict=True)] == [True] * 5
    assert "KeyError: 'price'" in found[1][1] and "ModuleNotFoundError" in found[2][1]


def test_two_flows_never_share_a_name_a_target_or_a_stream_with_other_columns(tmp_path: Path) -> None:
    """The later one is blamed, and the message says where the first one is."""
    other = copy("third").replace("id INT, v STRING", "id INT, v INT")
    project = load_project(write(tmp_path, a=copy("first"), b=copy("second", table="first_copy"), c=copy("first", table="elsewhere"), d=other))

    found = problems(project)
    assert [code for code, _ in found] == ["project.bad"] * 3
    assert found[0][1].startswith(f"{tmp_path}/flows/b.py:4: table 'first_copy' is a target of flow 'first', declared at {tmp_path}/flows/a.py:3")
    assert found[1][1].startswith(f"{tmp_path}/flows/c.py:3: flow 'first' is declared at {tmp_path}/flows/a.py:3 already")
    assert found[2][1].startswith(f"{tmp_path}/flows/d.py:4: stream 's' is declared otherwise in flow 'first', at {tmp_path}/flows/a.py:4")
    assert declared_for(project.flows[0], project)["s"] == project.flows[0].declared[0], "a dry run shows what this flow says, not the other"


def test_what_no_flow_can_do_alone_is_found_over_all_of_them(tmp_path: Path) -> None:
    """A cycle through two flows, a flow without a target, and a project without a flow."""
    cycle = load_project(write(tmp_path, a=copy("one", stream="x", table="y"), b=copy("two", stream="y", table="x")))
    assert [code for code, _ in problems(cycle)] == ["flow.cycle"]

    aimless = load_project(write(tmp_path, a='import righttime as rt\nflow = rt.Flow("aimless")\n', b=copy("two")))
    assert problems(aimless)[0][1].startswith(f"{tmp_path}/flows/a.py:2: no step goes into a table")

    for path in (tmp_path / "flows").iterdir():
        path.unlink()
    assert "no file of flows/*.py declares a flow" in problems(load_project(tmp_path))[0][1]


def test_flow_files_share_what_begins_with_an_underscore(tmp_path: Path) -> None:
    """A helper file is imported, not loaded; a flow that is imported by another file is one flow; nothing stays behind in the process."""
    shared = "from dataclasses import dataclass\nKEYS = ['id']\n\n@dataclass\nclass Rule:\n    name: 'str'\n\ndef upper(batch):\n    return batch\n"
    using = (
        "import righttime as rt\nfrom flows._shared import KEYS, Rule, upper\nflow = rt.Flow(Rule('using').name)\n"
        'flow.stream("s", "id INT", keys=KEYS).apply(upper, "id INT").into("t", keys=KEYS)\n'
    )
    before, path = set(sys.modules), list(sys.path)

    project = load_project(write(tmp_path, _shared=shared, a="from flows.c import flow\n", b=using, c="from flows.b import flow\n"))

    assert problems(project) == []
    assert [flow.name for flow in project.flows] == ["using"]
    assert (set(sys.modules) - before, sys.path) == (set(), path)
    (apply,) = [node for node in project.flows[0].nodes().values() if isinstance(node, Apply)]
    sent = CloudPickleSerializer().dumps(apply.function)  # type: ignore[no-untyped-call]
    assert pickle.loads(sent)(7) == 7, "Spark's workers do not know the folder, so the function itself must travel"


def test_settings_stand_beside_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table [project] is no setting; every other name that is none is still refused, and so is a file that cannot be read."""
    monkeypatch.chdir(write(tmp_path, "wait_s = 3\n[project]\nwarehouse = 'wh'\n"))
    assert load_settings().wait_s == 3.0
    for toml in ("projekt = 1\n", "project = 'x'\n", "wait_s = \n"):
        write(tmp_path, toml)
        with pytest.raises(BadSetting):
            load_settings()


def test_a_flow_declares_its_streams() -> None:
    """With columns, as `create_stream` takes them; with a name only, it reads a stream that is there."""
    flow = rt.Flow("sales")
    lines = flow.stream("line")  # read before it is declared
    flow.stream("Line", "id INT, qty INT", keys="id", on_bad="dead_letter")
    flow.stream("other")

    line = declare_stream("line", "id INT, qty INT", keys=["id"], on_bad="dead_letter")
    assert flow.declared == (line,)
    assert flow.stream("line").node is lines.node
    assert flow.missing({}) == [line]
    assert flow.missing({"line": line}) == []
    with pytest.raises(
        BadDeclaration, match=r"exists with another declaration: its keys are none, given id; its on_bad is 'error', given 'dead_letter'. Cor"
    ) as caught:
        flow.missing({"line": declare_stream("line", "id INT, qty INT")})
    assert caught.value.context["origin"].line == lines.node.origin.line + 1, "the line that declares it"


def test_a_wrong_declaration_of_a_stream_points_at_its_line() -> None:
    """Bad columns, keys that are none of them, options without columns, and two declarations that differ."""
    flow = rt.Flow("sales")
    flow.stream("line", "id INT")
    for reason, options in [
        ("stream 'a'", {"columns": "id WRONG"}),
        ("stream 'a'", {"columns": "id INT", "keys": ["other"]}),
        ("stream 'a'", {"columns": "id INT", "tolerance": "soon"}),
        ("without columns", {"keys": ["id"]}),
    ]:
        with pytest.raises(BadDeclaration, match=reason) as caught:
            flow.stream("a", **options)  # type: ignore[arg-type]
        assert caught.value.context["origin"].file == __file__
    with pytest.raises(BadDeclaration, match=rf"declared otherwise at {re.escape(str(declared_at(flow, 'line')))}"):
        flow.stream("line", "id INT, more INT")


def test_a_written_project_uses_what_the_reference_names() -> None:
    """Programs of users begin as copies of it: it imports nothing of ours that is internal."""
    programs = [path.read_text(encoding="utf-8") for path in (Path(righttime.cli.__file__).parent / "template").rglob("*.py")]
    imported = {
        name
        for program in programs
        for node in ast.walk(ast.parse(program))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names] if isinstance(node, ast.Import) else [])
        if name is not None and name.partition(".")[0] == "righttime"
    }
    assert imported == {"righttime", "righttime.errors"}


@pytest.mark.parametrize(
    ("waiting", "under_way", "line"),
    [
        (5000, None, "sales: 0 of 5,000 changes taken, 0 %, 0 jobs"),
        (5000, UnderWay(5000, 12.0), "sales: 0 of 5,000 changes taken, 0 %, 0 jobs; 5,000 being computed for 12.00 s"),
        (2000, UnderWay(1000, 0.5), "sales: 3,000 of 5,000 changes taken, 60 %, 0 jobs; 1,000 being computed for 500 ms"),
        (0, None, "sales: 5,000 changes taken, 100 %, 0 jobs; storing the tables"),
        (0, UnderWay(90_000, 3.0, (1, 4)), "sales: built anew from 90,000 changes, 1 of 4 parts, 25 %, computing for 3.00 s"),
        (0, UnderWay(90, 3.0, (0, 1)), "sales: built anew from 90 changes, computing for 3.00 s"),
    ],
)
def test_progress_tells_what_is_known(waiting: int, under_way: UnderWay | None, line: str) -> None:
    """What can be seen, and what is on its way: a drain has no share that is done, and a refresh is shown at the end."""
    status = FlowStatus("sales", True, "", (), (), 0, waiting, 0, 0.0, ())
    assert progress_line(status, 5000, under_way) == line


def test_a_timeline_shows_where_the_time_went() -> None:
    """As long as asked, in proportion, and a step that took any time is seen."""
    job = JobReport(1, "query", 0, 10, 5, 1, {"prepare_s": 0.0001, "wait_s": 0.0, "compute_s": 0.75, "publish_s": 0.25})

    assert timeline(job, width=8) == "░█████▓▓"
    assert timeline(JobReport(1, "query", 0, 0, 0, 1, {}), width=8) == ""
