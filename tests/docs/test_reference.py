"""The reference is complete and says nothing that is not so: each page is compared with the code."""

import inspect
import re
from pathlib import Path

import pytest

import righttime
from righttime.changes import ddl
from righttime.query import dbapi
from righttime.settings import load_settings
from tests.docs import facts
from tests.docs.pages import REFERENCE


def test_api_page_has_every_signature_and_no_other() -> None:
    """Headings in code style are signatures; they are those of the public face, parameters and defaults included."""
    written = set(re.findall(r"^### `(.+)`$", REFERENCE["api"].text, re.MULTILINE))
    assert written == facts.api()


def test_api_page_names_everything_public() -> None:
    """Every name of `righttime.__all__` is on the page, and every field of the values that users read."""
    named = set(re.findall(r"`(?:righttime\.)?(\w+)[`.(]", REFERENCE["api"].text))
    assert set(righttime.__all__) - named == set()
    for kind in (righttime.Receipt, righttime.Verification, righttime.Commit, righttime.SourceCut):
        assert {name for name in kind.__dataclass_fields__ if not name.startswith("_")} - named == set()


def test_settings_page_has_every_setting_as_it_is() -> None:
    """Name, default, unit, environment name and meaning of each row are those of `Settings`, in its order."""
    assert [row for row in REFERENCE["settings"].tables() if len(row) == 5] == facts.settings_rows()


def test_settings_are_read_from_where_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument before environment before file, each for every setting that is text or a number."""
    monkeypatch.chdir(tmp_path)
    Path("righttime.toml").write_text('wait_s = 3\nqueries_max = 5\nspark_master = "local[1]"\n[spark_conf]\n"spark.ui.enabled" = "true"\n')
    monkeypatch.setenv("RIGHTTIME_WAIT_S", "4")
    monkeypatch.setenv("RIGHTTIME_SPARK_MASTER", "local[2]")
    monkeypatch.setenv("RIGHTTIME_WAREHOUSE", "shop")
    found = load_settings(spark_master="local[3]")
    assert (found.wait_s, found.queries_max, found.spark_master, found.spark_conf) == (4.0, 5, "local[3]", {"spark.ui.enabled": "true"})
    monkeypatch.setenv("RIGHTTIME_SPARK_CONF", '{"spark.executor.memory": "2g"}')
    assert load_settings().spark_conf["spark.executor.memory"] == "2g"


def test_errors_page_has_every_error_as_it_is() -> None:
    """Code, class, retryable, message and way out of each row are those of the tree, in its order."""
    assert [row for row in REFERENCE["errors"].tables() if len(row) == 5] == facts.error_rows()


def test_metrics_page_has_every_metric() -> None:
    """Those that the code counts and sets, and those that it makes of a status; and no others."""
    code = "".join(path.read_text() for path in Path(righttime.__file__).parent.rglob("*.py"))
    counted = set(re.findall(r"\.(?:counter|gauge)\(\s*\"(righttime_\w+)\"", code)) | set(re.findall(r"yield f?\"(righttime_\w+)", code))
    written = {name for row in REFERENCE["metrics"].tables() for name in re.findall(r"righttime_\w+", row[0])}
    assert written == counted


def test_cli_page_has_every_command_and_option() -> None:
    """Each command has a section with a row for each of its options and arguments, and no other."""
    page = REFERENCE["cli"].text.replace(r"\|", "|")
    sections = dict(re.findall(r"^## `(righttime[^`]*)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    written = {title: set(re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (`.*?) \|", body, re.MULTILINE)))) for title, body in sections.items()}
    assert written == facts.commands()


def test_sql_page_names_every_type() -> None:
    """The table of types has one row for each type a column can have."""
    written = {row[0].strip("`").partition("(")[0].partition("<")[0].partition("`")[0] for row in REFERENCE["sql"].tables() if len(row) == 3}
    assert written == {*ddl._NAMES.values(), "DECIMAL", "VARCHAR", "CHAR", "ARRAY", "MAP", "STRUCT"}


def test_dbapi_page_names_everything_public() -> None:
    """Every name of the PEP 249 module, and every public member of connections and cursors."""
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", REFERENCE["dbapi"].text))))
    members = {name for kind in (dbapi.Connection, dbapi.Cursor) for name, _ in inspect.getmembers(kind) if not name.startswith("_")}
    assert ({*dbapi.__all__, *members, "receipt", "rowcount", "arraysize", "lastrowid"} - named) == set()
