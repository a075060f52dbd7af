"""`righttime init`: a small project that works, to start from.

In: a folder that is new, or has none of the project's files.
Out: the files, and what to do next.
Promise: writes over nothing; if one file is there already, or one cannot be written, nothing is left behind.
"""

from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from righttime.cli.console import out, plain
from righttime.errors.flows import ProjectNotWritten, ProjectTaken

_QUERY = "SELECT store, sum(qty) AS qty, sum(amount) AS amount FROM store_sales GROUP BY store ORDER BY store"
_RENAMED = {"gitignore": ".gitignore"}


Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to write; made if it is new.", show_default="the current folder")]


def init(folder: Folder = Path()) -> None:
    """Write a small project: three streams of a shop, a flow into a star schema, and a program that feeds it."""
    content = dict(_files(files("righttime.cli") / "template", Path()))
    try:
        taken = sorted(str(name) for name in content if (folder / name).exists())
        if taken or (folder.exists() and not folder.is_dir()):
            raise ProjectTaken(path=folder.absolute(), names=", ".join(taken) or "a file of this name")
        _write(folder, content)
    except OSError as error:
        raise ProjectNotWritten(path=folder.absolute(), reason=error) from error
    _say(folder, sorted(str(name) for name in content))


def _write(folder: Path, content: Mapping[Path, str]) -> None:
    made: list[Path] = []  # files and folders that were not there before, in the order in which they came
    try:
        for path, text in ((folder / name, text) for name, text in content.items()):
            made += reversed([parent for parent in path.parents if not parent.exists()])
            path.parent.mkdir(parents=True, exist_ok=True)
            made.append(path)
            path.write_text(text, encoding="utf-8")
    except BaseException:
        # Half a project would keep the next attempt from writing the whole one.
        for path in reversed(made):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        raise


def _files(place: Traversable, below: Path) -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    for each in sorted(place.iterdir(), key=lambda one: one.name):
        if each.is_dir() and each.name != "__pycache__":
            found += _files(each, below / each.name)
        elif each.is_file():
            found.append((below / _RENAMED.get(each.name, each.name), each.read_text(encoding="utf-8")))
    return found


def _say(folder: Path, names: list[str]) -> None:
    steps = [] if folder.resolve() == Path.cwd() else [f"cd {folder}"]
    steps += ["righttime dry-run", "python feed.py", "righttime run", f'righttime sql "{_QUERY}"']
    console = out()
    console.print(f"Wrote {plain(', '.join(names))} to {plain(folder.resolve())}", soft_wrap=True)
    console.print("[bold]Next[/]\n" + "\n".join(plain(step) for step in steps), soft_wrap=True)
