"""What the commands have in common: the folder, and how it is opened.

In: `--warehouse`.
Out: open warehouses.
Promise: no command here creates a warehouse; those that only read leave it to its writer.
"""

from typing import Annotated

import typer

from righttime.changes.clock import SystemClock
from righttime.cli.console import err
from righttime.client import Warehouse, open
from righttime.flight.warehouse import is_service

WarehousePath = Annotated[
    str,
    typer.Option(
        "--warehouse",
        "-w",
        metavar="PATH",
        envvar="RIGHTTIME_WAREHOUSE",
        show_default="the current folder",
        help="The warehouse: a folder, postgresql://… or righttime://…",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def reader(path: str) -> Warehouse:
    """Open a warehouse to read it, also while another process writes to it."""
    # A service answers readers and writers alike; what a handle may do there is a matter of its token.
    return open(path) if is_service(path) else open(path, create=False, read_only=True)


def writer(path: str) -> Warehouse:
    """Open an existing warehouse to change it; say what a crash before this has cost, since opening is what finds it."""
    begun_us = SystemClock().now_us()
    warehouse = open(path, create=False)
    for loss in warehouse.losses():
        if loss.found_us >= begun_us:
            commits = f"commit {loss.first}" if loss.first == loss.last else f"commits {loss.first} to {loss.last}"
            err().print(f"Lost in a crash, being in memory only: {commits} of source {loss.source!r}, {loss.rows:,} rows.", markup=False)
    return warehouse
