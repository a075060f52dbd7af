"""What pages say about the project holds: links, commands, and the words they use."""

import re
import shlex
from typing import Any

import pytest
import typer.main

from righttime.cli import app
from tests.docs.pages import ALL, DOCS, README, ROOT, Page

TARGETS = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    """A link to a file names one that is there; one to a heading names a heading of that page."""
    for target in page.links():
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        aim = (page.path.parent / file).resolve() if file else page.path
        assert aim.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in Page(aim).anchors(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_shell_blocks_name_commands_that_exist(page: Page) -> None:
    """`make` is given targets of the Makefile, `righttime` commands and options it has."""
    for block in page.blocks():
        if block.language == "sh":
            for line in block.code.splitlines():
                _check_command(shlex.split(line, comments=True))


def test_readme_names_the_two_commands_first() -> None:
    """The first shell block is what a newcomer types: the demo and the tests."""
    first = next(block for block in README.blocks() if block.language == "sh")
    assert [line.split("#")[0].split() for line in first.code.splitlines()] == [["make", "demo"], ["make", "test"]]


def test_every_how_to_is_linked_from_the_readme() -> None:
    """Nobody finds a page that nothing leads to."""
    linked = set(README.links())
    pages = {str(path.relative_to(ROOT)) for path in DOCS.rglob("*.md")}
    assert pages - linked == set()


def _check_command(words: list[str]) -> None:
    if words[:1] == ["make"]:
        assert {word for word in words[1:] if "=" not in word} <= TARGETS, words
    elif words[:1] == ["righttime"]:
        _check_righttime(words[1:])


def _check_righttime(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    for word in words:
        commands = getattr(command, "commands", {})
        if word.startswith("-") and word != "-":
            options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
            assert word.partition("=")[0] in options, f"{word} is no option of {command.name}"
        elif commands:
            assert word in commands, f"righttime has no command {word}"
            command = commands[word]
