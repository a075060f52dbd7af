"""One name, one thing: streams, tables, views and the tables of flows share their names."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import righttime as rt
from righttime.errors import BadDeclaration, NameTaken, NotATable, UnknownTable


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[rt.Warehouse]:
    with rt.open(tmp_path / "wh") as opened:
        opened.create_stream("visit", "id INT", keys=["id"])
        opened.create_table("doctor", "id INT", keys=["id"], unique=True)
        opened.create_view("doctors", "SELECT * FROM doctor")
        yield opened


@pytest.mark.parametrize(
    ("kind", "declare"),
    [
        ("stream", lambda wh: wh.create_table("Visit", "id INT")),
        ("stream", lambda wh: wh.create_table("visit", "id INT", if_not_exists=True)),
        ("stream", lambda wh: wh.create_view("visit", "SELECT * FROM doctor")),
        ("table", lambda wh: wh.create_stream("Doctor", "id INT")),
        ("view", lambda wh: wh.create_stream("doctors", "id INT", if_not_exists=True)),
        ("view", lambda wh: wh.tap("doctor", stream="doctors")),
    ],
)
def test_a_name_that_something_else_has_is_refused(wh: rt.Warehouse, kind: str, declare: Callable[[rt.Warehouse], object]) -> None:
    """Both ways, whatever was first, and nothing is declared."""
    with pytest.raises(NameTaken, match=f"There is a {kind} ") as caught:
        declare(wh)

    assert caught.value.code == "name.taken"
    assert (wh.streams(), wh.tables(), list(wh.views())) == (["visit"], ["doctor"], ["doctors"])


@pytest.mark.parametrize(
    "use",
    [
        lambda wh: wh.sql("SELECT * FROM Visit"),
        lambda wh: wh.sql("SELECT * FROM doctors JOIN visit USING (id)"),
        lambda wh: wh.read("VISIT"),
        lambda wh: wh.snapshot("visit"),
        lambda wh: wh.explain("SELECT * FROM visit"),
        lambda wh: wh.schema("visit"),
        lambda wh: wh.create_view("visits", "SELECT * FROM visit"),
        lambda wh: wh.producer(name="p").insert("visit", {"id": 1}),
    ],
)
def test_a_stream_where_a_table_is_meant_is_called_a_stream(wh: rt.Warehouse, use: Callable[[rt.Warehouse], object]) -> None:
    """Nobody is told to create a table of its name, which would be refused; the error is still that of an unknown table."""
    with pytest.raises(UnknownTable, match=r"(?i)'visit' is a stream, not a table.*changes\(\).*into\(") as caught:
        use(wh)
    assert caught.value.code == "table.is_stream"
    with pytest.raises(UnknownTable, match="create_table"):
        wh.read("nothing")


def test_a_handle_that_only_reads_tells_streams_from_tables(wh: rt.Warehouse) -> None:
    """As the others do."""
    path = wh.path
    wh.close()
    with rt.open(path, read_only=True) as reader, pytest.raises(NotATable):
        reader.read("visit")


def test_the_stream_of_a_table_may_have_its_name(wh: rt.Warehouse) -> None:
    """A tap is the same thing, seen as changes; the table's name stays taken."""
    wh.tap("doctor")

    assert wh.streams() == ["doctor", "visit"]
    assert wh.create_table("doctor", "id INT", keys=["id"], unique=True, if_not_exists=True).name == "doctor"


def test_a_flow_writes_into_no_stream_and_no_view(wh: rt.Warehouse) -> None:
    """The error names the line of into()."""
    wh.create_stream("other", "id INT", keys=["id"])
    for taken, kind in (("other", "stream"), ("doctors", "view")):
        flow = rt.Flow("f")
        flow.stream("visit").into(taken, keys=["id"])
        with pytest.raises(BadDeclaration, match=rf"test_stream_names.py:\d+: there is a {kind} '{taken}' already") as caught:
            wh.run(flow)
        assert caught.value.code == "flow.declaration"


@pytest.mark.parametrize(
    "declare",
    [
        lambda wh: wh.create_stream("f_dead_letters", "id INT"),
        lambda wh: wh.create_table("f_dead_letters", "id INT"),
        lambda wh: wh.create_view("f_dead_letters", "SELECT * FROM doctor"),
    ],
)
def test_the_dead_letters_of_a_flow_have_their_name_for_themselves(wh: rt.Warehouse, declare: Callable[[rt.Warehouse], object]) -> None:
    """Rows that fail would have no table to go to."""
    declare(wh)
    flow = rt.Flow("f")
    flow.stream("visit").into("visits", keys=["id"])

    with pytest.raises(BadDeclaration, match="'f_dead_letters' already, and the flow keeps its dead letters under this name"):
        wh.run(flow)

    assert wh.tables() == sorted({"doctor", *wh.tables()} - {"visits"})
