"""What the commands have in common: the warehouse or the project, and how it is opened.

In: `--warehouse`, `--project`.
Out: open warehouses, loaded projects.
Promise: nothing here creates a warehouse; commands that only read leave it to its writer.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from righttime.changes.clock import SystemClock
from righttime.cli.console import err
from righttime.client import Warehouse, open
from righttime.errors import NoProject, NotAWarehouse, NoWarehouseYet
from righttime.flight.warehouse import is_service
from righttime.project import Project, load_project, warehouse_of

WarehousePath = Annotated[
    str,
    typer.Option(
        "--warehouse",
        "-w",
        metavar="PATH",
        envvar="RIGHTTIME_WAREHOUSE",
        show_default="the current folder",
        help="The warehouse: a folder, that of a project, postgresql://… or righttime://… (its token in RIGHTTIME_TOKEN, its certificate in RIGHTTIME_TLS_CA).",
    ),
]
ProjectPath = Annotated[
    Path,
    typer.Option("--project", "-p", metavar="PATH", show_default="the current folder", help="The project: a folder with righttime.toml. Work is done there."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def project_at(folder: Path) -> Iterator[Project]:
    """Load a project, in whose folder the block then works, so that settings and relative paths are those of the project."""
    with ExitStack() as here:
        try:
            here.enter_context(chdir(folder))
            inside = Path.cwd()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoProject(path=folder, reason="there is no such folder") from error
        except (OSError, ValueError) as error:
            raise NoProject(path=folder, reason=f"it cannot be entered ({error})") from error
        yield load_project(inside)


def _warehouse(path: str) -> str:
    """Return the warehouse that is meant: the folder of a project stands for the project's."""
    try:
        return path if "://" in path else (warehouse_of(Path(path).expanduser()) or path)
    except (RuntimeError, ValueError):
        return path  # no path at all, which is refused where it is opened


def standard_input() -> str:
    """Return what is piped in; raise `UnicodeError` if that is no text in UTF-8."""
    return checked_text(sys.stdin.read())


def checked_text(text: str) -> str:
    """Return text of a shell; raise `UnicodeError` if it is none: Python lets other bytes pass, as half characters that nobody can write again."""
    text.encode()
    return text


def reader(path: str) -> Warehouse:
    """Open a warehouse to read it, also while another process writes to it."""
    # A service answers readers and writers alike; what a handle may do there is a matter of its token.
    return open(path) if is_service(path) else _existing(path, read_only=True)


def _existing(path: str, *, read_only: bool = False) -> Warehouse:
    """Open a warehouse that is there; of a project that is new, say that there is none yet."""
    place = _warehouse(path)
    try:
        return open(place, create=False, read_only=read_only)
    except NotAWarehouse as error:
        if place != path and (error.context.get("nothing_there") or is_new(place)):
            raise NoWarehouseYet(project=Path(path).expanduser().absolute(), path=place) from error
        raise


def is_new(place: str) -> bool:
    """Tell whether nothing is there yet, so that a warehouse can be made."""
    folder = Path(place)
    try:
        return "://" not in place and (not folder.exists() or (folder.is_dir() and not any(folder.iterdir())))
    except OSError:
        return False  # whoever opens it says why it cannot be looked into


def writer(path: str) -> Warehouse:
    """Open an existing warehouse to change it; say what a crash before this has cost, since opening is what finds it."""
    begun_us = SystemClock().now_us()
    warehouse = _existing(path)
    for loss in warehouse.losses():
        if loss.found_us >= begun_us:
            commits = f"commit {loss.first}" if loss.first == loss.last else f"commits {loss.first} to {loss.last}"
            err().print(f"Lost in a crash, being in memory only: {commits} of source {loss.source!r}, {loss.rows:,} rows.", markup=False)
    return warehouse
