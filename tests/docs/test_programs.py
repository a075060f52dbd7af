"""Every program on a page runs: the blocks of one page in order, in one namespace, in an empty folder."""

import contextlib
import io
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import righttime
from righttime import cli, service
from righttime.pipeline.spark import SparkOwner
from tests.docs.pages import NOT_RUN, RUNNABLE, Block, Page
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database

_ON_SPARK = re.compile(r"(wh|load|reader|owner)\.sql\(|\.spark\b|insert_df|\.df\b|execute\(\s*\"SELECT|righttime sql|righttime receipt verify")
DATABASE = "SHOP_DATABASE"
"""The environment variable from which a page takes the address of its database."""

ON_POSTGRES = [page for page in RUNNABLE if any(DATABASE in block.code for block in page.blocks())]
ON_SPARK = [page for page in RUNNABLE if page not in ON_POSTGRES and any(_ON_SPARK.search(block.code) for block in page.blocks() if block.not_run is None)]
WITHOUT_SPARK = [page for page in RUNNABLE if page not in ON_SPARK and page not in ON_POSTGRES]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Programs that a page starts as processes of their own find the package, too.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(righttime.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize("page", WITHOUT_SPARK, ids=lambda page: page.name)
def test_page_without_spark_runs(page: Page) -> None:
    """What the page prints is what the program prints; at the end nothing is left open."""
    _run(page)


@pytest.mark.parametrize("page", ON_SPARK, ids=lambda page: page.name)
def test_page_on_spark_runs(page: Page, spark_owner: SparkOwner) -> None:
    """The same for pages that query or load with Spark; the run's session serves them all."""
    spark_owner.session()
    _run(page)


@pytest.fixture
def database(postgres: TempPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database; the page gets its address for the role `loader`, the test that of the superuser."""
    with psycopg.connect(postgres.dsn, autocommit=True) as administrator:
        try:
            with fresh_database(postgres) as url:
                monkeypatch.setenv(DATABASE, url.replace("postgres@", "loader@"))
                monkeypatch.setenv("RIGHTTIME_STATE_DIR", str(tmp_path / "state"))
                yield url
        finally:
            administrator.execute("DROP ROLE IF EXISTS loader, reader")


@pytest.mark.parametrize("page", ON_POSTGRES, ids=lambda page: page.name)
def test_page_on_postgresql_runs(page: Page, database: str, spark_owner: SparkOwner) -> None:
    """The same for pages that need a database. Their SQL blocks are run by its superuser: what they do not grant, the page's programs may not do."""
    spark_owner.session()
    _run(page, database=database)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_a_block_that_is_not_run_says_why(page: Page) -> None:
    """The mark stands directly above its block and has a reason of at least three words; nothing else keeps a block from running."""
    marked = [block for block in page.blocks() if block.not_run is not None]
    assert len(NOT_RUN.findall(page.text)) == len(marked)
    assert all(len((block.not_run or "").split()) >= 3 for block in marked)
    assert {block.language for block in page.blocks()} <= {"python", "sh", "text", "sql", "toml"}


def _run(page: Page, *, database: str | None = None) -> None:
    namespace: dict[str, Any] = {"__name__": "__page__"}
    before = set(service._engines)
    try:
        for block in page.blocks():
            if block.not_run is None and block.language in ("python", "sh"):
                printed = _printed(page, block, namespace)
                if block.output is not None:
                    assert re.fullmatch(_pattern(block.output), printed), f"{page.name}:{block.line} printed\n{printed}"
            elif block.language == "sql" and database is not None:
                with psycopg.connect(database, autocommit=True) as administrator:
                    administrator.execute(block.code.encode())
        assert set(service._engines) == before, f"{page.name} leaves a warehouse open"
    finally:
        left = _end_processes(namespace)
    assert not left, f"{page.name} leaves processes behind: {left}"


def _end_processes(namespace: dict[str, Any]) -> list[Any]:
    """Kill what a page started and did not end, and return the commands."""
    started = [value for value in namespace.values() if isinstance(value, subprocess.Popen)]
    left = [process for process in started if process.poll() is None]
    for process in left:
        process.kill()
        process.wait()
    return [process.args for process in left]


def _printed(page: Page, block: Block, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()) as noted:
        if block.language == "python":
            # Blank lines in front make a traceback name the page's own line.
            exec(compile("\n" * (block.line - 1) + block.code, page.name, "exec"), namespace)
        else:
            for line in block.code.splitlines():
                arguments = shlex.split(line, comments=True)
                if arguments and arguments[0] == "righttime":
                    assert cli.run(arguments[1:]) == 0, f"{page.name}:{block.line}: {line}\n{noted.getvalue()}"
    return printed.getvalue()


def _pattern(output: str) -> str:
    """Return the pattern of an output in which … stands for what differs from run to run; spaces at the ends of lines do not count."""
    lines = [r".*?".join(re.escape(part) for part in line.rstrip().split("…")) for line in output.rstrip().splitlines()]
    return r"[ ]*\n".join(lines) + r"\s*"
