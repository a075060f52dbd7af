"""Every program on a page runs: the blocks of one page in order, in one namespace, in an empty folder."""

import contextlib
import io
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import righttime
from righttime import cli, service
from righttime.pipeline.spark import SparkOwner
from tests.docs.pages import NOT_RUN, RUNNABLE, Block, Page

_ON_SPARK = re.compile(r"(wh|load|reader|owner)\.sql\(|\.spark\b|insert_df|\.df\b|execute\(\s*\"SELECT|righttime sql|righttime receipt verify")
ON_SPARK = [page for page in RUNNABLE if any(_ON_SPARK.search(block.code) for block in page.blocks() if block.not_run is None)]
WITHOUT_SPARK = [page for page in RUNNABLE if page not in ON_SPARK]


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


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_a_block_that_is_not_run_says_why(page: Page) -> None:
    """The mark stands directly above its block and has a reason of at least three words; nothing else keeps a block from running."""
    marked = [block for block in page.blocks() if block.not_run is not None]
    assert len(NOT_RUN.findall(page.text)) == len(marked)
    assert all(len((block.not_run or "").split()) >= 3 for block in marked)
    assert {block.language for block in page.blocks()} <= {"python", "sh", "text", "sql", "toml"}


def _run(page: Page) -> None:
    namespace: dict[str, Any] = {"__name__": "__page__"}
    before = set(service._engines)
    for block in page.blocks():
        if block.not_run is None and block.language in ("python", "sh"):
            printed = _printed(page, block, namespace)
            if block.output is not None:
                assert re.fullmatch(_pattern(block.output), printed), f"{page.name}:{block.line} printed\n{printed}"
    assert set(service._engines) == before, f"{page.name} leaves a warehouse open"


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
